//! What is ready, and sleeping without missing anything.

use core::{
    cmp::Reverse,
    sync::atomic::{Ordering::SeqCst, fence},
    time::Duration,
};
use std::collections::VecDeque;

use fs_shm::{
    Arena,
    lanes::{Changes, Lane},
};

use super::{
    EpollEvent, PollFd,
    book::Book,
    expand,
    fired::fired,
    interest::{Candidate, ET, Entry, Interest, ONESHOT, Source, UNKNOWN, unread, unread_changes},
    registry,
    set::{DEL, Inner, Joined, KERNEL, SHARED, Set},
    sources::{is_watched, pass_on},
    sys::kernel,
    wait::LOOK,
};
use crate::{descriptor::table, listen, process::arenas};

/// EPOLLIN.
const IN: u32 = 0x1;
/// EPOLLERR, EPOLLHUP.
const ERRORS: u32 = 0x8 | 0x10;

impl Inner {
    /// Makes an entry a candidate, from now on, if it has something.
    pub(super) fn enqueue(&mut self, at: u32) {
        let is_idle = |entry: &Entry| match entry.source {
            Source::Channel { .. } | Source::Listener | Source::Nested(_) => entry.is_valid() && now(entry) == 0,
            // What it is or will be is told by the kernel's set, or when it becomes ours.
            Source::Kernel => true,
        };
        if self.interest.get(at).is_some_and(is_idle) {
            return;
        }
        if let Some(candidate) = self.interest.queue(at) {
            let since = fs_shm::now();
            self.ready.push_back(candidate.since(since));
            self.unsettled += 1;
            self.changed(since, candidate.by);
        }
    }

    /// A connection came to a listener's entry then, whether it waits still or not.
    pub(super) fn come(&mut self, at: u32, since: u64) {
        let hears =
            self.interest.get(at).is_some_and(|entry| Changes::READ.of(entry.hears()).is_some() && !entry.spent);
        if !hears {
            return;
        }
        if let Some(candidate) = self.interest.queue(at) {
            self.ready.push_back(candidate.since(since));
            self.unsettled += 1;
        }
        self.changed(since, self.interest.turn(at));
    }

    /// An edge for the sets that this one is in.
    fn changed(&mut self, since: u64, by: u64) {
        self.edges.add((since, by));
    }

    /// What is watched for an entry beside the lanes has an event.
    pub(super) fn rung(&mut self, at: u32) {
        if let Some(entry) = self.interest.get_mut(at) {
            entry.news = entry.shares;
        }
        self.enqueue(at);
    }

    /// Makes candidates of all that changed.
    pub(super) fn collect(&mut self) {
        self.drain();
        let mut i = 0;
        while let Some(&at) = self.special.get(i) {
            i += 1;
            let Some(entry) = self.interest.get(at) else { continue };
            match entry.source {
                // All have closed it.
                Source::Listener if entry.holds && !entry.is_valid() => {
                    self.drop_entry(at);
                    i -= 1;
                }
                Source::Listener if entry.shares => {
                    let shared = if entry.holds { listen::exclusive(entry.socket) } else { None };
                    self.follow_shared(at);
                    if self.interest.get(at).is_some_and(|entry| entry.holds && !entry.is_valid()) {
                        // What has rung is another's: it is woken, as this set is not rung in its place any more.
                        self.drop_entry(at);
                        i -= 1;
                        shared.into_iter().for_each(pass_on);
                    }
                }
                Source::Listener => {
                    self.follow_listener(at, entry.socket, entry.seen);
                    self.look_into_guess(at);
                }
                Source::Nested(index) => self.follow_nested(at, index),
                Source::Kernel | Source::Channel { .. } => {}
            }
        }
        self.settle();
    }

    /// Makes candidates of what the lanes name.
    fn drain(&mut self) {
        let (interest, ready) = (&mut self.interest, &mut self.ready);
        let before = ready.len();
        // Only who has this set within another asks for its edges.
        let mut edges = self.is_inner.then_some(&mut self.edges);
        for joined in &self.arenas {
            let Some(lane) = joined.lane else {
                for &first in joined.slots.iter().filter(|&&first| first != 0) {
                    let mut at = first - 1;
                    while at != u32::MAX {
                        queue(interest.get_mut(at), at, UNKNOWN, ready);
                        at = interest.get(at).map_or(u32::MAX, |entry| entry.beside);
                    }
                }
                for &at in &joined.listeners {
                    queue(interest.get_mut(at), at, UNKNOWN, ready);
                }
                continue;
            };
            joined.arena.drain_changes(lane, |slot, changes| {
                let mut told: Option<Edge> = None;
                let first = joined.slots.get(slot as usize).map_or(u32::MAX, |first| first.wrapping_sub(1));
                let mut at = first;
                while let Some(entry) = interest.get_mut(at) {
                    let beside = entry.beside;
                    if let Some(changes) = changes.of(entry.hears()).filter(|_| !entry.spent) {
                        if edges.is_some() {
                            let since = changed_for(joined.arena, lane, slot, changes, entry.hears());
                            told = Some(earlier(told, since, entry.turn()));
                        }
                        queue(Some(entry), at, unread(changes), ready);
                    }
                    at = beside;
                }
                // Not the message of a connection that was accepted, but that it came before. One that this set has came before it was
                // added: `attach_channel` looked then. Its times are not read with each message.
                let has_come =
                    || joined.arena.is_waiting(slot) || first == u32::MAX && joined.arena.has_come(lane, slot);
                if !joined.listeners.is_empty() && has_come() {
                    for &at in &joined.listeners {
                        let hears = |entry: &Entry| !entry.spent && Changes::READ.of(entry.hears()).is_some();
                        if interest.get(at).is_some_and(hears) {
                            let since = joined.arena.changed(lane, slot, Changes::READ);
                            told = Some(earlier(told, since, interest.turn(at)));
                            queue(interest.get_mut(at), at, since, ready);
                        }
                    }
                }
                if let (Some(edge), Some(edges)) = (told, edges.as_mut()) {
                    edges.add(edge);
                }
            });
        }
        self.unsettled += self.ready.len() - before;
    }

    /// What happened in a set within this one. Its own edge is one of this set's too.
    fn follow_nested(&mut self, at: u32, index: u32) {
        let Some(seen) = self.interest.get(at).map(|entry| entry.seen) else { return };
        let (changes, first) = look_into(index, seen);
        let Some(entry) = self.interest.get_mut(at) else { return };
        if changes == entry.seen {
            // Descriptors of the kernel's in it do not tell.
            if entry.event.events & ET == 0 {
                self.enqueue(at);
            }
            return;
        }
        entry.seen = changes;
        if entry.spent || Changes::READ.of(entry.hears()).is_none() {
            return;
        }
        let (since, by) = if first.0 == u64::MAX { (fs_shm::now(), self.interest.turn(at)) } else { first };
        self.changed(since, by);
        if let Some(candidate) = self.interest.queue(at) {
            self.ready.push_back(candidate.since(since).by(by));
            self.unsettled += 1;
        }
    }

    /// Puts the new candidates at the end of the list into the order in which they became some. A lone one is in order: when its
    /// channel changed is not read, which would take the line from the peer with each message.
    fn settle(&mut self) {
        let new = core::mem::take(&mut self.unsettled);
        if new < 2 {
            return;
        }
        let first = self.ready.len().saturating_sub(new);
        let (interest, arenas) = (&self.interest, &self.arenas);
        let new = &mut self.ready.make_contiguous()[first..];
        new.iter_mut().for_each(|candidate| candidate.since = when(interest, arenas, *candidate));
        // Few, and never the heap: epoll_wait may run in a signal handler, so no sort that allocates.
        new.sort_unstable_by_key(|candidate| (candidate.since, Reverse(candidate.by)));
    }

    /// How many candidates became some before then, or nobody knows when (`or_unknown`).
    pub(super) fn in_front(&self, then: u64, or_unknown: bool) -> usize {
        let is_before = |candidate: &&Candidate| {
            let since = when(&self.interest, &self.arenas, **candidate);
            since < then || or_unknown && since == UNKNOWN
        };
        self.ready.iter().take_while(is_before).count()
    }

    /// The kernel's set is about to get something that may be ready: what of ours is so now was before it, if nothing else is there.
    pub(super) fn look_before(&mut self) {
        if self.ready.is_empty() && !self.any_dirty() {
            return;
        }
        let before = fs_shm::now();
        let mut kernel = [PollFd { fd: self.number, events: IN as i16, revents: 0 }];
        if matches!(kernel::ppoll(&mut kernel, Some(Duration::ZERO), None), Ok(0)) {
            self.quiet = before;
        }
    }

    /// Whether nothing is a candidate.
    pub(super) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// The sets registered in this one, but those that never had anything of ours.
    pub(super) fn nested(&self) -> impl Iterator<Item = u32> {
        let entries = self.interest.places().filter_map(|at| self.interest.get(at));
        entries.filter(|entry| entry.is_valid()).filter_map(|entry| table::index_of(entry.socket))
    }

    /// Fills in events of candidates; answers how many.
    pub(super) fn gather(&mut self, events: &mut [EpollEvent]) -> usize {
        self.collect();
        let mut all = self.ready.len();
        self.take(events, &mut all)
    }

    /// The same of the first `left` candidates, less those that were asked; reported ones go behind them.
    pub(super) fn take(&mut self, events: &mut [EpollEvent], left: &mut usize) -> usize {
        let mut n = 0;
        let mut reported = 0;
        while *left > 0 && n < events.len() {
            *left -= 1;
            let Some(candidate) = self.ready.pop_front() else { break };
            let Some(entry) = self.interest.dequeue(candidate) else { continue };
            if !entry.is_valid() {
                self.drop_entry(candidate.at);
                continue;
            }
            if entry.spent {
                // The kernel's half has told since.
                continue;
            }
            let ready = now(entry);
            if ready == 0 {
                continue;
            }
            events[n] = EpollEvent { events: ready, data: entry.event.data };
            n += 1;
            if entry.event.events & ONESHOT != 0 {
                (entry.spent, entry.is_guess) = (true, false);
                if entry.source == Source::Listener && entry.has_its_number() {
                    // The kernel's half is asleep too, and out of its set until EPOLL_CTL_MOD ([`Inner::modify`]): of one that is asked
                    // for nothing EPOLLHUP would be told. It fails for a number that was closed, which ends the registration, and
                    // where another process of the set was first.
                    let _ = kernel::epoll_ctl(self.number, DEL, entry.fd, None);
                }
            } else if entry.event.events & ET == 0 {
                entry.queued = true;
                if reported == 0 {
                    reported = fs_shm::now();
                }
                self.ready.push_back(candidate.since(reported));
            }
        }
        n
    }

    /// Whether an epoll_wait would bring something, without taking it.
    pub(super) fn is_ready(&mut self) -> bool {
        self.collect();
        if self.ready.is_empty() {
            self.follow_all();
        }
        for _ in 0..self.ready.len() {
            let Some(candidate) = self.ready.pop_front() else { break };
            let Some(entry) = self.interest.dequeue(candidate) else { continue };
            if entry.is_valid() && !entry.spent && now(entry) != 0 {
                entry.queued = true;
                self.ready.push_front(candidate);
                return true;
            }
        }
        // What wakes sleepers of the application's set is no event of the application's.
        self.end_kick();
        let mut kernel = [PollFd { fd: self.number, events: IN as i16, revents: 0 }];
        matches!(kernel::ppoll(&mut kernel, Some(Duration::ZERO), None), Ok(1..))
    }

    /// Events of kernel descriptors that the application's set has delivered: of a one-shot listener that told of one our half sleeps too.
    pub(super) fn delivered(&mut self, events: &[EpollEvent]) {
        for i in 0..self.special.len() {
            let at = self.special[i];
            if let Some(entry) = self.interest.get_mut(at)
                && entry.source == Source::Listener
                && entry.event.events & ONESHOT != 0
                && !entry.spent
                && events.iter().any(|event| { event.data } == { entry.event.data })
            {
                entry.is_guess = has_something(entry);
                entry.spent = entry.is_guess || fired(self.number, entry.fd, entry.event) == Some(true);
            }
        }
    }

    /// One of ours has come to a one-shot listener that may have told: if it has not, nothing else would wake who sleeps, as its connection
    /// of the kernel's may be taken by now.
    fn look_into_guess(&mut self, at: u32) {
        let Some(entry) = self.interest.get_mut(at).filter(|entry| entry.spent && entry.is_guess) else { return };
        if now(entry) == 0 {
            return;
        }
        entry.is_guess = false;
        if fired(self.number, entry.fd, entry.event) == Some(false) {
            entry.spent = false;
            self.enqueue(at);
        }
    }

    /// Whether such a listener has arenas that this set has not followed.
    pub(super) fn has_unshared_news(&self) -> bool {
        let shared = |at: &u32| self.interest.get(*at).filter(|entry| entry.shares && entry.source == Source::Listener);
        self.special.iter().filter_map(shared).any(|entry| listen::has_news(entry.socket, entry.seen))
    }

    /// [`Inner::follow_all`] for a set that does not sleep, where it would be rung: puts what came behind the first `rest` candidates, in
    /// front of those that have been reported; answers how many.
    pub(super) fn follow_all_behind(&mut self, rest: usize) -> usize {
        let before = self.ready.len();
        if !self.follow_all() {
            return 0;
        }
        self.settle();
        let new = self.ready.len().saturating_sub(before);
        if let Some(behind) = self.ready.make_contiguous().get_mut(rest..) {
            behind.rotate_right(new);
        }
        new
    }

    /// Joins the arenas of listeners with EPOLLEXCLUSIVE that nobody has rung this set for: who looks and does not wait has no
    /// other way to hear of them. False: none came.
    pub(super) fn follow_all(&mut self) -> bool {
        let mut came = false;
        for i in 0..self.special.len() {
            let at = self.special[i];
            if let Some(Entry { source: Source::Listener, shares: true, socket, seen, .. }) = self.interest.get(at) {
                let (socket, seen) = (*socket, *seen);
                self.follow_listener(at, socket, seen);
                came |= self.interest.get(at).is_some_and(|entry| entry.seen != seen);
            }
        }
        came
    }

    /// Whether a lane has news, or must be asked.
    #[inline]
    pub(super) fn any_dirty(&self) -> bool {
        self.arenas.iter().any(|joined| joined.lane.is_some_and(|lane| joined.arena.is_dirty(lane)))
    }

    /// Whether entries have to be asked at intervals.
    pub(super) fn must_ask(&self) -> bool {
        if self.live.as_ref().is_some_and(|live| live.outer().is_none()) {
            return true;
        }
        if self.shared.as_ref().is_some_and(Book::must_ask) {
            return true;
        }
        let nested = |&at: &u32| match self.interest.get(at).map(|entry| entry.source) {
            Some(Source::Nested(index)) => {
                registry::find(index).and_then(Set::lock_unread).is_some_and(|inner| inner.must_ask())
            }
            _ => false,
        };
        if self.special.iter().any(nested) {
            return true;
        }
        // Who shares a listener leaves arenas to others until it is rung for one; if that cannot be had then, it is news still.
        let is_behind =
            |entry: &Entry| entry.source == Source::Listener && !entry.shares && listen::is_behind(entry.socket);
        let is_untold = |entry: &Entry| entry.blind || entry.news || is_behind(entry);
        if self.special.iter().any(|&at| self.interest.get(at).is_some_and(is_untold)) {
            return true;
        }
        let is_told = |at: &u32| self.interest.get(*at).is_some_and(|entry| entry.watched != 0);
        let mut without = self.arenas.iter().filter(|joined| joined.lane.is_none());
        without.any(|joined| joined.entries != 0 || !joined.listeners.iter().all(is_told))
    }

    /// Announces sleep to all peers. False: something is there, look again.
    #[must_use]
    pub(super) fn arm(&mut self) -> bool {
        for (i, joined) in self.arenas.iter().enumerate() {
            if let Some(lane) = joined.lane
                && !joined.arena.prepare_sleep(lane)
            {
                self.stay_awake(i + 1);
                return false;
            }
        }
        for i in 0..self.special.len() {
            let at = self.special[i];
            if let Some(entry) = self.interest.get_mut(at)
                && entry.source == Source::Listener
                && entry.watched != 0
            {
                let pushed = listen::arm(
                    entry.socket,
                    if entry.shares { arenas::Shared::Exclusive } else { arenas::Shared::Accept },
                );
                entry.blind = pushed.is_none();
                if let Some(pushed) = pushed.filter(|&pushed| pushed != entry.pushed) {
                    entry.pushed = pushed;
                    self.enqueue(at);
                    self.disarm_nested(i);
                    self.stay_awake(self.arenas.len());
                    return false;
                }
            }
            if let Some(entry) = self.interest.get(self.special[i])
                && let Source::Nested(index) = entry.source
            {
                let (seen, is_edge) = (entry.seen, entry.event.events & ET != 0);
                let hears = !entry.spent && Changes::READ.of(entry.hears()).is_some();
                self.watch_nested(self.special[i], index);
                let armed = registry::find(index).and_then(Set::lock).is_none_or(|mut inner| {
                    inner.sleepers += 1;
                    // What is ready in it, and was told of, is no edge; who does not hear of it sleeps.
                    let has_news = if is_edge { inner.edges.count != seen } else { !inner.ready.is_empty() };
                    !(hears && has_news) && inner.arm()
                });
                if !armed {
                    self.disarm_nested(i + 1);
                    self.stay_awake(self.arenas.len());
                    return false;
                }
            }
        }
        true
    }

    /// No more bells for the first `n` arenas.
    pub(super) fn awake(&self, n: usize) {
        for joined in &self.arenas[..n] {
            if let Some(lane) = joined.lane {
                joined.arena.awake(lane);
            }
        }
    }

    /// This thread does not sleep now, but looks again. Others that do are rung for what comes after that look.
    fn stay_awake(&self, n: usize) {
        if self.sleepers == 0 {
            return self.awake(n);
        }
        for joined in &self.arenas[..n] {
            if let Some(lane) = joined.lane {
                joined.arena.arm(lane);
            }
        }
        fence(SeqCst);
    }

    /// A sleep is over.
    pub(super) fn disarm(&mut self) {
        self.disarm_nested(self.special.len());
        if self.sleepers == 0 {
            self.awake(self.arenas.len());
        }
    }

    pub(super) fn disarm_nested(&mut self, n: usize) {
        for &at in &self.special[..n] {
            if let Some(Entry { source: Source::Nested(index), .. }) = self.interest.get(at)
                && let Some(mut inner) = registry::find(*index).and_then(Set::lock_unread)
            {
                inner.end_sleep();
            }
        }
    }

    /// Somebody who slept on this set from outside, as on a descriptor, is awake.
    pub(super) fn end_sleep(&mut self) {
        self.sleepers = self.sleepers.saturating_sub(1);
        self.disarm();
        // Its doorbell may have rung: taken here, as nobody else may wait on it. Whoever does is woken again.
        let mut woken = [EpollEvent::default(); 8];
        let outer = self.live.as_ref().and_then(|live| live.outer());
        let n = outer.map(|outer| kernel::epoll_wait(outer, &mut woken, Some(Duration::ZERO), None));
        for event in &woken[..n.and_then(Result::ok).unwrap_or(0)] {
            let what = event.data;
            match what {
                KERNEL => self.waits = LOOK,
                SHARED if self.is_behind() => self.catch_up(),
                // A poller that several sets share rings one of them: this is the one that knows.
                entry if is_watched(entry) => self.told_of(entry),
                _ => {}
            }
        }
        if self.others_needed() {
            self.ring();
        }
    }

    /// Whether others sleep on while something may be ready: they are to be woken.
    pub(super) fn others_needed(&mut self) -> bool {
        self.sleepers > 0 && (!self.ready.is_empty() || !self.arm())
    }
}

/// Whether the kernel's half of this one-shot listener has something, where an event with its data came: that is taken for its own first,
/// for whether it has fired is a look through the whole set. Other descriptors may have the same data: if the event was another's, its
/// own is the next, or somebody has taken the connection by then.
fn has_something(entry: &Entry) -> bool {
    if !entry.has_its_number() {
        return true;
    }
    let mut kernels = [PollFd { fd: entry.fd, events: entry.asked() as i16, revents: 0 }];
    !matches!(kernel::ppoll(&mut kernels, Some(Duration::ZERO), None), Ok(0))
}

/// How many edges a set has had, and the first of those that were not `seen`.
pub(super) fn look_into(index: u32, seen: u32) -> (u32, Edge) {
    let Some(mut inner) = registry::find(index).and_then(Set::lock) else { return (0, NO_EDGE) };
    inner.is_inner = true;
    inner.collect();
    (inner.edges.count, inner.edges.first_after(seen))
}

/// Makes an entry a candidate.
#[inline]
fn queue(entry: Option<&mut Entry>, at: u32, since: u64, ready: &mut VecDeque<Candidate>) {
    if let Some(candidate) = entry.and_then(|entry| entry.queue(at)) {
        ready.push_back(candidate.since(since));
    }
}

/// When it became a candidate.
fn when(interest: &Interest, arenas: &[Joined], candidate: Candidate) -> u64 {
    if let Some(changes) = unread_changes(candidate.since)
        && let Some(entry) = interest.get(candidate.at)
        && let Source::Channel { arena, slot } = entry.source
        && let Some(joined) = arenas.get(arena as usize)
        && let Some(lane) = joined.lane
    {
        return changed_for(joined.arena, lane, slot, changes, entry.hears());
    }
    candidate.since
}

/// When these changes came, for one who hears of `hears`. Who asks for neither bytes nor room hears of what is for everybody, and a lane
/// has bytes or room that came before beside it.
fn changed_for(arena: &Arena, lane: Lane, slot: u32, changes: Changes, hears: Changes) -> u64 {
    if hears == Changes::NONE {
        return arena.changed(lane, slot, Changes::READ).max(arena.changed(lane, slot, Changes::WRITE));
    }
    arena.changed(lane, slot, changes)
}

/// Of two edges that one change is the one that came first, by the newer registration.
fn earlier(told: Option<Edge>, since: u64, by: u64) -> Edge {
    told.map_or((since, by), |(before, other)| (before.min(since), other.max(by)))
}

/// When a change came, `u64::MAX`: not known; and the newest registration that it came by.
pub(super) type Edge = (u64, u64);

const NO_EDGE: Edge = (u64::MAX, 0);

/// A set's changes, each an edge for the sets that it is in.
#[derive(Debug)]
pub(super) struct Edges {
    count: u32,
    last: [Edge; 8],
}

impl Edges {
    pub(super) const fn new() -> Self {
        Edges { count: 0, last: [NO_EDGE; 8] }
    }

    fn add(&mut self, edge: Edge) {
        self.count = self.count.wrapping_add(1);
        self.last[self.count as usize % self.last.len()] = edge;
    }

    /// Of those that are kept. Lanes are not drained in the order of time.
    fn first_after(&self, seen: u32) -> Edge {
        let new = (self.count.wrapping_sub(seen) as usize).min(self.last.len());
        let new = (0..new as u32).map(|i| self.last[self.count.wrapping_sub(i) as usize % self.last.len()]);
        new.min_by_key(|&(since, by)| (since, Reverse(by))).unwrap_or(NO_EDGE)
    }
}

/// What the entry would report now.
fn now(entry: &Entry) -> u32 {
    let ready = match entry.source {
        Source::Kernel => 0,
        Source::Listener if entry.shares => {
            if listen::is_known_ready(entry.socket) {
                expand(IN)
            } else {
                0
            }
        }
        Source::Channel { .. } | Source::Listener => expand(entry.socket.readiness().0),
        Source::Nested(index) => {
            let ready = registry::find(index).and_then(Set::lock).is_some_and(|mut inner| inner.is_ready());
            if ready { expand(IN) } else { 0 }
        }
    };
    let asked = match entry.source {
        // The kernel's queue is asked by the kernel's set.
        Source::Listener => entry.asked() & !ERRORS,
        Source::Kernel | Source::Channel { .. } | Source::Nested(_) => entry.asked(),
    };
    ready & asked
}
