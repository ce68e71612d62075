//! poll(2) by the C library's name, which is the one that a preloaded library answers; rustix asks the kernel itself.

use libc::{POLLIN, poll, pollfd};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Waits until there is something to read.
pub(crate) fn readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut one = pollfd { fd: fd.as_raw_fd(), events: POLLIN, revents: 0 };
    // SAFETY: one entry is there, as is said, and it outlives the call.
    match unsafe { poll(&raw mut one, 1, -1) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
