//! The kernel's data about an offered socket.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use fs_carrier::exact::Carried;
use fs_carrier::kernel::Kernel;
use fs_carrier::sys::Socket;
use rustix::net::sockopt::{socket_cookie, socket_protocol};
use rustix::net::{getpeername, getsockname, ipproto};

use crate::message::Reason;
use crate::sys::{bound_device, netns_cookie};

/// TCP_ESTABLISHED of include/net/tcp_states.h.
const ESTABLISHED: u8 = 1;

/// A connected TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// SO_NETNS_COOKIE: the network namespace.
    pub(crate) netns: u64,
    /// SO_COOKIE: the socket.
    pub(crate) cookie: u64,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// An established socket at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) facts: Facts,
    /// Bytes that have arrived.
    received: u64,
    /// Bytes that send(2) has taken.
    sent: u64,
}

impl Seen {
    /// Asks the kernel. Waits as long as a thread of a process that has the socket wants
    /// ([`crate::closing`]).
    ///
    /// # Errors
    /// The socket cannot be promoted.
    pub(crate) fn read(socket: BorrowedFd<'_>, carried: Carried) -> Result<Self, Reason> {
        if socket_protocol(socket).map_err(|_| Reason::NotTcp)? != Some(ipproto::TCP) {
            return Err(Reason::NotTcp);
        }
        if bound_device(socket).map_err(|_| Reason::NotTcp)? != 0 {
            return Err(Reason::Device);
        }
        let local = getsockname(socket).ok().and_then(|at| plain(at.try_into().ok()?)).ok_or(Reason::NotTcp)?;
        let peer = getpeername(socket).ok().flatten().and_then(|at| plain(at.try_into().ok()?));
        let peer = peer.ok_or(Reason::NotEstablished)?;
        let cookie = socket_cookie(socket).map_err(|_| Reason::NotTcp)?;
        let netns = netns_cookie(socket).map_err(|_| Reason::NotTcp)?;
        let info = Socket(socket).tcp_info().ok().filter(|info| info.state == ESTABLISHED);
        let info = info.ok_or(Reason::NotEstablished)?;
        let (received, sent) = (info.bytes_received, info.bytes_sent.saturating_add(info.bytes_not_sent));
        // The process continues while its offer is in transit. So the kernel may have counted more
        // than the process by now, but never less.
        if carried.sent > sent || carried.taken > received {
            return Err(Reason::Counts);
        }
        Ok(Seen { facts: Facts { netns, cookie, local, peer }, received, sent })
    }

    /// Returns true if two sockets are one connection now. `self` was read before `second`, and
    /// `again` after it, from the same socket as `self`. The process may have connected that socket to
    /// another peer in between.
    ///
    /// Both were established when `second` was read, and neither has received more than the other has
    /// sent.
    pub(crate) fn is_connected_to(&self, second: &Seen, again: &Seen) -> bool {
        self.facts == again.facts
            && self.facts.mirrors(&second.facts)
            && self.received <= second.sent
            && second.received <= again.sent
    }
}

/// Returns true if a connection has ended since its socket was established. Unlike [`Seen::read`],
/// this never waits: `tcp_poll` (net/ipv4/tcp.c) takes no lock.
pub(crate) fn has_ended(socket: BorrowedFd<'_>) -> bool {
    let events = Socket(socket).events();
    events.hang_up || events.peer_closed
}

impl Facts {
    /// Returns true if the addresses of two sockets of one namespace mirror each other. At any
    /// time, at most one pair of sockets has two given addresses.
    pub(crate) fn mirrors(&self, other: &Facts) -> bool {
        self.local == other.peer && self.peer == other.local && self.netns == other.netns && self.cookie != other.cookie
    }
}

/// Returns IPv4-mapped IPv6 addresses as IPv4. Drops the scope, which only addresses of sockets
/// that are bound to a device have.
fn plain(at: SocketAddr) -> Option<SocketAddr> {
    let ip = match at.ip() {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 => v4,
    };
    (at.port() != 0).then(|| SocketAddr::new(ip, at.port()))
}
