//! Servers that are given by name, over loopback, on kernel sockets. Needs root, for an /etc/hosts
//! of its own.

mod common;

use common::*;
use fs_stacks::testing::{Program, eventually};
use std::net::{SocketAddr, TcpListener};

/// Starts the program with this file as /etc/hosts.
const WITH_HOSTS: &str = "mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"";

fn at(address: &str, port: u16, name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((address, port)).unwrap();
    let addr = listener.local_addr().unwrap();
    serve(listener, move |stream| http_connection(stream, &|_: &Received| ok(name)));
    addr
}

#[test]
fn names_are_looked_up_again() {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let may_mount = || fs_stacks::testing::output("unshare", &["-m", "true"]).status.success();
    if !is_root || !may_mount() {
        println!("skipped: needs root, and a mount namespace");
        return;
    }
    let first = at("127.0.0.1", 0, "first");
    let second = at("127.0.0.2", first.port(), "second");
    let hosts = temp_path("hosts");
    let point = |addresses: &[SocketAddr]| {
        let lines: String = addresses.iter().map(|addr| format!("{} web.test\n", addr.ip())).collect();
        std::fs::write(&hosts, lines).unwrap();
    };
    point(&[first]);
    let config = write_config(&format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"http\"\nupstream = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = [\"web.test:{}\"]\nlookup_interval = \"50ms\"\n",
        first.port()
    ));
    let (file, hosts_file) = (config.to_str().unwrap(), hosts.to_str().unwrap());
    let program = Program::start("unshare", &["-m", "sh", "-c", WITH_HOSTS, "-", hosts_file, EXE, "--config", file]);
    let proxy = Proxy { program, config: config.clone() };
    let bodies = || (0..6).map(|_| body_of(&proxy.get("/")).to_owned()).collect::<std::collections::BTreeSet<_>>();
    assert!(bodies().into_iter().eq(["first"]));
    point(&[first, second]);
    eventually("both are used", || bodies().into_iter().eq(["first", "second"]));
    point(&[second]);
    eventually("only the second is used", || bodies().into_iter().eq(["second"]));
    // A name that is gone changes nothing, but is logged.
    point(&[]);
    eventually("it is logged", || proxy.program.log().contains("the previous addresses stay in use"));
    assert!(bodies().into_iter().eq(["second"]));
    std::fs::remove_file(hosts).unwrap();
}
