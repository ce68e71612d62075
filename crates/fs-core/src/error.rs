//! What a socket call can answer instead of success. `fs-compat` maps each to the `io::ErrorKind` (and
//! errno) that the Linux kernel would give.

use core::fmt;

/// A socket call's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Nothing to read, no room to write, nothing to accept: an event will follow (EAGAIN).
    WouldBlock,
    /// The peer answered our SYN with RST (ECONNREFUSED), or an ICMP port unreachable arrived.
    ConnectionRefused,
    /// The peer sent RST (ECONNRESET).
    ConnectionReset,
    /// We aborted the connection (ECONNABORTED).
    ConnectionAborted,
    /// The socket is not connected (ENOTCONN).
    NotConnected,
    /// Writing after shutdown (EPIPE).
    BrokenPipe,
    /// Retransmission, keepalive or connect gave up (ETIMEDOUT).
    TimedOut,
    /// Address and port are taken (EADDRINUSE).
    AddrInUse,
    /// The address is not one of ours, or no ephemeral port is free (EADDRNOTAVAIL).
    AddrNotAvailable,
    /// No route to that network (ENETUNREACH).
    NetworkUnreachable,
    /// The neighbour does not answer, or ICMP host unreachable (EHOSTUNREACH).
    HostUnreachable,
    /// A route forbids that destination (EACCES).
    Prohibited,
    /// A datagram is larger than can be sent (EMSGSIZE).
    MessageSize,
    /// No frame, slot or budget left (ENOBUFS).
    NoBuffers,
    /// The argument makes no sense (EINVAL).
    InvalidInput,
    /// The handle is stale or of another kind (EBADF).
    BadSocket,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::WouldBlock => "operation would block",
            Error::ConnectionRefused => "connection refused",
            Error::ConnectionReset => "connection reset by peer",
            Error::ConnectionAborted => "connection aborted",
            Error::NotConnected => "socket is not connected",
            Error::BrokenPipe => "broken pipe",
            Error::TimedOut => "connection timed out",
            Error::AddrInUse => "address already in use",
            Error::AddrNotAvailable => "address not available",
            Error::NetworkUnreachable => "network is unreachable",
            Error::HostUnreachable => "no route to host",
            Error::Prohibited => "permission denied",
            Error::MessageSize => "message too long",
            Error::NoBuffers => "no buffer space available",
            Error::InvalidInput => "invalid argument",
            Error::BadSocket => "bad socket handle",
        })
    }
}

impl core::error::Error for Error {}
