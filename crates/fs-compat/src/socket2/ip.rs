//! Options of IPv4 and IPv6.

use super::options::int_options;
use super::sock_addr_unsafe::SockAddr;
use super::socket::Socket;
use crate::call;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A device, by its index or by one of its addresses.
#[derive(Debug, Copy, Clone)]
pub enum InterfaceIndexOrAddress {
    /// Its index.
    Index(u32),
    /// One of its addresses.
    Address(Ipv4Addr),
}

int_options! {
    /// IP_HDRINCL of a raw socket: the sender supplies the header.
    header_included_v4, set_header_included_v4: bool = IPPROTO_IP, IP_HDRINCL;
    /// IP_TRANSPARENT.
    ip_transparent_v4, set_ip_transparent_v4: bool = IPPROTO_IP, IP_TRANSPARENT;
    /// IP_FREEBIND.
    freebind_v4, set_freebind_v4: bool = IPPROTO_IP, IP_FREEBIND;
    /// IP_MULTICAST_ALL.
    multicast_all_v4, set_multicast_all_v4: bool = IPPROTO_IP, IP_MULTICAST_ALL;
    /// IP_MULTICAST_LOOP.
    multicast_loop_v4, set_multicast_loop_v4: bool = IPPROTO_IP, IP_MULTICAST_LOOP;
    /// IP_MULTICAST_TTL.
    multicast_ttl_v4, set_multicast_ttl_v4: u32 = IPPROTO_IP, IP_MULTICAST_TTL;
    /// IP_TTL.
    ttl_v4, set_ttl_v4: u32 = IPPROTO_IP, IP_TTL;
    /// IP_TOS.
    tos_v4, set_tos_v4: u32 = IPPROTO_IP, IP_TOS;
    /// IP_RECVTOS.
    recv_tos_v4, set_recv_tos_v4: bool = IPPROTO_IP, IP_RECVTOS;
    /// IPV6_HDRINCL.
    header_included_v6, set_header_included_v6: bool = IPPROTO_IPV6, IPV6_HDRINCL;
    /// IPV6_TRANSPARENT.
    ip_transparent_v6, set_ip_transparent_v6: bool = IPPROTO_IPV6, IPV6_TRANSPARENT;
    /// IPV6_FREEBIND.
    freebind_v6, set_freebind_v6: bool = IPPROTO_IPV6, IPV6_FREEBIND;
    /// IPV6_MULTICAST_HOPS.
    multicast_hops_v6, set_multicast_hops_v6: u32 = IPPROTO_IPV6, IPV6_MULTICAST_HOPS;
    /// IPV6_MULTICAST_ALL.
    multicast_all_v6, set_multicast_all_v6: bool = IPPROTO_IPV6, IPV6_MULTICAST_ALL;
    /// IPV6_MULTICAST_IF: a device's index.
    multicast_if_v6, set_multicast_if_v6: u32 = IPPROTO_IPV6, IPV6_MULTICAST_IF;
    /// IPV6_MULTICAST_LOOP.
    multicast_loop_v6, set_multicast_loop_v6: bool = IPPROTO_IPV6, IPV6_MULTICAST_LOOP;
    /// IPV6_UNICAST_HOPS.
    unicast_hops_v6, set_unicast_hops_v6: u32 = IPPROTO_IPV6, IPV6_UNICAST_HOPS;
    /// IPV6_V6ONLY.
    only_v6, set_only_v6: bool = IPPROTO_IPV6, IPV6_V6ONLY;
    /// IPV6_RECVTCLASS.
    recv_tclass_v6, set_recv_tclass_v6: bool = IPPROTO_IPV6, IPV6_RECVTCLASS;
    /// IPV6_RECVHOPLIMIT.
    recv_hoplimit_v6, set_recv_hoplimit_v6: bool = IPPROTO_IPV6, IPV6_RECVHOPLIMIT;
    /// IPV6_TCLASS.
    tclass_v6, set_tclass_v6: u32 = IPPROTO_IPV6, IPV6_TCLASS;
}

/// IPv4 groups (ip(7)).
impl Socket {
    fn set_v4<const N: usize>(&self, name: i32, parts: [[u8; 4]; N]) -> io::Result<()> {
        call::set_option(self.fd(), libc::IPPROTO_IP, name, parts.as_flattened())
    }

    /// IP_ADD_MEMBERSHIP on the device that has the address `interface`.
    pub fn join_multicast_v4(&self, multiaddr: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.set_v4(libc::IP_ADD_MEMBERSHIP, [multiaddr.octets(), interface.octets()])
    }

    /// IP_DROP_MEMBERSHIP.
    pub fn leave_multicast_v4(&self, multiaddr: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.set_v4(libc::IP_DROP_MEMBERSHIP, [multiaddr.octets(), interface.octets()])
    }

    /// IP_ADD_MEMBERSHIP with `ip_mreqn`.
    pub fn join_multicast_v4_n(&self, multiaddr: &Ipv4Addr, interface: &InterfaceIndexOrAddress) -> io::Result<()> {
        self.set_v4(libc::IP_ADD_MEMBERSHIP, mreqn(multiaddr, interface))
    }

    /// IP_DROP_MEMBERSHIP with `ip_mreqn`.
    pub fn leave_multicast_v4_n(&self, multiaddr: &Ipv4Addr, interface: &InterfaceIndexOrAddress) -> io::Result<()> {
        self.set_v4(libc::IP_DROP_MEMBERSHIP, mreqn(multiaddr, interface))
    }

    /// IP_ADD_SOURCE_MEMBERSHIP.
    pub fn join_ssm_v4(&self, source: &Ipv4Addr, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        // `ip_mreq_source`: group, interface, source.
        self.set_v4(libc::IP_ADD_SOURCE_MEMBERSHIP, [group.octets(), interface.octets(), source.octets()])
    }

    /// IP_DROP_SOURCE_MEMBERSHIP.
    pub fn leave_ssm_v4(&self, source: &Ipv4Addr, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.set_v4(libc::IP_DROP_SOURCE_MEMBERSHIP, [group.octets(), interface.octets(), source.octets()])
    }

    /// IP_MULTICAST_IF: an address of the device that sends multicasts.
    pub fn multicast_if_v4(&self) -> io::Result<Ipv4Addr> {
        let mut value = [0; 4];
        call::option(self.fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &mut value)?;
        Ok(value.into())
    }

    /// IP_MULTICAST_IF.
    pub fn set_multicast_if_v4(&self, interface: &Ipv4Addr) -> io::Result<()> {
        self.set_v4(libc::IP_MULTICAST_IF, [interface.octets()])
    }

    /// SO_ORIGINAL_DST: the destination before a redirect.
    pub fn original_dst_v4(&self) -> io::Result<SockAddr> {
        call::addr_option(self.fd(), libc::SOL_IP, libc::SO_ORIGINAL_DST)
    }
}

/// `struct ip_mreqn`: group, address, index.
fn mreqn(multiaddr: &Ipv4Addr, interface: &InterfaceIndexOrAddress) -> [[u8; 4]; 3] {
    let (address, index) = match *interface {
        InterfaceIndexOrAddress::Index(index) => (Ipv4Addr::UNSPECIFIED, index),
        InterfaceIndexOrAddress::Address(address) => (address, 0),
    };
    [multiaddr.octets(), address.octets(), index.to_ne_bytes()]
}

/// IPv6 groups (ipv6(7)).
impl Socket {
    /// IPV6_ADD_MEMBERSHIP on the device with that index.
    pub fn join_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()> {
        call::set_option(self.fd(), libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &mreq6(multiaddr, interface))
    }

    /// IPV6_DROP_MEMBERSHIP.
    pub fn leave_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()> {
        call::set_option(self.fd(), libc::IPPROTO_IPV6, libc::IPV6_DROP_MEMBERSHIP, &mreq6(multiaddr, interface))
    }

    /// IP6T_SO_ORIGINAL_DST: the destination before a redirect.
    pub fn original_dst_v6(&self) -> io::Result<SockAddr> {
        call::addr_option(self.fd(), libc::SOL_IPV6, libc::IP6T_SO_ORIGINAL_DST)
    }
}

/// `struct ipv6_mreq`.
fn mreq6(multiaddr: &Ipv6Addr, interface: u32) -> [u8; 20] {
    let mut value = [0; 20];
    value[..16].copy_from_slice(&multiaddr.octets());
    value[16..].copy_from_slice(&interface.to_ne_bytes());
    value
}

const _: () = assert!(size_of::<libc::ipv6_mreq>() == 20 && size_of::<libc::ip_mreqn>() == 12);
