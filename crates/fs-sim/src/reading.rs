//! How an end reads: at once, or as slow readers do.

use crate::rng::Rng;
use fs_core::Duration;

/// How an end reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It reads at most this many bytes, then nothing for a time between these two, and so on.
    Bursts(u64, Duration, Duration),
    /// It reads once this many bytes are unread. It checks this many times, every [`Reading::CHECK`], and
    /// then reads what there is.
    Whole(u64, u32),
}

impl Reading {
    /// Time between two checks of [`Reading::Whole`].
    pub const CHECK: Duration = Duration::from_micros(100);

    /// Draws a slow reader: one that reads little at a time, in bursts, with pauses of more than a tail loss
    /// probe (2 ms), or of about Linux's delay of ACKs (40 ms), that stops for seconds, or that waits for
    /// a whole message.
    pub fn draw_slow(rng: &mut Rng) -> Self {
        let us = Duration::from_micros;
        let burst = rng.log_size(64 << 10, 2 << 20);
        match rng.below(6) {
            0 => Reading::Bursts(rng.log_size(4 << 10, 64 << 10), Duration::ZERO, us(200)),
            1 => Reading::Bursts(burst, us(10), us(2_000)),
            2 => Reading::Bursts(burst, us(2_000), us(12_000)),
            3 => Reading::Bursts(burst, us(36_000), us(44_000)),
            4 => Reading::Bursts(2 * burst, us(500_000), us(8_000_000)),
            _ => Reading::Whole(rng.range(300 << 10, 1 << 20), 3_000),
        }
    }
}

/// The reading half of an end.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// `None`: it reads whatever there is, at once.
    reading: Option<Reading>,
    /// Bytes left of the current burst; 0: none has begun.
    burst: u64,
    /// Checks of [`Reading::Whole`] so far.
    checks: u32,
    resting: bool,
    /// A rest that nobody has been told of.
    rest: Option<Duration>,
}

impl Reader {
    pub(crate) fn reads_like(&mut self, reading: Reading) {
        (self.reading, self.burst, self.checks) = (Some(reading), 0, 0);
    }

    /// Returns true if it reads now, with `unread` bytes there and `left` to read. Otherwise it rests.
    pub(crate) fn reads_now(&mut self, unread: u64, left: u64, rng: &mut Rng) -> bool {
        let Some(reading) = self.reading else { return true };
        if self.resting || self.burst > 0 {
            return !self.resting;
        }
        let rest = match reading {
            Reading::Bursts(most, least, longest) => {
                self.burst = rng.range(most / 2 + 1, most + 1);
                rng.duration(least, longest)
            }
            Reading::Whole(bytes, checks) if unread >= bytes.min(left) || self.checks >= checks => {
                (self.burst, self.checks) = (unread.max(1), 0);
                return true;
            }
            Reading::Whole(..) => {
                self.checks += 1;
                Reading::CHECK
            }
        };
        (self.resting, self.rest) = (true, Some(rest));
        false
    }

    pub(crate) fn rests(&self) -> bool {
        self.resting
    }

    /// Takes the rest that has begun: [`Reader::resume`] must be called after this time.
    pub(crate) fn take_rest(&mut self) -> Option<Duration> {
        self.rest.take()
    }

    pub(crate) fn resume(&mut self) {
        self.resting = false;
    }

    /// Returns how many bytes it reads at most in one call.
    pub(crate) fn most(&self) -> u64 {
        if self.burst > 0 { self.burst } else { u64::MAX }
    }

    pub(crate) fn has_read(&mut self, bytes: u64) {
        self.burst = self.burst.saturating_sub(bytes);
    }
}
