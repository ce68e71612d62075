//! fork: both processes hold every socket.
//!
//! The child's attachment is made by the parent before the fork, while no table changes: the daemon copies the parent's
//! attachment page and counts one reference for each entry. The child puts it into place: no allocation, no request, no
//! lock that another thread could have held.

use fs_shm::control::Client;

use crate::{
    listen, poll,
    process::{self, Attachment},
    route,
    socket::Socket,
    table::Still,
};

/// What is carried across fork(2); made by [`before_fork`], used up by exactly one of the `after` calls in each process.
#[derive(Debug)]
#[must_use]
pub struct Forking {
    still: Still,
    child: Option<Box<Attachment>>,
}

/// Before fork, vfork (which is made a fork) and `clone` without shared memory: the child's attachment is made, tables are held still.
pub fn before_fork() -> Forking {
    let still = Still::begin();
    let child = process::current().and_then(make_child);
    Forking { still, child }
}

/// An attachment for a child; `None`: the daemon does not answer, and the child will hold nothing of ours.
pub(crate) fn make_child(parent: &Attachment) -> Option<Box<Attachment>> {
    let (mut client, end) = Client::pair().ok()?;
    client.move_from(process::high()).ok()?;
    let (id, page) = parent.client().fork(end).inspect_err(|error| parent.failed(error)).ok()?;
    match parent.for_child(client, id, &page) {
        Ok(child) => Some(child),
        Err(_) => {
            give_up(parent, id);
            None
        }
    }
}

fn give_up(parent: &Attachment, child: u32) {
    if let Err(error) = parent.client().fork_failed(child) {
        parent.failed(&error);
    }
}

/// In the parent, when fork has returned (also when it failed: `made` false).
pub fn after_fork_parent(forking: Forking, made: bool) {
    let Forking { still, child } = forking;
    if let (false, Some(child), Some(parent)) = (made, &child, process::current()) {
        give_up(parent, child.id());
    }
    // The child's connection and page: the child has its own copies.
    drop(child);
    still.end();
}

/// In the child, before anything else. No allocation, no lock that another thread could have held.
pub fn after_fork_child(forking: Forking) {
    let Forking { still, child } = forking;
    still.end_in_child();
    Socket::each(Socket::forked);
    route::forked();
    listen::forked();
    if child.is_none() {
        Socket::each(Socket::orphaned);
    }
    process::become_child(child);
    poll::forked();
}
