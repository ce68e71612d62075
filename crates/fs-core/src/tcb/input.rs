//! A segment arrives at a synchronized connection: RFC 9293 3.10.7.4, step by step, with RFC 7323 (PAWS)
//! before and RFC 5961 (blind attacks) in between. Returns a named disposition; the stack carries it out.

use crate::config::TcpConfig;
use crate::drop_reason::DropReason;
use crate::frame::{FramePool, RxFrame};
use crate::frame_queue::{FrameNodes, FrameQueue};
use crate::rx::parse::Segment;
use crate::socket::event::Ready;
use crate::stats::Stats;
use crate::tcb::flags::Flags;
use crate::tcb::recv::reassembly::{self, Inserted};
use crate::tcb::send::buffer::TxStore;
use crate::tcb::send::recovery::AckInput;
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
    #[inline]
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
    /// Thrown away and answered with a challenge ACK (RFC 5961), rate limited.
    Challenge(DropReason),
    /// The peer reset the connection.
    PeerReset,
    /// Our FIN and the peer's are both done: to TIME-WAIT.
    TimeWait,
    /// LAST-ACK is over.
    Closed,
    /// Data for a socket that nobody reads: reset.
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
    /// The receive share of the pool is half spent: copy small payloads together.
    pub(crate) pressure: bool,
    /// The receive share is spent: take no data.
    pub(crate) exhausted: bool,
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
        if let Err(refused) = self.check(segment) {
            arrival.discard(core.pool);
            return refused;
        }
        if self.flags.has(Flags::ECN) {
            self.receive_ecn(segment);
        }
        // Fifth: the ACK field. More than timestamps may be SACK blocks.
        let taken = if segment.opt_len > 12 && self.flags.has(Flags::SACK) {
            let blocks = options::sack_blocks(segment.options(arrival.head(core.pool)));
            self.take_ack(core, segment, blocks.as_slice(), ready)
        } else {
            self.take_ack(core, segment, &[], ready)
        };
        let fin_acked = match taken {
            Ok(fin_acked) => fin_acked,
            Err(refused) => {
                arrival.discard(core.pool);
                return refused;
            }
        };
        if fin_acked {
            match self.state {
                State::FinWait1 => {
                    self.state = State::FinWait2;
                    if self.flags.has(Flags::ORPHAN) {
                        // Nobody waits for the peer's FIN: it gets a bounded time (Linux `tcp_fin_timeout`).
                        self.ext_mut().orphan_until = Some(core.now + core.config.fin_wait_2);
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
        if segment.payload_len == 0 && !segment.flags.fin() {
            arrival.discard(core.pool);
            return Disposition::Accepted;
        }
        // Seventh and eighth: the segment text and FIN.
        if !self.state.can_receive() {
            arrival.discard(core.pool);
            self.flags.set(Flags::ACK_NOW);
            return Disposition::Discard(DropReason::Duplicate);
        }
        self.take_text(core, segment, arrival, ready)
    }

    /// Steps before the ACK: PAWS, sequence, RST, SYN.
    #[inline]
    fn check(&mut self, segment: &Segment) -> Result<(), Disposition> {
        let rst = segment.flags.rst();
        if self.flags.has(Flags::TIMESTAMPS) {
            match segment.ts {
                // RFC 7323 5.3 R1: older than what we have seen.
                Some(ts) if (ts.val.wrapping_sub(self.ts_recent) as i32) < 0 && !rst => {
                    return Err(Disposition::DiscardAndAck(DropReason::Paws));
                }
                // RFC 7323 4.3 (2): only a segment that reaches the left edge updates TS.Recent.
                Some(ts) if segment.seq.at_or_before(self.rcv_nxt) && !rst => self.ts_recent = ts.val,
                // RFC 7323 3.2: a non-RST segment without the option may be dropped.
                None if !rst => return Err(Disposition::Discard(DropReason::Paws)),
                Some(_) | None => {}
            }
        }
        // First: sequence number. As Linux: touching the window from either side is enough, so that a valid
        // ACK, URG or RST is taken even when the window is zero (RFC 9293 MUST-66).
        let fin = segment.flags.fin();
        let end = segment.seq + segment.payload_len + fin as u32;
        if end.before(self.rcv_nxt) || segment.seq.after(self.rcv_edge) {
            if rst {
                return Err(Disposition::Discard(DropReason::OutOfWindow));
            }
            if segment.payload_len > 0 && end.at_or_before(self.rcv_nxt) && self.flags.has(Flags::SACK) {
                let range = (segment.seq, segment.seq + segment.payload_len);
                self.ext_mut().dsack = Some(range);
            }
            let probe = segment.seq + 1 == self.rcv_nxt || segment.payload_len > 0 || fin;
            return Err(if probe {
                Disposition::DiscardAndAck(DropReason::OutOfWindow)
            } else {
                Disposition::Challenge(DropReason::OutOfWindow)
            });
        }
        // Second: RST, with RFC 5961 section 3.
        if rst {
            return Err(if segment.seq == self.rcv_nxt {
                Disposition::PeerReset
            } else {
                Disposition::Challenge(DropReason::InexactRst)
            });
        }
        // Fourth: SYN, with RFC 5961 section 4.
        if segment.flags.syn() {
            return Err(Disposition::Challenge(DropReason::UnexpectedSyn));
        }
        if !segment.flags.ack() {
            return Err(Disposition::Discard(DropReason::NoAck));
        }
        Ok(())
    }

    /// Returns whether this ACK acknowledged our FIN.
    #[inline]
    fn take_ack<P: FramePool>(
        &mut self,
        core: &mut Core<'_, P>,
        segment: &Segment,
        sack: &[(crate::tcb::seq::SeqNum, crate::tcb::seq::SeqNum)],
        ready: &mut Ready,
    ) -> Result<bool, Disposition> {
        if segment.ack.after(self.snd_nxt) {
            return Err(Disposition::DiscardAndAck(DropReason::BadAck));
        }
        let window = (segment.window as u32) << self.snd_shift();
        if segment.ack.before(self.snd_una) {
            // RFC 5961 section 5: too old to be honest.
            if segment.ack.before(self.snd_una - self.max_snd_wnd().max(1)) {
                return Err(Disposition::Challenge(DropReason::BadAck));
            }
            return Ok(false);
        }
        let advanced = segment.ack != self.snd_una;
        let bare = segment.payload_len == 0 && !segment.flags.fin() && window == self.snd_wnd;
        if self.flags.has(Flags::PERSIST) {
            // The peer answers our probes: do not give up.
            self.dup_acks = 0;
        }
        let was_writable = self.writable();
        let mut fin = false;
        if advanced || self.snd_una != self.snd_nxt {
            let ece = segment.flags.contains(TcpFlags::ECE) && self.flags.has(Flags::ECN);
            let input = AckInput { ack: segment.ack, bare, sack, ece, now: core.now };
            fin = self.on_ack(core.store, core.pool, core.stats, core.config, input);
        }
        // RFC 9293 3.10.7.4: SND.WND from the latest segment; WL2 is implied by ack >= SND.UNA.
        if advanced || self.snd_wl1.before(segment.seq) || self.snd_wl1 == segment.seq && window > self.snd_wnd {
            self.snd_wnd = window;
            self.snd_wl1 = segment.seq;
            self.max_window_field = self.max_window_field.max(segment.window);
            if window > 0 && self.flags.has(Flags::PERSIST) {
                self.flags.clear(Flags::PERSIST);
                self.rto_at = 0;
                self.backoff = 0;
            }
        }
        if !was_writable && self.writable() && self.state.can_send() {
            *ready |= Ready::WRITE;
        }
        Ok(fin)
    }

    fn take_text<P: FramePool>(
        &mut self,
        core: &mut Core<'_, P>,
        segment: &Segment,
        arrival: Arrival<'_>,
        ready: &mut Ready,
    ) -> Disposition {
        let mut seq = segment.seq;
        let mut fin = segment.flags.fin();
        let (off, len) = (segment.payload_off as usize, segment.payload_len as usize);
        if self.flags.has(Flags::ORPHAN) && (seq + segment.payload_len).after(self.rcv_nxt) {
            arrival.discard(core.pool);
            return Disposition::ResetPeer;
        }
        if core.exhausted && len > 0 {
            arrival.discard(core.pool);
            self.flags.set(Flags::ACK_NOW);
            return Disposition::Discard(DropReason::ReceiveBudget);
        }
        let mut data = arrival.into_payload(core.nodes, core.pool, off, len);
        if seq.before(self.rcv_nxt) {
            let old = self.rcv_nxt.since(seq).min(data.bytes);
            if old > 0 && self.flags.has(Flags::SACK) {
                let start = seq;
                self.ext_mut().dsack = Some((start, start + old));
            }
            data.trim_front(core.nodes, core.pool, old as usize);
            seq += old;
            self.flags.set(Flags::ACK_NOW);
        }
        if (seq + data.bytes).after(self.rcv_edge) {
            let keep = self.rcv_edge.delta(seq).max(0) as usize;
            data.truncate(core.nodes, core.pool, keep);
            fin = false;
            self.flags.set(Flags::ACK_NOW);
        }
        if seq == self.rcv_nxt { self.take_in_order(core, data, fin, ready) } else { self.hold(core, seq, data, fin) }
    }

    #[inline]
    fn take_in_order<P: FramePool>(
        &mut self,
        core: &mut Core<'_, P>,
        data: FrameQueue,
        mut fin: bool,
        ready: &mut Ready,
    ) -> Disposition {
        if data.bytes > 0 {
            let len = data.bytes;
            self.rcv_nxt += len;
            self.deliver(core, data, ready);
            self.owe_ack(len);
        }
        if let Some(ext) = &mut self.ext
            && (!ext.islands.is_empty() || ext.fin_at.is_some())
        {
            let joined = reassembly::take_contiguous(&mut ext.islands, core.nodes, core.pool, self.rcv_nxt);
            ext.held = ext.islands.iter().map(|i| i.data.bytes).sum();
            self.rcv_nxt += joined.bytes;
            fin |= ext.fin_at == Some(self.rcv_nxt);
            // RFC 5681 4.2: an ACK at once when a gap is filled.
            self.flags.set(Flags::ACK_NOW);
            self.deliver(core, joined, ready);
        }
        if fin { self.on_fin(ready) } else { Disposition::Accepted }
    }

    /// Hands in-order bytes to the application's queue.
    #[inline]
    fn deliver<P: FramePool>(&mut self, core: &mut Core<'_, P>, mut data: FrameQueue, ready: &mut Ready) {
        if data.is_empty() {
            return;
        }
        if self.flags.any(Flags::READ_SHUT | Flags::ORPHAN) {
            data.clear(core.nodes, core.pool);
            return;
        }
        if self.rx.is_empty() {
            *ready |= Ready::READ;
        }
        if core.pressure {
            match self.rx.absorb(core.nodes, core.pool, data) {
                Ok(()) => {
                    core.stats.rx_compacted += 1;
                    return;
                }
                Err(back) => data = back,
            }
        }
        self.rx.append(core.nodes, data);
    }

    /// Keeps out-of-order data and answers with an ACK at once (RFC 5681 4.2), SACK blocks in it.
    fn hold<P: FramePool>(
        &mut self,
        core: &mut Core<'_, P>,
        seq: crate::tcb::seq::SeqNum,
        data: FrameQueue,
        fin: bool,
    ) -> Disposition {
        self.flags.set(Flags::ACK_NOW);
        let end = seq + data.bytes;
        let ext = self.ext.get_or_insert_default();
        if fin {
            ext.fin_at = Some(end);
        }
        if data.is_empty() {
            return Disposition::Accepted;
        }
        match reassembly::insert(&mut ext.islands, core.nodes, core.pool, seq, data) {
            Inserted::Held(bytes) => {
                ext.held += bytes;
                core.stats.out_of_order += 1;
                Disposition::Accepted
            }
            Inserted::Duplicate => {
                ext.dsack = Some((seq, end));
                Disposition::Discard(DropReason::Duplicate)
            }
            Inserted::Refused => Disposition::Discard(DropReason::ReceiveBudget),
        }
    }

    /// Eighth: the peer's FIN, in order.
    fn on_fin(&mut self, ready: &mut Ready) -> Disposition {
        self.rcv_nxt += 1;
        self.rcv_edge = self.rcv_edge.max(self.rcv_nxt);
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
