//! Routes of connections, as the kernel answers the cores' questions.

use crate::netlink::{Flow, Netlink};
use fs_core::{IfaceId, Protocol};
use netlink_packet_route::route::RouteHeader;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The routes that a runtime's cores ask for before they connect. A connection that the kernel
/// would send through another device, or not at all, does not use the runtime's device.
#[derive(Debug)]
pub(crate) struct RouteLookup {
    netlink: Mutex<Netlink>,
    /// Counts changes of devices, addresses, routes and rules. Cached answers of an earlier count
    /// are invalid.
    changes: AtomicU64,
    /// Indexes of the runtime's devices.
    indexes: Mutex<Vec<u32>>,
    /// The card brings replies to any of its queues, and the runtime has only some of them.
    by_kernel: bool,
}

/// Protocol, source, destination, and the device that the socket is bound to; 0: none.
type Ends = (Protocol, Option<SocketAddr>, SocketAddr, u32);

/// Answers that a core has cached.
#[derive(Debug, Default)]
pub(crate) struct RouteCache {
    as_of: u64,
    known: HashMap<Ends, ConnectRoute>,
}

/// The route of a connection: through the runtime's devices, or another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectRoute {
    Ours,
    /// By another table than `main`, through the device of this index, to this neighbour.
    OtherTable(u32, IpAddr),
    /// Through another device of the kernel's.
    Others,
    /// No route: the errno of connect(2).
    None(i32),
}

/// Answers that a core caches. Higher: more memory for a program that connects to many peers.
/// Lower: such a program asks again, which costs some microseconds.
const MAX_CACHED_ROUTES: usize = 4096;

impl RouteLookup {
    pub(crate) fn open(indexes: Vec<u32>) -> io::Result<Self> {
        Ok(Self::by(Netlink::open([])?, indexes))
    }

    /// Lets the kernel make all connections, if `by_kernel`.
    pub(crate) fn by_kernel(self, by_kernel: bool) -> Self {
        Self { by_kernel, ..self }
    }

    /// Asks with this socket, which may be another namespace's.
    pub(crate) fn by(netlink: Netlink, indexes: Vec<u32>) -> Self {
        Self {
            netlink: Mutex::new(netlink),
            changes: AtomicU64::new(0),
            indexes: Mutex::new(indexes),
            by_kernel: false,
        }
    }

    /// Invalidates cached answers.
    pub(crate) fn changed(&self, indexes: impl Iterator<Item = u32>) {
        *self.indexes.lock().unwrap_or_else(PoisonError::into_inner) = indexes.collect();
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns a device's index in the kernel; 0: it has none now.
    pub(crate) fn index_of(&self, device: IfaceId) -> u32 {
        let indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.get(usize::from(device.0)).copied().unwrap_or(0)
    }

    /// Asks, or knows.
    pub(crate) fn of(&self, ends: Ends, known: &mut RouteCache) -> ConnectRoute {
        let as_of = self.changes.load(Ordering::Acquire);
        if known.as_of != as_of || known.known.len() >= MAX_CACHED_ROUTES {
            *known = RouteCache { as_of, known: HashMap::new() };
        }
        if let Some(route) = known.known.get(&ends) {
            return *route;
        }
        let route = self.ask(ends);
        // A transient error (no memory, a signal) says nothing about routes, and no event reports
        // its end. So it is not cached.
        let is_verdict = match route {
            ConnectRoute::Ours | ConnectRoute::OtherTable(..) | ConnectRoute::Others => true,
            ConnectRoute::None(errno) => {
                [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL].contains(&errno)
            }
        };
        if is_verdict {
            known.known.insert(ends, route);
        }
        route
    }

    fn ask(&self, (protocol, from, to, bound): Ends) -> ConnectRoute {
        // A link-local address belongs to the device of its scope, or of the address that the
        // socket is bound to.
        let scope = |at: SocketAddr| match at {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
            _ => 0,
        };
        let device = [bound, scope(to), from.map_or(0, scope)].into_iter().find(|&device| device != 0).unwrap_or(0);
        if device == 0 && matches!(to.ip(), IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            return ConnectRoute::None(libc::EINVAL);
        }
        let uid = crate::sys::effective_user();
        let port = from.map_or(0, |from| from.port());
        let protocol = match protocol {
            Protocol::Tcp => libc::IPPROTO_TCP as u8,
            Protocol::Udp => libc::IPPROTO_UDP as u8,
        };
        let flow = Flow { protocol, to, from: from.map(|from| from.ip()), port, uid, mark: 0, device };
        let has_source = flow.from.is_some_and(|from| !from.to_canonical().is_unspecified());
        match self.by_table(flow) {
            // Its source may be another one than that of `main`.
            Ok(ConnectRoute::OtherTable(..)) if !has_source => ConnectRoute::Others,
            Ok(route) => route,
            Err(error) => ConnectRoute::None(error.raw_os_error().unwrap_or(libc::ENETUNREACH)),
        }
    }

    /// Returns the kernel's route of a packet.
    fn by_table(&self, flow: Flow) -> io::Result<ConnectRoute> {
        let route = self.netlink.lock().unwrap_or_else(PoisonError::into_inner).route(flow)?;
        if !route.unicast {
            return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
        }
        let is_ours = self.indexes.lock().unwrap_or_else(PoisonError::into_inner).contains(&route.device);
        Ok(if !is_ours || self.by_kernel {
            ConnectRoute::Others
        } else if [0, RouteHeader::RT_TABLE_MAIN.into()].contains(&route.table) {
            // No table: the socket is bound to the device, and the kernel takes the peer for a neighbour.
            ConnectRoute::Ours
        } else {
            ConnectRoute::OtherTable(route.device, route.gateway.unwrap_or(flow.to.ip().to_canonical()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_routes_are_cached_until_a_change() {
        let to: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let routes = RouteLookup::open(vec![1]).unwrap();
        let mut known = RouteCache::default();
        // Destinations within the host have no route through a device.
        assert_eq!(routes.of((Protocol::Tcp, None, to, 0), &mut known), ConnectRoute::None(libc::ENETUNREACH));
        assert_eq!(known.known.len(), 1);
        known.known.insert((Protocol::Tcp, None, to, 0), ConnectRoute::Ours);
        assert_eq!(routes.of((Protocol::Tcp, None, to, 0), &mut known), ConnectRoute::Ours, "it is not asked twice");
        routes.changed([1].into_iter());
        assert_eq!(
            routes.of((Protocol::Tcp, None, to, 0), &mut known),
            ConnectRoute::None(libc::ENETUNREACH),
            "but after a change"
        );
        for port in 0..MAX_CACHED_ROUTES as u16 + 9 {
            routes.of((Protocol::Tcp, None, SocketAddr::new(to.ip(), port), 0), &mut known);
        }
        assert!(known.known.len() <= MAX_CACHED_ROUTES);
    }
}
