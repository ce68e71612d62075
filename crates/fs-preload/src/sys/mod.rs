//! The boundary to C.
#![allow(unsafe_code)]

pub(crate) mod current;
pub(crate) mod errno;
#[cfg(not(test))]
mod exports;
pub(crate) mod guarded;
pub(crate) mod heap;
pub(crate) mod kernel;
pub(crate) mod memory;
#[macro_use]
pub(crate) mod real;
pub(crate) mod start;
pub(crate) mod threads;
pub(crate) mod wiped;

use core::ptr;

use rustix::mm::{MapFlags, ProtFlags};

/// Maps memory of zeros, or nothing.
pub(crate) fn map_zeros(bytes: usize) -> Option<*mut u8> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping at a place of the kernel's choice.
    unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, prot, flags) }.ok().map(<*mut _>::cast)
}

/// Unmaps what [`map_zeros`] returned, and nobody has seen.
pub(crate) fn unmap(base: *mut u8, bytes: usize) {
    // SAFETY: by the function's contract. It fails for a wrong range only.
    let _unmapped = unsafe { rustix::mm::munmap(base.cast(), bytes) };
}

/// Gives the processor to another thread, unless the process has confined itself.
pub(crate) fn yield_now() {
    if crate::confined::is_confined() {
        core::hint::spin_loop();
    } else {
        rustix::thread::sched_yield();
    }
}

/// Resets a TCP connection: connect(2) to an address of no family.
pub(crate) fn disconnect(fd: i32) {
    // Refused: it is no connection any more.
    let _reset = rustix::net::connect_unspec(kernel::Fd::new(fd).borrow());
}
