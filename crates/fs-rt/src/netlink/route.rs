//! Asks the kernel for the route of a connection (RTM_GETROUTE), with everything that its routes
//! and rules depend on.

use super::socket::Netlink;
use netlink_packet_core::DefaultNla;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType, RouteVia};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// The route of a packet in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// The device's index.
    pub device: u32,
    /// The neighbour that gets the packet; `None`: its destination.
    pub gateway: Option<IpAddr>,
    /// The packet stays in this namespace.
    pub local: bool,
    /// The route leads to one host behind the device (not blackhole, prohibit …).
    pub unicast: bool,
    /// The table that has the route, which `ip rule` has selected; 0: no table has one.
    pub table: u32,
}

/// The properties of a connection that the kernel's routes depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Its IP protocol (`IPPROTO_TCP`, `IPPROTO_UDP`).
    pub protocol: u8,
    /// Destination of the connection.
    pub to: SocketAddr,
    /// The address that its socket is bound to.
    pub from: Option<IpAddr>,
    /// The port that its socket is bound to; 0: unknown.
    pub port: u16,
    /// Its socket's user.
    pub uid: u32,
    /// SO_MARK of its socket.
    pub mark: u32,
    /// The index of the device that the socket is bound to (SO_BINDTODEVICE), or 0.
    pub device: u32,
}

impl Flow {
    fn question(self) -> RouteMessage {
        /// RTA_IP_PROTO of linux/rtnetlink.h.
        const IP_PROTO: u16 = 27;
        const SOURCE_PORT: u16 = 28;
        const DESTINATION_PORT: u16 = 29;
        let other = |kind, value: &[u8]| RouteAttribute::Other(DefaultNla::new(kind, value.to_vec()));
        let address = |ip| match ip {
            IpAddr::V4(v4) => RouteAddress::Inet(v4),
            IpAddr::V6(v6) => RouteAddress::Inet6(v6),
        };
        let mut question = RouteMessage::default();
        let to = self.to.ip().to_canonical();
        let bits = if to.is_ipv4() { 32 } else { 128 };
        question.header.address_family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        question.header.destination_prefix_length = bits;
        question.attributes = vec![
            RouteAttribute::Destination(address(to)),
            RouteAttribute::Uid(self.uid),
            other(IP_PROTO, &[self.protocol]),
            other(DESTINATION_PORT, &self.to.port().to_be_bytes()),
        ];
        let from = self.from.map(|from| from.to_canonical());
        if let Some(from) = from.filter(|from| !from.is_unspecified() && from.is_ipv4() == to.is_ipv4()) {
            question.header.source_prefix_length = bits;
            question.attributes.push(RouteAttribute::Source(address(from)));
        }
        if self.port != 0 {
            question.attributes.push(other(SOURCE_PORT, &self.port.to_be_bytes()));
        }
        if self.mark != 0 {
            question.attributes.push(RouteAttribute::Mark(self.mark));
        }
        if self.device != 0 {
            question.attributes.push(RouteAttribute::Oif(self.device));
        }
        question
    }
}

impl Netlink {
    /// Asks the kernel for the route of a connection, including `ip rule`. An error is what
    /// connect(2) would return.
    pub fn route(&self, flow: Flow) -> io::Result<KernelRoute> {
        let mut question = flow.question();
        // Otherwise IPv4 always reports `main` (`inet_rtm_getroute`).
        question.header.flags |= RouteFlags::LookupTable;
        let answers = self.question(Message::GetRoute(question))?;
        let [Message::NewRoute(route), ..] = &answers[..] else {
            return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
        };
        let kind = route.header.kind;
        let (local, unicast) = (kind == RouteType::Local, kind == RouteType::Unicast);
        let table = route.header.table.into();
        let mut answer = KernelRoute { device: 0, gateway: None, local, unicast, table };
        let mut hop = Hop::default();
        for attribute in &route.attributes {
            match attribute {
                // The header has no room for more than a byte.
                RouteAttribute::Table(table) => answer.table = *table,
                other => hop.take(other),
            }
        }
        (answer.device, answer.gateway) = (hop.device.unwrap_or(0), hop.gateway);
        Ok(answer)
    }
}

/// The device and the gateway of a route.
#[derive(Default)]
pub(crate) struct Hop {
    pub(crate) device: Option<u32>,
    pub(crate) gateway: Option<IpAddr>,
}

impl Hop {
    pub(crate) fn take(&mut self, attribute: &RouteAttribute) {
        match attribute {
            RouteAttribute::Oif(index) => self.device = Some(*index),
            RouteAttribute::Gateway(addr) => self.gateway = ip(addr),
            // An IPv4 route through an IPv6 neighbour (RFC 5549).
            RouteAttribute::Via(RouteVia::Inet(v4)) => self.gateway = Some((*v4).into()),
            RouteAttribute::Via(RouteVia::Inet6(v6)) => self.gateway = Some((*v6).into()),
            _ => {}
        }
    }
}

pub(crate) fn ip(addr: &RouteAddress) -> Option<IpAddr> {
    match addr {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}
