//! ACK processing of the sending half: RTT samples, congestion window, and recovery's states (RFC
//! 5681, 6582, 6675, 8985). The order of steps is that of Linux's `tcp_ack`. Timeouts are in
//! [`super::timeout`].
//!
//! A connection without losses takes [`Tcb::on_ack`]'s fast path. The first SACK, duplicate ACK,
//! probe or timeout allocates a [`super::loss::Loss`], and from then on ACKs take the slow path.

use super::buffer::Acked;
use super::cursor::DUP_THRESH;
use super::sack::{Sacked, duplicate_block};
use super::segment::{TxSegment, mark};
use super::store::TxStore;
use crate::config::TcpConfig;
use crate::frame::FramePool;
use crate::seq::SeqNum;
use crate::stats::Stats;
use crate::tcb::Tcb;
use crate::tcb::extension::Recovery;
use crate::tcb::flags::Flags;
use crate::tcb::timer_kind::TimerKind;
use crate::time::{Duration, Instant, later, micros};

/// An acceptable ACK, as the sending half sees it.
pub(crate) struct AckInput<'a> {
    pub(crate) ack: SeqNum,
    /// The ACK may be a duplicate by RFC 5681 section 2: no payload, no SYN or FIN, window
    /// unchanged.
    pub(crate) bare: bool,
    pub(crate) sack: &'a [(SeqNum, SeqNum)],
    /// ECE on a connection that has negotiated ECN.
    pub(crate) ece: bool,
    /// The echo of our timestamp.
    pub(crate) echo: Option<u32>,
    pub(crate) now: Instant,
}

/// Effects of an ACK, for recovery's states.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Acknowledged {
    /// SND.UNA has moved.
    pub(crate) advanced: bool,
    /// Number of bytes by which it has moved.
    pub(crate) advance: u32,
    /// The ACK may be a duplicate.
    pub(crate) bare: bool,
    /// Bytes newly SACKed.
    pub(crate) sacked: u32,
    /// Bytes newly delivered, by SACK or cumulatively.
    pub(crate) delivered: u32,
    /// Data that was sent only once, and before recovery's point, has arrived (Linux
    /// `FLAG_ORIG_SACK_ACKED`).
    pub(crate) original: bool,
    /// The D-SACK block.
    pub(crate) duplicate: Option<(SeqNum, SeqNum)>,
    /// The echo of our timestamp.
    pub(crate) echo: Option<u32>,
}

/// Summary of the segments that an ACK has removed from the queue.
#[derive(Default)]
struct Trace {
    /// The first segment that was sent only once and not SACKed before: its start and end.
    first_once: Option<(SeqNum, SeqNum)>,
    /// The last of those segments, and the latest sent of the retransmitted ones: when sent, and
    /// their end.
    once: Option<(u32, SeqNum)>,
    again: Option<(u32, SeqNum)>,
}

impl Trace {
    fn see(&mut self, segment: &TxSegment) {
        if segment.has(mark::SACKED) {
            return;
        }
        let sent = (segment.sent_us, segment.end());
        if !segment.has(mark::EVER_RETRANSMITTED) {
            self.first_once.get_or_insert((segment.seq, segment.end()));
            self.once = Some(sent);
        } else if self.again.is_none_or(|(us, _)| (sent.0.wrapping_sub(us) as i32) >= 0) {
            self.again = Some(sent);
        }
    }
}

impl Tcb {
    /// Processes an ACK with SND.UNA <= ack <= SND.NXT. Returns true if it acknowledges our FIN.
    #[inline]
    pub(crate) fn on_ack<P: FramePool>(
        &mut self,
        store: &mut TxStore,
        pool: &mut P,
        stats: &mut Stats,
        config: &TcpConfig,
        delivered: &mut u32,
        input: AckInput<'_>,
    ) -> bool {
        self.tx.spill(store, self.snd.nxt());
        let advanced = input.ack != self.snd.una();
        if !advanced && (self.snd.una() == self.snd.nxt() || !input.bare && input.sack.is_empty() && !input.ece) {
            return false;
        }
        let troubled = |e: &crate::tcb::extension::Ext| e.loss.is_some() || e.recovery != Recovery::Open;
        if !advanced || !input.sack.is_empty() || input.ece || self.ext.as_ref().is_some_and(troubled) {
            return self.on_ack_slow_path(store, pool, stats, config, delivered, &input);
        }
        let flight_before = self.flight();
        let advance = input.ack.since(self.snd.una());
        self.model_begin(store, input.ack, input.now);
        let acked = self.tx.acknowledge(store, pool, input.ack, |_| {});
        *delivered = delivered.wrapping_add(acked.segments);
        self.snd.acknowledge(input.ack);
        if self.ext.as_ref().is_some_and(|e| e.soft_error.is_some()) {
            self.ext_mut().soft_error = None;
        }
        let rtt_us = acked.sample_us.map(|sent| micros(input.now).wrapping_sub(sent));
        if let Some(rtt_us) = rtt_us {
            self.sample_rtt(rtt_us, config);
            self.backoff = 0;
        }
        self.dup_acks = 0;
        self.grow_window(config, advance, flight_before, rtt_us, input.now);
        self.model_end(input.now);
        if self.snd.una() == self.snd.nxt() {
            self.flags.clear(Flags::WINDOW_LIMITED);
            self.stop_timer(input.now, acked.sample_us);
        } else {
            self.restart_timer(store, config, input.now);
        }
        acked.fin
    }

    /// Like `on_ack`, for a connection with losses now or before.
    #[inline(never)]
    fn on_ack_slow_path<P: FramePool>(
        &mut self,
        store: &mut TxStore,
        pool: &mut P,
        stats: &mut Stats,
        config: &TcpConfig,
        delivered: &mut u32,
        input: &AckInput<'_>,
    ) -> bool {
        let advanced = input.ack != self.snd.una();
        let now_us = micros(input.now);
        let (flight_before, advance) = (self.flight(), input.ack.since(self.snd.una()));
        let duplicate = duplicate_block(input.sack, input.ack);
        let mut facts = Acknowledged {
            advanced,
            advance,
            bare: input.bare,
            duplicate,
            echo: input.echo,
            ..Acknowledged::default()
        };
        let mut trace = Trace::default();
        let mut acked = Acked::default();
        self.model_begin(store, input.ack, input.now);
        if advanced {
            acked = self.tx.acknowledge(store, pool, input.ack, |segment| trace.see(segment));
            *delivered = delivered.wrapping_add(acked.segments);
            self.snd.acknowledge(input.ack);
            self.dup_acks = 0;
        }
        self.account_acked(&acked, advance, &mut facts);
        self.follow_trace(&trace, now_us, &mut facts);
        let sacked = match input.sack {
            [] => Sacked::default(),
            blocks => self.mark_sacked(store, blocks, input.echo, now_us),
        };
        *delivered = delivered.wrapping_add(sacked.segments);
        self.account_sacked(&sacked, &mut facts, stats);
        if advanced {
            self.forget_passed();
        }
        let rtt_us = self.sample_round_trip(&trace, &sacked, input.echo, now_us, config);
        self.take_duplicate(&facts);

        let lost_before = self.ext.as_ref().map_or(0, |e| e.lost);
        if self.on_probe_acked(input.ack, &facts) {
            self.reduce_for_probe(input.now);
        }
        let repairing = matches!(self.recovery(), Recovery::Fast { .. });
        let wait_us = self.update_recovery(store, stats, config, &facts, input.now);
        if input.ece {
            self.on_echo(stats, input, advance);
        }
        let newly_lost = self.ext.as_ref().is_some_and(|e| e.lost > lost_before);
        if matches!(self.recovery(), Recovery::Fast { .. }) {
            self.apply_prr(facts.delivered, advanced && !newly_lost);
            if advanced && !self.flags.has(Flags::SACK) {
                // RFC 6582 3.2 step 3: retransmits the hole that a partial ACK names now, for the
                // segment that has left the network.
                self.window.cwnd = self.window.cwnd.max(self.flight() + self.mss as u32);
            }
        } else if advanced
            && !matches!(self.recovery(), Recovery::Cwr { .. })
            && (!repairing || self.flags.has(Flags::SACK))
        {
            // Without SACK, the ACK that ends recovery covers everything the peer has stored. Slow
            // start by that amount would cause the burst that RFC 6582 3.2 step 3 avoids by a small
            // window.
            self.grow_window(config, facts.delivered.max(advance), flight_before, rtt_us, input.now);
        }
        self.model_end(input.now);
        self.time_after_ack(store, config, input.now, advanced, acked.sample_us, wait_us);
        acked.fin
    }

    /// Removes the acknowledged segments from the scoreboard's counters.
    fn account_acked(&mut self, acked: &Acked, advance: u32, facts: &mut Acknowledged) {
        let (with_sack, mss) = (self.flags.has(Flags::SACK), self.mss as u32);
        let bare_duplicate = !facts.advanced && facts.bare;
        let out = self.snd.outstanding();
        let repairing = matches!(self.recovery(), Recovery::Fast { .. });
        if !with_sack && bare_duplicate {
            // Duplicate ACKs are counted from the first on, and the ACK that ends the count must
            // take the slow path.
            self.loss_mut();
        }
        let orphan = self.flags.has(Flags::ORPHAN);
        let Some(ext) = self.ext.as_mut() else {
            facts.delivered = advance;
            return;
        };
        ext.lost = ext.lost.saturating_sub(acked.lost);
        ext.retransmitted = ext.retransmitted.saturating_sub(acked.retransmitted);
        if with_sack {
            ext.sacked = ext.sacked.saturating_sub(acked.sacked);
            ext.sacked_segments = ext.sacked_segments.saturating_sub(acked.sacked_segments);
            facts.delivered = advance.saturating_sub(acked.sacked);
        } else if facts.advanced {
            // Without SACK, `sacked` counts duplicate ACKs. One segment of a partial ACK was the
            // hole; the others are those that the duplicates reported (Linux
            // `tcp_remove_reno_sacks`). In other states the count ends.
            facts.delivered = advance.saturating_sub(ext.sacked).max(mss.min(advance));
            let left = if repairing { ext.sacked.saturating_sub(advance.saturating_sub(mss)) } else { 0 };
            ext.sacked = left.min(out.saturating_sub(ext.lost.max(mss)));
        } else if bare_duplicate {
            // Each duplicate ACK shows that one segment has left the network.
            let before = ext.sacked;
            ext.sacked = (ext.sacked + mss).min(out.saturating_sub(ext.lost.max(mss)));
            facts.delivered = ext.sacked.saturating_sub(before);
        }
        if facts.advanced {
            ext.soft_error = None;
            if let Some(loss) = ext.loss.as_deref_mut() {
                (loss.time_outs, loss.first_time_out) = (0, None);
            }
        } else if bare_duplicate && self.snd.wnd() == 0 && ext.sender.user_timeout.is_none() && !orphan {
            // RFC 9293 3.8.6.1: the peer has shrunk its window to zero and drops retransmissions,
            // but it replies. R2 applies to peers that do not reply (Linux
            // `tcp_rtx_probe0_timed_out`).
            if let Some(loss) = ext.loss.as_deref_mut() {
                loss.first_time_out = None;
            }
        }
    }

    /// Updates RACK and F-RTO with the cumulatively acknowledged segments.
    fn follow_trace(&mut self, trace: &Trace, now_us: u32, facts: &mut Acknowledged) {
        let high = self.recovery().high();
        let Some(loss) = self.loss_if_any() else { return };
        if let Some((sent_us, end)) = trace.once {
            loss.rack.delivered(now_us, sent_us, end, false);
        }
        // RFC 8985 6.2 step 2: an echo from before the first retransmission acknowledges the
        // originals.
        let early = loss.undo.original_arrived(facts.echo);
        if let Some((sent_us, end)) = trace.again.filter(|_| !early) {
            loss.rack.delivered(now_us, sent_us, end, true);
        }
        let Some((begin, end)) = trace.first_once else { return };
        facts.original = high.is_some_and(|high| end.at_or_before(high));
        if loss.fack.is_some_and(|fack| begin.before(fack)) {
            // A hole that was never retransmitted is filled: its segment was late (RFC 8985 6.2
            // step 3).
            self.record_reordering(Some(begin));
        }
    }

    pub(super) fn account_sacked(&mut self, sacked: &Sacked, facts: &mut Acknowledged, stats: &mut Stats) {
        facts.sacked = sacked.bytes;
        facts.delivered = facts.delivered.saturating_add(sacked.bytes);
        facts.original |= sacked.original;
        if sacked.late.is_some() {
            self.record_reordering(sacked.late);
        }
        if !facts.advanced && (facts.bare || sacked.bytes > 0) {
            stats.dup_acks += 1;
            self.dup_acks = self.dup_acks.saturating_add(1);
        }
    }

    /// Takes a round-trip sample by Karn's rule (RFC 6298 section 3): only from segments sent once,
    /// unless a timestamp shows that the retransmission was answered.
    ///
    /// No sample is taken if the ACK also covers retransmissions sent later. The peer may then have
    /// stored the segment until the hole before it was filled, or the first ACK was lost and this
    /// one answers the retransmission (Linux `tcp_clean_rtx_queue` takes no sample either). The
    /// backoff lasts until there is a sample.
    fn sample_round_trip(
        &mut self,
        trace: &Trace,
        sacked: &Sacked,
        echo: Option<u32>,
        now_us: u32,
        config: &TcpConfig,
    ) -> Option<u32> {
        let once = later(trace.once.map(|(us, _)| us), sacked.once_us);
        let again = later(trace.again.map(|(us, _)| us), sacked.again_us);
        let answered = || {
            let undo = self.loss().map(|l| l.undo).filter(|u| u.stamp.is_some());
            matches!((undo, echo), (Some(undo), Some(echo)) if (echo.wrapping_sub(undo.last_stamp) as i32) >= 0)
        };
        let sent_us = match (once, again) {
            (Some(once), None) => once,
            (Some(once), Some(again)) if (once.wrapping_sub(again) as i32) >= 0 => once,
            (_, Some(again)) if answered() => again,
            _ => return None,
        };
        let rtt_us = now_us.wrapping_sub(sent_us);
        self.sample_rtt(rtt_us, config);
        self.backoff = 0;
        if let Some(loss) = self.loss_if_any() {
            loss.rack.sample(rtt_us.max(1), now_us);
            loss.probe.unmeasured = false;
        }
        Some(rtt_us)
    }

    /// Handles a reported duplicate: RFC 2883.
    pub(super) fn take_duplicate(&mut self, facts: &Acknowledged) {
        let Some((start, end)) = facts.duplicate else { return };
        let (una, nxt) = (self.snd.una(), self.snd.nxt());
        if end.after(nxt) {
            return;
        }
        let loss = self.loss_mut();
        loss.dsacks = loss.dsacks.saturating_add(1);
        // More duplicates than retransmissions: the network, or a forger, has made them (Linux
        // `tcp_dsack_seen`).
        if loss.dsacks > loss.total_retransmits {
            return;
        }
        loss.undo.duplicate(start, end);
        loss.rack.duplicate(una, nxt);
    }

    /// Handles an ACK while nothing is outstanding. It may still report that retransmissions were
    /// spurious: the probe, or all those of a reduction (Linux `tcp_ack`, `no_queue`).
    #[cold]
    pub(crate) fn on_ack_of_nothing(
        &mut self,
        store: &mut TxStore,
        ack: SeqNum,
        bare: bool,
        sack: &[(SeqNum, SeqNum)],
    ) {
        if self.loss().is_none() {
            return;
        }
        let facts = Acknowledged { bare, duplicate: duplicate_block(sack, ack), ..Acknowledged::default() };
        self.take_duplicate(&facts);
        // An ACK that repairs a loss would move SND.UNA.
        self.on_probe_acked(ack, &facts);
        if facts.duplicate.is_some() && self.recovery() == Recovery::Open && self.resent_for_nothing() {
            self.undo(store);
        }
    }

    /// Updates recovery's state in the order of Linux's `tcp_fastretrans_alert`. Returns RACK's
    /// wait.
    pub(super) fn update_recovery(
        &mut self,
        store: &mut TxStore,
        stats: &mut Stats,
        config: &TcpConfig,
        facts: &Acknowledged,
        now: Instant,
    ) -> Option<u32> {
        let mut lost_again = false;
        match self.recovery() {
            Recovery::Open => {
                if facts.duplicate.is_some() && self.resent_for_nothing() {
                    self.undo(store);
                }
            }
            Recovery::Cwr { high } => {
                self.leave_cwr(high, self.snd.una());
            }
            Recovery::Fast { high } if self.snd.una().at_or_after(high) => self.end_fast_recovery(store, facts),
            Recovery::Fast { .. } => {
                if facts.advanced && self.arrived_late(facts.echo) {
                    // Partial: the original has filled the hole. While retransmissions are in
                    // flight, nothing more is marked lost; then everything is undone.
                    self.record_reordering(None);
                    if self.ext.as_ref().is_some_and(|e| e.retransmitted > 0) {
                        return None;
                    }
                    self.undo(store);
                } else if facts.duplicate.is_some() && self.resent_for_nothing() {
                    self.undo(store);
                }
            }
            Recovery::Loss { high } => self.on_ack_after_timeout(store, facts, high),
        }
        let (wait_us, again) = self.detect_losses(store, config, facts, now);
        lost_again |= again;
        let lost = self.ext.as_ref().is_some_and(|e| e.lost > 0);
        match self.recovery() {
            Recovery::Open | Recovery::Cwr { .. } if lost => self.enter_fast_recovery(stats, facts.advance, now),
            // Retransmissions of the timeout are lost again: recover by ACKs, at a further reduced
            // rate, as Linux does.
            Recovery::Loss { .. } if lost && lost_again => self.enter_fast_recovery(stats, facts.advance, now),
            _ => {}
        }
        wait_us
    }

    /// Marks lost segments. Returns RACK's wait, and whether a segment was lost a second time.
    fn detect_losses(
        &mut self,
        store: &mut TxStore,
        config: &TcpConfig,
        facts: &Acknowledged,
        now: Instant,
    ) -> (Option<u32>, bool) {
        let recovering = matches!(self.recovery(), Recovery::Fast { .. });
        if !self.flags.has(Flags::SACK) {
            // RFC 6582 3.2 steps 2 and 3: three duplicate ACKs beyond `recover`, or a partial ACK,
            // name a hole.
            let echo = self.loss().and_then(|l| l.recover).is_some_and(|r| self.snd.una().at_or_before(r));
            let third = self.may_begin() && u32::from(self.dup_acks) >= DUP_THRESH && !echo;
            if third || recovering && facts.advanced {
                self.mark_head_lost(store);
            }
            return (None, false);
        }
        if config.rack {
            let found = self.detect_losses_by_time(store, micros(now), false);
            return (found.wait_us, found.again);
        }
        if self.may_begin() && u32::from(self.dup_acks) >= DUP_THRESH && facts.sacked > 0 {
            self.mark_head_lost(store);
        }
        self.mark_lost_by_sack(store);
        (None, false)
    }

    /// Sets the timers after an ACK on the slow path.
    pub(super) fn time_after_ack(
        &mut self,
        store: &TxStore,
        config: &TcpConfig,
        now: Instant,
        advanced: bool,
        sent_us: Option<u32>,
        wait_us: Option<u32>,
    ) {
        if self.snd.una() == self.snd.nxt() {
            if advanced {
                self.flags.clear(Flags::WINDOW_LIMITED);
                self.stop_timer(now, sent_us);
                if let Some(ext) = self.ext.as_mut() {
                    ext.clear_board();
                }
            }
            return;
        }
        let reneged = {
            let head = self.tx.head();
            head != self.tx.next && store.segments[head].has(mark::SACKED)
        };
        if reneged && advanced {
            // RFC 2018 section 8: the ACK stops before data that the peer has SACKed. Waits a short
            // time for a better one; then the timeout forgets the SACKs (Linux
            // `tcp_check_sack_reneging`).
            let wait = Duration::from_micros(u64::from(self.rtt.srtt_us() / 2)).max(Duration::from_millis(10));
            self.set_timer(TimerKind::Retransmit, now + wait);
        } else if let Some(wait_us) = wait_us {
            let wait = Duration::from_micros(u64::from(wait_us)).min(self.rto(config));
            self.set_timer(TimerKind::Reorder, now + wait);
        } else if advanced {
            self.restart_timer(store, config, now);
        } else if match self.flags.timer() {
            TimerKind::Reorder => true,
            TimerKind::Probe => !self.may_begin(),
            _ => false,
        } {
            // From the head's own time: duplicate ACKs must not postpone the timeout.
            self.resume_rto(store, config, now);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
