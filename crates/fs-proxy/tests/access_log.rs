//! Tests of the access log and the counters.

mod common;

use common::*;
use fs_stacks::testing::eventually;
use std::io::{BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A backend that responds with the head that it received.
fn mirror() -> std::net::SocketAddr {
    http_backend(|request| ok(&request.head))
}

#[test]
fn wrong_requests_are_refused_logged_and_counted() {
    let log = temp_path("access.log");
    let top = format!("access_log = {:?}\nmetrics = \"{}:0\"", log.to_str().unwrap(), proxy_ip());
    let proxy = Proxy::start("http", &[mirror()], &top, "");
    assert!(proxy.ask_bytes(b"GARBAGE\r\n\r\n").starts_with("HTTP/1.1 400"));
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(1001));
    assert!(proxy.ask_bytes(many.as_bytes()).starts_with("HTTP/1.1 431"));
    // The body is being sent when the head is refused. Its rest must not discard the client's
    // response.
    for _ in 0..20 {
        let head = b"POST / HTTP/1.1\r\nHost: x\r\nHost: y\r\nContent-Length: 300000\r\n\r\n";
        let answer = proxy.ask_bytes(&[&head[..], &vec![b'x'; 300_000]].concat());
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    eventually("all are counted", || proxy.metrics().contains("class=\"4xx\"} 22\n"));
    eventually("all are in the log", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.matches(" 400 - ").count() == 21 && text.matches(" 431 - ").count() == 1
    });
    std::fs::remove_file(&log).unwrap();
}

#[test]
fn log_has_the_configured_format() {
    for format in ["combined", "json"] {
        let log = temp_path("access.log");
        let top = format!("access_log = {:?}\naccess_log_format = \"{format}\"", log.to_str().unwrap());
        let proxy = Proxy::start("http", &[mirror()], &top, "");
        for end in ["HTTP/1.1\r\nConnection: close", "HTTP/1.0"] {
            proxy.ask(&format!("GET /x {end}\r\nHost: x\r\nReferer: http://r/\r\nUser-Agent: a\"b\r\n\r\n"));
        }
        proxy.ask_bytes(b"GARBAGE\r\n\r\n");
        let lines = || std::fs::read_to_string(&log).unwrap_or_default();
        eventually("all are logged", || lines().lines().count() == 3);
        let expected = match format {
            "combined" => [
                "\"GET /x HTTP/1.1\" 200 ",
                "\"GET /x HTTP/1.0\" 200 ",
                "\"http://r/\" \"a\\\"b\"",
                "] \"-\" 400 0 \"-\" \"-\"",
            ],
            _ => [
                "\"status\":200,\"method\":\"GET\",\"target\":\"/x\",\"version\":\"HTTP/1.1\"",
                "\"target\":\"/x\",\"version\":\"HTTP/1.0\"",
                "\"referer\":\"http://r/\",\"agent\":\"a\\\"b\"",
                "\"status\":400,\"method\":\"\",\"target\":\"\"",
            ],
        };
        for (part, times) in expected.into_iter().zip([1, 1, 2, 1]) {
            assert_eq!(lines().matches(part).count(), times, "{part}: {}", lines());
        }
        std::fs::remove_file(&log).unwrap();
    }
}

/// Each request has an id of its own, which its server and the log have, on both paths.
#[test]
fn request_has_an_id_and_servers_have_counters() {
    let log = temp_path("access.log");
    let top = format!(
        "access_log = {:?}\naccess_log_format = \"json\"\nmetrics = \"{}:0\"",
        log.to_str().unwrap(),
        proxy_ip()
    );
    let addr = mirror();
    let edits = "request_headers = { set = { X-Request-Id = \"{id}\", Forwarded = \"{forwarded}\" } }";
    let proxy = Proxy::start("http", &[addr], &top, edits);
    let mut ids = Vec::new();
    for version in ["1.1", "1.0"] {
        let request = format!("GET / HTTP/{version}\r\nHost: x\r\nX-Request-Id: mine\r\nConnection: close\r\n\r\n");
        let head = body_of(&proxy.ask(&request)).to_lowercase();
        assert!(head.contains(&format!("\r\nforwarded: for={};proto=http\r\n", own_ip())), "{head}");
        let id = head.split("x-request-id: ").nth(1).expect("an id").split("\r\n").next().unwrap_or_default();
        ids.push(id.to_owned());
    }
    assert!(ids[0] != ids[1] && !ids.contains(&"mine".to_owned()), "{ids:?}");
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("both are logged", || ids.iter().all(|id| lines().contains(&format!("\"id\":\"{id}\""))));
    for line in [
        format!("fs_proxy_server_answers_total{{upstream=\"u\",server=\"{addr}\",class=\"2xx\"}} 2"),
        format!("fs_proxy_server_latency_seconds_count{{upstream=\"u\",server=\"{addr}\"}} 2"),
    ] {
        eventually(&line, || proxy.metrics().lines().any(|found| found == line));
    }
    std::fs::remove_file(&log).unwrap();
}

/// A tunnel is logged when it ends, with its bytes.
#[test]
fn tunnel_is_logged_with_its_bytes() {
    let log = temp_path("access.log");
    let addr = backend(|stream| {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        read_request(&mut reader)?;
        writer.write_all(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")?;
        std::io::copy(&mut reader, &mut writer)?;
        writer.shutdown(std::net::Shutdown::Write)
    });
    let top = format!("access_log = {:?}\nmetrics = \"{}:0\"", log.to_str().unwrap(), proxy_ip());
    let proxy = Proxy::start("http", &[addr], &top, "");
    let mut stream = proxy.connect();
    stream.write_all(b"GET /t HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n").unwrap();
    stream.write_all(b"12345").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"12345") {
        let mut piece = [0; 512];
        let len = stream.read(&mut piece).unwrap();
        assert!(len > 0, "ended");
        answer.extend_from_slice(&piece[..len]);
    }
    eventually("it is counted, and the server has it", || {
        let metrics = proxy.metrics();
        let is_active = |line: &str| line.starts_with("fs_proxy_server_active") && line.ends_with(" 1");
        metrics.contains("class=\"1xx\"} 1\n") && metrics.lines().any(is_active)
    });
    // Longer than the maximum age of a log line.
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "");
    drop(stream);
    let line = |text: &str| text.contains(" 101 ") && text.contains("in=5 out=5") && text.ends_with("\"GET /t\"\n");
    eventually("it is in the log", || line(&std::fs::read_to_string(&log).unwrap_or_default()));
    std::fs::remove_file(&log).unwrap();
}

/// What a stop ends is logged too: a TCP connection, and a request on both paths.
#[test]
fn connections_that_a_stop_ends_are_logged() {
    let got = Arc::new(AtomicUsize::new(0));
    let counter = got.clone();
    // It takes all, and says nothing, or not all.
    let silent = backend(move |mut stream| {
        let mut piece = [0; 512];
        while let len @ 1.. = stream.read(&mut piece)? {
            if piece.starts_with(b"GET /begun") {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n1")?;
            }
            counter.fetch_add(len, Ordering::SeqCst);
        }
        Ok(())
    });
    for (mode, sent, logged) in [
        ("tcp", "12345", "in=5 out=0 "),
        ("http", "GET /lean HTTP/1.1\r\nHost: x\r\n\r\n", "\"GET /lean\"\n"),
        ("http", "GET /begun HTTP/1.1\r\nHost: x\r\n\r\n", " broken \"GET /begun\"\n"),
        ("http", "GET /odd HTTP/1.0\r\nHost: x\r\n\r\n", "\"GET /odd\"\n"),
    ] {
        let log = temp_path("access.log");
        let top = format!("access_log = {:?}\ntimeouts = {{ drain = \"100ms\" }}", log.to_str().unwrap());
        let mut proxy = Proxy::start(mode, &[silent], &top, "");
        let mut stream = proxy.connect();
        stream.write_all(sent.as_bytes()).unwrap();
        eventually("the server has it", || got.swap(0, Ordering::SeqCst) > 0);
        if sent.contains("begun") {
            stream.read_exact(&mut [0; 1]).unwrap();
        }
        proxy.terminate();
        assert!(proxy.program.wait().success());
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(text.lines().count() == 1 && text.contains(logged), "{mode}: {text}");
        std::fs::remove_file(&log).unwrap();
    }
}

/// A server that gives no response is named, and has the response that the client got instead.
#[test]
fn server_without_a_response_is_logged_and_counted() {
    let silent = backend(|mut stream| std::io::copy(&mut stream, &mut std::io::sink()).map(drop));
    for (server, status) in [(silent, 504), (nobody(), 502)] {
        let log = temp_path("access.log");
        let top = format!(
            "access_log = {:?}\nmetrics = \"{}:0\"\ntimeouts = {{ response = \"200ms\" }}",
            log.to_str().unwrap(),
            proxy_ip()
        );
        let proxy = Proxy::start("http", &[server], &top, "");
        for version in ["1.1", "1.0"] {
            let answer = proxy.ask(&format!("GET / HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n"));
            assert!(answer.contains(&format!(" {status} ")), "{answer}");
        }
        let line = format!(" {status} {server} ");
        eventually("both are logged", || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.matches(&line).count() == 2)
        });
        let count = format!("fs_proxy_server_answers_total{{upstream=\"u\",server=\"{server}\",class=\"5xx\"}} 2\n");
        eventually("both are counted", || proxy.metrics().contains(&count));
        std::fs::remove_file(&log).unwrap();
    }
}
