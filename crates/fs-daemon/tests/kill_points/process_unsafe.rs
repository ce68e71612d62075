//! fork(2) as the C library has it: this process has threads, and its children allocate. Descriptors by number.
#![allow(unsafe_code)]

use rustix::process::Pid;
use std::os::fd::{BorrowedFd, RawFd};

/// A child that runs `body` and ends with its answer.
pub(crate) fn fork(body: impl FnOnce() -> i32) -> Pid {
    // SAFETY: no argument; the C library keeps its own locks usable in the child.
    match unsafe { libc::fork() } {
        0 => {
            // A panic would unwind into the copy of the test runner.
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
            // SAFETY: ends the process; nothing of this image runs any more.
            unsafe { libc::_exit(status) }
        }
        pid => Pid::from_raw(pid).expect("fork"),
    }
}

/// The kernel kills this process after so many seconds: nothing that is started here outlives its test.
pub(crate) fn end_after(seconds: u32) {
    // SAFETY: takes a number.
    let _before = unsafe { libc::alarm(seconds) };
}

/// A descriptor of a socket of fs-socket, which has numbers.
pub(crate) fn borrowed<'a>(fd: RawFd) -> BorrowedFd<'a> {
    assert!(fd >= 0);
    // SAFETY: not -1; a number that has been closed gives an error.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
