//! All deadlines of a core's connections and handshakes. One wheel entry represents a connection's
//! earliest deadline; delayed ACKs and paced bursts have their own queues.

use crate::tcb::Tcb;
use crate::tcb::cc::pacing::PacingQueue;
use crate::tcb::extension::FastPath;
use crate::time::Instant;
use crate::timer::fifo::Fifo;
use crate::timer::tick::{current_tick, tick_before, tick_instant};
use crate::timer::wheel::Wheel;
use alloc::vec::Vec;

/// The target of a wheel entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Connection { index: u32, generation: u32 },
    Handshake { index: u32, generation: u32 },
}

/// A connection by slot and generation. Entries of ended connections are skipped.
pub(crate) type Id = (u32, u32);

/// Deadlines of one core. See the module.
#[derive(Debug)]
pub(crate) struct Deadlines {
    wheel: Wheel<Token>,
    /// ACKs delayed in this turn. Those still unsent when the next turn begins move to
    /// `delayed_acks`.
    new_delays: Vec<Id>,
    delayed_acks: Fifo<Id>,
    paced: PacingQueue,
}

impl Deadlines {
    pub(crate) fn new() -> Self {
        Self {
            wheel: Wheel::new(Instant::ZERO),
            new_delays: Vec::new(),
            delayed_acks: Fifo::new(),
            paced: PacingQueue::default(),
        }
    }

    /// Wakes a connection or handshake at `at`.
    #[inline]
    pub(crate) fn wake(&mut self, at: Instant, token: Token) {
        self.wheel.insert(at, token);
    }

    /// Inserts a connection's earliest deadline into the wheel, unless an entry exists that is
    /// early enough.
    #[inline]
    pub(crate) fn arm(&mut self, tcb: &mut Tcb, index: u32, now: Instant) {
        // The common case: no extension, and no timer, or one that an entry represents. Executed
        // several times per packet.
        let stands = tcb.armed_at != 0 && tcb.timer.is_after(tcb.armed_at);
        if !tcb.ext.is_known_to_allow(FastPath::SCHEDULE) || tcb.timer_runs() && !stands {
            self.rearm(tcb, index, now);
        }
    }

    #[inline(never)]
    fn rearm(&mut self, tcb: &mut Tcb, index: u32, now: Instant) {
        let Some(deadline) = tcb.deadline(now) else { return };
        if tcb.armed_at != 0 && !tick_before(deadline, tcb.armed_at) {
            return;
        }
        if tcb.takes_later_entry(deadline, now) {
            return;
        }
        tcb.armed_at = deadline;
        let at = tick_instant(deadline, now).max(now);
        debug_assert!(tick_before(deadline, current_tick(at).wrapping_add(2)));
        self.wheel.insert(at, Token::Connection { index, generation: tcb.generation });
    }

    /// Adds the tokens that are due at `now` to `due`.
    #[inline]
    pub(crate) fn expire(&mut self, now: Instant, due: &mut Vec<Token>) {
        self.wheel.expire(now, due);
    }

    /// Delays a connection's ACK, so that data can carry it.
    #[inline(always)]
    pub(crate) fn delay_ack(&mut self, index: u32, generation: u32) {
        self.new_delays.push((index, generation));
    }

    #[inline]
    pub(crate) fn has_new_delays(&self) -> bool {
        !self.new_delays.is_empty()
    }

    /// Returns the connections whose ACKs were delayed in this turn.
    #[inline]
    pub(crate) fn new_delays(&self) -> &[Id] {
        &self.new_delays
    }

    /// Ends the turn. By now, data has carried most ACKs of interactive connections, which need no
    /// queue entry, and no cache miss when it ends. The others, selected by `waits`, are delayed
    /// until `until`.
    #[inline]
    pub(crate) fn keep_delays(&mut self, until: Instant, mut waits: impl FnMut(Id) -> bool) {
        let Self { new_delays, delayed_acks, .. } = self;
        for &id in new_delays.iter() {
            if waits(id) {
                delayed_acks.push(until, id);
            }
        }
        new_delays.clear();
    }

    /// Returns true if a delay has ended.
    #[inline]
    pub(crate) fn has_ended_delay(&self, now: Instant) -> bool {
        self.delayed_acks.next_deadline().is_some_and(|at| at <= now)
    }

    /// Returns the first `most` ended delays without removing them.
    #[inline]
    pub(crate) fn ended_delays(&self, now: Instant, most: usize) -> impl Iterator<Item = Id> + '_ {
        self.delayed_acks.due(now).take(most).copied()
    }

    /// Removes and returns an ended delay.
    #[inline]
    pub(crate) fn pop_delay(&mut self, now: Instant) -> Option<Id> {
        self.delayed_acks.pop_due(now)
    }

    /// Schedules a connection's next burst for `at`.
    pub(crate) fn pace(&mut self, at: Instant, index: u32, generation: u32) {
        self.paced.push(at, index, generation);
    }

    /// Removes and returns a connection whose next burst may leave.
    #[inline]
    pub(crate) fn pop_paced(&mut self, now: Instant) -> Option<Id> {
        self.paced.pop_due(now)
    }

    /// Returns the earliest deadline of the wheel, of the delayed ACKs, and of the bursts.
    #[inline]
    pub(crate) fn next(&self) -> [Option<Instant>; 3] {
        [self.wheel.next_deadline(), self.delayed_acks.next_deadline(), self.paced.next_deadline()]
    }

    /// Returns the wheel's entries for connections, by slot and generation, in whole ticks.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn of_connections(&self) -> alloc::collections::BTreeSet<(Id, u64)> {
        let entries = self.wheel.entries().filter_map(|(tick, token)| match token {
            Token::Connection { index, generation } => Some(((index, generation), tick)),
            Token::Handshake { .. } => None,
        });
        entries.collect()
    }

    /// Returns the number of entries of the wheel.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn len(&self) -> usize {
        self.wheel.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_end_in_order() {
        let at = Instant::from_millis;
        let mut deadlines = Deadlines::new();
        for index in 0..3 {
            deadlines.delay_ack(index, 7);
        }
        assert!(deadlines.has_new_delays() && deadlines.next() == [None; 3], "nothing is queued in the turn itself");
        deadlines.keep_delays(at(40), |(index, _)| index != 1);
        assert!(!deadlines.has_new_delays());
        assert_eq!((deadlines.next()[1], deadlines.pop_delay(at(39))), (Some(at(40)), None));
        assert_eq!(deadlines.ended_delays(at(40), 8).collect::<Vec<_>>(), [(0, 7), (2, 7)]);
        assert_eq!((deadlines.pop_delay(at(40)), deadlines.pop_delay(at(40))), (Some((0, 7)), Some((2, 7))));
        assert_eq!((deadlines.pop_delay(at(40)), deadlines.next()), (None, [None; 3]));
    }

    #[test]
    fn wakes_no_token_early() {
        let at = Instant::from_millis;
        let mut deadlines = Deadlines::new();
        let token = Token::Handshake { index: 1, generation: 2 };
        deadlines.wake(at(1000), token);
        deadlines.pace(at(5), 4, 1);
        assert_eq!(deadlines.next()[2], Some(at(5)));
        assert_eq!((deadlines.pop_paced(at(4)), deadlines.pop_paced(at(5))), (None, Some((4, 1))));
        let mut due = Vec::new();
        deadlines.expire(at(900), &mut due);
        assert!(due.is_empty(), "no token is due early");
        deadlines.expire(at(1100), &mut due);
        assert_eq!(due, [token]);
        assert_eq!(deadlines.len(), 0);
    }
}
