//! What the processes that have one epoll set by fork have changed of it since: EPOLL_CTL_ADD, MOD and DEL of sockets that several
//! hold.
//!
//! On the kernel a set is one list, whoever adds to it. Descriptors of the kernel's are in the kernel's own set; of ours each process has
//! a list of its own, which begins as its parent's. So that they stay alike, a set that has something of ours when its process forks
//! gets a *book*: another epoll set of the kernel's, which nobody waits in. A registration that is changed after the fork is put into
//! it under its own number, with the application's events and data, or with [`ENDED`]; the processes read it in
//! /proc/thread-self/fdinfo. The newest word on each registration stands there, and none on what nobody has changed.
//!
//! 1. There is no lock, no cell and no reference of this library's: the kernel changes one entry at a time, shows all as they are at one
//!    moment, keys them by open file, and forgets them with the last close of all. Nothing is left half written by who dies.
//! 2. Who changes the set changes the book first, then the count of changes, then rings. Who takes the set's lock looks at the
//!    count, and who sleeps has the bell in its outer set: a change that the one has not seen rings the other.
//! 3. Of an entry a process follows what is a connection or a listener that it has open under that number, the very socket by its
//!    inode and device. Nobody can put in what he does not have open himself.
//! 4. The book says what was asked for, never what is ready, spent, or whose: no state of a process or of a daemon ends a
//!    registration of another's.
//!
//! `docs/decisions/0024` has what is not shared.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::io::Errno;

use super::{
    EpollEvent,
    book::{self, Book, ENDED, File, Line, decoded, encoded, file_of},
    interest::{EXCLUSIVE, Entry, Source},
    registry,
    set::{Inner, Live},
};
use crate::{
    descriptor::table,
    process,
    socket::{self, Kind, Socket},
    types::Fd,
};

/// Entries of a book that is followed. More: whoever shares the set can have the others read for longer (some 1 us for each change
/// and entry). One with more is left, and the list is this process's own from there on, also after other forks.
const MOST: u32 = 8192;

/// Sockets of this process with a lower identity may be another's too.
static FORKED_AT: AtomicU64 = AtomicU64::new(0);

/// Whether another process may have this socket.
fn may_be_others(socket: &Socket) -> bool {
    match socket.kind() {
        Kind::Channel => socket.identity() < FORKED_AT.load(Relaxed) || is_others(socket),
        Kind::Listener => true,
        // It may be ours in a process that has a daemon.
        Kind::Kernel => process::current().is_none(),
        _ => false,
    }
}

/// Whether another process has this connection.
fn is_others(socket: &Socket) -> bool {
    socket.channel().is_some_and(|channel| channel.refs() > socket.descriptors())
}

/// Before fork: the sets that have something of ours get a book.
pub(crate) fn before_fork() {
    if process::current().is_none() || fs_shm::wait::is_confined() {
        return;
    }
    FORKED_AT.store(socket::next_identity(), Relaxed);
    registry::each(|set| {
        // `None`: a handler in the middle of the set forks. The child has a list of its own.
        if set.is_active()
            && let Some(mut inner) = set.lock_unread()
        {
            inner.share();
        }
    });
}

impl Inner {
    fn share(&mut self) {
        if self.live.is_none() || self.shared.is_some() || self.is_own || fs_shm::wait::is_confined() {
            return;
        }
        let Some(mut shared) = Book::new() else { return };
        if let Some(outer) = self.live.as_ref().and_then(Live::outer) {
            // Who sleeps there hears of it too.
            shared.watch(outer);
        }
        self.shared = Some(shared);
    }

    /// This process has the set alone from here on, whoever else has it.
    pub(super) fn end_shared(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        // Another book begins with the next fork, which says nothing of them.
        for at in self.interest.places() {
            if let Some(entry) = self.interest.get_mut(at) {
                entry.word = 0;
            }
        }
        if fs_shm::wait::is_confined() {
            // Shared by another thread's fork while this one confined the process: no call that a filter may forbid.
            core::mem::forget(shared);
            return;
        }
        // In a child that has not built the set anew the outer one is its parent's.
        if let Some(outer) = self.live.as_ref().and_then(Live::outer).filter(|_| !self.stale) {
            shared.unwatch(outer);
        }
        shared.end();
    }

    /// The book is too long.
    fn leave_for_good(&mut self) {
        self.end_shared();
        self.is_own = true;
    }

    /// A confined process makes no use of what it shares.
    fn leave_if_confined(&mut self) {
        if self.shared.is_some() && fs_shm::wait::is_confined() {
            self.end_shared();
        }
    }

    /// Whether others may have changed the set.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.shared.as_ref().is_some_and(Book::is_behind)
    }

    /// Brings the list up to what the book says.
    #[cold]
    pub(super) fn catch_up(&mut self) {
        self.leave_if_confined();
        let Some(shared) = &self.shared else { return };
        let (set, changes) = shared.now();
        let mut lines = 0;
        let read = book::each(set, |line| {
            lines += 1;
            if lines <= MOST {
                self.follow(line);
            }
            lines <= MOST
        });
        match read {
            Ok(()) if lines > MOST => self.leave_for_good(),
            Ok(()) => {
                if let Some(shared) = &mut self.shared {
                    shared.has_read(changes);
                }
            }
            // Later: see `must_ask`.
            Err(Errno::MFILE | Errno::NFILE) => {}
            // The kernel writes the whole book before any of it is read.
            Err(Errno::NOMEM) => self.leave_for_good(),
            // No /proc, or not for this process.
            Err(_) => self.end_shared(),
        }
    }

    /// The entry of this number and this open file.
    fn find_file(&mut self, fd: Fd, file: File) -> Option<u32> {
        let mut at = self.interest.first_of(fd);
        while let Some(here) = at {
            let entry = self.interest.get_mut(here)?;
            let is_it = |socket: &'static Socket| core::ptr::eq(entry.socket, socket);
            let is_valid = entry.is_valid();
            if entry.file == File::default() && is_valid {
                // The number may be another socket's by now, and this one open under its copy.
                let number = [fd, entry.socket.number()].into_iter().find(|&fd| table::find(fd).is_some_and(is_it));
                entry.file = number.and_then(file_of).unwrap_or_default();
            }
            if entry.file == file && is_valid {
                return Some(here);
            }
            at = self.interest.after(here);
        }
        None
    }

    /// What the book says of a registration is the list's. What it has said before is no change: a one-shot that was told is not told
    /// again.
    fn follow(&mut self, line: Line) {
        let is_over = line.word & ENDED != 0;
        match self.find_file(line.fd, line.file) {
            Some(at) if is_over => {
                self.count_edges();
                self.drop_entry(at);
            }
            Some(at) => {
                let is_known = |entry: &Entry| entry.word == line.word && { entry.event.data } == line.data;
                if !self.interest.get(at).is_some_and(is_known) {
                    self.follow_change(at, line);
                }
            }
            None if is_over => {}
            None => self.follow_new(line),
        }
    }

    fn follow_change(&mut self, at: u32, line: Line) {
        // By what was asked for until now.
        self.collect();
        let Some(entry) = self.interest.get_mut(at) else { return };
        let event = EpollEvent { events: decoded(line.word), data: line.data };
        let shares_otherwise = (entry.event.events ^ event.events) & EXCLUSIVE != 0;
        if shares_otherwise {
            self.detach(at);
        }
        let Some(entry) = self.interest.get_mut(at) else { return };
        (entry.event, entry.word, entry.spent) = (event, line.word, false);
        if shares_otherwise {
            self.attach(at);
        } else {
            self.enqueue(at);
        }
    }

    /// Nothing is asked of a socket that this process does not have, or not as one of ours: that registration is of who made it.
    fn follow_new(&mut self, line: Line) {
        let is_ours = |socket: &&'static Socket| matches!(socket.kind(), Kind::Channel | Kind::Listener);
        let Some(socket) = table::find(line.fd).filter(is_ours) else { return };
        if file_of(line.fd) != Some(line.file) || self.interest.find(line.fd, socket.identity()).is_some() {
            return;
        }
        while let Some(dead) = self.interest.find_dead(line.fd) {
            self.drop_entry(dead);
        }
        let event = EpollEvent { events: decoded(line.word), data: line.data };
        let at = self.interest.add(line.fd, socket, event);
        if let Some(entry) = self.interest.get_mut(at) {
            (entry.word, entry.file) = (line.word, line.file);
        }
        self.attach(at);
    }

    /// Before a registration of ours is added by this process: it is for all that have the socket. Answers what the book says of it; 0:
    /// nothing, it is this process's own.
    ///
    /// # Errors
    /// EEXIST: another process was first.
    pub(super) fn publish_new(&mut self, fd: Fd, socket: &Socket, event: EpollEvent) -> Result<u32, Errno> {
        self.leave_if_confined();
        let Some(shared) = self.shared.as_ref().filter(|_| may_be_others(socket)) else { return Ok(0) };
        let word = encoded(event.events, shared.stamp());
        match shared.add(fd, word, event.data) {
            Ok(()) => {}
            // Of a listener the kernel's own set has said that there is none.
            Err(Errno::EXIST) if socket.kind() == Kind::Channel && self.is_in_book(fd, socket) => {
                return Err(Errno::EXIST);
            }
            Err(Errno::EXIST) if shared_put(self.shared.as_ref(), fd, word, event.data) => {}
            Err(_) => return Ok(0),
        }
        if let Some(shared) = &mut self.shared {
            shared.changed();
        }
        Ok(word)
    }

    /// Whether another process has added this since the book was read. It is in the list then.
    fn is_in_book(&mut self, fd: Fd, socket: &Socket) -> bool {
        self.catch_up();
        self.interest.find(fd, socket.identity()).is_some()
    }

    /// A registration has been changed by this process.
    pub(super) fn publish_change(&mut self, at: u32) {
        self.leave_if_confined();
        let (Some(shared), Some(entry)) = (&mut self.shared, self.interest.get_mut(at)) else { return };
        if !has_to_say(entry) {
            return;
        }
        let word = shared.next_word(entry.event.events, entry.word);
        if shared.put(entry.fd, word, entry.event.data, entry.word == 0).is_ok() {
            entry.word = word;
            shared.changed();
        }
    }

    /// A registration is about to be taken out by this process.
    pub(super) fn publish_end(&mut self, at: u32) {
        self.leave_if_confined();
        let (Some(shared), Some(entry)) = (&mut self.shared, self.interest.get(at)) else { return };
        // Who has closed a connection has its registration until all have: whether somebody holds it now says nothing.
        let is_of_before = matches!(entry.source, Source::Channel { .. }) && may_be_others(entry.socket);
        if !has_to_say(entry) && !is_of_before {
            return;
        }
        let word = encoded(0, shared.stamp()) | ENDED;
        if shared.put(entry.fd, word, 0, entry.word == 0).is_ok() {
            shared.is_less();
        }
    }

    /// This process is about to close the last number of a socket that others have, and its registration stays: the book will name it
    /// still.
    pub(super) fn keep_file(&mut self, at: u32, fd: Fd) {
        if self.shared.is_none() {
            return;
        }
        if let Some(entry) = self.interest.get_mut(at).filter(|entry| entry.file == File::default()) {
            entry.file = file_of(fd).unwrap_or_default();
        }
    }
}

fn shared_put(shared: Option<&Book>, fd: Fd, word: u32, data: u64) -> bool {
    shared.is_some_and(|shared| shared.put(fd, word, data, false).is_ok())
}

/// Whether others have to know what becomes of it: the book has it, or another process has the socket now.
fn has_to_say(entry: &Entry) -> bool {
    match entry.source {
        Source::Nested(_) => false,
        _ if entry.word != 0 => true,
        Source::Channel { .. } => is_others(entry.socket),
        Source::Listener => true,
        Source::Kernel => entry.socket.kind() == Kind::Listener || process::current().is_none(),
    }
}
