//! Which way a connection goes.

use super::Server;
use super::arenas::{Acceptor, Opener, Source};
use super::cgroups::path_of;
use super::place::{Placeholder, bound_device, way_back};
use super::requests::Answer;
use crate::access::{Call, Who};
use crate::listeners::{Netns, unmapped};
use crate::netns::{Flow, KernelRoute};
use crate::policy::Carrier;
use fs_shm::Side;
use fs_shm::control::{GROUP_MAX, KernelReason, Reply};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

impl Server {
    pub(super) fn kernel(&mut self, reason: KernelReason) -> Answer {
        self.counters.kernel(reason);
        Reply::Kernel { generation: self.directory.generation(), reason }.into()
    }

    pub(super) fn refused(&mut self, errno: Errno) -> Answer {
        self.counters.refused += 1;
        Reply::Refused { generation: self.directory.generation(), errno: errno.raw_os_error() }.into()
    }

    /// Whether the rules let an attachment use a port.
    pub(super) fn may(&self, me: u32, call: Call, port: u16) -> Result<bool, Errno> {
        let who = self.attachments.get(me).ok_or(Errno::NOTCONN)?.who;
        let rules = &self.config.rules;
        let cgroup = if rules.0.iter().any(|rule| rule.cgroup.is_some()) { path_of(who.pid) } else { None };
        Ok(rules.allow(&Who { uid: who.uid, cgroup: cgroup.as_deref() }, call, port))
    }

    /// Whether the policy leaves it to the kernel.
    pub(super) fn is_left(&self, me: u32, call: Call, at: SocketAddr) -> bool {
        let policies = &self.config.policies;
        let name = self.attachments.get(me).map(|attachment| attachment.name);
        name.is_some_and(|name| policies.carrier(name.as_str(), call, at) == Carrier::Kernel)
    }

    /// Reads the socket that came along, and opens its namespace. An error: why it is the kernel's.
    pub(super) fn placeholder(&mut self, me: u32, socket: &OwnedFd) -> Result<Placeholder, KernelReason> {
        let placeholder = Placeholder::read(socket.as_fd()).map_err(|_| KernelReason::Protocol)?;
        if !self.enter_namespace(me, placeholder.netns) {
            return Err(KernelReason::Limit);
        }
        Ok(placeholder)
    }

    pub(super) fn route(&mut self, me: u32, to: SocketAddr, socket: OwnedFd) -> Result<Answer, Errno> {
        if self.draining.is_some() {
            return Ok(self.kernel(KernelReason::Draining));
        }
        let from = match self.placeholder(me, &socket) {
            Ok(from) => from,
            Err(reason) => return Ok(self.kernel(reason)),
        };
        let ip = match unmapped(to.ip()) {
            IpAddr::V4(any) if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(any) if any.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        // What only the kernel can judge: no port, another family than the socket's, broadcast, link-local scopes.
        let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
        let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let family = to.is_ipv6() && from.local.is_ipv4();
        // Nor where a bound socket reaches only what is of its address's family, or "any" means that address.
        let bound = unmapped(from.local.ip());
        let is_any = unmapped(to.ip()).is_unspecified();
        let family = family || !bound.is_unspecified() && (is_any || bound.is_ipv4() != ip.is_ipv4());
        if to.port() == 0 || family || ip.is_multicast() || broadcast || link_local {
            return Ok(self.kernel(KernelReason::NotServed));
        }
        if !self.may(me, Call::Connect, to.port())? {
            return Ok(self.refused(Errno::ACCESS));
        }
        let to = SocketAddr::new(ip, to.port());
        if self.is_left(me, Call::Connect, to) {
            return Ok(self.kernel(KernelReason::Policy));
        }
        if from.device != 0 || from.mark != 0 {
            return Ok(self.kernel(KernelReason::Option));
        }
        let is_known = self.namespaces.get(from.netns).is_some();
        if !is_known && rustix::process::geteuid().is_root() || !self.lends_in(from.netns) {
            // Neither its listeners nor its rules can be asked about. Nor has who connects there a port to come from, whoever runs the daemon.
            return Ok(self.kernel(KernelReason::Namespace));
        }
        if self.is_ruled(from.netns) || self.is_ruled_by_cgroup(me) {
            return Ok(self.kernel(KernelReason::Firewall));
        }
        if self.namespaces.is_local(from.netns, ip) {
            return self.route_local(me, from, from.netns, to);
        }
        if let Some(other) = self.namespaces.joined_with(&self.joins, from.netns, ip) {
            // The kernel of the client's namespace would have to have a way there, too.
            let known = self.kernel_route(from, to).is_some_and(|route| route.unicast);
            if known && !self.listeners.find(other, to).is_empty() {
                if self.is_ruled(other) {
                    return Ok(self.kernel(KernelReason::Firewall));
                }
                return self.route_local(me, from, other, to);
            }
        }
        self.route_wire(me, from, to, socket)
    }

    fn route_local(&mut self, me: u32, from: Placeholder, netns: Netns, to: SocketAddr) -> Result<Answer, Errno> {
        let group = self.listeners.find(netns, to);
        if group.is_empty() {
            return Ok(self.kernel(KernelReason::NoListener));
        }
        if from.local.port() != 0 {
            // The kernel holds that port for it, and alone sees whether it goes on doing so.
            return Ok(self.kernel(KernelReason::Option));
        }
        let way = self.kernel_route(from, to);
        let leads = |way: KernelRoute| if from.netns == netns { way.local } else { way.unicast };
        if self.namespaces.get(from.netns).is_some() && !way.is_some_and(leads) {
            // A rule of routing for its user, for one.
            return Ok(self.kernel(KernelReason::NotServed));
        }
        let bound = unmapped(from.local.ip());
        let source = if !bound.is_unspecified() {
            bound
        } else {
            // 127.0.0.1 for all of 127/8, else the address itself, as the local table has it.
            let usual = if to.ip().is_loopback() && to.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { to.ip() };
            way.and_then(|way| way.source).unwrap_or(usual)
        };
        let group = self.kernels_choice(&from, source, netns, to, group);
        if group.is_empty() {
            return Ok(self.kernel(KernelReason::NoListener));
        }
        let mut arenas = [0; GROUP_MAX];
        let (mut fds, mut count) = (Vec::new(), 0);
        for listener in group.into_iter().take(GROUP_MAX) {
            match self.arena_of(Opener::Process(me), Acceptor::Listener(listener)) {
                Ok((id, memory, _)) if self.record_ends(id, from.netns, source, to) => {
                    self.lend_first(me, id);
                    arenas[count] = id;
                    count += 1;
                    fds.extend(memory.of(Side::A));
                }
                Ok(_) => tracing::debug!(%to, "a process connects from too many addresses or from two namespaces: \
                                               the kernel carries the connection"),
                // At a limit; the reason is counted, and said where it is ours to mend.
                Err(error) => tracing::debug!(%error, "cannot create an arena"),
            }
        }
        if count == 0 {
            return Ok(self.kernel(KernelReason::Limit));
        }
        self.counters.routes_local += 1;
        let generation = self.directory.generation();
        let reply = Reply::Local { generation, source, arenas, count: count as u8 };
        Ok(Answer::with(reply, fds))
    }

    fn route_wire(&mut self, me: u32, from: Placeholder, to: SocketAddr, socket: OwnedFd) -> Result<Answer, Errno> {
        let Some(wire) = self.wire.clone().filter(|_| from.netns == self.namespaces.own()) else {
            return Ok(self.kernel(KernelReason::NotServed));
        };
        if !self.goes_by_device(from.flow(to)) {
            return Ok(self.kernel(KernelReason::NotServed));
        }
        let core = (self.counters.routes_wire % u64::from(wire.cores().max(1))) as u16;
        let Ok((arena, memory, new)) = self.arena_of(Opener::Process(me), Acceptor::Core(core)) else {
            return Ok(self.kernel(KernelReason::Limit));
        };
        if new {
            wire.outgoing(core, arena, memory.clone());
        }
        if from.local.port() != 0 {
            self.keep_source(arena, from.local, socket);
        }
        self.counters.routes_wire += 1;
        Ok(Answer::with(Reply::Wire { generation: self.directory.generation(), arena, core }, memory.of(Side::A)))
    }

    /// A process is about to connect from a place that its socket is bound to: the socket is held, so that nobody else has it in the
    /// kernel, until the connection has ended.
    fn keep_source(&mut self, arena: u32, at: SocketAddr, socket: OwnedFd) {
        /// Connections that one process begins at once from such places. More: it holds as many of the daemon's descriptors.
        const MOST: usize = 64;
        /// One that was not opened after all.
        const LONGEST: Duration = Duration::from_secs(5);
        let Some(entry) = self.arenas.get_mut(arena) else { return };
        let now = Instant::now();
        entry.sources.retain(|source| now.duration_since(source.asked) < LONGEST);
        if entry.sources.len() >= MOST {
            entry.sources.remove(0);
        }
        let at = SocketAddr::new(unmapped(at.ip()), at.port());
        entry.sources.push(Source { at, socket, asked: now });
    }

    /// A core asks whether it may connect as the memory of an arena says, which the arena's process wrote: it may if [`Self::route`]
    /// would lead there. Answers the socket that holds the place where it comes from, if that is a port's.
    pub(super) fn judge(
        &mut self,
        arena: u32,
        from: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<Option<OwnedFd>, Errno> {
        let to = SocketAddr::new(unmapped(to.ip()), to.port());
        let entry = self.arenas.get_mut(arena).ok_or(Errno::CONNRESET)?;
        let Some(Opener::Process(me)) = entry.opener else { return Err(Errno::CONNRESET) };
        let held = match from.filter(|from| from.port() != 0) {
            None => None,
            Some(from) => {
                let place = entry.sources.iter().position(|source| source.at == from).ok_or(Errno::ADDRNOTAVAIL)?;
                Some(entry.sources.remove(place).socket)
            }
        };
        if to.port() == 0 || !self.may(me, Call::Connect, to.port())? {
            return Err(Errno::ACCESS);
        }
        if from.is_some_and(|from| !self.namespaces.is_local(self.namespaces.own(), from.ip())) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let uid = self.attachments.get(me).ok_or(Errno::CONNRESET)?.who.uid;
        let port = from.map_or(0, |from| from.port());
        let flow = Flow { to, from: from.map(|from| from.ip()), port, uid, mark: 0, device: 0 };
        let is_ruled = self.is_ruled(self.namespaces.own()) || self.is_ruled_by_cgroup(me);
        let is_kernels = is_ruled || self.namespaces.is_local(self.namespaces.own(), to.ip());
        if is_kernels || self.is_left(me, Call::Connect, to) || !self.goes_by_device(flow) {
            return Err(Errno::NETUNREACH);
        }
        Ok(held)
    }

    /// Those of these listeners to whom the kernel would give a connection, each in its turn, where it would let each of them answer;
    /// empty: it would not.
    fn kernels_choice(
        &self,
        from: &Placeholder,
        source: IpAddr,
        netns: Netns,
        to: SocketAddr,
        mut group: Vec<u32>,
    ) -> Vec<u32> {
        let device_of = |id: &u32| {
            self.listeners.get(*id).map_or(u32::MAX, |listener| bound_device(listener.more.placeholder.as_fd()))
        };
        let Some(namespace) = self.namespaces.get(netns) else {
            // It cannot be asked. Those of the group listen (their sockets are held), so at their place no other user does, unless
            // it is one device's place.
            return if group.iter().any(|id| device_of(id) != 0) { Vec::new() } else { group };
        };
        let held: Vec<(u64, Option<Flow>)> = group
            .iter()
            .filter_map(|&id| self.listeners.get(id))
            .map(|listener| {
                let socket = listener.more.placeholder.as_fd();
                (listener.cookie, way_back(socket, to, SocketAddr::new(source, from.local.port())))
            })
            .collect();
        // What it answers has to come back: the route of the listener's user, mark and device, which may be no route at all.
        // Within a namespace a packet comes in, to the kernel's look-up, by the device that has the address. From another one by that
        // which the answer leaves by.
        let mut device = 0;
        if from.netns == netns {
            match namespace.device_of(from.flow(to)) {
                Ok(of_address) => device = of_address,
                Err(_) => return Vec::new(),
            }
        }
        for (place, &(_, back)) in held.iter().enumerate() {
            if held[..place].iter().any(|&(_, other)| other == back) {
                continue;
            }
            let Some(route) = back.and_then(|back| namespace.route(back).ok()) else { return Vec::new() };
            match from.netns == netns {
                true if route.local => {}
                // What the answer goes out by is what the SYN came in by.
                false if route.unicast => device = route.device,
                _ => return Vec::new(),
            }
        }
        match namespace.listener(source, to, device) {
            Ok(Some(cookie)) => {
                let is_it = |id: &&u32| self.listeners.get(**id).is_some_and(|listener| listener.cookie == cookie);
                let Some(chosen) = group.iter().find(is_it).map(device_of) else { return Vec::new() };
                // SO_REUSEPORT's groups are of one device.
                group.retain(|id| device_of(id) == chosen);
                group
            }
            Ok(None) => Vec::new(),
            Err(error) => {
                tracing::warn!(%error, %to, "cannot ask the kernel for the listener: the kernel carries the \
                                             connection");
                Vec::new()
            }
        }
    }
}
