//! Descriptors in ancillary data (SCM_RIGHTS, unix(7)).

use core::slice;

use super::answer::is_bad;
use super::errno::{errno, set_errno};
use libc::{CMSG_DATA, CMSG_FIRSTHDR, CMSG_NXTHDR, MSG_PEEK, SCM_RIGHTS, SOL_SOCKET, c_int, msghdr};

/// Calls `each` with the descriptors of every SCM_RIGHTS message.
///
/// # Safety
/// The control pointer and length of `message` are null or valid.
unsafe fn rights(message: &msghdr, mut each: impl FnMut(&[c_int])) {
    if message.msg_control.is_null() {
        return;
    }
    // SAFETY: the macros' walk stays inside of the control length; the data of a message is `cmsg_len` long, checked
    // by CMSG_FIRSTHDR/CMSG_NXTHDR against the length, and aligned for ints.
    unsafe {
        let mut header = CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = CMSG_DATA(header).cast::<c_int>();
            let before = data as usize - header as usize;
            let room = message.msg_control as usize + message.msg_controllen - header as usize;
            let bytes = ((*header).cmsg_len).min(room).saturating_sub(before);
            if (*header).cmsg_level == SOL_SOCKET && (*header).cmsg_type == SCM_RIGHTS && bytes >= size_of::<c_int>() {
                each(slice::from_raw_parts(data, bytes / size_of::<c_int>()));
            }
            header = CMSG_NXTHDR(message, header);
        }
    }
}

/// Before a message is sent by the kernel: sockets of ours in it are kept for the receiver.
///
/// # Safety
/// As sendmsg(2).
pub(super) unsafe fn share(message: *const msghdr) {
    // SAFETY: by contract.
    if let Some(message) = unsafe { message.as_ref() }.filter(|_| !is_bad(message))
        && message.msg_controllen != 0
    {
        // SAFETY: by contract.
        unsafe { rights(message, fs_socket::share) };
    }
}

/// After a message was not sent by the kernel: what [`share`] did is undone. Leaves errno as it is.
///
/// # Safety
/// As sendmsg(2).
pub(super) unsafe fn unshare(message: *const msghdr) {
    // SAFETY: by contract.
    if let Some(message) = unsafe { message.as_ref() }.filter(|_| !is_bad(message))
        && message.msg_controllen != 0
    {
        let reason = errno();
        // SAFETY: by contract.
        unsafe { rights(message, fs_socket::unshare) };
        set_errno(reason);
    }
}

/// After a message was received from the kernel with these flags: sockets of ours in it become ours here.
///
/// # Safety
/// As recvmsg(2), after it has succeeded.
pub(super) unsafe fn claim(message: *const msghdr, flags: c_int) {
    // SAFETY: by contract.
    if let Some(message) = unsafe { message.as_ref() }.filter(|_| !is_bad(message))
        && message.msg_controllen != 0
    {
        // SAFETY: the kernel has just written the control data.
        unsafe { rights(message, |fds| fs_socket::claim(fds, flags & MSG_PEEK != 0)) };
    }
}
