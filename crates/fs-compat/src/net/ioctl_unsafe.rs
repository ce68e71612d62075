//! Requests of ioctl(2) that fill a C `int`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

pub(super) fn int(fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<i32> {
    let mut value: libc::c_int = 0;
    // SAFETY: the requests of this module's callers (SIOCATMARK, FIONREAD, TIOCOUTQ) write one int, which lives during the call.
    if unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}
