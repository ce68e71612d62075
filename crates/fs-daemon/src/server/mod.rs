//! The control thread: one epoll loop that serves all connections of processes. It owns the books (who is attached,
//! what they hold, who listens where); data never passes through it.
//!
//! What processes send is hostile: a record that makes no sense is answered with an error, and nothing that a process
//! does makes the loop wait (every call on its sockets and memory returns at once).

mod admin;
mod arenas;
mod attach;
mod capture;
mod exec;
mod flows;
mod in_flight;
mod limits;
mod place;
mod ports;
mod route;
mod share;
mod strangers;
mod sweep;

use crate::bells::Pollers;
use crate::config::{Config, users};
use crate::counters::Counters;
use crate::joins::Joins;
use crate::listeners::{Listeners, Netns};
use crate::netns::{self, Namespace};
use crate::owners::Owners;
use crate::seldom::Seldom;
use crate::sys::{self, Alarm, Credentials};
use crate::wire::{ListenerOptions, Wire};
pub(crate) use arenas::ArenaMemory;
use arenas::{Acceptor, ArenaEntry, Opener};
use attach::Attachment;
use fs_shm::Geometry;
use fs_shm::control::{ADMIN_MAX, MESSAGE_MAX, Reply, Request, is_reply, socket};
use fs_shm::pages::{DirectoryPage, ListenerPage};
use in_flight::InFlight;
use place::DefaultOptions;
use ports::{Port, Shares};
use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::io::Errno;
use share::Share;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use strangers::Strangers;
use sweep::Look;
use tokio::sync::oneshot;

/// Requests of one connection that are answered before the next connection's turn.
const TURN: usize = 16;

/// What a connection's turn may take, but for one request.
const LONG: Duration = Duration::from_micros(500);

/// What the close of a descriptor that a process has passed may take: its linger time is the process's to choose.
const LINGER: Duration = Duration::from_millis(2);

/// See [`Server::changed`].
const EASE: Duration = Duration::from_millis(100);

/// epoll's tokens: the control socket, the wake-up, connections from `FIRST` on, listeners with `LISTENER`, execs of attachments with
/// `EXEC`, namespaces with `NAMESPACE`, their firewalls with `FIREWALL`.
const CONTROL: u64 = 0;
const WAKE: u64 = 1;
const FIRST: u64 = 16;
const FIREWALL: u64 = 1 << 60;
const LISTENER: u64 = 1 << 61;
const EXEC: u64 = 1 << 62;
const NAMESPACE: u64 = 1 << 63;

/// What other threads tell the control thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Take nothing new, and end when nothing is left or the time is over.
    Drain(Duration),
    /// End now.
    Stop,
    /// Rules, policies and limits are these from here on.
    Reload(Box<Config>),
    /// A core could not listen: the port stays the kernel's alone.
    ListenFailed { listener: u32, errno: i32 },
    /// Something was freed in an arena.
    Trim { arena: u32 },
    /// Whether a core may connect as an arena's process wants it.
    Judge { arena: u32, from: Option<SocketAddr>, to: SocketAddr, answer: oneshot::Sender<Verdict> },
}

/// What a core may: the socket that holds the port where it connects from, if there is one.
pub(crate) type Verdict = Result<Option<OwnedFd>, Errno>;

/// The way to the control thread.
#[derive(Debug)]
pub(crate) struct Commands {
    queue: Mutex<VecDeque<Command>>,
    wake: OwnedFd,
    /// Changes whenever another verdict may be given.
    generation: AtomicU64,
}

impl Commands {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { queue: Mutex::default(), wake, generation: AtomicU64::new(0) })
    }

    pub(crate) fn send(&self, command: Command) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
        // Fails only when it is full, and then the thread is awake already.
        let _full = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    fn take(&self) -> VecDeque<Command> {
        let mut count = [0; 8];
        // Fails only when nothing was sent, and then there is nothing to take.
        let _empty = rustix::io::read(&self.wake, &mut count);
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A connection of a process.
struct Connection {
    socket: OwnedFd,
    who: Credentials,
    /// None before `Hello`, and for programs that only ask for lists.
    attachment: Option<u32>,
}

/// What belongs to a listener beside its place.
pub(crate) struct ListenerMemory {
    page: ListenerPage,
    memory: Arc<OwnedFd>,
    /// The socket itself, so that nobody else can have its place in the kernel while connections are led here, whatever the process
    /// does with its own descriptors. The control thread's epoll set tells when it listens no more.
    placeholder: OwnedFd,
    /// TCP_DEFER_ACCEPT in seconds.
    defer: u32,
    /// The cores listen for it too.
    on_wire: bool,
    /// Who has listened first.
    uid: u32,
    shares: Shares,
    /// The arenas that it had when it was closed or shut.
    ended: Vec<u32>,
    /// What its connections over the wire have.
    options: ListenerOptions,
    /// When a connection ended that waits, in arenas that are gone.
    waits: u64,
    /// The poller that all who accept share, and what they sleep on.
    poller: Option<(u32, Arc<OwnedFd>)>,
    /// The same of all epoll sets that watch it with EPOLLEXCLUSIVE.
    exclusive: Option<(u32, Arc<OwnedFd>)>,
}

impl ListenerMemory {
    /// The pollers that several share: each ring is for one of them.
    fn shared(&self) -> impl Iterator<Item = u32> + '_ {
        [&self.poller, &self.exclusive].into_iter().flatten().map(|(poller, _)| *poller)
    }
}

/// What a request is answered with.
pub(crate) struct Answer {
    reply: Reply,
    fds: Vec<Arc<OwnedFd>>,
    rows: Vec<u8>,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Answer { reply, fds: Vec::new(), rows: Vec::new() }
    }
}

impl Answer {
    fn with(reply: Reply, fds: impl IntoIterator<Item = Arc<OwnedFd>>) -> Self {
        Answer { reply, fds: fds.into_iter().collect(), rows: Vec::new() }
    }
}

/// Everything that the control thread knows.
pub(crate) struct Server {
    config: Config,
    joins: Joins,
    owners: Owners,
    /// Where cgroups with programs are; `None`: a kernel without, or one that does not let this daemon ask.
    cgroups: Option<File>,
    geometry: Geometry,
    epoch: u64,
    /// Never unmapped: the kernel tells of this thread's end in it.
    directory: &'static DirectoryPage,
    directory_memory: Arc<OwnedFd>,
    epoll: OwnedFd,
    control: OwnedFd,
    commands: Arc<Commands>,
    connections: HashMap<u64, Connection>,
    next_connection: u64,
    attachments: HashMap<u32, Attachment>,
    next_attachment: u32,
    pollers: &'static Pollers,
    arenas: HashMap<u32, ArenaEntry>,
    /// Those that still have both sides, by these; others may be left in it.
    arena_of: HashMap<(Opener, Acceptor), u32>,
    next_arena: u32,
    listeners: Listeners<ListenerMemory>,
    /// `None`: it cannot be opened (then only its loopback addresses are known).
    namespaces: HashMap<Netns, Option<Namespace>>,
    own_netns: Netns,
    /// Those of them in whose connections rules of a firewall could have a say, as of the last look.
    ruled: HashSet<Netns>,
    /// Namespaces of others in which something has changed since `eased`.
    late: HashSet<Netns>,
    eased: Instant,
    default_options: DefaultOptions,
    shares: HashMap<u64, Vec<Share>>,
    in_flight: InFlight,
    ports: Vec<Port>,
    strangers: Strangers,
    wire: Option<Arc<dyn Wire>>,
    counters: Counters,
    counted: Option<admin::Counted>,
    /// By connection.
    captures: HashMap<u64, capture::Capture>,
    /// When a user's began last.
    captured: Option<Instant>,
    /// When an arena, a share or a port has to be looked at.
    sweep: Option<Instant>,
    share_look: Option<Look>,
    port_look: Option<Look>,
    /// When what the kernel tells nobody of is looked at.
    glance: Option<Instant>,
    /// Until when a drain may take.
    draining: Option<Instant>,
}

/// What the control thread starts with.
pub(crate) struct Start {
    pub(crate) config: Config,
    pub(crate) joins: Joins,
    pub(crate) geometry: Geometry,
    pub(crate) control: OwnedFd,
    pub(crate) commands: Arc<Commands>,
    pub(crate) pollers: &'static Pollers,
    pub(crate) wire: Option<Arc<dyn Wire>>,
}

impl Server {
    pub(crate) fn new(start: Start) -> io::Result<Self> {
        let Start { config, joins, geometry, control, commands, pollers, wire } = start;
        let mut epoch = [0; 8];
        rustix::rand::getrandom(&mut epoch, rustix::rand::GetRandomFlags::empty())?;
        let epoch = u64::from_le_bytes(epoch);
        let (memory, directory) = DirectoryPage::create(epoch)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, control.as_fd(), CONTROL)?;
        watch(&epoll, commands.wake.as_fd(), WAKE)?;
        let own_netns = netns::own()?;
        let mut server = Self {
            config,
            joins,
            owners: Owners::read(&users),
            cgroups: sys::hierarchy().inspect_err(|error| tracing::debug!(%error, "no cgroups")).ok(),
            geometry,
            epoch,
            directory: Box::leak(Box::new(directory)),
            directory_memory: Arc::new(memory),
            epoll,
            control,
            commands,
            connections: HashMap::new(),
            next_connection: FIRST,
            attachments: HashMap::new(),
            // 1 is the daemon: the attachment that its own cores take locks as.
            next_attachment: 2,
            pollers,
            arenas: HashMap::new(),
            arena_of: HashMap::new(),
            next_arena: 1,
            listeners: Listeners::default(),
            namespaces: HashMap::new(),
            own_netns,
            ruled: HashSet::new(),
            late: HashSet::new(),
            eased: Instant::now(),
            default_options: DefaultOptions::new(),
            shares: HashMap::new(),
            in_flight: InFlight::default(),
            ports: Vec::new(),
            strangers: Strangers::default(),
            wire,
            counters: Counters::default(),
            counted: None,
            captures: HashMap::new(),
            captured: None,
            sweep: None,
            share_look: None,
            port_look: None,
            glance: None,
            draining: None,
        };
        server.open_namespace(own_netns, std::process::id());
        Ok(server)
    }

    /// Serves until it is told to end. Dropping the server closes every connection, which is how processes learn.
    pub(crate) fn run(self) -> io::Result<()> {
        let alarm = Alarm::new(LINGER)?;
        crate::sys::hold(self.directory.life());
        // Dropped before the alarm is, which goes on meanwhile.
        let mut server = self;
        server.serve_all(&alarm)
    }

    /// Whatever it closes on the way, for whomever, `alarm` bounds; it is armed when this returns.
    fn serve_all(&mut self, alarm: &Alarm) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            let timeout = self.timeout();
            alarm.disarm();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            alarm.arm();
            for event in &events {
                match event.data.u64() {
                    CONTROL => self.accept(),
                    WAKE => {
                        for command in self.commands.take() {
                            if self.obey(command).is_break() {
                                return Ok(());
                            }
                        }
                    }
                    token if token & NAMESPACE != 0 => self.namespace_changed(token & !NAMESPACE),
                    token if token & EXEC != 0 => self.execs((token & !EXEC) as u32),
                    token if token & FIREWALL != 0 => self.rules_changed(token & !FIREWALL),
                    token if token & LISTENER != 0 => self.listens_no_more((token & !LISTENER) as u32),
                    token => self.serve(token),
                }
            }
            self.sweep_if_due();
            if self.draining.is_some_and(|until| Instant::now() >= until || self.is_quiet()) {
                return Ok(());
            }
        }
    }

    /// Until the next thing that has to be done by the clock; none: sleep until something happens.
    fn timeout(&self) -> Option<Timespec> {
        // A drain looks ten times a second whether all is done.
        let drain = self.draining.map(|until| until.min(Instant::now() + Duration::from_millis(100)));
        let at = self.sweep.into_iter().chain(drain).min()?;
        let left = at.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) })
    }

    fn obey(&mut self, command: Command) -> std::ops::ControlFlow<()> {
        match command {
            Command::Stop => return std::ops::ControlFlow::Break(()),
            Command::Drain(most) => {
                let until = Instant::now() + most;
                self.draining = Some(self.draining.map_or(until, |before| before.min(until)));
                self.directory.set_stopping();
                if let Some(wire) = &self.wire {
                    wire.leave();
                }
                tracing::info!(attachments = self.attachments.len(), "draining");
            }
            Command::Reload(config) => {
                let Config { firewall, open_flows, rules, policies, limits, device: _, drain: _, joins: _ } = *config;
                let before = std::mem::take(&mut self.config);
                self.config = Config { firewall, open_flows, rules, policies, limits, ..before };
                self.owners = Owners::read(&users);
                self.heed_rules_everywhere();
                self.end_denied();
                // Ways that processes know are asked for anew.
                self.bump();
            }
            Command::ListenFailed { listener, errno } => self.listen_failed(listener, errno),
            Command::Trim { arena } => self.trim_soon(arena),
            // Who has asked may have given up.
            Command::Judge { arena, from, to, answer } => drop(answer.send(self.judge(arena, from, to))),
        }
        std::ops::ControlFlow::Continue(())
    }

    fn accept(&mut self) {
        loop {
            let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.control, flags) {
                Ok(socket) => {
                    // Who is over the limit is hung up on, which is answer enough: it uses the kernel.
                    if let Err(error) = self.connect(socket) {
                        static SELDOM: Seldom = Seldom::new();
                        if let Some(left_out) = SELDOM.due() {
                            tracing::warn!(%error, left_out, "a process was refused, and uses the kernel");
                        }
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    // Out of descriptors, most likely. epoll tells again; not at full speed.
                    arenas::no_descriptor(&error);
                    tracing::debug!(%error, "accept on the control socket");
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
        }
    }

    /// Enters a connection; answers its number.
    fn connect(&mut self, socket: OwnedFd) -> io::Result<u64> {
        let limit = self.config.limits.attachments;
        let who = sys::peer(socket.as_fd())?;
        if self.connections.len() >= limit && !self.is_trusted(who.uid) {
            return Err(io::Error::other("as many connections as the limit on attachments allows"));
        }
        if self.strangers.is_full(who.uid) {
            return Err(io::Error::other(format!("user {} has descriptors here that cannot be closed", who.uid)));
        }
        let theirs = || self.connections.values().filter(|other| self.is_one_user(other.who.uid, who.uid)).count();
        if !self.has_room(who.uid, limit, self.connections.len(), theirs) {
            return Err(io::Error::other(format!("user {} has half of all connections", self.owners.of(who.uid))));
        }
        rustix::net::sockopt::set_socket_passcred(&socket, true)?;
        let id = self.next_connection;
        self.next_connection += 1;
        watch(&self.epoll, socket.as_fd(), id)?;
        self.connections.insert(id, Connection { socket, who, attachment: None });
        Ok(id)
    }

    /// Answers what has come on a connection.
    fn serve(&mut self, id: u64) {
        let mut buffer = [0; MESSAGE_MAX];
        let begun = Instant::now();
        for request in 0..TURN {
            // Who asks for what takes long waits for the others after each.
            if request > 0 && begun.elapsed() > LONG {
                return;
            }
            let Some(connection) = self.connections.get_mut(&id) else { return };
            let record = match sys::receive(connection.socket.as_fd(), &mut buffer) {
                Ok(record) => record,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::debug!(%error, "a control connection broke");
                    return self.disconnect(id);
                }
            };
            let (fds, strange): (Vec<OwnedFd>, Vec<OwnedFd>) = record.fds.into_iter().partition(strangers::is_expected);
            if !strange.is_empty() {
                let uid = connection.who.uid;
                self.strangers.close(uid, strange);
                if self.strangers.is_full(uid) {
                    tracing::debug!(uid, "descriptors that cannot be closed");
                    return self.disconnect(id);
                }
            }
            if record.len == 0 {
                return self.disconnect(id);
            }
            if record.cut && rustix::io::fcntl_dupfd_cloexec(&self.epoll, 0).is_err_and(|error| error == Errno::MFILE) {
                // The kernel leaves out what there is no number for.
                arenas::no_descriptor(&Errno::MFILE);
            }
            let Some(connection) = self.connections.get_mut(&id) else { return };
            if let Some(sender) = record.sender {
                connection.who = sender;
            }
            if is_reply(&buffer[..record.len]) {
                // A process has passed both ends of a pair: what the daemon says at one it hears at the other.
                self.counters.malformed += 1;
                return self.disconnect(id);
            }
            let request = Request::decode(&buffer[..record.len]);
            match request {
                Ok((_, Request::Ring { poller })) => {
                    self.ring(id, poller);
                    continue;
                }
                Ok((_, Request::Due { after })) => {
                    self.note_due(id, after);
                    continue;
                }
                Ok((_, Request::Trim { arena })) => {
                    self.asked_to_trim(id, arena);
                    continue;
                }
                _ => {}
            }
            let (number, answer) = match request {
                _ if record.cut => (number_of(&buffer[..record.len]), Err(Errno::MSGSIZE)),
                Ok((number, request)) => (number, self.answer(id, request, fds)),
                Err(malformed) => {
                    tracing::debug!(%malformed, "a request");
                    self.counters.malformed += 1;
                    (number_of(&buffer[..record.len]), Err(Errno::BADMSG))
                }
            };
            let answer = answer.unwrap_or_else(|errno| Reply::Failed { errno: errno.raw_os_error() }.into());
            if !self.reply(id, number, &answer) {
                return self.disconnect(id);
            }
        }
    }

    /// `false`: the process does not take its answers, or is gone.
    fn reply(&self, id: u64, number: u32, answer: &Answer) -> bool {
        let Some(connection) = self.connections.get(&id) else { return true };
        let mut buffer = [0; ADMIN_MAX];
        let Ok(len) = answer.reply.encode(number, &mut buffer) else {
            tracing::error!(reply = ?answer.reply, "cannot be encoded");
            return false;
        };
        let end = len + answer.rows.len();
        let Some(room) = buffer.get_mut(len..end) else { return false };
        room.copy_from_slice(&answer.rows);
        let fds: Vec<BorrowedFd<'_>> = answer.fds.iter().map(|fd| fd.as_fd()).collect();
        match socket::send(connection.socket.as_fd(), &buffer[..end], &fds) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "an answer");
                false
            }
        }
    }

    fn answer(&mut self, id: u64, request: Request, fds: Vec<OwnedFd>) -> Result<Answer, Errno> {
        self.counters.requests += 1;
        match request {
            Request::Hello { version, name } => return self.hello(id, version, name),
            Request::Status => return Ok(self.status().into()),
            Request::Sockets { cursor } => {
                let who = self.connections.get(&id).ok_or(Errno::BADF)?.who;
                return Ok(self.sockets(cursor, who.uid));
            }
            Request::Counters { cursor } => return Ok(self.counter_rows(cursor)),
            Request::Capture { memory, wire } => return self.capture(id, memory, wire, fds.into_iter().next()),
            _ => {}
        }
        let connection = self.connections.get(&id).ok_or(Errno::BADF)?;
        let who = connection.who;
        let me = connection.attachment.ok_or(Errno::NOTCONN)?;
        // A forked child, or who has changed its user since: as the kernel says it is now.
        let attachment = self.attachments.get_mut(&me).ok_or(Errno::NOTCONN)?;
        (attachment.who, attachment.parent) = (who, None);
        let fd = fds.into_iter().next();
        match request {
            Request::Hello { .. }
            | Request::Status
            | Request::Sockets { .. }
            | Request::Counters { .. }
            | Request::Capture { .. }
            | Request::Ring { .. }
            | Request::Due { .. }
            | Request::Trim { .. } => Err(Errno::INVAL),
            Request::Poller => self.poller(me, fd),
            Request::ListenerPoller { listener } => self.listener_poller(me, listener),
            Request::ExclusivePoller { listener, set, told } => self.exclusive_poller(me, listener, set, told),
            Request::PollerGone { poller } => {
                if self.pollers.leave(poller, me) {
                    self.evict(me, &[poller]);
                }
                Ok(Reply::Done.into())
            }
            Request::Bell { poller } => self.bell(me, poller),
            Request::Route { to } => self.route(me, to, fd.ok_or(Errno::BADF)?),
            Request::Listen => self.listen(me, fd.ok_or(Errno::BADF)?),
            Request::Unlisten { listener } => {
                let in_use = self.unlisten(me, listener);
                Ok(if in_use { Reply::PortInUse } else { Reply::Done }.into())
            }
            Request::Ports { port } => {
                self.see_to_ports(port);
                Ok(Reply::Done.into())
            }
            Request::Shut { listener } => self.shut_listener(me, listener),
            Request::Leave { listener } => self.leave_listener(me, listener),
            Request::Arena { arena, side } => self.arena(me, arena, side),
            Request::Listener { listener } => self.listener_page(me, listener),
            Request::Fork => self.fork(me, fd.ok_or(Errno::BADF)?),
            Request::Prepare => self.prepare(me, fd.ok_or(Errno::BADF)?),
            Request::Inherit { child } => self.inherit_prepared(me, child),
            Request::ForkFailed { child } => self.fork_failed(me, child),
            Request::Exec => self.exec(me, fd),
            Request::ExecFailed => self.exec_failed(me),
            Request::Spawned { child } => self.spawned(me, child),
            Request::Resume { version, name } => self.resume(me, version, name),
            Request::Share { object, cookie, fd: number } => self.share(me, object, cookie, number, fd),
            Request::Unshare { cookie } => self.unshare(me, cookie),
            Request::Vouch { arena, ends } => self.vouch(me, arena, ends),
            Request::Claim => self.claim(me, fd.ok_or(Errno::BADF)?),
        }
    }

    /// Root, and who runs the daemon, could do worse to it than ask for much.
    fn is_trusted(&self, uid: u32) -> bool {
        uid == 0 || uid == rustix::process::geteuid().as_raw()
    }

    /// Whether a user may have one more of something, of which there may be `limit`, and are `all`: nobody can use up all, and all
    /// together not what root may need.
    fn has_room(&self, uid: u32, limit: usize, all: usize, theirs: impl FnOnce() -> usize) -> bool {
        self.is_trusted(uid) || all < limit - limit / 16 && theirs() < share_of(limit)
    }

    /// Numbers of one user's.
    fn is_one_user(&self, one: u32, other: u32) -> bool {
        one == other || self.owners.of(one) == self.owners.of(other)
    }

    fn disconnect(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        self.unwatch(connection.socket.as_fd());
        drop(connection.socket);
        self.capture_over(id);
        if let Some(attachment) = connection.attachment {
            self.detach(attachment);
        }
    }

    /// A descriptor that a process has passed, or could have a copy of, is about to be closed: the set would keep it for as long as that
    /// copy is open.
    fn unwatch(&self, fd: BorrowedFd<'_>) {
        // Not there: it was taken out before.
        let _absent = epoll::delete(&self.epoll, fd);
    }

    /// Opens a namespace if it can be, and watches its addresses.
    fn open_namespace(&mut self, netns: Netns, pid: u32) {
        if self.namespaces.get(&netns).is_some_and(Option::is_some) {
            return;
        }
        let namespace = match Namespace::open(pid, netns) {
            Ok(namespace) => match self.watch_namespace(&namespace, netns) {
                Ok(()) => Some(namespace),
                Err(error) => {
                    tracing::warn!(%error, "cannot watch a namespace");
                    None
                }
            },
            Err(error) => {
                if let Some(errno) = Errno::from_io_error(&error) {
                    arenas::no_descriptor(&errno);
                }
                tracing::debug!(%error, netns, pid, "a namespace's addresses are unknown; its loopback is served");
                None
            }
        };
        self.namespaces.insert(netns, namespace);
    }

    fn watch_namespace(&self, namespace: &Namespace, netns: Netns) -> Result<(), Errno> {
        watch(&self.epoll, namespace.as_fd(), NAMESPACE | netns)?;
        namespace.firewall().map_or(Ok(()), |firewall| watch(&self.epoll, firewall, FIREWALL | netns))
    }

    fn namespace_changed(&mut self, netns: Netns) {
        if netns != self.own_netns && Instant::now() < self.eased + EASE {
            // Whoever has the namespace decides how many notices there are: they wait in the socket, which holds few and tells that
            // more were lost. Taken out of the set meanwhile, as a loss is always reported.
            if let Some(Some(namespace)) = self.namespaces.get(&netns) {
                self.unwatch(namespace.as_fd());
            }
            self.late.insert(netns);
            self.sweep_at(self.eased + EASE);
            return;
        }
        if let Some(Some(namespace)) = self.namespaces.get_mut(&netns)
            && namespace.follow()
        {
            self.changed(netns);
        }
    }

    /// Addresses, routes or rules of a namespace have changed. What others do in theirs is seen to ten times a second at most: each time
    /// all processes ask anew.
    fn changed(&mut self, netns: Netns) {
        let now = Instant::now();
        let is_own = netns == self.own_netns;
        if is_own || now >= self.eased + EASE {
            self.eased = if is_own { self.eased } else { now };
            self.heed_rules(netns);
            self.bump();
        } else {
            self.late.insert(netns);
            self.sweep_at(self.eased + EASE);
        }
    }

    /// What was put off; answers when more is due.
    fn see_to_late(&mut self, now: Instant) -> Option<Instant> {
        if !self.late.is_empty() && now >= self.eased + EASE {
            self.eased = now;
            for netns in std::mem::take(&mut self.late) {
                if let Some(Some(namespace)) = self.namespaces.get_mut(&netns) {
                    namespace.follow();
                    match watch(&self.epoll, namespace.as_fd(), NAMESPACE | netns) {
                        // It was put off for its rules.
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => tracing::warn!(%error, "cannot watch a namespace any more"),
                    }
                }
                self.heed_rules(netns);
            }
            self.bump();
        }
        (!self.late.is_empty()).then_some(self.eased + EASE)
    }

    /// Whatever was answered before is asked anew.
    fn bump(&self) {
        self.directory.bump();
        self.commands.generation.fetch_add(1, Release);
    }
}

impl Drop for Server {
    /// The cores end with the books: closed connections send what they still hold, for a second at most.
    fn drop(&mut self) {
        if let Some(wire) = &self.wire {
            wire.shut_down(Duration::from_secs(1));
        }
    }
}

/// What one user may have of a limit.
fn share_of(limit: usize) -> usize {
    limit.div_ceil(2)
}

/// The number of a message that is not understood otherwise.
fn number_of(bytes: &[u8]) -> u32 {
    bytes.get(4..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, token: u64) -> Result<(), Errno> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
}
