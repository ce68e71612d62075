//! The TCP header (RFC 9293 section 3.1).

use crate::seq::SeqNum;
use core::fmt;
use core::ops::{BitOr, BitOrAssign};

#[cfg(test)]
mod tests;

/// Length of a header without options in bytes.
pub(crate) const HEADER_LEN: usize = 20;
/// Maximum length of the options.
pub(crate) const OPTIONS_MAX: usize = 40;
/// Offset of the checksum in the header.
pub(crate) const CHECKSUM_OFFSET: u16 = 16;

/// A set of control bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: TcpFlags = TcpFlags(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: TcpFlags = TcpFlags(0x02);
    /// Reset.
    pub const RST: TcpFlags = TcpFlags(0x04);
    /// Push.
    pub const PSH: TcpFlags = TcpFlags(0x08);
    /// The acknowledgment field is valid.
    pub const ACK: TcpFlags = TcpFlags(0x10);
    /// The urgent pointer is valid.
    pub const URG: TcpFlags = TcpFlags(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: TcpFlags = TcpFlags(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: TcpFlags = TcpFlags(0x80);
    /// No bit.
    pub const NONE: TcpFlags = TcpFlags(0);

    /// Returns true if all of `other` are set.
    #[inline]
    pub const fn contains(self, other: TcpFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if any of `other` are set.
    #[inline]
    pub const fn intersects(self, other: TcpFlags) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the union with `other`, also in constants.
    #[inline]
    pub const fn with(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | other.0)
    }

    /// Returns the set without the bits of `other`.
    #[inline]
    pub const fn without(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 & !other.0)
    }

    /// Returns true if FIN is set.
    #[inline]
    pub const fn fin(self) -> bool {
        self.intersects(Self::FIN)
    }

    /// Returns true if SYN is set.
    #[inline]
    pub const fn syn(self) -> bool {
        self.intersects(Self::SYN)
    }

    /// Returns true if RST is set.
    #[inline]
    pub const fn rst(self) -> bool {
        self.intersects(Self::RST)
    }

    /// Returns true if ACK is set.
    #[inline]
    pub const fn ack(self) -> bool {
        self.intersects(Self::ACK)
    }

    /// Returns the sequence numbers that the bits take: one for SYN, one for FIN.
    #[inline]
    pub const fn seq_len(self) -> u32 {
        self.syn() as u32 + self.fin() as u32
    }
}

impl BitOr for TcpFlags {
    type Output = TcpFlags;
    #[inline]
    fn bitor(self, other: TcpFlags) -> TcpFlags {
        self.with(other)
    }
}

impl BitOrAssign for TcpFlags {
    #[inline]
    fn bitor_assign(&mut self, other: TcpFlags) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        let mut set = NAMES.iter().enumerate().filter(|(bit, _)| self.0 & (1 << bit) != 0);
        let Some((_, first)) = set.next() else { return f.write_str("-") };
        f.write_str(first)?;
        set.try_for_each(|(_, name)| write!(f, "|{name}"))
    }
}

/// Fields of a header to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first byte (or of SYN).
    pub seq: SeqNum,
    /// Next sequence number expected.
    pub ack: SeqNum,
    /// Control bits.
    pub flags: TcpFlags,
    /// The window field, already scaled.
    pub window: u16,
    /// The urgent pointer: valid with URG.
    pub urgent: u16,
    /// Length of the options that follow: a multiple of 4, at most [`OPTIONS_MAX`].
    pub options_len: u8,
}

impl TcpHeader {
    /// Writes the fixed 20 bytes. The checksum field is zero, so that the segment can be summed.
    #[inline]
    pub(crate) fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        debug_assert!(self.options_len.is_multiple_of(4) && usize::from(self.options_len) <= OPTIONS_MAX);
        let [s0, s1] = self.src_port.to_be_bytes();
        let [d0, d1] = self.dst_port.to_be_bytes();
        let [q0, q1, q2, q3] = self.seq.0.to_be_bytes();
        let [a0, a1, a2, a3] = self.ack.0.to_be_bytes();
        let [w0, w1] = self.window.to_be_bytes();
        let [u0, u1] = self.urgent.to_be_bytes();
        let data_offset = (HEADER_LEN as u8 + self.options_len) << 2;
        *out = [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, data_offset, self.flags.0, w0, w1, 0, 0, u0, u1];
    }
}

/// Writes a checksum into the header that begins at the start of `segment`.
#[inline]
pub(crate) fn set_checksum(segment: &mut [u8; HEADER_LEN], checksum: u16) {
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
}
