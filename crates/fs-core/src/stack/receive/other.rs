//! Packets that are not TCP: UDP datagrams, ICMP errors, and, for an address that the stack owns,
//! ARP, NDISC and echo.

use crate::config::{Addressing, Framing};
use crate::drop_reason::DropReason;
use crate::error::Error;
use crate::flow::{CoreId, FlowKey, Protocol};
use crate::frame::{FramePool, IfaceId, RxFrame, TxFrame};
use crate::net::neigh::{NeighbourChange, PathId};
use crate::net::path_mtu::believed;
use crate::net::standalone;
use crate::outbox::CoreMessage;
use crate::rx::owner::Owner;
use crate::rx::parse::Parsed;
use crate::rx::steer::delivery::Deliver;
use crate::socket::event::{Event, Ready};
use crate::stack::Stack;
use crate::tcb::arrival::Arrival;
use crate::tcb::extension::Recovery;
use crate::tcb::{Slot, Tcb};
use crate::wire::icmp::{self, IcmpError, IcmpErrorKind};
use alloc::vec::Vec;
use core::net::IpAddr;

/// Largest echo reply, which has to fit one frame. Longer requests are not answered.
const REPLY_MAX: usize = 1600;

impl<P: FramePool> Stack<P> {
    /// Handles a packet that is not TCP. `hops` is the number of cores that have seen it before.
    pub(crate) fn on_other(&mut self, iface: IfaceId, parsed: Parsed, frames: &mut [RxFrame], hops: u16) {
        match parsed {
            Parsed::Udp(datagram) => {
                if !self.is_local(datagram.key.local_ip()) {
                    return self.discard(frames, DropReason::NotOurAddress);
                }
                if hops == 0
                    && let Some(to) = self.udp_elsewhere(&datagram.key, iface)
                {
                    self.stats.packets_forwarded += 1;
                    return self.forward(to, frames, 1);
                }
                if !self.udp.has_socket(&datagram.key, iface) {
                    self.refuse_datagram(iface, frames);
                    return self.discard(frames, DropReason::NoSocket);
                }
                let owned = Arrival::new(frames).into_frames();
                let scopes = [datagram.key.remote_ip(), datagram.key.local_ip()].map(|ip| self.net.scope_of(ip, iface));
                match self.udp.deliver(&mut self.pool, &datagram, (iface, scopes), owned) {
                    Ok(readable) => {
                        self.stats.udp_received += 1;
                        if let Some(id) = readable {
                            self.outbox.event(Event::Udp(id, Ready::READ));
                        }
                    }
                    Err(reason) => self.stats.drop(reason),
                }
            }
            Parsed::Icmp { v6, off, len, .. } => {
                let head = self.pool.bytes(&frames[0].frame);
                let message = head.get(off as usize..off as usize + len as usize).unwrap_or_default();
                let error = if v6 { icmp::parse_error_v6(message) } else { icmp::parse_error_v4(message) };
                match error {
                    Some(error) => {
                        if self.config.cores > 1
                            && let Some((to, hops)) = self.icmp_elsewhere(&error, iface, hops)
                        {
                            return self.forward(to, frames, hops);
                        }
                        let reason = self.on_icmp_error(&error, iface);
                        match reason {
                            None => Arrival::new(frames).discard(&mut self.pool),
                            Some(reason) => self.discard(frames, reason),
                        }
                    }
                    None => self.answer(iface, &parsed, frames),
                }
            }
            Parsed::Arp { .. } | Parsed::Ndisc { .. } => self.answer(iface, &parsed, frames),
            Parsed::Tcp(_) => self.discard(frames, DropReason::NotOurProtocol),
        }
    }

    /// Answers ARP, NDISC and echo in standalone addressing. Otherwise the kernel does.
    fn answer(&mut self, iface: IfaceId, parsed: &Parsed, frames: &mut [RxFrame]) {
        if !self.net.is_standalone(iface) {
            return self.discard(frames, DropReason::NotOurProtocol);
        }
        let Some(interface) = self.net.interface(iface) else {
            return self.discard(frames, DropReason::NotOurProtocol);
        };
        let mut reply = [0u8; REPLY_MAX];
        let response = standalone::respond(iface, interface, self.pool.bytes(&frames[0].frame), parsed, &mut reply);
        Arrival::new(frames).discard(&mut self.pool);
        self.send_raw(iface, &reply[..response.reply_len]);
        if let Some(learned) = response.learned {
            let (iface, addr, mac) = (learned.iface, learned.addr, learned.mac);
            self.learn(iface, addr, mac);
            if self.config.cores > 1 && self.limits.take_news(self.config.tcp.challenge_acks, self.now) {
                self.tell_others(|| CoreMessage::Neighbour { iface, addr, mac });
            }
        }
    }

    /// Learns a neighbour's link address. Never makes a path, so that no host on the link can fill
    /// the table.
    pub(crate) fn learn(&mut self, iface: IfaceId, addr: IpAddr, mac: [u8; 6]) {
        let change = self.net.learn_neighbour(iface, addr, mac, self.now);
        self.on_neighbour(change);
    }

    /// Queues a complete packet.
    fn send_raw(&mut self, iface: IfaceId, bytes: &[u8]) {
        if bytes.is_empty() || bytes.len() > self.pool.payload_room() {
            return;
        }
        let Some(mut frame) = self.pool.alloc() else { return self.stats.drop(DropReason::NoFrames) };
        frame.grow_back(bytes.len());
        self.pool.bytes_mut(&mut frame).copy_from_slice(bytes);
        match self.net.queue_mut(iface) {
            Some(queue) => queue.push_control([TxFrame { frame, checksum: None }]),
            None => self.pool.free(frame),
        }
    }

    /// Returns the core whose socket receives a datagram, if it is not this one.
    #[inline]
    fn udp_elsewhere(&self, key: &FlowKey, iface: IfaceId) -> Option<CoreId> {
        self.udp.elsewhere(key, iface, || self.hasher.hash(Protocol::Udp, key))
    }

    /// Returns the core that may own the flow quoted by an ICMP error, if it is not this one, and the
    /// error's hops there. Devices do not hash the quoted packet: the error arrives on any queue.
    fn icmp_elsewhere(&mut self, error: &IcmpError, iface: IfaceId, hops: u16) -> Option<(CoreId, u16)> {
        let (key, port) = (&error.key, error.key.local_port());
        if error.protocol == Protocol::Udp {
            let to = self.udp_elsewhere(key, iface).filter(|_| hops == 0)?;
            self.stats.packets_forwarded += 1;
            return Some((to, 1));
        }
        let hash = self.hasher.hash(Protocol::Tcp, key);
        if !self.is_local(key.local_ip()) || self.owner_by_hash(hash, key).is_some() {
            return None;
        }
        let opened = self.delivery.is_ephemeral_port(port) && !self.listeners.port_in_use(port);
        let named = if opened { self.delivery.opener_of(key) } else { None };
        let known = named.filter(|&owner| hops == 0 && owner != self.config.core).map(Deliver::Owner);
        let moved = || self.handovers.find(hash, self.now).filter(|_| self.delivery.may_follow(hops));
        let destination = known.or_else(|| moved().map(Deliver::Moved));
        // One round, and at a bounded rate, as with segments.
        let destination = destination.unwrap_or_else(|| self.delivery.search(named, hops));
        let (to, count) = match destination {
            Deliver::Owner(to) | Deliver::Moved(to) => (to, &mut self.stats.packets_forwarded),
            Deliver::Search(_) if !self.limits.may_ask(self.config.tcp.challenge_acks, self.now) => return None,
            Deliver::Search(to) | Deliver::Ask(to) => (to, &mut self.stats.packets_asked),
            Deliver::Here | Deliver::Listener(_) => {
                self.limits.record_stray();
                return None;
            }
        };
        *count += 1;
        Some((to, self.delivery.hops_at(destination, hops)))
    }

    /// Records a router's MTU for a destination and announces it to the other cores, whose
    /// connections may use it, too. The rate is bounded, since anyone can forge such messages: a
    /// core that misses one learns the MTU from its own packets.
    fn learn_mtu(&mut self, to: IpAddr, mtu: u16) {
        if self.net.learn_path_mtu(to, mtu, self.now)
            && self.config.cores > 1
            && self.limits.take_news(self.config.tcp.challenge_acks, self.now)
        {
            self.tell_others(|| CoreMessage::PathMtu { to, mtu });
        }
    }

    /// Handles an ICMP error about a packet of ours. Returns `Some` if it matches no socket, or
    /// cannot be genuine.
    fn on_icmp_error(&mut self, error: &IcmpError, iface: IfaceId) -> Option<DropReason> {
        if error.protocol == Protocol::Udp {
            if let IcmpErrorKind::FragmentationNeeded { mtu } | IcmpErrorKind::PacketTooBig { mtu } = error.kind {
                // A datagram without a socket here cannot have been too large.
                let Some(mtu) = believed(error.key.is_v6(), mtu).filter(|_| self.udp.has_socket(&error.key, iface))
                else {
                    return Some(DropReason::IcmpUnmatched);
                };
                self.learn_mtu(error.key.remote_ip(), mtu);
            }
            let id = self.udp.on_icmp(error, iface);
            self.stats.icmp_errors += id.is_some() as u64;
            if let Some(id) = id {
                self.outbox.event(Event::Udp(id, Ready::READ | Ready::WRITE));
            }
            return None;
        }
        let index = match self.owner_of(&error.key) {
            Some(Owner::Connection(index)) => index,
            Some(Owner::Handshake(index)) => return self.on_icmp_of_handshake(index, error),
            Some(Owner::TimeWait(_)) | None => return Some(DropReason::IcmpUnmatched),
        };
        let what = error.kind.error();
        match self.slots.slot_mut(index) {
            Slot::SynSent(s) => {
                if error.seq.is_some_and(|seq| seq != s.iss) {
                    return Some(DropReason::IcmpUnmatched);
                }
                self.stats.icmp_errors += 1;
                let remote = s.key.remote_ip();
                if let IcmpErrorKind::FragmentationNeeded { mtu } | IcmpErrorKind::PacketTooBig { mtu } = error.kind {
                    if let Some(mtu) = believed(remote.is_ipv6(), mtu) {
                        self.learn_mtu(remote, mtu);
                        self.shrink_syn(index);
                    }
                } else {
                    // Soft errors too, as on Linux (RFC 5461 section 4.1): the next address is tried at once.
                    self.fail_connect(index, what);
                }
            }
            Slot::Open(tcb) => {
                // RFC 5927 section 4.1: the quoted sequence number must be of data in flight.
                let handshake = tcb.flags.has(crate::tcb::flags::Flags::SYN_RECEIVED);
                let first = tcb.snd.una() - u32::from(handshake);
                let in_flight = |seq: crate::seq::SeqNum| seq.at_or_after(first) && seq.before(tcb.snd.nxt());
                // Or of a pure ACK, from which no size can be learned.
                let sized = matches!(
                    error.kind,
                    IcmpErrorKind::FragmentationNeeded { .. } | IcmpErrorKind::PacketTooBig { .. }
                );
                let of_ack = !sized && error.seq == Some(tcb.snd.nxt());
                if !error.seq.is_some_and(in_flight) && !of_ack {
                    return Some(DropReason::IcmpUnmatched);
                }
                self.stats.icmp_errors += 1;
                match error.kind {
                    IcmpErrorKind::FragmentationNeeded { mtu } | IcmpErrorKind::PacketTooBig { mtu } => {
                        self.shrink_mss(index, mtu);
                    }
                    // Data in a SYN opened it, it is not accepted yet, and the error quotes our
                    // SYN-ACK: the client does not exist (as Linux).
                    _ if handshake
                        && tcb.flags.has(crate::tcb::flags::Flags::UNACCEPTED)
                        && error.kind.ends_handshake()
                        && error.seq.is_some_and(|seq| seq == tcb.snd.una() - 1) =>
                    {
                        self.kill(index, Some(what), false);
                    }
                    // A synchronized connection survives all other errors (RFC 1122 4.2.3.9, RFC
                    // 5461). The error is reported if the connection fails for other reasons.
                    _ => tcb.ext_mut().soft_error = Some(what),
                }
            }
            Slot::Dead(_) | Slot::Free { .. } => return Some(DropReason::IcmpUnmatched),
        }
        None
    }

    /// Handles an ICMP error about our SYN-ACK. An error which proves that the client does not
    /// exist ends the handshake (as Linux), if it quotes the right sequence number (RFC 5927 4.1).
    fn on_icmp_of_handshake(&mut self, index: u32, error: &IcmpError) -> Option<DropReason> {
        if error.seq != Some(self.handshakes.entry(index).iss) {
            return Some(DropReason::IcmpUnmatched);
        }
        self.stats.icmp_errors += 1;
        if error.kind.ends_handshake() {
            self.forget_handshake(index);
        }
        None
    }

    /// Sends an ICMP port unreachable in standalone addressing, for a datagram without a socket
    /// (RFC 1122 4.1.3.1), at a bounded rate (RFC 1812 4.3.2.8, RFC 4443 2.4 f).
    #[cold]
    fn refuse_datagram(&mut self, iface: IfaceId, frames: &[RxFrame]) {
        if !self.net.is_standalone(iface) {
            return;
        }
        if !self.limits.take_refusal(self.config.tcp.challenge_acks, self.now) {
            return;
        }
        let Some(interface) = self.net.interface(iface) else { return };
        let mut reply = [0u8; REPLY_MAX];
        let len = standalone::port_unreachable(interface, self.pool.bytes(&frames[0].frame), &mut reply).unwrap_or(0);
        self.send_raw(iface, &reply[..len]);
    }

    /// Path MTU discovery (RFC 1191, RFC 8201): splits and retransmits segments over the new size.
    fn shrink_mss(&mut self, index: u32, mtu: u32) {
        let Some(remote) = self.slots.open(index).map(|tcb| tcb.key().remote_ip()) else { return };
        let Some(mtu) = believed(remote.is_ipv6(), mtu) else { return self.stats.drop(DropReason::IcmpUnmatched) };
        self.learn_mtu(remote, mtu);
        let Self { slots, store, config, now, .. } = self;
        let Some(tcb) = slots.open_mut(index) else { return };
        let (mtu, headers) = (u32::from(mtu), if remote.is_ipv6() { 60 } else { 40 });
        let mss = (mtu - headers).min(u16::MAX as u32) as u16 - tcb.stamps_len();
        let mss = mss.max(tcb.mss_floor(&config.tcp));
        if mss >= tcb.mss {
            return;
        }
        tcb.reduce_mss(mss, *now);
        tcb.resend_oversized(store);
        self.schedule(index, Ready::default());
    }

    // ---- neighbours

    /// Sets a neighbour's link address, or records that it does not reply (`None`). Packets that
    /// wait for such a neighbour are dropped, and connects to it fail with HostUnreachable.
    pub fn set_neighbour(&mut self, iface: IfaceId, addr: IpAddr, mac: Option<[u8; 6]>) {
        let now = self.now;
        let change = self.net.set_neighbour(iface, addr, mac, now);
        self.on_neighbour(change);
    }

    fn on_neighbour(&mut self, change: NeighbourChange) {
        match change {
            NeighbourChange::None => {}
            NeighbourChange::Resolved(path) => self.net.resolved(&mut self.pool, &mut self.stats, path),
            NeighbourChange::Failed(path, packets) => self.neighbour_failed(path, packets),
        }
    }

    /// Forgets a neighbour. The next packet asks for it.
    pub fn remove_neighbour(&mut self, iface: IfaceId, addr: IpAddr) {
        self.net.remove_neighbour(iface, addr);
    }

    fn neighbour_failed(&mut self, path: PathId, packets: Vec<Vec<TxFrame>>) {
        for packet in packets {
            crate::net::free_unresolved(&mut self.pool, &mut self.stats, packet);
        }
        // Connects whose SYNs waited for it fail now, as Linux fails them (`arp_error_report`). A
        // walk over all slots is avoided: in a scan of a prefix without hosts, each silent address
        // would cost one.
        for index in self.net.take_connects(path) {
            if let Slot::SynSent(s) = self.slots.slot(index)
                && s.path == path
            {
                self.fail_connect(index, Error::HostUnreachable);
            }
        }
    }

    /// Requests the neighbours that packets wait for.
    pub(crate) fn request_neighbours(&mut self) {
        let mut failed = Vec::new();
        let wanted = self.net.take_wanted(self.now, &mut failed);
        for (path, packets) in failed {
            self.neighbour_failed(path, packets);
        }
        for path in wanted {
            let (iface, addr) = (self.net.path(path).iface(), self.net.path(path).addr());
            let Some(interface) = self.net.interface(iface) else { continue };
            if interface.framing == Framing::Ip {
                // Timeouts request any path's neighbour; a link without link addresses has none.
                continue;
            }
            if interface.addressing != Addressing::Standalone {
                self.outbox.event(Event::NeighbourNeeded(iface, addr));
                continue;
            }
            let mut request = [0u8; REPLY_MAX];
            if let Some(len) = standalone::request(interface, addr, &mut request) {
                self.send_raw(iface, &request[..len]);
            }
        }
    }
}

impl Tcb {
    /// Splits and retransmits sent segments that exceed the segment size. The congestion window
    /// stays: nothing was lost to congestion, and no more bytes than it allows enter the network
    /// (as Linux, `tcp_simple_retransmit`).
    pub(crate) fn resend_oversized(&mut self, store: &mut crate::tcb::send::store::TxStore) {
        use crate::tcb::send::segment::mark;
        self.tx.spill(store, self.snd.nxt());
        let (queue, high) = (self.tx, self.snd.nxt());
        let mss = self.mss as u32;
        let ext = self.ext_mut();
        let (mut again, mut at) = (0, queue.head());
        while at != queue.next && at != crate::slab::NIL {
            let segment = &store.segments[at];
            let next = segment.next;
            if segment.len > mss && !segment.has(mark::SACKED) {
                again += ext.send_again(store, at);
            }
            at = next;
        }
        if again == 0 {
            return;
        }
        if matches!(ext.recovery, Recovery::Open | Recovery::Cwr { .. }) {
            // Otherwise the next ACK would count them as a new loss.
            ext.recovery = Recovery::Loss { high };
            let undo = &mut self.loss_mut().undo;
            (undo.marker, undo.frto, undo.new_data_first) = (None, false, false);
        }
        self.flags.set(crate::tcb::flags::Flags::PUSH_OUT);
    }
}
