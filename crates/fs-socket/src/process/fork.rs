//! fork: both processes hold every socket.
//!
//! The child's attachment is made by the parent before the fork, while no table changes: the daemon copies the parent's
//! attachment page and counts one reference for each entry. The child puts it into place: no allocation, no request, no
//! lock that another thread could have held.

use std::sync::Mutex;

use fs_shm::control::{Client, Error, Fd as OwnedFd};
use rustix::{
    fd::AsRawFd,
    io::Errno,
    process::{Resource, getrlimit},
};

use crate::{
    descriptor::{
        numbers,
        table::{self, Still},
    },
    listen, poll,
    process::{self, Attachment, exec::Alone, route},
    socket::{Kind, Socket},
    sys::call,
};

/// What is carried across fork(2); made by [`before_fork`], used up by exactly one of the `after` calls in each process.
#[derive(Debug)]
#[must_use]
pub struct Forking {
    still: Still,
    child: Option<Box<Attachment>>,
    alone: Alone,
}

/// Before fork, vfork (which is made a fork) and `clone` without shared memory: the child's attachment is made, tables are held still.
///
/// # Errors
/// `EAGAIN`: this process holds sockets of ours and no attachment for a child can be made, so that those sockets would be
/// dead in it. fork(2) fails for want of memory in the same way.
pub fn before_fork() -> Result<Forking, Errno> {
    let alone = Alone::begin();
    let still = Still::begin();
    Socket::share_all();
    // A confined process has few children prepared, and one without sockets of ours needs none.
    let needs = !fs_shm::wait::is_confined() || holds_any();
    let child = process::current().filter(|_| needs).and_then(make_child);
    if child.is_none() && process::current().is_some() && holds_any() {
        still.end();
        return Err(Errno::AGAIN);
    }
    Ok(Forking { still, child, alone })
}

/// Whether a child without an attachment would miss something.
fn holds_any() -> bool {
    let mut any = false;
    Socket::each(|socket| any |= matches!(socket.kind(), Kind::Channel | Kind::Listener));
    any
}

/// An attachment for a child; `None`: the daemon does not answer, and the child will hold nothing of ours.
pub(crate) fn make_child(parent: &Attachment) -> Option<Box<Attachment>> {
    if fs_shm::wait::is_confined() {
        return take_prepared(parent);
    }
    // For three descriptors that are needed until the child runs.
    let answer = numbers::make(|| ask_for_child(parent, Client::fork));
    answer.inspect_err(|error| parent.failed(error)).ok()
}

type Ask = fn(&Client, OwnedFd) -> Result<(u32, OwnedFd), Error>;

fn ask_for_child(parent: &Attachment, ask: Ask) -> Result<Box<Attachment>, Error> {
    let (mut client, end) = Client::pair()?;
    client.move_from(numbers::first())?;
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
    let begun = parent.client().inherit(child.id());
    begun.inspect_err(|error| parent.failed(error)).ok().map(|()| child)
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
    if let Err(error) = parent.client().fork_failed(child) {
        parent.failed(&error);
    }
}

/// In the parent, when fork has returned (also when it failed: `made` false).
pub fn after_fork_parent(forking: Forking, made: bool) {
    let Forking { still, child, alone: _alone } = forking;
    if let (false, Some(child), Some(parent)) = (made, &child, process::current()) {
        give_up(parent, child.id());
    }
    // The child's connection and page: the child has its own copies.
    match child {
        // A filter may forbid munmap(2); addresses are all that is lost.
        Some(child) if fs_shm::wait::is_confined() => forget(child),
        child => drop(child),
    }
    still.end();
}

/// In the child, before anything else. No allocation, no lock that another thread could have held.
pub fn after_fork_child(forking: Forking) {
    let Forking { still, child, alone: _alone } = forking;
    numbers::forked();
    still.end_in_child();
    Socket::each(Socket::forked);
    route::forked();
    listen::forked();
    if child.is_none() {
        Socket::each(Socket::orphaned);
    }
    process::become_child(child);
    forget_prepared();
    listen::number::forked();
    poll::forked();
}
