//! The proxy's own responses.

use fs_example_common::net::is_own_shortage;
use std::io::{self, Write};

/// The reason why a request is not forwarded, or has no response of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub u16, pub &'static str);

impl Refusal {
    pub(crate) const TIMED_OUT: Self = Self(408, "the request did not arrive in time");
    pub(crate) const HEAD_TOO_LONG: Self = Self(431, "the head is too long or has too many lines");
    pub(crate) const NO_CONNECTION_LEFT: Self = Self(503, "the proxy has no connection left");
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

    /// Returns the body: the status and the reason.
    pub(crate) fn text(self) -> String {
        format!("{} {}\n", self.0, self.1)
    }

    /// Writes the whole response, to HEAD (`is_head`) without the body. With `close` the connection
    /// ends after it.
    pub(crate) fn write(self, is_head: bool, close: bool, out: &mut Vec<u8>) {
        let text = self.text();
        let reason = http::StatusCode::from_u16(self.0).ok().and_then(|status| status.canonical_reason());
        // Writing to a Vec cannot fail.
        let _ = write!(
            out,
            "HTTP/1.1 {} {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n{}\r\n",
            self.0,
            reason.unwrap_or_default(),
            text.len(),
            if close { "Connection: close\r\n" } else { "" }
        );
        if !is_head {
            out.extend_from_slice(text.as_bytes());
        }
    }
}
