//! poll(2) through the C library's symbol, which a preloaded library interposes. rustix calls the
//! kernel directly.
#![allow(unsafe_code)]

use libc::{POLLIN, poll, pollfd};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Waits until the descriptor is readable.
pub(crate) fn readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut one = pollfd { fd: fd.as_raw_fd(), events: POLLIN, revents: 0 };
    // SAFETY: the array has one entry, as the count states, and it outlives the call.
    match unsafe { poll(&raw mut one, 1, -1) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
