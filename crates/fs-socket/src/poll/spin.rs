//! How long to look before sleeping.
//!
//! A sleep and a wake-up cost some 10 µs between two processes; a peer on another CPU answers a short request in a few.
//! So it is worth looking for a while, if that has paid lately: a look that ended with an event doubles the next one, one
//! in vain halves it. A thread with nothing to do stops looking after five sleeps, but for a try now and then.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::turn::Turn;
use crate::process::now;

/// First look, and what a try costs. Shorter: a peer that needs 5 µs is missed when the machine is a little busy.
const START_NS: u32 = 20_000;
/// Longest look. Longer: a server with little to do burns its CPU.
const MAX_NS: u32 = 60_000;
/// Below this it is not worth reading the clock.
const MIN_NS: u32 = 1_500;
/// Sleeps between two tries of one who has given up.
const RETRY: u32 = 32;
/// Looks between two reads of the clock.
const LOOKS: u32 = 16;

/// What one waiter has learnt.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Nanoseconds + 1; 0: new.
    budget: AtomicU32,
    skipped: AtomicU32,
}

impl Spin {
    pub(crate) const fn new() -> Self {
        Spin { budget: AtomicU32::new(0), skipped: AtomicU32::new(0) }
    }

    /// It is another waiter's from now on.
    pub(crate) fn forget(&self) {
        self.budget.store(0, Relaxed);
        self.skipped.store(0, Relaxed);
    }

    /// Looks until `ready` or the budget is used up. The CPU is not given up between looks (but see
    /// [`Turn`]): on a busy machine others would keep it for milliseconds, while a sleeper that is woken gets it at once. A
    /// peer that waits for this very CPU makes looks futile, and they become short.
    pub(crate) fn look(&self, deadline: Option<u64>, turn: Option<&Turn>, ready: impl Fn() -> bool) -> bool {
        let mut budget = match self.budget.load(Relaxed) {
            0 => START_NS,
            budget => budget - 1,
        };
        if budget < MIN_NS {
            if self.skipped.fetch_add(1, Relaxed) % RETRY != RETRY - 1 {
                return false;
            }
            budget = START_NS / 2;
        }
        let begin = now();
        if turn.is_some_and(|turn| !turn.may_look(begin)) {
            return false;
        }
        let end = begin + u64::from(budget);
        let end = deadline.map_or(end, |deadline| deadline.min(end));
        loop {
            for _ in 0..LOOKS {
                if ready() {
                    self.budget.store((budget * 2).min(MAX_NS) + 1, Relaxed);
                    return true;
                }
                core::hint::spin_loop();
            }
            let now = now();
            if now >= end {
                self.budget.store(budget / 2 + 1, Relaxed);
                return false;
            }
            if let Some(turn) = turn {
                turn.give(now);
            }
        }
    }
}
