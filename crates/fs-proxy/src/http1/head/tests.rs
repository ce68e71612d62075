use super::*;

fn added(is_trusted: bool) -> Added {
    Added::new("192.0.2.7".parse().unwrap(), false, is_trusted)
}

const ADDED: &str = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\nVia: 1.1 fs-proxy\r\n\r\n";

fn sent(text: &str) -> Result<String, Parsed<Request>> {
    let mut out = Vec::new();
    match request(text.as_bytes(), &added(false), &mut out) {
        Parsed::Whole(..) => Ok(String::from_utf8(out).unwrap()),
        other => Err(other),
    }
}

#[test]
fn requests_are_edited() {
    for (text, expected) in [
        ("GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n", format!("GET /a?b HTTP/1.1\r\nHost: x\r\n{ADDED}")),
        ("\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", format!("GET / HTTP/1.1\r\nHost: x\r\n{ADDED}")),
        (
            "GET / HTTP/1.1\r\nConnection: keep-alive\r\nHost: x\r\nTE: trailers\r\nX-Forwarded-For: 1.2.3.4\r\nA: b\r\n\
             Keep-Alive: 5\r\nX-Forwarded-Proto: https\r\nX-Forwarded-For: 5.6.7.8\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\nA: b\r\nX-Forwarded-For: 1.2.3.4, 5.6.7.8, 192.0.2.7\r\n\
             X-Forwarded-Proto: http\r\nVia: 1.1 fs-proxy\r\n\r\n"
                .into(),
        ),
        (
            "OPTIONS http://me@b:81 HTTP/1.1\r\nA: 1\r\nHost: x\r\nB: 2\r\n\r\n",
            format!("OPTIONS * HTTP/1.1\r\nHost: b:81\r\nA: 1\r\nB: 2\r\n{ADDED}"),
        ),
        ("GET http://b?q HTTP/1.1\r\nHost: x\r\n\r\n", format!("GET /?q HTTP/1.1\r\nHost: b\r\n{ADDED}")),
    ] {
        assert_eq!(sent(text), Ok(expected), "{text}");
    }
}

#[test]
fn trusted_proxy_headers_are_kept() {
    let mut out = Vec::new();
    let text = b"GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n";
    assert!(matches!(request(text, &added(true), &mut out), Parsed::Whole(..)));
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\nX-Forwarded-For: 1.2.3.4, 192.0.2.7\r\n\
         Via: 1.1 fs-proxy\r\n\r\n"
    );
}

#[test]
fn odd_requests_are_left_to_hyper_and_wrong_ones_refused() {
    for odd in [
        "GET / HTTP/1.0\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n\n",
        "CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\n\r\n",
    ] {
        assert!(matches!(sent(odd), Err(Parsed::Odd(_))), "{odd:?}: {:?}", sent(odd));
    }
    for (wrong, status) in [
        ("GARBAGE\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET /#f HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("GET http://a/#f HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: x y\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: ,chunked\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        ("GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    ] {
        assert!(
            matches!(sent(wrong), Err(Parsed::Refused(Refusal(got, _))) if got == status),
            "{wrong:?}: {:?}",
            sent(wrong)
        );
    }
    let many = |lines: usize| format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(lines));
    assert!(sent(&many(LINES_MAX - 1)).is_ok());
    assert_eq!(sent(&many(LINES_MAX)), Err(Parsed::Refused(Refusal::HEAD_TOO_LONG)));
}

fn answered(text: &str, is_head: bool, close: bool) -> Result<(Answer, String), Parsed<Answer>> {
    let mut out = Vec::new();
    match answer(text.as_bytes(), is_head, close, &mut out) {
        Parsed::Whole(answer, len) => {
            assert_eq!(len, text.len());
            Ok((answer, String::from_utf8(out).unwrap()))
        }
        other => Err(other),
    }
}

#[test]
fn answers_are_edited() {
    let via = "Via: 1.1 fs-proxy\r\n\r\n";
    for (text, is_head, close, expected, body, reuse) in [
        (
            "HTTP/1.1 200 OK\r\nServer: nginx\r\nConnection: keep-alive\r\nContent-Length: 3\r\nX: y\r\n\r\n",
            false,
            false,
            format!("HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Length: 3\r\nX: y\r\n{via}"),
            Body::Length(3),
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\nConnection: close, X-Hop, Set-Cookie\r\nX-Hop: 1\r\nSet-Cookie: a\r\n\r\n",
            false,
            true,
            format!("HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n{via}"),
            Body::UntilEnd,
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            false,
            false,
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{via}"),
            Body::chunked(),
            false,
        ),
        (
            "HTTP/1.1 200\r\nContent-Length: 3\r\n\r\n",
            false,
            false,
            format!("HTTP/1.1 200 \r\nContent-Length: 3\r\n{via}"),
            Body::Length(3),
            true,
        ),
        (
            "HTTP/1.1 200 OK\nContent-Length: 3\n\n",
            true,
            false,
            format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n{via}"),
            Body::NONE,
            true,
        ),
        (
            "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n",
            false,
            false,
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nVia: 1.0 fs-proxy\r\n\r\n".into(),
            Body::Length(3),
            false,
        ),
        (
            "HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n",
            false,
            false,
            format!("HTTP/1.1 204 No\r\n{via}"),
            Body::NONE,
            true,
        ),
        (
            "HTTP/1.1 103 Early\r\nLink: x\r\n\r\n",
            false,
            true,
            format!("HTTP/1.1 103 Early\r\nLink: x\r\n{via}"),
            Body::NONE,
            true,
        ),
    ] {
        let (answer, out) = answered(text, is_head, close).unwrap_or_else(|other| panic!("{text}: {other:?}"));
        assert_eq!((out, answer.body, answer.reuse), (expected, body, reuse), "{text}");
    }
    for odd in [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "this is not HTTP\r\n\r\n",
    ] {
        assert!(matches!(answered(odd, false, false), Err(Parsed::Odd(_))), "{odd}");
    }
    let cookies = "Set-Cookie: a=b\r\n".repeat(150);
    let (_, out) = answered(&format!("HTTP/1.1 200 OK\r\n{cookies}Content-Length: 0\r\n\r\n"), false, false).unwrap();
    assert_eq!(out.matches("Set-Cookie: a=b\r\n").count(), 150);
}
