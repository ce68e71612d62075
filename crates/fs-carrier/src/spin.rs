//! The time for which a wait spins on shared memory before it sleeps in the kernel.
//!
//! A spin before a sleep pays only if it is as long as a wake-up. If both ends sleep, the
//! bytes arrive after the peer's wake-up of 25 to 60 µs. A shorter spin never finds them, and both
//! ends learn not to spin (the both-asleep trap). The estimate also learns that a peer takes
//! longer: after some vain spins most waits sleep at once, and one of [`RETRY`] spins again.

use crate::crowd::Crowd;
use crate::kernel::Machine;
use crate::sync::{AtomicU32, Ordering};

/// Vain spins in a row after which most waits sleep at once. More: CPU for a peer that thinks;
/// fewer: one late answer ends the spinning.
const VAIN_LOOKS: u32 = 4;
/// Number of waits without a spin, after which one wait spins again. More: slower to notice that
/// the peer answers promptly again; fewer: CPU.
const RETRY: u32 = 32;
/// Additional time of a spin per hot connection in nanoseconds, for a wait on several connections:
/// the cost for both ends if bytes pass through the kernel (two system calls, TCP_INFO). A spin
/// that is as long as what it saves is at most twice as dear as the better of both. More: CPU for
/// peers that think; fewer: a server's and a client's turns over 50 connections, 100 µs each, end
/// the use of the rings.
const NS_PER_HOT: u32 = 2_000;
/// Maximum number of hot connections that extend a spin. More: a thread with thousands of
/// connections spins for more than 2 ms; fewer: with 1,000 clients, each end's turn over all of
/// them takes longer than the other's spin, so both sleep, and the kernel carries.
const MAX_HOT: usize = 1024;
/// Reads of the words between two reads of the clock.
const LOOKS_PER_READING: u32 = 16;

/// Yields with which a spin begins if the peer shares the processor. More: CPU for a peer that
/// thinks. Fewer: where others run there too, the peer's turn comes after the spin.
const FIRST_YIELDS: u32 = 4;
/// Number of spins in a row whose bytes came right after a yield, after which the peer is believed to share the
/// processor. More: slower to notice that. Fewer: a peer on another processor, whose bytes come within the time of a
/// yield by chance (one spin in ten, if it takes microseconds), counts as one on this one.
const SURE: u32 = 4;
/// One of so many spins that would begin with yields looks first, as for a peer on another
/// processor. More: slower to notice that the peer has moved. Fewer: a spin in vain more often,
/// 2 µs, where a round trip on one processor takes 2.5.
const PROBE: u32 = 128;

/// Time after which a spin first yields the processor, and the time between further yields. The
/// peer may wait for this very processor, where the kernel wakes it if it was asleep. More: the
/// peer waits longer. Fewer: a system call where the peer runs elsewhere.
pub(crate) const FIRST_YIELD_NS: u64 = 2_000;
pub(crate) const YIELD_NS: u64 = 10_000;

/// A call of the kernel that returns sooner has not slept.
const ASLEEP_NS: u64 = 5_000;
/// The longest wait in the kernel that is short: a wake-up, and the peer's work. The next one spins for as long.
/// More: CPU for a peer that takes its time, a spin for every second wait. Fewer: where the kernel's work for a new
/// connection takes 100 µs, the thread sleeps as before.
const SHORT_WAIT_NS: u32 = 100_000;

/// Settings for the waits of this process.
#[derive(Clone, Copy, Debug)]
pub struct Pacing {
    /// The longest spin of a receiver, in nanoseconds: as long as a wake-up takes.
    pub spin_ns: u32,
    /// Time that a sender waits for space in the ring before the kernel carries, in nanoseconds.
    pub room_ns: u32,
    /// For tests: calls of sched_yield(2) with which each spin begins, whatever time they take. With 0, a
    /// spin begins with some if the peer seems to share the processor.
    pub yields: u32,
    /// For tests: a receiver that does not wait makes the ring the carrier whenever the rules allow
    /// it, also if no thread is going to spin.
    pub is_eager: bool,
    /// Spins end at once while more threads want to run than there are processors. `None`, for
    /// tests: spins do not end.
    pub crowd: Option<&'static Crowd>,
}

impl Pacing {
    /// The settings of programs. A wake-up takes 25 to 60 µs on a virtual machine.
    pub const USUAL: Pacing = Pacing { spin_ns: 50_000, room_ns: 20_000, yields: 0, is_eager: false, crowd: None };

    /// Returns the duration of a spin for this many connections, if `spin_ns` is that for one.
    #[inline]
    pub(crate) fn spin_for(spin_ns: u32, hot: usize) -> u32 {
        if spin_ns == 0 { 0 } else { spin_ns + NS_PER_HOT * (hot.min(MAX_HOT) as u32) }
    }

    /// Returns true if a wait has to sleep at once, because other threads want the processors.
    #[inline]
    pub(crate) fn is_crowded(self, machine: &impl Machine) -> bool {
        self.crowd.is_some_and(|crowd| crowd.is_crowded(machine))
    }

    /// Records that the thread has run, or wanted to run, from `before` to `now` without reading
    /// the clock. Returns whether it was off its processor.
    #[inline]
    pub(crate) fn has_spun(self, before: u64, now: u64) -> bool {
        self.crowd.is_some_and(|crowd| crowd.has_spun(before, now))
    }

    /// Yields the processor at the time `now`. Returns the time afterwards, and whether the thread got it back late.
    pub(crate) fn yield_now(self, machine: &impl Machine, now: u64) -> (u64, bool) {
        machine.yield_now();
        let after = machine.now_ns();
        (after, self.has_spun(now, after))
    }
}

/// An estimate of the peer: how promptly it answers, and whether it runs on this thread's
/// processor. Races between threads cost a spin, nothing else.
#[derive(Debug)]
pub(crate) struct Spin {
    budget_ns: AtomicU32,
    vain: AtomicU32,
    waits: AtomicU32,
    /// Number of spins in a row whose bytes came right after a yield, up to [`SURE`]: then the peer needs
    /// the same processor, and the number goes on to count spins, for [`PROBE`].
    shares: AtomicU32,
}

impl Spin {
    pub(crate) fn new(pacing: Pacing) -> Self {
        Spin {
            budget_ns: AtomicU32::new(pacing.spin_ns),
            vain: AtomicU32::new(0),
            waits: AtomicU32::new(0),
            shares: AtomicU32::new(0),
        }
    }

    /// Returns the number of yields with which the next spin begins, whatever time they take.
    #[inline]
    pub(crate) fn first_yields(&self, pacing: Pacing) -> u32 {
        match self.shares.load(Ordering::Relaxed).checked_sub(SURE) {
            None => pacing.yields,
            Some(spins) => self.first_yields_beside(spins).max(pacing.yields),
        }
    }

    #[cold]
    fn first_yields_beside(&self, spins: u32) -> u32 {
        self.shares.store(SURE + (spins + 1) % PROBE, Ordering::Relaxed);
        if spins + 1 == PROBE { 0 } else { FIRST_YIELDS }
    }

    /// Records that a spin has found bytes. `by_yield`: at the first look after a yield. Any other look shows that the
    /// peer runs elsewhere.
    #[inline]
    pub(crate) fn found_after(&self, by_yield: bool) {
        let shares = self.shares.load(Ordering::Relaxed);
        if by_yield && shares < SURE {
            self.shares.store(shares + 1, Ordering::Relaxed);
        } else if !by_yield && shares != 0 {
            self.shares.store(0, Ordering::Relaxed);
        }
    }

    /// Spins until `found` returns true, until `ns` have passed, or until the thread loses its
    /// processor. Returns the last result of `found`.
    #[inline]
    pub(crate) fn look(&self, pacing: Pacing, machine: &impl Machine, ns: u32, found: impl FnMut() -> bool) -> bool {
        let first_yields = self.first_yields(pacing);
        self.look_with(pacing, machine, ns, (first_yields, first_yields), found)
    }

    /// Like [`Spin::look`], for a peer that is known to be awake: the time is the limit.
    pub(crate) fn wait_for_awake(
        &self,
        pacing: Pacing,
        machine: &impl Machine,
        ns: u32,
        mut found: impl FnMut() -> bool,
    ) -> bool {
        if pacing.is_crowded(machine) {
            return found();
        }
        self.look_with(pacing, machine, ns, (self.first_yields(pacing), 0), found)
    }

    /// `first_yields`: the number of yields at the beginning, and how many are made whatever time they take.
    #[inline]
    fn look_with(
        &self,
        pacing: Pacing,
        machine: &impl Machine,
        ns: u32,
        (first_yields, least): (u32, u32),
        mut found: impl FnMut() -> bool,
    ) -> bool {
        let (mut times, mut yields, mut by_yield) = (None, 0, false);
        loop {
            for _ in 0..LOOKS_PER_READING {
                if found() {
                    self.found_after(by_yield);
                    return true;
                }
                by_yield = false;
                if yields < first_yields {
                    break;
                }
                machine.pause();
            }
            let mut now = machine.now_ns();
            let (before, end, next_yield) = times.unwrap_or((now, now + u64::from(ns), now + FIRST_YIELD_NS));
            let mut is_late = pacing.has_spun(before, now);
            let mut next_yield = next_yield;
            if (now >= next_yield || yields < first_yields) && !is_late {
                (now, is_late) = pacing.yield_now(machine, now);
                (yields, next_yield, by_yield) = (yields + 1, now + YIELD_NS, true);
            }
            if (now >= end && yields >= least) || is_late {
                let is_found = found();
                // After a preemption it is not known where the peer has run.
                if is_found && (by_yield || !is_late) {
                    self.found_after(by_yield);
                }
                return is_found;
            }
            times = Some((now, end, next_yield));
        }
    }

    /// Returns the duration of the next spin in nanoseconds. 0: the wait sleeps at once.
    #[inline]
    pub(crate) fn next(&self, pacing: Pacing, machine: &impl Machine) -> u32 {
        if pacing.is_crowded(machine) {
            0
        } else if self.vain.load(Ordering::Relaxed) < VAIN_LOOKS {
            self.budget_ns.load(Ordering::Relaxed)
        } else {
            self.retry(pacing)
        }
    }

    #[cold]
    fn retry(&self, pacing: Pacing) -> u32 {
        let waits = self.waits.load(Ordering::Relaxed).wrapping_add(1);
        self.waits.store(waits, Ordering::Relaxed);
        if waits.is_multiple_of(RETRY) { pacing.spin_ns } else { 0 }
    }

    /// Returns whether the next wait would spin.
    pub(crate) fn would_spin(&self, pacing: Pacing) -> bool {
        !pacing.crowd.is_some_and(Crowd::may_pause)
            && (self.vain.load(Ordering::Relaxed) < VAIN_LOOKS
                || self.waits.load(Ordering::Relaxed).wrapping_add(1).is_multiple_of(RETRY))
    }

    /// Records that a spin has found bytes.
    #[inline]
    pub(crate) fn found(&self, pacing: Pacing) {
        if self.vain.load(Ordering::Relaxed) != 0 {
            self.vain.store(0, Ordering::Relaxed);
            self.budget_ns.store(pacing.spin_ns, Ordering::Relaxed);
        }
    }

    /// Records that a spin was in vain.
    pub(crate) fn was_vain(&self) {
        let vain = self.vain.load(Ordering::Relaxed).saturating_add(1);
        self.vain.store(vain, Ordering::Relaxed);
        let budget = self.budget_ns.load(Ordering::Relaxed);
        self.budget_ns.store(budget / 2 + 1, Ordering::Relaxed);
    }
}

/// An estimate of waits in the kernel for connections without a ring: whether a spin before them pays.
/// Races between threads cost a spin, nothing else.
#[derive(Debug)]
pub struct KernelWaits {
    /// Not 0: the last wait was short.
    are_short: AtomicU32,
    spin: Spin,
}

impl KernelWaits {
    /// Makes an estimate that expects long waits.
    #[must_use]
    pub fn new(pacing: Pacing) -> Self {
        KernelWaits { are_short: AtomicU32::new(0), spin: Spin::new(pacing) }
    }

    /// Makes `call`, which may sleep in the kernel until `is_ready` would return true, and spins first if the last
    /// such wait was short, a spin can pay, and `may_sleep` returns true.
    pub fn around<T>(
        &self,
        pacing: Pacing,
        machine: &impl Machine,
        may_sleep: impl FnOnce() -> bool,
        is_ready: impl FnMut() -> bool,
        call: impl FnOnce() -> T,
    ) -> T {
        if self.are_short.load(Ordering::Relaxed) != 0 {
            let first = (pacing.yields, pacing.yields);
            // A peer on this processor runs as soon as the thread sleeps.
            let can_pay = || self.spin.first_yields(pacing) <= pacing.yields;
            if !pacing.is_crowded(machine)
                && may_sleep()
                && can_pay()
                && !self.spin.look_with(pacing, machine, SHORT_WAIT_NS, first, is_ready)
            {
                self.are_short.store(0, Ordering::Relaxed);
            }
            return call();
        }
        let before = machine.now_ns();
        let result = call();
        let ns = machine.now_ns().saturating_sub(before);
        if (ASLEEP_NS..u64::from(SHORT_WAIT_NS)).contains(&ns) {
            self.are_short.store(1, Ordering::Relaxed);
        }
        result
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    const YIELDING: Pacing = Pacing { yields: 4, ..Pacing::USUAL };

    /// A processor of its own for the thread, on which a yield and 100 looks take a microsecond each.
    #[derive(Default)]
    struct OwnProcessor {
        now_ns: Cell<u64>,
        yields: Cell<u32>,
    }

    impl OwnProcessor {
        fn pass(&self, ns: u64) {
            self.now_ns.set(self.now_ns.get() + ns);
        }
    }

    impl Machine for OwnProcessor {
        fn now_ns(&self) -> u64 {
            self.now_ns.get()
        }

        fn pause(&self) {
            self.pass(10);
        }

        fn yield_now(&self) {
            self.yields.set(self.yields.get() + 1);
            self.pass(1_000);
        }

        fn thread(&self) -> u32 {
            1
        }

        fn is_gone(&self, _thread: u32) -> bool {
            false
        }
    }

    #[test]
    fn spin_finds_a_peer_on_another_processor_though_the_process_may_use_one_only() {
        for pacing in [Pacing::USUAL, YIELDING] {
            let machine = OwnProcessor::default();
            let spin = Spin::new(pacing);
            assert!(spin.look(pacing, &machine, 50_000, || machine.now_ns.get() >= 30_000), "{pacing:?}");
            assert!(machine.yields.get() < 10, "it has the processor, and looks: {pacing:?}");
        }
    }

    #[test]
    fn spin_ends_after_its_time_and_its_yields() {
        let (machine, spin) = (OwnProcessor::default(), Spin::new(YIELDING));
        assert!(!spin.look(YIELDING, &machine, 50_000, || false));
        assert!((50_000..52_000).contains(&machine.now_ns.get()), "{:?}", machine.now_ns);
        let (machine, mut looks) = (OwnProcessor::default(), 0);
        assert!(!spin.look(YIELDING, &machine, 1, || {
            looks += 1;
            false
        }));
        assert_eq!((machine.yields.get(), looks), (4, 5), "a look before and after each");
        let machine = OwnProcessor::default();
        assert!(!spin.wait_for_awake(YIELDING, &machine, 1, || false));
        assert_eq!(machine.yields.get(), 1, "a sender's time is over");
    }

    #[derive(Clone, Copy)]
    enum Peer {
        /// Answers while this thread yields.
        Beside,
        /// Answers after so many nanoseconds, on its own processor.
        After(u64),
    }

    /// A spin for an answer. Returns its nanoseconds and its yields.
    fn answer(spin: &Spin, peer: Peer) -> (u64, u32) {
        let machine = OwnProcessor::default();
        let is_there = || match peer {
            Peer::Beside => machine.yields.get() > 0,
            Peer::After(ns) => machine.now_ns.get() >= ns,
        };
        assert!(spin.look(Pacing::USUAL, &machine, 50_000, is_there));
        (machine.now_ns.get(), machine.yields.get())
    }

    /// Spins until the estimate knows that the peer shares the processor.
    fn sharing(spin: &Spin) {
        for _ in 0..SURE {
            let (ns, yields) = answer(spin, Peer::Beside);
            assert!(ns >= FIRST_YIELD_NS && yields == 1, "not known yet");
        }
    }

    #[test]
    fn spin_learns_whether_the_peer_shares_the_processor() {
        for elsewhere_ns in [20, 5_000, 30_000] {
            let spin = Spin::new(Pacing::USUAL);
            sharing(&spin);
            for _ in 0..PROBE - 1 {
                assert_eq!(answer(&spin, Peer::Beside), (1_000, 1), "the thread yields at once");
            }
            assert!(answer(&spin, Peer::Beside).0 >= FIRST_YIELD_NS, "one spin tries without");
            assert_eq!(answer(&spin, Peer::Beside), (1_000, 1));
            let mut others = 0;
            while answer(&spin, Peer::After(elsewhere_ns)).1 >= FIRST_YIELDS {
                others += 1;
            }
            assert!(others < PROBE, "until the next try shows that the peer has moved");
            for _ in 0..2 * PROBE {
                let (ns, yields) = answer(&spin, Peer::After(elsewhere_ns));
                assert!(ns < elsewhere_ns + 2_000 && yields < FIRST_YIELDS, "{elsewhere_ns}: {ns} {yields}");
            }
        }
    }

    /// Bytes of a peer on another processor come within a yield by chance.
    #[test]
    fn chance_is_no_proof_that_the_peer_shares_the_processor() {
        let spin = Spin::new(Pacing::USUAL);
        for _ in 0..3 * PROBE {
            for _ in 0..SURE - 1 {
                assert_eq!(answer(&spin, Peer::After(FIRST_YIELD_NS + 500)).1, 1);
            }
            assert_eq!(answer(&spin, Peer::After(5_000)).1, 1);
        }
    }

    /// A call in the kernel whose wait ends after so long. Returns whether it began with a spin, and slept.
    fn kernel_wait(waits: &KernelWaits, wait_ns: u64) -> (bool, bool) {
        let machine = OwnProcessor::default();
        let (spun, slept) = (Cell::new(false), Cell::new(false));
        let is_ready = || machine.now_ns.get() >= wait_ns;
        let look = || {
            spun.set(true);
            is_ready()
        };
        waits.around(
            Pacing::USUAL,
            &machine,
            || true,
            look,
            || {
                slept.set(!is_ready());
                machine.now_ns.set(machine.now_ns.get().max(wait_ns));
            },
        );
        (spun.get(), slept.get())
    }

    #[test]
    fn waits_in_the_kernel_spin_after_short_ones_only() {
        let waits = KernelWaits::new(Pacing::USUAL);
        for ns in [1_000, 200_000, 60_000] {
            assert!(!kernel_wait(&waits, ns).0, "not known to be short, or no wait");
        }
        for ns in [60_000, 0, 90_000] {
            assert_eq!(kernel_wait(&waits, ns), (true, false), "found by the spin");
        }
        assert_eq!(kernel_wait(&waits, 1_000_000), (true, true), "in vain");
        assert_eq!(kernel_wait(&waits, 1_000_000), (false, true), "once");
    }

    #[test]
    fn waits_in_the_kernel_do_not_spin_if_the_call_does_not_wait_or_the_peer_shares_the_processor() {
        let waits = KernelWaits::new(Pacing::USUAL);
        kernel_wait(&waits, 60_000);
        let machine = OwnProcessor::default();
        waits.around(Pacing::USUAL, &machine, || false, || panic!("a look"), || ());
        assert_eq!(machine.now_ns.get(), 0);
        sharing(&waits.spin);
        let spins = (0..PROBE).filter(|_| kernel_wait(&waits, 60_000).0).count();
        assert!(spins <= 2, "the peer answers as soon as this thread sleeps: {spins}");
    }
}
