//! Who sleeps, and who wakes whom: the one protocol behind futex waits, lanes and the inbox.
//!
//! ```text
//!  sleeper                            publisher
//!  announce: flag := 1                publish (tail, head, state, dirty bit …)
//!  barrier                            barrier
//!  look for what was published        claim: flag != 0, and swap(flag, 0) != 0 ?
//!  nothing there: sleep               claimed: wake
//! ```
//!
//! With a full barrier on both sides at least one sees the other (Dekker): either the sleeper finds what was
//! published, or the publisher finds the flag. The swap makes it one wake-up for each sleep, however many publish.
//!
//! In place of the publisher's barrier serves a publication that is sequentially consistent (a swap), if all that it looks at
//! afterwards is loaded so too, as [`claim`] does. Other loads may pass a swap's store on processors weaker than x86
//! ([`barrier_after_swap`]).
//! What remains between look and sleep is closed by what is slept on: the futex word, read before the announcement
//! and changed by the waker, or an eventfd, which remembers. Checked by loom in `sleep/tests.rs`.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::compiler_fence;

use crate::word::AtomicU32;

#[cfg(all(loom, test))]
use loom::sync::atomic::fence;
#[cfg(not(all(loom, test)))]
use std::sync::atomic::fence;

/// A sleeper's flag in shared memory: a `u32` that is 0 or 1.
pub(crate) trait Flag {
    /// Whether it is set.
    fn is_set(&self) -> bool;
    /// Sets it.
    fn set(&self);
    /// Clears it; whether it was set.
    fn take(&self) -> bool;
}

impl Flag for AtomicU32 {
    #[inline]
    fn is_set(&self) -> bool {
        self.load(SeqCst) != 0
    }

    #[inline]
    fn set(&self) {
        self.store(1, SeqCst);
    }

    #[inline]
    fn take(&self) -> bool {
        self.swap(0, SeqCst) != 0
    }
}

/// The sleeper's half: `true`: nothing there, sleep. `false`: found something (the flag stays as it is).
#[must_use]
#[inline]
pub(crate) fn announce(flag: &impl Flag, found: impl FnOnce() -> bool) -> bool {
    flag.set();
    fence(SeqCst);
    !found()
}

/// The publisher's half, after publishing and a full barrier: `true`: wake the sleeper.
#[must_use]
#[inline]
pub(crate) fn claim(flag: &impl Flag) -> bool {
    flag.is_set() && flag.take()
}

/// A full barrier behind a read-modify-write that acquires and releases. On x86 that was one; elsewhere (aarch64: `ldaxr`, `stlxr`)
/// a load that follows may still come before its store. Miri and loom have the model of the language, on x86 too.
#[inline]
pub(crate) fn barrier_after_swap() {
    if cfg!(all(target_arch = "x86_64", not(miri), not(all(loom, test)))) {
        compiler_fence(SeqCst);
    } else {
        fence(SeqCst);
    }
}

#[cfg(all(loom, test))]
mod bytes_unsafe;
#[cfg(all(loom, test))]
mod tests;
