//! RLIMIT_AS as if what this library maps did not count.

use core::ptr;

use fs_socket::addresses::{self, Limit};
use libc::{RLIMIT_AS, c_int, c_uint, pid_t, rlimit64};

use crate::sys::answer::{done, is_bad};

fall_through! {
    /// getrlimit(2).
    fn getrlimit64(resource: c_uint, limit: *mut rlimit64) -> c_int = {
        if is_bad(limit) { None } else { limits(0, resource, ptr::null(), limit) }
    };
    /// setrlimit(2).
    fn setrlimit64(resource: c_uint, limit: *const rlimit64) -> c_int = {
        if is_bad(limit) { None } else { limits(0, resource, limit, ptr::null_mut()) }
    };
    /// prlimit(2), of this process.
    fn prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit64, old: *mut rlimit64) -> c_int =
        limits(pid, resource, new, old);
}

define! {
    /// The same: limits have 64 bits either way.
    fn getrlimit(resource: c_uint, limit: *mut rlimit64) -> c_int = getrlimit64(resource, limit);
    /// As getrlimit.
    fn setrlimit(resource: c_uint, limit: *const rlimit64) -> c_int = setrlimit64(resource, limit);
    /// As getrlimit.
    fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit64, old: *mut rlimit64) -> c_int =
        prlimit64(pid, resource, new, old);
}

/// `None`: the kernel's.
///
/// # Safety
/// As prlimit(2).
unsafe fn limits(pid: pid_t, resource: c_uint, new: *const rlimit64, old: *mut rlimit64) -> Option<c_int> {
    // SAFETY: no precondition.
    if resource != RLIMIT_AS || pid != 0 && pid != unsafe { libc::getpid() } {
        return None;
    }
    let before = addresses::view();
    // SAFETY: by contract.
    if let Some(new) = unsafe { new.as_ref() } {
        let some = |limit| (limit != libc::RLIM64_INFINITY).then_some(limit);
        let new = Limit { soft: some(new.rlim_cur), hard: some(new.rlim_max) };
        if let Err(errno) = addresses::set(new) {
            return done(Some(Err(errno)));
        }
    }
    if old.is_null() {
        return Some(0);
    }
    let word = |limit: Option<u64>| limit.unwrap_or(libc::RLIM64_INFINITY);
    // SAFETY: by contract.
    unsafe { *old = rlimit64 { rlim_cur: word(before.soft), rlim_max: word(before.hard) } };
    Some(0)
}
