//! Names and listeners.
//!
//! A listener listens twice: on the kernel (its placeholder) and, announced to the daemon, in the inboxes of the arenas
//! that the daemon lists on the listener's page. accept takes from both, and must never wait in the kernel's queue alone:
//! it asks whether that has something before it takes from it, under a lock that all processes share which inherited the
//! listener from one that uses this library ([`sys::family`]). One that is not announced is the kernel's alone.

mod accept;
mod announce;

pub use accept::accept4;
use announce::{announce, announce_anyway, clear_pages, enter_pages};
pub(crate) use announce::{announce_again, changed, enter_number};

use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use std::time::Duration;

use fs_shm::{
    Arena, Channel, Side,
    control::{Client, Error, KernelReason, Object},
    pages::ListenerPage,
};
use rustix::{fd::AsRawFd, io::Errno};

use crate::{
    address,
    arenas::{self, Mapped, Shared},
    connect,
    held::{Held, Note},
    options,
    poll::{self, spin::Spin},
    process::{self, Attachment, Poller},
    socket::{Kind, Socket, mark},
    sys::{self, array::Array, call, pointer::Pointer, thread},
    table,
    types::{Fd, Ours},
};

const SHUT_RDWR: i32 = 2;

/// Arenas of one listener at once, as on its page.
const ARENAS: usize = fs_shm::pages::LISTENER_ARENAS;

/// Inboxes that are looked at first. More: each accept looks at more. Fewer: those of more clients are found by going
/// through all.
const HOT: usize = 4;

/// What this process knows of one listener.
#[derive(Debug)]
struct Listener {
    /// 0: free; 1 for the socket, and 1 for each thread that announces it.
    used: AtomicU32,
    /// The daemon's number; 0: not announced.
    id: AtomicU32,
    life: AtomicU32,
    page: Pointer<ListenerPage>,
    /// The page's generation that `arenas` is of.
    seen: AtomicU64,
    /// The thread that brings `arenas` up to date.
    busy: AtomicUsize,
    count: AtomicU32,
    /// Counts changes of `arenas`.
    changes: AtomicU32,
    /// Whose inbox is looked at first.
    turn: AtomicU32,
    /// Places whose inbox had something lately, + 1: looked at before all others.
    hot: [AtomicU32; HOT],
    /// The place of the last connection, and how many in a row came from there.
    last: AtomicU32,
    in_row: AtomicU32,
    /// The poller that all share who sleep in accept, of all processes: id | descriptor + 1 << 32.
    poller: AtomicU64,
    /// The life of the attachment that it is of.
    poller_life: AtomicU32,
    /// The poller of the epoll sets that watch it with EPOLLEXCLUSIVE, and of which attachment it is; as the two before.
    exclusive: AtomicU64,
    exclusive_life: AtomicU32,
    /// The number that the poller's set has the placeholder under, + 1.
    entered: AtomicU32,
    /// The attachment whose connection the poller's set tells of the end of, and the poller.
    control: AtomicU64,
    /// What the socket's options were, for connections that came before some of them changed; until when that was.
    before: Pointer<Socket>,
    before_until: AtomicU64,
    /// Threads of this process that sleep in accept.
    waiters: AtomicU32,
    /// Those of them that look again after a long time only.
    long: AtomicU32,
    /// How long they look at the inboxes before they sleep.
    spin: Spin,
    arenas: Array<Pointer<Mapped>, ARENAS>,
}

const LISTENERS: usize = 4096;
sys::array::zeroed!(Listener);
static ALL: Array<Listener, LISTENERS> = Array::new();

/// See [`Array::grow_to`].
pub(crate) fn grow(count: usize) {
    ALL.grow_to(count);
}
/// Places used at least once.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// `bind(2)`.
pub fn bind(fd: Fd, address: &[u8]) -> Ours<()> {
    let socket = table::find(fd)?;
    match socket.kind() {
        Kind::Fresh => {}
        Kind::Channel => return Some(connect::bind(fd, socket, address)),
        _ => return None,
    }
    Some(call::bind(fd, address).inspect(|()| {
        let wish = address::parse(address, socket.family());
        socket.mark(mark::BOUND);
        if wish.is_some_and(|wish| {
            wish.ip().is_ipv6() && wish.ip().to_canonical().is_ipv6() && !wish.ip().is_unspecified()
        }) {
            // __inet6_bind() of the kernel.
            socket.remember_option(options::SOL_IPV6, options::IPV6_V6ONLY, 1);
        }
        if wish.is_some_and(|wish| wish.port() != 0 && wish.ip().to_canonical().is_unspecified()) {
            socket.mark(mark::PORT);
        }
    }))
}

/// `listen(2)`: the kernel listens too; what connects over the kernel and what connects through us come out of one accept.
pub fn listen(fd: Fd, backlog: i32) -> Ours<()> {
    let socket = table::socket(fd)?;
    match socket.kind() {
        Kind::Fresh | Kind::Listener => {}
        Kind::Channel => return Some(Err(Errno::INVAL)),
        Kind::Free | Kind::Kernel | Kind::Epoll | Kind::Internal => return None,
    }
    if let Err(errno) = call::listen(fd, backlog) {
        return Some(Err(errno));
    }
    let socket = socket.unheld();
    if socket.marked(mark::KERNEL_ONLY) && object(socket).is_none() || !become_listener(socket) {
        if let Some(attachment) = process::attached() {
            let reason = if socket.marked(mark::KERNEL_ONLY) { KernelReason::Option } else { KernelReason::Limit };
            enter_pages(attachment, socket, Object::Kernel(reason));
        }
        return Some(Ok(()));
    }
    if let Some(attachment) = process::attached()
        && let Err(errno) = announce(attachment, fd, socket)
    {
        // A rule: it must not listen on the kernel either. (A socket that listens and is shut down is closed again.)
        if let Some(fd) = live(fd, socket) {
            stop(fd, socket);
            let _closed = call::shutdown(fd, SHUT_RDWR);
        }
        return Some(Err(errno));
    }
    Some(Ok(()))
}

/// A socket that has been made to listen by somebody else's system call.
pub(crate) fn adopt(fd: Fd, socket: &'static Socket) {
    if !become_listener(socket) {
        return;
    }
    if let Some(attachment) = process::attached() {
        announce_anyway(attachment, fd, socket);
    }
}

/// Makes a listening socket a [`Kind::Listener`]; false: no room, it is the kernel's alone.
fn become_listener(socket: &'static Socket) -> bool {
    if socket.kind() == Kind::Listener {
        return true;
    }
    let free = |place: &usize| {
        ALL.make(*place).is_some_and(|listener| listener.used.compare_exchange(0, 1, AcqRel, Relaxed).is_ok())
    };
    let Some(place) = (0..LISTENERS).find(free) else { return false };
    HIGHEST.fetch_max(place + 1, Relaxed);
    socket.set_listener(place as u32);
    sys::family::prepare();
    socket.become_kind(Kind::Listener);
    poll::changed(socket);
    true
}

fn of(socket: &Socket) -> Option<&'static Listener> {
    if socket.kind() == Kind::Listener { ALL.at(socket.listener() as usize) } else { None }
}

/// A number that stands for the socket: `fd`, or another.
fn live(fd: Fd, socket: &'static Socket) -> Option<Fd> {
    let is = |fd| table::find(fd).is_some_and(|now| core::ptr::eq(now, socket));
    if is(fd) {
        return Some(fd);
    }
    let mut other = None;
    table::each(0, u32::MAX, |fd, of| {
        if core::ptr::eq(of, socket) {
            other = Some(fd);
        }
    });
    other
}

/// An option that only the kernel has was set on a listener: new connections are the kernel's from here on. Those that wait
/// are accepted, as on the kernel.
pub(crate) fn leave_to_kernel(socket: &'static Socket) {
    tell_daemon(socket, Client::leave);
}

/// shutdown(2) of a listener. It stays one, for all that hold it: the kernel's answers are those of a socket that is closed, and
/// the page says so as well, until one of them calls listen(2) again.
pub(crate) fn shut(fd: Fd, socket: &'static Socket) {
    if id(socket) == 0 {
        return stop(fd, socket);
    }
    tell_daemon(socket, Client::shut);
}

fn tell_daemon(socket: &Socket, tell: impl FnOnce(&Client, u32) -> Result<(), Error>) {
    let id = id(socket);
    if let Some(attachment) = process::current().filter(|now| id != 0 && now.life() == socket.life())
        && let Err(error) = tell(attachment.client(), id)
    {
        attachment.failed(&error);
    }
}

/// See [`Listener::keep_options`].
pub(crate) fn keep_options(socket: &Socket) {
    if let Some(listener) = of(socket) {
        listener.keep_options(socket);
    }
}

/// Whether it was shut down, by this process or another.
pub(crate) fn is_shut(socket: &Socket) -> bool {
    let page = of(socket).filter(|listener| listener.id.load(Acquire) != 0).and_then(|listener| listener.page.load());
    page.is_some_and(ListenerPage::is_closed)
}

/// What the attachment page says of a listener; `None`: it is not announced.
pub(crate) fn object(socket: &Socket) -> Option<Object> {
    let id = of(socket)?.id.load(Acquire);
    (id != 0).then_some(Object::Listener(id))
}

/// A listener that was inherited or received. The caller holds [`table::Changing`].
pub(crate) fn resume(attachment: &Attachment, socket: &'static Socket, id: u32, page: ListenerPage) {
    if !become_listener(socket) {
        return;
    }
    let Some(listener) = of(socket) else { return };
    listener.take_page(id, attachment.life(), page);
    socket.set_life(attachment.life());
    enter_pages(attachment, socket, Object::Listener(id));
}

/// The daemon is gone: the kernel's queue is left.
pub(crate) fn lost(socket: &'static Socket) {
    if let Some(listener) = of(socket) {
        listener.id.store(0, Release);
        listener.empty();
    }
    poll::changed(socket);
}

/// close(2) of the last number: when it returns nobody can connect any more, though other threads may hold the socket still.
/// One that tells the daemon of it just now (of all there are, when a process attaches) is waited for. After a tenth of a second
/// this goes on: it may be this thread, below a signal handler, or the daemon may be slow; then the other one takes it back.
pub(crate) fn last_number_gone(socket: &Socket) {
    let Some(listener) = of(socket) else { return };
    for rounds in 0..1200 {
        if !listener.is_announced_now() {
            break;
        }
        table::pause(rounds);
    }
    listener.withdraw();
}

/// Nobody holds it any more.
pub(crate) fn let_go(socket: &'static Socket) {
    let Some(listener) = of(socket) else { return };
    listener.withdraw();
    listener.let_go();
}

/// A number has gone. Who sleeps in accept is told if it was the last.
pub(crate) fn number_gone(fd: Fd, socket: &'static Socket) {
    if let Some(listener) = of(socket).filter(|listener| listener.long.load(SeqCst) != 0)
        && live(fd, socket).is_none()
    {
        listener.recall();
    }
}

/// Threads may be cancelled from now on: who sleeps in accept has to look.
pub(crate) fn recall() {
    for place in 0..HIGHEST.load(Relaxed) {
        if let Some(listener) = ALL.at(place).filter(|listener| listener.is_used()) {
            listener.recall();
        }
    }
}

/// It is this process's listener no more, but a socket that neither listens nor is connected.
pub(crate) fn stop(fd: Fd, socket: &'static Socket) {
    let Some(listener) = of(socket) else { return };
    let _changing = table::Changing::begin();
    let announced = object(socket);
    // First: who announces it just now takes that back when he sees this, or it is here to be taken back.
    socket.become_kind(Kind::Fresh);
    fence(SeqCst);
    // While there is a poller to wake them by.
    listener.recall();
    listener.withdraw();
    connect::clear_page(fd);
    if let (Some(announced), Some(attachment)) = (announced, process::current()) {
        clear_pages(attachment, socket, announced);
    }
    listener.let_go();
    poll::changed(socket);
}

/// Maps the arenas that came to a listener since; answers how many places [`arena`] has. Cheap when none came.
pub fn refresh(socket: &Socket) -> u32 {
    of(socket).map_or(0, Listener::refresh)
}

/// Changes with the listener's arenas, as of the last [`refresh`].
pub(crate) fn changes(socket: &Socket) -> u32 {
    of(socket).map_or(0, |listener| listener.changes.load(Acquire))
}

/// An arena of a listener, by place: `None` when the place is empty (its opener has gone). A place may be given to
/// another arena later; arenas themselves are told apart by their address, which is not used twice.
pub fn arena(socket: &Socket, place: u32) -> Option<&'static Arena> {
    of(socket)?.arenas.at(place as usize)?.load().map(Mapped::arena)
}

/// What those sleep on who sleep in accept. `None`: no daemon, or this process may not call epoll_wait(2).
pub(crate) fn shared_poller(socket: &Socket) -> Option<Fd> {
    Some(of(socket)?.poller(process::current()?)?.fd)
}

/// What an epoll set watches that has the listener with EPOLLEXCLUSIVE: one that sleeps is woken by the first connection in
/// an arena that the set knows nothing of, and by each that finds no set asleep that does. The set's own poller, `set`, is
/// not rung for new arenas from here on. `None`: no daemon, or one that does not know of this; or this process has confined
/// itself.
pub(crate) fn exclusive_poller(socket: &Socket, set: u32) -> Option<Fd> {
    of(socket)?.ask_exclusive(set, false)
}

/// Ends what [`exclusive_poller`] says of the set's own poller.
pub(crate) fn tell(socket: &Socket, set: u32) {
    if let Some(listener) = of(socket) {
        // Without a daemon there is nothing to be told of.
        let _ = listener.ask_exclusive(set, true);
    }
}

/// The listener of this process that the daemon has under this number, held.
pub(crate) fn of_id(attachment: &Attachment, wanted: u32) -> Option<table::SocketRef> {
    let mut found = None;
    Socket::each(|socket| {
        if found.is_none() && id(socket) == wanted && socket.life() == attachment.life() {
            found = table::hold(socket).filter(|held| id(held.unheld()) == wanted);
        }
    });
    found
}

/// The daemon's number of a listener; 0: it is not announced.
pub(crate) fn id(socket: &Socket) -> u32 {
    of(socket).map_or(0, |listener| listener.id.load(Acquire))
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
    note: Option<Note>,
}

impl Doze {
    /// `Err`: a connection is there.
    pub(crate) fn begin(socket: &Socket) -> Result<Option<Doze>, ()> {
        let Some((listener, attachment)) = of(socket).zip(process::current()) else { return Ok(None) };
        listener.refresh();
        let Some(poller) = listener.poller(attachment) else { return Ok(None) };
        // Counted before it is armed: see `awake`.
        listener.waiters.fetch_add(1, SeqCst);
        let note = Note::new(Held::Counted(&listener.waiters));
        fence(SeqCst);
        let armed = listener.arm(Shared::Accept, &poller);
        if armed == Armed::Yes {
            return Ok(Some(Doze { listener, poller, note: Some(note) }));
        }
        drop(note);
        listener.waiters.fetch_sub(1, AcqRel);
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
        self.note = None;
        let listener = self.listener;
        listener.waiters.fetch_sub(1, AcqRel);
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

/// Whether a connection waits in an inbox (the kernel's queue is not looked at).
pub(crate) fn is_ready(socket: &Socket) -> bool {
    of(socket).is_some_and(|listener| {
        listener.refresh();
        listener.pending()
    })
}

/// The same without asking for arenas that this process does not know.
pub(crate) fn is_known_ready(socket: &Socket) -> bool {
    of(socket).is_some_and(Listener::pending)
}

impl Listener {
    fn take_page(&self, id: u32, life: u32, page: ListenerPage) {
        self.empty();
        self.life.store(life, Relaxed);
        // Looked at without a lock, so never unmapped; the place's next listener takes its place.
        let put = match self.page.load() {
            Some(old) => page.put_over(old),
            None => Err(page),
        };
        if let Err(page) = put {
            self.page.store(Some(Box::leak(Box::new(page))));
        }
        self.seen.store(u64::MAX, Relaxed);
        self.id.store(id, Release);
    }

    fn empty(&self) {
        for place in 0..self.count.swap(0, AcqRel) as usize {
            if let Some(place) = self.arenas.at(place) {
                place.store(None);
            }
        }
        self.changes.fetch_add(1, AcqRel);
    }

    /// Takes it back from the daemon, and its poller.
    fn withdraw(&self) {
        let id = self.id.swap(0, AcqRel);
        let attachment = process::current().filter(|attachment| attachment.life() == self.life.load(Relaxed));
        if let Some(attachment) = attachment {
            for (poller, life) in [(&self.poller, &self.poller_life), (&self.exclusive, &self.exclusive_life)] {
                let poller = poller.swap(0, AcqRel);
                if poller != 0 && life.load(Relaxed) == attachment.life() {
                    // Its lanes are other processes' too: the daemon frees them after the last one.
                    process::poller_gone(poller_of_word(poller, attachment.life()));
                }
            }
            if id != 0
                && let Err(error) = attachment.client().unlisten(id)
            {
                attachment.failed(&error);
            }
        }
        self.empty();
    }

    /// True as soon as `visit` is.
    fn each(&self, mut visit: impl FnMut(&'static Mapped) -> bool) -> bool {
        let count = self.count.load(Acquire) as usize;
        (0..count).any(|place| self.arenas.at(place).and_then(Pointer::load).is_some_and(&mut visit))
    }

    fn refresh(&self) -> u32 {
        let page = self.page.load().filter(|_| self.id.load(Acquire) != 0);
        let Some(page) = page else { return 0 };
        let generation = page.generation();
        let me = thread::me();
        if generation == self.seen.load(Acquire) || self.busy.compare_exchange(0, me, Acquire, Relaxed).is_err() {
            // Another thread is at it, or this one, below a signal handler.
            return self.count.load(Acquire);
        }
        if let Some(attachment) = process::current().filter(|now| now.life() == self.life.load(Relaxed))
            && self.bring_up(attachment, page)
        {
            self.seen.store(generation, Release);
        }
        self.busy.store(0, Release);
        self.count.load(Acquire)
    }

    /// Brings `arenas` to what the page says; false: not all could be had, to be tried again.
    fn bring_up(&self, attachment: &Attachment, page: &ListenerPage) -> bool {
        let mut all = true;
        let generation = page.generation();
        let count = self.count.load(Relaxed) as usize;
        let places = || (0..count).filter_map(|place| self.arenas.at(place));
        for place in places() {
            if place.load().is_some_and(|mapped| !page.contains(mapped.id())) {
                place.store(None);
            }
        }
        let is_here = |mapped: &&'static arenas::Mapped| {
            let place = mapped.place().and_then(|place| self.arenas.at(place)?.load());
            place.is_some_and(|here| core::ptr::eq(here, *mapped))
        };
        let mut free = 0;
        for id in page.arenas() {
            if arenas::find(attachment.life(), id, Side::B).filter(is_here).is_some() {
                continue;
            }
            let Some(mapped) = arenas::ask(attachment, id, Side::B) else {
                // Gone since, which the next generation says; or no number for its memory to come with.
                all &= page.generation() != generation;
                continue;
            };
            while self.arenas.at(free).is_some_and(|place| free < count && place.load().is_some()) {
                free += 1;
            }
            let at = if free < count { free } else { self.count.load(Relaxed) as usize };
            let Some(place) = self.arenas.make(at) else { continue };
            mapped.note_place(at);
            place.store(Some(mapped));
            if at >= count {
                self.count.fetch_add(1, AcqRel);
            }
        }
        self.changes.fetch_add(1, AcqRel);
        all
    }

    /// Whether one waits in an inbox that is known already, where it need not go after those of new ones: among sets that
    /// watch it with EPOLLEXCLUSIVE there is no order, and not each of them needs every arena.
    fn has_known(&self) -> bool {
        self.exclusive.load(Relaxed) != 0 && !self.turn.load(Relaxed).is_multiple_of(FAIR) && self.pending()
    }

    /// Whether a connection waits in an inbox.
    fn pending(&self) -> bool {
        self.next().is_some()
    }

    /// The place of the next connection: of an inbox that had some lately, or else the next in turn that has one.
    fn next(&self) -> Option<u32> {
        let count = self.count.load(Acquire);
        let turn = self.turn.load(Relaxed);
        // Now and then the others', so that busy clients do not keep them out.
        if !turn.is_multiple_of(FAIR) {
            let hot = |i: usize| self.hot[(turn as usize + i) % HOT].load(Relaxed).checked_sub(1);
            let found = (0..HOT).filter_map(hot).find(|&place| place < count && self.waits(place));
            if found.is_some() {
                return found;
            }
        }
        self.next_after(self.last_place(), count)
    }

    fn waits(&self, place: u32) -> bool {
        let mapped = self.arenas.at(place as usize).and_then(Pointer::load);
        mapped.is_some_and(|mapped| mapped.arena().pending() != 0)
    }

    fn next_after(&self, last: u32, count: u32) -> Option<u32> {
        (1..=count).map(|next| last.wrapping_add(next) % count).find(|&place| self.waits(place))
    }

    /// Where the last connection came from that was not a hot place's.
    fn last_place(&self) -> u32 {
        self.hot[HOT - 1].load(Relaxed).wrapping_sub(1)
    }

    /// The place of the connection that has waited longest: accept(2) takes them in the order in which they came.
    fn longest_waiting(&self) -> Option<u32> {
        let count = self.count.load(Acquire);
        if count > LOOKED_AT {
            return self.next();
        }
        // The times are the openers' words: one whose connections are always the oldest must not keep out the others.
        if self.in_row.load(Relaxed) >= ROW {
            self.in_row.store(0, Relaxed);
            return self.next_after(self.last.load(Relaxed), count);
        }
        let since = |place: u32| {
            let mapped = self.arenas.at(place as usize).and_then(Pointer::load)?;
            Some((mapped.arena().waiting_since()?, place))
        };
        (0..count).filter_map(since).min().map(|(_, place)| place)
    }

    /// Options are about to change: those who wait have them as they are (tcp_create_openreq_child() of the kernel).
    fn keep_options(&self, socket: &Socket) {
        self.refresh();
        let until = self.before_until.load(Relaxed);
        let mut waits = false;
        let waits_from_before = self.each(|mapped| {
            let since = mapped.arena().waiting_since();
            waits |= since.is_some();
            since.is_some_and(|since| since < until)
        });
        if waits_from_before && self.before.load().is_some() {
            // Those that came since that change are taken for later ones.
            return;
        }
        self.before_until.store(0, Relaxed);
        self.forget_options();
        if waits && let Some(copy) = socket.copy() {
            self.before.store(Some(copy));
            self.before_until.store(process::now(), Release);
        }
    }

    fn forget_options(&self) {
        if let Some(copy) = self.before.swap(None) {
            copy.drop_copy();
        }
    }

    /// When the next connection came, if that matters.
    fn came_of_next(&self) -> Option<u64> {
        if self.before_until.load(Acquire) == 0 {
            return None;
        }
        let place = self.longest_waiting()?;
        self.arenas.at(place as usize)?.load()?.arena().waiting_since()
    }

    /// The options that a connection has which came then, where they are not the socket's own.
    fn options_of(&self, came: Option<u64>) -> Option<table::SocketRef> {
        let until = self.before_until.load(Acquire);
        came.filter(|&came| came < until)?;
        table::hold(self.before.load()?)
    }

    /// Takes the next connection.
    fn take(&self) -> Option<(&'static Mapped, Channel<'static>)> {
        let place = self.longest_waiting()?;
        if self.last.swap(place, Relaxed) == place {
            self.in_row.fetch_add(1, Relaxed);
        } else {
            self.in_row.store(0, Relaxed);
        }
        let mapped = self.arenas.at(place as usize)?.load()?;
        let channel = Channel::accept(mapped.arena())?;
        self.turn.fetch_add(1, Relaxed);
        if !self.hot.iter().any(|hot| hot.load(Relaxed) == place + 1) {
            for i in 1..HOT {
                self.hot[i - 1].store(self.hot[i].load(Relaxed), Relaxed);
            }
            self.hot[HOT - 1].store(place + 1, Relaxed);
        }
        Some((mapped, channel))
    }

    /// The poller of those who sleep in accept. `None`: no daemon, or this process may not call epoll_wait(2).
    fn poller(&self, attachment: &Attachment) -> Option<Poller> {
        let id = self.id.load(Acquire);
        if id == 0 || fs_shm::wait::is_confined() {
            return None;
        }
        let word = self.poller.load(Acquire);
        if word != 0 && self.poller_life.load(Relaxed) == attachment.life() {
            return Some(poller_of_word(word, attachment.life()));
        }
        let poller = process::listener_poller(attachment, id)?;
        let new = u64::from(poller.id) | (poller.fd as u64 + 1) << 32;
        self.entered.store(0, Relaxed);
        self.control.store(0, Relaxed);
        self.poller_life.store(attachment.life(), Relaxed);
        if self.poller.compare_exchange(word, new, AcqRel, Acquire).is_err() {
            // Another thread's, of the same poller.
            process::drop_poller(poller);
            return Some(poller_of_word(self.poller.load(Acquire), attachment.life()));
        }
        Some(poller)
    }

    /// The poller of the sets that watch it with EPOLLEXCLUSIVE, if this process has such a set.
    fn exclusive(&self, attachment: &Attachment) -> Option<Poller> {
        let word = self.exclusive.load(Acquire);
        let is_current = word != 0 && self.exclusive_life.load(Relaxed) == attachment.life();
        is_current.then(|| Poller { private: true, ..poller_of_word(word, attachment.life()) })
    }

    /// Asks for it; see [`exclusive_poller`].
    fn ask_exclusive(&self, set: u32, told: bool) -> Option<Fd> {
        let id = self.id.load(Acquire);
        let attachment = process::current().filter(|_| id != 0 && !fs_shm::wait::is_confined())?;
        let poller = process::exclusive_poller(attachment, id, set, told)?;
        let known = self.exclusive(attachment);
        if let Some(known) = known.filter(|known| known.id == poller.id) {
            process::drop_poller(poller);
            return Some(known.fd);
        }
        self.exclusive_life.store(attachment.life(), Relaxed);
        let word = u64::from(poller.id) | (poller.fd as u64 + 1) << 32;
        let old = self.exclusive.swap(word, AcqRel);
        if old != 0 {
            // The parent's, or of a daemon that has gone.
            process::drop_poller(poller_of_word(old, 0));
        }
        Some(poller.fd)
    }

    /// Has the next connection wake a sleeper; true if one is there already.
    fn arm(&self, shared: Shared, poller: &Poller) -> Armed {
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
    fn has_others(&self) -> bool {
        let holders = self.page.load().map_or(1, ListenerPage::holders);
        self.waiters.load(Acquire) > 0 || holders > 1
    }

    /// One sleeper is awake. Others are woken by the next connection.
    /// [`Armed::Ready`]: others sleep, and something is there.
    fn awake(&self, poller: &Poller) -> Armed {
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
    fn pass_on(&self, changes: u32) {
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
    fn renew_edge(&self, fd: Fd) {
        let poller = self.poller.load(Acquire);
        if poller != 0 {
            poll::renew_edge(poller_of_word(poller, 0).fd, fd);
        }
    }

    /// The poller's set tells of the daemon's end too. False: it cannot.
    fn enter_control(&self, poller: &Poller, attachment: &Attachment) -> bool {
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
    fn enter_placeholder(&self, poller: &Poller, fd: Fd) {
        if self.entered.load(Relaxed) != fd as u32 + 1 {
            poll::watch_edges(poller.fd, fd);
            self.entered.store(fd as u32 + 1, Relaxed);
        }
    }
}

/// What [`Listener::arm`] found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    /// The next connection wakes one.
    Yes,
    /// Something is there.
    Ready,
    /// Not every connection can: a look is due at short intervals.
    Blind,
}

/// Inboxes up to which all are looked at for the connection that has waited longest. More: each accept costs two cache lines
/// for each of them; fewer: with more client processes than this, their connections are taken out of order.
const LOOKED_AT: u32 = 256;
/// So many connections in a row from one inbox, then the next one in turn. Fewer than a client opens in a burst: its
/// connections would let younger ones of others pass; more: others wait longer for one that lies.
const ROW: u32 = 1024;
/// Each so many accepts all inboxes are looked at in turn.
const FAIR: u32 = 8;
/// Arenas of a listener up to which a lone acceptor that is awake keeps its clients from ringing. More: a bell in vain
/// costs each of them less than that costs it.
const FEW: u32 = 16;

fn poller_of_word(word: u64, life: u32) -> Poller {
    Poller { id: word as u32, fd: (word >> 32) as Fd - 1, private: false, life }
}

impl Listener {
    /// Arenas have come since the last look.
    fn is_behind(&self) -> bool {
        let page = self.page.load().filter(|_| self.id.load(Acquire) != 0);
        page.is_some_and(|page| page.generation() != self.seen.load(Acquire))
    }
}

/// In a forked child: no thread of the parent's is here.
pub(crate) fn forked() {
    for place in 0..HIGHEST.load(Relaxed) {
        let Some(listener) = ALL.at(place) else { return };
        if listener.is_used() {
            listener.used.store(1, Relaxed);
            listener.busy.store(0, Relaxed);
            listener.waiters.store(0, Relaxed);
            listener.long.store(0, Relaxed);
        }
    }
}
