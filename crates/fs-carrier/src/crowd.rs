//! Estimates whether more threads want to run than there are processors, from the waits of this
//! process.
//!
//! A thread that spins takes its own share of the processor then, and one that yields loses more:
//! sched_yield(2) gives up the rest of its slice, and the scheduler places it behind one more
//! (`yield_task_fair`, kernel/sched/fair.c; measured next to one busy loop: 2.8 ms a call, at times
//! 200). A thread that sleeps in the kernel keeps its share, and is preferred when it wakes. So
//! nothing is looked at, and nobody yields, for a while after two slices were lost within
//! [`AGAIN_NS`].
//!
//! The end of a pause is an attempt: it costs a slice if the processors are still wanted, so pauses
//! quadruple. The kernel's number of runnable threads (/proc/loadavg) was asked instead. Next to
//! two busy loops it decided no better, and one more thread for a moment, of the kernel or of
//! anybody, kept a free machine on the kernel.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::kernel::Machine;

/// A gap between two readings of the clock that means that the thread was off its processor. The
/// scheduler's slices are 2 to 4 ms. A peer on the same processor yields after 250 µs, but only
/// between two of its waits, each of which may answer 50 connections through the kernel. Longer: a
/// slice is missed. Shorter: a peer's turn counts as one.
const LATE_NS: u64 = 2_000_000;
/// Two gaps within this time are no accident (a kernel's thread, a hypervisor). More: accidents
/// count; fewer: a crowd is missed, because a thread does something between two looks.
const AGAIN_NS: u64 = 20_000_000;
/// The first pause. More: accidents cost more; fewer: each attempt costs a slice.
const MIN_PAUSE_NS: u64 = 10_000_000;
/// A gap that ends sooner after the end of a pause than this, or than the pause's length, shows
/// that the attempt has failed. More: accidents add up; fewer: attempts on a crowded machine stay
/// frequent.
const SOON_NS: u64 = 50_000_000;
/// A pause after a failed attempt is so many times as long as the last one. More: slower to notice
/// that the processors are free; fewer: a process of one second makes more attempts (with 2, and
/// two gaps for each, seven of them took 4 % of its time next to a busy loop).
const GROWTH: u64 = 4;
/// The longest pause. More: slower to notice that the processors are free; fewer: more of the time is lost in trying.
const MAX_PAUSE_NS: u64 = 3_200_000_000;

/// A process's estimate of the demand for its processors. Races between threads cost a slice, nothing else.
#[derive(Debug, Default)]
pub struct Crowd {
    /// End of the pause without spins. 0: spins are allowed.
    pause_end: AtomicU64,
    /// Length of the last pause, and the time of its end.
    pause_ns: AtomicU64,
    last_end: AtomicU64,
    /// When a thread was last off its processor without a pause.
    late_at: AtomicU64,
}

impl Crowd {
    /// Creates an estimate without data.
    #[must_use]
    pub const fn new() -> Self {
        Crowd {
            pause_end: AtomicU64::new(0),
            pause_ns: AtomicU64::new(0),
            last_end: AtomicU64::new(0),
            late_at: AtomicU64::new(0),
        }
    }

    /// Returns whether more threads want the processors than there are.
    #[inline]
    pub(crate) fn is_crowded(&self, machine: &impl Machine) -> bool {
        self.may_pause() && self.is_pausing(machine.now_ns())
    }

    /// Like [`Crowd::is_crowded`] without reading the clock: also true after a pause, until
    /// [`Crowd::is_crowded`] is called.
    #[inline]
    pub(crate) fn may_pause(&self) -> bool {
        self.pause_end.load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn is_pausing(&self, now: u64) -> bool {
        let end = self.pause_end.load(Ordering::Relaxed);
        if now < end {
            return true;
        }
        self.last_end.store(end, Ordering::Relaxed);
        self.pause_end.store(0, Ordering::Relaxed);
        false
    }

    /// Records that a thread has run, or wanted to run, from `before` to `now`. Returns whether it
    /// was off its processor.
    #[inline]
    pub(crate) fn has_spun(&self, before: u64, now: u64) -> bool {
        let is_late = now.saturating_sub(before) > LATE_NS;
        if is_late {
            self.was_late(now);
        }
        is_late
    }

    #[cold]
    fn was_late(&self, now: u64) {
        let last_pause = self.pause_ns.load(Ordering::Relaxed);
        let last_end = self.last_end.load(Ordering::Relaxed);
        if last_pause != 0 && now.saturating_sub(last_end) < SOON_NS.max(last_pause) {
            return self.pause(now, (GROWTH * last_pause).min(MAX_PAUSE_NS));
        }
        let last = self.late_at.swap(now, Ordering::Relaxed);
        if last != 0 && now.saturating_sub(last) < AGAIN_NS {
            self.pause(now, MIN_PAUSE_NS);
        }
    }

    fn pause(&self, now: u64, ns: u64) {
        self.late_at.store(0, Ordering::Relaxed);
        self.pause_ns.store(ns, Ordering::Relaxed);
        self.pause_end.store(now + ns, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A time slice of the scheduler.
    const SLICE: u64 = 4_000_000;

    fn is_pausing(crowd: &Crowd, now: u64) -> bool {
        crowd.may_pause() && crowd.is_pausing(now)
    }

    #[test]
    fn pauses_after_two_lost_slices() {
        let crowd = Crowd::new();
        assert!(!crowd.has_spun(1_000, 1_000 + LATE_NS) && !is_pausing(&crowd, 2_000 + LATE_NS));
        assert!(crowd.has_spun(1_000, 1_000 + SLICE) && !is_pausing(&crowd, 2_000 + SLICE), "an accident");
        let second = 1_000 + SLICE + AGAIN_NS;
        assert!(crowd.has_spun(second, second + SLICE) && !is_pausing(&crowd, second + SLICE), "another one, later");
        assert!(crowd.has_spun(second + SLICE, second + 2 * SLICE));
        let end = second + 2 * SLICE + MIN_PAUSE_NS;
        assert!(is_pausing(&crowd, end - 1) && !is_pausing(&crowd, end) && !is_pausing(&crowd, end - 1));
    }

    #[test]
    fn pauses_grow_while_the_processors_are_wanted() {
        let crowd = Crowd::new();
        let (mut now, mut pause) = (1_000, MIN_PAUSE_NS);
        assert!(crowd.has_spun(now, now + SLICE) && !is_pausing(&crowd, now + SLICE), "an accident");
        for _ in 0..12 {
            now += SLICE;
            assert!(crowd.has_spun(now, now + SLICE), "one more gap ends each attempt");
            now += SLICE + pause;
            assert!(is_pausing(&crowd, now - 1) && !is_pausing(&crowd, now));
            pause = (GROWTH * pause).min(MAX_PAUSE_NS);
        }
        assert_eq!(pause, MAX_PAUSE_NS);
        now += 2 * MAX_PAUSE_NS;
        assert!(crowd.has_spun(now, now + SLICE) && crowd.has_spun(now + SLICE, now + 2 * SLICE));
        assert!(!is_pausing(&crowd, now + 2 * SLICE + MIN_PAUSE_NS), "long after, the first pause again");
    }
}
