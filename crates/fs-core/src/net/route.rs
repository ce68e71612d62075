//! First step of transmission: interface, next hop and source address.

use crate::config::{Cidr, Interface, Refusal, Route};
use crate::error::Error;
use crate::frame::IfaceId;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[cfg(test)]
mod tests;

/// The next hop of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NextHop {
    /// The outgoing interface.
    pub iface: IfaceId,
    /// The neighbour on that interface's link: the gateway, or the destination itself.
    pub addr: IpAddr,
}

/// Routes, longest prefix first. Lookups scan the list: a host has a handful of routes, connections
/// look up once, and a list of that size is faster than any tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct RouteTable {
    routes: Vec<Route>,
    /// Addresses of the host's other devices, sorted: a node of a cluster may have thousands.
    host: Vec<IpAddr>,
}

impl RouteTable {
    /// Replaces all routes. Returns the number of routes that were left out as unusable: a prefix
    /// longer than an address, or a gateway of the other family (RFC 8950).
    pub(crate) fn set(&mut self, mut routes: Vec<Route>) -> usize {
        let given = routes.len();
        routes.retain(|route| {
            let width = if route.to.addr.is_ipv4() { 32 } else { 128 };
            route.to.prefix <= width && route.gateway.is_none_or(|gw| gw.is_ipv4() == route.to.addr.is_ipv4())
        });
        routes.sort_by_key(|route| (Reverse(route.to.prefix), route.metric));
        self.routes = routes;
        given - self.routes.len()
    }

    /// Replaces the addresses of the host's other devices.
    pub(crate) fn set_host_addresses(&mut self, mut addrs: Vec<IpAddr>) {
        addrs.sort_unstable();
        addrs.dedup();
        self.host = addrs;
    }

    /// Returns true if the host delivers packets to `to` to itself, by another device than ours: Linux's
    /// table `local`, which is asked before all routes. There a socket bound to a `device` finds
    /// nothing (`fib_lookup_good_nhc`, `rt6_score_route`).
    fn is_within_host(&self, to: IpAddr, device: Option<IfaceId>) -> bool {
        device.is_none() && self.host.binary_search(&to).is_ok()
    }

    /// Returns the route of the longest matching prefix, by `device` if given. Among equals the
    /// lowest metric wins, then the first in the list. A refusing route has no device: for IPv4 the
    /// lookup ends there, for IPv6 it continues (`fib_table_lookup`, `rt6_score_route`).
    fn route(&self, to: IpAddr, device: Option<IfaceId>) -> Option<&Route> {
        let leaves_by = |route: &Route| match (device, route.refusal) {
            (None, _) => true,
            (Some(device), None) => device == route.iface,
            (Some(_), Some(_)) => to.is_ipv4(),
        };
        self.routes.iter().find(|route| leaves_by(route) && contains(&route.to, to))
    }

    /// Returns the source address that the route to a destination names.
    pub(crate) fn source(&self, to: IpAddr, device: Option<IfaceId>) -> Option<IpAddr> {
        self.route(to.to_canonical(), device)?.source
    }

    /// Returns the next hop to a destination. For a socket bound to a `device` without a route, or
    /// with a refusing one, IPv4 destinations are on the device's link (as Linux:
    /// `ip_route_output_key_hash_rcu`).
    ///
    /// # Errors
    /// The error that Linux returns for such a destination (`fib_props`, `ip6_rt_type_to_error`).
    /// `InvalidInput` if no packet to it leaves the host.
    pub(crate) fn lookup(&self, to: IpAddr, device: Option<IfaceId>) -> Result<NextHop, Error> {
        let to = to.to_canonical();
        if self.is_within_host(to, device) {
            return Err(Error::InvalidInput);
        }
        let route = self.route(to, device);
        let refusal = match (route, device) {
            (Some(route @ Route { refusal: None, .. }), _) => {
                return Ok(NextHop { iface: route.iface, addr: route.gateway.unwrap_or(to) });
            }
            (_, Some(iface)) if to.is_ipv4() => return Ok(NextHop { iface, addr: to }),
            (route, _) => route.and_then(|route| route.refusal),
        };
        Err(match refusal {
            None | Some(Refusal::Throw) => Error::NetworkUnreachable,
            Some(Refusal::Unreachable) => Error::HostUnreachable,
            Some(Refusal::Blackhole) => Error::InvalidInput,
            Some(Refusal::Prohibit) => Error::Prohibited,
        })
    }

    /// Returns true if the route to a destination refuses it, or no packet to it leaves the host.
    pub(crate) fn refuses(&self, to: IpAddr, device: Option<IfaceId>) -> bool {
        let to = to.to_canonical();
        self.is_within_host(to, device) || self.route(to, device).is_some_and(|route| route.refusal.is_some())
    }

    /// Returns the routes in lookup order.
    #[cfg(test)]
    pub(crate) fn routes(&self) -> &[Route] {
        &self.routes
    }
}

/// Returns true if `addr` is inside the network of `cidr` (whose host bits do not count).
pub(crate) fn contains(cidr: &Cidr, addr: IpAddr) -> bool {
    match (cidr.addr, addr) {
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => {
            common_prefix(cidr.addr, addr) >= u32::from(cidr.prefix)
        }
        _ => false,
    }
}

/// Returns the number of leading bits that two addresses of one family share.
fn common_prefix(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => 0,
    }
}

/// Returns our source address for `remote`, for packets that leave by `iface`. An address of
/// another interface is used only if `iface` has none of that family (as Linux does). Applies RFC
/// 6724 section 5 rule 1 (same address), rule 2 (scope), rule 8 (longest matching prefix), then
/// list order. IPv4 follows Linux (`inet_select_addr`): instead of rule 8, an address in the next
/// hop's network.
pub(crate) fn source_for(interfaces: &[Interface], iface: IfaceId, remote: IpAddr, hop: IpAddr) -> Option<IpAddr> {
    let remote = remote.to_canonical();
    // On a link without neighbours, the destination stands for the next hop.
    let hop = if hop.is_unspecified() { remote } else { hop };
    let outgoing = interfaces.get(usize::from(iface.0));
    let best = |interface: &Interface| best_source(&interface.addrs, remote, hop);
    outgoing.and_then(best).or_else(|| interfaces.iter().find_map(best))
}

fn best_source(addrs: &[Cidr], remote: IpAddr, hop: IpAddr) -> Option<IpAddr> {
    let rank = |cidr: &Cidr| {
        let scopes = (scope(cidr.addr), scope(remote));
        // Rule 2: the smallest scope that still reaches the destination, else the largest
        // available.
        let fit = if scopes.0 >= scopes.1 { 32 - i32::from(scopes.0) } else { i32::from(scopes.0) - 32 };
        let near = if remote.is_ipv4() {
            u32::from(contains(cidr, hop))
        } else {
            // A match beyond our own prefix is meaningless.
            common_prefix(cidr.addr, remote).min(u32::from(cidr.prefix))
        };
        (cidr.addr == remote, fit, near)
    };
    // `max_by_key` prefers the last of equals; `rev` makes that the first.
    let family =
        addrs.iter().rev().filter(|cidr| cidr.addr.is_ipv4() == remote.is_ipv4() && !cidr.addr.is_unspecified());
    family.max_by_key(|cidr| rank(cidr)).map(|cidr| cidr.addr)
}

/// Returns the scope of RFC 4291 2.7, with IPv4 mapped to it as in RFC 6724 3.2.
fn scope(addr: IpAddr) -> u8 {
    const LINK_LOCAL: u8 = 2;
    const GLOBAL: u8 = 14;
    let local = match addr {
        IpAddr::V4(addr) => is_local_v4(addr),
        IpAddr::V6(addr) if addr.is_multicast() => return addr.octets()[1] & 0x0f,
        IpAddr::V6(addr) => addr.is_unicast_link_local() || addr == Ipv6Addr::LOCALHOST,
    };
    if local { LINK_LOCAL } else { GLOBAL }
}

fn is_local_v4(addr: Ipv4Addr) -> bool {
    addr.is_link_local() || addr.is_loopback()
}
