//! RLIMIT_AS as if what this library maps did not count, RLIMIT_NOFILE as if it were not raised for its descriptors.

use core::ptr;

use fs_socket::addresses::{self, Limit};
use fs_socket::exchange_limit;
use libc::{RLIMIT_AS, RLIMIT_NOFILE, c_int, c_long, c_uint, pid_t, rlimit64};

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
    /// sysconf(3): looked at for the limit of descriptors.
    fn sysconf(name: c_int) -> c_long = {
        // No limit is -1, as RLIM_INFINITY is.
        (name == libc::_SC_OPEN_MAX).then(open_max).flatten().map(|limit| limit.unwrap_or(libc::RLIM64_INFINITY) as c_long)
    };
    /// getdtablesize(3).
    fn getdtablesize() -> c_int = open_max().map(|limit| limit.unwrap_or(libc::RLIM64_INFINITY) as c_int);
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

/// The soft limit of descriptors, which may be none. `None`: not known here.
fn open_max() -> Option<Option<u64>> {
    exchange_limit(None).ok().map(|limit| limit.soft)
}

/// `None`: the kernel's.
///
/// # Safety
/// As prlimit(2).
unsafe fn limits(pid: pid_t, resource: c_uint, new: *const rlimit64, old: *mut rlimit64) -> Option<c_int> {
    // SAFETY: no precondition.
    let is_own = || pid == 0 || pid == unsafe { libc::getpid() };
    if resource != RLIMIT_AS && resource != RLIMIT_NOFILE || !is_own() {
        return None;
    }
    let some = |limit| (limit != libc::RLIM64_INFINITY).then_some(limit);
    // SAFETY: by contract.
    let new = unsafe { new.as_ref() }.map(|new| Limit { soft: some(new.rlim_cur), hard: some(new.rlim_max) });
    let exchanged = if resource == RLIMIT_NOFILE {
        exchange_limit(new)
    } else {
        let before = addresses::view();
        new.map_or(Ok(()), addresses::set).map(|()| before)
    };
    let before = match exchanged {
        Ok(before) => before,
        Err(errno) => return done(Some(Err(errno))),
    };
    if old.is_null() {
        return Some(0);
    }
    let word = |limit: Option<u64>| limit.unwrap_or(libc::RLIM64_INFINITY);
    // SAFETY: by contract.
    unsafe { *old = rlimit64 { rlim_cur: word(before.soft), rlim_max: word(before.hard) } };
    Some(0)
}
