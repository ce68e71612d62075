//! Estimates if more threads want to run than there are processors, from the waits of this process.
//!
//! A thread that spins takes its own share of the processor then, and one that yields loses more: sched_yield(2) gives up the rest of its
//! slice, and the scheduler places it behind one more (`yield_task_fair`, kernel/sched/fair.c; measured beside one busy loop: 2.8 ms
//! a call, at times 200). A thread that sleeps in the kernel keeps its share, and is preferred when it wakes. So nothing is looked at, and
//! nobody yields, for a while after it was seen twice within [`AGAIN_NS`] that more threads want the processors. The machine says so when it
//! is asked before a yield ([`Machine::excess_threads`]); a lost slice does where it does not know, as in a group of processors.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::kernel::Machine;

/// A gap between two readings of the clock that means that the thread was off its processor. The scheduler's slices are 2 to 4 ms. A peer on
/// the same processor yields after 250 µs, but only between two of its waits, each of which may answer 50 connections through the kernel.
/// More: a slice is missed; fewer: a peer's turn counts as one.
const LATE_NS: u64 = 2_000_000;
/// Two gaps within this time are no accident (a kernel's thread, a hypervisor). More: accidents count; fewer: a crowd is missed, because a
/// thread does something between two looks.
const AGAIN_NS: u64 = 20_000_000;
/// How often the machine is asked while the processors are free. More often: 4 µs each time; less often: a slice is lost first.
const ASK_NS: u64 = 4_000_000;
/// The same after it was busy once: a kernel's thread is gone by then.
const ASK_AGAIN_NS: u64 = 100_000;
/// Threads more than processors at which looks go on. More: busy programs are noticed by lost slices; fewer: nginx's two workers and their
/// client leave their rings on two processors, though they only wait for each other.
const TOLERATED: u32 = 1;
/// The first pause, and how long it goes on each time that the machine is still busy at its end. More: accidents cost more; fewer: each
/// attempt costs two slices.
const MIN_PAUSE_NS: u64 = 10_000_000;
/// A pause is twice as long as the last one if it begins sooner after its end than this, or than the last one's length. More: accidents
/// add up; fewer: attempts on a crowded machine stay frequent.
const SOON_NS: u64 = 50_000_000;
/// The longest pause. More: slower to notice that the processors are free; fewer: more of the time is lost in trying.
const MAX_PAUSE_NS: u64 = 3_200_000_000;

/// A process's estimate of the demand for its processors. Races between threads cost a slice, nothing else.
#[derive(Debug, Default)]
pub struct Crowd {
    /// Until when nothing is looked at. 0: looks are allowed.
    pause_end: AtomicU64,
    /// Length of the last pause, and the time of its end.
    pause_ns: AtomicU64,
    last_end: AtomicU64,
    /// When a thread was last off its processor without a pause, or the machine was busy.
    late_at: AtomicU64,
    /// When the machine was asked last.
    asked_at: AtomicU64,
}

impl Crowd {
    /// Makes one that knows nothing.
    #[must_use]
    pub const fn new() -> Self {
        Crowd {
            pause_end: AtomicU64::new(0),
            pause_ns: AtomicU64::new(0),
            last_end: AtomicU64::new(0),
            late_at: AtomicU64::new(0),
            asked_at: AtomicU64::new(0),
        }
    }

    /// Returns whether more threads want the processors than there are.
    #[inline]
    pub(crate) fn is_crowded(&self, machine: &impl Machine) -> bool {
        self.pause_end.load(Ordering::Relaxed) != 0 && self.is_pausing(machine, machine.now_ns())
    }

    /// The same without a look at the clock: true also after a pause, until [`Crowd::is_crowded`] is asked.
    #[inline]
    pub(crate) fn may_pause(&self) -> bool {
        self.pause_end.load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn is_pausing(&self, machine: &impl Machine, now: u64) -> bool {
        if now < self.pause_end.load(Ordering::Relaxed) {
            return true;
        }
        self.asked_at.store(now, Ordering::Relaxed);
        let is_busy = machine.excess_threads() > 0;
        self.pause_until(if is_busy { now + MIN_PAUSE_NS } else { 0 });
        is_busy
    }

    fn pause_until(&self, end: u64) {
        if end != 0 {
            self.last_end.store(end, Ordering::Relaxed);
        }
        self.pause_end.store(end, Ordering::Relaxed);
    }

    /// A thread is about to yield its processor at the time `now`. Returns whether it has to sleep instead, because others want it.
    pub(crate) fn is_wanted(&self, machine: &impl Machine, now: u64) -> bool {
        let asked = self.asked_at.load(Ordering::Relaxed);
        let late = self.late_at.load(Ordering::Relaxed);
        let is_suspect = late != 0 && now.saturating_sub(late) < AGAIN_NS;
        if now.saturating_sub(asked) < if is_suspect { ASK_AGAIN_NS } else { ASK_NS } {
            return false;
        }
        self.asked_at.store(now, Ordering::Relaxed);
        let is_busy = machine.excess_threads() > TOLERATED;
        if is_busy {
            self.was_late(now);
        }
        is_busy
    }

    /// A thread has run, or wanted to, from `before` to `now`. Returns whether it was off its processor.
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
        let last = self.late_at.swap(now, Ordering::Relaxed);
        if last != 0 && now.saturating_sub(last) < AGAIN_NS {
            self.late_at.store(0, Ordering::Relaxed);
            self.pause(now);
        }
    }

    fn pause(&self, now: u64) {
        let last = self.pause_ns.load(Ordering::Relaxed);
        let is_soon = now.saturating_sub(self.last_end.load(Ordering::Relaxed)) < SOON_NS.max(last);
        let pause = if last != 0 && is_soon { (2 * last).min(MAX_PAUSE_NS) } else { MIN_PAUSE_NS };
        self.pause_ns.store(pause, Ordering::Relaxed);
        self.pause_until(now + pause);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// A slice of the scheduler's.
    const SLICE: u64 = 4_000_000;

    /// A machine with so many threads too many, and the number of times that it was asked.
    #[derive(Default)]
    struct Fake {
        excess: Cell<u32>,
        asked: Cell<u32>,
    }

    impl Machine for Fake {
        fn now_ns(&self) -> u64 {
            unreachable!("the tests say what time it is")
        }

        fn pause(&self) {}

        fn yield_now(&self) {}

        fn excess_threads(&self) -> u32 {
            self.asked.set(self.asked.get() + 1);
            self.excess.get()
        }

        fn thread(&self) -> u32 {
            1
        }

        fn is_gone(&self, _thread: u32) -> bool {
            false
        }
    }

    fn is_pausing(crowd: &Crowd, now: u64) -> bool {
        crowd.pause_end.load(Ordering::Relaxed) != 0 && crowd.is_pausing(&Fake::default(), now)
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
        for _ in 0..12 {
            assert!(crowd.has_spun(now, now + SLICE) && crowd.has_spun(now + SLICE, now + 2 * SLICE));
            now += 2 * SLICE + pause;
            assert!(is_pausing(&crowd, now - 1) && !is_pausing(&crowd, now));
            pause = (2 * pause).min(MAX_PAUSE_NS);
        }
        assert_eq!(pause, MAX_PAUSE_NS);
        now += 2 * MAX_PAUSE_NS;
        assert!(crowd.has_spun(now, now + SLICE) && crowd.has_spun(now + SLICE, now + 2 * SLICE));
        assert!(!is_pausing(&crowd, now + 2 * SLICE + MIN_PAUSE_NS), "long after, the first pause again");
    }

    #[test]
    fn pauses_as_long_as_the_machine_is_busy() {
        let (crowd, machine) = (Crowd::new(), Fake::default());
        let start = 10 * ASK_NS;
        assert!(!crowd.is_wanted(&machine, start) && !crowd.is_wanted(&machine, start + ASK_NS - 1));
        assert_eq!(machine.asked.get(), 1, "it is asked now and then");
        let mut now = start + ASK_NS;
        machine.excess.set(TOLERATED);
        assert!(!crowd.is_wanted(&machine, now));
        now += ASK_NS;
        machine.excess.set(TOLERATED + 1);
        assert!(crowd.is_wanted(&machine, now) && !is_pausing(&crowd, now), "an accident");
        assert!(!crowd.is_wanted(&machine, now + ASK_AGAIN_NS - 1));
        now += ASK_AGAIN_NS;
        assert!(crowd.is_wanted(&machine, now));
        machine.excess.set(1);
        for asked in 5..100 {
            assert!(crowd.is_pausing(&machine, now + MIN_PAUSE_NS - 1));
            now += MIN_PAUSE_NS;
            assert!(crowd.is_pausing(&machine, now));
            assert_eq!(machine.asked.get(), asked, "once a pause");
        }
        machine.excess.set(0);
        assert!(!crowd.is_pausing(&machine, now + MIN_PAUSE_NS) && !crowd.may_pause());
    }
}
