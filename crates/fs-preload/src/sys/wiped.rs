//! A word that the kernel sets to zero in a child of fork(2).

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::ptr;

use rustix::mm::Advice;

use super::heap::map_zeros;

/// Used if no page could be mapped. It never reads as zero.
static NEVER: AtomicU32 = AtomicU32::new(1);
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::from_ref(&NEVER).cast_mut());

/// Makes the page. Where the kernel refuses (before 4.14), the handler of pthread_atfork(3) alone notices children.
pub(crate) fn prepare() {
    const PAGE: usize = 4096;
    let Some(page) = map_zeros(PAGE) else { return };
    // SAFETY: the page was mapped just now.
    if unsafe { rustix::mm::madvise(page.cast(), PAGE, Advice::LinuxWipeOnFork) }.is_ok() {
        WORD.store(page.cast(), Ordering::Relaxed);
        mark();
    }
}

/// Returns whether this process is a child that has not called [`mark`] yet.
#[inline]
pub(crate) fn is_wiped() -> bool {
    // SAFETY: `NEVER`, or a page that stays mapped.
    unsafe { &*WORD.load(Ordering::Relaxed) }.load(Ordering::Relaxed) == 0
}

/// Records that the process knows that it is a new one.
pub(crate) fn mark() {
    // SAFETY: as above.
    unsafe { &*WORD.load(Ordering::Relaxed) }.store(1, Ordering::Relaxed);
}

/// For a child whose page could not be wiped.
pub(crate) fn wipe() {
    // SAFETY: as above.
    unsafe { &*WORD.load(Ordering::Relaxed) }.store(0, Ordering::Relaxed);
}
