//! prctl(2) and seccomp(2), as far as they confine the process.

use core::ffi::{c_long, c_ulong};
use core::ptr::{self, with_exposed_provenance as from};

use libc::{
    PR_SET_SECCOMP, SECCOMP_MODE_FILTER, SECCOMP_MODE_STRICT, SECCOMP_SET_MODE_FILTER, SECCOMP_SET_MODE_STRICT, c_int,
    c_uint, sock_filter, sock_fprog,
};

use crate::sys::errno::{errno, keeping_errno};
use crate::sys::{memory, real};
use crate::{confined, descriptor};

define! {
    /// prctl(2).
    fn prctl(operation: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int = {
        let confines = operation == PR_SET_SECCOMP
            && match c_uint::try_from(a) {
                Ok(SECCOMP_MODE_STRICT) => true,
                Ok(SECCOMP_MODE_FILTER) => {
                    let probe = |filter: *const sock_fprog| real::prctl(operation, a, filter.addr() as c_ulong, 0, 0).into();
                    is_filter(from(b as usize), probe)
                }
                _ => false,
            };
        if confines {
            descriptor::before_confinement();
        }
        real::prctl(operation, a, b, c, d)
    };
}

/// seccomp(2) is about to be called, which the C library has by syscall(2) only.
pub(super) fn before_seccomp(operation: usize, flags: usize, filter: *const sock_fprog) {
    let confines = match operation as c_uint {
        SECCOMP_SET_MODE_STRICT => flags == 0 && filter.is_null(),
        SECCOMP_SET_MODE_FILTER => is_filter(filter, |filter| {
            // SAFETY: a filter that cannot be read has no effect.
            unsafe { real::syscall(libc::SYS_seccomp, operation, flags, filter.addr(), 0, 0, 0) }
        }),
        _ => false,
    };
    if confines {
        descriptor::before_confinement();
    }
}

/// Returns whether this may be a filter that takes effect. `probe` makes the call with another filter.
///
/// Programs ask what the kernel supports by a filter that is null. Afterwards is too late to pin
/// sockets, since the filter may forbid it, so the kernel is asked by a filter whose instructions
/// cannot be read. It checks the right to set one before it reads them (`seccomp_prepare_filter()`
/// of kernel/seccomp.c).
fn is_filter(filter: *const sock_fprog, probe: impl FnOnce(*const sock_fprog) -> c_long) -> bool {
    if !memory::is_readable(filter, size_of::<sock_fprog>()) {
        return false;
    }
    if confined::is_confined() {
        return true;
    }
    let unreadable = sock_fprog { len: 1, filter: ptr::without_provenance_mut(align_of::<sock_filter>()) };
    keeping_errno(|| probe(&raw const unreadable) >= 0 || !matches!(errno(), libc::EACCES | libc::EPERM | libc::ENOSYS))
}
