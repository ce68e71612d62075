//! System calls that rustix does not have in the form that is needed: getsockopt(2) of TCP_INFO,
//! epoll_pwait2(2) with a signal mask.
//!
//! By the processor's instruction: in a preloaded process the C library's symbols are the preloaded library's own.

use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::kernel::{Errno, Event, Registration, TcpInfo};

const IPPROTO_TCP: usize = 6;
const TCP_INFO: usize = 11;

/// Offsets into `struct tcp_info` (include/uapi/linux/tcp.h), which only grows.
const BYTES_RECEIVED: usize = 128;
const NOTSENT_BYTES: usize = 144;
const BYTES_SENT: usize = 200;
const BYTES_RETRANS: usize = 208;
const LEN: usize = 216;

/// Asks for TCP_INFO. A kernel before 4.19, which does not count sent bytes, is refused with `ENOPROTOOPT`.
pub(super) fn tcp_info(fd: BorrowedFd<'_>) -> Result<TcpInfo, Errno> {
    let mut info = [0_u8; LEN];
    let mut len = LEN as u32;
    let (value, place) = (info.as_mut_ptr().expose_provenance(), (&raw mut len).expose_provenance());
    // SAFETY: the kernel writes at most `len` bytes to `info`, and the length to `len`.
    counted(unsafe { call(GETSOCKOPT, [fd.as_raw_fd() as isize as usize, IPPROTO_TCP, TCP_INFO, value, place, 0]) })?;
    if (len as usize) < LEN {
        return Err(Errno::NOPROTOOPT);
    }
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&info[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    let mut half = [0; 4];
    half.copy_from_slice(&info[NOTSENT_BYTES..NOTSENT_BYTES + 4]);
    Ok(TcpInfo {
        state: info[0],
        bytes_received: word(BYTES_RECEIVED),
        bytes_sent: word(BYTES_SENT).saturating_sub(word(BYTES_RETRANS)),
        bytes_not_sent: u64::from(u32::from_ne_bytes(half)),
    })
}

const EPOLL_CTL_DEL: usize = 2;
const EPOLL_CTL_MOD: usize = 3;

/// Calls epoll_ctl(2) for a descriptor that is in the set. An error means that the set no longer
/// contains it.
pub(super) fn epoll_register(set: BorrowedFd<'_>, registration: Registration) {
    let Registration { fd, event } = registration;
    let operation = if event.is_some() { EPOLL_CTL_MOD } else { EPOLL_CTL_DEL };
    let event = event.unwrap_or_default();
    let place = (&raw const event).expose_provenance();
    // SAFETY: the kernel reads the event.
    unsafe { call(EPOLL_CTL, [set.as_raw_fd() as isize as usize, operation, fd as isize as usize, place, 0, 0]) };
}

/// Whether the kernel has epoll_pwait2(2). 0: unknown. 1: it has not.
static NO_PWAIT2: AtomicU32 = AtomicU32::new(0);

/// Calls epoll_pwait2(2), or epoll_pwait(2) with whole milliseconds on a kernel before 5.11.
/// `signals` is a mask in the kernel's format.
pub(super) fn epoll_wait(
    set: BorrowedFd<'_>,
    into: &mut [Event],
    timeout_ns: Option<u64>,
    signals: Option<&u64>,
) -> Result<usize, Errno> {
    let fd = set.as_raw_fd() as isize as usize;
    let max = into.len().min(i32::MAX as usize);
    let mask = signals.map_or(0, |mask| core::ptr::from_ref(mask).expose_provenance());
    let is_short = NO_PWAIT2.load(Ordering::Relaxed) == 0 && timeout_ns.is_some_and(|ns| ns != 0);
    if is_short {
        let ns = timeout_ns.unwrap_or(0);
        let time = [(ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as i64];
        // SAFETY: the kernel writes at most `max` events to `into`, and reads the time and the mask, which are alive.
        let result = unsafe {
            call(
                EPOLL_PWAIT2,
                [fd, into.as_mut_ptr().expose_provenance(), max, time.as_ptr().expose_provenance(), mask, 8],
            )
        };
        // EPERM: a filter of that time. The call itself has none.
        let is_missing = |error: Errno| result == -(error.raw_os_error() as isize);
        if !is_missing(Errno::NOSYS) && !is_missing(Errno::PERM) {
            return counted(result);
        }
        NO_PWAIT2.store(1, Ordering::Relaxed);
    }
    // Rounded up: a wait must not end early.
    let ms = timeout_ns.map_or(-1, |ns| i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX));
    // SAFETY: as above.
    counted(unsafe {
        call(EPOLL_PWAIT, [fd, into.as_mut_ptr().expose_provenance(), max, ms as isize as usize, mask, 8])
    })
}

fn counted(result: isize) -> Result<usize, Errno> {
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result as usize) }
}

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const GETSOCKOPT: usize = 55;
    pub(super) const EPOLL_CTL: usize = 233;
    pub(super) const EPOLL_PWAIT: usize = 281;
    pub(super) const EPOLL_PWAIT2: usize = 441;
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const GETSOCKOPT: usize = 209;
    pub(super) const EPOLL_CTL: usize = 21;
    pub(super) const EPOLL_PWAIT: usize = 22;
    pub(super) const EPOLL_PWAIT2: usize = 441;
}
// No library is preloaded on another processor, so nothing asks there.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod number {
    pub(super) const GETSOCKOPT: usize = 0;
    pub(super) const EPOLL_CTL: usize = 0;
    pub(super) const EPOLL_PWAIT: usize = 0;
    pub(super) const EPOLL_PWAIT2: usize = 0;
}
use number::{EPOLL_CTL, EPOLL_PWAIT, EPOLL_PWAIT2, GETSOCKOPT};

/// A system call by its number.
///
/// # Safety
/// That of the call: what its addresses point to.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: usize, a: [usize; 6]) -> isize {
    let result;
    // SAFETY: by the function's contract; the kernel changes rax, rcx, r11, and memory that the
    // compiler takes to be changed.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number => result, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3],
            in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// A system call by its number.
///
/// # Safety
/// That of the call: what its addresses point to.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: usize, a: [usize; 6]) -> isize {
    let result;
    // SAFETY: by the function's contract; the kernel changes x0, and memory that the compiler takes to be changed.
    unsafe {
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") a[0] => result, in("x1") a[1], in("x2") a[2], in("x3") a[3],
            in("x4") a[4], in("x5") a[5], options(nostack));
    }
    result
}

/// Refuses a system call.
///
/// # Safety
/// None is needed.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn call(_number: usize, _a: [usize; 6]) -> isize {
    -(Errno::NOSYS.raw_os_error() as isize)
}
