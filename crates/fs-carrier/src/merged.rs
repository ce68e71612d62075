//! The intervals at which a thread with many connections asks the kernel, and yields.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Maximum delay of the kernel's own events while the ring has some (E4). Longer: new connections
/// and ends are seen late; shorter: a system call where the ring would do.
const MERGE_NS: u64 = 50_000;
/// Like [`MERGE_NS`], in calls.
const MERGE_CALLS: u32 = 32;
/// Time that a thread runs before it yields once. A thread that always finds bytes makes no call that lets
/// others run, so another thread on its processor waits for the scheduler's tick (4 ms) without this. Longer:
/// another thread that has to answer waits that long. With two nginx workers and a client on two processors, one answer
/// in a hundred took 250 µs at 250 µs; at 50 µs the 90th percentile halved (128 to 63 µs), at the
/// same rate. Shorter: more system calls, 0.3 µs each.
const TURN_NS: u64 = 50_000;

/// The time at which the kernel was asked last. Races between threads only cost a system call.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    ns: AtomicU64,
    calls: AtomicU32,
    /// The kernel was not asked because rings had events for all places.
    crowded_out: AtomicBool,
    /// The kernel had events when it was asked last. Level-triggered events stay ready until they
    /// are handled.
    has_more: AtomicBool,
    /// The time at which a thread last slept or yielded.
    turn_ns: AtomicU64,
}

impl Merged {
    /// Returns whether the kernel has to be asked in a call that has other events.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        let calls = self.calls.load(Ordering::Relaxed).wrapping_add(1);
        self.calls.store(calls, Ordering::Relaxed);
        calls >= MERGE_CALLS || self.has_more.load(Ordering::Relaxed) || self.is_old(now)
    }

    /// Records whether the kernel had events.
    pub(crate) fn has_found(&self, has_some: bool) {
        if self.has_more.load(Ordering::Relaxed) != has_some {
            self.has_more.store(has_some, Ordering::Relaxed);
        }
    }

    /// Returns whether the kernel was asked too long ago.
    pub(crate) fn is_old(&self, now: u64) -> bool {
        now.wrapping_sub(self.ns.load(Ordering::Relaxed)) > MERGE_NS
    }

    /// Records that the kernel was asked.
    pub(crate) fn is_done(&self, now: u64) {
        self.calls.store(0, Ordering::Relaxed);
        self.ns.store(now, Ordering::Relaxed);
    }

    /// Records that no place was left for the kernel's events: the next call asks the kernel first.
    pub(crate) fn is_crowded_out(&self) {
        self.crowded_out.store(true, Ordering::Relaxed);
    }

    /// Returns whether the kernel's events come first.
    pub(crate) fn was_crowded_out(&self) -> bool {
        self.crowded_out.load(Ordering::Relaxed) && self.crowded_out.swap(false, Ordering::Relaxed)
    }

    /// Records that the thread has slept in the kernel.
    pub(crate) fn has_slept(&self, now: u64) {
        self.is_done(now);
        self.turn_ns.store(now, Ordering::Relaxed);
    }

    /// Returns whether the thread has to yield.
    pub(crate) fn is_turn_over(&self, now: u64) -> bool {
        let is_over = now.wrapping_sub(self.turn_ns.load(Ordering::Relaxed)) > TURN_NS;
        if is_over {
            self.turn_ns.store(now, Ordering::Relaxed);
        }
        is_over
    }
}
