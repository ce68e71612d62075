//! HyStart++: RFC 9406. Slow start ends when round trips grow, before a queue overflows and
//! hundreds of segments are lost at once.
//!
//! Linux's CUBIC has the original HyStart, which leaves slow start permanently at the first sign,
//! often much too early. HyStart++ continues a quarter as fast for some rounds, and returns to slow
//! start if the sign was false.

use super::algorithm::{Window, slow_start};
use crate::seq::SeqNum;

/// MIN_RTT_THRESH and MAX_RTT_THRESH: relevant growth of the round trip, in microseconds.
const GROWTH_MIN_US: u32 = 4_000;
const GROWTH_MAX_US: u32 = 16_000;
/// MIN_RTT_DIVISOR: between these bounds, the relevant growth is this fraction of the round trip.
const GROWTH_DIVISOR: u32 = 8;
/// N_RTT_SAMPLE: required samples per round.
const SAMPLES: u8 = 8;
/// CSS_GROWTH_DIVISOR: conservative slow start grows slower by this factor.
const CSS_DIVISOR: u32 = 4;
/// CSS_ROUNDS: rounds of conservative slow start after which slow start ends.
const CSS_ROUNDS: u8 = 5;
/// Minimum window in segments: a smaller one cannot fill a queue (Linux `hystart_low_window`).
const WINDOW_MIN: u32 = 16;
/// Minimum round trip: shorter ones are a local network's, where relevant growth shows in the
/// smoothed value.
const RTT_MIN_US: u32 = 1_000;

/// A connection's state in its first slow start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HyStart {
    /// SND.NXT when the round began. Its acknowledgment ends the round.
    round_end: SeqNum,
    /// Shortest round trip of this round and of the previous one; 0: none.
    round_us: u32,
    last_round_us: u32,
    samples: u8,
    /// Remaining rounds of conservative slow start; 0: plain slow start.
    css_left: u8,
    /// Shortest round trip of the round that began conservative slow start.
    css_baseline_us: u32,
}

/// State of the connection after an ACK of new data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowStartAck {
    /// SND.UNA and SND.NXT after it.
    pub(crate) una: SeqNum,
    pub(crate) nxt: SeqNum,
    pub(crate) acked: u32,
    pub(crate) mss: u32,
    /// The round trip measured by this ACK.
    pub(crate) rtt_us: Option<u32>,
}

/// Returns true if HyStart++ is worth its state.
#[inline]
pub(crate) fn applies(w: &Window, mss: u32, srtt_us: u32) -> bool {
    w.ssthresh == u32::MAX && srtt_us >= RTT_MIN_US && w.cwnd >= WINDOW_MIN * mss
}

impl HyStart {
    /// Grows the window of a sender that is limited by it.
    pub(crate) fn on_ack(&mut self, w: &mut Window, ack: &SlowStartAck) {
        if self.round_us == 0 && self.last_round_us == 0 && self.samples == 0 {
            self.round_end = ack.nxt;
        } else if ack.una.at_or_after(self.round_end) {
            self.end_round(w, ack.nxt);
        }
        if let Some(rtt) = ack.rtt_us.map(|rtt| rtt.max(1)) {
            self.round_us = if self.round_us == 0 { rtt } else { self.round_us.min(rtt) };
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= SAMPLES {
            self.check_delay();
        }
        if !w.in_slow_start() {
            return;
        }
        let acked = if self.css_left > 0 { ack.acked / CSS_DIVISOR } else { ack.acked };
        slow_start(w, acked, ack.mss);
    }

    fn end_round(&mut self, w: &mut Window, nxt: SeqNum) {
        if self.css_left > 0 {
            self.css_left -= 1;
            if self.css_left == 0 {
                w.ssthresh = w.cwnd;
            }
        }
        self.round_end = nxt;
        if self.round_us > 0 {
            self.last_round_us = self.round_us;
        }
        (self.round_us, self.samples) = (0, 0);
    }

    /// RFC 9406 section 4.2.
    fn check_delay(&mut self) {
        if self.css_left > 0 {
            if self.round_us < self.css_baseline_us {
                // The sign was noise.
                (self.css_left, self.css_baseline_us) = (0, 0);
            }
            return;
        }
        if self.last_round_us == 0 {
            return;
        }
        let growth = (self.last_round_us / GROWTH_DIVISOR).clamp(GROWTH_MIN_US, GROWTH_MAX_US);
        if self.round_us >= self.last_round_us.saturating_add(growth) {
            self.css_baseline_us = self.round_us;
            self.css_left = CSS_ROUNDS;
        }
    }
}

#[cfg(test)]
mod tests;
