//! Who of a listener's holders has the memory of its connections.
//!
//! Each of them may accept what waits, so each may map the memory of every client, and who has that sees all that is accepted there
//! from then on. On the kernel one does not see what another has accepted. So an arena is given to holders of one user only,
//! or to one process ([`Sharing`]); where others hold the listener and look at it too, its new connections are the kernel's. With
//! [`Sharing::Process`] one that has closed the listener has no part in what is accepted afterwards, either; else it keeps what it has
//! mapped: memory of its own for each child of a server that forks for each connection costs more than one user's processes
//! can hide from each other.

use super::Server;
use super::arenas::{Acceptor, Opener};
use super::listen::wire_listener;
use crate::config::Sharing;
use crate::listeners::Takes;
use fs_shm::Side;
use fs_shm::control::KernelReason;
use rustix::io::Errno;

/// Whom an arena's side B was given to as a holder of its listener, the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FirstHolder {
    uid: u32,
    attachment: u32,
}

impl Server {
    /// Whether what one of two holders accepts is not for the other's eyes.
    fn are_apart(&self, one: FirstHolder, other: FirstHolder) -> bool {
        match self.config.sharing {
            Sharing::User => one.uid != other.uid,
            Sharing::Process => one.attachment != other.attachment,
        }
    }

    /// A holder of a listener asks for an arena that leads to it.
    ///
    /// # Errors
    /// `EACCES`: another one, apart from it, has accepted from it. Then the listener's new connections are the kernel's.
    pub(super) fn let_accept(&mut self, me: u32, listener: u32, id: u32) -> Result<(), Errno> {
        let me = self.first_holder(me)?;
        let entry = self.arenas.get_mut(id).ok_or(Errno::NOENT)?;
        let was_watched = entry.first_holder.is_none() && entry.is_watched;
        let first = *entry.first_holder.get_or_insert(me);
        if was_watched && self.is_seen_by_others(id, me) {
            // Nobody has accepted from it. What waits is this one's, and what comes next comes by memory that the other has no part in.
            self.no_more_in(id);
        }
        if !self.are_apart(first, me) {
            return Ok(());
        }
        if !self.is_seen_by_others(id, me) {
            // Those that it was given to are gone, and what they have not accepted is there for whoever comes.
            if let Some(entry) = self.arenas.get_mut(id) {
                entry.first_holder = Some(me);
            }
            return Ok(());
        }
        // One that has let go of it since looks at nothing that comes by other memory.
        if self.listeners.get(listener).is_some_and(|entry| entry.holders.contains(&first.attachment)) {
            self.leave_to_kernel(listener, KernelReason::Holders);
        }
        // What waits may be accepted by either.
        self.no_more_in(id);
        match self.map(id, Side::B) {
            Some(arena) if !arena.has_accepted() => Ok(()),
            _ => Err(Errno::ACCESS),
        }
    }

    /// One that watches a listener asks for an arena that leads to it. It changes nothing of whose the arena is.
    ///
    /// # Errors
    /// `EACCES`: what a holder accepts is not for its eyes.
    pub(super) fn let_watch(&mut self, me: u32, listener: u32, id: u32) -> Result<(), Errno> {
        let watcher = self.first_holder(me)?;
        let first = self.arenas.get(id).ok_or(Errno::NOENT)?.first_holder;
        let is_apart = first.is_some_and(|first| self.are_apart(first, watcher));
        if is_apart || self.is_apart_from_holders(me, listener)? {
            return Err(Errno::ACCESS);
        }
        self.arenas.get_mut(id).ok_or(Errno::NOENT)?.is_watched = true;
        Ok(())
    }

    /// Whether what another holder of a listener accepts is not for this one's eyes.
    pub(super) fn is_apart_from_holders(&self, me: u32, listener: u32) -> Result<bool, Errno> {
        let watcher = self.first_holder(me)?;
        let holders = &self.listeners.get(listener).ok_or(Errno::NOENT)?.holders;
        let is_apart = |&holder: &u32| self.first_holder(holder).is_ok_and(|holder| self.are_apart(holder, watcher));
        Ok(holders.iter().filter(|&&holder| holder != me).any(is_apart))
    }

    fn first_holder(&self, attachment: u32) -> Result<FirstHolder, Errno> {
        let uid = self.attachments.get(attachment).ok_or(Errno::NOTCONN)?.who.uid;
        Ok(FirstHolder { uid, attachment })
    }

    /// A living process that is apart from `me` has the acceptor's side of an arena.
    fn is_seen_by_others(&self, id: u32, me: FirstHolder) -> bool {
        self.attachments.iter().any(|(attachment, entry)| {
            let other = FirstHolder { uid: entry.who.uid, attachment };
            entry.is_let_in(id, Side::B) && self.are_apart(other, me)
        })
    }

    /// Nothing new comes by an arena. What is open goes on, and what waits is accepted.
    pub(super) fn no_more_in(&mut self, id: u32) {
        let Some(entry) = self.arenas.get_mut(id) else { return };
        let (opener, Some(Acceptor::Listener(listener))) = (entry.opener, entry.acceptor) else { return };
        (entry.acceptor, entry.is_emptied) = (None, true);
        self.look_soon(id);
        let on_wire = self.listeners.get(listener).filter(|listener| listener.more.on_wire);
        match (opener, on_wire) {
            // Until the core has the next one it uses this one: who connects from the wire is not to be reset.
            (Some(Opener::Core(core)), Some(of)) => {
                let wanted = wire_listener(listener, of, of.more.options);
                match (self.arena_of(Opener::Core(core), Acceptor::Listener(listener)), &self.wire) {
                    (Ok((next, memory, _)), Some(wire)) => wire.listen(core, wanted, next, memory),
                    (next, _) => {
                        // Who connects from the wire is not to be reset for that.
                        tracing::warn!(
                            error = ?next.err(),
                            "cannot create new memory for a listener with isolated holders: it keeps the old memory"
                        );
                        if let Some(entry) = self.arenas.get_mut(id) {
                            (entry.acceptor, entry.is_emptied) = (Some(Acceptor::Listener(listener)), false);
                        }
                    }
                }
            }
            // Who opens there asks anew.
            _ => {
                if let Some(mapped) = self.map(id, Side::B) {
                    mapped.close();
                }
            }
        }
    }

    /// A process lets go of a listener that others hold: what these accept is nothing to it, though it has the memory of clients
    /// mapped.
    pub(super) fn lets_go(&mut self, me: u32, listener: u32) {
        if self.attachments.get(me).is_none() {
            return;
        }
        let is_left =
            self.listeners.get(listener).is_some_and(|listener| listener.holders.iter().any(|&other| other != me));
        if is_left && self.config.sharing == Sharing::Process {
            self.empty_those_of(me, listener);
        }
    }

    /// A process is another user's from here on.
    pub(super) fn has_changed_user(&mut self, me: u32) {
        let Some(attachment) = self.attachments.get(me) else { return };
        let looked_at: Vec<u32> = attachment.listeners.iter().chain(attachment.watched.keys()).copied().collect();
        for listener in looked_at {
            self.empty_those_of(me, listener);
            self.end_apart_watches(listener);
        }
    }

    /// One who holds a listener is new, or another user by now. Who watches it and is apart from that one is told of nothing any more. It
    /// may have been rung in place of others: it finds out when it asks for an arena, and those are rung with its Unwatch.
    pub(super) fn end_apart_watches(&mut self, listener: u32) {
        let Some(entry) = self.listeners.get(listener).filter(|entry| !entry.more.watchers.is_empty()) else { return };
        let is_apart = |watcher: &u32| self.is_apart_from_holders(*watcher, listener) != Ok(false);
        let apart: Vec<u32> = entry.more.watchers.iter().copied().filter(is_apart).collect();
        let Some(entry) = self.listeners.get_mut(listener) else { return };
        for watcher in apart {
            entry.more.watchers.remove(&watcher);
            entry.more.former_watchers.insert(watcher);
        }
        entry.count_lookers();
    }

    /// A child of a process has the memory that it has.
    pub(super) fn has_heir(&mut self, me: u32) {
        if self.config.sharing == Sharing::Process {
            self.has_changed_user(me);
        }
    }

    fn empty_those_of(&mut self, me: u32, listener: u32) {
        let Some(attachment) = self.attachments.get(me) else { return };
        let its: Vec<u32> = self.arenas_of(listener).filter(|&id| attachment.is_let_in(id, Side::B)).collect();
        its.into_iter().for_each(|id| self.no_more_in(id));
    }

    /// New connections of a listener are the kernel's; those that wait are accepted.
    pub(super) fn leave_to_kernel(&mut self, id: u32, reason: KernelReason) {
        let Some(listener) = self.listeners.get_mut(id).filter(|listener| listener.takes == Takes::All) else { return };
        (listener.takes, listener.more.left_for) = (Takes::Waiting, reason);
        if reason == KernelReason::Holders {
            tracing::info!(
                at = %listener.at,
                "several users (or processes) hold this listener: the kernel takes its new connections (see \
                 listener_memory)"
            );
        }
        self.leave_wire(id);
        self.bump();
    }
}
