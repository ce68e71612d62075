//! fork: both processes hold every socket.
//!
//! The child's attachment is made by the parent before the fork, while no table changes: the daemon copies the parent's
//! attachment page and counts one reference for each entry. The child puts it into place: no allocation, no request, no
//! lock that another thread could have held.
//!
//! The application's handlers of pthread_atfork(3) run within fork(2), and may do anything: wait for a thread of their own
//! program that is about to close a socket, close one themselves. While they run in the parent nothing is kept from other
//! threads ([`Forking::let_others`]); the last handler before the fork, which is ours, has the tables held still again
//! ([`Forking::stand_still`]) and asks for another attachment if they have changed. In the child the first one puts the
//! attachment into place.

use core::sync::atomic::{
    AtomicI32,
    Ordering::{AcqRel, Relaxed, Release},
};
use std::sync::Mutex;

use fs_shm::control::{Client, Error, Fd as OwnedFd};
use rustix::{
    fd::AsRawFd,
    io::Errno,
    process::{Resource, getrlimit},
};

use crate::{
    descriptor::{
        kept, numbers,
        table::{self, Still},
    },
    listen, poll,
    process::{
        self, Attachment,
        exec::Alone,
        held::{Held, Note},
        route,
    },
    socket::{Kind, Socket},
    sys::{call, signals},
    types::Fd,
};

/// What is carried across fork(2); made by [`before_fork`], used up by exactly one of the `after` calls in each process.
#[derive(Debug)]
#[must_use]
pub struct Forking {
    child: Option<Box<Attachment>>,
    /// What `child` was made of, see [`state`].
    of: Option<(u32, u32)>,
    /// `None`: others may change the tables now, and fork.
    held: Option<(Still, Alone)>,
    /// `child` is among [`WAITING`].
    waits: bool,
    /// Signals wait until the fork is over: a handler that jumped out of it would leave a child to the daemon that never is, and that holds
    /// every connection. `None` while the application's handlers of pthread_atfork(3) before the fork run, which may wait for what the
    /// handler of a signal does. Ends last.
    section: Option<signals::Section>,
    /// The child, for a handler that jumps meanwhile.
    note: Option<Note>,
}

/// Which attachment this process has, and how often its page has changed; `None`: it has none, or a change is under way
/// that was waited for in vain.
fn state() -> Option<(u32, u32)> {
    process::current().and_then(|current| Some((current.id(), current.page().unchanged_since()?)))
}

/// Before fork, vfork (which is made a fork) and `clone` without shared memory: the child's attachment is made, tables are held still.
///
/// # Errors
/// `EAGAIN`: this process holds sockets of ours and no attachment for a child can be made, so that those sockets would be
/// dead in it. fork(2) fails for want of memory in the same way.
pub fn before_fork() -> Result<Forking, Errno> {
    poll::before_fork();
    loop {
        let section = Some(signals::Section::begin());
        let (alone, still) = Alone::begin_still();
        listen::number::forking();
        let mut forking =
            Forking { child: None, of: None, held: Some((still, alone)), waits: false, section, note: None };
        let Err(errno) = forking.make() else { return Ok(forking) };
        forking.end_still();
        // Its daemon's end is for all sets to hear of, which is not for where others stand still: see `make_child`.
        if process::current().is_some_and(Attachment::check) {
            return Err(errno);
        }
    }
}

impl Forking {
    /// Makes the child's attachment.
    fn make(&mut self) -> Result<(), Errno> {
        Socket::share_all();
        // A confined process has few children prepared, and one without sockets of ours needs none.
        let needs = !fs_shm::wait::is_confined() || holds_any();
        self.of = state();
        self.child = process::current().filter(|_| needs).and_then(make_child);
        if self.child.is_none() && process::current().is_some() && holds_any() {
            return Err(Errno::AGAIN);
        }
        Ok(())
    }

    /// Before the application's handlers: others may change the tables, and fork.
    pub fn let_others(&mut self) {
        // No second attachment could be asked for, and one that is confined has one thread, mostly.
        if fs_shm::wait::is_confined() {
            return;
        }
        self.enter_waiting();
        self.end_still();
        if self.held.is_none() {
            let held = |child: &Attachment| Held::Child(child.id(), child.client().fd().as_raw_fd());
            self.note = self.child.as_deref().map(held).map(Note::new);
            self.section = None;
        }
    }

    /// Other threads' children close the connection of this one's, as far as there is a place for that.
    fn enter_waiting(&mut self) {
        if let Some(child) = &self.child {
            let connection = child.client().fd().as_raw_fd();
            let free = |place: &AtomicI32| place.compare_exchange(0, connection + 1, AcqRel, Relaxed).is_ok();
            self.waits = WAITING.iter().any(free);
        }
    }

    /// After those before the fork.
    pub fn stand_still(&mut self) {
        if self.section.is_none() {
            self.section = Some(signals::Section::begin());
            self.note = None;
        }
        if self.held.is_some() {
            return;
        }
        let (alone, still) = Alone::begin_still();
        listen::number::forking();
        self.held = Some((still, alone));
        if self.of.is_some() && self.of == state() || self.of.is_none() && process::current().is_none() {
            // Sockets that were made since, by a thread that has not changed what there was, are shared too.
            Socket::share_all();
            return;
        }
        // The fork cannot be refused any more: where another attachment cannot be had, the child has the first one, in which what
        // has changed since is missing.
        let first = (self.child.take(), self.of);
        if self.make().is_err() {
            (self.child, self.of) = first;
            return;
        }
        if let Some(child) = first.0 {
            if let Some(parent) = process::current() {
                give_up(parent, child.id());
            }
            waits_no_more(child.client().fd().as_raw_fd());
        }
        self.enter_waiting();
    }

    /// In the parent, before those after the fork; where all places for waiting children are taken, nobody else forks until
    /// [`after_fork_parent`].
    pub fn end_still(&mut self) {
        if self.child.is_some() && !self.waits {
            return;
        }
        if let Some((still, _alone)) = self.held.take() {
            still.end();
        }
    }
}

/// Connections of children that are about to be forked, while other threads may fork: each descriptor and one; 0: none.
/// More forks at a time keep each other out.
static WAITING: [AtomicI32; 16] = [const { AtomicI32::new(0) }; 16];

/// Before its connection is closed here, or when it is kept.
fn waits_no_more(connection: Fd) {
    for place in &WAITING {
        // Lost: it is another one's.
        let _ = place.compare_exchange(connection + 1, 0, AcqRel, Relaxed);
    }
}

/// A handler has jumped out of the fork before this child was.
pub(crate) fn abandoned(child: u32, connection: Fd) {
    waits_no_more(connection);
    if let Some(parent) = process::current() {
        give_up(parent, child);
    }
    // Nobody else closes it: what it was in is not dropped.
    let _ = call::close(connection);
}

/// In a child: those of its parent's others are closed.
fn forget_waiting(child: Option<&Attachment>) {
    if let Some(child) = child {
        waits_no_more(child.client().fd().as_raw_fd());
    }
    for place in &WAITING {
        let connection = place.swap(0, Release);
        if connection != 0 {
            // A copy of the parent's number, closed once.
            let _ = call::close(connection - 1);
        }
    }
}

/// Whether a child without an attachment would miss something.
fn holds_any() -> bool {
    let mut any = false;
    Socket::each(|socket| any |= matches!(socket.kind(), Kind::Channel | Kind::Listener));
    any
}

/// An attachment for a child; `None`: the daemon does not answer, and the child will hold nothing of ours. That its connection is closed is
/// for later to find ([`Attachment::check`]): others stand still, among them perhaps one that has a set's lock, which all sets hearing of
/// the daemon's end would wait for.
pub(crate) fn make_child(parent: &Attachment) -> Option<Box<Attachment>> {
    if fs_shm::wait::is_confined() {
        return take_prepared(parent);
    }
    // For three descriptors that are needed until the child runs.
    numbers::make(|| ask_for_child(parent, Client::fork)).ok()
}

type Ask = fn(&Client, OwnedFd) -> Result<(u32, OwnedFd), Error>;

fn ask_for_child(parent: &Attachment, ask: Ask) -> Result<Box<Attachment>, Error> {
    let (mut client, end) = Client::pair()?;
    // Without a number there it stays where it is: the fork has to go on.
    let _ = client.move_from(numbers::first());
    let (id, page) = ask(parent.client(), end)?;
    parent.for_child(client, id, &page).map_err(|errno| {
        give_up(parent, id);
        Error::System(errno)
    })
}

/// Attachments for children of a process that has confined itself since: it may read and write on its connection, but not make
/// and pass descriptors.
#[allow(clippy::vec_box, reason = "a fork takes the box over")]
static PREPARED: Mutex<Vec<Box<Attachment>>> = Mutex::new(Vec::new());
/// So many. More: each costs a descriptor here, three of the daemon's, and time for each process that confines itself. Fewer:
/// the fork after them fails.
const CHILDREN: usize = 4;

/// This process is about to confine itself: children that it may fork then are made now.
pub(crate) fn prepare() {
    // Who may have no further process (sshd's child in front of a connection) needs none.
    if getrlimit(Resource::Nproc).current == Some(0) {
        return;
    }
    let (Some(parent), Ok(mut prepared)) = (process::current(), PREPARED.try_lock()) else { return };
    while prepared.len() < CHILDREN {
        // No descriptor free, for one: then such a fork fails.
        let Ok(child) = numbers::make(|| ask_for_child(parent, Client::prepare)) else { break };
        table::set_internal(child.client().fd().as_raw_fd());
        prepared.push(child);
    }
}

fn take_prepared(parent: &Attachment) -> Option<Box<Attachment>> {
    let child = PREPARED.try_lock().ok()?.pop()?;
    table::unset_internal(child.client().fd().as_raw_fd());
    parent.client().inherit(child.id()).ok().map(|()| child)
}

/// In a child: those were for its parent's others. Not freed, which another thread may have been in the middle of.
fn forget_prepared() {
    let Ok(mut prepared) = PREPARED.try_lock() else { return };
    while let Some(other) = prepared.pop() {
        table::unset_internal(other.client().fd().as_raw_fd());
        forget(other);
    }
}

/// Its connection is closed here; memory is left as it is.
fn forget(child: Box<Attachment>) {
    // A number of ours, closed once: it is not dropped.
    let _ = call::close(child.client().fd().as_raw_fd());
    core::mem::forget(child);
}

fn give_up(parent: &Attachment, child: u32) {
    // Closed: see `make_child`.
    let _ = parent.client().fork_failed(child);
}

/// In the parent, when fork has returned (also when it failed: `made` false).
pub fn after_fork_parent(forking: Forking, made: bool) {
    let Forking { child, mut held, section: _section, .. } = forking;
    // Another thread's child must not have the connection between the two: not known any more, and not closed yet.
    let alone = (child.is_some() && held.is_none()).then(Alone::begin);
    if let Some(child) = &child {
        waits_no_more(child.client().fd().as_raw_fd());
    }
    if let (false, Some(child), Some(parent)) = (made, &child, process::current()) {
        give_up(parent, child.id());
    }
    // The child's connection and page: the child has its own copies.
    match child {
        // A filter may forbid munmap(2); addresses are all that is lost.
        Some(child) if fs_shm::wait::is_confined() => forget(child),
        child => drop(child),
    }
    drop(alone);
    if let Some((still, _alone)) = held.take() {
        still.end();
    }
}

/// In the child, before anything else. No allocation, no lock that another thread could have held.
pub fn after_fork_child(forking: Forking) {
    let Forking { child, held, section, .. } = forking;
    // Over at the end of this, with all others.
    core::mem::forget(section);
    numbers::forked();
    Still::end_in_child();
    // The turn is nobody's already, and the lock is this process's own.
    drop(held.map(|(_still, alone)| alone));
    forget_waiting(child.as_deref());
    Socket::each(Socket::forked);
    route::forked();
    listen::forked();
    if child.is_none() {
        Socket::each(Socket::orphaned);
    }
    process::become_child(child);
    forget_prepared();
    kept::forked();
    listen::number::forked();
    listen::forked_attached();
    poll::forked();
    // What another one has left half done is put right by now, for handlers too.
    signals::end_sections_in_child();
}
