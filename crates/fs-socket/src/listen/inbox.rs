//! The inboxes of a listener: the arenas that the daemon lists on its page, and which connection is next.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use fs_shm::{Arena, Channel, Side, pages::ListenerPage};
use rustix::io::Errno;

use super::{HOT, Listener, REFUSED, of};
use crate::{
    process::{
        self, Attachment,
        arenas::{self, Mapped},
    },
    socket::Socket,
    sys::{pointer::Pointer, signals::Section, thread},
};

/// Maps the arenas that came to a listener since; answers how many places [`arena`] has. Cheap when none came.
pub fn refresh(socket: &Socket) -> u32 {
    of(socket).map_or(0, Listener::refresh)
}

/// Changes with the listener's arenas, as of the last [`refresh`].
pub(crate) fn changes(socket: &Socket) -> u32 {
    of(socket).map_or(0, |listener| listener.changes.load(Acquire))
}

/// Whether that would change from `seen` by a [`refresh`] now.
pub(crate) fn has_news(socket: &Socket, seen: u32) -> bool {
    of(socket).is_some_and(|listener| {
        let page = listener.page.load().filter(|_| listener.id.load(Acquire) != 0);
        listener.changes.load(Acquire) != seen
            || page.is_some_and(|page| page.generation() != listener.seen.load(Acquire))
    })
}

/// An arena of a listener, by place: `None` when the place is empty (its opener has gone). A place may be given to
/// another arena later; arenas themselves are told apart by their address, which is not used twice.
pub fn arena(socket: &Socket, place: u32) -> Option<&'static Arena> {
    of(socket)?.arenas.at(place as usize)?.load().map(Mapped::arena)
}

/// Counts the connections that have come to the inboxes that this process knows.
pub(crate) fn came(socket: &Socket) -> u64 {
    let mut all = 0_u64;
    if let Some(listener) = of(socket) {
        listener.each(|mapped| {
            all = all.wrapping_add(mapped.arena().pushed());
            false
        });
    }
    all
}

/// Whether a connection waits in an inbox (the kernel's queue is not looked at).
pub(crate) fn is_ready(socket: &Socket) -> bool {
    of(socket).is_some_and(|listener| {
        listener.refresh();
        listener.pending()
    })
}

/// The same without asking for arenas that this process does not know.
pub(crate) fn is_known_ready(socket: &Socket) -> bool {
    of(socket).is_some_and(Listener::pending)
}

/// Inboxes up to which all are looked at for the connection that has waited longest. More: each accept costs two cache lines
/// for each of them; fewer: with more client processes than this, their connections are taken out of order.
pub(super) const LOOKED_AT: u32 = 256;

/// So many connections in a row from one inbox, then the next one in turn. Fewer than a client opens in a burst: its
/// connections would let younger ones of others pass; more: others wait longer for one that lies.
pub(super) const ROW: u32 = 1024;

/// Each so many accepts all inboxes are looked at in turn.
pub(super) const FAIR: u32 = 8;

impl Listener {
    pub(super) fn empty(&self) {
        for place in 0..self.count.swap(0, AcqRel) as usize {
            if let Some(place) = self.arenas.at(place) {
                place.store(None);
            }
        }
        self.changes.fetch_add(1, AcqRel);
    }

    /// True as soon as `visit` is.
    pub(super) fn each(&self, mut visit: impl FnMut(&'static Mapped) -> bool) -> bool {
        let count = self.count.load(Acquire) as usize;
        (0..count).any(|place| self.arenas.at(place).and_then(Pointer::load).is_some_and(&mut visit))
    }

    pub(super) fn refresh(&self) -> u32 {
        let page = self.page.load().filter(|_| self.id.load(Acquire) != 0);
        let Some(page) = page else { return 0 };
        let generation = page.generation();
        if generation == self.seen.load(Acquire) {
            return self.count.load(Acquire);
        }
        // A handler that jumps would leave it to this thread for good, and what comes by new arenas to nobody.
        let _section = Section::begin();
        let me = thread::me();
        if self.busy.compare_exchange(0, me, Acquire, Relaxed).is_err() {
            // Another thread is at it, or this one, below a signal handler.
            return self.count.load(Acquire);
        }
        if let Some(attachment) = process::current().filter(|now| now.life() == self.life.load(Relaxed))
            && self.bring_up(attachment, page)
        {
            self.seen.store(generation, Release);
        }
        self.busy.store(0, Release);
        self.count.load(Acquire)
    }

    /// Brings `arenas` to what the page says; false: not all could be had, to be tried again.
    pub(super) fn bring_up(&self, attachment: &Attachment, page: &ListenerPage) -> bool {
        let mut all = true;
        let generation = page.generation();
        let count = self.count.load(Relaxed) as usize;
        let places = || (0..count).filter_map(|place| self.arenas.at(place));
        for place in places() {
            if place.load().is_some_and(|mapped| !page.contains(mapped.id())) {
                place.store(None);
            }
        }
        let is_here = |mapped: &&'static arenas::Mapped| {
            let place = mapped.place().and_then(|place| self.arenas.at(place)?.load());
            place.is_some_and(|here| core::ptr::eq(here, *mapped))
        };
        let mut free = 0;
        for id in page.arenas() {
            if arenas::find(attachment.life(), id, Side::B).filter(is_here).is_some() {
                continue;
            }
            let mapped = match arenas::ask_whether(attachment, id, Side::B) {
                Ok(mapped) => mapped,
                // Others accept from it, with whom this process shares nothing.
                Err(Errno::ACCESS) => {
                    let _does_not_watch = self.watches.compare_exchange(1, REFUSED, AcqRel, Relaxed);
                    continue;
                }
                Err(_) => {
                    // Gone since, which the next generation says; or no number for its memory to come with.
                    all &= page.generation() != generation;
                    continue;
                }
            };
            while self.arenas.at(free).is_some_and(|place| free < count && place.load().is_some()) {
                free += 1;
            }
            let at = if free < count { free } else { self.count.load(Relaxed) as usize };
            let Some(place) = self.arenas.make(at) else { continue };
            mapped.record_place(at);
            place.store(Some(mapped));
            if at >= count {
                self.count.fetch_add(1, AcqRel);
            }
        }
        self.changes.fetch_add(1, AcqRel);
        all
    }

    /// Whether one waits in an inbox that is known already, where it need not go after those of new ones: among sets that
    /// watch it with EPOLLEXCLUSIVE there is no order, and not each of them needs every arena.
    pub(super) fn has_known(&self) -> bool {
        self.exclusive.load(Relaxed) != 0 && !self.turn.load(Relaxed).is_multiple_of(FAIR) && self.pending()
    }

    /// Whether a connection waits in an inbox.
    pub(super) fn pending(&self) -> bool {
        self.next().is_some()
    }

    /// The place of the next connection: of an inbox that had some lately, or else the next in turn that has one.
    pub(super) fn next(&self) -> Option<u32> {
        let count = self.count.load(Acquire);
        let turn = self.turn.load(Relaxed);
        // Now and then the others', so that busy clients do not keep them out.
        if !turn.is_multiple_of(FAIR) {
            let hot = |i: usize| self.hot[(turn as usize + i) % HOT].load(Relaxed).checked_sub(1);
            let found = (0..HOT).filter_map(hot).find(|&place| place < count && self.waits(place));
            if found.is_some() {
                return found;
            }
        }
        self.next_after(self.last_place(), count)
    }

    pub(super) fn waits(&self, place: u32) -> bool {
        let mapped = self.arenas.at(place as usize).and_then(Pointer::load);
        mapped.is_some_and(Mapped::waits)
    }

    pub(super) fn next_after(&self, last: u32, count: u32) -> Option<u32> {
        (1..=count).map(|next| last.wrapping_add(next) % count).find(|&place| self.waits(place))
    }

    /// Where the last connection came from that was not a hot place's.
    pub(super) fn last_place(&self) -> u32 {
        self.hot[HOT - 1].load(Relaxed).wrapping_sub(1)
    }

    /// The place of the connection that has waited longest: accept(2) takes them in the order in which they came. A look: whose turn it is
    /// changes with [`Listener::take`] alone.
    pub(super) fn longest_waiting(&self) -> Option<u32> {
        let count = self.count.load(Acquire);
        if count > LOOKED_AT {
            return self.next();
        }
        // The times are the openers' words: one whose connections are always the oldest must not keep out the others.
        if self.in_row.load(Relaxed) >= ROW {
            return self.next_after(self.last.load(Relaxed), count);
        }
        let since = |place: u32| {
            let mapped = self.arenas.at(place as usize).and_then(Pointer::load)?;
            Some((mapped.waiting_since()?, place))
        };
        (0..count).filter_map(since).min().map(|(_, place)| place)
    }

    /// Takes the next connection. With `only_known` one is left where it is of which nobody knows who has opened it.
    pub(super) fn take(&self, only_known: bool) -> Option<Next> {
        let place = self.longest_waiting()?;
        let mapped = self.arenas.at(place as usize)?.load()?;
        if only_known && mapped.should_ask_for_next() {
            return Some(Next::Unknown(mapped));
        }
        let is_others_turn = self.in_row.load(Relaxed) >= ROW;
        if self.last.swap(place, Relaxed) == place && !is_others_turn {
            self.in_row.fetch_add(1, Relaxed);
        } else {
            self.in_row.store(0, Relaxed);
        }
        let channel = mapped.accept()?;
        self.turn.fetch_add(1, Relaxed);
        if !self.hot.iter().any(|hot| hot.load(Relaxed) == place + 1) {
            for i in 1..HOT {
                self.hot[i - 1].store(self.hot[i].load(Relaxed), Relaxed);
            }
            self.hot[HOT - 1].store(place + 1, Relaxed);
        }
        Some(Next::Taken(mapped, channel))
    }

    /// Arenas have come since the last look.
    pub(super) fn is_behind(&self) -> bool {
        let page = self.page.load().filter(|_| self.id.load(Acquire) != 0);
        page.is_some_and(|page| page.generation() != self.seen.load(Acquire))
    }
}

/// The connection that has waited longest.
pub(super) enum Next {
    Taken(&'static Mapped, Channel<'static>),
    /// It waits in this one; the daemon is to be asked who has opened it.
    Unknown(&'static Mapped),
}
