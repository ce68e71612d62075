//! The programs of docs/SEND.md, which name only `fastsock` and the framework. Each serves as an
//! ordinary user on a machine without a device.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const INNER: &str = "FASTSOCK_SEND_INNER";
const LIMIT: Duration = Duration::from_secs(60);

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _gone = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn programs_equal_the_page() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(here.join("../../docs/SEND.md")).unwrap();
    let blocks: Vec<&str> = page
        .split("```rust")
        .skip(1)
        .map(|rest| rest.split_once('\n').unwrap().1.split("```").next().unwrap())
        .collect();
    let programs = ["send-axum", "send-core"].map(|name| {
        let text = std::fs::read_to_string(here.join(format!("src/bin/{name}.rs"))).unwrap();
        text.split_once("\n\n").unwrap().1.to_owned()
    });
    assert_eq!(blocks, programs);
}

/// Runs this test again, in a user namespace without rights to the machine's devices and a network
/// namespace without devices. Returns true there.
fn inside(test: &str) -> bool {
    if std::env::var_os(INNER).is_some() {
        return true;
    }
    let inner = format!("ip link set lo up && exec \"$0\" {test} --exact --nocapture");
    let program = std::env::current_exe().unwrap();
    let run = Command::new("unshare").args(["-rn", "sh", "-c", &inner]).arg(program).env(INNER, "1").output();
    let output = run.expect("unshare, of util-linux");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    false
}

/// Starts a program and connects to it.
fn started(program: &str) -> (Killed, TcpStream) {
    let server = Killed(Command::new(program).stdin(Stdio::null()).spawn().unwrap());
    let begun = Instant::now();
    loop {
        match TcpStream::connect("127.0.0.1:3000") {
            Ok(stream) => {
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                return (server, stream);
            }
            Err(error) => assert!(begun.elapsed() < LIMIT, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn axum_server_answers_and_ends_on_sigterm() {
    if !inside("axum_server_answers_and_ends_on_sigterm") {
        return;
    }
    let (mut server, mut stream) = started(env!("CARGO_BIN_EXE_send-axum"));
    stream.write_all(b"GET / HTTP/1.1\r\nhost: it\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("Hello, World!"), "{answer}");
    assert!(Command::new("kill").arg(server.0.id().to_string()).status().unwrap().success());
    let begun = Instant::now();
    loop {
        if let Some(status) = server.0.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return;
        }
        assert!(begun.elapsed() < LIMIT, "it goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn server_on_a_core_speaks_http2() {
    if !inside("server_on_a_core_speaks_http2") {
        return;
    }
    let (_server, mut stream) = started(env!("CARGO_BIN_EXE_send-core"));
    // The preface, and SETTINGS without a setting (RFC 9113, 3.4 and 6.5): the server begins with
    // its own SETTINGS.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut frame = [0; 9];
    stream.read_exact(&mut frame).unwrap();
    assert_eq!((frame[3], &frame[5..]), (4, &[0; 4][..]), "{frame:?}");
}
