//! Explicit congestion notification: RFC 3168 with RFC 8311, as Linux implements it.
//!
//! Negotiated in the handshake. New data then carries ECT(0), and a router marks it CE instead of
//! dropping it. The receiver echoes that by ECE on every ACK until the sender reports by CWR that
//! it has reduced its window.

use super::Tcb;
use super::send::recovery::AckInput;
use crate::rx::parse::Segment;
use crate::seq::SeqNum;
use crate::stats::Stats;
use crate::tcb::cc::Control;
use crate::tcb::cc::algorithm::Algorithm;
use crate::tcb::extension::Recovery;
use crate::tcb::flags::Flags;
use crate::wire::tcp::TcpFlags;

#[cfg(test)]
mod tests;

/// ECN field: not ECN-capable (RFC 3168 section 5).
const NOT_ECT: u8 = 0b00;
/// ECN field: ECT(0), the only codepoint that we send. ECT(1) is for experiments (RFC 8311 2.2).
pub(crate) const ECT_0: u8 = 0b10;
/// ECN field: congestion experienced.
const CE: u8 = 0b11;

/// Returns the flags of our SYN: an "ECN-setup SYN" (RFC 3168 6.1.1) if we request ECN.
pub(crate) fn syn_flags(ecn: bool) -> TcpFlags {
    if ecn { TcpFlags::SYN | TcpFlags::ECE | TcpFlags::CWR } else { TcpFlags::SYN }
}

/// Returns the flags of our SYN-ACK: an "ECN-setup SYN-ACK" if we agree.
pub(crate) fn syn_ack_flags(ecn: bool) -> TcpFlags {
    let flags = TcpFlags::SYN | TcpFlags::ACK;
    if ecn { flags | TcpFlags::ECE } else { flags }
}

/// Returns true if the peer requests ECN. A SYN that is itself marked suggests a device that takes
/// the ECN bits for a part of the type of service and would mark everything (RFC 3168 6.1.1 forbids
/// ECT on SYN; as Linux).
pub(crate) fn is_setup_syn(segment: &Segment) -> bool {
    segment.flags.contains(TcpFlags::ECE | TcpFlags::CWR) && segment.ecn == NOT_ECT
}

/// Returns true if the peer agrees. An old stack that knows neither bit may reflect both (RFC 3168
/// 6.1.1).
pub(crate) fn is_setup_syn_ack(flags: TcpFlags) -> bool {
    flags.contains(TcpFlags::ECE) && !flags.contains(TcpFlags::CWR)
}

/// Returns a type of service without its ECN bits.
pub(crate) fn tos(tos: u8) -> u8 {
    tos & !0b11
}

impl Tcb {
    /// Receiver's part, for an acceptable segment of an ECN connection. Only data inside the window
    /// counts: a segment that anyone can forge must not reduce our rate (RFC 3168 6.1.5).
    pub(crate) fn receive_ecn(&mut self, segment: &Segment) {
        let end = segment.seq + segment.payload_len;
        if segment.payload_len == 0 || !end.after(self.rcv.nxt()) || !segment.seq.before(self.rcv.edge()) {
            return;
        }
        if segment.flags.contains(TcpFlags::CWR) {
            self.flags.clear(Flags::ECN_ECHO);
            // The peer's window may be a single segment now, and a delayed ACK would stop it (as
            // Linux).
            self.flags.set(Flags::ACK_NOW);
        }
        match segment.ecn {
            // Not ECT after ECT was seen: probably a retransmission, which needs its ACK at once
            // (as Linux).
            NOT_ECT if self.flags.has(Flags::ECN_SEEN) => self.flags.set(Flags::ACK_NOW),
            NOT_ECT => {}
            CE => {
                if !self.flags.has(Flags::ECN_ECHO) {
                    // The sender should learn it as early as possible.
                    self.flags.set(Flags::ACK_NOW);
                }
                self.flags.set(Flags::ECN_ECHO | Flags::ECN_SEEN);
            }
            _ => self.flags.set(Flags::ECN_SEEN),
        }
    }

    /// Sender's part: an ACK with ECE on an ECN connection. One reduction for each window of data,
    /// and none if a loss in the same window has already caused one (RFC 3168 6.1.2).
    pub(crate) fn on_echo(&mut self, stats: &mut Stats, input: &AckInput<'_>, acked: u32) {
        let mss = self.mss.max(1) as u32;
        let ext = self.ext_mut();
        ext.delivered_ce = ext.delivered_ce.wrapping_add(acked.div_ceil(mss));
        if self.recovery() != Recovery::Open {
            return;
        }
        stats.ecn_reductions += 1;
        // Bytes in flight before this ACK, which may have acknowledged all of them.
        let (flight, high) = (self.snd.outstanding() + acked, self.snd.nxt());
        let mut window = self.window;
        match self.control() {
            Control::Bbr(bbr) => bbr.on_mark(&window, flight, input.now),
            control => control.on_congestion(&mut window, flight, mss, input.now),
        }
        self.window = window;
        self.ext_mut().recovery = Recovery::Cwr { high };
        // If the probe repaired a loss, it was caused by the same congestion.
        if let Some(loss) = self.loss_if_any() {
            loss.probe.end = None;
        }
        self.owe_cwr();
    }

    /// The window was reduced, for any reason: CWR is sent with the next new data (RFC 3168 6.1.2).
    #[inline]
    pub(crate) fn owe_cwr(&mut self) {
        if self.flags.has(Flags::ECN) {
            self.flags.set(Flags::ECN_CWR);
        }
    }

    /// Returns ECE for a segment that is sent now, if it is owed.
    #[inline]
    pub(crate) fn echo_flags(&self) -> TcpFlags {
        if self.flags.has(Flags::ECN_ECHO) { TcpFlags::ECE } else { TcpFlags::NONE }
    }

    /// Returns flags and TOS of a data segment. Only new data is ECN-capable (RFC 3168 6.1.5,
    /// 6.1.6): not retransmissions, window probes or bare FINs. CWR is owed until a segment with it
    /// has been built.
    #[inline]
    pub(crate) fn mark_data(&self, flags: TcpFlags, new: bool, len: u32) -> (TcpFlags, u8) {
        let tos = self.tos();
        if !self.flags.has(Flags::ECN) {
            return (flags, tos);
        }
        let mut flags = flags | self.echo_flags();
        if !new || len == 0 {
            return (flags, tos);
        }
        if self.flags.has(Flags::ECN_CWR) {
            flags |= TcpFlags::CWR;
        }
        (flags, tos | ECT_0)
    }

    /// Returns TOS or traffic class of transmitted packets, without ECN bits.
    #[inline]
    pub(crate) fn tos(&self) -> u8 {
        self.ext.as_ref().map_or(0, |e| e.tos)
    }

    /// Ends the state after a reduction for an echo, once an ACK is above its window of data. The ACK
    /// of exactly `high` still echoes: the segment with CWR begins there (as Linux
    /// `tcp_fastretrans_alert`).
    pub(crate) fn leave_cwr(&mut self, high: SeqNum, ack: SeqNum) {
        if ack.at_or_before(high) {
            return;
        }
        self.ext_mut().recovery = Recovery::Open;
        if !self.owns_window() {
            let mut window = self.window;
            self.control().on_recovery_exit(&mut window);
            self.window = window;
        }
    }
}
