//! Where the readiness of a registration comes from: the kernel's set, a channel's slot, a listener's inboxes, another set.

use core::ptr;

use fs_shm::{Arena, lanes::Changes};
use libc::F_DUPFD_CLOEXEC;

use super::{
    EpollEvent,
    fired::has_fired,
    forget,
    inherit::had,
    interest::{ET, EXCLUSIVE, Entry, Interest, Source, UNKNOWN, unread_changes},
    is_readable,
    ready::look_into,
    registry,
    set::{ADD, DEL, Inner, Joined, Live, Set},
    sys::kernel,
    wait::LOOK,
};
use crate::{
    descriptor::table,
    listen, process,
    socket::{Socket, Watch},
    sys::call,
    types::Fd,
};

/// EPOLLIN.
const IN: u32 = 0x1;

impl Inner {
    /// Puts what the inner set sleeps on into our outer kernel set: its outer one, or while it has none the
    /// application's.
    pub(super) fn watch_nested(&mut self, at: u32, index: u32) {
        let Some(outer) = self.live.as_ref().and_then(Live::outer) else { return };
        let Some(inner) = registry::find(index).and_then(Set::lock_unread) else { return };
        let waited = inner.live.as_ref().and_then(Live::outer).unwrap_or(inner.number);
        drop(inner);
        let Some(entry) = self.interest.get_mut(at).filter(|entry| entry.watched != waited) else { return };
        entry.watched = waited;
        let event = EpollEvent { events: IN, data: ENTRY | u64::from(at) };
        // EEXIST: a second registration of the same set; the first one wakes us.
        let _ = kernel::epoll_ctl(outer, ADD, waited, Some(event));
    }

    /// The entry's socket has become something else, or another readiness.
    pub(super) fn moved(&mut self, at: u32) {
        let Some(entry) = self.interest.get(at) else { return };
        let (fd, socket, event, source) = (entry.fd, entry.socket, entry.event, entry.source);
        if source == Source::Kernel
            && socket.watch() != Watch::Kernel
            && has_fired(self.number, fd, event)
            && let Some(entry) = self.interest.get_mut(at)
        {
            (entry.spent, entry.is_guess) = (true, false);
        }
        match (source, socket.watch()) {
            (Source::Kernel, Watch::Kernel) if registry::active(socket).is_some() => {
                self.leave_kernel(fd, socket);
                self.attach(at);
            }
            (Source::Kernel, Watch::Kernel) => {}
            (Source::Kernel, Watch::Channel) => {
                self.leave_kernel(fd, socket);
                self.attach(at);
            }
            (Source::Kernel, Watch::Listener) => self.attach(at),
            (Source::Channel { .. }, Watch::Kernel | Watch::Listener) => {
                self.detach(at);
                // What is ready of it comes behind what was.
                self.look_before();
                self.waits = LOOK;
                // Its errors would be those of the application's own call: there is nobody to tell them to.
                let _ = kernel::epoll_ctl(self.number, ADD, fd, Some(event));
                self.attach(at);
            }
            (Source::Listener, Watch::Kernel) => self.detach(at),
            (Source::Listener, Watch::Channel | Watch::Listener) => {
                // Announced, perhaps, by now.
                if self.interest.get(at).is_some_and(|entry| !entry.shares) {
                    self.begin_share(at, socket);
                    self.join_listener(at, socket, true);
                }
                // listen(2) again is no edge; arenas that have come meanwhile were one above.
                if self.interest.get(at).is_some_and(|entry| entry.shares || entry.event.events & ET == 0) {
                    self.enqueue(at);
                }
            }
            // What its lane will tell was there before, or is this very change.
            (Source::Channel { arena, slot }, _) if self.is_marked(arena, slot) => {}
            (Source::Channel { .. } | Source::Nested(_), _) => self.enqueue(at),
        }
    }

    /// Takes a registration out of the kernel's set, which knows it by this number and the open file. The number may have been closed
    /// meanwhile: then it is had again for that, unless it is another file's by now.
    fn leave_kernel(&self, fd: Fd, socket: &'static Socket) {
        let stands_for = |fd| table::find(fd).is_some_and(|of| ptr::eq(of, socket));
        if stands_for(fd) {
            // ENOENT: gone already.
            let _ = kernel::epoll_ctl(self.number, DEL, fd, None);
            return;
        }
        let _changing = table::Changing::begin();
        let number = socket.number();
        if !stands_for(number) {
            return;
        }
        // EMFILE, EINVAL: the program may have no such number, and the registration stays.
        let Ok(again) = call::fcntl(number, F_DUPFD_CLOEXEC, fd as usize) else { return };
        if again == fd {
            table::set_internal(again);
            let _ = kernel::epoll_ctl(self.number, DEL, fd, None);
            table::unset_internal(again);
        }
        // It was not there before.
        let _ = call::close(again);
    }

    /// Whether the lane of a channel will make its entries candidates.
    fn is_marked(&self, arena: u32, slot: u32) -> bool {
        let joined = self.arenas.get(arena as usize);
        joined.is_some_and(|joined| joined.lane.is_some_and(|lane| joined.arena.is_marked(lane, slot)))
    }

    /// Finds where the entry's readiness comes from, and begins to watch it. The kernel's registration is made already.
    pub(super) fn attach(&mut self, at: u32) {
        let Some(entry) = self.interest.get(at) else { return };
        let socket = entry.socket;
        if let Some(index) = registry::active(socket) {
            return self.attach_nested(at, index);
        }
        match socket.watch() {
            Watch::Kernel => self.set_source(at, Source::Kernel),
            Watch::Channel => self.attach_channel(at, socket),
            Watch::Listener => {
                self.set_source(at, Source::Listener);
                if self.activate().is_ok() {
                    // First, so that no arena comes unheard of in between.
                    self.begin_share(at, socket);
                    self.special.push(at);
                    self.join_listener(at, socket, true);
                    self.enqueue(at);
                }
            }
        }
    }

    fn attach_nested(&mut self, at: u32, index: u32) {
        if self.activate().is_ok() {
            self.set_source(at, Source::Nested(index));
            self.watch_nested(at, index);
            self.special.push(at);
            let (changes, _) = look_into(index, 0);
            if let Some(entry) = self.interest.get_mut(at) {
                entry.seen = changes;
            }
            self.enqueue(at);
        }
    }

    pub(super) fn attach_channel(&mut self, at: u32, socket: &'static Socket) {
        let Some(channel) = socket.channel().filter(|_| self.activate().is_ok()) else {
            return self.set_source(at, Source::Kernel);
        };
        let (arena, slot) = (self.join(channel.arena()), channel.slot());
        self.came_before(arena, slot);
        let Some(joined) = self.arenas.get_mut(arena as usize) else { return };
        if let Some(lane) = joined.lane {
            channel.watch(lane);
        }
        joined.entries += 1;
        if joined.slots.len() <= slot as usize {
            joined.slots.resize(slot as usize + 1, 0);
        }
        let first = core::mem::replace(&mut joined.slots[slot as usize], at + 1);
        if let Some(entry) = self.interest.get_mut(at) {
            entry.beside = first.wrapping_sub(1);
        }
        self.set_source(at, Source::Channel { arena, slot });
        self.enqueue(at);
    }

    /// A connection is about to be watched that was accepted before the set has looked: that it came is an event of its listener from
    /// before (ep_poll_callback() of the kernel), though it may be all that came.
    fn came_before(&mut self, arena: u32, slot: u32) {
        let Some(joined) = self.arenas.get(arena as usize) else { return };
        let Some(lane) = joined.lane.filter(|_| !joined.listeners.is_empty()) else { return };
        let is_known = joined.slots.get(slot as usize).is_some_and(|&first| first != 0);
        if is_known || !joined.arena.is_marked(lane, slot) || !joined.arena.has_come(lane, slot) {
            return;
        }
        let since = joined.arena.changed(lane, slot, Changes::READ);
        let listeners = joined.listeners.len();
        for i in 0..listeners {
            let Some(&at) = self.arenas[arena as usize].listeners.get(i) else { break };
            self.come(at, since);
        }
    }

    /// Ends what `attach` began.
    pub(super) fn detach(&mut self, at: u32) {
        let Some(entry) = self.interest.get(at) else { return };
        let (socket, valid, source, beside) = (entry.socket, entry.is_valid(), entry.source, entry.beside);
        match source {
            Source::Kernel => {}
            Source::Channel { arena, slot } => {
                let Some(joined) = self.arenas.get_mut(arena as usize) else { return };
                joined.entries = joined.entries.saturating_sub(1);
                let Some(first) = joined.slots.get_mut(slot as usize) else { return };
                if *first == at + 1 {
                    *first = beside.wrapping_add(1);
                } else {
                    unlink(&mut self.interest, first.wrapping_sub(1), at, beside);
                }
                if *first == 0
                    && let (Some(lane), true) = (joined.lane, valid)
                    && let Some(channel) = socket.channel()
                {
                    channel.unwatch(lane);
                }
            }
            Source::Listener => {
                for joined in &mut self.arenas {
                    joined.drop_listener(at);
                }
                self.special.retain(|&other| other != at);
                if let (Some(outer), Some(entry)) =
                    (self.live.as_ref().and_then(Live::outer), self.interest.get_mut(at))
                    && entry.watched != 0
                {
                    // Who was asleep and has not had a CPU since: the event goes with what is watched.
                    let has_rung = entry.news || entry.shares && self.sleepers > 0 && is_readable(outer);
                    let poller = entry.poller;
                    // ENOENT, EBADF: gone with the listener.
                    let _ = kernel::epoll_ctl(outer, DEL, entry.watched, None);
                    entry.unwatch();
                    if has_rung {
                        pass_on(poller);
                    }
                }
            }
            Source::Nested(index) => {
                self.special.retain(|&other| other != at);
                if let Some(outer) = self.live.as_ref().and_then(Live::outer)
                    && let Some(inner) = registry::find(index).and_then(Set::lock_unread)
                {
                    let waited = inner.live.as_ref().and_then(Live::outer).unwrap_or(inner.number);
                    // ENOENT: another registration of it took it out.
                    let _ = kernel::epoll_ctl(outer, DEL, waited, None);
                }
            }
        }
        self.set_source(at, Source::Kernel);
    }

    pub(super) fn set_source(&mut self, at: u32, source: Source) {
        if let Some(entry) = self.interest.get_mut(at) {
            entry.source = source;
        }
    }

    /// Joins the arenas that came to a listener since; costs one look when none did.
    pub(super) fn follow_listener(&mut self, at: u32, socket: &'static Socket, seen: u32) {
        listen::refresh(socket);
        if listen::changes(socket) != seen {
            self.join_listener(at, socket, false);
        }
    }

    /// With EPOLLEXCLUSIVE, a new arena or its first connection is not news for all sets: it wakes one that sleeps.
    fn begin_share(&mut self, at: u32, socket: &'static Socket) {
        let Some((set, outer)) = self.live.as_ref().and_then(|live| Some((live.poller.id, live.outer()?))) else {
            return;
        };
        let listener = listen::id(socket);
        let is_exclusive = |entry: &Entry| entry.event.events & EXCLUSIVE != 0;
        let theirs = |&other: &u32| {
            self.interest.get(other).is_none_or(|other| listen::id(other.socket) != listener || is_exclusive(other))
        };
        let shares = self.interest.get(at).is_some_and(is_exclusive) && self.special.iter().all(theirs);
        if !shares {
            if let Some(place) = self.untold.iter().position(|&other| other == listener) {
                self.untold.swap_remove(place);
                listen::tell(socket, set);
            }
            return;
        }
        let Some(poller) = listen::exclusive_poller(socket, set) else { return };
        if !self.untold.contains(&listener) {
            self.untold.push(listener);
        }
        let event = EpollEvent { events: IN | ET | EXCLUSIVE, data: shared_by(poller.id, at) };
        if kernel::epoll_ctl(outer, ADD, poller.fd, Some(event)).is_ok()
            && let Some(entry) = self.interest.get_mut(at)
        {
            (entry.watched, entry.shares, entry.poller) = (poller.fd, true, poller.id);
        } else {
            listen::tell(socket, set);
            self.untold.retain(|&other| other != listener);
        }
    }

    /// The outer set has told of what is watched for an entry. A poller that sets share rings one of them: where the entry has gone since,
    /// the next one is rung. (On the kernel too a set takes the wake-up along that is closed before it looks, and the connection waits; but
    /// the next one of that client wakes another set, and here nobody would ring for it, as nobody who looks knows that client's arena.)
    pub(super) fn told_of(&mut self, what: u64) {
        let (at, poller) = watched(what);
        let is_its = |entry: &Entry| poller.is_none_or(|poller| entry.shares && entry.poller == poller);
        match (self.interest.get(at).is_some_and(is_its), poller) {
            (true, _) => self.rung(at),
            (false, Some(poller)) => pass_on(poller),
            (false, None) => {}
        }
    }

    /// Joins the arenas that came to such a listener, if its poller has rung.
    pub(super) fn follow_shared(&mut self, at: u32) {
        let Some(entry) = self.interest.get_mut(at).filter(|entry| entry.news) else { return };
        entry.news = !listen::woken(entry.socket);
        let (socket, seen) = (entry.socket, entry.seen);
        if listen::changes(socket) != seen {
            self.join_listener(at, socket, false);
        }
    }

    /// Joins the arenas that feed a listener. `is_new`: the entry is; else what waits there was ready when it came.
    pub(super) fn join_listener(&mut self, at: u32, socket: &'static Socket, is_new: bool) {
        let count = listen::refresh(socket);
        // What changes from here on is followed next time.
        if let Some(entry) = self.interest.get_mut(at) {
            entry.seen = listen::changes(socket);
        }
        let mut feed: Vec<*const Arena> =
            (0..count).filter_map(|i| listen::arena(socket, i).map(ptr::from_ref)).collect();
        feed.sort_unstable();
        for joined in self.arenas.iter_mut() {
            // Arenas whose opener has gone feed it no more.
            if !joined.listeners.is_empty() && feed.binary_search(&ptr::from_ref(joined.arena)).is_err() {
                joined.drop_listener(at);
            }
        }
        for i in 0..count {
            let Some(arena) = listen::arena(socket, i) else { continue };
            let place = self.join(arena);
            let Some(joined) = self.arenas.get_mut(place as usize) else { continue };
            if !joined.listeners.contains(&at) {
                joined.listeners.push(at);
                if let Some(lane) = joined.lane {
                    joined.arena.watch_inbox(lane, true);
                    let is_one_of =
                        |&at: &u32| self.interest.get(at).is_some_and(|entry| entry.event.events & EXCLUSIVE != 0);
                    if joined.listeners.iter().all(is_one_of) {
                        joined.arena.share_inbox(lane, false);
                    }
                }
                let arena = joined.arena;
                // All that came to it came since the last look, what was accepted meanwhile too; but who shares the arenas comes to one
                // when others have had some.
                let since = match self.interest.get(at) {
                    Some(entry) if entry.shares => arena.waiting_since().or_else(|| arena.first_came()),
                    _ => arena.first_came().or_else(|| arena.waiting_since()),
                };
                match since.filter(|_| !is_new) {
                    Some(since) => self.come(at, since),
                    None => self.enqueue(at),
                }
            }
        }
        if self.arenas.iter().any(|joined| joined.lane.is_none() && joined.listeners.contains(&at)) {
            self.watch_shared(at, socket);
        }
    }

    /// No lane is left in an arena of the listener: the poller of those who sleep in accept tells of its connections.
    fn watch_shared(&mut self, at: u32, socket: &'static Socket) {
        let Some(outer) = self.live.as_ref().and_then(Live::outer) else { return };
        let Some(shared) = listen::shared_poller(socket) else { return };
        let Some(entry) = self.interest.get_mut(at).filter(|entry| !entry.shares && entry.watched != shared) else {
            return;
        };
        let event = EpollEvent { events: IN | ET, data: ENTRY | u64::from(at) };
        if kernel::epoll_ctl(outer, ADD, shared, Some(event)).is_ok() {
            entry.watched = shared;
        }
    }

    /// The place of the arena in the list, joined now if it was not.
    pub(super) fn join(&mut self, arena: &'static Arena) -> u32 {
        if let Some(&at) = self.places.get(&ptr::from_ref(arena).addr()) {
            return at;
        }
        let lane = self.live.as_ref().and_then(|live| arena.join(live.poller.id));
        if let Some(lane) = lane {
            arena.set_ordered(lane);
        }
        let joined = Joined { arena, lane, slots: Vec::new(), entries: 0, listeners: Vec::new() };
        // A place whose arena nobody needs any more.
        if let Some(at) = self.arenas.iter().position(|joined| joined.entries == 0 && joined.listeners.is_empty()) {
            let old = core::mem::replace(&mut self.arenas[at], joined);
            self.places.remove(&ptr::from_ref(old.arena).addr());
            self.places.insert(ptr::from_ref(arena).addr(), at as u32);
            if let Some(lane) = old.lane {
                old.arena.leave(lane);
            }
            return at as u32;
        }
        self.arenas.push(joined);
        let at = self.arenas.len() as u32 - 1;
        self.places.insert(ptr::from_ref(arena).addr(), at);
        at
    }

    /// In a forked child: the list of candidates is the parent's as of now, and what changed since that one looked is in its lanes.
    /// Which entries are in neither is noted. Nothing is allocated, no lock taken.
    pub(super) fn record_told(&mut self) {
        for at in self.interest.places() {
            let Some(entry) = self.interest.get(at) else { continue };
            let (source, is_listed) = (entry.source, entry.queued || entry.shares);
            let has_news = match source {
                Source::Channel { arena, slot } => self.has_news(arena, slot),
                Source::Listener => self.arenas.iter().any(|joined| {
                    joined.listeners.contains(&at) && joined.lane.is_none_or(|lane| joined.arena.is_dirty(lane))
                }),
                Source::Kernel | Source::Nested(_) => true,
            };
            if let Some(entry) = self.interest.get_mut(at) {
                entry.kept = (!is_listed && !has_news).then(|| had(entry));
            }
        }
    }

    fn has_news(&self, arena: u32, slot: u32) -> bool {
        let joined = self.arenas.get(arena as usize);
        joined.is_none_or(|joined| joined.lane.is_none_or(|lane| joined.arena.is_marked(lane, slot)))
    }

    /// After fork, or when another daemon is there: new poller, new lanes. The list of candidates keeps its order, and an edge that
    /// the parent was told of is none here.
    pub(super) fn rebuild(&mut self) {
        self.stale = false;
        let listed = core::mem::take(&mut self.ready);
        let listed = listed.iter().filter(|candidate| self.interest.of(**candidate).is_some());
        let mut entries: Vec<(u32, u64)> = listed.map(|candidate| (candidate.at, candidate.since)).collect();
        let others = self.interest.places().filter(|&at| self.interest.get(at).is_some_and(|entry| !entry.queued));
        entries.extend(others.map(|at| (at, UNKNOWN)));
        if let Some(outer) = self.live.take().as_ref().and_then(Live::outer) {
            forget(outer);
        }
        if let Some(shared) = &mut self.shared {
            shared.is_not_watched();
        }
        self.arenas.clear();
        self.places.clear();
        self.special.clear();
        self.untold.clear();
        for (at, since) in entries {
            self.attach_anew(at, since);
        }
        self.unsettled = 0;
        if self.shared.is_some() {
            // Nothing of ours may be in it now, and others put something in: who sleeps hears of that by the outer set. ENOMEM: there is
            // no daemon for this process, and all is the kernel's.
            let _ = self.activate();
        }
        self.end_if_not_live();
    }

    /// `since`: when it became a candidate, as far as it was one and that is known.
    fn attach_anew(&mut self, at: u32, since: u64) {
        if self.interest.get(at).is_some_and(|entry| entry.holds && !entry.is_valid()) {
            return self.drop_entry(at);
        }
        let Some(entry) = self.interest.get_mut(at) else { return };
        entry.queued = false;
        entry.beside = u32::MAX;
        entry.unwatch();
        match entry.source {
            Source::Nested(index) => self.attach_nested(at, index),
            Source::Kernel | Source::Channel { .. } | Source::Listener => {
                entry.source = Source::Kernel;
                self.attach(at);
            }
        }
        let Some(entry) = self.interest.get_mut(at) else { return };
        let is_told = entry.kept.take().is_some_and(|before| entry.event.events & ET != 0 && had(entry) == before);
        if !entry.queued {
            return;
        }
        if is_told {
            entry.queued = false;
            self.ready.pop_back();
        } else if unread_changes(since).is_none()
            && since != UNKNOWN
            && let Some(candidate) = self.ready.back_mut()
        {
            *candidate = candidate.since(since);
        }
    }
}

/// In the outer set: a descriptor that is watched for an entry.
const ENTRY: u64 = 1 << 32;
/// The same of a poller that several sets share: its number follows.
const OF_SEVERAL: u64 = 1 << 63;

fn shared_by(poller: u32, at: u32) -> u64 {
    OF_SEVERAL | u64::from(poller) << 32 | u64::from(at)
}

/// Whether what the outer set has told of is watched for an entry.
pub(super) fn is_watched(what: u64) -> bool {
    what >> 32 == ENTRY >> 32 || what & OF_SEVERAL != 0
}

/// The entry, and the poller that several sets share.
fn watched(what: u64) -> (u32, Option<u32>) {
    (what as u32, (what & OF_SEVERAL != 0).then_some(((what & !OF_SEVERAL) >> 32) as u32))
}

/// The same for a set that was closed meanwhile.
pub(super) fn pass_on_of_closed(what: u64) {
    watched(what).1.into_iter().for_each(pass_on);
}

/// The set that such a poller has rung has gone, or what it had of the listener: the next one is rung.
pub(super) fn pass_on(poller: u32) {
    process::bells().ring(poller);
}

/// Takes `at` out of the list that begins at `first`.
fn unlink(interest: &mut Interest, first: u32, at: u32, next: u32) {
    let mut here = first;
    while let Some(entry) = interest.get_mut(here) {
        if entry.beside == at {
            entry.beside = next;
            return;
        }
        here = entry.beside;
    }
}
