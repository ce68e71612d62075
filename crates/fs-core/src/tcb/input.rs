//! A segment arrives at a synchronized connection: RFC 9293 3.10.7.4, step by step, with RFC 7323 (PAWS)
//! before and RFC 5961 (blind attacks) in between. Returns a named disposition; the stack carries it out.

use crate::config::TcpConfig;
use crate::drop_reason::DropReason;
use crate::frame::{FramePool, RxFrame};
use crate::frame_queue::{FrameNodes, FrameQueue};
use crate::rx::parse::Segment;
use crate::rx::steer::TsClock;
use crate::seq::SeqNum;
use crate::socket::event::Ready;
use crate::stats::Stats;
use crate::tcb::connection_stats::ConnectionStats;
use crate::tcb::extension::Ext;
use crate::tcb::flags::Flags;
use crate::tcb::recv::reassembly::{self, Inserted};
use crate::tcb::send::recovery::AckInput;
use crate::tcb::send::store::TxStore;
use crate::tcb::timer_kind::TimerKind;
use crate::tcb::{State, Tcb};
use crate::time::Instant;
use crate::wire::options;
use crate::wire::tcp::TcpFlags;

/// The frames of one received packet, on their way to an owner. Must be discarded or turned into payload.
#[must_use = "frames must find an owner"]
pub(crate) struct Arrival<'a> {
    frames: &'a mut [RxFrame],
}

impl<'a> Arrival<'a> {
    /// Takes charge of `frames`, whose places in the batch are hollow afterwards.
    pub(crate) fn new(frames: &'a mut [RxFrame]) -> Self {
        Self { frames }
    }

    /// The first frame's bytes: all headers are in it.
    #[inline]
    pub(crate) fn head<'p, P: FramePool>(&self, pool: &'p P) -> &'p [u8] {
        pool.bytes(&self.frames[0].frame)
    }

    /// Gives the frames back.
    pub(crate) fn discard<P: FramePool>(self, pool: &mut P) {
        for rx in self.frames {
            pool.free(rx.frame.take());
        }
    }

    /// Moves the frames out, to keep them elsewhere.
    pub(crate) fn into_frames(self) -> alloc::vec::Vec<RxFrame> {
        self.frames.iter_mut().map(RxFrame::take).collect()
    }

    /// Moves the frames out, to send them to another core: without an allocation for a packet of one.
    pub(crate) fn into_head_and_rest(self) -> (RxFrame, alloc::vec::Vec<RxFrame>) {
        let (head, rest) = self.frames.split_at_mut(1);
        (head[0].take(), rest.iter_mut().map(RxFrame::take).collect())
    }

    /// Keeps `len` bytes of payload from `off` on; frames without payload go back.
    #[inline(always)]
    pub(crate) fn into_payload<P: FramePool>(
        self,
        nodes: &mut FrameNodes,
        pool: &mut P,
        off: usize,
        len: usize,
    ) -> FrameQueue {
        let mut queue = FrameQueue::new();
        let (mut skip, mut left) = (off, len);
        for rx in self.frames {
            let mut frame = rx.frame.take();
            let cut = skip.min(frame.len());
            frame.trim_front(cut);
            skip -= cut;
            let keep = left.min(frame.len());
            if keep == 0 {
                pool.free(frame);
                continue;
            }
            frame.truncate(keep);
            frame.set_more(false);
            left -= keep;
            queue.push(nodes, frame);
        }
        queue
    }
}

/// What to do after a segment was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Taken in.
    Accepted,
    /// Thrown away.
    Discard(DropReason),
    /// Thrown away and answered with an ACK.
    DiscardAndAck(DropReason),
    /// Thrown away and answered with an ACK, unless the connection's last such ACK was a moment ago.
    DiscardAndAckRarely(DropReason),
    /// Thrown away and answered with a challenge ACK (RFC 5961): as `DiscardAndAckRarely`, and at most so many a second.
    Challenge(DropReason),
    /// The SYN of a connection in SYN-RECEIVED, again.
    SynAgain,
    /// In SYN-RECEIVED, an ACK of something else than our SYN: thrown away and answered with a reset.
    NotOurSyn,
    /// The peer reset the connection.
    PeerReset,
    /// Our FIN and the peer's are both done: to TIME-WAIT, with an ACK if one is owed.
    TimeWait,
    /// LAST-ACK is over.
    Closed,
    /// Data for a socket that nobody reads: both ends are reset.
    ResetPeer,
}

/// What the connection borrows from its core.
pub(crate) struct Core<'a, P: FramePool> {
    pub(crate) pool: &'a mut P,
    pub(crate) nodes: &'a mut FrameNodes,
    pub(crate) store: &'a mut TxStore,
    pub(crate) stats: &'a mut Stats,
    pub(crate) config: &'a TcpConfig,
    pub(crate) now: Instant,
    /// Our timestamp clock and its offset.
    pub(crate) clock: (&'a TsClock, u32),
    /// The receive share of the pool is half spent: copy payloads together.
    pub(crate) pressure: bool,
    /// The receive share, in frames.
    pub(crate) share: usize,
    /// The receive share is spent: take no data, but of connections that have none.
    pub(crate) exhausted: bool,
    /// The connection's counts.
    pub(crate) conn_stats: &'a mut ConnectionStats,
}

impl<P: FramePool> Core<'_, P> {
    /// Three quarters of the receive share are spent: nothing more is kept out of order.
    fn scarce(&self) -> bool {
        self.nodes.len() >= self.share / 4 * 3
    }

    /// The share is spent, and of what connections without unread data may have beyond it something is left.
    fn has_reserve(&self) -> bool {
        self.nodes.len() < self.share + self.share.div_ceil(RESERVE)
    }

    fn timestamp(&self) -> u32 {
        self.clock.0.value(self.now, self.clock.1)
    }
}

/// Of these bits, a segment of an open connection has ACK only.
const ORDINARY: TcpFlags = TcpFlags::RST.with(TcpFlags::SYN).with(TcpFlags::ACK);
/// One part in so many of the receive share comes on top of it, for segments in order of connections with nothing unread:
/// readers that have stalled hold the whole share, all of it promised, and must not stop those that read (Linux:
/// `tcp_rmem[0]`, granted whatever the others hold). Larger: fewer connections go on at a time; smaller: frames that
/// sending and the device's rings miss.
const RESERVE: usize = 16;
/// RFC 7323 5.5: timestamps of a connection that was idle for so long say nothing.
const IDLE_MS: u32 = 24 * 24 * 3600 * 1000;
/// An echo may seem this much ahead of our clock, whose low bits are a core's number.
const CLOCK_SLACK_MS: u32 = 3600 * 1000;
/// In-order payloads of at most so many bytes are copied behind what is queued, if it has room: a frame holds a
/// thousand times as much. Larger: more copying; smaller: more frames pinned by a peer that sends little segments.
pub(crate) const COALESCE: u32 = 128;

impl Ext {
    /// Something is to be told of, a range or bytes that came twice, and `segment` would put something else in its place.
    fn is_other_news(&self, rcv_nxt: SeqNum, segment: &Segment) -> bool {
        let (start, end) = (segment.seq, segment.seq + segment.payload_len);
        let ahead = || start.after(rcv_nxt) && self.out_of_order.owes_news_but_of(start, end);
        start != end && start != rcv_nxt && (self.dsack.is_some() || ahead())
    }
}

impl Tcb {
    /// Processes one segment. `ready` collects what the application must be told.
    #[inline]
    pub(crate) fn on_segment<P: FramePool>(
        &mut self,
        core: &mut Core<'_, P>,
        segment: &Segment,
        arrival: Arrival<'_>,
        ready: &mut Ready,
    ) -> Disposition {
        if let Err(refused) = self.check(core, segment) {
            self.report_old(segment);
            arrival.discard(core.pool);
            return refused;
        }
        // Fifth: the ACK field. More than timestamps may be SACK blocks; without them, one block is as long as they are.
        let stamps = if self.flags.has(Flags::TIMESTAMPS) { 12 } else { 0 };
        let blocks;
        let sack = if segment.opt_len > stamps && self.flags.has(Flags::SACK) {
            blocks = options::sack_blocks(segment.options(arrival.head(core.pool)));
            blocks.as_slice()
        } else {
            &[]
        };
        let fin_acked = match self.take_ack(core, segment, sack, ready) {
            Ok(fin_acked) => fin_acked,
            Err(refused) => {
                arrival.discard(core.pool);
                return refused;
            }
        };
        // Behind the ACK field: a number that must be guessed stands before what slows us down.
        if self.flags.has(Flags::ECN) {
            self.receive_ecn(segment);
        }
        if self.flags.has(Flags::SYN_RECEIVED) {
            self.flags.clear(Flags::SYN_RECEIVED);
            *ready |= Ready::CONFIRMED;
        }
        if fin_acked {
            match self.state {
                State::FinWait1 => {
                    self.state = State::FinWait2;
                    if self.flags.has(Flags::ORPHAN) {
                        // Nobody waits for the peer's FIN: it gets a bounded time (Linux `tcp_fin_timeout`).
                        self.wait_for_fin(core.config, core.now);
                    }
                }
                State::Closing => {
                    arrival.discard(core.pool);
                    return Disposition::TimeWait;
                }
                State::LastAck => {
                    arrival.discard(core.pool);
                    return Disposition::Closed;
                }
                State::Established | State::FinWait2 | State::CloseWait => {}
            }
        }
        // RFC 7323 4.3 (2): the acceptable segment that spans what we acknowledged last updates TS.Recent.
        if let Some(ts) = segment.ts
            && self.flags.has(Flags::TIMESTAMPS)
            && segment.seq.at_or_before(self.rcv.nxt() - self.unacked as u32)
        {
            self.ts_recent.set(ts.val);
        }
        // Sixth: URG.
        if segment.flags.intersects(TcpFlags::URG) {
            self.record_urgent(segment, ready);
        }
        if segment.payload_len == 0 && !segment.flags.fin() {
            arrival.discard(core.pool);
            return Disposition::Accepted;
        }
        // Seventh and eighth: the segment text and FIN.
        if !self.state.can_receive() {
            arrival.discard(core.pool);
            return self.after_fin(segment);
        }
        self.take_text(core, segment, arrival, ready)
    }

    /// Text or a FIN where the peer's FIN has been received. What came before it is acknowledged again; what would follow it
    /// should not occur and is ignored, without a word (RFC 9293 3.10.7.4, as Linux).
    #[cold]
    fn after_fin(&mut self, segment: &Segment) -> Disposition {
        if segment.seq.at_or_after(self.rcv.nxt()) {
            return Disposition::Discard(DropReason::DataAfterFin);
        }
        self.report_old(segment);
        self.flags.set(Flags::ACK_NOW);
        Disposition::Discard(DropReason::Duplicate)
    }

    /// Steps before the ACK: PAWS, sequence, RST, SYN.
    #[inline]
    fn check<P: FramePool>(&self, core: &Core<'_, P>, segment: &Segment) -> Result<(), Disposition> {
        let rst = segment.flags.rst();
        if self.flags.has(Flags::TIMESTAMPS) && !rst {
            match segment.ts {
                // RFC 7323 5.3 R1: older than what we have seen.
                Some(ts) if self.ts_recent.is_after(ts.val) => self.check_old(core, segment, ts.ecr)?,
                Some(_) => {}
                // RFC 7323 3.2: a non-RST segment without the option may be dropped.
                None => return Err(Disposition::Discard(DropReason::Paws)),
            }
        }
        // First: sequence number. As Linux: touching the window from either side is enough, so that a valid
        // ACK, URG or RST is taken even when the window is zero (RFC 9293 MUST-66).
        let end = segment.seq + segment.payload_len + segment.flags.fin() as u32;
        if end.before(self.rcv.nxt())
            || segment.seq.after(self.rcv.edge())
            || segment.flags.0 & ORDINARY.0 != TcpFlags::ACK.0
        {
            return Err(self.refuse(segment, end));
        }
        Ok(())
    }

    /// The timestamp is older than TS.Recent.
    #[cold]
    fn check_old<P: FramePool>(&self, core: &Core<'_, P>, segment: &Segment, ecr: u32) -> Result<(), Disposition> {
        // RFC 7323 5.5: after 24 days of silence the peer's clock may have gone half around. How long it was is in
        // the segment: it echoes what the peer heard of us last, which no old duplicate can be so far behind with.
        let age = core.timestamp().wrapping_sub(ecr);
        if (IDLE_MS..u32::MAX - CLOCK_SLACK_MS).contains(&age) {
            return Ok(());
        }
        Err(if segment.flags.syn() {
            Disposition::Challenge(DropReason::Paws)
        } else if segment.seq_len() == 0 {
            Disposition::DiscardAndAckRarely(DropReason::Paws)
        } else {
            Disposition::DiscardAndAck(DropReason::Paws)
        })
    }

    /// A segment that is outside of the window, or RST, or SYN, or has no ACK: in this order (RFC 9293 3.10.7.4,
    /// RFC 5961 sections 3 and 4).
    #[cold]
    fn refuse(&self, segment: &Segment, end: SeqNum) -> Disposition {
        let (rst, syn) = (segment.flags.rst(), segment.flags.syn());
        if syn && !rst && !segment.flags.ack() && self.flags.has(Flags::SYN_RECEIVED) {
            return Disposition::SynAgain;
        }
        // A peer that closed and then aborts may count its RST before its FIN (as Linux, `tcp_reset_check`).
        let after_fin = rst
            && segment.seq + 1 == self.rcv.nxt()
            && matches!(self.state, State::CloseWait | State::LastAck | State::Closing);
        if after_fin {
            return Disposition::PeerReset;
        }
        if end.before(self.rcv.nxt()) || segment.seq.after(self.rcv.edge()) {
            return if rst {
                Disposition::Discard(DropReason::OutOfWindow)
            } else if syn {
                Disposition::Challenge(DropReason::UnexpectedSyn)
            } else if segment.seq_len() == 0 {
                Disposition::DiscardAndAckRarely(DropReason::OutOfWindow)
            } else {
                Disposition::DiscardAndAck(DropReason::OutOfWindow)
            };
        }
        if rst {
            // RFC 5961 3.2, and as Linux the edge of what we have SACKed last: there the peer's SND.NXT may be.
            let last = self.ext.as_ref().and_then(|e| e.out_of_order.last()).map(|i| i.end());
            return if segment.seq == self.rcv.nxt() || Some(segment.seq) == last {
                Disposition::PeerReset
            } else {
                Disposition::Challenge(DropReason::InexactRst)
            };
        }
        if syn {
            return Disposition::Challenge(DropReason::UnexpectedSyn);
        }
        Disposition::Discard(DropReason::NoAck)
    }

    /// Returns whether this ACK acknowledged our FIN.
    #[inline(always)]
    fn take_ack<P: FramePool>(
        &mut self,
        core: &mut Core<'_, P>,
        segment: &Segment,
        sack: &[(SeqNum, SeqNum)],
        ready: &mut Ready,
    ) -> Result<bool, Disposition> {
        if segment.ack.after(self.snd.nxt()) {
            let opening = self.flags.has(Flags::SYN_RECEIVED);
            return Err(if opening { Disposition::NotOurSyn } else { Disposition::Challenge(DropReason::BadAck) });
        }
        if segment.ack.before(self.snd.una()) {
            return self.take_old_ack(core, segment, sack).map(|()| false);
        }
        let window = (segment.window as u32) << self.snd_shift();
        let advanced = segment.ack != self.snd.una();
        let bare = segment.payload_len == 0 && !segment.flags.fin() && window == self.snd.wnd();
        if self.flags.timer_is(TimerKind::Persist) {
            self.probes_answered();
        }
        let was_writable = self.writable();
        let mut fin = false;
        if advanced || self.snd.una() != self.snd.nxt() {
            let ece = segment.flags.contains(TcpFlags::ECE) && self.flags.has(Flags::ECN);
            let echo = segment.ts.map(|ts| ts.ecr);
            let input = AckInput { ack: segment.ack, bare, sack, ece, echo, now: core.now };
            fin = self.on_ack(core.store, core.pool, core.stats, core.config, &mut core.conn_stats.delivered, input);
        } else if self.ext.is_some() {
            self.on_ack_of_nothing(core.store, segment.ack, bare, sack);
        }
        if advanced || self.snd.is_window_newer(segment.seq, window) {
            self.snd.set_window(segment.seq, window, segment.window);
            if window > 0 {
                if self.flags.timer_is(TimerKind::Persist) {
                    self.clear_timer();
                    self.backoff = 0;
                }
                if let Some(ext) = self.ext.as_mut() {
                    ext.sender.closed_since = None;
                }
            }
        }
        if !was_writable {
            // The window may have grown past what the application was allowed to queue: without this only a write would
            // grow the buffer, and the writer waits for us.
            self.grow_send_buffer(core.store, core.config.send_buffer);
            if self.writable() && self.state.can_send() {
                self.has_room_again(core.now);
                *ready |= Ready::WRITE;
            }
        }
        Ok(fin)
    }

    /// An ACK that others have overtaken. It moves nothing, but what it says of segments above is news all the same (as Linux,
    /// `tcp_ack`, `old_ack`).
    #[cold]
    fn take_old_ack<P: FramePool>(
        &mut self,
        core: &mut Core<'_, P>,
        segment: &Segment,
        sack: &[(SeqNum, SeqNum)],
    ) -> Result<(), Disposition> {
        if self.flags.has(Flags::SYN_RECEIVED) {
            return Err(Disposition::NotOurSyn);
        }
        // RFC 5961 section 5: too old to be honest, and so is one of what we have never sent (as Linux since 6.7).
        let sent = core.conn_stats.acknowledged(self.snd.una()).unwrap_or(u32::MAX);
        if segment.ack.before(self.snd.una() - self.max_snd_wnd().max(1).min(sent)) {
            return Err(Disposition::Challenge(DropReason::BadAck));
        }
        if !sack.is_empty() && self.snd.una() != self.snd.nxt() {
            self.on_old_ack(
                core.store,
                core.stats,
                core.config,
                &mut core.conn_stats.delivered,
                segment.ack,
                sack,
                core.now,
            );
        }
        Ok(())
    }

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
                // A FIN before what we have: its sender has gone back on it.
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

    /// Nobody will read what comes: the handle is closed, or both directions are shut down (RFC 1122 4.2.2.13; as Linux,
    /// which takes data after SHUT_RD alone).
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
            // RFC 5681 4.2: an ACK at once when a gap is filled.
            self.flags.set(Flags::ACK_NOW);
            self.deliver(core, joined, ready);
        }
        if fin { self.on_fin(core, ready) } else { Disposition::Accepted }
    }

    /// Hands in-order bytes to the application's queue.
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

    /// What the application is told of delivered data by the connection's options: SO_RCVLOWAT, urgent data.
    #[inline]
    fn delivered(&mut self, before: u32, ready: &mut Ready) {
        let Some(ext) = self.ext.as_ref() else { return };
        if ext.recv.low > 1 {
            let enough = |bytes: u32| bytes >= ext.recv.low;
            // A window that has no room for the mark must not keep its sender and its reader waiting for one another.
            if enough(self.rx.bytes) && !enough(before) || self.window_is_full() {
                *ready |= Ready::READ;
            }
        }
        if ext.recv.urgent.is_some() {
            self.urgent_delivered(ready);
        }
    }

    /// The peer can send no full segment before the application reads.
    fn window_is_full(&self) -> bool {
        self.rcv_wnd() < self.rcv_mss().min(self.rcv_buf() / 2)
    }

    /// Whether `Ready::READ` holds: bytes (SO_RCVLOWAT of them), or the stream's end.
    #[inline]
    pub(crate) fn readable(&self) -> bool {
        if self.flags.any(Flags::FIN_RECEIVED | Flags::READ_SHUT) {
            return true;
        }
        let low = self.ext.as_ref().map_or(1, |e| e.recv.low).max(1);
        self.rx.bytes >= low || !self.rx.is_empty() && self.window_is_full()
    }

    /// Of a segment that is not taken, the next ACK reports what we had before, our peer's FIN too.
    #[cold]
    fn report_old(&mut self, segment: &Segment) {
        let end = segment.seq + segment.payload_len + u32::from(segment.flags.fin());
        let end = if end.after(self.rcv.nxt()) { self.rcv.nxt() } else { end };
        if segment.seq.before(end) {
            self.report_duplicate(segment.seq, end);
        }
    }

    /// RFC 2883: the next ACK reports what came twice.
    fn report_duplicate(&mut self, start: SeqNum, end: SeqNum) {
        if self.flags.has(Flags::SACK) {
            self.ext_mut().dsack = Some((start, end));
        }
    }

    /// An ACK is owed that tells of a range or of bytes that came twice, and `segment` changes another: the ACK is built
    /// first, so that ACKs tell of ranges in the order in which they changed, and of each in three (RFC 2018 section 4).
    /// One for the whole batch would tell of each once, or of some not at all, and what a lost ACK alone knew is sent
    /// again; where a later block then tells of it after all, Linux takes that for reordering, and from then on waits up
    /// to a round trip longer before it repairs any loss (`tcp_check_sack_reordering`, `tcp_rack_reo_wnd`).
    #[inline]
    pub(crate) fn owes_other_news(&self, segment: &Segment) -> bool {
        self.flags.has(Flags::ACK_NOW)
            && self.flags.has(Flags::SACK)
            && self.ext.as_ref().is_some_and(|ext| ext.is_other_news(self.rcv.nxt(), segment))
    }

    /// The receive share is spent: can what is in order be taken all the same?
    #[cold]
    fn may_exceed_share<P: FramePool>(&mut self, core: &mut Core<'_, P>) -> bool {
        // Two segments are what it was promised.
        self.prune(core) || self.rx.bytes <= u32::from(self.mss) && core.has_reserve()
    }

    /// Gives up what came out of order, so that what is in order can be taken (Linux: `tcp_prune_ofo_queue`; RFC 2018
    /// section 8 allows it). True when there was something.
    #[cold]
    fn prune<P: FramePool>(&mut self, core: &mut Core<'_, P>) -> bool {
        let Some(ext) = self.ext.as_mut() else { return false };
        let before = core.nodes.len();
        ext.out_of_order.clear(core.nodes, core.pool);
        (ext.held, ext.recv.held_frames) = (0, 0);
        core.stats.drops[DropReason::ReceiveBudget as usize] += (before > core.nodes.len()) as u64;
        before > core.nodes.len()
    }

    /// Keeps out-of-order data and answers with an ACK at once (RFC 5681 4.2), SACK blocks in it.
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
        // The first FIN says where the stream ends; another place is a contradiction.
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
        // RFC 2883 4.2: what it has of held data, though there is more in it.
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

    /// Eighth: the peer's FIN, in order.
    #[inline(never)]
    fn on_fin<P: FramePool>(&mut self, core: &mut Core<'_, P>, ready: &mut Ready) -> Disposition {
        if let Some(ext) = self.ext.as_mut() {
            // Behind the stream's end nothing can follow.
            ext.out_of_order.clear(core.nodes, core.pool);
            (ext.held, ext.recv.held_frames, ext.fin_at) = (0, 0, None);
        }
        self.take_fin(ready)
    }

    /// The peer's FIN is next, and nothing is held that came after it.
    #[inline]
    pub(crate) fn take_fin(&mut self, ready: &mut Ready) -> Disposition {
        self.rcv.take_fin();
        self.flags.set(Flags::FIN_RECEIVED | Flags::ACK_NOW);
        *ready |= Ready::READ;
        match self.state {
            State::Established => self.state = State::CloseWait,
            // Our FIN is not acknowledged yet, else we would be in FIN-WAIT-2.
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => return Disposition::TimeWait,
            State::CloseWait | State::Closing | State::LastAck => {}
        }
        Disposition::Accepted
    }
}
