//! Which way the kernel would send a connection: asked of it (RTM_GETROUTE), with all that its routes and rules look at.

use super::netlink::Netlink;
use fs_core::IfaceId;
use netlink_packet_core::DefaultNla;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Where the kernel would send a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// The device's index.
    pub device: u32,
    /// The address that it would come from.
    pub source: Option<IpAddr>,
    /// It stays in this namespace.
    pub local: bool,
    /// It goes to one host behind the device (not blackhole, prohibit …).
    pub unicast: bool,
}

/// A connection, as far as the kernel's routes depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Where it goes.
    pub to: SocketAddr,
    /// What its socket is bound to.
    pub from: Option<IpAddr>,
    /// The port of that; 0: not known.
    pub port: u16,
    /// Its socket's user.
    pub uid: u32,
    /// SO_MARK of its socket.
    pub mark: u32,
    /// The index of the device that its socket is bound to (SO_BINDTODEVICE), or 0.
    pub device: u32,
}

impl Flow {
    fn question(self) -> RouteMessage {
        /// Of linux/rtnetlink.h.
        const IP_PROTO: u16 = 27;
        const SOURCE_PORT: u16 = 28;
        const DESTINATION_PORT: u16 = 29;
        const TCP: u8 = 6;
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
            other(IP_PROTO, &[TCP]),
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
    /// Asks the kernel for its way of a connection: all that routes and `ip rule` look at. An error is what connect(2) would answer.
    pub fn route(&self, flow: Flow) -> io::Result<KernelRoute> {
        let answers = self.question(Message::GetRoute(flow.question()))?;
        let [Message::NewRoute(route), ..] = &answers[..] else {
            return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
        };
        let kind = route.header.kind;
        let (local, unicast) = (kind == RouteType::Local, kind == RouteType::Unicast);
        let mut answer = KernelRoute { device: 0, source: None, local, unicast };
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(device) => answer.device = *device,
                RouteAttribute::PrefSource(RouteAddress::Inet(v4)) => answer.source = Some((*v4).into()),
                RouteAttribute::PrefSource(RouteAddress::Inet6(v6)) => answer.source = Some((*v6).into()),
                _ => {}
            }
        }
        Ok(answer)
    }

    /// The device of the entry of the routing table that a connection is led by: of an address of the namespace's own the device that
    /// has it, though its packets pass `lo`.
    pub fn device_of(&self, flow: Flow) -> io::Result<u32> {
        let mut question = flow.question();
        question.header.flags |= RouteFlags::FibMatch;
        let answers = self.question(Message::GetRoute(question))?;
        let device = |answer: &Message| match answer {
            Message::NewRoute(route) => route.attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Oif(device) => Some(*device),
                _ => None,
            }),
            _ => None,
        };
        answers.iter().find_map(device).ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))
    }

    /// Whether the route of a connection has several ways, of which its source port or the state of neighbours chooses one.
    pub fn has_ways(&self, flow: Flow) -> io::Result<bool> {
        let mut question = flow.question();
        question.header.flags |= RouteFlags::FibMatch;
        let answers = self.question(Message::GetRoute(question))?;
        let several = |attribute: &RouteAttribute| matches!(attribute, RouteAttribute::MultiPath(_));
        Ok(answers.iter().any(|answer| match answer {
            Message::NewRoute(route) => route.attributes.iter().any(several),
            _ => true,
        }))
    }
}

/// What a runtime's cores ask before they connect: a connection that the kernel would send by another device, or not at all, does
/// not leave by the runtime's.
#[derive(Debug)]
pub(crate) struct Ways {
    netlink: Mutex<Netlink>,
    /// Counts what changes about devices, addresses, routes and rules: answers of before are none.
    changes: AtomicU64,
    /// Of the runtime's devices.
    indexes: Mutex<Vec<u32>>,
}

/// From and to, and the device that the socket is bound to; 0: none.
type Ends = (Option<SocketAddr>, SocketAddr, u32);

/// Answers that a core has had.
#[derive(Debug, Default)]
pub(crate) struct KnownWays {
    as_of: u64,
    known: HashMap<Ends, Way>,
}

/// Whether a connection leaves by the runtime's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Ours,
    /// By another device of the kernel's.
    Others,
    /// Not at all: what connect(2) answers.
    None(i32),
}

/// Answers that a core keeps. More: memory of who connects everywhere. Fewer: who has that many peers asks again, some microseconds.
const KNOWN_MOST: usize = 4096;

impl Ways {
    pub(crate) fn open(indexes: Vec<u32>) -> io::Result<Self> {
        Ok(Self { netlink: Mutex::new(Netlink::open([])?), changes: AtomicU64::new(0), indexes: Mutex::new(indexes) })
    }

    /// What was answered before is to be asked again.
    pub(crate) fn changed(&self, indexes: impl Iterator<Item = u32>) {
        *self.indexes.lock().unwrap_or_else(PoisonError::into_inner) = indexes.collect();
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The kernel's number of a device; 0: it has none now.
    pub(crate) fn index_of(&self, device: IfaceId) -> u32 {
        let indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.get(usize::from(device.0)).copied().unwrap_or(0)
    }

    /// Asks, or knows.
    pub(crate) fn of(&self, ends: Ends, known: &mut KnownWays) -> Way {
        let as_of = self.changes.load(Ordering::Acquire);
        if known.as_of != as_of || known.known.len() >= KNOWN_MOST {
            *known = KnownWays { as_of, known: HashMap::new() };
        }
        if let Some(way) = known.known.get(&ends) {
            return *way;
        }
        let way = self.ask(ends);
        // What passes by itself (no memory, a signal) is no answer about routes, and nobody would say that it has passed.
        let is_verdict = match way {
            Way::Ours | Way::Others => true,
            Way::None(errno) => [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL].contains(&errno),
        };
        if is_verdict {
            known.known.insert(ends, way);
        }
        way
    }

    fn ask(&self, (from, to, bound): Ends) -> Way {
        // A link-local address is one of the device that its scope names, or that of the address which the socket is bound to.
        let scope = |at: SocketAddr| match at {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
            _ => 0,
        };
        let device = [bound, scope(to), from.map_or(0, scope)].into_iter().find(|&device| device != 0).unwrap_or(0);
        if device == 0 && matches!(to.ip(), IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            return Way::None(libc::EINVAL);
        }
        let uid = crate::sys::effective_user();
        let port = from.map_or(0, |from| from.port());
        let flow = Flow { to, from: from.map(|from| from.ip()), port, uid, mark: 0, device };
        match self.netlink.lock().unwrap_or_else(PoisonError::into_inner).route(flow) {
            Err(error) => Way::None(error.raw_os_error().unwrap_or(libc::ENETUNREACH)),
            Ok(route) if !route.unicast => Way::None(libc::ENETUNREACH),
            Ok(route) => {
                let ours = self.indexes.lock().unwrap_or_else(PoisonError::into_inner).contains(&route.device);
                if ours { Way::Ours } else { Way::Others }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_which_way_and_is_asked_again_after_a_change() {
        let to: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let ways = Ways::open(vec![1]).unwrap();
        let mut known = KnownWays::default();
        // What stays in the host has no way by a device.
        assert_eq!(ways.of((None, to, 0), &mut known), Way::None(libc::ENETUNREACH));
        assert_eq!(known.known.len(), 1);
        let flow = Flow { to, from: None, port: 0, uid: 0, mark: 0, device: 0 };
        assert_eq!(Netlink::open([]).unwrap().device_of(flow).unwrap(), 1, "lo");
        known.known.insert((None, to, 0), Way::Ours);
        assert_eq!(ways.of((None, to, 0), &mut known), Way::Ours, "it is not asked twice");
        ways.changed([1].into_iter());
        assert_eq!(ways.of((None, to, 0), &mut known), Way::None(libc::ENETUNREACH), "but after a change");
        for port in 0..KNOWN_MOST as u16 + 9 {
            ways.of((None, SocketAddr::new(to.ip(), port), 0), &mut known);
        }
        assert!(known.known.len() <= KNOWN_MOST);
    }
}
