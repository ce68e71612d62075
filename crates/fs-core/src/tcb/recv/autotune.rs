//! Receive-buffer auto-tuning: dynamic right-sizing as Linux does it (`tcp_rcv_space_adjust`). What the
//! application reads in one round trip is what the sender can send in one; the buffer is made to hold twice as
//! much and room for slow start's growth, so that the window is never what limits.

use crate::rx::steer::TsClock;

/// The next segment's timestamp is to give a sample of the round trip: the top bit of `Autotune::rtt`.
pub(super) const WANTS_SAMPLE: u32 = 1 << 31;

/// A connection's measure. All zero until it has read a segment or more at once. With its counts, not in the extension:
/// every connection whose requests are not small has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Autotune {
    /// Smoothed round trip as the receiver sees it, in microseconds (at most a minute); 0: unknown. And [`WANTS_SAMPLE`].
    pub(super) rtt: u32,
    /// Most that was read in one round trip; 0: the measure has not begun.
    pub(super) space: u32,
    /// Read in the current measure.
    pub(super) copied: u32,
    /// When the current measure began, in microseconds modulo 2^32.
    pub(super) since_us: u32,
}

impl Autotune {
    /// A segment with data has come, whose timestamp echoes ours of `ecr`. One sample a round trip.
    #[inline]
    pub(crate) fn sample(&mut self, clock: &TsClock, now_ts: impl FnOnce() -> u32, ecr: u32) {
        if self.rtt & WANTS_SAMPLE != 0 {
            self.rtt &= !WANTS_SAMPLE;
            self.take_sample(clock, now_ts(), ecr);
        }
    }

    #[inline(never)]
    fn take_sample(&mut self, clock: &TsClock, now_ts: u32, ecr: u32) {
        // The clock's steps are `tick_ms` long: less cannot be told.
        let ms = (now_ts.wrapping_sub(ecr) & !(clock.tick_ms() - 1)).max(clock.tick_ms());
        if ms > 60_000 {
            return;
        }
        let us = ms * 1000;
        self.rtt = if self.rtt == 0 { us } else { self.rtt - self.rtt / 8 + us / 8 };
    }

    /// Nothing is measured.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.space == 0
    }

    /// Bytes that the application reads in a round trip, and the round trip, in microseconds: for TCP_INFO.
    pub(crate) fn figures(&self) -> (u32, u32) {
        (self.space, self.rtt_us())
    }

    #[inline]
    pub(super) fn rtt_us(&self) -> u32 {
        self.rtt & !WANTS_SAMPLE
    }
}

/// The application has read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// So many bytes.
    pub(crate) bytes: u32,
    /// Most that the buffer may grow to.
    pub(crate) max: u32,
    /// The core's receive share is not half spent.
    pub(crate) room: bool,
    /// When, in microseconds modulo 2^32.
    pub(crate) now_us: u32,
}

#[cfg(test)]
mod tests;
