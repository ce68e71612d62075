//! Fast recovery, from the reduction to its end: RFC 5681 section 3.2, RFC 6582, RFC 6937.

use super::recovery::Acknowledged;
use super::store::TxStore;
use crate::stats::Stats;
use crate::tcb::Tcb;
use crate::tcb::cc::algorithm::Algorithm;
use crate::tcb::extension::Recovery;
use crate::tcb::flags::Flags;
use crate::time::Instant;

impl Tcb {
    /// Begins fast recovery. `advance` is the number of bytes that the ACK which revealed the loss
    /// removed from the flight.
    pub(super) fn enter_fast_recovery(&mut self, stats: &mut Stats, advance: u32, now: Instant) {
        stats.fast_recoveries += 1;
        let (nxt, una) = (self.snd.nxt(), self.snd.una());
        self.reduce_window(advance, now);
        let with_sack = self.flags.has(Flags::SACK);
        let ext = self.ext_mut();
        ext.recovery = Recovery::Fast { high: nxt };
        let out = ext.retransmitted;
        let loss = self.loss_mut();
        loss.undo.begin(una, out);
        (loss.undo.frto, loss.undo.new_data_first) = (false, false);
        loss.probe.end = None;
        if !with_sack {
            loss.recover = Some(nxt);
        }
    }

    /// Reduces the threshold at once; PRR reduces the window with the following ACKs. The flight
    /// before this ACK counts, since the ACK may cover a whole round trip (as Linux, which takes
    /// the window).
    pub(super) fn reduce_window(&mut self, advance: u32, now: Instant) {
        let (out, mss) = (self.snd.outstanding() + advance, self.mss as u32);
        let before = self.window.cwnd.min(out).max(mss);
        // An ECN echo may have caused the reduction in this window of data already (RFC 3168
        // 6.1.2). A loss of the segment with CWR, which begins at `high`, is in the next one.
        if !matches!(self.recovery(), Recovery::Cwr { high } if self.snd.una().before(high)) {
            let mut window = self.window;
            self.control().on_congestion(&mut window, out, mss, now);
            self.window = window;
            self.owe_cwr();
        }
        self.loss_mut().prr = super::loss::Prr { before, ..Default::default() };
    }

    /// RFC 8985 7.4.2: the probe has repaired a loss that nothing else revealed. Reduces once,
    /// without a recovery.
    pub(super) fn reduce_for_probe(&mut self, now: Instant) {
        if self.recovery() != Recovery::Open {
            return;
        }
        let (mss, mut window) = (self.mss as u32, self.window);
        // The flight at the time of the loss is no longer known; the window is never larger than
        // was used.
        let flight = window.cwnd;
        let control = self.control();
        control.on_congestion(&mut window, flight, mss, now);
        control.on_recovery_exit(&mut window);
        self.window = window;
        self.owe_cwr();
    }

    pub(super) fn apply_prr(&mut self, delivered: u32, safe: bool) {
        if self.owns_window() {
            return;
        }
        let (flight, ssthresh, mss) = (self.flight(), self.window.ssthresh, self.mss as u32);
        if delivered == 0 && self.loss().is_some_and(|l| l.prr.out > 0) {
            return;
        }
        let allowed = self.loss_mut().prr.allowance(flight, ssthresh, delivered, safe, mss);
        self.window.cwnd = flight.saturating_add(allowed).max(mss);
    }

    /// Ends recovery: all data that was outstanding at its start is acknowledged.
    pub(super) fn end_fast_recovery(&mut self, store: &mut TxStore, facts: &Acknowledged) {
        if self.is_spurious(facts.echo) {
            return self.undo(store);
        }
        let mss = self.mss as u32;
        let flight = self.flight();
        let mut window = self.window;
        self.control().on_recovery_exit(&mut window);
        if !self.flags.has(Flags::SACK) {
            // RFC 6582 3.2 step 3, option 1: avoids a burst if little is in flight. With SACK the
            // pipe was known all along, and RFC 6675 leaves the window at ssthresh.
            if !self.owns_window() {
                window.cwnd = window.cwnd.min(flight.max(mss) + mss);
            }
            self.ext_mut().sacked = 0;
        }
        self.window = window;
        self.close_recovery();
    }
}
