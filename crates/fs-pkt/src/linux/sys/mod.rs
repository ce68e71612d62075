//! System calls of the Linux target; the crate's only unsafe code.
#![allow(unsafe_code)]

mod calls;
mod check;
mod device;

pub(super) use calls::perform;
use check::check;
pub(super) use device::{open_sniffer, open_tun, read_packet, write_packet};

use std::io;
use std::time::{Duration, Instant};

/// Returns true if the effective user is root.
pub(super) fn is_root() -> bool {
    // SAFETY: no arguments, no memory.
    unsafe { libc::geteuid() == 0 }
}

/// Moves the calling thread to a new network namespace.
pub(super) fn enter_namespace() -> io::Result<()> {
    // SAFETY: changes the namespace of the calling thread only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }.into()).map(|_| ())
}

/// Requests real-time scheduling of the calling thread, so that times are as exact as a busy
/// machine allows. Has no effect without the privilege.
pub(super) fn be_prompt() {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter outlives the call; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &priority) };
}

/// Waits for a moment a quarter of a tick after the kernel's tick, as packetdrill does: events on
/// whole milliseconds are then not at the edge of one.
pub(super) fn start_of_script() -> Instant {
    let ticks = || {
        // SAFETY: a null buffer is allowed; only the return value is used.
        unsafe { libc::times(std::ptr::null_mut()) }
    };
    let before = ticks();
    while ticks() == before {
        std::hint::spin_loop();
    }
    Instant::now() + Duration::from_micros(250)
}

/// Wakes the calls that block on a descriptor, and closes it.
pub(super) fn end_descriptor(fd: i32) {
    // SAFETY: no memory; the script's calls have made the descriptor and not closed it.
    unsafe {
        libc::shutdown(fd, libc::SHUT_RDWR);
        libc::close(fd);
    }
}

/// Returns the bytes of TCP_INFO, as many as the kernel provides.
pub(super) fn tcp_info(fd: i32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; 512];
    let mut len = bytes.len() as libc::socklen_t;
    // SAFETY: the buffer and its length outlive the call and are consistent.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &mut len) };
    check(result.into())?;
    bytes.truncate(len as usize);
    Ok(bytes)
}
