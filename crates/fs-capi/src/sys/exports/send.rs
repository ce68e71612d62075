//! Bytes out.

use fs_socket::flags;
use libc::{c_int, c_uint, c_void, iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::sys::answer::{self, address, piece, pieces};
use crate::sys::cancel;

fall_through! {
    /// send(2).
    fn send(fd: c_int, data: *const c_void, n: size_t, flags: c_int) -> ssize_t =
        answer::send(fd, &piece(data, n), flags as u32, None, &[]);
    /// sendto(2).
    fn sendto(fd: c_int, data: *const c_void, n: size_t, flags: c_int, to: *const sockaddr, length: socklen_t) -> ssize_t =
        sendto_ours(fd, data, n, flags, to, length);
    /// write(2).
    fn write(fd: c_int, data: *const c_void, n: size_t) -> ssize_t = answer::send(fd, &piece(data, n), 0, None, &[]);
    /// writev(2).
    fn writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t = writev_ours(fd, parts, n, 0);
    /// pwrite(2): ESPIPE on a socket, which the kernel's socket behind the number says.
    fn pwrite64(fd: c_int, data: *const c_void, n: size_t, offset: off_t) -> ssize_t = None;
    /// pwritev(2): as pwrite.
    fn pwritev64(fd: c_int, parts: *const iovec, n: c_int, offset: off_t) -> ssize_t = None;
    /// pwritev2(2): writev when the offset is -1.
    fn pwritev64v2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t = {
        if offset == -1 { writev_ours(fd, parts, n, rw_flags(flags)) } else { None }
    };
    /// sendfile(2).
    fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, n: size_t) -> ssize_t = {
        answer::sent(cancel::until_done(|| fs_socket::sendfile(out, input, offset.as_mut(), n)), 0)
    };
    /// splice(2).
    fn splice(input: c_int, in_offset: *mut i64, out: c_int, out_offset: *mut i64, n: size_t, flags: c_uint) -> ssize_t = {
        let mut send_flags = 0;
        let spliced = cancel::until_done(|| {
            let spliced = fs_socket::splice(input, in_offset.as_mut(), out, out_offset.as_mut(), n, flags)?;
            send_flags = if spliced.signals { 0 } else { flags::NOSIGNAL };
            Some(spliced.answer)
        });
        answer::sent(spliced, send_flags)
    };
}

define! {
    /// The C library's other name.
    fn __write(fd: c_int, data: *const c_void, n: size_t) -> ssize_t = write(fd, data, n);
    /// The C library's other name.
    fn __send(fd: c_int, data: *const c_void, n: size_t, flags: c_int) -> ssize_t = send(fd, data, n, flags);
    /// As pwrite64: file offsets have 64 bits either way.
    fn pwrite(fd: c_int, data: *const c_void, n: size_t, offset: off_t) -> ssize_t = pwrite64(fd, data, n, offset);
    /// The C library's other name.
    fn __pwrite64(fd: c_int, data: *const c_void, n: size_t, offset: off_t) -> ssize_t = pwrite64(fd, data, n, offset);
    /// As pwritev64.
    fn pwritev(fd: c_int, parts: *const iovec, n: c_int, offset: off_t) -> ssize_t = pwritev64(fd, parts, n, offset);
    /// As pwritev64v2.
    fn pwritev2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t =
        pwritev64v2(fd, parts, n, offset, flags);
    /// As sendfile64.
    fn sendfile(out: c_int, input: c_int, offset: *mut off_t, n: size_t) -> ssize_t = sendfile64(out, input, offset, n);
}

/// # Safety
/// As sendto(2).
unsafe fn sendto_ours(
    fd: c_int,
    data: *const c_void,
    n: size_t,
    flags: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> Option<ssize_t> {
    // SAFETY: by contract; an address that is none is the kernel's to refuse, also where none is needed.
    unsafe {
        let name = address(to, length);
        if name.is_none() && !to.is_null() && length != 0 {
            return None;
        }
        answer::send(fd, &piece(data, n), flags as u32, name, &[])
    }
}

/// # Safety
/// As writev(2).
unsafe fn writev_ours(fd: c_int, parts: *const iovec, n: c_int, send_flags: u32) -> Option<ssize_t> {
    // SAFETY: by contract; a description that is wrong goes to the kernel, whose checks come first there too.
    let parts = unsafe { pieces(parts, usize::try_from(n).ok()?) }?;
    if parts.iter().all(|part| part.iov_len == 0) && fs_socket::stream::is_channel(fd) {
        // The kernel's writev of nothing does not come to the socket (vfs_writev()); its write does.
        return Some(0);
    }
    // SAFETY: by contract.
    unsafe { answer::send(fd, parts, send_flags, None, &[]) }
}

/// What of preadv2's flags means something on a socket: RWF_NOWAIT does not wait (preadv2(2)).
pub(super) fn rw_flags(rw: c_int) -> u32 {
    if rw & libc::RWF_NOWAIT != 0 { flags::DONTWAIT } else { 0 }
}
