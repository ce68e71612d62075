//! HTTP/2 with TLS clients, over loopback, on kernel sockets.
#![cfg(feature = "http2")]

mod common;
#[path = "common/http2.rs"]
mod http2;
#[path = "common/identity.rs"]
mod identity;

use common::*;
use fs_stacks::testing::{Signal, eventually};
use http_body_util::BodyExt;
use http2::{GOAWAY, RST_STREAM, Sender, body, connect, frame, get, open, preface, request, run};
use identity::Identity;
use std::io::{BufReader, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn requests_share_a_connection_and_reach_the_server_as_http1() {
    let identity = Identity::new();
    let addr = http_backend(|request| ok([request.head.as_bytes(), &request.body].concat()));
    let proxy = identity.start("http", addr, "");
    run(async {
        let (sender, _connection) = open(&identity, proxy.addr()).await;
        let requests = (0..50_usize).map(|number| {
            let (mut sender, length) = (sender.clone(), number * number * 97);
            tokio::spawn(async move {
                sender.ready().await.unwrap();
                let mut request = request(&format!("/{number}?q"), pattern(length));
                for cookie in ["a=1", "b=2"] {
                    request.headers_mut().append("cookie", cookie.parse().unwrap());
                }
                let response = sender.send_request(request).await.unwrap();
                assert_eq!(
                    (response.status().as_u16(), response.headers()["via"].as_bytes()),
                    (200, &b"1.1 fs-proxy"[..])
                );
                let (seen, _) = body(response).await;
                let head = String::from_utf8_lossy(&seen[..seen.len() - length]).to_lowercase();
                assert!(seen.ends_with(&pattern(length)), "{number}");
                assert!(head.starts_with(&format!("post /{number}?q http/1.1\r\n")), "{head}");
                for line in ["host: a.example", "cookie: a=1; b=2", "x-forwarded-proto: https", "via: 2 fs-proxy"] {
                    assert_eq!(head.matches(&format!("\r\n{line}\r\n")).count(), 1, "{line}: {head}");
                }
            })
        });
        for request in requests.collect::<Vec<_>>() {
            request.await.unwrap();
        }
    });
    assert_eq!(identity::metric(&proxy, "fs_proxy_tls_handshakes_total"), 1);
}

#[test]
fn trailers_pass_and_broken_responses_are_reset() {
    let identity = Identity::new();
    let addr = backend(|stream| {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = read_request(&mut reader)? {
            let start = "HTTP/1.1 200 OK\r\nTrailer: grpc-status\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
            writer.write_all(start.as_bytes())?;
            if request.head.starts_with("POST /broken") {
                return Ok(());
            }
            writer.write_all(b"0\r\ngrpc-status: 0\r\n\r\n")?;
        }
        Ok(())
    });
    let proxy = identity.start("http", addr, "");
    run(async {
        let (mut sender, _connection) = open(&identity, proxy.addr()).await;
        let response = sender.send_request(request("/", Vec::new())).await.unwrap();
        let (bytes, trailers) = body(response).await;
        assert_eq!((&bytes[..], trailers.unwrap()["grpc-status"].as_bytes()), (&b"abc"[..], &b"0"[..]));
        let response = sender.send_request(request("/broken", Vec::new())).await.unwrap();
        assert!(response.into_body().collect().await.is_err());
        // Only that stream.
        let response = sender.send_request(request("/", Vec::new())).await.unwrap();
        assert_eq!(body(response).await.0, b"abc");
    });
}

/// RFC 9110 9.3.2. A client takes a body for an error of the stream.
#[test]
fn own_answers_to_head_have_no_body() {
    let identity = Identity::new();
    let routes = "[[listener.route]]\npaths = [\"/old\"]\nredirect = \"https://new.example/\"\n\
                  [[listener.route]]\npaths = [\"/dead\"]\nupstream = \"u\"\n[[upstream]]";
    let text = identity.listener("http", nobody(), "").replace("upstream = \"u\"\ntls", "tls");
    let config = write_config(&text.replace("[[upstream]]", routes));
    let proxy = Proxy { program: start_program(&config), config };
    run(async {
        let (mut sender, _connection) = open(&identity, proxy.addr()).await;
        for (path, status, length) in [("/old", 308, "23"), ("/dead", 502, "31"), ("/", 404, "31")] {
            let mut request = request(path, Vec::new());
            *request.method_mut() = http::Method::HEAD;
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(
                (response.status().as_u16(), &response.headers()["content-length"]),
                (status, &length.parse::<http::HeaderValue>().unwrap())
            );
            assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty(), "{path}");
        }
    });
}

#[test]
fn clients_choose_and_the_configuration_can_refuse() {
    let identity = Identity::new();
    let addr = http_backend(|_| ok("yes"));
    let proxy = identity.start("http", addr, "");
    let text = identity.listener("http", addr, "").replace("tls = {", "tls = { http2 = false,");
    let config = write_config(&text);
    let without = Proxy { program: start_program(&config), config };
    run(async {
        assert_eq!(connect(&identity, proxy.addr(), &["http/1.1"]).await.1.as_deref(), Some(&b"http/1.1"[..]));
        assert_eq!(connect(&identity, proxy.addr(), &[]).await.1, None);
        let chosen = connect(&identity, without.addr(), &["h2", "http/1.1"]).await.1;
        assert_eq!(chosen.as_deref(), Some(&b"http/1.1"[..]));
    });
    assert_eq!(identity.get(&proxy).unwrap(), "yes");
}

/// Requests that are reset before they are served (CVE-2023-44487) neither stop the proxy nor reach the
/// server in numbers.
#[test]
fn rapid_resets_end_a_connection_and_nothing_else() {
    let identity = Identity::new();
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let addr = http_backend(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        ok("yes")
    });
    let proxy = identity.start("http", addr, "");
    run(async {
        let (mut stream, _) = connect(&identity, proxy.addr(), &["h2"]).await;
        const CANCEL: [u8; 4] = [0, 0, 0, 8];
        let pair = |number: u32| [get(2 * number + 1), frame(RST_STREAM, 0, 2 * number + 1, &CANCEL)].concat();
        let pairs = (0..1000).flat_map(pair);
        stream.write_all(&preface().into_iter().chain(pairs).collect::<Vec<u8>>()).await.unwrap();
        let (mut head, mut payload) = ([0; 9], Vec::new());
        while head[3] != GOAWAY {
            stream.read_exact(&mut head).await.unwrap();
            payload.resize(u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize, 0);
            stream.read_exact(&mut payload).await.unwrap();
        }
        // ENHANCE_YOUR_CALM (RFC 9113 7), and the end.
        assert_eq!(payload[4..8], [0, 0, 0, 11]);
        let _ = stream.read_to_end(&mut Vec::new()).await;
        let (mut other, _connection) = open(&identity, proxy.addr()).await;
        let response = other.send_request(request("/", Vec::new())).await.unwrap();
        assert_eq!(body(response).await.0, b"yes");
    });
    let seen = seen.load(Ordering::SeqCst);
    assert!(seen <= 100, "{seen} requests at the server");
    eventually("no request is left", || identity::metric(&proxy, "fs_proxy_server_active") == 0);
}

#[test]
fn connections_end_when_idle_after_a_reload_and_at_a_stop() {
    let identity = Identity::new();
    let text = |name: &'static str, idle: u32| {
        identity.listener(
            "http",
            http_backend(move |_| ok(name)),
            &format!("timeouts = {{ idle = \"{idle}s\", drain = \"60s\" }}"),
        )
    };
    let config = write_config(&text("old", 5));
    let mut proxy = Proxy { program: start_program(&config), config };
    run(async {
        let ask = async |sender: &mut Sender| {
            let response = sender.send_request(request("/", Vec::new())).await.unwrap();
            String::from_utf8(body(response).await.0).unwrap()
        };
        let (mut sender, connection) = open(&identity, proxy.addr()).await;
        assert_eq!(ask(&mut sender).await, "old");
        connection.await.unwrap().unwrap();
        // The following requests must not end because of idleness.
        std::fs::write(&proxy.config, text("old", 60)).unwrap();
        proxy.program.signal(Signal::HangUp);
        proxy.program.says("is in use;");
        let (mut sender, connection) = open(&identity, proxy.addr()).await;
        assert_eq!(ask(&mut sender).await, "old");
        std::fs::write(&proxy.config, text("new", 60)).unwrap();
        proxy.program.signal(Signal::HangUp);
        eventually("it is in use", || proxy.program.log().matches("is in use;").count() == 2);
        assert_eq!(ask(&mut sender).await, "new");
        connection.await.unwrap().unwrap();
        let (mut sender, connection) = open(&identity, proxy.addr()).await;
        assert_eq!(ask(&mut sender).await, "new");
        proxy.program.terminate();
        connection.await.unwrap().unwrap();
    });
    assert!(proxy.program.wait().success());
}

/// Each request of a connection uses one of its own to a server.
#[test]
fn requests_of_a_connection_count_like_clients() {
    let identity = Identity::new();
    let arrived = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let (counter, opened) = (arrived.clone(), gate.clone());
    let addr = http_backend(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        drop(opened.1.wait_while(opened.0.lock().unwrap(), |open| !*open).unwrap());
        ok("yes")
    });
    let config = write_config(&identity.listener("http", addr, "timeouts = { connect = \"5s\" }"));
    // 9 clients, and a connection to a server for each.
    let proxy = Proxy { program: start_limited(&config, 100), config };
    run(async {
        let (sender, _connection) = open(&identity, proxy.addr()).await;
        let (results, mut statuses) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..100 {
            let (mut sender, results) = (sender.clone(), results.clone());
            tokio::spawn(async move {
                sender.ready().await.unwrap();
                let response = sender.send_request(request("/", Vec::new())).await.unwrap();
                results.send(response.status().as_u16()).unwrap();
            });
        }
        let mut refused = 0;
        while refused + arrived.load(Ordering::SeqCst) < 100 {
            tokio::select! {
                status = statuses.recv() => {
                    assert_eq!(status, Some(503));
                    refused += 1;
                }
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
        assert!(arrived.load(Ordering::SeqCst) < 15, "{arrived:?} connections to the server");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        for _ in refused..100 {
            assert_eq!(statuses.recv().await, Some(200));
        }
        let (mut other, _connection) = open(&identity, proxy.addr()).await;
        let response = other.send_request(request("/", Vec::new())).await.unwrap();
        assert_eq!(body(response).await.0, b"yes");
    });
    assert!(!proxy.program.log().contains("cannot connect"), "{}", proxy.program.log());
}
