//! What a program sees of the socket behind a number, or changes of it, besides the calls of sockets: the next number has another one then.
//! And what changes whose sockets, and where, those are that it makes from then on.

use libc::{c_int, gid_t, mode_t, stat, stat64, uid_t};

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
