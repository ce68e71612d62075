//! Rewrites headers: RFC 9110 7.6 and RFC 9112 3.2.

use super::request_body::RequestBody;
use crate::fields::{Coding, Field, may_be_named};
use crate::http1::head::length;
use crate::http1::target::is_host;
use crate::refusal::Refusal;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, StatusCode, Uri, Version, request, response};
use std::net::SocketAddr;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Returns the protocol that the client wants to switch to (RFC 9110 7.8).
pub(crate) fn wanted_upgrade(head: &request::Parts) -> Option<HeaderValue> {
    let asked = head.version == Version::HTTP_11 && lists(&head.headers, "upgrade");
    // Cleartext HTTP/2 (RFC 9113 3.1: obsolete) would be a tunnel with requests that the proxy does
    // not see. A server may choose it from a list.
    let is_h2c = |protocol: &[u8]| protocol.trim_ascii().to_ascii_lowercase().starts_with(b"h2c");
    let is_seen = |protocols: &&HeaderValue| !protocols.as_bytes().split(|&byte| byte == b',').any(is_h2c);
    asked.then(|| head.headers.get(header::UPGRADE).filter(is_seen).cloned()).flatten()
}

/// The origin of a request.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) peer: SocketAddr,
    pub(crate) is_tls: bool,
    /// The peer is a proxy whose `X-Forwarded-Proto` is trusted.
    pub(crate) is_trusted: bool,
}

/// Converts a client's request into the proxy's.
pub(crate) fn to_server(
    head: &mut request::Parts,
    Origin { peer, is_tls, is_trusted }: Origin,
    upgrade: Option<&HeaderValue>,
) -> Result<(), Refusal> {
    if head.method == Method::CONNECT {
        return Err(Refusal(405, "CONNECT is not served here"));
    }
    // RFC 9112 3.2: exactly one Host, and an absolute target takes precedence.
    let mut hosts = head.headers.get_all(header::HOST).iter();
    if !hosts.next().is_none_or(|host| is_host(host.as_bytes())) {
        return Err(Refusal(400, "Host is malformed"));
    }
    if hosts.next().is_some() {
        return Err(Refusal(400, "more than one Host"));
    }
    // RFC 9112 3.2.3 and 3.2.4: a host alone is only for CONNECT, and an asterisk for OPTIONS.
    let is_host_alone = head.uri.authority().is_some() && head.uri.scheme().is_none();
    // In HTTP/2 it may be next to a host (RFC 9113 8.3.1).
    let is_asterisk = head.uri.path() == "*";
    if head.version != Version::HTTP_2 && is_host_alone || is_asterisk && head.method != Method::OPTIONS {
        return Err(Refusal(400, "bad target"));
    }
    // RFC 3986 3.1. The parser also takes others, such as `~`.
    let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if !head.uri.scheme_str().is_none_or(|scheme| scheme.bytes().all(is_scheme)) {
        return Err(Refusal(400, "bad target"));
    }
    if head.version == Version::HTTP_11 && !head.headers.contains_key(header::HOST) {
        return Err(Refusal(400, "no Host"));
    }
    if let Some(authority) = head.uri.authority() {
        // Userinfo is only for the client's own use (RFC 9110 4.2.4).
        let authority = authority.as_str();
        let host = HeaderValue::from_str(authority.rsplit_once('@').map_or(authority, |(_, host)| host));
        let host = host.map_err(|_| Refusal(400, "bad target"))?;
        head.headers.insert(header::HOST, host);
        let path = head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let path = if path.starts_with('/') || is_asterisk { path.to_owned() } else { format!("/{path}") };
        head.uri = path.parse::<Uri>().map_err(|_| Refusal(400, "bad target"))?;
    } else if head.version == Version::HTTP_2 && !head.headers.contains_key(header::HOST) {
        return Err(Refusal(400, "no Host"));
    }
    match coding(&head.headers) {
        Some(_) if head.headers.contains_key(header::CONTENT_LENGTH) => {
            return Err(Refusal(400, "a length and a transfer coding"));
        }
        None | Some(Coding::Chunked) => {}
        Some(Coding::Other) => return Err(Refusal(501, "a transfer coding other than chunked")),
        Some(Coding::Malformed) => return Err(Refusal(400, "Transfer-Encoding is malformed")),
    }
    remove_hop_by_hop(&mut head.headers);
    if head.version == Version::HTTP_2 {
        join_cookies(&mut head.headers);
    }
    // hyper's server sends 100 when the body is first read (RFC 9110 10.1.1). The next hop need
    // not.
    head.headers.remove(header::EXPECT);
    if let Some(protocol) = upgrade {
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(header::UPGRADE, protocol.clone());
    }
    forwarded_for(&mut head.headers, peer)?;
    if !(is_trusted && head.headers.contains_key(FORWARDED_PROTO)) {
        head.headers.insert(FORWARDED_PROTO, HeaderValue::from_static(if is_tls { "https" } else { "http" }));
    }
    head.headers.append(header::VIA, via(head.version));
    head.version = Version::HTTP_11;
    Ok(())
}

/// A request's body of unknown length is sent in chunks, for every method: without a header hyper
/// assumes that GET and HEAD have none.
pub(crate) fn delimit_body(headers: &mut HeaderMap) {
    if !headers.contains_key(header::CONTENT_LENGTH) {
        headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// The way in which a server delimited its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// One way.
    Clear,
    /// Both a length and chunks. Chunks take precedence, and the next response on this connection
    /// cannot be trusted (RFC 9112 6.3).
    Twice,
    /// It has none that could be passed on, for this reason.
    Wrong(&'static str),
}

/// Converts a server's response into the proxy's.
pub(crate) fn to_client(head: &mut response::Parts) -> Framing {
    // hyper does not read the length of a response that has no body, such as one to HEAD.
    let mut lengths = head.headers.get_all(header::CONTENT_LENGTH).iter();
    let is_valid = lengths.next().is_none_or(|first| length(first.as_bytes()).is_some()) && lengths.next().is_none();
    let framing = match coding(&head.headers) {
        _ if !is_valid => Framing::Wrong("sends an invalid length"),
        Some(coding) if coding != Coding::Chunked || head.version == Version::HTTP_10 => {
            Framing::Wrong("sends a transfer coding that was not asked for")
        }
        // The length is wrong for the body, and would truncate it for the client.
        Some(Coding::Chunked) if head.headers.remove(header::CONTENT_LENGTH).is_some() => Framing::Twice,
        _ => Framing::Clear,
    };
    let protocol = head.headers.get(header::UPGRADE).cloned();
    remove_hop_by_hop(&mut head.headers);
    if let Some(protocol) = protocol.filter(|_| head.status == StatusCode::SWITCHING_PROTOCOLS) {
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(header::UPGRADE, protocol);
    }
    head.headers.append(header::VIA, via(head.version));
    head.version = Version::HTTP_11;
    framing
}

/// Returns the message's transfer coding, if it has one.
fn coding(headers: &HeaderMap) -> Option<Coding> {
    let values = headers.get_all(header::TRANSFER_ENCODING);
    headers.contains_key(header::TRANSFER_ENCODING).then(|| Coding::of(values.iter().map(HeaderValue::as_bytes)))
}

/// Returns the proxy's entry in `Via`, with the version of the received message (RFC 9110 7.6.3).
fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_10 => "1.0 fs-proxy",
        Version::HTTP_2 => "2 fs-proxy",
        _ => "1.1 fs-proxy",
    })
}

/// HTTP/2 may split a `Cookie` into several fields, and HTTP/1.1 has one (RFC 9113 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().count() > 1 {
        let pairs: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
        // Valid values and a separator are a valid value.
        if let Ok(joined) = HeaderValue::from_bytes(&pairs.join(&b"; "[..])) {
            headers.insert(header::COOKIE, joined);
        }
    }
}

/// Returns true if the client understands trailers.
pub(crate) fn accepts_trailers(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::TE).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
}

/// Converts the proxy's request for a server with HTTP/2 (RFC 9113 8.3.1): the host is in the
/// target. A request that was converted before stays.
pub(crate) fn to_http2(request: &mut Request<RequestBody>, is_tls: bool) -> Result<(), Refusal> {
    let Some(host) = request.headers_mut().remove(header::HOST) else { return Ok(()) };
    let scheme = if is_tls { Scheme::HTTPS } else { Scheme::HTTP };
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(scheme);
    parts.authority = Some(Authority::try_from(host.as_bytes()).map_err(|_| Refusal(400, "bad Host"))?);
    parts.path_and_query = Some(path);
    *request.uri_mut() = Uri::from_parts(parts).map_err(|_| Refusal(400, "bad target"))?;
    *request.version_mut() = Version::HTTP_2;
    Ok(())
}

/// A request of HTTP/1.0 may lack Host. The proxy's request needs one.
pub(crate) fn ensure_host<T>(request: &mut Request<T>, server: SocketAddr) {
    let has_host = request.uri().authority().is_some() || request.headers().contains_key(header::HOST);
    if !has_host && let Ok(host) = HeaderValue::from_str(&server.to_string()) {
        request.headers_mut().insert(header::HOST, host);
    }
}

fn forwarded_for(headers: &mut HeaderMap, peer: SocketAddr) -> Result<(), Refusal> {
    let mut list = Vec::new();
    for earlier in headers.get_all(FORWARDED_FOR) {
        list.extend_from_slice(earlier.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(peer.ip().to_canonical().to_string().as_bytes());
    let list = HeaderValue::from_bytes(&list);
    headers.insert(FORWARDED_FOR, list.map_err(|_| Refusal(400, "bad X-Forwarded-For"))?);
    Ok(())
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<&str> = tokens(headers).filter(|token| may_be_named(token)).collect();
    let ends_here = |name: &&HeaderName| {
        Field::of(name.as_str()).ends_here() || named.iter().any(|token| token.eq_ignore_ascii_case(name.as_str()))
    };
    let gone: Vec<HeaderName> = headers.keys().filter(ends_here).cloned().collect();
    for name in gone {
        headers.remove(name);
    }
}

fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

fn lists(headers: &HeaderMap, token: &str) -> bool {
    tokens(headers).any(|listed| listed.eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;

    fn request(uri: &str, headers: &[(&str, &str)]) -> request::Parts {
        let mut builder = Request::get(uri);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).unwrap().into_parts().0
    }

    fn forwarded(mut head: request::Parts) -> Result<request::Parts, Refusal> {
        let upgrade = wanted_upgrade(&head);
        let origin = Origin { peer: "192.0.2.7:999".parse().unwrap(), is_tls: false, is_trusted: false };
        to_server(&mut head, origin, upgrade.as_ref()).map(|()| head)
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let sent = [
            ("host", "a.example"),
            ("connection", "keep-alive, X-Private, host"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("proxy-authorization", "x"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("accept", "*/*"),
        ];
        let head = forwarded(request("/", &sent)).unwrap();
        let mut names: Vec<&str> = head.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "host", "via", "x-forwarded-for", "x-forwarded-proto"]);
        assert_eq!(head.headers["host"], "a.example");
    }

    #[test]
    fn bytes_that_no_scheme_has_are_refused() {
        assert_eq!(forwarded(request("~ttp://a/", &[("host", "a")])).unwrap_err().0, 400);
        assert_eq!(forwarded(request("a+b-c.1://x/y", &[("host", "a")])).unwrap().uri, "/y");
    }

    #[test]
    fn client_is_appended_to_the_list() {
        let sent = [("host", "a"), ("x-forwarded-for", "203.0.113.1"), ("x-forwarded-for", "203.0.113.2")];
        let head = forwarded(request("/", &sent)).unwrap();
        assert_eq!(head.headers["x-forwarded-for"], "203.0.113.1, 203.0.113.2, 192.0.2.7");
        assert_eq!(head.headers.get_all("x-forwarded-for").iter().count(), 1);
    }

    #[test]
    fn absolute_target_sets_the_host() {
        let head = forwarded(request("http://b.example:81/x?y=1", &[("host", "a")])).unwrap();
        assert_eq!(head.uri.to_string(), "/x?y=1");
        assert_eq!(head.headers["host"], "b.example:81");
    }

    #[test]
    fn requests_that_cannot_be_forwarded() {
        assert_eq!(forwarded(request("/", &[])).unwrap_err().0, 400);
        assert_eq!(forwarded(request("/", &[("host", "a"), ("host", "b")])).unwrap_err().0, 400);
        assert_eq!(forwarded(request("/", &[("host", "a b")])).unwrap_err().1, "Host is malformed");
        assert_eq!(forwarded(request("http://a.example/", &[])).unwrap_err().1, "no Host");
        for target in ["a.example", "a.example:81", "*"] {
            assert_eq!(forwarded(request(target, &[("host", "a")])).unwrap_err().1, "bad target", "{target}");
        }
        let mut options = request("*", &[("host", "a")]);
        options.method = Method::OPTIONS;
        assert_eq!(forwarded(options).unwrap().uri, "*");
        for (method, expected) in [(Method::OPTIONS, Some("*")), (Method::GET, None)] {
            let mut head = request("/", &[]);
            let (mut parts, star) = (http::uri::Parts::default(), PathAndQuery::from_static("*"));
            parts.scheme = Some(Scheme::HTTPS);
            parts.authority = Some(Authority::from_static("a.example"));
            parts.path_and_query = Some(star);
            (head.uri, head.method, head.version) = (Uri::from_parts(parts).unwrap(), method, Version::HTTP_2);
            let target = forwarded(head).ok().map(|head| head.uri.to_string());
            assert_eq!(target.as_deref(), expected);
        }
        let mut connect = request("/", &[("host", "a")]);
        connect.method = Method::CONNECT;
        assert_eq!(forwarded(connect).unwrap_err().0, 405);
    }

    #[test]
    fn upgrade_is_requested_again_and_only_101_has_it() {
        let sent = [("host", "a"), ("connection", "Upgrade"), ("upgrade", "websocket")];
        let head = forwarded(request("/", &sent)).unwrap();
        assert_eq!(head.headers["connection"], "upgrade");
        assert_eq!(head.headers["upgrade"], "websocket");
        let no_connection = forwarded(request("/", &[("host", "a"), ("upgrade", "websocket")])).unwrap();
        assert!(!no_connection.headers.contains_key("upgrade"));
        for hidden in ["h2c", "websocket, h2c", "a,H2C-16"] {
            let head = forwarded(request("/", &[("host", "a"), ("connection", "upgrade"), ("upgrade", hidden)]));
            assert!(!head.unwrap().headers.contains_key("upgrade"), "{hidden}");
        }
        for (status, stays) in [(101, true), (200, false)] {
            let answer =
                Response::builder().status(status).header("upgrade", "websocket").header("connection", "upgrade");
            let mut head = answer.body(()).unwrap().into_parts().0;
            assert_eq!(to_client(&mut head), Framing::Clear);
            assert_eq!(head.headers.contains_key("upgrade"), stays);
        }
    }

    #[test]
    fn chunks_override_a_length_and_other_codings_are_refused() {
        let answer = |headers: &[(&str, &str)]| {
            let mut builder = Response::builder();
            for (name, value) in headers {
                builder = builder.header(*name, *value);
            }
            let mut head = builder.body(()).unwrap().into_parts().0;
            (to_client(&mut head), head.headers.contains_key("content-length"))
        };
        assert_eq!(answer(&[("content-length", "5"), ("transfer-encoding", "Chunked")]), (Framing::Twice, false));
        assert_eq!(answer(&[("content-length", "5")]), (Framing::Clear, true));
        assert!(matches!(answer(&[("transfer-encoding", "gzip, chunked")]).0, Framing::Wrong(_)));
        for lengths in [&[""][..], &["5", "5"], &["5, 5"], &["-1"]] {
            let lengths: Vec<(&str, &str)> = lengths.iter().map(|length| ("content-length", *length)).collect();
            assert!(matches!(answer(&lengths).0, Framing::Wrong(_)), "{lengths:?}");
        }
        let sent = [("host", "a"), ("transfer-encoding", "gzip, chunked")];
        assert_eq!(forwarded(request("/", &sent)).unwrap_err().0, 501);
    }
}
