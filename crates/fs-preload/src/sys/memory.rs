//! Memory of the application: whether an address may be read or written, and arrays of pieces.
//!
//! The kernel's calls return EFAULT for a bad address; a copy to or from the ring would end the
//! process. An address is checked once per page with process_vm_readv(2) of this process, and a
//! table remembers valid pages. A page that was unmapped after its check is not noticed.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{iovec, msghdr};

use super::errno::errno;
use crate::confined;

/// Remembered pages, 8 bytes each, which are touched if a page is used. More: memory; fewer:
/// buffers of many connections displace each other, and cost a system call of 0.3 µs: with 1,024, a
/// sixth of redis-server's time for 1,000 clients.
const REMEMBERED: usize = 16 << 10;
const PAGE_SHIFT: u32 = 12;
/// More pieces than this are EINVAL (`UIO_MAXIOV` of <linux/uio.h>).
const MAX_PIECES: usize = 1024;
/// The kernel cuts longer transfers to this (`MAX_RW_COUNT`, read(2)).
pub(crate) const MAX_BYTES: usize = 0x7fff_f000;

/// Page number and, in the lowest bit, whether it may be written.
static PAGES: [AtomicUsize; REMEMBERED] = [const { AtomicUsize::new(0) }; REMEMBERED];

#[inline]
fn is_page_good(at: usize, writes: bool) -> bool {
    let page = at >> PAGE_SHIFT;
    let known = &PAGES[page % REMEMBERED];
    let want = page << 1 | usize::from(writes);
    let is = known.load(Ordering::Relaxed);
    // Zeros in the table are no page.
    page != 0 && (is == want || is == (page << 1 | 1) || ask(at, want, known, writes))
}

#[cold]
fn ask(at: usize, want: usize, known: &AtomicUsize, writes: bool) -> bool {
    if confined::is_confined() {
        // The check is not allowed in a confined process. The kernel then carries everything, and
        // finds bad addresses itself.
        return confined::has_rests();
    }
    let before = errno();
    let mut byte = 0_u8;
    let there = iovec { iov_base: at as *mut c_void, iov_len: 1 };
    // To check for writing, the byte is copied to its own place. It belongs to a buffer that the
    // application has passed to the call.
    let here = if writes { there } else { iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 } };
    // SAFETY: the kernel checks both addresses.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    let is_bad = n < 0 && errno() == libc::EFAULT;
    super::errno::set_errno(before);
    if n == 1 {
        known.store(want, Ordering::Relaxed);
    }
    // Another error means that seccomp forbids the call, so the answer is unknown.
    !is_bad
}

/// Returns whether the first and the last of `len` bytes may be read.
#[inline]
pub(crate) fn is_readable<T>(at: *const T, len: usize) -> bool {
    is_good(at.addr(), len, false)
}

/// Returns whether the first of `len` bytes may be written. Fewer than all may be: the kernel fails
/// only where it has to write.
#[inline]
pub(crate) fn is_writable<T>(at: *mut T, len: usize) -> bool {
    len == 0 || is_page_good(at.addr(), true)
}

#[inline]
fn is_good(at: usize, len: usize, writes: bool) -> bool {
    if len == 0 {
        return true;
    }
    let last = at.wrapping_add(len - 1);
    is_page_good(at, writes) && (last >> PAGE_SHIFT == at >> PAGE_SHIFT || is_page_good(last, writes))
}

/// Returns the pieces that C describes, and the sum of their lengths. Returns `None` for a
/// description that the kernel would reject too, so the kernel's error is correct.
///
/// # Safety
/// `parts` points to `n` pieces, or to memory that cannot be read.
pub(crate) unsafe fn pieces<'a>(parts: *const iovec, n: usize) -> Option<(&'a [iovec], usize)> {
    if n == 0 {
        return Some((&[], 0));
    }
    if n > MAX_PIECES || !parts.is_aligned() || !is_readable(parts, n * size_of::<iovec>()) {
        return None;
    }
    // SAFETY: by contract, and readable.
    let parts = unsafe { core::slice::from_raw_parts(parts, n) };
    let total = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len))?;
    isize::try_from(total).is_ok().then_some((parts, total))
}

/// Returns a message's description, as [`pieces`].
///
/// # Safety
/// `message` points to one, or to memory that cannot be read.
pub(crate) unsafe fn message<'a>(message: *const msghdr) -> Option<&'a msghdr> {
    if !message.is_aligned() || !is_readable(message, size_of::<msghdr>()) {
        return None;
    }
    // SAFETY: by contract, and readable.
    unsafe { message.as_ref() }
}

/// Returns the bytes that a piece describes, to be sent, or `None` if they cannot be read.
///
/// # Safety
/// Nobody changes the bytes during the call, as send(2) asks.
#[inline]
pub(crate) unsafe fn bytes<'a>(data: *const c_void, n: usize) -> Option<&'a [u8]> {
    if n == 0 {
        return Some(&[]);
    }
    let n = n.min(MAX_BYTES);
    // SAFETY: by contract, and readable.
    is_readable(data.cast::<u8>(), n).then(|| unsafe { core::slice::from_raw_parts(data.cast(), n) })
}

/// Returns the bytes that a piece describes, to be received into, or `None` if they cannot be
/// written.
///
/// # Safety
/// Nobody uses the bytes during the call, as recv(2) asks.
#[inline]
pub(crate) unsafe fn bytes_mut<'a>(data: *mut c_void, n: usize) -> Option<&'a mut [u8]> {
    if n == 0 {
        return Some(&mut []);
    }
    let n = n.min(MAX_BYTES);
    // SAFETY: by contract, and writable.
    is_writable(data.cast::<u8>(), n).then(|| unsafe { core::slice::from_raw_parts_mut(data.cast(), n) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_addresses_are_refused() {
        let mut good = [0_u8; 8];
        assert!(is_readable(good.as_ptr(), 8) && is_writable(good.as_mut_ptr(), 8));
        for bad in [0_usize, 1, 4096, usize::MAX - 4096] {
            assert!(!is_readable(bad as *const u8, 8), "{bad}");
            assert!(!is_writable(bad as *mut u8, 8), "{bad}");
        }
        // Text can be read and not written.
        let text = bad_addresses_are_refused as fn() as *mut u8;
        assert!(is_readable(text, 1) && !is_writable(text, 1) && is_readable(text, 1));
        assert_eq!(good, [0; 8]);
    }
}
