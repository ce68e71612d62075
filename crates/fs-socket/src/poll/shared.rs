//! What the processes that have one epoll set by fork know of it together: its registrations of sockets of ours.
//!
//! On the kernel a set is one list, whoever adds to it, and an event that is told once (EPOLLET, EPOLLONESHOT) is told to one of those
//! who wait. Descriptors of the kernel's are in the kernel's own set. For ours each process has a list of its own, with lanes
//! and a poller of its own ([`Inner`]), and the set's processes share memory that the first fork made, with a *cell* for each
//! registration. Who adds, changes or removes one writes that into the cells and counts up a version; each process brings its list up
//! to the version whenever it takes the set's lock. Nothing of this is there before the first fork.
//!
//! 1. The cells are changed by who holds the memory's lock, which is taken with the set's lock of this process held, never the other
//!    way round. A holder that has died, or is stopped, is not waited for longer than [`PATIENCE`]: what it left half written is one
//!    registration.
//! 2. Who is about to sleep counts itself first, and then looks at the version; who changes it looks at the counts after that.
//! 3. All that is read is checked: the other processes are the program's, but may have given up rights.
//!
//! `docs/decisions/0022` has what is not shared.

use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
};

use fs_shm::{Channel, Side, holder};

use super::{
    EpollEvent, forget,
    interest::{ET, Entry, ONESHOT, Source},
    registry,
    set::{ADD, DEL, Inner, Live, SHARED, Set},
    sys::{kernel, words::Words},
};
use crate::{
    descriptor::{numbers, table},
    listen,
    process::{self, arenas},
    socket::{Kind, Socket},
    sys,
    types::Fd,
};

/// Words of the memory's head: the lock, the version, processes that have the set, how many of them sleep in our way and in the
/// kernel's set, cells used at least once, the lowest that may be free, the last registration's number.
const LOCK: usize = 0;
const VERSION: usize = 1;
const HOLDERS: usize = 2;
const SLEEPERS: usize = 3;
const DIRECT: usize = 4;
const USED: usize = 5;
const LOWEST: usize = 6;
const SERIAL: usize = 7;
/// Which cell each of the last changes was of.
const CHANGES: usize = 8;
const KEPT: u64 = 56;

/// The first cell, and words of each.
const CELLS: usize = 64;
const CELL: usize = 8;
/// Cells of a set: a mebibyte of addresses. More registrations are this process's own.
const COUNT: usize = (1 << 14) - CELLS / CELL;

/// Words of a cell: what it is and the number ([`word_of_kind`]; 0: it is free), which, generation and side, events, data, the
/// registration's number, what it had when it was last told of and to whom, changes of it << 1 | it was told of and sleeps.
const WHAT: usize = 0;
const WHICH: usize = 1;
const LIFE: usize = 2;
const EVENTS: usize = 3;
const DATA: usize = 4;
const NUMBER: usize = 5;
const TOLD: usize = 6;
const STATE: usize = 7;

const CHANNEL: u64 = 1;
const LISTENER: u64 = 2;

/// Of [`TOLD`], the low bits are the process.
const TELLER: u64 = 0xffff;

/// Looks at the lock, in turn by [`table::pause`]: some 20 ms.
const PATIENCE: u32 = 600;

/// What this process has of a set's memory.
#[derive(Debug)]
pub(super) struct Shared {
    words: Words,
    /// Each write to it is an edge for the outer sets of all processes. Never read.
    bell: Fd,
    /// The version that the list is of.
    seen: u64,
    /// By cell: the entry + 1.
    places: Vec<u32>,
}

/// Which cell an entry has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// The cell + 1; 0: none.
    cell: u32,
    number: u64,
    changes: u64,
}

/// A copy of a cell.
#[derive(Clone, Copy, Debug)]
struct Cell {
    fd: Fd,
    what: Object,
    event: EpollEvent,
    number: u64,
    changes: u64,
    spent: bool,
}

/// Which socket, for all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    Channel { arena: u32, slot: u32, generation: u32, side: Side },
    Listener(u32),
}

impl Object {
    fn of(entry: &Entry) -> Option<Self> {
        match entry.source {
            Source::Channel { .. } => {
                let (mapped, channel) = (entry.socket.mapped()?, entry.socket.channel()?);
                let (arena, slot) = (mapped.id(), channel.slot());
                Some(Object::Channel { arena, slot, generation: channel.generation(), side: channel.side() })
            }
            Source::Listener => {
                Some(Object::Listener(listen::id(entry.socket))).filter(|it| *it != Object::Listener(0))
            }
            Source::Kernel | Source::Nested(_) => None,
        }
    }

    /// As the words of a cell of this number.
    fn words(self, fd: Fd) -> [u64; 3] {
        let fd = u64::from(fd as u32);
        match self {
            Object::Channel { arena, slot, generation, side } => {
                let which = u64::from(arena) << 32 | u64::from(slot);
                [CHANNEL << 32 | fd, which, u64::from(generation) << 1 | side.index() as u64]
            }
            Object::Listener(id) => [LISTENER << 32 | fd, u64::from(id), 0],
        }
    }

    fn from_words([what, which, life]: [u64; 3]) -> Option<Self> {
        match what >> 32 {
            CHANNEL => {
                let side = if life & 1 == Side::A.index() as u64 { Side::A } else { Side::B };
                let (arena, slot, generation) = ((which >> 32) as u32, which as u32, (life >> 1) as u32);
                Some(Object::Channel { arena, slot, generation, side })
            }
            LISTENER => Some(Object::Listener(which as u32)),
            _ => None,
        }
    }

    /// The socket of this process; of a connection that it does not hold what can be looked at of it, and then true. `None`: it has
    /// no part in it, or nobody has.
    fn socket(self, fd: Fd) -> Option<(&'static Socket, bool)> {
        let attachment = process::current()?;
        match self {
            Object::Listener(id) => {
                let of_number = table::find(fd).filter(|socket| listen::id(socket) == id);
                match of_number.or_else(|| listen::of_id(attachment, id).map(|held| held.unheld())) {
                    Some(socket) => Some((socket, false)),
                    None => listen::image_of_id(id).map(|image| (image, true)),
                }
            }
            Object::Channel { arena, slot, generation, side } => {
                let mapped = arenas::ask(attachment, arena, side)?;
                let channel = mapped.channel(slot, generation).filter(Channel::is_held)?;
                let is_it = |socket: &Socket| {
                    socket.kind() == Kind::Channel
                        && socket.descriptors() != 0
                        && socket.mapped().is_some_and(|of| core::ptr::eq(of, mapped))
                        && socket.channel().is_some_and(|of| (of.slot(), of.generation()) == (slot, generation))
                };
                if let Some(socket) = table::find(fd).filter(|socket| is_it(socket)) {
                    return Some((socket, false));
                }
                let mut held = None;
                Socket::each(|socket| {
                    if held.is_none() && is_it(socket) {
                        held = Some(socket);
                    }
                });
                held.map(|socket| (socket, false))
                    .or_else(|| Some((Socket::image_of(attachment.life(), mapped, &channel)?, true)))
            }
        }
    }
}

impl Shared {
    fn new() -> Option<Self> {
        let words = Words::new(CELLS + COUNT * CELL)?;
        let bell = numbers::keep(sys::owned(kernel::eventfd(0).ok()?));
        let shared = Shared { words, bell, seen: 0, places: Vec::new() };
        shared.head(HOLDERS).store(1, Relaxed);
        Some(shared)
    }

    #[inline]
    fn head(&self, word: usize) -> &AtomicU64 {
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        // Every place that is asked for is below the end: cells are below `COUNT` and words below `CELL`.
        self.words.get(word).unwrap_or(&NOWHERE)
    }

    #[inline]
    fn cell(&self, cell: usize, word: usize) -> &AtomicU64 {
        self.head(CELLS + cell * CELL + word)
    }

    /// What outer sets are woken by.
    pub(super) fn bell(&self) -> Fd {
        self.bell
    }

    /// Whether other processes have the set.
    #[inline]
    fn has_others(&self) -> bool {
        self.head(HOLDERS).load(Relaxed) > 1
    }

    /// Whether the list is not of the last version.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.head(VERSION).load(SeqCst) != self.seen
    }

    fn lock(&self) {
        let lock = self.head(LOCK);
        let mut rounds = 0;
        while lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() && rounds < PATIENCE {
            rounds += 1;
            table::pause(rounds);
        }
    }

    fn unlock(&self) {
        self.head(LOCK).store(0, Release);
    }

    /// With the lock held.
    fn read(&self, cell: usize) -> Option<Cell> {
        let word = |word| self.cell(cell, word).load(Acquire);
        let what = word(WHAT);
        let object = Object::from_words([what, word(WHICH), word(LIFE)])?;
        let state = word(STATE);
        Some(Cell {
            fd: Fd::try_from(what as u32).ok()?,
            what: object,
            event: EpollEvent { events: word(EVENTS) as u32, data: word(DATA) },
            number: word(NUMBER),
            changes: state >> 1,
            spent: state & 1 != 0,
        })
    }

    /// With the lock held: a cell that nothing is in; `None`: all are used.
    fn free(&self) -> Option<usize> {
        let used = self.used();
        let lowest = (self.head(LOWEST).load(Relaxed) as usize).min(used);
        let cell = (lowest..used).find(|&cell| self.cell(cell, WHAT).load(Relaxed) == 0).unwrap_or(used);
        (cell < COUNT).then_some(cell)?;
        self.head(LOWEST).store(cell as u64 + 1, Relaxed);
        self.head(USED).store(used.max(cell + 1) as u64, Relaxed);
        Some(cell)
    }

    fn used(&self) -> usize {
        (self.head(USED).load(Acquire) as usize).min(COUNT)
    }

    /// With the lock held: this cell has changed, by this process, whose list was of the last version.
    fn changed(&mut self, cell: usize) {
        let version = self.head(VERSION).load(Relaxed).wrapping_add(1);
        self.head(CHANGES + (version % KEPT) as usize).store(cell as u64, Relaxed);
        self.head(VERSION).store(version, SeqCst);
        self.seen = version;
    }

    fn set_place(&mut self, cell: usize, at: Option<u32>) {
        if self.places.len() <= cell {
            self.places.resize(cell + 1, 0);
        }
        self.places[cell] = at.map_or(0, |at| at + 1);
    }

    /// Wakes the sleepers of all processes in our way; true: some sleep in the kernel's.
    fn wake(&self) -> bool {
        if self.head(SLEEPERS).load(SeqCst) != 0 {
            // Full after 2^64 changes.
            let _ = sys::call::write(self.bell, &1_u64.to_ne_bytes());
        }
        self.head(DIRECT).load(SeqCst) != 0
    }
}

/// Whether any set of this process was ever shared.
pub(super) static ANY: AtomicBool = AtomicBool::new(false);
/// Whether this process, or one that it is forked from, has forked.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Before fork: the sets of this process have memory that the child will have too. True: [`fork_failed`] has to follow a fork that
/// fails.
pub(crate) fn before_fork() -> bool {
    FORKED.store(true, Relaxed);
    if process::current().is_none() || fs_shm::wait::is_confined() {
        return false;
    }
    let mut any = false;
    table::each(0, u32::MAX, |fd, socket| {
        if socket.kind() != Kind::Epoll {
            return;
        }
        let index = super::ctl::instance(fd).ok();
        let Some(set) = index.and_then(registry::find) else { return };
        // `None`: a handler in the middle of the set forks. The child has a list of its own.
        if let Some(mut inner) = set.lock() {
            any |= inner.share();
            set.set_shared(inner.shared.is_some());
        }
    });
    if any {
        ANY.store(true, Relaxed);
        count(1);
    }
    any
}

/// The fork that [`before_fork`] was for has failed.
pub(crate) fn fork_failed() {
    count(-1);
}

/// This process is about to have a new image, which does not have the memory, or has not got one.
pub(crate) fn before_exec() {
    count(-1);
}

/// See [`before_exec`].
pub(crate) fn exec_failed() {
    count(1);
}

/// So many processes more have the sets that this one has.
fn count(more: i64) {
    if !ANY.load(Relaxed) {
        return;
    }
    registry::each(|set| {
        if let Some(shared) = set.lock_as_it_is().as_ref().and_then(|inner| inner.shared.as_ref()) {
            shared.head(HOLDERS).fetch_add(more as u64, AcqRel);
        }
    });
}

/// Brings a set up that has nothing of ours, as far as this process knows.
#[cold]
pub(super) fn look(set: &'static Set) {
    // Taking the lock does.
    drop(set.lock());
    registry::follow_active(set);
}

/// A thread is about to wait in the kernel's own set. False: others have changed what it has of ours.
pub(super) fn begin_direct(set: &Set) -> bool {
    let Some(inner) = set.lock_as_it_is() else { return true };
    let Some(shared) = &inner.shared else { return true };
    shared.head(DIRECT).fetch_add(1, SeqCst);
    let stays = !shared.is_behind();
    if !stays {
        shared.head(DIRECT).fetch_sub(1, SeqCst);
    }
    stays
}

/// It is back.
pub(super) fn end_direct(set: &Set) {
    if let Some(shared) = set.lock_as_it_is().as_ref().and_then(|inner| inner.shared.as_ref()) {
        // Another process may have lost its count with the memory's first word; never below 0.
        let _ = shared.head(DIRECT).fetch_update(SeqCst, Relaxed, |count| count.checked_sub(1));
    }
}

impl Inner {
    /// Gives the set memory for its registrations, if it has none. False: there is none to be had.
    fn share(&mut self) -> bool {
        if self.shared.is_some() {
            return true;
        }
        let Some(shared) = Shared::new() else { return false };
        if let Some(outer) = self.live.as_ref().and_then(Live::outer) {
            watch_bell(outer, shared.bell());
        }
        self.shared = Some(shared);
        self.begin_change();
        for at in self.interest.places() {
            self.publish(at);
        }
        self.end_change();
        true
    }

    /// Whether others may have changed the set since.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.shared.as_ref().is_some_and(Shared::is_behind)
    }

    /// Brings the list up to what the set's processes have made of it.
    #[cold]
    pub(super) fn catch_up(&mut self) {
        self.begin_change();
        self.end_change();
    }

    /// Takes the memory's lock, and brings the list up.
    pub(super) fn begin_change(&mut self) {
        let Some(shared) = &mut self.shared else { return };
        shared.lock();
        let (version, seen, used) = (shared.head(VERSION).load(Relaxed), shared.seen, shared.used());
        shared.seen = version;
        let new = version.wrapping_sub(seen);
        if new > KEPT {
            (0..used).for_each(|cell| self.follow(cell));
        } else {
            for change in (1..=new).map(|back| seen.wrapping_add(back)) {
                let Some(shared) = &self.shared else { return };
                let cell = shared.head(CHANGES + (change % KEPT) as usize).load(Relaxed) as usize;
                if cell < used {
                    self.follow(cell);
                }
            }
        }
    }

    /// Lets the lock go.
    pub(super) fn end_change(&mut self) {
        if let Some(shared) = &self.shared {
            shared.unlock();
            self.end_if_not_live();
        }
    }

    /// The set was changed by this process: others that sleep in it look.
    pub(super) fn wake_others(&mut self) {
        let Some(shared) = self.shared.as_ref().filter(|shared| shared.has_others()) else { return };
        if shared.wake() && self.kick.is_none() && self.live.is_some() {
            self.make_kick();
        }
    }

    /// An entry goes, from this process's list.
    pub(super) fn leave_place(&mut self, at: u32) {
        if let Some(cell) = self.interest.get(at).and_then(|entry| entry.place.cell.checked_sub(1)) {
            self.set_place(cell as usize, None);
        }
    }

    /// What a cell says by now is the list's.
    fn follow(&mut self, cell: usize) {
        let Some(shared) = &self.shared else { return };
        let now = shared.read(cell);
        let known = shared.places.get(cell).and_then(|at| at.checked_sub(1));
        if let Some(at) = known {
            let place = self.interest.get(at).map(|entry| entry.place);
            match (now, place) {
                (Some(now), Some(place)) if place.number == now.number => {
                    if now.changes != place.changes {
                        self.collect();
                        self.take_over(at, cell, now);
                        self.enqueue(at);
                    }
                    return;
                }
                _ => {
                    self.set_place(cell, None);
                    if self.interest.get(at).is_some_and(|entry| entry.place.cell as usize == cell + 1) {
                        self.drop_entry(at);
                    }
                }
            }
        }
        let Some(now) = now else { return };
        let Some((socket, is_image)) = now.what.socket(now.fd) else { return };
        while let Some(dead) = self.interest.find_dead(now.fd) {
            self.drop_entry(dead);
        }
        let at = match self.interest.find(now.fd, socket.identity()) {
            Some(at) => {
                // Two processes have announced it anew.
                self.withdraw(at);
                self.take_over(at, cell, now);
                self.moved(at);
                at
            }
            None => {
                let at = self.interest.add(now.fd, socket, now.event);
                self.take_over(at, cell, now);
                self.attach(at);
                at
            }
        };
        if let Some(entry) = self.interest.get_mut(at) {
            entry.outlives |= is_image;
        }
    }

    fn set_place(&mut self, cell: usize, at: Option<u32>) {
        if let Some(shared) = &mut self.shared {
            shared.set_place(cell, at);
        }
    }

    /// The entry is this cell's.
    fn take_over(&mut self, at: u32, cell: usize, now: Cell) {
        self.set_place(cell, Some(at));
        if let Some(entry) = self.interest.get_mut(at) {
            entry.place = Place { cell: cell as u32 + 1, number: now.number, changes: now.changes };
            entry.event = now.event;
            entry.spent = now.spent;
        }
    }

    /// With the memory's lock held: an entry is new, or has become another socket's, or the kernel's.
    pub(super) fn publish(&mut self, at: u32) {
        let (Some(shared), Some(entry)) = (&mut self.shared, self.interest.get_mut(at)) else { return };
        let Some(object) = Object::of(entry) else { return self.withdraw(at) };
        let (cell, is_new) = match entry.place.cell.checked_sub(1) {
            Some(cell) => (cell as usize, false),
            None => match shared.free() {
                Some(cell) => (cell, true),
                None => return,
            },
        };
        if is_new {
            let number = shared.head(SERIAL).fetch_add(1, Relaxed).wrapping_add(1);
            entry.place = Place { cell: cell as u32 + 1, number, changes: 0 };
            shared.cell(cell, NUMBER).store(number, Relaxed);
        }
        let [what, which, life] = object.words(entry.fd);
        let state = entry.place.changes << 1 | u64::from(entry.spent);
        for (word, value) in [
            (WHICH, which),
            (LIFE, life),
            (EVENTS, entry.event.events.into()),
            (DATA, entry.event.data),
            (TOLD, 0),
            (STATE, state),
            (WHAT, what),
        ] {
            shared.cell(cell, word).store(value, Release);
        }
        shared.set_place(cell, Some(at));
        shared.changed(cell);
    }

    /// The same of an entry that has been changed by EPOLL_CTL_MOD.
    pub(super) fn publish_change(&mut self, at: u32) {
        if let Some(entry) = self.interest.get_mut(at) {
            entry.place.changes = entry.place.changes.wrapping_add(1) & (u64::MAX >> 1);
        }
        self.publish(at);
    }

    /// Whether another process has taken an entry out of the kernel's set that is the kernel's, and is to be added anew.
    pub(super) fn is_gone(&mut self, at: u32, operation: i32, event: EpollEvent) -> bool {
        let Some(entry) = self.interest.get(at).filter(|entry| entry.source == Source::Kernel) else { return false };
        let fd = entry.fd;
        if operation != ADD || !FORKED.load(Relaxed) || kernel::epoll_ctl(self.number, ADD, fd, Some(event)).is_err() {
            return false;
        }
        // It was, and is added with all that belongs to that.
        let _ = kernel::epoll_ctl(self.number, DEL, fd, None);
        self.drop_entry(at);
        true
    }

    /// An entry's socket may have become something else.
    pub(super) fn publish_move(&mut self, at: u32) {
        if self.shared.is_some() {
            self.begin_change();
            self.publish(at);
            self.end_change();
            self.wake_others();
        }
    }

    /// With the memory's lock held: an entry is no registration of the set any more.
    pub(super) fn withdraw(&mut self, at: u32) {
        let (Some(shared), Some(entry)) = (&mut self.shared, self.interest.get_mut(at)) else { return };
        let Some(cell) = core::mem::take(&mut entry.place).cell.checked_sub(1) else { return };
        let cell = cell as usize;
        shared.cell(cell, WHAT).store(0, Release);
        shared.head(LOWEST).fetch_min(cell as u64, Relaxed);
        shared.set_place(cell, None);
        shared.changed(cell);
    }

    /// An entry goes whose socket is gone: no process has it any more, or only this one has closed it ([`Source::Listener`]).
    pub(super) fn drop_dead(&mut self, at: u32) {
        let is_anywhere = |entry: &Entry| match entry.source {
            Source::Channel { .. } => {
                entry.place.cell != 0 && (entry.outlives || entry.socket.identity() == entry.identity)
            }
            Source::Kernel | Source::Listener | Source::Nested(_) => false,
        };
        if self.shared.is_some() && self.interest.get(at).is_some_and(is_anywhere) {
            self.begin_change();
            self.withdraw(at);
            self.drop_entry(at);
            self.end_change();
        } else {
            self.drop_entry(at);
        }
    }

    /// What an entry has whose events are told once in all processes; `None`: it is told of here.
    #[inline]
    pub(super) fn told_once(&self, at: u32) -> Option<u64> {
        self.shared.as_ref().filter(|shared| shared.has_others())?;
        let entry = self.interest.get(at)?;
        let is_once = entry.event.events & (ET | ONESHOT) != 0 && entry.place.cell != 0;
        is_once.then(|| had_ever(entry))
    }

    /// Whether the entry, which had this before it was asked, may be told of here. One process does, and says so in the cell.
    pub(super) fn may_tell(&mut self, at: u32, had: u64) -> bool {
        let (Some(shared), Some(entry)) = (&self.shared, self.interest.get_mut(at)) else { return true };
        let Some(cell) = entry.place.cell.checked_sub(1) else { return true };
        let cell = cell as usize;
        if shared.cell(cell, NUMBER).load(Acquire) != entry.place.number {
            // Removed, which is found out next.
            return false;
        }
        if entry.event.events & ONESHOT != 0 {
            let armed = entry.place.changes << 1;
            if shared.cell(cell, STATE).compare_exchange(armed, armed | 1, AcqRel, Acquire).is_ok() {
                return true;
            }
            entry.spent = true;
            return false;
        }
        let mine = told_here(had);
        shared.cell(cell, TOLD).fetch_update(AcqRel, Acquire, |told| (!is_anothers(told, mine)).then_some(mine)).is_ok()
    }

    /// Whether another process has told what the entry has. Nothing is claimed.
    pub(super) fn was_told_elsewhere(&self, at: u32) -> bool {
        let (Some(had), Some(shared), Some(entry)) = (self.told_once(at), &self.shared, self.interest.get(at)) else {
            return false;
        };
        let Some(cell) = entry.place.cell.checked_sub(1) else { return false };
        let word = |word| shared.cell(cell as usize, word).load(Acquire);
        if entry.event.events & ONESHOT != 0 { word(STATE) & 1 != 0 } else { is_anothers(word(TOLD), told_here(had)) }
    }

    /// A thread sleeps on the outer set from here on, unless the set [is behind](Inner::is_behind) after this.
    pub(super) fn begin_sleep(&mut self) {
        self.sleepers += 1;
        if let Some(shared) = &self.shared {
            shared.head(SLEEPERS).fetch_add(1, SeqCst);
        }
    }

    /// It is awake.
    pub(super) fn sleep_is_over(&mut self) {
        self.sleepers = self.sleepers.saturating_sub(1);
        if let Some(shared) = &self.shared {
            // Those of a process that was killed stay counted: a system call for each change. Never below 0.
            let _ = shared.head(SLEEPERS).fetch_update(SeqCst, Relaxed, |count| count.checked_sub(1));
        }
    }

    /// This process has the set no more.
    pub(super) fn end_shared(&mut self) {
        if let Some(shared) = self.shared.take() {
            shared.head(HOLDERS).fetch_sub(1, AcqRel);
            forget(shared.bell);
        }
    }
}

/// That this process has told of what an entry has.
fn told_here(had: u64) -> u64 {
    had << 16 | u64::from(holder::attachment()) & TELLER
}

/// Whether that was told by another process.
fn is_anothers(told: u64, mine: u64) -> bool {
    told != 0 && told != mine && told & !TELLER == mine & !TELLER
}

/// What an entry's socket has ever had, in one word: it is another one after each event, whoever has read what came.
fn had_ever(entry: &Entry) -> u64 {
    match entry.source {
        Source::Listener => {
            listen::refresh(entry.socket);
            listen::came(entry.socket)
        }
        _ => entry.socket.channel().map_or(0, |channel| channel.progress(entry.hears())),
    }
}

/// Has an outer set tell of changes by other processes.
pub(super) fn watch_bell(outer: Fd, bell: Fd) {
    let event = EpollEvent { events: 1 | ET, data: SHARED };
    // ENOMEM, ENOSPC: this process hears of a change when it wakes for another reason.
    let _ = kernel::epoll_ctl(outer, ADD, bell, Some(event));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cell_says_is_read_as_it_was_written_and_nothing_else_is() {
        let channel = Object::Channel { arena: 7, slot: u32::MAX, generation: 9, side: Side::B };
        for object in [channel, Object::Listener(5)] {
            assert_eq!(Object::from_words(object.words(3)), Some(object));
        }
        for what in [0, 3, 7 << 32, u64::MAX] {
            assert_eq!(Object::from_words([what, 1, 2]), None, "{what:x}");
        }
    }

    #[test]
    fn a_cell_that_is_left_is_used_again_and_none_beyond_the_end() {
        let shared = Shared::new().unwrap();
        let take = || shared.free().inspect(|&cell| shared.cell(cell, WHAT).store(LISTENER << 32, Relaxed));
        assert_eq!([take(), take(), take()], [Some(0), Some(1), Some(2)]);
        shared.cell(1, WHAT).store(0, Relaxed);
        shared.head(LOWEST).fetch_min(1, Relaxed);
        assert_eq!([take(), take()], [Some(1), Some(3)]);
        // As another process may have written it.
        shared.head(USED).store(u64::MAX, Relaxed);
        shared.head(LOWEST).store(u64::MAX - 1, Relaxed);
        assert_eq!(take(), None);
        forget(shared.bell);
    }

    #[test]
    fn what_was_told_is_told_again_by_who_told_it_only() {
        let (mine, theirs) = (5 << 16 | 1, 5 << 16 | 2);
        assert!(is_anothers(theirs, mine));
        assert!(!is_anothers(mine, mine) && !is_anothers(0, mine) && !is_anothers(6 << 16 | 2, mine));
    }

    /// As a child that was killed in the middle leaves it.
    #[test]
    fn who_has_died_with_the_lock_is_not_waited_for() {
        let shared = Shared::new().unwrap();
        shared.lock();
        shared.lock();
        shared.unlock();
        forget(shared.bell);
    }
}
