//! The exact bytes that each side of an HTTP exchange gets, in cases where proxies have had bugs.

mod common;

use common::*;
use fs_stacks::testing::PATIENCE;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A backend that responds with the head that it received.
fn mirror() -> std::net::SocketAddr {
    http_backend(|request| ok(&request.head))
}

/// A backend that sends these bytes after the first head and closes the connection.
fn says(answer: &'static [u8]) -> std::net::SocketAddr {
    backend(move |stream| {
        let mut writer = stream.try_clone()?;
        read_request(&mut BufReader::new(stream))?;
        writer.write_all(answer)
    })
}

#[test]
fn many_header_lines_pass_in_both_directions() {
    let addr = http_backend(|request| {
        let cookies = "Set-Cookie: a=b\r\n".repeat(150);
        let got = request.head.matches("X-Many: ").count();
        format!("HTTP/1.1 200 OK\r\n{cookies}X-Got: {got}\r\nContent-Length: 2\r\n\r\nok").into_bytes()
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    let many = "X-Many: 1\r\n".repeat(150);
    let answer = proxy.ask(&format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{many}\r\n"));
    assert!(answer.contains("X-Got: 150"), "{answer}");
    assert_eq!(answer.matches("Set-Cookie: a=b\r\n").count(), 150);
    let cookie = "k".repeat(30_000);
    let answer = proxy.ask(&format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nCookie: {cookie}\r\n\r\n"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let cookie = "k".repeat(200_000);
    let answer = proxy.ask_bytes(format!("GET / HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n").as_bytes());
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[test]
fn bytes_that_are_not_text_pass() {
    let addr = http_backend(|_| b"HTTP/1.1 200 OK\r\nX-L1: caf\xe9\r\nX-Empty:\r\nContent-Length: 0\r\n\r\n".to_vec());
    let proxy = Proxy::start("http", &[addr], "", "");
    let mut stream = proxy.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.windows(12).any(|part| part == b"X-L1: caf\xe9\r\n"), "{answer:?}");
}

/// The server responds and closes during the upload. Its reset must not discard the client's
/// response.
#[test]
fn response_before_the_end_of_the_body_arrives() {
    let addr = backend(|stream| {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line)?;
        }
        // Closed with unread bytes, so a reset follows the response.
        writer.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    for number in 0..20 {
        let chunked = number % 2 == 1;
        let mut stream = proxy.connect();
        let framing = if chunked { "Transfer-Encoding: chunked" } else { "Content-Length: 20000000" };
        stream.write_all(format!("POST / HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n").as_bytes()).unwrap();
        let mut sender = stream.try_clone().unwrap();
        let sending = std::thread::spawn(move || {
            let body = vec![b'x'; 65_536];
            let piece = if chunked { [b"10000\r\n", &body[..], b"\r\n"].concat() } else { body };
            for _ in 0..305 {
                if sender.write_all(&piece).is_err() {
                    return;
                }
            }
        });
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_eq!(&answer, b"HTTP/1.1 413", "{number}");
        drop(stream);
        sending.join().unwrap();
    }
}

#[test]
fn targets_reach_the_server_in_the_right_form() {
    let proxy = Proxy::start("http", &[mirror()], "", "");
    for (line, seen, host) in [
        ("GET http://me:secret@b.example/x", "GET /x ", "b.example"),
        ("GET http://b.example?q=1", "GET /?q=1 ", "b.example"),
        ("OPTIONS http://b.example", "OPTIONS * ", "b.example"),
        ("OPTIONS *", "OPTIONS * ", "x"),
        ("GET /a\"b<c>d`e{f}|g", "GET /a\"b<c>d`e{f}|g ", "x"),
    ] {
        let answer = proxy.ask(&format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        let head = body_of(&answer);
        assert!(head.starts_with(seen), "{line}: {answer}");
        assert!(head.to_lowercase().contains(&format!("\r\nhost: {host}\r\n")), "{line}: {answer}");
        assert!(!answer.contains("secret"), "{answer}");
    }
}

/// RFC 9110 7.6.1: fields for all recipients cannot be declared to be about the connection.
#[test]
fn connection_cannot_remove_fields_of_a_proxy_in_front() {
    let proxy = Proxy::start("http", &[mirror()], "", "");
    let answer = proxy.ask(
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: close, X-Forwarded-For, Cookie, Authorization, X-Real-IP, X-Hop\r\n\
         X-Forwarded-For: 203.0.113.9\r\nCookie: c\r\nAuthorization: a\r\nX-Real-IP: r\r\nX-Hop: 1\r\n\r\n",
    );
    let seen = body_of(&answer).to_lowercase();
    let clients = format!("x-forwarded-for: 203.0.113.9, {}", own_ip());
    for kept in [&clients, "cookie: c", "authorization: a", "x-real-ip: r"] {
        assert!(seen.contains(kept), "{kept}: {seen}");
    }
    assert!(!seen.contains("x-hop"), "{seen}");
}

/// Requests that two servers could parse differently. Each is refused, and the following bytes are
/// never served.
#[test]
fn desynchronizing_requests_are_refused() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = requests.clone();
    let addr = http_backend(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        ok("served")
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
    for (head, status) in [
        ("Transfer-Encoding: chunked\r\nContent-Length: 5", "400"),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", "400"),
        ("Content-Length: 5\r\nConnection: x-y\r\nTransfer-Encoding: chunked", "400"),
        ("Transfer-Encoding: chunked, chunked", "400"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "400"),
        ("Transfer-Encoding: ,chunked", "400"),
        ("Transfer-Encoding: gzip, chunked", "501"),
        ("Transfer-Encoding: identity", "501"),
        ("Transfer-Encoding: xchunked", "501"),
        ("Transfer-Encoding : chunked", "400"),
        ("Transfer-Encoding: chunked\r\n folded", "400"),
        ("Transfer-Encoding:\x0bchunked", "400"),
        ("Transfer-Encoding:\r\n chunked", "400"),
        ("Transfer-Encoding: \"chunked\"", "501"),
        ("Content-Length: 5, 6", "400"),
        ("Content-Length: 5\r\nContent-Length: 6", "400"),
        ("Content-Length: +5", "400"),
        ("Content-Length: -5", "400"),
        ("Content-Length: 0x5", "400"),
        ("Content-Length: 5 5", "400"),
        ("Content-Length: ", "400"),
        ("Content-Length: 99999999999999999999", "400"),
        ("Host: y", "400"),
        ("\0: 1", "400"),
        ("A: b\0c", "400"),
        ("A: b\rc", "400"),
    ] {
        let text = format!("POST / HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n0\r\n\r\n{smuggled}");
        let answer = proxy.ask_bytes(text.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{head:?}: {answer}");
        assert!(!answer.contains("served"), "{head:?}: {answer}");
    }
    // The head is valid, but the chunks are not: the server gets nothing that could be another
    // request.
    for chunks in [
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhelloX\r\n",
        "-5\r\n",
        "0\n\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\n",
    ] {
        let text = format!("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}{smuggled}");
        let answer = proxy.ask_bytes(text.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 400"), "{chunks:?}: {answer}");
    }
    assert_eq!(requests.load(Ordering::SeqCst), 0);
    // HTTP/1.1 with bare line feeds is odd, not wrong, and is one request.
    let answer = proxy.ask("GET / HTTP/1.1\nHost: x\nConnection: close\n\n");
    assert!(answer.starts_with("HTTP/1.1 200") && requests.load(Ordering::SeqCst) == 1, "{answer}");
}

/// Responses that two clients could parse differently.
#[test]
fn desynchronizing_responses_are_not_passed_on() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnone",
    ] {
        let proxy = Proxy::start("http", &[says(answer)], "", "");
        let got = proxy.get("/");
        assert!(got.starts_with("HTTP/1.1 502"), "{}: {got}", String::from_utf8_lossy(answer));
    }
    // Bytes after the response are not passed on.
    let addr = backend(|stream| {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        while read_request(&mut reader)?.is_some() {
            writer.write_all(&[ok("mine"), ok("another's")].concat())?;
        }
        Ok(())
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    for _ in 0..5 {
        assert_eq!(body_of(&proxy.get("/")), "mine");
    }
}

#[test]
fn early_hints_and_trailers_pass() {
    let addr = backend(|stream| {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = read_request(&mut reader)? {
            assert_eq!(request.body, b"hello");
            writer.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")?;
            std::thread::sleep(Duration::from_millis(20));
            writer.write_all(
                b"HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
                  3;ext=1\r\nabc\r\n0\r\nX-Sum: 7\r\nHost: evil\r\n\r\n",
            )?;
        }
        Ok(())
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    let text = "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
                5;name=\"va;lue\"\r\nhello\r\n0\r\n\r\n";
    let answer = proxy.ask(text);
    assert!(answer.starts_with("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n"), "{answer}");
    assert!(answer.contains("\r\n\r\nHTTP/1.1 200 OK\r\n") && answer.contains("Trailer: X-Sum"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 7\r\n\r\n"), "{answer}");
}

#[test]
fn via_has_the_version_of_the_message() {
    let proxy = Proxy::start("http", &[mirror()], "", "");
    let answer = proxy.ask("GET / HTTP/1.0\r\nHost: x\r\n\r\n");
    assert!(body_of(&answer).to_lowercase().contains("via: 1.0 fs-proxy"), "{answer}");
    drop(proxy);
    let old = Proxy::start("http", &[says(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok")], "", "");
    let answer = old.get("/");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("Via: 1.0 fs-proxy"), "{answer}");
}

/// One of three servers accepts connections and closes them. All repeatable requests get a
/// response, and it soon gets fewer requests.
#[test]
fn server_that_accepts_and_closes_loses_its_share() {
    let accepted = Arc::new(AtomicUsize::new(0));
    let counter = accepted.clone();
    let bad = backend(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let proxy = Proxy::start("http", &[bad, http_backend(|_| ok("good")), http_backend(|_| ok("good"))], "", "");
    for number in 0..60 {
        assert_eq!(body_of(&proxy.get("/")), "good", "{number}");
    }
    let asked = accepted.load(Ordering::SeqCst);
    assert!((1..20).contains(&asked), "{asked} of 60");
}

#[test]
fn trusted_proxy_reports_its_clients_tls() {
    let config = |trusted: &str| {
        write_config(&format!(
            "[[listener]]\naddress = \"{}:0\"\nmode = \"http\"\nupstream = \"u\"\n{trusted}\n\
             [[upstream]]\nname = \"u\"\nservers = [\"{}\"]\n",
            proxy_ip(),
            mirror()
        ))
    };
    let trusts = format!("trusted_proxies = [\"{}/8\"]", own_ip());
    for (trusted, proto) in [(trusts.as_str(), "https"), ("", "http")] {
        let config = config(trusted);
        let program = start_program(&config);
        let proxy = Proxy { program, config };
        for version in ["1.1", "1.0"] {
            let answer = proxy.ask(&format!(
                "GET / HTTP/{version}\r\nHost: x\r\nConnection: close\r\nX-Forwarded-Proto: https\r\n\r\n"
            ));
            let seen = body_of(&answer).to_lowercase();
            assert!(seen.contains(&format!("x-forwarded-proto: {proto}\r\n")), "{trusted}: {seen}");
            assert_eq!(seen.matches("x-forwarded-proto").count(), 1, "{seen}");
        }
    }
}

/// A client that sends its body byte by byte keeps a server's connection only for the idle time. So
/// does one that sends its head byte by byte.
#[test]
fn slow_clients_have_one_deadline() {
    let top = "timeouts = { idle = \"3s\" }\nlimits = { body_rate = 100 }";
    let proxy = Proxy::start("http", &[mirror()], top, "");
    let starts = [
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nA: ",
        // On hyper.
        "POST / HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nConnection: X-A\r\nContent-Length: 1000\r\n\r\n",
    ];
    let play = |start: &str| {
        let began = Instant::now();
        let mut stream = proxy.connect();
        stream.write_all(start.as_bytes()).unwrap();
        let mut sender = stream.try_clone().unwrap();
        let sending = std::thread::spawn(move || {
            while began.elapsed() < PATIENCE && sender.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 408"), "{start}: {answer}");
        drop(stream);
        sending.join().unwrap();
    };
    std::thread::scope(|scope| {
        for start in starts {
            scope.spawn(|| play(start));
        }
    });
}

/// Both sides read and write a few bytes at a time: nothing is lost, and the proxy slows the fast
/// side down.
#[test]
fn slow_peers_on_both_sides_see_every_byte() {
    let got = Arc::new(Mutex::new(Vec::new()));
    let store = got.clone();
    let addr = backend(move |mut stream| {
        let mut all = Vec::new();
        let mut piece = [0; 997];
        let expected = 300_000;
        loop {
            let len = stream.read(&mut piece)?;
            all.extend_from_slice(&piece[..len]);
            let head = all.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4);
            if len == 0 || head.is_some_and(|head| all.len() >= head + expected) {
                let body = head.map(|head| all[head..].to_vec()).unwrap_or_default();
                *store.lock().unwrap() = body;
                break;
            }
            if all.len() % 10 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let answer = ok(pattern(300_000));
        for piece in answer.chunks(1499) {
            stream.write_all(piece)?;
            if piece[0] % 16 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    let mut stream = proxy.connect();
    let mut request = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 300000\r\n\r\n".to_vec();
    request.extend(pattern(300_000));
    // The head arrives byte by byte.
    let (head, body) = request.split_at(80);
    for byte in head {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut sender = stream.try_clone().unwrap();
    let body = body.to_vec();
    let sending = std::thread::spawn(move || {
        for piece in body.chunks(1237) {
            sender.write_all(piece).unwrap();
            if piece[0] % 16 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let mut answer = Vec::new();
    let mut piece = [0; 773];
    loop {
        match stream.read(&mut piece).unwrap() {
            0 => break,
            len => answer.extend_from_slice(&piece[..len]),
        }
        if answer.len() % 16 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    sending.join().unwrap();
    assert!(*got.lock().unwrap() == pattern(300_000), "{} bytes came", got.lock().unwrap().len());
    assert!(answer.ends_with(&pattern(300_000)), "{} bytes came back", answer.len());
}

/// Pipelined requests, some of them odd, get responses in order on one connection.
#[test]
fn pipelined_and_odd_requests_are_answered_in_order() {
    let addr = http_backend(|request| ok(request.head.split(' ').nth(1).unwrap()));
    let proxy = Proxy::start("http", &[addr], "", "");
    let stream = proxy.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut body = || -> String {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let start = head.len();
            assert!(reader.read_line(&mut head).unwrap() > 0, "ended: {head}");
            if let Some(value) = head[start..].to_lowercase().strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        String::from_utf8(body).unwrap()
    };
    for _ in 0..3 {
        let mut all = String::new();
        for number in 0..20 {
            // Every third has bare line feeds.
            let end = if number % 3 == 2 { "\n" } else { "\r\n" };
            all += &format!("GET /{number} HTTP/1.1{end}Host: x{end}{end}");
        }
        (&stream).write_all(all.as_bytes()).unwrap();
        for number in 0..20 {
            assert_eq!(body(), format!("/{number}"));
        }
        (&stream).write_all(b"\r\n").unwrap();
    }
    // After the response to an odd request the connection is lean again: its wrong requests are
    // refused with the lean path's message.
    (&stream).write_all(b"GARBAGE\r\n\r\n").unwrap();
    assert_eq!(body(), "400 the head is malformed\n");
}

#[test]
fn server_that_is_not_reached_in_time_is_a_504() {
    // A listener whose queue is full drops SYNs.
    let listener = std::net::TcpListener::bind((own_ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    // One connection fills a queue of length 0.
    rustix::net::listen(&listener, 0).unwrap();
    let _waiting = TcpStream::connect(addr).unwrap();
    poll(&mut [PollFd::new(&listener, PollFlags::IN)], None).unwrap();
    let proxy = Proxy::start("http", &[addr], "timeouts = { connect = \"200ms\" }", "");
    assert!(proxy.get("/").starts_with("HTTP/1.1 504"));
}

/// A connection that is open at the end of a drain is reset: after a FIN the stream would look
/// complete.
#[test]
fn connection_cut_by_a_stop_is_reset() {
    let echo = backend(|mut stream| std::io::copy(&mut stream.try_clone()?, &mut stream).map(drop));
    let mut proxy = Proxy::start("tcp", &[echo], "timeouts = { drain = \"200ms\" }", "");
    let mut stream = proxy.connect();
    stream.write_all(b"1").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    proxy.terminate();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert!(proxy.program.wait().success());
}

/// Packets to the host's own addresses never reach a device.
#[test]
fn server_on_the_proxys_own_host_is_reached() {
    let server = "import socket\n\
                  s = socket.create_server(('127.0.0.1', 0))\n\
                  print(s.getsockname()[1], flush=True)\n\
                  while True:\n    \
                      c = s.accept()[0]\n    \
                      c.recv(65536)\n    \
                      c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\nConnection: close\\r\\n\\r\\nlocal')\n    \
                      c.close()\n";
    let mut server = beside_proxy("python3").args(["-c", server]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let addr = format!("127.0.0.1:{}", port.trim()).parse().unwrap();
    let proxy = Proxy::start("http", &[addr], "", "");
    let answers: Vec<String> = (0..3).map(|_| proxy.get("/")).collect();
    server.kill().unwrap();
    server.wait().unwrap();
    for answer in answers {
        assert_eq!(body_of(&answer), "local", "{answer}");
    }
}
