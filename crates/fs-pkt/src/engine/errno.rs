//! Linux's errno values of the engine's errors.

use fs_core::Error;

/// Returns the errno that the kernel would return.
pub(super) fn errno(error: Error) -> i32 {
    match error {
        Error::WouldBlock => libc::EAGAIN,
        Error::ConnectionRefused => libc::ECONNREFUSED,
        Error::ConnectionReset => libc::ECONNRESET,
        Error::ConnectionAborted => libc::ECONNABORTED,
        Error::NotConnected => libc::ENOTCONN,
        Error::BrokenPipe => libc::EPIPE,
        Error::TimedOut => libc::ETIMEDOUT,
        Error::AddrInUse => libc::EADDRINUSE,
        Error::AddrNotAvailable => libc::EADDRNOTAVAIL,
        Error::NetworkUnreachable => libc::ENETUNREACH,
        Error::HostUnreachable => libc::EHOSTUNREACH,
        Error::Prohibited => libc::EACCES,
        Error::MessageSize => libc::EMSGSIZE,
        Error::NoBuffers => libc::ENOBUFS,
        Error::InvalidInput => libc::EINVAL,
        Error::BadSocket => libc::EBADF,
        // An error that this table does not contain yet: no script expects it.
        _ => libc::EPROTO,
    }
}
