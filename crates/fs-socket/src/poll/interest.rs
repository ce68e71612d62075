//! What an epoll set is asked to watch: entries by (descriptor number, open socket), as the kernel keys them.
//!
//! An entry of a socket that has been closed stays until it is met: its identity no longer fits
//! ([`Socket::identity`] is never repeated). So closing needs no lock that a signal handler could not have.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fs_shm::lanes::Changes;

use super::{EpollEvent, book::File};
use crate::{
    descriptor::table,
    listen,
    socket::{Socket, mark},
    types::Fd,
};

/// Edge-triggered.
pub(super) const ET: u32 = 1 << 31;
/// Reported once, then asleep until EPOLL_CTL_MOD.
pub(super) const ONESHOT: u32 = 1 << 30;
/// Wakes one of several sets.
pub(super) const EXCLUSIVE: u32 = 1 << 28;
/// EPOLLWAKEUP.
pub(super) const WAKEUP: u32 = 1 << 29;

/// No entry.
const NONE: u32 = u32::MAX;

/// Where an entry's readiness comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The kernel's set has the descriptor, with the application's own event.
    Kernel,
    /// A channel: place of its arena in the set's list, slot.
    Channel {
        /// Place in the set's list of arenas.
        arena: u32,
        /// Slot of the channel.
        slot: u32,
    },
    /// A listener: its inboxes; the kernel's set has the descriptor besides.
    Listener,
    /// Another epoll set of ours.
    Nested(u32),
}

/// One registration.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) fd: Fd,
    pub(super) socket: &'static Socket,
    pub(super) identity: u64,
    pub(super) event: EpollEvent,
    pub(super) source: Source,
    /// In the list of candidates.
    pub(super) queued: bool,
    /// Never repeated in a process: places are, and a candidate of a place's former entry is not one of the next.
    serial: u64,
    /// A one-shot that has fired.
    pub(super) spent: bool,
    /// That the kernel's half of this listener has is a guess, which is looked into when one of ours comes.
    pub(super) is_guess: bool,
    /// Of a nested set: what of it the outer kernel set holds; 0: nothing yet. Of a listener: of a poller that several share,
    /// what is watched; without EPOLLEXCLUSIVE only if its arenas have too few lanes, and then the poller of those who sleep
    /// in accept.
    pub(super) watched: Fd,
    /// Of a nested set: its changes that were reported. Of a listener: those of its arenas that were followed.
    pub(super) seen: u32,
    /// Of such a listener: what its inboxes have had.
    pub(super) pushed: u64,
    /// Of a listener with EPOLLEXCLUSIVE: `watched` is the poller of all such sets.
    pub(super) shares: bool,
    /// Its number.
    pub(super) poller: u32,
    /// That has rung: there may be arenas that this set does not know.
    pub(super) news: bool,
    /// Of a listener that is `watched`: not every connection is told.
    pub(super) blind: bool,
    /// Next entry of the same number, or of the free list.
    next: u32,
    /// Next entry of the same slot.
    pub(super) beside: u32,
    /// This process has closed the socket, and another has it still: `socket` is its [`Socket::afterimage`].
    pub(super) outlives: bool,
    /// This process has closed the listener, and another has it still: `socket` is it, and one of its holds is this entry's.
    pub(super) holds: bool,
    /// Of a set that others have: which open file it is of, 0: nobody has asked; what the book says of it, 0: nothing
    /// ([`super::shared`]).
    pub(super) file: File,
    pub(super) word: u32,
    /// Since a fork, until the set is built anew: the parent's list did not have it, and this is what its socket had then
    /// ([`super::inherit::had`]).
    pub(super) kept: Option<u64>,
}

impl Entry {
    /// Of the registrations that one change makes candidates the one with the highest is first: the newest, as add_wait_queue() of
    /// the kernel puts in front, and those with EPOLLEXCLUSIVE behind all others, the oldest first (add_wait_queue_exclusive()).
    pub(super) fn turn(&self) -> u64 {
        const EXCLUSIVES: u64 = 1 << 62;
        if self.event.events & EXCLUSIVE != 0 { EXCLUSIVES - self.serial } else { EXCLUSIVES + self.serial }
    }

    /// Makes it, which is at this place, a candidate; `None` when it is one already, or sleeps.
    #[inline]
    pub(super) fn queue(&mut self, at: u32) -> Option<Candidate> {
        if self.queued || self.spent {
            return None;
        }
        self.queued = true;
        Some(Candidate { at, serial: self.serial, since: UNKNOWN, by: self.turn() })
    }

    /// Whether the socket is still the one that was registered, and open anywhere.
    pub(super) fn is_valid(&self) -> bool {
        self.socket.identity() == self.identity
            && (!self.outlives || self.socket.channel().is_some_and(|channel| channel.is_held()))
            && (!self.holds || listen::is_open_elsewhere(self.socket))
    }

    /// Whether its number is the socket's still: that may be open under another one, or elsewhere, and the number another file's.
    pub(super) fn has_its_number(&self) -> bool {
        table::find(self.fd).is_some_and(|socket| core::ptr::eq(self.socket, socket))
    }

    /// This process is about to close the socket. If others hold it the registration stays: it is of the open file (epoll(7)). False:
    /// it ends.
    pub(super) fn outlive(&mut self) -> bool {
        if self.source == Source::Listener {
            self.holds = self.holds || listen::is_others(self.socket) && self.socket.hold();
            return self.holds;
        }
        let is_held_elsewhere = matches!(self.source, Source::Channel { .. })
            && self.socket.channel().is_some_and(|channel| channel.refs() > 1);
        let Some(image) = is_held_elsewhere.then(|| self.socket.afterimage()).flatten() else { return false };
        (self.socket, self.identity, self.outlives) = (image, image.identity(), true);
        true
    }

    /// Nothing is watched for it any more.
    pub(super) fn unwatch(&mut self) {
        (self.watched, self.shares, self.news, self.blind) = (0, false, false, false);
    }

    /// Which changes make it a candidate (ep_poll_callback() of the kernel compares what is asked with what the wake-up is for).
    pub(super) fn hears(&self) -> Changes {
        // EPOLLIN, EPOLLPRI, EPOLLRDNORM, EPOLLRDBAND; EPOLLOUT, EPOLLWRNORM, EPOLLWRBAND.
        const READ: u32 = 0x1 | 0x2 | 0x40 | 0x80;
        const WRITE: u32 = 0x4 | 0x100 | 0x200;
        match (self.event.events & READ != 0, self.event.events & WRITE != 0) {
            (false, false) => Changes::NONE,
            (read, write) => Changes::new(read, write),
        }
    }

    /// What is asked for; errors and hang-ups always are (epoll_ctl(2)).
    pub(super) fn asked(&self) -> u32 {
        const ALWAYS: u32 = 0x8 | 0x10;
        self.event.events & !(ET | ONESHOT | EXCLUSIVE | WAKEUP) | ALWAYS
    }
}

static SERIALS: AtomicU64 = AtomicU64::new(1);

/// All registrations of a set.
#[derive(Debug, Default)]
pub(super) struct Interest {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// By descriptor number: an entry + 1.
    by_fd: Vec<u32>,
}

/// An entry in the list of candidates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) at: u32,
    serial: u64,
    /// When it became one, on the clock of [`fs_shm::now`]; [`unread`]: its lane knows; [`UNKNOWN`]: nobody does.
    pub(super) since: u64,
    /// Which registration a change came by: of those that one change makes candidates the newest is first (add_wait_queue() of
    /// the kernel puts in front).
    pub(super) by: u64,
}

impl Candidate {
    /// The same, become one at another time.
    pub(super) fn since(self, since: u64) -> Self {
        Candidate { since, ..self }
    }

    /// The same, by another registration.
    pub(super) fn by(self, by: u64) -> Self {
        Candidate { by, ..self }
    }
}

/// Of a candidate that was asked and not told of: behind all others.
pub(super) const UNKNOWN: u64 = u64::MAX;

/// Of a candidate that a lane named for these changes: when they came has not been read yet.
pub(super) fn unread(changes: Changes) -> u64 {
    UNKNOWN - 1 - u64::from(changes.bits())
}

/// The changes of [`unread`].
pub(super) fn unread_changes(since: u64) -> Option<Changes> {
    let bits = (UNKNOWN - 1).checked_sub(since).filter(|&bits| bits < 4)?;
    Some(Changes::from_bits(bits as u8))
}

impl Interest {
    /// Makes the entry a candidate; `None` when it is one already, or sleeps.
    pub(super) fn queue(&mut self, at: u32) -> Option<Candidate> {
        self.get_mut(at)?.queue(at)
    }

    /// The entry's [`Candidate::by`]; 0: there is none.
    pub(super) fn turn(&self, at: u32) -> u64 {
        self.get(at).map_or(0, Entry::turn)
    }

    /// The candidate's entry; `None` when it has been removed meanwhile.
    pub(super) fn of(&self, candidate: Candidate) -> Option<&Entry> {
        self.get(candidate.at).filter(|entry| entry.serial == candidate.serial)
    }

    /// The candidate's entry, taken off the list; `None` when it has been removed meanwhile.
    pub(super) fn dequeue(&mut self, candidate: Candidate) -> Option<&mut Entry> {
        let entry = self.get_mut(candidate.at).filter(|entry| entry.serial == candidate.serial)?;
        entry.queued = false;
        Some(entry)
    }
}

impl Interest {
    /// The entry of this number and this socket.
    pub(super) fn find(&self, fd: Fd, identity: u64) -> Option<u32> {
        let mut at = self.by_fd.get(usize::try_from(fd).ok()?)?.checked_sub(1)?;
        loop {
            let entry = self.get(at)?;
            if entry.identity == identity {
                return Some(at);
            }
            at = entry.next;
        }
    }

    /// An entry of this number.
    pub(super) fn first_of(&self, fd: Fd) -> Option<u32> {
        self.by_fd.get(usize::try_from(fd).ok()?)?.checked_sub(1)
    }

    /// The next one of the same number.
    pub(super) fn after(&self, at: u32) -> Option<u32> {
        self.get(at).map(|entry| entry.next).filter(|&next| next != NONE)
    }

    /// An entry of this number whose socket is gone.
    pub(super) fn find_dead(&self, fd: Fd) -> Option<u32> {
        let mut at = self.by_fd.get(usize::try_from(fd).ok()?)?.checked_sub(1)?;
        loop {
            let entry = self.get(at)?;
            if !entry.is_valid() {
                return Some(at);
            }
            at = entry.next;
        }
    }

    pub(super) fn get(&self, at: u32) -> Option<&Entry> {
        self.entries.get(at as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Entry> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    /// Adds an entry; the caller has made sure that there is none of this number and socket.
    pub(super) fn add(&mut self, fd: Fd, socket: &'static Socket, event: EpollEvent) -> u32 {
        let index = fd.max(0) as usize;
        if self.by_fd.len() <= index {
            self.by_fd.resize(index + 1, 0);
        }
        let serial = SERIALS.fetch_add(1, Relaxed);
        if socket.number() != fd {
            socket.mark(mark::SEVERAL);
        }
        let entry = Entry {
            fd,
            socket,
            identity: socket.identity(),
            event,
            source: Source::Kernel,
            queued: false,
            serial,
            spent: false,
            is_guess: false,
            watched: 0,
            seen: 0,
            pushed: 0,
            shares: false,
            poller: 0,
            news: false,
            blind: false,
            next: self.by_fd[index].checked_sub(1).unwrap_or(NONE),
            beside: NONE,
            outlives: false,
            holds: false,
            file: File::default(),
            word: 0,
            kept: None,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = Some(entry);
                at
            }
            None => {
                self.entries.push(Some(entry));
                // So that removing never allocates: it may happen in a signal handler.
                self.free.reserve(self.entries.len() - self.free.len());
                (self.entries.len() - 1) as u32
            }
        };
        self.by_fd[index] = at + 1;
        at
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, at: u32) -> Option<Entry> {
        let entry = self.entries.get_mut(at as usize)?.take()?;
        let index = entry.fd.max(0) as usize;
        let first = self.by_fd.get_mut(index)?;
        if *first == at + 1 {
            *first = entry.next.wrapping_add(1);
        } else {
            let mut before = first.checked_sub(1)?;
            while let Some(other) = self.entries.get_mut(before as usize).and_then(Option::as_mut) {
                if other.next == at {
                    other.next = entry.next;
                    break;
                }
                before = other.next;
            }
        }
        self.free.push(at);
        Some(entry)
    }

    /// Places of all entries, in use or not.
    pub(super) fn places(&self) -> std::ops::Range<u32> {
        0..self.entries.len() as u32
    }
}
