//! For how long a wait looks at shared memory before it sleeps in the machine.
//!
//! A look pays if it is as long as a wake-up: on both ends asleep, the bytes come after the peer's wake-up of 25 to 60 µs, so a shorter look
//! never finds them and both ends learn not to look (the both-asleep trap). A peer that thinks for longer is learnt: after some vain looks
//! most waits sleep at once, and one of [`RETRY`] looks again.

use crate::kernel::Machine;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Vain looks in a row after which most waits sleep at once. More: CPU for a peer that thinks; fewer: one late answer ends the spinning.
const VAIN_LOOKS: u32 = 4;
/// Of so many waits that would sleep at once, one looks. More: slower to notice that the peer answers promptly again; fewer: CPU.
const RETRY: u32 = 32;
/// How much longer a wait for several connections looks for each hot one, in nanoseconds: what its way to the kernel and back costs both
/// ends (two system calls that bytes take, TCP_INFO). A look that is as long as what it saves is at most twice as dear as the better of
/// both. More: CPU for peers that think; fewer: a server's and a client's turns over 50 connections, 100 µs each, end the use of the rings.
const NS_PER_HOT: u32 = 2_000;
/// The most connections that count for that.
const MAX_HOT: usize = 128;
/// Looks at the words between two readings of the clock.
const LOOKS_PER_READING: u32 = 16;

/// A gap between two readings of the clock in a look that means that the thread was off its processor. The scheduler's slices are 1 to
/// 4 ms. More: one is missed; fewer: an interrupt counts as one.
const PREEMPTED_NS: u64 = 700_000;
/// Two of them within this time mean that more threads want the processors than there are: looking takes the thread's own share then, and a
/// thread that sleeps in the kernel is preferred when it wakes. More: two that have nothing to do with each other; fewer: one of two is missed.
const CONTENDED_NS: u64 = 50_000_000;
/// For how long nothing is looked at then; doubled each time that the processors are still wanted, up to the second number. More: slower to
/// notice that they are free; fewer: more of the time is lost in trying.
const PAUSE_NS: u64 = 200_000_000;
const MAX_PAUSE_NS: u64 = 3_200_000_000;

/// A look that spins yields the processor first after so long, and then each time after the second number: the peer may wait for this very
/// processor, where the kernel wakes it if it was asleep. More: the peer waits longer; fewer: a system call where it runs elsewhere.
pub(crate) const FIRST_YIELD_NS: u64 = 2_000;
pub(crate) const YIELD_NS: u64 = 10_000;

/// How this process waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// The longest look of a receiver, in nanoseconds: as long as a wake-up ([`wake_up_ns`](crate::sys::wake_up_ns)).
    pub look_ns: u32,
    /// How long a sender waits for room in the ring before the kernel carries, in nanoseconds.
    pub room_ns: u32,
    /// Not 0: the process has one processor, so a look is so many calls of sched_yield(2).
    pub yields: u32,
    /// For tests: a receiver that does not wait takes the ring whenever the rules allow it, also if nobody is going to look.
    pub is_eager: bool,
}

impl Pacing {
    /// Two processors or more. A wake-up takes 25 to 60 µs on a virtual machine.
    pub const SPIN: Pacing = Pacing { look_ns: 50_000, room_ns: 20_000, yields: 0, is_eager: false };
    /// One processor: the peer runs only when this process lets go.
    pub const YIELD: Pacing = Pacing { look_ns: 50_000, room_ns: 20_000, yields: 4, is_eager: false };

    /// Returns for how long a wait for so many connections looks that is worth `look_ns` for one.
    #[inline]
    pub(crate) fn look_for(look_ns: u32, hot: usize) -> u32 {
        if look_ns == 0 { 0 } else { look_ns + NS_PER_HOT * (hot.min(MAX_HOT) as u32) }
    }

    /// Looks until `found` says so, or until `ns` have passed. Returns the last answer.
    #[inline]
    pub(crate) fn look(self, machine: &impl Machine, ns: u32, found: impl FnMut() -> bool) -> bool {
        self.look_and_learn(None, machine, ns, found)
    }

    /// The same, and `look` learns whether the thread was off its processor.
    #[inline]
    pub(crate) fn look_and_learn(
        self,
        look: Option<&Look>,
        machine: &impl Machine,
        ns: u32,
        mut found: impl FnMut() -> bool,
    ) -> bool {
        if self.yields != 0 {
            return self.look_by_yields(machine, found);
        }
        let mut end = None;
        let mut before = None;
        let mut next_yield = None;
        loop {
            for _ in 0..LOOKS_PER_READING {
                if found() {
                    return true;
                }
                machine.pause();
            }
            let mut now = machine.now_ns();
            if let (Some(look), Some(before)) = (look, before) {
                look.has_spun(before, now);
            }
            if now >= *next_yield.get_or_insert(now + FIRST_YIELD_NS) {
                machine.yield_now();
                let yielded = now;
                now = machine.now_ns();
                next_yield = Some(now + YIELD_NS);
                if let Some(look) = look {
                    look.has_spun(yielded, now);
                }
            }
            before = Some(now);
            if now >= *end.get_or_insert(now + u64::from(ns)) {
                return found();
            }
        }
    }

    #[cold]
    fn look_by_yields(self, machine: &impl Machine, mut found: impl FnMut() -> bool) -> bool {
        for _ in 0..self.yields {
            machine.yield_now();
            if found() {
                return true;
            }
        }
        false
    }

    /// As [`Pacing::look`], for a peer that is known to be awake: it yields as often as the time allows.
    pub(crate) fn wait_for_awake(self, machine: &impl Machine, ns: u32, mut found: impl FnMut() -> bool) -> bool {
        if self.yields == 0 {
            return self.look(machine, ns, found);
        }
        let end = machine.now_ns() + u64::from(ns);
        while !found() {
            if machine.now_ns() >= end {
                return false;
            }
            machine.yield_now();
        }
        true
    }
}

/// What one receiver has learnt of its peer. Races between threads cost a look, nothing else.
#[derive(Debug)]
pub(crate) struct Look {
    budget_ns: AtomicU32,
    vain: AtomicU32,
    waits: AtomicU32,
    /// When the thread was last off its processor in a look.
    preempted_ns: AtomicU64,
    /// A look is so many yields, whatever else wants the processor: it never pauses.
    by_yields: bool,
    /// Nothing is looked at before this time. 0: looks are allowed.
    pause_end: AtomicU64,
    /// How long the last pause was, and when it ended.
    pause_ns: AtomicU64,
    paused_until: AtomicU64,
}

impl Look {
    pub(crate) fn new(pacing: Pacing) -> Self {
        Look {
            budget_ns: AtomicU32::new(pacing.look_ns),
            vain: AtomicU32::new(0),
            waits: AtomicU32::new(0),
            preempted_ns: AtomicU64::new(0),
            by_yields: pacing.yields != 0,
            pause_end: AtomicU64::new(0),
            pause_ns: AtomicU64::new(0),
            paused_until: AtomicU64::new(0),
        }
    }

    /// Returns for how long the next wait looks, in nanoseconds; 0: it sleeps at once.
    #[inline]
    pub(crate) fn next(&self, pacing: Pacing, machine: &impl Machine) -> u32 {
        if self.pause_end.load(Ordering::Relaxed) != 0 && self.is_pausing(machine.now_ns()) {
            0
        } else if self.vain.load(Ordering::Relaxed) < VAIN_LOOKS {
            self.budget_ns.load(Ordering::Relaxed)
        } else {
            self.retry(pacing)
        }
    }

    #[cold]
    fn is_pausing(&self, now: u64) -> bool {
        if now < self.pause_end.load(Ordering::Relaxed) {
            return true;
        }
        self.pause_end.store(0, Ordering::Relaxed);
        self.vain.store(0, Ordering::Relaxed);
        false
    }

    /// The thread has spun from `before` to `now` without looking at the clock.
    #[inline]
    pub(crate) fn has_spun(&self, before: u64, now: u64) {
        if now.saturating_sub(before) > PREEMPTED_NS && !self.by_yields {
            self.was_preempted(now);
        }
    }

    #[cold]
    fn was_preempted(&self, now: u64) {
        let last = self.preempted_ns.load(Ordering::Relaxed);
        self.preempted_ns.store(now, Ordering::Relaxed);
        if last == 0 || now.saturating_sub(last) > CONTENDED_NS {
            return;
        }
        // Soon after the last pause: the processors are still wanted.
        let is_again = now.saturating_sub(self.paused_until.load(Ordering::Relaxed)) < 2 * CONTENDED_NS;
        let pause =
            if is_again { (2 * self.pause_ns.load(Ordering::Relaxed)).clamp(PAUSE_NS, MAX_PAUSE_NS) } else { PAUSE_NS };
        self.pause_ns.store(pause, Ordering::Relaxed);
        self.pause_end.store(now + pause, Ordering::Relaxed);
        self.paused_until.store(now + pause, Ordering::Relaxed);
        self.preempted_ns.store(0, Ordering::Relaxed);
    }

    #[cold]
    fn retry(&self, pacing: Pacing) -> u32 {
        let waits = self.waits.load(Ordering::Relaxed).wrapping_add(1);
        self.waits.store(waits, Ordering::Relaxed);
        if waits.is_multiple_of(RETRY) { pacing.look_ns } else { 0 }
    }

    /// Returns whether the next wait would look.
    pub(crate) fn would_look(&self) -> bool {
        if self.pause_end.load(Ordering::Relaxed) != 0 {
            return false;
        }
        self.vain.load(Ordering::Relaxed) < VAIN_LOOKS
            || self.waits.load(Ordering::Relaxed).wrapping_add(1).is_multiple_of(RETRY)
    }

    /// A look has found bytes.
    #[inline]
    pub(crate) fn found(&self, pacing: Pacing) {
        if self.vain.load(Ordering::Relaxed) != 0 {
            self.vain.store(0, Ordering::Relaxed);
            self.budget_ns.store(pacing.look_ns, Ordering::Relaxed);
        }
    }

    /// A look was in vain.
    pub(crate) fn was_vain(&self) {
        let vain = self.vain.load(Ordering::Relaxed).saturating_add(1);
        self.vain.store(vain, Ordering::Relaxed);
        let budget = self.budget_ns.load(Ordering::Relaxed);
        self.budget_ns.store(budget / 2 + 1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A slice of the scheduler's.
    const SLICE: u64 = 4_000_000;

    #[test]
    fn looks_pause_after_two_preemptions() {
        let look = Look::new(Pacing::SPIN);
        look.has_spun(1_000, 1_000 + SLICE);
        assert!(look.would_look(), "one may be an accident");
        look.has_spun(10_000_000, 10_000_000 + SLICE);
        assert!(!look.would_look());
        let end = look.pause_end.load(Ordering::Relaxed);
        assert_eq!(end, 10_000_000 + SLICE + PAUSE_NS);
        assert!(look.is_pausing(end - 1) && !look.is_pausing(end));
        assert!(look.would_look());
    }

    #[test]
    fn pauses_grow_while_the_processors_are_wanted() {
        let look = Look::new(Pacing::SPIN);
        let mut now = 0;
        for expected in [1, 2, 4, 8, 16, 16] {
            for _ in 0..2 {
                now += SLICE;
                look.has_spun(now - SLICE, now);
            }
            let end = look.pause_end.load(Ordering::Relaxed);
            assert_eq!(end - now, expected * PAUSE_NS);
            assert!(!look.is_pausing(end));
            now = end;
        }
        now += 4 * CONTENDED_NS;
        for _ in 0..2 {
            now += SLICE;
            look.has_spun(now - SLICE, now);
        }
        assert_eq!(look.pause_end.load(Ordering::Relaxed) - now, PAUSE_NS);
    }

    #[test]
    fn short_gaps_and_distant_ones_do_not_pause() {
        let look = Look::new(Pacing::SPIN);
        for i in 0..10 {
            look.has_spun(i, i + PREEMPTED_NS);
            let now = (i + 1) * 2 * CONTENDED_NS;
            look.has_spun(now - SLICE, now);
        }
        assert!(look.would_look());
        let by_yields = Look::new(Pacing::YIELD);
        for i in 1..10 {
            by_yields.has_spun(i * SLICE, (i + 1) * SLICE);
        }
        assert!(by_yields.would_look());
    }
}
