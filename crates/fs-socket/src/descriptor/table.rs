//! Descriptor number → socket.
//!
//! 1. An entry is written only by the call that got the number from the kernel (socket, accept, dup) or that is giving it
//!    back (close), so writers of one entry never race unless the application closes what another thread is making.
//! 2. Readers load the entry and nothing else. What they get never goes away ([`mod@crate::socket`]), but may have become
//!    another socket meanwhile: who reads its channel without a hold looks at the entry once more behind that (`crate::send`), and
//!    calls on a channel that has ended find that out by its generation, under the channel's own lock.
//! 3. While a fork is being prepared no entry changes (`Changing`).

use core::{
    ops::Deref,
    ptr,
    sync::atomic::{
        AtomicU32, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};
use std::time::Instant;

use crate::{
    process::{
        self, Attachment,
        held::{Held, Note},
    },
    socket::{Kind, Socket},
    sys::{
        array::Array,
        pointer::Pointer,
        signals::{self, Section},
        thread,
    },
    types::Fd,
};

/// Numbers from here on stay the kernel's. The attachment page has as many entries.
pub const LIMIT: usize = 1 << 20;

static ENTRIES: Array<Pointer<Socket>, LIMIT> = Array::new();

/// One above the highest number that ever had an entry.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// See [`Array::grow_to`].
pub(crate) fn grow(count: usize) {
    ENTRIES.grow_to(count);
}

/// The socket behind a number, unheld. Two loads.
#[inline]
pub(crate) fn find(fd: Fd) -> Option<&'static Socket> {
    ENTRIES.at(fd as usize)?.load()
}

/// Where the socket behind a number stands, for who looks more than once.
#[inline]
pub(crate) fn entry(fd: Fd) -> Option<&'static Pointer<Socket>> {
    ENTRIES.at(fd as usize)
}

/// Gives the number to the socket; false when it cannot have an entry.
pub(crate) fn set(fd: Fd, socket: &'static Socket) -> bool {
    let Some(entry) = usize::try_from(fd).ok().and_then(|index| ENTRIES.make(index)) else { return false };
    HIGHEST.fetch_max(fd as usize + 1, Relaxed);
    entry.store(Some(socket));
    true
}

/// Takes the number's socket out.
pub(crate) fn take(fd: Fd) -> Option<&'static Socket> {
    let entry = ENTRIES.at(usize::try_from(fd).ok()?)?;
    entry.load()?;
    entry.swap(None)
}

/// Every number that has an entry, in order. Others may change meanwhile.
pub(crate) fn each(first: u32, last: u32, mut visit: impl FnMut(Fd, &'static Socket)) {
    let end = HIGHEST.load(Relaxed).min((last as usize).saturating_add(1));
    for fd in first as usize..end {
        if let Some(socket) = find(fd as Fd) {
            visit(fd as Fd, socket);
        }
    }
}

/// The same from the highest number down.
pub(crate) fn each_down(first: u32, last: u32, mut visit: impl FnMut(Fd, &'static Socket)) {
    let end = HIGHEST.load(Relaxed).min((last as usize).saturating_add(1));
    for fd in (first as usize..end).rev() {
        if let Some(socket) = find(fd as Fd) {
            visit(fd as Fd, socket);
        }
    }
}

/// A socket held: it is not torn down (no FIN is sent) while this stands, as a kernel call holds its file.
#[derive(Debug)]
pub struct SocketRef {
    /// For the case that a signal handler jumps out of the call. `None`: it is not run before the hold ends.
    note: Option<Note>,
    socket: &'static Socket,
}

impl SocketRef {
    /// The socket, without the hold: memory that stays a socket's for ever, perhaps another's
    /// ([`Socket::identity`] tells).
    pub fn unheld(&self) -> &'static Socket {
        self.socket
    }

    /// One of [`socket_in_section`] is held beyond the section.
    pub(crate) fn keep(mut self) -> Self {
        self.note = Some(Note::new(Held::Socket(self.socket)));
        self
    }
}

impl Deref for SocketRef {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        self.socket
    }
}

impl Drop for SocketRef {
    fn drop(&mut self) {
        let _section = self.note.is_some().then(Section::begin);
        self.note = None;
        self.socket.release();
    }
}

/// The socket behind a number, held; `None`: not ours.
pub fn socket(fd: Fd) -> Option<SocketRef> {
    signals::begin_section();
    let held = socket_in_section(fd).map(SocketRef::keep);
    signals::end_section();
    held
}

/// The same within a section ([`signals::begin_section`]), and not beyond it.
#[inline]
pub(crate) fn socket_in_section(fd: Fd) -> Option<SocketRef> {
    loop {
        let socket = find(fd)?;
        if !socket.hold() {
            // Being torn down: the entry is gone already, or is about to go.
            if find(fd).is_some_and(|now| ptr::eq(now, socket)) {
                return None;
            }
            continue;
        }
        let held = SocketRef { note: None, socket };
        if find(fd).is_some_and(|now| ptr::eq(now, socket)) {
            return Some(held);
        }
    }
}

/// The same for a socket that is known; `None`: it is being torn down.
pub(crate) fn hold(socket: &'static Socket) -> Option<SocketRef> {
    socket.hold().then_some(SocketRef { note: None, socket }.keep())
}

/// The index of an epoll set that has had no socket of ours yet.
const NO_INDEX: u32 = u32::MAX;

/// The epoll instance behind a number (its index as given to `set_epoll`); `None` while it has no index.
pub fn epoll(fd: Fd) -> Option<u32> {
    index_of(find(fd)?)
}

/// The epoll instance that a socket of the table is.
pub(crate) fn index_of(socket: &Socket) -> Option<u32> {
    (socket.kind() == Kind::Epoll).then(|| socket.epoll_index()).filter(|&index| index != NO_INDEX)
}

/// `fd` is an epoll set that the kernel has just made. From now on its duplicates are known: the set becomes ours for all
/// of them at once, whichever of them the first socket of ours is added by.
pub fn epoll_made(fd: Fd) {
    let _changing = Changing::begin();
    displaced(fd);
    // Without a place it is as before: ours only under the number that a socket was added by.
    let Some(socket) = Socket::make(Kind::Epoll) else { return };
    socket.set_epoll_index(NO_INDEX);
    socket.add_descriptor(fd);
    if !set(fd, socket) {
        socket.forget_descriptor(fd);
    }
}

/// `fd` is an epoll instance of [`crate::poll`]. Its duplicates and closing are followed:
/// `crate::poll::epoll_closed` is called when the last number in this process is gone. False: no room, the kernel's alone.
pub(crate) fn set_epoll(fd: Fd, index: u32) -> bool {
    let _changing = Changing::begin();
    if let Some(known) = find(fd).filter(|socket| socket.kind() == Kind::Epoll) {
        known.set_epoll_index(index);
        return true;
    }
    let Some(socket) = Socket::make(Kind::Epoll) else { return false };
    displaced(fd);
    socket.set_epoll_index(index);
    socket.add_descriptor(fd);
    let set = set(fd, socket);
    if !set {
        socket.forget_descriptor(fd);
    }
    set
}

/// The kernel has just given this number out: what the table still has of it was closed behind our back.
pub(crate) fn displaced(fd: Fd) {
    if find(fd).is_some() {
        crate::descriptor::forget(fd);
    }
}

/// Keeps the application's close and dup2 away from a number of ours.
pub(crate) fn set_internal(fd: Fd) {
    let _changing = Changing::begin();
    displaced(fd);
    if let Some(socket) = Socket::make(Kind::Internal) {
        socket.add_descriptor(fd);
        set(fd, socket);
    }
}

/// The number is about to be closed by us.
pub(crate) fn unset_internal(fd: Fd) {
    let _changing = Changing::begin();
    if let Some(socket) = take(fd) {
        socket.forget_descriptor(fd);
    }
}

/// The word of [`Changing`]: how many change entries; [`FORKING`] while a fork stands still.
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// The thread that forks: what it does itself (a signal handler between the two halves) goes on.
static FORKER: AtomicUsize = AtomicUsize::new(0);
const FORKING: u32 = 1 << 31;

/// The thread whose handler waits for this fork no more.
static IMPATIENT: AtomicUsize = AtomicUsize::new(0);
/// So long does a handler wait for a fork. More: a fork that waits for that handler is felt for as long. Less: one of a large process, which
/// takes some 20 ms for each GiB, is not over, and the child may miss a descriptor.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether this handler waits no more: it may have come in the middle of malloc(3), whose locks the C library's fork(2) takes after all
/// stand still here.
#[cold]
fn is_impatient(began: &Instant) -> bool {
    if IMPATIENT.load(Relaxed) == thread::me() {
        return true;
    }
    let is = began.elapsed() > PATIENCE;
    if is {
        IMPATIENT.store(thread::me(), Relaxed);
    }
    is
}

/// Held while entries, counts or the attachment page change. Any number of threads (and handlers on them) may hold it;
/// only a fork keeps them out. The daemon, which puts right what processes left behind that died in the middle of a change,
/// sees it in the attachment page and waits for those who live.
pub(crate) struct Changing(Option<&'static Attachment>, Option<Note>);

impl Changing {
    pub(crate) fn begin() -> Self {
        // First: a handler that forks would wait for what it has interrupted here.
        signals::begin_section();
        let mut rounds = 0_u32;
        let mut began = None;
        while CHANGING.fetch_add(1, Acquire) & FORKING != 0 && FORKER.load(Relaxed) != thread::me() {
            if signals::in_handler() && is_impatient(began.get_or_insert_with(Instant::now)) {
                break;
            }
            CHANGING.fetch_sub(1, Release);
            rounds += 1;
            pause(rounds);
        }
        let attachment = process::begin_change();
        Changing(attachment, Some(Note::new(Held::Changing(attachment))))
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.1 = None;
        end_change(self.0);
        signals::end_section();
    }
}

/// What [`Changing::begin`] has begun is over.
pub(crate) fn end_change(attachment: Option<&'static Attachment>) {
    if let Some(attachment) = attachment {
        attachment.page().end_change();
    }
    CHANGING.fetch_sub(1, Release);
}

/// Where each look takes long: what is waited for besides ([`Still::begin_with`]) is held by one that is stopped.
const LONGEST: Duration = Duration::from_secs(5);

/// Nobody changes anything while it stands.
#[derive(Debug)]
pub(crate) struct Still(());

impl Still {
    /// Waits for those who change something. After a second it goes on: somebody was stopped in the middle, or this is a
    /// handler in the middle of its own thread's change; the child then misses one descriptor at worst.
    ///
    /// Together with what `take` answers, which those who change something may be waiting for in their turn: it is let go
    /// and taken again between two looks.
    pub(crate) fn begin_with<T>(mut take: impl FnMut() -> T) -> (Self, T) {
        // A handler that jumped out of a fork would leave all others waiting.
        signals::begin_section();
        let began = Instant::now();
        for rounds in 0..20_000 {
            if began.elapsed() > LONGEST {
                break;
            }
            let taken = take();
            if CHANGING.compare_exchange(0, FORKING, Acquire, Relaxed).is_ok() {
                FORKER.store(thread::me(), Relaxed);
                return (Still(()), taken);
            }
            drop(taken);
            pause(rounds);
        }
        let taken = take();
        CHANGING.fetch_or(FORKING, Acquire);
        FORKER.store(thread::me(), Relaxed);
        (Still(()), taken)
    }

    /// In the child: nobody else is there. Handlers wait on ([`signals::end_sections_in_child`]).
    pub(crate) fn end_in_child() {
        IMPATIENT.store(0, Relaxed);
        CHANGING.store(0, Release);
    }

    pub(crate) fn end(self) {
        FORKER.store(0, Relaxed);
        CHANGING.fetch_and(!FORKING, Release);
        IMPATIENT.store(0, Relaxed);
        signals::end_section();
    }
}

/// Spins, then yields, then naps 50 µs.
pub(crate) fn pause(rounds: u32) {
    if rounds < 100 {
        core::hint::spin_loop();
    } else if rounds < 200 && fs_shm::wait::give_way() {
        // Another thread has run.
    } else {
        // Cut short by a signal: the caller tries again anyway.
        let _ = rustix::thread::nanosleep(&rustix::thread::Timespec { tv_sec: 0, tv_nsec: 50_000 });
    }
}
