//! Passive opens: SYN → entry of the SYN cache → control block in an accept queue, and how an established
//! connection that nobody here will accept moves to a core that will.

use crate::drop_reason::DropReason;
use crate::error::Error;
use crate::flow::Protocol;
use crate::frame::{FramePool, RxFrame};
use crate::rx::parse::Segment;
use crate::rx::syn::SynEntry;
use crate::socket::event::{CoreMessage, Event, ListenerId, Outbound, Ready};
use crate::socket::handover::Handover;
use crate::stack::{Owner, Stack, Token};
use crate::tcb::Slot;
use crate::tcb::ecn;
use crate::tcb::flags::Flags;
use crate::tcb::input::Arrival;
use crate::tcb::open::{Opening, syn_window};
use crate::tcb::send::recovery::micros;
use crate::tcb::timers::handshake_wait;
use crate::tx::build::{self, DEFAULT_TTL, OptionBytes, SegmentSpec};
use crate::tx::neigh::PathId;
use crate::wire::options::{self, SynOptions};
use crate::wire::tcp::TcpFlags;
use alloc::boxed::Box;
use alloc::vec::Vec;

impl<P: FramePool> Stack<P> {
    /// A SYN for one of this core's listeners (RFC 9293 3.10.7.2).
    pub(crate) fn on_syn(&mut self, listener: u32, segment: &Segment, hash: u64, frames: &mut [RxFrame]) {
        let Some(entry) = self.listeners.at_mut(listener) else {
            return self.discard(frames, DropReason::NoSocket);
        };
        if entry.queue.len() >= entry.backlog as usize || self.slots.is_full() {
            // As Linux: silence. The client sends its SYN again, and by then there may be room.
            return self.discard(frames, DropReason::ListenOverflow);
        }
        let path = match self.net.path_to(segment.key.remote_ip()) {
            Ok(path) => path,
            Err(_) => return self.discard(frames, DropReason::NoRoute),
        };
        let peer = options::parse_syn(segment.options(self.pool.bytes(&frames[0].frame)));
        let iss = self.initial_sequence(&segment.key);
        let mut syn = SynEntry::new(segment.key, segment.seq, iss, peer, segment.window, listener);
        (syn.path, syn.sent_us) = (path, micros(self.now));
        syn.ecn = self.takes_ecn(segment);
        if self.handshakes.is_full() {
            self.send_cookie(syn);
            return Arrival::new(frames).discard(&mut self.pool);
        }
        let index = self.handshakes.insert(syn);
        let generation = self.handshakes.entry(index).generation;
        if self.table.insert(hash, Owner::Handshake(index).value()).is_err() {
            self.handshakes.remove(index);
            return self.discard(frames, DropReason::NoSlots);
        }
        let wait = handshake_wait(self.config.tcp.rto_initial, 0, self.config.tcp.rto_max);
        self.wheel.insert(self.now + wait, Token::Handshake { index, generation });
        self.send_syn_ack(index);
        // Data in the SYN is not acknowledged: the client sends it again (RFC 9293 allows it; no TFO here).
        Arrival::new(frames).discard(&mut self.pool);
    }

    fn send_syn_ack(&mut self, index: u32) {
        let SynEntry { key, irs, iss, options: peer, listener, path, ecn, .. } = *self.handshakes.entry(index);
        let options = self.listener_options(listener);
        let offer = self.syn_options(&key, path, Some(peer), options.receive_buffer);
        self.send_handshake(&key, path, ecn::syn_ack_flags(ecn), iss, irs + 1, options.tos, &offer);
    }

    /// Sends a SYN or SYN-ACK.
    #[allow(clippy::too_many_arguments, reason = "the fields of one segment")]
    pub(crate) fn send_handshake(
        &mut self,
        key: &crate::flow::FlowKey,
        path: PathId,
        flags: TcpFlags,
        seq: crate::tcb::seq::SeqNum,
        ack: crate::tcb::seq::SeqNum,
        tos: u8,
        offer: &SynOptions,
    ) {
        let mut bytes = OptionBytes::NONE;
        bytes.len = options::emit_syn(offer, &mut bytes.bytes) as u8;
        let window = syn_window(self.config.tcp.receive_buffer_initial);
        let spec = SegmentSpec {
            key,
            seq,
            ack,
            flags,
            window,
            urgent: 0,
            options: &bytes,
            ttl: DEFAULT_TTL,
            // RFC 3168 6.1.1: never ECT on a SYN or SYN-ACK.
            tos: ecn::tos(tos),
            payload_len: 0,
            payload_sum: 0,
        };
        self.send_bare(path, &spec);
    }

    /// Builds a segment without payload and queues it before all else.
    pub(crate) fn send_bare(&mut self, path: PathId, spec: &SegmentSpec<'_>) {
        let Self { pool, net, stats, now, .. } = self;
        match build::bare(pool, net.path(path), spec) {
            Some(frame) => net.send(pool, stats, path, *now, frame),
            None => stats.drop(DropReason::NoFrames),
        }
    }

    /// The SYN-ACK's retransmission timer fired.
    pub(crate) fn retry_handshake(&mut self, index: u32, generation: u32) {
        let tcp = &self.config.tcp;
        let (limit, initial, max) = (tcp.syn_ack_retries, tcp.rto_initial, tcp.rto_max);
        let Some(entry) = self.handshakes.current(index, generation) else { return };
        if entry.retries >= limit {
            self.stats.timeouts += 1;
            return self.forget_handshake(index);
        }
        entry.retries += 1;
        let wait = handshake_wait(initial, entry.retries, max);
        self.stats.retransmits += 1;
        self.wheel.insert(self.now + wait, Token::Handshake { index, generation });
        self.send_syn_ack(index);
    }

    fn forget_handshake(&mut self, index: u32) {
        let entry = self.handshakes.remove(index);
        self.table.remove(self.hasher.hash(Protocol::Tcp, &entry.key), Owner::Handshake(index).value());
    }

    /// A segment for a handshake under way: SYN-RECEIVED of RFC 9293 3.10.7.4.
    pub(crate) fn on_handshake(&mut self, index: u32, segment: &Segment, hash: u64, frames: &mut [RxFrame], hops: u16) {
        let SynEntry { irs, iss, options: peer, .. } = *self.handshakes.entry(index);
        let flags = segment.flags;
        if flags.rst() {
            let exact = segment.seq == irs + 1;
            if exact {
                self.stats.resets_received += 1;
                self.forget_handshake(index);
            }
            let reason = if exact { DropReason::NoSocket } else { DropReason::InexactRst };
            return self.discard(frames, reason);
        }
        if flags.syn() && !flags.ack() {
            if segment.seq == irs {
                // Its SYN again: our answer was lost.
                self.send_syn_ack(index);
                return self.discard(frames, DropReason::Duplicate);
            }
            // The client has started afresh from the same port.
            let listener = self.handshakes.entry(index).listener;
            self.forget_handshake(index);
            return self.on_syn(listener, segment, hash, frames);
        }
        if let (Some(theirs), Some(ts)) = (peer.timestamps, segment.ts)
            && (ts.val.wrapping_sub(theirs.val) as i32) < 0
        {
            return self.discard(frames, DropReason::Paws);
        }
        if !flags.ack() {
            return self.discard(frames, DropReason::NoAck);
        }
        if segment.ack != iss + 1 {
            return self.on_other_ack(index, segment, hash, frames, hops);
        }
        let window = syn_window(self.config.tcp.receive_buffer_initial) as u32;
        if segment.seq.before(irs + 1) || segment.seq.after(irs + 1 + window) {
            self.send_syn_ack(index);
            return self.discard(frames, DropReason::OutOfWindow);
        }
        let entry = *self.handshakes.entry(index);
        self.complete(entry, Some(index), segment, hash, frames);
    }

    /// An ACK of something else than our SYN-ACK's number.
    #[cold]
    fn on_other_ack(&mut self, index: u32, segment: &Segment, hash: u64, frames: &mut [RxFrame], hops: u16) {
        let listener = self.handshakes.entry(index).listener;
        if self.open_cookie(segment, listener).is_some() {
            // The client's SYN came twice: once a cookie answered, then the cache had room again.
            self.forget_handshake(index);
            if self.on_cookie(segment, hash, frames) {
                return;
            }
        } else if self.config.cores > 1 {
            // The SYN and its retransmission came to two cores, and the client has answered the other.
            self.forget_handshake(index);
            return self.on_unowned(segment, hash, frames, hops);
        } else if !self.awaits_cookie(segment) {
            // RFC 9293 3.10.7.4, fifth, SYN-RECEIVED: not ours, so it gets a reset.
            self.send_reset_for(segment);
        }
        self.discard(frames, DropReason::BadHandshakeAck);
    }

    /// The final ACK has arrived, of a handshake in the cache or one that came back as a cookie.
    pub(crate) fn complete(
        &mut self,
        entry: SynEntry,
        cached: Option<u32>,
        segment: &Segment,
        hash: u64,
        frames: &mut [RxFrame],
    ) {
        let (local, port) = (entry.key.local_ip(), entry.key.local_port());
        // The listener may have gone, and another may have come, since the SYN.
        let listener = self.listeners.find(local, port);
        let elsewhere = self.listeners.find_elsewhere(local, port, hash);
        if listener.is_none() && elsewhere.is_none() {
            if let Some(index) = cached {
                self.forget_handshake(index);
            }
            self.send_reset_for(segment);
            return self.discard(frames, DropReason::NoSocket);
        }
        let full = listener.and_then(|l| self.listeners.at_mut(l)).is_some_and(|l| l.queue.len() >= l.backlog as usize);
        if full {
            // As Linux: the client's data and our SYN-ACK's retransmission will bring the ACK again.
            return self.discard(frames, DropReason::ListenOverflow);
        }
        let options = listener.map(|l| self.listener_options(l)).unwrap_or_default();
        let mut tcb = self.open_tcb(Opening {
            key: entry.key,
            generation: 0,
            iss: entry.iss,
            irs: entry.irs,
            peer: entry.options,
            window: entry.window,
            path: entry.path,
            sample_from_us: (entry.retries == 0).then_some(entry.sent_us),
            ecn: entry.ecn,
            options,
        });
        tcb.flags.set(Flags::UNACCEPTED);
        let Some(slot) = self.slots.insert(|generation| {
            tcb.generation = generation;
            Slot::Open(tcb)
        }) else {
            return self.discard(frames, DropReason::NoSlots);
        };
        let owner = Owner::Connection(slot).value();
        if let Some(index) = cached {
            self.handshakes.remove(index);
            self.table.replace(hash, Owner::Handshake(index).value(), owner);
        } else if self.table.insert(hash, owner).is_err() {
            self.slots.remove(slot);
            return self.discard(frames, DropReason::NoSlots);
        }
        self.stats.accepted += 1;
        if let Some(listener) = listener {
            self.enqueue_accept(listener, slot);
        }
        self.on_connection(slot, segment, frames);
        if listener.is_none() {
            self.pass_on(slot);
        }
    }

    fn enqueue_accept(&mut self, listener: u32, slot: u32) {
        let Some(entry) = self.listeners.at_mut(listener) else { return };
        if entry.queue.is_empty() {
            self.events.push(Event::Accept(ListenerId { index: listener, generation: entry.generation }));
        }
        entry.queue.push_back(slot);
    }

    /// Nobody on this core will accept this connection any more: it moves to a core whose listener will, or
    /// is reset as the kernel would.
    pub(crate) fn pass_on(&mut self, index: u32) {
        let Some(tcb) = self.slots.open_mut(index) else {
            // It died in the queue: nobody holds a handle.
            if matches!(self.slots.slot(index), Slot::Dead(_)) {
                let Self { slots, nodes, pool, .. } = self;
                if let Slot::Dead(mut dead) = slots.remove(index) {
                    dead.rx.clear(nodes, pool);
                }
            }
            return;
        };
        let key = tcb.key();
        let hash = self.hasher.hash(Protocol::Tcp, &key);
        if let Some(listener) = self.listeners.find(key.local_ip(), key.local_port()) {
            return self.enqueue_accept(listener, index);
        }
        let Some(to) = self.listeners.find_elsewhere(key.local_ip(), key.local_port(), hash) else {
            if let Some(tcb) = self.slots.open_mut(index) {
                tcb.flags.set(Flags::ORPHAN);
            }
            return self.kill(index, Some(Error::ConnectionReset), true);
        };
        let Self { slots, table, nodes, pool, store, .. } = self;
        table.remove(hash, Owner::Connection(index).value());
        let Slot::Open(mut tcb) = slots.remove(index) else { return };
        // Nothing was written yet, and what came out of order will be sent again.
        tcb.tx.clear(store, pool);
        if let Some(ext) = &mut tcb.ext {
            ext.islands.drain(..).for_each(|mut i| i.data.clear(nodes, pool));
            ext.held = 0;
        }
        let mut received = Vec::new();
        while let Some(frame) = tcb.rx.pop(nodes) {
            received.push(frame);
        }
        self.stats.handovers += 1;
        let handover = Handover { key, tcb, received };
        self.outbound.push(Outbound { to, message: CoreMessage::Handover(Box::new(handover)) });
    }

    /// A connection arrives from another core.
    pub(crate) fn take_over(&mut self, handover: Handover) {
        let Handover { key, mut tcb, received } = handover;
        for frame in received {
            tcb.rx.push(&mut self.nodes, frame);
        }
        tcb.flags.clear(Flags::IN_ACK_LIST | Flags::IN_DATA_LIST | Flags::IN_DELAY_QUEUE);
        tcb.armed_at = 0;
        if let Some(ext) = &mut tcb.ext {
            ext.pacing.queued = false;
        }
        // Path ids are this core's own.
        tcb.route_epoch = self.net.route_epoch.wrapping_sub(1);
        let path = self.net.path_to(key.remote_ip());
        let hash = self.hasher.hash(Protocol::Tcp, &key);
        let listener = self.listeners.find(key.local_ip(), key.local_port());
        let slot = self.slots.insert(|generation| {
            tcb.generation = generation;
            Slot::Open(tcb)
        });
        let (Ok(path), Some(slot)) = (path, slot) else {
            if let Some(slot) = slot
                && let Slot::Open(mut tcb) = self.slots.remove(slot)
            {
                tcb.rx.clear(&mut self.nodes, &mut self.pool);
            }
            self.stats.drop(DropReason::NoSlots);
            return;
        };
        if let Some(tcb) = self.slots.open_mut(slot) {
            tcb.path = path;
        }
        if self.table.insert(hash, Owner::Connection(slot).value()).is_err() {
            if let Slot::Open(mut tcb) = self.slots.remove(slot) {
                tcb.rx.clear(&mut self.nodes, &mut self.pool);
            }
            return self.stats.drop(DropReason::NoSlots);
        }
        match listener {
            Some(listener) => {
                self.enqueue_accept(listener, slot);
                self.settle(slot, Ready::default());
            }
            // Its listener has gone, too, meanwhile.
            None => self.pass_on(slot),
        }
    }
}
