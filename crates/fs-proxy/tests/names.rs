//! Servers that are given by name, over loopback, on kernel sockets. Needs root, for an /etc/hosts
//! of its own.

mod common;

use common::*;
use fs_stacks::testing::{PATIENCE, Program, Signal, eventually};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;

/// Starts the program with these files as /etc/hosts and /etc/resolv.conf.
const WITH_FILES: &str =
    "mount --bind \"$1\" /etc/hosts && mount --bind \"$2\" /etc/resolv.conf && shift 2 && exec \"$@\"";

/// Starts a proxy with these files. Returns `None` if this user cannot.
fn start(config: &Path, hosts: &Path, resolv_conf: &Path) -> Option<Proxy> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root || !fs_stacks::testing::output("unshare", &["-m", "true"]).status.success() {
        println!("skipped: needs root, and a mount namespace");
        return None;
    }
    let [file, hosts, resolv_conf] = [config, hosts, resolv_conf].map(|path| path.to_str().unwrap());
    let args = ["-m", "sh", "-c", WITH_FILES, "-", hosts, resolv_conf, EXE, "--config", file];
    Some(Proxy { program: Program::start("unshare", &args), config: config.to_owned() })
}

fn at(address: &str, port: u16, name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((address, port)).unwrap();
    let addr = listener.local_addr().unwrap();
    serve(listener, move |stream| http_connection(stream, &|_: &Received| ok(name)));
    addr
}

#[test]
fn names_are_looked_up_again() {
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
    let Some(proxy) = start(&config, &hosts, Path::new("/etc/resolv.conf")) else { return };
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

/// A name server that is silent delays nothing else.
#[test]
fn lookups_do_not_delay_signals() {
    // An address of this test alone.
    let own = format!("127.77.{}.{}", std::process::id() >> 8 & 0xff, std::process::id() & 0xff);
    let Ok(silent) = UdpSocket::bind((&*own, 53)) else { return println!("skipped: needs root") };
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let server = at("127.0.0.1", 0, "server");
    let [hosts, resolv_conf, log] = ["hosts", "resolv.conf", "access.log"].map(temp_path);
    std::fs::write(&hosts, "127.0.0.1 web.test\n").unwrap();
    std::fs::write(&resolv_conf, format!("nameserver {own}\noptions timeout:30 attempts:1\n")).unwrap();
    let text = |path: &Path| {
        format!(
            "access_log = {path:?}\n[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"http\"\nupstream = \"u\"\n\
             [[upstream]]\nname = \"u\"\nservers = [\"web.test:{}\"]\nlookup_interval = \"50ms\"\n",
            server.port()
        )
    };
    let config = write_config(&text(&log));
    let Some(proxy) = start(&config, &hosts, &resolv_conf) else { return };
    std::fs::write(&hosts, "").unwrap();
    silent.recv_from(&mut [0; 512]).expect("the name is looked up");
    let renamed = temp_path("access.log.1");
    std::fs::rename(&log, &renamed).unwrap();
    proxy.program.signal(Signal::User1);
    eventually("the log is reopened", || log.exists());
    // A file with an address instead of the name is used too.
    std::fs::write(&config, text(&log).replace("web.test", "127.0.0.1")).unwrap();
    proxy.program.signal(Signal::HangUp);
    eventually("the file is in use", || proxy.program.log().contains("is in use;"));
    assert!(!proxy.program.log().contains("the previous addresses stay in use"), "{}", proxy.program.log());
    assert_eq!(body_of(&proxy.get("/")), "server");
    for file in [hosts, resolv_conf, log, renamed] {
        std::fs::remove_file(file).unwrap();
    }
}
