//! Rate limits of what packets of no connection, or of nobody known, make a core send.

use crate::flow::{FlowKey, Protocol};
use crate::rx::table::FlowHasher;
use crate::time::Instant;

/// News of neighbours, and answers to datagrams for nobody, a second: far above what a link's real neighbours cause, and
/// a bound for what a flood can.
const NEWS_PER_SECOND: u32 = 1024;

/// Packets a second that were at all cores and are nobody's, before others are asked about no more in that second. Each costs a receive
/// on every core. Fewer: connections whose packets come by other queues since the device's table was changed wait for their peers to
/// send again while somebody floods. More: a flood costs as many times what it costs its sender.
const STRAYS_PER_SECOND: u32 = 4096;

/// Counts what is left of the current second.
#[derive(Debug)]
pub(crate) struct RateLimits {
    hasher: FlowHasher,
    second: u64,
    /// Challenge ACKs (RFC 5961 section 7).
    challenges_left: u32,
    news_left: u32,
    strays_left: u32,
}

impl RateLimits {
    /// `challenges`: of the first second.
    pub(crate) fn new(hasher: FlowHasher, challenges: u32) -> Self {
        Self {
            hasher,
            second: 0,
            challenges_left: challenges,
            news_left: NEWS_PER_SECOND,
            strays_left: STRAYS_PER_SECOND,
        }
    }

    /// A challenge ACK may go, and counts as gone; `limit`: about how many a second may.
    pub(crate) fn take_challenge(&mut self, limit: u32, now: Instant) -> bool {
        self.refill(limit, now);
        let left = self.challenges_left.checked_sub(1);
        self.challenges_left = left.unwrap_or(0);
        left.is_some()
    }

    /// News may go, and count as gone; `limit` as in [`RateLimits::take_challenge`].
    pub(crate) fn take_news(&mut self, limit: u32, now: Instant) -> bool {
        self.refill(limit, now);
        let left = self.news_left.checked_sub(1);
        self.news_left = left.unwrap_or(0);
        left.is_some()
    }

    /// A packet was asked about in vain.
    pub(crate) fn record_stray(&mut self) {
        self.strays_left = self.strays_left.saturating_sub(1);
    }

    /// Whether others may be asked about a packet; `limit` as in [`RateLimits::take_challenge`].
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
        // Half of it to one and a half times as much: who counts the answers that are missing must not learn how many
        // others got (CVE-2016-5696).
        let anchor = FlowKey::V4 { local: second as u32, remote: limit, local_port: 0, remote_port: 1 };
        let spread = (self.hasher.hash(Protocol::Udp, &anchor) % (u64::from(limit) + 1)) as u32;
        self.challenges_left = (limit / 2).saturating_add(spread);
        (self.news_left, self.strays_left) = (NEWS_PER_SECOND, STRAYS_PER_SECOND);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    #[test]
    fn each_second_has_its_own_number_of_challenges() {
        let mut limits = RateLimits::new(FlowHasher::new(&Secret([5; 32])), 3);
        let mut taken = |second: u64| {
            let now = Instant::from_millis(second * 1000 + 1);
            (0..1000).filter(|_| limits.take_challenge(100, now)).count()
        };
        assert_eq!(taken(0), 3, "what was given at the start");
        let counts: alloc::vec::Vec<_> = (1..20).map(&mut taken).collect();
        assert!(counts.iter().all(|n| (50..=150).contains(n)), "{counts:?}");
        assert!(counts.iter().any(|n| *n != counts[0]), "nobody can tell how many there are");
        assert_eq!(taken(19), 0, "and no more in that second");
    }

    #[test]
    fn news_are_bounded() {
        let mut limits = RateLimits::new(FlowHasher::new(&Secret([5; 32])), 0);
        let mut taken =
            |second: u64| (0..5000).filter(|_| limits.take_news(0, Instant::from_millis(second * 1000))).count();
        assert_eq!((taken(1), taken(1), taken(2)), (1024, 0, 1024));
    }
}
