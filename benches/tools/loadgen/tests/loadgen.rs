//! Every mode against a small server in the test, over loopback on kernel sockets.

use fs_stacks::testing::output;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Output;
use std::thread;

const EXE: &str = env!("CARGO_BIN_EXE_fs-loadgen");

/// Accepts until the test's process ends, with a thread per connection.
fn server(serve: impl Fn(TcpStream) -> std::io::Result<()> + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            // The client may close at any time, and judges the result itself.
            thread::spawn(move || drop(serve(stream)));
        }
    });
    addr
}

fn http(answer: &'static str) -> SocketAddr {
    server(move |mut stream| {
        loop {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                request.push(byte[0]);
            }
            stream.write_all(answer.as_bytes())?;
            if String::from_utf8_lossy(&request).contains("Connection: close") || answer.contains("Connection: close") {
                return Ok(());
            }
        }
    })
}

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

fn run(addr: SocketAddr, args: &[&str]) -> Output {
    let addr = addr.to_string();
    output(EXE, &[&["--connect", &addr, "--seconds", "1", "--timeout", "5", "--json"], args].concat())
}

/// Returns the JSON report of a run that must succeed.
fn good(addr: SocketAddr, args: &[&str]) -> serde_json::Value {
    let output = run(addr, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["errors_total"], 0);
    assert!(json["cpu_seconds"].as_f64().unwrap() > 0.0 && json["peak_rss_bytes"].as_u64().unwrap() > 0);
    json
}

#[test]
fn short_mode_opens_a_connection_per_request() {
    let json = good(http(HELLO), &["--mode", "short", "--conns", "4", "--cores", "0,1", "--body", "5"]);
    assert!(json["requests"].as_u64().unwrap() > 10, "{json}");
    assert!(json["connections"].as_u64() >= json["requests"].as_u64(), "{json}");
    assert!(json["p50_us"].as_f64().unwrap() > 0.0 && json["p999_us"].as_f64() >= json["p50_us"].as_f64(), "{json}");
}

#[test]
fn keepalive_mode_reuses_connections() {
    let json = good(http(HELLO), &["--mode", "keepalive", "--conns", "3"]);
    assert_eq!(json["connections"], 3);
    assert!(json["requests"].as_u64().unwrap() > 10, "{json}");
}

/// A server that announces the end of the connection and keeps it open.
#[test]
fn connection_that_does_not_end_is_an_error() {
    let at = server(|mut stream| {
        stream.read_exact(&mut [0; 30])?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello")?;
        loop {
            thread::park();
        }
    });
    let at = at.to_string();
    let output = output(EXE, &["--connect", &at, "--seconds", "2", "--timeout", "1", "--json", "--mode", "keepalive"]);
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn rate_bounds_the_requests() {
    for mode in ["keepalive", "short"] {
        let json = good(http(HELLO), &["--mode", mode, "--conns", "3", "--rate", "20"]);
        // The one at the start, and one each 50 ms.
        assert!((1..=21).contains(&json["requests"].as_u64().unwrap()), "{mode}: {json}");
    }
}

/// Times that were due and not served are dropped.
#[test]
fn paced_load_ends_at_its_end() {
    for mode in ["keepalive", "short"] {
        good(http(HELLO), &["--mode", mode, "--conns", "2", "--rate", "1000000"]);
    }
}

#[test]
fn keepalive_mode_opens_another_connection_after_one_that_the_server_closes() {
    let closing = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";
    let json = good(http(closing), &["--mode", "keepalive", "--conns", "3"]);
    assert!(json["requests"].as_u64().unwrap() > 3, "{json}");
    assert!(json["connections"].as_u64() >= json["requests"].as_u64(), "{json}");
}

#[test]
fn pingpong_mode_reads_its_bytes_back() {
    let echo = server(|mut stream| std::io::copy(&mut stream.try_clone()?, &mut stream).map(drop));
    let json = good(echo, &["--mode", "pingpong", "--body", "100000"]);
    assert_eq!(json["bytes"].as_u64().unwrap() % 100_000, 0);
    assert!(json["requests"].as_u64().unwrap() > 1, "{json}");
}

#[test]
fn pingpong_mode_detects_a_wrong_byte() {
    let liar = server(|mut stream| {
        let mut message = [0; 64];
        stream.read_exact(&mut message)?;
        message[40] ^= 1;
        stream.write_all(&message)?;
        stream.read_exact(&mut [0])
    });
    let output = run(liar, &["--mode", "pingpong"]);
    assert!(!output.status.success());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["errors"]["wrong_bytes"].as_u64().unwrap() > 0, "{json}");
}

#[test]
fn bulk_mode_moves_bytes_in_both_directions() {
    let sink = server(|mut stream| std::io::copy(&mut stream, &mut std::io::sink()).map(drop));
    let json = good(sink, &["--mode", "bulk", "--conns", "2"]);
    assert!(json["bytes"].as_u64().unwrap() > 1 << 20, "{json}");
    let source = server(|mut stream| {
        loop {
            stream.write_all(&[7; 65536])?;
        }
    });
    let json = good(source, &["--mode", "bulk", "--reverse"]);
    assert!(json["gigabits_per_second"].as_f64().unwrap() > 0.0, "{json}");
}

#[test]
fn hold_mode_asks_every_connection_twice() {
    let json = good(http(HELLO), &["--hold", "--conns", "200", "--cores", "0,1", "--source", "127.0.0.2-127.0.0.5"]);
    assert_eq!(json["connections"], 200);
    assert_eq!(json["requests"], 400);
}

#[test]
fn errors_are_counted_by_kind_and_set_the_status() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = run(closed, &["--mode", "short"]);
    assert!(!output.status.success());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["errors"]["refused"].as_u64().unwrap() > 0, "{json}");
    assert!(run(closed, &["--mode", "short", "--allow-errors"]).status.success());

    let broken = http("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n");
    let output = run(broken, &["--mode", "keepalive"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!output.status.success() && json["errors"]["status"].as_u64().unwrap() > 0, "{json}");
}

#[test]
fn silent_server_is_an_error_and_the_run_ends() {
    let silent = server(|mut stream| std::io::copy(&mut stream, &mut std::io::sink()).map(drop));
    let addr = silent.to_string();
    let output = output(EXE, &["--connect", &addr, "--seconds", "1", "--timeout", "0.3", "--json"]);
    assert!(!output.status.success());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["errors"]["timeout"].as_u64().unwrap() > 0, "{json}");
}

#[test]
fn invalid_options_are_refused() {
    for args in [&["--conns", "0"][..], &["--seconds", "0"], &["--path", "x y"], &["--source", "::1"], &["--reverse"]] {
        let args = [&["--connect", "127.0.0.1:1"], args].concat();
        assert!(!output(EXE, &args).status.success(), "{args:?}");
    }
}
