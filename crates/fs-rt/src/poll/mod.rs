//! What a core does when there is nothing to do. The [`Poller`] is asked in every turn; [`PollPolicy`] says what it may answer.
//!
//! | what it is told | what for |
//! |---|---|
//! | the time of the turn, and whether it did any work | how long the gaps are: [`spin`] |
//! | events of connections; packets and bytes that the stack has counted | how many share the core: [`coalesce`] |
//! | whether a look found packets | when the next look is due |
//! | preemptions and runnable threads, at times | whether others want the CPU: [`spin`] |
//! | whether there are sources, which ring the core | whether a sleep may be one that nothing ends |
//!
//! | what it answers | |
//! |---|---|
//! | [`Poller::is_look_due`] | whether this turn looks at the links |
//! | [`Poller::on_idle`] | look again, offer the CPU, sleep by the clock, or sleep until something comes: [`Idle`] |
//! | [`Poller::leaves_epoll`] | whether the links' descriptors leave the epoll set |
//!
//! Nothing here asks for the time or makes a system call: `simulated.rs` plays loads against it in virtual time.

mod coalesce;
mod policy;
mod spin;

use crate::sys::Contention;
use coalesce::Coalescing;
use fs_core::{Instant, Stats};
pub use policy::PollPolicy;
use spin::Spin;
use std::time::Duration;

/// A core that finds nothing for so long offers its CPU to who waits for it (sched_yield(2)), and looks again: what
/// it waits for may be what they would send (decision 0010). Nobody waits: 0.3 µs. Shorter: the answer of a peer that spins
/// as well is met later.
const YIELD_AFTER: Duration = Duration::from_micros(4);

/// A core that has not slept for so long takes the links' descriptors out of the epoll set until it does: with a waiter
/// there the kernel takes the wait queue's lock and asks the waiter twice a packet, when it arrives and when a sent one
/// is freed (9 % of the sender's core in a stream of full segments). Shorter: cores that sleep often pay the 2 µs of
/// putting them back in more often.
const UNWATCHED_AFTER: Duration = Duration::from_millis(1);

/// What a core without work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Looks again.
    Look,
    /// Offers its CPU to others, and looks again.
    Yield,
    /// Sleeps by the clock, for so long at most, whatever comes.
    TimedSleep(Duration),
    /// Sleeps until something comes.
    Sleep,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Poller {
    policy: PollPolicy,
    spin: Spin,
    coalescing: Coalescing,
    /// Since when there is no work; `None`: there is some.
    idle_since: Option<Instant>,
    /// Since when the core has not slept.
    awake_since: Option<Instant>,
}

impl Poller {
    pub(crate) fn new(policy: PollPolicy) -> Self {
        Self {
            policy,
            spin: Spin::new(&policy),
            coalescing: Coalescing::new(&policy),
            idle_since: None,
            awake_since: None,
        }
    }

    /// An event of the connection in `slot`.
    #[inline]
    pub(crate) fn on_event(&mut self, slot: u32) {
        self.coalescing.on_event(slot);
    }

    /// Whether the links are to be looked at in this turn; `stats` are the core's.
    #[inline]
    pub(crate) fn is_look_due(&mut self, now: Instant, stats: &Stats) -> bool {
        self.coalescing.is_look_due(now, stats)
    }

    /// A look found packets.
    #[inline]
    pub(crate) fn found_packets(&mut self, now: Instant) {
        self.coalescing.found_packets(now);
    }

    /// Times that coalescing has begun.
    pub(crate) fn coalescings(&self) -> u64 {
        self.coalescing.begun
    }

    /// The core has nothing to do since an earlier turn: it may have slept.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.idle_since.is_some()
    }

    /// A turn did some work.
    #[inline]
    pub(crate) fn on_work(&mut self, now: Instant) {
        if let Some(since) = self.idle_since.take() {
            self.spin.idle_ended(now.since(since));
        }
    }

    /// A turn did none. `sources`: the core has some. `contention` asks the kernel, which is done at times. `packets` tells whether the links
    /// have any that were left until the next look is due.
    #[inline]
    pub(crate) fn on_idle(
        &mut self,
        now: Instant,
        sources: bool,
        contention: impl FnOnce() -> Contention,
        packets: impl FnOnce() -> bool,
    ) -> Idle {
        if !self.policy.sleep {
            return Idle::Look;
        }
        if self.idle_since.is_none() {
            self.spin.idle_begins(now, contention);
        }
        let idle = now.since(*self.idle_since.get_or_insert(now));
        let spin = self.spin.time();
        if idle < self.coalescing.spin(spin) {
            return if self.policy.yield_cpu && idle >= YIELD_AFTER { Idle::Yield } else { Idle::Look };
        }
        if !spin.is_zero()
            && !sources
            && let Some(time) = self.coalescing.timed_sleep(now)
        {
            self.idle_since = None;
            return Idle::TimedSleep(time);
        }
        if packets() {
            if spin.is_zero() {
                // The CPU is wanted by others: it is not spent on waiting.
                self.coalescing.end_interval();
            }
            return Idle::Look;
        }
        Idle::Sleep
    }

    /// The core sleeps now.
    pub(crate) fn on_sleep(&mut self) {
        self.awake_since = None;
    }

    /// There was work when the core was about to sleep.
    pub(crate) fn on_sleep_refused(&mut self, now: Instant) {
        self.idle_since = None;
        // The descriptors are not put into the epoll set and taken out with each try.
        self.awake_since = Some(now);
    }

    /// Whether the links' descriptors are to be out of the epoll set. Asked in every turn.
    #[inline]
    pub(crate) fn leaves_epoll(&mut self, now: Instant) -> bool {
        now.since(*self.awake_since.get_or_insert(now)) >= UNWATCHED_AFTER && self.policy.leave_epoll
    }
}

#[cfg(test)]
mod simulated;
