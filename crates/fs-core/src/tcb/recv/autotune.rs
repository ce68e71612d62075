//! Receive-buffer auto-tuning: dynamic right-sizing as in Linux (`tcp_rcv_space_adjust`). The bytes
//! that the application reads in one round trip are what the sender can send in one. The buffer is
//! sized for twice as much plus slow start's growth, so that the window is never the limit.

use crate::rx::steer::TsClock;

/// The next segment's timestamp has to yield a round-trip sample: the top bit of `Autotune::rtt`.
pub(super) const WANTS_SAMPLE: u32 = 1 << 31;

/// Measurement of a connection. All zero until the application has read a segment or more at once.
/// Stored with the counters, not in the extension, since every connection with larger requests has
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Autotune {
    /// Smoothed round trip measured by the receiver, in microseconds (at most a minute); 0:
    /// unknown. Plus [`WANTS_SAMPLE`].
    pub(super) rtt: u32,
    /// Most bytes read in one round trip; 0: the measurement has not begun.
    pub(super) space: u32,
    /// Bytes read in the current measurement.
    pub(super) copied: u32,
    /// Start of the current measurement, in microseconds modulo 2^32.
    pub(super) since_us: u32,
}

impl Autotune {
    /// Takes a sample from a segment with data whose timestamp echoes our `ecr`. One sample per
    /// round trip.
    #[inline]
    pub(crate) fn sample(&mut self, clock: &TsClock, now_ts: impl FnOnce() -> u32, ecr: u32) {
        if self.rtt & WANTS_SAMPLE != 0 {
            self.rtt &= !WANTS_SAMPLE;
            self.take_sample(clock, now_ts(), ecr);
        }
    }

    #[inline(never)]
    fn take_sample(&mut self, clock: &TsClock, now_ts: u32, ecr: u32) {
        // The clock's resolution is `tick_ms`.
        let ms = (now_ts.wrapping_sub(ecr) & !(clock.tick_ms() - 1)).max(clock.tick_ms());
        if ms > 60_000 {
            return;
        }
        let us = ms * 1000;
        self.rtt = if self.rtt == 0 { us } else { self.rtt - self.rtt / 8 + us / 8 };
    }

    /// Returns true if no measurement runs.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.space == 0
    }

    /// Returns the bytes that the application reads per round trip, and the round trip in
    /// microseconds: for TCP_INFO.
    pub(crate) fn figures(&self) -> (u32, u32) {
        (self.space, self.rtt_us())
    }

    #[inline]
    pub(super) fn rtt_us(&self) -> u32 {
        self.rtt & !WANTS_SAMPLE
    }
}

/// A read of the application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// Number of bytes.
    pub(crate) bytes: u32,
    /// Maximum size of the buffer.
    pub(crate) max: u32,
    /// Less than half of the core's receive share is in use.
    pub(crate) room: bool,
    /// Time of the read, in microseconds modulo 2^32.
    pub(crate) now_us: u32,
}

#[cfg(test)]
mod tests;
