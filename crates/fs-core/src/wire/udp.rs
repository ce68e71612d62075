//! The UDP header (RFC 768).

#[cfg(test)]
mod tests;

/// Length of the header in bytes.
pub(crate) const HEADER_LEN: usize = 8;
/// Offset of the checksum in the header.
pub(crate) const CHECKSUM_OFFSET: u16 = 6;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UdpHeader {
    /// Source port; 0 means that no reply is expected.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of header and payload.
    pub len: u16,
    /// Checksum; 0 means none (IPv4 only: RFC 8200 8.1).
    pub checksum: u16,
}

impl UdpHeader {
    /// Reads the header. Returns `None` if `bytes` is too short, or the length field is less than
    /// the header's length.
    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let [s0, s1, d0, d1, l0, l1, c0, c1] = *bytes.first_chunk::<HEADER_LEN>()?;
        let header = Self {
            src_port: u16::from_be_bytes([s0, s1]),
            dst_port: u16::from_be_bytes([d0, d1]),
            len: u16::from_be_bytes([l0, l1]),
            checksum: u16::from_be_bytes([c0, c1]),
        };
        (usize::from(header.len) >= HEADER_LEN).then_some(header)
    }

    /// Writes the header, including the given checksum.
    #[inline]
    pub(crate) fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        let [s0, s1] = self.src_port.to_be_bytes();
        let [d0, d1] = self.dst_port.to_be_bytes();
        let [l0, l1] = self.len.to_be_bytes();
        let [c0, c1] = self.checksum.to_be_bytes();
        *out = [s0, s1, d0, d1, l0, l1, c0, c1];
    }
}

/// Returns the field's value for a computed checksum: zero is sent as all ones (RFC 768).
#[inline]
pub(crate) fn nonzero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}
