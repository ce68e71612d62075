//! Names and listeners.
//!
//! A listener listens twice: on the kernel (its placeholder) and, announced to the daemon, in the inboxes of the arenas
//! that the daemon lists on the listener's page. accept takes from both, and must never wait in the kernel's queue alone:
//! it asks whether that has something before it takes from it, under a lock that all processes share which inherited the
//! listener from one that uses this library ([`sys::family`]). One that is not announced is the kernel's alone.

use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant};

use fs_shm::{
    Arena, Channel, Side,
    control::{KernelReason, Listening, Object},
    pages::ListenerPage,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fd::AsFd,
    io::Errno,
};

use crate::{
    address,
    arenas::{self, Mapped},
    channel::{self, CANCELLED, CANCELS, O_NONBLOCK, Patience},
    connect,
    poll::{self, spin::Spin},
    process::{self, Attachment, Poller},
    socket::{Kind, Socket, mark},
    sys::{self, array::Array, call, pointer::Pointer, thread},
    table,
    types::{Address, Fd, Ours},
};

const SOCK_STREAM: i32 = 1;
const SOCK_CLOEXEC: i32 = 0o2000000;
const SOCK_NONBLOCK: i32 = 0o4000;
const SHUT_RDWR: i32 = 2;

/// Arenas of one listener at once, as on its page.
const ARENAS: usize = fs_shm::pages::LISTENER_ARENAS;

/// What this process knows of one listener.
#[derive(Debug)]
struct Listener {
    /// 1: in use.
    used: AtomicU32,
    /// The daemon's number; 0: not announced.
    id: AtomicU32,
    life: AtomicU32,
    backlog: AtomicU32,
    page: Pointer<ListenerPage>,
    /// The page's generation that `arenas` is of.
    seen: AtomicU64,
    /// The thread that brings `arenas` up to date.
    busy: AtomicUsize,
    count: AtomicU32,
    /// Whose inbox is looked at first.
    turn: AtomicU32,
    /// The poller of those that block in accept: id | descriptor + 1 << 32.
    poller: AtomicU64,
    /// The attachment whose poller it is: a forked child makes its own.
    poller_of: AtomicU32,
    /// Threads that block in accept.
    waiters: AtomicU32,
    /// How long they look at the inboxes before they sleep.
    spin: Spin,
    arenas: Array<Pointer<Mapped>, ARENAS>,
}

const LISTENERS: usize = 4096;
sys::array::zeroed!(Listener);
static ALL: Array<Listener, LISTENERS> = Array::new();

/// `bind(2)`.
pub fn bind(fd: Fd, address: &[u8]) -> Ours<()> {
    let socket = table::find(fd)?;
    match socket.kind() {
        Kind::Fresh => {}
        Kind::Channel => return Some(Err(Errno::INVAL)),
        _ => return None,
    }
    Some(call::bind(fd, address).inspect(|()| socket.mark(mark::BOUND)))
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
    if socket.marked(mark::KERNEL_ONLY) || !become_listener(socket) {
        if let Some(attachment) = process::attached() {
            let reason = if socket.marked(mark::KERNEL_ONLY) { KernelReason::Option } else { KernelReason::Limit };
            enter_pages(attachment, socket, fd, Object::Kernel(reason));
        }
        return Some(Ok(()));
    }
    if let Some(listener) = of(socket) {
        // A negative backlog is the largest (it is compared unsigned).
        listener.backlog.store(backlog as u32, Relaxed);
    }
    if let Some(attachment) = process::attached()
        && let Err(errno) = announce(attachment, fd, socket)
    {
        // A rule: it must not listen on the kernel either. (A socket that listens and is shut down is closed again.)
        stop(fd, socket);
        let _closed = call::shutdown(fd, SHUT_RDWR);
        return Some(Err(errno));
    }
    Some(Ok(()))
}

/// A socket that has been made to listen by somebody else's system call.
pub(crate) fn adopt(fd: Fd, socket: &'static Socket) {
    /// What std and most programs ask for; the kernel does not tell what was asked.
    const BACKLOG: u32 = 128;
    if !become_listener(socket) {
        return;
    }
    if let Some(listener) = of(socket) {
        listener.backlog.store(BACKLOG, Relaxed);
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
    socket.set_listener(place as u32);
    sys::family::prepare();
    socket.become_kind(Kind::Listener);
    poll::changed(socket);
    true
}

fn of(socket: &Socket) -> Option<&'static Listener> {
    if socket.kind() == Kind::Listener { ALL.at(socket.listener() as usize) } else { None }
}

/// Tells the daemon of a listener. Where it cannot serve it, the kernel alone listens.
///
/// # Errors
/// A rule of the daemon denies it.
fn announce(attachment: &Attachment, fd: Fd, socket: &'static Socket) -> Result<(), Errno> {
    let (Some(listener), Some(placeholder)) = (of(socket), sys::borrowed(fd)) else { return Ok(()) };
    let object = match attachment.client().listen(placeholder, listener.backlog.load(Relaxed)) {
        Ok(Listening::Yes(id, page)) => {
            if listener.id.load(Relaxed) != id || listener.life.load(Relaxed) != attachment.life() {
                let Ok(page) = ListenerPage::map(page.as_fd()) else { return Ok(()) };
                listener.take_page(id, attachment.life(), page);
            }
            socket.set_life(attachment.life());
            Object::Listener(id)
        }
        Ok(Listening::Kernel(reason)) => Object::Kernel(reason),
        Ok(Listening::Refused(errno)) => return Err(errno),
        Err(error) => {
            attachment.failed(&error);
            return Ok(());
        }
    };
    enter_pages(attachment, socket, fd, object);
    poll::changed(socket);
    Ok(())
}

/// For one that listens already: where a rule denies it, it goes on doing so on the kernel.
fn announce_anyway(attachment: &Attachment, fd: Fd, socket: &'static Socket) {
    if announce(attachment, fd, socket).is_err() {
        enter_pages(attachment, socket, fd, Object::Kernel(KernelReason::Port));
    }
}

/// Options of a listener have changed: the daemon reads them from its placeholder.
pub(crate) fn changed(fd: Fd, socket: &'static Socket) {
    if object(socket).is_some()
        && let Some(attachment) = process::current().filter(|now| now.life() == socket.life())
    {
        announce_anyway(attachment, fd, socket);
    }
}

/// What the attachment page says of a listener; `None`: it is not announced.
pub(crate) fn object(socket: &Socket) -> Option<Object> {
    let id = of(socket)?.id.load(Acquire);
    (id != 0).then_some(Object::Listener(id))
}

/// One more number of a listener.
pub(crate) fn enter_number(attachment: &Attachment, socket: &Socket, fd: Fd) {
    if let Some(object) = object(socket) {
        // The page is as large as the table.
        let _ = process::enter_page(attachment, fd, object);
    }
}

/// A listener that was inherited or received. The caller holds [`table::Changing`].
pub(crate) fn resume(attachment: &Attachment, fd: Fd, socket: &'static Socket, id: u32, page: ListenerPage) {
    if !become_listener(socket) {
        return;
    }
    let Some(listener) = of(socket) else { return };
    listener.take_page(id, attachment.life(), page);
    socket.set_life(attachment.life());
    enter_pages(attachment, socket, fd, Object::Listener(id));
}

/// Writes the attachment page's entries of all numbers of the socket.
fn enter_pages(attachment: &Attachment, socket: &'static Socket, fd: Fd, object: Object) {
    let _changing = table::Changing::begin();
    // A number without an entry (beyond the page) is let go by the daemon when the process ends.
    let _ = process::enter_page(attachment, fd, object);
    if socket.descriptors() > 1 {
        table::each(0, u32::MAX, |other, of| {
            if core::ptr::eq(of, socket) {
                let _ = process::enter_page(attachment, other, object);
            }
        });
    }
}

/// A new attachment: every listener is announced to it.
pub(crate) fn announce_again(attachment: &Attachment) {
    Socket::each(|socket| {
        if socket.kind() == Kind::Listener && socket.life() != attachment.life() {
            announce_anyway(attachment, socket.number(), socket);
        }
    });
}

/// The daemon is gone: the kernel's queue is left.
pub(crate) fn lost(socket: &'static Socket) {
    if let Some(listener) = of(socket) {
        listener.id.store(0, Release);
        listener.empty();
    }
    poll::changed(socket);
}

/// The last descriptor of this process is gone.
pub(crate) fn let_go(socket: &'static Socket) {
    let Some(listener) = of(socket) else { return };
    listener.withdraw();
    listener.used.store(0, Release);
}

/// shutdown of a listener: a socket that neither listens nor is connected.
pub(crate) fn stop(fd: Fd, socket: &'static Socket) {
    let Some(listener) = of(socket) else { return };
    let _changing = table::Changing::begin();
    listener.withdraw();
    socket.become_kind(Kind::Fresh);
    connect::clear_page(fd);
    listener.used.store(0, Release);
    poll::changed(socket);
}

/// Maps the arenas that came to a listener since; answers how many places [`arena`] has. Cheap when none came.
pub fn refresh(socket: &Socket) -> u32 {
    of(socket).map_or(0, Listener::refresh)
}

/// An arena of a listener, by place: `None` when the place is empty (its opener has gone). A place may be given to
/// another arena later; arenas themselves are told apart by their address, which is not used twice.
pub fn arena(socket: &Socket, place: u32) -> Option<&'static Arena> {
    of(socket)?.arenas.at(place as usize)?.load().map(Mapped::arena)
}

/// Whether a connection waits in an inbox (the kernel's queue is not looked at).
pub(crate) fn is_ready(socket: &Socket) -> bool {
    of(socket).is_some_and(|listener| {
        listener.refresh();
        listener.each(|mapped| mapped.arena().pending() != 0)
    })
}

impl Listener {
    fn take_page(&self, id: u32, life: u32, page: ListenerPage) {
        self.empty();
        self.life.store(life, Relaxed);
        self.page.store(Some(Box::leak(Box::new(page))));
        self.seen.store(u64::MAX, Relaxed);
        self.id.store(id, Release);
    }

    fn empty(&self) {
        for place in 0..self.count.swap(0, AcqRel) as usize {
            if let Some(place) = self.arenas.at(place) {
                place.store(None);
            }
        }
    }

    /// Takes it back from the daemon, and its poller.
    fn withdraw(&self) {
        let id = self.id.swap(0, AcqRel);
        let attachment = process::current().filter(|attachment| attachment.life() == self.life.load(Relaxed));
        if let Some(attachment) = attachment {
            let poller = self.poller.swap(0, AcqRel);
            if poller != 0 && self.poller_of.load(Relaxed) == attachment.id() {
                let poller = poller_of_word(poller, attachment.life());
                self.each(|mapped| {
                    if let Some(lane) = mapped.arena().join(poller.id) {
                        mapped.arena().watch_inbox(lane, false);
                        mapped.arena().leave(lane);
                    }
                    false
                });
                process::poller_gone(poller);
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
            if place.load().is_some_and(|mapped| !page.arenas().any(|id| id == mapped.id())) {
                place.store(None);
            }
        }
        for id in page.arenas() {
            if self.each(|mapped| mapped.id() == id) {
                continue;
            }
            let Some(mapped) = arenas::ask(attachment, id, Side::B) else {
                // Gone since, which the next generation says; or no number for its memory to come with.
                all &= page.generation() != generation;
                continue;
            };
            let empty = places().find(|place| place.load().is_none());
            if let Some(empty) = empty {
                empty.store(Some(mapped));
            } else if let Some(end) = self.arenas.make(self.count.load(Relaxed) as usize) {
                end.store(Some(mapped));
                self.count.fetch_add(1, AcqRel);
            }
        }
        all
    }

    /// Whether a connection waits in an inbox.
    fn pending(&self) -> bool {
        self.each(|mapped| mapped.arena().pending() != 0)
    }

    /// Takes the next connection, from the inboxes in turn.
    fn take(&self) -> Option<(&'static Mapped, Channel<'static>)> {
        let count = self.count.load(Acquire);
        let first = self.turn.load(Relaxed);
        (0..count).find_map(|next| {
            let place = first.wrapping_add(next) % count;
            let mapped = self.arenas.at(place as usize)?.load()?;
            if mapped.arena().pending() == 0 {
                return None;
            }
            let channel = Channel::accept(mapped.arena())?;
            self.turn.store(place + 1, Relaxed);
            Some((mapped, channel))
        })
    }

    /// The poller of those that block in accept.
    fn poller(&self, attachment: &Attachment) -> Option<Poller> {
        let word = self.poller.load(Acquire);
        if word != 0 && self.poller_of.load(Relaxed) == attachment.id() {
            return Some(poller_of_word(word, attachment.life()));
        }
        let poller = process::poller()?;
        let new = u64::from(poller.id) | (poller.fd as u64 + 1) << 32;
        if self.poller.compare_exchange(word, new, AcqRel, Acquire).is_err() {
            process::poller_gone(poller);
            // Another thread's.
            return Some(poller_of_word(self.poller.load(Acquire), attachment.life()));
        }
        self.poller_of.store(attachment.id(), Release);
        Some(poller)
    }
}

fn poller_of_word(word: u64, life: u32) -> Poller {
    Poller { id: word as u32, fd: (word >> 32) as Fd - 1, private: false, life }
}

/// `accept4(2)` (and `accept(2)` with flags 0): the new descriptor and the peer's address.
/// `None` also when the listener is the kernel's alone.
pub fn accept4(fd: Fd, flags: i32) -> Ours<(Fd, Address)> {
    let held = table::socket(fd)?;
    let socket = held.unheld();
    if socket.kind() == Kind::Channel {
        return Some(Err(Errno::INVAL));
    }
    let listener = of(socket)?;
    if flags & !(SOCK_CLOEXEC | SOCK_NONBLOCK) != 0 {
        return Some(Err(Errno::INVAL));
    }
    if listener.id.load(Acquire) == 0 {
        // Attaching, if it is time to try again, announces it.
        process::attached();
        if listener.id.load(Acquire) == 0 {
            return None;
        }
    }
    let mut patience = Patience::new(socket.receive_timeout());
    // Now and then the kernel's queue goes first, so that a flood of ours does not keep its clients out.
    let mut kernel_first = listener.turn.load(Relaxed).is_multiple_of(16);
    Some(loop {
        // Another thread may have closed the number that this call was given.
        let Some(fd) = live(fd, socket) else { break Err(Errno::BADF) };
        listener.refresh();
        if listener.is_behind() {
            // No number for an arena's memory: none for a connection either.
            match call::dup(fd) {
                Ok(probe) => {
                    // Made above.
                    let _ = call::close(probe);
                }
                Err(errno) => break Err(errno),
            }
        }
        if !kernel_first && listener.pending() {
            match take(listener, socket, flags) {
                None => {}
                Some(answer) => break answer,
            }
        }
        match from_kernel(fd, socket, flags) {
            Err(Errno::AGAIN) => {}
            answer => break answer,
        }
        if kernel_first {
            kernel_first = false;
            listener.turn.fetch_add(1, Relaxed);
            continue;
        }
        if listener.pending() {
            continue;
        }
        if socket.status() & O_NONBLOCK != 0 {
            break Err(Errno::AGAIN);
        }
        if let Err(errno) = wait(listener, fd, &mut patience) {
            break Err(errno);
        }
    })
}

/// One of ours; `None`: another thread or process was faster.
fn take(listener: &Listener, socket: &'static Socket, flags: i32) -> Option<Result<(Fd, Address), Errno>> {
    let _changing = table::Changing::begin();
    // The number first: without one the connection stays where it is (accept4() of the kernel).
    let fd = match call::socket(socket.family() as i32, SOCK_STREAM | flags, 0) {
        Ok(fd) => fd,
        Err(errno) => return Some(Err(errno)),
    };
    let taken = listener.take();
    let give_up = || {
        // Made above.
        let _ = call::close(fd);
    };
    let Some((mapped, channel)) = taken else {
        give_up();
        return None;
    };
    let new = process::current().zip(connect::enter(fd, Kind::Fresh, socket.family()));
    let Some((attachment, new)) = new else {
        channel::give_back(&channel, true);
        give_up();
        return Some(Err(Errno::NFILE));
    };
    new.set_status(flags as u32 & O_NONBLOCK);
    new.mark(mark::ACCEPTED);
    new.inherit(socket);
    if let Err(errno) = connect::adopt(attachment, fd, new, mapped, &channel) {
        crate::descriptor::forget(fd);
        give_up();
        return Some(Err(errno));
    }
    let peer = channel.peer_addr().to_std();
    let peer = peer.map_or_else(|| Address::new(&[]), |peer| address::raw(peer, socket.family()));
    Some(Ok((fd, peer)))
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

/// One of the kernel's; `EAGAIN`: none.
fn from_kernel(fd: Fd, socket: &Socket, flags: i32) -> Result<(Fd, Address), Errno> {
    let _changing = table::Changing::begin();
    let (new, peer) = if socket.status() & O_NONBLOCK != 0 {
        call::accept4(fd, flags)?
    } else {
        let _alone = sys::family::lock(socket.listener() as usize);
        if !sleep(fd, None, Duration::ZERO)? {
            return Err(Errno::AGAIN);
        }
        call::accept4(fd, flags)?
    };
    table::displaced(new);
    if let Some(attachment) = process::current()
        && let Some(_kernels) = connect::enter(new, Kind::Kernel, socket.family())
    {
        // For lists only.
        let _ = process::enter_page(attachment, new, Object::Kernel(fs_shm::control::KernelReason::Accepted));
    }
    Ok((new, peer))
}

/// The longest sleep: whether a daemon has come is looked at this often.
const SLICE: Duration = Duration::from_secs(1);
/// The same where no lane is left in an arena, so that nobody can wake us.
const BLIND: Duration = Duration::from_millis(10);

/// Waits for a connection, ours or the kernel's.
fn wait(listener: &Listener, fd: Fd, patience: &mut Patience) -> Result<(), Errno> {
    let attachment = process::current();
    let announced = listener.id.load(Acquire) != 0;
    if announced && listener.count.load(Relaxed) != 0 {
        // As long as it has paid lately: who connects may need the CPU that we look with.
        if listener.spin.look(None, None, || listener.pending()) {
            return Ok(());
        }
    }
    let poller = attachment.filter(|_| announced).and_then(|attachment| listener.poller(attachment));
    let mut slice = SLICE;
    if let Some(deadline) = patience.deadline() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::AGAIN);
        }
        slice = slice.min(left);
    }
    if CANCELS.load(Relaxed) {
        slice = slice.min(Duration::from_millis(100));
    }
    let Some(poller) = poller else {
        return match sleep(fd, None, slice) {
            Ok(woken) => after_sleep(woken, patience),
            Err(errno) => patience.interrupted_by(errno),
        };
    };
    listener.waiters.fetch_add(1, AcqRel);
    let mut ready = false;
    listener.each(|mapped| {
        let arena = mapped.arena();
        match arena.join(poller.id) {
            Some(lane) => {
                arena.watch_inbox(lane, true);
                arena.drain(lane, |_| {});
                ready |= !arena.prepare_sleep(lane);
            }
            None => slice = slice.min(BLIND),
        }
        false
    });
    if listener.is_behind() {
        slice = slice.min(BLIND);
    }
    let woken = if ready || listener.pending() { Ok(true) } else { sleep(fd, Some(poller.fd), slice) };
    awake(listener, &poller);
    match woken {
        Ok(woken) => after_sleep(woken, patience),
        Err(errno) => patience.interrupted_by(errno),
    }
}

/// No more bells, unless other threads still sleep: those are armed again, and rung if something is there.
fn awake(listener: &Listener, poller: &Poller) {
    poller.take();
    let others = listener.waiters.fetch_sub(1, AcqRel) > 1;
    let mut ready = false;
    listener.each(|mapped| {
        if let Some(lane) = mapped.arena().join(poller.id) {
            if others {
                ready |= !mapped.arena().prepare_sleep(lane) || mapped.arena().pending() != 0;
            } else {
                mapped.arena().awake(lane);
            }
        }
        false
    });
    if others && ready {
        process::bells().ring(poller.id);
    }
}

fn after_sleep(woken: bool, patience: &mut Patience) -> Result<(), Errno> {
    if woken {
        return Ok(());
    }
    match process::current() {
        Some(attachment) => {
            attachment.check();
        }
        None => {
            process::attached();
        }
    }
    if CANCELS.load(Relaxed) {
        return Err(CANCELLED);
    }
    match patience.deadline() {
        Some(deadline) if Instant::now() >= deadline => Err(Errno::AGAIN),
        _ => Ok(()),
    }
}

/// Sleeps until the placeholder or the poller is readable: false when `slice` is over.
fn sleep(fd: Fd, poller: Option<Fd>, slice: Duration) -> Result<bool, Errno> {
    let placeholder = sys::borrowed(fd).ok_or(Errno::BADF)?;
    let bell = sys::borrowed(poller.unwrap_or(fd)).ok_or(Errno::BADF)?;
    let mut fds = [PollFd::from_borrowed_fd(placeholder, PollFlags::IN), PollFd::from_borrowed_fd(bell, PollFlags::IN)];
    let slice = Timespec { tv_sec: slice.as_secs().cast_signed(), tv_nsec: i64::from(slice.subsec_nanos()) };
    rustix::event::poll(&mut fds, Some(&slice)).map(|ready| ready != 0)
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
    for place in 0..LISTENERS {
        let Some(listener) = ALL.at(place) else { return };
        if listener.used.load(Relaxed) == 0 {
            break;
        }
        listener.busy.store(0, Relaxed);
        listener.waiters.store(0, Relaxed);
    }
}
