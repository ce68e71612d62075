//! Heads on the lean path: parsed in place by httparse, and edited by copying runs of lines.
//!
//! Pure functions: bytes in, a verdict and the head for the other side out. Only certainly plain
//! heads are [`Parsed::Whole`]. Certainly wrong ones are refused. All others are odd and go to
//! hyper.

use super::body::Body;
use super::target::{Target, is_host};
use crate::fields::{Coding, Field, may_be_named, write_line};
use crate::refusal::Refusal;
use httparse::{Error, Header, Status};
use std::mem::MaybeUninit;

/// Maximum length of a head. Too low: large cookies are refused. Too high: each slow client uses
/// that much memory.
pub const HEAD_MAX: usize = 64 << 10;
/// Lines for which there is space on the stack. More need an allocation.
const LINES: usize = 100;
/// Maximum number of lines of a head. nginx has no limit, HAProxy a similar one (101,
/// `tune.http.maxhdr`).
pub const LINES_MAX: usize = 1000;
/// Length of `X-Forwarded-For: `.
const FORWARDED_FOR: usize = 17;
/// Digits of a length that certainly fits into a `u64`.
const DIGITS_MAX: usize = 18;
/// Length of `HTTP/1.1 200`.
const STATUS_END: usize = 12;
/// Two recipients could disagree about the end of the request.
const LENGTH_AND_CODING: Refusal = Refusal(400, "a length and a transfer coding");
const VIA: &[u8] = b"Via: 1.1 fs-proxy\r\n";

/// The result of parsing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// The head is not complete.
    Partial,
    /// The lean path cannot serve the request, for this reason.
    Odd(&'static str),
    /// Certainly wrong.
    Refused(Refusal),
    /// A head, and its length in bytes.
    Whole(T, usize),
}

/// A request that the lean path serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The body after the head.
    pub body: Body,
    /// The client sends no further request on this connection.
    pub close: bool,
    /// True for HEAD: the response has no body.
    pub is_head: bool,
    /// True if the request may be sent again (RFC 9110 9.2.2): idempotent, and without a body.
    pub may_repeat: bool,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status. Below 200, another response follows.
    pub status: u16,
    /// The body after the head.
    pub body: Body,
    /// The head allows to use the server's connection again.
    pub reuse: bool,
}

/// The lines that the proxy adds to each request of a connection.
#[derive(Clone, Debug)]
pub struct Added {
    lines: Vec<u8>,
    /// Offset of `X-Forwarded-Proto`.
    proto: usize,
    /// Offset of `Via`.
    via: usize,
    /// The peer is a proxy whose `X-Forwarded-Proto` is trusted.
    is_trusted: bool,
}

impl Added {
    /// Creates the lines for a client at `address`.
    #[must_use]
    pub fn new(address: std::net::IpAddr, is_tls: bool, is_trusted: bool) -> Self {
        let mut lines = format!("X-Forwarded-For: {}\r\n", address.to_canonical()).into_bytes();
        let proto = lines.len();
        lines.extend_from_slice(if is_tls { b"X-Forwarded-Proto: https\r\n" } else { b"X-Forwarded-Proto: http\r\n" });
        let via = lines.len();
        lines.extend_from_slice(VIA);
        lines.extend_from_slice(b"\r\n");
        Self { lines, proto, via, is_trusted }
    }
}

/// Copies runs of lines, except those that are removed.
struct Runs<'a> {
    from: &'a [u8],
    to: &'a mut Vec<u8>,
    start: usize,
}

impl Runs<'_> {
    #[inline]
    fn leave_out(&mut self, start: usize, end: usize) {
        self.to.extend_from_slice(&self.from[self.start..start]);
        self.start = end;
    }
}

#[inline]
fn offset(within: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - within.as_ptr() as usize
}

/// Returns true if the line that starts at `at` follows CRLF, and not a bare LF.
#[inline]
fn follows_crlf(bytes: &[u8], at: usize) -> bool {
    at >= 2 && bytes[at - 2] == b'\r' && bytes[at - 1] == b'\n'
}

/// Parses a length: digits only.
pub(crate) fn length(value: &[u8]) -> Option<u64> {
    let is_plain = !value.is_empty() && value.len() <= DIGITS_MAX && value.iter().all(u8::is_ascii_digit);
    is_plain.then(|| value.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')))
}

/// The options of a `Connection` field.
#[derive(Default)]
struct Options {
    close: bool,
    /// True if `Connection` names fields, or requests another protocol.
    others: bool,
}

impl Options {
    #[inline]
    fn add(&mut self, value: &[u8]) {
        for option in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
            match option {
                option if option.eq_ignore_ascii_case(b"close") => self.close = true,
                // Neither field is forwarded anyway.
                option if option.eq_ignore_ascii_case(b"keep-alive") || option.eq_ignore_ascii_case(b"te") => {}
                b"" => {}
                _ => self.others = true,
            }
        }
    }
}

fn refused(error: Error) -> Refusal {
    match error {
        Error::TooManyHeaders => Refusal::HEAD_TOO_LONG,
        Error::Version => Refusal(505, "this version of HTTP is not supported"),
        _ => Refusal(400, "the head is malformed"),
    }
}

/// Parses a request, and writes it to `out` in the form for the server.
pub fn request(bytes: &[u8], added: &Added, out: &mut Vec<u8>) -> Parsed<Request> {
    let mut few = [const { MaybeUninit::<Header<'_>>::uninit() }; LINES];
    let mut many;
    let mut head = httparse::Request::new(&mut []);
    let mut parsed = head.parse_with_uninit_headers(bytes, &mut few);
    if parsed == Err(Error::TooManyHeaders) {
        many = vec![MaybeUninit::uninit(); LINES_MAX];
        head = httparse::Request::new(&mut []);
        parsed = head.parse_with_uninit_headers(bytes, &mut many);
    }
    let len = match parsed {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) => return Parsed::Partial,
        Err(error) => return Parsed::Refused(refused(error)),
    };
    let (Some(method), Some(path), Some(1)) = (head.method, head.path, head.version) else {
        return odd(head.headers, "version");
    };
    if path.contains('#') {
        // Requests have no fragment (RFC 9112 3.2). A server that drops it and one that does not would
        // disagree about the path.
        return Parsed::Refused(Refusal(400, "bad target"));
    }
    let Some(target) = Target::of(method, path) else { return odd(head.headers, "target") };
    if !bytes[..len].ends_with(b"\r\n\r\n") {
        return odd(head.headers, "line ends");
    }
    let end = len - 2;
    let lines = &*head.headers;
    let first = lines.first().map_or(end, |line| offset(bytes, line.name.as_bytes()));
    // Empty lines may come before it.
    let mut runs = Runs { from: bytes, to: out, start: offset(bytes, method.as_bytes()) };
    if let Target::Absolute { authority, needs_slash, rest } = target {
        runs.leave_out(offset(bytes, path.as_bytes()), first);
        Target::write(method, needs_slash, rest, runs.to);
        runs.to.extend_from_slice(b" HTTP/1.1\r\n");
        write_line(runs.to, b"Host", authority.as_bytes());
    }
    let (mut content_length, mut codings, mut hosts, mut options) = (None, false, 0, Options::default());
    let (mut earlier, mut proto) = (false, false);
    for (number, line) in lines.iter().enumerate() {
        let start = offset(bytes, line.name.as_bytes());
        if !follows_crlf(bytes, start) {
            return odd(lines, "line ends");
        }
        let leave_out = match Field::of(line.name) {
            Field::EndToEnd => false,
            Field::TransferEncoding => {
                codings = true;
                false
            }
            Field::HopByHop | Field::Upgrade => true,
            Field::Host => {
                hosts += 1;
                if !is_host(line.value) {
                    return Parsed::Refused(Refusal(400, "Host is malformed"));
                }
                target != Target::AsItCame
            }
            Field::Expect if line.value.eq_ignore_ascii_case(b"100-continue") => false,
            Field::Expect => return odd(lines, "expectation"),
            Field::Connection => {
                options.add(line.value);
                true
            }
            Field::ContentLength => {
                if content_length.is_some() || line.value.contains(&b',') || line.value.len() > DIGITS_MAX {
                    return odd(lines, "length");
                }
                content_length = length(line.value);
                if content_length.is_none() {
                    return Parsed::Refused(Refusal(400, "Content-Length is malformed"));
                }
                false
            }
            Field::ForwardedFor => {
                earlier = true;
                true
            }
            Field::ForwardedProto => {
                proto = true;
                !added.is_trusted
            }
        };
        if leave_out {
            let next = lines.get(number + 1).map_or(end, |next| offset(bytes, next.name.as_bytes()));
            runs.leave_out(start, next);
        }
    }
    if hosts != 1 {
        let what = if hosts == 0 { "no Host" } else { "more than one Host" };
        return Parsed::Refused(Refusal(400, what));
    }
    if codings {
        match coding(lines) {
            // RFC 9112 6.1: a proxy in front may have used the length.
            _ if content_length.is_some() => {
                return Parsed::Refused(LENGTH_AND_CODING);
            }
            Coding::Chunked => {}
            Coding::Other => return Parsed::Refused(Refusal(501, "a transfer coding other than chunked")),
            Coding::Malformed => return Parsed::Refused(Refusal(400, "Transfer-Encoding is malformed")),
        }
    }
    if options.others {
        return Parsed::Odd("options of Connection");
    }
    runs.leave_out(end, end);
    write_added(added, earlier.then_some(lines), proto, out);
    let body = if codings { Body::chunked() } else { Body::Length(content_length.unwrap_or(0)) };
    let is_idempotent = matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE");
    let may_repeat = body.is_done() && is_idempotent;
    Parsed::Whole(Request { body, close: options.close, is_head: method == "HEAD", may_repeat }, len)
}

/// Leaves a request to hyper, unless hyper would serve what is refused here: it drops a length next to a
/// transfer coding.
#[cold]
fn odd(lines: &[Header<'_>], why: &'static str) -> Parsed<Request> {
    let has = |field| lines.iter().any(|line| Field::of(line.name) == field);
    match has(Field::ContentLength) && has(Field::TransferEncoding) {
        true => Parsed::Refused(LENGTH_AND_CODING),
        false => Parsed::Odd(why),
    }
}

/// Parses a head that [`request`] has written, and passes it to `read`.
pub(crate) fn read_again<R>(head: &[u8], read: impl FnOnce(&httparse::Request<'_, '_>) -> R) -> R {
    let mut few = [const { MaybeUninit::<Header<'_>>::uninit() }; LINES];
    let mut many;
    let mut parsed = httparse::Request::new(&mut []);
    if parsed.parse_with_uninit_headers(head, &mut few) == Err(Error::TooManyHeaders) {
        // The proxy's own lines come on top.
        many = vec![MaybeUninit::uninit(); LINES_MAX + 8];
        parsed = httparse::Request::new(&mut []);
        // The head was parsed before, so it can be parsed again.
        let _ = parsed.parse_with_uninit_headers(head, &mut many);
    }
    read(&parsed)
}

fn coding(lines: &[Header<'_>]) -> Coding {
    let is_coding = |line: &&Header<'_>| Field::of(line.name) == Field::TransferEncoding;
    Coding::of(lines.iter().filter(is_coding).map(|line| line.value))
}

/// Ends a head with the proxy's own fields. `earlier` has lines of `X-Forwarded-For`, to which the
/// client is appended.
fn write_added(added: &Added, earlier: Option<&[Header<'_>]>, proto: bool, out: &mut Vec<u8>) {
    let Added { lines, proto: at, via, is_trusted } = added;
    let mut start = 0;
    if let Some(earlier) = earlier {
        out.extend_from_slice(&lines[..FORWARDED_FOR]);
        for line in earlier.iter().filter(|line| Field::of(line.name) == Field::ForwardedFor) {
            out.extend_from_slice(line.value);
            out.extend_from_slice(b", ");
        }
        start = FORWARDED_FOR;
    }
    if proto && *is_trusted {
        out.extend_from_slice(&lines[start..*at]);
        start = *via;
    }
    out.extend_from_slice(&lines[start..]);
}

/// Parses a response to a request (`is_head`: to HEAD), and writes it to `out` in the form for the
/// client. `close` announces the end of the connection.
pub fn answer(bytes: &[u8], is_head: bool, close: bool, out: &mut Vec<u8>) -> Parsed<Answer> {
    let mut few = [const { MaybeUninit::<Header<'_>>::uninit() }; LINES];
    let mut many;
    let mut head = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let mut parsed = config.parse_response_with_uninit_headers(&mut head, bytes, &mut few);
    if parsed == Err(Error::TooManyHeaders) {
        many = vec![MaybeUninit::uninit(); LINES_MAX];
        head = httparse::Response::new(&mut []);
        parsed = config.parse_response_with_uninit_headers(&mut head, bytes, &mut many);
    }
    let len = match parsed {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) => return Parsed::Partial,
        Err(_) => return Parsed::Odd("sends a malformed head"),
    };
    let (Some(status @ 100..), Some(version)) = (head.code, head.version) else {
        return Parsed::Odd("sends a malformed head");
    };
    let lines = &*head.headers;
    let end = len - 2;
    let mut runs = Runs { from: bytes, to: out, start: 0 };
    let (mut content_length, mut codings, mut options) = (None, false, Options::default());
    // Unchanged except for some lines.
    let mut is_plain = bytes.starts_with(b"HTTP/1.1 ") && follows_crlf(bytes, len) && follows_crlf(bytes, end);
    // RFC 9112 4: a space follows the status, even without a reason.
    is_plain &= bytes.get(STATUS_END) == Some(&b' ');
    let written = runs.to.len();
    for (number, line) in lines.iter().enumerate() {
        let start = offset(bytes, line.name.as_bytes());
        is_plain &= follows_crlf(bytes, start);
        let leave_out = match Field::of(line.name) {
            Field::HopByHop | Field::Upgrade => true,
            Field::Connection => {
                options.add(line.value);
                true
            }
            Field::ContentLength => {
                let value = length(line.value);
                if value.is_none() || content_length.is_some() {
                    return Parsed::Odd("sends an invalid length");
                }
                content_length = value;
                false
            }
            Field::TransferEncoding => {
                codings = true;
                false
            }
            _ => false,
        };
        if leave_out && is_plain {
            let next = lines.get(number + 1).map_or(end, |next| offset(bytes, next.name.as_bytes()));
            runs.leave_out(start, next);
        }
    }
    if codings && (version != 1 || coding(lines) != Coding::Chunked) {
        return Parsed::Odd("sends a transfer coding that was not asked for");
    }
    let mut reuse = version == 1 && !options.close;
    let body = match content_length {
        _ if is_head || status < 200 || matches!(status, 204 | 304) => Body::NONE,
        // RFC 9112 6.3: chunks take precedence. The next response on this connection cannot be
        // trusted.
        length if codings => {
            reuse &= length.is_none();
            Body::chunked()
        }
        Some(length) => Body::Length(length),
        None => {
            reuse = false;
            Body::UntilEnd
        }
    };
    is_plain &= !options.others && !(codings && (content_length.is_some() || body == Body::NONE));
    if is_plain {
        runs.leave_out(end, end);
    } else {
        out.truncate(written);
        write_answer(&head, status, !matches!(body, Body::Chunks(_)), codings && content_length.is_some(), out);
    }
    if body == Body::UntilEnd {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if close && status >= 200 {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    out.extend_from_slice(if version == 1 { VIA } else { b"Via: 1.0 fs-proxy\r\n" });
    out.extend_from_slice(b"\r\n");
    Parsed::Whole(Answer { status, body, reuse }, len)
}

/// Writes a response's lines one by one.
fn write_answer(head: &httparse::Response<'_, '_>, status: u16, no_coding: bool, no_length: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend([status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8));
    out.push(b' ');
    out.extend_from_slice(head.reason.unwrap_or("").as_bytes());
    out.extend_from_slice(b"\r\n");
    let is_named = |name: &str| {
        let values = head.headers.iter().filter(|line| Field::of(line.name) == Field::Connection);
        let mut options = values.flat_map(|line| line.value.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii);
        may_be_named(name) && options.any(|option| option.eq_ignore_ascii_case(name.as_bytes()))
    };
    for line in &*head.headers {
        let stays = match Field::of(line.name) {
            Field::TransferEncoding => !no_coding,
            Field::ContentLength => !no_length,
            field => !field.ends_here() && !is_named(line.name),
        };
        if stays {
            write_line(out, line.name.as_bytes(), line.value);
        }
    }
}

#[cfg(test)]
mod tests;
