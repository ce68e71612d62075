//! One core's stack: its parts, the order of a turn, and the calls of its control path. Socket
//! calls are in [`crate::socket`], the receive path in [`crate::rx`], the transmit path in
//! [`crate::tx`].

mod calls;
#[cfg(any(test, feature = "check"))]
pub mod check;
mod frame_waiters;
mod receive;
mod tick;
mod transmit;

use crate::config::{Interface, Route, StackConfig, TcpConfig};
use crate::drop_reason::DropReason;
use crate::error::Error;
use crate::flow::{CoreId, FlowKey, Protocol};
use crate::frame::{FramePool, IfaceId, RxFrame};
use crate::frame_queue::FrameNodes;
use crate::net::Net;
use crate::net::neigh::{PathId, PathState};
use crate::outbox::{CoreMessage, Outbound, Outbox};
use crate::rx::batch::Batch;
use crate::rx::cookie::CookieJar;
use crate::rx::fast_open::FastOpenCookies;
use crate::rx::isn::InitialSequence;
use crate::rx::limits::RateLimits;
use crate::rx::owner::Owner;
use crate::rx::steer::delivery::{Delivery, Steering};
use crate::rx::steer::{Rfd, TsClock};
use crate::rx::syn::SynCache;
use crate::rx::table::{FlowHasher, FlowTable};
use crate::socket::event::{Event, Ready};
use crate::socket::fast_open::Peers;
use crate::socket::listener::ListenTable;
use crate::socket::ports::PortAllocator;
use crate::socket::udp::UdpTable;
use crate::stack::frame_waiters::FrameWaiters;
use crate::stats::Stats;
use crate::tcb::deadlines::{Deadlines, Token};
use crate::tcb::flags::Flags;
use crate::tcb::handover::RecentHandovers;
use crate::tcb::recv::ack::Share;
use crate::tcb::send::store::TxStore;
use crate::tcb::slots::Slots;
use crate::tcb::time_wait::TimeWaits;
use crate::tcb::timers::shortest_rto;
use crate::tcb::{Dead, Slot, Tcb};
use crate::time::{Instant, micros};
use crate::timer::tick::{Turn, current_tick};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;

/// One core's TCP/IP engine. See the crate's documentation for inputs and outputs.
///
/// The order of calls in a runtime's turn: `set_now` → `deliver` (messages of other cores) →
/// `rx_batch` → `tick` → `drain_events` (tasks run, making socket calls) → `tx_batch` →
/// `drain_outbound`.
pub struct Stack<P: FramePool> {
    config: StackConfig,
    pool: P,
    now: Instant,
    /// Values that a turn's packets would compute from `now` repeatedly.
    turn: Turn,
    /// See [`shortest_rto`].
    shortest_rto: i32,
    stats: Stats,
    net: Net,
    // ---- demux
    table: FlowTable,
    hasher: FlowHasher,
    isn: InitialSequence,
    limits: RateLimits,
    ts_clock: TsClock,
    ts_offset: u32,
    batch: Batch,
    // ---- connections
    slots: Slots,
    nodes: FrameNodes,
    store: TxStore,
    handshakes: SynCache,
    fast_open: FastOpenCookies,
    /// Cookies that servers have issued to us.
    fast_open_peers: Peers,
    cookies: CookieJar,
    time_waits: TimeWaits,
    listeners: ListenTable,
    handovers: RecentHandovers,
    ports: PortAllocator,
    delivery: Delivery,
    udp: UdpTable,
    // ---- time
    deadlines: Deadlines,
    /// Scratch space for due tokens, kept from turn to turn.
    due: Vec<Token>,
    // ---- outputs
    outbox: Outbox,
    frame_waiters: FrameWaiters,
    /// Frames that receive queues may hold.
    receive_frames: usize,
    /// Ordinary packets take the slow path, too.
    #[cfg(any(test, feature = "check"))]
    no_fast_paths: bool,
    /// Number of packets that took the fast path.
    #[cfg(any(test, feature = "check"))]
    fast_paths: u64,
}

impl<P: FramePool> core::fmt::Debug for Stack<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stack")
            .field("core", &self.config.core)
            .field("now", &self.now)
            .field("connections", &self.slots.live)
            .field("handshakes", &self.handshakes.len())
            .field("time_waits", &self.time_waits.len())
            .field("frames_in_use", &self.pool.in_use())
            .finish_non_exhaustive()
    }
}

impl<P: FramePool> Stack<P> {
    /// Makes a stack without interfaces, at time zero. Tables are sized by `config.limits`
    /// (untouched memory costs nothing); frames come from `pool`.
    pub fn new(config: StackConfig, pool: P) -> Self {
        let limits = &config.limits;
        let flows = limits.connections as usize + limits.syn_cache as usize + limits.time_wait as usize;
        let rfd = Rfd::new(config.cores, config.ephemeral_ports.len(), &config.secret);
        let mut isn_secret = config.secret;
        isn_secret.0.iter_mut().for_each(|b| *b ^= 0x5a);
        let hasher = FlowHasher::new(&config.secret);
        let isn_hasher = FlowHasher::new(&isn_secret);
        let anchor = FlowKey::V4 { local: 0, remote: 0, local_port: 0, remote_port: 0 };
        let frames = pool.capacity();
        let mut net = Net::new(limits);
        // A scan of neighbours that do not exist must leave frames for those that do.
        net.limit_waiting(frames / 8);
        let table = FlowTable::with_capacity(flows);
        let slots = Slots::new(limits.connections);
        let send_frames = frames * limits.send_pool_percent.min(100) as usize / 100;
        if let Some(tell) = config.large_table {
            for (at, bytes) in [table.memory(), slots.memory()] {
                tell(at, bytes);
            }
        }
        Self {
            net,
            table,
            // Equal on all cores and for all connections: monotone for a peer across reconnects and
            // hand-overs, and hides the uptime (RFC 7323 section 7.1).
            ts_offset: isn_hasher.hash(Protocol::Udp, &anchor) as u32,
            hasher,
            isn: InitialSequence::new(isn_hasher),
            limits: RateLimits::new(isn_hasher, config.tcp.challenge_acks),
            ts_clock: TsClock::new(config.core, config.cores),
            batch: Batch::default(),
            slots,
            nodes: FrameNodes::new(),
            store: TxStore::new(send_frames, config.large_table),
            handshakes: SynCache::new(limits.syn_cache),
            fast_open: FastOpenCookies::new(&config.secret),
            fast_open_peers: Peers::default(),
            cookies: CookieJar::new(isn_hasher),
            time_waits: TimeWaits::new(config.tcp.time_wait, limits.time_wait),
            listeners: ListenTable::default(),
            ports: PortAllocator::new(&config.secret, config.core, rfd, &config.ephemeral_ports),
            delivery: Delivery::new(config.core, config.cores, rfd, config.ephemeral_ports.clone()),
            udp: UdpTable::new(limits, frames),
            deadlines: Deadlines::new(),
            due: Vec::new(),
            handovers: RecentHandovers::default(),
            outbox: Outbox::default(),
            frame_waiters: FrameWaiters::default(),
            receive_frames: frames * limits.receive_pool_percent.min(100) as usize / 100,
            now: Instant::ZERO,
            turn: Turn::default(),
            shortest_rto: shortest_rto(&config.tcp),
            #[cfg(any(test, feature = "check"))]
            no_fast_paths: false,
            #[cfg(any(test, feature = "check"))]
            fast_paths: 0,
            stats: Stats::default(),
            pool,
            config,
        }
    }

    /// Returns the rest of the frames that receive queues may hold.
    #[inline]
    fn receive_share(&self) -> Share {
        Share::of(self.nodes.len(), self.receive_frames, self.slots.live)
    }

    /// Returns the frame pool.
    pub fn pool(&self) -> &P {
        &self.pool
    }

    /// Returns the frame pool, for links.
    pub fn pool_mut(&mut self) -> &mut P {
        &mut self.pool
    }

    /// Returns the configuration.
    pub fn config(&self) -> &StackConfig {
        &self.config
    }

    /// Changes TCP's constants. Open connections keep what was negotiated or computed when they
    /// opened.
    pub fn update_tcp(&mut self, change: impl FnOnce(&mut TcpConfig)) {
        change(&mut self.config.tcp);
        self.shortest_rto = shortest_rto(&self.config.tcp);
    }

    /// Returns the counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the time of the latest `set_now`.
    pub fn now(&self) -> Instant {
        self.now
    }

    // ---- control path of the network

    /// Adds an interface. The caller sets the routes to its networks.
    pub fn add_interface(&mut self, interface: Interface) -> IfaceId {
        self.net.add(interface)
    }

    /// Returns an interface's configuration.
    pub fn interface(&self, iface: IfaceId) -> Option<&Interface> {
        self.net.interface(iface)
    }

    /// Changes an interface: addresses, MTU, MAC. Connections from a removed address stay open, as
    /// on Linux; their packets leave as before.
    pub fn update_interface(&mut self, iface: IfaceId, change: impl FnOnce(&mut Interface)) {
        self.net.update(iface, change);
        self.wake_datagram_writers(None);
    }

    /// Sets the scope id of link-local addresses on an interface, as the host names it (RFC 4007;
    /// Linux: the device's index). Until then, interfaces are numbered from 1.
    pub fn set_scope(&mut self, iface: IfaceId, scope: u32) {
        self.net.set_scope(iface, scope);
    }

    /// Replaces the routes. UDP sockets that wait to send are notified: they may have waited for an
    /// interface that is down.
    pub fn set_routes(&mut self, routes: Vec<Route>) {
        self.net.set_routes(routes);
        self.wake_datagram_writers(None);
    }

    /// Replaces the addresses of the host's devices that are not interfaces of this stack. Packets to them
    /// do not leave the host: connects and datagrams of sockets that are not bound to a device get
    /// `InvalidInput`.
    pub fn set_host_addresses(&mut self, addrs: Vec<IpAddr>) {
        self.net.set_host_addresses(addrs);
        self.wake_datagram_writers(None);
    }

    /// Sets the function that returns the core to which the device steers a flow's packets (its RSS
    /// hash). Source ports of active connections are then chosen by it. Their RFD bits are ignored
    /// for flows that it knows.
    ///
    /// The function divides the flows of a destination among the cores. `steering` must return the
    /// same on all cores for the lifetime of the runtime, even after a change of the device's table
    /// (packets are then forwarded). Whether it returns a core may depend on a flow's addresses,
    /// not on its ports.
    pub fn set_steering(&mut self, steering: Option<Steering>) {
        self.delivery.set_steering(steering);
    }

    // ---- a turn

    /// Sets the current time. Time never goes back: an earlier `now` is ignored.
    #[inline]
    pub fn set_now(&mut self, now: Instant) {
        if self.deadlines.has_new_delays() {
            self.keep_delays();
        }
        if now > self.now {
            self.now = now;
            self.turn = Turn { us: micros(now), tick: current_tick(now) };
        }
    }

    /// Handles a message of another core.
    pub fn deliver(&mut self, message: CoreMessage) {
        match message {
            CoreMessage::Packet(packet) => self.rx_forwarded(packet),
            CoreMessage::Handover(handover) => self.take_over(*handover),
            CoreMessage::Neighbour { iface, addr, mac } => self.learn(iface, addr, mac),
            CoreMessage::Listen { core, at, up } => self.listeners.set_elsewhere(core, at, up),
            CoreMessage::Datagrams { core, binding, up } => self.udp.set_elsewhere(core, binding, up),
            CoreMessage::PathMtu { to, mtu } => _ = self.net.learn_path_mtu(to, mtu, self.now),
        }
    }

    /// Moves all events out, oldest first.
    #[inline]
    pub fn drain_events(&mut self, into: &mut Vec<Event>) {
        self.outbox.drain_events(into);
    }

    /// Moves all messages to other cores out.
    #[inline]
    pub fn drain_outbound(&mut self, into: &mut Vec<Outbound>) {
        self.outbox.drain_messages(into);
    }

    /// Counts packets lost between cores because a mailbox was full. The caller frees their frames.
    pub fn count_mailbox_full(&mut self, packets: u64) {
        self.stats.drops[DropReason::MailboxFull as usize] += packets;
    }

    /// Counts packets that no link accepted. The caller frees their frames.
    pub fn note_link_dropped(&mut self, packets: u64) {
        self.stats.drops[DropReason::LinkTx as usize] += packets;
    }

    // ---- shared by the paths

    /// Sends a message to every other core.
    pub(crate) fn tell_others(&mut self, message: impl Fn() -> CoreMessage) {
        let me = self.config.core;
        for to in (0..self.config.cores).map(CoreId).filter(|&to| to != me) {
            self.outbox.send(to, message());
        }
    }

    /// Notifies the application.
    #[inline]
    pub(crate) fn notify(&mut self, index: u32, ready: Ready) {
        if ready.0 != 0 {
            self.outbox.ready(index, self.slots.generation(index), ready);
        }
    }

    /// Updates a connection's schedule after any change: puts it on the transmit lists, arms its
    /// timer, notifies the application.
    #[inline]
    pub(crate) fn schedule(&mut self, index: u32, ready: Ready) {
        let Self { slots, net, store, deadlines, now, outbox, .. } = self;
        let Some(tcb) = slots.open_mut(index) else { return };
        if tcb.route_epoch != net.route_epoch() || net.path(tcb.path).state() == PathState::Stale {
            reroute(tcb, net, store, *now, index);
        }
        let generation = tcb.generation();
        if tcb.flags.has(Flags::ACK_NOW) {
            if !tcb.flags.has(Flags::IN_ACK_LIST) {
                tcb.flags.set(Flags::IN_ACK_LIST);
                if let Some(queue) = net.queue_of(tcb.path) {
                    queue.push_ack(index);
                }
            }
        } else if tcb.flags.has(Flags::ACK_DELAYED) && !tcb.flags.has(Flags::IN_DELAY_QUEUE) {
            tcb.flags.set(Flags::IN_DELAY_QUEUE);
            deadlines.delay_ack(index, generation);
        }
        if (tcb.has_unsent() || tcb.has_lost()) && !tcb.flags.has(Flags::IN_DATA_LIST) {
            tcb.flags.set(Flags::IN_DATA_LIST);
            if let Some(queue) = net.queue_of(tcb.path) {
                queue.push_data(index);
            }
        }
        deadlines.arm(tcb, index, *now);
        if ready.0 != 0 {
            if ready.intersects(Ready::CONFIRMED) {
                return self.schedule_confirmed(index, ready);
            }
            outbox.ready(index, generation, ready);
        }
    }

    #[cold]
    fn schedule_confirmed(&mut self, index: u32, ready: Ready) {
        self.confirm_fast(index);
        self.notify(index, Ready(ready.0 & !Ready::CONFIRMED.0));
    }

    /// Ends a connection. The application receives `error`; with `rst` the peer receives a reset.
    pub(crate) fn kill(&mut self, index: u32, error: Option<Error>, rst: bool) {
        if rst {
            self.send_reset_of(index);
        }
        let Slot::Open(tcb) = self.slots.slot(index) else { return };
        let hash = self.hasher.hash(Protocol::Tcp, &tcb.key());
        self.forget(index, hash, error);
    }

    /// Like [`Stack::kill`] without a reset to the peer; `hash` is of the connection's key.
    pub(crate) fn forget(&mut self, index: u32, hash: u64, error: Option<Error>) {
        let info = match self.slots.slot(index) {
            // The application may ask later: keep the last state.
            Slot::Open(tcb) if !tcb.flags.has(Flags::ORPHAN) => Some(Box::new(self.open_info(tcb, index))),
            _ => None,
        };
        let Self { slots, pool, nodes, store, table, frame_waiters, .. } = self;
        let Slot::Open(tcb) = slots.slot_mut(index) else { return };
        let waited = FrameWaiters::holds(tcb);
        let key = tcb.key();
        let generation = tcb.generation();
        key.probe(|ends| fs_probe::closed(ends, error.is_some()));
        table.remove(hash, Owner::Connection(index).value());
        let device = tcb.device();
        tcb.tx.clear(store, pool);
        if let Some(mut ext) = tcb.ext.take() {
            ext.out_of_order.clear(nodes, pool);
        }
        if tcb.flags.has(Flags::ORPHAN) {
            tcb.rx.clear(nodes, pool);
            slots.vacate(index);
            if waited {
                frame_waiters.end(slots);
            }
            return;
        }
        let rx = core::mem::replace(&mut tcb.rx, crate::frame_queue::FrameQueue::new());
        let finished = tcb.flags.has(Flags::FIN_RECEIVED);
        *slots.slot_mut(index) = Slot::Dead(Box::new(Dead { key, device, generation, rx, finished, error, info }));
        if waited {
            frame_waiters.end(slots);
        }
        self.notify(index, Ready::READ | Ready::WRITE | Ready::CLOSED);
    }

    /// Returns true for an address of ours.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.net.is_local(ip)
    }

    /// Returns the interface and the neighbour to which packets for `to` leave, by `device` for a
    /// socket that is bound to one. `None` if none leaves.
    pub fn next_hop(&self, to: IpAddr, device: Option<IfaceId>) -> Option<(IfaceId, IpAddr)> {
        self.net.next_hop(to, device).ok().map(|hop| (hop.iface, hop.addr))
    }

    /// Returns our current timestamp.
    #[inline]
    pub(crate) fn timestamp(&self) -> u32 {
        self.ts_clock.value(self.now, self.ts_offset)
    }

    /// Frees the frames of a packet and counts the reason.
    #[inline]
    pub(crate) fn discard(&mut self, frames: &mut [RxFrame], reason: DropReason) {
        self.stats.drop(reason);
        crate::tcb::arrival::Arrival::new(frames).discard(&mut self.pool);
    }
}

/// Looks a connection's path up again after routes, addresses or MTUs have changed. Removes it from
/// its interface's lists: that interface would send every connection on them.
#[cold]
fn reroute(tcb: &mut Tcb, net: &mut Net, store: &mut TxStore, now: Instant, index: u32) {
    tcb.route_epoch = net.route_epoch();
    let remote = tcb.key().remote_ip();
    let Some(path) = net.way_to(remote, tcb.device()) else { return };
    let listed = Flags::IN_ACK_LIST.with(Flags::IN_DATA_LIST);
    if path != tcb.path && tcb.flags.any(listed) {
        net.unqueue(index);
        tcb.flags.clear(listed);
    }
    if path != tcb.path {
        tcb.forget_nearness(0);
    }
    tcb.path = path;
    if path == PathId::NOWHERE {
        return;
    }
    let mss = net.mss_to(path, remote, now) - tcb.stamps_len();
    tcb.fit_path(store, mss, now);
}
