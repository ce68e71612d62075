//! Choice of the next segment: lost segments first, then new ones, within the congestion window
//! (RFC 5681), the peer's window with silly-window avoidance (RFC 9293 3.8.6.2.1) and Nagle's
//! algorithm (RFC 9293 3.7.4).

use super::segment::{TxSegment, mark};
use super::store::TxStore;
use crate::config::TcpConfig;
use crate::frame::FramePool;
use crate::slab::NIL;
use crate::stats::Stats;
use crate::tcb::Tcb;
use crate::tcb::extension::Recovery;
use crate::tcb::flags::Flags;
use crate::tcb::timer_kind::TimerKind;
use crate::time::Instant;

/// The segmenter's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Retransmit this segment.
    Again(u32),
    /// Send this segment for the first time.
    New(u32),
    /// Nothing may be sent now.
    Nothing,
}

impl Tcb {
    /// Chooses the next segment. May split one to fit the window or a reduced path MTU.
    #[inline]
    pub(crate) fn next_segment<P: FramePool>(&mut self, store: &mut TxStore, pool: &mut P) -> Next {
        if self.has_lost() {
            return self.next_in_trouble(store, pool);
        }
        let flight = self.flight();
        if !self.has_unsent() || flight > 0 && flight >= self.send_window() {
            return Next::Nothing;
        }
        self.next_new(store, pool)
    }

    /// Chooses a probe or a lost segment, which have priority over new data.
    #[cold]
    fn next_in_trouble<P: FramePool>(&mut self, store: &mut TxStore, pool: &mut P) -> Next {
        let (due, new_first) = self.loss().map_or((false, false), |l| (l.probe.due, l.undo.new_data_first));
        if due {
            let next = self.next_probe(store, pool);
            if next == Next::Nothing {
                self.loss_mut().probe.due = false;
            }
            return next;
        }
        let (flight, cwnd) = (self.flight(), self.window.cwnd);
        let full = flight > 0 && flight >= cwnd && !self.flags.has(Flags::PUSH_OUT);
        if new_first {
            // F-RTO step 2b: two segments of new data; if none can be sent, lost ones are.
            let sent = matches!(self.recovery(), Recovery::Loss { high } if self.snd.nxt().after(high));
            let next = if full { Next::Nothing } else { self.next_new(store, pool) };
            if next != Next::Nothing || sent {
                return next;
            }
            let undo = &mut self.loss_mut().undo;
            (undo.frto, undo.new_data_first) = (false, false);
        }
        match self.next_lost(store) {
            Some(_) if full => Next::Nothing,
            Some(index) if self.fit(store, pool, index) => Next::Again(index),
            Some(_) => Next::Nothing,
            None if flight > 0 && flight >= cwnd => Next::Nothing,
            None => self.next_new(store, pool),
        }
    }

    /// Chooses the tail loss probe (RFC 8985 7.3): the next new segment if it fits the peer's
    /// window, otherwise the last sent one.
    fn next_probe<P: FramePool>(&mut self, store: &mut TxStore, pool: &mut P) -> Next {
        let (next, index) = (self.next_new(store, pool), self.tx.next);
        if next != Next::Nothing {
            return next;
        }
        // Nagle's algorithm, or a cork, does not delay it (as Linux).
        let fits = index != NIL && store.segments[index].end().at_or_before(self.snd.una() + self.snd.wnd());
        if fits && self.fit(store, pool, index) {
            return Next::New(index);
        }
        let mut last = self.tx.head();
        if last == self.tx.next {
            return Next::Nothing;
        }
        while store.segments[last].next != self.tx.next {
            last = store.segments[last].next;
        }
        // The timer does not run while segments are SACKed, so the last segment is not.
        if store.segments[last].has(mark::SACKED | mark::LOST) { Next::Nothing } else { Next::Again(last) }
    }

    /// Chooses the next segment that was never sent, if the peer's window and Nagle's algorithm
    /// allow it.
    #[inline]
    fn next_new<P: FramePool>(&mut self, store: &mut TxStore, pool: &mut P) -> Next {
        let push_out = self.flags.has(Flags::PUSH_OUT);
        let index = self.tx.next;
        if index == NIL {
            return Next::Nothing;
        }
        if !self.fit(store, pool, index) {
            return Next::Nothing;
        }
        let segment = &store.segments[index];
        let (len, span, fin) = (segment.len, segment.span(), segment.has(mark::FIN));
        let room = (self.snd.una() + self.snd.wnd()).delta(segment.seq).max(0) as u32;
        if len.max((len == 0) as u32 * span) > room {
            // RFC 9293 3.8.6.2.1: a part is sent only if it is at least half the largest window
            // ever offered, or after the override timeout.
            let worth = room > 0 && (push_out || room >= (self.max_snd_wnd() / 2).max(1));
            let cut = worth && room < len && self.tx.split(store, pool, index, room);
            return if cut { Next::New(index) } else { Next::Nothing };
        }
        let outstanding = self.snd.nxt() != self.snd.una();
        if len < self.mss as u32 && index == self.tx.tail() && !fin && !push_out {
            if self.holds_small(store, outstanding) {
                return Next::Nothing;
            }
        } else if push_out && len > 0 && index == self.tx.tail() {
            // MSG_MORE has timed out: no further data is queued (RFC 9293 MUST-61).
            store.segments[index].marks |= mark::PUSH;
        }
        Next::New(index)
    }

    /// Returns true if a partial segment must wait: by RFC 9293 3.7.4 with Minshall's change, or
    /// because of the application.
    #[inline]
    pub(crate) fn holds_small(&self, store: &TxStore, outstanding: bool) -> bool {
        let nagle = outstanding && !self.flags.has(Flags::NODELAY) && self.small_in_flight(store);
        (nagle || self.flags.has(Flags::HOLD)) && !self.in_urgent_mode()
    }

    /// Returns true if nothing is sent right after the new segment `index`, or if it fills half the
    /// congestion window since the last such segment, `run` bytes before it.
    ///
    /// Linux sets PSH on these segments if a burst has others (`__tcp_transmit_skb`, on each packet
    /// that the device splits; `tcp_cwnd_test` for the halves). Devices that merge segments on the
    /// way to the peer's reader then need not wait for more.
    #[inline]
    pub(crate) fn ends_burst(&self, store: &TxStore, index: u32, run: u32, now: Instant) -> bool {
        store.segments[index].next == NIL || self.ends_burst_before_last(store, index, run, now)
    }

    #[inline(never)]
    fn ends_burst_before_last(&self, store: &TxStore, index: u32, run: u32, now: Instant) -> bool {
        let segment = &store.segments[index];
        self.window_ends_burst(store, segment, (self.flight(), self.send_window()), run)
            || self.ext.as_ref().is_some_and(|ext| ext.pacing.ends_burst(segment.len, now))
    }

    /// Like [`Tcb::ends_burst`] for a segment with a successor, without pacing; `flight` bytes of
    /// `cwnd` are in flight before it.
    #[inline(always)]
    pub(crate) fn window_ends_burst(
        &self,
        store: &TxStore,
        segment: &TxSegment,
        (flight, cwnd): (u32, u32),
        run: u32,
    ) -> bool {
        let (next, mss) = (&store.segments[segment.next], self.mss as u32);
        let small = next.len < mss && segment.next == self.tx.tail() && !next.has(mark::FIN);
        flight + segment.span() >= cwnd
            || run + segment.len + mss > cwnd / 2
            || next.end().after(self.snd.una() + self.snd.wnd())
            || small && self.holds_small(store, true)
    }

    /// Splits a segment that is larger than the reduced segment size. Returns false if the pool is
    /// empty.
    #[inline]
    fn fit<P: FramePool>(&mut self, store: &mut TxStore, pool: &mut P, index: u32) -> bool {
        let (len, lost) = {
            let s = &store.segments[index];
            (s.len, s.has(mark::LOST))
        };
        if len <= self.mss as u32 {
            return true;
        }
        debug_assert!(lost || index == self.tx.next, "only what has not been sent, or is sent again, is cut");
        self.tx.split(store, pool, index, self.mss as u32)
    }

    /// Records a segment that has just been sent, with our timestamp `ts`.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "the time in three units, which a turn has")]
    pub(crate) fn sent(
        &mut self,
        store: &mut TxStore,
        stats: &mut Stats,
        config: &TcpConfig,
        next: Next,
        ts: u32,
        now_us: u32,
        now: Instant,
    ) {
        if self.flags.timer_is(TimerKind::Persist) {
            self.clear_timer();
            self.backoff = 0;
        }
        self.flags.clear(Flags::PUSH_OUT);
        match next {
            Next::New(index) => {
                let segment = &mut store.segments[index];
                segment.sent_us = now_us;
                let span = segment.span();
                self.snd.sent(segment.end());
                self.tx.next = segment.next;
                if self.ext.is_some() {
                    self.sent_in_recovery(span, false, config, now);
                }
            }
            Next::Again(index) => {
                stats.retransmits += 1;
                self.sent_again(store, config, index, ts, now);
            }
            Next::Nothing => return,
        }
        if let Next::New(index) | Next::Again(index) = next {
            self.record_sent(store, index, now);
        }
        if !self.timer_runs() {
            self.restart_timer(store, config, now);
        }
    }

    #[cold]
    fn sent_again(&mut self, store: &mut TxStore, config: &TcpConfig, index: u32, ts: u32, now: Instant) {
        let now_us = crate::time::micros(now);
        let segment = &mut store.segments[index];
        segment.sent_us = now_us;
        let again = segment.has(mark::RETRANSMITTED);
        segment.marks |= mark::RETRANSMITTED | mark::EVER_RETRANSMITTED;
        let (span, len, seq) = (segment.span(), segment.len, segment.seq);
        self.key().probe(|ends| fs_probe::retransmit(ends, seq.0, len));
        if !again {
            self.ext_mut().retransmitted += span;
        }
        // Only detection by time removes entries, so none are recorded without it.
        let by_time = config.rack && self.flags.has(Flags::SACK);
        let loss = self.loss_mut();
        if by_time {
            loss.rack.sent_again(index, seq, now_us);
        }
        loss.undo.sent_again(span, ts);
        loss.total_retransmits = loss.total_retransmits.saturating_add(1);
        loss.bytes_retransmitted += u64::from(len);
        self.sent_in_recovery(span, true, config, now);
        if index == self.tx.head() && !self.flags.timer_is(TimerKind::Reorder) {
            // Like Linux: the head's timeout starts when it was last sent.
            self.restart_rto(config, now);
        }
    }

    #[cold]
    fn sent_in_recovery(&mut self, span: u32, again: bool, config: &TcpConfig, now: Instant) {
        let fast = matches!(self.recovery(), Recovery::Fast { .. });
        let Some(loss) = self.loss_if_any() else { return };
        if fast {
            loss.prr.out = loss.prr.out.saturating_add(span);
        }
        if loss.probe.due {
            self.probe_sent(again, config, now);
        }
    }
}
