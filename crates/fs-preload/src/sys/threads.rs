//! Threads of this process: whether there are several, and yielding the processor.

use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::ptr;

use crate::confined;

static MANY: AtomicU8 = AtomicU8::new(0);
static FLAG: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::from_ref(&MANY).cast_mut());

/// Finds the C library's variable (glibc 2.32 and newer). Without it, the process counts as one with many threads.
pub(crate) fn prepare() {
    // SAFETY: the name is a C string.
    let flag = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    if !flag.is_null() {
        FLAG.store(flag.cast(), Ordering::Relaxed);
    }
}

/// Returns whether the process has one thread. It can change by an action of that thread only.
#[inline]
pub(crate) fn is_single() -> bool {
    // SAFETY: a char variable that stays; it is changed by this process's threads only, and as one byte.
    unsafe { &*FLAG.load(Ordering::Relaxed) }.load(Ordering::Relaxed) != 0
}

/// Yields the processor to another thread, unless the process has confined itself.
pub(crate) fn yield_now() {
    if confined::is_confined() {
        core::hint::spin_loop();
    } else {
        rustix::thread::sched_yield();
    }
}

/// Sleeps for a moment, unless the process has confined itself.
pub(crate) fn nap() {
    if confined::is_confined() {
        core::hint::spin_loop();
    } else {
        fs_carrier::sys::nap();
    }
}

/// Yields between attempts to take a lock, before the waiter sleeps between them: a holder with a
/// lower real-time priority may need its processor.
const YIELDS: u32 = 64;

/// Waits until `attempt` takes a lock.
pub(crate) fn wait_for(mut attempt: impl FnMut() -> bool) {
    let mut yields = 0;
    while !attempt() {
        if yields < YIELDS {
            yields += 1;
            yield_now();
        } else {
            nap();
        }
    }
}
