//! Acknowledgments: delayed ACKs (RFC 1122 4.2.3.2) and exceptions from them, and the offered
//! window with silly-window avoidance (RFC 9293 3.8.6.2.2).

use crate::tcb::Tcb;
use crate::tcb::flags::Flags;

/// Immediate ACKs at a connection's start: a sender in slow start grows by ACKs, so delaying them
/// costs it round trips. Linux: `TCP_MAX_QUICKACKS`.
pub(crate) const QUICK_MAX: u8 = 16;
/// Value of [`Flags::quick`] for a connection whose application answers what it reads: ACKs are
/// delayed, to be carried by the answers (Linux's ping-pong mode).
pub(crate) const INTERACTIVE: u8 = 31;

/// Unit of `Tcb::rcv_mss_64`.
const RCV_MSS_UNIT: u32 = 64;

/// Returns the assumed size of the peer's segments before the first one: RFC 9293's default, or our
/// own MSS if that is less (Linux: `tcp_initialize_rcv_mss`).
pub(crate) fn initial_rcv_mss_64(mss: u16) -> u8 {
    (mss as u32).min(536).div_ceil(RCV_MSS_UNIT) as u8
}

/// Minimum fair part of a core's receive share for a connection, as a divisor. Too high: thousands
/// of short connections take the window of one that reads with pauses. Too low: that many stalled
/// connections spend the second half of the share, too.
const FAIR: usize = 64;

/// Remaining frames of a core's receive share, which limit the windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// More than half.
    Ample,
    /// Less: connections that hold more than `fair` segments get no further window.
    Half {
        /// Number of segments.
        fair: u32,
    },
    /// Nothing: only connections without unread data get a window.
    Spent,
    /// The connection is not read any more.
    Over,
}

impl Share {
    /// Makes the share if `connections` connections hold `held` of `share` frames.
    #[inline]
    pub(crate) fn of(held: usize, share: usize, connections: usize) -> Self {
        if held < share / 2 { Self::Ample } else { Self::scarce(held, share, connections) }
    }

    #[cold]
    fn scarce(held: usize, share: usize, connections: usize) -> Self {
        if held >= share {
            return Self::Spent;
        }
        let fair = (share / connections.max(1)).max(share / FAIR).max(1);
        Self::Half { fair: u32::try_from(fair).unwrap_or(u32::MAX) }
    }
}

impl Tcb {
    /// Returns the size of the peer's full segments: the largest received one, but not larger than
    /// ours (a link may have merged several into one).
    #[inline]
    pub(crate) fn rcv_mss(&self) -> u32 {
        self.rcv_mss_64 as u32 * RCV_MSS_UNIT
    }

    /// Records in-order data of `len` bytes. RFC 9293 SHLD-19 requires an ACK for every second
    /// full-sized segment; more than one segment (Linux's rule) is acknowledged in this turn.
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

    /// Records that a segment with the current ACK is sent.
    #[inline]
    pub(crate) fn ack_sent(&mut self) {
        let quick = self.flags.quick();
        if quick.wrapping_sub(1) < QUICK_MAX && self.unacked > 0 {
            self.flags.set_quick(quick - 1);
        }
        self.flags.clear(Flags::ACK_NOW | Flags::ACK_DELAYED);
        self.unacked = 0;
    }

    /// Like [`Tcb::ack_sent`], for a segment with data. If it answers data received within the
    /// delayed-ACK time, the connection is interactive. This includes data that was acknowledged
    /// separately, because it was read before the answer was written (Linux: `tcp_event_data_sent`
    /// compares with `lrcvtime`; here an entry of the delayed-ACK queue has the same meaning).
    #[inline]
    pub(crate) fn ack_carried(&mut self) {
        if self.unacked > 0 || self.flags.has(Flags::IN_DELAY_QUEUE) {
            self.flags.set_quick(INTERACTIVE);
        }
        self.ack_sent();
    }

    /// Returns true if the end of the delayed-ACK time has an effect: on an ACK, or on whether an
    /// answer makes the connection interactive (see [`Tcb::ack_carried`]).
    #[inline]
    pub(crate) fn delay_counts(&self) -> bool {
        self.flags.has(Flags::ACK_DELAYED) || self.flags.quick() != INTERACTIVE
    }

    /// Handles the end of the delayed-ACK time without an answer: the ACK is due, and ACKs are no
    /// longer delayed for answers (Linux: `tcp_delack_timer_handler`).
    #[inline]
    pub(crate) fn delay_over(&mut self) {
        if self.flags.quick() == INTERACTIVE {
            self.flags.set_quick(0);
        }
        self.flags.set(Flags::ACK_NOW);
    }

    /// Sends a delayed ACK of less than a segment when the application has read everything, unless
    /// answers carry ACKs (Linux: `tcp_cleanup_rbuf`).
    #[inline]
    pub(crate) fn drained(&mut self) {
        if self.flags.has(Flags::ACK_DELAYED)
            && (self.unacked as u32) < self.rcv_mss()
            && self.flags.quick() != INTERACTIVE
        {
            self.flags.set(Flags::ACK_NOW);
        }
    }

    /// Returns the bytes of the buffer that are neither offered nor used: the possible window.
    #[inline]
    fn receive_room(&self) -> u32 {
        let Some(ext) = self.ext.as_ref() else { return self.rcv_buf().saturating_sub(self.rx.bytes) };
        self.rcv_buf().saturating_sub(self.rx.bytes + ext.held).min(ext.recv.window_clamp())
    }

    /// Returns the possible window while frames are short; 0: the edge stays.
    #[cold]
    fn scarce_room(&self, share: Share) -> u32 {
        let room = self.receive_room();
        let mss = u32::from(self.mss);
        let held = self.rx.bytes + self.ext.as_ref().map_or(0, |ext| ext.held);
        match share {
            Share::Ample => room,
            Share::Half { fair } if held <= fair.saturating_mul(mss) => room,
            // Two segments beyond the share, of which the second lets an edge within a segment
            // move.
            Share::Spent if self.rx.is_empty() => room.min(2 * mss),
            Share::Half { .. } | Share::Spent | Share::Over => 0,
        }
    }

    /// Moves the offered right edge as far as buffer and frames allow. Returns the window field to
    /// send, scaled.
    #[inline]
    pub(crate) fn offer_window(&mut self, share: Share) -> u16 {
        let shift = self.rcv_shift();
        let offered = self.rcv_wnd();
        let room = if share == Share::Ample { self.receive_room() } else { self.scarce_room(share) };
        // Receiver's silly-window avoidance: the edge moves by at least a segment or half the
        // buffer.
        let worth = room >= offered.saturating_add((self.rcv_buf() / 2).min(self.mss as u32));
        let window = if worth { room } else { offered };
        // Rounding down could move the edge left; rounding up costs at most one unit of the scale.
        let field = ((window + (1 << shift) - 1) >> shift).min(u16::MAX as u32);
        self.rcv.offer(field << shift);
        field as u16
    }

    /// Returns true if a window update deserves a segment of its own after the application has
    /// read: for two segments or a quarter of the buffer, whichever is more, or for any space if
    /// the peer's window is almost zero.
    #[inline]
    pub(crate) fn window_update_due(&self) -> bool {
        let offered = self.rcv_wnd();
        let gain = self.receive_room().saturating_sub(offered);
        let mss = self.mss as u32;
        gain >= (self.rcv_buf() / 4).max(2 * mss) || offered < mss && gain >= mss.min(self.rcv_buf() / 2).max(1)
    }
}
