//! A bulk transfer's segments: consecutive new ones that may leave and need nothing else. Their
//! common properties are computed once. All other segments are sent by [`super::emit`], which would
//! have the same result.

use crate::frame::{FramePool, TxFrame};
use crate::net::neigh::{Path, PathState};
use crate::slab::NIL;
use crate::stats::Stats;
use crate::tcb::Tcb;
use crate::tcb::extension::FastPath;
use crate::tcb::flags::Flags;
use crate::tcb::recv::ack::Share;
use crate::tcb::send::segment::mark;
use crate::tcb::send::store::TxStore;
use crate::tx::build::{self, Plain};
use crate::wire::options::TIMESTAMPS_LEN;
use alloc::vec::Vec;

/// Flags that exclude a connection from this path.
const SLOW_PATH: Flags = Flags::V6.with(Flags::RARE_TIMER).with(Flags::PUSH_OUT).with(Flags::HOLD).with(Flags::ECN);

/// Common properties of a visit's segments.
pub(crate) struct Run<'a> {
    path: &'a Path,
    /// Our timestamp.
    ts: u32,
    /// The time in microseconds.
    us: u32,
    share: Share,
    /// Bytes in front of a payload.
    headers: usize,
    /// [`Tcb::send_window`].
    send_window: u32,
    /// The window field, once a segment contains it.
    window: Option<u16>,
}

/// A sent segment.
pub(crate) struct Left {
    pub(crate) len: u32,
    /// The segment ends a burst.
    pub(crate) ends: bool,
}

impl<'a> Run<'a> {
    /// Makes a run, or returns `None` if the connection's segments must be handled one by one.
    #[inline]
    pub(crate) fn of(tcb: &mut Tcb, path: &'a Path, ts: u32, us: u32, share: Share) -> Option<Self> {
        if tcb.flags.any(SLOW_PATH) || path.state() != PathState::Known || !tcb.ext.allows(FastPath::SEND) {
            return None;
        }
        let options = if tcb.flags.has(Flags::TIMESTAMPS) { TIMESTAMPS_LEN } else { 0 };
        let (headers, send_window) = (build::header_len(path, false, options as u8), tcb.send_window());
        Some(Self { path, ts, us, share, headers, send_window, window: None })
    }

    /// Sends the connection's next new segment, `run` bytes after a burst's end; the caller sets
    /// the timers. Returns `None`, without any effect, for a segment that this path does not
    /// handle.
    #[inline(always)]
    pub(crate) fn send<P: FramePool>(
        &mut self,
        tcb: &mut Tcb,
        store: &mut TxStore,
        pool: &mut P,
        stats: &mut Stats,
        run: u32,
        out: &mut Vec<TxFrame>,
    ) -> Option<Left> {
        let index = tcb.tx.next;
        if index == NIL {
            return None;
        }
        let (mss, edge) = (u32::from(tcb.mss), tcb.snd.una() + tcb.snd.wnd());
        let segment = &store.segments[index];
        let (len, seq, end) = (segment.len, segment.seq, segment.end());
        let (flight, cwnd) = (tcb.snd.outstanding(), self.send_window);
        let fin = segment.has(mark::FIN);
        let small = len < mss && index == tcb.tx.tail() && !fin;
        if len == 0
            || len > mss.min(edge.delta(seq).max(0) as u32)
            || flight > 0 && (flight >= cwnd || small && !tcb.flags.has(Flags::NODELAY))
            || !segment.rest.is_empty()
            || !segment.has(mark::SUMMED) && !self.path.tx_checksum()
            || segment.head.off() < self.headers
        {
            return None;
        }
        debug_assert!(!pool.is_shared(&segment.head), "an unsent frame has one handle");
        let ends = segment.next == NIL || tcb.window_ends_burst(store, segment, (flight, cwnd), run);
        let window = match self.window {
            Some(window) => window,
            None => self.begin(tcb, stats),
        };
        let segment = &mut store.segments[index];
        if ends && run > 0 {
            segment.marks |= mark::PUSH;
        }
        let plain = Plain {
            payload_len: len,
            payload_sum: segment.sum,
            ..tcb.plain_headers(seq, segment.flags(), window, self.ts)
        };
        let checksum = build::write_plain(pool, &mut segment.head, self.path, &plain);
        let frame = pool.share(&segment.head);
        segment.head.trim_front(self.headers);
        segment.sent_us = self.us;
        stats.tx_bytes += frame.len() as u64;
        out.push(TxFrame { frame, checksum });
        tcb.snd.sent(end);
        tcb.tx.next = segment.next;
        Some(Left { len, ends })
    }

    /// Prepares the header fields that all segments share. Returns the window field.
    #[inline]
    fn begin(&mut self, tcb: &mut Tcb, stats: &mut Stats) -> u16 {
        let window = tcb.offer_window(self.share);
        self.window = Some(window);
        stats.acks_piggybacked += u64::from(tcb.flags.any(Flags::ACK_NOW | Flags::ACK_DELAYED));
        tcb.ack_carried();
        window
    }
}
