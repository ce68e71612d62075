//! Flow keys and core ids.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A core's number within its runtime, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CoreId(pub u16);

/// Transport protocols that the engine owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP, IP protocol 6.
    Tcp,
    /// UDP, IP protocol 17.
    Udp,
}

/// A flow's two addresses and two ports, seen from this host ("local" is ours). Ports are in host
/// byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowKey {
    /// An IPv4 flow; addresses as big-endian integers (`u32::from(Ipv4Addr)`).
    V4 {
        /// Our address.
        local: u32,
        /// The peer's address.
        remote: u32,
        /// Our port.
        local_port: u16,
        /// The peer's port.
        remote_port: u16,
    },
    /// An IPv6 flow.
    V6 {
        /// Our address.
        local: [u8; 16],
        /// The peer's address.
        remote: [u8; 16],
        /// Our port.
        local_port: u16,
        /// The peer's port.
        remote_port: u16,
    },
}

impl FlowKey {
    /// Makes the key of two socket addresses. Returns `None` if their families differ. An
    /// IPv4-mapped IPv6 address becomes the IPv4 address that it represents.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Option<Self> {
        let (lp, rp) = (local.port(), remote.port());
        match (local.ip().to_canonical(), remote.ip().to_canonical()) {
            (IpAddr::V4(l), IpAddr::V4(r)) => {
                Some(FlowKey::V4 { local: l.into(), remote: r.into(), local_port: lp, remote_port: rp })
            }
            (IpAddr::V6(l), IpAddr::V6(r)) => {
                Some(FlowKey::V6 { local: l.octets(), remote: r.octets(), local_port: lp, remote_port: rp })
            }
            _ => None,
        }
    }

    /// Calls a probe of `fs_probe` with the connection's endpoints.
    #[inline(always)]
    pub(crate) fn probe(&self, probe: impl Fn(fs_probe::Ends<'_>)) {
        match self {
            FlowKey::V4 { remote, local_port, remote_port, .. } => probe(fs_probe::Ends {
                local_port: *local_port,
                remote_port: *remote_port,
                remote: &remote.to_be_bytes(),
            }),
            FlowKey::V6 { remote, local_port, remote_port, .. } => {
                probe(fs_probe::Ends { local_port: *local_port, remote_port: *remote_port, remote })
            }
        }
    }

    /// Returns our address and port.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local_ip(), self.local_port())
    }

    /// Returns the peer's address and port.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote_ip(), self.remote_port())
    }

    /// Returns our address.
    pub fn local_ip(&self) -> IpAddr {
        match *self {
            FlowKey::V4 { local, .. } => Ipv4Addr::from(local).into(),
            FlowKey::V6 { local, .. } => Ipv6Addr::from(local).into(),
        }
    }

    /// Returns the peer's address.
    pub fn remote_ip(&self) -> IpAddr {
        match *self {
            FlowKey::V4 { remote, .. } => Ipv4Addr::from(remote).into(),
            FlowKey::V6 { remote, .. } => Ipv6Addr::from(remote).into(),
        }
    }

    /// Returns our port.
    #[inline]
    pub fn local_port(&self) -> u16 {
        match *self {
            FlowKey::V4 { local_port, .. } | FlowKey::V6 { local_port, .. } => local_port,
        }
    }

    /// Returns the peer's port.
    #[inline]
    pub fn remote_port(&self) -> u16 {
        match *self {
            FlowKey::V4 { remote_port, .. } | FlowKey::V6 { remote_port, .. } => remote_port,
        }
    }

    /// Returns true for IPv6.
    #[inline]
    pub fn is_v6(&self) -> bool {
        matches!(self, FlowKey::V6 { .. })
    }
}
