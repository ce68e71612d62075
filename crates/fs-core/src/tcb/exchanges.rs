//! Requests and responses that the [`Tally`] has not been told of. A connection of many is not in the cache when its
//! request comes, and each cache line of it that is needed costs as much as a tenth of the work: so what an ordinary
//! exchange changes in the tally is kept in four bytes of the control block, and told later, many at once.
//!
//! An exchange begins when a request that is all in one segment acknowledges the only segment that was out, the response
//! before, and is over when its own response leaves in the same turn. Whoever asks for the tally otherwise (see
//! `stack::Slots`) gets it up to date, and the next exchanges are told one by one until a response of its own leaves again.

use crate::tcb::tally::Tally;

/// See the module. Nothing untold, and no exchange may begin: all zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exchanges {
    /// The tick in which the latest response left, modulo 2^16. Whatever is out is seen to by a timer, long before that goes
    /// round.
    sent: u16,
    /// Ticks in which something was out, of those that are untold.
    busy: u8,
    /// `OPEN`, `BEGUN`, and the number of exchanges that are over.
    state: u8,
}

/// A response is out, and when it left is known here.
const OPEN: u8 = 1 << 7;
/// Its ACK and the next request came in this turn.
const BEGUN: u8 = 1 << 6;
const COUNT: u8 = BEGUN - 1;

impl Exchanges {
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

    /// A response has left, of which the tally was told ([`Tally::busy_anew`]); nothing else is out.
    #[inline(always)]
    pub(crate) fn open(&mut self, tick: u32) {
        *self = Self { sent: tick as u16, busy: 0, state: OPEN };
    }

    /// Ticks in which something was out, with the response that is.
    #[inline(always)]
    fn busy_until(self, tick: u32) -> u32 {
        u32::from(self.busy) + u32::from((tick as u16).wrapping_sub(self.sent))
    }

    /// A request that comes now may begin one. False: the tally must be told first, and of this request.
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

    /// Tells the tally. `tick`: now; what has begun did so in it.
    #[inline(always)]
    pub(crate) fn tell(&mut self, tally: &mut Tally, tick: u32) {
        if self.state != 0 {
            self.tell_all(tally, tick);
        }
    }

    #[inline(never)]
    fn tell_all(&mut self, tally: &mut Tally, tick: u32) {
        let told = core::mem::take(self);
        if told.state & (BEGUN | COUNT) != 0 {
            told.count_in(tally, tick);
        }
    }

    fn count_in(self, tally: &mut Tally, tick: u32) {
        let sent = tick.wrapping_sub(u32::from((tick as u16).wrapping_sub(self.sent)));
        let over = u32::from(self.state & COUNT);
        let begun = self.is_begun();
        let received = if begun { tick } else { sent };
        tally.exchanged(over, over + u32::from(begun), received, sent);
        tally.was_busy(u32::from(self.busy), (!begun).then_some(sent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    fn at(tick: u32) -> Instant {
        Instant::from_nanos(u64::from(tick) << crate::timer::tick::TICK_SHIFT)
    }

    /// What an exchange is booked as without this: request and ACK in, response out.
    fn plainly(tally: &mut Tally, tick: u32) {
        tally.received(64, tick);
        tally.delivered += 1;
        tally.idle_if(true, tick);
        tally.busy(tick);
        tally.sent_data(tick);
    }

    /// Whenever it is asked, the tally says what it would say had it been told each time.
    #[test]
    fn told_at_once_or_later_it_is_the_same() {
        for gap in [0, 1, 3, 7, 200, 254, 255, 256, 300, 65_534] {
            let (mut plain, mut late) = (Tally::default(), Tally::default());
            let mut exchanges = Exchanges::default();
            let mut tick = 65_000u32;
            let mut untold = 0;
            for i in 0..200 {
                tick = tick.wrapping_add(gap + u32::from(gap == 254 && i % 3 == 0));
                plainly(&mut plain, tick);
                if exchanges.may_begin(tick) {
                    exchanges.begin(tick);
                    let mut asked = late;
                    let mut copy = exchanges;
                    copy.tell(&mut asked, tick);
                    assert_eq!(copy, Exchanges::default());
                    assert_eq!((asked.segments_in, asked.segments_out), (plain.segments_in, plain.segments_out - 1));
                    assert_eq!(asked.busy_us(at(tick)), plain.busy_us(at(tick)), "{gap} {i}");
                    exchanges.end(tick);
                    untold += 1;
                } else {
                    exchanges.tell(&mut late, tick);
                    plainly(&mut late, tick);
                    exchanges.open(tick);
                }
                let mut asked = late;
                let later = tick.wrapping_add(gap / 2);
                let mut copy = exchanges;
                copy.tell(&mut asked, later);
                assert_eq!(asked, plain, "{gap} {i}");
                assert_eq!(asked.ages_ms(at(later)), plain.ages_ms(at(later)));
            }
            assert_eq!(untold > 0, gap <= 255, "{gap}");
        }
    }

    #[test]
    fn none_begins_where_none_may() {
        let mut tally = Tally::default();
        let mut exchanges = Exchanges::default();
        assert!(!exchanges.may_begin(1), "nothing is out");
        exchanges.open(1);
        assert!(exchanges.may_begin(1));
        exchanges.begin(1);
        assert!(!exchanges.may_begin(1), "one at a time");
        exchanges.tell(&mut tally, 1);
        assert!(!exchanges.may_begin(2), "the tally knows more than this");
    }
}
