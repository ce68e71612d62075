//! The network as one core sees it: interfaces, addresses, routes, neighbours, and each interface's
//! transmit queues.

pub(crate) mod interface_queue;
pub(crate) mod neigh;
pub(crate) mod path_mtu;
pub(crate) mod route;
pub(crate) mod standalone;

use crate::config::{Addressing, Interface, Limits, Route};
use crate::drop_reason::DropReason;
use crate::error::Error;
use crate::flow::FlowKey;
use crate::frame::{FramePool, IfaceId, TxFrame};
use crate::net::interface_queue::InterfaceQueue;
use crate::net::neigh::{NeighbourChange, Path, PathId, PathState, PathTable};
use crate::net::path_mtu::PathMtus;
use crate::net::route::{RouteTable, source_for};
use crate::stats::Stats;
use crate::time::Instant;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

/// Which connections may be bound to a device. If a connection cannot be bound, demultiplexing
/// skips the check of its owner's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MayBeBound {
    None,
    /// Connections to link-local addresses. Any SYN of a neighbour makes one.
    LinkLocal,
    Any,
}

/// Interfaces, routes and neighbours of one core.
#[derive(Debug)]
pub(crate) struct Net {
    interfaces: Vec<Interface>,
    /// Transmit queues, one for each interface.
    queues: Vec<InterfaceQueue>,
    /// For each interface, the scope id of its link-local addresses.
    scopes: Vec<u32>,
    routes: RouteTable,
    paths: PathTable,
    /// Incremented by every change of the routes. A connection whose epoch differs looks its path
    /// up again.
    route_epoch: u8,
    /// Path MTUs that routers have reported.
    path_mtus: PathMtus,
    /// Paths whose neighbours must be resolved.
    wanted: Vec<PathId>,
    /// Which connections may be bound to a device.
    bound: MayBeBound,
    v4: Vec<u32>,
    v6: Vec<[u8; 16]>,
}

impl Net {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            interfaces: Vec::new(),
            queues: Vec::new(),
            scopes: Vec::new(),
            routes: RouteTable::default(),
            paths: PathTable::new(limits),
            route_epoch: 0,
            path_mtus: PathMtus::default(),
            wanted: Vec::new(),
            bound: MayBeBound::None,
            v4: Vec::new(),
            v6: Vec::new(),
        }
    }

    /// Limits the number of packets that may wait for neighbours in total.
    pub(crate) fn limit_waiting(&mut self, packets: usize) {
        self.paths.limit_waiting(packets);
    }

    pub(crate) fn interface(&self, iface: IfaceId) -> Option<&Interface> {
        self.interfaces.get(iface.0 as usize)
    }

    /// Returns true if there is more than one interface.
    pub(crate) fn has_several_interfaces(&self) -> bool {
        self.interfaces.len() > 1
    }

    pub(crate) fn add(&mut self, interface: Interface) -> IfaceId {
        let id = IfaceId(self.interfaces.len() as u8);
        self.paths.set_interface(id, &interface);
        self.interfaces.push(interface);
        self.queues.push(InterfaceQueue::default());
        self.scopes.push(u32::from(id.0) + 1);
        self.refresh_addresses();
        id
    }

    /// Sets the scope id of link-local addresses on an interface.
    pub(crate) fn set_scope(&mut self, iface: IfaceId, scope: u32) {
        if let Some(place) = self.scopes.get_mut(usize::from(iface.0)) {
            *place = scope;
        }
    }

    /// Returns the scope id of `ip` on an interface: 0 except for link-local addresses.
    pub(crate) fn scope_of(&self, ip: IpAddr, iface: IfaceId) -> u32 {
        if is_link_local(ip) { self.scopes.get(usize::from(iface.0)).copied().unwrap_or(0) } else { 0 }
    }

    /// Returns an endpoint of a socket bound to `device` with its scope id, as applications see it.
    pub(crate) fn scoped(&self, at: SocketAddr, device: Option<IfaceId>) -> SocketAddr {
        match (at, device) {
            (SocketAddr::V6(mut v6), Some(device)) => {
                v6.set_scope_id(self.scope_of(at.ip(), device));
                v6.into()
            }
            _ => at,
        }
    }

    /// Returns the interface named by a link-local address's scope id; `None` without one.
    pub(crate) fn scope_device(&self, at: SocketAddr) -> Result<Option<IfaceId>, Error> {
        match at {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() != 0 => {
                let place = self.scopes.iter().position(|&scope| scope == v6.scope_id());
                place.map(|n| Some(IfaceId(n as u8))).ok_or(Error::NetworkUnreachable)
            }
            _ => Ok(None),
        }
    }

    /// Returns the interface that a socket is bound to once it connects or binds to `at`, given its
    /// earlier `device`. A link-local address binds the socket to the interface of its scope and
    /// cannot be used with another (RFC 4007; Linux `tcp_v6_connect`, `inet6_bind`).
    ///
    /// # Errors
    /// `InvalidInput` if no interface is named, or two different ones.
    pub(crate) fn bound_by(&self, at: SocketAddr, device: Option<IfaceId>) -> Result<Option<IfaceId>, Error> {
        if !is_link_local(at.ip()) {
            return Ok(device);
        }
        match (self.scope_device(at), device) {
            (Ok(None), None) => Err(Error::InvalidInput),
            (Ok(None), bound) => Ok(bound),
            (Ok(named), Some(_)) if named != device => Err(Error::InvalidInput),
            (Err(_), Some(_)) => Err(Error::InvalidInput),
            (named, _) => named,
        }
    }

    /// Returns the interface of a flow with a link-local peer where nothing else determines it: the
    /// interface of our own address.
    pub(crate) fn link_of(&self, key: &FlowKey) -> Option<IfaceId> {
        let (local, remote) = (key.local_ip(), key.remote_ip());
        if !is_link_local(remote) || !is_link_local(local) {
            return None;
        }
        (0..self.interfaces.len()).map(|n| IfaceId(n as u8)).find(|&iface| self.is_local_on(iface, local))
    }

    pub(crate) fn update(&mut self, iface: IfaceId, change: impl FnOnce(&mut Interface)) {
        let Some(interface) = self.interfaces.get_mut(iface.0 as usize) else { return };
        change(interface);
        self.paths.set_interface(iface, interface);
        self.refresh_addresses();
    }

    /// Replaces the routes.
    pub(crate) fn set_routes(&mut self, routes: Vec<Route>) {
        self.routes.set(routes);
        self.route_epoch = self.route_epoch.wrapping_add(1);
    }

    /// Replaces the addresses of the host's other devices.
    pub(crate) fn set_host_addresses(&mut self, addrs: Vec<IpAddr>) {
        self.routes.set_host_addresses(addrs);
        self.route_epoch = self.route_epoch.wrapping_add(1);
    }

    /// Returns the current route epoch. A path that was looked up in this epoch is up to date.
    #[inline(always)]
    pub(crate) fn route_epoch(&self) -> u8 {
        self.route_epoch
    }

    fn refresh_addresses(&mut self) {
        self.v4.clear();
        self.v6.clear();
        for cidr in self.interfaces.iter().flat_map(|i| &i.addrs) {
            match cidr.addr {
                IpAddr::V4(a) => self.v4.push(a.into()),
                IpAddr::V6(a) => self.v6.push(a.octets()),
            }
        }
        self.route_epoch = self.route_epoch.wrapping_add(1);
    }

    /// Returns true for an address of any interface (the weak host model of RFC 1122 3.3.4.2, as
    /// Linux).
    pub(crate) fn is_local(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(a) => self.v4.contains(&u32::from(a)),
            IpAddr::V6(a) => self.v6.contains(&a.octets()),
        }
    }

    /// Returns true for an address of this interface.
    pub(crate) fn is_local_on(&self, iface: IfaceId, ip: IpAddr) -> bool {
        self.interface(iface).is_some_and(|interface| interface.addrs.iter().any(|cidr| cidr.addr == ip))
    }

    /// Returns true if a socket bound to `device` may use this local address. A link-local address
    /// belongs to its device alone.
    pub(crate) fn may_be_at(&self, ip: IpAddr, device: Option<IfaceId>) -> bool {
        match device {
            Some(device) if is_link_local(ip) => self.is_local_on(device, ip),
            _ => self.is_local(ip),
        }
    }

    /// Returns true for an address of a single host: not unspecified, multicast, reserved, or a
    /// broadcast address of an attached network (RFC 9293 MUST-46).
    pub(crate) fn is_unicast(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V6(a) => !a.is_unspecified() && !a.is_multicast(),
            IpAddr::V4(a) => {
                let bits = u32::from(a);
                let is_broadcast = |cidr: &crate::config::Cidr| match cidr.addr {
                    IpAddr::V4(own) if cidr.prefix < 31 => bits == u32::from(own) | u32::MAX >> cidr.prefix,
                    IpAddr::V4(_) | IpAddr::V6(_) => false,
                };
                crate::wire::ipv4::is_unicast(bits) && !self.interfaces.iter().flat_map(|i| &i.addrs).any(is_broadcast)
            }
        }
    }

    /// Notes that sockets may be bound to devices from now on.
    pub(crate) fn note_bound(&mut self) {
        self.bound = MayBeBound::Any;
    }

    /// Notes that a connection to `remote` may be bound to a device. Connections to link-local
    /// addresses are recognized by the address.
    pub(crate) fn note_bound_to(&mut self, remote: IpAddr) {
        if !is_link_local(remote) {
            self.bound = MayBeBound::Any;
        } else if self.bound == MayBeBound::None {
            self.bound = MayBeBound::LinkLocal;
        }
    }

    /// Returns true if the owner of a flow may be bound to a device.
    #[inline(always)]
    pub(crate) fn may_be_bound(&self, key: &FlowKey) -> bool {
        match self.bound {
            MayBeBound::None => false,
            MayBeBound::LinkLocal => key.is_v6() && is_link_local(key.remote_ip()),
            MayBeBound::Any => true,
        }
    }

    /// Returns the path to a destination, by `device` for sockets that are bound to one.
    pub(crate) fn path_to(&mut self, remote: IpAddr, device: Option<IfaceId>) -> Result<PathId, Error> {
        let hop = self.next_hop(remote, device)?;
        self.paths.path(hop).ok_or(Error::NoBuffers)
    }

    /// Returns the next hop to a destination, by `device` for sockets that are bound to one.
    pub(crate) fn next_hop(&self, remote: IpAddr, device: Option<IfaceId>) -> Result<route::NextHop, Error> {
        self.routes.lookup(remote, device)
    }

    /// Looks up the path to a destination for a connection that already has one. `None` keeps that
    /// path, because no other exists. A refusing route also yields a path, on which nothing leaves.
    pub(crate) fn way_to(&mut self, remote: IpAddr, device: Option<IfaceId>) -> Option<PathId> {
        match self.path_to(remote, device) {
            Ok(path) => Some(path),
            Err(_) => self.routes.refuses(remote, device).then_some(PathId::NOWHERE),
        }
    }

    /// Looks the path to a destination up again if the routes have changed since, or if the path is
    /// stale.
    pub(crate) fn renew(&mut self, path: &mut PathId, epoch: &mut u8, remote: IpAddr, device: Option<IfaceId>) {
        let is_old = *epoch != self.route_epoch;
        // A path that a route refused is looked up again only after the routes have changed.
        let is_stale = *path != PathId::NOWHERE && self.path(*path).state() == PathState::Stale;
        if (is_stale || is_old)
            && let Some(found) = self.way_to(remote, device)
        {
            (*path, *epoch) = (found, self.route_epoch);
        }
    }

    /// Returns our address for a destination reached by `path`: the route's, or else the choice of
    /// RFC 6724.
    pub(crate) fn source_for(&self, path: PathId, remote: IpAddr, device: Option<IfaceId>) -> Option<IpAddr> {
        let named = self.routes.source(remote, device).filter(|source| self.is_local(*source));
        let path = self.paths.get(path);
        named.or_else(|| source_for(&self.interfaces, path.iface(), remote, path.addr()))
    }

    /// Returns the transmit queues of an interface.
    #[inline]
    pub(crate) fn queue(&self, iface: IfaceId) -> Option<&InterfaceQueue> {
        self.queues.get(iface.0 as usize)
    }

    /// Returns the transmit queues of an interface, mutably.
    #[inline]
    pub(crate) fn queue_mut(&mut self, iface: IfaceId) -> Option<&mut InterfaceQueue> {
        self.queues.get_mut(iface.0 as usize)
    }

    /// Returns the transmit queues of the interface of `path`. For a stale path these are the first
    /// interface's: there its connection will look up a new path.
    #[inline]
    pub(crate) fn queue_of(&mut self, path: PathId) -> Option<&mut InterfaceQueue> {
        let index = self.paths.get(path).iface().0 as usize;
        let index = if index < self.queues.len() { index } else { 0 };
        self.queues.get_mut(index)
    }

    /// Removes the connection in slot `index` from all interfaces' queues.
    #[cold]
    pub(crate) fn unqueue(&mut self, index: u32) {
        self.queues.iter_mut().for_each(|queue| queue.forget(index));
    }

    /// Returns the MTU of the path to `remote`, which leaves by `path`.
    pub(crate) fn path_mtu(&self, path: PathId, remote: IpAddr, now: Instant) -> u16 {
        self.path_mtus.get(remote, self.paths.get(path).mtu(), now)
    }

    /// Records a router's MTU for a destination. Returns true if it is lower than the known one.
    pub(crate) fn learn_path_mtu(&mut self, to: IpAddr, mtu: u16, now: Instant) -> bool {
        self.path_mtus.learn(to, mtu, now)
    }

    /// Returns the largest TCP payload that fits a path's MTU, before options: RFC 6691.
    pub(crate) fn mss(&self, path: PathId, v6: bool) -> u16 {
        self.paths.get(path).mtu().saturating_sub(if v6 { 60 } else { 40 }).max(MSS_MIN)
    }

    /// Like [`Net::mss`], with the path MTU that is known for `remote`.
    pub(crate) fn mss_to(&self, path: PathId, remote: IpAddr, now: Instant) -> u16 {
        let mtu = self.path_mtu(path, remote, now);
        mtu.saturating_sub(if remote.is_ipv6() { 60 } else { 40 }).max(MSS_MIN)
    }

    #[inline]
    pub(crate) fn path(&self, path: PathId) -> &Path {
        self.paths.get(path)
    }

    /// Queues a packet of one frame whose headers are written. It leaves, or waits for the
    /// neighbour.
    pub(crate) fn send<P: FramePool>(
        &mut self,
        pool: &mut P,
        stats: &mut Stats,
        path: PathId,
        now: Instant,
        frame: TxFrame,
    ) {
        if self.paths.get(path).state() == PathState::Known
            && let Some(queue) = self.queue_of(path)
        {
            queue.push_control([frame]);
            return;
        }
        self.wait_for_neighbour(pool, stats, path, now, alloc::vec![frame]);
    }

    /// Queues a packet without link header until the neighbour is known.
    #[cold]
    pub(crate) fn wait_for_neighbour<P: FramePool>(
        &mut self,
        pool: &mut P,
        stats: &mut Stats,
        path: PathId,
        now: Instant,
        packet: Vec<TxFrame>,
    ) {
        let enqueued = self.paths.enqueue(path, packet, now);
        if enqueued.request {
            self.wanted.push(path);
        }
        free_unresolved(pool, stats, enqueued.dropped);
    }

    /// Starts resolving a neighbour that failed before, for senders that keep their packet and are
    /// notified of a failure. Returns false while the hold-down time lasts: the destination is then
    /// unreachable.
    pub(crate) fn retry(&mut self, path: PathId, now: Instant) -> bool {
        if self.path(path).state() == PathState::Failed {
            if !self.paths.need(path, now) && self.path(path).state() == PathState::Failed {
                return false;
            }
            self.want(path);
        }
        true
    }

    /// Requests resolution of the neighbour of `path`.
    pub(crate) fn want(&mut self, path: PathId) {
        self.wanted.push(path);
    }

    /// See [`PathTable::push_connect`].
    pub(crate) fn push_connect(&mut self, path: PathId, index: u32) {
        self.paths.push_connect(path, index);
    }

    /// See [`PathTable::take_connects`].
    pub(crate) fn take_connects(&mut self, path: PathId) -> Vec<u32> {
        self.paths.take_connects(path)
    }

    /// Returns when [`Net::take_wanted`] has something to do; may be early.
    #[inline]
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        if self.wanted.is_empty() { self.paths.next_deadline() } else { Some(now) }
    }

    /// Returns the paths whose neighbours must be asked for now. Adds to `failed` the paths that
    /// were given up, with the packets that waited for them, which the caller frees.
    pub(crate) fn take_wanted(&mut self, now: Instant, failed: &mut Vec<(PathId, Vec<Vec<TxFrame>>)>) -> Vec<PathId> {
        let mut wanted = core::mem::take(&mut self.wanted);
        self.paths.tick(now, &mut wanted, failed);
        wanted
    }

    /// Sets a neighbour's link address, or records that it has none.
    pub(crate) fn set_neighbour(
        &mut self,
        iface: IfaceId,
        addr: IpAddr,
        mac: Option<[u8; 6]>,
        now: Instant,
    ) -> NeighbourChange {
        self.paths.set_neighbour(iface, addr, mac, now)
    }

    /// Learns a link address from an unsolicited packet. Never makes a path, so that no host on the
    /// link can fill the table.
    pub(crate) fn learn_neighbour(
        &mut self,
        iface: IfaceId,
        addr: IpAddr,
        mac: [u8; 6],
        now: Instant,
    ) -> NeighbourChange {
        self.paths.learn(iface, addr, mac, now)
    }

    /// Forgets a neighbour. The next packet asks for it.
    pub(crate) fn remove_neighbour(&mut self, iface: IfaceId, addr: IpAddr) {
        self.paths.remove_neighbour(iface, addr);
    }

    /// Queues the packets that waited for the neighbour of `path`, which is now known.
    pub(crate) fn resolved<P: FramePool>(&mut self, pool: &mut P, stats: &mut Stats, path: PathId) {
        let mut ready = Vec::new();
        let drained = self.paths.resolved(path, pool, &mut ready);
        stats.drops[DropReason::NoFrames as usize] += drained.dropped as u64;
        if let Some(queue) = self.queue_of(path) {
            queue.push_control(ready);
        }
    }

    #[cfg(any(test, feature = "check"))]
    pub(crate) fn queues(&self) -> &[InterfaceQueue] {
        &self.queues
    }

    /// Returns the number of packets that wait for neighbours, and the number of paths.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn waiting_and_paths(&self) -> (usize, usize) {
        (self.paths.waiting(), self.paths.len())
    }

    pub(crate) fn is_standalone(&self, iface: IfaceId) -> bool {
        self.interfaces.get(iface.0 as usize).is_some_and(|i| i.addressing == Addressing::Standalone)
    }
}

/// Returns true for an address that is valid on one link only.
pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Smallest supported segment size. IPv4's minimum MTU of 68 would leave 28 bytes, and a peer could
/// make every byte cost a packet. Linux: `TCP_MIN_SND_MSS`, 48; this value leaves space for
/// options.
pub(crate) const MSS_MIN: u16 = 88;

/// Frees a packet whose neighbour did not resolve.
pub(crate) fn free_unresolved<P: FramePool>(pool: &mut P, stats: &mut Stats, packet: Vec<TxFrame>) {
    if !packet.is_empty() {
        stats.drop(DropReason::NeighbourUnresolved);
    }
    for part in packet {
        pool.free(part.frame);
    }
}

#[cfg(test)]
pub(crate) mod tests;
