//! Next step of the search: the state machine of draft-ietf-ccwg-bbr section 5.3.

use super::super::rate::RateSample;
use super::*;

/// BBR.ProbeRTTDuration.
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
/// Discontiguous losses in a round that end Startup (BBRStartupFullLossCnt).
const STARTUP_LOSS_EVENTS: u8 = 6;
/// Rounds after which Drain ends with any volume in flight.
const DRAIN_ROUNDS_MAX: u32 = 3;
/// Maximum rounds between two probes: Reno's need at 63 segments (draft 5.3.3.5.3).
const PROBE_ROUNDS_MAX: u32 = 63;
/// Minimum time between two probes; up to a second more at random.
const PROBE_WAIT: Duration = Duration::from_secs(2);

impl Bbr {
    pub(super) fn enter_startup(&mut self) {
        self.mode = Mode::Startup;
        self.pacing_gain = 277;
        self.cwnd_gain = 200;
    }

    fn enter_drain(&mut self) {
        self.mode = Mode::Drain;
        self.pacing_gain = 50;
        self.cwnd_gain = 200;
        self.drain_start_round = self.round_count;
    }

    pub(super) fn check_startup_done(&mut self, rs: &RateSample) {
        self.check_startup_high_loss(rs);
        if self.mode == Mode::Startup && self.full_bw_reached {
            self.enter_drain();
        }
    }

    fn check_startup_high_loss(&mut self, rs: &RateSample) {
        if self.mode == Mode::Startup && !self.full_bw_reached && self.in_recovery {
            let high = if self.sack {
                self.loss_round_start
                    && self.loss_events >= STARTUP_LOSS_EVENTS
                    && self.is_inflight_too_high(rs.lost, rs.in_flight)
            } else {
                rs.newly_lost > 0 && self.loss_with_queue
            };
            if high {
                self.undo.mode = Some(Mode::Startup);
                self.full_bw_reached = true;
                self.inflight_longterm = self.bdp(100).max(self.inflight_latest);
            }
        }
        if self.loss_round_start {
            self.loss_events = 0;
        }
    }

    pub(super) fn check_drain_done(&mut self, ack: &Ack) {
        if self.mode != Mode::Drain {
            return;
        }
        let rounds = self.round_count.wrapping_sub(self.drain_start_round);
        if ack.flight <= self.inflight(100) || rounds > DRAIN_ROUNDS_MAX {
            self.cwnd_gain = 200;
            self.start_down(ack.now);
        }
    }

    pub(super) fn is_in_probe_bw(&self) -> bool {
        matches!(self.mode, Mode::Down | Mode::Cruise | Mode::Refill | Mode::Up)
    }

    pub(super) fn is_probing_bw(&self) -> bool {
        matches!(self.mode, Mode::Startup | Mode::Refill | Mode::Up)
    }

    fn start_down(&mut self, now: Instant) {
        self.reset_congestion_signals();
        self.probe_up_acked_per_inc = NO_BOUND;
        self.pick_probe_wait(now);
        self.cycle_stamp = now;
        self.ack_phase = AckPhase::ProbeStopping;
        self.start_round();
        self.mode = Mode::Down;
        (self.pacing_gain, self.cwnd_gain) = (90, 200);
    }

    fn start_cruise(&mut self) {
        self.mode = Mode::Cruise;
        (self.pacing_gain, self.cwnd_gain) = (100, 200);
    }

    pub(super) fn start_refill(&mut self) {
        self.reset_short_term_model();
        (self.bw_probe_up_rounds, self.bw_probe_up_acked) = (0, 0);
        self.prev_probe_precautionary = false;
        self.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.mode = Mode::Refill;
        (self.pacing_gain, self.cwnd_gain) = (100, 200);
    }

    fn start_up(&mut self, w: &Window, rs: &RateSample) {
        self.ack_phase = AckPhase::ProbeStarting;
        self.start_round();
        self.reset_full_bw();
        self.full_bw = rs.rate;
        self.mode = Mode::Up;
        (self.pacing_gain, self.cwnd_gain) = (125, 225);
        self.raise_inflight_longterm_slope(w);
    }

    /// UpdateProbeBWCyclePhase.
    pub(super) fn update_probe_bw(&mut self, w: &Window, rs: &RateSample, ack: &Ack) {
        if !self.full_bw_reached || self.adapt_long_term_model(w, rs) {
            return;
        }
        match self.mode {
            Mode::Down => {
                if self.is_time_to_probe(w, ack.now) {
                    self.start_refill();
                } else if self.is_time_to_cruise(ack) {
                    self.start_cruise();
                }
            }
            Mode::Cruise => {
                if self.is_time_to_probe(w, ack.now) {
                    self.start_refill();
                }
            }
            Mode::Refill => {
                if self.round_start {
                    self.bw_probe_samples = true;
                    self.start_up(w, rs);
                }
            }
            Mode::Up => {
                if self.is_time_to_go_down(w, rs, ack) {
                    self.prev_probe_too_high = false;
                    self.start_down(ack.now);
                }
            }
            Mode::Startup | Mode::Drain | Mode::ProbeRtt => {}
        }
    }

    fn is_time_to_cruise(&self, ack: &Ack) -> bool {
        ack.flight <= self.inflight_with_headroom() && ack.flight <= self.inflight_at(self.max_bw(), 100)
    }

    fn is_time_to_go_down(&mut self, w: &Window, rs: &RateSample, ack: &Ack) -> bool {
        // A probe after one that went too high stops at that one's volume.
        if self.prev_probe_too_high && ack.flight >= self.inflight_longterm {
            self.prev_probe_precautionary = true;
            return true;
        }
        if self.is_cwnd_limited() && w.cwnd >= self.inflight_longterm {
            self.reset_full_bw();
            self.full_bw = rs.rate;
            return false;
        }
        self.full_bw_now
    }

    /// IsTimeToProbeBW: after a time, or after the rounds in which Reno would have recovered from a
    /// loss.
    fn is_time_to_probe(&self, w: &Window, now: Instant) -> bool {
        let reno_rounds = self.target_inflight(w) / self.mss;
        now.since(self.cycle_stamp) > self.bw_probe_wait
            || self.rounds_since_probe_up >= reno_rounds.min(PROBE_ROUNDS_MAX)
    }

    /// Randomized, so that flows do not probe in step. The engine has no random source, so the
    /// connection's counters are mixed.
    fn pick_probe_wait(&mut self, now: Instant) {
        let seed = now.as_nanos() ^ u64::from(self.rate.delivered) << 32 ^ u64::from(self.round_count);
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.rounds_since_probe_up = (x >> 63) as u32;
        self.bw_probe_wait = PROBE_WAIT + Duration::from_micros((x >> 20) % 1_000_000);
    }

    /// TargetInflight: the estimated BDP, unless congestion has reduced the window.
    pub(super) fn target_inflight(&self, w: &Window) -> u32 {
        self.bdp(100).min(w.cwnd)
    }

    pub(super) fn inflight_with_headroom(&self) -> u32 {
        if self.inflight_longterm == NO_BOUND {
            return NO_BOUND;
        }
        let headroom = percent_of(self.inflight_longterm, HEADROOM).max(self.mss);
        self.inflight_longterm.saturating_sub(headroom).max(self.min_pipe())
    }

    /// Raises the bound faster the longer a probe succeeds: by 1, 2, 4 … segments per round.
    fn raise_inflight_longterm_slope(&mut self, w: &Window) {
        let growth = 1 << self.bw_probe_up_rounds;
        self.bw_probe_up_rounds = (self.bw_probe_up_rounds + 1).min(30);
        self.probe_up_acked_per_inc = (w.cwnd / growth).max(self.mss);
    }

    fn probe_inflight_longterm_upward(&mut self, w: &Window, rs: &RateSample) {
        if !self.is_cwnd_limited() || w.cwnd < self.inflight_longterm {
            return;
        }
        self.bw_probe_up_acked = self.bw_probe_up_acked.saturating_add(rs.newly_acked);
        let delta = self.bw_probe_up_acked / self.probe_up_acked_per_inc.max(1);
        self.bw_probe_up_acked -= delta * self.probe_up_acked_per_inc;
        self.inflight_longterm = self.inflight_longterm.saturating_add(delta.saturating_mul(self.mss));
        if self.round_start {
            self.raise_inflight_longterm_slope(w);
        }
    }

    /// Returns true if the next state is decided.
    fn adapt_long_term_model(&mut self, w: &Window, rs: &RateSample) -> bool {
        if self.ack_phase == AckPhase::ProbeStarting && self.round_start {
            self.ack_phase = AckPhase::ProbeFeedback;
        }
        if self.ack_phase == AckPhase::ProbeStopping && self.round_start {
            self.bw_probe_samples = false;
            self.ack_phase = AckPhase::Init;
            if self.is_in_probe_bw() {
                if !rs.limited {
                    self.advance_max_bw_filter();
                }
                // The careful probe succeeded: start a full one at once.
                if self.prev_probe_precautionary && !self.prev_probe_too_high {
                    self.start_refill();
                    return true;
                }
            }
        }
        if !self.is_inflight_too_high(rs.lost, rs.in_flight) && self.inflight_longterm != NO_BOUND {
            self.inflight_longterm = self.inflight_longterm.max(rs.in_flight);
            if self.mode == Mode::Up {
                self.probe_inflight_longterm_upward(w, rs);
            }
        }
        false
    }

    /// IsInflightTooHigh.
    pub(super) fn is_inflight_too_high(&self, lost: u32, in_flight: u32) -> bool {
        let threshold = u64::from(self.loss_threshold());
        u64::from(lost) * 100 > u64::from(in_flight) * threshold || lost > 0 && !self.sack && self.loss_with_queue
    }

    pub(super) fn handle_inflight_too_high(&mut self, w: &Window, in_flight: u32, limited: bool, now: Instant) {
        self.prev_probe_too_high = true;
        // Once per probe.
        self.bw_probe_samples = false;
        if !limited {
            self.inflight_longterm = in_flight.max(percent_of(self.target_inflight(w), BETA as u32));
        }
        if self.mode == Mode::Up {
            self.undo.mode = Some(Mode::Up);
            self.start_down(now);
        }
    }

    pub(super) fn check_probe_rtt(&mut self, w: &mut Window, rs: &RateSample, ack: &Ack) {
        if self.mode != Mode::ProbeRtt && self.probe_rtt_expired && !self.idle_restart {
            self.save_cwnd(w);
            self.mode = Mode::ProbeRtt;
            (self.pacing_gain, self.cwnd_gain) = (100, 50);
            self.probe_rtt_done = None;
            self.ack_phase = AckPhase::ProbeStopping;
            self.start_round();
        }
        if self.mode == Mode::ProbeRtt {
            self.handle_probe_rtt(w, ack);
        }
        if rs.delivered > 0 {
            self.idle_restart = false;
        }
    }

    fn handle_probe_rtt(&mut self, w: &mut Window, ack: &Ack) {
        // Samples with so little in flight contain no information about the rate.
        self.rate.mark_app_limited(ack.flight);
        if self.probe_rtt_done.is_none() {
            if ack.flight <= self.probe_rtt_cwnd() {
                self.probe_rtt_done = Some(ack.now + PROBE_RTT_DURATION);
                self.probe_rtt_round_done = false;
                self.start_round();
            }
            return;
        }
        self.probe_rtt_round_done |= self.round_start;
        if self.probe_rtt_round_done {
            self.check_probe_rtt_done(w, ack.now);
        }
    }

    fn check_probe_rtt_done(&mut self, w: &mut Window, now: Instant) {
        if self.probe_rtt_done.is_none_or(|done| now <= done) {
            return;
        }
        self.probe_rtt_min_stamp = now;
        self.restore_cwnd(w);
        self.reset_short_term_model();
        if self.full_bw_reached {
            self.start_down(now);
            self.start_cruise();
        } else {
            self.enter_startup();
        }
    }

    /// HandleRestartFromIdle: draft 5.4.1.
    pub(super) fn restart_from_idle(&mut self, w: &mut Window, now: Instant) {
        self.idle_restart = true;
        self.extra_acked_start = now;
        self.extra_acked_delivered = 0;
        if self.is_in_probe_bw() {
            self.set_pacing_rate_with(100);
        } else if self.mode == Mode::ProbeRtt {
            self.check_probe_rtt_done(w, now);
        }
    }
}
