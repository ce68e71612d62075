//! Operations on kernel sockets for which neither tokio nor rustix has a safe function.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers `fd` with the calling thread's tokio runtime for EPOLLPRI.
pub(super) fn watch_urgent(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: `fd` is an open descriptor that the AsyncFd owns until it is dropped, and OwnedFd
    // always returns the same number.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::PRIORITY) }?)
}

/// Calls ioctl(2) with a request that fills a C `int`.
pub(super) fn int(fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<i32> {
    let mut value: libc::c_int = 0;
    // SAFETY: the requests of this module's callers (SIOCATMARK, FIONREAD, TIOCOUTQ) write one int,
    // which lives during the call.
    if unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}
