//! getsockopt(2) of TCP_INFO, which rustix does not have.
//!
//! By the processor's instruction: in a preloaded process the C library's symbols are the preloaded library's own.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::kernel::{Errno, TcpInfo};

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
    // SAFETY: the kernel writes at most `len` bytes to `info`, and the length to `len`.
    let result =
        unsafe { getsockopt(fd.as_raw_fd() as isize as usize, IPPROTO_TCP, TCP_INFO, info.as_mut_ptr(), &raw mut len) };
    if result < 0 {
        return Err(Errno::from_raw_os_error(-result as i32));
    }
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

/// # Safety
/// As for getsockopt(2): `value` has room for `*len` bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn getsockopt(fd: usize, level: usize, name: usize, value: *mut u8, len: *mut u32) -> isize {
    let result;
    // SAFETY: by the function's contract; the kernel changes rax, rcx, r11 and the memory of value and len.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") 55_usize => result, in("rdi") fd, in("rsi") level, in("rdx") name, in("r10") value,
            in("r8") len, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// # Safety
/// As for getsockopt(2): `value` has room for `*len` bytes.
#[cfg(target_arch = "aarch64")]
unsafe fn getsockopt(fd: usize, level: usize, name: usize, value: *mut u8, len: *mut u32) -> isize {
    let result;
    // SAFETY: by the function's contract; the kernel changes x0 and the memory of value and len.
    unsafe {
        core::arch::asm!("svc 0", in("x8") 209_usize, inlateout("x0") fd as isize => result, in("x1") level, in("x2") name, in("x3") value,
            in("x4") len, options(nostack));
    }
    result
}
