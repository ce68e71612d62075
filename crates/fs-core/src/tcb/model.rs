//! Interface between a connection and an algorithm that models its path (BBR): inputs are sent,
//! delivered and lost segments, outputs are rate and window. Also pacing, which any connection may
//! have.
//!
//! A connection that needs neither pays for one check of its extension.

use super::Tcb;
use super::send::segment::{TxSegment, mark};
use super::send::store::TxStore;
use crate::config::CongestionControl;
use crate::seq::SeqNum;
use crate::slab::NIL;
use crate::tcb::cc::Control;
use crate::tcb::cc::algorithm::Algorithm;
use crate::tcb::cc::bbr::{Ack, Bbr};
use crate::tcb::cc::rate::{Rate, Sent, Stamp, put_stamp};
use crate::tcb::flags::Flags;
use crate::time::Instant;
use alloc::boxed::Box;

/// Returns BBR's state if the connection uses BBR.
#[inline]
fn bbr(control: &mut Option<Control>) -> Option<&mut Bbr> {
    match control {
        Some(Control::Bbr(bbr)) => Some(bbr),
        Some(Control::Cubic(_) | Control::NewReno(_)) | None => None,
    }
}

fn sent(stamps: &[Stamp], index: u32, segment: &TxSegment) -> Sent {
    Sent {
        stamp: stamps.get(index as usize).copied().unwrap_or_default(),
        sent_us: segment.sent_us,
        seq: segment.seq,
        span: segment.span(),
        again: segment.has(mark::EVER_RETRANSMITTED),
    }
}

/// Handles a newly SACKed segment.
#[inline]
pub(crate) fn delivered(control: &mut Option<Control>, stamps: &[Stamp], index: u32, segment: &TxSegment) {
    if let Some(bbr) = bbr(control) {
        bbr.rate.on_delivered(&sent(stamps, index, segment));
    }
}

/// Handles a segment that is newly marked lost, for the first time or again.
#[inline]
pub(crate) fn lost(control: &mut Option<Control>, stamps: &[Stamp], index: u32, segment: &TxSegment) {
    if let Some(bbr) = bbr(control) {
        bbr.on_lost(&sent(stamps, index, segment));
    }
}

impl Tcb {
    #[inline]
    fn bbr(&mut self) -> Option<&mut Bbr> {
        bbr(&mut self.ext.as_mut()?.control)
    }

    /// Returns true if the algorithm sets the window on every ACK, also in recovery and after idle
    /// times.
    #[inline]
    pub(crate) fn owns_window(&self) -> bool {
        self.ext.as_ref().is_some_and(|e| matches!(e.control, Some(Control::Bbr(_))))
    }

    /// Returns TCP_CONGESTION.
    pub(crate) fn algorithm(&self) -> CongestionControl {
        match self.ext.as_ref().and_then(|e| e.control.as_ref()) {
            Some(control) => control.algorithm(),
            None if self.flags.has(Flags::NEW_RENO) => CongestionControl::NewReno,
            None => CongestionControl::Cubic,
        }
    }

    /// Sets TCP_CONGESTION, at any time of a connection's life.
    pub(crate) fn use_algorithm(&mut self, algorithm: CongestionControl, now: Instant) {
        if algorithm == self.algorithm() {
            return;
        }
        let owned = self.owns_window();
        let new_reno = algorithm == CongestionControl::NewReno;
        self.flags.put(Flags::NEW_RENO, new_reno);
        let state = match algorithm {
            CongestionControl::Bbr => return self.use_bbr(now),
            CongestionControl::Cubic | CongestionControl::NewReno => Control::loss_based(new_reno),
        };
        if owned {
            // Congestion avoidance begins at the window that BBR has found.
            self.window.ssthresh = self.window.cwnd;
        }
        if let Some(ext) = self.ext.as_mut() {
            ext.pacing.set_rate(0);
        }
        // The states of CUBIC and NewReno are allocated at the first loss; until then a flag
        // selects one of them.
        if self.algorithm() != algorithm {
            self.ext_mut().control = Some(state);
        }
    }

    fn use_bbr(&mut self, now: Instant) {
        let (window, srtt, mss, nxt) = (self.window, self.rtt.srtt_us(), self.mss as u32, self.snd.nxt());
        let mut state = Bbr::new(window, srtt, mss, self.flags.has(Flags::SACK), now, nxt);
        if self.recovery() != crate::tcb::extension::Recovery::Open {
            let mut window = window;
            state.on_congestion(&mut window, 0, mss, now);
        }
        self.window.ssthresh = u32::MAX;
        let rate = state.pacing_rate();
        let ext = self.ext_mut();
        ext.control = Some(Control::Bbr(Box::new(state)));
        ext.pacing.set_rate(rate);
    }

    /// Marks samples as limited by the application if it leaves the window unused
    /// (draft-ietf-ccwg-bbr 4.1.2.4). Called before data is sent or an ACK processed.
    #[inline]
    pub(crate) fn check_app_limited(&mut self) {
        if self.owns_window() && !self.has_unsent() {
            self.mark_limited(Rate::mark_app_limited);
        }
    }

    /// Marks samples as limited by the peer's window while a hole keeps its edge from moving, which
    /// the draft omits. Data delivered in that time does not show the path's rate, and with heavy
    /// loss the window is in this state long before the path is full.
    ///
    /// A full window without a hole is the maximum for this connection, a limit of the path like
    /// any other (as in the draft and on Linux, `tcp_rate_check_app_limited`). Otherwise BBR would
    /// stay in Startup while it lasts.
    fn check_window_limited(&mut self) {
        let hole = self.ext.as_ref().is_some_and(|e| e.sacked | e.lost | e.retransmitted != 0);
        if hole && (self.snd.una() + self.snd.wnd()).delta(self.snd.nxt()) < i32::from(self.mss) {
            self.mark_limited(Rate::mark_window_limited);
        }
    }

    #[inline(never)]
    fn mark_limited(&mut self, mark: fn(&mut Rate, u32)) {
        let (flight, cwnd) = (self.flight(), self.window.cwnd);
        let pending = self.has_lost();
        if flight < cwnd
            && !pending
            && let Some(bbr) = self.bbr()
        {
            mark(&mut bbr.rate, flight);
        }
    }

    /// Begins an ACK up to `ack` (SND.UNA for a duplicate); its segments are still in the queue.
    #[inline]
    pub(crate) fn model_begin(&mut self, store: &TxStore, ack: SeqNum, now: Instant) {
        if self.owns_window() {
            self.begin_ack(store, ack, now);
        }
    }

    #[inline(never)]
    fn begin_ack(&mut self, store: &TxStore, ack: SeqNum, now: Instant) {
        self.check_app_limited();
        self.check_window_limited();
        let (window, una, mut at, end) = (self.window, self.snd.una(), self.tx.head(), self.tx.next);
        let Some(bbr) = self.bbr() else { return };
        bbr.begin(&window, now);
        bbr.rate.forget_start(una);
        while at != end && at != NIL {
            let segment = &store.segments[at];
            if segment.end().after(ack) {
                if ack.after(segment.seq) && !segment.has(mark::SACKED) {
                    bbr.rate.on_part_delivered(ack.since(segment.seq));
                }
                break;
            }
            if !segment.has(mark::SACKED) {
                bbr.rate.on_delivered(&sent(&store.stamps, at, segment));
            }
            at = segment.next;
        }
    }

    /// Ends an ACK: applies the model's rate and window.
    #[inline]
    pub(crate) fn model_end(&mut self, now: Instant) {
        if self.owns_window() {
            self.end_ack(now);
        }
    }

    #[inline(never)]
    fn end_ack(&mut self, now: Instant) {
        let (flight, mss, mut window) = (self.flight(), self.mss as u32, self.window);
        let Some(bbr) = self.bbr() else { return };
        bbr.on_ack_end(&mut window, &Ack { now, flight, mss });
        let rate = bbr.pacing_rate();
        self.window = window;
        self.ext_mut().pacing.set_rate(rate);
    }

    /// Records that the segment `index` has just been sent.
    #[inline]
    pub(crate) fn record_sent(&mut self, store: &mut TxStore, index: u32, now: Instant) {
        if self.ext.as_ref().is_some_and(|e| e.pacing.rate() != 0 || e.control.is_some()) {
            self.record_sent_to_model(store, index, now);
        }
    }

    #[inline(never)]
    fn record_sent_to_model(&mut self, store: &mut TxStore, index: u32, now: Instant) {
        let (flight, mss, mut window) = (self.flight(), self.mss as u32, self.window);
        let segment = &store.segments[index];
        let (span, len) = (segment.span(), segment.len);
        if let Some(bbr) = self.bbr() {
            let stamp = bbr.on_sent(&mut window, now, flight, span);
            let rate = bbr.pacing_rate();
            put_stamp(&mut store.stamps, index, stamp);
            self.window = window;
            self.ext_mut().pacing.set_rate(rate);
        }
        if let Some(ext) = self.ext.as_mut() {
            ext.pacing.charge(len, mss, now);
        }
    }

    /// Paces CUBIC's first slow start at twice the window's rate over a round trip, as Linux does
    /// (`tcp_pacing_ss_ratio`): the same growth, without the bursts that stretched ACKs and idle
    /// times cause.
    pub(crate) fn pace_slow_start(&mut self) {
        let (cwnd, srtt) = (u64::from(self.window.cwnd), u64::from(self.rtt.srtt_us().max(1)));
        self.ext_mut().pacing.set_rate(cwnd * 2_000_000 / srtt);
    }

    /// Returns when the next segment may leave, if it must wait.
    #[inline]
    pub(crate) fn pacing_wait(&self, now: Instant) -> Option<Instant> {
        let ext = self.ext.as_ref()?;
        // A probe or the first retransmission does not wait.
        if self.flags.has(Flags::PUSH_OUT) { None } else { ext.pacing.wait(now) }
    }

    /// Ends the wait in the core's queue.
    pub(crate) fn pacing_wake(&mut self, now: Instant) {
        let mss = self.mss as u32;
        if let Some(ext) = self.ext.as_mut() {
            ext.pacing.wake(now, mss);
        }
    }
}
