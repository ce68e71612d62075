//! sendmsg(2), recvmsg(2) and similar calls.

use core::cell::Cell;

use libc::{
    MSG_CMSG_CLOEXEC, MSG_DONTWAIT, MSG_WAITFORONE, SCM_RIGHTS, SOL_SOCKET, c_int, c_uint, mmsghdr, msghdr, ssize_t,
    timespec,
};

use super::receive::{Empty, receive_parts, taken};
use super::send::{send_parts, send_unusual};
use super::{data_call, stream_bytes};
use crate::confined;
use crate::descriptor;
use crate::slot::Direction;
use crate::socket::Socket;
use crate::sys::errno::answer;
use crate::sys::{memory, real};

/// Messages of one call (`UIO_MAXIOV`).
const MAX_MESSAGES: c_uint = 1024;

define! {
    /// sendmsg(2). Descriptors that are sent leave the library.
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = {
        leave_sent_descriptors(message);
        data_call(fd, Direction::Send, || real::sendmsg(fd, message, flags), stream_bytes, |socket| {
            let call = || real::sendmsg(fd, message, flags);
            Some(match memory::message(message) {
                // The kernel handles control data.
                Some(m) if m.msg_controllen == 0 && m.msg_name.is_null() =>
                    send_parts(socket, m.msg_iov, m.msg_iovlen, flags, call),
                _ => send_unusual(socket, flags, call),
            })
        })
    };
    /// sendmmsg(2): the kernel carries.
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int = {
        for i in 0..n.min(MAX_MESSAGES) as usize {
            leave_sent_descriptors((&raw const (*messages.wrapping_add(i)).msg_hdr).cast());
        }
        data_call(fd, Direction::Send, || real::sendmmsg(fd, messages, n, flags), |sent| sum(messages, sent),
            |socket| Some(send_many(socket, fd, messages, n, flags)))
    };
    /// recvmsg(2).
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t =
        data_call(fd, Direction::Receive, || real::recvmsg(fd, message, flags), |got| taken(got, flags), |socket| {
            // The kernel refuses a negative length (copy_msghdr() of net/socket.c).
            let m = memory::message(message).filter(|m| m.msg_name.is_null() || m.msg_namelen.cast_signed() >= 0)?;
            let names_source = !m.msg_name.is_null();
            let got = receive_parts(socket, m.msg_iov, m.msg_iovlen, flags, Empty::Waits)?;
            if got >= 0 && memory::is_writable(message, size_of::<msghdr>()) {
                // A stream names no source. Control data needs a socket option with which a socket is never promoted.
                if names_source {
                    (*message).msg_namelen = 0;
                }
                (*message).msg_controllen = 0;
                (*message).msg_flags = flags & MSG_CMSG_CLOEXEC;
            }
            Some(got)
        });
    /// recvmmsg(2) makes the kernel the only carrier, for good.
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int =
        data_call(fd, Direction::Receive, || real::recvmmsg(fd, messages, n, flags, timeout), |got| sum(messages, got), |socket| {
            socket.pin();
            receive_many(socket, fd, messages, n.min(MAX_MESSAGES), flags, timeout)
        });
}

/// Sums the lengths of the messages that a call has moved.
///
/// # Safety
/// `messages` points to at least `n` messages.
unsafe fn sum(messages: *const mmsghdr, n: c_int) -> u64 {
    let n = usize::try_from(n).unwrap_or(0);
    // SAFETY: by contract.
    (0..n).map(|i| unsafe { u64::from((*messages.add(i)).msg_len) }).sum()
}

/// # Safety
/// Like sendmmsg(2).
unsafe fn send_many(socket: &Socket, fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
    let sent = Cell::new(-1);
    let call = || {
        // SAFETY: by contract.
        sent.set(unsafe { real::sendmmsg(fd, messages, n, flags) });
        // SAFETY: by contract; the call has filled the lengths of so many messages.
        let bytes = || unsafe { sum(messages, sent.get()) };
        if sent.get() < 0 { -1 } else { bytes() as ssize_t }
    };
    // The call has set errno.
    let _bytes = send_unusual(socket, flags, call);
    sent.get()
}

/// Fills the first messages with the rest of the ring, and the others by the kernel's call. Returns
/// `None` if the ring is empty.
///
/// # Safety
/// Like recvmmsg(2).
unsafe fn receive_many(
    socket: &Socket,
    fd: c_int,
    messages: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Option<c_int> {
    // An error comes before bytes (do_recvmmsg() of net/socket.c).
    if flags & libc::MSG_ERRQUEUE == 0
        && socket.pair().has_ring_bytes()
        && !confined::is_confined()
        && let Ok(Err(error)) = rustix::net::sockopt::socket_error(socket.pair().kernel().borrow())
    {
        return Some(answer(Err(error)) as c_int);
    }
    let mut done = 0;
    let mut flags = flags;
    while done < n && socket.pair().has_ring_bytes() {
        let message = messages.wrapping_add(done as usize);
        if !memory::is_writable(message, size_of::<mmsghdr>()) {
            break;
        }
        // SAFETY: by contract.
        let got = unsafe { recvmsg(fd, &raw mut (*message).msg_hdr, flags & !MSG_WAITFORONE) };
        if got < 0 {
            break;
        }
        // SAFETY: the first of its bytes can be written, and by contract all.
        unsafe { (*message).msg_len = got as c_uint };
        done += 1;
        if flags & MSG_WAITFORONE != 0 {
            flags |= MSG_DONTWAIT;
        }
    }
    if done == 0 {
        return None;
    }
    if done < n {
        // SAFETY: by contract.
        let more = unsafe { real::recvmmsg(fd, messages.wrapping_add(done as usize), n - done, flags, timeout) };
        done += c_uint::try_from(more).unwrap_or(0);
    }
    c_int::try_from(done).ok()
}

/// SCM_RIGHTS: a sent descriptor has two holders.
///
/// # Safety
/// Like sendmsg(2).
unsafe fn leave_sent_descriptors(message: *const msghdr) {
    // SAFETY: by contract.
    let Some(message) = (unsafe { memory::message(message) }) else { return };
    if message.msg_controllen == 0 || !memory::is_readable(message.msg_control.cast::<u8>(), message.msg_controllen) {
        return;
    }
    // SAFETY: the control data is readable, and the macros stay inside of it.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = next.as_ref() {
            if header.cmsg_level == SOL_SOCKET && header.cmsg_type == SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                let bytes = header.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let room = (message.msg_control.addr() + message.msg_controllen).saturating_sub(data.addr());
                for i in 0..bytes.min(room) / size_of::<c_int>() {
                    descriptor::leave_to_other(data.add(i).read_unaligned());
                }
            }
            next = libc::CMSG_NXTHDR(message, header);
        }
    }
}
