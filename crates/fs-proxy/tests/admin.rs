//! The admin socket, `fs-proxy top`, and the status page. Over loopback on kernel sockets.

mod common;

use common::*;
use fs_stacks::testing::{PATIENCE, Signal, eventually, output};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn start(servers: &[SocketAddr], admin: &Path, more: &str) -> Proxy {
    let top = format!("admin = {admin:?}\nmetrics = \"127.0.0.1:0\"");
    let proxy = Proxy::start("http", servers, &top, more);
    let answers = || std::os::unix::net::UnixStream::connect(admin).is_ok();
    eventually("the socket is there", answers);
    proxy
}

/// Runs `fs-proxy`. Returns its output, or its error.
fn run(args: &[&str]) -> Result<String, String> {
    let output = output(EXE, args);
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

fn served_by(proxy: &Proxy, times: usize) -> Vec<String> {
    let mut served: Vec<String> = (0..times).map(|_| body_of(&proxy.get("/")).to_owned()).collect();
    served.sort_unstable();
    served.dedup();
    served
}

#[test]
fn servers_are_drained_and_restored_at_run_time() {
    let [one, two] = ["one", "two"].map(|name| http_backend(move |_| ok(name)));
    let path = temp_path("admin.sock");
    let mut proxy = start(&[one, two], &path, "");
    let socket = path.to_str().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(served_by(&proxy, 6), ["one", "two"]);
    let admin = |args: &[&str]| run(&[&["admin", "--socket", socket], args].concat());
    let table = admin(&["status"]).unwrap();
    let row = |table: &str, server: SocketAddr| {
        let row = table.lines().find(|line| line.contains(&server.to_string())).unwrap_or_else(|| panic!("{table}"));
        row.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row(&table, one)[..6], ["u", &one.to_string(), "up", "1", "0", "3"]);
    // One server gets nothing new, also after a reload that leaves its weight, until it is restored.
    assert_eq!(admin(&["drain", "u", &one.to_string()]).unwrap(), "weight 0\n");
    assert_eq!(served_by(&proxy, 6), ["two"]);
    assert_eq!(row(&admin(&["status"]).unwrap(), one)[2..4], ["drained", "0"]);
    proxy.program.signal(Signal::HangUp);
    proxy.program.says("is in use;");
    assert_eq!(served_by(&proxy, 6), ["two"]);
    assert_eq!(admin(&["restore", "u", &one.to_string()]).unwrap(), "weight 1\n");
    assert_eq!(served_by(&proxy, 6), ["one", "two"]);
    assert_eq!(admin(&["weight", "u", &two.to_string(), "3"]).unwrap(), "weight 3\n");
    let json = admin(&["status", "--json"]).unwrap();
    assert!(json.contains("\"weight\":3,\"configured_weight\":1"), "{json}");
    // A file with another weight decides.
    let text = std::fs::read_to_string(&proxy.config).unwrap();
    let other = text.replace(&format!("\"{two}\""), &format!("{{ address = \"{two}\", weight = 2 }}"));
    std::fs::write(&proxy.config, other).unwrap();
    proxy.program.signal(Signal::HangUp);
    eventually("it is in use", || row(&admin(&["status"]).unwrap(), two)[3] == "2");
    // All servers are healthy, so health is not the reason.
    for server in [one, two] {
        admin(&["drain", "u", &server.to_string()]).unwrap();
    }
    assert!(proxy.get("/").starts_with("HTTP/1.1 502 "));
    proxy.program.says("upstream u: no usable server");
    for server in [one, two] {
        admin(&["restore", "u", &server.to_string()]).unwrap();
    }
    for (wrong, word) in [
        (&["drain", "x", "10.0.0.1:1"][..], "no upstream is named `x`"),
        (&["drain", "u", "10.0.0.1:1"], "no server 10.0.0.1:1"),
        (&["weight", "u", "10.0.0.1:1", "1001"], "0 to 1000"),
    ] {
        let error = admin(wrong).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
    let top = run(&["top", "--socket", socket, "--times", "1"]).unwrap();
    assert!(top.contains("answers/s") && row(&top, one)[2] == "up", "{top}");
    proxy.program.terminate();
    assert!(proxy.program.wait().success());
    let error = run(&["admin", "--socket", socket, "status"]).unwrap_err();
    assert!(error.contains(socket), "{error}");
    // A stale socket is replaced, and another file is not.
    let again = start(&[one], &path, "");
    assert!(admin(&["status"]).unwrap().contains(&one.to_string()));
    drop(again);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    let config = write_config(&format!(
        "admin = {path:?}\n[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"http\"\nupstream = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = [\"{one}\"]\n"
    ));
    let error = run(&["--config", config.to_str().unwrap()]).unwrap_err();
    assert!(error.contains("no socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&config).unwrap();
}

/// A second process with the same file, for example, whose cores find the port in use.
#[test]
fn process_that_cannot_serve_leaves_the_socket_of_another_one() {
    let path = temp_path("admin.sock");
    let proxy = start(&[http_backend(|_| ok("one"))], &path, "");
    let text = std::fs::read_to_string(&proxy.config).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("address = \"{}\"", taken.local_addr().unwrap());
    let config = write_config(&text.replace("address = \"127.0.0.1:0\"", &address));
    // The cores fail while the first thread goes on.
    for _ in 0..20 {
        let error = run(&["--config", config.to_str().unwrap()]).unwrap_err();
        assert!(error.contains("Address already in use"), "{error}");
        assert!(run(&["admin", "--socket", path.to_str().unwrap(), "status"]).unwrap().contains("up"));
    }
    std::fs::remove_file(&config).unwrap();
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn commands_of_any_bytes_do_no_harm() {
    let one = http_backend(|_| ok("one"));
    let path = temp_path("admin.sock");
    let proxy = start(&[one], &path, "");
    for bytes in [&b"\xff\xfe\n"[..], b"", b"weight\n", b"weight u\n", &[b'x'; 100_000], b"status status\n"] {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        // The process may have closed before everything is sent.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("error: "), "{answer}");
    }
    let status = run(&["admin", "--socket", path.to_str().unwrap(), "status"]).unwrap();
    assert!(status.contains(&one.to_string()));
    assert_eq!(body_of(&proxy.get("/")), "one");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn status_page_is_for_a_browser() {
    let one = http_backend(|_| ok("one"));
    let path = temp_path("admin.sock");
    let proxy = start(&[one], &path, "");
    proxy.get("/");
    let mut stream = TcpStream::connect(proxy.program.metrics.unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("content-type: text/html"), "{page}");
    assert!(page.contains(&format!("<td>{one}</td><td>up</td>")), "{page}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn socket_answers_again_after_too_many_open_files() {
    let path = temp_path("admin.sock");
    let proxy = start(&[http_backend(|_| ok("one"))], &path, "");
    let status = || run(&["admin", "--socket", path.to_str().unwrap(), "status"]);
    let limit = |files: &str| {
        let pid = proxy.program.id().to_string();
        let said = output("prlimit", &["--pid", &pid, &format!("--nofile={files}:")]);
        assert!(said.status.success(), "{said:?}");
    };
    assert!(status().unwrap().contains("up"));
    limit("3");
    let _waiting = std::os::unix::net::UnixStream::connect(&path).unwrap();
    proxy.program.says("admin socket: ");
    limit("1000");
    eventually("it answers", || status().is_ok());
    std::fs::remove_file(&path).unwrap();
}
