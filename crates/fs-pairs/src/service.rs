//! The loop over the service's socket.

mod requests;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use fs_carrier::region::{End, Region};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use crate::closing::{User, Users};
use crate::facts::Seen;
use crate::inbox::Message;
use crate::listing::Process;
use crate::message::{Answer, Reason};
use crate::outbox::Outbox;
use crate::registry::{Again, Key, Registry};
use crate::sys::{Credentials, contains_descriptors, credentials};

pub use crate::registry::{Broker, CountWire, Limits, Permit};

/// Bytes of each ring. Larger: more cache and, when used, more memory. Smaller: large messages fall
/// back to the kernel more often. Untouched pages cost nothing.
const RING: usize = 64 << 10;
/// The backlog of the service's socket.
const BACKLOG: i32 = 1024;
/// Messages of one client that are read in one turn. More: a client delays the others for longer.
/// Fewer: a client with many offers waits more often for a thread of its user.
const MESSAGES_PER_TURN: usize = 16;
/// Refusals that wait until the client's other offers are decided. More: a client that sends many
/// costs each turn more. Fewer: tests that offer no TCP socket, to wait for earlier offers, do not wait.
const POSTPONED: usize = 64;
/// Maximum number of events of one turn.
const EVENTS: usize = 64;

/// How the kernel accounts for memory that is not used yet (Documentation/mm/overcommit-accounting.rst).
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const FIRST_CLIENT: u64 = 2;

/// What other threads share with a service.
#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    stops: AtomicBool,
}

impl Shared {
    fn wake(&self) {
        // A full counter is readable already.
        let _written = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// What a thread of a user has read from sockets.
#[derive(Debug)]
enum Report {
    /// From those of a client's offers.
    Offers(u64, Vec<Message>),
    /// From that of a waiting offer.
    Again(Again, Result<Seen, Reason>),
}

/// Ends a running service, from any thread.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Shared>);

impl Handle {
    /// Ends [`Service::run`].
    pub fn stop(&self) {
        self.0.stops.store(true, Ordering::Release);
        self.0.wake();
    }
}

/// A process's connection.
#[derive(Debug)]
struct Client {
    outbox: Outbox,
    user: Arc<User>,
    /// A thread reads the sockets of this client's offers. Until then, its next messages stay in the
    /// socket: they are handled in their order, and a client that sends more is not read.
    is_paused: bool,
    /// The events of the epoll set.
    watched: EventFlags,
}

/// The match service.
///
/// ```no_run
/// let service = fs_pairs::Service::bind("/run/fastsock/pairs.sock".as_ref())?;
/// let handle = service.handle();
/// std::thread::spawn(move || service.run());
/// handle.stop();
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Service {
    listener: OwnedFd,
    epoll: OwnedFd,
    shared: Arc<Shared>,
    path: PathBuf,
    /// The socket's file at `path`.
    file: Option<FileId>,
    clients: HashMap<u64, Client>,
    users: Users,
    has_warned: bool,
    has_warned_of_accept: bool,
    /// Regions get all of their memory at once.
    reserves: bool,
    broker: Option<Broker>,
    next_client: u64,
    registry: Registry,
    /// Offers of no TCP sockets. They are refused after the decision about the client's earlier offers.
    postponed: Vec<Key>,
    reports: Sender<Report>,
    inbox: Receiver<Report>,
}

impl Service {
    /// Makes the service's socket. Every user may connect to it, as far as its directory permits. Changes
    /// the process's umask for the time of bind(2): files that other threads make then have more rights.
    ///
    /// # Errors
    /// `AddrInUse` if another service answers at `path`. The errors of the system calls.
    pub fn bind(path: &Path) -> io::Result<Self> {
        Self::with_limits(path, Limits::default())
    }

    /// Like [`Service::bind`], with other limits.
    ///
    /// # Errors
    /// The errors of [`Service::bind`].
    pub fn with_limits(path: &Path, limits: Limits) -> io::Result<Self> {
        let listener = listen(path)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let (reports, inbox) = channel();
        Ok(Service {
            listener,
            epoll,
            shared: Arc::new(Shared { wake, stops: AtomicBool::new(false) }),
            path: path.to_owned(),
            file: file_at(path),
            clients: HashMap::new(),
            users: Users::default(),
            has_warned: false,
            has_warned_of_accept: false,
            reserves: is_memory_strict(OVERCOMMIT),
            broker: None,
            next_client: FIRST_CLIENT,
            registry: Registry::new(limits),
            postponed: Vec::new(),
            reports,
            inbox,
        })
    }

    /// Calls `permit` for each offer. Both ends must be permitted. Existing pairs go on.
    #[must_use]
    pub fn permitted_by(mut self, permit: Permit) -> Self {
        self.registry.permit = Some(permit);
        self
    }

    /// Calls `count` whenever counters are read.
    #[must_use]
    pub fn counted_by(mut self, count: CountWire) -> Self {
        self.registry.wire = Some(count);
        self
    }

    /// Gives connections of processes that ask for a shared device to `broker`.
    #[must_use]
    pub fn brokered_by(mut self, broker: Broker) -> Self {
        self.broker = Some(broker);
        self
    }

    /// Returns true if a service accepts connections at `path`.
    #[must_use]
    pub fn answers(path: &Path) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connected = SocketAddrUnix::new(path).and_then(|at| {
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            rustix::net::connect(&socket, &at)
        });
        connected.is_ok()
    }

    /// Returns the handle that ends the service.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared))
    }

    /// Serves until [`Handle::stop`]. Promoted pairs go on afterwards.
    ///
    /// # Errors
    /// The errors of epoll_wait(2).
    pub fn run(mut self) -> io::Result<()> {
        while !self.shared.stops.load(Ordering::Acquire) {
            self.turn()?;
        }
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let next = [self.registry.next_deadline(), self.users.next_attempt(now)].into_iter().flatten().min();
        let time = next.map(|at| {
            let left = at.saturating_duration_since(now);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let n = match epoll::wait(&self.epoll, &mut events[..], time.as_ref()) {
            Ok(n) => n,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for event in &events[..n] {
            match event.data.u64() {
                LISTENER => self.accept(),
                WAKE => self.resume(),
                client => {
                    self.flush(client);
                    self.serve(client, event.flags);
                }
            }
        }
        for key in self.registry.expire(Instant::now()) {
            self.refuse(key, Reason::NoPeer);
        }
        // Either may disconnect a client, whose offers release others.
        loop {
            self.refuse_postponed();
            let Some((key, outcome)) = self.registry.next_released(Instant::now()) else { break };
            self.settle(key, outcome);
        }
        self.users.start_threads(Instant::now());
        Ok(())
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::accept_with(&self.listener, flags) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(error) => {
                // Logged once: it recurs each 10 ms.
                if !core::mem::replace(&mut self.has_warned_of_accept, true) {
                    tracing::warn!(%error, "cannot accept a process's connection to the match service");
                }
                // Out of descriptors: the listener stays readable and would keep this thread busy.
                std::thread::sleep(std::time::Duration::from_millis(10));
                return;
            }
        };
        let Ok(Credentials { pid, uid }) = credentials(socket.as_fd()) else { return };
        let user = self.users.get(uid);
        if user.is_stuck() {
            let _disconnected = rustix::net::shutdown(&socket, Shutdown::Both);
            // Only connections with descriptors wait for a thread. The kernel bounds what a user sends
            // (`too_many_unix_fds`, net/core/scm.c), but not its connections.
            if contains_descriptors(socket.as_fd()) {
                drop(user.own(socket));
            }
            return;
        }
        let socket = user.own(socket);
        let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let process = Process::new(pid, uid, name.strip_suffix(b"\n").unwrap_or(&name));
        let client = self.next_client;
        if !self.registry.join(client, process) {
            let _disconnected = rustix::net::shutdown(&socket, Shutdown::Both);
            return;
        }
        if epoll::add(&self.epoll, &socket, EventData::new_u64(client), EventFlags::IN).is_err() {
            self.registry.leave(client);
            return;
        }
        self.next_client += 1;
        let outbox = Outbox::new(socket);
        self.clients.insert(client, Client { outbox, user, is_paused: false, watched: EventFlags::IN });
    }

    fn region(&self) -> Result<OwnedFd, Errno> {
        let file = Region::create("fastsock-pair", RING)?;
        if self.reserves {
            Region::reserve(&file, RING)?;
        }
        Ok(file)
    }

    /// Makes the region of a pair and sends it to both ends.
    fn connect(&mut self, ends: [Key; 2]) {
        let file = match self.region() {
            Ok(file) => Arc::new(file),
            Err(error) => {
                // Logged once. `fastsock ss` shows the rest.
                if !core::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(%error, "cannot make the memory of a ring: the kernel carries such connections");
                }
                return self.take_back(&ends, Reason::Failed);
            }
        };
        for (i, end) in [End::A, End::B].into_iter().enumerate() {
            let answer = Answer::Matched { number: ends[i].number, end, ring: RING };
            if let Err(error) = self.answer(ends[i].client, answer, Some(&file)) {
                // The first end may have its answer and the region already. It stays on the kernel.
                self.registry.forget(ends[0]);
                return self
                    .take_back(&ends[i..], if error == Errno::TOOMANYREFS { Reason::Limit } else { Reason::NoPeer });
            }
        }
        self.registry.keep(ends[0], file);
    }

    /// Undoes a match whose region could not be sent to these ends.
    fn take_back(&mut self, ends: &[Key], reason: Reason) {
        for &key in ends {
            self.registry.forget(key);
            self.refuse(key, reason);
        }
    }

    fn refuse(&mut self, key: Key, reason: Reason) {
        self.registry.count_refused(reason);
        let answer = Answer::Refused { number: key.number, reason };
        // After an error the client is disconnected.
        let _sent = self.answer(key.client, answer, None);
    }

    fn refuse_postponed(&mut self) {
        let registry = &self.registry;
        let due: Vec<Key> = self.postponed.extract_if(.., |key| !registry.is_deciding(key.client)).collect();
        for key in due {
            self.refuse(key, Reason::NotTcp);
        }
    }

    /// Sends an answer, at once or when the client has read earlier ones. A client that does not read is disconnected.
    fn answer(&mut self, client: u64, answer: Answer, file: Option<&Arc<OwnedFd>>) -> Result<(), Errno> {
        let Some(Client { outbox, .. }) = self.clients.get_mut(&client) else { return Err(Errno::PIPE) };
        let was_waiting = outbox.is_waiting();
        let result = outbox.answer(answer, file);
        let waits = outbox.is_waiting() && !was_waiting;
        match result {
            Ok(()) if waits => self.watch(client),
            Ok(()) | Err(Errno::TOOMANYREFS) => {}
            Err(_) => self.drop_client(client),
        }
        result
    }

    /// Sends a client the answers that wait for it.
    fn flush(&mut self, client: u64) {
        match self.clients.get_mut(&client) {
            Some(Client { outbox, .. }) if outbox.is_waiting() => match outbox.flush() {
                Ok(()) if outbox.is_waiting() => {}
                Ok(()) => self.watch(client),
                Err(_) => self.drop_client(client),
            },
            _ => {}
        }
    }

    /// Waits for the events that a client needs now.
    fn watch(&mut self, client: u64) {
        let Some(Client { outbox, is_paused, watched, .. }) = self.clients.get_mut(&client) else { return };
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN, !*is_paused);
        events.set(EventFlags::OUT, outbox.is_waiting());
        if core::mem::replace(watched, events) != events
            && epoll::modify(&self.epoll, outbox, EventData::new_u64(client), events).is_err()
        {
            self.drop_client(client);
        }
    }

    /// Sends a record to a client that has asked for it. A client that does not read is disconnected.
    fn send(&mut self, client: u64, record: &[u8]) -> Result<(), Errno> {
        let Some(Client { outbox, .. }) = self.clients.get(&client) else { return Err(Errno::PIPE) };
        outbox.send(record, None).inspect_err(|_| self.drop_client(client))
    }

    /// Disconnects a client that broke the protocol.
    fn cut_off(&mut self, client: u64) {
        self.registry.note_malformed();
        self.drop_client(client);
    }

    /// Disconnects a client. It notices at once, even if its socket waits for a thread to close it.
    fn drop_client(&mut self, client: u64) {
        if let Some(outbox) = self.take_client(client) {
            let _disconnected = rustix::net::shutdown(&outbox, Shutdown::Both);
        }
    }

    fn take_client(&mut self, client: u64) -> Option<Outbox> {
        self.registry.leave(client);
        let Client { outbox, .. } = self.clients.remove(&client)?;
        // A closing thread closes the socket later, so it is removed from the epoll set now.
        let _deleted = epoll::delete(&self.epoll, &outbox);
        Some(outbox)
    }
}

impl core::fmt::Debug for Service {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (path, clients) = (&self.path, self.clients.len());
        f.debug_struct("Service").field("path", path).field("clients", &clients).finish_non_exhaustive()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may be removed already, and another service's socket may be there.
        if self.file.is_some() && file_at(&self.path) == self.file {
            let _removed = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns true if memory may be missing at its first use: the limit of committed memory is strict.
fn is_memory_strict(mode: impl AsRef<Path>) -> bool {
    std::fs::read(mode).is_ok_and(|mode| mode.trim_ascii() == b"2")
}

/// A file's device and inode.
type FileId = (u64, u64);

fn file_at(path: &Path) -> Option<FileId> {
    std::fs::symlink_metadata(path).ok().map(|at| (at.dev(), at.ino()))
}

/// Listens at `path`. Replaces a socket file at which no service accepts connections.
fn listen(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let listener = socket()?;
    match bind_for_all(&listener, &address) {
        Err(Errno::ADDRINUSE) => {
            if rustix::net::connect(&socket()?, &address) != Err(Errno::CONNREFUSED) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            std::fs::remove_file(path)?;
            bind_for_all(&listener, &address)?;
        }
        other => other?,
    }
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Binds a socket to a path, with mode 0666. The kernel gives the file the mode 0777 less the umask
/// (`unix_bind_bsd`, net/unix/af_unix.c). A later chmod(2) could change another file: the owner of the directory
/// can replace the socket.
fn bind_for_all(socket: &OwnedFd, address: &SocketAddrUnix) -> Result<(), Errno> {
    /// The umask is the process's: another bind must not restore it in between.
    static UMASK: Mutex<()> = Mutex::new(());
    let _locked = UMASK.lock().unwrap_or_else(PoisonError::into_inner);
    let umask = rustix::process::umask(Mode::XUSR | Mode::XGRP | Mode::XOTH);
    let bound = rustix::net::bind(socket, address);
    rustix::process::umask(umask);
    bound
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;
    use std::os::unix::fs::PermissionsExt;

    fn service(name: &str) -> (Service, PathBuf) {
        let path = std::env::temp_dir().join(format!("fs-pairs-service-{name}-{}", std::process::id()));
        (Service::bind(&path).unwrap(), path)
    }

    /// Another user may own the directory, and replaces the file at any time: a change of its mode by its path could
    /// change another file.
    #[test]
    fn every_user_may_connect_and_no_mode_is_changed_by_a_path() {
        use rustix::fs::inotify;
        let folder = std::env::temp_dir().join(format!("fs-pairs-service-mode-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("control.sock");
        // Of a service that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
        let flags = inotify::WatchFlags::CREATE | inotify::WatchFlags::ATTRIB;
        inotify::add_watch(&changes, &folder, flags).unwrap();
        let service = Service::bind(&path).unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut reader = inotify::Reader::new(changes, &mut buffer);
        let events = core::iter::from_fn(|| reader.next().ok().map(|event| event.events()));
        assert_eq!(events.collect::<Vec<_>>(), [inotify::ReadFlags::CREATE]);
        drop(service);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn regions_are_reserved_if_committed_memory_has_a_limit() {
        let (mut service, path) = service("reserved");
        for (mode, is_strict) in [("0\n", false), ("1\n", false), ("2\n", true)] {
            let file = path.with_extension("mode");
            std::fs::write(&file, mode).unwrap();
            service.reserves = is_memory_strict(&file);
            std::fs::remove_file(&file).unwrap();
            let about = rustix::fs::fstat(service.region().unwrap()).unwrap();
            assert_eq!(about.st_blocks * 512 >= about.st_size, is_strict, "{mode}");
        }
    }
}
