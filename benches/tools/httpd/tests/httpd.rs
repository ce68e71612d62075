//! Over loopback, on kernel sockets.

use fs_stacks::testing::{PATIENCE, Program, eventually, output};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

const EXE: &str = env!("CARGO_BIN_EXE_fs-httpd");

fn start(extra: &[&str]) -> Program {
    Program::start(EXE, &[&["--listen", "127.0.0.1:0"], extra].concat())
}

fn connect(program: &Program) -> TcpStream {
    let stream = TcpStream::connect(program.addrs[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn body_has_its_length_and_connection_stays() {
    let program = start(&["--body", "1000", "--cores", "0,1"]);
    let mut stream = connect(&program);
    for _ in 0..3 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        assert!(head.starts_with("http/1.1 200") && head.contains("content-length: 1000"), "{head}");
        let mut body = vec![0; 1000];
        stream.read_exact(&mut body).unwrap();
        assert!(body.iter().all(|&byte| byte == b'x'));
    }
    let last = ask(&mut stream, "HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(last.starts_with("HTTP/1.1 200") && last.ends_with("\r\n\r\n"), "{last}");
}

#[test]
fn stats_count_open_connections() {
    let program = start(&["--idle-shrink", "10"]);
    let idle: Vec<_> = (0..50).map(|_| connect(&program)).collect();
    eventually("50 idle connections and this one", || {
        let stats = ask(&mut connect(&program), "GET /stats HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stats.contains("\"connections_open\":51,")
    });
    drop(idle);
    eventually("only this connection", || {
        let stats = ask(&mut connect(&program), "GET /stats HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stats.contains("\"connections_open\":1,")
    });
}

#[test]
fn other_methods_are_refused() {
    let program = start(&[]);
    let request = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
    assert!(ask(&mut connect(&program), request).starts_with("HTTP/1.1 405"));
}

#[test]
fn tls_serves_the_same() {
    let program = start(&["--tls", "--body", "5"]);
    let url = format!("https://{}/", program.addrs[0]);
    let curl = Command::new("curl").args(["-sk", "--max-time", "20", &url, &url]).output().expect("curl is installed");
    assert!(curl.status.success(), "{curl:?}");
    assert_eq!(curl.stdout, b"xxxxxxxxxx");
}

#[test]
fn bad_certificate_is_an_error() {
    let result = output(EXE, &["--tls", "--cert", "/dev/null", "--key", "/dev/null", "--listen", "127.0.0.1:0"]);
    assert!(!result.status.success());
    assert!(String::from_utf8_lossy(&result.stderr).contains("/dev/null"));
}

#[test]
fn sigterm_ends_it_with_connections_open() {
    let mut program = start(&["--print-memory"]);
    let _open = connect(&program);
    program.terminate();
    assert!(program.wait().success());
}
