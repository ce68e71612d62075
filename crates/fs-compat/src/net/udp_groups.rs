//! Broadcast and multicast, on the kernel socket that all cores' sockets at one address share. In
//! standalone addressing there is none, and the calls fail with `EOPNOTSUPP`.

use super::udp_socket::UdpSocket;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

impl UdpSocket {
    fn groups(&self) -> io::Result<&std::net::UdpSocket> {
        self.kernel.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// SO_BROADCAST.
    pub fn broadcast(&self) -> io::Result<bool> {
        self.groups()?.broadcast()
    }

    /// SO_BROADCAST.
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.groups()?.set_broadcast(on)
    }

    /// IP_MULTICAST_LOOP.
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        self.groups()?.multicast_loop_v4()
    }

    /// IP_MULTICAST_LOOP.
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.groups()?.set_multicast_loop_v4(on)
    }

    /// IP_MULTICAST_TTL.
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        self.groups()?.multicast_ttl_v4()
    }

    /// IP_MULTICAST_TTL.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        self.groups()?.set_multicast_ttl_v4(ttl)
    }

    /// IPV6_MULTICAST_LOOP.
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        self.groups()?.multicast_loop_v6()
    }

    /// IPV6_MULTICAST_LOOP.
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.groups()?.set_multicast_loop_v6(on)
    }

    /// IP_ADD_MEMBERSHIP.
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.groups()?.join_multicast_v4(&group, &interface)
    }

    /// IP_DROP_MEMBERSHIP.
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.groups()?.leave_multicast_v4(&group, &interface)
    }

    /// IPV6_ADD_MEMBERSHIP.
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.groups()?.join_multicast_v6(group, interface)
    }

    /// IPV6_DROP_MEMBERSHIP.
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.groups()?.leave_multicast_v6(group, interface)
    }
}
