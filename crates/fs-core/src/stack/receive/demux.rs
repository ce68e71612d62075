//! Demultiplexing of a batch of frames in three passes: parse and hash; prefetch, so that cache
//! misses overlap; process.

use crate::drop_reason::DropReason;
use crate::flow::{FlowKey, Protocol};
use crate::frame::{FramePool, IfaceId, RxFrame};
use crate::outbox::Packet;
use crate::rx::batch::{Batch, Item};
use crate::rx::owner::Owner;
use crate::rx::parse::{self, Parsed, Segment, View};
use crate::slab::NIL;
use crate::socket::event::Ready;
use crate::stack::Stack;
use crate::tcb::arrival::{Arrival, Core, Disposition};
use crate::tcb::flags::Flags;
use crate::tcb::{Slot, State};
use crate::wire::checksum::RunningSum;
use crate::wire::tcp::TcpFlags;
use alloc::vec::Vec;

/// Below this many flows everything is in the cache.
const MANY_FLOWS: usize = 2048;

impl<P: FramePool> Stack<P> {
    /// Takes all frames out of `frames`. Continuations of a packet follow its head.
    #[inline]
    pub fn rx_batch(&mut self, frames: &mut Vec<RxFrame>) {
        if !frames.is_empty() {
            self.take_batch(frames);
        }
    }

    fn take_batch(&mut self, frames: &mut Vec<RxFrame>) {
        let mut batch = core::mem::take(&mut self.batch);
        batch.frames.append(frames);
        self.parse_all(&mut batch);
        self.look_ahead(&mut batch.packets);
        let Batch { frames: all, packets } = &mut batch;
        // The owner of the previous packet, which often owns this one, too.
        let (mut last_hash, mut last) = (0, None);
        for Item { first, end, hash, candidate, parsed } in packets.iter() {
            let frames = &mut all[*first as usize..*end as usize];
            match parsed {
                Ok(Parsed::Tcp(segment)) => {
                    if *hash != last_hash || !self.owns(last, &segment.key) {
                        (last_hash, last) = (*hash, self.likely_owner(*candidate, *hash, &segment.key));
                    }
                    self.on_tcp(last, segment, *hash, frames, 0);
                }
                Ok(other) => self.on_other(frames[0].iface, *other, frames, 0),
                Err(reason) => self.discard(frames, *reason),
            }
        }
        batch.frames.clear();
        batch.packets.clear();
        self.batch = batch;
    }

    /// Pass 1. Results are written in place: those of the fast path from registers.
    fn parse_all(&mut self, batch: &mut Batch) {
        let Batch { frames, packets } = batch;
        let mut view_of = None;
        let mut first = 0;
        while first < frames.len() {
            let mut end = first + 1;
            while frames[end - 1].frame.more() && end < frames.len() {
                end += 1;
            }
            let packet = &frames[first..end];
            let iface = packet[0].iface;
            if view_of.as_ref().is_none_or(|(id, _)| *id != iface) {
                view_of = self.net.interface(iface).map(|interface| (iface, View::of(interface)));
            }
            let (from, to) = (first as u32, end as u32);
            first = end;
            let Some((_, view)) = &view_of else {
                let parsed = Err(DropReason::NotOurProtocol);
                packets.push(Item { first: from, end: to, hash: 0, candidate: NIL, parsed });
                continue;
            };
            if let Some(segment) = self.parse_fast(view, packet) {
                let hash = self.hasher.hash(Protocol::Tcp, &segment.key);
                // Loads while the next packet is parsed. A new connection's bucket has not been
                // used for long, for any number of flows.
                self.table.prefetch(hash);
                packets.push(Item { first: from, end: to, hash, candidate: NIL, parsed: Ok(Parsed::Tcp(segment)) });
            } else {
                let parsed = self.parse_full(view, packet);
                let hash = match &parsed {
                    Ok(Parsed::Tcp(segment)) => self.hasher.hash(Protocol::Tcp, &segment.key),
                    _ => 0,
                };
                packets.push(Item { first: from, end: to, hash, candidate: NIL, parsed });
            }
        }
        self.stats.rx_packets += packets.len() as u64;
    }

    #[inline(always)]
    fn parse_fast(&mut self, view: &View, frames: &[RxFrame]) -> Option<Segment> {
        let Self { pool, stats, .. } = self;
        let [only] = frames else { return None };
        let segment = parse::fast(view, pool.bytes(&only.frame), only.checksum)?;
        stats.rx_bytes += only.frame.len() as u64;
        Some(segment)
    }

    /// Parses a packet that [`Stack::parse_fast`] does not handle.
    #[inline]
    fn parse_full(&mut self, view: &View, frames: &[RxFrame]) -> Result<Parsed, DropReason> {
        let Self { pool, stats, .. } = self;
        let head = pool.bytes(&frames[0].frame);
        let tail_len: usize = frames[1..].iter().map(|f| f.frame.len()).sum();
        stats.rx_bytes += (head.len() + tail_len) as u64;
        parse::full(view, head, tail_len, frames[0].checksum, || {
            let mut sum = RunningSum::default();
            for rx in &frames[1..] {
                sum.push(pool.bytes(&rx.frame));
            }
            sum.sum()
        })
    }

    /// Pass 2: prefetches the data of all packets before the first of them is processed. Each step
    /// leads to the next: the table (already prefetched) to the connection, the connection to its
    /// sent segments, those to a frame. All packets take one step before the next one, since the
    /// processor stalls until it knows the page of an address, and translates several at once.
    #[inline]
    fn look_ahead(&self, packets: &mut [Item]) {
        if !self.has_many_flows() {
            return;
        }
        for item in packets.iter_mut() {
            item.candidate = self.table.candidate(item.hash).unwrap_or(NIL);
            self.slots.prefetch_slot(item.candidate);
        }
        let connections = || packets.iter().filter_map(|item| self.slots.open(item.candidate));
        packets.iter().for_each(|item| self.slots.prefetch_stats(item.candidate));
        for tcb in connections() {
            tcb.ext.prefetch();
            tcb.tx.prefetch(&self.store, &self.pool);
        }
        for tcb in connections() {
            tcb.tx.prefetch_frame(&self.store, &self.pool);
        }
    }

    /// Returns true for so many flows that the next one is not in the cache.
    #[inline]
    pub(crate) fn has_many_flows(&self) -> bool {
        self.table.len() >= MANY_FLOWS
    }

    /// Like [`Stack::owner_by_hash`], which is called if the table's first candidate is not the
    /// owner. `candidate` is that candidate, or `NIL`.
    #[inline]
    fn likely_owner(&self, candidate: u32, hash: u64, key: &FlowKey) -> Option<Owner> {
        // Values of handshakes and TIME-WAIT records are beyond all slots.
        let is_open = |value| self.slots.open(value).is_some_and(|tcb| tcb.is(key));
        if candidate != NIL && is_open(candidate) {
            return Some(Owner::Connection(candidate));
        }
        match self.table.candidate(hash) {
            Some(value) if is_open(value) => Some(Owner::Connection(value)),
            Some(value) => match Owner::of(value) {
                Owner::Handshake(index) if self.handshakes.entry(index).key == *key => Some(Owner::Handshake(index)),
                _ => self.owner_by_hash(hash, key),
            },
            None if self.table.goes_on(hash) => self.owner_by_hash(hash, key),
            // No owner: nearly always a SYN.
            None => None,
        }
    }

    /// Handles a packet that another core received for us, or whose owner it does not know.
    pub(crate) fn rx_forwarded(&mut self, packet: Packet) {
        let Packet { mut head, mut rest, hops } = packet;
        self.stats.packets_from_cores += 1;
        if rest.is_empty() {
            self.on_forwarded(core::slice::from_mut(&mut head), hops);
        } else {
            rest.insert(0, head);
            self.on_forwarded(&mut rest, hops);
        }
    }

    fn on_forwarded(&mut self, frames: &mut [RxFrame], hops: u16) {
        let iface = frames[0].iface;
        let Some(interface) = self.net.interface(iface) else {
            return self.discard(frames, DropReason::NotOurProtocol);
        };
        let view = View::of(interface);
        let fast = self.parse_fast(&view, frames).map(Parsed::Tcp);
        match fast.map_or_else(|| self.parse_full(&view, frames), Ok) {
            Ok(Parsed::Tcp(segment)) => {
                let hash = self.hasher.hash(Protocol::Tcp, &segment.key);
                let owner = self.owner_by_hash(hash, &segment.key);
                self.on_tcp(owner, &segment, hash, frames, hops);
            }
            Ok(other) => self.on_other(iface, other, frames, hops),
            Err(reason) => self.discard(frames, reason),
        }
    }

    /// Returns the owner of a flow on this core.
    #[inline]
    pub(crate) fn owner_of(&self, key: &FlowKey) -> Option<Owner> {
        self.owner_by_hash(self.hasher.hash(Protocol::Tcp, key), key)
    }

    #[inline]
    pub(crate) fn owner_by_hash(&self, hash: u64, key: &FlowKey) -> Option<Owner> {
        let Self { table, slots, handshakes, time_waits, .. } = self;
        table
            .find(hash, |value| match Owner::of(value) {
                Owner::Connection(index) => match slots.slot(index) {
                    Slot::Open(tcb) => tcb.is(key),
                    Slot::SynSent(s) => s.key == *key,
                    Slot::Dead(_) | Slot::Free { .. } => false,
                },
                Owner::Handshake(index) => handshakes.entry(index).key == *key,
                Owner::TimeWait(index) => time_waits.key(index) == *key,
            })
            .map(Owner::of)
    }

    /// Returns true if the connection still owns the flow.
    #[inline]
    fn owns(&self, owner: Option<Owner>, key: &FlowKey) -> bool {
        matches!(owner, Some(Owner::Connection(index)) if self.slots.open(index).is_some_and(|tcb| tcb.is(key)))
    }

    /// Pass 3: processes a segment.
    #[inline]
    fn on_tcp(&mut self, owner: Option<Owner>, segment: &Segment, hash: u64, frames: &mut [RxFrame], hops: u16) {
        if self.net.may_be_bound(&segment.key) && self.is_bound_elsewhere(owner, frames[0].iface) {
            // Like Linux: a socket bound to another device does not exist for this packet.
            if !segment.flags.rst() {
                self.send_reset_for(segment);
            }
            return self.discard(frames, DropReason::NoSocket);
        }
        match owner {
            Some(Owner::Connection(index)) => {
                self.stats.packets_local += (hops == 0) as u64;
                self.on_connection(index, segment, hash, frames);
            }
            Some(Owner::Handshake(index)) => {
                self.stats.packets_local += (hops == 0) as u64;
                self.on_handshake(index, segment, hash, frames, hops);
            }
            Some(Owner::TimeWait(index)) => {
                self.stats.packets_local += (hops == 0) as u64;
                self.on_time_wait(index, segment, hash, frames, hops);
            }
            None => self.on_unowned(segment, hash, frames, hops),
        }
    }

    /// Returns true if the owner's socket is bound to a device (SO_BINDTODEVICE) other than
    /// `iface`.
    #[cold]
    fn is_bound_elsewhere(&self, owner: Option<Owner>, iface: IfaceId) -> bool {
        let device = match owner {
            Some(Owner::Connection(index)) => match self.slots.slot(index) {
                Slot::Open(tcb) => tcb.device(),
                Slot::SynSent(s) => s.options.device,
                Slot::Dead(_) | Slot::Free { .. } => None,
            },
            Some(Owner::Handshake(index)) => self.handshakes.entry(index).device,
            Some(Owner::TimeWait(_)) | None => None,
        };
        device.is_some_and(|device| device != iface)
    }

    #[inline]
    pub(crate) fn on_connection(&mut self, index: u32, segment: &Segment, hash: u64, frames: &mut [RxFrame]) {
        if !self.predicted(index, segment, frames) {
            self.process::<false>(index, segment, hash, frames);
        }
    }

    /// Processes payload and FIN of a segment with SYN, whose other fields were processed already.
    /// `segment.seq` is after the SYN.
    #[inline(never)]
    pub(crate) fn on_text(&mut self, index: u32, segment: &Segment, hash: u64, frames: &mut [RxFrame]) {
        self.process::<true>(index, segment, hash, frames);
    }

    #[inline(always)]
    fn process<const TEXT_ONLY: bool>(&mut self, index: u32, segment: &Segment, hash: u64, frames: &mut [RxFrame]) {
        if self.slots.open(index).is_some_and(|tcb| tcb.owes_other_news(segment)) {
            self.emit_bare(index, TcpFlags::ACK, None, None);
        }
        let nodes = self.nodes.len();
        let Self {
            slots,
            pool,
            nodes: node_slab,
            store,
            stats,
            config,
            now,
            turn,
            receive_frames,
            ts_clock,
            ts_offset,
            ..
        } = self;
        let (Slot::Open(tcb), conn_stats) = slots.slot_and_stats(index) else {
            return self.on_opening(index, segment, hash, frames);
        };
        conn_stats.received(segment.payload_len, turn.tick);
        let mut core = Core {
            pool,
            nodes: node_slab,
            store,
            stats,
            config: &config.tcp,
            now: *now,
            clock: (ts_clock, *ts_offset),
            pressure: nodes >= *receive_frames / 2,
            share: *receive_frames,
            exhausted: nodes >= *receive_frames,
            conn_stats,
        };
        let mut ready = Ready::default();
        let disposition = if TEXT_ONLY {
            tcb.take_text(&mut core, segment, Arrival::new(frames), &mut ready)
        } else {
            tcb.on_segment(&mut core, segment, Arrival::new(frames), &mut ready)
        };
        conn_stats.idle_if(tcb.tx.is_empty(), turn.tick);
        match disposition {
            Disposition::Accepted => self.schedule(index, ready),
            other => self.conclude(index, other, ready, segment, hash),
        }
    }

    /// Handles every disposition but plain acceptance.
    #[cold]
    fn conclude(&mut self, index: u32, disposition: Disposition, ready: Ready, segment: &Segment, hash: u64) {
        match disposition {
            Disposition::Accepted => self.schedule(index, ready),
            Disposition::Discard(reason) => {
                self.stats.drop(reason);
                self.schedule(index, ready);
            }
            Disposition::DiscardAndAck(reason) => {
                self.stats.drop(reason);
                if let Some(tcb) = self.slots.open_mut(index) {
                    tcb.flags.set(Flags::ACK_NOW);
                }
                self.schedule(index, ready);
            }
            Disposition::DiscardAndAckRarely(reason) => {
                self.stats.drop(reason);
                self.answer_invalid(index, false);
                self.schedule(index, ready);
            }
            Disposition::Challenge(reason) => {
                self.stats.drop(reason);
                self.answer_invalid(index, true);
                self.schedule(index, ready);
            }
            Disposition::SynAgain => {
                self.stats.drop(DropReason::Duplicate);
                self.repeat_fast(index, segment);
                // The peer was heard: its keepalive may be due earlier than before.
                self.schedule(index, ready);
            }
            Disposition::NotOurSyn => {
                self.stats.drop(DropReason::BadHandshakeAck);
                self.send_reset_for(segment);
                self.schedule(index, ready);
            }
            Disposition::PeerReset => {
                self.stats.resets_received += 1;
                segment.key.probe(fs_probe::receive_reset);
                let state = self.slots.open(index).map(|t| t.state);
                // RFC 9293 3.10.7.4: in CLOSING and LAST-ACK no application is left to notify.
                let error = match state {
                    Some(State::Closing | State::LastAck) => None,
                    Some(State::CloseWait) => Some(crate::error::Error::BrokenPipe),
                    _ => Some(crate::error::Error::ConnectionReset),
                };
                self.forget(index, hash, error);
            }
            Disposition::TimeWait => self.enter_time_wait(index, hash),
            Disposition::Closed => self.forget(index, hash, None),
            Disposition::ResetPeer => {
                // Like Linux: RFC 9293 3.5.2, third group.
                self.stats.drop(DropReason::DataAfterClose);
                self.send_reset_for(segment);
                self.forget(index, hash, Some(crate::error::Error::ConnectionReset));
            }
        }
    }

    /// Processes a segment for a slot that is not in a synchronized state.
    fn on_opening(&mut self, index: u32, segment: &Segment, hash: u64, frames: &mut [RxFrame]) {
        let opts = segment.options(self.pool.bytes(&frames[0].frame));
        let mut copy = [0u8; 40];
        let len = opts.len().min(40);
        copy[..len].copy_from_slice(&opts[..len]);
        match self.on_segment_in_syn_sent(index, segment, &copy[..len]) {
            Ok(true) if segment.flags.syn() => {
                // RFC 9293 3.10.7.3: text and FIN of a SYN-ACK continue at the sixth step.
                let flags = segment.flags.without(TcpFlags::SYN);
                self.on_text(index, &Segment { seq: segment.seq + 1, flags, ..*segment }, hash, frames);
            }
            Ok(true) => self.on_connection(index, segment, hash, frames),
            Ok(false) => Arrival::new(frames).discard(&mut self.pool),
            Err(reason) => self.discard(frames, reason),
        }
    }

    /// Schedules an ACK for a rejected segment: at most one per connection in
    /// `invalid_ack_interval`. Challenges are also limited per second for all connections together;
    /// replies to an idle peer's keepalive probes must not depend on that limit.
    #[cold]
    fn answer_invalid(&mut self, index: u32, challenge: bool) {
        let (now, interval) = (self.now, self.config.tcp.invalid_ack_interval);
        let Some(tcb) = self.slots.open_mut(index) else { return };
        if !tcb.ext_mut().recv.may_answer_invalid(now, interval) {
            self.stats.invalid_unanswered += 1;
            return;
        }
        if challenge {
            if !self.may_challenge() {
                return;
            }
            self.stats.challenge_acks += 1;
        }
        if let Some(tcb) = self.slots.open_mut(index) {
            tcb.flags.set(Flags::ACK_NOW);
        }
    }

    /// Takes a challenge ACK from the budget per second: RFC 5961 section 7.
    pub(crate) fn may_challenge(&mut self) -> bool {
        let allowed = self.limits.take_challenge(self.config.tcp.challenge_acks, self.now);
        if !allowed {
            self.stats.drop(DropReason::ChallengeLimited);
        }
        allowed
    }
}
