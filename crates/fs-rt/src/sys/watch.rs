//! Watches a descriptor with tokio.

use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdRegisterError};

/// Registers `fd` with the calling thread's tokio runtime, for reading.
pub(crate) fn watch_readable(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, AsyncFdRegisterError<OwnedFd>> {
    // SAFETY: `fd` is an open descriptor that the AsyncFd owns until it is dropped, and OwnedFd
    // always returns the same number.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
}
