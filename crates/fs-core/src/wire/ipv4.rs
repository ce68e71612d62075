//! IPv4 (RFC 791). Options are skipped; fragments are rejected.

use crate::drop_reason::DropReason;
use crate::wire::checksum::Sum;

#[cfg(test)]
mod tests;

/// Length of a header without options in bytes.
pub(crate) const HEADER_LEN: usize = 20;
/// Protocol number of ICMP.
pub(crate) const ICMP: u8 = 1;
/// Protocol number of TCP.
pub(crate) const TCP: u8 = 6;
/// Protocol number of UDP.
pub(crate) const UDP: u8 = 17;

/// A checked header: lengths are consistent, the checksum is right, the packet is not a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv4View {
    /// Source address, host order.
    pub src: u32,
    /// Destination address, host order.
    pub dst: u32,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// Type of service: DSCP, and in the low two bits the ECN field (RFC 3168).
    pub tos: u8,
    /// Length of the header with its options.
    pub header_len: u8,
    /// Length of the whole packet (at least `header_len`).
    pub total_len: u16,
}

/// Reads and checks the header at the start of `packet`. `available` is the packet's length with
/// all its continuations, which may exceed the header's length field (Ethernet padding).
#[inline(always)]
pub(crate) fn parse(packet: &[u8], available: usize) -> Result<Ipv4View, DropReason> {
    let h = packet.first_chunk::<HEADER_LEN>().ok_or(DropReason::Malformed)?;
    let header_len = usize::from(h[0] & 0x0f) * 4;
    let total_len = u16::from_be_bytes([h[2], h[3]]);
    if h[0] >> 4 != 4 || header_len < HEADER_LEN || header_len > usize::from(total_len) {
        return Err(DropReason::Malformed);
    }
    if usize::from(total_len) > available {
        return Err(DropReason::Malformed);
    }
    let mut sum = Sum::of_short(h);
    if header_len > HEADER_LEN {
        sum = sum.add(Sum::of_short(packet.get(HEADER_LEN..header_len).ok_or(DropReason::Malformed)?));
    }
    if !sum.is_valid() {
        return Err(DropReason::BadIpChecksum);
    }
    // More fragments, or a fragment offset: RFC 791 3.1. The reserved and the DF bit are ignored.
    if u16::from_be_bytes([h[6], h[7]]) & 0x3fff != 0 {
        return Err(DropReason::Fragment);
    }
    Ok(Ipv4View {
        src: u32::from_be_bytes([h[12], h[13], h[14], h[15]]),
        dst: u32::from_be_bytes([h[16], h[17], h[18], h[19]]),
        protocol: h[9],
        ttl: h[8],
        tos: h[1],
        header_len: header_len as u8,
        total_len,
    })
}

/// Fields of a header to send. It never has options, and Don't Fragment is always set: path MTU
/// discovery (RFC 1191) requires it, and it allows the identification to be zero (RFC 6864 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv4Header {
    /// Source address, host order.
    pub src: u32,
    /// Destination address, host order.
    pub dst: u32,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// Differentiated services and ECN: the TOS octet.
    pub tos: u8,
    /// Length of the whole packet, including this header.
    pub total_len: u16,
}

impl Ipv4Header {
    /// Writes the header with its checksum.
    #[inline]
    pub(crate) fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        let [l0, l1] = self.total_len.to_be_bytes();
        let [s0, s1, s2, s3] = self.src.to_be_bytes();
        let [d0, d1, d2, d3] = self.dst.to_be_bytes();
        *out = [0x45, self.tos, l0, l1, 0, 0, 0x40, 0, self.ttl, self.protocol, 0, 0, s0, s1, s2, s3, d0, d1, d2, d3];
        let sum = Sum::of_short(out).finish();
        out[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Returns true for a source address that a packet from the network must not have (RFC 1122
/// 3.2.1.3): "this network", loopback (unless the destination is loopback too, as on `lo`),
/// multicast, reserved, broadcast.
#[inline]
pub(crate) fn is_bad_source(src: u32, dst: u32) -> bool {
    let first = src >> 24;
    first.wrapping_sub(1) >= 223 || (first == 127 && dst >> 24 != 127)
}

/// Returns true for a unicast destination address.
#[inline]
pub(crate) fn is_unicast(dst: u32) -> bool {
    (dst >> 24).wrapping_sub(1) < 223
}
