//! From C's arguments to fs-socket's and back.

use core::slice;

use fs_socket::{Errno, IoVec, IoVecMut, Ours, Received, flags};
use libc::{c_int, c_void, iovec, msghdr, sockaddr, socklen_t, ssize_t};

use super::cancel;
use super::errno::set_errno;

/// `UIO_MAXIOV`: more pieces than this are EINVAL (readv(2), <linux/uio.h>).
const PIECES_MAX: usize = 1024;

/// Longest socket address, `sizeof(struct sockaddr_storage)`; a longer one is the kernel's to refuse.
const ADDRESS_MAX: usize = 128;

/// The lowest address that Linux maps for a program by default (vm.mmap_min_addr is 65536; 4096 is its least).
const LOWEST: usize = 4096;

/// Whether a pointer cannot point to anything: null, or an error number or small offset taken for a pointer. Such
/// arguments are the kernel's to refuse (EFAULT). Other bad pointers fault in this process, which the kernel's calls
/// would not: telling them apart takes a system call for each.
pub(super) fn is_bad<T>(pointer: *const T) -> bool {
    pointer.addr() < LOWEST
}

/// The answer of a call that answers 0.
pub(super) fn done(answer: Ours<()>) -> Option<c_int> {
    int(answer.map(|r| r.map(|()| 0)))
}

/// The answer of a call that answers an int.
pub(super) fn int(answer: Ours<c_int>) -> Option<c_int> {
    Some(match answer? {
        Ok(value) => value,
        Err(errno) => {
            set_errno(errno.raw_os_error());
            -1
        }
    })
}

/// The answer of a call that answers a number of bytes.
pub(super) fn count(answer: Ours<usize>) -> Option<ssize_t> {
    Some(match answer? {
        // A count is at most what the caller's buffers hold, which is at most isize::MAX.
        Ok(bytes) => bytes as ssize_t,
        Err(errno) => {
            set_errno(errno.raw_os_error());
            -1
        }
    })
}

/// The answer of a receiving call.
pub(super) fn received(answer: Ours<Received>) -> Option<ssize_t> {
    count(answer.map(|r| r.map(|received| received.bytes)))
}

/// The answer of a sending call; the signal of EPIPE is raised in the calling thread before errno is set (send(2)).
pub(super) fn sent(answer: Ours<usize>, send_flags: u32) -> Option<ssize_t> {
    if let Some(Err(Errno::PIPE)) = answer
        && send_flags & flags::NOSIGNAL == 0
    {
        // SAFETY: raise(3) has no precondition; it is async-signal-safe.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    count(answer)
}

/// Sends pieces of memory.
///
/// # Safety
/// `parts` describes readable memory, as send(2) asks.
pub(super) unsafe fn send(
    fd: c_int,
    parts: &[iovec],
    send_flags: u32,
    to: Option<&[u8]>,
    control: &[u8],
) -> Option<ssize_t> {
    // SAFETY: IoVec is laid out as iovec; the memory lives through the call.
    let parts = unsafe { slice::from_raw_parts(parts.as_ptr().cast::<IoVec<'_>>(), parts.len()) };
    sent(cancel::until_done(|| fs_socket::send(fd, parts, send_flags, to, control)), send_flags)
}

/// Receives into pieces of memory.
///
/// # Safety
/// `parts` describes writable memory, as recv(2) asks.
pub(super) unsafe fn recv(fd: c_int, parts: &mut [iovec], recv_flags: u32) -> Ours<Received> {
    // SAFETY: IoVecMut is laid out as iovec; the memory lives through the call.
    let parts = unsafe { slice::from_raw_parts_mut(parts.as_mut_ptr().cast::<IoVecMut<'_>>(), parts.len()) };
    cancel::until_done(|| fs_socket::recv(fd, parts, recv_flags))
}

/// One piece of memory.
pub(super) fn piece(data: *const c_void, n: usize) -> [iovec; 1] {
    // The kernel cuts longer transfers to this as well (MAX_RW_COUNT, read(2)).
    [iovec { iov_base: data.cast_mut(), iov_len: n.min(0x7fff_f000) }]
}

/// The pieces that C describes. `None`: not a description the kernel would take either (it knows the error).
///
/// # Safety
/// `parts` points to `n` pieces when it is not null.
pub(super) unsafe fn pieces<'a>(parts: *const iovec, n: usize) -> Option<&'a [iovec]> {
    if n == 0 {
        return Some(&[]);
    }
    if is_bad(parts) || n > PIECES_MAX {
        return None;
    }
    // SAFETY: by contract.
    let parts = unsafe { slice::from_raw_parts(parts, n) };
    let total = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))?;
    isize::try_from(total).ok()?;
    Some(parts)
}

/// As [`pieces`], to be written into. The pieces themselves are not changed.
///
/// # Safety
/// As [`pieces`]; nobody else uses the array during the call.
pub(super) unsafe fn pieces_mut<'a>(parts: *const iovec, n: usize) -> Option<&'a mut [iovec]> {
    // SAFETY: by contract.
    let checked = unsafe { pieces(parts, n) }?;
    if checked.is_empty() {
        return Some(&mut []);
    }
    // SAFETY: by contract; fs-socket writes through the pieces, not to them.
    Some(unsafe { slice::from_raw_parts_mut(parts.cast_mut(), n) })
}

/// The bytes of an address argument. `None`: null, or longer than any address.
///
/// # Safety
/// `address` points to `length` bytes when it is not null.
pub(super) unsafe fn address<'a>(address: *const sockaddr, length: socklen_t) -> Option<&'a [u8]> {
    if is_bad(address) || length as usize > ADDRESS_MAX {
        return None;
    }
    // SAFETY: by contract.
    Some(unsafe { slice::from_raw_parts(address.cast(), length as usize) })
}

/// Copies an address out as accept(2) and getsockname(2) do: cut to the room, the full length answered.
///
/// # Safety
/// `out` and `length` are null or as the call asks.
pub(super) unsafe fn copy_address(from: &[u8], out: *mut sockaddr, length: *mut socklen_t) -> Result<(), Errno> {
    if out.is_null() {
        return Ok(());
    }
    if is_bad(out) || is_bad(length) {
        return Err(Errno::FAULT);
    }
    // SAFETY: by contract.
    unsafe {
        let room = c_int::try_from(*length).map_err(|_| Errno::INVAL)? as usize;
        let n = room.min(from.len());
        core::ptr::copy_nonoverlapping(from.as_ptr(), out.cast::<u8>(), n);
        *length = from.len() as socklen_t;
    }
    Ok(())
}

/// The ancillary data of a message.
///
/// # Safety
/// The message's control pointer is null or points to its control length.
pub(super) unsafe fn control(message: &msghdr) -> &[u8] {
    if is_bad(message.msg_control) || message.msg_controllen == 0 {
        return &[];
    }
    // SAFETY: by contract.
    unsafe { slice::from_raw_parts(message.msg_control.cast(), message.msg_controllen) }
}
