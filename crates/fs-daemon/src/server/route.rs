//! Which way a connection goes, and who listens where.

use super::arenas::{Acceptor, Opener, Source};
use super::limits::{NAMESPACES, NAMESPACES_MAX};
use super::place::{Placeholder, backlog, bound_device, way_back};
use super::{Answer, LISTENER, ListenerMemory, Server};
use crate::access::{Call, Who};
use crate::config::Heed;
use crate::listeners::{Listener, Netns, Takes, unmapped};
use crate::netns::{Flow, KernelRoute, Namespace};
use crate::policy::Carrier;
use crate::sys;
use crate::wire::{ListenerOptions, WireListener};
use fs_shm::Side;
use fs_shm::control::{GROUP_MAX, KernelReason, Reply};
use fs_shm::pages::ListenerPage;
use rustix::event::epoll;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Server {
    fn kernel(&mut self, reason: KernelReason) -> Answer {
        self.counters.kernel(reason);
        Reply::Kernel { generation: self.directory.generation(), reason }.into()
    }

    fn refused(&mut self, errno: Errno) -> Answer {
        self.counters.refused += 1;
        Reply::Refused { generation: self.directory.generation(), errno: errno.raw_os_error() }.into()
    }

    /// Whether the rules let an attachment use a port.
    fn may(&self, me: u32, call: Call, port: u16) -> Result<bool, Errno> {
        let who = self.attachments.get(&me).ok_or(Errno::NOTCONN)?.who;
        let rules = &self.config.rules;
        let cgroup = if rules.0.iter().any(|rule| rule.cgroup.is_some()) { cgroup(who.pid) } else { None };
        Ok(rules.allow(&Who { uid: who.uid, cgroup: cgroup.as_deref() }, call, port))
    }

    /// Whether the policy leaves it to the kernel.
    fn is_left(&self, me: u32, call: Call, at: SocketAddr) -> bool {
        let policies = &self.config.policies;
        let name = self.attachments.get(&me).map(|attachment| attachment.name);
        name.is_some_and(|name| policies.carrier(name.as_str(), call, at) == Carrier::Kernel)
    }

    /// Reads the socket that came along, and opens its namespace. An error: why it is the kernel's.
    fn placeholder(&mut self, me: u32, socket: &OwnedFd) -> Result<Placeholder, KernelReason> {
        let placeholder = Placeholder::read(socket.as_fd()).map_err(|_| KernelReason::Protocol)?;
        if !self.enter_namespace(me, placeholder.netns) {
            return Err(KernelReason::Limit);
        }
        Ok(placeholder)
    }

    /// A process has a socket in a namespace. `false`: it has them in too many, or its user has.
    pub(super) fn enter_namespace(&mut self, me: u32, netns: Netns) -> bool {
        let Some(attachment) = self.attachments.get(&me) else { return false };
        if attachment.namespaces.contains(&netns) {
            return true;
        }
        let who = attachment.who;
        let of_user = self.attachments.values().filter(|attachment| self.is_one_user(attachment.who.uid, who.uid));
        let theirs = || of_user.flat_map(|attachment| &attachment.namespaces).collect::<HashSet<_>>().len();
        let is_known = self.namespaces.contains_key(&netns);
        let all = self.namespaces.len();
        let is_full = all >= NAMESPACES_MAX || !self.has_room(who.uid, NAMESPACES_MAX, all, theirs);
        if attachment.namespaces.len() >= NAMESPACES || !is_known && is_full {
            return false;
        }
        self.open_namespace(netns, who.pid);
        self.attachments.get_mut(&me).is_some_and(|attachment| attachment.namespaces.insert(netns))
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
        let is_known = self.namespaces.get(&from.netns).is_some_and(Option::is_some);
        if !is_known && rustix::process::geteuid().is_root() {
            // Neither its listeners nor its rules can be asked about.
            return Ok(self.kernel(KernelReason::Namespace));
        }
        if self.is_ruled(from.netns) || self.is_ruled_by_cgroup(me) {
            return Ok(self.kernel(KernelReason::Firewall));
        }
        if self.is_local(from.netns, ip) {
            return self.route_local(me, from, from.netns, to);
        }
        if let Some(other) = self.namespace_with(from.netns, ip) {
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

    /// Whether rules of the kernel's firewall could have a say in connections of a namespace.
    pub(super) fn is_ruled(&mut self, netns: Netns) -> bool {
        self.config.firewall == Heed::Obey
            && self.namespaces.get_mut(&netns).and_then(Option::as_mut).is_some_and(Namespace::is_ruled)
    }

    /// Whether programs of a process's cgroup, or of those above it, could have a say in its packets and connections (IPAddressDeny=
    /// of systemd). A daemon that may not ask has no more rights than its user.
    fn is_ruled_by_cgroup(&self, me: u32) -> bool {
        let (Some(attachment), Heed::Obey) = (self.attachments.get(&me), self.config.firewall) else { return false };
        let pid = attachment.who.pid;
        let path = cgroup(pid).ok_or(Errno::SRCH).map_err(std::io::Error::from);
        match path.and_then(|path| self.has_programs(&path)) {
            Ok(has) => has,
            Err(error) => {
                name_limit(&error);
                tracing::debug!(%error, pid, "a process's cgroup is unknown: its connections are the kernel's");
                true
            }
        }
    }

    /// Whether a cgroup, or one above it, has programs for packets and connections.
    pub(super) fn has_programs(&self, cgroup: &str) -> std::io::Result<bool> {
        let Some(root) = &self.cgroups else { return Ok(false) };
        let path = match cgroup.trim_start_matches('/') {
            "" => ".",
            path => path,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(root, path, flags, Mode::empty()).map_err(std::io::Error::from);
        let has = directory.and_then(|directory| sys::has_programs(directory.as_fd()));
        has.or_else(|error| match Errno::from_io_error(&error) {
            // Or a kernel without such programs (EINVAL, ENOSYS).
            Some(Errno::PERM | Errno::INVAL | Errno::NOSYS) => Ok(false),
            _ => Err(error),
        })
    }

    /// Rules of the kernel's firewall have changed.
    pub(super) fn rules_changed(&mut self, netns: Netns) {
        let namespace = self.namespaces.get_mut(&netns).and_then(Option::as_mut);
        if namespace.is_some_and(Namespace::follow_firewall) {
            self.changed(netns);
        }
    }

    pub(super) fn heed_rules_everywhere(&mut self) {
        let all: Vec<Netns> = self.namespaces.keys().copied().collect();
        all.into_iter().for_each(|netns| self.heed_rules(netns));
    }

    /// Nothing new is accelerated in a namespace whose rules could have a say in it, whatever its processes remember or were given;
    /// where they could no more, it is again. What is open and could be stopped by a rule ends.
    pub(super) fn heed_rules(&mut self, netns: Netns) {
        let is_ruled = self.is_ruled(netns);
        if is_ruled {
            self.ruled.insert(netns)
        } else {
            self.ruled.remove(&netns)
        };
        let its = |listener: &Listener<ListenerMemory>| listener.netns == netns && listener.takes != Takes::None;
        for id in self.listeners.ids_where(its) {
            match is_ruled {
                true => self.leave_wire(id),
                false if self.listeners.get(id).is_some_and(|it| it.takes == Takes::All && !it.more.on_wire) => {
                    self.listen_on_wire(id)
                }
                false => {}
            }
        }
        if is_ruled {
            self.end_ways(netns);
            self.end_flows(netns);
        }
    }

    fn is_local(&self, netns: Netns, ip: IpAddr) -> bool {
        ip.is_loopback() || self.namespaces.get(&netns).and_then(Option::as_ref).is_some_and(|ns| ns.has(ip))
    }

    /// The one other namespace that is joined with this one and has this address; `None` also when several have it.
    fn namespace_with(&self, not: Netns, ip: IpAddr) -> Option<Netns> {
        let has = |(&netns, namespace): (&Netns, &Option<Namespace>)| {
            (netns != not && self.joins.join(not, netns) && namespace.as_ref()?.has(ip)).then_some(netns)
        };
        let mut found = self.namespaces.iter().filter_map(has);
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    fn kernel_route(&self, from: Placeholder, to: SocketAddr) -> Option<KernelRoute> {
        self.namespaces.get(&from.netns)?.as_ref()?.route(from.flow(to)).ok()
    }

    /// Whether the kernel would send a connection of the daemon's own namespace by the device, whatever port it comes from.
    fn goes_by_device(&self, flow: Flow) -> bool {
        let Some(device) = self.wire.as_ref().map(|wire| wire.device().0) else { return false };
        let Some(own) = self.namespaces.get(&self.own_netns).and_then(Option::as_ref) else { return false };
        let route = own.route(flow);
        route.is_ok_and(|route| route.unicast && route.device == device) && matches!(own.has_ways(flow), Ok(false))
    }

    fn route_local(&mut self, me: u32, from: Placeholder, netns: Netns, to: SocketAddr) -> Result<Answer, Errno> {
        let group = self.listeners.find(netns, to);
        if group.is_empty() {
            return Ok(self.kernel(KernelReason::NoListener));
        }
        let way = self.kernel_route(from, to);
        let leads = |way: KernelRoute| if from.netns == netns { way.local } else { way.unicast };
        if self.namespaces.get(&from.netns).is_some_and(Option::is_some) && !way.is_some_and(leads) {
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
        if !self.is_kernels_choice(&from, source, netns, to, &group) {
            return Ok(self.kernel(KernelReason::NoListener));
        }
        let mut arenas = [0; GROUP_MAX];
        let (mut fds, mut count) = (Vec::new(), 0);
        for listener in group.into_iter().take(GROUP_MAX) {
            match self.arena_of(Opener::Process(me), Acceptor::Listener(listener)) {
                Ok((id, memory, _))
                    if self.note_ends(id, from.netns, SocketAddr::new(source, from.local.port()), to) =>
                {
                    arenas[count] = id;
                    count += 1;
                    fds.extend(memory.of(Side::A));
                }
                Ok(_) => tracing::debug!(%to, "a process connects from too many addresses"),
                // At a limit; the reason is counted, and said where it is ours to mend.
                Err(error) => tracing::debug!(%error, "no arena"),
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
        let Some(wire) = self.wire.clone().filter(|_| from.netns == self.own_netns) else {
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
        let Some(entry) = self.arenas.get_mut(&arena) else { return };
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
        let entry = self.arenas.get_mut(&arena).ok_or(Errno::CONNRESET)?;
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
        if from.is_some_and(|from| !self.is_local(self.own_netns, from.ip())) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let uid = self.attachments.get(&me).ok_or(Errno::CONNRESET)?.who.uid;
        let port = from.map_or(0, |from| from.port());
        let flow = Flow { to, from: from.map(|from| from.ip()), port, uid, mark: 0, device: 0 };
        let is_ruled = self.is_ruled(self.own_netns) || self.is_ruled_by_cgroup(me);
        let is_kernels = is_ruled || self.is_local(self.own_netns, to.ip());
        if is_kernels || self.is_left(me, Call::Connect, to) || !self.goes_by_device(flow) {
            return Err(Errno::NETUNREACH);
        }
        Ok(held)
    }

    pub(super) fn listen(&mut self, me: u32, socket: OwnedFd) -> Result<Answer, Errno> {
        if self.draining.is_some() {
            return Ok(self.kernel(KernelReason::Draining));
        }
        let place = match self.placeholder(me, &socket) {
            Ok(place) => place,
            Err(reason) => return Ok(self.kernel(reason)),
        };
        if !place.listens {
            return Err(Errno::INVAL);
        }
        if !self.may(me, Call::Bind, place.local.port())? {
            return Ok(self.refused(Errno::ACCESS));
        }
        if self.is_taken_by_own(&place) {
            return Ok(self.refused(Errno::ADDRINUSE));
        }
        if self.is_left(me, Call::Bind, place.local) {
            return Ok(self.kernel(KernelReason::Policy));
        }
        if self.is_ruled_by_cgroup(me) {
            return Ok(self.kernel(KernelReason::Firewall));
        }
        if let Some(id) = self.listeners.moved(place.netns, place.local, place.cookie) {
            self.listens_no_more(id);
        }
        if let Some(id) = self.listeners.again(place.netns, place.local, place.cookie)
            && let Some(listener) = self.listeners.get_mut(id)
        {
            let was_shut = listener.takes == Takes::None;
            if was_shut {
                (listener.takes, listener.v6_only) = (Takes::All, place.v6_only);
                listener.more.page.open();
            }
            listener.backlog = backlog(socket.as_fd());
            listener.holders.insert(me);
            listener.more.page.set_holders(listener.holders.len() as u32);
            let memory = listener.more.memory.clone();
            let options = self.default_options.changed_on(socket.as_fd());
            listener.more.defer = options.defer_accept;
            (listener.more.shares, listener.more.options) = (place.shares, options);
            if let (Some(wire), true) = (&self.wire, listener.more.on_wire) {
                wire.change(wire_listener(id, listener, options));
            }
            self.resume_listener(id);
            self.limit_waiting_everywhere(id);
            self.attachments.get_mut(&me).ok_or(Errno::NOTCONN)?.listeners.insert(id);
            if was_shut {
                self.watch_placeholder(id)?;
                self.listen_on_wire(id);
                self.bump();
            }
            return Ok(Answer::with(Reply::Listener { listener: id }, [memory]));
        }
        let limit = self.config.limits.listeners;
        let uid = self.attachments.get(&me).ok_or(Errno::NOTCONN)?.who.uid;
        let of_user = self.attachments.values().filter(|attachment| self.is_one_user(attachment.who.uid, uid));
        let theirs = || of_user.map(|attachment| attachment.listeners.len()).sum();
        if self.listeners.len() >= limit || !self.has_room(uid, limit, self.listeners.len(), theirs) {
            return Ok(self.kernel(KernelReason::Limit));
        }
        let backlog = backlog(socket.as_fd());
        let (memory, page) = ListenerPage::create()?;
        let memory = Arc::new(memory);
        page.set_holders(1);
        let options = self.default_options.changed_on(socket.as_fd());
        let defer = options.defer_accept;
        let Placeholder { netns, cookie, local: at, v6_only, shares, .. } = place;
        let more = ListenerMemory {
            page,
            memory: memory.clone(),
            placeholder: socket,
            defer,
            on_wire: false,
            uid,
            shares,
            ended: Vec::new(),
            options,
            waits: 0,
            poller: None,
            exclusive: None,
        };
        let holders = HashSet::from([me]);
        let id =
            self.listeners.insert(Listener { netns, at, v6_only, backlog, cookie, takes: Takes::All, holders, more });
        self.attachments.get_mut(&me).ok_or(Errno::NOTCONN)?.listeners.insert(id);
        if let Err(error) = self.watch_placeholder(id) {
            self.close_listener(id);
            return Err(error);
        }
        self.listen_on_wire(id);
        self.bump();
        Ok(Answer::with(Reply::Listener { listener: id }, [memory]))
    }

    /// The kernel is to tell when a listener listens no more.
    fn watch_placeholder(&self, id: u32) -> Result<(), Errno> {
        let Some(listener) = self.listeners.get(id) else { return Ok(()) };
        let (socket, token) = (&listener.more.placeholder, epoll::EventData::new_u64(LISTENER | u64::from(id)));
        // What says that it has ended is always told; that somebody waits in its queue is not asked.
        match epoll::add(&self.epoll, socket, token, epoll::EventFlags::empty()) {
            // It listens again before its end was seen.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        // Or it was shut down just before.
        if !listener.is_at_its_place() {
            self.unwatch(socket.as_fd());
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// The placeholder of a listener was shut down or connected, by whatever system call: its place may be another's soon.
    pub(super) fn listens_no_more(&mut self, id: u32) {
        let Some(listener) = self.listeners.get(id).filter(|listener| !listener.is_at_its_place()) else { return };
        self.unwatch(listener.more.placeholder.as_fd());
        let Some(listener) = self.listeners.get_mut(id) else { return };
        if std::mem::replace(&mut listener.takes, Takes::None) != Takes::None {
            self.end_listener(id);
            self.list_arenas(id);
        }
    }

    /// Whether the kernel would give a connection to one of these listeners, and let each of them answer.
    fn is_kernels_choice(
        &self,
        from: &Placeholder,
        source: IpAddr,
        netns: Netns,
        to: SocketAddr,
        group: &[u32],
    ) -> bool {
        /// Of `lo` in each namespace.
        const LOOPBACK: u32 = 1;
        let Some(namespace) = self.namespaces.get(&netns).and_then(Option::as_ref) else {
            // It cannot be asked. Those of the group listen (their sockets are held), so at their place no other user does, unless
            // it is one device's place.
            let is_one_devices = |&id: &u32| {
                self.listeners.get(id).is_none_or(|listener| bound_device(listener.more.placeholder.as_fd()) != 0)
            };
            return !group.iter().any(is_one_devices);
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
        let mut device = LOOPBACK;
        for (place, &(_, back)) in held.iter().enumerate() {
            if held[..place].iter().any(|&(_, other)| other == back) {
                continue;
            }
            let Some(route) = back.and_then(|back| namespace.route(back).ok()) else { return false };
            match from.netns == netns {
                true if route.local => {}
                // What the answer goes out by is what the SYN came in by.
                false if route.unicast => device = route.device,
                _ => return false,
            }
        }
        match namespace.listener(source, to, device) {
            Ok(Some(cookie)) => held.iter().any(|&(of, _)| of == cookie),
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(%error, %to, "cannot ask the kernel who listens: the connection is its own");
                false
            }
        }
    }

    /// The cores listen too, for addresses that the device has.
    pub(super) fn listen_on_wire(&mut self, id: u32) {
        let Some(wire) = self.wire.clone() else { return };
        let own = self.own_netns;
        let Some(listener) = self.listeners.get(id).filter(|listener| listener.netns == own) else { return };
        if unmapped(listener.at.ip()).is_loopback() {
            return;
        }
        if self.is_ruled(own) {
            self.counters.kernel(KernelReason::Firewall);
            return;
        }
        let Some(listener) = self.listeners.get_mut(id) else { return };
        listener.more.on_wire = true;
        let wanted = wire_listener(id, listener, listener.more.options);
        for core in 0..wire.cores() {
            match self.arena_of(Opener::Core(core), Acceptor::Listener(id)) {
                Ok((arena, memory, _)) => wire.listen(core, wanted.clone(), arena, memory),
                Err(error) => {
                    tracing::warn!(%error, listener = id, "no arena: the wire's connections stay the kernel's")
                }
            }
        }
    }

    pub(super) fn listen_failed(&mut self, id: u32, errno: i32) {
        self.counters.kernel(KernelReason::Port);
        if let Some(listener) = self.listeners.get_mut(id) {
            let error = std::io::Error::from_raw_os_error(errno);
            tracing::warn!(at = %listener.at, %error, "the cores cannot listen; connections from the wire come over the kernel");
            listener.more.on_wire = false;
        }
        // Another core may have been luckier, by an address that came or went just then.
        if let Some(wire) = &self.wire {
            wire.unlisten(id);
        }
    }

    pub(super) fn listener_page(&mut self, me: u32, id: u32) -> Result<Answer, Errno> {
        let listener = self.listeners.get(id).ok_or(Errno::NOENT)?;
        if !listener.holders.contains(&me) {
            return Err(Errno::ACCESS);
        }
        Ok(Answer::with(Reply::Listener { listener: id }, [listener.more.memory.clone()]))
    }

    /// `true`: its connections keep its port in use.
    pub(super) fn unlisten(&mut self, me: u32, id: u32) -> bool {
        if let Some(attachment) = self.attachments.get_mut(&me) {
            attachment.listeners.remove(&id);
        }
        self.release_listener(me, id)
    }

    /// One holder less; the last one closes the listener. `true`: its connections keep its port in use.
    pub(super) fn release_listener(&mut self, me: u32, id: u32) -> bool {
        let Some(listener) = self.listeners.get_mut(id) else { return false };
        listener.holders.remove(&me);
        listener.more.page.set_holders(listener.holders.len() as u32);
        if listener.holders.is_empty() && !self.is_shared_listener(id) {
            return self.close_listener(id);
        }
        self.wake_another(id);
        self.suspend_if_bare(id);
        false
    }

    /// Nobody holds it any more. `true`: its connections keep its port in use.
    pub(super) fn close_listener(&mut self, id: u32) -> bool {
        self.end_listener(id);
        let Some(listener) = self.listeners.remove(id) else { return false };
        self.unwatch(listener.more.placeholder.as_fd());
        self.keep_port(listener)
    }

    /// Answers [`fs_shm::control::Request::Shut`].
    pub(super) fn shut_listener(&mut self, me: u32, id: u32) -> Result<Answer, Errno> {
        self.held_listener(me, id)?.takes = Takes::None;
        self.end_listener(id);
        self.list_arenas(id);
        Ok(Reply::Done.into())
    }

    /// Answers [`fs_shm::control::Request::Leave`].
    pub(super) fn leave_listener(&mut self, me: u32, id: u32) -> Result<Answer, Errno> {
        let listener = self.held_listener(me, id)?;
        if listener.takes == Takes::All {
            listener.takes = Takes::Waiting;
            self.leave_wire(id);
            self.bump();
        }
        Ok(Reply::Done.into())
    }

    fn held_listener(&mut self, me: u32, id: u32) -> Result<&mut Listener<ListenerMemory>, Errno> {
        let listener = self.listeners.get_mut(id).ok_or(Errno::NOENT)?;
        if listener.holders.contains(&me) { Ok(listener) } else { Err(Errno::ACCESS) }
    }

    pub(super) fn leave_wire(&mut self, id: u32) {
        let on_wire = self.listeners.get_mut(id).is_some_and(|listener| core::mem::take(&mut listener.more.on_wire));
        if let (Some(wire), true) = (&self.wire, on_wire) {
            wire.unlisten(id);
        }
    }

    fn end_listener(&mut self, id: u32) {
        let Some(listener) = self.listeners.get_mut(id) else { return };
        listener.more.page.close();
        self.leave_wire(id);
        self.end_arenas(id);
        self.bump();
    }

    /// No new connection comes by the arenas that lead to a listener. Those that nobody accepted are reset, as the kernel does.
    fn end_arenas(&mut self, id: u32) {
        let of_it: Vec<u32> = self.arenas_of(id).collect();
        of_it.into_iter().for_each(|arena| self.end_arena(id, arena));
    }

    /// The same of one of them.
    pub(super) fn end_arena(&mut self, listener: u32, arena: u32) {
        let Some(listener) = self.listeners.get_mut(listener) else { return };
        listener.more.ended.retain(|arena| self.arenas.contains_key(arena));
        listener.more.ended.push(arena);
        if let Some(mapped) = self.map(arena, Side::B) {
            mapped.close();
            mapped.refuse_pending();
        }
        if let Some(entry) = self.arenas.get_mut(&arena) {
            entry.acceptor = None;
        }
        self.look_soon(arena);
    }

    /// Rules are others: what processes were given before is no way around them. What is open goes on.
    pub(super) fn end_denied(&mut self) {
        let ways: Vec<(u32, u32, u32)> = self
            .arenas
            .iter()
            .filter_map(|(&arena, entry)| match (entry.opener, entry.acceptor) {
                (Some(Opener::Process(process)), Some(Acceptor::Listener(listener))) => {
                    Some((arena, process, listener))
                }
                _ => None,
            })
            .collect();
        for (arena, process, listener) in ways {
            let Some(port) = self.listeners.get(listener).map(|listener| listener.at.port()) else { continue };
            if !self.may(process, Call::Connect, port).unwrap_or(false) {
                self.end_arena(listener, arena);
                self.list_arenas(listener);
            }
        }
    }
}

impl Listener<ListenerMemory> {
    /// Whether its socket listens, and where it was announced: one that was disconnected may listen at another place by now.
    pub(super) fn is_at_its_place(&self) -> bool {
        let socket = self.more.placeholder.as_fd();
        let at = rustix::net::getsockname(socket).ok().and_then(|at| SocketAddr::try_from(at).ok());
        at == Some(self.at) && sockopt::socket_acceptconn(socket).unwrap_or(false)
    }
}

fn wire_listener(id: u32, listener: &Listener<ListenerMemory>, options: ListenerOptions) -> WireListener {
    let at = SocketAddr::new(unmapped(listener.at.ip()), listener.at.port());
    WireListener { listener: id, at, v6_only: listener.v6_only, backlog: listener.backlog, options }
}

/// The process's path in the unified hierarchy; `None` when it cannot be read.
pub(super) fn cgroup(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
    let text = text
        .inspect_err(|error| {
            name_limit(error);
            tracing::debug!(pid, %error, "a process's cgroup");
        })
        .ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

fn name_limit(error: &std::io::Error) {
    if let Some(errno) = Errno::from_io_error(error) {
        super::arenas::no_descriptor(&errno);
    }
}
