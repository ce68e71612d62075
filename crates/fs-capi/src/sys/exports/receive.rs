//! Bytes in.

use fs_socket::{Errno, flags};
use libc::{c_int, c_void, iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::send::rw_flags;
use crate::sys::answer::{self, count, is_bad, piece, pieces_mut, received};
use crate::sys::real;

fall_through! {
    /// recv(2).
    fn recv(fd: c_int, data: *mut c_void, n: size_t, flags: c_int) -> ssize_t =
        received(answer::recv(fd, &mut piece(data, n), given(flags)));
    /// recvfrom(2).
    fn recvfrom(fd: c_int, data: *mut c_void, n: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t) -> ssize_t =
        recvfrom_ours(fd, data, n, flags, from, length);
    /// read(2).
    fn read(fd: c_int, data: *mut c_void, n: size_t) -> ssize_t = received(answer::recv(fd, &mut piece(data, n), flags::FILE));
    /// readv(2).
    fn readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t = readv_ours(fd, parts, n, flags::FILE);
    /// pread(2): ESPIPE on a socket, which the kernel's socket behind the number says.
    fn pread64(fd: c_int, data: *mut c_void, n: size_t, offset: off_t) -> ssize_t = None;
    /// preadv(2): as pread.
    fn preadv64(fd: c_int, parts: *const iovec, n: c_int, offset: off_t) -> ssize_t = None;
    /// preadv2(2): readv when the offset is -1.
    fn preadv64v2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t = {
        if offset == -1 { readv_ours(fd, parts, n, rw_flags(flags) | fs_socket::flags::FILE) } else { None }
    };
    /// pread with its buffer's size (_FORTIFY_SOURCE): only ever an error on a socket.
    fn __pread64_chk(fd: c_int, data: *mut c_void, n: size_t, offset: off_t, room: size_t) -> ssize_t = None;
}

define! {
    /// The C library's other name.
    fn __read(fd: c_int, data: *mut c_void, n: size_t) -> ssize_t = read(fd, data, n);
    /// The C library's other name.
    fn __recv(fd: c_int, data: *mut c_void, n: size_t, flags: c_int) -> ssize_t = recv(fd, data, n, flags);
    /// As pread64: file offsets have 64 bits either way.
    fn pread(fd: c_int, data: *mut c_void, n: size_t, offset: off_t) -> ssize_t = pread64(fd, data, n, offset);
    /// The C library's other name.
    fn __pread64(fd: c_int, data: *mut c_void, n: size_t, offset: off_t) -> ssize_t = pread64(fd, data, n, offset);
    /// As __pread64_chk.
    fn __pread_chk(fd: c_int, data: *mut c_void, n: size_t, offset: off_t, room: size_t) -> ssize_t =
        __pread64_chk(fd, data, n, offset, room);
    /// As preadv64.
    fn preadv(fd: c_int, parts: *const iovec, n: c_int, offset: off_t) -> ssize_t = preadv64(fd, parts, n, offset);
    /// As preadv64v2.
    fn preadv2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t =
        preadv64v2(fd, parts, n, offset, flags);
    /// read with its buffer's size: too long a read ends the process, in the C library's words.
    fn __read_chk(fd: c_int, data: *mut c_void, n: size_t, room: size_t) -> ssize_t = {
        if n > room { real::__read_chk(fd, data, n, room) } else { read(fd, data, n) }
    };
    /// As __read_chk.
    fn __recv_chk(fd: c_int, data: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t = {
        if n > room { real::__recv_chk(fd, data, n, room, flags) } else { recv(fd, data, n, flags) }
    };
    /// As __read_chk.
    fn __recvfrom_chk(fd: c_int, data: *mut c_void, n: size_t, room: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t) -> ssize_t = {
        if n > room {
            real::__recvfrom_chk(fd, data, n, room, flags, from, length)
        } else {
            recvfrom(fd, data, n, flags, from, length)
        }
    };
}

/// Flags as the application gives them, without the one that fs-socket has added.
pub(super) fn given(flags: c_int) -> u32 {
    flags as u32 & !fs_socket::flags::FILE
}

/// # Safety
/// As recvfrom(2).
unsafe fn recvfrom_ours(
    fd: c_int,
    data: *mut c_void,
    n: size_t,
    flags: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
) -> Option<ssize_t> {
    // SAFETY: by contract.
    let answer = received(unsafe { answer::recv(fd, &mut piece(data, n), given(flags)) })?;
    if answer < 0 || from.is_null() {
        return Some(answer);
    }
    // A stream names no source: the kernel answers length 0 (net/ipv4/af_inet.c, inet_recvmsg).
    if is_bad(length) {
        return count(Some(Err(Errno::FAULT)));
    }
    // SAFETY: by contract.
    let room = unsafe { core::mem::replace(&mut *length, 0) };
    if c_int::try_from(room).is_err() {
        // SAFETY: by contract.
        unsafe { *length = room };
        return count(Some(Err(Errno::INVAL)));
    }
    Some(answer)
}

/// # Safety
/// As readv(2).
unsafe fn readv_ours(fd: c_int, parts: *const iovec, n: c_int, recv_flags: u32) -> Option<ssize_t> {
    // SAFETY: by contract; a description that is wrong goes to the kernel, whose checks come first there too.
    unsafe { received(answer::recv(fd, pieces_mut(parts, usize::try_from(n).ok()?)?, recv_flags)) }
}
