//! The state word of a slot: phase, what each side did, generation.
//!
//! ```text
//!  bits 0..4   phase: 0 free, 1 connecting, 2 open, 3 failed
//!  bits 4, 5   side A, B closed (its last descriptor is gone)
//!  bits 6, 7   side A, B reset the connection
//!  bit  8      accepted
//!  bits 9, 10  side A, B has shut both directions: bytes for it reset the connection
//!  bits 11, 12 who waits has been told that side A, B has closed, and reset it, or there was nothing to tell
//!  bits 16..28 errno: why it failed or was reset; 0: ECONNRESET
//!  bits 32..64 generation, + 1 each time the slot becomes free
//! ```
//!
//! ```text
//!  free ──open──► connecting ──connected──► open ──both closed──► free
//!    │                └──────fail──► failed ──both closed──► free
//!    └──open (local)──────────────────► open
//! ```

use crate::layout::Side;

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// The slot is not in use.
    Free = 0,
    /// The daemon's core is connecting on the wire.
    Connecting = 1,
    /// Data may flow (also before accept).
    Open = 2,
    /// The connection could not be made.
    Failed = 3,
}

/// A state word, taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct State(pub(crate) u64);

pub(crate) const ACCEPTED: u64 = 1 << 8;
const ERRNO_SHIFT: u32 = 16;
const ERRNO_MASK: u64 = 0xfff;

pub(crate) const fn closed_bit(side: Side) -> u64 {
    1 << (4 + side as u64)
}

pub(crate) const fn reset_bit(side: Side) -> u64 {
    1 << (6 + side as u64)
}

pub(crate) const fn refusing_bit(side: Side) -> u64 {
    1 << (9 + side as u64)
}

pub(crate) const fn told_bit(side: Side) -> u64 {
    1 << (11 + side as u64)
}

impl State {
    #[inline]
    pub(crate) const fn new(generation: u32, phase: Phase) -> Self {
        State((generation as u64) << 32 | phase as u64)
    }

    /// Unknown values (hostile) count as failed.
    pub const fn phase(self) -> Phase {
        match self.0 & 0xf {
            0 => Phase::Free,
            1 => Phase::Connecting,
            2 => Phase::Open,
            _ => Phase::Failed,
        }
    }

    /// Generation of the slot.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The last descriptor of `side` is gone.
    pub const fn is_closed(self, side: Side) -> bool {
        self.0 & closed_bit(side) != 0
    }

    /// `side` reset the connection.
    pub const fn is_reset(self, side: Side) -> bool {
        self.0 & reset_bit(side) != 0
    }

    /// `side` has shut both directions: bytes that are sent to it reset the connection (tcp_rcv_state_process() of the kernel,
    /// FIN_WAIT2 with RCV_SHUTDOWN).
    pub(crate) const fn is_refusing(self, side: Side) -> bool {
        self.0 & refusing_bit(side) != 0
    }

    /// Who waits on the other side has been told that `side` has closed, and of its reset if there was one.
    pub(crate) const fn is_told(self, side: Side) -> bool {
        self.0 & told_bit(side) != 0
    }

    /// Exactly one side has closed: which.
    pub(crate) const fn half_closed(self) -> Option<Side> {
        match (self.is_closed(Side::A), self.is_closed(Side::B)) {
            (true, false) => Some(Side::A),
            (false, true) => Some(Side::B),
            _ => None,
        }
    }

    /// It will not be made: its opener has closed it before, or its time was over.
    pub(crate) const fn gave_up(self) -> bool {
        let is_over = self.is_closed(Side::B) && !self.is_accepted();
        is_over || matches!(self.phase(), Phase::Connecting) && self.is_closed(Side::A)
    }

    /// Side B has taken it out of the inbox.
    pub const fn is_accepted(self) -> bool {
        self.0 & ACCEPTED != 0
    }

    /// Why it failed or was reset; 0: not told.
    pub const fn errno(self) -> u16 {
        (self.0 >> ERRNO_SHIFT & ERRNO_MASK) as u16
    }

    /// Open, nobody closed or reset.
    pub(crate) const fn is_plain(self) -> bool {
        self.0 as u32 & !(ACCEPTED as u32) == Phase::Open as u32
    }

    /// [`State::is_plain`], and of this generation: one comparison.
    #[inline]
    pub(crate) const fn is_plain_of(self, generation: u32) -> bool {
        self.0 & !ACCEPTED == State::new(generation, Phase::Open).0
    }

    pub(crate) const fn with(self, bits: u64) -> Self {
        State(self.0 | bits)
    }

    pub(crate) const fn with_phase(self, phase: Phase) -> Self {
        State(self.0 & !0xf | phase as u64)
    }

    pub(crate) const fn with_errno(self, errno: u16) -> Self {
        State(self.0 & !(ERRNO_MASK << ERRNO_SHIFT) | (errno as u64 & ERRNO_MASK) << ERRNO_SHIFT)
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} generation {}", self.phase(), self.generation())?;
        for side in [Side::A, Side::B] {
            if self.is_closed(side) {
                write!(f, ", {side:?} closed")?;
            }
            if self.is_reset(side) {
                write!(f, ", {side:?} reset")?;
            }
        }
        if self.is_accepted() { write!(f, ", accepted") } else { Ok(()) }
    }
}
