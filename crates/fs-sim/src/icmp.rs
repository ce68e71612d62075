//! A router's message about a packet that is too big for its next link: ICMP "fragmentation needed"
//! (RFC 792, RFC 1191 section 4) and ICMPv6 "packet too big" (RFC 4443 3.2).

use crate::wire;
use fs_core::Framing;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address of all routers, which no host has.
const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 250);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x250);
/// Maximum size of an error message in bytes: RFC 1812 4.3.2.3.
const V4_MAX: usize = 576;
/// RFC 4443 2.4 (c): IPv6's smallest MTU.
const V6_MAX: usize = 1280;

/// Returns the length of a packet's IP part; `None` if it is not IP.
pub fn ip_len(packet: &[u8], framing: Framing) -> Option<usize> {
    Some(packet.len() - wire::ip_offset(packet, framing)?)
}

/// Returns the source address of an IP packet.
pub fn source(packet: &[u8], framing: Framing) -> Option<IpAddr> {
    let ip = packet.get(wire::ip_offset(packet, framing)?..)?;
    match ip.first()? >> 4 {
        4 => Some(<[u8; 4]>::try_from(ip.get(12..16)?).ok()?.into()),
        6 => Some(<[u8; 16]>::try_from(ip.get(8..24)?).ok()?.into()),
        _ => None,
    }
}

/// Makes the error message about `packet`, in the same framing, for its sender. Returns `None` for
/// packets without one: ICMP itself, and IPv4 packets that may be fragmented (they are lost here,
/// since these routers do not fragment).
pub fn too_big(packet: &[u8], framing: Framing, mtu: u16) -> Option<Vec<u8>> {
    let at = wire::ip_offset(packet, framing)?;
    let ip = &packet[at..];
    let mut out = packet[..at].to_vec();
    if framing == Framing::Ethernet {
        out[..6].copy_from_slice(&packet[6..12]);
        out[6..12].copy_from_slice(&packet[..6]);
    }
    match ip.first()? >> 4 {
        4 if ip.len() >= 20 && ip[6] & 0x40 != 0 && ip[9] != 1 => out.extend(v4(ip, mtu)),
        6 if ip.len() >= 40 && ip[6] != 58 => out.extend(v6(ip, mtu)),
        _ => return None,
    }
    Some(out)
}

fn v4(ip: &[u8], mtu: u16) -> Vec<u8> {
    let quote = &ip[..ip.len().min(V4_MAX - 28)];
    let total = (28 + quote.len()) as u16;
    let mut out = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0];
    out[2..4].copy_from_slice(&total.to_be_bytes());
    out.extend(ROUTER_V4.octets().iter().chain(&ip[12..16]));
    out.extend([3, 4, 0, 0, 0, 0]);
    out.extend(mtu.to_be_bytes());
    out.extend(quote);
    let header = wire::checksum(&out[..20], 0);
    out[10..12].copy_from_slice(&header.to_be_bytes());
    let message = wire::checksum(&out[20..], 0);
    out[22..24].copy_from_slice(&message.to_be_bytes());
    out
}

fn v6(ip: &[u8], mtu: u16) -> Vec<u8> {
    let quote = &ip[..ip.len().min(V6_MAX - 48)];
    let length = (8 + quote.len()) as u16;
    let mut out = vec![0x60, 0, 0, 0, 0, 0, 58, 64];
    out[4..6].copy_from_slice(&length.to_be_bytes());
    out.extend(ROUTER_V6.octets().iter().chain(&ip[8..24]));
    out.extend([2, 0, 0, 0]);
    out.extend(u32::from(mtu).to_be_bytes());
    out.extend(quote);
    let pseudo = wire::sum(&out[8..40]) + u64::from(length) + 58;
    let message = wire::checksum(&out[40..], pseudo);
    out[42..44].copy_from_slice(&message.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_well_formed() {
        let mut big = vec![0x45, 0, 0x05, 0xdc, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
        big.resize(1500, 7);
        let error = too_big(&big, Framing::Ip, 1400).expect("an answer");
        assert_eq!(wire::check(&error, Framing::Ip, false, V4_MAX), Ok(()));
        assert_eq!((&error[16..20], &error[20..22], &error[26..28]), (&[10, 77, 0, 1][..], &[3, 4][..], &[5, 120][..]));
        big[6] = 0;
        assert_eq!(too_big(&big, Framing::Ip, 1400), None, "may be fragmented");

        let mut big = vec![0x60, 0, 0, 0, 5, 180, 6, 64];
        big.resize(1500, 7);
        let error = too_big(&big, Framing::Ip, 1400).expect("an answer");
        assert_eq!(wire::check(&error, Framing::Ip, false, V6_MAX), Ok(()));
        assert_eq!((error[40], &error[44..48]), (2, &[0, 0, 5, 120][..]));
        assert_eq!(source(&big, Framing::Ip), Some(IpAddr::from([7; 16])));
    }
}
