//! Descriptors on their way from one process to another (SCM_RIGHTS), and those of unknown origin.

use super::attach::Attachment;
use super::in_flight::InFlight;
use super::limits::SHARES;
use super::place::Placeholder;
use super::requests::Answer;
use super::{Server, is_trusted};
use fs_shm::control::{KernelReason, Object, Reply};
use fs_shm::{Channel, Side};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A descriptor that was sent and not claimed is held for as long as its socket exists ([`super::in_flight`]); where that
/// cannot be known, this long. Lower: a receiver that is slow (stopped, swapped out) finds its connection closed. Higher: the
/// peer of one that was thrown away waits as long for the end.
const HOLD: Duration = Duration::from_secs(60);

/// One reference to an object, held by the daemon.
#[derive(Debug)]
pub(super) struct Share {
    object: Object,
    by: u32,
    /// The sharer's user, if it has not shown the socket: then the cookie is its word alone, which counts for that user, and for
    /// all if it is trusted.
    word_of: Option<u32>,
    /// `None`: for as long as its socket exists.
    until: Option<Instant>,
}

/// A listener that a process has claimed: its answer may have come when nobody waited for it any more, and then the process does not
/// know that it holds the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClaimedListener {
    by: u32,
    listener: u32,
    until: Instant,
}

/// What is on its way, by its socket's cookie.
#[derive(Debug, Default)]
pub(super) struct InTransit {
    shares: HashMap<u64, Vec<Share>>,
    existing: InFlight,
    claimed: Vec<ClaimedListener>,
}

impl InTransit {
    /// Enters a reference. With its socket it is held for as long as that exists, if that can be known.
    fn add(&mut self, cookie: u64, socket: Option<BorrowedFd<'_>>, object: Object, by: u32, word_of: Option<u32>) {
        let watched = socket.is_some_and(|socket| self.existing.add(socket, cookie));
        let share = Share { object, by, word_of, until: (!watched).then(|| Instant::now() + HOLD) };
        self.shares.entry(cookie).or_default().push(share);
    }

    /// Whether it is taken up is looked at later.
    fn has_claimed(&mut self, by: u32, listener: u32, now: Instant) {
        self.claimed.retain(|claimed| (claimed.by, claimed.listener) != (by, listener));
        self.claimed.push(ClaimedListener { by, listener, until: now + HOLD });
    }

    /// Takes those whose time is over.
    fn take_claimed(&mut self, now: Instant) -> Vec<ClaimedListener> {
        self.claimed.extract_if(.., |claimed| claimed.until <= now).collect()
    }

    /// Takes the last one of a socket that is meant.
    fn take(&mut self, cookie: u64, is_meant: impl Fn(&Share) -> bool) -> Option<Share> {
        let shares = self.shares.get_mut(&cookie)?;
        let share = shares.remove(shares.iter().rposition(is_meant)?);
        if shares.is_empty() {
            self.shares.remove(&cookie);
        }
        Some(share)
    }

    fn objects(&self) -> impl Iterator<Item = Object> {
        self.shares.values().flatten().map(|share| share.object)
    }

    /// Takes those that nobody can claim any more.
    fn take_late(&mut self, now: Instant) -> Vec<Share> {
        let existing = if self.is_empty() { None } else { self.existing.existing() };
        let mut late = Vec::new();
        self.shares.retain(|cookie, shares| {
            late.extend(shares.extract_if(.., |share| match (share.until, &existing) {
                (Some(until), _) => until <= now,
                (None, Some(existing)) => !existing.contains(cookie),
                (None, None) => false,
            }));
            !shares.is_empty()
        });
        if self.is_empty() {
            self.existing.clear();
        }
        late
    }

    fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }
}

impl Server {
    pub(super) fn share(
        &mut self,
        me: u32,
        object: Object,
        cookie: u64,
        fd: u32,
        socket: Option<OwnedFd>,
    ) -> Result<Answer, Errno> {
        // The page's cookie is the process's word: another socket, which somebody else is about to pass, could have it. A process
        // that may not pass descriptors (seccomp) shows none.
        if let Some(socket) = &socket
            && Placeholder::read(socket.as_fd())?.cookie != cookie
        {
            return Err(Errno::ACCESS);
        }
        let attachment = self.attachments.get(me).ok_or(Errno::NOTCONN)?;
        let word_of = socket.is_none().then_some(attachment.who.uid);
        // A process can share only what it holds.
        if attachment.holds_at(fd.cast_signed()) != Some((object, cookie)) {
            return Err(Errno::NOENT);
        }
        if attachment.shares >= SHARES {
            return Err(Errno::NOBUFS);
        }
        self.retain(object)?;
        if let Some(sharer) = self.attachments.get_mut(me) {
            sharer.shares += 1;
        }
        self.in_transit.add(cookie, socket.as_ref().map(AsFd::as_fd), object, me, word_of);
        self.look_at_shares_soon();
        Ok(Reply::Done.into())
    }

    pub(super) fn claim(&mut self, me: u32, socket: OwnedFd) -> Result<Answer, Errno> {
        let foreign = Reply::Kernel { generation: self.directory.generation(), reason: KernelReason::Foreign };
        let Ok(placeholder) = Placeholder::read(socket.as_fd()) else { return Ok(foreign.into()) };
        let cookie = placeholder.cookie;
        let uid = self.attachments.get(me).ok_or(Errno::NOTCONN)?.who.uid;
        // What only a page says counts among processes of one user, who can do more to each other than that.
        let counts = |of: u32| of == uid || is_trusted(of);
        let is_good = |share: &Share| share.word_of.is_none_or(counts);
        let shared = self.in_transit.take(cookie, is_good);
        let found = |attachment: &Attachment| counts(attachment.who.uid).then(|| attachment.finds(cookie)).flatten();
        let unannounced = if shared.is_none() { self.attachments.values().find_map(found) } else { None };
        let object = match shared {
            // The reference goes over to the claimer.
            Some(share) => {
                self.is_shared_no_more(share.by);
                share.object
            }
            None => match unannounced {
                Some(object @ (Object::Channel { .. } | Object::Listener(_))) => {
                    self.retain(object)?;
                    object
                }
                // One that was made to listen after it was sent.
                _ => match self.listeners.of_cookie(placeholder.netns, placeholder.local.port(), cookie) {
                    Some(listener) => Object::Listener(listener),
                    None => return Ok(foreign.into()),
                },
            },
        };
        let memory = self.give(me, object)?;
        if let Object::Listener(listener) = object {
            self.in_transit.has_claimed(me, listener, Instant::now());
            self.look_at_shares_soon();
        }
        if let Object::Channel { arena, .. } = object {
            // Its answer may not be taken any more (a time-out), or be the second for one descriptor: a reference for which there is no
            // entry when nobody is in the middle of a change goes again.
            self.look_soon(arena);
        }
        // Where there is no room its connections go on, and new ones of it are the kernel's.
        let _ = self.enter_namespace(me, placeholder.netns);
        Ok(Answer::with(Reply::Claimed { object }, memory))
    }

    /// The message was not sent.
    pub(super) fn unshare(&mut self, me: u32, cookie: u64) -> Result<Answer, Errno> {
        let share = self.in_transit.take(cookie, |share| share.by == me).ok_or(Errno::NOENT)?;
        self.give_up(&share);
        Ok(Reply::Done.into())
    }

    /// Nobody will claim it: the reference is given back.
    fn give_up(&mut self, share: &Share) {
        self.is_shared_no_more(share.by);
        match share.object {
            Object::Channel { arena, slot, side } => {
                if let Some(mapped) = self.map(arena, side)
                    && let Some(channel) = Channel::at(&mapped, slot)
                {
                    channel.close_dead();
                }
            }
            Object::Listener(id) => {
                let unheld = self.listeners.get(id).is_some_and(|listener| listener.holders.is_empty());
                if unheld && !self.is_shared_listener(id) {
                    self.close_listener(id);
                }
            }
            Object::Kernel(_) => {}
        }
    }

    fn is_shared_no_more(&mut self, by: u32) {
        if let Some(sharer) = self.attachments.get_mut(by) {
            sharer.shares = sharer.shares.saturating_sub(1);
        }
    }

    /// Lets a process use an object from here on; answers the memory.
    fn give(&mut self, me: u32, object: Object) -> Result<Vec<Arc<OwnedFd>>, Errno> {
        let attachment = self.attachments.get_mut(me).ok_or(Errno::NOTCONN)?;
        match object {
            Object::Channel { arena, side, .. } => {
                let entry = self.arenas.get_mut(arena).ok_or(Errno::NOENT)?;
                attachment.let_in(arena, side);
                entry.members.insert(me);
                Ok(entry.memory.of(side).into())
            }
            Object::Listener(listener) => {
                let entry = self.listeners.get_mut(listener).ok_or(Errno::NOENT)?;
                attachment.listeners.insert(listener);
                entry.holders.insert(me);
                entry.count_lookers();
                let memory = entry.more.memory.clone();
                self.end_apart_watches(listener);
                self.resume_listener(listener);
                Ok(vec![memory])
            }
            Object::Kernel(_) => Err(Errno::NOENT),
        }
    }

    /// One more process is about to hold it.
    fn retain(&self, object: Object) -> Result<(), Errno> {
        let Object::Channel { arena, slot, side } = object else { return Ok(()) };
        let mapped = self.map(arena, side).ok_or(Errno::NOBUFS)?;
        Channel::at(&mapped, slot).ok_or(Errno::NOENT)?.retain_for_other();
        Ok(())
    }

    /// Whether an object is on its way to another process.
    pub(super) fn is_shared(&self, object: Object) -> bool {
        self.in_transit.objects().any(|other| other == object)
    }

    /// The connections of an arena that are: slot and side, once for each descriptor.
    pub(super) fn shared_of(&self, id: u32) -> impl Iterator<Item = (u32, Side)> + '_ {
        self.in_transit.objects().filter_map(move |object| match object {
            Object::Channel { arena, slot, side } if arena == id => Some((slot, side)),
            _ => None,
        })
    }

    /// Whether a connection of an arena is.
    pub(super) fn is_any_shared(&self, id: u32) -> bool {
        self.shared_of(id).next().is_some()
    }

    /// See [`Server::is_shared`].
    pub(super) fn is_shared_listener(&self, id: u32) -> bool {
        self.is_shared(Object::Listener(id))
    }

    /// A listener that a process was given is no descriptor of it: it does not know.
    fn see_to_claimed(&mut self, claimed: ClaimedListener, now: Instant) {
        let ClaimedListener { by, listener, .. } = claimed;
        let Some(attachment) = self.attachments.get(by).filter(|of| of.listeners.contains(&listener)) else { return };
        if attachment.page.unchanged_since().is_none() {
            return self.in_transit.has_claimed(by, listener, now);
        }
        if !attachment.holds().iter().any(|&(_, object, _)| object == Object::Listener(listener)) {
            self.unlisten(by, listener);
        }
    }

    /// Gives back what nobody can claim any more; answers whether something is left.
    pub(super) fn expire_shares(&mut self, now: Instant) -> bool {
        let late = self.in_transit.take_late(now);
        late.iter().for_each(|share| self.give_up(share));
        for claimed in self.in_transit.take_claimed(now) {
            self.see_to_claimed(claimed, now);
        }
        !self.in_transit.is_empty() || !self.in_transit.claimed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_socket_that_is_shared_twice_is_claimed_twice() {
        let mut all = InTransit::default();
        all.add(7, None, Object::Listener(1), 2, Some(1000));
        all.add(7, None, Object::Listener(1), 3, None);
        assert_eq!(all.objects().count(), 2);
        assert!(all.take(8, |_| true).is_none());
        assert_eq!(all.take(7, |share| share.word_of.is_none()).map(|share| share.by), Some(3));
        assert!(all.take(7, |share| share.word_of.is_none()).is_none(), "the other is a process's word alone");
        assert_eq!(all.take(7, |_| true).map(|share| share.by), Some(2));
        assert!(all.is_empty());
    }

    #[test]
    fn who_has_claimed_a_listener_is_looked_at_once() {
        let mut all = InTransit::default();
        let now = Instant::now();
        all.has_claimed(2, 7, now - HOLD);
        all.has_claimed(2, 7, now);
        all.has_claimed(3, 7, now - HOLD);
        let late = all.take_claimed(now);
        assert_eq!(late.iter().map(|claimed| (claimed.by, claimed.listener)).collect::<Vec<_>>(), [(3, 7)]);
        assert_eq!((all.take_claimed(now).len(), all.take_claimed(now + HOLD).len()), (0, 1));
    }

    #[test]
    fn what_nobody_can_claim_is_late() {
        let mut all = InTransit::default();
        let now = Instant::now();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        all.add(7, Some(socket.as_fd()), Object::Listener(1), 2, None);
        all.add(8, None, Object::Listener(2), 2, None);
        assert_eq!(all.take_late(now).len(), 0);
        assert_eq!(
            all.take_late(now + 2 * HOLD).iter().map(|share| share.object).collect::<Vec<_>>(),
            [Object::Listener(2)]
        );
        drop(socket);
        assert_eq!(all.take_late(now).iter().map(|share| share.object).collect::<Vec<_>>(), [Object::Listener(1)]);
        assert!(all.is_empty() && all.take_late(now).is_empty());
    }
}
