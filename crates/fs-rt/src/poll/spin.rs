//! Time for which a core polls before it sleeps.
//!
//! A sleep and its wake-up cost about 30 µs of latency, so a core that spins that long is never
//! worse than twice the optimum (the ski-rental rule). This is right if nothing is known about the
//! load. But a connection with a full window in flight hears from its peer at regular intervals. If
//! these are just longer than the spin, each costs the spin *and* the wake-up: measured, two thirds
//! of the goodput at a round trip of 0.2 ms. So the spin adapts to the gaps, as the kernel's halt
//! polling does (`drivers/cpuidle/governors/haltpoll.c`, `kvm_main.c`). A sleep that a longer spin
//! would have avoided makes it longer. Long sleeps make it shorter again, down to a value that
//! costs little.
//!
//! All of this assumes that the CPU has nothing better to do. A core that shares its CPUs with the
//! programs it serves (the daemon's core, which is not pinned) spins on their time: their packets
//! then come later, and in smaller batches. Such a core is preempted often, and the kernel counts
//! that. While it is preempted, it does not spin at all, and tries again at times. A core that is
//! alone on its CPU is not preempted, even if the programs that it serves crowd on another CPU,
//! which the scheduler considers no busier. So it also does not spin while there are more runnable
//! threads than CPUs.
//!
//! A pinned core asks another question: how much of its CPU do others use? While they compute there,
//! a core that polls uses up its own half of the CPU, and then waits for as long as the scheduler lets
//! them run: packets that arrive meanwhile wait 4 ms and more. A thread that sleeps when it has no
//! work gets the CPU as soon as a packet wakes it (decision 0010).

use super::policy::PollPolicy;
use crate::sys::Contention;
use fs_core::Instant;
use std::time::Duration;

/// The longest spin, as a multiple of the shortest: 150 µs for the default of 30 (halt polling's
/// limit is 200 µs). Shorter: paths within a data centre pay for wake-ups. Longer: a core with
/// little work burns more CPU before it stops.
const LONGEST: u32 = 5;

/// If the gaps are longer than that, spinning catches nothing, and the spin falls to this fraction
/// of the shortest: 4 µs. Higher: at 600 separate requests per second the spin is a third of their
/// CPU (decision 0010). Lower: more wake-ups until it grows again, each with 30 µs of latency.
const SPIN_MIN_FRACTION: u32 = 8;

/// Time between two questions to the kernel. Longer: it takes as long to notice that the CPU is
/// wanted. Shorter: two system calls (2 µs) more often.
const CHECK: Duration = Duration::from_millis(2);
/// Preemptions per millisecond from which on other threads want the CPU. A program that only
/// computes preempts every few milliseconds (the scheduler's slice is 3 ms), which does not hurt
/// batches. Programs that the core serves preempt it each time that it wakes them, 5 to 30 times.
const WANTED: u64 = 1;
/// Checks in a row that must find more runnable threads than CPUs: a single one may be a short
/// kernel thread.
const CROWDED: u32 = 2;
/// Time for which a core that shares its CPUs does not spin: the first time and the limit. It
/// doubles with each failed attempt. An attempt costs `CHECK`.
const HOLD: Duration = Duration::from_millis(8);
const HOLD_MAX: Duration = Duration::from_millis(256);

/// Time over which a pinned core measures what others use of its CPU. Longer: so much later it
/// notices them. Shorter: the kernel counts in steps of 10 ms, and reading takes 0.1 ms on a machine
/// of a hundred CPUs.
const MEASURED: Duration = Duration::from_millis(256);
/// Part of its CPU that others must use so that it does not spin: a fifth. A single program that
/// computes takes half. Less: kernel threads and the packets' own interrupts count.
const TAKEN: u32 = 5;

/// See the module.
#[derive(Debug)]
pub(crate) struct Spin {
    shortest: Duration,
    now: Duration,
    adapts: bool,
    neighbours: Neighbours,
}

/// The threads that may want the core's CPU.
#[derive(Debug)]
enum Neighbours {
    Ignored,
    /// Those that it serves.
    Served(Sharing),
    /// Those on its only CPU.
    Beside(Taken),
}

/// State of a pinned core.
#[derive(Debug)]
struct Taken {
    checked_at: Instant,
    others: Duration,
    wanted: bool,
}

impl Taken {
    #[cold]
    fn update(&mut self, now: Instant, others: Duration) {
        let (time, used) = (now.since(self.checked_at), others.saturating_sub(self.others));
        // The first answer has nothing to compare with.
        self.wanted = self.checked_at != Instant::ZERO && used >= time / TAKEN;
        (self.checked_at, self.others) = (now, others);
    }
}

/// State of a core that shares its CPUs.
#[derive(Debug)]
struct Sharing {
    checked_at: Instant,
    preemptions: u64,
    /// Checks in a row that found more runnable threads than CPUs.
    crowded: u32,
    wanted: bool,
    hold: Duration,
}

impl Sharing {
    #[cold]
    fn update(&mut self, now: Instant, Contention { preemptions, crowded, .. }: Contention) {
        let (time, count) = (now.since(self.checked_at), preemptions.saturating_sub(self.preemptions));
        (self.checked_at, self.preemptions) = (now, preemptions);
        self.crowded = if crowded { self.crowded + 1 } else { 0 };
        if self.crowded >= CROWDED {
            // Known without an attempt.
            self.wanted = true;
            return;
        }
        if self.wanted {
            // Without spinning there is little to preempt, so only an attempt can tell.
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
        let neighbours = if policy.yield_cpu {
            Neighbours::Beside(Taken { checked_at: Instant::ZERO, others: Duration::ZERO, wanted: false })
        } else if policy.give_way {
            let checked_at = Instant::ZERO;
            Neighbours::Served(Sharing { checked_at, preemptions: 0, crowded: 0, wanted: false, hold: HOLD / 2 })
        } else {
            Neighbours::Ignored
        };
        Self { shortest: policy.spin, now: policy.spin, adapts: policy.adapt_spin, neighbours }
    }

    /// Returns the idle time after which the core sleeps.
    pub(crate) fn time(&self) -> Duration {
        let wanted = match &self.neighbours {
            Neighbours::Ignored => false,
            Neighbours::Served(sharing) => sharing.wanted,
            Neighbours::Beside(taken) => taken.wanted,
        };
        if wanted { Duration::ZERO } else { self.now }
    }

    /// Records that the core has no more work. Calls `ask` at times.
    #[inline]
    pub(crate) fn idle_begins(&mut self, now: Instant, ask: impl FnOnce() -> Contention) {
        match &mut self.neighbours {
            Neighbours::Served(sharing)
                if now.since(sharing.checked_at) >= if sharing.wanted { sharing.hold } else { CHECK } =>
            {
                sharing.update(now, ask());
            }
            Neighbours::Beside(taken) if now.since(taken.checked_at) >= MEASURED => taken.update(now, ask().others),
            _ => {}
        }
    }

    /// Records that there is work again, after this idle time. The core may have slept in it.
    pub(crate) fn idle_ended(&mut self, idle: Duration) {
        if !self.adapts {
            return;
        }
        let longest = self.shortest.saturating_mul(LONGEST);
        if idle > longest {
            // No spin would have caught it. Halved each time: a pause between two bursts is not
            // their end.
            self.now = if self.now > self.shortest {
                self.shortest
            } else {
                (self.now / 2).max(self.shortest / SPIN_MIN_FRACTION)
            };
        } else if idle > self.now {
            self.now = (self.now * 2).min(longest);
        }
    }
}

#[cfg(test)]
mod tests;
