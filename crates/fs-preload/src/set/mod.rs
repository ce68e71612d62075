//! Epoll sets of the application that may contain promoted sockets.
//!
//! A set is known from its epoll_create(2) on, so that every thread that sleeps in it is counted.
//! In a set that the library does not know (inherited over exec, received by SCM_RIGHTS), sockets
//! stay the kernel's.

pub(crate) mod polled;

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fs_carrier::kernel::{Errno, Event};
use fs_carrier::set::{Member, Set};

use crate::object::{Body, Held};
use crate::process;
use crate::slot::{Kind, Slot};
use crate::socket::{Membership, Socket};
use crate::sys::current::Current;
use crate::sys::kernel::{Fd, SetCall};
use crate::sys::wiped;
use crate::table;

pub(crate) use polled::Polled;

impl Polled {
    fn set(&self) -> &Current<Set<Fd>> {
        if self.generation.load(Ordering::Relaxed) != process::generation() {
            self.begin_child();
        }
        &self.set
    }

    /// Handles the first use in a child of fork(2): pins the sockets in the set, and puts those
    /// with bytes in the ring into a new [`Set`].
    #[cold]
    fn begin_child(&self) {
        let new = Set::new(process::pacing());
        // The old one is not freed: a thread of the parent may have been in it.
        self.set.replace(Arc::clone(&new));
        self.generation.store(process::generation(), Ordering::Relaxed);
        self.for_each_socket(|fd, socket| {
            if !socket.has_ring(fd) {
                return;
            }
            while let Some(old) = socket.membership_of_parent(self.id) {
                let (number, events, data) = (old.fd, old.events, old.data);
                core::mem::forget(old);
                let Ok(member) = new.add(&SetCall::NONE, socket.pair(), events, data) else { return };
                socket.add_membership(self.membership(Arc::clone(&new), member, number, events, data));
            }
        });
    }

    fn membership(&self, set: Arc<Set<Fd>>, member: Arc<Member<Fd>>, fd: RawFd, events: u32, data: u64) -> Membership {
        Membership { id: self.id, fd, generation: process::generation(), set, member, events, data, is_left: false }
    }

    /// Calls `work` for each promoted socket in the set.
    fn for_each_socket(&self, mut work: impl FnMut(RawFd, &Socket)) {
        table::for_each(|fd, slot| {
            let Some(held) = slot.object.hold() else { return };
            if let Some(socket) = held.socket()
                && socket.is_in(self.id)
            {
                work(fd, socket);
            }
            held.release();
        });
    }

    /// Called before another process gets the set.
    pub(crate) fn share(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
        tell_all();
    }

    /// Makes the kernel's set complete from now on. Returns whether a ring in the set has bytes to
    /// report, which the kernel does not know.
    pub(crate) fn leave_to_kernel(&self) -> bool {
        self.kernel_only.store(true, Ordering::Relaxed);
        tell_all();
        self.for_each_socket(|_, socket| socket.pin());
        self.set().get().has_event(&SetCall::NONE)
    }

    /// Called before the set with this number is added to another one.
    ///
    /// # Errors
    /// The errors of [`Set::show_rest`].
    pub(crate) fn enter_set(&self, number: RawFd) -> Result<(), Errno> {
        self.leave_to_kernel();
        self.show_rest(number)
    }

    /// Makes the set with this number readable exactly while a ring in it has bytes to report.
    ///
    /// # Errors
    /// Those of [`Set::show_rest`].
    pub(crate) fn show_rest(&self, number: RawFd) -> Result<(), Errno> {
        self.set().get().show_rest(&SetCall::new(number))
    }

    /// Returns whether a socket in the set has a ring, or the rest of one.
    pub(crate) fn has_rest(&self) -> bool {
        let mut has_rest = false;
        self.for_each_socket(|fd, socket| has_rest |= socket.has_ring(fd));
        has_rest
    }

    /// Takes all sockets out of the set, whose last number is about to be closed. Another process
    /// may have it, and its registrations.
    pub(crate) fn end(&self, call: SetCall) {
        // In a child that has not used it, the set is its parent's. Many sets have other files only.
        if self.generation.load(Ordering::Relaxed) != process::generation() || !self.had_sockets.load(Ordering::Relaxed)
        {
            return;
        }
        // The kernel keeps the set until a thread that sleeps in it wakes up.
        if self.set.get().has_sleepers(&call) {
            return;
        }
        self.set.get().tell(&call);
        table::for_each(|_, slot| {
            slot.deregister_from(self.id);
            let Some(held) = slot.object.hold() else { return };
            if let Some(socket) = held.socket() {
                socket.leave_set(self.id);
            }
            held.release();
        });
    }

    /// Frees the locks of the calling thread after it has jumped out of a call.
    pub(crate) fn break_own_locks(&self, call: SetCall) {
        self.set().get().break_own_locks(&call);
    }

    /// Waits as epoll_wait(2) does.
    pub(crate) fn wait(&self, call: SetCall, into: &mut [Event], timeout_ns: Option<u64>) -> Result<usize, Errno> {
        self.set().get().wait(&call, into, timeout_ns)
    }
}

/// E6: makes the deferred calls: before a fork, and before a socket or a set is used in another
/// way. A child does not make those of its parent's threads.
pub(crate) fn tell_all() {
    // A child that has used no socket of the library has deferred nothing. Most of them only execute a program.
    if !wiped::has_begun() {
        return;
    }
    tell_sets();
    table::for_each(|_, slot| {
        let Some(held) = slot.object.hold() else { return };
        if let Some(socket) = held.socket() {
            socket.pair().kernel().tell_cork();
        }
        held.release();
    });
}

/// Makes the deferred epoll_ctl(2) calls of a socket.
pub(crate) fn tell(socket: &Socket) {
    if socket.is_untold() {
        tell_sets();
    }
}

/// Makes all deferred epoll_ctl(2) calls. A program may do this at each close, so sockets, which
/// may be many, are not referenced.
fn tell_sets() {
    table::for_each(|number, slot| {
        if slot.state().kind() != Kind::Set {
            return;
        }
        let Some(held) = slot.object.hold() else { return };
        if let Body::Set(polled) = held.body()
            && polled.generation.load(Ordering::Relaxed) == process::generation()
        {
            polled.set.get().tell(&SetCall::new(number));
        }
        held.release();
    });
}

/// Frees, in a new child, the locks that a thread of the parent may have held. The parent makes its
/// threads' deferred calls.
pub(crate) fn begin_child() {
    table::for_each(|_, slot| {
        let Some(held) = slot.object.hold() else { return };
        if let Some(socket) = held.socket() {
            socket.break_lock();
            socket.pair().kernel().begin_child();
        }
        held.release();
    });
}

/// Finds a set.
pub(crate) fn find(number: RawFd, id: Option<u64>) -> Option<Held> {
    let held =
        table::slot(number).filter(|slot| slot.state().kind() == Kind::Set).and_then(|slot| slot.object.hold())?;
    match held.body() {
        Body::Set(polled) if id.is_none_or(|id| id == polled.id) => Some(held),
        _ => {
            held.release();
            None
        }
    }
}

/// Adds a socket that is being promoted to its set, if it is in one. Returns false if it cannot be
/// promoted.
pub(crate) fn join_registered(fd: RawFd, slot: &Slot, socket: &Socket) -> bool {
    let Some(at) = slot.registered() else { return true };
    let Some(held) = find(at.number, Some(at.set)) else {
        socket.pin();
        return false;
    };
    let may_use_ring = matches!(held.body(), Body::Set(polled) if !polled.is_kernel_only());
    let joined = may_use_ring && join(&held, SetCall::new(at.number), socket, fd, at.events, at.data).is_ok();
    held.release();
    if !joined {
        socket.pin();
    }
    joined
}

/// Called before the close of an offered socket. The service holds a duplicate until it learns of
/// that. Until then the kernel would report events of the socket, under a number that may refer to
/// another file by then.
pub(crate) fn leave_registered(fd: RawFd, slot: &Slot) {
    if slot.offer.load(Ordering::Relaxed) == 0 || slot.forks() != process::forks() {
        return;
    }
    let Some(at) = slot.registered() else { return };
    if let Some(held) = find(at.number, Some(at.set)) {
        SetCall::new(at.number).remove(fd);
        held.release();
    }
}

fn join(held: &Held, call: SetCall, socket: &Socket, fd: RawFd, events: u32, data: u64) -> Result<(), Errno> {
    let Body::Set(polled) = held.body() else { return Err(Errno::INVAL) };
    polled.gets_socket();
    if let Some(Membership { set, member, .. }) = socket.left_membership(polled.id(), fd) {
        set.add_again(&call, &member, events, data)?;
        socket.change_membership(polled.id(), fd, events, data);
        return Ok(());
    }
    let set = polled.set().share();
    let member = set.add(&call, socket.pair(), events, data)?;
    socket.add_membership(polled.membership(set, member, fd, events, data));
    Ok(())
}

/// The request of an epoll_ctl(2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    pub(crate) number: RawFd,
    pub(crate) fd: RawFd,
    pub(crate) operation: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// epoll_ctl(2) of a promoted socket. `kernel` makes the application's call.
///
/// # Errors
/// The errors of epoll_ctl(2).
pub(crate) fn control(
    control: Control,
    socket: &Socket,
    kernel: impl Fn(i32) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let Control { number, fd, operation, events, data } = control;
    let call = SetCall::new(number);
    let Some(held) = find(number, None) else {
        tell(socket);
        socket.pin();
        return kernel(operation);
    };
    let Body::Set(polled) = held.body() else { return Err(Errno::INVAL) };
    if polled.is_kernel_only() {
        // Unread bytes in its ring are reported as before.
        socket.pin();
    }
    if polled.is_own() && socket.defer(call, polled.id(), fd, operation, (events, data)) {
        held.release();
        return Ok(0);
    }
    tell(socket);
    if operation == libc::EPOLL_CTL_ADD && !crate::sys::threads::is_single() {
        // C9: another thread may get the kernel's event before the socket is in the hot list.
        socket.pair().report_readable();
    }
    if operation != libc::EPOLL_CTL_DEL {
        Set::before_control(socket.pair(), events);
    }
    let result = match operation {
        libc::EPOLL_CTL_ADD => kernel(operation).and_then(|n| {
            join(&held, call, socket, fd, events, data).map(|()| n).inspect_err(|_| {
                let _removed = kernel(libc::EPOLL_CTL_DEL);
            })
        }),
        libc::EPOLL_CTL_MOD => kernel(operation).and_then(|n| {
            match socket.membership(polled.id(), fd) {
                Some(Membership { set, member, .. }) => {
                    set.change(&call, &member, events, data)?;
                    socket.change_membership(polled.id(), fd, events, data);
                    Ok(n)
                }
                // The socket was registered in the kernel's set without the library.
                None => {
                    socket.pin();
                    Ok(n)
                }
            }
        }),
        _ => kernel(operation).inspect(|_| {
            if let Some(membership) = socket.leave_membership(polled.id(), fd) {
                membership.leave();
            }
        }),
    };
    let result = match result {
        Ok(n) if polled.is_kernel_only() && operation != libc::EPOLL_CTL_DEL => {
            polled.set().get().show_rest(&call).map(|()| n)
        }
        result => result,
    };
    held.release();
    result
}
