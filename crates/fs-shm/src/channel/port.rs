//! What becomes of the port of side B: the kernel's accepted sockets keep their listener's port in use when that is closed, and
//! the one of two ends that closes first keeps it for a minute more (TIME_WAIT).

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rustix::time::{ClockId, clock_gettime};

use super::state::{Phase, State};
use super::{Channel, ENDED_FIRST};
use crate::arena::Arena;
use crate::layout::Side;

/// How a connection uses the port of its side B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortUse {
    /// Not any more.
    No,
    /// It was closed there first, and the peer has not closed yet (FIN_WAIT2).
    Ending,
    /// It is open there.
    Open,
}

impl Channel<'_> {
    /// Whether the peer has not ended its direction yet: who ends first is the one that waits.
    pub(super) fn is_first_to_end(&self) -> u32 {
        let ended = |word: &crate::word::AtomicU32| word.load(Acquire) != 0;
        if ended(&self.tx().rare.fin) || ended(&self.rx().rare.fin) { 0 } else { ENDED_FIRST }
    }

    /// Both sides have closed. With `state` before the second one did.
    pub(super) fn note_wait(&self, state: State) {
        let b = &self.block().own[Side::B.index()];
        if state.phase() == Phase::Open && !is_reset(state) && b.flags.load(Relaxed) & ENDED_FIRST != 0 {
            // To 4 ms: it is about a minute.
            let now = clock_gettime(ClockId::MonotonicCoarse);
            let now = now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned());
            self.arena().head().waits.store(now, Relaxed);
        }
    }

    /// How it uses the port of side B.
    pub fn port_use(&self) -> PortUse {
        let Some(state) = self.state() else { return PortUse::No };
        if state.phase() != Phase::Open || !state.is_accepted() || is_reset(state) {
            return PortUse::No;
        }
        if !state.is_closed(Side::B) {
            return PortUse::Open;
        }
        let first = self.block().own[Side::B.index()].flags.load(Relaxed) & ENDED_FIRST != 0;
        if first { PortUse::Ending } else { PortUse::No }
    }
}

fn is_reset(state: State) -> bool {
    state.is_reset(Side::A) || state.is_reset(Side::B)
}

impl Arena {
    /// When a connection ended that side B had ended first: nanoseconds of CLOCK_MONOTONIC; 0: none has. Either side may have
    /// scribbled on it.
    pub fn last_wait(&self) -> u64 {
        self.head().waits.load(Relaxed)
    }
}
