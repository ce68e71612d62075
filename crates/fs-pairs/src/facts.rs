//! The kernel's data about an offered socket.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use fs_carrier::exact::Carried;
use fs_carrier::kernel::{Kernel, TcpInfo};
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

impl Facts {
    /// Reads the facts from the kernel.
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
        let info = established(socket).ok_or(Reason::NotEstablished)?;
        // The process continues while its offer is in transit. So the kernel may have counted more
        // than the process by now, but never less.
        if carried.sent > sent(&info) || carried.taken > info.bytes_received {
            return Err(Reason::Counts);
        }
        Ok(Facts { netns, cookie, local, peer })
    }

    /// Returns true if the addresses of two sockets of one namespace mirror each other. At any
    /// time, at most one pair of sockets has two given addresses.
    pub(crate) fn mirrors(&self, other: &Facts) -> bool {
        self.local == other.peer && self.peer == other.local && self.netns == other.netns && self.cookie != other.cookie
    }
}

/// Returns true if two sockets whose addresses mirror each other are one connection now: both are
/// established at the same moment, and neither has received more than the other has sent.
pub(crate) fn are_connected(a: impl AsFd, b: impl AsFd) -> bool {
    let (a, b) = (a.as_fd(), b.as_fd());
    let (Some(a1), Some(b1), Some(a2)) = (established(a), established(b), established(a)) else { return false };
    let b2 = established(b);
    b1.bytes_received <= sent(&a2)
        && b2.is_some_and(|b2| a2.bytes_received <= sent(&b2))
        && a1.bytes_received <= sent(&b1)
}

fn established(socket: BorrowedFd<'_>) -> Option<TcpInfo> {
    Socket(socket).tcp_info().ok().filter(|info| info.state == ESTABLISHED)
}

fn sent(info: &TcpInfo) -> u64 {
    info.bytes_sent.saturating_add(info.bytes_not_sent)
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
