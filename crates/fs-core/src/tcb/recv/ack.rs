//! When and what to acknowledge: delayed ACKs (RFC 1122 4.2.3.2) and when not to delay them, the offered window
//! with silly-window avoidance (RFC 9293 3.8.6.2.2).

use crate::tcb::Tcb;
use crate::tcb::flags::Flags;

/// ACKs that go out at once at a connection's start: a sender in slow start grows by ACKs, so delaying them costs
/// it round trips. Linux: `TCP_MAX_QUICKACKS`.
pub(crate) const QUICK_MAX: u8 = 16;
/// Value of [`Flags::quick`]: the application answers what it reads, and its answers carry the ACKs (Linux's
/// ping-pong mode). ACKs wait for them.
pub(crate) const INTERACTIVE: u8 = 31;

/// Unit of `Tcb::rcv_mss_64`.
const RCV_MSS_UNIT: u32 = 64;

/// What the peer's segments are taken for before any came: RFC 9293's default, or what we send if that is less
/// (Linux: `tcp_initialize_rcv_mss`).
pub(crate) fn initial_rcv_mss_64(mss: u16) -> u8 {
    (mss as u32).min(536).div_ceil(RCV_MSS_UNIT) as u8
}

impl Tcb {
    /// The size of a full segment of the peer's: the largest that came, but not larger than ours (a link may have
    /// joined several into one).
    #[inline]
    pub(crate) fn rcv_mss(&self) -> u32 {
        self.rcv_mss_64 as u32 * RCV_MSS_UNIT
    }

    /// Notes that in-order data of `len` bytes has arrived: RFC 9293 SHLD-19 wants an ACK for every second
    /// full-sized segment; what is more than one (Linux's rule) is acknowledged in this turn.
    #[inline(always)]
    pub(crate) fn owe_ack(&mut self, len: u32) {
        self.unacked = self.unacked.saturating_add(len.min(u16::MAX as u32) as u16);
        if len > self.rcv_mss() {
            let largest = len.min((self.mss as u32).max(536)).div_ceil(RCV_MSS_UNIT).min(u8::MAX as u32) as u8;
            self.rcv_mss_64 = self.rcv_mss_64.max(largest);
        }
        let quick = self.flags.quick();
        if self.unacked as u32 > self.rcv_mss() || quick.wrapping_sub(1) < QUICK_MAX {
            self.flags.set(Flags::ACK_NOW);
        } else {
            self.flags.set(Flags::ACK_DELAYED);
        }
    }

    /// Called when a segment that carries the current ACK leaves.
    #[inline]
    pub(crate) fn ack_sent(&mut self) {
        let quick = self.flags.quick();
        if quick.wrapping_sub(1) < QUICK_MAX && self.unacked > 0 {
            self.flags.set_quick(quick - 1);
        }
        self.flags.clear(Flags::ACK_NOW | Flags::ACK_DELAYED);
        self.unacked = 0;
    }

    /// As [`Tcb::ack_sent`], for a segment with data: if it answers data that came within the delayed-ACK time, the
    /// connection is interactive, also when that data was acknowledged on its own because it was read before the answer
    /// was written (Linux: `tcp_event_data_sent` compares with `lrcvtime`; an entry of the delayed-ACK queue tells the
    /// same).
    #[inline]
    pub(crate) fn ack_carried(&mut self) {
        if self.unacked > 0 || self.flags.has(Flags::IN_DELAY_QUEUE) {
            self.flags.set_quick(INTERACTIVE);
        }
        self.ack_sent();
    }

    /// Something hangs on the end of the delayed-ACK time: an ACK, or whether an answer still makes the connection
    /// interactive (see [`Tcb::ack_carried`]).
    #[inline]
    pub(crate) fn delay_counts(&self) -> bool {
        self.flags.has(Flags::ACK_DELAYED) || self.flags.quick() != INTERACTIVE
    }

    /// The delayed-ACK time has passed without an answer: the ACK is due, and ACKs wait for answers no longer (Linux:
    /// `tcp_delack_timer_handler`).
    #[inline]
    pub(crate) fn delay_over(&mut self) {
        if self.flags.quick() == INTERACTIVE {
            self.flags.set_quick(0);
        }
        self.flags.set(Flags::ACK_NOW);
    }

    /// The application has read everything: a delayed ACK of less than a segment has nothing more to wait for,
    /// unless answers carry it (Linux: `tcp_cleanup_rbuf`).
    #[inline]
    pub(crate) fn drained(&mut self) {
        if self.flags.has(Flags::ACK_DELAYED)
            && (self.unacked as u32) < self.rcv_mss()
            && self.flags.quick() != INTERACTIVE
        {
            self.flags.set(Flags::ACK_NOW);
        }
    }

    /// Bytes of buffer that are not promised or used: what the window could be.
    #[inline]
    fn receive_room(&self) -> u32 {
        let Some(ext) = self.ext.as_ref() else { return self.rcv_buf().saturating_sub(self.rx.bytes) };
        self.rcv_buf().saturating_sub(self.rx.bytes + ext.held).min(ext.recv.window_clamp())
    }

    /// Moves the offered right edge as far as room allows and returns the window field to send, scaled.
    /// `frozen` (the core's receive budget is spent) keeps the edge where it is.
    #[inline]
    pub(crate) fn offer_window(&mut self, frozen: bool) -> u16 {
        let shift = self.rcv_shift();
        let offered = self.rcv_wnd();
        let room = self.receive_room();
        // Receiver's silly-window avoidance: move the edge only by a segment or half the buffer.
        let worth = room >= offered.saturating_add((self.rcv_buf() / 2).min(self.mss as u32));
        let window = if worth && !frozen { room } else { offered };
        // Rounding down could move the edge left; up costs at most one unit of the scale.
        let field = ((window + (1 << shift) - 1) >> shift).min(u16::MAX as u32);
        self.rcv.offer(field << shift);
        field as u16
    }

    /// After the application has read: is a window update worth a segment of its own? Two segments or a
    /// quarter of the buffer, whichever is more, or any room at all when the peer sees next to none.
    #[inline]
    pub(crate) fn window_update_due(&self) -> bool {
        let offered = self.rcv_wnd();
        let gain = self.receive_room().saturating_sub(offered);
        let mss = self.mss as u32;
        gain >= (self.rcv_buf() / 4).max(2 * mss) || offered < mss && gain >= mss.min(self.rcv_buf() / 2).max(1)
    }
}
