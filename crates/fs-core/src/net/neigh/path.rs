//! A path and its link header, and the part of an interface that the header depends on.

use super::HOLD_DOWN;
use crate::config::{Addressing, Cidr, Framing, Interface};
use crate::frame::{FramePool, IfaceId, TxFrame};
use crate::net::route::{NextHop, contains};
use crate::time::Instant;
use crate::wire::eth::{self, EthHeader};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

/// State of a path's address resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathState {
    /// The link header is complete: write it and send.
    Known,
    /// The neighbour's address must be resolved: [`enqueue`](super::PathTable::enqueue).
    Pending,
    /// The neighbour did not reply; [`enqueue`](super::PathTable::enqueue) tries again after the
    /// hold-down time.
    Failed,
    /// The id's path was recycled: call [`path`](super::PathTable::path) again.
    Stale,
}

/// Everything that building a packet requires from its path. One cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Path {
    link_header: [u8; eth::TAGGED_HEADER_LEN],
    link_len: u8,
    pub(super) state: PathState,
    pub(super) iface: IfaceId,
    tx_checksum: bool,
    mtu: u16,
    pub(super) generation: u32,
    pub(super) addr: IpAddr,
    /// If `Known`, when the address was learned. If `Failed`, when the hold-down time ends.
    pub(super) since: Instant,
}

const _: () = assert!(size_of::<Path>() == 64);

pub(super) static STALE: Path = Path {
    link_header: [0; eth::TAGGED_HEADER_LEN],
    link_len: 0,
    state: PathState::Stale,
    iface: IfaceId(u8::MAX),
    tx_checksum: false,
    mtu: 0,
    generation: 0,
    addr: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    since: Instant::ZERO,
};

impl Path {
    /// Returns whether packets can be sent.
    #[inline]
    pub(crate) fn state(&self) -> PathState {
        self.state
    }

    /// Returns the interface that packets leave by.
    #[inline]
    pub(crate) fn iface(&self) -> IfaceId {
        self.iface
    }

    /// Returns the neighbour.
    #[inline]
    pub(crate) fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Returns the link header with its EtherType, to be written in front of the IP header. Empty
    /// on raw IP links, and unless the path is `Known`.
    #[inline]
    pub(crate) fn link_header(&self) -> &[u8] {
        &self.link_header[..usize::from(self.link_len)]
    }

    /// Returns the size of the largest IP packet in bytes.
    #[inline]
    pub(crate) fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Returns true if the link can complete TCP and UDP checksums.
    #[inline]
    pub(crate) fn tx_checksum(&self) -> bool {
        self.tx_checksum
    }

    /// Writes the link header in front of a packet whose bytes begin with the IP header. The caller
    /// follows frame access rule 3: the chunk is not shared.
    #[inline]
    pub(crate) fn prepend<P: FramePool>(&self, pool: &mut P, head: &mut TxFrame) {
        let len = usize::from(self.link_len);
        head.frame.grow_front(len);
        pool.bytes_mut(&mut head.frame)[..len].copy_from_slice(&self.link_header[..len]);
        if let Some(checksum) = &mut head.checksum {
            checksum.start += u16::from(self.link_len);
        }
    }
}

/// The properties of an interface that link headers depend on.
#[derive(Clone, Debug)]
pub(super) struct LinkLayer {
    pub(super) framing: Framing,
    mac: [u8; 6],
    vlan: Option<u16>,
    mtu: u16,
    tx_checksum: bool,
    pub(super) standalone: bool,
    addrs: Vec<Cidr>,
}

impl Path {
    /// Makes the path to a next hop on a link. It is `Known` if no resolution is needed.
    pub(super) fn new(hop: NextHop, link: &LinkLayer) -> Self {
        let mut path = Path { state: PathState::Pending, iface: hop.iface, addr: hop.addr, ..STALE.clone() };
        path.update(link, link.fixed_mac(hop.addr));
        path
    }

    pub(super) fn neighbour_mac(&self) -> Option<[u8; 6]> {
        self.link_header().first_chunk::<6>().copied()
    }

    /// Rebuilds what depends on the link; `neighbour: None` makes the path pending (on Ethernet).
    pub(super) fn update(&mut self, link: &LinkLayer, neighbour: Option<[u8; 6]>) {
        self.mtu = link.mtu;
        self.tx_checksum = link.tx_checksum;
        self.link_len = 0;
        match (link.framing, neighbour) {
            (Framing::Ip, _) => self.state = PathState::Known,
            (Framing::Ethernet, Some(dst)) => {
                let ethertype = if self.addr.is_ipv4() { eth::IPV4 } else { eth::IPV6 };
                let header = EthHeader { dst, src: link.mac, vlan: link.vlan, ethertype };
                self.link_len = header.emit(&mut self.link_header) as u8;
                self.state = PathState::Known;
            }
            (Framing::Ethernet, None) if self.state == PathState::Failed => {}
            (Framing::Ethernet, None) => self.state = PathState::Pending,
        }
    }

    pub(super) fn fail(&mut self, now: Instant) {
        self.state = PathState::Failed;
        self.link_len = 0;
        self.since = now + HOLD_DOWN;
    }
}

impl LinkLayer {
    pub(super) fn of(interface: &Interface) -> Self {
        Self {
            framing: interface.framing,
            mac: interface.mac,
            vlan: interface.vlan,
            mtu: interface.mtu,
            tx_checksum: interface.tx_checksum,
            standalone: interface.addressing == Addressing::Standalone,
            addrs: interface.addrs.clone(),
        }
    }

    /// Returns the link address that follows from the IP address: multicast (RFC 1112 6.4, RFC 2464
    /// section 7) and broadcast.
    pub(super) fn fixed_mac(&self, addr: IpAddr) -> Option<[u8; 6]> {
        match addr {
            IpAddr::V4(addr) if addr.is_multicast() => {
                let [_, a, b, c] = addr.octets();
                Some([0x01, 0x00, 0x5e, a & 0x7f, b, c])
            }
            IpAddr::V4(addr) => (addr.is_broadcast() || self.is_directed_broadcast(addr)).then_some(eth::BROADCAST),
            IpAddr::V6(addr) if addr.is_multicast() => {
                let [.., a, b, c, d] = addr.octets();
                Some([0x33, 0x33, a, b, c, d])
            }
            IpAddr::V6(_) => None,
        }
    }

    fn is_directed_broadcast(&self, addr: Ipv4Addr) -> bool {
        // RFC 3021: a /31 has no broadcast address.
        self.addrs.iter().any(|cidr| {
            cidr.prefix < 31
                && contains(cidr, addr.into())
                && addr.to_bits() | (u32::MAX >> cidr.prefix) == addr.to_bits()
        })
    }
}
