//! The proxy's own responses.

use fs_stacks::net::is_own_shortage;
use std::io::{self, Write};

/// A response of the proxy.
pub(crate) trait Reply {
    fn status(&self) -> u16;
    /// Writes the whole response, to HEAD (`is_head`) without the body. With `close` the connection
    /// ends after it.
    fn write(&self, is_head: bool, close: bool, out: &mut Vec<u8>);
}

/// A redirect to this location.
pub(crate) struct Redirect(pub(crate) u16, pub(crate) String);

impl Reply for Redirect {
    fn status(&self) -> u16 {
        self.0
    }

    fn write(&self, is_head: bool, close: bool, out: &mut Vec<u8>) {
        write_reply(self.0, Some(&self.1), &text_of(self.0, ""), is_head, close, out);
    }
}

/// The reason why a request is not forwarded, or has no response of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub u16, pub &'static str);

impl Refusal {
    pub(crate) const NO_ROUTE: Self = Self(404, "no route leads to a server");
    pub(crate) const TIMED_OUT: Self = Self(408, "the request did not arrive in time");
    pub(crate) const HEAD_TOO_LONG: Self = Self(431, "the head is too long or has too many lines");
    pub(crate) const NO_CONNECTION_LEFT: Self = Self(503, "the proxy has no connection left");
    pub(crate) const BUSY: Self = Self(503, "all servers are busy");
    pub(crate) const TOO_MANY: Self = Self(429, "too many requests from this address");
    pub(crate) const UNREACHABLE: Self = Self(502, "no server could be reached");
    pub(crate) const CONNECT_TIMED_OUT: Self = Self(504, "no server could be reached in time");
    pub(crate) const SILENT: Self = Self(504, "the server did not answer in time");
    pub(crate) const BROKE_OFF: Self = Self(502, "the server broke off");
    pub(crate) const BROKE_PROTOCOL: Self = Self(502, "the server broke the protocol");

    /// Returns the response if no server could be reached.
    pub(crate) fn why_unreached(error: &io::Error) -> Self {
        match error {
            error if is_own_shortage(error) => Self::NO_CONNECTION_LEFT,
            error if error.kind() == io::ErrorKind::TimedOut => Self::CONNECT_TIMED_OUT,
            _ => Self::UNREACHABLE,
        }
    }

    /// Returns true for the statuses of requests that a server did not answer.
    pub(crate) fn is_of_server(status: u16) -> bool {
        matches!(status, 502 | 504)
    }

    /// Returns the body: the status and the reason.
    pub(crate) fn text(self) -> String {
        text_of(self.0, self.1)
    }
}

impl Reply for Refusal {
    fn status(&self) -> u16 {
        self.0
    }

    fn write(&self, is_head: bool, close: bool, out: &mut Vec<u8>) {
        write_reply(self.0, None, &self.text(), is_head, close, out);
    }
}

fn text_of(status: u16, reason: &str) -> String {
    format!("{status} {}\n", if reason.is_empty() { name_of(status) } else { reason })
}

fn name_of(status: u16) -> &'static str {
    let status = http::StatusCode::from_u16(status).ok();
    status.and_then(|status| status.canonical_reason()).unwrap_or_default()
}

fn write_reply(status: u16, location: Option<&str>, text: &str, is_head: bool, close: bool, out: &mut Vec<u8>) {
    let [before, location, after] = location.map_or(["", "", ""], |location| ["Location: ", location, "\r\n"]);
    // Writing to a Vec cannot fail.
    let _ = write!(
        out,
        "HTTP/1.1 {status} {}\r\n{before}{location}{after}Content-Type: text/plain\r\nContent-Length: {}\r\n{}\r\n",
        name_of(status),
        text.len(),
        if close { "Connection: close\r\n" } else { "" }
    );
    if !is_head {
        out.extend_from_slice(text.as_bytes());
    }
}
