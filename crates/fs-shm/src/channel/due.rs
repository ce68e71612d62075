//! What becomes of a connection between processes when a time is over, as TCP's timers have it. No process has a timer of its
//! own for it: the daemon looks, when it was asked to.

use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::close::Locks;
use super::state::Phase;
use super::{Channel, DEFERRED};
use crate::holder::{self, Sending};
use crate::layout::Side;

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

impl Channel<'_> {
    /// The daemon is to see to this side then, if what it waits for has not happened before: room in the acceptor's queue, its
    /// first bytes, or the end of what it holds back.
    pub fn set_due(&self, at: u64) {
        self.tx().tx.due.store(at, Relaxed);
    }

    /// When that is; 0: not at all.
    pub fn due(&self) -> u64 {
        self.tx().tx.due.load(Relaxed)
    }

    /// It waits for room in its acceptor's queue (side A).
    pub fn is_kept_out(&self) -> bool {
        let is_connecting = self.state().is_some_and(|state| state.phase() == Phase::Connecting);
        self.side() == Side::A && is_connecting && !self.is_wire()
    }

    /// The daemon: does what is due at `now`; answers in how many nanoseconds it is to look again.
    pub fn see_to(&self, now: u64) -> Option<u64> {
        let due = self.tx().tx.due.load(Relaxed);
        let _state = self.state().filter(|_| due != 0)?;
        let is_deferred = self.own().flags.load(Relaxed) & DEFERRED != 0;
        let is_kept_out = self.is_kept_out();
        let is_holding = self.is_holding();
        if !is_deferred && !is_kept_out && !is_holding {
            return None;
        }
        let left = due.saturating_sub(now);
        // Longer than any of these times: another clock's, or a scribble.
        if left != 0 && left < LONGEST {
            return Some(left);
        }
        self.set_due(0);
        if is_holding {
            match holder::try_lock(&self.locks().send).map(|held| Sending::new(held, self.writer())) {
                Some(_held) => self.let_go_locked(),
                None => {
                    self.set_due(now.max(1));
                    return Some(SOON);
                }
            }
        } else if is_deferred {
            self.announce_deferred(Locks::Break);
            if self.own().flags.load(Relaxed) & DEFERRED != 0 {
                self.set_due(now.max(1));
                return Some(SOON);
            }
        } else {
            self.fail_connecting(Errno::TIMEDOUT);
        }
        None
    }
}

/// Ten milliseconds: until a lock is free.
const SOON: u64 = 10_000_000;
/// An hour.
const LONGEST: u64 = 3_600_000_000_000;
