//! A connection's only timer: its purpose ([`TimerKind`], three bits of the control block's flags),
//! and its expiry ([`TimerTick`]). `tcb::timers` sets both together.

use crate::timer::tick::tick_before;

/// Purpose of a connection's timer. One timer suffices: at most one purpose is active at a time.
/// `Tcb::set_timer` sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TimerKind {
    /// The retransmission timer (RFC 6298). Also the value before any timer was set.
    Retransmit,
    /// The tail loss probe (RFC 8985 section 7).
    Probe,
    /// RACK's reordering timer (RFC 8985 section 6.3).
    Reorder,
    /// No timer: everything sent is acknowledged. The tick is the time of the last transmission.
    Idle,
    /// The persist timer (RFC 9293 3.8.6.1).
    Persist,
    /// An orphan's time in FIN-WAIT-2 (Linux `tcp_fin_timeout`).
    FinWait2,
}

impl TimerKind {
    /// Kinds by their number in the flags.
    pub(super) const ALL: [TimerKind; 8] = [
        Self::Retransmit,
        Self::Probe,
        Self::Reorder,
        Self::Idle,
        Self::Persist,
        Self::FinWait2,
        // No other number is ever written.
        Self::FinWait2,
        Self::FinWait2,
    ];
}

/// A wheel tick: the timer's expiry, or for [`TimerKind::Idle`] the last transmission. 0: no timer
/// runs, and that time is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimerTick(u32);

impl TimerTick {
    #[inline(always)]
    pub(super) fn at(tick: u32) -> Self {
        Self(tick)
    }

    #[inline(always)]
    pub(super) fn tick(self) -> u32 {
        self.0
    }

    /// Returns true if a timer of this tick expires no earlier than the wheel's entry for
    /// `armed_at`.
    #[inline(always)]
    pub(crate) fn is_after(self, armed_at: u32) -> bool {
        !tick_before(self.0, armed_at)
    }
}
