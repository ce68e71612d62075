//! What an ACK does to the sending half: RTT samples, congestion window, fast retransmit and recovery
//! (RFC 5681, 6582, 6675), and what a time-out does (RFC 6298 section 5).

use super::buffer::TxStore;
use super::sack::DUP_THRESH;
use crate::config::{CongestionControl, TcpConfig};
use crate::frame::FramePool;
use crate::stats::Stats;
use crate::tcb::cc::{self, AckSample, Algorithm, Control};
use crate::tcb::flags::Flags;
use crate::tcb::seq::SeqNum;
use crate::tcb::{Recovery, Tcb};
use crate::time::Instant;

/// An acceptable ACK, as far as the sending half is concerned.
pub(crate) struct AckInput<'a> {
    pub(crate) ack: SeqNum,
    /// It could be a duplicate ACK by RFC 5681 section 2: no payload, no SYN or FIN, window unchanged.
    pub(crate) bare: bool,
    pub(crate) sack: &'a [(SeqNum, SeqNum)],
    /// ECE on a connection that has agreed to ECN.
    pub(crate) ece: bool,
    pub(crate) now: Instant,
}

/// Microseconds modulo 2^32, as segments are stamped.
#[inline]
pub(crate) fn micros(now: Instant) -> u32 {
    now.as_micros() as u32
}

impl Tcb {
    /// Takes an ACK with SND.UNA <= ack <= SND.NXT. True when it acknowledges our FIN.
    #[inline]
    pub(crate) fn on_ack<P: FramePool>(
        &mut self,
        store: &mut TxStore,
        pool: &mut P,
        stats: &mut Stats,
        config: &TcpConfig,
        input: AckInput<'_>,
    ) -> bool {
        let flight_before = self.flight();
        if input.ack == self.snd_una {
            self.on_duplicate_ack(store, stats, &input);
            if input.ece {
                self.on_echo(stats, &input, 0);
            }
            return false;
        }
        let advance = input.ack.since(self.snd_una);
        let acked = self.tx.acknowledge(store, pool, input.ack);
        self.snd_una = input.ack;
        if let Some(ext) = &mut self.ext {
            if self.flags.has(Flags::SACK) {
                ext.sacked = ext.sacked.saturating_sub(acked.sacked);
            } else {
                // Without SACK, `sacked` counts duplicate ACKs; a new ACK accounts for all but the head.
                ext.sacked = ext.sacked.saturating_sub(advance);
            }
            ext.lost = ext.lost.saturating_sub(acked.lost);
            ext.retransmitted = ext.retransmitted.saturating_sub(acked.retransmitted);
            ext.soft_error = None;
        }
        if let Some(sent) = acked.sample_us {
            self.rtt.sample(micros(input.now).wrapping_sub(sent));
        }
        self.backoff = 0;
        self.dup_acks = 0;
        self.flags.clear(Flags::PERSIST);
        if !input.sack.is_empty() {
            self.mark_sacked(store, input.sack);
        }
        let grow = self.progress(store, stats, &input);
        if input.ece {
            self.on_echo(stats, &input, advance);
        }
        if grow {
            self.grow_window(advance, flight_before, input.now);
        }
        if self.snd_una == self.snd_nxt {
            self.rto_at = 0;
            if let Some(ext) = &mut self.ext {
                (ext.sacked, ext.lost, ext.retransmitted) = (0, 0, 0);
            }
        } else {
            self.restart_rto(config, input.now);
        }
        acked.fin
    }

    /// Recovery's reaction to new data being acknowledged. True when the window may grow.
    fn progress(&mut self, store: &mut TxStore, stats: &mut Stats, input: &AckInput<'_>) -> bool {
        match self.recovery() {
            Recovery::Open => {
                if self.flags.has(Flags::SACK) && !input.sack.is_empty() && self.mark_lost_by_sack(store) > 0 {
                    self.enter_fast_recovery(stats, input.now);
                    return false;
                }
                true
            }
            Recovery::Cwr { high } => {
                if self.flags.has(Flags::SACK) && !input.sack.is_empty() && self.mark_lost_by_sack(store) > 0 {
                    self.enter_fast_recovery(stats, input.now);
                } else {
                    self.leave_cwr(high, input.ack);
                }
                false
            }
            Recovery::Fast { high } if input.ack.at_or_after(high) => {
                self.leave_recovery();
                false
            }
            Recovery::Fast { .. } => {
                if self.flags.has(Flags::SACK) {
                    self.mark_lost_by_sack(store);
                } else {
                    // RFC 6582 3.2 step 3: a partial ACK names the next hole.
                    self.mark_head_lost(store);
                }
                false
            }
            Recovery::Loss { high } if input.ack.at_or_after(high) => {
                let mut window = self.window;
                self.control().on_recovery_exit(&mut window);
                self.window = window;
                self.ext_mut().recovery = Recovery::Open;
                true
            }
            Recovery::Loss { .. } => true,
        }
    }

    fn on_duplicate_ack(&mut self, store: &mut TxStore, stats: &mut Stats, input: &AckInput<'_>) {
        let newly = if input.sack.is_empty() { 0 } else { self.mark_sacked(store, input.sack) };
        if self.snd_una == self.snd_nxt || !input.bare && newly == 0 {
            return;
        }
        stats.dup_acks += 1;
        self.dup_acks = self.dup_acks.saturating_add(1);
        let with_sack = self.flags.has(Flags::SACK);
        if !with_sack {
            // Each duplicate ACK says that one segment has left the network.
            let (out, mss) = (self.snd_nxt.since(self.snd_una), self.mss as u32);
            let ext = self.ext_mut();
            ext.sacked = (ext.sacked + mss).min(out.saturating_sub(ext.lost));
        }
        let lost = with_sack && self.mark_lost_by_sack(store) > 0;
        if matches!(self.recovery(), Recovery::Open | Recovery::Cwr { .. }) && (lost || self.dup_acks as u32 >= DUP_THRESH) {
            self.mark_head_lost(store);
            self.enter_fast_recovery(stats, input.now);
        }
    }

    fn enter_fast_recovery(&mut self, stats: &mut Stats, now: Instant) {
        stats.fast_recoveries += 1;
        let (flight, mss, high) = (self.snd_nxt.since(self.snd_una), self.mss as u32, self.snd_nxt);
        // In this window of data an ECN echo may have brought the reduction already (RFC 3168 6.1.2).
        if !matches!(self.recovery(), Recovery::Cwr { .. }) {
            let mut window = self.window;
            self.control().on_congestion(&mut window, flight, mss, now);
            self.window = window;
            self.owe_cwr();
        }
        self.ext_mut().recovery = Recovery::Fast { high };
        // The first retransmission does not wait for the pipe to drain (RFC 6675 section 5 step 4.3).
        self.flags.set(Flags::PUSH_OUT);
    }

    fn leave_recovery(&mut self) {
        let mss = self.mss as u32;
        let flight = self.flight();
        self.ext_mut().recovery = Recovery::Open;
        let mut window = self.window;
        self.control().on_recovery_exit(&mut window);
        if !self.flags.has(Flags::SACK) {
            // RFC 6582 3.2 step 3, option 1: no burst when little is in flight. With SACK the pipe was
            // known all along, and RFC 6675 leaves the window at ssthresh.
            window.cwnd = window.cwnd.min(flight.max(mss) + mss);
        }
        self.window = window;
    }

    /// Congestion control state, made at the first loss.
    pub(crate) fn control(&mut self) -> &mut Control {
        let new_reno = self.flags.has(Flags::NEW_RENO);
        self.ext_mut().control.get_or_insert_with(|| {
            Control::new(if new_reno { CongestionControl::NewReno } else { CongestionControl::Cubic })
        })
    }

    fn grow_window(&mut self, acked: u32, flight_before: u32, now: Instant) {
        let mss = self.mss as u32;
        let slow_start = self.window.in_slow_start();
        // RFC 7661's idea, as Linux does it: a window that was not used does not grow.
        let used = if slow_start { flight_before.saturating_mul(2) } else { flight_before + mss };
        let app_limited = used < self.window.cwnd;
        if app_limited && self.ext.as_ref().is_none_or(|e| e.control.is_none()) {
            return;
        }
        let sample = AckSample { now, acked, flight: flight_before, srtt_us: self.rtt.srtt_us(), mss, app_limited };
        match self.ext.as_mut().and_then(|e| e.control.as_mut()) {
            Some(control) => control.on_ack(&mut self.window, &sample),
            None if slow_start => {
                cc::slow_start(&mut self.window, acked, mss);
            }
            None => {
                // Past ssthresh without a loss: only after an idle restart; the controller takes over.
                let mut window = self.window;
                self.control().on_ack(&mut window, &sample);
                self.window = window;
            }
        }
    }

    /// RFC 6298 5.1 to 5.3: (re)starts the retransmission timer.
    #[inline]
    pub(crate) fn restart_rto(&mut self, config: &TcpConfig, now: Instant) {
        let mut rto = self.rtt.rto(config.rto_min, config.rto_max, config.rto_initial);
        if self.backoff > 0 {
            rto = super::rto::backoff(rto, self.backoff, config.rto_max);
        }
        self.rto_at = crate::tcb::timers::deadline_tick(now + rto);
    }

    /// The retransmission timer fired (RFC 6298 5.4 to 5.7, RFC 5681 3.1): everything outstanding is lost,
    /// the window is one segment, the timer backs off. The segmenter sends the first segment again.
    pub(crate) fn on_retransmission_timeout(
        &mut self,
        store: &mut TxStore,
        stats: &mut Stats,
        config: &TcpConfig,
        now: Instant,
    ) {
        stats.rto_fired += 1;
        let (flight, mss, high) = (self.snd_nxt.since(self.snd_una), self.mss as u32, self.snd_nxt);
        self.mark_all_lost(store);
        let mut window = self.window;
        self.control().on_rto(&mut window, flight, mss, now);
        window.cwnd = mss;
        self.window = window;
        self.owe_cwr();
        self.ext_mut().recovery = Recovery::Loss { high };
        self.dup_acks = 0;
        self.backoff = self.backoff.saturating_add(1);
        self.flags.set(Flags::PUSH_OUT);
        self.restart_rto(config, now);
    }
}
