//! Converts the engine's errors to the kernel's.

use fs_core::Error;
use std::io;

/// Returns the `io::Error` with the errno that Linux returns in the same case.
pub fn to_io_error(error: Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// Converts a `Result` with the engine's error to one with the kernel's.
pub(crate) trait IntoIo<T> {
    fn io(self) -> io::Result<T>;
}

impl<T> IntoIo<T> for Result<T, Error> {
    #[inline]
    fn io(self) -> io::Result<T> {
        self.map_err(to_io_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::ErrorKind;

    #[test]
    fn kinds_equal_the_kernels() {
        let expected = [
            (Error::WouldBlock, ErrorKind::WouldBlock),
            (Error::ConnectionRefused, ErrorKind::ConnectionRefused),
            (Error::ConnectionReset, ErrorKind::ConnectionReset),
            (Error::ConnectionAborted, ErrorKind::ConnectionAborted),
            (Error::NotConnected, ErrorKind::NotConnected),
            (Error::BrokenPipe, ErrorKind::BrokenPipe),
            (Error::TimedOut, ErrorKind::TimedOut),
            (Error::AddrInUse, ErrorKind::AddrInUse),
            (Error::AddrNotAvailable, ErrorKind::AddrNotAvailable),
            (Error::NetworkUnreachable, ErrorKind::NetworkUnreachable),
            (Error::HostUnreachable, ErrorKind::HostUnreachable),
            (Error::Prohibited, ErrorKind::PermissionDenied),
            (Error::InvalidInput, ErrorKind::InvalidInput),
        ];
        for (error, kind) in expected {
            assert_eq!(to_io_error(error).kind(), kind, "{error:?}");
        }
        // std has no stable kind for these, so compare the code.
        assert_eq!(to_io_error(Error::MessageSize).raw_os_error(), Some(libc::EMSGSIZE));
        assert_eq!(to_io_error(Error::NoBuffers).raw_os_error(), Some(libc::ENOBUFS));
        assert_eq!(to_io_error(Error::BadSocket).raw_os_error(), Some(libc::EBADF));
    }
}
