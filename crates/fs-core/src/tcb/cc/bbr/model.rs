//! The model of the path: draft-ietf-ccwg-bbr section 5.5.

use super::super::pacing;
use super::super::rate::{RateSample, after};
use super::*;

/// BBR.MinRTTFilterLen.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);
/// BBR.ProbeRTTInterval.
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
/// BBR.ExtraAckedFilterLen: ten rounds, kept as two windows of five.
const EXTRA_ACKED_ROUNDS: u32 = 5;
/// Growth of the delivery rate per round, in percent, which shows that the pipe is not full yet.
const FULL_BW_GROWTH: u64 = 125;
/// Rounds without such growth, which show that the pipe is full.
const FULL_BW_ROUNDS: u8 = 3;

impl Bbr {
    /// StartRound.
    pub(super) fn start_round(&mut self) {
        self.next_round_delivered = self.rate.delivered;
    }

    fn update_round(&mut self, rs: &RateSample) {
        self.round_start = rs.prior_delivered.is_some_and(|prior| !after(self.next_round_delivered, prior));
        if self.round_start {
            self.start_round();
            self.round_count = self.round_count.wrapping_add(1);
            self.rounds_since_probe_up += 1;
            self.cwnd_limited = (self.cwnd_limited.1, false);
        }
    }

    /// C.is_cwnd_limited: at any time in the last round.
    pub(super) fn is_cwnd_limited(&self) -> bool {
        self.cwnd_limited.0 || self.cwnd_limited.1
    }

    /// BBR.max_bw.
    pub(super) fn max_bw(&self) -> u64 {
        self.max_bw[0].max(self.max_bw[1])
    }

    pub(super) fn advance_max_bw_filter(&mut self) {
        if self.max_bw[1] > 0 {
            self.max_bw = [self.max_bw[1], 0];
        }
    }

    pub(super) fn update_latest_delivery_signals(&mut self, rs: &RateSample) {
        self.loss_round_start = false;
        self.bw_latest = self.bw_latest.max(rs.rate);
        self.inflight_latest = self.inflight_latest.max(rs.delivered);
        if rs.prior_delivered.is_some_and(|prior| !after(self.loss_round_delivered, prior)) {
            self.loss_round_delivered = self.rate.delivered;
            self.loss_round_start = true;
        }
    }

    pub(super) fn advance_latest_delivery_signals(&mut self, rs: &RateSample) {
        if self.loss_round_start {
            self.bw_latest = rs.rate;
            self.inflight_latest = rs.delivered;
        }
    }

    pub(super) fn reset_congestion_signals(&mut self) {
        self.loss_in_round = false;
        self.bw_latest = 0;
        self.inflight_latest = 0;
    }

    pub(super) fn update_congestion_signals(&mut self, w: &Window, rs: &RateSample) {
        self.update_round(rs);
        if rs.rate > 0 && (rs.rate >= self.max_bw() || !rs.limited) {
            self.max_bw[1] = self.max_bw[1].max(rs.rate);
        }
        if rs.newly_lost > 0 {
            self.loss_events = self.loss_events.saturating_add(1);
        }
        if !self.loss_round_start {
            return;
        }
        // Once per round: AdaptLowerBoundsFromCongestion.
        if self.loss_in_round && !self.is_probing_bw() && !self.is_random_loss() {
            if self.bw_shortterm == NO_LIMIT {
                self.bw_shortterm = self.max_bw();
            }
            if self.inflight_shortterm == NO_BOUND {
                self.inflight_shortterm = w.cwnd;
            }
            self.bw_shortterm = self.bw_latest.max(percent(self.bw_shortterm, BETA));
            self.inflight_shortterm = self.inflight_latest.max(percent_of(self.inflight_shortterm, BETA as u32));
        }
        self.loss_in_round = false;
    }

    /// NoteLoss.
    pub(super) fn record_loss(&mut self, w: &Window) {
        if !self.loss_in_round {
            self.loss_round_delivered = self.rate.delivered;
            self.loss_round_from = (self.rate.lost, self.rate.delivered);
            self.loss_with_queue = false;
            self.save_cwnd(w);
            self.save_state_upon_loss();
        }
        self.loss_in_round = true;
        self.loss_with_queue |= self.sees_queue();
    }

    /// Returns true if round trips are longer than the path and our own bursts explain. The margin
    /// is an eighth: schedulers and radio links vary by that much, and a probe's own queue is a
    /// quarter.
    fn sees_queue(&self) -> bool {
        if self.min_rtt_us == u32::MAX || self.bw == 0 {
            return true;
        }
        let burst = u64::from(pacing::burst(self.pacing_rate, self.mss)) * 1_000_000 / self.bw;
        let noise = (u64::from(self.min_rtt_us) / 8).max(burst * 3 / 2);
        u64::from(self.rtt_recent_us) > u64::from(self.min_rtt_us) + noise
    }

    /// Returns true if the ending round lost little, and showed no queue.
    fn is_random_loss(&self) -> bool {
        let lost = u64::from(self.rate.lost.wrapping_sub(self.loss_round_from.0));
        let delivered = u64::from(self.rate.delivered.wrapping_sub(self.loss_round_from.1));
        !self.loss_with_queue && lost * 100 <= (lost + delivered) * u64::from(RANDOM_LOSS_MAX)
    }

    /// Returns the loss rate that counts as too high, in percent.
    pub(super) fn loss_threshold(&self) -> u32 {
        match (self.loss_with_queue, self.mode) {
            (true, _) => LOSS_THRESHOLD,
            (false, Mode::Startup) => STARTUP_RANDOM_LOSS_MAX,
            (false, _) => RANDOM_LOSS_MAX,
        }
    }

    pub(super) fn save_state_upon_loss(&mut self) {
        self.undo = Undo {
            mode: None,
            bw_shortterm: self.bw_shortterm,
            inflight_shortterm: self.inflight_shortterm,
            inflight_longterm: self.inflight_longterm,
        };
    }

    /// Updates the volume acknowledged beyond what the rate explains: aggregation on the path
    /// (draft 5.5.9).
    pub(super) fn update_ack_aggregation(&mut self, w: &Window, rs: &RateSample, now: Instant) {
        if self.round_start {
            self.extra_acked_rounds += 1;
            let window = if self.full_bw_reached { EXTRA_ACKED_ROUNDS } else { 1 };
            if self.extra_acked_rounds >= window {
                self.extra_acked_rounds = 0;
                self.extra_acked = [self.extra_acked[1], 0];
            }
        }
        let interval = now.since(self.extra_acked_start).as_nanos();
        let mut expected = (u128::from(self.bw) * interval / 1_000_000_000).min(u128::from(u32::MAX)) as u32;
        if self.extra_acked_delivered <= expected {
            self.extra_acked_delivered = 0;
            self.extra_acked_start = now;
            expected = 0;
        }
        self.extra_acked_delivered = self.extra_acked_delivered.saturating_add(rs.newly_acked);
        let extra = (self.extra_acked_delivered - expected).min(w.cwnd);
        self.extra_acked[1] = self.extra_acked[1].max(extra);
    }

    pub(super) fn reset_full_bw(&mut self) {
        (self.full_bw, self.full_bw_count, self.full_bw_now) = (0, 0, false);
    }

    pub(super) fn check_full_bw_reached(&mut self, rs: &RateSample) {
        if self.full_bw_now || rs.limited || rs.rate == 0 {
            return;
        }
        // Any sample may show growth, not only the round's first: that may come from a
        // retransmitted segment, sent when almost nothing was in flight.
        if rs.rate >= percent(self.full_bw, FULL_BW_GROWTH) {
            self.reset_full_bw();
            self.full_bw = rs.rate;
            return;
        }
        if !self.round_start {
            return;
        }
        self.full_bw_count += 1;
        self.full_bw_now = self.full_bw_count >= FULL_BW_ROUNDS;
        self.full_bw_reached |= self.full_bw_now;
    }

    pub(super) fn update_min_rtt(&mut self, rs: &RateSample, now: Instant) {
        self.probe_rtt_expired = now.since(self.probe_rtt_min_stamp) > PROBE_RTT_INTERVAL;
        if let Some(rtt) = rs.rtt_us
            && (rtt < self.probe_rtt_min_us || self.probe_rtt_expired)
        {
            self.probe_rtt_min_us = rtt.max(1);
            self.probe_rtt_min_stamp = now;
        }
        let expired = now.since(self.min_rtt_stamp) > MIN_RTT_WINDOW;
        if self.probe_rtt_min_us < self.min_rtt_us || expired {
            self.min_rtt_us = self.probe_rtt_min_us;
            self.min_rtt_stamp = self.probe_rtt_min_stamp;
        }
    }

    pub(super) fn reset_short_term_model(&mut self) {
        self.bw_shortterm = NO_LIMIT;
        self.inflight_shortterm = NO_BOUND;
    }

    pub(super) fn bound_bw_for_model(&mut self) {
        self.bw = self.max_bw().min(self.bw_shortterm);
    }
}
