//! The retransmission timer, and detection of spurious timeouts: RFC 6298 section 5, RFC 5682, RFC
//! 4015.

use super::recovery::Acknowledged;
use super::store::TxStore;
use crate::config::TcpConfig;
use crate::seq::SeqNum;
use crate::stats::Stats;
use crate::tcb::Tcb;
use crate::tcb::cc::algorithm::Algorithm;
use crate::tcb::extension::Recovery;
use crate::tcb::flags::Flags;
use crate::time::{Instant, micros};

impl Tcb {
    /// Handles the retransmission timer (RFC 6298 5.4 to 5.7, RFC 5681 3.1): outstanding data is
    /// lost, the window is one segment, the timer backs off. The segmenter retransmits the first
    /// segment.
    pub(crate) fn on_retransmission_timeout(
        &mut self,
        store: &mut TxStore,
        stats: &mut Stats,
        config: &TcpConfig,
        now: Instant,
    ) {
        stats.rto_fired += 1;
        let (out, mss, high, una) = (self.snd.outstanding(), self.mss as u32, self.snd.nxt(), self.snd.una());
        self.model_begin(store, self.snd.una(), now);
        let state = self.recovery();
        let time_outs = self.loss_mut().time_outs;
        let fresh = match state {
            Recovery::Open => true,
            Recovery::Cwr { high } | Recovery::Fast { high } => una.at_or_after(high),
            Recovery::Loss { .. } => time_outs == 0,
        };
        let mut window = self.window;
        self.control().on_rto(&mut window, out, mss, now);
        if !fresh {
            // Already reduced for this loss.
            window.ssthresh = self.window.ssthresh;
        }
        self.mark_lost_by_timeout(store, micros(now), config.rack && self.flags.has(Flags::SACK));
        if !self.flags.has(Flags::SACK) {
            self.ext_mut().sacked = 0;
        }
        window.cwnd = self.flight().saturating_add(mss);
        self.window = window;
        self.owe_cwr();
        let with_sack = self.flags.has(Flags::SACK);
        let resent = self.ext_mut().retransmitted;
        self.ext_mut().recovery = Recovery::Loss { high };
        let loss = self.loss_mut();
        if fresh {
            loss.undo.begin(una, resent);
        }
        loss.undo.frto = with_sack && (state == Recovery::Open || time_outs > 0);
        loss.undo.new_data_first = false;
        loss.probe.give_up();
        if !with_sack {
            loss.recover = Some(high);
        }
        loss.time_outs = loss.time_outs.saturating_add(1);
        loss.first_time_out.get_or_insert(now);
        self.dup_acks = 0;
        self.backoff = self.backoff.saturating_add(1);
        self.doubt_path(store, config, now);
        self.flags.set(Flags::PUSH_OUT);
        self.restart_rto(config, now);
    }

    /// Handles ACKs after a timeout: F-RTO (RFC 5682 section 3.1) and Eifel detection determine
    /// whether it was spurious.
    pub(super) fn on_ack_after_timeout(&mut self, store: &mut TxStore, facts: &Acknowledged, high: SeqNum) {
        let recovered = self.snd.una().at_or_after(high);
        if facts.advanced && self.is_spurious(facts.echo) {
            self.undo(store);
            return;
        }
        let can_send_new = self.has_unsent() && (self.snd.una() + self.snd.wnd()).after(self.snd.nxt());
        let (nxt, frto) = (self.snd.nxt(), self.loss().is_some_and(|l| l.undo.frto));
        if frto {
            // Step 3b: data that was sent before the timeout, and not retransmitted, arrives.
            if facts.original {
                self.undo(store);
                return;
            }
            let loss = self.loss_mut();
            loss.undo.new_data_first = false;
            if nxt.after(high) {
                // Step 3a: the loss was real.
                loss.undo.frto = !(facts.sacked > 0 || !facts.advanced && facts.bare);
            } else if facts.advanced && !recovered {
                // Step 2b: new data first.
                loss.undo.frto = can_send_new;
                loss.undo.new_data_first = can_send_new;
                if can_send_new {
                    self.ext_mut().recovery = Recovery::Loss { high: nxt };
                    return;
                }
            }
        }
        if recovered {
            let mut window = self.window;
            self.control().on_recovery_exit(&mut window);
            self.window = window;
            self.close_recovery();
        }
    }

    pub(super) fn is_spurious(&self, echo: Option<u32>) -> bool {
        self.loss().is_some_and(|l| l.undo.is_spurious(echo))
    }

    pub(super) fn resent_for_nothing(&self) -> bool {
        self.loss().is_some_and(|l| l.undo.marker.is_some() && l.undo.resent == Some(0))
    }

    pub(super) fn arrived_late(&self, echo: Option<u32>) -> bool {
        self.loss().is_some_and(|l| l.undo.marker.is_some() && l.undo.original_arrived(echo))
    }

    /// Undoes a spurious reduction (RFC 4015, RFC 5682): the window is restored, and nothing is
    /// lost. The backoff stays until there is a sample. If the round trip has become longer than
    /// the timeout, nothing else prevents further early retransmissions.
    pub(super) fn undo(&mut self, store: &mut TxStore) {
        let mut window = self.window;
        self.control().undo(&mut window);
        self.window = window;
        self.flags.clear(Flags::ECN_CWR);
        self.unmark_lost(store);
        self.close_recovery();
    }

    pub(super) fn close_recovery(&mut self) {
        let ext = self.ext_mut();
        ext.recovery = Recovery::Open;
        let resent = ext.retransmitted > 0;
        if let Some(loss) = ext.loss.as_deref_mut() {
            let undo = &mut loss.undo;
            // A reduction whose retransmissions may still be reported as duplicates can be undone
            // later (Linux `tcp_try_undo_dsack` in Disorder and Open), until the next reduction.
            (undo.frto, undo.new_data_first) = (false, false);
            if undo.resent == Some(0) || undo.resent.is_none() {
                undo.marker = None;
            }
            if !resent {
                undo.stamp = None;
            }
            loss.rack.recovered();
        }
    }
}
