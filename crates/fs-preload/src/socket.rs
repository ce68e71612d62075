//! A promoted socket: what data calls do with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use fs_carrier::kernel::{Errno, RecvMode};
use fs_carrier::pair::Pair;
use fs_carrier::set::{Member, Set};
use fs_pairs::Number;

use crate::process;
use crate::report;
use crate::sys::guarded::Guarded;
use crate::sys::kernel::{Fd, SetCall};

/// The epoch of a pinned socket.
const PINNED: u32 = u32::MAX;

/// A socket with a ring, or with the rest of one.
pub(crate) struct Socket {
    pair: Arc<Pair<Fd>>,
    /// The application has set O_NONBLOCK.
    nonblocking: AtomicBool,
    /// The application has set TCP_NODELAY. On the kernel's socket it is set until the socket is pinned.
    nodelay: AtomicBool,
    /// The process's generation at the promotion, or [`PINNED`].
    epoch: AtomicU32,
    /// [`process::forks`] at the promotion.
    forks: u32,
    offer: Number,
    /// The sets that contain the socket. Two: it is pinned.
    memberships: Guarded<Vec<Membership>>,
}

/// A socket's place in an epoll set.
#[derive(Clone)]
pub(crate) struct Membership {
    /// The set's identity ([`crate::set::Polled::id`]).
    pub(crate) id: u64,
    /// The process's generation. In a child, `set` and `member` are the parent's, in which one of its threads may have been.
    pub(crate) generation: u32,
    pub(crate) set: Arc<Set<Fd>>,
    pub(crate) member: Arc<Member<Fd>>,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

impl Membership {
    /// The socket is in the set no more.
    pub(crate) fn leave(self) {
        if self.generation == process::generation() {
            self.set.remove(&SetCall::NONE, &self.member);
        } else {
            core::mem::forget(self);
        }
    }
}

impl Socket {
    pub(crate) fn new(pair: Pair<Fd>, nonblocking: bool, nodelay: bool, offer: Number) -> Self {
        Socket {
            pair: Arc::new(pair),
            nonblocking: AtomicBool::new(nonblocking),
            nodelay: AtomicBool::new(nodelay),
            epoch: AtomicU32::new(process::generation()),
            forks: process::forks(),
            offer,
            memberships: Guarded::new(Vec::new()),
        }
    }

    pub(crate) fn pair(&self) -> &Arc<Pair<Fd>> {
        &self.pair
    }

    pub(crate) fn offer(&self) -> Number {
        self.offer
    }

    /// Returns whether the ring may carry, or has bytes. False: the kernel carries for good and the ring is empty, so the C library's own
    /// call is right. A child's first use of an inherited socket pins it.
    #[inline]
    pub(crate) fn has_ring(&self, fd: i32) -> bool {
        self.epoch.load(Ordering::Relaxed) == process::generation() || self.has_rest(fd)
    }

    #[cold]
    fn has_rest(&self, fd: i32) -> bool {
        self.pair.kernel().renumber(fd);
        self.pin();
        self.pair.has_ring_bytes()
    }

    /// G1: the kernel carries for good. What is in the ring is read first.
    pub(crate) fn pin(&self) {
        if self.epoch.swap(PINNED, Ordering::Relaxed) != PINNED {
            self.pair.pin();
            if !self.nodelay() {
                // Refused: the connection has ended.
                let _set = rustix::net::sockopt::set_tcp_nodelay(self.pair.kernel().borrow(), false);
            }
        }
    }

    /// Returns what the application has set of TCP_NODELAY.
    pub(crate) fn nodelay(&self) -> bool {
        self.nodelay.load(Ordering::Relaxed)
    }

    /// The application has set TCP_NODELAY. The kernel's own stays set as long as the ring may carry.
    ///
    /// Nagle's algorithm holds a small segment back until the one before is acknowledged. The kernel acknowledges at once if the receiver
    /// answers by the same connection; an answer by the ring leaves it to the timer of 40 ms (`TCP_DELACK_MIN`, <net/tcp.h>).
    pub(crate) fn set_nodelay(&self, nodelay: bool) {
        self.nodelay.store(nodelay, Ordering::Relaxed);
        if !nodelay && self.epoch.load(Ordering::Relaxed) != PINNED {
            // Refused: the connection has ended.
            let _set = rustix::net::sockopt::set_tcp_nodelay(self.pair.kernel().borrow(), true);
        }
    }

    /// Returns whether this process inherited the socket by a fork and has not used it.
    pub(crate) fn is_inherited(&self) -> bool {
        let epoch = self.epoch.load(Ordering::Relaxed);
        epoch != PINNED && epoch != process::generation()
    }

    /// Returns whether no other process can hold the socket. What is sent by SCM_RIGHTS or duplicated is pinned.
    pub(crate) fn is_sole_holder(&self) -> bool {
        !self.is_shared() && self.epoch.load(Ordering::Relaxed) != PINNED
    }

    /// Returns whether a process that was forked since the promotion may hold the socket.
    pub(crate) fn is_shared(&self) -> bool {
        self.forks != process::forks()
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    #[inline]
    fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Sends bytes as send(2) does.
    #[inline]
    pub(crate) fn send(&self, bytes: &[u8], dont_wait: bool) -> Result<usize, Errno> {
        self.pair.send(bytes, dont_wait)
    }

    /// Receives bytes as recv(2) does, with MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL and MSG_TRUNC of `flags`.
    #[inline]
    pub(crate) fn receive(&self, into: &mut [u8], flags: i32) -> Result<usize, Errno> {
        let dont_wait = flags & libc::MSG_DONTWAIT != 0 || self.is_nonblocking();
        let mode = RecvMode { dont_wait, peek: flags & libc::MSG_PEEK != 0 };
        if into.is_empty() && self.pair.has_ring_bytes() {
            return Ok(0);
        }
        if flags & libc::MSG_WAITALL == 0 || mode.peek {
            return self.pair.recv(into, mode);
        }
        self.receive_all(into, mode)
    }

    /// MSG_WAITALL.
    #[cold]
    fn receive_all(&self, into: &mut [u8], mode: RecvMode) -> Result<usize, Errno> {
        let mut done = 0;
        loop {
            match self.pair.recv(&mut into[done..], mode) {
                Ok(n) if n > 0 && done + n < into.len() => done += n,
                Ok(n) => return Ok(done + n),
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }

    /// Joins a set that contains the socket. The caller has told the kernel.
    pub(crate) fn add_membership(&self, new: Membership) {
        let id = new.id;
        let before = self.memberships.with(|all| {
            let before = all.iter().position(|membership| membership.id == id).map(|i| all.swap_remove(i));
            all.push(new);
            before
        });
        if let Some(before) = before {
            before.leave();
        }
    }

    /// The application asks for other events of a set.
    pub(crate) fn change_membership(&self, id: u64, events: u32, data: u64) {
        self.memberships.with(|all| {
            if let Some(membership) = all.iter_mut().find(|membership| membership.id == id) {
                (membership.events, membership.data) = (events, data);
            }
        });
    }

    /// Returns the membership in one set.
    pub(crate) fn membership(&self, id: u64) -> Option<Membership> {
        self.memberships.with(|all| all.iter().find(|membership| membership.id == id).cloned())
    }

    /// Takes the membership in one set away.
    pub(crate) fn take_membership(&self, id: u64) -> Option<Membership> {
        self.memberships.with(|all| {
            let i = all.iter().position(|membership| membership.id == id)?;
            Some(all.swap_remove(i))
        })
    }

    /// Leaves all sets: the last descriptor is about to be closed, or nothing of the ring is left.
    pub(crate) fn leave_sets(&self) {
        for membership in self.memberships.with(core::mem::take) {
            membership.leave();
        }
    }

    /// In a child of fork(2), where a thread of the parent may have held the lock.
    pub(crate) fn break_lock(&self) {
        self.memberships.break_lock();
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        report::add(self.pair.counts());
        self.leave_sets();
    }
}
