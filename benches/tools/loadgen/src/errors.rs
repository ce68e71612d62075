//! Kinds of request errors.

use std::collections::BTreeMap;
use std::io;

/// A kind of error: its name in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind(pub(crate) &'static str);

/// No progress within `--timeout`.
pub(crate) const TIMEOUT: Kind = Kind("timeout");
/// The connection ended within a response.
pub(crate) const SHORT: Kind = Kind("unexpected_end");
/// The status was not 2xx.
pub(crate) const STATUS: Kind = Kind("status");
/// The body did not have the length of `--body`.
pub(crate) const LENGTH: Kind = Kind("body_length");
/// The response is not HTTP/1.x with a Content-Length, or longer than that.
pub(crate) const PROTOCOL: Kind = Kind("protocol");
/// An echo returned wrong bytes.
pub(crate) const CONTENT: Kind = Kind("wrong_bytes");

impl From<io::Error> for Kind {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as K;
        Kind(match error.kind() {
            K::ConnectionRefused => "refused",
            K::ConnectionReset => "reset",
            K::ConnectionAborted => "aborted",
            K::BrokenPipe => "broken_pipe",
            K::TimedOut => "connect_timeout",
            K::AddrInUse | K::AddrNotAvailable => "no_free_port",
            K::HostUnreachable | K::NetworkUnreachable => "unreachable",
            K::OutOfMemory => "no_memory",
            _ => match error.raw_os_error() {
                // EMFILE and ENFILE, ENOBUFS: numbers of every Linux architecture.
                Some(23 | 24) => "no_descriptor",
                Some(105) => "no_memory",
                _ => "other",
            },
        })
    }
}

/// Number of errors of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Errors(BTreeMap<&'static str, u64>);

impl Errors {
    pub(crate) fn count(&mut self, kind: Kind) {
        *self.0.entry(kind.0).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Errors) {
        for (kind, count) in &other.0 {
            *self.0.entry(kind).or_default() += count;
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    pub(crate) fn by_kind(&self) -> &BTreeMap<&'static str, u64> {
        &self.0
    }
}
