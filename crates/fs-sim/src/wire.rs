//! Rules for every packet that a stack sends, checked without the engine's own code: lengths are
//! consistent, checksums are right, the MTU is respected. Deliberately simple: one obvious loop per
//! check.

use fs_core::{Framing, TxChecksum};

/// Completes a checksum that the stack left to the device.
pub fn finish_checksum(packet: &mut [u8], request: TxChecksum) -> Result<(), String> {
    let (start, at) = (request.start as usize, request.start as usize + request.offset as usize);
    if at + 2 > packet.len() || start > packet.len() {
        return Err(format!("checksum request {request:?} reaches over a packet of {} bytes", packet.len()));
    }
    let sum = !fold(sum(&packet[start..]));
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// Returns the offset of the IP header; `None` if it is not IP.
pub fn ip_offset(packet: &[u8], framing: Framing) -> Option<usize> {
    match (framing, packet.get(12..14)) {
        (Framing::Ip, _) => Some(0),
        (Framing::Ethernet, Some([0x08, 0x00] | [0x86, 0xdd])) => Some(14),
        (Framing::Ethernet, Some([0x81, 0x00])) => {
            matches!(packet.get(16..18)?, [0x08, 0x00] | [0x86, 0xdd]).then_some(18)
        }
        (Framing::Ethernet, _) => None,
    }
}

/// Returns the packet marked with CE (RFC 3168 section 5) as a router does it; `None` if its ECN
/// field is not ECT.
pub fn mark_congestion(packet: &[u8], framing: Framing) -> Option<Vec<u8>> {
    let at = ip_offset(packet, framing)?;
    let ip = packet.get(at..)?;
    let (version, ecn) = match ip.first()? >> 4 {
        4 => (4, ip.get(1)? & 3),
        6 => (6, (ip.get(1)? >> 4) & 3),
        _ => return None,
    };
    if ecn == 0 {
        return None;
    }
    let mut marked = packet.to_vec();
    if version == 6 {
        marked[at + 1] |= 3 << 4;
        return Some(marked);
    }
    marked[at + 1] |= 3;
    let header = usize::from(ip[0] & 15) * 4;
    marked.get(at + header..)?;
    marked[at + 10..at + 12].fill(0);
    let checksum = checksum(&marked[at..at + header], 0);
    marked[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
    Some(marked)
}

/// Returns the Internet checksum (RFC 1071) of `bytes`, added to a sum.
pub fn checksum(bytes: &[u8], before: u64) -> u16 {
    !fold(before + sum(bytes))
}

pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let mut total: u64 = (&mut words).map(|w| u64::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    if let [last] = words.remainder() {
        total += u64::from(*last) << 8;
    }
    total
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Checks one packet that leaves a stack.
pub fn check(packet: &[u8], framing: Framing, vlan: bool, mtu: usize) -> Result<(), String> {
    let ip = match (framing, vlan) {
        (Framing::Ip, _) => packet,
        (Framing::Ethernet, false) => packet.get(14..).ok_or("shorter than an Ethernet header")?,
        (Framing::Ethernet, true) => packet.get(18..).ok_or("shorter than a tagged Ethernet header")?,
    };
    if framing == Framing::Ethernet {
        let at = if vlan { 16 } else { 12 };
        match [packet[at], packet[at + 1]] {
            [0x08, 0x00] | [0x86, 0xdd] => {}
            [0x08, 0x06] => return Ok(()),
            other => return Err(format!("EtherType {other:02x?}")),
        }
    }
    if ip.len() > mtu {
        return Err(format!("{} bytes of IP over an MTU of {mtu}", ip.len()));
    }
    match ip.first().map(|b| b >> 4) {
        Some(4) => ipv4(ip),
        Some(6) => ipv6(ip),
        _ => Err("neither IPv4 nor IPv6".into()),
    }
}

fn ipv4(ip: &[u8]) -> Result<(), String> {
    let header = usize::from(ip[0] & 15) * 4;
    if ip.len() < 20 || header < 20 || ip.len() < header {
        return Err("short IPv4 header".into());
    }
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    if total != ip.len() {
        return Err(format!("IPv4 total length {total} in a packet of {}", ip.len()));
    }
    if fold(sum(&ip[..header])) != 0xffff {
        return Err("IPv4 header checksum".into());
    }
    if ip[8] == 0 {
        return Err("TTL 0".into());
    }
    let payload = &ip[header..];
    match ip[9] {
        1 if fold(sum(payload)) != 0xffff => Err("ICMP checksum".into()),
        1 => Ok(()),
        protocol => transport(protocol, payload, sum(&ip[12..20])),
    }
}

fn ipv6(ip: &[u8]) -> Result<(), String> {
    if ip.len() < 40 {
        return Err("short IPv6 header".into());
    }
    let length = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    if length + 40 != ip.len() {
        return Err(format!("IPv6 payload length {length} in a packet of {}", ip.len()));
    }
    transport(ip[6], &ip[40..], sum(&ip[8..40]))
}

fn transport(protocol: u8, payload: &[u8], addresses: u64) -> Result<(), String> {
    let pseudo = addresses + u64::from(protocol) + payload.len() as u64;
    match protocol {
        6 => {
            if payload.len() < 20 {
                return Err("short TCP header".into());
            }
            let header = usize::from(payload[12] >> 4) * 4;
            if header < 20 || header > payload.len() {
                return Err(format!("TCP data offset {header} in {} bytes", payload.len()));
            }
        }
        17 if payload.len() >= 8 && payload[6..8] == [0, 0] => return Ok(()),
        17 | 58 => {}
        // Multicast listener reports follow a hop-by-hop header.
        0 => return Ok(()),
        other => return Err(format!("IP protocol {other}")),
    }
    if fold(pseudo + sum(payload)) != 0xffff {
        return Err(format!("checksum of IP protocol {protocol}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a SYN from 10.77.0.1:1000 to 10.77.0.2:80, with checksums computed by hand below.
    fn syn() -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
        packet.extend([0x03, 0xe8, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
        // 4500+0028+4000+4006+0a4d+0001+0a4d+0002 = d9cb
        packet[10..12].copy_from_slice(&(!0xd9cbu16).to_be_bytes());
        // 0a4d+0001+0a4d+0002+0006+0014 + 03e8+0050+0001+5002+ffff = 168f3+..., folded
        let sum: u32 = [0x0a4d, 1, 0x0a4d, 2, 6, 20, 0x03e8, 0x50, 0, 1, 0x5002, 0xffff].iter().sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        packet[36..38].copy_from_slice(&(!(folded as u16)).to_be_bytes());
        packet
    }

    #[test]
    fn accepts_valid_packet_and_rejects_bad_ones() {
        let good = syn();
        assert_eq!(check(&good, Framing::Ip, false, 1500), Ok(()));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 4;
            assert!(check(&bad, Framing::Ip, false, 1500).is_err(), "damage at {at} passes");
        }
        assert!(check(&good, Framing::Ip, false, 39).is_err(), "larger than the MTU");
        assert!(check(&good[..39], Framing::Ip, false, 1500).is_err(), "cut short");
    }

    #[test]
    fn completes_checksum_left_to_device() {
        let good = syn();
        let mut packet = good.clone();
        // The pseudo-header's sum, which the engine leaves in the field.
        packet[36..38].copy_from_slice(&fold(sum(&good[12..20]) + 6 + 20).to_be_bytes());
        finish_checksum(&mut packet, TxChecksum { start: 20, offset: 16 }).unwrap();
        assert_eq!(packet, good);
        assert!(finish_checksum(&mut packet, TxChecksum { start: 20, offset: 30 }).is_err());
    }
}
