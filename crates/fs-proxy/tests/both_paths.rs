//! What the lean path and hyper's do alike. Over loopback on kernel sockets; `af_xdp` repeats it on
//! fastsock.

mod common;
#[path = "common/identity.rs"]
mod identity;

use common::*;
use fs_stacks::testing::PATIENCE;
use identity::Identity;
use rustix::net::sockopt::{set_socket_linger, set_socket_send_buffer_size};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Settings with which the lean path serves a request, and with which hyper does.
const PATHS: [&str; 2] = ["lean = true", "lean = false"];
const LENGTH: usize = 1 << 20;

/// A server that answers with the target, or a long body, once a proxy that gives up would have done so.
/// Returns the targets that arrive.
fn patient_server() -> (SocketAddr, Receiver<String>) {
    let (sender, targets) = channel();
    let addr = backend(move |stream| {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = read_request(&mut reader)? {
            let target = request.head.split(' ').nth(1).unwrap().to_owned();
            sender.send(target.clone()).map_err(std::io::Error::other)?;
            reader.get_ref().set_read_timeout(Some(Duration::from_millis(200)))?;
            if reader.fill_buf().is_ok() {
                return Ok(());
            }
            reader.get_ref().set_read_timeout(None)?;
            let body = if target == "/long" { pattern(LENGTH) } else { [target.as_bytes(), &request.body].concat() };
            writer.write_all(&ok(body))?;
        }
        Ok(())
    });
    (addr, targets)
}

/// Streams of requests, and the body of each response.
fn streams() -> Vec<(String, Vec<Vec<u8>>)> {
    let get = |target: &str, version: &str| format!("GET {target} HTTP/{version}\r\nHost: x\r\n\r\n");
    let post = |framing: &str, body: &str| format!("POST /p HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n{body}");
    let body = "b".repeat(300_000);
    let (length, chunk) =
        (format!("Content-Length: {}", body.len()), format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()));
    let echo = [b"/p", body.as_bytes()].concat();
    let bytes = |text: &str| text.as_bytes().to_vec();
    vec![
        (get("/a", "1.1"), vec![bytes("/a")]),
        (get("/a", "1.0"), vec![bytes("/a")]),
        (get("/long", "1.1"), vec![pattern(LENGTH)]),
        (get("/long", "1.0"), vec![pattern(LENGTH)]),
        (get("/1", "1.1") + &get("/2", "1.1") + &get("/3", "1.1"), vec![bytes("/1"), bytes("/2"), bytes("/3")]),
        // The second one passes to hyper.
        (get("/1", "1.1") + &get("/2", "1.0"), vec![bytes("/1"), bytes("/2")]),
        (post("Content-Length: 5", "hello"), vec![bytes("/phello")]),
        (post("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"), vec![bytes("/phello")]),
        (post(&length, &body), vec![echo.clone()]),
        (post("Transfer-Encoding: chunked", &chunk) + &get("/2", "1.1"), vec![echo, bytes("/2")]),
    ]
}

/// Checks that a stream has these responses and nothing else.
fn has_responses(got: &[u8], bodies: &[Vec<u8>], what: &str) {
    let mut rest = got;
    for body in bodies {
        let head = rest.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or_else(|| panic!("{what}: no response"));
        assert_eq!(&rest[8..12], b" 200", "{what}: {}", rest[..head].escape_ascii());
        rest = &rest[head + 4..];
        assert!(rest.starts_with(body), "{what}: {} of {} bytes", rest.len(), body.len());
        rest = &rest[body.len()..];
    }
    assert!(rest.is_empty(), "{what}: {}", rest.escape_ascii());
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap()
}

#[test]
fn client_that_ends_its_stream_gets_all_responses() {
    for path in PATHS {
        let (addr, targets) = patient_server();
        let proxy = Proxy::start("http", &[addr], path, "");
        for (requests, bodies) in streams() {
            for waits in [false, true] {
                let mut stream = proxy.connect();
                stream.write_all(requests.as_bytes()).unwrap();
                if waits {
                    targets.recv_timeout(PATIENCE).unwrap();
                }
                stream.shutdown(Shutdown::Write).unwrap();
                let mut got = Vec::new();
                stream.read_to_end(&mut got).unwrap();
                has_responses(&got, &bodies, &format!("{path}, {}", first_line(&requests)));
                targets.try_iter().for_each(drop);
            }
        }
    }
}

#[test]
fn client_that_sends_close_notify_gets_all_responses() {
    let identity = Identity::new();
    for path in PATHS {
        let (addr, _targets) = patient_server();
        let proxy = identity.start("http", addr, path);
        for (requests, bodies) in streams() {
            let mut stream = identity.connect(&proxy);
            stream.write_all(requests.as_bytes()).unwrap();
            stream.conn.send_close_notify();
            while stream.conn.wants_write() {
                stream.conn.write_tls(&mut stream.sock).unwrap();
            }
            let mut got = Vec::new();
            let what = format!("{path}, {}", first_line(&requests));
            if let Err(error) = stream.read_to_end(&mut got) {
                panic!("{what}, {} bytes: {error}", got.len());
            }
            has_responses(&got, &bodies, &what);
        }
    }
}

#[test]
fn reset_of_the_client_ends_its_request() {
    for path in PATHS {
        for version in ["1.1", "1.0"] {
            let (sender, events) = channel();
            let addr = backend(move |stream| {
                let mut reader = BufReader::new(stream);
                read_request(&mut reader)?;
                sender.send(true).map_err(std::io::Error::other)?;
                let end = reader.read(&mut [0]);
                sender.send(matches!(end, Ok(1))).map_err(std::io::Error::other)
            });
            let proxy = Proxy::start("http", &[addr], path, "");
            let mut stream = proxy.connect();
            write!(stream, "GET / HTTP/{version}\r\nHost: x\r\n\r\n").unwrap();
            assert!(events.recv_timeout(PATIENCE).unwrap());
            set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            drop(stream);
            assert_eq!(events.recv_timeout(PATIENCE), Ok(false), "{path}, {version}: the server's connection is open");
        }
    }
}

#[test]
fn request_that_ends_within_its_body_reaches_no_server() {
    for path in PATHS {
        let (addr, targets) = patient_server();
        let proxy = Proxy::start("http", &[addr], path, "");
        for (framing, part) in [
            ("Content-Length: 10", "hello"),
            ("Content-Length: 300000", "hello"),
            ("Transfer-Encoding: chunked", "5\r\nhello\r\n"),
            ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n"),
        ] {
            for version in ["1.1", "1.0"] {
                let mut stream = proxy.connect();
                // At once: hyper refuses chunks of HTTP/1.0, and closes, when it has the head.
                let request = format!("POST / HTTP/{version}\r\nHost: x\r\n{framing}\r\n\r\n{part}");
                stream.write_all(request.as_bytes()).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let mut got = Vec::new();
                stream.read_to_end(&mut got).unwrap();
                assert!(got.is_empty() || &got[8..12] == b" 400", "{path}: {}", got.escape_ascii());
            }
        }
        assert!(proxy.get("/last").ends_with("/last"));
        assert_eq!(targets.try_iter().collect::<Vec<_>>(), ["/last"], "{path}");
    }
}

/// RFC 9112 6.1: a request with both is an attack, or comes from a sender that is broken.
#[test]
fn length_next_to_a_transfer_coding_is_refused_before_hyper_drops_it() {
    let smuggled = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
    let odd = [
        ("POST / HTTP/1.1", ""),
        ("POST / HTTP/1.0", ""),
        ("POST http://x HTTP/1.1", ""),
        ("POST / HTTP/1.1", "Connection: x-y\r\n"),
        ("POST / HTTP/1.1", "Connection: upgrade\r\nUpgrade: a\r\n"),
        ("POST / HTTP/1.1", "Expect: more\r\n"),
        ("POST / HTTP/1.1", "A: b\n"),
        ("POST / HTTP/1.1", "Content-Length: 5\r\n"),
    ];
    for path in PATHS {
        let (addr, targets) = patient_server();
        let proxy = Proxy::start("http", &[addr], path, "");
        for (line, field) in odd {
            for both in [
                "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            ] {
                let answer = proxy.ask_bytes(format!("{line}\r\nHost: x\r\n{field}{both}\r\n{smuggled}").as_bytes());
                // hyper alone serves the chunks, and ends the connection.
                let expected = if path == PATHS[1] && answer.starts_with("HTTP/1.1 200") { 1 } else { 0 };
                let status = if expected == 1 { "200" } else { "400" };
                assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}, {line} {field}{both}: {answer}");
                assert_eq!(targets.try_iter().count(), expected, "{path}, {line} {field}{both}");
            }
        }
        assert!(proxy.get("/last").ends_with("/last"));
        assert_eq!(targets.try_iter().collect::<Vec<_>>(), ["/last"], "{path}");
    }
}

#[test]
fn invalid_lengths_in_responses_without_a_body_are_not_passed_on() {
    for (method, status, lengths) in [
        ("HEAD", "1.1 200 OK", "Content-Length: \r\n"),
        ("HEAD", "1.1 200 OK", "Content-Length: 5, 5\r\n"),
        ("HEAD", "1.1 200 OK", "Content-Length: 5\r\nContent-Length: 6\r\n"),
        ("HEAD", "1.0 200 OK", "Transfer-Encoding: chunked\r\n"),
        ("GET", "1.1 304 Not Modified", "Content-Length: x\r\n"),
    ] {
        let answer = format!("HTTP/{status}\r\n{lengths}\r\n");
        let addr = http_backend(move |_| answer.clone().into_bytes());
        for path in PATHS {
            let proxy = Proxy::start("http", &[addr], path, "");
            let got = proxy.ask(&format!("{method} / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
            assert!(got.starts_with("HTTP/1.1 502"), "{path}, {status}, {lengths:?}: {got}");
        }
    }
}

/// Responses before the end of the request's body. A close at once would be a reset, which may discard what
/// the client has not read yet (RFC 9112 9.6).
#[test]
fn early_response_arrives_during_an_upload() {
    let server = backend(|stream| {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line)?;
        }
        (&stream).write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")?;
        // A server that is careful too.
        stream.shutdown(Shutdown::Write)?;
        reader.read_to_end(&mut Vec::new()).map(drop)
    });
    let framings = [("Content-Length: 2000000", ""), ("Transfer-Encoding: chunked", "10000\r\n")];
    for path in PATHS {
        let config = write_config(&format!(
            "{path}\n[[listener]]\naddress = \"{}:0\"\nmode = \"http\"\n\
             [[listener.route]]\npaths = [\"/server\"]\nupstream = \"u\"\n\
             [[upstream]]\nname = \"u\"\nservers = [\"{server}\"]\n",
            proxy_ip()
        ));
        let proxy = Proxy { program: start_program(&config), config };
        for (target, status) in [("/server", "413"), ("/nowhere", "404")] {
            for (framing, size) in framings.into_iter().cycle().take(4) {
                let mut stream = proxy.connect();
                set_socket_send_buffer_size(&stream, 0x10000).unwrap();
                write!(stream, "POST {target} HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n").unwrap();
                stream.peek(&mut [0]).unwrap();
                let end = if size.is_empty() { "" } else { "\r\n" };
                let piece = [size.as_bytes(), &[b'x'; 0x10000], end.as_bytes()].concat();
                // More than the buffers of both sides, which do not grow while nobody reads.
                let sent = (0..16).try_for_each(|_| stream.write_all(&piece));
                assert!(sent.is_ok(), "{path}, {target}, {framing}: {sent:?}");
                stream.shutdown(Shutdown::Write).unwrap();
                let mut answer = Vec::new();
                let read = stream.read_to_end(&mut answer);
                assert!(read.is_ok(), "{path}, {target}, {framing}: {read:?}");
                assert_eq!(&answer[9..12], status.as_bytes(), "{path}, {framing}");
            }
        }
    }
}

/// A client that does not close holds no place once its whole request was read.
#[test]
fn close_after_a_whole_upload_waits_for_nothing() {
    let server = http_backend(|_| ok("done"));
    for path in PATHS {
        let proxy = Proxy::start("http", &[server], path, "");
        for body in ["Content-Length: 2\r\n\r\nab", "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"] {
            let mut stream = proxy.connect();
            write!(stream, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{body}").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("done"), "{path}: {answer}");
            // A proxy that waits for the rest takes these for 5 s. Counted, so that a pause of the host is
            // none of the proxy's time.
            let takes_all = (0..800).all(|_| {
                std::thread::sleep(Duration::from_millis(5));
                stream.write_all(b"x").is_ok()
            });
            assert!(!takes_all, "{path}, {body}: it is open");
        }
    }
}

/// RFC 9110 6.5.1: a recipient may merge trailers into the head.
#[test]
fn trailers_have_no_fields_of_a_head() {
    let trailers = "0\r\nX-Sum: 7\r\nX-Real-IP: evil\r\nX-Forwarded-For: evil\r\nVia: evil\r\n\r\n";
    let head = "Trailer: X-Sum, X-Real-IP, X-Forwarded-For, Via\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    let addr = backend(move |mut stream| {
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") || !seen.windows(5).any(|end| end == b"\r\n0\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            seen.push(byte[0]);
        }
        let seen = String::from_utf8_lossy(&seen).replace("\r\n", " ");
        write!(stream, "HTTP/1.1 200 OK\r\n{head}{:x}\r\n{seen}\r\n{trailers}", seen.len())
    });
    for path in PATHS {
        let proxy = Proxy::start("http", &[addr], path, "");
        let ask = format!("POST / HTTP/1.1\r\nHost: x\r\nConnection: close, TE\r\nTE: trailers\r\n{head}{trailers}");
        let answer = proxy.ask(&ask).to_lowercase();
        assert_eq!(answer.matches("x-sum: 7").count(), 2, "{path}: {answer}");
        assert!(!answer.contains("evil"), "{path}: {answer}");
    }
}

/// A server that has closed an idle connection has not failed. Only the request on it has.
#[test]
fn server_that_closes_kept_connections_keeps_its_share() {
    for path in PATHS {
        let closing = backend(|stream| {
            let mut writer = stream.try_clone()?;
            let mut reader = BufReader::new(stream);
            read_request(&mut reader)?;
            writer.write_all(&ok("closing"))?;
            read_request(&mut reader).map(drop)
        });
        let proxy = Proxy::start("http", &[closing, http_backend(|_| ok("other"))], path, "");
        let two = || [(); 2].map(|()| body_of(&proxy.get("/")).to_owned());
        assert_eq!(two(), ["closing", "other"], "{path}");
        let post = "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx";
        assert!(proxy.ask(post).starts_with("HTTP/1.1 502"), "{path}");
        assert_eq!(two(), ["other", "closing"], "{path}");
    }
}
