//! Who may wait for accept: the room that a listener's backlog makes is shared among the processes that connect to it. Each has a limit in
//! its arena, which its library looks at; who meets it asks (`Due`), and what nobody else uses is shared anew.
//!
//! What waits is the openers' word: of an arena no more counts than it was given, so who writes what he likes takes nothing from others.

use super::Server;
use super::arenas::Opener;
use super::place::waiting;
use fs_shm::{Arena, Side};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Between two shares of a listener's room pass so many times what the last one took: it reads from each arena, and who asks all the
/// time must not keep the control thread busy.
const REST: u32 = 20;

/// So long who is kept out waits for another look, if nothing is accepted from his own inbox: others' may have made room. Shorter: each look
/// reads from each arena of the listener. Longer: so much later is it seen; the kernel's client tries again after a second.
pub(super) const AGAIN: Duration = Duration::from_millis(500);

/// The limits of arenas that share room for `limit`; of each, how many wait there and whether more want to. Together they are `limit`,
/// but one may wait in each.
fn shares(limit: u32, arenas: &[(u32, bool)]) -> Vec<u32> {
    let all: u64 = arenas.iter().map(|&(waits, _)| u64::from(waits)).sum();
    let count = arenas.len() as u32;
    let Some(free) = u64::from(limit).checked_sub(all).map(|free| free as u32) else {
        // It was more before.
        let scaled = |waits: u32| (u64::from(waits) * u64::from(limit) / all) as u32;
        return arenas.iter().map(|&(waits, _)| scaled(waits).max(1)).collect();
    };
    // Half is for who wants it now; the other half, so that not each of the others' next connections has to ask.
    let asking = arenas.iter().filter(|&&(_, asks)| asks).count() as u32;
    let asked = (free.div_ceil(2)).checked_div(asking).unwrap_or(0);
    let each = (free - asked * asking) / count.max(1);
    let mut left = free - asked * asking - each * count;
    let room = |&(waits, asks): &(u32, bool)| {
        let first = if asks || asking == 0 { std::mem::take(&mut left) } else { 0 };
        (waits + each + if asks { asked } else { 0 } + first).max(1)
    };
    arenas.iter().map(room).collect()
}

/// How many connections may wait in an arena, and for how many seconds those without data are not seen (TCP_DEFER_ACCEPT).
fn write_limits(memory: &OwnedFd, room: u32, defer: u32) {
    const LONGEST: u32 = 1000;
    if let Err(error) = Arena::write_limits(memory.as_fd(), room, defer.min(LONGEST) * 1000) {
        tracing::warn!(%error, "an arena's limits");
    }
}

impl Server {
    /// Shares a listener's room anew, now or when that is due again.
    pub(super) fn share_room(&mut self, listener: u32) {
        let Some(entry) = self.listeners.get(listener) else { return };
        let now = Instant::now();
        match entry.more.shared_until.filter(|until| *until > now) {
            Some(until) => {
                self.unshared.insert(listener);
                self.sweep_at(until);
            }
            None => self.share_room_now(listener),
        }
    }

    /// The same for those that were put off; answers when the next one is due.
    pub(super) fn share_put_off(&mut self, now: Instant) -> Option<Instant> {
        let due = |id: &u32| self.listeners.get(*id).is_none_or(|it| it.more.shared_until.is_none_or(|at| at <= now));
        let due: Vec<u32> = self.unshared.iter().copied().filter(due).collect();
        due.into_iter().for_each(|id| self.share_room_now(id));
        self.unshared.iter().filter_map(|id| self.listeners.get(*id)?.more.shared_until).min()
    }

    /// The limits of a new arena of a listener's, until its room is shared.
    pub(super) fn begin_room(&self, listener: u32, memory: &OwnedFd) {
        if let Some(of) = self.listeners.get(listener) {
            write_limits(memory, 1, of.more.defer);
        }
    }

    /// Limits of all arenas in which processes open connections to a listener (a core looks at the backlog itself).
    /// sk_acceptq_is_full() of the kernel lets one more in than the backlog says; what waits in the kernel's own queue is in it.
    pub(super) fn share_room_now(&mut self, listener: u32) {
        self.unshared.remove(&listener);
        let Some(of) = self.listeners.get(listener) else { return };
        let begun = Instant::now();
        let defer = of.more.defer;
        let limit = of.backlog.saturating_add(1);
        let free = limit.saturating_sub(waiting(of.more.placeholder.as_fd()).min(limit));
        let mut found = Vec::new();
        for id in self.arenas_of(listener) {
            let Some(entry) = self.arenas.get(id).filter(|entry| matches!(entry.of.0, Opener::Process(_))) else {
                continue;
            };
            let pending = Arena::read_pending(entry.memory.shared.as_fd(), self.geometry).unwrap_or(0);
            found.push((id, (pending.min(entry.room), entry.wants_room)));
        }
        let arenas: Vec<(u32, bool)> = found.iter().map(|&(_, of)| of).collect();
        for ((id, (_, wants)), room) in found.into_iter().zip(shares(free, &arenas)) {
            let Some(entry) = self.arenas.get_mut(id) else { continue };
            (entry.room, entry.wants_room) = (room, false);
            write_limits(&entry.memory.shared, room, defer);
            if wants && let Some(arena) = self.map(id, Side::B) {
                arena.admit();
            }
        }
        let until = Instant::now() + begun.elapsed() * REST;
        if let Some(of) = self.listeners.get_mut(listener) {
            of.more.shared_until = Some(until);
        }
    }

    /// Some that this arena's process opens are kept out.
    pub(super) fn want_room(&mut self, arena: u32) {
        let Some(entry) = self.arenas.get_mut(arena) else { return };
        entry.wants_room = true;
        if let Some(listener) = entry.listener() {
            self.share_room(listener);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_shared_and_not_given_twice() {
        assert_eq!(shares(4, &[(0, true)]), [4]);
        assert_eq!(shares(4, &[(3, false), (0, true)]), [3, 1]);
        assert_eq!(shares(512, &[(0, false), (0, true)]), [128, 384]);
        assert_eq!(shares(4, &[(2, true), (2, true)]), [2, 2], "it is full");
        assert_eq!(shares(4, &[(4, false), (0, true)]), [4, 1], "one may wait in each");
        assert_eq!(shares(4, &[(8, false), (0, true)]), [4, 1], "the backlog was longer");
        assert_eq!(shares(1, &[]), [0; 0]);
        for limit in [1, 2, 5, 129, 4097, u32::MAX] {
            for count in 1..40 {
                for asking in 0..=count {
                    let arenas: Vec<_> = (0..count).map(|n| (n % 3, n < asking)).collect();
                    let waiting: u64 = arenas.iter().map(|&(waits, _)| u64::from(waits)).sum();
                    let rooms = shares(limit, &arenas);
                    let all: u64 = rooms.iter().map(|&room| u64::from(room)).sum();
                    assert!(rooms.iter().all(|&room| room >= 1));
                    assert!(all <= u64::from(limit) + u64::from(count), "{limit} {count} {asking}: {all}");
                    if waiting + u64::from(count) <= u64::from(limit) {
                        assert!(all <= u64::from(limit).max(waiting + u64::from(count)));
                        assert!(rooms.iter().zip(&arenas).all(|(&room, &(waits, _))| room >= waits));
                    }
                }
            }
        }
    }
}
