//! Calls that create, duplicate and close descriptors.

use libc::{c_int, c_uint, sockaddr, socklen_t};

use crate::descriptor;
use crate::promotion;
use crate::sys::errno::keeping_errno;
use crate::sys::{memory, real};
use crate::young;

/// `CLOSE_RANGE_UNSHARE`: the one flag with which descriptors are closed. With
/// `CLOSE_RANGE_CLOEXEC` none is, and others are EINVAL.
const CLOSE_RANGE_UNSHARE: c_int = 2;

define! {
    /// accept(2).
    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int = {
        let new = young::accept(fd, || real::accept(fd, address, length));
        keeping_errno(|| accepted(new));
        new
    };
    /// accept4(2).
    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int = {
        let new = young::accept(fd, || real::accept4(fd, address, length, flags));
        keeping_errno(|| accepted(new));
        new
    };
    /// connect(2).
    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int = {
        keeping_errno(|| connecting(fd, address, length));
        let result = real::connect(fd, address, length);
        if result == 0 {
            keeping_errno(|| descriptor::at_birth(fd));
        }
        result
    };
    /// The C library's other name.
    fn __connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int = connect(fd, address, length);
    /// close(2).
    fn close(fd: c_int) -> c_int = {
        descriptor::end(fd);
        real::close(fd)
    };
    /// The C library's other name.
    fn __close(fd: c_int) -> c_int = close(fd);
    /// close_range(2).
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = {
        if flags & !CLOSE_RANGE_UNSHARE == 0 && first <= last {
            descriptor::for_each_in(first, last, descriptor::end);
        }
        real::close_range(first, last, flags)
    };
    /// closefrom(3).
    fn closefrom(first: c_int) -> () = {
        descriptor::for_each_in(first.max(0).cast_unsigned(), c_uint::MAX, descriptor::end);
        real::closefrom(first)
    };
    /// dup(2).
    fn dup(fd: c_int) -> c_int = {
        let new = real::dup(fd);
        if new >= 0 {
            descriptor::duplicated(fd, new);
        }
        new
    };
    /// dup2(2).
    fn dup2(old: c_int, new: c_int) -> c_int = {
        end_target(old, new);
        let result = real::dup2(old, new);
        if result >= 0 {
            descriptor::duplicated(old, new);
        }
        result
    };
    /// dup3(2).
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int = {
        // Other flags are EINVAL (dup3(2)).
        if flags & !libc::O_CLOEXEC == 0 {
            end_target(old, new);
        }
        let result = real::dup3(old, new, flags);
        if result >= 0 {
            descriptor::duplicated(old, new);
        }
        result
    };
    /// The C library's other name.
    fn __dup2(old: c_int, new: c_int) -> c_int = dup2(old, new);
}

/// dup2(2) closes its target, if it succeeds.
fn end_target(old: c_int, new: c_int) {
    let is_open = |fd: c_int| fd >= 0 && rustix::io::fcntl_getfd(crate::sys::kernel::Fd::new(fd).borrow()).is_ok();
    if old != new && descriptor::is_known(new) && is_open(old) {
        descriptor::end(new);
    }
}

fn accepted(fd: c_int) {
    descriptor::begin(fd);
    descriptor::at_birth(fd);
}

/// # Safety
/// Like connect(2).
unsafe fn connecting(fd: c_int, address: *const sockaddr, length: socklen_t) {
    if !promotion::is_enabled()
        || (length as usize) < size_of::<libc::sa_family_t>()
        || !memory::is_readable(address.cast::<u8>(), 2)
    {
        return;
    }
    // SAFETY: readable.
    let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET | libc::AF_INET6 if descriptor::is_new(fd) => descriptor::begin(fd),
        // A second connect(2) returns the outcome of the first.
        libc::AF_INET | libc::AF_INET6 => {}
        // AF_UNSPEC ends a connection.
        _ => descriptor::leave_to_kernel(fd),
    }
}
