//! When and what to acknowledge: delayed ACKs (RFC 1122 4.2.3.2), the offered window with silly-window
//! avoidance (RFC 9293 3.8.6.2.2).

use crate::tcb::Tcb;
use crate::tcb::flags::Flags;

/// Full-sized segments after which an ACK is owed at once: RFC 9293 MUST-59 wants one for every two.
const SEGMENTS_PER_ACK: u8 = 2;

impl Tcb {
    /// Notes that in-order data of `len` bytes has arrived. True when an ACK is due in this turn.
    #[inline]
    pub(crate) fn owe_ack(&mut self, len: u32) -> bool {
        if len >= self.mss as u32 || self.unacked_segments > 0 && len * 2 >= self.mss as u32 {
            let segments = (len / self.mss.max(1) as u32).clamp(1, 255) as u8;
            self.unacked_segments = self.unacked_segments.saturating_add(segments);
        }
        if self.unacked_segments >= SEGMENTS_PER_ACK {
            self.flags.set(Flags::ACK_NOW);
            true
        } else {
            self.flags.set(Flags::ACK_DELAYED);
            false
        }
    }

    /// Called when a segment that carries the current ACK leaves.
    #[inline]
    pub(crate) fn ack_sent(&mut self) {
        self.flags.clear(Flags::ACK_NOW | Flags::ACK_DELAYED);
        self.unacked_segments = 0;
    }

    /// Bytes of buffer that are not promised or used: what the window could be.
    #[inline]
    fn receive_room(&self) -> u32 {
        let held = self.ext.as_ref().map_or(0, |e| e.held);
        self.rcv_buf.saturating_sub(self.rx.bytes + held)
    }

    /// Moves the offered right edge as far as room allows and returns the window field to send, scaled.
    /// `frozen` (the core's receive budget is spent) keeps the edge where it is.
    #[inline]
    pub(crate) fn offer_window(&mut self, frozen: bool) -> u16 {
        let shift = self.rcv_shift();
        let offered = self.rcv_wnd();
        let room = self.receive_room();
        // Receiver's silly-window avoidance: move the edge only by a segment or half the buffer.
        let worth = room >= offered.saturating_add((self.rcv_buf / 2).min(self.mss as u32));
        let window = if worth && !frozen { room } else { offered };
        // Rounding down could move the edge left; up costs at most one unit of the scale.
        let field = ((window + (1 << shift) - 1) >> shift).min(u16::MAX as u32);
        let edge = self.rcv_nxt + (field << shift);
        if edge.after(self.rcv_edge) {
            self.rcv_edge = edge;
        }
        field as u16
    }

    /// After the application has read: is a window update worth a segment of its own? Two segments or a
    /// quarter of the buffer, whichever is less, or any room at all when the peer sees next to none.
    #[inline]
    pub(crate) fn window_update_due(&self) -> bool {
        let offered = self.rcv_wnd();
        let gain = self.receive_room().saturating_sub(offered);
        let mss = self.mss as u32;
        gain >= (self.rcv_buf / 4).max(2 * mss) || offered < mss && gain >= mss.min(self.rcv_buf / 2).max(1)
    }
}
