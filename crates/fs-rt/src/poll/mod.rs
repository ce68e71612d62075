//! Decides what a core does without work. The [`Poller`] is asked in every turn. [`PollPolicy`]
//! limits its decisions.
//!
//! | input | used for |
//! |---|---|
//! | the time of the turn, and whether it did any work | the length of gaps: [`spin`] |
//! | events of connections; packets and bytes that the stack has counted | the kind of load: [`coalesce`] |
//! | whether a poll found packets | when the next poll is due |
//! | preemptions, runnable threads, CPU time of others, at times | whether other threads want the CPU: [`spin`] |
//! | whether there are sources, which ring the core's doorbell | whether a timed sleep is allowed |
//! | whether links have packets that wait for the next poll | whether the core may sleep |
//! | whether something can happen that wakes nobody | how long a sleep may last |
//!
//! | output | decides |
//! |---|---|
//! | [`Poller::is_poll_due`] | whether this turn polls the links |
//! | [`Poller::on_idle`] | poll again, yield the CPU, sleep for a fixed time, or sleep until an event: [`Idle`] |
//! | [`Poller::leaves_epoll`] | whether the links' descriptors leave the epoll set |
//! | [`Poller::longest_sleep`] | when a sleep ends at the latest |
//!
//! Nothing here reads the clock or makes a system call: `simulated.rs` tests it with loads in
//! virtual time.

mod coalesce;
mod policy;
mod spin;

use crate::sys::Contention;
use coalesce::Coalescing;
use fs_core::{Instant, Stats};
pub use policy::PollPolicy;
use spin::Spin;
use std::time::Duration;

/// Idle time after which a core yields its CPU to waiting threads (sched_yield(2)) before each
/// poll: the packets that it waits for may be those that these threads would send (decision 0010).
/// If no thread waits, it costs 0.3 µs. Shorter: the reply of a peer that spins too is found later.
const YIELD_AFTER: Duration = Duration::from_micros(4);

/// Time awake after which a core takes the links' descriptors out of the epoll set, until it
/// sleeps. With a waiter there, the kernel takes the wait queue's lock and calls the waiter twice
/// per packet: when it arrives, and when a sent one is freed (9 % of the sender's core in a stream
/// of full segments). Shorter: cores that sleep often pay the 2 µs of adding them again more often.
const UNWATCHED_AFTER: Duration = Duration::from_millis(1);

/// Longest sleep if something may happen that wakes nobody: a link has no descriptor to wait on, its
/// send ring is full, the kernel has not taken all of it, packets wait for frames, or messages for
/// room in another core's mailbox. It is the resolution of tokio's timer.
const SLEEP_WITHOUT_EVENTS_MAX: Duration = Duration::from_millis(1);

/// Longest sleep. The descriptor of a removed device never becomes readable, so the core must
/// check. Costs about 20 µs per second. Longer: a dead device is noticed later.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The action of a core without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Polls again.
    Poll,
    /// Yields its CPU to other threads, and polls again.
    Yield,
    /// Sleeps for at most this time, and no event ends it.
    TimedSleep(Duration),
    /// Sleeps until an event.
    Sleep,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Poller {
    policy: PollPolicy,
    spin: Spin,
    coalescing: Coalescing,
    /// Start of the idle time; `None`: there is work.
    idle_since: Option<Instant>,
    /// The time of the last sleep's end.
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

    /// Returns whether [`Poller::on_idle`] needs to know what others use of the core's only CPU.
    pub(crate) fn is_pinned(&self) -> bool {
        self.policy.yield_cpu
    }

    /// Records an event of the connection in `slot`.
    #[inline]
    pub(crate) fn on_event(&mut self, slot: u32) {
        self.coalescing.on_event(slot);
    }

    /// Returns whether to poll the links in this turn; `stats` are the core's.
    #[inline]
    pub(crate) fn is_poll_due(&mut self, now: Instant, stats: &Stats) -> bool {
        self.coalescing.is_poll_due(now, stats)
    }

    /// Records that a poll found packets.
    #[inline]
    pub(crate) fn found_packets(&mut self, now: Instant) {
        self.coalescing.found_packets(now);
    }

    /// Returns how often coalescing has started.
    pub(crate) fn coalescings(&self) -> u64 {
        self.coalescing.begun
    }

    /// Returns true if an earlier turn found no work: the core may have slept.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.idle_since.is_some()
    }

    /// Records a turn that did work.
    #[inline]
    pub(crate) fn on_work(&mut self, now: Instant) {
        if let Some(since) = self.idle_since.take() {
            self.spin.idle_ended(now.since(since));
        }
    }

    /// Decides after a turn without work. `sources`: the core has some. `contention` asks the
    /// kernel, at times. `packets` returns whether the links have packets that were left for the
    /// next poll.
    #[inline]
    pub(crate) fn on_idle(
        &mut self,
        now: Instant,
        sources: bool,
        contention: impl FnOnce() -> Contention,
        packets: impl FnOnce() -> bool,
    ) -> Idle {
        if !self.policy.sleep {
            return Idle::Poll;
        }
        if self.idle_since.is_none() {
            self.spin.idle_begins(now, contention);
        }
        let idle = now.since(*self.idle_since.get_or_insert(now));
        let spin = self.spin.time();
        if idle < self.coalescing.spin(spin) {
            return if self.policy.yield_cpu && idle >= YIELD_AFTER { Idle::Yield } else { Idle::Poll };
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
                // Other threads want the CPU, so do not wait.
                self.coalescing.end_interval();
            }
            return Idle::Poll;
        }
        Idle::Sleep
    }

    /// Records that the core sleeps now.
    pub(crate) fn on_sleep(&mut self) {
        self.awake_since = None;
    }

    /// Records that work arrived when the core was about to sleep.
    pub(crate) fn on_sleep_refused(&mut self, now: Instant) {
        self.idle_since = None;
        // So that failed attempts do not add the descriptors to the epoll set and remove them each
        // time.
        self.awake_since = Some(now);
    }

    /// Returns whether the links' descriptors should be out of the epoll set. Called in every turn.
    #[inline]
    pub(crate) fn leaves_epoll(&mut self, now: Instant) -> bool {
        now.since(*self.awake_since.get_or_insert(now)) >= UNWATCHED_AFTER && self.policy.leave_epoll
    }

    /// Returns the time for which the core may sleep. `without_events`: something may happen that
    /// wakes nobody.
    pub(crate) fn longest_sleep(&self, without_events: bool) -> Duration {
        if without_events { SLEEP_WITHOUT_EVENTS_MAX } else { SLEEP_MAX }
    }
}

#[cfg(test)]
mod simulated;
