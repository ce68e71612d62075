//! Local addresses for the kernel connections to programs.
//!
//! They are this host's own, so no packet of such a connection can leave the host. IPv4 has
//! 127.64.0.0/10, with an address and port that is not used again for days. IPv6 has the server's
//! address itself, with as many connections as ports, those in TIME-WAIT included. (A reset that
//! answers ::1 does not arrive there, Linux 6.18.)
//!
//! A port to which a socket is bound by bind(2) is not given to a connect(2) for which the kernel
//! chooses the port, whatever the addresses are, also while the socket is in TIME-WAIT
//! (`inet_csk_update_fastreuse`, `__inet_hash_connect`). So some ephemeral ports are left to the host.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicU64, Ordering};

/// Addresses of 127.64.0.0/10.
const ADDRESSES: u64 = 1 << 22;
/// Ephemeral ports that connections over IPv4 use, the last ones, and that those over IPv6 do not
/// use, the first ones. More: over IPv4 the host's other connections have fewer ports, over IPv6 the
/// relay has fewer connections. Fewer: over IPv4 an address and port is used again earlier (at 10,000
/// connections per second: after 5 days), and over IPv6 the host has fewer connections to an address.
const PORTS: u64 = 1024;

/// Hands out addresses to all cores.
#[derive(Debug)]
pub(crate) struct Sources {
    next: AtomicU64,
    v4: Ports,
    v6: Ports,
}

#[derive(Debug)]
struct Ports {
    first: u16,
    count: u64,
}

impl Ports {
    fn of(&self, number: u64) -> u16 {
        self.first + (number % self.count) as u16
    }
}

impl Sources {
    /// `range` is the host's range of ephemeral ports, in which no server expects to listen.
    pub(crate) fn new((first, last): (u16, u16), start: u64) -> Self {
        let count = u64::from(last.max(first) - first) + 1;
        let some = (count / 2).min(PORTS);
        let ports = |skipped: u64| Ports { first: first + skipped as u16, count: count - skipped };
        Self { next: AtomicU64::new(start), v4: ports(count - some.max(1)), v6: ports(some) }
    }

    /// Returns a local address for a connection to `server`. It may be in use.
    pub(crate) fn next(&self, server: SocketAddr) -> SocketAddr {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        match server {
            SocketAddr::V4(_) => {
                let host = (number / self.v4.count % ADDRESSES) as u32;
                let address = Ipv4Addr::from_bits(Ipv4Addr::new(127, 64, 0, 0).to_bits() | host);
                (address, self.v4.of(number)).into()
            }
            SocketAddr::V6(server) => SocketAddrV6::new(*server.ip(), self.v6.of(number), 0, server.scope_id()).into(),
        }
    }
}

/// Returns the host's range of ephemeral ports.
pub(crate) fn port_range() -> (u16, u16) {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_ascii_whitespace().map_while(|number| number.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(first), Some(last)) if first <= last && first > 0 => (first, last),
        // The kernel's default.
        _ => (32_768, 60_999),
    }
}

/// Converts an IPv4-mapped address to IPv4.
pub(crate) fn canonical(at: SocketAddr) -> SocketAddr {
    match at.ip().to_canonical() {
        IpAddr::V4(ip) => (ip, at.port()).into(),
        IpAddr::V6(_) => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn sources_are_of_this_host_and_not_repeated_early() {
        let sources = Sources::new((40_000, 40_009), 39_999_999);
        let server = "192.0.2.1:80".parse().unwrap();
        let given: HashSet<SocketAddr> = (0..10_000).map(|_| sources.next(server)).collect();
        assert_eq!(given.len(), 10_000);
        assert!(given.iter().all(|at| at.ip().is_loopback() && (40_000..=40_009).contains(&at.port())));
        let local = sources.next("[fe80::1%3]:80".parse().unwrap());
        assert!(matches!(local, SocketAddr::V6(at) if at.scope_id() == 3 && at.ip().is_unicast_link_local()));
    }

    #[test]
    fn some_ports_are_left_to_the_host() {
        let ports = |range, server: &str| {
            let sources = Sources::new(range, 39_999_999);
            let given: HashSet<u16> = (0..130_000).map(|_| sources.next(server.parse().unwrap()).port()).collect();
            (*given.iter().min().unwrap(), *given.iter().max().unwrap(), given.len())
        };
        for (range, v4, v6) in [
            ((32_768, 60_999), (59_976, 60_999, 1024), (33_792, 60_999, 27_208)),
            ((1, 65_535), (64_512, 65_535, 1024), (1025, 65_535, 64_511)),
            ((40_000, 40_009), (40_005, 40_009, 5), (40_005, 40_009, 5)),
            ((65_535, 65_535), (65_535, 65_535, 1), (65_535, 65_535, 1)),
        ] {
            assert_eq!((ports(range, "192.0.2.1:80"), ports(range, "[2001:db8::1]:80")), (v4, v6));
        }
    }

    #[test]
    fn mapped_addresses_become_ipv4() {
        assert_eq!(canonical("[::ffff:192.0.2.1]:80".parse().unwrap()), "192.0.2.1:80".parse().unwrap());
        let global: SocketAddr = "[2001:db8::1]:80".parse().unwrap();
        assert_eq!(canonical(global), global);
    }
}
