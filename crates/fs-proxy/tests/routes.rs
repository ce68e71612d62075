//! Which server gets a request or a connection: routes, weights, backup servers, hashes, and the
//! PROXY protocol.

mod common;

use common::*;
use fs_stacks::testing::{PATIENCE, Signal, eventually};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn named(name: &'static str) -> SocketAddr {
    http_backend(move |_| ok(name))
}

fn start(text: &str) -> Proxy {
    let config = write_config(text);
    Proxy { program: start_program(&config), config }
}

fn listener(mode: &str, more: &str) -> String {
    format!("[[listener]]\naddress = \"{}:0\"\nmode = \"{mode}\"\nname = \"front\"\n{more}\n", proxy_ip())
}

fn upstream(name: &str, servers: &str, more: &str) -> String {
    format!("[[upstream]]\nname = \"{name}\"\nservers = [{servers}]\n{more}\n")
}

fn upstreams(servers: &[(&'static str, SocketAddr)]) -> String {
    servers.iter().map(|(name, addr)| upstream(name, &format!("\"{addr}\""), "")).collect()
}

/// The lean path serves the first, and hyper the others.
const ENDS: [&str; 3] =
    ["HTTP/1.1\r\nConnection: close\r\n", "HTTP/1.1\r\nConnection: close, x-odd\r\n", "HTTP/1.0\r\n"];

#[test]
fn requests_go_where_routes_say() {
    let routes = "upstream = \"rest\"\n\
        [[listener.route]]\nhosts = [\"api.example\"]\npaths = [\"/v1\", \"/v2\"]\nupstream = \"api\"\n\
        [[listener.route]]\nhosts = [\"*.shop.example\"]\nupstream = \"shop\"\n\
        [[listener.route]]\nmethods = [\"PUT\"]\nheaders = { X-Canary = \"1\" }\nupstream = \"canary\"\n";
    let servers = ["rest", "api", "shop", "canary"].map(|name| (name, named(name)));
    let proxy = start(&(listener("http", routes) + &upstreams(&servers)));
    for end in ENDS {
        for (line, fields, expected) in [
            ("GET /v1/x", "Host: api.example\r\n", "api"),
            ("GET /v2?y", "Host: API.example:80\r\n", "api"),
            ("GET /v3", "Host: api.example\r\n", "rest"),
            ("GET http://api.example/v1", "Host: other\r\n", "api"),
            ("GET /v1", "Host: a.shop.example\r\n", "shop"),
            ("GET /v1", "Host: shop.example\r\n", "rest"),
            ("PUT /", "Host: x\r\nX-Canary: 1\r\nContent-Length: 1\r\n", "canary"),
            ("GET /", "Host: x\r\nX-Canary: 1\r\n", "rest"),
        ] {
            let body = if fields.contains("Length") { "b" } else { "" };
            let answer = proxy.ask(&format!("{line} {end}{fields}\r\n{body}"));
            assert_eq!(body_of(&answer), expected, "{line} {end}{fields}");
        }
    }
    // One connection, several upstreams.
    let mut stream = proxy.connect();
    let hosts = ["api.example", "a.shop.example", "x"].repeat(3);
    for host in &hosts {
        write!(stream, "GET /v1 HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answers = String::new();
    let _ = stream.read_to_string(&mut answers);
    let bodies: Vec<&str> = answers.split("\r\n\r\n").skip(1).collect();
    assert_eq!(bodies.len(), hosts.len(), "{answers}");
    for (body, expected) in bodies.iter().zip(["api", "shop", "rest"].into_iter().cycle()) {
        assert!(body.starts_with(expected), "{answers}");
    }
}

#[test]
fn redirects_and_requests_without_a_route_get_the_proxys_answer() {
    let routes = "[[listener.route]]\npaths = [\"/old\"]\nredirect = \"https://new.example/\"\nstatus = 301\n\
        [[listener.route]]\nhosts = [\"a.example\"]\nredirect = \"https://{host}{target}\"\n";
    let text = format!("metrics = \"{}:0\"\n", proxy_ip()) + &listener("http", routes);
    let proxy = start(&text);
    for end in ENDS {
        for (line, host, status, location) in [
            ("GET /old/x", "x", "301 Moved Permanently", Some("https://new.example/")),
            ("GET /x?y=1", "a.example:8080", "308 Permanent Redirect", Some("https://a.example/x?y=1")),
            ("HEAD /x", "a.example", "308 Permanent Redirect", Some("https://a.example/x")),
            ("GET /x", "b.example", "404 Not Found", None),
        ] {
            let answer = proxy.ask(&format!("{line} {end}Host: {host}\r\n\r\n"));
            let head = answer.split("\r\n\r\n").next().unwrap().to_lowercase();
            assert!(head.contains(&format!(" {}", status.to_lowercase())), "{line} {end}: {answer}");
            let expected = location.map(|location| format!("\r\nlocation: {location}\r\n"));
            assert_eq!(head.contains("\r\nlocation:"), expected.is_some(), "{answer}");
            assert!(expected.is_none_or(|line| format!("{head}\r\n").contains(&line)), "{answer}");
            assert_eq!(body_of(&answer).is_empty(), line.starts_with("HEAD"), "{answer}");
        }
    }
    eventually("all are counted", || {
        let metrics = proxy.metrics();
        metrics.contains("class=\"3xx\"} 9\n") && metrics.contains("class=\"4xx\"} 3\n")
    });
    // The connection stays usable, and a following body is not parsed as a request.
    let mut stream = proxy.connect();
    let body = "GET /smuggled HTTP/1.1\r\nHost: a.example\r\n\r\n";
    write!(stream, "POST /1 HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    write!(stream, "GET /2 HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n").unwrap();
    let mut answers = String::new();
    let _ = stream.read_to_string(&mut answers);
    assert!(answers.contains("a.example/1\r\n") && !answers.contains("smuggled"), "{answers}");
}

#[test]
fn weights_and_backup_servers_share_the_load() {
    let servers = |weight: u32| {
        format!(
            "{{ address = \"{}\", weight = {weight} }}, \"{}\", {{ address = \"{}\", backup = true }}",
            named("heavy"),
            named("light"),
            named("spare")
        )
    };
    let front = listener("http", "upstream = \"u\"");
    let proxy = start(&(front.clone() + &upstream("u", &servers(3), "")));
    let count = |name: &str| (0..40).filter(|_| body_of(&proxy.get("/")) == name).count();
    assert_eq!(count("heavy"), 30);
    assert_eq!(count("spare"), 0);
    // Weight 0 drains a server.
    std::fs::write(&proxy.config, front.clone() + &upstream("u", &servers(0), "")).unwrap();
    proxy.program.signal(Signal::HangUp);
    proxy.program.says("is in use;");
    assert_eq!(count("light"), 40);
    // A device has one process.
    drop(proxy);
    let dead = format!("\"{}\", {{ address = \"{}\", backup = true }}", nobody(), named("spare"));
    let proxy = start(&(front + &upstream("u", &dead, "")));
    assert!((0..5).all(|_| body_of(&proxy.get("/")) == "spare"));
}

#[test]
fn requests_with_one_cookie_go_to_one_server() {
    let servers: Vec<String> = ["a", "b", "c"].map(|name| format!("\"{}\"", named(name))).into();
    let front = listener("http", "upstream = \"u\"");
    let proxy = start(&(front + &upstream("u", &servers.join(","), "balance = \"hash\"\nhash = \"cookie:session\"")));
    let ask = |cookie: &str, end: &str| {
        body_of(&proxy.ask(&format!("GET / {end}Host: x\r\nCookie: a=1; {cookie}\r\n\r\n"))).to_owned()
    };
    let mut used = std::collections::BTreeSet::new();
    for number in 0..12 {
        let cookie = format!("session={number}");
        let first = ask(&cookie, ENDS[0]);
        assert!(ENDS.iter().all(|end| ask(&cookie, end) == first), "{cookie}");
        used.insert(first);
    }
    assert!(used.len() > 1, "{used:?}");
    // Without the cookie they take turns.
    let turns: std::collections::BTreeSet<String> = (0..6).map(|_| ask("b=2", ENDS[0])).collect();
    assert_eq!(turns.len(), 3);
}

#[test]
fn header_fields_are_set_and_removed() {
    let server = http_backend(|request| {
        let length = request.head.len() + request.body.len();
        let mut answer = format!(
            "HTTP/1.1 103 Early Hints\r\nServer: early\r\n\r\nHTTP/1.1 200 OK\r\nServer: secret\r\nX-Kept: 1\r\n\
             strict-transport-security: old\r\nContent-Length: {length}\r\n\r\n{}",
            request.head
        )
        .into_bytes();
        answer.extend_from_slice(&request.body);
        answer
    });
    let edits = "upstream = \"u\"\n\
        request_headers = { set = { X-Real-IP = \"{client}\", X-Stage = \"listener\" }, remove = [\"X-Secret\"] }\n\
        response_headers = { set = { Strict-Transport-Security = \"max-age=1\" }, remove = [\"Server\"] }\n\
        [[listener.route]]\nhosts = [\"never.example\"]\nupstream = \"none\"\n";
    let more = "request_headers = { set = { Host = \"never.example\", X-Stage = \"upstream\" } }";
    let text = listener("http", edits) + &upstream("u", &format!("\"{server}\""), more);
    let proxy = start(&(text + &upstreams(&[("none", nobody())])));
    for end in ENDS {
        let body = "b".repeat(3000);
        let answer = proxy.ask(&format!(
            "POST / {end}Host: x\r\nX-Secret: 1\r\nx-real-ip: spoofed\r\nX-SECRET: 2\r\nContent-Length: 3000\r\n\r\n{body}"
        ));
        let answer = answer.rsplit_once("HTTP/1.1 200 OK").map_or(&*answer, |(_, rest)| rest).to_lowercase();
        let (head, seen) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("strict-transport-security: max-age=1") && head.contains("x-kept: 1"), "{answer}");
        assert!(!head.contains("old") && !head.contains("secret") && seen.ends_with(&body), "{answer}");
        for (line, times) in [
            (format!("x-real-ip: {}\r\n", own_ip()), 1),
            ("x-real-ip:".to_owned(), 1),
            ("x-secret".to_owned(), 0),
            ("host: never.example\r\n".to_owned(), 1),
            ("\r\nhost:".to_owned(), 1),
            ("x-stage: upstream\r\n".to_owned(), 1),
            ("x-stage".to_owned(), 1),
        ] {
            assert_eq!(seen.matches(&line).count(), times, "{line}: {seen}");
        }
    }
}

/// A 101 is not changed: as other 1xx responses.
#[test]
fn response_that_switches_protocols_is_not_changed() {
    let server = backend(|mut stream| {
        read_request(&mut std::io::BufReader::new(stream.try_clone()?))?;
        stream.write_all(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: echo\r\nServer: echo\r\n\r\n")
    });
    let edits = "upstream = \"u\"\nresponse_headers = { set = { X-Added = \"1\" }, remove = [\"Server\"] }";
    let proxy = start(&(listener("http", edits) + &upstreams(&[("u", server)])));
    let answer = proxy.ask("GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").to_lowercase();
    assert!(answer.starts_with("http/1.1 101") && answer.contains("server: echo"), "{answer}");
    assert!(!answer.contains("x-added"), "{answer}");
}

fn is_reset(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionReset
}

const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x0a\0\0\x01\x13\x88\0\x50";

#[test]
fn proxy_in_front_says_who_its_client_is() {
    let mirror = http_backend(|request| ok(&request.head));
    let front = |trusted: &str| listener("http", &format!("upstream = \"u\"\naccept_proxy = true\n{trusted}"));
    let config = |trusted: &str| front(trusted) + &upstreams(&[("u", mirror)]);
    let proxy = start(&config(&format!("trusted_proxies = [\"{}/8\"]", own_ip())));
    let v1 = b"PROXY TCP4 192.0.2.7 10.0.0.1 5000 80\r\n";
    for end in ENDS {
        let request = format!("GET / {end}Host: x\r\nX-Forwarded-Proto: https\r\n\r\n");
        // Only the proxy itself may send the header: it may not see the bytes of its clients.
        for (header, client, proto) in [
            (&v1[..], "192.0.2.7".to_owned(), "http"),
            (V2, "192.0.2.7".to_owned(), "http"),
            (b"PROXY UNKNOWN\r\n", own_ip().to_string(), "https"),
        ] {
            let seen = proxy.ask_bytes(&[header, request.as_bytes()].concat()).to_lowercase();
            assert!(seen.contains(&format!("x-forwarded-for: {client}\r\n")), "{end} {seen}");
            assert!(seen.contains(&format!("x-forwarded-proto: {proto}\r\n")), "{seen}");
        }
        for wrong in [&b""[..], b"PROXY TCP4 x\r\n", b"PROXY TCP4 1.2.3.4 "] {
            let mut stream = proxy.connect();
            stream.write_all(&[wrong, request.as_bytes()].concat()).unwrap();
            assert!(stream.read(&mut [0]).is_err_and(|error| is_reset(&error)), "{wrong:?}: a reset");
        }
    }
    drop(proxy);
    let proxy = start(&config("trusted_proxies = [\"203.0.113.0/24\"]"));
    // The reset may come before any of these calls returns.
    let read = TcpStream::connect(proxy.addr()).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(v1)?;
        stream.read(&mut [0])
    });
    assert!(read.is_err_and(|error| is_reset(&error)), "the peer is not trusted");
}

#[test]
fn servers_get_the_clients_address_before_its_bytes() {
    let got = Arc::new(Mutex::new(Vec::new()));
    let store = got.clone();
    let server = backend(move |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all)?;
        *store.lock().unwrap() = all;
        stream.write_all(b"bye")
    });
    for (version, accept) in [("v1", false), ("v2", false), ("v1", true)] {
        let front = listener("tcp", &format!("upstream = \"u\"\naccept_proxy = {accept}"));
        let proxy = start(&(front + &upstream("u", &format!("\"{server}\""), &format!("send_proxy = \"{version}\""))));
        let mut stream = proxy.connect();
        let own = stream.local_addr().unwrap();
        let introduction: &[u8] = if accept { V2 } else { b"" };
        stream.write_all(&[introduction, b"hello"].concat()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"bye");
        let got = got.lock().unwrap().clone();
        let local = proxy.addr();
        let expected = match (version, accept) {
            ("v1", false) => {
                format!("PROXY TCP4 {} {} {} {}\r\nhello", own.ip(), local.ip(), own.port(), local.port()).into_bytes()
            }
            ("v1", true) => format!("PROXY TCP4 192.0.2.7 {} 5000 {}\r\nhello", local.ip(), local.port()).into_bytes(),
            _ => {
                let octets = |addr: SocketAddr| match addr.ip() {
                    std::net::IpAddr::V4(ip) => ip.octets(),
                    std::net::IpAddr::V6(ip) => panic!("{ip}"),
                };
                let ports = [own.port().to_be_bytes(), local.port().to_be_bytes()].concat();
                [&V2[..16], &octets(own), &octets(local), &ports, b"hello"].concat()
            }
        };
        assert_eq!(got, expected, "{}", String::from_utf8_lossy(&got));
    }
}

/// A health check says that it speaks for the proxy itself.
#[test]
fn health_checks_begin_with_the_proxy_protocol() {
    let checks = Arc::new(AtomicUsize::new(0));
    let counter = checks.clone();
    let server = backend(move |mut stream| {
        let mut head = [0; 15];
        stream.read_exact(&mut head)?;
        if &head == b"PROXY UNKNOWN\r\n" {
            counter.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 1024])?;
            stream.write_all(&ok(""))?;
        }
        Ok(())
    });
    let more = "send_proxy = \"v1\"\nhealth_check = { interval = \"20ms\", timeout = \"30s\", path = \"/\", fall = 1 }";
    let proxy = start(&(listener("tcp", "upstream = \"u\"") + &upstream("u", &format!("\"{server}\""), more)));
    eventually("it is checked", || checks.load(Ordering::SeqCst) > 5);
    assert!(!proxy.program.log().contains("unhealthy"), "{}", proxy.program.log());
}

/// A TCP listener whose clients do not speak TLS sends them to its upstream.
#[test]
fn bytes_that_are_no_client_hello_reach_the_default_server() {
    let echo = backend(|mut stream| std::io::copy(&mut stream.try_clone()?, &mut stream).map(drop));
    let routes = "upstream = \"u\"\n[[listener.route]]\nhosts = [\"a.example\"]\nupstream = \"none\"\n";
    let proxy = start(&(listener("tcp", routes) + &upstreams(&[("u", echo), ("none", nobody())])));
    for bytes in [&b"hello, here is no TLS"[..], &pattern(100_000)] {
        let mut stream = TcpStream::connect(proxy.addr()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut sender = stream.try_clone().unwrap();
        let all = bytes.to_vec();
        let sending = std::thread::spawn(move || {
            sender.write_all(&all).unwrap();
            sender.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        sending.join().unwrap();
        assert!(back == bytes, "{} bytes of {}", back.len(), bytes.len());
    }
}

/// A check that only connects is no connection that failed. A client that ends within its hello is one.
#[test]
fn client_that_sends_nothing_has_not_failed() {
    let routes = "upstream = \"u\"\n[[listener.route]]\nhosts = [\"a.example\"]\nupstream = \"u\"\n";
    let text = format!("metrics = \"{}:0\"\n{}", proxy_ip(), listener("tcp", routes));
    let proxy = start(&(text + &upstreams(&[("u", nobody())])));
    let metric = |name: &str| {
        let metrics = proxy.metrics();
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).expect("a metric");
        line.split_once("} ").expect("a value").1.parse::<u64>().unwrap()
    };
    for (bytes, is_reset, failed) in [(&b""[..], false, 0), (b"", true, 0), (b"\x16\x03\x01", false, 1)] {
        let before = metric("fs_proxy_connections_total");
        let mut stream = proxy.connect();
        eventually("it is accepted", || metric("fs_proxy_connections_total") > before);
        stream.write_all(bytes).unwrap();
        if is_reset {
            rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO)).unwrap();
        }
        drop(stream);
        eventually("it is closed", || metric("fs_proxy_connections_open") == 0);
        assert_eq!(metric("fs_proxy_connections_failed_total"), failed, "{bytes:?} {is_reset}");
    }
}
