//! fork as the kernel has it, without the C library's own preparations.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, RawFd};

#[cfg(target_arch = "x86_64")]
const CLONE: usize = 56;
#[cfg(target_arch = "aarch64")]
const CLONE: usize = 220;
#[cfg(target_arch = "x86_64")]
const EXIT_GROUP: usize = 231;
#[cfg(target_arch = "aarch64")]
const EXIT_GROUP: usize = 94;
const SIGCHLD: usize = 17;

/// 0 in the child.
pub(crate) fn fork() -> i32 {
    // SAFETY: a copy of this process with this thread only; the tests' children allocate nothing (or exec at once).
    unsafe { fs_socket::sys::call::call(CLONE, [SIGCHLD, 0, 0, 0, 0, 0]) }.unwrap() as i32
}

/// Ends the process at once.
pub(crate) fn exit(status: i32) -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { fs_socket::sys::call::call(EXIT_GROUP, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// A number of this process's, for one call.
pub(crate) fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the tests pass open descriptors.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
