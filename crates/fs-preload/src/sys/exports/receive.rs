//! Bytes in.

use fs_carrier::kernel::Kernel as _;
use libc::{
    MSG_CMSG_CLOEXEC, MSG_DONTWAIT, MSG_ERRQUEUE, MSG_NOSIGNAL, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, c_int,
    c_void, iovec, off_t, size_t, sockaddr, socklen_t, ssize_t,
};
use rustix::io::Errno;

use super::{data_call, stream_bytes};
use crate::slot::Direction;
use crate::socket::Socket;
use crate::sys::errno::answer;
use crate::sys::{memory, real};
use crate::young;

/// Flags that the ring knows.
const BY_RING: c_int = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_PEEK | MSG_WAITALL | MSG_TRUNC | MSG_CMSG_CLOEXEC;
/// Maximum number of bytes that one step discards (MSG_TRUNC).
const THROWN_AWAY: usize = 4096;
/// Maximum number of bytes of a vector that MSG_PEEK copies.
const MAX_PEEK: usize = 64 << 10;

define! {
    /// recv(2).
    fn recv(fd: c_int, data: *mut c_void, n: size_t, flags: c_int) -> ssize_t =
        data_call(fd, Direction::Receive, || young::receive(fd, flags, || real::recv(fd, data, n, flags)), |got| taken(got, flags),
            |socket| receive_one(socket, data, n, flags));
    /// recvfrom(2).
    fn recvfrom(fd: c_int, data: *mut c_void, n: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t) -> ssize_t =
        data_call(fd, Direction::Receive, || young::receive(fd, flags, || real::recvfrom(fd, data, n, flags, from, length)), |got| taken(got, flags), |socket| {
            if from.is_null() || memory::is_writable(length, 4) {
                let got = receive_one(socket, data, n, flags)?;
                if got < 0 || from.is_null() {
                    return Some(got);
                }
                // The kernel refuses it after the bytes were taken (move_addr_to_user() of net/socket.c).
                if length.read_unaligned().cast_signed() < 0 {
                    return Some(answer(Err(Errno::INVAL)));
                }
                // A stream names no source (inet_recvmsg() of net/ipv4/af_inet.c).
                length.write_unaligned(0);
                return Some(got);
            }
            // The kernel's error comes after the bytes were taken.
            let got = receive_one(socket, data, n, flags)?;
            Some(if got < 0 { got } else { answer(Err(Errno::FAULT)) })
        });
    /// read(2).
    fn read(fd: c_int, data: *mut c_void, n: size_t) -> ssize_t =
        data_call(fd, Direction::Receive, || young::receive(fd, 0, || real::read(fd, data, n)), stream_bytes, |socket| {
            if n == 0 { None } else { receive_one(socket, data, n, 0) }
        });
    /// readv(2).
    fn readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t =
        data_call(fd, Direction::Receive, || real::readv(fd, parts, n), stream_bytes,
            |socket| receive_parts(socket, parts, n as usize, 0, Empty::IsDone));
    /// preadv2(2): readv if the offset is -1, and an error on a socket otherwise. With flags, it is the kernel's.
    fn preadv2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t =
        data_call(fd, Direction::Receive, || real::preadv2(fd, parts, n, offset, flags), stream_bytes, |socket| {
            match (offset, flags) {
                (-1, 0) => receive_parts(socket, parts, n as usize, 0, Empty::IsDone),
                (-1, libc::RWF_NOWAIT) => receive_parts(socket, parts, n as usize, MSG_DONTWAIT, Empty::IsDone),
                _ => None,
            }
        });
    /// Like preadv2: file offsets have 64 bits either way.
    fn preadv64v2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t =
        preadv2(fd, parts, n, offset, flags);
    /// The C library's other name.
    fn __read(fd: c_int, data: *mut c_void, n: size_t) -> ssize_t = read(fd, data, n);
    /// The C library's other name.
    fn __recv(fd: c_int, data: *mut c_void, n: size_t, flags: c_int) -> ssize_t = recv(fd, data, n, flags);
    /// read with its buffer's size (_FORTIFY_SOURCE): too long a read ends the process, in the C library's words.
    fn __read_chk(fd: c_int, data: *mut c_void, n: size_t, room: size_t) -> ssize_t =
        if n > room { real::__read_chk(fd, data, n, room) } else { read(fd, data, n) };
    /// Like __read_chk.
    fn __recv_chk(fd: c_int, data: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t =
        if n > room { real::__recv_chk(fd, data, n, room, flags) } else { recv(fd, data, n, flags) };
    /// Like __read_chk.
    fn __recvfrom_chk(fd: c_int, data: *mut c_void, n: size_t, room: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t) -> ssize_t = {
        if n > room {
            real::__recvfrom_chk(fd, data, n, room, flags, from, length)
        } else {
            recvfrom(fd, data, n, flags, from, length)
        }
    };
}

/// The bytes that a receive has taken from the stream.
pub(super) fn taken(got: ssize_t, flags: c_int) -> u64 {
    if flags & (MSG_PEEK | MSG_ERRQUEUE | MSG_OOB) == 0 { stream_bytes(got) } else { 0 }
}

/// Returns whether the ring knows the flags, or has bytes that the kernel's call would miss.
///
/// The error queue is the kernel's. With urgent data and all other flags the kernel carries for good.
pub(super) fn is_by_ring(socket: &Socket, flags: c_int) -> bool {
    if flags & !BY_RING == 0 {
        return true;
    }
    if flags & MSG_ERRQUEUE == 0 {
        socket.pin();
    }
    flags & (MSG_ERRQUEUE | MSG_OOB) == 0 && socket.pair().has_ring_bytes()
}

/// # Safety
/// Like recv(2).
#[inline]
unsafe fn receive_one(socket: &Socket, data: *mut c_void, n: usize, flags: c_int) -> Option<ssize_t> {
    if socket.pair().is_left_to_kernel() {
        return None;
    }
    if flags & !(MSG_DONTWAIT | MSG_NOSIGNAL) != 0 {
        if !is_by_ring(socket, flags) {
            return None;
        }
        if flags & MSG_TRUNC != 0 {
            return throw_away(socket, n, flags).map(answer);
        }
    }
    // SAFETY: by contract.
    match unsafe { memory::bytes_mut(data, n) } {
        Some(into) => Some(answer(socket.receive(into, flags))),
        None => Some(answer(receive_nowhere(socket, flags))),
    }
}

/// MSG_TRUNC: bytes of a stream are thrown away, or only counted with MSG_PEEK. `None`: the kernel counts them.
#[cold]
fn throw_away(socket: &Socket, n: usize, flags: c_int) -> Option<Result<usize, Errno>> {
    if flags & MSG_PEEK == 0 {
        return Some(take_away(socket, n, flags));
    }
    // FIONREAD ends at the mark of urgent data, where a receive goes on behind it.
    if !socket.pair().has_ring_bytes() && socket.pair().kernel().is_at_mark() {
        return None;
    }
    let count = |first| match first {
        0 => 0,
        _ => n.min(socket.pair().unread().map_or(first, |unread| usize::try_from(unread).unwrap_or(n)).max(first)),
    };
    Some(socket.receive(&mut [0], flags).map(count))
}

/// MSG_TRUNC without MSG_PEEK.
#[cold]
fn take_away(socket: &Socket, n: usize, flags: c_int) -> Result<usize, Errno> {
    if n == 0 {
        return socket.receive(&mut [], flags);
    }
    let mut done = 0;
    while done < n {
        let piece = (n - done).min(THROWN_AWAY);
        // Like `fill_parts`.
        if done > 0 && !waits_for_all(socket, flags) && socket.pair().unread().is_ok_and(|n| n == 0) {
            break;
        }
        let flags = if done > 0 && flags & MSG_WAITALL == 0 { flags | MSG_DONTWAIT } else { flags };
        match socket.receive(&mut [0; THROWN_AWAY][..piece], flags) {
            Ok(n) => {
                done += n;
                if n < piece {
                    break;
                }
            }
            Err(error) if done > 0 => {
                socket.keep_error(error);
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Returns whether a receive that has some bytes waits for more.
fn waits_for_all(socket: &Socket, flags: c_int) -> bool {
    flags & MSG_WAITALL != 0 && socket.may_wait(flags)
}

/// The caller's memory cannot be written: EFAULT as soon as there is a byte, as from the kernel.
#[cold]
pub(super) fn receive_nowhere(socket: &Socket, flags: c_int) -> Result<usize, Errno> {
    match socket.receive(&mut [0], flags & !MSG_WAITALL | MSG_PEEK)? {
        0 => Ok(0),
        _ => Err(Errno::FAULT),
    }
}

/// What a call does that receives no bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Empty {
    /// It returns (`sock_read_iter()` of net/socket.c).
    IsDone,
    /// It waits until there are some (`tcp_recvmsg_locked()` of net/ipv4/tcp.c).
    Waits,
}

/// # Safety
/// Like readv(2).
pub(super) unsafe fn receive_parts(
    socket: &Socket,
    parts: *const iovec,
    n: usize,
    flags: c_int,
    empty: Empty,
) -> Option<ssize_t> {
    // SAFETY: by contract. What is no description has the kernel's error, before a byte is taken.
    let (parts, total) = unsafe { memory::pieces(parts, n) }?;
    if socket.pair().is_left_to_kernel() || !is_by_ring(socket, flags) {
        return None;
    }
    if total == 0 {
        return (empty == Empty::Waits).then(|| answer(socket.receive(&mut [], flags)));
    }
    if flags & MSG_TRUNC != 0 {
        return throw_away(socket, total, flags).map(answer);
    }
    // SAFETY: by contract.
    Some(answer(unsafe {
        if flags & MSG_PEEK != 0 && parts.len() > 1 {
            peek_parts(socket, parts, flags)
        } else {
            fill_parts(socket, parts, flags)
        }
    }))
}

/// # Safety
/// Like readv(2).
unsafe fn fill_parts(socket: &Socket, parts: &[iovec], flags: c_int) -> Result<usize, Errno> {
    let mut done = 0;
    let start_ns = if flags & MSG_WAITALL != 0 { fs_carrier::sys::now_ns() } else { 0 };
    for part in parts.iter().filter(|part| part.iov_len > 0) {
        // The first piece may wait; with MSG_WAITALL, all may.
        let flags = if done > 0 && flags & MSG_WAITALL == 0 { flags | MSG_DONTWAIT } else { flags };
        // A receive that finds nothing would clear the socket's pending error.
        if done > 0 && !waits_for_all(socket, flags) && socket.pair().unread().is_ok_and(|n| n == 0) {
            break;
        }
        // SAFETY: by contract.
        let result = match unsafe { memory::bytes_mut(part.iov_base, part.iov_len) } {
            Some(into) if done > 0 && flags & MSG_WAITALL != 0 => socket.receive_more(into, flags, start_ns),
            Some(into) => socket.receive(into, flags),
            None => receive_nowhere(socket, flags),
        };
        match result {
            Ok(n) => {
                done += n;
                if n < part.iov_len {
                    break;
                }
            }
            Err(error) if done > 0 => {
                socket.keep_error(error);
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// MSG_PEEK into several pieces: bytes that stay unread cannot be continued behind.
///
/// # Safety
/// Like readv(2).
#[cold]
unsafe fn peek_parts(socket: &Socket, parts: &[iovec], flags: c_int) -> Result<usize, Errno> {
    let total: usize = parts.iter().map(|part| part.iov_len).sum();
    let mut all = vec![0; total.min(MAX_PEEK)];
    let n = socket.receive(&mut all, flags)?;
    let mut rest = &all[..n];
    for part in parts {
        let (now, later) = rest.split_at(rest.len().min(part.iov_len));
        // SAFETY: by contract.
        unsafe { memory::bytes_mut(part.iov_base, now.len()) }.ok_or(Errno::FAULT)?.copy_from_slice(now);
        rest = later;
    }
    Ok(n)
}
