//! TLS with clients, over loopback, on kernel sockets.

mod common;
#[path = "common/identity.rs"]
mod identity;

use common::*;
use fs_stacks::testing::{PATIENCE, Signal, eventually, output};
use identity::{Identity, Tls, metric};
use rustls::version;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Sends a request on a kept connection and reads the response's body.
fn ask(stream: &mut BufReader<Tls>, request: &[u8]) -> Vec<u8> {
    stream.get_mut().write_all(request).unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).unwrap() > 0, "ended in the head: {head}");
    }
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    body
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn kept_connection_gets_its_responses_and_the_server_sees_https() {
    let identity = Identity::new();
    let proxy = identity.start("http", http_backend(|request| ok(&request.head)), "");
    for version in [&version::TLS12, &version::TLS13] {
        let mut stream = BufReader::new(identity.connect_with(&proxy, &[version]));
        for pause in [0, 0, 300, 0] {
            // In a long pause the connection frees hyper's state.
            std::thread::sleep(Duration::from_millis(pause));
            let seen = String::from_utf8(ask(&mut stream, GET)).unwrap().to_lowercase();
            assert!(seen.contains("x-forwarded-proto: https\r\n"), "{seen}");
        }
    }
    assert_eq!(identity.get(&proxy).unwrap().lines().next(), Some("GET / HTTP/1.1"));
    assert_eq!(metric(&proxy, "fs_proxy_tls_handshakes_total"), 3);
    assert_eq!(metric(&proxy, "fs_proxy_tls_handshakes_failed_total"), 0);
}

#[test]
fn bodies_arrive_whole_in_both_directions() {
    let identity = Identity::new();
    let proxy = identity.start("http", http_backend(|request| ok(&request.body)), "");
    let mut stream = BufReader::new(identity.connect(&proxy));
    for length in [1, 16_384, 65_537, 4 << 20] {
        let body = pattern(length);
        let head = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        assert!(ask(&mut stream, &[head.as_bytes(), &body].concat()) == body, "{length}");
    }
}

#[test]
fn half_close_is_passed_on_by_close_notify() {
    let identity = Identity::new();
    let reverse = backend(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all)?;
        stream.write_all(b"got:")?;
        stream.write_all(&all)?;
        stream.shutdown(Shutdown::Write)
    });
    let proxy = identity.start("tcp", reverse, "");
    for length in [0, 1, 65_537, 4 << 20] {
        let body = pattern(length);
        let mut stream = identity.connect(&proxy);
        stream.write_all(&body).unwrap();
        stream.flush().unwrap();
        stream.conn.send_close_notify();
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock).unwrap();
        }
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got.starts_with(b"got:") && got[4..] == body, "{length}: {}", got.len());
    }
}

/// Anyone on the network may have truncated a connection that ends without close_notify, so it is
/// no end of the stream.
#[test]
fn truncation_is_passed_on_as_a_reset() {
    let identity = Identity::new();
    let (sender, ends) = std::sync::mpsc::channel();
    let server = backend(move |mut stream| {
        let end = stream.read_to_end(&mut Vec::new());
        sender.send(end.map_err(|error| error.kind())).unwrap();
        Ok(())
    });
    let proxy = identity.start("tcp", server, "");
    let mut stream = identity.connect(&proxy);
    stream.write_all(b"half a messa").unwrap();
    stream.sock.shutdown(Shutdown::Write).unwrap();
    assert_eq!(ends.recv_timeout(PATIENCE).unwrap(), Err(ErrorKind::ConnectionReset));
}

#[test]
fn idle_connection_gets_close_notify() {
    let identity = Identity::new();
    let proxy = identity.start("http", http_backend(|_| ok("answer")), "timeouts = { idle = \"5s\" }");
    let mut stream = BufReader::new(identity.connect(&proxy));
    assert_eq!(ask(&mut stream, GET), b"answer");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "an end without close_notify is an error");
}

/// Pieces of a record are no request, however many arrive, so the idle time continues.
#[test]
fn pieces_of_a_record_keep_no_connection_open() {
    let identity = Identity::new();
    let proxy = identity.start("http", http_backend(|_| ok("answer")), "timeouts = { idle = \"5s\" }");
    let mut stream = BufReader::new(identity.connect(&proxy));
    assert_eq!(ask(&mut stream, GET), b"answer");
    let mut sock = stream.into_inner().sock;
    sock.set_read_timeout(Some(Duration::from_millis(250))).unwrap();
    // The head of a record of 16,384 bytes, then one byte at a time.
    let mut piece = &b"\x17\x03\x03\x40\x00"[..];
    let is_closed = (0..160).any(|_| {
        let sent = sock.write_all(std::mem::replace(&mut piece, b"x"));
        let end = sock.read(&mut [0; 100]);
        sent.is_err() || !end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    });
    assert!(is_closed, "open after 40 s");
    eventually("nothing is left open", || metric(&proxy, "fs_proxy_connections_open") == 0);
}

/// A client that must close for another gets close_notify: an end without it would be an error.
#[test]
fn replaced_client_gets_close_notify() {
    let identity = Identity::new();
    let config = write_config(&identity.listener("http", http_backend(|_| ok("answer")), ""));
    let proxy = Proxy { program: start_limited(&config, 300), config };
    for pause in [0, 500] {
        let mut stream = BufReader::new(identity.connect(&proxy));
        assert_eq!(ask(&mut stream, GET), b"answer");
        // After a while hyper's state is freed.
        std::thread::sleep(Duration::from_millis(pause));
        let _others: Vec<_> = (0..300).map(|_| proxy.connect()).collect();
        assert_eq!(stream.read(&mut [0]).expect("an end with close_notify"), 0);
    }
    assert!(metric(&proxy, "fs_proxy_connections_evicted_total") > 2);
}

/// As a load balancer's check that only tests whether the port is open.
#[test]
fn client_without_a_byte_has_started_no_handshake() {
    let identity = Identity::new();
    for mode in ["http", "tcp"] {
        let proxy = identity.start(mode, http_backend(|_| ok("answer")), "");
        (0..3).for_each(|_| drop(proxy.connect()));
        eventually("they are accepted", || metric(&proxy, "fs_proxy_connections_total") == 3);
        eventually("nothing is left open", || metric(&proxy, "fs_proxy_connections_open") == 0);
        assert_eq!(metric(&proxy, "fs_proxy_tls_handshakes_failed_total"), 0);
        assert_eq!(metric(&proxy, "fs_proxy_connections_failed_total"), 0);
    }
}

#[test]
fn client_without_tls_gets_an_alert() {
    let identity = Identity::new();
    for mode in ["http", "tcp"] {
        let proxy = identity.start(mode, http_backend(|_| ok("answer")), "");
        let mut stream = proxy.connect();
        stream.write_all(GET).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        // RFC 8446 5.1: a record of type alert (21).
        assert_eq!((answer.first(), answer.len()), (Some(&21), 7), "{answer:?}");
        eventually("it is counted", || metric(&proxy, "fs_proxy_tls_handshakes_failed_total") == 1);
        eventually("the connection too", || metric(&proxy, "fs_proxy_connections_failed_total") == 1);
        let mut stream = BufReader::new(identity.connect(&proxy));
        assert_eq!(ask(&mut stream, GET), b"answer");
    }
}

#[test]
fn incomplete_handshake_is_ended() {
    let identity = Identity::new();
    let proxy = identity.start("http", http_backend(|_| ok("answer")), "timeouts = { idle = \"3s\" }");
    // Nothing, and the start of a ClientHello's record.
    let streams = [&b""[..], b"\x16\x03\x01\x02\x00\x01"].map(|start| {
        let mut stream = proxy.connect();
        stream.write_all(start).unwrap();
        stream
    });
    for mut stream in streams {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    eventually("both are counted", || metric(&proxy, "fs_proxy_tls_handshakes_failed_total") == 2);
    eventually("nothing is left open", || metric(&proxy, "fs_proxy_connections_open") == 0);
    assert_eq!(identity.get(&proxy).unwrap(), "answer");
}

#[test]
fn stop_does_not_wait_for_silent_clients() {
    let identity = Identity::new();
    let mut proxy = identity.start("http", http_backend(|_| ok("answer")), "timeouts = { drain = \"60s\" }");
    let mut stream = proxy.connect();
    eventually("it is accepted", || metric(&proxy, "fs_proxy_connections_open") == 1);
    proxy.program.terminate();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert!(proxy.program.wait().success());
}

#[test]
fn new_certificate_is_used_after_sighup_and_an_invalid_one_is_not() {
    let mut identity = Identity::new();
    let proxy = identity.start("http", http_backend(|_| ok("answer")), "");
    let reloads = |what: &str| proxy.program.log().matches(what).count();
    let mut kept = BufReader::new(identity.connect(&proxy));
    assert_eq!(ask(&mut kept, GET), b"answer");
    let old = identity.der.clone();
    identity.renew();
    assert!(identity.get(&proxy).is_err(), "files alone change nothing");
    proxy.program.signal(Signal::HangUp);
    eventually("the new configuration is in use", || reloads("is in use;") == 1);
    assert_eq!(identity.get(&proxy).unwrap(), "answer");
    assert_eq!(ask(&mut kept, GET), b"answer");
    assert_ne!(identity.der, old);

    let key = std::fs::read(&identity.key).unwrap();
    let other = Identity::new();
    std::fs::copy(&other.key, &identity.key).unwrap();
    proxy.program.signal(Signal::HangUp);
    eventually("the error is logged", || reloads("nothing has changed") == 1);
    proxy.program.says("the key is not the certificate's");
    assert_eq!(identity.get(&proxy).unwrap(), "answer");
    std::fs::write(&identity.key, key).unwrap();

    // Opening a FIFO waits for a writer.
    std::fs::remove_file(&other.key).unwrap();
    std::fs::rename(&identity.key, &other.key).unwrap();
    make_fifo(&identity.key);
    proxy.program.signal(Signal::HangUp);
    eventually("the FIFO is refused", || reloads("nothing has changed") == 2);
    proxy.program.says("no regular file");
    std::fs::rename(&other.key, &identity.key).unwrap();
    proxy.program.signal(Signal::HangUp);
    eventually("mended", || reloads("is in use;") == 2);
    assert_eq!(identity.get(&proxy).unwrap(), "answer");
}

fn make_fifo(path: &PathBuf) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn unusable_files_are_refused_with_line_cause_and_remedy() {
    let identity = Identity::new();
    let other = Identity::new();
    let refused = |certificate: &PathBuf, key: &PathBuf, words: [&str; 2]| {
        let text = identity.listener("http", nobody(), "");
        let text = text.replace(identity.certificate.to_str().unwrap(), certificate.to_str().unwrap());
        let config = write_config(&text.replace(identity.key.to_str().unwrap(), key.to_str().unwrap()));
        for check in [&[][..], &["--check"]] {
            let out = output(EXE, &[&["--config", config.to_str().unwrap()], check].concat());
            let said = String::from_utf8(out.stderr).unwrap();
            assert!(!out.status.success() && said.contains("line 7: tls: "), "{said}");
            assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        }
        std::fs::remove_file(config).unwrap();
    };
    let config = write_config(&identity.listener("http", nobody(), ""));
    let out = output(EXE, &["--check", "--config", config.to_str().unwrap()]);
    std::fs::remove_file(config).unwrap();
    // The check opens no sockets, which would be logged.
    assert!(out.status.success() && out.stdout.is_empty(), "{out:?}");
    let nowhere = PathBuf::from("/nonexistent/file.pem");
    let name = |path: &PathBuf| path.to_str().unwrap().to_owned();
    refused(&nowhere, &identity.key, ["certificate /nonexistent/file.pem: No such file", "name a PEM file"]);
    refused(&identity.certificate, &nowhere, ["key /nonexistent/file.pem: No such file", "name a PEM file"]);
    let fifo = temp_path("fifo");
    make_fifo(&fifo);
    refused(&fifo, &identity.key, [&name(&fifo), "no regular file"]);
    refused(&identity.certificate, &fifo, [&name(&fifo), "no regular file"]);
    std::fs::remove_file(&fifo).unwrap();
    refused(&identity.key, &identity.key, [&name(&identity.key), "no certificate in it"]);
    refused(&identity.certificate, &identity.certificate, [&name(&identity.certificate), "nothing of the kind in it"]);
    refused(&identity.certificate, &other.key, [&name(&other.key), "name the key that the certificate was made with"]);
}
