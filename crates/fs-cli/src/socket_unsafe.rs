//! Descriptors that this process was started with.
#![allow(unsafe_code)]

use rustix::io::Errno;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes a descriptor that the service manager passed and nothing else in this process uses. Fails
/// if it is not open.
pub(crate) fn take(number: RawFd) -> Result<OwnedFd, Errno> {
    if number < 3 {
        return Err(Errno::BADF);
    }
    // SAFETY: used only for this call, which returns EBADF if it is not open.
    rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    // SAFETY: it is open, and this is the first use of a number that the environment declares as
    // passed to this process.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
