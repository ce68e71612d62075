//! prctl(2) and seccomp(2), as far as they confine the process.

use core::ffi::c_ulong;

use libc::{PR_SET_SECCOMP, SECCOMP_MODE_FILTER, SECCOMP_SET_MODE_FILTER, SECCOMP_SET_MODE_STRICT, c_int, c_uint};

use crate::descriptor;
use crate::sys::real;

define! {
    /// prctl(2).
    fn prctl(operation: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int = {
        // Without a filter, the call only asks what the kernel supports.
        if operation == PR_SET_SECCOMP && (a != c_ulong::from(SECCOMP_MODE_FILTER) || b != 0) {
            descriptor::before_confinement();
        }
        real::prctl(operation, a, b, c, d)
    };
}

/// seccomp(2) is about to be called, which the C library has by syscall(2) only.
pub(super) fn before_seccomp(operation: usize, flags: usize, filter: usize) {
    let confines = match operation as c_uint {
        SECCOMP_SET_MODE_STRICT => flags == 0,
        SECCOMP_SET_MODE_FILTER => filter != 0,
        _ => false,
    };
    if confines {
        descriptor::before_confinement();
    }
}
