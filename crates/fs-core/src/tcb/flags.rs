//! Boolean properties of a connection, in one word of the control block.

use crate::tcb::timer_kind::TimerKind;

/// Set of properties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u32);

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal,)*) => {
        impl Flags {
            $($(#[$doc])* pub(crate) const $name: Flags = Flags(1 << $bit);)*
        }
    };
}

flags! {
    /// IPv6.
    V6 = 0,
    /// Timestamps were negotiated (RFC 7323).
    TIMESTAMPS = 1,
    /// SACK was negotiated (RFC 2018).
    SACK = 2,
    /// TCP_NODELAY.
    NODELAY = 3,
    /// The application has closed its handle.
    ORPHAN = 4,
    /// FIN is in the send queue.
    FIN_QUEUED = 5,
    /// The peer's FIN has been received in order.
    FIN_RECEIVED = 6,
    /// SHUT_RD.
    READ_SHUT = 7,
    /// An ACK is owed at the next opportunity.
    ACK_NOW = 8,
    /// An ACK is owed within the delayed-ACK time.
    ACK_DELAYED = 9,
    /// An entry is in the delayed-ACK queue.
    IN_DELAY_QUEUE = 10,
    /// On the list of ACKs to send.
    IN_ACK_LIST = 11,
    /// On the list of connections with data to send.
    IN_DATA_LIST = 12,
    /// The application was refused space because the pool was short.
    WAITS_FOR_POOL = 13,
    /// In an accept queue.
    UNACCEPTED = 14,
    /// Partial segments wait (TCP_CORK, MSG_MORE).
    HOLD = 15,
    /// NewReno instead of CUBIC.
    NEW_RENO = 16,
    /// The next data may leave in spite of the window or Nagle's algorithm (persist timeout).
    PUSH_OUT = 17,
    /// Part of the timer's kind: [`TimerKind::Persist`] or [`TimerKind::FinWait2`], which no fast
    /// path handles.
    RARE_TIMER = 20,
    /// The congestion window was full, and data was available ever since.
    WINDOW_LIMITED = 21,
    /// ECN was negotiated (RFC 3168 6.1.1).
    ECN = 22,
    /// Congestion was experienced: every ACK carries ECE until the peer's CWR (RFC 3168 6.1.3).
    ECN_ECHO = 23,
    /// The window was reduced for an echo: the next new data carries CWR (RFC 3168 6.1.2).
    ECN_CWR = 24,
    /// A segment with ECT or CE was received.
    ECN_SEEN = 25,
    /// Opened by data in a SYN (RFC 7413), and the handshake's final ACK has not arrived:
    /// SYN-RECEIVED.
    SYN_RECEIVED = 31,
}

/// Bits 18 to 20 contain the kind of the timer: see [`Flags::timer`].
const TIMER_SHIFT: u32 = 18;
const TIMER_MASK: u32 = 0b111 << TIMER_SHIFT;

const _: () = assert!(TimerKind::Idle as u32 == 0b011 && TimerKind::Persist as u32 == 0b100);
const _: () = assert!(TimerKind::FinWait2 as u32 == 0b101 && Flags::RARE_TIMER.0 == 0b100 << TIMER_SHIFT);

/// Bits 26 to 30 contain a number: see [`Flags::quick`].
const QUICK_SHIFT: u32 = 26;
const QUICK_MASK: u32 = 0b1_1111 << QUICK_SHIFT;

impl Flags {
    #[inline]
    pub(crate) fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union with `other`, also in constants.
    #[inline]
    pub(crate) const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Returns true if, of the flags in `mask`, exactly `these` are set.
    #[inline]
    pub(crate) fn are(self, mask: Flags, these: Flags) -> bool {
        self.0 & mask.0 == these.0
    }

    #[inline]
    pub(crate) fn any(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, other: Flags) {
        self.0 |= other.0;
    }

    #[inline]
    pub(crate) fn clear(&mut self, other: Flags) {
        self.0 &= !other.0;
    }

    /// Returns the kind of the timer.
    #[inline(always)]
    pub(crate) fn timer(self) -> TimerKind {
        TimerKind::ALL[((self.0 & TIMER_MASK) >> TIMER_SHIFT) as usize]
    }

    /// Returns true if [`Flags::timer`] is `kind`.
    #[inline(always)]
    pub(crate) fn timer_is(self, kind: TimerKind) -> bool {
        self.0 & TIMER_MASK == (kind as u32) << TIMER_SHIFT
    }

    /// Sets the kind of the timer. Only for `tcb::timers`, which sets its time as well.
    #[inline(always)]
    pub(super) fn set_timer(&mut self, kind: TimerKind) {
        self.0 = self.0 & !TIMER_MASK | (kind as u32) << TIMER_SHIFT;
    }

    /// Returns how many more ACKs are sent without delay (Linux's quick-ACK mode, up to 16), or
    /// [`crate::tcb::recv::ack::INTERACTIVE`].
    #[inline]
    pub(crate) fn quick(self) -> u8 {
        ((self.0 & QUICK_MASK) >> QUICK_SHIFT) as u8
    }

    /// Sets [`Flags::quick`].
    #[inline]
    pub(crate) fn set_quick(&mut self, quick: u8) {
        self.0 = self.0 & !QUICK_MASK | (quick as u32) << QUICK_SHIFT & QUICK_MASK;
    }

    #[inline]
    pub(crate) fn put(&mut self, other: Flags, on: bool) {
        if on { self.set(other) } else { self.clear(other) }
    }
}

impl core::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_kind_is_independent_of_flags() {
        let mut flags = Flags::HOLD | Flags::WINDOW_LIMITED | Flags::PUSH_OUT;
        flags.set_quick(31);
        let before = flags;
        for kind in TimerKind::ALL {
            flags.set_timer(kind);
            assert!(flags.timer() == kind && flags.timer_is(kind));
            assert_eq!(flags.any(Flags::RARE_TIMER), matches!(kind, TimerKind::Persist | TimerKind::FinWait2));
            assert!(TimerKind::ALL.iter().all(|&other| flags.timer_is(other) == (other == kind)));
        }
        flags.set_timer(TimerKind::Retransmit);
        assert_eq!(flags, before);
    }
}
