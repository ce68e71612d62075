//! sendmsg and recvmsg, one and many.

use core::time::Duration;
use std::time::Instant;

use fs_socket::{Errno, Ours, Received, flags};
use libc::{c_int, c_uint, mmsghdr, msghdr, size_t, ssize_t, timespec};

use crate::sys::answer::{self, address, is_bad, pieces, pieces_mut, received};
use crate::sys::control;
use crate::sys::errno::{errno, set_errno};
use crate::sys::real;

/// Most messages in one call: the kernel cuts longer arrays to this (UIO_MAXIOV, sendmmsg(2)).
const MESSAGES_MAX: c_uint = 1024;

define! {
    /// sendmsg(2).
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = {
        match sendmsg_ours(fd, message, flags) {
            Some(answer) => answer,
            None => {
                control::share(message);
                let answer = real::sendmsg(fd, message, flags);
                if answer < 0 {
                    control::unshare(message);
                }
                answer
            }
        }
    };
    /// recvmsg(2).
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = {
        match recvmsg_ours(fd, message, flags) {
            Some(answer) => received(Some(answer)).unwrap_or(-1),
            None => {
                let answer = real::recvmsg(fd, message, flags);
                if answer >= 0 {
                    control::claim(message, flags);
                }
                answer
            }
        }
    };
    /// The C library's other name.
    fn __sendmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int = sendmmsg(fd, messages, n, flags);
}

define! {
    /// sendmmsg(2).
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int = {
        match sendmmsg_ours(fd, messages, n, flags) {
            Some(answer) => answer,
            None => {
                each(messages, 0, n, |message| control::share(message));
                let answer = real::sendmmsg(fd, messages, n, flags);
                each(messages, c_uint::try_from(answer).unwrap_or(0), n, |message| control::unshare(message));
                answer
            }
        }
    };
    /// recvmmsg(2).
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int = {
        match recvmmsg_ours(fd, messages, n, flags, timeout) {
            Some(answer) => answer,
            None => {
                let answer = real::recvmmsg(fd, messages, n, flags, timeout);
                each(messages, 0, c_uint::try_from(answer).unwrap_or(0), |message| control::claim(message, flags));
                answer
            }
        }
    };
}

/// Looks at each message of an array, from the `first` on.
///
/// # Safety
/// `messages` as sendmmsg(2) asks, `n` long.
unsafe fn each(messages: *mut mmsghdr, first: c_uint, n: c_uint, mut look: impl FnMut(*const msghdr)) {
    if is_bad(messages) {
        return;
    }
    for i in first as usize..n.min(MESSAGES_MAX) as usize {
        // SAFETY: by contract.
        look(unsafe { &raw const (*messages.add(i)).msg_hdr });
    }
}

/// # Safety
/// As sendmsg(2).
unsafe fn sendmsg_ours(fd: c_int, message: *const msghdr, send_flags: c_int) -> Option<ssize_t> {
    // SAFETY: by contract; what is null goes to the kernel.
    unsafe {
        if is_bad(message) {
            return None;
        }
        let header = &*message;
        let parts = pieces(header.msg_iov, header.msg_iovlen as size_t)?;
        // Longer than any address is cut to one (copy_msghdr_from_user() of the kernel); what is none, it refuses.
        let named = !header.msg_name.is_null() && header.msg_namelen != 0;
        let to = address(header.msg_name.cast(), header.msg_namelen.min(128));
        if named && (to.is_none() || is_misnamed(header)) {
            return None;
        }
        answer::send(fd, parts, send_flags as u32, to, answer::control(header))
    }
}

/// A length of the name that the kernel refuses, before it looks at anything else (__copy_msghdr()).
fn is_misnamed(header: &msghdr) -> bool {
    !header.msg_name.is_null() && c_int::try_from(header.msg_namelen).is_err()
}

/// # Safety
/// As recvmsg(2).
unsafe fn recvmsg_ours(fd: c_int, message: *mut msghdr, recv_flags: c_int) -> Ours<Received> {
    // SAFETY: by contract; what is null goes to the kernel.
    unsafe {
        // A negative length of the name, too.
        if is_bad(message) || is_misnamed(&*message) {
            return None;
        }
        let header = &mut *message;
        let answer = answer::recv(
            fd,
            pieces_mut(header.msg_iov, header.msg_iovlen as size_t)?,
            super::receive::given(recv_flags),
        )?;
        if let Ok(received) = answer {
            if !header.msg_name.is_null() {
                header.msg_namelen = 0;
            }
            // ____sys_recvmsg() of the kernel leaves this flag in.
            header.msg_flags = received.flags as c_int | recv_flags & libc::MSG_CMSG_CLOEXEC;
            if recv_flags & libc::MSG_ERRQUEUE == 0 {
                control::put(header, fs_socket::ancillary(fd, received.bytes));
            }
        }
        Some(answer)
    }
}

/// # Safety
/// As sendmmsg(2).
unsafe fn sendmmsg_ours(fd: c_int, messages: *mut mmsghdr, n: c_uint, send_flags: c_int) -> Option<c_int> {
    fs_socket::descriptor::table::socket(fd)?;
    let mut done = 0;
    for i in 0..n.min(MESSAGES_MAX) as usize {
        // SAFETY: by contract.
        let message = unsafe { &mut *messages.add(i) };
        // SAFETY: by contract. `sendmsg`, so that a message whose description is wrong gets the kernel's error.
        let sent = unsafe { sendmsg(fd, &message.msg_hdr, send_flags) };
        if sent < 0 {
            // An error after the first message is told by the next call (sendmmsg(2)).
            return Some(if done > 0 { done } else { -1 });
        }
        message.msg_len = sent as c_uint;
        done += 1;
    }
    Some(done)
}

/// # Safety
/// As recvmmsg(2).
unsafe fn recvmmsg_ours(
    fd: c_int,
    messages: *mut mmsghdr,
    n: c_uint,
    recv_flags: c_int,
    timeout: *mut timespec,
) -> Option<c_int> {
    if !fs_socket::stream::is_channel(fd) {
        return None;
    }
    // SAFETY: by contract.
    let limit = match unsafe { timeout.as_ref() } {
        None => None,
        Some(&timespec { tv_sec, tv_nsec }) => match (u64::try_from(tv_sec), u32::try_from(tv_nsec)) {
            (Ok(seconds), Ok(nanoseconds)) if nanoseconds < 1_000_000_000 => Some(Duration::new(seconds, nanoseconds)),
            _ => {
                set_errno(Errno::INVAL.raw_os_error());
                return Some(-1);
            }
        },
    };
    if recv_flags & libc::MSG_ERRQUEUE == 0
        && let Some(error) = fs_socket::stream::take_error(fd)
    {
        // Before any message is looked at (do_recvmmsg() of the kernel).
        set_errno(error.raw_os_error());
        return Some(-1);
    }
    let began = Instant::now();
    let one = recv_flags & libc::MSG_WAITFORONE != 0;
    let mut now_flags = recv_flags & !libc::MSG_WAITFORONE;
    let mut done = 0;
    for i in 0..n.min(MESSAGES_MAX) as usize {
        // SAFETY: by contract.
        let message = unsafe { &mut *messages.add(i) };
        let before = errno();
        // SAFETY: by contract.
        let got = unsafe { recvmsg(fd, &mut message.msg_hdr, now_flags) };
        if got < 0 {
            if done > 0 {
                set_errno(before);
            }
            return Some(if done > 0 { done } else { -1 });
        }
        message.msg_len = got as c_uint;
        done += 1;
        if one {
            now_flags |= flags::DONTWAIT as c_int;
        }
        // The time is looked at after each message only (recvmmsg(2), BUGS); what is left is written back.
        if let Some(limit) = limit {
            let left = limit.saturating_sub(began.elapsed());
            // SAFETY: by contract: not null, as `limit` says.
            unsafe { *timeout = timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() } };
            if left.is_zero() {
                break;
            }
        }
        if message.msg_hdr.msg_flags & libc::MSG_OOB != 0 {
            // The urgent byte is the last message (do_recvmmsg() of the kernel).
            break;
        }
    }
    Some(done)
}
