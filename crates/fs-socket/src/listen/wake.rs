//! Who sleeps on a listener and who wakes whom: pollers, lanes that are armed, and the next one who is told.

use core::sync::atomic::{
    Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
    fence,
};
use std::time::Duration;

use fs_shm::{pages::ListenerPage, sleepers::Sleepers};
use rustix::fd::AsRawFd;

use super::{Listener, of};
use crate::{
    poll,
    process::{self, Attachment, Poller, arenas::Shared, held::Counted},
    socket::Socket,
    sys::signals::Section,
    types::Fd,
};

/// What those sleep on who sleep in accept. `None`: no daemon, or this process may not call epoll_wait(2).
pub(crate) fn shared_poller(socket: &Socket) -> Option<Fd> {
    Some(of(socket)?.poller(process::current()?)?.fd)
}

/// What an epoll set watches that has the listener with EPOLLEXCLUSIVE: one that sleeps is woken by the first connection in
/// an arena that the set knows nothing of, and by each that finds no set asleep that does. The set's own poller, `set`, is
/// not rung for new arenas from here on. `None`: no daemon, or one that does not know of this; or this process has confined
/// itself.
pub(crate) fn exclusive_poller(socket: &Socket, set: u32) -> Option<Poller> {
    of(socket)?.ask_exclusive(set, false)
}

/// Its number, if this process has it.
pub(crate) fn exclusive(socket: &Socket) -> Option<u32> {
    let (listener, attachment) = of(socket).zip(process::current())?;
    listener.exclusive(attachment).map(|poller| poller.id)
}

/// Ends what [`exclusive_poller`] says of the set's own poller.
pub(crate) fn tell(socket: &Socket, set: u32) {
    if let Some(listener) = of(socket) {
        // Without a daemon there is nothing to be told of.
        let _ = listener.ask_exclusive(set, true);
    }
}

/// Has the next connection ring a poller that several share; answers how many there have been. More than before: some are
/// there that may not have rung. `None`: not every connection can ring it.
pub(crate) fn arm(socket: &Socket, shared: Shared) -> Option<u64> {
    let (listener, attachment) = of(socket).zip(process::current())?;
    let poller = match shared {
        Shared::Accept => listener.poller(attachment),
        Shared::Exclusive => listener.exclusive(attachment),
    };
    let armed = poller.map_or(Armed::Blind, |poller| listener.arm(shared, &poller));
    let mut pushed: u64 = 0;
    listener.each(|mapped| {
        pushed = pushed.wrapping_add(mapped.arena().pushed());
        false
    });
    (armed != Armed::Blind).then_some(pushed)
}

/// Whether arenas have come that this process could not have so far (no number was free): nobody rings for what waits in them.
pub(crate) fn is_behind(socket: &Socket) -> bool {
    of(socket).is_some_and(Listener::is_behind)
}

/// An epoll set was woken by that poller: it has the arenas that came since, and the next connections wake the next set, or
/// now if there are some. False: not all arenas could be had.
pub(crate) fn woken(socket: &Socket) -> bool {
    let Some((listener, attachment)) = of(socket).zip(process::current()) else { return true };
    listener.refresh();
    if let Some(poller) = listener.exclusive(attachment)
        && listener.arm(Shared::Exclusive, &poller) == Armed::Ready
    {
        let mut waiting = 0;
        listener.each(|mapped| {
            waiting += mapped.arena().pending();
            waiting > 1
        });
        if waiting > 1 {
            process::bells().ring(poller.id);
        }
    }
    !listener.is_behind()
}

/// For a thread that is about to sleep on a listener beside other descriptors: what to sleep on besides, readable when a
/// connection comes to an inbox. `None`: nothing, it has to look at short intervals.
pub(crate) struct Doze {
    listener: &'static Listener,
    poller: Poller,
    counted: Option<Counted>,
}

impl Doze {
    /// `Err`: a connection is there.
    pub(crate) fn begin(socket: &Socket) -> Result<Option<Doze>, ()> {
        let Some((listener, attachment)) = of(socket).zip(process::current()) else { return Ok(None) };
        listener.refresh();
        let Some(poller) = listener.poller(attachment) else { return Ok(None) };
        // Counted before it is armed: see `awake`.
        let counted = Counted::begin(&listener.waiters);
        fence(SeqCst);
        let armed = listener.arm(Shared::Accept, &poller);
        if armed == Armed::Yes {
            return Ok(Some(Doze { listener, poller, counted: Some(counted) }));
        }
        drop(counted);
        if armed == Armed::Ready { Err(()) } else { Ok(None) }
    }

    pub(crate) fn fd(&self) -> Fd {
        self.poller.fd
    }

    /// It was readable.
    pub(crate) fn take(&self, fd: Fd) {
        if poll::sleep_on(self.poller.fd, Duration::ZERO) == Ok(Some(poll::EDGE)) {
            self.listener.renew_edge(fd);
        }
    }
}

impl Drop for Doze {
    fn drop(&mut self) {
        self.counted = None;
        let listener = self.listener;
        // What rang may be an arena of which the others know nothing.
        let others = listener.has_others();
        if others {
            listener.refresh();
        }
        // As poll(2) wakes all: each wakes the next, as long as nobody has taken the connection; or asks for the arena that
        // this thread could not ask for.
        if listener.awake(&self.poller) == Armed::Ready || others && listener.is_behind() {
            process::bells().ring(self.poller.id);
        }
    }
}

/// What [`Listener::arm`] found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Armed {
    /// The next connection wakes one.
    Yes,
    /// Something is there.
    Ready,
    /// Not every connection can: a look is due at short intervals.
    Blind,
}

/// Arenas of a listener up to which a lone acceptor that is awake keeps its clients from ringing. More: a bell in vain
/// costs each of them less than that costs it.
pub(super) const FEW: u32 = 16;

pub(super) fn poller_of_word(word: u64, life: u32) -> Poller {
    Poller { id: word as u32, fd: (word >> 32) as Fd - 1, private: false, life }
}

impl Listener {
    /// The poller of those who sleep in accept. `None`: no daemon, or this process may not call epoll_wait(2).
    pub(super) fn poller(&self, attachment: &Attachment) -> Option<Poller> {
        let id = self.id.load(Acquire);
        if id == 0 || fs_shm::wait::is_confined() {
            return None;
        }
        let word = self.poller.load(Acquire);
        if word != 0 && self.poller_life.load(Relaxed) == attachment.life() {
            return Some(poller_of_word(word, attachment.life()));
        }
        // What the daemon gives is kept, or not asked for, where a handler jumps.
        let _section = Section::begin();
        let (poller, sleepers) = process::listener_poller(attachment, id)?;
        let new = u64::from(poller.id) | (poller.fd as u64 + 1) << 32;
        self.entered.store(0, Relaxed);
        self.control.store(0, Relaxed);
        self.poller_life.store(attachment.life(), Relaxed);
        if self.poller.compare_exchange(word, new, AcqRel, Acquire).is_err() {
            // Another thread's, of the same poller.
            process::drop_poller(poller);
            return Some(poller_of_word(self.poller.load(Acquire), attachment.life()));
        }
        self.take_sleepers(sleepers);
        Some(poller)
    }

    /// Looked at without a lock, so never unmapped; the place's next listener takes its place.
    fn take_sleepers(&self, new: Option<Sleepers>) {
        let put = match (new, self.sleepers.load()) {
            (Some(new), Some(old)) => new.put_over(old),
            (Some(new), None) => Err(new),
            (None, _) => {
                self.sleepers.store(None);
                return;
            }
        };
        if let Err(new) = put {
            self.sleepers.store(Some(Box::leak(Box::new(new))));
        }
    }

    /// The poller of the sets that watch it with EPOLLEXCLUSIVE, if this process has such a set.
    pub(super) fn exclusive(&self, attachment: &Attachment) -> Option<Poller> {
        let word = self.exclusive.load(Acquire);
        let is_current = word != 0 && self.exclusive_life.load(Relaxed) == attachment.life();
        is_current.then(|| Poller { private: true, ..poller_of_word(word, attachment.life()) })
    }

    /// Asks for it; see [`exclusive_poller`].
    pub(super) fn ask_exclusive(&self, set: u32, told: bool) -> Option<Poller> {
        let id = self.id.load(Acquire);
        let is_its = |now: &&Attachment| id != 0 && now.life() == self.life.load(Relaxed);
        let attachment = process::current().filter(is_its).filter(|_| !fs_shm::wait::is_confined())?;
        let _section = Section::begin();
        let poller = process::exclusive_poller(attachment, id, set, told)?;
        let known = self.exclusive(attachment);
        if let Some(known) = known.filter(|known| known.id == poller.id) {
            process::drop_poller(poller);
            return Some(known);
        }
        self.exclusive_life.store(attachment.life(), Relaxed);
        let word = u64::from(poller.id) | (poller.fd as u64 + 1) << 32;
        let old = self.exclusive.swap(word, AcqRel);
        if old != 0 {
            // The parent's, or of a daemon that has gone.
            process::drop_poller(poller_of_word(old, 0));
        }
        Some(poller)
    }

    /// Has the next connection wake a sleeper; true if one is there already.
    pub(super) fn arm(&self, shared: Shared, poller: &Poller) -> Armed {
        // Looked at first: an arena that another thread enters from here on is not among those below.
        let behind = self.is_behind();
        let mut armed = Armed::Yes;
        self.each(|mapped| {
            match mapped.lane(shared, poller.id) {
                Some(lane) => {
                    mapped.arena().arm(lane);
                }
                None => armed = Armed::Blind,
            }
            false
        });
        fence(SeqCst);
        if self.pending() {
            return Armed::Ready;
        }
        // Who accepts has asked for all arenas: one could not be had. Sets with EPOLLEXCLUSIVE leave to others what they do not
        // know, where the daemon has armed the lane.
        if shared == Shared::Accept && behind { Armed::Blind } else { armed }
    }

    /// Whether others may sleep on the poller, in this process or another.
    pub(super) fn has_others(&self) -> bool {
        let holders = self.page.load().map_or(1, ListenerPage::holders);
        self.waiters.load(Acquire) > 0 || holders > 1
    }

    /// One sleeper is awake. Others are woken by the next connection.
    /// [`Armed::Ready`]: others sleep, and something is there.
    pub(super) fn awake(&self, poller: &Poller) -> Armed {
        if self.has_others() {
            return self.arm(Shared::Accept, poller);
        }
        if self.count.load(Relaxed) <= FEW {
            self.each(|mapped| {
                if let Some(lane) = mapped.lane(Shared::Accept, poller.id) {
                    mapped.arena().awake(lane);
                }
                false
            });
            fence(SeqCst);
            // A thread that has gone to sleep meanwhile counted itself before it set the flags that were just cleared.
            if self.has_others() {
                return self.arm(Shared::Accept, poller);
            }
        }
        Armed::Yes
    }

    /// A sleeper has taken a connection: if there are more, another one is woken. Arenas that came since `changes` were armed
    /// for the first connection only, and those who sleep on know nothing of them: the next one is to wake them too.
    pub(super) fn pass_on(&self, changes: u32) {
        let poller = self.poller.load(Acquire);
        if poller == 0 {
            return;
        }
        let more = if self.changes.load(Acquire) == changes {
            self.pending()
        } else {
            self.arm(Shared::Accept, &poller_of_word(poller, 0)) == Armed::Ready
        };
        if more {
            process::bells().ring(poller as u32);
        }
    }

    /// The same for the kernel's queue: a sleeper has used its edge up; if there are more, that is another.
    pub(super) fn renew_edge(&self, fd: Fd) {
        let poller = self.poller.load(Acquire);
        if poller != 0 {
            poll::renew_edge(poller_of_word(poller, 0).fd, fd);
        }
    }

    /// The poller's set tells of the daemon's end too. False: it cannot.
    pub(super) fn enter_control(&self, poller: &Poller, attachment: &Attachment) -> bool {
        let word = u64::from(attachment.id()) << 32 | u64::from(poller.id);
        if self.control.load(Relaxed) != word {
            if !poll::watch_end(poller.fd, attachment.client().fd().as_raw_fd()) {
                return false;
            }
            self.control.store(word, Relaxed);
        }
        true
    }

    /// The poller's set tells of the kernel's queue too: to one sleeper for each connection.
    pub(super) fn enter_placeholder(&self, poller: &Poller, fd: Fd) {
        if self.entered.load(Relaxed) != fd as u32 + 1 {
            poll::watch_edges(poller.fd, fd);
            self.entered.store(fd as u32 + 1, Relaxed);
        }
    }
}
