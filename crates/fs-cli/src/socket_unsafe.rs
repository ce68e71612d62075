//! Descriptors that this process was started with.
#![allow(unsafe_code)]

use rustix::io::Errno;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes a descriptor that the service manager has passed, of which nobody else in this process knows. An error: it is not open.
pub(crate) fn take(number: RawFd) -> Result<OwnedFd, Errno> {
    if number < 3 {
        return Err(Errno::BADF);
    }
    // SAFETY: it is asked for alone, by a call that answers EBADF for what is not open.
    rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    // SAFETY: it is open, and the first use of a number that the environment says was passed for this process to own.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
