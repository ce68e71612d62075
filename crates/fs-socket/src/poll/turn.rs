//! When a thread that waits in epoll_wait lets others run.
//!
//! A thread whose looks all pay never sleeps. Others on its CPU, which may be those that its own peer waits for, would
//! run when the scheduler's tick ends its time slice, 4 ms later; on the kernel's sockets it would have slept long before. So it
//! gives the CPU up by itself every [`TURN_NS`]. `docs/decisions/0011` has the evidence.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::process::now;

/// How long a thread keeps the CPU before it yields. Longer: its neighbours' slowest answers. Shorter: their caches, and
/// a system call (some tenths of a µs where nobody waits for the CPU).
const TURN_NS: u64 = 250_000;
/// How long it goes without a sleep; then it sleeps as soon as nothing is ready. A yield passes the CPU on only within a
/// group of processes (cgroup, session).
const AWAKE_NS: u64 = 1_000_000;
/// A yield that took longer has not run those who yield too, but somebody who keeps the CPU until the tick.
const LONG_YIELD_NS: u64 = 1_000_000;
/// For how long nothing is yielded after one. Shorter: such a neighbour takes more than its share.
const CROWDED_NS: u64 = 100_000_000;

/// One waiter's times, on the clock of [`now`].
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// When it last let others run; after a long yield, until when it does not yield.
    gave: AtomicU64,
    /// When it last slept.
    slept: AtomicU64,
}

impl Turn {
    /// It has slept.
    pub(crate) fn slept(&self, now: u64) {
        self.slept.store(now, Relaxed);
        self.gave.fetch_max(now, Relaxed);
    }

    /// Lets others run, if it is time to.
    #[inline]
    pub(crate) fn give(&self, before: u64) {
        if self.is_over(before) {
            fs_shm::wait::give_way();
            self.gave(before, now());
        }
    }

    fn is_over(&self, now: u64) -> bool {
        now.saturating_sub(self.gave.load(Relaxed)) > TURN_NS
    }

    fn gave(&self, before: u64, after: u64) {
        let crowded = after.saturating_sub(before) > LONG_YIELD_NS;
        self.gave.store(if crowded { after + CROWDED_NS } else { after }, Relaxed);
    }

    /// Whether it may look on with nothing ready. On a crowded CPU not after a turn without a sleep.
    pub(crate) fn may_look(&self, now: u64) -> bool {
        let crowded = self.gave.load(Relaxed) > now;
        now.saturating_sub(self.slept.load(Relaxed)) <= if crowded { TURN_NS } else { AWAKE_NS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_after_a_while() {
        let turn = Turn::default();
        turn.slept(1_000_000);
        assert!(!turn.is_over(1_000_000 + TURN_NS));
        assert!(turn.is_over(1_000_001 + TURN_NS));
        // Others have run, for a moment each.
        turn.gave(2_000_000, 2_500_000);
        assert!(!turn.is_over(2_500_000 + TURN_NS));
        assert!(turn.is_over(2_500_001 + TURN_NS));
    }

    #[test]
    fn nothing_is_yielded_to_those_who_keep_the_cpu() {
        let turn = Turn::default();
        turn.slept(1_000_000);
        let after = 2_000_001 + LONG_YIELD_NS;
        turn.gave(2_000_000, after);
        assert!(!turn.is_over(after + CROWDED_NS));
        // A sleep in between does not end that.
        turn.slept(after + 1);
        assert!(!turn.is_over(after + CROWDED_NS));
        assert!(turn.is_over(after + CROWDED_NS + TURN_NS + 1));
    }

    #[test]
    fn who_is_awake_for_long_sleeps_when_nothing_is_ready() {
        let turn = Turn::default();
        turn.slept(1_000_000);
        assert!(turn.may_look(1_000_000 + AWAKE_NS));
        assert!(!turn.may_look(1_000_001 + AWAKE_NS));
        turn.gave(1_000_000, 2_000_001 + LONG_YIELD_NS);
        turn.slept(9_000_000);
        assert!(turn.may_look(9_000_000 + TURN_NS));
        assert!(!turn.may_look(9_000_001 + TURN_NS));
    }
}
