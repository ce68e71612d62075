//! CUBIC: RFC 9438, in integers.
//!
//! Windows are bytes. Time is counted in 1024ths of a second: K is above one second for any reduction by a
//! segment or more, so a step is less than 0.1 % of it.

use super::algorithm::{AckSample, Algorithm, CWND_MAX, Phase, Window, restart_after_idle, slow_start};
use crate::time::{Duration, Instant};

/// Time differences beyond this (1024 s, in 1024ths) are clamped. Their cube would not fit; K is at
/// most 137 s for the largest window in segments of 536 bytes.
const TIME_MAX: i64 = 1 << 20;

/// C = 0.4 (RFC 9438 section 5.1) in 65536ths.
const C_16: u64 = 26214;

/// Origin and target of the curve, and the window that Reno would have: the state that
/// [`Cubic::undo`] must restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Curve {
    /// Window at the last reduction, bytes; 0: none, or invalidated by a timeout.
    w_max: u32,
    /// Time from the epoch's start at which the curve passes through `w_max`.
    k: u32,
    /// Start of this stage of congestion avoidance; while paused, its duration so far.
    epoch: u32,
    /// Estimate of Reno's window, bytes.
    w_est: u32,
}

/// Tells if `Curve::epoch` and `k` are valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Epoch {
    /// A new stage begins at the next ACK.
    #[default]
    Unset,
    /// The application limited the sender: the stage continues at the next ACK.
    Paused,
    /// Time runs.
    Running,
}

/// CUBIC's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cubic {
    curve: Curve,
    /// Growth of `cwnd` and `w_est` by less than a byte, in 65536ths.
    cwnd_fraction: u16,
    w_est_fraction: u16,
    epoch: Epoch,
    phase: Phase,
    /// `prior` can be restored.
    can_undo: bool,
    prior_epoch: Epoch,
    /// cwnd at the last reduction. From there on W_est grows by Reno's own step.
    cwnd_prior: u32,
    prior_ssthresh: u32,
    prior: Curve,
}

impl Cubic {
    /// Reduces curve (RFC 9438 4.6, 4.7) and threshold.
    fn reduce(&mut self, w: &mut Window, flight: u32, mss: u32) {
        self.prior = self.curve;
        self.prior_epoch = self.epoch;
        self.prior_ssthresh = w.ssthresh;
        self.cwnd_prior = w.cwnd;
        self.can_undo = true;
        self.epoch = Epoch::Unset;
        // ssthresh = flight_size * beta_cubic, beta_cubic = 0.7
        w.ssthresh = tenths(flight.min(w.cwnd), 7).max(2 * mss);
    }

    /// Begins a stage of congestion avoidance (RFC 9438 4.2), or resumes it.
    fn start_epoch(&mut self, cwnd: u32, mss: u32, now: u32) {
        let curve = &mut self.curve;
        if self.epoch == Epoch::Paused {
            curve.epoch = now.wrapping_sub(curve.epoch);
        } else {
            // Slow start beyond w_max, or unknown w_max (4.8, 4.10): the plateau is the current
            // window.
            let w_max = curve.w_max.max(cwnd);
            *curve = Curve { w_max, k: time_to_grow(w_max - cwnd, mss), epoch: now, w_est: cwnd };
            (self.cwnd_fraction, self.w_est_fraction) = (0, 0);
        }
        self.epoch = Epoch::Running;
    }

    /// One ACK in congestion avoidance (RFC 9438 4.2 to 4.5).
    fn avoid(&mut self, w: &mut Window, acked: u32, ack: &AckSample) {
        let (mss, now) = (ack.mss.max(1), ticks(ack.now));
        if self.epoch != Epoch::Running {
            self.start_epoch(w.cwnd, mss, now);
        }
        let cwnd = w.cwnd.max(1);

        // 4.3: W_est += alpha * segments_acked / cwnd, in segments; 3 * (1 - 0.7) / (1 + 0.7) = 9/17, and 1
        // once Reno would have recovered from the last reduction.
        let curve = &mut self.curve;
        let step = if curve.w_est >= self.cwnd_prior { u64::from(mss) } else { u64::from(mss) * 9 / 17 };
        grow(&mut curve.w_est, &mut self.w_est_fraction, step, acked, cwnd);

        // An idle time is counted from the last transmission, and may have moved the epoch into the
        // future by a round trip (Linux: `cubictcp_cwnd_event`).
        let t = i64::from(now.wrapping_sub(curve.epoch).cast_signed().max(0));
        let rtt = i64::from(ack.srtt_us) * 1024 / 1_000_000;
        if curve.at(t, mss) < curve.w_est {
            w.cwnd = cwnd.max(curve.w_est);
        } else {
            // 4.2: target = W_cubic(t + RTT), not below cwnd and not above 1.5 cwnd.
            let target = curve.at(t + rtt, mss).clamp(cwnd, cwnd + cwnd / 2);
            grow(&mut w.cwnd, &mut self.cwnd_fraction, u64::from(target - cwnd), acked, cwnd);
        }
        w.cwnd = w.cwnd.min(CWND_MAX);
    }
}

impl Algorithm for Cubic {
    #[inline]
    fn on_ack(&mut self, w: &mut Window, ack: &AckSample) {
        match self.phase {
            Phase::Recovery => return,
            Phase::Loss => self.phase = Phase::Restart,
            Phase::Open | Phase::Restart => {}
        }
        if ack.app_limited {
            // 5.8: time in which the window could not be used is excluded.
            if self.epoch == Epoch::Running {
                self.curve.epoch = ticks(ack.now).wrapping_sub(self.curve.epoch);
                self.epoch = Epoch::Paused;
            }
            return;
        }
        let mut acked = ack.acked;
        if w.in_slow_start() {
            acked = slow_start(w, acked, ack.mss);
        }
        if acked > 0 {
            self.avoid(w, acked, ack);
        }
    }

    fn on_congestion(&mut self, w: &mut Window, flight: u32, mss: u32, _now: Instant) {
        self.reduce(w, flight, mss);
        // 4.7, fast convergence: the window did not return to its earlier value, so another flow
        // needs capacity.
        let curve = &mut self.curve;
        curve.w_max = if w.cwnd < curve.w_max { tenths(w.cwnd, 17) / 2 } else { w.cwnd };
        w.cwnd = w.ssthresh;
        self.phase = Phase::Recovery;
    }

    fn on_rto(&mut self, w: &mut Window, flight: u32, mss: u32, _now: Instant) {
        // RFC 5681 3.1: unchanged for a segment that the timer has retransmitted before.
        if self.phase != Phase::Loss {
            self.reduce(w, flight, mss);
        }
        // 4.8: the next stage begins with K = 0 and w_max = cwnd.
        self.curve.w_max = 0;
        w.cwnd = mss;
        self.phase = Phase::Loss;
    }

    fn on_recovery_exit(&mut self, w: &mut Window) {
        if self.phase == Phase::Recovery {
            w.cwnd = w.ssthresh;
        }
        self.phase = Phase::Open;
    }

    fn undo(&mut self, w: &mut Window) {
        // 4.9
        if core::mem::take(&mut self.can_undo) {
            w.cwnd = w.cwnd.max(self.cwnd_prior);
            w.ssthresh = w.ssthresh.max(self.prior_ssthresh);
            self.curve = self.prior;
            // That was w_max, except for the slightly higher value of fast convergence.
            self.cwnd_prior = self.curve.w_max;
            self.epoch = self.prior_epoch;
            self.phase = Phase::Open;
        }
    }

    fn on_idle(&mut self, w: &mut Window, idle: Duration, rto: Duration, initial_window: u32) {
        let before = w.cwnd;
        restart_after_idle(w, idle, rto, initial_window);
        if w.cwnd < before {
            // Curve and W_est belong to an earlier window; w_max remains.
            self.epoch = Epoch::Unset;
        } else if self.epoch == Epoch::Running {
            self.curve.epoch = self.curve.epoch.wrapping_add(ticks(Instant::ZERO + idle));
        }
    }
}

impl Curve {
    /// Returns W_cubic(t) = C * (t - K)^3 + W_max in segments (RFC 9438 figure 1), here in bytes
    /// and clamped to a valid window. `t` is in 1024ths of a second.
    #[inline]
    fn at(&self, t: i64, mss: u32) -> u32 {
        let d = (t - i64::from(self.k)).clamp(-TIME_MAX, TIME_MAX);
        let cube = i128::from(d * d * d);
        // 2^30 for the cube of the time unit, 2^16 for C's.
        let offset = (cube * i128::from(u64::from(mss) * C_16)) >> 46;
        (i128::from(self.w_max) + offset).clamp(0, i128::from(CWND_MAX)) as u32
    }
}

/// Adds `amount * acked / cwnd` to `value` and keeps the fraction of a byte: one ACK of a segment
/// often moves a large window by less than a byte.
#[inline]
fn grow(value: &mut u32, fraction: &mut u16, amount: u64, acked: u32, cwnd: u32) {
    // amount < 2^30 and acked <= cwnd <= 2^30 (more than a window has no further effect). The shift
    // by 16 fits only after the integer part is divided off.
    let product = amount * u64::from(acked.min(cwnd));
    let (whole, rest) = (product / u64::from(cwnd), product % u64::from(cwnd));
    let sum = (rest << 16) / u64::from(cwnd) + u64::from(*fraction);
    *fraction = sum as u16;
    *value = value.saturating_add(u32::try_from(whole + (sum >> 16)).unwrap_or(u32::MAX)).min(CWND_MAX);
}

/// Returns K = cbrt(bytes / (C * mss)) (RFC 9438 figure 2), in 1024ths of a second.
fn time_to_grow(bytes: u32, mss: u32) -> u32 {
    // (1024 K)^3 = bytes * 2^30 / (0.4 * mss) = bytes * 5 * 2^29 / mss < 2^62
    cube_root(u64::from(bytes.min(CWND_MAX)) * (5 << 29) / u64::from(mss.max(1)))
}

/// Returns the largest r with r^3 <= x, digit by digit in base two (Warren, "Hacker's Delight"
/// 11-2).
fn cube_root(mut x: u64) -> u32 {
    let mut root: u64 = 0;
    for shift in (0..=63).rev().step_by(3) {
        root *= 2;
        let step = 3 * root * (root + 1) + 1;
        if x >> shift >= step {
            x -= step << shift;
            root += 1;
        }
    }
    root as u32
}

/// Returns `value * n / 10`.
fn tenths(value: u32, n: u64) -> u32 {
    (u64::from(value) * n / 10) as u32
}

/// Returns 1024ths of a second, modulo 2^32 (48 days). Stages of congestion avoidance are shorter
/// than half of that; in a longer one the curve would only become flat.
#[inline]
fn ticks(now: Instant) -> u32 {
    // 1024 / 10^9 = 2 / 1953125, exactly.
    (now.as_nanos() / 1_953_125 * 2 + now.as_nanos() % 1_953_125 * 2 / 1_953_125) as u32
}

#[cfg(test)]
mod tests;
