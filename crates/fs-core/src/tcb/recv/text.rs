//! Seventh and eighth step of RFC 9293 3.10.7.4: the segment text and the FIN. In-order text goes
//! to the application's queue, early text is stored, duplicate text is reported (RFC 2883).

use crate::drop_reason::DropReason;
use crate::frame::FramePool;
use crate::frame_queue::FrameQueue;
use crate::rx::parse::Segment;
use crate::seq::SeqNum;
use crate::socket::event::Ready;
use crate::tcb::arrival::{Arrival, Core, Disposition};
use crate::tcb::flags::Flags;
use crate::tcb::recv::reassembly::{self, Inserted};
use crate::tcb::{State, Tcb};

/// Largest in-order payload in bytes that is copied to the end of the queue, if its last frame has
/// space. Too high: more copying. Too low: a peer that sends small segments pins more frames.
pub(crate) const COALESCE: u32 = 128;

impl Tcb {
    #[inline(always)]
    pub(crate) fn take_text<P: FramePool>(
        &mut self,
        core: &mut Core<'_, P>,
        segment: &Segment,
        arrival: Arrival<'_>,
        ready: &mut Ready,
    ) -> Disposition {
        let mut seq = segment.seq;
        let mut fin = segment.flags.fin();
        let (off, len) = (segment.payload_off as usize, segment.payload_len as usize);
        if self.is_deaf() && (seq + segment.payload_len).after(self.rcv.nxt()) {
            arrival.discard(core.pool);
            return Disposition::ResetPeer;
        }
        if core.exhausted && len > 0 && !(seq.at_or_before(self.rcv.nxt()) && self.may_exceed_share(core)) {
            arrival.discard(core.pool);
            self.flags.set(Flags::ACK_NOW);
            return Disposition::Discard(DropReason::ReceiveBudget);
        }
        if let Some(ts) = segment.ts {
            let (clock, offset) = core.clock;
            core.conn_stats.tune.sample(clock, || clock.value(core.now, offset), ts.ecr);
        }
        let mut data = arrival.into_payload(core.nodes, core.pool, off, len);
        if seq.before(self.rcv.nxt()) {
            let old = self.rcv.nxt().since(seq).min(data.bytes);
            if old > 0 {
                self.report_duplicate(seq, seq + old);
            }
            data.trim_front(core.nodes, core.pool, old as usize);
            seq += old;
            self.flags.set(Flags::ACK_NOW);
            if seq.before(self.rcv.nxt()) {
                // A FIN before data that was received: its sender contradicts itself.
                return Disposition::Discard(DropReason::Duplicate);
            }
        }
        if (seq + data.bytes).after(self.rcv.edge()) {
            let keep = self.rcv.edge().delta(seq).max(0) as usize;
            data.truncate(core.nodes, core.pool, keep);
            fin = false;
            self.flags.set(Flags::ACK_NOW);
        }
        if seq == self.rcv.nxt() { self.take_in_order(core, data, fin, ready) } else { self.hold(core, seq, data, fin) }
    }

    /// Returns true if no application will read the data: the handle is closed, or both directions
    /// are shut down (RFC 1122 4.2.2.13; as Linux, which accepts data after SHUT_RD alone).
    #[inline]
    fn is_deaf(&self) -> bool {
        self.flags.has(Flags::ORPHAN) || self.flags.has(Flags::READ_SHUT) && self.state != State::Established
    }

    #[inline(always)]
    fn take_in_order<P: FramePool>(
        &mut self,
        core: &mut Core<'_, P>,
        data: FrameQueue,
        mut fin: bool,
        ready: &mut Ready,
    ) -> Disposition {
        if data.bytes > 0 {
            let len = data.bytes;
            if let Some(ext) = self.ext.as_mut()
                && let Some(held) = ext.out_of_order.overlap(self.rcv.nxt(), self.rcv.nxt() + len)
            {
                ext.out_of_order.keep_first(core.nodes, core.pool, self.rcv.nxt(), &data);
                ext.dsack.get_or_insert(held);
            }
            self.rcv.advance(len);
            self.deliver(core, data, ready);
            self.owe_ack(len);
        }
        if let Some(ext) = self.ext.as_mut()
            && (!ext.out_of_order.is_empty() || ext.fin_at.is_some())
        {
            let before = core.nodes.len();
            let (joined, gone) = ext.out_of_order.take_contiguous(core.nodes, core.pool, self.rcv.nxt());
            ext.held = ext.held.saturating_sub(gone);
            let frames = (before - core.nodes.len()) as u32 + joined.frames(core.nodes);
            ext.recv.held_frames = ext.recv.held_frames.saturating_sub(frames);
            self.rcv.advance(joined.bytes);
            fin |= ext.fin_at == Some(self.rcv.nxt());
            // RFC 5681 4.2: an immediate ACK when a gap is filled.
            self.flags.set(Flags::ACK_NOW);
            self.deliver(core, joined, ready);
        }
        if fin { self.on_fin(core, ready) } else { Disposition::Accepted }
    }

    /// Appends in-order bytes to the application's queue.
    #[inline]
    fn deliver<P: FramePool>(&mut self, core: &mut Core<'_, P>, mut data: FrameQueue, ready: &mut Ready) {
        if data.is_empty() {
            return;
        }
        if self.flags.has(Flags::ORPHAN) {
            data.clear(core.nodes, core.pool);
            return;
        }
        let before = self.rx.bytes;
        if before == 0 {
            if self.ext.as_ref().is_none_or(|e| e.recv.low <= 1) {
                *ready |= Ready::READ;
            }
        } else if core.pressure || data.bytes <= COALESCE {
            match self.rx.absorb(core.nodes, core.pool, data, u32::MAX) {
                Ok(()) => {
                    core.stats.rx_compacted += 1;
                    return self.delivered(before, ready);
                }
                Err(back) => data = back,
            }
        }
        self.rx.append(core.nodes, data);
        self.delivered(before, ready);
    }

    /// Determines the events of delivered data by the connection's options: SO_RCVLOWAT, urgent
    /// data.
    #[inline]
    fn delivered(&mut self, before: u32, ready: &mut Ready) {
        let Some(ext) = self.ext.as_ref() else { return };
        if ext.recv.low > 1 {
            let enough = |bytes: u32| bytes >= ext.recv.low;
            // If the window has no space left for SO_RCVLOWAT, sender and reader must not wait for
            // each other.
            if enough(self.rx.bytes) && !enough(before) || self.window_is_full() {
                *ready |= Ready::READ;
            }
        }
        if ext.recv.urgent.is_some() {
            self.urgent_delivered(ready);
        }
    }

    /// Returns true if the peer cannot send a full segment before the application reads.
    fn window_is_full(&self) -> bool {
        self.rcv_wnd() < self.rcv_mss().min(self.rcv_buf() / 2)
    }

    /// Returns true if `Ready::READ` holds: for bytes (SO_RCVLOWAT of them), or the stream's end.
    #[inline]
    pub(crate) fn readable(&self) -> bool {
        if self.flags.any(Flags::FIN_RECEIVED | Flags::READ_SHUT) {
            return true;
        }
        let low = self.ext.as_ref().map_or(1, |e| e.recv.low).max(1);
        self.rx.bytes >= low || !self.rx.is_empty() && self.window_is_full()
    }

    /// Makes the next ACK report a duplicate: RFC 2883.
    pub(crate) fn report_duplicate(&mut self, start: SeqNum, end: SeqNum) {
        if self.flags.has(Flags::SACK) {
            self.ext_mut().dsack = Some((start, end));
        }
    }

    /// Returns true if in-order data can be accepted although the receive share is spent.
    #[cold]
    fn may_exceed_share<P: FramePool>(&mut self, core: &mut Core<'_, P>) -> bool {
        // A connection gets two segments of window in this state.
        self.prune(core) || self.rx.bytes <= u32::from(self.mss) && core.has_reserve()
    }

    /// Drops out-of-order data, so that in-order data can be accepted (Linux:
    /// `tcp_prune_ofo_queue`; RFC 2018 section 8 allows it). Returns true if there was any.
    #[cold]
    fn prune<P: FramePool>(&mut self, core: &mut Core<'_, P>) -> bool {
        let Some(ext) = self.ext.as_mut() else { return false };
        let before = core.nodes.len();
        ext.out_of_order.clear(core.nodes, core.pool);
        (ext.held, ext.recv.held_frames) = (0, 0);
        core.stats.drops[DropReason::ReceiveBudget as usize] += (before > core.nodes.len()) as u64;
        before > core.nodes.len()
    }

    /// Stores out-of-order data and sends an immediate ACK (RFC 5681 4.2) with SACK blocks.
    #[inline(never)]
    fn hold<P: FramePool>(
        &mut self,
        core: &mut Core<'_, P>,
        seq: SeqNum,
        mut data: FrameQueue,
        fin: bool,
    ) -> Disposition {
        self.flags.set(Flags::ACK_NOW);
        let end = seq + data.bytes;
        let frames_max = reassembly::frames_max(self.rcv_buf());
        let ext = self.ext.get_or_make();
        // The first FIN defines the end of the stream; another position is a contradiction.
        if fin && ext.fin_at.is_none() {
            ext.fin_at = Some(end);
        }
        if data.is_empty() {
            return Disposition::Accepted;
        }
        if core.scarce() || ext.recv.held_frames >= frames_max {
            data.clear(core.nodes, core.pool);
            return Disposition::Discard(DropReason::ReceiveBudget);
        }
        // RFC 2883 4.2: reports the duplicate part, although the segment contains new bytes.
        if let Some(held) = ext.out_of_order.overlap(seq, end) {
            ext.dsack = Some(held);
        }
        let others = (core.nodes.len() as u32).saturating_sub(data.frames(core.nodes) + ext.recv.held_frames);
        let inserted = ext.out_of_order.insert(core.nodes, core.pool, seq, data);
        ext.recv.held_frames = (core.nodes.len() as u32).saturating_sub(others);
        match inserted {
            Inserted::Held(bytes) => {
                ext.held += bytes;
                ext.recv.out_of_order = ext.recv.out_of_order.wrapping_add(1);
                core.stats.out_of_order += 1;
                Disposition::Accepted
            }
            Inserted::Duplicate => Disposition::Discard(DropReason::Duplicate),
            Inserted::Refused => Disposition::Discard(DropReason::ReceiveBudget),
        }
    }

    /// Eighth step: the peer's FIN, in order.
    #[inline(never)]
    fn on_fin<P: FramePool>(&mut self, core: &mut Core<'_, P>, ready: &mut Ready) -> Disposition {
        if let Some(ext) = self.ext.as_mut() {
            // Nothing can follow the stream's end.
            ext.out_of_order.clear(core.nodes, core.pool);
            (ext.held, ext.recv.held_frames, ext.fin_at) = (0, 0, None);
        }
        self.take_fin(ready)
    }

    /// Processes the peer's FIN, which is next in order; no data after it is stored.
    #[inline]
    pub(crate) fn take_fin(&mut self, ready: &mut Ready) -> Disposition {
        self.rcv.take_fin();
        self.flags.set(Flags::FIN_RECEIVED | Flags::ACK_NOW);
        *ready |= Ready::READ;
        match self.state {
            State::Established => self.state = State::CloseWait,
            // Our FIN is not acknowledged yet: otherwise the state would be FIN-WAIT-2.
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => return Disposition::TimeWait,
            State::CloseWait | State::Closing | State::LastAck => {}
        }
        Disposition::Accepted
    }
}
