//! What to send next: lost segments first, then new ones, within the congestion window (RFC 5681), the
//! peer's window with silly-window avoidance (RFC 9293 3.8.6.2.1) and Nagle's rule (RFC 9293 3.7.4).

use super::buffer::{TxStore, mark};
use crate::config::TcpConfig;
use crate::frame::FramePool;
use crate::slab::NIL;
use crate::stats::Stats;
use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::time::Instant;

/// The segmenter's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send this segment again.
    Again(u32),
    /// Send this segment for the first time.
    New(u32),
    /// Nothing may be sent now.
    Nothing,
}

impl Tcb {
    /// Chooses the next segment. It may cut one in two to fit the window or a path MTU that has shrunk.
    #[inline]
    pub(crate) fn next_segment<P: FramePool>(&mut self, store: &mut TxStore, pool: &mut P) -> Next {
        let flight = self.flight();
        let push_out = self.flags.has(Flags::PUSH_OUT);
        if self.ext.is_some()
            && let Some(index) = self.next_lost(store)
        {
            if flight >= self.window.cwnd && !push_out {
                return Next::Nothing;
            }
            return if self.fit(store, pool, index) { Next::Again(index) } else { Next::Nothing };
        }
        let index = self.tx.next;
        if index == NIL || flight > 0 && flight >= self.window.cwnd {
            return Next::Nothing;
        }
        if !self.fit(store, pool, index) {
            return Next::Nothing;
        }
        let segment = &store.segments[index];
        let (len, span, fin) = (segment.len, segment.span(), segment.has(mark::FIN));
        let room = (self.snd_una + self.snd_wnd).delta(segment.seq).max(0) as u32;
        if len.max((len == 0) as u32 * span) > room {
            // RFC 9293 3.8.6.2.1: a part only if it is at least half the largest window ever offered, or
            // the override time has passed.
            let worth = room > 0 && (push_out || room >= (self.max_snd_wnd() / 2).max(1));
            let cut = worth && room < len && self.tx.split(store, pool, index, room);
            return if cut { Next::New(index) } else { Next::Nothing };
        }
        let outstanding = self.snd_nxt != self.snd_una;
        let held_by_nagle =
            len < self.mss as u32 && !fin && outstanding && index == self.tx.tail && !self.flags.has(Flags::NODELAY);
        if held_by_nagle && !push_out {
            return Next::Nothing;
        }
        Next::New(index)
    }

    /// Cuts a segment that is larger than the segment size has become. False when the pool is dry.
    #[inline]
    fn fit<P: FramePool>(&mut self, store: &mut TxStore, pool: &mut P, index: u32) -> bool {
        let (len, lost) = {
            let s = &store.segments[index];
            (s.len, s.has(mark::LOST))
        };
        if len <= self.mss as u32 {
            return true;
        }
        debug_assert!(lost || index == self.tx.next);
        self.tx.split(store, pool, index, self.mss as u32)
    }

    /// Books a segment that has just been sent.
    #[inline]
    pub(crate) fn sent(
        &mut self,
        store: &mut TxStore,
        stats: &mut Stats,
        config: &TcpConfig,
        next: Next,
        now: Instant,
    ) {
        self.flags.clear(Flags::PUSH_OUT | Flags::PERSIST);
        let now_us = super::recovery::micros(now);
        match next {
            Next::New(index) => {
                let segment = &mut store.segments[index];
                segment.sent_us = now_us;
                self.snd_nxt = segment.end();
                self.tx.next = segment.next;
            }
            Next::Again(index) => {
                let segment = &mut store.segments[index];
                segment.sent_us = now_us;
                segment.marks |= mark::RETRANSMITTED | mark::EVER_RETRANSMITTED;
                let span = segment.span();
                self.ext_mut().retransmitted += span;
                stats.retransmits += 1;
            }
            Next::Nothing => return,
        }
        if self.rto_at == 0 {
            self.restart_rto(config, now);
        }
    }
}
