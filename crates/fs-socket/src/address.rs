//! Socket addresses between the kernel's form and std's.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::types::Address;

pub(crate) const AF_UNSPEC: u32 = 0;
pub(crate) const AF_INET: u32 = 2;
pub(crate) const AF_INET6: u32 = 10;

/// The family that an address names; `None`: too short to name one.
pub(crate) fn family(raw: &[u8]) -> Option<u32> {
    raw.first_chunk().map(|bytes| u32::from(u16::from_ne_bytes(*bytes)))
}

/// An address as the kernel would take it for a socket of `domain`; `None`: it would not.
pub(crate) fn parse(raw: &[u8], domain: u32) -> Option<SocketAddr> {
    if family(raw)? != domain {
        return None;
    }
    let port = u16::from_be_bytes([*raw.get(2)?, *raw.get(3)?]);
    match domain {
        AF_INET if raw.len() >= 16 => {
            let octets: [u8; 4] = raw[4..8].try_into().ok()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(octets), port).into())
        }
        // SIN6_LEN_RFC2133 of the kernel: the scope may be missing.
        AF_INET6 if raw.len() >= 24 => {
            let flow = u32::from_be_bytes(raw[4..8].try_into().ok()?);
            let octets: [u8; 16] = raw[8..24].try_into().ok()?;
            let scope = raw.get(24..28).map_or(0, |scope| u32::from_ne_bytes([scope[0], scope[1], scope[2], scope[3]]));
            Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, flow, scope).into())
        }
        _ => None,
    }
}

/// For a socket of `domain`: an IPv4 address on an IPv6 socket is shown mapped, as the kernel does.
pub(crate) fn raw(address: SocketAddr, domain: u32) -> Address {
    let mut bytes = [0_u8; 28];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    if domain == AF_INET6 {
        bytes[..2].copy_from_slice(&(AF_INET6 as u16).to_ne_bytes());
        let (ip, scope) = match address {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        bytes[8..24].copy_from_slice(&ip.octets());
        bytes[24..28].copy_from_slice(&scope.to_ne_bytes());
        return Address::new(&bytes);
    }
    bytes[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => ip.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED),
    };
    bytes[4..8].copy_from_slice(&ip.octets());
    Address::new(&bytes[..16])
}

/// Mapped IPv4 as IPv4; the unspecified address as loopback, which is where the kernel connects it to.
pub(crate) fn destination(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    match (address, ip) {
        (SocketAddr::V6(v6), IpAddr::V6(ip)) => SocketAddrV6::new(ip, v6.port(), 0, v6.scope_id()).into(),
        (_, ip) => SocketAddr::new(ip, address.port()),
    }
}
