//! Sockets, names, options.

use core::slice;

use libc::{c_int, c_void, sockaddr, socklen_t};

use crate::sys::answer::{address, copy_address, done, int, is_bad};
use crate::sys::cancel;
use crate::sys::errno::set_errno;

fall_through! {
    /// socket(2).
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = int(fs_socket::socket(domain, kind, protocol));
    /// bind(2).
    fn bind(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int =
        address(name, length).and_then(|name| done(fs_socket::bind(fd, name)));
    /// listen(2).
    fn listen(fd: c_int, backlog: c_int) -> c_int = done(fs_socket::listen(fd, backlog));
    /// connect(2).
    fn connect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int = {
        address(name, length).and_then(|name| done(cancel::until_done(|| fs_socket::connect(fd, name))))
    };
    /// accept(2).
    fn accept(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int = accepted(fd, name, length, 0);
    /// accept4(2).
    fn accept4(fd: c_int, name: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int =
        accepted(fd, name, length, flags);
    /// shutdown(2).
    fn shutdown(fd: c_int, how: c_int) -> c_int = done(fs_socket::shutdown(fd, how));
    /// getsockname(2).
    fn getsockname(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int =
        named(fs_socket::getsockname(fd), name, length);
    /// getpeername(2).
    fn getpeername(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int =
        named(fs_socket::getpeername(fd), name, length);
    /// getsockopt(2).
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int =
        option(fd, level, name, value, length);
    /// setsockopt(2).
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int = {
        if is_bad(value) || c_int::try_from(length).is_err() {
            None
        } else {
            done(fs_socket::setsockopt(fd, level, name, slice::from_raw_parts(value.cast(), length as usize)))
        }
    };
    /// sockatmark(3).
    fn sockatmark(fd: c_int) -> c_int = {
        let mut at: c_int = 0;
        match fs_socket::ioctl(fd, SIOCATMARK, (&raw mut at).cast()) {
            None => None,
            Some(Ok(_)) => Some(c_int::from(at != 0)),
            Some(Err(errno)) => int(Some(Err(errno))),
        }
    };
}

define! {
    /// The C library's other name.
    fn __connect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int = connect(fd, name, length);
}

/// <asm-generic/sockios.h>.
const SIOCATMARK: u64 = 0x8905;

/// accept's answer and address. A null length with an address, or a negative one, is the kernel's to refuse.
///
/// # Safety
/// As accept(2).
unsafe fn accepted(fd: c_int, name: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> Option<c_int> {
    match cancel::until_done(|| fs_socket::accept4(fd, flags))? {
        Ok((new, from)) => {
            // SAFETY: by contract.
            if let Err(errno) = unsafe { copy_address(from.as_bytes(), name, length) } {
                // SAFETY: the descriptor made above, known to nobody else.
                unsafe { super::descriptors::close(new) };
                set_errno(errno.raw_os_error());
                return Some(-1);
            }
            Some(new)
        }
        Err(errno) => int(Some(Err(errno))),
    }
}

/// # Safety
/// As getsockname(2).
unsafe fn named(
    answer: fs_socket::Ours<fs_socket::Address>,
    name: *mut sockaddr,
    length: *mut socklen_t,
) -> Option<c_int> {
    match answer? {
        Ok(address) => {
            if is_bad(name) {
                set_errno(libc::EFAULT);
                return Some(-1);
            }
            // SAFETY: by contract.
            done(Some(unsafe { copy_address(address.as_bytes(), name, length) }))
        }
        Err(errno) => int(Some(Err(errno))),
    }
}

/// # Safety
/// As getsockopt(2).
unsafe fn option(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> Option<c_int> {
    if is_bad(value) || is_bad(length) {
        return None;
    }
    // SAFETY: by contract; a negative length is the kernel's to refuse.
    unsafe {
        let room = usize::try_from(*length as c_int).ok()?;
        match fs_socket::getsockopt(fd, level, name, slice::from_raw_parts_mut(value.cast(), room))? {
            Ok(n) => {
                *length = n as socklen_t;
                Some(0)
            }
            Err(errno) => int(Some(Err(errno))),
        }
    }
}
