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
//! What remains between look and sleep is closed by what is slept on: the futex word, read before the announcement
//! and changed by the waker, or an eventfd, which remembers. Checked by loom in `sleep/tests.rs`.

use std::sync::atomic::Ordering::SeqCst;

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

#[cfg(all(loom, test))]
mod tests;
