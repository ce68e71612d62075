//! IPv6 (RFC 8200): the fixed header, and a walk over the extension headers that may precede a
//! transport header. Fragments are rejected.

use crate::drop_reason::DropReason;

#[cfg(test)]
mod tests;

/// Length of the fixed header in bytes.
pub(crate) const HEADER_LEN: usize = 40;
/// Next-header number of ICMPv6.
pub(crate) const ICMP: u8 = 58;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

/// Maximum number of extension headers in the walk. RFC 8200 4.1 recommends at most four kinds, of
/// which destination options may occur twice; more only take time.
const EXTENSION_HEADERS_MAX: usize = 6;

/// A checked header: lengths are consistent and the packet is not a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv6View {
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
    /// Protocol after the last extension header.
    pub protocol: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class: DSCP, and in the low two bits the ECN field (RFC 3168).
    pub traffic_class: u8,
    /// Length of the fixed header and all extension headers.
    pub header_len: u16,
    /// Length of the whole packet (at least `header_len`).
    pub total_len: u32,
}

/// Reads and checks the headers at the start of `packet`. `available` is the packet's length with
/// all its continuations, which may exceed the header's length field (Ethernet padding).
#[inline]
pub(crate) fn parse(packet: &[u8], available: usize) -> Result<Ipv6View, DropReason> {
    let h = packet.first_chunk::<HEADER_LEN>().ok_or(DropReason::Malformed)?;
    let total_len = HEADER_LEN as u32 + u32::from(u16::from_be_bytes([h[4], h[5]]));
    if h[0] >> 4 != 6 || total_len as usize > available {
        return Err(DropReason::Malformed);
    }
    let mut view = Ipv6View {
        src: *h[8..].first_chunk().ok_or(DropReason::Malformed)?,
        dst: *h[24..].first_chunk().ok_or(DropReason::Malformed)?,
        protocol: h[6],
        hop_limit: h[7],
        traffic_class: h[0] << 4 | h[1] >> 4,
        header_len: HEADER_LEN as u16,
        total_len,
    };
    if matches!(view.protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS) {
        walk(&packet[..packet.len().min(total_len as usize)], &mut view)?;
    }
    Ok(view)
}

/// Moves `view` past the extension headers. `packet` ends at the packet's end.
#[cold]
fn walk(packet: &[u8], view: &mut Ipv6View) -> Result<(), DropReason> {
    for turn in 0..EXTENSION_HEADERS_MAX {
        let header = &packet[usize::from(view.header_len)..];
        match view.protocol {
            FRAGMENT => return Err(DropReason::Fragment),
            // RFC 8200 4.1: only directly after the fixed header.
            HOP_BY_HOP if turn > 0 => return Err(DropReason::Malformed),
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {}
            _ => return Ok(()),
        }
        let [next, len, _, segments_left] = *header.first_chunk::<4>().ok_or(DropReason::Malformed)?;
        let header = header.get(..8 + usize::from(len) * 8).ok_or(DropReason::Malformed)?;
        match view.protocol {
            // RFC 8200 4.4: a routing header with no segments left is ignored; this host is not a
            // router.
            ROUTING if segments_left != 0 => return Err(DropReason::NotOurProtocol),
            ROUTING => {}
            _ => check_options(&header[2..])?,
        }
        view.protocol = next;
        view.header_len += header.len() as u16;
    }
    Err(DropReason::Malformed)
}

/// Checks a header's options. RFC 8200 4.2: an unknown option whose two high bits are not zero
/// forbids processing the packet. The jumbo payload option (RFC 2675) is one of them. (The ICMP
/// error that some of them require is not sent.)
fn check_options(mut options: &[u8]) -> Result<(), DropReason> {
    while let [kind, rest @ ..] = options {
        if *kind == 0 {
            options = rest;
            continue;
        }
        let [len, rest @ ..] = rest else { return Err(DropReason::Malformed) };
        options = rest.get(usize::from(*len)..).ok_or(DropReason::Malformed)?;
        if *kind != 1 && kind >> 6 != 0 {
            return Err(DropReason::NotOurProtocol);
        }
    }
    Ok(())
}

/// Fields of a header to send. It never has extension headers; the flow label is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv6Header {
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
    /// Protocol of the payload.
    pub protocol: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Differentiated services and ECN.
    pub traffic_class: u8,
    /// Length of the payload.
    pub payload_len: u16,
}

impl Ipv6Header {
    /// Writes the header.
    #[inline]
    pub(crate) fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        let [l0, l1] = self.payload_len.to_be_bytes();
        let start =
            [0x60 | self.traffic_class >> 4, self.traffic_class << 4, 0, 0, l0, l1, self.protocol, self.hop_limit];
        out[..8].copy_from_slice(&start);
        out[8..24].copy_from_slice(&self.src);
        out[24..].copy_from_slice(&self.dst);
    }
}

/// Sets the flow label (the low 20 bits of `label`) of a header that has none (RFC 6437).
#[inline]
pub(crate) fn set_flow_label(header: &mut [u8; HEADER_LEN], label: u32) {
    header[1] = header[1] & 0xf0 | (label >> 16) as u8 & 0x0f;
    header[2] = (label >> 8) as u8;
    header[3] = label as u8;
}

const LOOPBACK: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// Returns true for a source address that a packet from the network must not have: unspecified,
/// multicast, IPv4-mapped (RFC 4291 2.5.5.2 has no such packets; it would alias an IPv4 flow),
/// loopback (unless the destination is loopback too, as on `lo`).
#[inline]
pub(crate) fn is_bad_source(src: &[u8; 16], dst: &[u8; 16]) -> bool {
    if src[0] == 0xff {
        return true;
    }
    src[0] == 0 && (*src == [0; 16] || (*src == LOOPBACK && *dst != LOOPBACK) || is_mapped(src))
}

/// Returns true for a unicast destination address.
#[inline]
pub(crate) fn is_unicast(dst: &[u8; 16]) -> bool {
    dst[0] != 0xff && !(dst[0] == 0 && (*dst == [0; 16] || is_mapped(dst)))
}

/// Returns true for `::1`.
#[inline]
pub(crate) fn is_loopback(addr: &[u8; 16]) -> bool {
    *addr == LOOPBACK
}

fn is_mapped(addr: &[u8; 16]) -> bool {
    addr[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
}
