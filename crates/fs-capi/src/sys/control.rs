//! Ancillary data: descriptors (SCM_RIGHTS, unix(7)), and what a connection of ours tells beside its bytes.

use core::slice;

use super::answer::is_bad;
use super::errno::{errno, set_errno};
use fs_socket::Ancillary;
use libc::{
    CMSG_DATA, CMSG_FIRSTHDR, CMSG_LEN, CMSG_NXTHDR, CMSG_SPACE, MSG_CTRUNC, MSG_PEEK, SCM_RIGHTS, SOL_SOCKET, c_int,
    cmsghdr, msghdr,
};

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

/// Writes these messages, as many as there is room for, and how long they are (put_cmsg() of the kernel).
///
/// # Safety
/// As recvmsg(2); the control pointer and length of `header` are null or valid.
pub(super) unsafe fn put(header: &mut msghdr, messages: impl Iterator<Item = Ancillary>) {
    let room = if is_bad(header.msg_control) { 0 } else { header.msg_controllen };
    let mut used = 0;
    for message in messages {
        let data = message.as_bytes();
        let left = room - used;
        if left < size_of::<cmsghdr>() {
            header.msg_flags |= MSG_CTRUNC;
            continue;
        }
        // SAFETY: the macros compute from the length alone.
        let (len, space) = unsafe { (CMSG_LEN(data.len() as u32) as usize, CMSG_SPACE(data.len() as u32) as usize) };
        if left < len {
            header.msg_flags |= MSG_CTRUNC;
        }
        let len = len.min(left);
        let at = header.msg_control.cast::<u8>().wrapping_add(used);
        let head = cmsghdr { cmsg_len: len, cmsg_level: message.level, cmsg_type: message.kind };
        // SAFETY: `left` bytes are there from `at` on, of which the header and what is left of `len` are written. The
        // application's buffer may have any alignment.
        unsafe {
            at.cast::<cmsghdr>().write_unaligned(head);
            let data_at = at.add(size_of::<cmsghdr>());
            core::ptr::copy_nonoverlapping(data.as_ptr(), data_at, len - size_of::<cmsghdr>());
        }
        used += space.min(left);
    }
    header.msg_controllen = used;
}
