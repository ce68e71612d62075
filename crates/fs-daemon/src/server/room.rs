//! Who may wait for accept: the room that a listener's backlog makes is shared among the processes that connect to it. Each has a limit in
//! its arena, which its library looks at; who meets it asks (`Room`), and what nobody else uses is shared anew.
//!
//! What waits is the openers' word: of an arena no more counts than it was given. Who says that more want to has what others do not use, as
//! who connects as often; but nothing that the server accepts takes it from him, and the others wait for each other's single place.

use super::Server;
use super::arenas::{ArenaEntry, Opener};
use super::place::waiting;
use fs_shm::{Arena, Side, Waiting};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Between two shares of one listener's room pass so many times what the last one took: it reads from each arena, and who asks all the
/// time must not keep the control thread busy.
const REST: u32 = 20;

/// So long who is kept out waits for another share, if nothing is accepted from his own inbox: others' may have made room. Shorter: each look
/// reads from each arena of the listener. Longer: so much later is it seen; the kernel's client tries again after a second.
pub(super) const AGAIN: Duration = Duration::from_millis(500);

/// So long at most, when shares gave nobody anything: the pause doubles until somebody asks, as between the kernel's SYNs.
const SELDOM: Duration = Duration::from_secs(4);

/// How long a listener's room is not shared again after that took `took`: of a thread that had to wait for a CPU meanwhile this is no measure.
fn rest(took: Duration) -> Duration {
    took.saturating_mul(REST).min(AGAIN)
}

/// So much of what is free may each arena have whatever the others have, a sixteenth and `LENT` at most: the same room for all of them, and
/// who takes it is in the next share. More: so many more than the backlog can wait, times the processes. Less: with many processes each
/// that opens two connections at once has to ask, though nobody waits.
const LENT: u32 = 8;
const LENT_PART: u32 = 16;

/// The limits of arenas that share room for `limit`; of each, how many wait there and whether more want to. Together they are `limit`,
/// but for what is lent (`LENT`), and one may wait in each.
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
    let lent = (free / LENT_PART).min(LENT);
    let room = |&(waits, asks): &(u32, bool)| {
        let first = if asks || asking == 0 { std::mem::take(&mut left) } else { 0 };
        let part = each + if asks { asked } else { 0 } + first;
        (waits + part.max(lent)).max(1)
    };
    arenas.iter().map(room).collect()
}

impl Server {
    /// Shares a listener's room anew, now or when that may be again.
    pub(super) fn share_room(&mut self, listener: u32) {
        let Some(entry) = self.listeners.get(listener) else { return };
        let now = Instant::now();
        match entry.more.shared_until.filter(|until| *until > now) {
            Some(until) => self.share_at(listener, until),
            None => self.share_room_now(listener),
        }
    }

    /// The same, at `at` at the latest.
    fn share_at(&mut self, listener: u32, at: Instant) {
        let when = self.unshared.entry(listener).or_insert(at);
        *when = at.min(*when);
        self.sweep_at(at);
    }

    /// The same for those that were put off; answers when the next one is due.
    pub(super) fn share_put_off(&mut self, now: Instant) -> Option<Instant> {
        let due: Vec<u32> = self.unshared.iter().filter(|&(_, at)| *at <= now).map(|(&id, _)| id).collect();
        due.into_iter().for_each(|id| self.share_room_now(id));
        self.unshared.values().min().copied()
    }

    /// The limits of a new arena of a listener's, until its room is shared.
    pub(super) fn begin_room(&self, listener: u32, memory: &OwnedFd) {
        if let Some(of) = self.listeners.get(listener) {
            self.write_limits(memory, 1, of.more.defer);
        }
    }

    /// How many connections may wait in an arena, and for how many seconds those without data are not seen (TCP_DEFER_ACCEPT). Answers
    /// what waits there now.
    fn write_limits(&self, memory: &OwnedFd, room: u32, defer: u32) -> Waiting {
        const LONGEST: u32 = 1000;
        let written = Arena::write_limits(memory.as_fd(), self.geometry, room, defer.min(LONGEST) * 1000);
        written.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot change an arena's limits");
            Waiting::default()
        })
    }

    /// Limits of all arenas in which processes open connections to a listener (a core looks at the backlog itself), and who was kept out
    /// and has room now is let in.
    /// sk_acceptq_is_full() of the kernel lets one more in than the backlog says; what waits in the kernel's own queue is in it.
    pub(super) fn share_room_now(&mut self, listener: u32) {
        self.unshared.remove(&listener);
        let Some(of) = self.listeners.get(listener) else { return };
        let begun = Instant::now();
        let defer = of.more.defer;
        let limit = of.backlog.saturating_add(1);
        let mut free = limit.saturating_sub(waiting(of.more.placeholder.as_fd()).min(limit));
        let (mut found, mut arenas) = (Vec::new(), Vec::new());
        let mut ids: Vec<u32> = self.arenas_of(listener).collect();
        // What cannot be divided is for the oldest of them.
        ids.sort_unstable();
        for id in ids {
            let Some(entry) = self.arenas.get(id).filter(|entry| matches!(entry.of.0, Opener::Process(_))) else {
                continue;
            };
            let there = Arena::read_waiting(entry.memory.shared.as_fd(), self.geometry).unwrap_or_default();
            let waits = there.admitted.min(entry.room);
            if entry.is_dying() || entry.is_emptied {
                // Nobody is let in there any more.
                free = free.saturating_sub(waits);
                continue;
            }
            found.push((id, entry.room));
            arenas.push((waits, there.kept_out != 0 || entry.is_new));
        }
        let rooms = found.into_iter().zip(shares(free, &arenas)).map(|((id, before), room)| (id, before, room));
        let (less, more): (Vec<_>, Vec<_>) = rooms.partition(|&(_, before, room)| room < before);
        // What came in since it was read where less may now: others are given so much less.
        let mut over = 0;
        let (mut is_given, mut is_wanted) = (false, false);
        for (id, before, room) in less.into_iter().chain(more) {
            let cut = over.min(room.saturating_sub(before));
            over -= cut;
            let room = room - cut;
            let Some(entry) = self.arenas.get_mut(id) else { continue };
            entry.is_new = false;
            entry.room = room;
            let memory = entry.memory.shared.clone();
            // What waits now: of one that came since it was read its opener may have seen the former limit.
            let there = self.write_limits(&memory, room, defer);
            if room < before {
                let came = there.admitted.min(before).saturating_sub(room);
                over += came;
                if let Some(entry) = self.arenas.get_mut(id) {
                    entry.room = room + came;
                }
            }
            if there.kept_out == 0 {
                continue;
            }
            is_wanted = true;
            is_given |= room > before;
            if there.admitted < room
                && let Some(arena) = self.map(id, Side::B)
            {
                arena.admit();
            }
        }
        let now = Instant::now();
        let until = now + rest(begun.elapsed());
        let Some(of) = self.listeners.get_mut(listener) else { return };
        of.more.shared_until = Some(until);
        // Who was given some takes more if there is; others wait for what somebody makes.
        let pause = if is_given { Duration::ZERO } else { of.more.pause };
        of.more.pause = if is_given || !is_wanted { AGAIN } else { (pause * 2).min(SELDOM) };
        if is_wanted {
            self.share_at(listener, until.max(now + pause));
        }
    }

    /// Answers [`fs_shm::control::Request::Room`], which has no answer. What waits in the arena says more than who asks, and what it costs
    /// is bounded by the pause between two shares.
    pub(super) fn want_room(&mut self, connection: u64, arena: u32) {
        self.counters.requests += 1;
        let me = self.connections.attachment(connection).and_then(|me| self.attachments.get(me));
        let opens = me.is_some_and(|me| me.is_let_in(arena, Side::A));
        let listener = self.arenas.get(arena).filter(|entry| opens && !entry.wire).and_then(ArenaEntry::listener);
        if let Some(of) = listener.and_then(|listener| self.listeners.get_mut(listener)) {
            of.more.pause = AGAIN;
        }
        if let Some(listener) = listener {
            self.share_room(listener);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_rests_and_not_for_long() {
        assert_eq!(rest(Duration::from_micros(200)), Duration::from_millis(4));
        assert_eq!(rest(Duration::from_secs(1)), AGAIN);
        assert_eq!(rest(Duration::MAX), AGAIN);
    }

    #[test]
    fn room_is_shared_and_not_given_twice() {
        assert_eq!(shares(4, &[(0, true)]), [4]);
        assert_eq!(shares(4, &[(3, false), (0, true)]), [3, 1]);
        assert_eq!(shares(512, &[(0, false), (0, true)]), [128, 384]);
        assert_eq!(shares(4, &[(2, true), (2, true)]), [2, 2], "it is full");
        assert_eq!(shares(4, &[(4, false), (0, true)]), [4, 1], "one may wait in each");
        assert_eq!(shares(4, &[(8, false), (0, true)]), [4, 1], "the backlog was longer");
        assert_eq!(shares(1, &[]), [0; 0]);
        let many = shares(129, &[[(0, true)].as_slice(), &[(0, false); 199]].concat());
        assert!(many[0] >= 65 && many[1..].iter().all(|&room| room == LENT), "nobody waits: {many:?}");
        let full = shares(129, &[[(120, false)].as_slice(), &[(0, false); 199]].concat());
        assert!(full[0] >= 120 && full[1..].iter().all(|&room| room == 1), "little is free: {full:?}");
        for limit in [1, 2, 5, 129, 4097, u32::MAX] {
            for count in 1..40 {
                for asking in 0..=count {
                    let arenas: Vec<_> = (0..count).map(|n| (n % 3, n < asking)).collect();
                    let waiting: u64 = arenas.iter().map(|&(waits, _)| u64::from(waits)).sum();
                    let rooms = shares(limit, &arenas);
                    let all: u64 = rooms.iter().map(|&room| u64::from(room)).sum();
                    assert!(rooms.iter().all(|&room| room >= 1));
                    let free = u64::from(limit).saturating_sub(waiting);
                    let lent = (free / u64::from(LENT_PART)).clamp(1, u64::from(LENT));
                    assert!(all <= u64::from(limit) + lent * u64::from(count), "{limit} {count} {asking}: {all}");
                    if waiting + u64::from(count) <= u64::from(limit) {
                        let is_lent = free >= u64::from(LENT_PART);
                        assert!(is_lent || all <= u64::from(limit).max(waiting + u64::from(count)));
                        assert!(rooms.iter().zip(&arenas).all(|(&room, &(waits, _))| room >= waits));
                    }
                }
            }
        }
    }
}
