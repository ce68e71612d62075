//! This process and the daemon: attaching, losing the daemon, pollers.
//!
//! 1. [`attached`] answers the attachment, making it if there is none (at most one try a second). All that hangs on an
//!    attachment carries its `life`, which counts up: what belongs to an earlier one is dead.
//! 2. Attachments are never freed: a reader holds nothing. A process has one, and one more for each daemon that died.
//! 3. A forked child's attachment is made by its parent ([`crate::process::fork`]) and only put into place here.

pub(crate) mod arenas;
mod bells;
pub mod exec;
pub mod fork;
pub(crate) mod held;
pub(crate) mod memory;
pub(crate) mod probe;
pub(crate) mod route;

use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use core::time::Duration;
use fs_shm::{
    Channel, Ends, Geometry,
    control::{self, Client, Fd as OwnedFd, Object},
    holder,
    owner_lock::OwnerLock,
    pages::{AttachmentPage, DirectoryPage},
    sleepers::Sleepers,
};
use rustix::{
    event::EventfdFlags,
    fd::{AsFd, AsRawFd},
    fs::{Mode, OFlags},
    io::Errno,
};
use std::{ffi::OsString, sync::OnceLock};

pub(crate) use bells::bells;

use crate::{
    descriptor::{
        numbers::{self, Room},
        table,
    },
    socket::{Kind, Socket},
    stream::channel,
    sys::{self, pointer::Pointer, signals},
    types::Fd,
};

/// One attachment to one daemon.
#[derive(Debug)]
pub struct Attachment {
    client: Client,
    id: u32,
    life: u32,
    page: AttachmentPage,
    directory: &'static DirectoryPage,
    geometry: Geometry,
    dead: AtomicBool,
}

static CURRENT: Pointer<Attachment> = Pointer::new();
static LIVES: AtomicU32 = AtomicU32::new(0);
/// Held by the thread that attaches.
static ATTACHING: OwnerLock = OwnerLock::new();
/// When the next try may be made: CLOCK_MONOTONIC in nanoseconds.
static NEXT_TRY: AtomicU64 = AtomicU64::new(0);

/// Between two tries to reach a daemon. Shorter: each socket call of a process without a daemon costs system calls.
/// Longer: a restarted daemon is found later.
pub(crate) const RETRY_NS: u64 = 1_000_000_000;

impl Attachment {
    /// The connection to the daemon.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Counts up with every daemon that this process has been attached to (a forked child keeps its parent's).
    pub fn life(&self) -> u32 {
        self.life
    }

    /// Differs from that of all others that this process or its parents have had: each daemon begins its numbers anew.
    fn one_of_all(&self) -> u64 {
        u64::from(self.life) << 32 | u64::from(self.id)
    }

    /// What the process holds.
    pub(crate) fn page(&self) -> &AttachmentPage {
        &self.page
    }

    /// What all processes know.
    pub(crate) fn directory(&self) -> &'static DirectoryPage {
        self.directory
    }

    /// Sizes of the arenas.
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What ends a sleep on a channel, beside the channel.
    pub(crate) fn ends(&self) -> Ends {
        Ends { daemon: self.directory.life(), recalled: &channel::RECALLED }
    }

    /// The daemon is gone.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Acquire)
    }

    /// For a child that is about to be forked.
    pub(crate) fn for_child(&self, mut client: Client, id: u32, page: &OwnedFd) -> Result<Box<Attachment>, Errno> {
        client.set_life(self.directory.life());
        Ok(Box::new(Attachment {
            client,
            id,
            life: self.life,
            page: AttachmentPage::map(page.as_fd())?,
            directory: self.directory,
            geometry: self.geometry,
            dead: AtomicBool::new(false),
        }))
    }

    /// After a request failed: when the connection is closed, everything of this attachment is reset.
    pub(crate) fn failed(&self, error: &control::Error) {
        if matches!(error, control::Error::Closed) {
            self.died();
        }
    }

    /// Asks the kernel whether the daemon is still there (one system call); resets everything if it is not.
    pub fn check(&self) -> bool {
        if !self.is_dead() && (self.directory.is_abandoned() || self.client.is_closed()) {
            self.died();
        }
        !self.is_dead()
    }

    fn died(&self) {
        if self.dead.swap(true, AcqRel) {
            return;
        }
        self.directory.tell_all();
        fence(SeqCst);
        Socket::each(|socket| {
            if socket.life() != self.life {
                return;
            }
            match socket.kind() {
                Kind::Channel => channel::lost(socket),
                Kind::Listener => crate::listen::lost(socket),
                Kind::Free | Kind::Fresh | Kind::Kernel | Kind::Epoll | Kind::Internal => {}
            }
        });
    }
}

/// The attachment there is, without trying for one. Wait-free.
#[inline]
pub fn current() -> Option<&'static Attachment> {
    CURRENT.load().filter(|attachment| !attachment.is_dead())
}

/// This process has no attachment because the daemon of its parent's had died.
static ORPHAN: AtomicBool = AtomicBool::new(false);

/// Whether this process, or its parent before it was forked, had a daemon that died, and has no other yet. Wait-free.
#[inline]
pub(crate) fn is_orphaned() -> bool {
    CURRENT.load().map_or_else(|| ORPHAN.load(Relaxed), Attachment::is_dead)
}

/// The daemon is found, and this process's listeners are being announced to it.
static ANNOUNCING: AtomicBool = AtomicBool::new(false);

/// Whether this process has no daemon, or its listeners are not announced to it yet, though that may change from the next moment on: it is
/// older than the daemon, or orphaned. A thread that waited for a listener in the kernel would not see what comes by memory once another
/// thread has found a daemon. Never in a signal handler: to attach takes malloc(3). Wait-free.
pub(crate) fn may_be_attached() -> bool {
    (current().is_none() || ANNOUNCING.load(Acquire))
        && !fs_shm::wait::is_confined()
        && !HAS_RING.load(Relaxed)
        && !signals::in_handler()
}

/// When the daemon looks next, in nanoseconds of CLOCK_MONOTONIC, and as which attachment it was asked to ([`Attachment::one_of_all`]).
static DUE: AtomicU64 = AtomicU64::new(0);
static DUE_OF: AtomicU64 = AtomicU64::new(0);

/// Has the daemon see to a connection then; false: it cannot. One look is for all that is due by then; it finds out itself what comes after.
pub(crate) fn due(channel: &Channel<'static>, after: Duration) -> bool {
    let Some(attachment) = current() else { return false };
    let now = fs_shm::channel::now();
    let at = now.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)).max(1);
    channel.set_due(at);
    // A look that is over has seen it, or the clock here is not read before that.
    fence(SeqCst);
    let now = fs_shm::channel::now();
    loop {
        let next = DUE.load(Relaxed);
        if DUE_OF.load(Relaxed) == attachment.one_of_all() && next > now && next <= at {
            return true;
        }
        // Else another thread has asked, for an earlier look perhaps.
        if DUE.compare_exchange(next, at, Relaxed, Relaxed).is_ok() {
            break;
        }
    }
    DUE_OF.store(attachment.one_of_all(), Relaxed);
    // Not before `at`, up to which others count on it.
    let after = u32::try_from(after.as_millis()).unwrap_or(u32::MAX).saturating_add(1);
    attachment.client().due(after).inspect_err(|error| attachment.failed(error)).is_ok()
}

/// Has the daemon make room in an arena for a connection that is kept out, if others have some that they do not use.
pub(crate) fn ask_for_room(arena: u32) {
    if let Some(attachment) = current()
        && let Err(error) = attachment.client().ask_for_room(arena)
    {
        attachment.failed(&error);
    }
}

/// Tells the daemon that entries of the page and references are about to change; the answer's page is to be told of the end.
pub(crate) fn begin_change() -> Option<&'static Attachment> {
    current().inspect(|attachment| attachment.page.begin_change())
}

/// This process has a ring of io_uring(7), which does not know our sockets: they are the kernel's for good.
static HAS_RING: AtomicBool = AtomicBool::new(false);

/// Lets `make` make a ring, unless this process is attached to a daemon. `None`: it is. Where one was made (`make` answers true) it
/// never will be.
pub fn make_ring(make: impl FnOnce() -> bool) -> Option<bool> {
    if attached().is_some() {
        return None;
    }
    let _attaching = ATTACHING.lock().ok()?;
    // Another thread may have been first.
    let made = current().is_none().then(make);
    if made == Some(true) {
        HAS_RING.store(true, Relaxed);
    }
    made
}

/// The attachment; made now if there is none and the last try was long enough ago, unless this process is confined or has a ring.
pub fn attached() -> Option<&'static Attachment> {
    if let Some(attachment) = current() {
        return Some(attachment);
    }
    // Behind a try that a daemon keeps waiting, which is stopped, nobody waits for the next.
    let may = || !HAS_RING.load(Relaxed) && now() >= NEXT_TRY.load(Relaxed);
    if fs_shm::wait::is_confined() || !may() {
        return None;
    }
    // A signal handler in the middle of its own thread's attaching has none.
    // A handler that jumps would leave descriptors behind, and malloc(3) in the middle.
    let _section = signals::Section::begin();
    let _attaching = ATTACHING.lock().ok()?;
    current().or_else(|| if may() { attach() } else { None })
}

/// A signal handler has jumped out of what this thread was in the middle of.
pub(crate) fn jumped() {
    ATTACHING.break_own();
    numbers::jumped();
    if let Some(attachment) = current() {
        attachment.client.break_own_lock();
    }
}

fn attach() -> Option<&'static Attachment> {
    let _room = Room::open();
    let made = reach().and_then(|client| enter(client, false));
    if made.is_none() {
        NEXT_TRY.store(now() + RETRY_NS, Relaxed);
    }
    made.map(|(attachment, _)| attachment)
}

/// Introduces this process (or its new image) on a connection; its page's memory comes with it.
pub(crate) fn enter(mut client: Client, resume: bool) -> Option<(&'static Attachment, OwnedFd)> {
    let _high = client.move_from(numbers::first()).ok()?;
    let mut room = [0; 64];
    let name = program(&mut room);
    let welcome = if resume { client.resume(name) } else { client.hello(name) }.ok()?;
    let directory: &'static DirectoryPage = Box::leak(Box::new(DirectoryPage::map(welcome.directory.as_fd()).ok()?));
    client.set_life(directory.life());
    let attachment = Attachment {
        id: welcome.attachment,
        life: LIVES.fetch_add(1, Relaxed) + 1,
        page: AttachmentPage::map(welcome.page.as_fd()).ok()?,
        directory,
        geometry: Geometry::from_welcome(welcome.geometry)?,
        dead: AtomicBool::new(false),
        client,
    };
    bells::forget();
    table::set_internal(attachment.client.fd().as_raw_fd());
    holder::set_attachment(attachment.id);
    let attachment: &'static Attachment = Box::leak(Box::new(attachment));
    ANNOUNCING.store(true, Relaxed);
    CURRENT.store(Some(attachment));
    crate::listen::announce_again(attachment);
    ANNOUNCING.store(false, Release);
    Some((attachment, welcome.page))
}

/// In a forked child: `attachment` was made for it.
pub(crate) fn become_child(attachment: Option<Box<Attachment>>) {
    // Whoever was attaching is the parent's.
    let _whole = ATTACHING.reset();
    let parent = CURRENT.load();
    ORPHAN.store(is_orphaned(), Relaxed);
    ANNOUNCING.store(false, Relaxed);
    // What changes from here on is no change of the parent's.
    CURRENT.store(None);
    if let Some(parent) = parent {
        // The daemon takes its parent for alive as long as anybody has its connection.
        drop_internal(parent.client.fd().as_raw_fd());
    }
    let Some(attachment) = attachment else { return };
    holder::set_attachment(attachment.id);
    table::set_internal(attachment.client.fd().as_raw_fd());
    CURRENT.store(Some(Box::leak(attachment)));
}

/// Where the daemon is, if the program says so itself.
static PATH: OnceLock<Vec<u8>> = OnceLock::new();

/// The daemon's control socket, in place of the environment's and the usual ones; for programs that use this crate
/// themselves. False: another was named before.
pub fn set_path(path: &[u8]) -> bool {
    let named = PATH.set(path.to_vec()).is_ok();
    if named {
        // Whoever tried before looked elsewhere.
        NEXT_TRY.store(0, Release);
    }
    named
}

/// What the environment says of where the daemon is.
#[derive(Debug)]
struct Named {
    control: Option<OsString>,
    runtime: Option<OsString>,
}

impl Named {
    fn now() -> Self {
        Named { control: std::env::var_os(control::PATH_VARIABLE), runtime: std::env::var_os("XDG_RUNTIME_DIR") }
    }
}

/// As it was when the program began: some empty their environment later (nginx's workers), and look for the next daemon
/// when this one has gone.
static AT_START: OnceLock<Named> = OnceLock::new();

/// Before `main`.
pub(crate) fn start() {
    AT_START.get_or_init(Named::now);
    signals::put_off_in_requests();
}

/// Connects to the first daemon that answers.
fn reach() -> Option<Client> {
    if let Some(path) = PATH.get() {
        return Client::connect(path).ok();
    }
    let at_start = AT_START.get_or_init(Named::now);
    let Named { control, runtime } = Named::now();
    if let Some(path) = control.as_ref().or(at_start.control.as_ref()) {
        return Client::connect(path.as_encoded_bytes()).ok();
    }
    let user = runtime.or_else(|| at_start.runtime.clone()).and_then(|directory| {
        let mut path = directory.into_encoded_bytes();
        path.push(b'/');
        path.extend_from_slice(control::USER_PATH.as_bytes());
        // su(1) leaves another user's directory in the environment: who runs a daemon there could lead this program anywhere.
        let is_own = |client: &Client| {
            let mine = rustix::process::geteuid().as_raw();
            client.runs_as().is_some_and(|user| user == mine || user == 0)
        };
        Client::connect(&path).ok().filter(is_own)
    });
    user.or_else(|| Client::connect(control::SYSTEM_PATH.as_bytes()).ok())
}

/// The program's name, for lists: as ps(1) and ss(8) have it. (The file's name is another where it has several.)
fn program(room: &mut [u8; 64]) -> &[u8] {
    // Without /proc the name is empty.
    let comm = rustix::fs::open("/proc/self/comm", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let len = comm.and_then(|comm| rustix::io::read(comm, &mut room[..])).unwrap_or_default();
    room[..len].trim_ascii_end()
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Writes what a descriptor stands for into the attachment page. False: it cannot have an entry.
#[must_use]
pub(crate) fn enter_page(attachment: &Attachment, fd: Fd, object: Object) -> bool {
    attachment.page.set(fd, object, 0)
}

/// A poller of this process: something to sleep on that the daemon and our peers ring.
#[derive(Clone, Copy, Debug)]
pub struct Poller {
    /// What lanes carry.
    pub id: u32,
    /// What is slept on, readable when it was rung: an epoll set of the daemon's, or an eventfd (non-blocking) if it is
    /// private. Kept out of the application's reach.
    pub fd: Fd,
    /// The daemon alone rings it. Everything else would take epoll_wait(2), which a process that confines itself may forbid.
    pub private: bool,
    /// Of which attachment it is ([`Attachment::life`]): void after another.
    pub life: u32,
}

/// Makes a poller that stays. `None`: no daemon (then there is nothing to watch either), or no descriptor number, but for the program's
/// last ones. Called below a set's lock, so that no daemon is looked for: all sets hear of the next one.
pub fn poller() -> Option<Poller> {
    let attachment = current()?;
    let (id, set) = ask_for_poller(attachment)?;
    let Some(fd) = numbers::keep_unless_last(set) else {
        if let Err(error) = attachment.client.poller_gone(id) {
            attachment.failed(&error);
        }
        return None;
    };
    Some(Poller { id, fd, private: false, life: attachment.life })
}

/// The same for one sleep: any number will do.
pub(crate) fn poller_for_a_sleep() -> Option<Poller> {
    let attachment = attached()?;
    let (id, set) = ask_for_poller(attachment)?;
    Some(Poller { id, fd: numbers::keep(set), private: false, life: attachment.life })
}

fn ask_for_poller(attachment: &Attachment) -> Option<(u32, OwnedFd)> {
    let answer = numbers::make(|| attachment.client.poller());
    answer.inspect_err(|error| attachment.failed(error)).ok()
}

/// The poller of all who sleep in accept on a listener.
pub(crate) fn listener_poller(attachment: &Attachment, listener: u32) -> Option<(Poller, Option<Sleepers>)> {
    let answer = numbers::make(|| attachment.client.listener_poller(listener));
    let (id, set, memory) = answer.inspect_err(|error| attachment.failed(error)).ok()?;
    let poller = Poller { id, fd: numbers::keep(set), private: false, life: attachment.life };
    // Without it they sleep in no order.
    Some((poller, memory.and_then(|memory| Sleepers::map(memory.as_fd()).ok())))
}

/// The poller of all epoll sets that watch a listener with EPOLLEXCLUSIVE, for the set with the poller `set`; whether that
/// is rung for new arenas all the same.
pub(crate) fn exclusive_poller(attachment: &Attachment, listener: u32, set: u32, told: bool) -> Option<Poller> {
    let answer = numbers::make(|| attachment.client.exclusive_poller(listener, set, told));
    let (id, eventfd) = answer.inspect_err(|error| attachment.failed(error)).ok()?;
    Some(Poller { id, fd: numbers::keep(eventfd), private: true, life: attachment.life })
}

/// One descriptor less of a poller, which is used on.
pub(crate) fn drop_poller(poller: Poller) {
    drop_internal(poller.fd);
}

/// Makes a poller that works without epoll_wait(2).
pub(crate) fn private_poller() -> Option<Poller> {
    let attachment = attached()?;
    let _room = Room::open();
    let eventfd: OwnedFd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?.into();
    let made = attachment.client.private_poller(eventfd.as_fd());
    let id = made.inspect_err(|error| attachment.failed(error)).ok()?;
    Some(Poller { id, fd: numbers::keep(eventfd), private: true, life: attachment.life })
}

impl Poller {
    /// In place of one where no descriptor number is free: nobody rings it, and no lane can be joined in its name. Who has it
    /// looks at short intervals.
    pub(crate) fn none(life: u32) -> Self {
        Poller { id: 0, fd: -1, private: true, life }
    }

    /// Whether it is one that is never rung ([`Poller::none`]).
    pub(crate) fn is_none(&self) -> bool {
        self.id == 0
    }

    /// Takes what has rung it, after a poll(2) that found it readable.
    pub(crate) fn take(&self) {
        if self.private {
            // EAGAIN: another thread has read it.
            let _ = sys::call::read(self.fd, &mut [0; 8]);
        } else {
            crate::poll::take_events(self.fd);
        }
    }
}

/// The poller is used no more; its lanes have been left.
pub fn poller_gone(poller: Poller) {
    if poller.is_none() {
        return;
    }
    if let Some(attachment) = current().filter(|attachment| attachment.life == poller.life) {
        // Perhaps below a set's lock, where nothing is made of the daemon's end, which sees to the locks of all sets: whoever waits or
        // asks next finds it out.
        let _ = attachment.client.poller_gone(poller.id);
    }
    bells::gone(poller.id);
    drop_internal(poller.fd);
}

/// This process is about to confine itself to few system calls (seccomp): what may be needed of the daemon is asked for
/// now, and what a filter may not allow is not called any more. sshd does so in front of each connection.
///
/// Bells that are known by then are rung directly, pollers that join later are rung by the daemon.
pub fn confine() {
    for poller in crate::process::arenas::all().flat_map(fs_shm::Arena::peer_pollers) {
        if !bells::know(poller) {
            // No room for descriptors: asking for the next ones is in vain.
            break;
        }
    }
    crate::poll::confine();
    crate::descriptor::kept::stop();
    crate::process::fork::prepare();
    grow_tables();
    signals::remember();
    fs_shm::wait::confine();
}

/// Memory for as many descriptors, their sockets and listeners as there may be: none is asked for once mprotect(2) may not be
/// called. Where it is not to be had, or the limit is raised later, what is beyond is the kernel's.
fn grow_tables() {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = usize::try_from(most.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    table::grow(most);
    crate::socket::grow(most);
    crate::listen::grow(most);
    crate::poll::grow(most);
}

fn drop_internal(fd: Fd) {
    table::unset_internal(fd);
    // A number of ours, closed once.
    let _ = sys::call::close(fd);
}
