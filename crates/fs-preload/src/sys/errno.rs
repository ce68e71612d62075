//! errno, and SIGPIPE next to EPIPE.

use libc::{c_int, ssize_t};
use rustix::io::Errno;

/// The value that a C function returns when it fails.
pub(crate) trait Failure {
    /// -1, or a null pointer.
    const FAILED: Self;
}

impl Failure for c_int {
    const FAILED: Self = -1;
}

impl Failure for isize {
    const FAILED: Self = -1;
}

impl Failure for i64 {
    const FAILED: Self = -1;
}

impl Failure for () {
    const FAILED: Self = ();
}

impl<T> Failure for *mut T {
    const FAILED: Self = core::ptr::null_mut();
}

/// Sets the calling thread's errno.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: __errno_location returns the calling thread's own location.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns the calling thread's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: as in `set_errno`.
    unsafe { *libc::__errno_location() }
}

/// Returns the address of the calling thread's errno, which no other living thread has.
pub(crate) fn address() -> usize {
    // SAFETY: as in `set_errno`.
    unsafe { libc::__errno_location() }.addr()
}

/// Keeps errno over calls that may set it.
pub(crate) fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    let before = errno();
    let result = work();
    set_errno(before);
    result
}

/// Turns the return value of a C function into a result.
#[inline]
pub(crate) fn checked(n: ssize_t) -> Result<usize, Errno> {
    usize::try_from(n).map_err(|_| Errno::from_raw_os_error(errno()))
}

/// Turns a result into the return value of a C function, with errno.
#[inline]
pub(crate) fn answer(result: Result<usize, Errno>) -> ssize_t {
    match result {
        // A count is at most what the caller's buffers hold, which is at most isize::MAX.
        Ok(n) => n as ssize_t,
        Err(error) => {
            set_errno(error.raw_os_error());
            -1
        }
    }
}

/// The same for a sending call: the signal of EPIPE is raised in the calling thread before errno is set (send(2)).
#[inline]
pub(crate) fn answer_sent(result: Result<usize, Errno>, is_silent: bool) -> ssize_t {
    if result == Err(Errno::PIPE) && !is_silent {
        // SAFETY: raise(3) has no precondition; it is async-signal-safe.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    answer(result)
}
