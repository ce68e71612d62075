//! The table of arenas: who shares which memory.
//!
//! The daemon keeps only the descriptor; it maps an arena (20 GiB of addresses, no memory) for as long as it looks, and those that
//! it has mapped last until it maps others ([`Mappings`]).

use super::Server;
use super::apart::FirstHolder;
use super::lent::Lent;
use super::numbered::Numbered;
use super::requests::Answer;
use super::sweep::{Look, ROUND};
use crate::bells::new_bell;
use crate::listeners::{Netns, unmapped};
use crate::seldom::Seldom;
use fs_shm::control::{ArenaPart, Reply};
use fs_shm::sleepers::Sleepers;
use fs_shm::{Arena, Bells, Memory, Side};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Who opens connections in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Opener {
    Process(u32),
    Core(u16),
}

/// Who accepts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Acceptor {
    Listener(u32),
    Core(u16),
}

/// A bound socket, and where.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) at: SocketAddr,
    pub(super) socket: OwnedFd,
    pub(super) asked: Instant,
}

/// An arena's memory: what both sides map, and the locks of each.
#[derive(Clone, Debug)]
pub(crate) struct ArenaMemory {
    pub(crate) shared: Arc<OwnedFd>,
    locks: [Arc<OwnedFd>; 2],
}

impl ArenaMemory {
    /// What the holders of a side map, and nobody gets who is none.
    pub(super) fn of(&self, side: Side) -> [Arc<OwnedFd>; 2] {
        [self.shared.clone(), self.locks[side.index()].clone()]
    }

    /// The locks of both sides, which the daemon alone has together.
    pub(super) fn all_locks(&self) -> [BorrowedFd<'_>; 2] {
        self.locks.each_ref().map(|locks| locks.as_fd())
    }

    /// The same for a mapping of the daemon's own.
    pub(crate) fn fds(&self, side: Side) -> [BorrowedFd<'_>; 2] {
        [self.shared.as_fd(), self.locks[side.index()].as_fd()]
    }
}

impl From<Memory> for ArenaMemory {
    fn from(memory: Memory) -> Self {
        ArenaMemory { shared: Arc::new(memory.shared), locks: memory.locks.map(Arc::new) }
    }
}

/// An arena. `None` for a side that is gone; then it lives on until its last connection has ended.
#[derive(Debug)]
pub(super) struct ArenaEntry {
    pub(super) memory: ArenaMemory,
    /// Who its sides were made for.
    pub(super) of: (Opener, Acceptor),
    pub(super) opener: Option<Opener>,
    pub(super) acceptor: Option<Acceptor>,
    /// A core is one of its sides, also when that side is gone.
    pub(super) wire: bool,
    /// Attachments that may have it: the opener, acceptors, and who got a connection by fork or as a message. Of which side,
    /// [`Attachment::arenas`] says.
    pub(super) members: HashSet<u32>,
    /// It has lost a side, or a process that took part in it.
    pub(super) look: Option<Look>,
    /// Between two processes: the addresses that its connections come from, as their sockets have them, and where they go. No others
    /// are true.
    pub(super) ends: HashSet<(IpAddr, SocketAddr)>,
    /// The ports that they come from.
    pub(super) lent: Lent,
    /// Network namespaces that its connections pass.
    pub(super) namespaces: HashSet<Netns>,
    /// Who has its side B as a holder of the listener.
    pub(super) first_holder: Option<FirstHolder>,
    /// It was given to one that only watches the listener.
    pub(super) is_watched: bool,
    /// Nothing new is led here, and its acceptor is none any more; but what waits in it is accepted.
    pub(super) is_emptied: bool,
    /// Its connections are over, whatever its processes write.
    pub(super) stopped: bool,
    /// Places that its opener is about to connect from, over the wire.
    pub(super) sources: Vec<Source>,
    /// When memory goes back that is not used any more.
    pub(super) trim: Option<Instant>,
    /// How many of its connections may wait for accept.
    pub(super) room: u32,
    /// Its process is about to connect for the first time, and its room was not shared yet.
    pub(super) is_new: bool,
}

/// The arenas that the daemon has mapped last. What it is asked about one process is about one or two of them, some ten times from its
/// first connection to its end, and to map one and unmap it is a dozen system calls.
#[derive(Debug, Default)]
struct Mappings(RefCell<VecDeque<(u32, Side, Arc<Arena>)>>);

impl Mappings {
    /// Fewer: two processes that begin or end at once have each other's mapped anew. More: what was looked at there counts as resident in
    /// the daemon.
    const MOST: usize = 8;

    fn find(&self, id: u32, side: Side) -> Option<Arc<Arena>> {
        let all = self.0.borrow();
        all.iter().find(|(of, its, _)| (*of, *its) == (id, side)).map(|(.., arena)| arena.clone())
    }

    fn keep(&self, id: u32, side: Side, arena: Arena) -> Arc<Arena> {
        let arena = Arc::new(arena);
        let mut all = self.0.borrow_mut();
        if all.len() == Self::MOST {
            all.pop_front();
        }
        all.push_back((id, side, arena.clone()));
        arena
    }

    /// Its memory is to go, and its number may be another's.
    fn forget(&self, id: u32) {
        self.0.borrow_mut().retain(|(of, ..)| *of != id);
    }

    fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}

/// Says what to do about the limit that is met first.
pub(super) fn no_descriptor(error: &Errno) {
    static SELDOM: Seldom = Seldom::new();
    if matches!(*error, Errno::MFILE | Errno::NFILE)
        && let Some(left_out) = SELDOM.due()
    {
        let limit = if *error == Errno::MFILE { "RLIMIT_NOFILE (LimitNOFILE= of systemd)" } else { "fs.file-max" };
        tracing::warn!(%error, left_out, "no descriptor is left, so the kernel carries new connections: raise {limit}");
    }
}

impl ArenaEntry {
    pub(super) fn is_dying(&self) -> bool {
        self.opener.is_none() || self.acceptor.is_none()
    }

    /// The listener whose holders accept what waits in it.
    pub(super) fn listener(&self) -> Option<u32> {
        match (self.acceptor, self.of.1) {
            (Some(Acceptor::Listener(listener)), _) => Some(listener),
            (None, Acceptor::Listener(listener)) if self.is_emptied => Some(listener),
            _ => None,
        }
    }
}

/// The arenas, by number, and by those whom their sides were made for.
#[derive(Debug)]
pub(super) struct Arenas {
    entries: Numbered<ArenaEntry>,
    /// The last that was made for these two: the only one of them that may have both sides.
    last_of: HashMap<(Opener, Acceptor), u32>,
    /// Of arenas in the table only: a number that is given again is another memory's.
    mapped: Mappings,
    /// The memory of those that are over and have more than goes back at once, and how far it has gone back.
    over: VecDeque<(Arc<OwnedFd>, u64)>,
}

impl Default for Arenas {
    /// Numbers have 31 bits in [`Object`](fs_shm::control::Object).
    fn default() -> Self {
        Self {
            entries: Numbered::new(1..=u32::MAX >> 1),
            last_of: HashMap::new(),
            mapped: Mappings::default(),
            over: VecDeque::new(),
        }
    }
}

impl Arenas {
    /// The arena of these two that has both sides.
    fn of(&self, of: (Opener, Acceptor)) -> Option<(u32, &ArenaEntry)> {
        let id = *self.last_of.get(&of)?;
        self.get(id).filter(|entry| !entry.is_dying()).map(|entry| (id, entry))
    }

    /// The number that the next one gets.
    fn vacant(&mut self) -> u32 {
        self.entries.vacant()
    }

    fn insert(&mut self, entry: ArenaEntry) -> u32 {
        let of = entry.of;
        let id = self.entries.insert(entry);
        self.last_of.insert(of, id);
        id
    }

    fn remove(&mut self, id: u32) -> Option<ArenaEntry> {
        self.mapped.forget(id);
        let entry = self.entries.remove(id)?;
        if self.last_of.get(&entry.of) == Some(&id) {
            self.last_of.remove(&entry.of);
        }
        Some(entry)
    }

    pub(super) fn get(&self, id: u32) -> Option<&ArenaEntry> {
        self.entries.get(id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut ArenaEntry> {
        self.entries.get_mut(id)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &ArenaEntry)> {
        self.entries.iter()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &ArenaEntry> {
        self.entries.values()
    }

    /// The numbers of those for which this is so.
    pub(super) fn ids_where(&self, is: impl Fn(&ArenaEntry) -> bool) -> Vec<u32> {
        self.entries.ids_where(is)
    }
}

impl Server {
    /// Finds or makes the arena of these two; `ENOBUFS` at the limit. The last answer: it is new.
    pub(super) fn arena_of(&mut self, opener: Opener, acceptor: Acceptor) -> Result<(u32, ArenaMemory, bool), Errno> {
        let of = (opener, acceptor);
        if let Some((id, entry)) = self.arenas.of(of) {
            return Ok((id, entry.memory.clone(), false));
        }
        let limit = self.config.limits.arenas;
        if self.arenas.len() >= limit {
            return Err(Errno::NOBUFS);
        }
        if let Opener::Process(process) = opener {
            let uid_of = |id: u32| self.attachments.get(id).map(|attachment| attachment.who.uid);
            let uid = uid_of(process).ok_or(Errno::NOTCONN)?;
            let is_theirs = |entry: &&ArenaEntry| match entry.opener {
                Some(Opener::Process(other)) => uid_of(other).is_some_and(|other| self.is_one_user(other, uid)),
                _ => false,
            };
            if !self.has_room(uid, limit, self.arenas.len(), || self.arenas.values().filter(is_theirs).count()) {
                return Err(Errno::NOBUFS);
            }
        }
        let memory = ArenaMemory::from(Arena::create("fastsock-arena", self.geometry).inspect_err(no_descriptor)?);
        if let (Opener::Process(_), Acceptor::Listener(listener)) = of {
            self.begin_room(listener, &memory.shared);
        }
        let id = self.arenas.vacant();
        Arena::set_number(memory.shared.as_fd(), id)?;
        let mut members = HashSet::new();
        if let Opener::Process(process) = opener {
            self.attachments.get_mut(process).ok_or(Errno::NOTCONN)?.let_in(id, Side::A);
            members.insert(process);
        }
        let entry = ArenaEntry {
            memory: memory.clone(),
            of,
            opener: Some(opener),
            acceptor: Some(acceptor),
            wire: matches!(opener, Opener::Core(_)) || matches!(acceptor, Acceptor::Core(_)),
            members,
            look: None,
            ends: HashSet::new(),
            lent: Lent::default(),
            namespaces: self.namespaces_of(acceptor),
            first_holder: None,
            is_watched: false,
            is_emptied: false,
            stopped: false,
            sources: Vec::new(),
            trim: None,
            room: 1,
            is_new: matches!(opener, Opener::Process(_)),
        };
        let id = self.arenas.insert(entry);
        self.glance_soon();
        self.capture_arena(id);
        if let Acceptor::Listener(listener) = acceptor {
            if matches!(opener, Opener::Process(_)) {
                self.share_room(listener);
            }
            self.watch_for_sleepers(listener, id);
            self.list_arenas(listener);
        }
        Ok((id, memory, true))
    }

    /// Writes a listener's page anew, and wakes those who accept from it.
    pub(super) fn list_arenas(&mut self, listener: u32) {
        let mut ids: Vec<u32> = self.arenas_of(listener).collect();
        let Some(entry) = self.listeners.get(listener) else { return };
        ids.sort_unstable();
        if !entry.more.page.set(&ids) {
            tracing::warn!(listener, arenas = ids.len(), "a listener has its maximum of arenas: further clients wait");
        }
        let is_shared = |poller| entry.more.shared().any(|shared| shared == poller);
        self.pollers.ring_all(|looker| entry.is_looked_at_by(looker), listener, is_shared);
    }

    /// Those who share a poller hear of the first connection in a new arena, one of them, and not of the arena.
    fn watch_for_sleepers(&self, listener: u32, id: u32) {
        let Some(entry) = self.listeners.get(listener) else { return };
        if entry.more.shared().next().is_none() {
            return;
        }
        let Some(arena) = self.map(id, Side::B) else { return };
        for lane in entry.more.shared().filter_map(|poller| arena.join(poller)) {
            arena.watch_inbox(lane, true);
            arena.share_inbox(lane, true);
            arena.arm(lane);
        }
    }

    /// Answers [`fs_shm::control::Request::ListenerPoller`].
    pub(super) fn listener_poller(&mut self, me: u32, id: u32) -> Result<Answer, Errno> {
        self.may_look(me, id)?;
        let listener = self.listeners.get(id).ok_or(Errno::NOENT)?;
        let known = listener.more.poller.clone().filter(|(poller, _)| self.pollers.join(*poller, me));
        let (poller, set) = match known {
            Some(known) => known,
            None => {
                self.room_for_poller(me)?;
                let (poller, set) = self.pollers.add(me)?;
                (poller, Arc::new(set))
            }
        };
        let listener = self.listeners.get_mut(id).ok_or(Errno::NOENT)?;
        listener.more.poller = Some((poller, set.clone()));
        if listener.more.sleepers.is_none() {
            // Without it they sleep in no order.
            listener.more.sleepers = Sleepers::create().ok().map(|(memory, sleepers)| (sleepers, Arc::new(memory)));
        }
        let memory = listener.more.sleepers.as_ref().map(|(_, memory)| memory.clone());
        Ok(Answer::with(Reply::Poller { poller }, [set].into_iter().chain(memory)))
    }

    /// The threads of a process sleep on a listener no more.
    pub(super) fn release_sleepers(&self, me: u32, listener: u32) {
        if let Some((sleepers, _)) = self.listeners.get(listener).and_then(|entry| entry.more.sleepers.as_ref()) {
            sleepers.release_dead(me);
        }
    }

    /// Answers [`fs_shm::control::Request::ExclusivePoller`].
    pub(super) fn exclusive_poller(&mut self, me: u32, id: u32, set: u32, told: bool) -> Result<Answer, Errno> {
        self.may_look(me, id)?;
        let listener = self.listeners.get(id).ok_or(Errno::NOENT)?;
        let known = listener.more.exclusive.as_ref().filter(|(poller, _)| self.pollers.join(*poller, me));
        let (poller, eventfd) = match known {
            Some((poller, eventfd)) => (*poller, eventfd.clone()),
            None => {
                self.room_for_poller(me)?;
                let eventfd = new_bell()?;
                let poller = self.pollers.add_private(eventfd.try_clone().map_err(|_| Errno::MFILE)?, me);
                let eventfd = Arc::new(eventfd);
                let listener = self.listeners.get_mut(id).ok_or(Errno::NOENT)?;
                listener.more.exclusive = Some((poller, eventfd.clone()));
                (poller, eventfd)
            }
        };
        self.pollers.tell(set, me, id, told)?;
        Ok(Answer::with(Reply::Poller { poller }, [eventfd]))
    }

    /// Who has died may have been woken for a connection that he did not take.
    pub(super) fn wake_another(&self, listener: u32) {
        if let Some(entry) = self.listeners.get(listener) {
            entry.more.shared().for_each(|poller| self.pollers.ring(poller));
        }
    }

    /// The arenas that lead to a listener.
    pub(super) fn arenas_of(&self, listener: u32) -> impl Iterator<Item = u32> + '_ {
        let of_it = move |entry: &ArenaEntry| entry.listener() == Some(listener);
        self.arenas.iter().filter(move |(_, entry)| of_it(entry)).map(|(id, _)| id)
    }

    /// Looks into an arena as one of its sides.
    pub(super) fn map(&self, id: u32, side: Side) -> Option<Arc<Arena>> {
        let entry = self.arenas.get(id)?;
        if let Some(known) = self.arenas.mapped.find(id, side) {
            return Some(known);
        }
        let map = || Arena::map_own(entry.memory.fds(side), self.geometry, side, self.pollers);
        let mapped = map().or_else(|_| {
            // Its addresses may be limited.
            self.arenas.mapped.clear();
            map()
        });
        match mapped {
            Ok(arena) => Some(self.arenas.mapped.keep(id, side, arena)),
            Err(error) => {
                static SELDOM: Seldom = Seldom::new();
                if let Some(left_out) = SELDOM.due() {
                    tracing::error!(arena = id, %error, left_out, "cannot map an arena");
                }
                None
            }
        }
    }

    /// Answers [`fs_shm::control::Request::Arena`].
    pub(super) fn arena(&mut self, me: u32, id: u32, side: Side, part: ArenaPart) -> Result<Answer, Errno> {
        let listener = self.arenas.get(id).ok_or(Errno::NOENT)?.listener();
        if !self.attachments.get(me).ok_or(Errno::NOTCONN)?.is_let_in(id, side) {
            let listener = listener.filter(|_| side == Side::B).ok_or(Errno::ACCESS)?;
            let entry = self.listeners.get(listener).ok_or(Errno::ACCESS)?;
            if entry.holders.contains(&me) {
                self.let_accept(me, listener, id)?;
            } else if entry.more.watchers.contains(&me) {
                self.let_watch(me, listener, id)?;
            } else {
                return Err(Errno::ACCESS);
            }
        }
        let (entry, attachment) = (self.arenas.get_mut(id), self.attachments.get_mut(me));
        let (entry, attachment) = (entry.ok_or(Errno::NOENT)?, attachment.ok_or(Errno::NOTCONN)?);
        entry.members.insert(me);
        attachment.let_in(id, side);
        let [shared, locks] = entry.memory.of(side);
        Ok(match part {
            ArenaPart::Both => Answer::with(Reply::Arena, [shared, locks]),
            ArenaPart::Shared => Answer::with(Reply::Arena, [shared]),
            ArenaPart::Locks => Answer::with(Reply::Arena, [locks]),
        })
    }

    /// A process is told to connect from here to there by this arena, from a namespace. `false`: it has too many of these.
    pub(super) fn record_ends(&mut self, id: u32, netns: Netns, from: IpAddr, to: SocketAddr) -> bool {
        /// Each address that a client is bound to, with each that it reaches one listener by. More: as much memory of the daemon's.
        const MOST: usize = 128;
        let Some(entry) = self.arenas.get_mut(id) else { return false };
        let ends = (unmapped(from), SocketAddr::new(unmapped(to.ip()), to.port()));
        if entry.ends.len() >= MOST && !entry.ends.contains(&ends) || !entry.lent.is_from(netns) {
            return false;
        }
        entry.ends.insert(ends);
        entry.namespaces.insert(netns);
        true
    }

    /// Answers [`fs_shm::control::Request::Vouch`].
    pub(super) fn vouch(&self, me: u32, id: u32, [from, to]: [SocketAddr; 2]) -> Result<Answer, Errno> {
        let entry = self.arenas.get(id).ok_or(Errno::NOENT)?;
        let accepts = match entry.of.1 {
            Acceptor::Listener(listener) => self.listeners.get(listener).is_some_and(|it| it.holders.contains(&me)),
            Acceptor::Core(_) => false,
        };
        if !accepts && !entry.members.contains(&me) {
            return Err(Errno::ACCESS);
        }
        if entry.wire {
            // A core writes them, and only who holds the connection's own end could write others.
            return Ok(Reply::Vouched { all: true }.into());
        }
        // The port of side A is known to both sides already ([`Arena::set_port`]).
        let ends = (unmapped(from.ip()), SocketAddr::new(unmapped(to.ip()), to.port()));
        if entry.ends.contains(&ends) { Ok(Reply::Vouched { all: false }.into()) } else { Err(Errno::ACCESS) }
    }

    /// Memory of arenas that are over goes back, for some ms: others are answered in between.
    pub(super) fn give_rings_back(&mut self) {
        const TIME: Duration = Duration::from_millis(2);
        let until = Instant::now() + TIME;
        while let Some((memory, at)) = self.arenas.over.front_mut() {
            match Arena::give_rings_back(memory.as_fd(), self.geometry, *at, until) {
                None => drop(self.arenas.over.pop_front()),
                Some(next) => {
                    *at = next;
                    return self.sweep_at(until + ROUND);
                }
            }
        }
    }

    /// An arena is over: nobody has a connection in it any more.
    pub(super) fn forget_arena(&mut self, id: u32) {
        if let Some(arena) = self.map(id, Side::A) {
            let wire = self.arenas.get(id).is_some_and(|entry| entry.wire);
            self.counters.arena_ended(wire, arena.totals());
            arena.close();
            let listener = self.arenas.get(id).and_then(ArenaEntry::listener);
            self.record_waits(id, listener, &arena.waits());
        }
        let Some(entry) = self.arenas.remove(id) else { return };
        // A process that was in it has it mapped until it looks at what is over, which one that nobody connects to does not. Who
        // captures reads what came last; that goes with his mapping.
        if !self.captures.arena_gone(id) {
            let is_first = self.arenas.over.is_empty();
            self.arenas.over.push_back((entry.memory.shared.clone(), 0));
            if is_first {
                self.give_rings_back();
            }
        }
        for member in &entry.members {
            if let Some(attachment) = self.attachments.get_mut(*member) {
                attachment.arenas.remove(&id);
            }
        }
        if let Some(wire) = &self.wire {
            wire.arena_gone(id);
        }
        if let Some(listener) = entry.listener() {
            self.list_arenas(listener);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(of: (Opener, Acceptor)) -> ArenaEntry {
        let memory = || Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
        ArenaEntry {
            memory: ArenaMemory { shared: memory(), locks: [memory(), memory()] },
            of,
            opener: Some(of.0),
            acceptor: Some(of.1),
            wire: false,
            members: HashSet::new(),
            look: None,
            ends: HashSet::new(),
            lent: Lent::default(),
            namespaces: HashSet::new(),
            first_holder: None,
            is_watched: false,
            is_emptied: false,
            stopped: false,
            sources: Vec::new(),
            trim: None,
            room: 1,
            is_new: false,
        }
    }

    /// Those mapped last, and none that is over: its memory is to go.
    #[test]
    fn few_stay_mapped_and_none_that_is_forgotten() {
        let geometry = fs_shm::Geometry::SMALL;
        let memory = ArenaMemory::from(Arena::create("fastsock-test", geometry).unwrap());
        let map = |side| Arena::map_own(memory.fds(side), geometry, side, &fs_shm::NoBells).unwrap();
        let mappings = Mappings::default();
        let first = Arc::downgrade(&mappings.keep(1, Side::A, map(Side::A)));
        mappings.keep(1, Side::B, map(Side::B));
        assert!(mappings.find(1, Side::A).is_some() && mappings.find(2, Side::A).is_none());
        (2..).take(Mappings::MOST - 1).for_each(|id| drop(mappings.keep(id, Side::A, map(Side::A))));
        assert!(first.upgrade().is_none(), "the oldest is unmapped");
        let second = Arc::downgrade(&mappings.find(1, Side::B).unwrap());
        mappings.forget(1);
        assert!(second.upgrade().is_none() && mappings.find(1, Side::B).is_none());
        assert!(mappings.find(2, Side::A).is_some());
    }

    #[test]
    fn two_have_one_arena_with_both_sides() {
        let geometry = fs_shm::Geometry::SMALL;
        let mut arenas = Arenas::default();
        let of = (Opener::Process(2), Acceptor::Listener(3));
        assert!(arenas.of(of).is_none());
        let first = arenas.insert(entry(of));
        assert_eq!(arenas.of(of).map(|(id, _)| id), Some(first));
        assert!(arenas.of((Opener::Process(2), Acceptor::Core(3))).is_none());
        // Its listener was closed: the next one is another, and the end of the first takes nothing from it.
        arenas.get_mut(first).unwrap().acceptor = None;
        assert!(arenas.of(of).is_none());
        let second = arenas.insert(entry(of));
        let memory = ArenaMemory::from(Arena::create("fastsock-test", geometry).unwrap());
        let arena = Arena::map_own(memory.fds(Side::A), geometry, Side::A, &fs_shm::NoBells).unwrap();
        arenas.mapped.keep(first, Side::A, arena);
        assert!(arenas.remove(first).is_some() && arenas.remove(first).is_none());
        assert!(arenas.mapped.find(first, Side::A).is_none(), "the number may be another's");
        assert_eq!((arenas.of(of).map(|(id, _)| id), arenas.len()), (Some(second), 1));
        arenas.remove(second);
        assert!(arenas.of(of).is_none() && arenas.last_of.is_empty());
    }
}
