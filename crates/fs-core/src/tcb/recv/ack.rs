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

/// The part of a core's receive share that is fair for a connection, however many there are: one in so many. Larger:
/// connections that come and go by the thousand take the window of one that reads with pauses; smaller: so many stalled
/// ones spend the second half of the share, too.
const FAIR: usize = 64;

/// How much is left of the frames that a core's receive queues may hold: what windows go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// More than half.
    Ample,
    /// Less: connections that hold more than `fair` segments' worth are promised nothing more.
    Half {
        /// Segments.
        fair: u32,
    },
    /// Nothing: only who has nothing unread is promised anything.
    Spent,
    /// Nobody reads any more.
    Over,
}

impl Share {
    /// `held` frames of `share` are in receive queues, of `connections` connections.
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

    /// What the window may be though frames are short; 0: the edge stays where it is.
    #[cold]
    fn scarce_room(&self, share: Share) -> u32 {
        let room = self.receive_room();
        let mss = u32::from(self.mss);
        let held = self.rx.bytes + self.ext.as_ref().map_or(0, |ext| ext.held);
        match share {
            Share::Ample => room,
            Share::Half { fair } if held <= fair.saturating_mul(mss) => room,
            // What such a connection gets beyond the share, and so much more that an edge within a segment moves.
            Share::Spent if self.rx.is_empty() => room.min(2 * mss),
            Share::Half { .. } | Share::Spent | Share::Over => 0,
        }
    }

    /// Moves the offered right edge as far as room and the core's frames allow and returns the window field to send, scaled.
    #[inline]
    pub(crate) fn offer_window(&mut self, share: Share) -> u16 {
        let shift = self.rcv_shift();
        let offered = self.rcv_wnd();
        let room = if share == Share::Ample { self.receive_room() } else { self.scarce_room(share) };
        // Receiver's silly-window avoidance: move the edge only by a segment or half the buffer.
        let worth = room >= offered.saturating_add((self.rcv_buf() / 2).min(self.mss as u32));
        let window = if worth { room } else { offered };
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
