//! Errors of socket calls, with the errno that the Linux kernel would return.

use core::fmt;

/// A socket call's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Nothing to read, no space to write, nothing to accept (EAGAIN). An event follows.
    WouldBlock = 11,
    /// The peer replied to our SYN with RST (ECONNREFUSED), or an ICMP port unreachable arrived.
    ConnectionRefused = 111,
    /// The peer sent RST (ECONNRESET).
    ConnectionReset = 104,
    /// The local side aborted the connection (ECONNABORTED).
    ConnectionAborted = 103,
    /// The socket is not connected (ENOTCONN).
    NotConnected = 107,
    /// Write after shutdown (EPIPE).
    BrokenPipe = 32,
    /// Retransmission, keepalive or connect timed out (ETIMEDOUT).
    TimedOut = 110,
    /// Address and port are in use (EADDRINUSE).
    AddrInUse = 98,
    /// The address is not one of ours, or no ephemeral port is free (EADDRNOTAVAIL).
    AddrNotAvailable = 99,
    /// No route to the network (ENETUNREACH).
    NetworkUnreachable = 101,
    /// The neighbour did not reply, or an ICMP host unreachable arrived (EHOSTUNREACH).
    HostUnreachable = 113,
    /// A route prohibits the destination (EACCES).
    Prohibited = 13,
    /// The datagram is too large (EMSGSIZE).
    MessageSize = 90,
    /// No frame, slot or budget left (ENOBUFS).
    NoBuffers = 105,
    /// The argument is invalid (EINVAL).
    InvalidInput = 22,
    /// The handle is stale or names a socket of another kind (EBADF).
    BadSocket = 9,
}

impl Error {
    /// Returns Linux's errno of x86-64 and AArch64 (include/uapi/asm-generic/errno.h).
    pub const fn errno(self) -> i32 {
        self as i32
    }
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
