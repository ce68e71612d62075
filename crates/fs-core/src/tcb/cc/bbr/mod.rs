//! BBR version 3: draft-ietf-ccwg-bbr, whose names are kept where they fit.
//!
//! A model of the path (maximum delivery rate, shortest round trip, maximum volume in flight) is
//! updated by every ACK's [`super::rate::RateSample`] and every lost segment. It determines the
//! pacing rate and the window. This module contains the state and the order of steps; `model`
//! measures, `probe` decides what to try next, `control` sets rate and window.
//!
//! Three things differ from the draft:
//!
//! - Losses without a queue. The draft takes more than 2 % of loss for too much in flight, whatever
//!   its cause: on a path that loses 5 % at random it ends at a hundredth of its first version's
//!   rate. Here that threshold holds if the round-trip times at the losses show a queue. Otherwise
//!   the threshold is `RANDOM_LOSS_MAX` (a policer's drops: no queue either, but a fifth of all
//!   packets when probing).
//! - While a hole keeps the peer's window from moving, so that it limits us, delivery counts as
//!   limited by the application (`Tcb::check_window_limited`).
//! - Any sample of a round may show growth, as in the authors' implementation for Linux.
//!
//! Byte counters (`delivered`) are modulo 2^32, rates are bytes per second, gains are percent.

mod control;
mod model;
mod probe;

use super::algorithm::{AckSample, Algorithm, Window};
use super::rate::{Rate, Sent, Stamp};
use crate::seq::SeqNum;
use crate::time::{Duration, Instant};

/// Unlimited volume.
const NO_BOUND: u32 = u32::MAX;
/// Unlimited rate.
const NO_LIMIT: u64 = u64::MAX;
/// BBR.LossThresh: the loss rate that probing tolerates, in percent.
const LOSS_THRESHOLD: u32 = 2;
/// The tolerated loss rate without a queue, in percent. Too high: policers and very short queues
/// are driven into loss. Too low: a radio link's losses are taken for congestion.
const RANDOM_LOSS_MAX: u32 = 10;
/// The same in Startup. Its rounds begin with ten packets, of which chance alone can lose more than
/// a tenth. A Startup that has outrun a path without a queue loses half.
const STARTUP_RANDOM_LOSS_MAX: u32 = 20;
/// BBR.Beta in percent.
const BETA: u64 = 70;
/// BBR.Headroom in percent.
const HEADROOM: u32 = 15;
/// BBR.MinPipeCwnd in segments.
const MIN_PIPE_SEGMENTS: u32 = 4;

/// State of the search for bandwidth (draft section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The rate doubles each round.
    Startup,
    /// The queue that Startup has built is drained.
    Drain,
    /// ProbeBW: slower than the path.
    Down,
    /// ProbeBW: as fast as the path.
    Cruise,
    /// ProbeBW: filling the pipe before a probe.
    Refill,
    /// ProbeBW: faster than the path.
    Up,
    /// Few bytes in flight for a while, to measure the path's own round trip.
    ProbeRtt,
}

/// Phase in which the segments acknowledged now were sent (BBR.ack_phase).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// State that a spurious recovery must restore (BBR.undo_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Undo {
    /// The mode that a loss ended: Startup or Up.
    mode: Option<Mode>,
    bw_shortterm: u64,
    inflight_shortterm: u32,
    inflight_longterm: u32,
}

/// State of the connection after an ACK has been processed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    /// When it arrived.
    pub now: Instant,
    /// Bytes in flight: sent, neither acknowledged nor lost.
    pub flight: u32,
    /// Payload bytes of a full segment.
    pub mss: u32,
}

/// BBR's state. Boxed because of its size, so that only connections that use it pay for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bbr {
    pub(crate) rate: Rate,
    mode: Mode,
    mss: u32,
    sack: bool,
    /// Time of the current ACK or timer, and the window before it.
    now: Instant,
    window: Window,
    // ---- outputs
    pacing_rate: u64,
    pacing_gain: u32,
    cwnd_gain: u32,
    prior_cwnd: u32,
    initial_cwnd: u32,
    in_recovery: bool,
    // ---- rounds
    round_count: u32,
    round_start: bool,
    next_round_delivered: u32,
    idle_restart: bool,
    drain_start_round: u32,
    /// True if the window was used up: in the previous round, and in this one.
    cwnd_limited: (bool, bool),
    // ---- the path's rate
    /// Maximum of the previous and of this ProbeBW cycle.
    max_bw: [u64; 2],
    bw_shortterm: u64,
    bw: u64,
    // ---- the path's volume
    min_rtt_us: u32,
    min_rtt_stamp: Instant,
    inflight_longterm: u32,
    inflight_shortterm: u32,
    /// Maximum of the last and of this window of rounds.
    extra_acked: [u32; 2],
    extra_acked_rounds: u32,
    extra_acked_start: Instant,
    extra_acked_delivered: u32,
    // ---- congestion signals
    bw_latest: u64,
    inflight_latest: u32,
    loss_round_delivered: u32,
    loss_round_start: bool,
    loss_in_round: bool,
    /// A loss of this round was detected while round trips were longer than the path's.
    loss_with_queue: bool,
    /// `rate.lost` and `rate.delivered` when this loss round began.
    loss_round_from: (u32, u32),
    /// Round-trip time of the latest ACKs, smoothed over eight.
    rtt_recent_us: u32,
    /// ACKs in this round that revealed losses.
    loss_events: u8,
    undo: Undo,
    // ---- is the pipe full?
    full_bw_reached: bool,
    full_bw_now: bool,
    full_bw: u64,
    full_bw_count: u8,
    // ---- probing for bandwidth
    ack_phase: AckPhase,
    bw_probe_samples: bool,
    bw_probe_up_acked: u32,
    bw_probe_up_rounds: u8,
    probe_up_acked_per_inc: u32,
    rounds_since_probe_up: u32,
    bw_probe_wait: Duration,
    cycle_stamp: Instant,
    prev_probe_too_high: bool,
    prev_probe_precautionary: bool,
    // ---- probing for the round trip
    probe_rtt_min_us: u32,
    probe_rtt_min_stamp: Instant,
    probe_rtt_expired: bool,
    probe_rtt_done: Option<Instant>,
    probe_rtt_round_done: bool,
}

impl Bbr {
    /// Makes the state of a connection whose next new byte is `snd_nxt`; `srtt_us` is zero before
    /// the first sample.
    pub(crate) fn new(window: Window, srtt_us: u32, mss: u32, sack: bool, now: Instant, snd_nxt: SeqNum) -> Self {
        let min_rtt_us = if srtt_us > 0 { srtt_us } else { u32::MAX };
        let mut bbr = Self {
            rate: Rate::new(snd_nxt, now.as_micros() as u32),
            mode: Mode::Startup,
            mss,
            sack,
            now,
            window,
            pacing_rate: 0,
            pacing_gain: 0,
            cwnd_gain: 0,
            prior_cwnd: 0,
            initial_cwnd: window.cwnd,
            in_recovery: false,
            round_count: 0,
            round_start: false,
            next_round_delivered: 0,
            idle_restart: false,
            drain_start_round: 0,
            cwnd_limited: (false, false),
            max_bw: [0, 0],
            bw_shortterm: NO_LIMIT,
            bw: 0,
            min_rtt_us,
            min_rtt_stamp: now,
            inflight_longterm: NO_BOUND,
            inflight_shortterm: NO_BOUND,
            extra_acked: [0, 0],
            extra_acked_rounds: 0,
            extra_acked_start: now,
            extra_acked_delivered: 0,
            bw_latest: 0,
            inflight_latest: 0,
            loss_round_delivered: 0,
            loss_round_start: false,
            loss_in_round: false,
            loss_with_queue: false,
            loss_round_from: (0, 0),
            rtt_recent_us: srtt_us,
            loss_events: 0,
            undo: Undo {
                mode: None,
                bw_shortterm: NO_LIMIT,
                inflight_shortterm: NO_BOUND,
                inflight_longterm: NO_BOUND,
            },
            full_bw_reached: false,
            full_bw_now: false,
            full_bw: 0,
            full_bw_count: 0,
            ack_phase: AckPhase::Init,
            bw_probe_samples: false,
            bw_probe_up_acked: 0,
            bw_probe_up_rounds: 0,
            probe_up_acked_per_inc: NO_BOUND,
            rounds_since_probe_up: 0,
            bw_probe_wait: Duration::ZERO,
            cycle_stamp: now,
            prev_probe_too_high: false,
            prev_probe_precautionary: false,
            probe_rtt_min_us: min_rtt_us,
            probe_rtt_min_stamp: now,
            probe_rtt_expired: false,
            probe_rtt_done: None,
            probe_rtt_round_done: false,
        };
        bbr.enter_startup();
        bbr.init_pacing_rate(window.cwnd, srtt_us);
        bbr
    }

    /// Returns the pacing rate in bytes per second.
    pub(crate) fn pacing_rate(&self) -> u64 {
        self.pacing_rate
    }

    /// Returns the estimate of the path's delivery rate for this connection, in bytes per second.
    pub(crate) fn bandwidth(&self) -> u64 {
        self.bw
    }

    /// Returns the shortest round trip of the last ten seconds.
    pub(crate) fn min_rtt_us(&self) -> Option<u32> {
        (self.min_rtt_us != u32::MAX).then_some(self.min_rtt_us)
    }

    /// Records that a segment of `span` bytes is sent; `flight` includes it.
    pub(crate) fn on_sent(&mut self, w: &mut Window, now: Instant, flight: u32, span: u32) -> Stamp {
        if flight <= span && self.rate.is_limited() {
            self.restart_from_idle(w, now);
        }
        if flight.saturating_add(self.mss) > w.cwnd {
            self.cwnd_limited.1 = true;
        }
        self.rate.on_sent(now.as_micros() as u32, flight, span)
    }

    /// Updates the model after an ACK has been processed, and what follows from it (draft 5.2.3).
    pub(crate) fn on_ack_end(&mut self, w: &mut Window, ack: &Ack) {
        self.mss = ack.mss.max(1);
        let min_rtt = if self.min_rtt_us == u32::MAX { 0 } else { self.min_rtt_us };
        let rs = self.rate.generate(min_rtt);
        if rs.newly_acked == 0 && rs.newly_lost == 0 {
            return;
        }
        if let Some(rtt) = rs.rtt_us {
            self.rtt_recent_us = if self.rtt_recent_us == 0 { rtt } else { self.rtt_recent_us / 8 * 7 + rtt / 8 };
        }
        self.update_latest_delivery_signals(&rs);
        self.update_congestion_signals(w, &rs);
        self.update_ack_aggregation(w, &rs, ack.now);
        self.check_full_bw_reached(&rs);
        self.check_startup_done(&rs);
        self.check_drain_done(ack);
        self.update_probe_bw(w, &rs, ack);
        self.update_min_rtt(&rs, ack.now);
        self.check_probe_rtt(w, &rs, ack);
        self.advance_latest_delivery_signals(&rs);
        self.bound_bw_for_model();
        self.set_pacing_rate();
        self.set_cwnd(w, &rs);
    }

    /// Must be called before an ACK or a retransmission timer is processed.
    pub(crate) fn begin(&mut self, w: &Window, now: Instant) {
        (self.now, self.window) = (now, *w);
        self.rate.begin(now.as_micros() as u32);
    }

    /// Handles a segment that is marked lost (HandleLostPacket, draft 5.5.10.2).
    pub(crate) fn on_lost(&mut self, sent: &Sent) {
        let stamped = self.rate.on_lost(sent);
        let w = self.window;
        self.record_loss(&w);
        if !self.bw_probe_samples || !stamped {
            return;
        }
        let lost = self.rate.lost.wrapping_sub(sent.stamp.lost);
        let in_flight = sent.stamp.in_flight;
        if self.is_inflight_too_high(lost, in_flight) {
            let at_loss = inflight_at_loss(in_flight, lost, sent.span, self.loss_threshold());
            self.handle_inflight_too_high(&w, at_loss, sent.stamp.is_limited(), self.now);
        }
    }

    /// Handles an echoed congestion mark. The draft leaves the response open except for "MUST treat
    /// any CE marks as congestion": a mark counts like a loss rate beyond the threshold.
    pub(crate) fn on_mark(&mut self, w: &Window, flight: u32, now: Instant) {
        self.record_loss(w);
        self.loss_with_queue = true;
        if self.bw_probe_samples {
            self.handle_inflight_too_high(w, flight, self.rate.is_limited(), now);
        } else if self.mode == Mode::Startup {
            self.full_bw_reached = true;
            self.inflight_longterm = self.bdp(100).max(self.inflight_latest).max(self.min_pipe());
        }
    }
}

/// Returns the volume in flight at which losses crossed the threshold, possibly within the lost
/// segment.
fn inflight_at_loss(in_flight: u32, lost: u32, span: u32, threshold: u32) -> u32 {
    let inflight_prev = in_flight.saturating_sub(span);
    let lost_prev = lost.saturating_sub(span);
    let allowed = (u64::from(inflight_prev) * u64::from(threshold) / 100) as u32;
    let prefix = u64::from(allowed.saturating_sub(lost_prev)) * 100 / u64::from(100 - threshold);
    inflight_prev.saturating_add(prefix as u32)
}

/// Returns `value * percent / 100`.
fn percent(value: u64, percent: u64) -> u64 {
    (u128::from(value) * u128::from(percent) / 100).min(u128::from(u64::MAX)) as u64
}

fn percent_of(value: u32, by: u32) -> u32 {
    percent(value.into(), by.into()).min(u64::from(u32::MAX)) as u32
}

impl Algorithm for Bbr {
    /// Does nothing: the window follows from `Bbr::on_ack_end`, which is called for every ACK, also
    /// in recovery.
    fn on_ack(&mut self, _w: &mut Window, _ack: &AckSample) {}

    /// Fast recovery begins: no reduction here, but the state is saved (draft 5.6.4.4).
    fn on_congestion(&mut self, w: &mut Window, _flight: u32, _mss: u32, _now: Instant) {
        self.save_cwnd(w);
        self.save_state_upon_loss();
        self.in_recovery = true;
    }

    fn on_rto(&mut self, w: &mut Window, _flight: u32, mss: u32, _now: Instant) {
        self.save_cwnd(w);
        self.save_state_upon_loss();
        self.in_recovery = true;
        w.cwnd = mss;
    }

    fn on_recovery_exit(&mut self, w: &mut Window) {
        self.in_recovery = false;
        self.restore_cwnd(w);
    }

    /// HandleSpuriousLossDetection, draft 5.5.11.2.
    fn undo(&mut self, w: &mut Window) {
        self.in_recovery = false;
        self.restore_cwnd(w);
        self.loss_in_round = false;
        self.reset_full_bw();
        self.bw_shortterm = self.bw_shortterm.max(self.undo.bw_shortterm);
        self.inflight_shortterm = self.inflight_shortterm.max(self.undo.inflight_shortterm);
        self.inflight_longterm = self.inflight_longterm.max(self.undo.inflight_longterm);
        match self.undo.mode.take() {
            Some(Mode::Startup) if self.mode != Mode::Startup => {
                self.full_bw_reached = false;
                if self.mode != Mode::ProbeRtt {
                    self.enter_startup();
                }
            }
            Some(Mode::Up) if !matches!(self.mode, Mode::Up | Mode::ProbeRtt) => self.start_refill(),
            _ => {}
        }
    }

    /// Does nothing: BBR keeps its window over idle times and paces (draft 5.4.1).
    fn on_idle(&mut self, _w: &mut Window, _idle: Duration, _rto: Duration, _initial_window: u32) {}
}

#[cfg(test)]
mod tests;
