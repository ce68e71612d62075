//! A turn's packets for one interface, in three lists (mTCP section 4.2): control, ACK, data. Data goes round
//! robin by a byte quota; an ACK that data carries is not sent on its own.

use crate::frame::{FramePool, IfaceId, TxChecksum, TxFrame};
use crate::frame_queue::FrameNodes;
use crate::stack::Stack;
use crate::tcb::Tcb;
use crate::tcb::cc::pacing::PacingQueue;
use crate::tcb::flags::Flags;
use crate::tcb::send::buffer::{TxSegment, TxStore, mark};
use crate::tcb::send::segmenter::Next;
use crate::tcb::seq::SeqNum;
use crate::time::Instant;
use crate::tx::build::{self, DEFAULT_TTL, OptionBytes, Plain, SegmentSpec};
use crate::tx::neigh::PathState;
use crate::tx::run::Run;
use crate::wire::options::{self, Timestamps};
use crate::wire::tcp::TcpFlags;
use alloc::vec::Vec;

/// Bytes that a connection may send before the next one has its turn. Linux's TSO quantum is 64 KiB; a
/// fourth of it keeps 50 µs between turns at 2.5 Gb/s. Lower: more list work per byte; higher: latency
/// of others behind a bulk flow.
const QUOTA: u32 = 16 << 10;

/// What visiting a connection came to.
enum Visit {
    /// It has nothing more to send now.
    Done,
    /// It used its quota, or the batch is full.
    Again,
    /// The pool is dry: nobody can send.
    PoolDry,
}

impl<P: FramePool> Stack<P> {
    /// Builds up to `budget` packets for `iface` and pushes them (chains contiguous) to `out`. Returns the
    /// number of packets.
    #[inline]
    pub fn tx_batch(&mut self, iface: IfaceId, budget: usize, out: &mut Vec<TxFrame>) -> usize {
        if self.tx_pending(iface) { self.fill_batch(iface.0 as usize, budget, out) } else { 0 }
    }

    fn fill_batch(&mut self, at: usize, budget: usize, out: &mut Vec<TxFrame>) -> usize {
        let mut sent = self.control_packets(at, budget, out);
        let several = self.net.lists.len() > 1;
        let acks = self.net.lists[at].acks.len();
        for _ in 0..acks {
            if sent >= budget {
                break;
            }
            let Some(index) = self.net.lists[at].acks.pop_front() else { break };
            if several && self.leaves_elsewhere(index, at) {
                continue;
            }
            sent += self.visit_ack(index, out);
        }
        // Round robin until the batch is full or nobody can send: a lone bulk flow fills it by itself.
        while sent < budget {
            let Some(index) = self.net.lists[at].data.pop_front() else { break };
            if several && self.leaves_elsewhere(index, at) {
                continue;
            }
            // With the batch's last place a visit ends before its end.
            if sent + 1 < budget && self.send_lone(index, out) {
                sent += 1;
                continue;
            }
            match self.visit_data(index, budget, &mut sent, out) {
                Visit::Done => {}
                Visit::Again => self.net.lists[at].data.push_back(index),
                Visit::PoolDry => {
                    self.net.lists[at].data.push_front(index);
                    break;
                }
            }
        }
        self.stats.tx_packets += sent as u64;
        sent
    }

    /// The entry is of a connection that has died since, and the one that has its slot now leaves by another interface, where
    /// it has entries of its own: here it would send with that one's link header.
    fn leaves_elsewhere(&self, index: u32, at: usize) -> bool {
        let Some(tcb) = self.slots.open(index) else { return false };
        let path = self.net.path(tcb.path);
        path.state() != PathState::Stale && usize::from(path.iface().0) != at
    }

    /// True when `tx_batch` has something to look at for `iface`.
    #[inline]
    pub fn tx_pending(&self, iface: IfaceId) -> bool {
        self.net
            .lists
            .get(iface.0 as usize)
            .is_some_and(|l| !l.control.is_empty() || !l.acks.is_empty() || !l.data.is_empty())
    }

    fn control_packets(&mut self, at: usize, budget: usize, out: &mut Vec<TxFrame>) -> usize {
        let mut sent = 0;
        let control = &mut self.net.lists[at].control;
        while sent < budget {
            let Some(frame) = control.pop_front() else { break };
            self.stats.tx_bytes += frame.frame.len() as u64;
            sent += !frame.frame.more() as usize;
            out.push(frame);
        }
        sent
    }

    /// Sends the pure ACK that a connection owes, unless data will carry it.
    fn visit_ack(&mut self, index: u32, out: &mut Vec<TxFrame>) -> usize {
        let Some(tcb) = self.slots.open_mut(index) else { return 0 };
        if !tcb.flags.has(Flags::IN_ACK_LIST) {
            return 0;
        }
        if tcb.flags.has(Flags::ACK_NOW) && tcb.flags.has(Flags::IN_DATA_LIST) && tcb.may_carry_ack() {
            // Stays marked: the data visit sends it on its own if no data can go.
            tcb.flags.clear(Flags::IN_ACK_LIST);
            return 0;
        }
        tcb.flags.clear(Flags::IN_ACK_LIST);
        if !tcb.flags.has(Flags::ACK_NOW) {
            self.stats.acks_piggybacked += 1;
            return 0;
        }
        self.pure_ack(index, out)
    }

    fn pure_ack(&mut self, index: u32, out: &mut Vec<TxFrame>) -> usize {
        let before = out.len();
        if self.emit_bare(index, TcpFlags::ACK, None, Some(out)) {
            self.stats.acks_sent += 1;
        } else if let Some(tcb) = self.slots.open_mut(index) {
            // The pool is dry: the ACK is still owed, and goes when frames come back.
            tcb.flags.set(Flags::IN_ACK_LIST);
            if let Some(lists) = self.net.lists_of(tcb.path) {
                lists.acks.push_back(index);
            }
        }
        out.len() - before
    }

    /// Builds a segment without payload for a connection: an ACK, or a probe one byte before SND.UNA (or at
    /// `seq`). It goes to `out` if the neighbour is known and `out` is there, else to the control list.
    /// False when the pool is dry.
    pub(crate) fn emit_bare(
        &mut self,
        index: u32,
        flags: TcpFlags,
        seq: Option<SeqNum>,
        out: Option<&mut Vec<TxFrame>>,
    ) -> bool {
        let ts = self.timestamp();
        let frozen = self.nodes.len() >= self.receive_frames;
        let Self { slots, pool, net, stats, now, turn, .. } = self;
        let Some((tcb, tally)) = slots.open_and_tally(index, turn.tick) else { return false };
        let urgent = tcb.urgent_pointer(seq.unwrap_or(tcb.snd_nxt));
        let seq = seq.unwrap_or(tcb.acceptable_seq());
        let flags = flags | tcb.echo_flags();
        let path = net.path(tcb.path);
        let known = path.state() == PathState::Known;
        let frame = if tcb.has_plain_headers(true) {
            let plain = tcb.plain(seq, flags, urgent, ts, frozen);
            build::bare_plain(pool, path, &plain)
        } else {
            let options = tcb.option_bytes(ts, true);
            let key = tcb.key();
            let spec = SegmentSpec {
                key: &key,
                seq,
                ack: tcb.rcv_nxt,
                flags,
                window: tcb.offer_window(frozen),
                urgent,
                options: &options,
                ttl: tcb.ttl(),
                tos: tcb.tos(),
                flow_label: tcb.flow_label(),
                payload_len: 0,
                payload_sum: 0,
            };
            build::bare(pool, path, &spec)
        };
        let Some(frame) = frame else { return false };
        tcb.ack_sent();
        tally.segments_out = tally.segments_out.wrapping_add(1);
        match out {
            Some(out) if known => {
                stats.tx_bytes += frame.frame.len() as u64;
                out.push(frame);
            }
            _ => net.send(pool, stats, tcb.path, *now, frame),
        }
        true
    }

    /// Sends a connection's data up to its quota.
    #[inline]
    fn visit_data(&mut self, index: u32, budget: usize, sent: &mut usize, out: &mut Vec<TxFrame>) -> Visit {
        let low_water = |tcb: &Tcb| tcb.ext.is_some() && !tcb.below_low_water();
        let was_full = self.slots.open(index).is_some_and(low_water);
        let visit = self.send_data(index, budget, sent, out);
        let now = self.now;
        if was_full
            && let Some(tcb) = self.slots.open_mut(index)
            && tcb.writable()
            && tcb.state.can_send()
        {
            // TCP_NOTSENT_LOWAT: what was sent makes room.
            tcb.has_room_again(now);
            self.notify(index, crate::socket::event::Ready::WRITE);
        }
        visit
    }

    fn send_data(&mut self, index: u32, budget: usize, sent: &mut usize, out: &mut Vec<TxFrame>) -> Visit {
        let ts = self.timestamp();
        let frozen = self.nodes.len() >= self.receive_frames;
        let epoch = self.net.route_epoch;
        if let Some(tcb) = self.slots.open_mut(index)
            && tcb.flags.has(Flags::IN_DATA_LIST)
            && (tcb.route_epoch != epoch || self.net.path(tcb.path).state() == PathState::Stale)
        {
            tcb.flags.clear(Flags::IN_DATA_LIST);
            self.settle(index, crate::socket::event::Ready::default());
            return Visit::Done;
        }
        let Self { slots, pool, net, stats, store, config, now, turn, paced, .. } = self;
        let Some((tcb, tally)) = slots.open_and_tally(index, turn.tick) else { return Visit::Done };
        if !tcb.flags.has(Flags::IN_DATA_LIST) {
            return Visit::Done;
        }
        tcb.tx.unfold(store, tcb.snd_nxt);
        if !tcb.tx.is_empty() {
            tally.busy(turn.tick);
        }
        tcb.end_idle(&config.tcp, config.tcp.initial_window, *now);
        let mut left = QUOTA;
        let mut waits = false;
        let (timer_ran, mut segments) = (tcb.timer_runs(), 0u32);
        // Bytes since the last end of a burst.
        let mut run = 0;
        let mut usual = Run::of(tcb, net.path(tcb.path), ts, turn.us, frozen);
        #[cfg(any(test, feature = "check"))]
        if self.no_shortcuts {
            usual = None;
        }
        while let Some(usual) = &mut usual
            && *sent < budget
            && left > 0
            && let Some(gone) = usual.send(tcb, store, pool, stats, run, out)
        {
            if !tcb.timer_runs() {
                tcb.restart_timer(store, &config.tcp, *now);
            }
            tally.sent_data(turn.tick);
            #[cfg(any(test, feature = "check"))]
            {
                self.shortcuts += 1;
            }
            run = if gone.ends { 0 } else { run + gone.len };
            *sent += 1;
            segments += 1;
            left = left.saturating_sub(gone.len);
        }
        let visit = loop {
            if *sent >= budget || left == 0 {
                break Visit::Again;
            }
            let next = tcb.next_segment(store, pool);
            let segment_index = match next {
                Next::Nothing => break Visit::Done,
                Next::New(i) | Next::Again(i) => i,
            };
            if let Some(at) = tcb.pacing_wait(*now) {
                waits = true;
                queue_paced(tcb, paced, index, at);
                break Visit::Done;
            }
            let before = out.len();
            let len = store.segments[segment_index].len;
            let ends = matches!(next, Next::New(_)) && tcb.ends_burst(store, segment_index, run, *now);
            if ends && run > 0 {
                store.segments[segment_index].marks |= mark::PUSH;
            }
            run = if ends || matches!(next, Next::Again(_)) { 0 } else { run + len };
            if !emit_segment(tcb, store, pool, net, stats, segment_index, ts, frozen, *now, out) {
                break Visit::PoolDry;
            }
            tcb.sent(store, stats, &config.tcp, next, ts, turn.us, *now);
            tally.sent_data(turn.tick);
            *sent += (out.len() > before) as usize;
            segments += 1;
            left = left.saturating_sub(len.max(1));
        };
        // A lone segment has just started the timer itself; without any the probe stays where it is.
        if segments > 1 || segments == 1 && timer_ran {
            tcb.put_off_probe(store, &config.tcp, *now);
        }
        if !matches!(visit, Visit::Done) {
            return visit;
        }
        tcb.flags.clear(Flags::IN_DATA_LIST);
        if !waits {
            tcb.note_limit(store, *now);
            tcb.persist_if_stuck(&config.tcp, *now);
        }
        crate::stack::arm(tcb, &mut self.wheel, index, self.now);
        if tcb.flags.has(Flags::ACK_NOW) && !tcb.flags.has(Flags::IN_ACK_LIST) {
            *sent += self.pure_ack(index, out);
        }
        Visit::Done
    }
}

/// The connection's next burst leaves at `at`.
#[cold]
fn queue_paced(tcb: &mut Tcb, paced: &mut PacingQueue, index: u32, at: Instant) {
    if let Some(ext) = tcb.ext.as_mut()
        && !core::mem::replace(&mut ext.pacing.queued, true)
    {
        paced.push(at, index, tcb.generation);
    }
}

/// Builds one segment of the send queue. The frame is shared with the queue; if the device still holds it
/// from an earlier transmission, its payload is copied. False when the pool is dry.
#[allow(clippy::too_many_arguments, reason = "the connection and the parts of its core that building touches")]
#[inline]
fn emit_segment<P: FramePool>(
    tcb: &mut Tcb,
    store: &mut TxStore,
    pool: &mut P,
    net: &mut crate::net::Net,
    stats: &mut crate::stats::Stats,
    index: u32,
    ts: u32,
    frozen: bool,
    now: Instant,
    out: &mut Vec<TxFrame>,
) -> bool {
    let path = net.path(tcb.path);
    let known = path.state() == PathState::Known;
    let TxStore { segments, rest, .. } = store;
    let segment = &mut segments[index];
    let payload_sum = if path.tx_checksum() { 0 } else { segment.payload_sum(rest, pool) };
    let (flags, tos) = tcb.mark_data(segment.flags(), index == tcb.tx.next, segment.len);
    // Blocks go along only where a full segment leaves room; a pure ACK carries them otherwise.
    let with_sack = segment.len + 36 <= tcb.mss as u32;
    let first = out.len();
    let in_place = segment.len > 0 && !pool.is_shared(&segment.head);
    let stamps = if tcb.flags.has(Flags::TIMESTAMPS) { options::TIMESTAMPS_LEN } else { 0 };
    let bytes;
    if segment.len == 0 && tcb.has_plain_headers(with_sack) {
        // A bare FIN.
        let urgent = tcb.urgent_pointer(segment.seq);
        let plain = Plain { tos, ..tcb.plain(segment.seq, flags, urgent, ts, frozen) };
        let Some(frame) = build::bare_plain(pool, path, &plain) else { return false };
        bytes = frame.frame.len() as u64;
        out.push(frame);
    } else if in_place
        && tcb.has_plain_headers(with_sack)
        && segment.head.off() >= build::header_len(path, false, stamps as u8)
    {
        let urgent = tcb.urgent_pointer(segment.seq);
        let plain =
            Plain { payload_len: segment.len, payload_sum, tos, ..tcb.plain(segment.seq, flags, urgent, ts, frozen) };
        let off = segment.head.off();
        let checksum = build::write_plain(pool, &mut segment.head, path, &plain);
        let headers = off - segment.head.off();
        bytes = headers as u64 + u64::from(segment.len);
        push_shared(pool, segment, rest, headers, checksum, out);
    } else {
        let emit = Emit { ts, frozen, flags, tos, with_sack, payload_sum };
        let Some(any) = emit_any(tcb, pool, path, segment, rest, out, &emit) else { return false };
        bytes = any;
    }
    if tcb.flags.any(Flags::ACK_NOW | Flags::ACK_DELAYED) {
        stats.acks_piggybacked += 1;
    }
    let owes_blocks = !with_sack && tcb.ext.as_ref().is_some_and(|e| !e.islands.is_empty());
    if !owes_blocks {
        tcb.ack_carried();
    }
    if known {
        stats.tx_bytes += bytes;
    } else {
        let packet = out.drain(first..).collect();
        net.wait_for_neighbour(pool, stats, tcb.path, now, packet);
    }
    true
}

/// What [`emit_segment`] has found out.
struct Emit {
    ts: u32,
    frozen: bool,
    flags: TcpFlags,
    tos: u8,
    with_sack: bool,
    payload_sum: u16,
}

/// A segment with any headers, in whatever frames: its length. `None`: the pool is dry.
fn emit_any<P: FramePool>(
    tcb: &mut Tcb,
    pool: &mut P,
    path: &crate::tx::neigh::Path,
    segment: &mut TxSegment,
    rest: &FrameNodes,
    out: &mut Vec<TxFrame>,
    emit: &Emit,
) -> Option<u64> {
    let Emit { ts, frozen, flags, tos, with_sack, payload_sum } = *emit;
    let options = tcb.option_bytes(ts, with_sack);
    let key = tcb.key();
    let spec = SegmentSpec {
        key: &key,
        seq: segment.seq,
        ack: tcb.rcv_nxt,
        flags,
        window: tcb.offer_window(frozen),
        urgent: tcb.urgent_pointer(segment.seq),
        options: &options,
        ttl: tcb.ttl(),
        tos,
        flow_label: tcb.flow_label(),
        payload_len: segment.len,
        payload_sum,
    };
    let headers = build::header_len(path, key.is_v6(), options.len);
    if segment.len == 0 {
        out.push(build::bare(pool, path, &spec)?);
    } else if !pool.is_shared(&segment.head) && segment.head.off() >= headers {
        let checksum = build::write_headers(pool, &mut segment.head, path, &spec);
        push_shared(pool, segment, rest, headers, checksum, out);
    } else if !emit_copy(pool, path, &spec, segment, rest, out) {
        return None;
    }
    Some(headers as u64 + u64::from(segment.len))
}

/// A segment whose headers are written leaves; the send queue keeps the same frames.
#[inline(always)]
fn push_shared<P: FramePool>(
    pool: &mut P,
    segment: &mut TxSegment,
    rest: &FrameNodes,
    headers: usize,
    checksum: Option<TxChecksum>,
    out: &mut Vec<TxFrame>,
) {
    let frame = pool.share(&segment.head);
    segment.head.trim_front(headers);
    out.push(TxFrame { frame, checksum });
    if !segment.rest.is_empty() {
        push_rest(pool, segment, rest, out);
    }
}

/// The frames behind a chain's first, which `out` ends with.
#[inline(never)]
fn push_rest<P: FramePool>(pool: &mut P, segment: &TxSegment, rest: &FrameNodes, out: &mut Vec<TxFrame>) {
    let more = |last: &mut Vec<TxFrame>| {
        if let Some(last) = last.last_mut() {
            last.frame.set_more(true);
        }
    };
    segment.rest.for_each(rest, |part| {
        more(out);
        let mut frame = pool.share(part);
        frame.set_more(false);
        out.push(TxFrame { frame, checksum: None });
    });
}

/// Builds a segment whose frame the device still holds, or whose head has no room for headers: in a frame of its own.
#[cold]
fn emit_copy<P: FramePool>(
    pool: &mut P,
    path: &crate::tx::neigh::Path,
    spec: &SegmentSpec<'_>,
    segment: &TxSegment,
    rest: &FrameNodes,
    out: &mut Vec<TxFrame>,
) -> bool {
    let first = out.len();
    let Some(mut head) = pool.alloc() else { return false };
    let n = segment.head.len().min(pool.payload_room());
    let mut copy = [0u8; 4096];
    copy[..n].copy_from_slice(&pool.bytes(&segment.head)[..n]);
    head.grow_back(n);
    pool.bytes_mut(&mut head).copy_from_slice(&copy[..n]);
    let extra = segment.head.len() - n;
    let checksum = build::write_headers(pool, &mut head, path, spec);
    out.push(TxFrame { frame: head, checksum });
    if extra > 0 {
        // A frame handed in by the application may hold more than a fresh one can: share its end.
        let mut end = pool.share(&segment.head);
        end.trim_front(n);
        out.push(TxFrame { frame: end, checksum: None });
    }
    segment.rest.for_each(rest, |part| out.push(TxFrame { frame: pool.share(part), checksum: None }));
    let chain = out.len();
    for (i, part) in out[first..].iter_mut().enumerate() {
        part.frame.set_more(first + i + 1 < chain);
    }
    true
}

impl Tcb {
    /// A segment needs nothing but what a [`Plain`] says. `with_sack`: it would carry blocks.
    #[inline(always)]
    fn has_plain_headers(&self, with_sack: bool) -> bool {
        let owes = |e: &crate::tcb::Ext| with_sack && (!e.islands.is_empty() || e.dsack.is_some());
        !self.flags.has(Flags::V6) && !self.ext.as_ref().is_some_and(owes)
    }

    /// Headers of a segment without payload.
    #[inline(always)]
    fn plain(&mut self, seq: SeqNum, flags: TcpFlags, urgent: u16, ts: u32, frozen: bool) -> Plain {
        let window = self.offer_window(frozen);
        Plain { urgent, ttl: self.ttl(), tos: self.tos(), ..self.usual_headers(seq, flags, window, ts) }
    }

    /// As [`Tcb::plain`], of a connection that is quiet about what leaves: no urgent data, the defaults in the IP header.
    #[inline(always)]
    pub(super) fn usual_headers(&self, seq: SeqNum, flags: TcpFlags, window: u16, ts: u32) -> Plain {
        Plain {
            local: self.local,
            remote: self.remote,
            local_port: self.local_port,
            remote_port: self.remote_port,
            seq,
            ack: self.rcv_nxt,
            flags,
            window,
            urgent: 0,
            ts: self.flags.has(Flags::TIMESTAMPS).then_some(Timestamps { val: ts, ecr: self.ts_recent }),
            ttl: DEFAULT_TTL,
            tos: 0,
            payload_len: 0,
            payload_sum: 0,
        }
    }

    /// A segment of this connection can leave now, as far as a glance tells.
    #[inline]
    fn may_carry_ack(&self) -> bool {
        self.has_unsent() && self.flight() < self.window.cwnd && self.snd_wnd > 0
    }

    #[inline]
    pub(crate) fn ttl(&self) -> u8 {
        self.ext.as_ref().and_then(|e| e.ttl).unwrap_or(DEFAULT_TTL)
    }

    /// Timestamps (on every segment once agreed: RFC 7323 3.2) and SACK blocks.
    #[inline]
    pub(crate) fn option_bytes(&mut self, ts: u32, with_sack: bool) -> OptionBytes {
        let mut options = OptionBytes::NONE;
        if self.flags.has(Flags::TIMESTAMPS) {
            let pair = Timestamps { val: ts, ecr: self.ts_recent };
            options.len = options::emit_timestamps(pair, &mut options.bytes) as u8;
        }
        if with_sack
            && self.flags.has(Flags::SACK)
            && let Some(ext) = self.ext.as_mut()
            && (!ext.islands.is_empty() || ext.dsack.is_some())
        {
            let mut blocks = [(SeqNum(0), SeqNum(0)); 4];
            // With timestamps 40 bytes of options leave room for three.
            let room = if options.len > 0 { 3 } else { 4 };
            let mut n = 0;
            if let Some(range) = ext.dsack.take() {
                // RFC 2883 section 4: the duplicate range comes first.
                blocks[0] = range;
                n = 1;
                // ... and the block that it lies in second.
                ext.islands.touch(range.0);
            }
            n += ext.islands.sack_blocks(&mut blocks[n..room]);
            let at = options.len as usize;
            options.len += options::emit_sack(&blocks[..n], &mut options.bytes[at..]) as u8;
        }
        options
    }
}
