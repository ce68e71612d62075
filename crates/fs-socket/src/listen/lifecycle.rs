//! From bind(2) and listen(2) to the last close: what a socket is, and what the daemon is told of it.

use core::sync::atomic::{
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

use fs_shm::{
    control::{Client, Error, KernelReason, Object},
    pages::ListenerPage,
};
use libc::SHUT_RDWR;
use rustix::io::Errno;

use super::{
    ALL, HIGHEST, LISTENERS, Listener, REFUSED,
    announce::{announce, announce_anyway, clear_pages, enter_pages},
    live, of,
    wake::poller_of_word,
};
use crate::{
    address,
    descriptor::{self, is_own, numbers, table},
    options, poll, ports,
    process::{self, Attachment},
    socket::{Kind, Socket, mark},
    stream::connect,
    sys::{self, call},
    types::{Fd, Ours},
};

/// `bind(2)`.
pub fn bind(fd: Fd, address: &[u8]) -> Ours<()> {
    let socket = table::find(fd)?;
    if is_own(fd, socket) {
        return Some(Err(Errno::BADF));
    }
    match socket.kind() {
        Kind::Fresh => {}
        Kind::Channel => return Some(connect::bind(fd, socket, address)),
        // Refused once, or the kernel's for another reason: what has the port may be ours all the same.
        Kind::Kernel => return Some(ports::bind(fd, address)),
        _ => return None,
    }
    Some(ports::bind(fd, address).inspect(|()| {
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
    if is_own(fd, socket.unheld()) {
        return Some(Err(Errno::BADF));
    }
    match socket.kind() {
        Kind::Fresh | Kind::Listener => {}
        Kind::Channel => return Some(Err(Errno::INVAL)),
        Kind::Free | Kind::Kernel | Kind::Epoll | Kind::Internal => return None,
    }
    crate::descriptor::kept::spoil(&socket);
    if let Err(errno) = call::listen(fd, backlog) {
        return Some(Err(errno));
    }
    let socket = socket.unheld();
    leave_if_shut(fd, socket);
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
        // A rule, or its connections have the port: it must not listen on the kernel either. (A socket that listens and is shut
        // down is closed again.)
        if let Some(fd) = live(fd, socket) {
            // Shut down it was before.
            if errno != Errno::ADDRINUSE {
                stop(fd, socket);
            }
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

/// A socket that was shut down before it listens is the kernel's: its connections are shut as well, for writing as soon as they are there,
/// whether they are accepted or not (sk_clone_lock(), and TCP_SYN_RECV in tcp_rcv_state_process(), of the kernel).
fn leave_if_shut(fd: Fd, socket: &'static Socket) {
    if socket.marked(mark::SHUT_READ | mark::SHUT_WRITE) {
        stop(fd, socket);
        socket.mark(mark::KERNEL_ONLY);
    }
}

/// Makes a listening socket a [`Kind::Listener`]; false: no room, it is the kernel's alone.
pub(super) fn become_listener(socket: &'static Socket) -> bool {
    if socket.kind() == Kind::Listener {
        return true;
    }
    let free = |place: &usize| {
        ALL.make(*place).is_some_and(|listener| listener.used.compare_exchange(0, 1, AcqRel, Relaxed).is_ok())
    };
    let Some((place, listener)) = (0..LISTENERS).find(free).and_then(|place| Some((place, ALL.at(place)?))) else {
        return false;
    };
    listener.forget_looks();
    HIGHEST.fetch_max(place + 1, Relaxed);
    // listen(2) reads SO_REUSEADDR, and what it had as a connection is over.
    socket.unmark(mark::NAMED | mark::SHARES | mark::SHARES_NOT);
    socket.set_listener(place as u32);
    sys::family::prepare();
    socket.become_kind(Kind::Listener);
    poll::changed(socket);
    true
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

pub(super) fn tell_daemon(socket: &Socket, tell: impl FnOnce(&Client, u32) -> Result<(), Error>) {
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
    orphaned(socket);
    poll::changed(socket);
}

/// The same in a forked child without an attachment, which makes its sets anew.
pub(crate) fn orphaned(socket: &Socket) {
    if let Some(listener) = of(socket) {
        listener.id.store(0, Release);
        listener.watches.store(0, Release);
        listener.empty();
    }
}

/// close(2) of the last number: when it returns nobody can connect any more, though other threads may hold the socket still.
/// One that tells the daemon of it just now (of all there are, when a process attaches) is waited for. After a tenth of a second
/// this goes on: it may be this thread, below a signal handler, or the daemon may be slow; then the other one takes it back.
///
/// `is_registered`: a registration in an epoll set holds the socket on, as others have it open ([`poll::closed`]). True: one did,
/// and the daemon knows of nothing else that this process has of it.
pub(crate) fn last_number_gone(socket: &Socket, is_registered: bool) -> bool {
    let Some(listener) = of(socket) else { return false };
    for rounds in 0..1200 {
        if !listener.is_announced_now() {
            break;
        }
        table::pause(rounds);
    }
    if is_registered {
        if listener.watch() {
            return true;
        }
        // While its pollers, which the sets watch, have their numbers. Not of a set that this thread is in the middle of: that one's
        // registration holds the socket until its next look, and nothing is left to be told.
        poll::ended(socket);
    }
    listener.withdraw();
    is_registered
}

/// Whether a socket, the last number of which this process is about to close, stays open in another one. A process that has confined
/// itself has no part in it.
pub(crate) fn is_others(socket: &Socket) -> bool {
    let page = of(socket).filter(|listener| listener.id.load(Acquire) != 0).and_then(|listener| listener.page.load());
    page.is_some_and(|page| page.holders() > 1 && !page.is_over()) && !fs_shm::wait::is_confined()
}

/// Whether a registration of one that this process has closed stands: some process has it open, and this one's daemon is there.
pub(crate) fn is_open_elsewhere(socket: &Socket) -> bool {
    let is_there = |listener: &&Listener| listener.id.load(Acquire) != 0 && listener.watches.load(Acquire) != REFUSED;
    let page = of(socket).filter(is_there).and_then(|listener| listener.page.load());
    page.is_some_and(|page| !page.is_over())
}

/// Whether this process has closed it and is one of those who watch it.
pub(crate) fn is_watching(socket: &Socket) -> bool {
    of(socket).is_some_and(|listener| listener.watches.load(Acquire) != 0)
}

/// Nobody holds it any more.
pub(crate) fn let_go(socket: &'static Socket) {
    let Some(listener) = of(socket) else { return };
    listener.withdraw();
    listener.let_go();
}

/// A number is about to be closed, or another descriptor to take it. If it is the last one, and threads wait in accept: as on the
/// kernel, where a call holds the file, they go on, and the listener is there until the last of them has returned.
pub(crate) fn outlive(fd: Fd) {
    let Some(held) = table::socket(fd) else { return };
    let socket = held.unheld();
    let Some(listener) = of(socket).filter(|listener| listener.accepting.load(SeqCst) != 0) else { return };
    if socket.descriptors() > 1 || fs_shm::wait::is_confined() {
        return;
    }
    let _changing = table::Changing::begin();
    // Without a number they end now.
    let Ok(number) = numbers::duplicate(fd) else { return };
    // Whole before others know of it: who sees it may be the one that closes it.
    table::displaced(number);
    descriptor::enter(number, socket);
    if listener.outlives.compare_exchange(0, number, SeqCst, Relaxed).is_err() {
        close_own(number);
        return;
    }
    fence(SeqCst);
    if listener.accepting.load(SeqCst) == 0 {
        // The last of them has returned meanwhile.
        listener.accepted();
    }
}

/// Closes a number of [`outlive`].
fn close_own(number: Fd) {
    if descriptor::close(number).is_none() {
        // Not a socket's in the table: the application's dup2 has been there.
        let _ = call::close(number);
    }
}

/// Whether it is a number of [`outlive`].
pub(crate) fn is_outliving(fd: Fd, socket: &Socket) -> bool {
    of(socket).is_some_and(|listener| listener.outlives.load(SeqCst) == fd)
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
    // While there is a poller to wake them by, and its pollers have the numbers that sets know them by.
    listener.recall();
    poll::changed(socket);
    listener.withdraw();
    connect::clear_page(fd);
    if let (Some(announced), Some(attachment)) = (announced, process::current()) {
        clear_pages(attachment, socket, announced);
    }
    listener.let_go();
}

/// The listener of this process that the daemon has under this number, held.
pub(crate) fn of_id(attachment: &Attachment, wanted: u32) -> Option<table::SocketRef> {
    let mut found = None;
    Socket::each(|socket| {
        // One without a number is closed, or about to be, and a registration's alone.
        if found.is_none() && id(socket) == wanted && socket.life() == attachment.life() && socket.descriptors() != 0 {
            found = table::hold(socket).filter(|held| id(held.unheld()) == wanted);
        }
    });
    found
}

/// The daemon's number of a listener; 0: it is not announced.
pub(crate) fn id(socket: &Socket) -> u32 {
    of(socket).map_or(0, |listener| listener.id.load(Acquire))
}

impl Listener {
    /// A thread has waited in accept.
    pub(crate) fn waits_no_more(&self) {
        if self.accepting.fetch_sub(1, SeqCst) == 1 && self.outlives.load(SeqCst) != 0 {
            self.accepted();
        }
    }

    /// Nobody waits in accept: the number of [`outlive`] goes.
    pub(super) fn accepted(&self) {
        let number = self.outlives.swap(0, SeqCst);
        if number != 0 {
            close_own(number);
        }
    }

    pub(super) fn take_page(&self, id: u32, life: u32, page: ListenerPage) {
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

    /// The daemon is told that this process holds it no more, and has it in an epoll set. False: nobody else holds it, or it is not for
    /// this process to see what they accept.
    fn watch(&self) -> bool {
        let id = self.id.load(Acquire);
        let attachment = process::current().filter(|now| id != 0 && now.life() == self.life.load(Relaxed));
        let Some(attachment) = attachment else { return false };
        match attachment.client().watch(id) {
            Ok(()) => {
                self.watches.store(1, Release);
                true
            }
            Err(error) => {
                if matches!(error, Error::TimedOut) {
                    // Carried out when the daemon comes to it; this, behind it. That fails: it is rung in vain until it ends.
                    let _ = attachment.client().unwatch(id);
                }
                attachment.failed(&error);
                false
            }
        }
    }

    /// Whether this process has the same listener a second time, received after it was closed, and waits on that poller there: the daemon
    /// counts the process once.
    fn is_used_elsewhere(&self, poller: u32, life: u32) -> bool {
        let others = (0..HIGHEST.load(Relaxed)).filter_map(|place| ALL.at(place));
        others.filter(|other| !core::ptr::eq(*other, self)).any(|other| {
            let pollers = [(&other.poller, &other.poller_life), (&other.exclusive, &other.exclusive_life)];
            pollers.into_iter().any(|(word, of)| word.load(SeqCst) as u32 == poller && of.load(Relaxed) == life)
        })
    }

    /// Takes it back from the daemon, and its poller. Of one that is only watched: below a set's lock, so that nothing is waited for,
    /// and nothing made of the daemon's end, which every set hears of by itself.
    pub(super) fn withdraw(&self) {
        let is_watched = self.watches.swap(0, AcqRel) != 0;
        let id = self.id.swap(0, AcqRel);
        let attachment = process::current().filter(|attachment| attachment.life() == self.life.load(Relaxed));
        if let Some(attachment) = attachment {
            for (poller, life) in [(&self.poller, &self.poller_life), (&self.exclusive, &self.exclusive_life)] {
                let word = poller.swap(0, SeqCst);
                if word == 0 || life.load(Relaxed) != attachment.life() {
                    continue;
                }
                let poller = poller_of_word(word, attachment.life());
                if self.is_used_elsewhere(poller.id, attachment.life()) {
                    process::drop_poller(poller);
                } else {
                    // Its lanes are other processes' too: the daemon frees them after the last one.
                    process::poller_gone(poller);
                }
            }
            if id != 0 && is_watched {
                // No room: it is rung in vain until it ends.
                let _ = attachment.client().unwatch(id);
            } else if id != 0 {
                match attachment.client().unlisten(id) {
                    Ok(in_use) if in_use => ports::close_is_due(),
                    Ok(_) => {}
                    Err(error) => attachment.failed(&error),
                }
            }
        }
        self.empty();
    }

    /// Options are about to change: those who wait have them as they are (tcp_create_openreq_child() of the kernel).
    pub(super) fn keep_options(&self, socket: &Socket) {
        // Who has an arena looks at what others accept. A master that only sets options (Apache's, at each graceful restart) is
        // no such process: where others hold the listener one may wait wherever this process has not looked.
        if !self.has_others() {
            self.refresh();
        }
        let until = self.before_until.load(Relaxed);
        let is_behind = self.is_behind() && self.page.load().is_some_and(|page| page.arenas().next().is_some());
        let mut waits = is_behind;
        let waits_from_before = self.each(|mapped| {
            let since = mapped.arena().waiting_since();
            waits |= since.is_some();
            since.is_some_and(|since| since < until)
        });
        if (waits_from_before || is_behind && until != 0) && self.before.load().is_some() {
            // Those that came since that change are taken for later ones.
            return;
        }
        self.before_until.store(0, Relaxed);
        self.forget_options();
        if waits && let Some(copy) = socket.copy() {
            self.before.store(Some(copy));
            self.before_until.store(fs_shm::now(), Release);
        }
    }

    pub(super) fn forget_options(&self) {
        if let Some(copy) = self.before.swap(None) {
            copy.drop_copy();
        }
    }

    /// When the next connection came, if that matters.
    pub(super) fn came_of_next(&self) -> Option<u64> {
        let until = self.before_until.load(Acquire);
        if until == 0 {
            return None;
        }
        let since = || self.arenas.at(self.longest_waiting()? as usize)?.load()?.arena().waiting_since();
        let since = since();
        if since.is_none_or(|since| since >= until) && !self.is_behind() {
            // Nobody waits from before any more. The change may be another one by now, which stays.
            let _ = self.before_until.compare_exchange(until, 0, AcqRel, Relaxed);
        }
        since
    }

    /// The options that a connection has which came then, where they are not the socket's own.
    pub(super) fn options_of(&self, came: Option<u64>) -> Option<table::SocketRef> {
        let until = self.before_until.load(Acquire);
        came.filter(|&came| came < until)?;
        table::hold(self.before.load()?)
    }
}
