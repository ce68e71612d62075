//! Pacing rate and window from the model: draft-ietf-ccwg-bbr section 5.6.

use super::super::algorithm::CWND_MAX;
use super::super::pacing;
use super::super::rate::RateSample;
use super::*;

/// BBR.PacingMarginPercent: the pacing rate is this far below the estimate.
const PACING_MARGIN: u64 = 1;
/// Bursts in flight that offloads need (draft 5.5.8). The draft's three are for kernels, whose
/// devices split packets; ours do not. A receiver may still merge one burst before it acknowledges.
const OFFLOAD_BURSTS: u32 = 2;
/// The round trip assumed before the first sample, for the first rate.
const NOMINAL_RTT_US: u64 = 1000;

impl Bbr {
    /// BBR.MinPipeCwnd.
    pub(super) fn min_pipe(&self) -> u32 {
        MIN_PIPE_SEGMENTS * self.mss
    }

    pub(super) fn init_pacing_rate(&mut self, cwnd: u32, srtt_us: u32) {
        let rtt = if srtt_us > 0 { u64::from(srtt_us) } else { NOMINAL_RTT_US };
        let nominal = u64::from(cwnd) * 1_000_000 / rtt;
        self.pacing_rate = percent(nominal, self.pacing_gain.into());
    }

    pub(super) fn set_pacing_rate(&mut self) {
        self.set_pacing_rate_with(self.pacing_gain.into());
    }

    pub(super) fn set_pacing_rate_with(&mut self, gain: u64) {
        let rate = percent(percent(self.bw, gain), 100 - PACING_MARGIN);
        if rate > 0 && (self.full_bw_reached || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    /// BDPMultiple.
    pub(super) fn bdp(&self, gain: u32) -> u32 {
        self.bdp_at(self.bw, gain)
    }

    fn bdp_at(&self, bw: u64, gain: u32) -> u32 {
        if self.min_rtt_us == u32::MAX {
            return self.initial_cwnd;
        }
        let bdp = u128::from(bw) * u128::from(self.min_rtt_us) / 1_000_000;
        percent(bdp.min(u128::from(CWND_MAX)) as u64, gain.into()).min(u64::from(CWND_MAX)) as u32
    }

    /// QuantizationBudget.
    fn quantize(&self, inflight: u32) -> u32 {
        let offload = OFFLOAD_BURSTS * pacing::burst(self.pacing_rate, self.mss);
        let inflight = inflight.max(offload).max(self.min_pipe());
        if self.mode == Mode::Up { inflight + 2 * self.mss } else { inflight }
    }

    /// Inflight(gain).
    pub(super) fn inflight(&self, gain: u32) -> u32 {
        self.quantize(self.bdp(gain))
    }

    pub(super) fn inflight_at(&self, bw: u64, gain: u32) -> u32 {
        self.quantize(self.bdp_at(bw, gain))
    }

    /// UpdateMaxInflight.
    fn max_inflight(&self) -> u32 {
        self.quantize(self.bdp(self.cwnd_gain).saturating_add(self.extra_acked[0].max(self.extra_acked[1])))
    }

    pub(super) fn save_cwnd(&mut self, w: &Window) {
        self.prior_cwnd =
            if !self.in_recovery && self.mode != Mode::ProbeRtt { w.cwnd } else { self.prior_cwnd.max(w.cwnd) };
    }

    pub(super) fn restore_cwnd(&mut self, w: &mut Window) {
        w.cwnd = w.cwnd.max(self.prior_cwnd);
    }

    pub(super) fn probe_rtt_cwnd(&self) -> u32 {
        self.bdp(50).max(self.min_pipe())
    }

    pub(super) fn set_cwnd(&mut self, w: &mut Window, rs: &RateSample) {
        let max = self.max_inflight();
        let grown = w.cwnd.saturating_add(rs.newly_acked);
        if self.full_bw_reached {
            w.cwnd = grown.min(max);
        } else if w.cwnd < max || self.rate.delivered < self.initial_cwnd {
            w.cwnd = grown;
        }
        w.cwnd = w.cwnd.max(self.min_pipe());
        if self.mode == Mode::ProbeRtt {
            w.cwnd = w.cwnd.min(self.probe_rtt_cwnd());
        }
        let cap = match self.mode {
            Mode::Down | Mode::Refill | Mode::Up => self.inflight_longterm,
            Mode::Cruise | Mode::ProbeRtt => self.inflight_with_headroom(),
            Mode::Startup | Mode::Drain => NO_BOUND,
        };
        w.cwnd = w.cwnd.min(cap.min(self.inflight_shortterm).max(self.min_pipe())).min(CWND_MAX);
    }
}
