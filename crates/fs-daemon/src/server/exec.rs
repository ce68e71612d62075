//! exec: an image ends, and another one has its descriptors. One that has this library says so ([`Server::resume`]). One that
//! has not (it is linked statically, or has more rights than its user) holds what it has inherited until it ends, and
//! accepts from the kernel's queues.

use super::Server;
use super::events::Token;
use super::listen::ListenerMemory;
use super::requests::Answer;
use crate::listeners::{Listener, Takes};
use fs_shm::control::{Object, Reply};
use fs_shm::{Bells, Channel, Side};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// So long a new image has to take a listener over. Shorter: one that is slow to begin finds those reset who have connected
/// meanwhile. Longer: where it will never take it over they wait as long to be reset.
const BEGIN: Duration = Duration::from_secs(5);

impl Server {
    /// Answers [`fs_shm::control::Request::Exec`].
    pub(super) fn exec(&mut self, me: u32, moment: Option<OwnedFd>) -> Result<Answer, Errno> {
        self.pollers.ring_for(me);
        self.forget_exec(me);
        if let Some(moment) = &moment {
            self.events.watch(moment.as_fd(), Token::Exec(me))?;
        }
        self.attachments.get_mut(me).ok_or(Errno::NOTCONN)?.exec = moment;
        Ok(Reply::Done.into())
    }

    /// Answers [`fs_shm::control::Request::ExecFailed`].
    pub(super) fn exec_failed(&mut self, me: u32) -> Result<Answer, Errno> {
        self.forget_exec(me);
        Ok(Reply::Done.into())
    }

    /// Nobody waits for the exec of a process any more.
    pub(super) fn forget_exec(&mut self, me: u32) {
        if let Some(moment) = self.attachments.get_mut(me).and_then(|attachment| attachment.exec.take()) {
            self.events.unwatch(moment.as_fd());
        }
    }

    /// Answers [`fs_shm::control::Request::Spawned`].
    pub(super) fn spawned(&mut self, me: u32, child: u32) -> Result<Answer, Errno> {
        // One that has spoken has taken over what it has.
        if self.attachments.get(child).is_some_and(|child| child.parent == Some(me)) {
            self.lose_image(child);
        }
        Ok(Reply::Done.into())
    }

    /// What a process passed with [`fs_shm::control::Request::Exec`] has ended, or is not what it should be.
    pub(super) fn execs(&mut self, me: u32) {
        if self.attachments.get(me).is_some_and(|attachment| attachment.exec.is_some()) {
            self.lose_image(me);
        }
    }

    /// A process has a new image: what was close-on-exec is closed, and its listeners are the kernel's until it takes them over.
    fn lose_image(&mut self, me: u32) {
        self.end_image(me);
        self.watches_none(me);
        let Some(attachment) = self.attachments.get_mut(me) else { return };
        attachment.is_bare = true;
        let (closed, left): (Vec<_>, Vec<_>) = attachment.holds().into_iter().partition(|&(.., cookie)| cookie == 0);
        closed.iter().for_each(|&(fd, ..)| attachment.page.clear(fd));
        let left: HashSet<Object> = left.into_iter().map(|(_, object, _)| object).collect();
        let listeners: Vec<u32> = attachment.listeners.iter().copied().collect();
        let mut told = HashSet::new();
        for (_, object, _) in closed {
            let Object::Channel { arena, slot, side } = object else { continue };
            let Some(mapped) = self.map(arena, side) else { continue };
            if let Some(channel) = Channel::at(&mapped, slot) {
                channel.release_gone(1, false);
            }
            told.extend([Side::A, Side::B].into_iter().flat_map(|side| mapped.pollers(side)));
            self.look_soon(arena);
        }
        told.into_iter().for_each(|poller| self.pollers.ring(poller));
        let mut in_use = false;
        for listener in listeners {
            if left.contains(&Object::Listener(listener)) {
                self.suspend_if_bare(listener);
            } else {
                in_use |= self.unlisten(me, listener);
            }
        }
        if in_use {
            // The exec has closed its socket.
            self.see_to_ports(0);
        }
    }

    /// A listener that nobody looks at any more who has this library.
    pub(super) fn suspend_if_bare(&mut self, id: u32) {
        let is_bare = |holder: &u32| self.attachments.get(*holder).is_some_and(|attachment| attachment.is_bare);
        let Some(listener) = self.listeners.get(id).filter(|listener| listener.takes == Takes::All) else { return };
        if !listener.holders.iter().all(is_bare) || self.is_shared_listener(id) {
            return;
        }
        let now = Instant::now();
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.takes = Takes::Suspended(now);
        }
        self.leave_wire(id);
        self.bump();
        self.sweep_at(now + BEGIN);
    }

    /// A process has an image that knows of its sockets.
    pub(super) fn has_image(&mut self, me: u32) {
        let Some(attachment) = self.attachments.get_mut(me) else { return };
        attachment.is_bare = false;
        attachment.listeners.clone().into_iter().for_each(|id| self.resume_listener(id));
        // What tells of the exec (`lose_image`) the kernel may close before a listener that is close-on-exec; it has closed both by now.
        self.see_to_ports(0);
    }

    /// Somebody looks at a listener who has this library.
    pub(super) fn resume_listener(&mut self, id: u32) {
        let Some(listener) = self.listeners.get_mut(id) else { return };
        if matches!(listener.takes, Takes::Suspended(_)) {
            listener.takes = Takes::All;
            self.listen_on_wire(id);
            self.bump();
        }
    }

    /// Ends listeners that nobody has taken over in time: who waits to be accepted is reset. Answers when the next is due.
    pub(super) fn see_to_suspended(&mut self, now: Instant) -> Option<Instant> {
        let due = |listener: &Listener<ListenerMemory>| match listener.takes {
            Takes::Suspended(since) => Some(since + BEGIN),
            _ => None,
        };
        for id in self.listeners.ids_where(|listener| due(listener).is_some_and(|at| at <= now)) {
            self.close_listener(id);
        }
        self.listeners.all().filter_map(due).min()
    }
}
