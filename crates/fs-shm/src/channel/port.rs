//! What becomes of the port of side B: the kernel's accepted sockets keep their listener's port in use when that is closed, and
//! the one of two ends that closes first keeps it for a minute more (TIME_WAIT).

use std::net::SocketAddr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

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
            // Before the word that says that there is one. Another may have come later, and write sooner.
            if !wait_at(&head.waits_at, Addr::load(&self.block().addr[Side::B.index()]), now) {
                head.waits_elsewhere.fetch_max(now, Release);
            }
            head.waits.fetch_max(now & !WRITING, Release);
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
const TIME_WAIT_NANOS: u64 = 60 * SECOND;
const SECOND: u64 = 1_000_000_000;

/// Of [`WaitsAt::at`]: who has taken the entry is writing its address. Times have not this bit.
const WRITING: u64 = 1;

/// Entries that others have changed before one is given up for unknown: each has put an address or a time of its own there.
const TRIES: u32 = 64;

/// Writes down that one waits at an address. `false`: the table is full of others, at which one waits still. What a peer has scribbled
/// there costs its own listener's port, a minute long, and no more.
fn wait_at(table: &[WaitsAt; WAITS], addr: Addr, now: u64) -> bool {
    let now = now & !WRITING;
    // One that is ahead is nobody's word; two threads' clocks differ by no second.
    let is_over =
        |at: u64| at == 0 || now.saturating_sub(at) > TIME_WAIT_NANOS + SECOND || at.saturating_sub(now) > SECOND;
    // The port is the same for all.
    let is_same = |there: Addr| there.0[1..] == addr.0[1..] && (there.0[0] ^ addr.0[0]) as u32 == 0;
    for _ in 0..TRIES {
        let entries = || table.iter().map(|entry| (entry, entry.at.load(Acquire)));
        let known = |&(entry, at): &(&WaitsAt, u64)| at != 0 && at & WRITING == 0 && is_same(Addr::load(&entry.addr));
        if let Some((entry, at)) = entries().find(known) {
            let last = if is_over(at) { now } else { at.max(now) };
            if entry.at.compare_exchange(at, last, AcqRel, Relaxed).is_ok() {
                return true;
            }
            // Later, or another's by now.
            continue;
        }
        let Some((entry, at)) = entries().find(|&(_, at)| is_over(at)) else { return false };
        if entry.at.compare_exchange(at, now | WRITING, AcqRel, Relaxed).is_ok() {
            addr.store(&entry.addr);
            entry.at.store(now, Release);
            return true;
        }
    }
    false
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
        let last = head.waits.load(Acquire);
        let mut waits = Waits { at: Vec::new(), elsewhere: head.waits_elsewhere.load(Acquire) };
        for entry in &head.waits_at {
            let at = entry.at.load(Acquire);
            // The address is not there yet, and nor is the time of `head.waits`.
            if at == 0 || at & WRITING != 0 {
                continue;
            }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::WaitsAt;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    const NOW: u64 = 1000 * SECOND;

    fn table() -> [WaitsAt; WAITS] {
        std::array::from_fn(|_| WaitsAt { addr: Default::default(), at: Default::default() })
    }

    fn addr(ip: impl Into<IpAddr>) -> Addr {
        SocketAddr::new(ip.into(), 80).into()
    }

    fn host(host: u8) -> Addr {
        addr(Ipv4Addr::new(127, 0, 0, host))
    }

    fn at(table: &[WaitsAt], addr: Addr) -> Vec<u64> {
        let same = table.iter().filter(|entry| Addr::load(&entry.addr) == addr);
        same.map(|entry| entry.at.load(Relaxed)).filter(|&at| at != 0).collect()
    }

    #[test]
    fn eight_addresses_are_told_apart_and_the_ninth_is_not() {
        let table = table();
        for it in 1..=8 {
            assert!(wait_at(&table, host(it), NOW + u64::from(it) * 2), "{it}");
        }
        assert!(!wait_at(&table, host(9), NOW + SECOND));
        assert!((1..=8).all(|it| at(&table, host(it)) == [NOW + u64::from(it) * 2]));
        assert!(wait_at(&table, host(3), NOW + SECOND), "it is there already");
        assert_eq!(at(&table, host(3)), [NOW + SECOND]);
    }

    #[test]
    fn what_waits_no_more_gives_its_place_away() {
        let table = table();
        assert!(wait_at(&table, addr(Ipv6Addr::LOCALHOST), NOW - 30 * SECOND));
        for it in 1..=7 {
            assert!(wait_at(&table, host(it), NOW));
        }
        let later = NOW + 40 * SECOND;
        assert!(wait_at(&table, host(9), later));
        assert_eq!((at(&table, host(9)), at(&table, addr(Ipv6Addr::LOCALHOST))), (vec![later], vec![]));
        assert!(!wait_at(&table, host(10), later));
    }

    #[test]
    fn the_last_to_end_counts_whoever_writes_first() {
        let table = table();
        assert!(wait_at(&table, host(1), NOW + 4 * SECOND) && wait_at(&table, host(1), NOW + 2 * SECOND));
        // Ahead by less than a second, as another thread's clock may be; by more it is nobody's word.
        assert!(wait_at(&table, host(2), NOW + SECOND / 2) && wait_at(&table, host(2), NOW));
        table[7].at.store(u64::MAX - 1, Relaxed);
        host(3).store(&table[7].addr);
        assert!(wait_at(&table, host(3), NOW));
        assert_eq!((at(&table, host(2)), at(&table, host(3))), (vec![NOW + SECOND / 2], vec![NOW]));
    }

    #[test]
    fn an_entry_that_is_being_written_is_nobody_elses() {
        let table = table();
        table[0].at.store(NOW | WRITING, Relaxed);
        assert!(wait_at(&table, host(1), NOW));
        assert_eq!(table[0].at.load(Relaxed), NOW | WRITING);
        assert_eq!(table[1].at.load(Relaxed), NOW);
        // Its writer was killed in the middle.
        assert!(wait_at(&table, host(2), NOW + 70 * SECOND));
        assert_eq!(table[0].at.load(Relaxed), NOW + 70 * SECOND);
    }

    /// Two that close at once, at two addresses each: none is lost, none is mixed of two.
    #[test]
    fn closers_at_once_lose_no_address() {
        let rounds = if cfg!(miri) { 5 } else { 2000 };
        for _ in 0..rounds {
            let table = table();
            let start = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    let (table, start) = (&table, &start);
                    scope.spawn(move || {
                        start.wait();
                        for it in [1, 2 + thread, 4] {
                            assert!(wait_at(table, host(it), NOW));
                        }
                    });
                }
            });
            for it in 1..=4 {
                assert!(at(&table, host(it)).iter().all(|&at| at == NOW) && !at(&table, host(it)).is_empty(), "{it}");
            }
            let used = table.iter().filter(|entry| entry.at.load(Relaxed) != 0);
            assert!(used.map(|entry| Addr::load(&entry.addr)).all(|there| (1..=4).any(|it| host(it) == there)));
        }
    }
}
