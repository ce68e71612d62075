//! errno, and SIGPIPE beside EPIPE.

use libc::c_int;

/// What a C function returns when it fails (the reason is in errno).
pub(super) trait Failure {
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

impl<T> Failure for *mut T {
    const FAILED: Self = core::ptr::null_mut();
}

impl Failure for libc::sighandler_t {
    const FAILED: Self = libc::SIG_ERR;
}

impl Failure for () {
    const FAILED: Self = ();
}

/// Sets the calling thread's errno.
pub(super) fn set_errno(errno: c_int) {
    // SAFETY: __errno_location returns the calling thread's own, always valid location.
    unsafe { *libc::__errno_location() = errno };
}

/// The calling thread's errno.
pub(super) fn errno() -> c_int {
    // SAFETY: as in `set_errno`.
    unsafe { *libc::__errno_location() }
}
