//! What a program sees of the socket behind a number, or changes of it, besides the calls of sockets: the next number has another one then.
//! And what changes whose sockets, and where, those are that it makes from then on.

use libc::{c_char, c_int, c_uint, c_void, gid_t, mode_t, size_t, stat, stat64, timespec, uid_t};

use crate::sys::real;

fall_through! {
    /// fstat(2), which shows what it is.
    fn fstat(fd: c_int, buffer: *mut stat) -> c_int = of(fd);
    /// The same.
    fn fstat64(fd: c_int, buffer: *mut stat64) -> c_int = of(fd);
    /// The C library's other name.
    fn __fxstat(version: c_int, fd: c_int, buffer: *mut stat) -> c_int = of(fd);
    /// The C library's other name.
    fn __fxstat64(version: c_int, fd: c_int, buffer: *mut stat64) -> c_int = of(fd);
    /// statx(2), of the descriptor itself where the path is empty (AT_EMPTY_PATH): a socket is no directory.
    fn statx(directory: c_int, path: *const c_char, flags: c_int, mask: c_uint, buffer: *mut libc::statx) -> c_int = of(directory);
    /// The same of fstatat(2).
    fn fstatat(directory: c_int, path: *const c_char, buffer: *mut stat, flags: c_int) -> c_int = of(directory);
    /// The same.
    fn fstatat64(directory: c_int, path: *const c_char, buffer: *mut stat64, flags: c_int) -> c_int = of(directory);
    /// The C library's other name.
    fn __fxstatat(version: c_int, directory: c_int, path: *const c_char, buffer: *mut stat, flags: c_int) -> c_int = of(directory);
    /// The C library's other name.
    fn __fxstatat64(version: c_int, directory: c_int, path: *const c_char, buffer: *mut stat64, flags: c_int) -> c_int = of(directory);
    /// fchownat(2), the same.
    fn fchownat(directory: c_int, path: *const c_char, owner: uid_t, group: gid_t, flags: c_int) -> c_int = of(directory);
    /// fchmodat(2), the same.
    fn fchmodat(directory: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int = of(directory);
    /// futimens(3).
    fn futimens(fd: c_int, times: *const timespec) -> c_int = of(fd);
    /// fsetxattr(2).
    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int = of(fd);
    /// fremovexattr(2).
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int = of(fd);
    /// fchown(2).
    fn fchown(fd: c_int, owner: uid_t, group: gid_t) -> c_int = of(fd);
    /// fchmod(2).
    fn fchmod(fd: c_int, mode: mode_t) -> c_int = of(fd);
    /// flock(2).
    fn flock(fd: c_int, operation: c_int) -> c_int = of(fd);
    /// setfsuid(2), of this thread alone.
    fn setfsuid(uid: uid_t) -> c_int = of_thread();
    /// setfsgid(2), the same.
    fn setfsgid(gid: gid_t) -> c_int = of_thread();
    /// setns(2), the same.
    fn setns(fd: c_int, kind: c_int) -> c_int = of_thread();
    /// unshare(2), the same.
    fn unshare(flags: c_int) -> c_int = of_thread();
}

define! {
    /// setuid(2).
    fn setuid(uid: uid_t) -> c_int = of_process(real::setuid(uid));
    /// setgid(2).
    fn setgid(gid: gid_t) -> c_int = of_process(real::setgid(gid));
    /// seteuid(3).
    fn seteuid(uid: uid_t) -> c_int = of_process(real::seteuid(uid));
    /// setegid(3).
    fn setegid(gid: gid_t) -> c_int = of_process(real::setegid(gid));
    /// setreuid(2).
    fn setreuid(uid: uid_t, effective: uid_t) -> c_int = of_process(real::setreuid(uid, effective));
    /// setregid(2).
    fn setregid(gid: gid_t, effective: gid_t) -> c_int = of_process(real::setregid(gid, effective));
    /// setresuid(2).
    fn setresuid(uid: uid_t, effective: uid_t, saved: uid_t) -> c_int =
        of_process(real::setresuid(uid, effective, saved));
    /// setresgid(2).
    fn setresgid(gid: gid_t, effective: gid_t, saved: gid_t) -> c_int =
        of_process(real::setresgid(gid, effective, saved));
    /// setgroups(2).
    fn setgroups(count: size_t, groups: *const gid_t) -> c_int = of_process(real::setgroups(count, groups));
    /// initgroups(3).
    fn initgroups(user: *const c_char, group: gid_t) -> c_int = of_process(real::initgroups(user, group));
}

/// The kernel's call.
fn of(fd: c_int) -> Option<c_int> {
    fs_socket::spoil_number(fd);
    None
}

/// The kernel's call: other threads make sockets as before, and which of them makes one is not looked at.
fn of_thread() -> Option<c_int> {
    fs_socket::use_no_socket_again();
    None
}

/// What all threads have changed has been done.
fn of_process(answer: c_int) -> c_int {
    fs_socket::make_sockets_anew();
    answer
}
