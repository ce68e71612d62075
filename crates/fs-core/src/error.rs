//! Errors of socket calls. `fs-compat` maps each to the `io::ErrorKind` (and errno) that the Linux
//! kernel would return.

use core::fmt;

/// A socket call's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Nothing to read, no space to write, nothing to accept (EAGAIN). An event follows.
    WouldBlock,
    /// The peer replied to our SYN with RST (ECONNREFUSED), or an ICMP port unreachable arrived.
    ConnectionRefused,
    /// The peer sent RST (ECONNRESET).
    ConnectionReset,
    /// The local side aborted the connection (ECONNABORTED).
    ConnectionAborted,
    /// The socket is not connected (ENOTCONN).
    NotConnected,
    /// Write after shutdown (EPIPE).
    BrokenPipe,
    /// Retransmission, keepalive or connect timed out (ETIMEDOUT).
    TimedOut,
    /// Address and port are in use (EADDRINUSE).
    AddrInUse,
    /// The address is not one of ours, or no ephemeral port is free (EADDRNOTAVAIL).
    AddrNotAvailable,
    /// No route to the network (ENETUNREACH).
    NetworkUnreachable,
    /// The neighbour did not reply, or an ICMP host unreachable arrived (EHOSTUNREACH).
    HostUnreachable,
    /// A route prohibits the destination (EACCES).
    Prohibited,
    /// The datagram is too large (EMSGSIZE).
    MessageSize,
    /// No frame, slot or budget left (ENOBUFS).
    NoBuffers,
    /// The argument is invalid (EINVAL).
    InvalidInput,
    /// The handle is stale or names a socket of another kind (EBADF).
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
