//! Bytes out.

use libc::{
    MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, MSG_OOB, c_int, c_void, iovec, off_t, size_t, sockaddr, socklen_t, ssize_t,
};
use rustix::io::Errno;

use super::{data_call, stream_bytes};
use crate::slot::Direction;
use crate::socket::Socket;
use crate::sys::errno::{answer, answer_sent, checked};
use crate::sys::{memory, real};

/// Pieces of a vector are gathered into this, on the stack, so that they are published at once.
/// More: the stack of a signal handler; fewer: a reader that is awake takes a message in parts.
const GATHERED: usize = 8192;

/// Flags that mean the same on the ring.
const BY_RING: c_int = MSG_DONTWAIT | MSG_NOSIGNAL;

define! {
    /// send(2).
    fn send(fd: c_int, data: *const c_void, n: size_t, flags: c_int) -> ssize_t =
        data_call(fd, Direction::Send, || real::send(fd, data, n, flags), stream_bytes,
            |socket| send_one(socket, data, n, flags, || real::send(fd, data, n, flags)));
    /// sendto(2). A connected stream ignores the address, after the kernel has read it.
    fn sendto(fd: c_int, data: *const c_void, n: size_t, flags: c_int, to: *const sockaddr, length: socklen_t) -> ssize_t =
        data_call(fd, Direction::Send, || real::sendto(fd, data, n, flags, to, length), stream_bytes, |socket| {
            if to.is_null() {
                send_one(socket, data, n, flags, || real::sendto(fd, data, n, flags, to, length))
            } else {
                Some(send_unusual(socket, flags, || real::sendto(fd, data, n, flags, to, length)))
            }
        });
    /// write(2).
    fn write(fd: c_int, data: *const c_void, n: size_t) -> ssize_t =
        data_call(fd, Direction::Send, || real::write(fd, data, n), stream_bytes,
            |socket| send_one(socket, data, n, 0, || real::write(fd, data, n)));
    /// writev(2).
    fn writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t =
        data_call(fd, Direction::Send, || real::writev(fd, parts, n), stream_bytes,
            |socket| Some(send_parts(socket, parts, n as usize, 0, || real::writev(fd, parts, n))));
    /// pwritev2(2): writev if the offset is -1, and an error on a socket otherwise. Its flags are the kernel's.
    fn pwritev2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t =
        data_call(fd, Direction::Send, || real::pwritev2(fd, parts, n, offset, flags), stream_bytes,
            |socket| Some(by_kernel(socket, false, || real::pwritev2(fd, parts, n, offset, flags))));
    /// Like pwritev2: file offsets have 64 bits either way.
    fn pwritev64v2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t =
        pwritev2(fd, parts, n, offset, flags);
    /// The C library's other name.
    fn __send(fd: c_int, data: *const c_void, n: size_t, flags: c_int) -> ssize_t = send(fd, data, n, flags);
    /// The C library's other name.
    fn __write(fd: c_int, data: *const c_void, n: size_t) -> ssize_t = write(fd, data, n);
}

/// P3 and P2 with a call of the application's. P6: with `has_more`, the kernel may hold its bytes back.
pub(super) fn by_kernel(socket: &Socket, has_more: bool, call: impl Fn() -> ssize_t) -> ssize_t {
    // The call has set errno, and raised its signal.
    answer(socket.pair().send_by_kernel(has_more, |_| checked(call())))
}

/// # Safety
/// Like send(2); `call` is the application's.
#[inline]
unsafe fn send_one(
    socket: &Socket,
    data: *const c_void,
    n: usize,
    flags: c_int,
    call: impl Fn() -> ssize_t,
) -> Option<ssize_t> {
    if flags & !BY_RING != 0
        && let Some(sent) = send_flagged(socket, flags, &call)
    {
        return Some(sent);
    }
    // SAFETY: by contract.
    match unsafe { memory::bytes(data, n) } {
        Some(bytes) if n <= memory::MAX_BYTES => {
            Some(answer_sent(socket.send(bytes, flags & MSG_DONTWAIT != 0), flags & MSG_NOSIGNAL != 0))
        }
        _ => Some(by_kernel(socket, false, call)),
    }
}

/// Sends by the kernel what has flags that the ring does not know. Returns `None` for MSG_MORE while
/// the ring carries, which holds nothing back.
#[cold]
fn send_flagged(socket: &Socket, flags: c_int, call: impl Fn() -> ssize_t) -> Option<ssize_t> {
    if flags & !BY_RING == MSG_MORE {
        return socket.pair().send_if_kernel_carries(true, || checked(call())).map(answer);
    }
    Some(send_unusual(socket, flags, call))
}

/// Sends urgent data, zero copy, and everything else that only the kernel can do.
#[cold]
pub(super) fn send_unusual(socket: &Socket, flags: c_int, call: impl Fn() -> ssize_t) -> ssize_t {
    if flags & MSG_OOB != 0 {
        socket.pair().before_shutdown_send();
    }
    by_kernel(socket, flags & MSG_MORE != 0, call)
}

/// # Safety
/// Like writev(2); `call` is the application's.
pub(super) unsafe fn send_parts(
    socket: &Socket,
    parts: *const iovec,
    n: usize,
    flags: c_int,
    call: impl Fn() -> ssize_t,
) -> ssize_t {
    if flags & !BY_RING != 0
        && let Some(sent) = send_flagged(socket, flags, &call)
    {
        return sent;
    }
    // SAFETY: by contract.
    let Some((parts, total)) = (unsafe { memory::pieces(parts, n) }) else { return by_kernel(socket, false, call) };
    // SAFETY: by contract.
    let is_readable = |part: &iovec| unsafe { memory::bytes(part.iov_base, part.iov_len) }.is_some();
    if parts.is_empty() || !parts.iter().all(is_readable) || total > memory::MAX_BYTES {
        return by_kernel(socket, false, call);
    }
    // One call as long as the kernel carries: what it takes of a vector, it takes at once.
    if let Some(result) = socket.pair().send_if_kernel_carries(false, || checked(call())) {
        return answer(result);
    }
    // SAFETY: by contract, and readable.
    let sent = unsafe { gather_and_send(socket, parts, flags & MSG_DONTWAIT != 0) };
    answer_sent(sent, flags & MSG_NOSIGNAL != 0)
}

/// # Safety
/// The parts are readable.
unsafe fn gather_and_send(socket: &Socket, parts: &[iovec], dont_wait: bool) -> Result<usize, Errno> {
    let mut gathered = [const { core::mem::MaybeUninit::<u8>::uninit() }; GATHERED];
    let (mut filled, mut done) = (0, 0);
    for (i, part) in parts.iter().enumerate() {
        // SAFETY: by contract.
        let Some(mut rest) = (unsafe { memory::bytes(part.iov_base, part.iov_len) }) else { break };
        let is_last = i + 1 == parts.len();
        while !rest.is_empty() || (is_last && filled > 0) {
            // Long pieces without bytes before them are sent without a copy.
            let is_direct = filled == 0 && (rest.len() >= GATHERED || is_last);
            let result = if is_direct {
                let piece = core::mem::take(&mut rest);
                (piece.len(), socket.send(piece, dont_wait))
            } else {
                let n = rest.len().min(GATHERED - filled);
                let place = gathered[filled..filled + n].as_mut_ptr().cast::<u8>();
                // SAFETY: `n` bytes of private memory, and as many readable ones.
                unsafe { place.copy_from_nonoverlapping(rest.as_ptr(), n) };
                rest = &rest[n..];
                filled += n;
                if filled < GATHERED && !(is_last && rest.is_empty()) {
                    break;
                }
                // SAFETY: so many bytes were written just now and before.
                let piece = unsafe { core::slice::from_raw_parts(gathered.as_ptr().cast::<u8>(), filled) };
                (core::mem::take(&mut filled), socket.send(piece, dont_wait))
            };
            match result {
                (wanted, Ok(n)) => {
                    done += n;
                    if n < wanted {
                        return Ok(done);
                    }
                }
                (_, Err(error)) if done > 0 => {
                    socket.keep_error(error);
                    return Ok(done);
                }
                (_, Err(error)) => return Err(error),
            }
        }
    }
    Ok(done)
}
