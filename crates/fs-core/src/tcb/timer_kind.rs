//! A connection's one timer: what it is for ([`TimerKind`], three bits of the control block's flags), and when it fires
//! ([`TimerTick`]). `tcb::timers` sets both together.

use crate::timer::tick::tick_before;

/// What a connection's timer is for. There is one: of these at most one is waited for at a time. `Tcb::set_timer` sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TimerKind {
    /// The retransmission timer (RFC 6298). Also where no timer was ever set.
    Retransmit,
    /// The tail loss probe (RFC 8985 section 7).
    Probe,
    /// RACK's reordering timer (RFC 8985 section 6.3).
    Reorder,
    /// None: all that was sent is acknowledged. What is kept is when something was last sent.
    Idle,
    /// The persist timer (RFC 9293 3.8.6.1).
    Persist,
    /// An orphan's time in FIN-WAIT-2 (Linux `tcp_fin_timeout`).
    FinWait2,
}

impl TimerKind {
    /// By its number in the flags.
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

/// In wheel ticks: when the timer fires, or of [`TimerKind::Idle`] when something was last sent. 0: no timer runs, nor is that
/// known.
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

    /// A timer of this tick fires no earlier than the wheel's entry for `armed_at`.
    #[inline(always)]
    pub(crate) fn is_after(self, armed_at: u32) -> bool {
        !tick_before(self.0, armed_at)
    }
}
