//! The bench's packets: Ethernet, IPv4, UDP.

use std::net::Ipv4Addr;

/// The source and destination port.
pub(crate) const PORT: u16 = 9009;
/// Length of the IPv4 and UDP headers.
pub(crate) const IP_UDP: usize = 28;
/// Length of all headers.
pub(crate) const HEADERS: usize = 14 + IP_UDP;

/// Writes the headers of an IP packet of `size` bytes. The payload is the chunk's previous
/// contents: the bound is the cost of moving packets, not of filling them.
pub(crate) fn write(bytes: &mut [u8], from: Ipv4Addr, to: Ipv4Addr, size: usize) {
    // A veth pair with an XDP program does not check MAC addresses.
    bytes[..6].copy_from_slice(&[0x02, 0, 0, 0, 0, 2]);
    bytes[6..12].copy_from_slice(&[0x02, 0, 0, 0, 0, 1]);
    bytes[12..14].copy_from_slice(&0x0800_u16.to_be_bytes());
    let ip = &mut bytes[14..34];
    ip.copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    ip[2..4].copy_from_slice(&(size as u16).to_be_bytes());
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..20].copy_from_slice(&to.octets());
    let sum: u32 = ip.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let udp = &mut bytes[34..42];
    udp[..2].copy_from_slice(&PORT.to_be_bytes());
    udp[2..4].copy_from_slice(&PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&((size - 20) as u16).to_be_bytes());
    // RFC 768: no checksum.
    udp[6..8].fill(0);
}

/// Swaps source and destination, which is the least that a forwarder has to write. The checksum of
/// the IP header stays valid.
pub(crate) fn turn_around(bytes: &mut [u8]) {
    if bytes.len() < HEADERS {
        return;
    }
    let (to, from) = bytes[..12].split_at_mut(6);
    to.swap_with_slice(from);
    let (from, to) = bytes[26..34].split_at_mut(4);
    from.swap_with_slice(to);
}
