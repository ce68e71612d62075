//! Ports that connections keep in use after their listener was closed. The kernel's accepted sockets have their listener's port,
//! and the end that closes first has it for a minute more (TIME_WAIT); ours are known to the kernel by nothing but that port's
//! absence. So the daemon binds a socket to it, with the listener's SO_REUSEADDR and SO_REUSEPORT: whoever else binds meets the
//! same conflict.
//!
//! It can be bound only when the listener's last descriptor is closed, which the process tells of ([`Request::Ports`]); a
//! process that ends does not, so this is tried again until it works, or nothing keeps the port any more. In another namespace
//! than the daemon's it is kept only while a process with this library is there: such a socket keeps its namespace alive.
//!
//! [`Request::Ports`]: fs_shm::control::Request::Ports

use super::Server;
use super::limits::PORTS;
use super::listen::ListenerMemory;
use super::place::Placeholder;
use super::waits::{TIME_WAIT, Waits};
use crate::listeners::{Listener, Netns, Takes, unmapped};
use fs_shm::channel::{self, PortUse};
use fs_shm::{Channel, Side};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::collections::HashSet;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Addresses of one listener that are bound one by one. More: a listener on all addresses takes as many sockets of the daemon's.
/// Fewer: with more than these the port is kept for all addresses.
pub(super) const ADDRESSES: usize = 8;

/// What an IPv6 address other than `::` is to the kernel's comparison with IPv4 addresses (LOOPBACK4_IPV6): the accepted sockets of a
/// dual-stack listener conflict with 0.0.0.0 by it, which a socket bound to their address does not.
const AS_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 6));

/// Where a connection is, at the port: an IPv6 address with its scope.
fn place(local: SocketAddr, port: u16) -> SocketAddr {
    let mut place = match unmapped(local.ip()) {
        IpAddr::V6(_) => local,
        ip => SocketAddr::new(ip, port),
    };
    place.set_port(port);
    place
}

/// A place that connections keep in use.
#[derive(Debug)]
pub(super) struct Port {
    netns: Netns,
    /// The namespace, if it is not the daemon's.
    home: Option<Arc<File>>,
    uid: u32,
    binding: Binding,
    /// Where the connections are.
    arenas: Vec<u32>,
    /// Those that have gone and wait, in arenas that are gone.
    waits: Waits,
    /// Since when none is open.
    ending: Option<Instant>,
    socket: Option<OwnedFd>,
    /// All that keep it have SO_REUSEADDR.
    shares_address: bool,
}

/// What the socket is bound to, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Binding {
    at: SocketAddr,
    v6_only: bool,
    shares: Shares,
}

/// With whom a listener shares its binding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    /// SO_REUSEADDR.
    pub(super) address: bool,
    /// SO_REUSEPORT.
    pub(super) port: bool,
}

impl Binding {
    fn bind(self) -> Result<OwnedFd, Errno> {
        let family = if self.at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
        if self.at.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, self.v6_only)?;
        }
        sockopt::set_socket_reuseport(&socket, self.shares.port)?;
        match rustix::net::bind(&socket, &self.at) {
            // Without it at first: the kernel would remember that all had it who bound, and not look at what they have
            // (inet_csk_update_fastreuse(); listen(2) has it forget that).
            Err(Errno::ADDRINUSE) if self.shares.address => {
                sockopt::set_socket_reuseaddr(&socket, true)?;
                rustix::net::bind(&socket, &self.at)?;
            }
            bound => bound?,
        }
        Ok(socket)
    }
}

impl Port {
    /// The place of a listener, which its connections may keep in use. `home`: its namespace, if it is not the daemon's.
    fn of(listener: &Listener<ListenerMemory>, home: Option<Arc<File>>) -> Self {
        let ListenerMemory { waits, shares, uid, ended, .. } = &listener.more;
        Port {
            netns: listener.netns,
            home,
            uid: *uid,
            binding: Binding { at: listener.at, v6_only: listener.v6_only, shares: *shares },
            arenas: ended.clone(),
            waits: waits.clone(),
            ending: None,
            socket: None,
            shares_address: shares.address,
        }
    }

    /// That of the connections at one address, whose socket has not been bound.
    fn only_at(&self, at: SocketAddr) -> Self {
        Port {
            home: self.home.clone(),
            binding: Binding { at, ..self.binding },
            arenas: self.arenas.clone(),
            waits: self.waits.clone(),
            ending: None,
            socket: None,
            shares_address: self.binding.shares.address,
            ..*self
        }
    }
}

impl Server {
    /// A listener has been closed. `true`: its connections keep its port in use.
    pub(super) fn keep_port(&mut self, listener: Listener<ListenerMemory>) -> bool {
        let home = self.namespaces.get(listener.netns).and_then(|namespace| namespace.home());
        let mut port = Port::of(&listener, home);
        if !self.is_kept(&mut port) {
            return false;
        }
        let mut is_due = false;
        for at in self.addresses(&port) {
            is_due |= self.keep(port.only_at(at));
        }
        is_due
    }

    /// It was shut down and is to listen again where connections of it keep the port: the kernel binds it once more then
    /// (inet_csk_listen_start()).
    pub(super) fn is_taken_by_own(&self, place: &Placeholder) -> bool {
        let Some(id) = self.listeners.of_cookie(place.netns, place.local.port(), place.cookie) else { return false };
        let Some(listener) = self.listeners.get(id).filter(|listener| listener.takes == Takes::None) else {
            return false;
        };
        let (now, before) = (place.shares, listener.more.shares);
        if now.address && before.address || now.port && before.port {
            return false;
        }
        self.is_kept(&mut Port::of(listener, None))
    }

    /// The addresses that its connections use.
    fn addresses(&self, port: &Port) -> Vec<SocketAddr> {
        let at = port.binding.at;
        if !unmapped(at.ip()).is_unspecified() {
            return vec![at];
        }
        let mut found = HashSet::new();
        let waits = self.waits(port);
        if waits.is_elsewhere() {
            return vec![at];
        }
        found.extend(waits.addresses().map(|local| place(local, at.port())));
        for arena in port.arenas.iter().filter_map(|&id| self.map(id, Side::B)) {
            let used = arena.used_slots().filter_map(|slot| Channel::at(&arena, slot));
            let used = used.filter(|channel| channel.port_use() != PortUse::No);
            found.extend(used.filter_map(|channel| channel.local_addr().to_std()).map(|local| place(local, at.port())));
        }
        if !port.binding.v6_only && found.iter().any(SocketAddr::is_ipv6) {
            found.insert(SocketAddr::new(AS_V4, at.port()));
        }
        match found.len() {
            1..=ADDRESSES => found.into_iter().collect(),
            _ => vec![at],
        }
    }

    /// What waits of its connections.
    fn waits(&self, port: &Port) -> Waits {
        let mut waits = port.waits.clone();
        for arena in port.arenas.iter().filter_map(|&id| self.map(id, Side::B)) {
            waits.add(arena.waits());
        }
        waits
    }

    /// `true`: it is to be taken.
    fn keep(&mut self, port: Port) -> bool {
        let (netns, binding, uid) = (port.netns, port.binding, port.uid);
        if let Some(same) = self.ports.iter_mut().find(|other| other.netns == netns && other.binding == binding) {
            same.arenas.extend(port.arenas);
            same.waits.merge(port.waits);
            same.ending = None;
            return same.socket.is_none();
        }
        let theirs = || self.ports.iter().filter(|port| self.is_one_user(port.uid, uid)).count();
        if self.ports.len() >= PORTS || !self.has_room(uid, PORTS, self.ports.len(), theirs) {
            return false;
        }
        self.ports.push(port);
        self.look_at_ports_soon();
        true
    }

    /// An arena that is about to be forgotten: what waits in it does so without it.
    pub(super) fn record_waits(&mut self, arena: u32, listener: Option<u32>, waits: &channel::Waits) {
        if let Some(listener) = listener.and_then(|id| self.listeners.get_mut(id)) {
            listener.more.waits.add(waits.clone());
        }
        for port in self.ports.iter_mut().filter(|port| port.arenas.contains(&arena)) {
            port.waits.add(waits.clone());
            port.arenas.retain(|&other| other != arena);
        }
    }

    /// Nobody is in a namespace any more.
    pub(super) fn forget_ports(&mut self, netns: Netns) {
        self.ports.retain(|port| port.netns != netns);
    }

    /// Answers [`fs_shm::control::Request::Ports`].
    pub(super) fn see_to_ports(&mut self, number: u16) {
        if number != 0 {
            self.give_way(number);
        }
        self.see_to_ports_that(|port| match number {
            0 => port.socket.is_none(),
            number => port.binding.at.port() == number,
        });
    }

    /// The same for all; answers whether some are left.
    pub(super) fn see_to_all_ports(&mut self) -> bool {
        self.see_to_ports_that(|_| true);
        !self.ports.is_empty()
    }

    fn see_to_ports_that(&mut self, is_meant: impl Fn(&Port) -> bool) {
        let mut ports = std::mem::take(&mut self.ports);
        ports.retain_mut(|port| !is_meant(port) || self.is_kept(port) && self.take_port(port));
        self.ports = ports;
    }

    /// Whether connections keep it in use.
    fn is_kept(&self, port: &mut Port) -> bool {
        let mut uses = Vec::new();
        let by_listener = port.binding.shares.address;
        let mut shares_address = true;
        let ip = unmapped(port.binding.at.ip());
        let is_it = |local: IpAddr| local == ip || ip == AS_V4 && local.is_ipv6();
        let is_there = |channel: &Channel<'_>| {
            ip.is_unspecified() || channel.local_addr().to_std().is_some_and(|local| is_it(unmapped(local.ip())))
        };
        for arena in port.arenas.iter().filter_map(|&id| self.map(id, Side::B)) {
            let channels = arena.used_slots().filter_map(|slot| Channel::at(&arena, slot)).filter(is_there);
            for channel in channels {
                let port_use = channel.port_use();
                shares_address &= port_use == PortUse::No || channel.shares_port().unwrap_or(by_listener);
                uses.push(port_use);
            }
        }
        let one_waits = self.waits(port).is_one_at(|local| ip.is_unspecified() || is_it(local));
        // Of one that has ended and waits it is not known.
        port.shares_address = shares_address && (by_listener || !one_waits);
        if uses.contains(&PortUse::Open) {
            port.ending = None;
            return true;
        }
        // What a peer writes keeps it for as long as two ends of a connection can wait, one after the other.
        let ending = *port.ending.get_or_insert_with(Instant::now);
        if ending.elapsed() > 2 * TIME_WAIT {
            return false;
        }
        uses.contains(&PortUse::Ending) || one_waits
    }

    /// Binds a socket to it, if there is none yet. `false`: that will never work.
    fn take_port(&self, port: &mut Port) -> bool {
        if let Some(socket) = &port.socket {
            // As setsockopt(2) of the kernel's own sockets: who binds from here on meets it.
            if sockopt::set_socket_reuseaddr(socket, port.shares_address).is_err() {
                tracing::debug!(
                    at = %port.binding.at,
                    "cannot set SO_REUSEADDR on a port that connections keep in use"
                );
            }
            return true;
        }
        let (binding, home) = (port.binding, port.home.as_ref().map(|home| home.try_clone()));
        let bound = match home {
            None if port.netns == self.namespaces.own() => binding.bind(),
            None => Err(Errno::ACCESS),
            Some(home) => home
                .and_then(|home| crate::netns::inside(home, move || Ok(binding.bind()?)))
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        };
        match bound {
            Ok(socket) => {
                // So that SO_REUSEPORT is its user's. A daemon that may not is that user's, or does without.
                let _ = rustix::fs::fchown(&socket, Some(rustix::fs::Uid::from_raw(port.uid)), None);
                let is_set = sockopt::set_socket_reuseaddr(&socket, port.shares_address).is_ok();
                port.socket = Some(socket);
                is_set
            }
            // Somebody has it still, and keeps it himself.
            Err(Errno::ADDRINUSE) => true,
            Err(error) => {
                tracing::debug!(at = %binding.at, %error, "cannot take a port that connections keep in use");
                false
            }
        }
    }
}
