//! Processes come, fork, exec and die.

use super::Server;
use super::arenas::{ArenaEntry, Opener, no_descriptor};
use super::limits::{FOUND_BELOW, POLLERS, pollers_max};
use super::requests::Answer;
use super::strangers::is_eventfd;
use crate::listeners::Netns;
use crate::seldom::Seldom;
use crate::sys::Credentials;
use fs_shm::control::{Object, Reply, Text, VERSION};
use fs_shm::pages::{AttachmentPage, DESCRIPTORS};
use fs_shm::{Arena, Bells, Channel, Side};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketType, sockopt};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// An attached process.
pub(super) struct Attachment {
    pub(super) who: Credentials,
    pub(super) name: Text<32>,
    pub(super) page: AttachmentPage,
    pub(super) memory: Arc<OwnedFd>,
    /// Arenas that it was given, and of which side (A, B). What its page says of others is not believed.
    pub(super) arenas: HashMap<u32, [bool; 2]>,
    pub(super) listeners: HashSet<u32>,
    /// Those that it has closed and watches, and how often ([`fs_shm::control::Request::Watch`]).
    pub(super) watched: HashMap<u32, u32>,
    /// Namespaces that it has sockets in.
    pub(super) namespaces: HashSet<Netns>,
    /// Descriptors that it has on their way to others.
    pub(super) shares: usize,
    /// Entries of its page that the daemon has written, which take the daemon's memory.
    copied: usize,
    /// Its connection.
    pub(super) connection: u64,
    /// The parent that it was forked by, until it speaks.
    pub(super) parent: Option<u32>,
    /// The same until it execs: it has its parent's bells.
    pub(super) forked_from: Option<u32>,
    /// It was prepared for a fork that is yet to come, and holds nothing.
    inherits: bool,
    /// When what it holds is to be seen to.
    pub(super) due: Option<Instant>,
    /// Looks that it was promised and that have not come, those that it asked for last: it asks for none that another one covers.
    promised: VecDeque<Instant>,
    /// Ends when the exec happens that it is about to do.
    pub(super) exec: Option<OwnedFd>,
    /// Its image has gone, and the new one has said nothing: it may not have this library.
    pub(super) is_bare: bool,
}

/// Children that a process may have prepared at once. More: each costs three descriptors here. Fewer: so often can a process that
/// has confined itself fork.
const PREPARED: usize = 8;

/// Entries of pages that one user's forks may have the daemon write. More: each takes 16 bytes of the daemon's memory. Fewer: forks of
/// processes with so many accelerated sockets, times their children, fail.
const COPIED: usize = 1 << 18;

/// Looks that a process was promised: it counts on the last that it asked for, but its threads' messages may pass each other. More: each is
/// a look at all that it holds. Fewer: threads that are interrupted in between lose theirs.
const PROMISED: usize = 8;

impl Attachment {
    /// It is seen to at `at`, whatever earlier looks find.
    pub(super) fn promise(&mut self, at: Instant) {
        if self.promised.len() == PROMISED {
            self.promised.pop_front();
        }
        self.promised.push_back(at);
        self.due = Some(self.due.map_or(at, |before| before.min(at)));
    }

    /// It is being seen to at `now`: the first of the other looks that it was promised.
    pub(super) fn keep_promises(&mut self, now: Instant) -> Option<Instant> {
        self.promised.retain(|at| *at > now);
        self.promised.iter().min().copied()
    }

    /// It may have this side of an arena, whose locks it gets, from here on.
    pub(super) fn let_in(&mut self, arena: u32, side: Side) {
        self.arenas.entry(arena).or_default()[side.index()] = true;
    }

    pub(super) fn is_let_in(&self, arena: u32, side: Side) -> bool {
        self.arenas.get(&arena).is_some_and(|sides| sides[side.index()])
    }

    /// What it holds, as far as it may: number, object, cookie.
    pub(super) fn holds(&self) -> Vec<(i32, Object, u64)> {
        self.holds_among(0..DESCRIPTORS)
    }

    /// The same of some of its numbers.
    pub(super) fn holds_among(&self, numbers: Range<usize>) -> Vec<(i32, Object, u64)> {
        self.held_among(numbers).collect()
    }

    /// What a child would have: what is the kernel's is for lists only, which have it with the parent.
    fn holds_for_child(&self) -> Vec<(i32, Object, u64)> {
        self.held_among(0..DESCRIPTORS).filter(|(_, object, _)| !matches!(object, Object::Kernel(_))).collect()
    }

    fn held_among(&self, numbers: Range<usize>) -> impl Iterator<Item = (i32, Object, u64)> + '_ {
        // Most are of the arena of the one before.
        let mut last = None;
        let mut may = move |object: &Object| match object {
            Object::Channel { arena, side, .. } if last == Some((*arena, *side)) => true,
            Object::Channel { arena, side, .. } if self.is_let_in(*arena, *side) => {
                last = Some((*arena, *side));
                true
            }
            Object::Channel { .. } => false,
            Object::Listener(listener) => self.listeners.contains(listener),
            Object::Kernel(_) => true,
        };
        self.page.entries_among(numbers, Some(self.memory.as_fd())).filter(move |(_, object, _)| may(object))
    }

    /// How many entries it has, but for those of the kernel's sockets.
    fn count(&self) -> usize {
        let all = self.page.entries(Some(self.memory.as_fd()));
        all.filter(|(_, object, _)| !matches!(object, Object::Kernel(_))).count()
    }

    /// What a number of it stands for, as far as it may.
    pub(super) fn holds_at(&self, fd: i32) -> Option<(Object, u64)> {
        let (object, cookie) = self.page.entry(fd)?;
        let may = match object {
            Object::Channel { arena, side, .. } => self.is_let_in(arena, side),
            Object::Listener(listener) => self.listeners.contains(&listener),
            Object::Kernel(_) => true,
        };
        may.then_some((object, cookie))
    }

    /// What a socket of it stands for, as far as it may.
    pub(super) fn finds(&self, cookie: u64) -> Option<Object> {
        let all = self.page.entries_among(0..FOUND_BELOW, Some(self.memory.as_fd()));
        let mut its = all.filter(|&(_, _, with)| with == cookie);
        its.find_map(|(fd, ..)| self.holds_at(fd).filter(|&(_, with)| with == cookie).map(|(object, _)| object))
    }

    /// Its connections as the kernel closes them when a process ends, the one with the highest number first (task_work_run() takes
    /// the files from the end; the last reference of one with several numbers is the highest): arena, slot and side, once for each
    /// descriptor. So the accepted side of a connection within one process is usually the one that closes first, and waits (TIME_WAIT).
    fn held_channels(&self) -> Vec<(u32, u32, Side)> {
        let mut held: Vec<(i32, (u32, u32, Side))> = Vec::new();
        for (fd, object, _) in self.holds() {
            if let Object::Channel { arena, slot, side } = object {
                held.push((fd, (arena, slot, side)));
            }
        }
        let highest: HashMap<(u32, u32, Side), i32> = held.iter().map(|&(fd, channel)| (channel, fd)).collect();
        held.sort_by_key(|(_, channel)| Reverse(highest.get(channel).copied()));
        held.into_iter().map(|(_, channel)| channel).collect()
    }

    /// Its connections by arena: slot and side, once for each descriptor.
    pub(super) fn channels(&self) -> BTreeMap<u32, Vec<(u32, Side)>> {
        let mut found: BTreeMap<u32, Vec<(u32, Side)>> = BTreeMap::new();
        for (_, object, _) in self.holds() {
            if let Object::Channel { arena, slot, side } = object {
                found.entry(arena).or_default().push((slot, side));
            }
        }
        found
    }
}

/// A library of another version would read the shared memory wrongly: its program is served by the kernel, and nobody but the
/// log can say why.
fn same_version(theirs: u32, pid: u32, name: Text<32>) -> Result<(), Errno> {
    if theirs == VERSION {
        return Ok(());
    }
    static SELDOM: Seldom = Seldom::new();
    if let Some(left_out) = SELDOM.due() {
        tracing::warn!(
            pid,
            name = name.as_str(),
            left_out,
            "its libfastsock.so has protocol version {}, this daemon {}: its connections stay the kernel's. Install \
             the library and the daemon of one release, and restart the program",
            version_text(theirs),
            version_text(VERSION),
        );
    }
    Err(Errno::PROTONOSUPPORT)
}

fn version_text(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xffff)
}

impl Server {
    pub(super) fn hello(&mut self, connection: u64, version: u32, name: Text<32>) -> Result<Answer, Errno> {
        let entry = self.connections.get(connection).ok_or(Errno::BADF)?;
        same_version(version, entry.who.pid, name)?;
        if entry.attachment.is_some() {
            return Err(Errno::ISCONN);
        }
        if self.draining.is_some() {
            return Err(Errno::SHUTDOWN);
        }
        let who = entry.who;
        let id = self.attach(connection, who, name, None)?;
        self.counters.attached += 1;
        tracing::debug!(attachment = id, pid = who.pid, name = name.as_str(), "attached");
        self.welcome(id)
    }

    fn attach(&mut self, connection: u64, who: Credentials, name: Text<32>, parent: Option<u32>) -> Result<u32, Errno> {
        let memory = AttachmentPage::create().inspect_err(no_descriptor)?;
        let page = AttachmentPage::map(memory.as_fd())?;
        let attachment = Attachment {
            who,
            name,
            page,
            memory: Arc::new(memory),
            arenas: HashMap::new(),
            listeners: HashSet::new(),
            watched: HashMap::new(),
            namespaces: HashSet::new(),
            shares: 0,
            copied: 0,
            connection,
            parent,
            forked_from: parent,
            inherits: false,
            due: None,
            promised: VecDeque::new(),
            exec: None,
            is_bare: false,
        };
        let id = self.attachments.insert(attachment);
        if let Some(entry) = self.connections.get_mut(connection) {
            entry.attachment = Some(id);
        }
        Ok(id)
    }

    fn welcome(&self, id: u32) -> Result<Answer, Errno> {
        let attachment = self.attachments.get(id).ok_or(Errno::NOTCONN)?;
        let reply =
            Reply::Welcome { attachment: id, epoch: self.directory.epoch(), geometry: self.geometry.to_welcome() };
        Ok(Answer::with(reply, [attachment.memory.clone(), self.directory.memory()]))
    }

    /// The new image after exec: its threads and pollers are new, so what the old ones held is freed.
    pub(super) fn resume(&mut self, me: u32, version: u32, name: Text<32>) -> Result<Answer, Errno> {
        let attachment = self.attachments.get_mut(me).ok_or(Errno::NOTCONN)?;
        same_version(version, attachment.who.pid, name)?;
        attachment.name = name;
        // Its request may have come before what tells of the exec.
        self.execs(me);
        self.end_image(me);
        self.has_image(me);
        self.welcome(me)
    }

    /// The threads and pollers of a process are gone: what they held is freed.
    pub(super) fn end_image(&mut self, me: u32) {
        self.forget_exec(me);
        let Some(attachment) = self.attachments.get_mut(me) else { return };
        let parent = attachment.forked_from.take();
        // Threads may have been in the middle of anything.
        attachment.page.end_all_changes();
        let arenas: Vec<u32> = attachment.arenas.keys().copied().collect();
        arenas.into_iter().for_each(|arena| self.look_soon(arena));
        let heirs = self.heirs_of(me, parent);
        let pollers = self.pollers.leave_all(me, &heirs);
        self.free_locks(me, &pollers);
        if let Some(attachment) = self.attachments.get(me) {
            attachment.listeners.iter().for_each(|&listener| self.release_sleepers(me, listener));
        }
    }

    pub(super) fn fork(&mut self, me: u32, socket: OwnedFd) -> Result<Answer, Errno> {
        let child = self.make_child(me, socket)?;
        self.inherit_or_end(me, child)?;
        self.forked(child)
    }

    fn inherit_or_end(&mut self, me: u32, child: u32) -> Result<(), Errno> {
        self.inherit(me, child).inspect_err(|_| {
            if let Some(attachment) = self.attachments.get(child) {
                self.disconnect(attachment.connection);
            }
        })
    }

    /// Answers [`fs_shm::control::Request::Prepare`].
    pub(super) fn prepare(&mut self, me: u32, socket: OwnedFd) -> Result<Answer, Errno> {
        let mine = |other: &&Attachment| other.parent == Some(me) && other.inherits;
        if self.attachments.values().filter(mine).count() >= PREPARED {
            return Err(Errno::NOBUFS);
        }
        let child = self.make_child(me, socket)?;
        if let Some(entry) = self.attachments.get_mut(child) {
            entry.inherits = true;
        }
        self.forked(child)
    }

    fn forked(&self, child: u32) -> Result<Answer, Errno> {
        let attachment = self.attachments.get(child).ok_or(Errno::NOTCONN)?;
        Ok(Answer::with(Reply::Forked { child }, [attachment.memory.clone()]))
    }

    /// Answers [`fs_shm::control::Request::Inherit`].
    pub(super) fn inherit_prepared(&mut self, me: u32, child: u32) -> Result<Answer, Errno> {
        let entry = self.attachments.get_mut(child).filter(|child| child.parent == Some(me)).ok_or(Errno::SRCH)?;
        if !core::mem::take(&mut entry.inherits) {
            return Err(Errno::ALREADY);
        }
        self.inherit_or_end(me, child)?;
        Ok(Reply::Done.into())
    }

    /// A child that holds nothing.
    fn make_child(&mut self, me: u32, socket: OwnedFd) -> Result<u32, Errno> {
        let kind = (sockopt::socket_domain(&socket)?, sockopt::socket_type(&socket)?);
        if kind != (AddressFamily::UNIX, SocketType::SEQPACKET) {
            return Err(Errno::PROTOTYPE);
        }
        // One end of a pair has no name. One that leads to a socket with a name could lead to the daemon's.
        let is_named = |peer: SocketAddrAny| peer.addr_len() as usize > size_of::<u16>();
        if rustix::net::getpeername(&socket)?.is_some_and(is_named) {
            return Err(Errno::PROTOTYPE);
        }
        let parent = self.attachments.get(me).ok_or(Errno::NOTCONN)?;
        let (who, name) = (parent.who, parent.name);
        let connection = self.connect(socket).map_err(|_| Errno::AGAIN)?;
        self.attach(connection, who, name, Some(me)).inspect_err(|_| self.disconnect(connection))
    }

    /// A child that holds nothing yet holds what its parent holds from here on.
    ///
    /// # Errors
    /// EAGAIN: too much, or not all of it. The caller has the child end, and with it what it was given.
    fn inherit(&mut self, me: u32, child: u32) -> Result<(), Errno> {
        let parent = self.attachments.get(me).ok_or(Errno::NOTCONN)?;
        let (name, uid) = (parent.name, parent.who.uid);
        let of_user = self.attachments.values().filter(|other| self.is_one_user(other.who.uid, uid));
        if !self.is_trusted(uid)
            && of_user.map(|other| other.copied).sum::<usize>() + parent.count() + parent.watched.len() > COPIED
        {
            return Err(Errno::AGAIN);
        }
        let mut holds = parent.holds_for_child();
        let (arenas, listeners, namespaces) =
            (parent.arenas.clone(), parent.listeners.clone(), parent.namespaces.clone());
        let watched = parent.watched.clone();
        // It may be the only one soon that holds what is due.
        let due = parent.due;
        // Most are of the arena of the one before.
        let mut last = None;
        let mut is_whole = true;
        let mut retain = |arena, slot, side| {
            if last.as_ref().is_none_or(|(of, _)| *of != (arena, side)) {
                last = self.map(arena, side).map(|mapped| ((arena, side), mapped));
                is_whole &= last.is_some() || self.arenas.get(arena).is_none();
            }
            let channel = last.as_ref().and_then(|(_, mapped)| Channel::at(mapped, slot));
            channel.map(|channel| channel.retain_for_other()).is_some()
        };
        holds.retain(|(_, object, _)| match *object {
            Object::Kernel(_) | Object::Listener(_) => true,
            // One that is not there has no reference, and the slot's next connection would lose one of its own with this entry.
            Object::Channel { arena, slot, side } => retain(arena, slot, side),
        });
        for &arena in arenas.keys() {
            if let Some(entry) = self.arenas.get_mut(arena) {
                entry.members.insert(child);
            }
        }
        for &listener in &listeners {
            if let Some(entry) = self.listeners.get_mut(listener) {
                entry.holders.insert(child);
                entry.count_lookers();
            }
        }
        for &listener in watched.keys() {
            if let Some(entry) = self.listeners.get_mut(listener) {
                let more = &mut entry.more;
                let is_told = more.watchers.contains(&me);
                if is_told { &mut more.watchers } else { &mut more.former_watchers }.insert(child);
                entry.count_lookers();
            }
        }
        self.pollers.inherit(me, child);
        let attachment = self.attachments.get_mut(child).ok_or(Errno::NOTCONN)?;
        attachment.copied = holds.len() + watched.len();
        for (fd, object, cookie) in holds {
            // The number came from a page of the same size.
            let _fits = attachment.page.set(fd, object, cookie);
        }
        attachment.name = name;
        (attachment.arenas, attachment.listeners, attachment.namespaces) = (arenas, listeners, namespaces);
        attachment.watched = watched;
        attachment.due = due;
        self.has_heir(me);
        // The child would use a connection of which it holds nothing.
        if is_whole { Ok(()) } else { Err(Errno::AGAIN) }
    }

    pub(super) fn fork_failed(&mut self, me: u32, child: u32) -> Result<Answer, Errno> {
        let attachment = self.attachments.get(child).filter(|child| child.parent == Some(me)).ok_or(Errno::SRCH)?;
        self.disconnect(attachment.connection);
        Ok(Reply::Done.into())
    }

    /// A process has gone: what it held is closed as close(2) would, and everybody is woken whom it may have been about to wake.
    pub(super) fn detach(&mut self, id: u32) {
        self.forget_exec(id);
        let Some(attachment) = self.attachments.remove(id) else { return };
        let held = attachment.held_channels();
        let arenas: HashSet<(u32, Side)> = held.iter().map(|&(arena, _, side)| (arena, side)).collect();
        let heirs = self.heirs_of(id, attachment.forked_from);
        let slept_on = self.pollers.of(id);
        // One that slept on a poller that others have too: its lanes are asleep no more, or they would be taken for sleepers. Who
        // else sleeps there is rung below. Not those of listeners, which stay armed for whoever comes.
        let of_listeners: HashSet<u32> = self.listeners.all().flat_map(|listener| listener.more.shared()).collect();
        let disarmed: Vec<u32> = slept_on.iter().copied().filter(|poller| !of_listeners.contains(poller)).collect();
        let gone = self.pollers.leave_all(id, &heirs);
        let mut told = HashSet::new();
        // Slots in whose calls it was.
        let mut interrupted: HashMap<(u32, Side), Vec<u32>> = HashMap::new();
        for &arena in attachment.arenas.keys() {
            let opened = self.arenas.get(arena).is_some_and(|entry| entry.opener == Some(Opener::Process(id)));
            for side in [Side::A, Side::B] {
                let Some(mapped) = self.map(arena, side) else { continue };
                gone.iter().for_each(|&poller| mapped.evict(poller));
                disarmed.iter().for_each(|&poller| mapped.disarm(poller));
                interrupted.insert((arena, side), self.break_locks(arena, &mapped, id));
                if opened || arenas.contains(&(arena, Side::A)) || arenas.contains(&(arena, Side::B)) {
                    told.extend(mapped.pollers(side));
                }
            }
        }
        // Most are of the arena of the one before.
        let mut last = None;
        for (arena, slot, side) in held {
            if last.as_ref().is_none_or(|(of, _)| *of != (arena, side)) {
                last = self.map(arena, side).map(|mapped| ((arena, side), mapped));
            }
            if let Some(channel) = last.as_ref().and_then(|(_, mapped)| Channel::at(mapped, slot)) {
                let slots = interrupted.entry((arena, side)).or_default();
                channel.release_gone(1, slots.contains(&slot));
                slots.retain(|other| *other != slot);
            }
        }
        // It had let go of the others, and was in the middle of that: others may hold them.
        for ((arena, side), slots) in interrupted {
            let Some(mapped) = self.map(arena, side).filter(|_| !slots.is_empty()) else { continue };
            slots.into_iter().filter_map(|slot| Channel::at(&mapped, slot)).for_each(|channel| channel.rouse());
        }
        for &arena in attachment.arenas.keys() {
            let opened = self.arenas.get(arena).is_some_and(|entry| entry.opener == Some(Opener::Process(id)));
            let Some(entry) = self.arenas.get_mut(arena) else { continue };
            entry.members.remove(&id);
            if opened {
                entry.opener = None;
                if let Some(mapped) = self.map(arena, Side::A) {
                    mapped.close();
                }
                self.end_lending(arena);
            }
            self.look_soon(arena);
        }
        slept_on
            .into_iter()
            .chain(told)
            .collect::<HashSet<_>>()
            .into_iter()
            .for_each(|poller| self.pollers.ring(poller));
        for &listener in attachment.watched.keys() {
            self.is_not_watched_by(id, listener);
        }
        let mut in_use = false;
        for listener in attachment.listeners {
            in_use |= self.release_listener(id, listener);
        }
        if in_use {
            // Its sockets may be closed already.
            self.see_to_ports(0);
        }
        for netns in attachment.namespaces {
            self.release_namespace(netns);
        }
        tracing::debug!(attachment = id, name = attachment.name.as_str(), "detached");
    }

    /// The children of a process that has ended or has a new image: they share the bells that it had. What it had of its own
    /// parent's is that one's still, whose children they count as from here on.
    fn heirs_of(&mut self, id: u32, parent: Option<u32>) -> Vec<u32> {
        let children = self.attachments.iter_mut().filter(|(_, other)| other.forked_from == Some(id));
        let inherit = |(heir, other): (u32, &mut Attachment)| {
            other.forked_from = parent;
            heir
        };
        children.map(inherit).collect()
    }

    /// Frees the locks of a process whose threads are gone, and the lanes of its pollers.
    fn free_locks(&mut self, id: u32, pollers: &[u32]) {
        let Some(attachment) = self.attachments.get(id) else { return };
        for &arena in attachment.arenas.keys() {
            for side in [Side::A, Side::B] {
                let Some(mapped) = self.map(arena, side) else { continue };
                pollers.iter().for_each(|&poller| mapped.evict(poller));
                // A thread that an exec has ended was in the middle of a call: who waits for that is not told by anybody else.
                let interrupted = self.break_locks(arena, &mapped, id);
                interrupted
                    .into_iter()
                    .filter_map(|slot| Channel::at(&mapped, slot))
                    .for_each(|channel| channel.rouse());
            }
        }
    }

    /// Frees the locks that a process held in an arena; the slots whose locks it held.
    fn break_locks(&self, arena: u32, mapped: &Arena, id: u32) -> Vec<u32> {
        let entry = self.arenas.get(arena);
        entry.map_or_else(Vec::new, |entry| mapped.break_all_locks(entry.memory.fds(mapped.side())[1], id))
    }

    /// Frees the lanes of pollers that are gone.
    pub(super) fn evict(&mut self, me: u32, pollers: &[u32]) {
        let Some(attachment) = self.attachments.get(me) else { return };
        for &arena in attachment.arenas.keys() {
            for side in [Side::A, Side::B] {
                if let Some(mapped) = self.map(arena, side) {
                    pollers.iter().for_each(|&poller| mapped.evict(poller));
                }
            }
        }
    }

    /// Whether an attachment may have one more poller.
    pub(super) fn room_for_poller(&self, me: u32) -> Result<(), Errno> {
        let uid = self.attachments.get(me).ok_or(Errno::NOTCONN)?.who.uid;
        let theirs = || {
            let of_user = self.attachments.iter().filter(|(_, attachment)| self.is_one_user(attachment.who.uid, uid));
            self.pollers.count_of(&of_user.map(|(id, _)| id).collect())
        };
        let most = pollers_max();
        let all = self.pollers.len();
        let room = all < most && self.has_room(uid, most, all, theirs);
        if !room || self.pollers.count(me) >= POLLERS {
            return Err(Errno::NOBUFS);
        }
        Ok(())
    }

    /// Answers [`fs_shm::control::Request::Poller`].
    pub(super) fn poller(&mut self, me: u32, eventfd: Option<OwnedFd>) -> Result<Answer, Errno> {
        self.room_for_poller(me)?;
        let Some(eventfd) = eventfd else {
            let (poller, set) = self.pollers.add(me)?;
            return Ok(Answer::with(Reply::Poller { poller }, [Arc::new(set)]));
        };
        // Anything else could make whoever rings it wait, or do worse.
        if !is_eventfd(&eventfd) {
            return Err(Errno::INVAL);
        }
        let flags = rustix::fs::fcntl_getfl(&eventfd)?;
        rustix::fs::fcntl_setfl(&eventfd, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Reply::Poller { poller: self.pollers.add_private(eventfd, me) }.into())
    }

    /// Answers [`fs_shm::control::Request::Bell`].
    pub(super) fn bell(&mut self, me: u32, poller: u32) -> Result<Answer, Errno> {
        self.may_ring(me, poller)?;
        let bell = self.pollers.bell(poller, me);
        let bell = bell.inspect_err(
            |error| tracing::debug!(%error, poller, attachment = me, "cannot create an eventfd for a wake set"),
        )?;
        Ok(Answer::with(Reply::Done, [Arc::new(bell)]))
    }

    /// Rings for a process that cannot itself. One that may not is not told: there is no answer.
    pub(super) fn ring(&mut self, connection: u64, poller: u32) {
        self.counters.requests += 1;
        let me = self.connections.attachment(connection);
        match me.ok_or(Errno::NOTCONN).and_then(|me| self.may_ring(me, poller)) {
            Ok(()) => self.pollers.ring(poller),
            Err(error) => tracing::debug!(%error, poller, "cannot notify a wake set"),
        }
    }

    /// [`Request::Trim`](fs_shm::control::Request::Trim).
    pub(super) fn asked_to_trim(&mut self, connection: u64, arena: u32) {
        self.counters.requests += 1;
        let me = self.connections.attachment(connection);
        if me.and_then(|me| self.attachments.get(me)).is_some_and(|mine| mine.arenas.contains_key(&arena)) {
            self.trim_soon(arena);
        }
    }

    /// Whoever shares an arena with a poller's process, or with a core, may ring it.
    fn may_ring(&self, me: u32, poller: u32) -> Result<(), Errno> {
        let holders = self.pollers.holders(poller).ok_or(Errno::NOENT)?;
        let mine = &self.attachments.get(me).ok_or(Errno::NOTCONN)?.arenas;
        let shares = |holder: &u32| {
            *holder == me
                || self
                    .attachments
                    .get(*holder)
                    .is_some_and(|other| other.arenas.keys().any(|id| mine.contains_key(id)))
        };
        let is_wire = |id: &u32| self.arenas.get(*id).is_some_and(|arena| arena.wire);
        let is_core = holders.is_empty();
        // Those who share a poller take the arena when the first connection wakes them.
        let leads_to_it = |id: &u32| match self.arenas.get(*id).and_then(ArenaEntry::listener) {
            Some(listener) => {
                self.listeners.get(listener).is_some_and(|entry| entry.more.shared().any(|of_it| of_it == poller))
            }
            _ => false,
        };
        let may = holders.iter().any(shares) || is_core && mine.keys().any(is_wire) || mine.keys().any(leads_to_it);
        if may { Ok(()) } else { Err(Errno::ACCESS) }
    }
}
