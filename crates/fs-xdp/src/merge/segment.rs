//! Reads the headers of a TCP segment as far as merging needs them.

use fs_core::Framing;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
const ETHERNET_LEN: usize = 14;
const VLAN_LEN: usize = 4;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const TCP_LEN: usize = 20;
const TCP: u8 = 6;

/// Offsets of the fields of a TCP header (RFC 9293 section 3.1).
pub(crate) const SEQ: usize = 4;
pub(crate) const DATA_OFFSET: usize = 12;
pub(crate) const FLAGS: usize = 13;
pub(crate) const WINDOW: usize = 14;
pub(crate) const CHECKSUM: usize = 16;
pub(crate) const URGENT: usize = 18;

/// TCP flags.
pub(crate) const FIN: u8 = 0x01;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;

/// Offsets of a TCP segment's headers in its packet, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The IP header.
    pub(crate) network: usize,
    /// The TCP header.
    pub(crate) transport: usize,
    /// The payload.
    pub(crate) payload: usize,
}

impl Layout {
    /// Reads the headers of a packet of `len` bytes that begins with `packet`, which are all of its
    /// headers. Returns `None` unless it is a whole TCP segment over IPv4 without IP options or
    /// over IPv6 without extension headers, with at most one VLAN tag, whose lengths are those of
    /// the packet.
    #[inline]
    pub(crate) fn of(framing: Framing, packet: &[u8], len: usize) -> Option<Layout> {
        let (network, v6) = network(framing, packet)?;
        let ip = &packet[network..];
        let (header, protocol, length) = if v6 {
            let ip = ip.first_chunk::<IPV6_LEN>()?;
            (IPV6_LEN, ip[6], usize::from(u16::from_be_bytes([ip[4], ip[5]])) + IPV6_LEN)
        } else {
            let ip = ip.first_chunk::<IPV4_LEN>()?;
            // Don't Fragment and no fragment: RFC 6864 then gives the identification no meaning, so the kernel may
            // count it up from segment to segment.
            if ip[0] != 0x45 || ip[6..8] != [0x40, 0] {
                return None;
            }
            (IPV4_LEN, ip[9], usize::from(u16::from_be_bytes([ip[2], ip[3]])))
        };
        if protocol != TCP || length != len - network {
            return None;
        }
        let tcp = ip[header..].first_chunk::<TCP_LEN>()?;
        let tcp_len = usize::from(tcp[DATA_OFFSET] >> 4) * 4;
        if tcp_len < TCP_LEN || header + tcp_len > ip.len() {
            return None;
        }
        let transport = network + header;
        Some(Layout { network, transport, payload: transport + tcp_len })
    }

    /// The segment is over IPv6.
    #[inline]
    pub(crate) fn is_v6(self) -> bool {
        self.transport - self.network == IPV6_LEN
    }

    /// Returns the offset of the IP header's length field.
    #[inline]
    pub(crate) fn length_field(self) -> usize {
        self.network + if self.is_v6() { 4 } else { 2 }
    }
}

/// The offset of the IP header, and whether it is of IPv6.
#[inline]
fn network(framing: Framing, packet: &[u8]) -> Option<(usize, bool)> {
    if framing == Framing::Ip {
        return match packet.first()? >> 4 {
            4 => Some((0, false)),
            6 => Some((0, true)),
            _ => None,
        };
    }
    let ethertype = |at: usize| -> Option<[u8; 2]> { packet.get(at..at + 2)?.try_into().ok() };
    let (network, kind) = match ethertype(ETHERNET_LEN - 2)? {
        ETHERTYPE_VLAN => (ETHERNET_LEN + VLAN_LEN, ethertype(ETHERNET_LEN + VLAN_LEN - 2)?),
        kind => (ETHERNET_LEN, kind),
    };
    match kind {
        ETHERTYPE_IPV4 => Some((network, false)),
        ETHERTYPE_IPV6 => Some((network, true)),
        _ => None,
    }
}

/// A number for the flow that a packet belongs to, below `1 << bits`; `None` if it is no TCP
/// segment. Two flows may have the same number.
#[inline]
pub(crate) fn flow_number(framing: Framing, packet: &[u8], bits: u32) -> Option<usize> {
    let (network, v6) = network(framing, packet)?;
    let (protocol, transport) = if v6 { (network + 6, network + IPV6_LEN) } else { (network + 9, network + IPV4_LEN) };
    if *packet.get(protocol)? != TCP {
        return None;
    }
    let ports = u32::from_be_bytes(packet.get(transport..transport + 4)?.try_into().ok()?);
    // The end of the destination address.
    let remote = u32::from_be_bytes(packet.get(transport - 4..transport)?.try_into().ok()?);
    // Fibonacci hashing: the top bits of a product with 2^32 divided by the golden ratio.
    Some(((ports ^ remote.rotate_left(16)).wrapping_mul(0x9e37_79b9) >> (32 - bits)) as usize)
}
