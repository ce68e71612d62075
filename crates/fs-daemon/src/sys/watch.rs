//! Waiting for a descriptor in tokio.

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers `fd`, edge triggered, for reading.
pub(crate) fn watch_readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: `fd` is an open descriptor that the AsyncFd owns until it is dropped, and OwnedFd always answers the same
    // number.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}
