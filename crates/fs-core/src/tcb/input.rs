//! Segments for synchronized connections: RFC 9293 3.10.7.4, step by step, with RFC 7323 (PAWS)
//! before and RFC 5961 (blind attacks) in between. Returns a disposition that the stack carries
//! out.

use crate::drop_reason::DropReason;
use crate::frame::FramePool;
use crate::rx::parse::Segment;
use crate::seq::SeqNum;
use crate::socket::event::Ready;
use crate::tcb::arrival::{Arrival, Core, Disposition};
use crate::tcb::extension::Ext;
use crate::tcb::flags::Flags;
use crate::tcb::send::recovery::AckInput;
use crate::tcb::timer_kind::TimerKind;
use crate::tcb::{State, Tcb};
use crate::wire::options;
use crate::wire::tcp::TcpFlags;

/// Flags of which an ordinary segment of an open connection has only ACK.
const ORDINARY: TcpFlags = TcpFlags::RST.with(TcpFlags::SYN).with(TcpFlags::ACK);
/// RFC 7323 5.5: after this idle time, timestamps of a connection are meaningless. Half of a clock
/// that ticks each microsecond, as Linux's can (`TCP_PAWS_WRAP`). Too high: such a peer's segments
/// are dropped after an idle time. Too low: an old duplicate may have such an echo.
const IDLE_MS: u32 = 2_147_000;
/// Tolerance for an echo that appears ahead of our clock, whose low bits are a core's number.
const CLOCK_SLACK_MS: u32 = 3600 * 1000;
impl Ext {
    /// Returns true if a range or a duplicate has to be reported, and `segment` would replace it by
    /// another.
    fn is_other_news(&self, rcv_nxt: SeqNum, segment: &Segment) -> bool {
        let (start, end) = (segment.seq, segment.seq + segment.payload_len);
        let ahead = || start.after(rcv_nxt) && self.out_of_order.owes_news_but_of(start, end);
        start != end && start != rcv_nxt && (self.dsack.is_some() || ahead())
    }
}

impl Tcb {
    /// Processes one segment. `ready` collects the application's events.
    #[inline]
    pub(crate) fn on_segment<P: FramePool>(
        &mut self,
        core: &mut Core<'_, P>,
        segment: &Segment,
        arrival: Arrival<'_>,
        ready: &mut Ready,
    ) -> Disposition {
        if let Err(refused) = self.check(core, segment) {
            self.report_old(segment);
            arrival.discard(core.pool);
            return refused;
        }
        self.record_activity(core.now);
        // Fifth: the ACK field. Options longer than timestamps may contain SACK blocks; without
        // timestamps, one block has the same length.
        let stamps = if self.flags.has(Flags::TIMESTAMPS) { 12 } else { 0 };
        let blocks;
        let sack = if segment.opt_len > stamps && self.flags.has(Flags::SACK) {
            blocks = options::sack_blocks(segment.options(arrival.head(core.pool)));
            blocks.as_slice()
        } else {
            &[]
        };
        let fin_acked = match self.take_ack(core, segment, sack, ready) {
            Ok(fin_acked) => fin_acked,
            Err(refused) => {
                arrival.discard(core.pool);
                return refused;
            }
        };
        // After the ACK field: the sequence number, which an attacker would have to guess, is
        // checked before a mark can reduce our rate.
        if self.flags.has(Flags::ECN) {
            self.receive_ecn(segment);
        }
        if self.flags.has(Flags::SYN_RECEIVED) {
            self.flags.clear(Flags::SYN_RECEIVED);
            *ready |= Ready::CONFIRMED;
        }
        if fin_acked {
            match self.state {
                State::FinWait1 => {
                    self.state = State::FinWait2;
                    if self.flags.has(Flags::ORPHAN) {
                        // No application waits for the peer's FIN: its time is limited (Linux
                        // `tcp_fin_timeout`).
                        self.wait_for_fin(core.config, core.now);
                    }
                }
                State::Closing => {
                    arrival.discard(core.pool);
                    return Disposition::TimeWait;
                }
                State::LastAck => {
                    arrival.discard(core.pool);
                    return Disposition::Closed;
                }
                State::Established | State::FinWait2 | State::CloseWait => {}
            }
        }
        // RFC 7323 4.3 (2): the acceptable segment that spans our last acknowledgment updates
        // TS.Recent.
        if let Some(ts) = segment.ts
            && self.flags.has(Flags::TIMESTAMPS)
            && segment.seq.at_or_before(self.rcv.nxt() - self.unacked as u32)
        {
            self.ts_recent.set(ts.val);
        }
        // Sixth: URG.
        if segment.flags.intersects(TcpFlags::URG) {
            self.record_urgent(segment, ready);
        }
        if segment.payload_len == 0 && !segment.flags.fin() {
            arrival.discard(core.pool);
            return Disposition::Accepted;
        }
        // Seventh and eighth: the segment text and FIN.
        if !self.state.can_receive() {
            arrival.discard(core.pool);
            return self.after_fin(segment);
        }
        self.take_text(core, segment, arrival, ready)
    }

    /// Handles text or a FIN after the peer's FIN was received. A segment before the FIN is
    /// acknowledged again. One after it should not occur and is ignored, without an ACK (RFC 9293
    /// 3.10.7.4, as Linux).
    #[cold]
    fn after_fin(&mut self, segment: &Segment) -> Disposition {
        if segment.seq.at_or_after(self.rcv.nxt()) {
            return Disposition::Discard(DropReason::DataAfterFin);
        }
        self.report_old(segment);
        self.flags.set(Flags::ACK_NOW);
        Disposition::Discard(DropReason::Duplicate)
    }

    /// Steps before the ACK: PAWS, sequence, RST, SYN.
    #[inline]
    fn check<P: FramePool>(&self, core: &Core<'_, P>, segment: &Segment) -> Result<(), Disposition> {
        let rst = segment.flags.rst();
        if self.flags.has(Flags::TIMESTAMPS) && !rst {
            match segment.ts {
                // RFC 7323 5.3 R1: older than the latest timestamp.
                Some(ts) if self.ts_recent.is_after(ts.val) => self.check_old(core, segment, ts.ecr)?,
                Some(_) => {}
                // RFC 7323 3.2: a non-RST segment without the option may be dropped.
                None => return Err(Disposition::Discard(DropReason::Paws)),
            }
        }
        // First: sequence number. As Linux, a segment is acceptable if it touches the window from
        // either side, so that a valid ACK, URG or RST is processed even if the window is zero (RFC
        // 9293 MUST-66).
        let end = segment.seq + segment.payload_len + segment.flags.fin() as u32;
        if end.before(self.rcv.nxt())
            || segment.seq.after(self.rcv.edge())
            || segment.flags.0 & ORDINARY.0 != TcpFlags::ACK.0
        {
            return Err(self.refuse(segment, end));
        }
        Ok(())
    }

    /// Checks a segment whose timestamp is older than TS.Recent.
    #[cold]
    fn check_old<P: FramePool>(&self, core: &Core<'_, P>, segment: &Segment, ecr: u32) -> Result<(), Disposition> {
        // RFC 7323 5.5: after 36 minutes of silence the peer's clock may have wrapped half around. The
        // segment's echo shows the length of the silence: it is the last timestamp that the peer
        // received from us, and no old duplicate can have such an old one.
        let age = core.timestamp().wrapping_sub(ecr);
        if (IDLE_MS..u32::MAX - CLOCK_SLACK_MS).contains(&age) {
            return Ok(());
        }
        Err(if segment.flags.syn() {
            Disposition::Challenge(DropReason::Paws)
        } else if segment.seq_len() == 0 {
            Disposition::DiscardAndAckRarely(DropReason::Paws)
        } else {
            Disposition::DiscardAndAck(DropReason::Paws)
        })
    }

    /// Returns the disposition of a segment that is outside of the window, is a RST or SYN, or has
    /// no ACK, checked in this order (RFC 9293 3.10.7.4, RFC 5961 sections 3 and 4).
    #[cold]
    fn refuse(&self, segment: &Segment, end: SeqNum) -> Disposition {
        let (rst, syn) = (segment.flags.rst(), segment.flags.syn());
        if syn && !rst && !segment.flags.ack() && self.flags.has(Flags::SYN_RECEIVED) {
            return Disposition::SynAgain;
        }
        // A peer that closed and then aborted may number its RST before its FIN (as Linux,
        // `tcp_reset_check`).
        let after_fin = rst
            && segment.seq + 1 == self.rcv.nxt()
            && matches!(self.state, State::CloseWait | State::LastAck | State::Closing);
        if after_fin {
            return Disposition::PeerReset;
        }
        if end.before(self.rcv.nxt()) || segment.seq.after(self.rcv.edge()) {
            return if rst {
                Disposition::Discard(DropReason::OutOfWindow)
            } else if syn {
                Disposition::Challenge(DropReason::UnexpectedSyn)
            } else if segment.seq_len() == 0 {
                Disposition::DiscardAndAckRarely(DropReason::OutOfWindow)
            } else {
                Disposition::DiscardAndAck(DropReason::OutOfWindow)
            };
        }
        if rst {
            // RFC 5961 3.2. As Linux, the right edge of our last SACK block is valid, too: the
            // peer's SND.NXT may be there.
            let last = self.ext.as_ref().and_then(|e| e.out_of_order.last()).map(|i| i.end());
            return if segment.seq == self.rcv.nxt() || Some(segment.seq) == last {
                Disposition::PeerReset
            } else {
                Disposition::Challenge(DropReason::InexactRst)
            };
        }
        if syn {
            return Disposition::Challenge(DropReason::UnexpectedSyn);
        }
        Disposition::Discard(DropReason::NoAck)
    }

    /// Returns whether this ACK acknowledged our FIN.
    #[inline(always)]
    fn take_ack<P: FramePool>(
        &mut self,
        core: &mut Core<'_, P>,
        segment: &Segment,
        sack: &[(SeqNum, SeqNum)],
        ready: &mut Ready,
    ) -> Result<bool, Disposition> {
        if segment.ack.after(self.snd.nxt()) {
            let opening = self.flags.has(Flags::SYN_RECEIVED);
            return Err(if opening { Disposition::NotOurSyn } else { Disposition::Challenge(DropReason::BadAck) });
        }
        if segment.ack.before(self.snd.una()) {
            return self.take_old_ack(core, segment, sack).map(|()| false);
        }
        let window = (segment.window as u32) << self.snd_shift();
        let advanced = segment.ack != self.snd.una();
        let bare = segment.payload_len == 0 && !segment.flags.fin() && window == self.snd.wnd();
        if self.flags.timer_is(TimerKind::Persist) {
            self.probes_answered();
        }
        let was_writable = self.writable();
        let mut fin = false;
        if advanced || self.snd.una() != self.snd.nxt() {
            let ece = segment.flags.contains(TcpFlags::ECE) && self.flags.has(Flags::ECN);
            let echo = segment.ts.map(|ts| ts.ecr);
            let input = AckInput { ack: segment.ack, bare, sack, ece, echo, now: core.now };
            fin = self.on_ack(core.store, core.pool, core.stats, core.config, &mut core.conn_stats.delivered, input);
        } else if self.ext.is_some() {
            self.on_ack_of_nothing(core.store, segment.ack, bare, sack);
        }
        if advanced || self.snd.is_window_newer(segment.seq, window) {
            self.snd.set_window(segment.seq, window, segment.window);
            if window > 0 {
                if self.flags.timer_is(TimerKind::Persist) {
                    self.clear_timer();
                    self.backoff = 0;
                }
                if let Some(ext) = self.ext.as_mut() {
                    ext.sender.closed_since = None;
                }
            }
        }
        if !was_writable {
            // The window may have grown beyond what the application could queue. Otherwise only a
            // write would grow the buffer, while the application waits for it to grow.
            self.grow_send_buffer(core.store, core.config.send_buffer);
            if self.writable() && self.state.can_send() {
                self.has_room_again(core.now);
                *ready |= Ready::WRITE;
            }
        }
        Ok(fin)
    }

    /// Handles an ACK that was overtaken by others. It does not move SND.UNA, but its SACK blocks
    /// may be new (as Linux, `tcp_ack`, `old_ack`).
    #[cold]
    fn take_old_ack<P: FramePool>(
        &mut self,
        core: &mut Core<'_, P>,
        segment: &Segment,
        sack: &[(SeqNum, SeqNum)],
    ) -> Result<(), Disposition> {
        if self.flags.has(Flags::SYN_RECEIVED) {
            return Err(Disposition::NotOurSyn);
        }
        // RFC 5961 section 5: too old for an honest peer, as is an ACK of data that was never sent
        // (as Linux since 6.7).
        let sent = core.conn_stats.acknowledged(self.snd.una()).unwrap_or(u32::MAX);
        if segment.ack.before(self.snd.una() - self.max_snd_wnd().max(1).min(sent)) {
            return Err(Disposition::Challenge(DropReason::BadAck));
        }
        if !sack.is_empty() && self.snd.una() != self.snd.nxt() {
            self.on_old_ack(
                core.store,
                core.stats,
                core.config,
                &mut core.conn_stats.delivered,
                segment.ack,
                sack,
                core.now,
            );
        }
        Ok(())
    }

    /// Makes the next ACK report the part of a rejected segment that was received before, including
    /// the FIN.
    #[cold]
    fn report_old(&mut self, segment: &Segment) {
        let end = segment.seq + segment.payload_len + u32::from(segment.flags.fin());
        let end = if end.after(self.rcv.nxt()) { self.rcv.nxt() } else { end };
        if segment.seq.before(end) {
            self.report_duplicate(segment.seq, end);
        }
    }

    /// Returns true if the owed ACK would report a range or a duplicate, and `segment` changes
    /// another. That ACK is built first, so that ACKs report ranges in the order in which they
    /// changed, and each range in three ACKs (RFC 2018 section 4).
    ///
    /// A single ACK for the whole batch would report each range once, or some not at all, and the
    /// peer would retransmit data that only a lost ACK had reported. If a later block reports it
    /// after all, Linux takes that for reordering, and from then on waits up to a round trip longer
    /// before it repairs any loss (`tcp_check_sack_reordering`, `tcp_rack_reo_wnd`).
    #[inline]
    pub(crate) fn owes_other_news(&self, segment: &Segment) -> bool {
        self.flags.has(Flags::ACK_NOW)
            && self.flags.has(Flags::SACK)
            && self.ext.as_ref().is_some_and(|ext| ext.is_other_news(self.rcv.nxt(), segment))
    }
}
