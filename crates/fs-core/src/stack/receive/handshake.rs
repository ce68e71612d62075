//! Passive opens: SYN → entry of the SYN cache → control block in an accept queue.

use crate::config::{Ecn, TcpConfig};
use crate::drop_reason::DropReason;
use crate::flow::{FlowKey, Protocol};
use crate::frame::{FramePool, IfaceId, RxFrame};
use crate::net::is_link_local;
use crate::net::neigh::PathId;
use crate::rx::fast_open::Verdict;
use crate::rx::owner::Owner;
use crate::rx::parse::Segment;
use crate::rx::syn::SynEntry;
use crate::seq::SeqNum;
use crate::slab::NIL;
use crate::socket::event::{Event, ListenerId};
use crate::socket::listener::PendingAccept;
use crate::socket::options::TcpOptions;
use crate::stack::Stack;
use crate::tcb::arrival::Arrival;
use crate::tcb::connection_stats::ConnectionStats;
use crate::tcb::deadlines::Token;
use crate::tcb::flags::Flags;
use crate::tcb::open::{Opening, syn_window};
use crate::tcb::timers::handshake_wait;
use crate::tcb::{Slot, ecn};
use crate::time::{Duration, micros};
use crate::tx::build::{self, DEFAULT_TTL, OptionBytes, Plain, SegmentSpec};
use crate::wire::options::{self, Cookie, SynOptions};
use crate::wire::tcp::TcpFlags;

/// A SYN or SYN-ACK to send.
pub(crate) struct Syn<'a> {
    pub(crate) key: &'a FlowKey,
    pub(crate) path: PathId,
    pub(crate) flags: TcpFlags,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    /// Properties from the connection's options, or from its listener's.
    pub(crate) own: SynOwn,
    pub(crate) offer: SynOptions,
    pub(crate) fast_open: Option<Cookie>,
}

/// Properties of a SYN or SYN-ACK that come from the options of its connection or listener.
#[derive(Clone, Copy)]
pub(crate) struct SynOwn {
    /// Window in bytes.
    window: u32,
    pub(crate) max_segment: Option<u16>,
    ttl: u8,
    tos: u8,
}

impl SynOwn {
    pub(crate) fn of(options: &TcpOptions, tcp: &TcpConfig) -> Self {
        Self {
            window: options.initial_window(tcp),
            max_segment: options.max_segment,
            ttl: options.ttl.unwrap_or(DEFAULT_TTL),
            // RFC 3168 6.1.1: never ECT on a SYN or SYN-ACK.
            tos: ecn::tos(options.tos),
        }
    }
}

impl<P: FramePool> Stack<P> {
    /// Handles a SYN for one of this core's listeners (RFC 9293 3.10.7.2).
    pub(crate) fn on_syn(&mut self, listener: u32, segment: &Segment, hash: u64, frames: &mut [RxFrame]) {
        let is_v6 = segment.key.is_v6();
        if is_v6 && !self.is_on_its_link(&segment.key, frames[0].iface) {
            return self.discard(frames, DropReason::NotOurAddress);
        }
        let Some(entry) = self.listeners.at_mut(listener) else {
            return self.discard(frames, DropReason::NoSocket);
        };
        if entry.queue.len() >= entry.backlog as usize || self.slots.is_full() {
            // Like Linux: no reply. The queue may have space when the client retransmits its SYN.
            return self.discard(frames, DropReason::ListenOverflow);
        }
        let device = entry.options.device;
        if device.is_some_and(|device| device != frames[0].iface) {
            // No listener accepts connections from this interface.
            self.send_reset_for(segment);
            return self.discard(frames, DropReason::NoSocket);
        }
        let shift = entry.options.offered_scale(&self.config.tcp);
        let asks = entry.fast_open > 0 && self.config.tcp.fast_open.server;
        let device = if is_v6 { device.or_else(|| self.binding_link(&segment.key, frames[0].iface)) } else { device };
        let path = match self.net.path_to(segment.key.remote_ip(), device) {
            Ok(path) => path,
            Err(_) => return self.discard(frames, DropReason::NoRoute),
        };
        let opts = segment.options(self.pool.bytes(&frames[0].frame));
        let (peer, cookie) = (options::parse_syn(opts), if asks { options::fast_open(opts) } else { None });
        let iss = self.isn.choose(&segment.key, self.now);
        let mut syn = SynEntry::new(segment.key, segment.seq, iss, peer, segment.window, listener);
        (syn.path, syn.route_epoch, syn.sent_us, syn.shift) = (path, self.net.route_epoch(), micros(self.now), shift);
        syn.device = device;
        syn.ecn = self.config.tcp.ecn != Ecn::Off && ecn::is_setup_syn(segment);
        if self.handshakes.is_full() {
            self.send_cookie(syn);
            return Arrival::new(frames).discard(&mut self.pool);
        }
        let mut grant = None;
        if asks
            && self.config.tcp.fast_open.server_without_cookie
            && (segment.payload_len > 0 || cookie.is_some())
            && self.may_open_fast(listener)
        {
            return self.open_fast(syn, segment, hash, frames, false);
        }
        if let Some(cookie) = cookie {
            match self.fast_open.verify(&segment.key, &cookie, self.now) {
                Verdict::Good { renew } if self.may_open_fast(listener) => {
                    return self.open_fast(syn, segment, hash, frames, renew);
                }
                Verdict::Good { .. } => {}
                Verdict::Bad => grant = Some(self.fast_open_cookie(&segment.key).answering(&cookie)),
            }
        }
        let index = self.handshakes.insert(syn);
        let generation = self.handshakes.entry(index).generation;
        if self.table.insert(hash, Owner::Handshake(index).value()).is_err() {
            self.handshakes.release(index);
            return self.discard(frames, DropReason::NoSlots);
        }
        let wait = handshake_wait(self.config.tcp.rto_initial, 0, self.config.tcp.rto_max);
        self.deadlines.wake(self.now + wait, Token::Handshake { index, generation });
        self.send_syn_ack(index, grant);
        // Data in a SYN without a valid cookie is not acknowledged: the client retransmits it.
        Arrival::new(frames).discard(&mut self.pool);
    }

    /// Returns true unless the packet is for a link-local address and arrived by an interface that
    /// does not have it.
    #[inline(never)]
    fn is_on_its_link(&self, key: &FlowKey, iface: IfaceId) -> bool {
        !is_link_local(key.local_ip()) || self.net.is_local_on(iface, key.local_ip())
    }

    /// Returns the interface to which a link-local peer that arrived by `iface` binds its
    /// connection; `None` for other peers.
    #[inline(never)]
    pub(super) fn binding_link(&mut self, key: &FlowKey, iface: IfaceId) -> Option<IfaceId> {
        if !key.is_v6() || !is_link_local(key.remote_ip()) {
            return None;
        }
        if self.net.has_several_interfaces() {
            self.net.note_bound_to(key.remote_ip());
        }
        Some(iface)
    }

    /// Answers a SYN. `grant` is a Fast Open cookie for the client's next connection.
    pub(crate) fn send_syn_ack(&mut self, index: u32, grant: Option<Cookie>) {
        let SynEntry { key, irs, iss, options: peer, listener, path, ecn, slot, shift, .. } =
            *self.handshakes.entry(index);
        let own = self.listener_syn(listener);
        let offer = self.syn_options(&key, path, Some(peer), &own, shift);
        let flags = ecn::syn_ack_flags(ecn);
        let mut syn = Syn { key: &key, path, flags, seq: iss, ack: irs + 1, own, offer, fast_open: grant };
        // With Fast Open, the SYN's data is acknowledged with the SYN.
        let edge = self.slots.open(slot).map(|tcb| (tcb.rcv.nxt(), tcb.rcv_wnd()));
        if let Some((rcv_nxt, _)) = edge {
            syn.ack = rcv_nxt;
        }
        let window = edge.map_or(u32::MAX, |(_, window)| window);
        self.send_handshake(&syn, window, &[]);
    }

    /// Sends a SYN or SYN-ACK that offers at most `window`, with `data` after a SYN (RFC 7413).
    pub(crate) fn send_handshake(&mut self, syn: &Syn<'_>, window: u32, data: &[u8]) {
        let window = syn_window(syn.own.window.min(window));
        if let FlowKey::V4 { local, remote, local_port, remote_port } = *syn.key
            && syn.fast_open.is_none()
            && data.is_empty()
        {
            let plain = Plain {
                local,
                remote,
                local_port,
                remote_port,
                seq: syn.seq,
                ack: syn.ack,
                flags: syn.flags,
                window,
                urgent: 0,
                ts: None,
                ttl: syn.own.ttl,
                tos: syn.own.tos,
                payload_len: 0,
                payload_sum: 0,
            };
            let Self { pool, net, stats, now, .. } = self;
            return match build::bare_syn(pool, net.path(syn.path), &plain, &syn.offer) {
                Some(frame) => net.send(pool, stats, syn.path, *now, frame),
                None => stats.drop(DropReason::NoFrames),
            };
        }
        self.send_any_handshake(syn, window, data);
    }

    /// Like [`Stack::send_handshake`], over IPv6, with data, or with a Fast Open option.
    #[inline(never)]
    fn send_any_handshake(&mut self, syn: &Syn<'_>, window: u16, data: &[u8]) {
        let mut bytes = OptionBytes::NONE;
        let len = options::emit_syn(&syn.offer, &mut bytes.bytes);
        let cookie = syn.fast_open.map_or(0, |cookie| options::emit_fast_open(&cookie, &mut bytes.bytes[len..]));
        bytes.len = (len + cookie) as u8;
        let spec = SegmentSpec {
            key: syn.key,
            seq: syn.seq,
            ack: syn.ack,
            flags: syn.flags,
            window,
            urgent: 0,
            options: &bytes,
            ttl: syn.own.ttl,
            tos: syn.own.tos,
            flow_label: self.fast_open.flow_label(syn.key),
            payload_len: 0,
            payload_sum: 0,
        };
        let Self { pool, net, stats, now, .. } = self;
        match build::with_payload(pool, net.path(syn.path), &spec, data) {
            Some(frame) => net.send(pool, stats, syn.path, *now, frame),
            None => stats.drop(DropReason::NoFrames),
        }
    }

    /// Builds a segment without payload and queues it before everything else.
    pub(crate) fn send_bare(&mut self, path: PathId, spec: &SegmentSpec<'_>) {
        let Self { pool, net, stats, now, .. } = self;
        match build::bare(pool, net.path(path), spec) {
            Some(frame) => net.send(pool, stats, path, *now, frame),
            None => stats.drop(DropReason::NoFrames),
        }
    }

    /// Handles the SYN-ACK's retransmission timer.
    pub(crate) fn retry_handshake(&mut self, index: u32, generation: u32) {
        let Some(entry) = self.handshakes.current(index, generation) else { return };
        let SynEntry { key, iss, listener, slot, retries, deferred, .. } = *entry;
        if slot != NIL {
            return self.retry_fast(index, slot);
        }
        let defer = self.defer_retries(listener);
        let tcp = &self.config.tcp;
        let (limit, initial, max) = (tcp.syn_ack_retries.max(defer), tcp.rto_initial, tcp.rto_max);
        let (local, port) = (key.local_ip(), key.local_port());
        // No listener is left: the client's next segment is answered with a reset.
        let orphan =
            self.listeners.find(local, port).is_none() && self.listeners.find_elsewhere(local, port, 0).is_none();
        if retries >= limit || orphan {
            self.stats.timeouts += 1;
            return self.forget_handshake(index);
        }
        let entry = self.handshakes.entry_mut(index);
        entry.retries += 1;
        self.net.renew(&mut entry.path, &mut entry.route_epoch, key.remote_ip(), entry.device);
        let wait = handshake_wait(initial, retries + 1, max);
        self.deadlines.wake(self.now + wait, Token::Handshake { index, generation });
        // A client whose ACK has arrived, but no data yet, gets the next SYN-ACK at the end of its
        // time (as Linux).
        if !deferred || retries + 1 >= defer {
            self.stats.retransmits += 1;
            key.probe(|ends| fs_probe::retransmit(ends, iss.0, 0));
            self.send_syn_ack(index, None);
        }
    }

    /// Returns the device that a listener is bound to.
    pub(crate) fn listener_device(&self, listener: u32) -> Option<IfaceId> {
        self.listeners.at(listener).and_then(|listener| listener.options.device)
    }

    /// Returns TCP_DEFER_ACCEPT as a number of SYN-ACK timeouts (Linux: `secs_to_retrans`); 0 if
    /// not set.
    #[inline]
    fn defer_retries(&self, listener: u32) -> u8 {
        let defer = self.listeners.at(listener).and_then(|l| l.options.defer_accept);
        let Some(defer) = defer.filter(|d| !d.is_zero()) else { return 0 };
        self.defer_tries(defer)
    }

    #[cold]
    fn defer_tries(&self, defer: Duration) -> u8 {
        let (initial, max) = (self.config.tcp.rto_initial, self.config.tcp.rto_max);
        let (mut tries, mut passed) = (1, initial);
        while passed < defer && tries < 32 {
            passed += handshake_wait(initial, tries, max);
            tries += 1;
        }
        tries
    }

    pub(crate) fn forget_handshake(&mut self, index: u32) {
        let hash = self.hasher.hash(Protocol::Tcp, &self.handshakes.entry(index).key);
        self.table.remove(hash, Owner::Handshake(index).value());
        self.handshakes.release(index);
    }

    /// Handles a segment for a pending handshake: SYN-RECEIVED of RFC 9293 3.10.7.4.
    pub(crate) fn on_handshake(&mut self, index: u32, segment: &Segment, hash: u64, frames: &mut [RxFrame], hops: u16) {
        let SynEntry { irs, iss, options: peer, listener, .. } = *self.handshakes.entry(index);
        let flags = segment.flags;
        if flags.rst() {
            let exact = segment.seq == irs + 1;
            if exact {
                self.stats.resets_received += 1;
                segment.key.probe(fs_probe::receive_reset);
                self.forget_handshake(index);
            }
            let reason = if exact { DropReason::NoSocket } else { DropReason::InexactRst };
            return self.discard(frames, reason);
        }
        let again = flags.syn() && !flags.ack() && segment.seq == irs;
        let old = matches!((peer.timestamps, segment.ts), (Some(theirs), Some(ts)) if (ts.val.wrapping_sub(theirs.val) as i32) < 0);
        let window = syn_window(self.listener_syn(listener).window) as u32;
        // First the sequence number: a segment that anyone can forge must not end the handshake.
        if !again && (old || segment.seq.before(irs + 1) || segment.seq.after(irs + 1 + window)) {
            let reason = if old { DropReason::Paws } else { DropReason::OutOfWindow };
            if self.may_challenge() {
                self.ack_handshake(index);
            }
            return self.discard(frames, reason);
        }
        if again {
            // A retransmission of its SYN, with any options: our SYN-ACK was lost.
            self.send_syn_ack(index, None);
            return self.discard(frames, DropReason::Duplicate);
        }
        if flags.syn() && !flags.ack() {
            // The client has restarted with the same port.
            let listener = self.handshakes.entry(index).listener;
            self.forget_handshake(index);
            return self.on_syn(listener, segment, hash, frames);
        }
        if !flags.ack() {
            return self.discard(frames, DropReason::NoAck);
        }
        if segment.ack != iss + 1 {
            return self.on_other_ack(index, segment, hash, frames, hops);
        }
        let entry = *self.handshakes.entry(index);
        let bare = segment.payload_len == 0 && !flags.fin();
        if bare && entry.retries < self.defer_retries(entry.listener) {
            self.handshakes.entry_mut(index).deferred = true;
            return Arrival::new(frames).discard(&mut self.pool);
        }
        self.complete(entry, Some(index), segment, hash, frames);
    }

    /// First step of RFC 9293 3.10.7.4 in SYN-RECEIVED: answers an unacceptable segment with an
    /// ACK.
    fn ack_handshake(&mut self, index: u32) {
        let SynEntry { key, irs, iss, options: peer, path, listener, shift, .. } = *self.handshakes.entry(index);
        let own = self.listener_syn(listener);
        let offer = self.syn_options(&key, path, Some(peer), &own, shift);
        let (flags, seq, ack) = (TcpFlags::ACK, iss + 1, irs + 1);
        self.send_opening_ack(&Syn { key: &key, path, flags, seq, ack, own, offer, fast_open: None });
    }

    /// Sends a bare ACK with the options negotiated so far.
    pub(crate) fn send_opening_ack(&mut self, syn: &Syn<'_>) {
        let mut bytes = OptionBytes::NONE;
        if let Some(pair) = syn.offer.timestamps {
            bytes.len = options::emit_timestamps(pair, &mut bytes.bytes) as u8;
        }
        let spec = SegmentSpec {
            key: syn.key,
            seq: syn.seq,
            ack: syn.ack,
            flags: syn.flags,
            window: (syn.own.window >> syn.offer.window_scale.unwrap_or(0)).min(u16::MAX as u32) as u16,
            urgent: 0,
            options: &bytes,
            ttl: syn.own.ttl,
            tos: syn.own.tos,
            flow_label: self.fast_open.flow_label(syn.key),
            payload_len: 0,
            payload_sum: 0,
        };
        self.stats.acks_sent += 1;
        self.send_bare(syn.path, &spec);
    }

    /// Handles an ACK of another number than our SYN-ACK's.
    #[cold]
    fn on_other_ack(&mut self, index: u32, segment: &Segment, hash: u64, frames: &mut [RxFrame], hops: u16) {
        let listener = self.handshakes.entry(index).listener;
        if self.config.cores > 1 || self.open_cookie(segment, listener).is_some() {
            // The client's SYN was received twice, and it has answered the other SYN-ACK: another
            // core's, or a cookie that was sent before the cache had space again.
            self.forget_handshake(index);
            return self.on_unowned(segment, hash, frames, hops);
        }
        if !self.awaits_cookie(segment) {
            // RFC 9293 3.10.7.4, fifth step, SYN-RECEIVED: the ACK is not ours, so it gets a reset.
            self.send_reset_for(segment);
        }
        self.discard(frames, DropReason::BadHandshakeAck);
    }

    /// Completes a handshake whose final ACK has arrived, from the cache or from a cookie.
    pub(crate) fn complete(
        &mut self,
        entry: SynEntry,
        cached: Option<u32>,
        segment: &Segment,
        hash: u64,
        frames: &mut [RxFrame],
    ) {
        let (local, port) = (entry.key.local_ip(), entry.key.local_port());
        // Since the SYN, the listener may have been closed, and another may have been opened.
        let listener = self.listeners.find(local, port);
        if listener.is_none() && self.listeners.find_elsewhere(local, port, hash).is_none() {
            if let Some(index) = cached {
                self.forget_handshake(index);
            }
            self.send_reset_for(segment);
            return self.discard(frames, DropReason::NoSocket);
        }
        let entry_of = listener.and_then(|l| self.listeners.at(l));
        if entry_of.is_some_and(|l| l.queue.len() >= l.backlog as usize) {
            // Like Linux: the ACK returns with the client's data, or with the reply to our
            // SYN-ACK's retransmission.
            return self.discard(frames, DropReason::ListenOverflow);
        }
        let default = TcpOptions::default();
        let opening = Opening {
            key: entry.key,
            generation: 0,
            iss: entry.iss,
            irs: entry.irs,
            peer: entry.options,
            shift: entry.shift,
            window: entry.window,
            path: entry.path,
            route_epoch: entry.route_epoch,
            sample_from_us: (entry.retries == 0).then_some(entry.sent_us),
            retries: entry.retries,
            ecn: entry.ecn,
            options: entry_of.map_or(&default, |l| &l.options),
            is_plain: entry_of.is_none_or(|l| l.is_plain),
        };
        let mut tcb = opening.tcb(&self.config.tcp, &self.net, self.now, |key| self.fast_open.flow_label(key));
        tcb.flags.set(Flags::UNACCEPTED);
        if entry.device.is_some() {
            tcb.ext_mut().device = entry.device;
        }
        let Some(slot) = self.slots.insert(|generation| {
            tcb.set_generation(generation);
            Slot::Open(tcb)
        }) else {
            return self.discard(frames, DropReason::NoSlots);
        };
        *self.slots.conn_stats_mut(slot) =
            ConnectionStats::new(entry.iss, entry.irs, 1 + u32::from(entry.retries), 1, self.now);
        let owner = Owner::Connection(slot).value();
        if let Some(index) = cached {
            self.handshakes.release(index);
            self.table.replace(hash, Owner::Handshake(index).value(), owner);
        } else if self.table.insert(hash, owner).is_err() {
            self.slots.remove(slot);
            return self.discard(frames, DropReason::NoSlots);
        }
        self.stats.accepted += 1;
        entry.key.probe(|ends| fs_probe::established(ends, true));
        if let Some(listener) = listener {
            self.enqueue_accept(listener, slot);
        }
        self.on_connection(slot, segment, hash, frames);
        if listener.is_none() {
            self.pass_on(slot, true);
        }
    }

    pub(crate) fn enqueue_accept(&mut self, listener: u32, slot: u32) {
        let Some(entry) = self.listeners.at_mut(listener) else { return };
        if entry.queue.is_empty() {
            self.outbox.event(Event::Accept(ListenerId { index: listener, generation: entry.generation }));
        }
        entry.queue.push_back(PendingAccept { slot, since: self.now });
    }
}
