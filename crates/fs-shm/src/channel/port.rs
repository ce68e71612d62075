//! What becomes of the port of side B: the kernel's accepted sockets keep their listener's port in use when that is closed, and
//! the one of two ends that closes first keeps it for a minute more (TIME_WAIT).

use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rustix::time::{ClockId, clock_gettime};

use super::state::{Phase, State};
use super::{Channel, ENDED_FIRST, RESET_SEEN, SHARES, SHARES_NOT};
use crate::addr::Addr;
use crate::arena::Arena;
use crate::layout::{Side, WAITS, WaitsAt};

/// How a connection uses the port of its side B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortUse {
    /// Not any more.
    No,
    /// It ended there first, and a side has not closed yet (FIN_WAIT2, TIME_WAIT).
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
    pub(super) fn record_wait(&self, state: State) {
        if state.phase() == Phase::Open && !self.was_reset(state) && self.b_ended_first() {
            // To 4 ms: it is about a minute.
            let now = clock_gettime(ClockId::MonotonicCoarse);
            let now = now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned());
            let head = self.arena().head();
            // Before the word that says that there is one.
            if !wait_at(&head.waits_at, Addr::load(&self.block().addr[Side::B.index()]), now) {
                head.waits_elsewhere.store(now, Relaxed);
            }
            head.waits.store(now, Relaxed);
        }
    }

    /// How it uses the port of side B.
    pub fn port_use(&self) -> PortUse {
        let Some(state) = self.state() else { return PortUse::No };
        if state.phase() != Phase::Open || !state.is_accepted() || self.was_reset(state) {
            return PortUse::No;
        }
        let ended = |side: Side| self.ring(side).rare.fin.load(Acquire) != 0;
        // The kernel's socket has no port from then on, open or not (tcp_set_state(), TCP_CLOSE).
        let is_over = ended(Side::A) && ended(Side::B);
        if !state.is_closed(Side::B) && !is_over {
            return PortUse::Open;
        }
        if self.b_ended_first() { PortUse::Ending } else { PortUse::No }
    }

    /// Whether SO_REUSEADDR is set on side B. `None`: as on its listener.
    pub fn shares_port(&self) -> Option<bool> {
        match self.block().own[Side::B.index()].flags.load(Relaxed) & (SHARES | SHARES_NOT) {
            0 => None,
            set => Some(set & SHARES != 0),
        }
    }

    fn b_ended_first(&self) -> bool {
        self.block().own[Side::B.index()].flags.load(Relaxed) & ENDED_FIRST != 0
    }

    /// By a side, or because a side sent to one that takes nothing any more: both ends of the kernel's are closed then.
    fn was_reset(&self, state: State) -> bool {
        let seen = |side: Side| self.block().own[side.index()].flags.load(Acquire) & RESET_SEEN != 0;
        state.is_reset(Side::A) || state.is_reset(Side::B) || seen(Side::A) || seen(Side::B)
    }
}

/// How long one end waits: TCP_TIMEWAIT_LEN of the kernel.
const TIME_WAIT_NANOS: u64 = 60_000_000_000;

/// Writes down that one waits at an address. `false`: the place in the table is that of another address, at which one waits still.
fn wait_at(table: &[WaitsAt; WAITS], addr: Addr, now: u64) -> bool {
    // The port is the same for all.
    let key = addr.0[1] ^ addr.0[2] ^ addr.0[3];
    let entry = &table[(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % WAITS];
    let (at, there) = (entry.at.load(Relaxed), Addr::load(&entry.addr));
    let is_same = there.0[1..] == addr.0[1..] && (there.0[0] ^ addr.0[0]) as u32 == 0;
    if at == 0 || !is_same {
        if at != 0 && now.saturating_sub(at) < TIME_WAIT_NANOS {
            return false;
        }
        addr.store(&entry.addr);
    }
    entry.at.store(now, Relaxed);
    true
}

/// Connections that ended at side B first, and have gone: until when TCP has one wait there, and where. Either side may have
/// scribbled on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Addresses, and when the last one ended at each: nanoseconds of CLOCK_MONOTONIC.
    pub at: Vec<(SocketAddr, u64)>,
    /// The same for one of which the address is not known; 0: there is none.
    pub elsewhere: u64,
}

impl Arena {
    /// Connections that have ended, and that side B had ended first.
    pub fn waits(&self) -> Waits {
        let head = self.head();
        let last = head.waits.load(Relaxed);
        let mut waits = Waits { at: Vec::new(), elsewhere: head.waits_elsewhere.load(Relaxed) };
        for entry in head.waits_at.iter().filter(|entry| entry.at.load(Relaxed) != 0) {
            let at = entry.at.load(Relaxed);
            match Addr::load(&entry.addr).to_std() {
                Some(addr) => waits.at.push((addr, at)),
                None => waits.elsewhere = waits.elsewhere.max(at),
            }
        }
        if last > waits.elsewhere && waits.at.iter().all(|&(_, at)| at < last) {
            // Between two stores.
            waits.elsewhere = last;
        }
        waits
    }
}
