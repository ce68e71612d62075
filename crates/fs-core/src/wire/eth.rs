//! Ethernet II with at most one 802.1Q tag.

#[cfg(test)]
mod tests;

/// Length of an untagged header in bytes.
pub(crate) const HEADER_LEN: usize = 14;
/// Length of a tagged header in bytes.
pub(crate) const TAGGED_HEADER_LEN: usize = 18;
/// EtherType of IPv4.
pub(crate) const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub(crate) const IPV6: u16 = 0x86dd;
/// EtherType of ARP.
pub(crate) const ARP: u16 = 0x0806;
/// The tag of IEEE 802.1Q.
pub(crate) const VLAN: u16 = 0x8100;
/// The broadcast address.
pub(crate) const BROADCAST: [u8; 6] = [0xff; 6];

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EthHeader {
    /// Destination address.
    pub dst: [u8; 6],
    /// Source address.
    pub src: [u8; 6],
    /// VLAN identifier (12 bits); 0 is a priority tag: no VLAN. `None`: not tagged.
    pub vlan: Option<u16>,
    /// Protocol of the payload.
    pub ethertype: u16,
}

impl EthHeader {
    /// Reads a header. Returns it and its length, or `None` if `bytes` is too short.
    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let h = bytes.first_chunk::<HEADER_LEN>()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *h;
        let (dst, src) = ([d0, d1, d2, d3, d4, d5], [s0, s1, s2, s3, s4, s5]);
        let ethertype = u16::from_be_bytes([t0, t1]);
        if ethertype != VLAN {
            return Some((Self { dst, src, vlan: None, ethertype }, HEADER_LEN));
        }
        let [.., v0, v1, t0, t1] = *bytes.first_chunk::<TAGGED_HEADER_LEN>()?;
        let vlan = u16::from_be_bytes([v0, v1]) & 0x0fff;
        Some((Self { dst, src, vlan: Some(vlan), ethertype: u16::from_be_bytes([t0, t1]) }, TAGGED_HEADER_LEN))
    }

    /// Returns the header's length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        if self.vlan.is_some() { TAGGED_HEADER_LEN } else { HEADER_LEN }
    }

    /// Writes the header to the start of `out` and returns its length; 0 if it does not fit.
    #[inline]
    pub(crate) fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.len();
        let Some(out) = out.get_mut(..len) else { return 0 };
        out[0..6].copy_from_slice(&self.dst);
        out[6..12].copy_from_slice(&self.src);
        if let Some(vlan) = self.vlan {
            out[12..14].copy_from_slice(&VLAN.to_be_bytes());
            out[14..16].copy_from_slice(&(vlan & 0x0fff).to_be_bytes());
        }
        out[len - 2..].copy_from_slice(&self.ethertype.to_be_bytes());
        len
    }
}

/// Returns true for group addresses: multicast and broadcast.
#[inline]
pub(crate) fn is_group(mac: &[u8; 6]) -> bool {
    mac[0] & 1 != 0
}
