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
//! threads than CPUs. (Pinned cores do: a sleeper that may wake on one CPU only has to displace a
//! thread there, which costs more than the spin; measured in `tests/src/bin/unmodified_bench.rs`,
//! the wire row.)

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

/// See the module.
#[derive(Debug)]
pub(crate) struct Spin {
    shortest: Duration,
    now: Duration,
    adapts: bool,
    shared: Option<Sharing>,
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
    fn update(&mut self, now: Instant, Contention { preemptions, crowded }: Contention) {
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
        let state = Sharing { checked_at: Instant::ZERO, preemptions: 0, crowded: 0, wanted: false, hold: HOLD / 2 };
        let (spin, shared) = (policy.spin, policy.give_way.then_some(state));
        Self { shortest: spin, now: spin, adapts: policy.adapt_spin, shared }
    }

    /// Returns the idle time after which the core sleeps.
    pub(crate) fn time(&self) -> Duration {
        if self.shared.as_ref().is_some_and(|shared| shared.wanted) { Duration::ZERO } else { self.now }
    }

    /// Records that the core has no more work. Calls `ask` at times.
    #[inline]
    pub(crate) fn idle_begins(&mut self, now: Instant, ask: impl FnOnce() -> Contention) {
        if let Some(shared) = &mut self.shared
            && now.since(shared.checked_at) >= if shared.wanted { shared.hold } else { CHECK }
        {
            shared.update(now, ask());
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
