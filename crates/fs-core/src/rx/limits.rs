//! Rate limits of the packets that a core sends in response to packets without a connection.

use crate::flow::{FlowKey, Protocol};
use crate::rx::table::FlowHasher;
use crate::time::Instant;

/// Neighbour announcements per second. Far above what a link's real neighbours cause, and an upper bound
/// for what a flood causes.
const NEWS_PER_SECOND: u32 = 1024;

/// Replies to datagrams without a socket per second. More: a flood is answered to a forged source; fewer:
/// clients of a service that has ended wait longer for the error.
const REFUSALS_PER_SECOND: u32 = 1024;

/// Packets per second that no core claims, before the search among other cores stops for that
/// second. Each such packet costs a receive on every core. Too low: after a change of the device's
/// indirection table, connections whose packets arrive on other queues wait for retransmissions
/// during a flood. Too high: a flood costs us that multiple of what it costs its sender.
const STRAYS_PER_SECOND: u32 = 4096;

/// Remaining budgets of the current second.
#[derive(Debug)]
pub(crate) struct RateLimits {
    hasher: FlowHasher,
    second: u64,
    /// Challenge ACKs (RFC 5961 section 7).
    challenges_left: u32,
    news_left: u32,
    refusals_left: u32,
    strays_left: u32,
}

impl RateLimits {
    /// Makes the limits, with `challenges` for the first second.
    pub(crate) fn new(hasher: FlowHasher, challenges: u32) -> Self {
        Self {
            hasher,
            second: 0,
            challenges_left: challenges,
            news_left: NEWS_PER_SECOND,
            refusals_left: REFUSALS_PER_SECOND,
            strays_left: STRAYS_PER_SECOND,
        }
    }

    /// Takes a challenge ACK from the budget of about `limit` per second. Returns false if the
    /// budget is spent.
    pub(crate) fn take_challenge(&mut self, limit: u32, now: Instant) -> bool {
        self.refill(limit, now);
        let left = self.challenges_left.checked_sub(1);
        self.challenges_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Takes an announcement from its budget. `limit` as in [`RateLimits::take_challenge`].
    pub(crate) fn take_news(&mut self, limit: u32, now: Instant) -> bool {
        self.refill(limit, now);
        let left = self.news_left.checked_sub(1);
        self.news_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Takes a reply to a datagram without a socket from its budget. `limit` as in
    /// [`RateLimits::take_challenge`].
    pub(crate) fn take_refusal(&mut self, limit: u32, now: Instant) -> bool {
        self.refill(limit, now);
        let left = self.refusals_left.checked_sub(1);
        self.refusals_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Records a packet that no core has claimed.
    pub(crate) fn record_stray(&mut self) {
        self.strays_left = self.strays_left.saturating_sub(1);
    }

    /// Returns true if other cores may be asked for a packet's owner. `limit` as in
    /// [`RateLimits::take_challenge`].
    pub(crate) fn may_ask(&mut self, limit: u32, now: Instant) -> bool {
        self.refill(limit, now);
        self.strays_left > 0
    }

    fn refill(&mut self, limit: u32, now: Instant) {
        let second = now.as_millis() / 1000;
        if self.second == second {
            return;
        }
        self.second = second;
        // Half to one and a half times the limit. An attacker that counts missing replies must not
        // learn how many were sent to others (CVE-2016-5696).
        let anchor = FlowKey::V4 { local: second as u32, remote: limit, local_port: 0, remote_port: 1 };
        let spread = (self.hasher.hash(Protocol::Udp, &anchor) % (u64::from(limit) + 1)) as u32;
        self.challenges_left = (limit / 2).saturating_add(spread);
        (self.news_left, self.refusals_left, self.strays_left) =
            (NEWS_PER_SECOND, REFUSALS_PER_SECOND, STRAYS_PER_SECOND);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    #[test]
    fn datagrams_to_closed_ports_leave_what_cores_tell_each_other() {
        let mut limits = RateLimits::new(FlowHasher::new(&Secret([5; 32])), 3);
        let now = Instant::from_millis(1);
        let refused = (0..5000).filter(|_| limits.take_refusal(0, now)).count();
        assert_eq!(refused, REFUSALS_PER_SECOND as usize);
        assert!(limits.take_news(0, now));
    }

    #[test]
    fn challenge_limit_varies_by_second() {
        let mut limits = RateLimits::new(FlowHasher::new(&Secret([5; 32])), 3);
        let mut taken = |second: u64| {
            let now = Instant::from_millis(second * 1000 + 1);
            (0..1000).filter(|_| limits.take_challenge(100, now)).count()
        };
        assert_eq!(taken(0), 3, "what was given at the start");
        let counts: alloc::vec::Vec<_> = (1..20).map(&mut taken).collect();
        assert!(counts.iter().all(|n| (50..=150).contains(n)), "{counts:?}");
        assert!(counts.iter().any(|n| *n != counts[0]), "the limit varies by second");
        assert_eq!(taken(19), 0, "and no more in that second");
    }

    #[test]
    fn announcements_are_limited() {
        let mut limits = RateLimits::new(FlowHasher::new(&Secret([5; 32])), 0);
        let mut taken =
            |second: u64| (0..5000).filter(|_| limits.take_news(0, Instant::from_millis(second * 1000))).count();
        assert_eq!((taken(1), taken(1), taken(2)), (1024, 0, 1024));
    }
}
