//! Statistics of a connection that are not in its [`ConnectionStats`] yet. A connection of many is not in the cache when its
//! request comes, and each cache line of it that is needed costs as much as a tenth of the work: so what an ordinary
//! exchange of request and response changes in the statistics is kept in four bytes of the control block, and added later, many
//! at once.
//!
//! An exchange begins when a request that is all in one segment acknowledges the only segment that was out, the response
//! before, and is over when its own response leaves in the same turn. Whoever asks for the statistics otherwise (see
//! `tcb::slots`) gets them up to date, and the next exchanges are added one by one until a response of its own leaves again.

use crate::tcb::connection_stats::ConnectionStats;

/// See the module. All zero: nothing is deferred, and no exchange may begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeferredStats {
    /// The tick in which the latest response left, modulo 2^16. Whatever is out is seen to by a timer, long before that goes
    /// round.
    sent: u16,
    /// Ticks in which something was out, of the exchanges that are deferred.
    busy: u8,
    /// `OPEN`, `BEGUN`, and the number of exchanges that are over.
    state: u8,
}

/// A response is out, and when it left is known here.
const OPEN: u8 = 1 << 7;
/// Its ACK and the next request came in this turn.
const BEGUN: u8 = 1 << 6;
const COUNT: u8 = BEGUN - 1;

impl DeferredStats {
    /// A response is out, nothing else is, and no measure of the receive buffer has begun: an exchange may begin.
    #[inline(always)]
    pub(crate) fn is_open(self) -> bool {
        self.state & (OPEN | BEGUN) == OPEN
    }

    /// An exchange waits for its response.
    #[inline(always)]
    pub(crate) fn is_begun(self) -> bool {
        self.state & BEGUN != 0
    }

    /// There is no measure of the receive buffer: reading less than a segment has nothing to tell it.
    #[inline(always)]
    pub(crate) fn no_measure(self) -> bool {
        self.state & OPEN != 0
    }

    /// A response has left, which the statistics have ([`ConnectionStats::busy_anew`]); nothing else is out.
    #[inline(always)]
    pub(crate) fn open(&mut self, tick: u32) {
        *self = Self { sent: tick as u16, busy: 0, state: OPEN };
    }

    /// Ticks in which something was out, with the response that is.
    #[inline(always)]
    fn busy_until(self, tick: u32) -> u32 {
        u32::from(self.busy) + u32::from((tick as u16).wrapping_sub(self.sent))
    }

    /// A request that comes now may begin one. False: what is deferred must be added first, and this request too.
    #[inline(always)]
    pub(crate) fn may_begin(self, tick: u32) -> bool {
        self.is_open() && self.state & COUNT < COUNT && self.busy_until(tick) <= u32::from(u8::MAX)
    }

    /// A request has come, where one may begin, and the response before is acknowledged.
    #[inline(always)]
    pub(crate) fn begin(&mut self, tick: u32) {
        debug_assert!(self.may_begin(tick));
        (self.busy, self.state) = (self.busy_until(tick) as u8, self.state | BEGUN);
    }

    /// The response has left.
    #[inline(always)]
    pub(crate) fn end(&mut self, tick: u32) {
        debug_assert!(self.is_begun());
        self.sent = tick as u16;
        // The count is below its most, or none would have begun.
        self.state = (self.state & !BEGUN) + 1;
    }

    /// Adds what is deferred to the statistics. `tick`: now; what has begun did so in it.
    #[inline(always)]
    pub(crate) fn flush(&mut self, conn_stats: &mut ConnectionStats, tick: u32) {
        if self.state != 0 {
            self.flush_now(conn_stats, tick);
        }
    }

    #[inline(never)]
    fn flush_now(&mut self, conn_stats: &mut ConnectionStats, tick: u32) {
        let deferred = core::mem::take(self);
        if deferred.state & (BEGUN | COUNT) != 0 {
            deferred.add_to(conn_stats, tick);
        }
    }

    fn add_to(self, conn_stats: &mut ConnectionStats, tick: u32) {
        let sent = tick.wrapping_sub(u32::from((tick as u16).wrapping_sub(self.sent)));
        let over = u32::from(self.state & COUNT);
        let begun = self.is_begun();
        let received = if begun { tick } else { sent };
        conn_stats.exchanged(over, over + u32::from(begun), received, sent);
        conn_stats.was_busy(u32::from(self.busy), (!begun).then_some(sent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    fn at(tick: u32) -> Instant {
        Instant::from_nanos(u64::from(tick) << crate::timer::tick::TICK_SHIFT)
    }

    /// What an exchange adds without this: request and ACK in, response out.
    fn plainly(conn_stats: &mut ConnectionStats, tick: u32) {
        conn_stats.received(64, tick);
        conn_stats.delivered += 1;
        conn_stats.idle_if(true, tick);
        conn_stats.busy(tick);
        conn_stats.sent_data(tick);
    }

    /// Whenever they are asked for, the statistics are what they would be had each exchange been added at once.
    #[test]
    fn added_at_once_or_later_it_is_the_same() {
        for gap in [0, 1, 3, 7, 200, 254, 255, 256, 300, 65_534] {
            let (mut plain, mut late) = (ConnectionStats::default(), ConnectionStats::default());
            let mut deferred = DeferredStats::default();
            let mut tick = 65_000u32;
            let mut exchanges = 0;
            for i in 0..200 {
                tick = tick.wrapping_add(gap + u32::from(gap == 254 && i % 3 == 0));
                plainly(&mut plain, tick);
                if deferred.may_begin(tick) {
                    deferred.begin(tick);
                    let mut asked = late;
                    let mut copy = deferred;
                    copy.flush(&mut asked, tick);
                    assert_eq!(copy, DeferredStats::default());
                    assert_eq!((asked.segments_in, asked.segments_out), (plain.segments_in, plain.segments_out - 1));
                    assert_eq!(asked.busy_us(at(tick)), plain.busy_us(at(tick)), "{gap} {i}");
                    deferred.end(tick);
                    exchanges += 1;
                } else {
                    deferred.flush(&mut late, tick);
                    plainly(&mut late, tick);
                    deferred.open(tick);
                }
                let mut asked = late;
                let later = tick.wrapping_add(gap / 2);
                let mut copy = deferred;
                copy.flush(&mut asked, later);
                assert_eq!(asked, plain, "{gap} {i}");
                assert_eq!(asked.ages_ms(at(later)), plain.ages_ms(at(later)));
            }
            assert_eq!(exchanges > 0, gap <= 255, "{gap}");
        }
    }

    #[test]
    fn none_begins_where_none_may() {
        let mut conn_stats = ConnectionStats::default();
        let mut deferred = DeferredStats::default();
        assert!(!deferred.may_begin(1), "nothing is out");
        deferred.open(1);
        assert!(deferred.may_begin(1));
        deferred.begin(1);
        assert!(!deferred.may_begin(1), "one at a time");
        deferred.flush(&mut conn_stats, 1);
        assert!(!deferred.may_begin(2), "the statistics have more than this");
    }
}
