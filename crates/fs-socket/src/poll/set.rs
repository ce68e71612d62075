//! An epoll set: what it watches, what may be ready, and the descriptors it sleeps on.
//!
//! The application's epoll descriptor stays the kernel's; kernel descriptors are registered there with the
//! application's own events, so their errors, their edges and their closing are the kernel's business. A set has an
//! instance here as soon as one of our sockets is registered in it. While all of those are still the kernel's (fresh
//! sockets) the instance only remembers them. With the first channel or listener it becomes *active*: it gets a poller
//! (a kernel set that peers ring) to sleep on, into which the application's set and the connection to the daemon are
//! put: the outer set.
//!
//! Readiness of channels: a lane of each arena names the slots that changed; their entries become *candidates*, and a
//! wait asks each candidate what is ready now. A level-triggered entry that was reported stays a candidate, an
//! edge-triggered one waits for the next change: each change of a channel is an edge, as each wake-up is in the kernel.
//! Candidates stand in the order of their first change, as in the kernel's list (ep_poll_callback()), and reported ones go to the
//! end (ep_send_events()). Who changes a channel notes when. When a descriptor of the kernel's became ready is not known, only when the
//! kernel's set had nothing ([`Inner::quiet`]): ours from before stand in front of its, and the others behind.

use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use std::collections::{HashMap, VecDeque};

use fs_shm::{Arena, lanes::Lane};
use rustix::{fd::AsRawFd, io::Errno};

use super::{
    EpollEvent,
    book::Book,
    forget,
    interest::{Candidate, ET, Entry, Interest, ONESHOT, Source},
    ready::Edges,
    registry,
    spin::Spin,
    sys::kernel,
    sys::lock::{Guard, Lock},
    turn::Turn,
};
use crate::{
    descriptor::{numbers, table},
    process::{self, Poller},
    socket::{Kind, Socket, Watch},
    sys,
    types::Fd,
};

/// In the outer set, where the daemon has put what our peers ring, as 0: the application's kernel set.
pub(super) const KERNEL: u64 = 1;
/// In the outer set: the connection to the daemon.
pub(super) const CONTROL: u64 = 2;
/// In the outer set: another process has changed a set that it has too ([`super::shared`]).
pub(super) const SHARED: u64 = 3;

/// What the application's set says of the descriptor that wakes those who sleep in it ([`Inner::kick`]); no
/// application's data: neither a descriptor number nor an address of user space.
pub(super) const KICK: u64 = 0xf5c0_6b1c_d00d_5eed;

/// Kicks beyond those for the process's threads. Fewer: looks of threads that are awake leave none for those that sleep, until a kernel
/// descriptor of theirs is ready. More: each is a look in vain, once.
const KICKS: u32 = 32;
/// Kicks for each thread. On a loaded machine a thread that a kick has woken runs after several looks of other threads: with 2, 18 of 80
/// threads slept on in 10 of 120 runs.
const KICKS_PER_THREAD: u32 = 32;
/// With [`KICKS_PER_THREAD`]: some 3 ms for each thread of the process, once in a set's life.
const KICK_PAUSE: core::time::Duration = core::time::Duration::from_micros(50);

pub(super) const ADD: i32 = 1;
pub(super) const DEL: i32 = 2;
pub(super) const MOD: i32 = 3;

const IN: u32 = 0x1;
/// The end of the control connection, which is readable with each answer as well.
const RDHUP: u32 = 0x2000;

/// A set of this process.
#[derive(Debug)]
pub(super) struct Set {
    inner: Lock<Inner>,
    pub(super) spin: Spin,
    pub(super) turn: Turn,
    /// Looks in vain at what cannot tell, since something was ready.
    pub(super) asked: AtomicU32,
    /// Whether it has anything of ours to wait for.
    active: &'static AtomicBool,
    /// How often it was closed: what it is used for after that is another set's. Changed with the lock held.
    life: AtomicU32,
}

/// What the lock guards.
#[derive(Debug)]
pub(super) struct Inner {
    /// The application's kernel set: a duplicate of ours, so that it stays reachable under a known number.
    pub(super) number: Fd,
    /// No number was free for one: `number` is the one that the application last used.
    pub(super) borrowed: bool,
    /// How often it was used since it was.
    uses: u32,
    active: &'static AtomicBool,
    /// From the first channel or listener on.
    pub(super) live: Option<Live>,
    /// Made in the parent: to be built anew before use.
    pub(super) stale: bool,
    pub(super) interest: Interest,
    pub(super) arenas: Vec<Joined>,
    /// Places in `arenas`, by address.
    pub(super) places: HashMap<usize, u32>,
    /// Entries that may be ready, first come first.
    pub(super) ready: VecDeque<Candidate>,
    /// How many of them, at the end, are not in order yet.
    pub(super) unsettled: usize,
    /// Listeners and nested sets: looked at by every wait.
    pub(super) special: Vec<u32>,
    /// Listeners whose new arenas our poller is not rung for ([`listen::exclusive_poller`](crate::listen::exclusive_poller)).
    pub(super) untold: Vec<u32>,
    /// Threads that sleep on the outer set.
    pub(super) sleepers: u32,
    /// Waits since the kernel's set was looked at, and when that was.
    pub(super) waits: u32,
    /// [`KERNEL_CHANGES`](super::wait::KERNEL_CHANGES) as of that look.
    pub(super) changes: u32,
    pub(super) looked: u64,
    /// The last look at the kernel's set found something.
    pub(super) busy: bool,
    /// Changes of our sockets: the edges of this set in another.
    pub(super) edges: Edges,
    /// It is, or was, in another set.
    pub(super) is_inner: bool,
    /// When the kernel's set filled all of the room that it was given, on the clock of [`fs_shm::now`]; 0: it did not. There may be more,
    /// and it is the turn of ours that were ready by then: what it reported is behind them, as in one list.
    pub(super) filled: u64,
    /// What is ready in the kernel's set has become so after this, on the clock of [`fs_shm::now`].
    pub(super) quiet: u64,
    pub(super) kick: Option<(Fd, u32)>,
    /// From the first fork on that found something of ours in it.
    pub(super) shared: Option<Book>,
    /// It was left for its length, and is not shared again.
    pub(super) is_own: bool,
}

/// What an active set has.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) poller: Poller,
}

impl Live {
    /// What is slept on. `None`: no number was free for it; the application's set is, for a short time each.
    pub(super) fn outer(&self) -> Option<Fd> {
        (!self.poller.is_none()).then_some(self.poller.fd)
    }
}

/// An arena that entries of the set are in.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) arena: &'static Arena,
    /// `None`: all lanes of the arena are taken; the entries are asked at short intervals instead.
    pub(super) lane: Option<Lane>,
    /// By slot: an entry + 1.
    pub(super) slots: Vec<u32>,
    pub(super) entries: u32,
    /// Listener entries that this arena feeds.
    pub(super) listeners: Vec<u32>,
}

impl Joined {
    /// The arena feeds this listener entry no more. The inbox is one of side B: the lane's bit there is ours only if a
    /// listener entry has set it. In an arena of which this process is the opener it is a lane of the peer's.
    pub(super) fn drop_listener(&mut self, at: u32) {
        let Some(place) = self.listeners.iter().position(|&listener| listener == at) else { return };
        self.listeners.swap_remove(place);
        if let (Some(lane), true) = (self.lane, self.listeners.is_empty()) {
            self.arena.watch_inbox(lane, false);
        }
    }
}

/// Calls on a set without a number of its own between two looks for one.
const ASK_NUMBERS: u32 = 64;

/// A number of ours for the application's set. `None`: none is free.
pub(super) fn own_number(set: Fd) -> Option<Fd> {
    let number = numbers::duplicate_to_stay(set).ok()?;
    table::set_internal(number);
    Some(number)
}

/// Threads of this process now; 0: without /proc it is not known. A child that a process of several has forked says otherwise of itself
/// ([`fs_shm::holder::is_single_threaded`]).
fn threads() -> u32 {
    // A directory for each thread, and two names.
    let names = rustix::fs::stat("/proc/self/task").map_or(0, |task| task.st_nlink);
    u32::try_from(names).unwrap_or(u32::MAX).saturating_sub(2)
}

/// Whether the kernel's set may be without what this entry has there: a listener's is taken out as its one-shot is reported by our half,
/// by this process or another that has the set, while there is a daemon.
fn may_be_out(entry: &Entry) -> bool {
    let was_ours = entry.source == Source::Listener || entry.socket.kind() == Kind::Listener;
    entry.event.events & ONESHOT != 0 && (was_ours || entry.spent)
}

/// EPOLL_CTL_MOD of what the kernel's set has of this entry, or had. It is at the end of the kernel's list then if it is ready, added or
/// changed. There may be no room to add it (ENOSPC), as there is none for another.
fn change_kernels(set: Fd, entry: &Entry, event: EpollEvent) -> Result<(), Errno> {
    let change = |operation| kernel::epoll_ctl(set, operation, entry.fd, Some(event));
    if !may_be_out(entry) {
        return change(MOD);
    }
    // Another process may do the other thing in between.
    let (first, second, last) = if entry.spent { (ADD, MOD, ADD) } else { (MOD, ADD, MOD) };
    let is_otherwise = |errno| matches!(errno, Errno::EXIST | Errno::NOENT);
    let mut answer = Ok(());
    for operation in [first, second, last] {
        answer = change(operation);
        if !answer.is_err_and(is_otherwise) {
            break;
        }
    }
    answer
}

impl Set {
    pub(super) fn new(number: Fd) -> Self {
        let active: &AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let inner = Inner::new(number, active);
        Set {
            inner: Lock::new(inner),
            spin: Spin::new(),
            turn: Turn::default(),
            asked: AtomicU32::new(0),
            active,
            life: AtomicU32::new(0),
        }
    }

    /// Of which application's set it is: another one after that has been closed.
    #[inline]
    pub(super) fn life(&self) -> u32 {
        self.life.load(Acquire)
    }

    /// The application has closed it. Threads that wait in it find another life when they wake. False: this very thread is in the
    /// middle of it.
    pub(super) fn close(&self) -> bool {
        let Some(mut inner) = self.lock_unread() else { return false };
        self.life.fetch_add(1, Release);
        inner.close();
        true
    }

    /// A set that was closed, for another kernel set.
    pub(super) fn open(&self, number: Fd) {
        if let Some(mut inner) = self.inner.lock() {
            inner.number = number;
            inner.borrowed = false;
            inner.stale = false;
        }
    }

    /// Whether it has anything of ours to wait for.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Relaxed)
    }

    /// The set, fit for use in this process, with what others have changed of it. `None` in a signal handler on top of its own thread's
    /// call.
    pub(super) fn lock(&self) -> Option<Guard<'_, Inner>> {
        let mut inner = self.lock_unread()?;
        if inner.is_behind() {
            inner.catch_up();
        }
        Some(inner)
    }

    /// The same as this process knows it: who asks for it, waits in it or changes it next finds what others have changed. Closing a
    /// socket comes this way, which a signal handler may do in the middle of malloc(3): following others takes memory.
    pub(super) fn lock_unread(&self) -> Option<Guard<'_, Inner>> {
        let mut inner = self.inner.lock()?;
        let dead = inner
            .live
            .as_ref()
            .is_some_and(|live| process::current().is_some_and(|now| now.life() != live.poller.life));
        if inner.stale || dead {
            inner.rebuild();
        }
        Some(inner)
    }

    /// The same as it is: what was made in the parent is not built anew.
    pub(super) fn lock_as_it_is(&self) -> Option<Guard<'_, Inner>> {
        self.inner.lock()
    }

    /// This thread has jumped out of what it was in the middle of.
    pub(super) fn break_own_lock(&self) {
        self.inner.break_own();
    }

    /// In a forked child.
    pub(super) fn forked(&self) {
        let whole = self.inner.reset();
        if let Some(mut inner) = self.inner.lock() {
            if !whole {
                // Another thread was inside: no list of it is looked at. What the kernel's set holds is there still.
                let new = Inner::new(inner.number, self.active);
                core::mem::forget(core::mem::replace(&mut *inner, new));
                self.active.store(false, Relaxed);
            }
            inner.stale = inner.live.is_some();
            inner.sleepers = 0;
            inner.record_told();
            inner.hold_in_child();
        }
    }
}

impl Inner {
    fn new(number: Fd, active: &'static AtomicBool) -> Self {
        Inner {
            number,
            borrowed: false,
            uses: 0,
            active,
            live: None,
            stale: false,
            interest: Interest::default(),
            arenas: Vec::new(),
            places: HashMap::new(),
            ready: VecDeque::new(),
            unsettled: 0,
            special: Vec::new(),
            untold: Vec::new(),
            sleepers: 0,
            waits: 0,
            changes: 0,
            looked: 0,
            filled: 0,
            quiet: 0,
            busy: false,
            edges: Edges::new(),
            is_inner: false,
            kick: None,
            shared: None,
            is_own: false,
        }
    }

    /// Registers a socket, or another set.
    pub(super) fn add(&mut self, fd: Fd, socket: &'static Socket, event: EpollEvent) -> Result<(), Errno> {
        while let Some(dead) = self.interest.find_dead(fd) {
            self.drop_entry(dead);
        }
        if self.interest.find(fd, socket.identity()).is_some() {
            return Err(Errno::EXIST);
        }
        let nested = registry::active(socket);
        // Without a daemon the kernel's half of a listener is all there is; with one, half would be a lost connection.
        if (nested.is_some() || !matches!(socket.watch(), Watch::Kernel))
            && let Err(errno) = self.activate()
            && process::current().is_some()
        {
            return Err(errno);
        }
        if nested.is_none() && matches!(socket.watch(), Watch::Kernel | Watch::Listener) {
            self.look_before();
            kernel::epoll_ctl(self.number, ADD, fd, Some(event))?;
        }
        let word = match nested {
            None => self.publish_new(fd, socket, event)?,
            Some(_) => 0,
        };
        let at = self.interest.add(fd, socket, event);
        if let Some(entry) = self.interest.get_mut(at) {
            entry.word = word;
        }
        self.attach(at);
        Ok(())
    }

    /// Whether a registration is the kernel's alone: its set knows whether it is there still, others may have taken it out.
    pub(super) fn is_kernels(&self, at: u32) -> bool {
        self.interest.get(at).is_some_and(|entry| {
            entry.source == Source::Kernel
                && entry.socket.kind() != Kind::Channel
                && registry::active(entry.socket).is_none()
        })
    }

    /// Adds a registration that this list has and the kernel's set may have no more.
    pub(super) fn add_again(&mut self, at: u32, event: EpollEvent) -> Result<(), Errno> {
        // A one-shot that was told is in the kernel's set no more, and in the set still.
        let Some(Entry { fd, spent: false, .. }) = self.interest.get(at) else { return Err(Errno::EXIST) };
        let fd = *fd;
        self.look_before();
        kernel::epoll_ctl(self.number, ADD, fd, Some(event))?;
        if let Some(entry) = self.interest.get_mut(at) {
            (entry.event, entry.spent) = (event, false);
        }
        self.publish_change(at);
        Ok(())
    }

    /// Changes a registration.
    pub(super) fn modify(&mut self, at: u32, event: EpollEvent) -> Result<(), Errno> {
        // By what was asked for until now.
        self.collect();
        let is_kernels = |entry: &Entry| matches!(entry.source, Source::Kernel | Source::Listener);
        if self.interest.get(at).is_some_and(is_kernels) {
            self.look_before();
        }
        let Some(entry) = self.interest.get_mut(at) else { return Err(Errno::NOENT) };
        if is_kernels(&*entry) {
            change_kernels(self.number, entry, event)?;
        }
        entry.event = event;
        entry.spent = false;
        self.publish_change(at);
        self.enqueue(at);
        Ok(())
    }

    /// Takes a registration out.
    pub(super) fn delete(&mut self, at: u32) -> Result<(), Errno> {
        let Some(entry) = self.interest.get(at) else { return Err(Errno::NOENT) };
        let (fd, source, may_be_out) = (entry.fd, entry.source, may_be_out(entry));
        self.count_edges();
        self.publish_end(at);
        let answer = match source {
            Source::Kernel | Source::Listener => match kernel::epoll_ctl(self.number, DEL, fd, None) {
                Err(Errno::NOENT) if may_be_out => Ok(()),
                answer => answer,
            },
            Source::Channel { .. } | Source::Nested(_) => Ok(()),
        };
        self.drop_entry(at);
        answer
    }

    /// Changes that have not been looked at are edges for the sets that this one is in, also those of an entry that goes.
    pub(super) fn count_edges(&mut self) {
        if self.is_inner {
            self.collect();
        }
    }

    /// Forgets an entry; its kernel registration is gone or dealt with by the caller.
    pub(super) fn drop_entry(&mut self, at: u32) {
        self.detach(at);
        let Some(Entry { socket, identity, outlives, holds, .. }) = self.interest.remove(at) else { return };
        if outlives {
            socket.drop_afterimage();
        }
        // A child that was forked by a handler, on top of a call that let it go, has counted its holds anew.
        if holds && socket.identity() == identity {
            socket.registration_gone();
        }
    }

    /// In a forked child: the holds that its registrations have are counted anew.
    fn hold_in_child(&self) {
        let entries = self.interest.places().filter_map(|at| self.interest.get(at));
        entries.filter(|entry| entry.holds).for_each(|entry| entry.socket.registered_in_child());
    }

    /// The application uses its set under this number. One that had no number of its own gets it some time, if there is one: it takes
    /// system calls to see that, and a program may have few numbers left for as long as it lives.
    pub(super) fn used_as(&mut self, fd: Fd) {
        if self.borrowed {
            self.number = fd;
            self.uses = self.uses.wrapping_add(1);
            if self.uses.is_multiple_of(ASK_NUMBERS)
                && let Some(number) = own_number(fd)
            {
                (self.number, self.borrowed) = (number, false);
            }
        }
    }

    /// One that has nobody to ring it gets a poller if there is a number for it.
    pub(super) fn try_again(&mut self) {
        if self.live.as_ref().is_some_and(|live| live.outer().is_none()) && numbers::has_room_to_stay(self.number) {
            self.stale = true;
        }
    }

    /// Makes the set one that sleeps on its outer set.
    pub(super) fn activate(&mut self) -> Result<(), Errno> {
        if self.live.is_some() {
            return Ok(());
        }
        let poller = match (process::poller(), process::current()) {
            (Some(poller), _) => poller,
            // No number: those of ours are asked at short intervals until there is one.
            (None, Some(attachment)) => Poller::none(attachment.life()),
            (None, None) => return Err(Errno::NOMEM),
        };
        let outer = poller.fd;
        let watch = |fd, events, data| kernel::epoll_ctl(outer, ADD, fd, Some(EpollEvent { events, data }));
        let control = || match process::current() {
            Some(attachment) => watch(attachment.client().fd().as_raw_fd(), RDHUP | ET, CONTROL),
            None => Ok(()),
        };
        if !poller.is_none()
            && let Err(errno) = watch(self.number, IN, KERNEL).and_then(|()| control())
        {
            process::poller_gone(poller);
            return Err(errno);
        }
        if let Some(shared) = self.shared.as_mut().filter(|_| !poller.is_none()) {
            shared.watch(outer);
        }
        self.live = Some(Live { poller });
        // Built anew it has nobody in the application's set; and after fork that has the parent's kick, which is under the same
        // number here.
        if !self.active.swap(true, Relaxed) && self.kick.is_none() {
            self.begin_kick();
        }
        Ok(())
    }

    /// Threads may sleep in the application's set, which nobody rings: a descriptor that is ready wakes one of them, who
    /// takes the event out, makes it ready for the next one ([`Inner::kicked`]) and comes here.
    pub(super) fn begin_kick(&mut self) {
        let threads = if fs_shm::holder::is_single_threaded() { 1 } else { threads() };
        if threads == 1 {
            // Nobody does. Its own waits would take the kicks, one after another, and others that have the set would see it ready.
            return;
        }
        if let Ok(fd) = kernel::eventfd(1) {
            let fd = numbers::keep(sys::owned(fd));
            self.kick = Some((fd, threads.saturating_mul(KICKS_PER_THREAD).saturating_add(KICKS)));
            self.rearm_kick(ADD);
        }
    }

    pub(super) fn rearm_kick(&mut self, operation: i32) {
        self.set_kick(operation, IN | ONESHOT);
    }

    fn set_kick(&mut self, operation: i32, events: u32) {
        if let Some((fd, _)) = self.kick
            && kernel::epoll_ctl(self.number, operation, fd, Some(EpollEvent { events, data: KICK })).is_err()
        {
            self.end_kick();
        }
    }

    /// After [`Inner::mute_kick`]: this look was not a sleeper's. Sleepers get a moment of the processors, which they may wait for longer than
    /// all looks of threads that are awake take together.
    pub(super) fn unmute_kick(&mut self) {
        std::thread::sleep(KICK_PAUSE);
        self.kicked();
    }

    /// The kernel's set is asked without the kick, which would have the place of an event. True: there is one, and
    /// [`Inner::unmute_kick`] is to follow.
    pub(super) fn mute_kick(&mut self) -> bool {
        self.set_kick(MOD, 0);
        self.kick.is_some()
    }

    pub(super) fn end_kick(&mut self) {
        if let Some((fd, _)) = self.kick.take() {
            // Closing takes it out of the set where no child has it. ENOENT: a child was first.
            let _ = kernel::epoll_ctl(self.number, DEL, fd, None);
            forget(fd);
        }
    }

    /// A kick has woken somebody.
    pub(super) fn kicked(&mut self) {
        match &mut self.kick {
            Some((_, left)) if *left > 1 => {
                *left -= 1;
                self.rearm_kick(MOD);
            }
            _ => self.end_kick(),
        }
    }

    /// Wakes a thread that sleeps on this set.
    pub(super) fn ring(&self) {
        if let Some(live) = self.live.as_ref().filter(|live| !live.poller.is_none()) {
            process::bells().ring(live.poller.id);
        }
    }

    /// Where nothing of the set is ours any more, the next call is the kernel's.
    pub(super) fn end_if_not_live(&mut self) {
        if self.live.is_none() {
            self.active.store(false, Relaxed);
        }
    }

    /// The application has closed the set ([`Set::close`]).
    fn close(&mut self) {
        self.end_shared();
        self.is_own = false;
        for at in self.interest.places() {
            self.drop_entry(at);
        }
        // Who sleeps is of a life that is over.
        self.sleepers = 0;
        for joined in self.arenas.drain(..) {
            if let Some(lane) = joined.lane {
                joined.arena.leave(lane);
            }
        }
        self.places.clear();
        self.end_kick();
        self.active.store(false, Relaxed);
        if let Some(live) = self.live.take() {
            match live.outer() {
                // The number is registered as the parent's.
                Some(outer) if self.stale => forget(outer),
                _ => process::poller_gone(live.poller),
            }
        }
        if !self.borrowed {
            forget(self.number);
        }
        self.ready.clear();
        self.unsettled = 0;
        self.special.clear();
        self.untold.clear();
    }
}
