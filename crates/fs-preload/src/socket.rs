//! Data calls on a promoted socket.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use fs_carrier::gate::Gate;
use fs_carrier::kernel::{Errno, Kernel, RecvMode};
use fs_carrier::pair::Pair;
use fs_carrier::set::{Member, Set};
use fs_pairs::Number;

use crate::process;
use crate::report;
use crate::sys::kernel::{Fd, SetCall, ThisThread};

/// The application has set O_NONBLOCK.
const NONBLOCKING: u8 = 1;
/// The application has set a negative SO_RCVTIMEO.
const NO_TIME: u8 = 2;
/// The epoch of a pinned socket.
const PINNED: u32 = u32::MAX;

/// A socket with a ring, or with the rest of one.
pub(crate) struct Socket {
    pair: Arc<Pair<Fd>>,
    /// The reasons why receives do not wait: [`NONBLOCKING`], [`NO_TIME`]. 0: they wait.
    nonblocking: AtomicU8,
    /// The application has set TCP_NODELAY. On the kernel's socket it is set until the socket is pinned.
    nodelay: AtomicBool,
    /// The process's generation at the promotion, or [`PINNED`].
    epoch: AtomicU32,
    /// [`process::forks`] at the promotion.
    forks: u32,
    is_given: AtomicBool,
    offer: Number,
    /// The sets that contain the socket (two: it is pinned), and one that it has left.
    memberships: Gate<Vec<Membership>>,
}

/// A socket's place in an epoll set.
#[derive(Clone)]
pub(crate) struct Membership {
    /// The set's identity ([`crate::set::Polled::id`]).
    pub(crate) id: u64,
    /// The registered number. Two numbers of one socket are two registrations.
    pub(crate) fd: RawFd,
    /// The process's generation. In a child, `set` and `member` are the parent's, in which one of
    /// its threads may have been.
    pub(crate) generation: u32,
    pub(crate) set: Arc<Set<Fd>>,
    pub(crate) member: Arc<Member<Fd>>,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// True while the socket is not in the set. Programs remove a socket and add it again for each
    /// message.
    pub(crate) is_left: bool,
}

impl Membership {
    fn is_at(&self, id: u64, fd: RawFd) -> bool {
        (self.id, self.fd) == (id, fd)
    }

    /// Handles the removal of the socket from the set.
    pub(crate) fn leave(self) {
        if self.generation != process::generation() {
            core::mem::forget(self);
        } else if !self.is_left {
            self.set.remove(&SetCall::NONE, &self.member);
        }
    }
}

impl Socket {
    pub(crate) fn new(pair: Pair<Fd>, nonblocking: bool, nodelay: bool, offer: Number) -> Self {
        Socket {
            pair: Arc::new(pair),
            nonblocking: AtomicU8::new(if nonblocking { NONBLOCKING } else { 0 }),
            nodelay: AtomicBool::new(nodelay),
            epoch: AtomicU32::new(process::generation()),
            forks: process::forks(),
            is_given: AtomicBool::new(false),
            offer,
            memberships: Gate::new(Vec::new()),
        }
    }

    pub(crate) fn pair(&self) -> &Arc<Pair<Fd>> {
        &self.pair
    }

    pub(crate) fn offer(&self) -> Number {
        self.offer
    }

    /// Returns true if the ring may carry or has bytes. Otherwise the kernel alone carries and the
    /// ring is empty, so the C library's own call is right. A child's first use of an inherited
    /// socket pins it.
    #[inline]
    pub(crate) fn has_ring(&self, fd: i32) -> bool {
        self.is_current() || self.has_rest(fd)
    }

    /// Returns true if the ring may be used: the socket is not pinned, and not inherited.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.epoch.load(Ordering::Relaxed) == process::generation()
    }

    #[cold]
    fn has_rest(&self, fd: i32) -> bool {
        self.pair.kernel().renumber(fd);
        self.pin();
        self.pair.has_ring_bytes() || self.pair.has_kept_error()
    }

    /// G1: makes the kernel the only carrier. The ring's bytes are read first.
    pub(crate) fn pin(&self) {
        if self.epoch.swap(PINNED, Ordering::Relaxed) != PINNED {
            self.pair.pin();
            self.pair.kernel().tell_cork();
            if !self.nodelay() {
                // Fails if the connection has ended.
                let _set = rustix::net::sockopt::set_tcp_nodelay(self.pair.kernel().borrow(), false);
            }
        }
    }

    /// Returns what the application has set of TCP_NODELAY.
    pub(crate) fn nodelay(&self) -> bool {
        self.nodelay.load(Ordering::Relaxed)
    }

    /// Handles the application's TCP_NODELAY. The kernel's option stays set as long as the ring may
    /// carry.
    ///
    /// Nagle's algorithm holds a small segment back until the one before is acknowledged. The
    /// kernel acknowledges at once if the receiver answers by the same connection; an answer by the
    /// ring leaves it to the timer of 40 ms (`TCP_DELACK_MIN`, <net/tcp.h>).
    pub(crate) fn set_nodelay(&self, nodelay: bool) {
        self.nodelay.store(nodelay, Ordering::Relaxed);
        if !nodelay && self.epoch.load(Ordering::Relaxed) != PINNED {
            // Fails if the connection has ended.
            let _set = rustix::net::sockopt::set_tcp_nodelay(self.pair.kernel().borrow(), true);
        }
    }

    /// E6 for the application's TCP_CORK: the kernel is told before it gets bytes. A program that
    /// corks each answer saves two system calls. Returns false if the kernel has to be told now.
    pub(crate) fn defer_cork(&self, corks: bool) -> bool {
        let kernel = self.pair.kernel();
        if !corks {
            return kernel.forget_cork();
        }
        // The end of TCP_CORK also sends what MSG_MORE holds back. The kernel holds nothing back as
        // long as the ring carries (P6).
        let ring_carries = || !self.pair.words()[0].kernel_carries();
        if !self.is_current() || !ring_carries() {
            kernel.corks();
            return false;
        }
        if !kernel.defer_cork() {
            return false;
        }
        // Another thread that pins the socket sees the note, or this one sees that the kernel carries.
        if !ring_carries() {
            kernel.tell_cork();
        }
        true
    }

    /// Returns whether this process inherited the socket by a fork and has not used it.
    pub(crate) fn is_inherited(&self) -> bool {
        let epoch = self.epoch.load(Ordering::Relaxed);
        epoch != PINNED && epoch != process::generation()
    }

    /// Records that a child of posix_spawn has the socket.
    pub(crate) fn give(&self) {
        self.is_given.store(true, Ordering::Relaxed);
    }

    /// Returns true if a process that was started after the promotion may hold the socket.
    pub(crate) fn is_shared(&self) -> bool {
        self.forks != process::forks() || self.is_given.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.set_waits(NONBLOCKING, nonblocking);
    }

    /// Handles the application's SO_RCVTIMEO. With a negative time receives do not wait, which
    /// getsockopt(2) does not show.
    pub(crate) fn set_no_time(&self, no_time: bool) {
        self.set_waits(NO_TIME, no_time);
    }

    fn set_waits(&self, why: u8, is_set: bool) {
        if is_set {
            self.nonblocking.fetch_or(why, Ordering::Relaxed);
        } else {
            self.nonblocking.fetch_and(!why, Ordering::Relaxed);
        }
    }

    #[inline]
    fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed) != 0
    }

    /// Returns whether a receive with these flags waits for bytes.
    #[inline]
    pub(crate) fn may_wait(&self, flags: i32) -> bool {
        flags & libc::MSG_DONTWAIT == 0 && !self.is_nonblocking()
    }

    /// Stores an error for a call that has moved bytes already. The next one returns it, if it is
    /// the connection's.
    pub(crate) fn keep_error(&self, error: Errno) {
        self.pair.keep_error(error);
    }

    /// Sends bytes as send(2) does.
    #[inline]
    pub(crate) fn send(&self, bytes: &[u8], dont_wait: bool) -> Result<usize, Errno> {
        self.pair.send(bytes, dont_wait)
    }

    /// Receives bytes as recv(2) does, with MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL and MSG_TRUNC of `flags`.
    #[inline]
    pub(crate) fn receive(&self, into: &mut [u8], flags: i32) -> Result<usize, Errno> {
        let dont_wait = !self.may_wait(flags);
        let all = flags & libc::MSG_WAITALL != 0;
        let mode = RecvMode { dont_wait, peek: flags & libc::MSG_PEEK != 0, all, continues: None };
        if !all || mode.peek {
            return self.pair.recv(into, mode);
        }
        self.receive_all(into, mode, fs_carrier::sys::now_ns())
    }

    /// Like [`Socket::receive`], for a call with MSG_WAITALL that already has bytes and began at `start_ns`.
    #[cold]
    pub(crate) fn receive_more(&self, into: &mut [u8], flags: i32, start_ns: u64) -> Result<usize, Errno> {
        let dont_wait = !self.may_wait(flags);
        self.receive_all(into, RecvMode { dont_wait, peek: false, all: true, continues: Some(start_ns) }, start_ns)
    }

    /// MSG_WAITALL.
    #[cold]
    fn receive_all(&self, into: &mut [u8], mut mode: RecvMode, start_ns: u64) -> Result<usize, Errno> {
        let mut done = 0;
        loop {
            match self.pair.recv(&mut into[done..], mode) {
                Ok(n) if n > 0 && done + n < into.len() => {
                    done += n;
                    // The kernel also ends such a receive at the mark.
                    if self.pair.words()[1].is_pinned() && self.pair.kernel().is_at_mark() {
                        return Ok(done);
                    }
                    // A receive that finds nothing would clear the socket's pending error.
                    if mode.dont_wait && self.pair.unread().is_ok_and(|n| n == 0) {
                        return Ok(done);
                    }
                    mode.continues = Some(start_ns);
                }
                Ok(n) => return Ok(done + n),
                Err(error) if done > 0 => {
                    self.keep_error(error);
                    return Ok(done);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Uses the memberships. Returns `None` if the caller is a signal handler in the middle of such
    /// a use. The socket is then pinned.
    fn with_memberships<R>(&self, work: impl FnOnce(&mut Vec<Membership>) -> R) -> Option<R> {
        match self.memberships.lock(&ThisThread) {
            Ok(mut all) => Some(work(&mut all)),
            Err(_held) => {
                self.pin();
                None
            }
        }
    }

    /// Joins a set that contains the socket. The caller has told the kernel.
    pub(crate) fn add_membership(&self, new: Membership) {
        let (id, fd) = (new.id, new.fd);
        let before = self.with_memberships(|all| {
            let is_before = |membership: &Membership| membership.is_at(id, fd) || membership.is_left;
            let before = all.iter().position(is_before).map(|i| all.swap_remove(i));
            all.push(new);
            before
        });
        if let Some(before) = before.flatten() {
            before.leave();
        }
    }

    /// Changes a registration's events.
    pub(crate) fn change_membership(&self, id: u64, fd: RawFd, events: u32, data: u64) {
        self.with_memberships(|all| {
            if let Some(membership) = all.iter_mut().find(|membership| membership.is_at(id, fd)) {
                (membership.events, membership.data, membership.is_left) = (events, data, false);
            }
        });
    }

    /// Returns the membership in one set under this number.
    pub(crate) fn membership(&self, id: u64, fd: RawFd) -> Option<Membership> {
        self.find_membership(|membership| membership.is_at(id, fd) && !membership.is_left)
    }

    /// Returns true if the set contains the socket, under any number.
    pub(crate) fn is_in(&self, id: u64) -> bool {
        self.find_membership(|membership| membership.id == id && !membership.is_left).is_some()
    }

    /// Returns a membership in one set from before a fork, under any number.
    pub(crate) fn membership_of_parent(&self, id: u64) -> Option<Membership> {
        let generation = process::generation();
        self.find_membership(|membership| {
            membership.id == id && !membership.is_left && membership.generation != generation
        })
    }

    /// Returns the membership in a set that the socket has left, to be used again.
    pub(crate) fn left_membership(&self, id: u64, fd: RawFd) -> Option<Membership> {
        let generation = process::generation();
        self.find_membership(|membership| {
            membership.is_at(id, fd) && membership.is_left && membership.generation == generation
        })
    }

    fn find_membership(&self, is_it: impl Fn(&Membership) -> bool) -> Option<Membership> {
        self.with_memberships(|all| all.iter().find(|membership| is_it(membership)).cloned()).flatten()
    }

    /// Removes the socket from one set. Returns the former membership.
    pub(crate) fn leave_membership(&self, id: u64, fd: RawFd) -> Option<Membership> {
        self.with_memberships(|all| {
            let membership = all.iter_mut().find(|membership| membership.is_at(id, fd) && !membership.is_left)?;
            let before = membership.clone();
            membership.is_left = true;
            Some(before)
        })
        .flatten()
    }

    /// Handles the application's shutdown(2).
    pub(crate) fn repeat_edges(&self) {
        self.with_memberships(|all| {
            for membership in all.iter().filter(|membership| membership.generation == process::generation()) {
                membership.set.repeat_edge(&SetCall::NONE, &membership.member);
            }
        });
    }

    /// E6: epoll_ctl(2) of a socket that is hot in this set, without the kernel.
    pub(crate) fn defer(&self, call: SetCall, id: u64, fd: i32, operation: i32, event: (u32, u64)) -> bool {
        self.with_memberships(|all| {
            let Some(membership) = all.iter_mut().find(|membership| membership.is_at(id, fd)) else { return false };
            let registered = match (operation, membership.is_left) {
                (libc::EPOLL_CTL_MOD, false) => Some(event),
                (libc::EPOLL_CTL_DEL, false) => None,
                // The kernel's set still has the socket.
                (libc::EPOLL_CTL_ADD, true) if membership.member.is_untold() => Some(event),
                _ => return false,
            };
            let is_done = membership.generation == process::generation()
                && membership.set.defer(&call, &membership.member, fd, registered);
            if is_done {
                membership.is_left = registered.is_none();
                if let Some((events, data)) = registered {
                    (membership.events, membership.data) = (events, data);
                }
            }
            is_done
        })
        .unwrap_or(false)
    }

    /// Returns whether the kernel may not have been told of an epoll_ctl(2) of this socket.
    /// [`set::tell`](crate::set::tell) tells it.
    pub(crate) fn is_untold(&self) -> bool {
        let generation = process::generation();
        let is_untold = |all: &mut Vec<Membership>| {
            all.iter().any(|membership| membership.generation == generation && membership.member.is_untold())
        };
        self.with_memberships(is_untold) != Some(false)
    }

    /// Returns whether a set has to drop what the kernel says of an EPOLLONESHOT registration.
    pub(crate) fn is_spent(&self) -> bool {
        let is_spent = |all: &mut Vec<Membership>| {
            all.iter().any(|membership| !membership.is_left && membership.member.is_spent())
        };
        self.with_memberships(is_spent) != Some(false)
    }

    /// Leaves one set for good, under any number.
    pub(crate) fn leave_set(&self, id: u64) {
        let next = || {
            self.with_memberships(|all| {
                let place = all.iter().position(|membership| membership.id == id)?;
                Some(all.swap_remove(place))
            })
        };
        while let Some(membership) = next().flatten() {
            membership.leave();
        }
    }

    /// Leaves all sets, because the last descriptor is about to be closed or the ring has no bytes
    /// left.
    pub(crate) fn leave_sets(&self) {
        for membership in self.with_memberships(core::mem::take).unwrap_or_default() {
            membership.leave();
        }
    }

    /// Frees the lock in a child of fork(2), where a thread of the parent may have held it.
    pub(crate) fn break_lock(&self) {
        self.memberships.break_lock();
    }

    /// Frees the locks of the calling thread after it has jumped out of a call (siglongjmp).
    pub(crate) fn break_own_locks(&self) {
        self.pair.break_own_locks();
        self.memberships.break_own(&ThisThread);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        report::add(self.pair.counts());
        self.leave_sets();
    }
}
