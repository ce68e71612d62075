//! L7 over loopback, on kernel sockets.

mod common;

use common::*;
use fs_stacks::testing::{PATIENCE, eventually, output};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Reads one response with a Content-Length, in chunks, or without a body if `head_only`.
fn read_answer(reader: &mut BufReader<TcpStream>, head_only: bool) -> (String, Vec<u8>) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "ended in the head: {head}");
    }
    let header = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let mut body = Vec::new();
    if head_only {
    } else if header("transfer-encoding").is_some() {
        body = read_chunked(reader).unwrap();
    } else {
        body.resize(header("content-length").unwrap().parse().unwrap(), 0);
        reader.read_exact(&mut body).unwrap();
    }
    (head, body)
}

#[test]
fn headers_are_rewritten() {
    let addr = http_backend(|request| ok(&request.head));
    let proxy = Proxy::start("http", &[addr], "", "");
    let answer = proxy.ask(
        "GET http://site.example/a?b=c HTTP/1.1\r\nHost: other\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\
         Keep-Alive: timeout=1\r\nTE: trailers\r\nX-Forwarded-For: 203.0.113.9\r\nX-Keep: yes\r\n\r\n",
    );
    let seen = body_of(&answer).to_lowercase();
    assert!(seen.starts_with("get /a?b=c http/1.1\r\n"), "{seen}");
    for header in [
        "host: site.example",
        "x-forwarded-for: 203.0.113.9, 127.0.0.1",
        "x-forwarded-proto: http",
        "via: 1.1 ",
        "x-keep: yes",
    ] {
        assert!(seen.contains(header), "{header}: {seen}");
    }
    for header in ["connection:", "x-hop", "keep-alive", "te:"] {
        assert!(!seen.contains(header), "{header}: {seen}");
    }
    assert!(answer.to_lowercase().contains("\r\nvia: 1.1 "), "{answer}");
}

#[test]
fn bodies_arrive_whole_in_both_directions_with_length_and_chunks() {
    let addr = http_backend(|request| {
        let chunked = request.header("x-chunk").is_some();
        let body = &request.body;
        if !chunked {
            return ok(body);
        }
        let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for piece in body.chunks(10_000) {
            answer.extend(format!("{:x}\r\n", piece.len()).into_bytes());
            answer.extend(piece);
            answer.extend(b"\r\n");
        }
        answer.extend(b"0\r\n\r\n");
        answer
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    let stream = proxy.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for len in [0, 1, 65_536, 1 << 20] {
        let body = pattern(len);
        for (send_chunked, answer_chunked) in [(false, false), (true, false), (false, true), (true, true)] {
            let marker = if answer_chunked { "X-Chunk: 1\r\n" } else { "" };
            let framing =
                if send_chunked { "Transfer-Encoding: chunked".into() } else { format!("Content-Length: {len}") };
            let mut request = format!("POST / HTTP/1.1\r\nHost: x\r\n{marker}{framing}\r\n\r\n").into_bytes();
            if send_chunked && len > 0 {
                request.extend(format!("{len:x}\r\n").into_bytes());
                request.extend(&body);
                request.extend(b"\r\n");
            } else {
                request.extend(&body);
            }
            if send_chunked {
                request.extend(b"0\r\n\r\n");
            }
            // Sent and received at the same time: the backend's response must not wait in a full
            // pipe.
            std::thread::scope(|scope| {
                scope.spawn(|| (&stream).write_all(&request).unwrap());
                let (head, got) = read_answer(&mut reader, false);
                assert!(head.starts_with("HTTP/1.1 200"), "{head}");
                assert!(got == body, "{len} {send_chunked} {answer_chunked}: {} bytes came back", got.len());
            });
        }
    }
}

/// RFC 9112 6.3: chunks take precedence over a length, which is the server's mistake and must not
/// reach the client.
#[test]
fn response_with_length_and_chunks_arrives_whole() {
    let addr = http_backend(|_| {
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nchunks\r\n0\r\n\r\n".to_vec()
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    let mut stream = proxy.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for _ in 0..2 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let (head, body) = read_answer(&mut reader, false);
        assert!(!head.to_lowercase().contains("content-length"), "{head}");
        assert_eq!(body, b"chunks");
    }
}

/// The method says nothing about the body (RFC 9110 9.3.1 leaves it to the server).
#[test]
fn chunked_body_reaches_the_server_with_every_method() {
    let addr = http_backend(|request| {
        let seen = format!("{} {}", request.head.split(' ').next().unwrap(), String::from_utf8_lossy(&request.body));
        let body = if request.head.starts_with("HEAD") { "" } else { &seen };
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nX-Seen: {seen}\r\n\r\n{body}", seen.len()).into_bytes()
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    for method in ["GET", "HEAD", "DELETE", "POST"] {
        let framings = [("Transfer-Encoding: chunked", "4\r\nbody\r\n0\r\n\r\n"), ("Content-Length: 4", "body")];
        for (framing, body) in framings {
            let answer =
                proxy.ask(&format!("{method} / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{framing}\r\n\r\n{body}"));
            assert!(answer.contains(&format!("{method} body")), "{method}, {framing}: {answer}");
        }
    }
}

#[test]
fn responses_without_a_body() {
    let addr = http_backend(|request| match request.head.split(' ').nth(1) {
        Some("/204") => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
        Some("/304") => b"HTTP/1.1 304 Not Modified\r\nETag: \"e\"\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n".to_vec(),
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    let mut stream = proxy.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    // On one connection: a wrong length of the body would shift what follows.
    for (request, status, header) in [
        ("HEAD /", "200", "content-length: 5"),
        ("GET /204", "204", ""),
        ("GET /304", "304", "etag: \"e\""),
        ("HEAD /", "200", "content-length: 5"),
    ] {
        stream.write_all(format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        let (head, _) = read_answer(&mut reader, true);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")) && head.to_lowercase().contains(header), "{head}");
    }
}

/// RFC 9110 10.1.1: the server decides about the expectation.
#[test]
fn expect_100_continue_and_its_response_are_passed_on() {
    let addr = backend(|stream| {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            reader.read_line(&mut head)?;
        }
        assert!(head.to_lowercase().contains("expect: 100-continue"), "{head}");
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        let mut body = [0; 3];
        reader.read_exact(&mut body)?;
        writer.write_all(&ok(body))
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    let mut stream = proxy.connect();
    stream.write_all(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (head, _) = read_answer(&mut reader, true);
    assert!(head.starts_with("HTTP/1.1 100"), "{head}");
    stream.write_all(b"abc").unwrap();
    let (head, body) = read_answer(&mut reader, false);
    assert!(head.starts_with("HTTP/1.1 200") && body == b"abc", "{head}");
}

#[test]
fn response_that_ends_with_its_connection_is_delimited_for_the_client() {
    let addr = backend(|stream| {
        let mut writer = stream.try_clone()?;
        read_request(&mut BufReader::new(stream))?;
        writer.write_all(b"HTTP/1.0 200 OK\r\n\r\nold and short")?;
        writer.shutdown(Shutdown::Both)
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    let mut stream = proxy.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for _ in 0..2 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert_eq!(read_answer(&mut reader, false).1, b"old and short");
    }
}

#[test]
fn large_body_is_not_buffered() {
    // The backend sends 256 MiB to a client that does not read at first, so the backend must wait.
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = sent.clone();
    let addr = backend(move |stream| {
        let mut writer = stream.try_clone()?;
        read_request(&mut BufReader::new(stream))?;
        writer.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 256 << 20).as_bytes())?;
        for _ in 0..256 {
            writer.write_all(&[1; 1 << 20])?;
            counter.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    let mut stream = proxy.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let (mut before, mut times) = (usize::MAX, 0);
    eventually("the backend is held back", || {
        std::thread::sleep(Duration::from_millis(200));
        let is_same = before == std::mem::replace(&mut before, sent.load(Ordering::SeqCst));
        times = if is_same { times + 1 } else { 0 };
        times == 5
    });
    // The buffers of two pairs of kernel sockets and of hyper. A proxy that buffers would have
    // taken everything.
    assert!(before < 64, "{before} MiB went into the proxy");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.len() > 256 << 20 && rest[rest.len() - (256 << 20)..].iter().all(|&byte| byte == 1));
}

#[test]
fn unreachable_backend_is_a_502_and_a_log_line() {
    let down = nobody();
    let proxy = Proxy::start("http", &[down], "", "");
    let answer = proxy.get("/");
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    proxy.program.says(&down.to_string());
}

#[test]
fn next_server_is_tried_when_one_is_down() {
    let proxy = Proxy::start("http", &[nobody(), http_backend(|_| ok("alive"))], "", "");
    for _ in 0..4 {
        assert_eq!(body_of(&proxy.get("/")), "alive");
    }
}

#[test]
fn silent_backend_is_a_504_and_a_broken_response_ends_early() {
    let silent = backend(|mut stream| std::io::copy(&mut stream, &mut std::io::sink()).map(drop));
    let proxy = Proxy::start("http", &[silent], "timeouts = { response = \"200ms\" }", "");
    assert!(proxy.get("/").starts_with("HTTP/1.1 504"));
    let broken = backend(|stream| {
        let mut writer = stream.try_clone()?;
        read_request(&mut BufReader::new(stream))?;
        writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
    });
    let proxy = Proxy::start("http", &[broken], "", "");
    let answer = proxy.get("/");
    assert!(answer.starts_with("HTTP/1.1 200") && body_of(&answer).len() < 100, "{answer}");
    let garbage = backend(|stream| {
        let mut writer = stream.try_clone()?;
        read_request(&mut BufReader::new(stream))?;
        writer.write_all(b"this is not HTTP\r\n\r\n")
    });
    let proxy = Proxy::start("http", &[garbage], "", "");
    assert!(proxy.get("/").starts_with("HTTP/1.1 502"));
}

#[test]
fn backend_connections_are_kept_and_a_stale_one_loses_no_request() {
    // Closes each connection after its second response, without announcing it.
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = connections.clone();
    let addr = backend(move |stream| {
        counter.fetch_add(1, Ordering::SeqCst);
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        for _ in 0..2 {
            if read_request(&mut reader)?.is_some() {
                writer.write_all(&ok("hi"))?;
            }
        }
        Ok(())
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    for number in 0..20 {
        let answer = proxy.get("/");
        assert!(answer.starts_with("HTTP/1.1 200"), "{number}: {answer}");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 10);
}

#[test]
fn post_is_not_sent_twice() {
    // Responds to one request, then reads the next and closes without a response.
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = requests.clone();
    let addr = backend(move |stream| {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        if read_request(&mut reader)?.is_some() {
            writer.write_all(&ok("hi"))?;
        }
        if read_request(&mut reader)?.is_some() {
            counter.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    assert!(proxy.get("/").starts_with("HTTP/1.1 200"));
    let post = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx";
    assert!(proxy.ask(post).starts_with("HTTP/1.1 502"));
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    // A GET is sent again, over a new connection.
    assert!(proxy.get("/").starts_with("HTTP/1.1 200"));
    assert!(proxy.get("/").starts_with("HTTP/1.1 200"));
}

#[test]
fn health_checks_remove_a_server_and_add_it_again() {
    let well = Arc::new(AtomicBool::new(true));
    let state = well.clone();
    let sick = http_backend(move |request| {
        if !request.head.starts_with("GET /health") {
            return ok("one");
        }
        if state.load(Ordering::SeqCst) { ok("") } else { b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec() }
    });
    let check = "health_check = { path = \"/health\", interval = \"20ms\", timeout = \"30s\", rise = 2, fall = 2 }";
    let proxy = Proxy::start("http", &[sick, http_backend(|_| ok("two"))], "", check);
    let seen = || (0..4).map(|_| body_of(&proxy.get("/")).to_owned()).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(seen().len(), 2);
    well.store(false, Ordering::SeqCst);
    eventually("only the healthy one is asked", || seen().iter().eq(["two"]));
    well.store(true, Ordering::SeqCst);
    eventually("both are asked again", || seen().len() == 2);
    proxy.program.says("unhealthy");
    proxy.program.says("healthy again");
}

#[test]
fn upgrade_becomes_a_tunnel_and_a_refused_one_a_response() {
    let addr = backend(|stream| {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        let Some(request) = read_request(&mut reader)? else { return Ok(()) };
        if request.header("upgrade") != Some("echo") {
            return writer.write_all(&ok("plain"));
        }
        writer.write_all(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nfirst,")?;
        std::io::copy(&mut reader, &mut writer)?;
        writer.shutdown(Shutdown::Write)
    });
    let proxy = Proxy::start("http", &[addr], "", "");
    let mut stream = proxy.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nsecond,").unwrap();
    stream.write_all(b"third").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 101") && answer.to_lowercase().contains("upgrade: echo"), "{answer}");
    assert_eq!(body_of(&answer), "first,second,third");
    let refused = proxy.ask("GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade, close\r\nUpgrade: other\r\n\r\n");
    assert!(refused.starts_with("HTTP/1.1 200") && body_of(&refused) == "plain", "{refused}");
    assert!(proxy.ask("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 405"));
}

#[test]
fn sigterm_lets_the_open_request_finish() {
    let (asked, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let state = (asked.clone(), go.clone());
    let addr = http_backend(move |_| {
        state.0.store(true, Ordering::SeqCst);
        eventually("the test says go", || state.1.load(Ordering::SeqCst));
        ok("done")
    });
    let mut proxy = Proxy::start("http", &[addr], "timeouts = { drain = \"60s\" }", "");
    let idle = proxy.connect();
    let mut stream = proxy.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    eventually("the request is open", || asked.load(Ordering::SeqCst));
    proxy.program.terminate();
    eventually("new connections are refused", || TcpStream::connect(proxy.addr()).is_err());
    go.store(true, Ordering::SeqCst);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && body_of(&answer) == "done", "{answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    assert!(proxy.program.wait().success());
    drop(idle);
}

#[test]
fn sigterm_does_not_wait_for_ever() {
    let asked = Arc::new(AtomicBool::new(false));
    let state = asked.clone();
    let silent = backend(move |mut stream| {
        stream.read_exact(&mut [0])?;
        state.store(true, Ordering::SeqCst);
        std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
    });
    let mut proxy = Proxy::start("http", &[silent], "timeouts = { drain = \"200ms\" }", "");
    let mut stream = proxy.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    eventually("the request is open", || asked.load(Ordering::SeqCst));
    proxy.program.terminate();
    assert!(proxy.program.wait().success());
    proxy.program.says("still open");
}

#[test]
fn slow_clients_are_closed() {
    let proxy = Proxy::start("http", &[http_backend(|_| ok(""))], "timeouts = { idle = \"200ms\" }", "");
    for start in ["", "GET / HT", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"] {
        let mut stream = proxy.connect();
        stream.write_all(start.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // The end arrives as FIN or as RST.
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{start}: {answer}");
    }
}

#[test]
fn access_log_and_metrics_record_requests() {
    let log = temp_path("access.log");
    let top = format!("access_log = {:?}\nmetrics = \"127.0.0.1:0\"", log.to_str().unwrap());
    let addr = http_backend(|request| ok(&request.body));
    let mut proxy = Proxy::start("http", &[addr], &top, "");
    proxy.ask("POST /p?q HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc");
    let metrics = proxy.program.metrics.expect("the proxy says where its metrics are");
    let get = |accept: &str| {
        let mut stream = TcpStream::connect(metrics).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\n{accept}Connection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let open = get("Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3\r\n");
    let classic = get("");
    for line in
        ["fs_proxy_answers_total{listener=\"127.0.0.1:0\",class=\"2xx\"} 1", "fs_proxy_server_healthy", "le=\"+Inf\""]
    {
        assert!(open.contains(line) && classic.contains(line), "{line}: {open}{classic}");
    }
    let head = "content-type: application/openmetrics-text; version=1.0.0";
    assert!(
        open.contains(head) && open.contains("# TYPE fs_proxy_answers counter\n") && open.contains("# EOF"),
        "{open}"
    );
    let page = include_str!("../../../docs/COUNTERS.md");
    let names = open.lines().filter_map(|line| line.strip_prefix("# TYPE fs_proxy_")?.split(' ').next());
    for name in names.filter(|name| !name.starts_with("stack_")) {
        assert!(page.contains(&format!("`{name}`")), "docs/COUNTERS.md lacks {name}");
    }
    let head = "content-type: text/plain; version=0.0.4";
    let kind = "# TYPE fs_proxy_answers_total counter\n";
    assert!(classic.contains(head) && classic.contains(kind) && !classic.contains("# EOF"), "{classic}");
    proxy.program.terminate();
    assert!(proxy.program.wait().success());
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(" 200 ") && text.contains(&addr.to_string()) && text.contains("in=3 out=3"), "{text}");
    assert!(text.ends_with("\"POST /p?q\"\n"), "{text}");
}

#[test]
fn invalid_configurations_are_reported_with_their_line() {
    let bad = write_config("# a comment\nfrobnicate = 1\n");
    let result = output(EXE, &["--config", bad.to_str().unwrap()]);
    std::fs::remove_file(bad).unwrap();
    let said = String::from_utf8_lossy(&result.stderr).into_owned();
    // The unit is not started again with this status.
    assert_eq!(result.status.code(), Some(78));
    assert!(said.contains("frobnicate") && said.contains("line 2"), "{said}");
    let status = |upstream: &str, servers: &str| {
        let file = write_config(&format!(
            "[[listener]]\naddress = '127.0.0.1:0'\nmode = 'http'\nupstream = '{upstream}'\n\
             [[upstream]]\nname = 'u'\nservers = [{servers}]\n",
        ));
        let result = output(EXE, &["--config", file.to_str().unwrap()]);
        std::fs::remove_file(file).unwrap();
        result.status.code()
    };
    // What a name means may change. It does not change other errors.
    assert_eq!(status("u", "'localhost:9', '127.0.0.1:9', '[::1]:9'"), Some(1));
    assert_eq!(status("u", "'127.0.0.1:9', '127.0.0.1:9'"), Some(78));
    assert_eq!(status("v", "'localhost:9'"), Some(78));
    assert_eq!(status("u", "'127.0.0.1:9']\ntls = { key = 'k' }\n#"), Some(78));
    let result = output(EXE, &["/nonexistent/proxy.toml"]);
    assert!(!result.status.success() && String::from_utf8_lossy(&result.stderr).contains("/nonexistent/proxy.toml"));
    assert!(!output(EXE, &[]).status.success());
}

#[test]
fn port_in_use_is_an_error_that_names_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let config = write_config(&format!(
        "[[listener]]\naddress = \"{addr}\"\nmode = \"tcp\"\nupstream = \"u\"\n[[upstream]]\nname = \"u\"\nservers = [\"127.0.0.1:1\"]\n"
    ));
    let result = output(EXE, &["--config", config.to_str().unwrap()]);
    std::fs::remove_file(config).unwrap();
    let said = String::from_utf8_lossy(&result.stderr).into_owned();
    assert_eq!(result.status.code(), Some(1));
    assert!(said.contains("in use") && said.contains(&addr.to_string()), "{said}");
}

/// systemd starts the proxy again until the address is there. A device must not be opened each time.
#[test]
fn address_is_checked_before_the_device_is_opened() {
    // An address for documentation (RFC 5737). lo has no XDP in its driver.
    let text = "[[listener]]\naddress = \"192.0.2.1:8080\"\nmode = \"tcp\"\nupstream = \"u\"\n\
                [[upstream]]\nname = \"u\"\nservers = [\"127.0.0.1:1\"]\n";
    let config = write_config(text);
    let stack = ["--stack", "fastsock", "--device", "lo", "--link", "xdp-native"];
    let result = output(EXE, &[&["--config", config.to_str().unwrap()], &stack[..]].concat());
    std::fs::remove_file(&config).unwrap();
    let error = String::from_utf8_lossy(&result.stderr);
    assert!(!result.status.success() && error.contains("cannot listen on 192.0.2.1:8080"), "{error}");
}

/// RFC 9112 9.6: the last response says so. The server has answered and closed without the request's body, and the
/// proxy notices both when it sends more of the body.
#[test]
fn early_response_of_a_server_that_has_closed_announces_the_end() {
    use rustix::process::{Pid, Signal, kill_process};
    let (asked, is_asked) = channel();
    let (go, may_answer) = channel();
    let (answered, has_answered) = channel();
    let may_answer = Arc::new(Mutex::new(may_answer));
    let server = backend(move |mut stream| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.extend(byte);
        }
        // A part of the body stays unread, so the close is a reset.
        stream.peek(&mut [0])?;
        asked.send(()).map_err(std::io::Error::other)?;
        may_answer.lock().unwrap().recv().map_err(std::io::Error::other)?;
        stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")?;
        drop(stream);
        answered.send(()).map_err(std::io::Error::other)
    });
    for path in ["lean = true", "lean = false"] {
        let proxy = Proxy::start("http", &[server], path, "");
        let process = Pid::from_raw(proxy.program.id().cast_signed()).unwrap();
        let mut client = proxy.connect();
        client.write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n0123456789").unwrap();
        is_asked.recv().unwrap();
        // Stopped, so that it sees all of it at the same time.
        kill_process(process, Signal::STOP).unwrap();
        let tasks = format!("/proc/{}/task", proxy.program.id());
        eventually("it is stopped", || {
            let mut tasks = std::fs::read_dir(&tasks).unwrap().flatten();
            tasks.all(|task| std::fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| stat.contains(") T ")))
        });
        go.send(()).unwrap();
        has_answered.recv().unwrap();
        client.write_all(b"0123456789").unwrap();
        kill_process(process, Signal::CONT).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap().to_lowercase();
        assert!(answer.starts_with("http/1.1 413") && answer.contains("\r\nconnection: close\r\n"), "{path}: {answer}");
    }
}
