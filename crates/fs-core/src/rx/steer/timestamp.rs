//! The owner's number in the timestamp option.

use crate::flow::CoreId;
use crate::time::Instant;

/// A timestamp clock (RFC 7323 section 4) whose low bits are the number of the core that owns the
/// connection.
///
/// The peer echoes our timestamps, so a segment names its core even after a change of the NIC's
/// indirection table. A value is the time in milliseconds with its low `bits` bits replaced:
///
/// ```text
///  31                    bits        0
/// | ms >> bits, plus the offset | core |
/// ```
///
/// The clock advances by one per millisecond *on average*, in steps of 2^bits every 2^bits
/// milliseconds. The tick stays within RFC 7323's 1 ms to 1 s for up to 512 cores (5.4). The sign
/// bit wraps in 24.8 days, as peers assume when they forget the timestamps of idle connections
/// (5.5).
///
/// Shifting the milliseconds left instead would keep 1 ms steps, but run 2^bits times too fast:
/// with 8 cores, a connection idle for 3.1 to 24 days would fail the peer's PAWS test and hang. The
/// cost is resolution of the echo alone: round trips are measured from the times at which segments
/// were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TsClock {
    core: u16,
    bits: u8,
}

impl TsClock {
    /// Makes the clock of `core` of `cores` cores. All of a connection's timestamps come from one
    /// clock, or from another with the same number of cores.
    pub(crate) fn new(core: CoreId, cores: u16) -> Self {
        let bits = u32::from(cores.max(1)).next_power_of_two().trailing_zeros() as u8;
        Self { core: core.0 & mask(bits) as u16, bits }
    }

    /// Returns TSval at `now` on a connection with this `offset`, whose low bits are ignored. It
    /// never decreases (modulo 2^32) over time.
    ///
    /// A random offset per connection keeps the clock, and with it the host's uptime, private (RFC
    /// 7323 7.1).
    #[inline]
    pub(crate) fn value(&self, now: Instant, offset: u32) -> u32 {
        let low = mask(self.bits);
        ((now.as_millis() as u32 & !low) | u32::from(self.core)).wrapping_add(offset & !low)
    }

    /// Returns the core that an echoed timestamp names. `ecr` is the received value: the offset
    /// does not touch the low bits and must not be subtracted first. A forged value may name a core
    /// that does not exist.
    #[inline]
    pub(crate) fn owner(&self, ecr: u32) -> CoreId {
        CoreId((ecr & mask(self.bits)) as u16)
    }

    /// Returns the milliseconds from one tick to the next. Two values that differ by less have no
    /// order in time.
    #[inline]
    pub(crate) fn tick_ms(&self) -> u32 {
        1 << self.bits
    }
}

/// Returns a mask of the low `bits` bits; at most 16.
#[inline]
fn mask(bits: u8) -> u32 {
    (1 << bits) - 1
}
