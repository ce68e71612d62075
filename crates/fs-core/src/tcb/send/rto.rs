//! Round-trip time and retransmission timeout: RFC 6298.

use crate::time::{Duration, nanos};

/// Longest round trip of a sample (268 s, beyond any timeout), so that the scaled sums fit.
const SAMPLE_MAX_US: u32 = 1 << 28;

/// RFC 6298 5.7: the timeout after the handshake's had fired, 3 s.
const FALLBACK_US: u32 = 3_000_000;

/// Smoothed round-trip time and its variation, in 8 bytes.
///
/// Stored scaled as in the paper that the RFC cites (Jacobson, appendix A): in whole microseconds,
/// the RFC's eighths would be rounded away at the round trips of one rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RttEstimator {
    /// SRTT in eighths of a microsecond; zero before the first sample.
    srtt_8: u32,
    /// RTTVAR in quarters of a microsecond.
    rttvar_4: u32,
}

impl RttEstimator {
    /// Makes an estimator without a sample.
    pub(crate) const fn new() -> Self {
        Self { srtt_8: 0, rttvar_4: 0 }
    }

    /// Takes a measured round trip in microseconds. It must not come from a retransmitted segment
    /// unless a timestamp identified the transmission (Karn; RFC 6298 section 3).
    #[inline]
    pub(crate) fn sample(&mut self, rtt_us: u32) {
        // Zero would mean "no sample yet"; the clock's granularity is a microsecond.
        let r = rtt_us.clamp(1, SAMPLE_MAX_US);
        if self.srtt_8 == 0 {
            // RFC 6298 2.2: SRTT <- R, RTTVAR <- R/2
            self.srtt_8 = r << 3;
            self.rttvar_4 = r << 1;
        } else {
            // RFC 6298 2.3, in this order: RTTVAR <- 3/4 RTTVAR + 1/4 |SRTT - R|; SRTT <- 7/8 SRTT +
            // 1/8 R. The subtracted part is rounded to the nearest, so that a steady round trip
            // is approached from both sides.
            let error_8 = self.srtt_8.abs_diff(r << 3);
            self.rttvar_4 = self.rttvar_4 - nearest(self.rttvar_4, 4) + nearest(error_8, 8);
            self.srtt_8 = self.srtt_8 - nearest(self.srtt_8, 8) + r;
        }
    }

    /// Records that the handshake yielded no sample, because its segments were retransmitted: RFC
    /// 6298 5.7 raises the first timeout.
    pub(crate) fn distrust(&mut self) {
        if !self.has_sample() {
            // Without a sample RTTVAR contains the timeout: 3 s in quarters of a microsecond.
            self.rttvar_4 = FALLBACK_US * 4;
        }
    }

    /// Returns true once a round trip has been measured.
    #[inline]
    pub(crate) fn has_sample(&self) -> bool {
        self.srtt_8 != 0
    }

    /// Returns SRTT in microseconds (at least 1); zero before the first sample.
    #[inline]
    pub(crate) fn srtt_us(&self) -> u32 {
        nearest(self.srtt_8, 8)
    }

    /// Returns RTTVAR in microseconds.
    #[inline]
    pub(crate) fn rttvar_us(&self) -> u32 {
        if self.has_sample() { self.rttvar_4 >> 2 } else { 0 }
    }

    /// Returns the timeout before any backoff: SRTT + max(4 RTTVAR, `min`), at most `max`;
    /// `initial` before the first sample (RFC 6298 2.1).
    ///
    /// RFC 6298 2.4 raises the *sum* to its minimum of 1 s. A minimum of 200 ms for the sum would
    /// fire early on a steady path of, say, 190 ms whose receiver delays one ACK. As in Linux
    /// (`tcp_rtt_estimator`, `tcp_rto_min`) it is applied to the variation, which never yields less
    /// than the RFC's sum.
    #[inline]
    #[cfg(test)]
    pub(crate) fn rto(&self, min: Duration, max: Duration, initial: Duration) -> Duration {
        Duration::from_nanos(self.rto_ns(min, max, initial))
    }

    /// [`RttEstimator::rto`] in nanoseconds.
    #[inline]
    pub(crate) fn rto_ns(&self, min: Duration, max: Duration, initial: Duration) -> u64 {
        if !self.has_sample() {
            // Without a sample RTTVAR is zero, or contains the timeout of RFC 6298 5.7.
            return nanos(initial).max(u64::from(self.rttvar_4 / 4) * 1000).min(nanos(max));
        }
        // RTTVAR is stored times four, the RFC's K.
        let variation = (u64::from(self.rttvar_4) * 1000).max(nanos(min));
        (u64::from(self.srtt_us()) * 1000).saturating_add(variation).min(nanos(max))
    }
}

/// Returns `value / divisor`, rounded to the nearest.
#[inline]
fn nearest(value: u32, divisor: u32) -> u32 {
    (value + divisor / 2) / divisor
}

/// Returns the timeout after `n` retransmissions: doubled each time, at most `max` (RFC 6298 5.5).
#[inline]
pub(crate) fn backoff(rto: Duration, n: u8, max: Duration) -> Duration {
    // A factor of 2^31 exceeds any maximum unless rto is zero.
    rto.saturating_mul(1 << n.min(31)).min(max)
}

#[cfg(test)]
mod tests;
