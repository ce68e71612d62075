//! NewReno: RFC 5681 with byte counting (RFC 3465) in congestion avoidance. The sender implements
//! recovery itself (RFC 6582, 6675).

use super::algorithm::{AckSample, Algorithm, CWND_MAX, Phase, Window, restart_after_idle, slow_start};
use crate::time::{Duration, Instant};

/// NewReno's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NewReno {
    phase: Phase,
    /// Bytes acknowledged since the window last grew.
    acked: u32,
    /// Window before the last congestion, until it is undone.
    prior: Option<Window>,
}

impl NewReno {
    /// RFC 5681 equation 4.
    fn reduce(&mut self, w: &mut Window, flight: u32, mss: u32) {
        self.prior = Some(*w);
        self.acked = 0;
        w.ssthresh = (flight.min(w.cwnd) / 2).max(2 * mss);
    }
}

impl Algorithm for NewReno {
    #[inline]
    fn on_ack(&mut self, w: &mut Window, ack: &AckSample) {
        match self.phase {
            Phase::Recovery => return,
            Phase::Loss => self.phase = Phase::Restart,
            Phase::Open | Phase::Restart => {}
        }
        if ack.app_limited {
            return;
        }
        let mut acked = ack.acked;
        if w.in_slow_start() {
            acked = slow_start(w, acked, ack.mss);
        }
        // RFC 5681 3.1, with RFC 3465 2.1: one segment for each window of bytes acknowledged.
        self.acked = self.acked.saturating_add(acked);
        while self.acked >= w.cwnd && w.cwnd < CWND_MAX {
            self.acked -= w.cwnd;
            w.cwnd = (w.cwnd + ack.mss.max(1)).min(CWND_MAX);
        }
        self.acked = self.acked.min(w.cwnd);
    }

    fn on_congestion(&mut self, w: &mut Window, flight: u32, mss: u32, _now: Instant) {
        self.reduce(w, flight, mss);
        w.cwnd = w.ssthresh;
        self.phase = Phase::Recovery;
    }

    fn on_rto(&mut self, w: &mut Window, flight: u32, mss: u32, _now: Instant) {
        // RFC 5681 3.1: unchanged for a segment that the timer has retransmitted before.
        if self.phase != Phase::Loss {
            self.reduce(w, flight, mss);
        }
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
        if let Some(prior) = self.prior.take() {
            w.cwnd = w.cwnd.max(prior.cwnd);
            w.ssthresh = w.ssthresh.max(prior.ssthresh);
            self.phase = Phase::Open;
        }
    }

    fn on_idle(&mut self, w: &mut Window, idle: Duration, rto: Duration, initial_window: u32) {
        restart_after_idle(w, idle, rto, initial_window);
        self.acked = 0;
    }
}
