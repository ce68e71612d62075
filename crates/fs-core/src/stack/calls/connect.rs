//! Active opens: RFC 9293 3.10.1 and 3.10.7.3, with source ports by RFC 6056 among those whose
//! replies reach this core.

use crate::config::Ecn;
use crate::drop_reason::DropReason;
use crate::error::Error;
use crate::flow::{FlowKey, Protocol};
use crate::frame::FramePool;
use crate::rx::owner::Owner;
use crate::rx::parse::Segment;
use crate::seq::SeqNum;
use crate::socket::event::{Ready, TcpId};
use crate::socket::options::{Connect, TcpOptions};
use crate::socket::ports::Choice;
use crate::stack::Stack;
use crate::stack::receive::handshake::{Syn, SynOwn};
use crate::tcb::connection_stats::ConnectionStats;
use crate::tcb::deadlines::Token;
use crate::tcb::flags::Flags;
use crate::tcb::open::{Opening, syn_window};
use crate::tcb::syn_sent::{FastSyn, PeerSyn, SynSent};
use crate::tcb::timers::handshake_wait;
use crate::tcb::{Dead, Slot, ecn};
use crate::time::{Duration, micros};
use crate::wire::options::{self, Cookie, SynOptions};
use crate::wire::tcp::TcpFlags;
use alloc::boxed::Box;
use core::net::{IpAddr, SocketAddr};

impl<P: FramePool> Stack<P> {
    /// Starts a connect. `Event::Tcp` with `Ready::WRITE` reports its end, and `tcp_take_error` the
    /// result.
    pub fn tcp_connect(&mut self, connect: Connect) -> Result<TcpId, Error> {
        self.start_connect(connect, None).map(|(id, _)| id)
    }

    /// Like `tcp_connect`, with the first bytes to send (TCP Fast Open, RFC 7413). Returns how many
    /// of `data` were taken, which may be none.
    ///
    /// If the server has issued a cookie before, the bytes leave with the SYN and may reach its
    /// application *twice*, since a duplicate of the SYN may open a connection of its own: use it
    /// for idempotent requests only. Without a cookie the SYN requests one; write the rest when the
    /// connection is open. Without data, the SYN carries the cookie or requests one.
    pub fn tcp_connect_with(&mut self, connect: Connect, data: &[u8]) -> Result<(TcpId, usize), Error> {
        self.start_connect(connect, Some(data))
    }

    /// `data` is `Some` for Fast Open.
    fn start_connect(&mut self, connect: Connect, data: Option<&[u8]>) -> Result<(TcpId, usize), Error> {
        let Connect { remote, local, mut options } = connect;
        let bound = local.map_or(Ok(options.device), |local| self.net.bound_by(local, options.device))?;
        options.device = self.net.bound_by(remote, bound)?;
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        if remote.port() == 0 || !self.net.is_unicast(remote.ip()) {
            return Err(Error::InvalidInput);
        }
        if options.device.is_some() {
            self.net.note_bound_to(remote.ip());
        }
        let path = self.net.path_to(remote.ip(), options.device)?;
        let source = match local.map(|l| l.ip().to_canonical()).filter(|ip| !ip.is_unspecified()) {
            Some(ip) if !self.net.may_be_at(ip, options.device) => return Err(Error::AddrNotAvailable),
            Some(ip) if ip.is_ipv4() != remote.is_ipv4() => return Err(Error::InvalidInput),
            Some(ip) => ip,
            None => self.net.source_for(path, remote.ip(), options.device).ok_or(Error::AddrNotAvailable)?,
        };
        if self.slots.is_full() {
            return Err(Error::NoBuffers);
        }
        let (key, hash) = match local.map_or(0, |l| l.port()) {
            0 => self.choose_port(source, remote)?,
            port => self.claim_port(source, port, remote)?,
        };
        let iss = self.isn.choose(&key, self.now);
        let retry_at = self.now + self.config.tcp.rto_initial;
        let (sent_us, began) = (micros(self.now), self.now);
        let ecn = self.config.tcp.ecn == Ecn::Active;
        let shift = options.offered_scale(&self.config.tcp);
        let route_epoch = self.net.route_epoch();
        let fast = self.fast_syn(remote.ip(), path, iss, data, options.max_segment);
        let taken = fast.as_ref().map_or(0, |f| f.sent as usize);
        let open = |generation| {
            Slot::SynSent(Box::new(SynSent {
                key,
                generation,
                iss,
                path,
                options,
                shift,
                route_epoch,
                ecn,
                retries: 0,
                retry_at,
                sent_us,
                began,
                crossed: None,
                hurried: false,
                fast,
                fin_wanted: false,
                orphan: false,
            }))
        };
        let Some(index) = self.slots.insert(open) else { return Err(Error::NoBuffers) };
        if self.table.insert(hash, Owner::Connection(index).value()).is_err() {
            self.drop_fast(index);
            self.slots.remove(index);
            return Err(Error::NoBuffers);
        }
        let generation = self.slots.generation(index);
        self.deadlines.wake(retry_at, Token::Connection { index, generation });
        self.send_syn(index);
        Ok((TcpId { index, generation }, taken))
    }

    /// Frees the frames of a Fast Open.
    pub(crate) fn drop_fast(&mut self, index: u32) {
        let Self { slots, store, pool, .. } = self;
        if let Slot::SynSent(s) = slots.slot_mut(index)
            && let Some(mut fast) = s.fast.take()
        {
            fast.data.clear(store, pool);
        }
    }

    /// Chooses an ephemeral port whose flow is free and whose replies reach this core. Returns the
    /// flow and its hash.
    fn choose_port(&mut self, source: IpAddr, remote: SocketAddr) -> Result<(FlowKey, u64), Error> {
        let Self { ports, table, hasher, slots, handshakes, time_waits, delivery, listeners, config, .. } = self;
        let mut recycled = None;
        let mut found = None;
        let key_of = |port| FlowKey::new(SocketAddr::new(source, port), remote);
        let steering = delivery.steering().filter(|core_of| key_of(1).and_then(|key| core_of(&key)).is_some());
        let choice = if steering.is_some() { Choice::All } else { Choice::Named };
        ports.pick(source, remote, choice, |port| {
            let Some(key) = key_of(port) else { return false };
            if steering.is_some_and(|core_of| core_of(&key) != Some(config.core)) || listeners.port_in_use(port) {
                return false;
            }
            let hash = hasher.hash(Protocol::Tcp, &key);
            let owner = table.find(hash, |value| match Owner::of(value) {
                Owner::Connection(i) => match slots.slot(i) {
                    Slot::Open(tcb) => tcb.is(&key),
                    Slot::SynSent(s) => s.key == key,
                    Slot::Dead(_) | Slot::Free { .. } => false,
                },
                Owner::Handshake(i) => handshakes.entry(i).key == key,
                Owner::TimeWait(i) => time_waits.key(i) == key,
            });
            match owner.map(Owner::of) {
                None => {
                    found = Some((key, hash));
                    true
                }
                // RFC 6191: timestamps that have advanced since distinguish old segments.
                Some(Owner::TimeWait(i)) if time_waits.record(i).ts_recent().is_some() && recycled.is_none() => {
                    recycled = Some((key, hash, i));
                    false
                }
                Some(_) => false,
            }
        });
        if let Some(free) = found {
            return Ok(free);
        }
        let (key, hash, index) = recycled.ok_or(Error::AddrNotAvailable)?;
        self.reuse_time_wait(index);
        Ok((key, hash))
    }

    /// Claims a port that the application asked for.
    fn claim_port(&mut self, source: IpAddr, port: u16, remote: SocketAddr) -> Result<(FlowKey, u64), Error> {
        let key = FlowKey::new(SocketAddr::new(source, port), remote).ok_or(Error::InvalidInput)?;
        let hash = self.hasher.hash(Protocol::Tcp, &key);
        match self.owner_by_hash(hash, &key) {
            None => Ok((key, hash)),
            Some(Owner::TimeWait(index)) if self.time_waits.record(index).ts_recent().is_some() => {
                self.reuse_time_wait(index);
                Ok((key, hash))
            }
            Some(_) => Err(Error::AddrInUse),
        }
    }

    /// Sends our SYN, or the SYN-ACK after a simultaneous open.
    pub(crate) fn send_syn(&mut self, index: u32) {
        let Slot::SynSent(s) = self.slots.slot(index) else { return };
        let (key, iss, path, crossed, shift) = (s.key, s.iss, s.path, s.crossed, s.shift);
        let own = SynOwn::of(&s.options, &self.config.tcp);
        let (flags, ack) = match crossed {
            None => (ecn::syn_flags(s.ecn), crate::seq::SeqNum(0)),
            Some(peer) => (ecn::syn_ack_flags(peer.ecn), peer.irs + 1),
        };
        let carried = match &s.fast {
            Some(fast) if crossed.is_none() && fast.carried => fast.sent as usize,
            _ => 0,
        };
        let fast_open = s.fast.as_ref().filter(|f| crossed.is_none() && f.carried).and_then(|fast| fast.cookie);
        let mut data = alloc::vec![0; carried];
        if let Some(fast) = s.fast.as_ref().filter(|_| carried > 0) {
            self.store.segments[fast.data.head()].read_at(&self.store.rest, &self.pool, 0, &mut data);
        }
        let offer = self.syn_options(&key, path, crossed.map(|c| c.options), &own, shift);
        let syn = Syn { key: &key, path, flags, seq: iss, ack, own, offer, fast_open };
        self.send_handshake(&syn, u32::MAX, &data);
        self.net.push_connect(path, index);
    }

    /// Handles the retransmission timer of an active open.
    pub(crate) fn retry_connect(&mut self, index: u32) {
        let (now, tcp) = (self.now, self.config.tcp.clone());
        let Slot::SynSent(s) = self.slots.slot_mut(index) else { return };
        if s.retry_at > now {
            let (at, generation) = (s.retry_at, s.generation);
            self.deadlines.wake(at, Token::Connection { index, generation });
            return;
        }
        // TCP_USER_TIMEOUT counts from the first SYN.
        let waited = Duration::from_micros(u64::from(micros(now).wrapping_sub(s.sent_us)));
        let over = s.options.user_timeout.is_some_and(|limit| waited >= limit);
        if over || s.retries >= s.options.syn_retries.unwrap_or(tcp.syn_retries) {
            self.stats.timeouts += 1;
            self.fail_connect(index, Error::TimedOut);
            return;
        }
        s.retries += 1;
        s.ecn = false;
        self.net.renew(&mut s.path, &mut s.route_epoch, s.key.remote_ip(), s.options.device);
        // RFC 7413 4.2.1: retransmit without data and option, which a middlebox may drop. The first
        // SYN may still be answered.
        let was_fast = s.fast.as_mut().is_some_and(|f| core::mem::replace(&mut f.carried, false));
        let server = s.key.remote_ip();
        let wait = handshake_wait(tcp.rto_initial, s.retries, tcp.rto_max);
        s.retry_at = now + s.options.user_timeout.map_or(wait, |limit| wait.min(limit.saturating_sub(waited)));
        let (at, generation, key, iss) = (s.retry_at, s.generation, s.key, s.iss);
        self.stats.retransmits += 1;
        key.probe(|ends| fs_probe::retransmit(ends, iss.0, 0));
        self.deadlines.wake(at, Token::Connection { index, generation });
        if was_fast {
            self.fast_open_peers.lost(server, now);
        }
        self.send_syn(index);
    }

    /// Retransmits the SYN without data at once: ICMP reported that it exceeds the path MTU.
    pub(crate) fn shrink_syn(&mut self, index: u32) {
        let Slot::SynSent(s) = self.slots.slot_mut(index) else { return };
        let carried = s.fast.as_mut().filter(|f| s.crossed.is_none() && f.sent > 0).map(|f| &mut f.carried);
        if carried.is_some_and(|carried| core::mem::replace(carried, false)) {
            (s.retries, s.ecn) = (s.retries.saturating_add(1), false);
            let (key, iss) = (s.key, s.iss);
            self.stats.retransmits += 1;
            key.probe(|ends| fs_probe::retransmit(ends, iss.0, 0));
            self.send_syn(index);
        }
    }

    /// Fails the open. The application learns it by WRITE readiness and `tcp_take_error`.
    pub(crate) fn fail_connect(&mut self, index: u32, error: Error) {
        self.drop_fast(index);
        let Slot::SynSent(s) = self.slots.slot(index) else { return };
        let (key, device, generation, orphan) = (s.key, s.options.device, s.generation, s.orphan);
        self.stats.connect_failed += 1;
        self.table.remove(self.hasher.hash(Protocol::Tcp, &key), Owner::Connection(index).value());
        if orphan {
            self.slots.remove(index);
            return;
        }
        let rx = crate::frame_queue::FrameQueue::new();
        *self.slots.slot_mut(index) =
            Slot::Dead(Box::new(Dead { key, device, generation, rx, finished: false, error: Some(error), info: None }));
        self.notify(index, Ready::READ | Ready::WRITE | Ready::CLOSED);
    }

    /// Handles a segment in SYN-SENT (RFC 9293 3.10.7.3) or, after a simultaneous open, in
    /// SYN-RECEIVED. Returns true if the connection is open and must process the segment further.
    pub(crate) fn on_segment_in_syn_sent(
        &mut self,
        index: u32,
        segment: &Segment,
        opts: &[u8],
    ) -> Result<bool, DropReason> {
        let asked = self.config.tcp.ecn == Ecn::Active;
        let Slot::SynSent(s) = self.slots.slot_mut(index) else { return Err(DropReason::NoSocket) };
        let flags = segment.flags;
        if let Some(peer) = s.crossed.filter(|_| !flags.syn()) {
            // SYN-RECEIVED: RFC 9293 3.10.7.4, first, and RFC 5961 3.2.
            let window = u32::from(syn_window(s.options.initial_window(&self.config.tcp)));
            let ahead = segment.seq.since(peer.irs + 1);
            let acceptable = ahead <= window;
            if !acceptable || flags.rst() && ahead > 0 {
                if (acceptable || !flags.rst()) && self.may_challenge() {
                    self.ack_crossed(index);
                }
                return Err(if flags.rst() { DropReason::InexactRst } else { DropReason::OutOfWindow });
            }
        }
        let Slot::SynSent(s) = self.slots.slot_mut(index) else { return Err(DropReason::NoSocket) };
        // First: ACK. Only our SYN and its data can be acknowledged.
        let sent = s.fast.as_ref().map_or(0, |f| f.sent);
        if flags.ack() && (segment.ack.before(s.iss + 1) || segment.ack.after(s.iss + 1 + sent)) {
            if !flags.rst() {
                // RFC 9293 3.5.1, figure 9: the segment comes from an old incarnation, which our
                // RST ends. The next SYN will then be accepted; sent now, it saves the one-second
                // timeout.
                let again = !core::mem::replace(&mut s.hurried, true);
                self.send_reset_for(segment);
                if again {
                    self.send_syn(index);
                }
            }
            return Err(DropReason::BadAck);
        }
        // Second: RST.
        if flags.rst() {
            if flags.ack() || s.crossed.is_some() {
                self.stats.resets_received += 1;
                segment.key.probe(fs_probe::receive_reset);
                self.fail_connect(index, Error::ConnectionRefused);
                return Ok(false);
            }
            return Err(DropReason::InexactRst);
        }
        // Fourth: SYN.
        if flags.syn() {
            // A SYN-ACK may answer an earlier SYN than the last one, which no longer requested ECN.
            // Its ECN flags count all the same: otherwise the peer would send ECN-capable packets
            // whose marks are not echoed.
            let ecn =
                if flags.ack() { asked && ecn::is_setup_syn_ack(flags) } else { s.ecn && ecn::is_setup_syn(segment) };
            let options = options::parse_syn(opts);
            let peer = PeerSyn { irs: segment.seq, window: segment.window, options, ecn };
            if flags.ack() {
                if self.echoes_what_we_never_sent(index, segment) {
                    self.send_reset_for(segment);
                    return Err(DropReason::Paws);
                }
                let fast = matches!(self.slots.slot(index), Slot::SynSent(s) if s.fast.is_some());
                if fast {
                    self.learn_fast_open(index, options::fast_open(opts), &peer);
                }
                self.establish(index, peer, segment.ack, false);
                return Ok(segment.payload_len > 0 || flags.fin());
            }
            if s.crossed.is_none() {
                s.crossed = Some(peer);
            }
            self.send_syn(index);
            return Ok(false);
        }
        match s.crossed {
            // Any segment in the window proves that our SYN has arrived; the first such segment may
            // be lost.
            Some(peer) if flags.ack() => {
                self.establish(index, peer, segment.ack, true);
                Ok(true)
            }
            _ => Err(DropReason::NoAck),
        }
    }

    /// Sends an ACK in reply to a segment that does not complete the handshake after SYNs have
    /// crossed.
    #[cold]
    fn ack_crossed(&mut self, index: u32) {
        let Slot::SynSent(s) = self.slots.slot(index) else { return };
        let Some(peer) = s.crossed else { return };
        let (key, path, shift, seq) = (s.key, s.path, s.shift, s.iss + 1);
        let own = SynOwn::of(&s.options, &self.config.tcp);
        let offer = self.syn_options(&key, path, Some(peer.options), &own, shift);
        let (flags, ack) = (TcpFlags::ACK, peer.irs + 1);
        self.send_opening_ack(&Syn { key: &key, path, flags, seq, ack, own, offer, fast_open: None });
    }

    /// Returns true if a SYN-ACK echoes a timestamp that none of our SYNs carried: it answers
    /// another host's (Linux `tcp_rcv_synsent_state_process`).
    fn echoes_what_we_never_sent(&self, index: u32, segment: &Segment) -> bool {
        let (Slot::SynSent(s), Some(ts)) = (self.slots.slot(index), segment.ts) else { return false };
        let age = Duration::from_micros(u64::from(micros(self.now).wrapping_sub(s.sent_us)));
        let first = self.ts_clock.value(self.now - age, self.ts_offset);
        self.config.tcp.timestamps && ts.ecr != 0 && ts.ecr.wrapping_sub(first) > self.timestamp().wrapping_sub(first)
    }

    /// Records from a SYN-ACK that the path carries the option, and its cookie if it has one.
    fn learn_fast_open(&mut self, index: u32, cookie: Option<Cookie>, peer: &PeerSyn) {
        let Slot::SynSent(s) = self.slots.slot(index) else { return };
        let Some(fast) = &s.fast else { return };
        let (server, answered) = (s.key.remote_ip(), fast.carried);
        let cookie = cookie.filter(|c| !c.is_request());
        self.fast_open_peers.put(server, cookie, peer.options.mss.unwrap_or(536), self.now);
        if answered {
            self.fast_open_peers.answered(server);
        }
    }

    /// Moves SYN-SENT (or SYN-RECEIVED) to ESTABLISHED.
    fn establish(&mut self, index: u32, peer: PeerSyn, ack: SeqNum, crossed: bool) {
        let Slot::SynSent(s) = self.slots.slot_mut(index) else { return };
        let fast = s.fast.take();
        let conn_stats = ConnectionStats::new(s.iss, peer.irs, 1 + u32::from(s.retries), 1, self.now);
        let options = s.options;
        let opening = Opening {
            key: s.key,
            generation: s.generation,
            iss: s.iss,
            irs: peer.irs,
            peer: peer.options,
            shift: s.shift,
            window: peer.window,
            path: s.path,
            route_epoch: s.route_epoch,
            sample_from_us: (s.retries == 0).then_some(s.sent_us),
            retries: s.retries,
            ecn: peer.ecn,
            options: &options,
            is_plain: false,
        };
        let (key, fin_wanted, orphan, began) = (s.key, s.fin_wanted, s.orphan, s.began);
        let mut tcb = opening.tcb(&self.config.tcp, &self.net, self.now, |key| self.fast_open.flow_label(key));
        if !crossed {
            // The ACK of the SYN-ACK: carried by data if the application writes in this turn.
            tcb.flags.set(Flags::ACK_NOW);
        }
        if orphan {
            tcb.flags.set(Flags::ORPHAN | Flags::READ_SHUT);
        }
        if let Some(FastSyn { data, .. }) = fast {
            // Bytes that the server did not take with the SYN leave now, as data never sent.
            tcb.tx = data;
            let taken = ack.since(tcb.snd.una());
            if taken > 0 {
                tcb.tx.next = crate::slab::NIL;
                tcb.tx.acknowledge(&mut self.store, &mut self.pool, ack, |_| {});
                tcb.tx.next = tcb.tx.head();
                tcb.snd.begin_at(ack);
                tcb.ext_mut().recv.syn_data = true;
            }
        }
        *self.slots.slot_mut(index) = Slot::Open(tcb);
        *self.slots.conn_stats_mut(index) = conn_stats;
        self.stats.connected += 1;
        key.probe(|ends| fs_probe::established(ends, false));
        self.stats.connect_time.record(self.now.since(began));
        if fin_wanted {
            self.queue_fin(index);
        }
        self.schedule(index, if orphan { Ready::default() } else { Ready::WRITE });
    }
}

impl<P: FramePool> Stack<P> {
    /// Returns the options of our SYN or SYN-ACK: all that we support, or the part that the peer
    /// has offered. `shift` is our window scale.
    pub(crate) fn syn_options(
        &self,
        key: &FlowKey,
        path: crate::net::neigh::PathId,
        peer: Option<SynOptions>,
        own: &SynOwn,
        shift: u8,
    ) -> SynOptions {
        let tcp = &self.config.tcp;
        let offers = |wanted: bool, theirs: fn(&SynOptions) -> bool| wanted && peer.as_ref().is_none_or(theirs);
        let ecr = peer.and_then(|p| p.timestamps).map_or(0, |t| t.val);
        SynOptions {
            mss: Some(
                own.max_segment.map_or(u16::MAX, |m| m.max(crate::net::MSS_MIN)).min(self.net.mss(path, key.is_v6())),
            ),
            window_scale: offers(tcp.window_scaling, |p| p.window_scale.is_some()).then_some(shift),
            sack_permitted: offers(tcp.sack, |p| p.sack_permitted),
            timestamps: offers(tcp.timestamps, |p| p.timestamps.is_some())
                .then(|| options::Timestamps { val: self.timestamp(), ecr }),
        }
    }

    /// Returns the properties that a SYN-ACK gets from its listener, by the listener's slot.
    pub(crate) fn listener_syn(&self, listener: u32) -> SynOwn {
        let tcp = &self.config.tcp;
        match self.listeners.at(listener) {
            Some(listener) => SynOwn::of(&listener.options, tcp),
            None => SynOwn::of(&TcpOptions::default(), tcp),
        }
    }

    /// Returns the options of a listener's future connections, by the listener's slot.
    pub(crate) fn listener_options(&mut self, listener: u32) -> TcpOptions {
        self.listeners.at_mut(listener).map(|l| l.options).unwrap_or_default()
    }
}
