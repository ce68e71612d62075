//! How long a core looks for work before it sleeps.
//!
//! A sleep and its wake-up cost some 30 µs of latency, so a core that spins that long never does worse than twice the best
//! (the ski-rental rule). That is right for a core of which nothing is known. But a connection whose window is in flight
//! hears of its peer every so many microseconds, and with gaps just longer than the spin each of them costs the spin *and*
//! the wake-up: measured, two thirds of the goodput at a round trip of 0.2 ms. So the spin follows what the gaps turned out
//! to be, as the kernel's halt polling does (`drivers/cpuidle/governors/haltpoll.c`, `kvm_main.c`): a sleep that a longer
//! spin would have made needless makes it longer, long ones take it back and down to where it costs little.
//!
//! All of that takes for granted that the CPU has nothing better to do. A core that shares its CPUs with the programs it
//! works for (the daemon's: it is not pinned) spins on their time: what it waits for comes the later, and in smaller
//! batches. Such a core is preempted often, and the kernel counts that. While it is, it does not spin at all, and tries
//! again at times. One that has a CPU to itself is not preempted, though the programs that it works for may crowd on another,
//! which the scheduler believes to be no busier: so it does not spin either while more threads want to run than there are
//! CPUs. (Pinned cores do: a sleeper that may wake on one CPU only has to drive somebody from it, which costs
//! more than the spin; measured in `tests/src/bin/unmodified_bench.rs`, the wire row.)

use super::policy::PollPolicy;
use crate::sys::Contention;
use fs_core::Instant;
use std::time::Duration;

/// The longest spin, in shortest ones: 150 µs for the default of 30 (halt polling's limit is 200 µs). Shorter: paths of a
/// data centre pay for wake-ups. Longer: a core with little to do burns more CPU before it finds out.
const LONGEST: u32 = 5;

/// Where the gaps are longer than that, spinning catches nothing: it falls to the shortest by this, 4 µs. Higher: at 600 requests a
/// second, one by one, the spin is a third of the CPU that they cost (decision 0010). Lower: more wake-ups until it
/// pays again, each 30 µs of latency, once.
const LEAST: u32 = 8;

/// Time between two looks at what the kernel says. Longer: it takes as long to find out that the CPU is wanted.
/// Shorter: two system calls (2 µs) more often.
const CHECK: Duration = Duration::from_millis(2);
/// From so many preemptions a millisecond on the CPU is wanted by others. A program that only computes takes it every
/// few milliseconds (the scheduler's slice is 3 ms), which batches do not suffer from; programs that a core works for take
/// it each time that it wakes them, 5 to 30 times.
const WANTED: u64 = 1;
/// So often in a row there must be more runnable threads than CPUs: once may be a thread of the kernel's that has something
/// short to do.
const CROWDED: u32 = 2;
/// How long a core that shares its CPUs does without spinning at first, and at most: it doubles with each try in vain.
/// A try costs `CHECK`.
const HOLD: Duration = Duration::from_millis(8);
const HOLD_MAX: Duration = Duration::from_millis(256);

/// See the module.
#[derive(Debug)]
pub(crate) struct Spin {
    shortest: Duration,
    now: Duration,
    adapts: bool,
    shared: Option<Shared>,
}

/// A core that shares its CPUs.
#[derive(Debug)]
struct Shared {
    looked_at: Instant,
    preemptions: u64,
    /// Looks in a row that found more runnable threads than CPUs.
    crowded: u32,
    wanted: bool,
    hold: Duration,
}

impl Shared {
    #[cold]
    fn look(&mut self, now: Instant, Contention { preemptions, crowded }: Contention) {
        let (time, count) = (now.since(self.looked_at), preemptions.saturating_sub(self.preemptions));
        (self.looked_at, self.preemptions) = (now, preemptions);
        self.crowded = if crowded { self.crowded + 1 } else { 0 };
        if self.crowded >= CROWDED {
            // This can be told without a try.
            self.wanted = true;
            return;
        }
        if self.wanted {
            // Without spinning there was little to preempt: only a try tells.
            self.wanted = false;
        } else if u128::from(count) >= (u128::from(WANTED) * time.as_millis()).max(1) {
            self.wanted = true;
        } else {
            self.hold = HOLD;
            return;
        }
        if self.wanted {
            self.hold = (self.hold * 2).min(HOLD_MAX);
        }
    }
}

impl Spin {
    pub(crate) fn new(policy: &PollPolicy) -> Self {
        let state = Shared { looked_at: Instant::ZERO, preemptions: 0, crowded: 0, wanted: false, hold: HOLD / 2 };
        let (spin, shared) = (policy.spin, policy.give_way.then_some(state));
        Self { shortest: spin, now: spin, adapts: policy.adapt_spin, shared }
    }

    /// After so long without work the core sleeps.
    pub(crate) fn time(&self) -> Duration {
        if self.shared.as_ref().is_some_and(|shared| shared.wanted) { Duration::ZERO } else { self.now }
    }

    /// The core has run out of work. `ask` is called at times.
    #[inline]
    pub(crate) fn idle_begins(&mut self, now: Instant, ask: impl FnOnce() -> Contention) {
        if let Some(shared) = &mut self.shared
            && now.since(shared.looked_at) >= if shared.wanted { shared.hold } else { CHECK }
        {
            shared.look(now, ask());
        }
    }

    /// There is work again, so long after the last; the core may have slept meanwhile.
    pub(crate) fn idle_ended(&mut self, idle: Duration) {
        if !self.adapts {
            return;
        }
        let longest = self.shortest * LONGEST;
        if idle > longest {
            // No spin would have caught it. Half as long each time: a pause between two bursts is not the end of them.
            self.now = if self.now > self.shortest { self.shortest } else { (self.now / 2).max(self.shortest / LEAST) };
        } else if idle > self.now {
            self.now = (self.now * 2).min(longest);
        }
    }
}

#[cfg(test)]
mod tests;
