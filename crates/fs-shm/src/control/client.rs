//! The process's end of the connection to the daemon.

use super::answer::{Claimed, Error, Listening, NO_FD, Routed, SideMemory, UNEXPECTED, Way, Welcome};
use super::fd_unsafe::Fd;
use super::message::{ADMIN_MAX, MESSAGE_MAX, Reply, Request, VERSION};
use super::object::{ArenaPart, Object, PeerSide};
use super::rows::Row;
use super::socket::{self, Fds};
use super::wire::Text;
use crate::owner_lock::OwnerLock;
use crate::pages::is_held;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::sync::OnceLock;

/// A request that is not answered within this time fails: the daemon answers in microseconds, and an application
/// must not hang on one that is stuck. Lower: a loaded host loses acceleration. Higher: a stuck daemon is felt.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// The same once a request was not answered, until anything comes from the daemon: a program loses [`TIMEOUT`] once to one that
/// is stuck, and not with each of its calls. Higher: each costs more. Lower: one that is busy is taken for stuck for longer.
const STUCK: Duration = Duration::from_millis(10);

/// How long a request waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A moment only, where the last one was not answered.
    AsKnown,
    /// [`TIMEOUT`], whatever became of the last one.
    InFull,
}

/// What requests are made within: called before each, and after it.
static WITHIN: OnceLock<[fn(); 2]> = OnceLock::new();

/// From here on this process makes its requests between these two. A signal handler that forks asks the daemon: where it has interrupted
/// its own thread's request, and another thread forks too, each would wait for what the other one has. The first call counts.
pub fn make_requests_within(begin: fn(), end: fn()) {
    let _ = WITHIN.set([begin, end]);
}

struct Within(Option<fn()>);

impl Within {
    fn begin() -> Self {
        Within(WITHIN.get().map(|[begin, end]| {
            begin();
            *end
        }))
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        if let Some(end) = self.0 {
            end();
        }
    }
}

/// A connection to the daemon. All threads may use it; requests go one after the other. No call allocates.
#[derive(Debug)]
pub struct Client {
    socket: Fd,
    lock: OwnerLock,
    number: AtomicU32,
    timeout: Duration,
    /// The last request was not answered in time.
    stuck: AtomicBool,
    /// Tells of the daemon's end without a system call, see [`crate::pages::DirectoryPage::life`].
    life: Option<&'static AtomicU32>,
}

impl Client {
    /// Connects to the daemon's socket. Answers at once when nobody listens there.
    pub fn connect(path: &[u8]) -> Result<Self, Error> {
        let addr = SocketAddrUnix::new(path).map_err(Error::NoDaemon)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket: Fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(Error::System)?
            .into();
        loop {
            match rustix::net::connect(&socket, &addr) {
                Ok(()) => return Ok(Self::from_fd(socket)),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::NoDaemon(errno)),
            }
        }
    }

    /// Who runs the daemon, as the kernel says: the user at the time of its listen(2). `None`: it cannot be asked.
    pub fn runs_as(&self) -> Option<u32> {
        rustix::net::sockopt::socket_peercred(&self.socket).ok().map(|peer| peer.uid.as_raw())
    }

    /// Takes a connected socket: the one that was left by exec, or a forked child's end.
    pub fn from_fd(socket: Fd) -> Self {
        Self {
            socket,
            lock: OwnerLock::new(),
            number: AtomicU32::new(1),
            timeout: TIMEOUT,
            stuck: AtomicBool::new(false),
            life: None,
        }
    }

    /// The connection's two ends for a child that is to be forked: the child's client, and what goes to
    /// [`Client::fork`].
    pub fn pair() -> Result<(Client, Fd), Error> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (child, daemon): (OwnedFd, OwnedFd) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(Error::System)?;
        Ok((Self::from_fd(child.into()), daemon.into()))
    }

    /// Waits this long for answers (default: [`TIMEOUT`]).
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Gives up a request that this thread is in the middle of, and will not go on with. Its answer, if one comes, is taken for
    /// late.
    pub fn break_own_lock(&self) {
        self.lock.break_own();
    }

    /// What tells of the daemon's end: a confined process need not ask the kernel then.
    pub fn set_life(&mut self, life: &'static AtomicU32) {
        self.life = Some(life);
    }

    /// [`Client::is_closed`], without a system call where the daemon's life is known.
    fn is_gone(&self) -> bool {
        !self.life.is_some_and(|life| is_held(life.load(Ordering::Acquire))) && self.is_closed()
    }

    /// The descriptor: readable (end of file) once the daemon is gone, for the daemon never speaks first.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Moves the descriptor to the first free number from `least` on, out of the way of programs that close or
    /// replace low numbers; answers the number.
    pub fn move_from(&mut self, least: RawFd) -> Result<RawFd, Error> {
        let moved = rustix::io::fcntl_dupfd_cloexec(&self.socket, least).map_err(Error::System)?;
        self.socket = moved.into();
        Ok(self.socket.as_raw_fd())
    }

    /// True once the daemon is gone. One system call.
    pub fn is_closed(&self) -> bool {
        let mut poll = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut poll, Some(&now)), Ok(1))
            && poll[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    /// Asks, with descriptors, and waits for the answer.
    pub fn request(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Fds), Error> {
        let mut buffer = [0; MESSAGE_MAX];
        let (reply, fds, _) = self.exchange(request, &Carrier::Descriptors(fds), &mut buffer, Due::AsKnown)?;
        Ok((reply, fds))
    }

    fn exchange<'b>(
        &self,
        request: &Request,
        carrier: &Carrier<'_>,
        buffer: &'b mut [u8],
        due: Due,
    ) -> Result<(Reply, Fds, &'b [u8]), Error> {
        let _within = Within::begin();
        let _guard = self.lock.lock().map_err(|_| Error::Busy)?;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let len = request.encode(number, buffer)?;
        let mut until = match due {
            Due::AsKnown => self.deadline(),
            Due::InFull => Deadline::after(self.timeout),
        };
        while let Err(error) = carrier.send(self.socket.as_fd(), &buffer[..len]) {
            match error {
                Errno::AGAIN => self.wait(PollFlags::OUT, &until).inspect_err(|error| self.not_answered(error))?,
                Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => return Err(Error::Closed),
                error => return Err(Error::System(error)),
            }
        }
        crate::word::event();
        loop {
            match carrier.receive(self.socket.as_fd(), buffer) {
                Ok(received) if received.len == 0 => return Err(Error::Closed),
                Ok(received) => {
                    if self.stuck.swap(false, Ordering::Relaxed) {
                        // It goes on: this one may be answered behind those that were given up.
                        until = Deadline::after(self.timeout);
                    }
                    let answered = u32::from_le_bytes(buffer.get(4..8).map_or([0; 4], |b| [b[0], b[1], b[2], b[3]]));
                    if received.len >= 8 && answered != number {
                        // The late answer to a request that was given up.
                        continue;
                    }
                    crate::word::event();
                    let (_, reply, rows) = Reply::decode(&buffer[..received.len])?;
                    return match reply {
                        Reply::Failed { errno } => Err(Error::Failed(Errno::from_raw_os_error(errno))),
                        reply => Ok((reply, received.fds, rows)),
                    };
                }
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, &until).inspect_err(|error| self.not_answered(error))?,
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(Error::Closed),
                Err(error) => return Err(Error::System(error)),
            }
        }
    }

    fn deadline(&self) -> Deadline {
        let is_stuck = self.stuck.load(Ordering::Relaxed);
        Deadline::after(if is_stuck { self.timeout.min(STUCK) } else { self.timeout })
    }

    fn not_answered(&self, error: &Error) {
        if *error == Error::TimedOut {
            self.stuck.store(true, Ordering::Relaxed);
        }
    }

    fn wait(&self, events: PollFlags, until: &Deadline) -> Result<(), Error> {
        if crate::wait::is_confined() {
            // Of the calls that sleep this one alone is certainly allowed, as no connection works without it. An answer takes some
            // tens of µs.
            let left = Deadline::now() < until.0 && !self.is_gone();
            crate::futex::wait(&AtomicU32::new(0), 0, Duration::from_micros(50));
            return if left { Ok(()) } else { Err(Error::TimedOut) };
        }
        let mut poll = [PollFd::new(&self.socket, events)];
        match rustix::event::poll(&mut poll, Some(&until.left())) {
            Ok(0) => Err(Error::TimedOut),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Error::System(error)),
        }
    }

    /// Attaches this process. `name` is for lists only.
    pub fn hello(&self, name: &[u8]) -> Result<Welcome, Error> {
        self.attach(&Request::Hello { version: VERSION, name: Text::new(name) })
    }

    /// Attaches the new image of this process, see [`Client::exec`].
    pub fn resume(&self, name: &[u8]) -> Result<Welcome, Error> {
        self.attach(&Request::Resume { version: VERSION, name: Text::new(name) })
    }

    fn attach(&self, request: &Request) -> Result<Welcome, Error> {
        let (reply, mut fds) = self.request(request, &[])?;
        let Reply::Welcome { attachment, epoch, geometry } = reply else { return Err(UNEXPECTED) };
        let page = fds.take().ok_or(NO_FD)?;
        let directory = fds.take().ok_or(NO_FD)?;
        Ok(Welcome { attachment, epoch, geometry, page, directory })
    }

    /// Makes a poller; answers its number, and the epoll set to sleep on.
    pub fn poller(&self) -> Result<(u32, Fd), Error> {
        match self.request(&Request::Poller, &[])? {
            (Reply::Poller { poller }, mut fds) => Ok((poller, fds.take().ok_or(NO_FD)?)),
            _ => Err(UNEXPECTED),
        }
    }

    /// Makes an eventfd a poller that the daemon alone rings; answers its number.
    pub fn private_poller(&self, eventfd: BorrowedFd<'_>) -> Result<u32, Error> {
        match self.request(&Request::Poller, &[eventfd])? {
            (Reply::Poller { poller }, _) => Ok(poller),
            _ => Err(UNEXPECTED),
        }
    }

    /// The poller that all who accept from a listener share: its number, the epoll set to sleep on, and the memory of
    /// [`crate::sleepers::Sleepers`].
    pub fn listener_poller(&self, listener: u32) -> Result<(u32, Fd, Option<Fd>), Error> {
        match self.request(&Request::ListenerPoller { listener }, &[])? {
            (Reply::Poller { poller }, mut fds) => Ok((poller, fds.take().ok_or(NO_FD)?, fds.take())),
            _ => Err(UNEXPECTED),
        }
    }

    /// The poller that all sets share which watch a listener with EPOLLEXCLUSIVE: its number, and the eventfd to watch; see
    /// [`Request::ExclusivePoller`].
    pub fn exclusive_poller(&self, listener: u32, set: u32, told: bool) -> Result<(u32, Fd), Error> {
        match self.request(&Request::ExclusivePoller { listener, set, told }, &[])? {
            (Reply::Poller { poller }, mut fds) => Ok((poller, fds.take().ok_or(NO_FD)?)),
            _ => Err(UNEXPECTED),
        }
    }

    /// A poller of this process is gone.
    pub fn poller_gone(&self, poller: u32) -> Result<(), Error> {
        self.done(&Request::PollerGone { poller }, &[])
    }

    /// What this process rings a poller with, see [`Request::Bell`].
    pub fn bell(&self, poller: u32) -> Result<Fd, Error> {
        match self.request(&Request::Bell { poller }, &[])? {
            (Reply::Done, mut fds) => fds.take().ok_or(NO_FD),
            _ => Err(UNEXPECTED),
        }
    }

    /// Has the daemon ring a poller, by write(2) alone: the one way out of a process that has confined itself to few
    /// system calls. Takes no lock and waits for no answer. The daemon ignores pollers that this process may not ring.
    pub fn ring(&self, poller: u32) -> Result<(), Error> {
        self.tell(&Request::Ring { poller })
    }

    /// Has the daemon see to what is due in this process, in so many milliseconds. As [`Client::ring`] for the rest.
    pub fn due(&self, after: u32) -> Result<(), Error> {
        self.tell(&Request::Due { after })
    }

    /// Has the daemon see to room for what this process has opened in an arena and is kept out. As [`Client::ring`] for the rest.
    pub fn ask_for_room(&self, arena: u32) -> Result<(), Error> {
        self.tell(&Request::Room { arena })
    }

    /// A request that is not answered.
    fn tell(&self, request: &Request) -> Result<(), Error> {
        // A process may be left without MSG_NOSIGNAL: a daemon that has ended must not end it with SIGPIPE.
        if self.is_gone() {
            return Err(Error::Closed);
        }
        let mut buffer = [0; 16];
        let len = request.encode(0, &mut buffer)?;
        let until = self.deadline();
        loop {
            match Carrier::Plain.send(self.socket.as_fd(), &buffer[..len]) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, &until).inspect_err(|error| self.not_answered(error))?,
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(Error::Closed),
                Err(error) => return Err(Error::System(error)),
            }
        }
    }

    /// Tells the daemon that something was freed in an arena. Takes no lock and waits neither for an answer nor for room.
    pub fn trim(&self, arena: u32) -> Result<(), Error> {
        self.tell_at_once(&Request::Trim { arena })
    }

    fn tell_at_once(&self, request: &Request) -> Result<(), Error> {
        if self.is_gone() {
            return Err(Error::Closed);
        }
        let mut buffer = [0; 16];
        let len = request.encode(0, &mut buffer)?;
        // The daemon may end here.
        let carrier = if crate::wait::is_confined() { Carrier::Plain } else { Carrier::Descriptors(&[]) };
        carrier.send(self.socket.as_fd(), &buffer[..len]).map_err(Error::System)
    }

    /// Which way a connection of this socket goes.
    pub fn route(&self, to: SocketAddr, placeholder: BorrowedFd<'_>) -> Result<Routed, Error> {
        let (reply, mut fds) = self.request(&Request::Route { to }, &[placeholder])?;
        let (generation, way) = match reply {
            Reply::Local { generation, source, arenas, count } => {
                let mut given = [const { None }; super::GROUP_MAX];
                for (place, arena) in given.iter_mut().zip(arenas).take(usize::from(count)) {
                    *place = Some((arena, SideMemory::take(&mut fds)?));
                }
                (generation, Way::Local { source, arenas: given })
            }
            Reply::Wire { generation, arena, core } => {
                (generation, Way::Wire { arena, memory: SideMemory::take(&mut fds)?, core })
            }
            Reply::Kernel { generation, reason } => (generation, Way::Kernel(reason)),
            Reply::Refused { generation, errno } => (generation, Way::Refused(Errno::from_raw_os_error(errno))),
            _ => return Err(UNEXPECTED),
        };
        Ok(Routed { generation, way })
    }

    /// Announces a socket that listens. Again: its backlog or options have changed.
    pub fn listen(&self, placeholder: BorrowedFd<'_>) -> Result<Listening, Error> {
        match self.request(&Request::Listen, &[placeholder])? {
            (Reply::Listener { listener }, mut fds) => Ok(Listening::Yes(listener, fds.take().ok_or(NO_FD)?)),
            (Reply::Kernel { reason, .. }, _) => Ok(Listening::Kernel(reason)),
            (Reply::Refused { errno, .. }, _) => Ok(Listening::Refused(Errno::from_raw_os_error(errno))),
            _ => Err(UNEXPECTED),
        }
    }

    /// This process has closed its last descriptor of a listener. `true`: connections keep its port in use; [`Client::ports`]
    /// is due when the socket is closed.
    pub fn unlisten(&self, listener: u32) -> Result<bool, Error> {
        match self.plain(&Request::Unlisten { listener }, &[])? {
            Reply::Done => Ok(false),
            Reply::PortInUse => Ok(true),
            _ => Err(UNEXPECTED),
        }
    }

    /// In place of [`Client::unlisten`], where an epoll set has the listener still ([`Request::Watch`]).
    pub fn watch(&self, listener: u32) -> Result<(), Error> {
        self.done(&Request::Watch { listener }, &[])
    }

    /// That is over. As [`Client::trim`]: no lock, and it waits for nothing.
    pub fn unwatch(&self, listener: u32) -> Result<(), Error> {
        self.tell_at_once(&Request::Unwatch { listener })
    }

    /// A port that connections have kept in use is let go if they do not any more; 0: those that are to be kept are taken now.
    pub fn ports(&self, port: u16) -> Result<(), Error> {
        self.done(&Request::Ports { port }, &[])
    }

    /// A listener of this process was shut down.
    pub fn shut(&self, listener: u32) -> Result<(), Error> {
        self.done(&Request::Shut { listener }, &[])
    }

    /// New connections to a listener of this process are the kernel's from here on.
    pub fn leave(&self, listener: u32) -> Result<(), Error> {
        self.done(&Request::Leave { listener }, &[])
    }

    /// The page of a listener that this process holds (after fork and exec).
    pub fn listener(&self, listener: u32) -> Result<Fd, Error> {
        match self.request(&Request::Listener { listener }, &[])? {
            (Reply::Listener { .. }, mut fds) => fds.take().ok_or(NO_FD),
            _ => Err(UNEXPECTED),
        }
    }

    /// The memory of an arena of which this process has that side.
    pub fn arena(&self, arena: u32, side: PeerSide) -> Result<SideMemory, Error> {
        match self.request(&Request::Arena { arena, side, part: ArenaPart::Both }, &[])? {
            (Reply::Arena, mut fds) => SideMemory::take(&mut fds),
            _ => Err(UNEXPECTED),
        }
    }

    /// One of the two descriptors of [`Client::arena`].
    pub fn part_of_arena(&self, arena: u32, side: PeerSide, part: ArenaPart) -> Result<Fd, Error> {
        match self.request(&Request::Arena { arena, side, part }, &[])? {
            (Reply::Arena, mut fds) => fds.take().ok_or(NO_FD),
            _ => Err(UNEXPECTED),
        }
    }

    /// Whether the ends that a connection's memory names (side A's, side B's) are true; all that this arena names, if the answer is.
    ///
    /// # Errors
    /// [`Error::Failed`] with `EACCES`: they are not.
    pub fn vouch(&self, arena: u32, ends: [SocketAddr; 2]) -> Result<bool, Error> {
        self.vouch_within(arena, ends, Due::AsKnown)
    }

    /// [`Client::vouch`]; `due`: for how long a daemon is asked that has not answered of late.
    pub fn vouch_within(&self, arena: u32, ends: [SocketAddr; 2], due: Due) -> Result<bool, Error> {
        match self.plain_within(&Request::Vouch { arena, ends }, &[], due)? {
            Reply::Vouched { all } => Ok(all),
            _ => Err(UNEXPECTED),
        }
    }

    /// The slot that the next connection in an arena takes is given a port to come from.
    pub fn lend(&self, arena: u32, slot: u32) -> Result<(), Error> {
        self.done(&Request::Lend { arena, slot }, &[])
    }

    /// This process is about to fork. The daemon copies its attachment page and counts the child's references, so
    /// the page must not change until the fork is done. Answers the child's number and its page.
    ///
    /// Make `child` with [`Client::pair`]; the child goes on with the client of the pair, the parent drops it.
    pub fn fork(&self, child: Fd) -> Result<(u32, Fd), Error> {
        self.forked(&Request::Fork, child)
    }

    /// The first half of [`Client::fork`], which is done by [`Client::inherit`]: a child that holds nothing yet.
    pub fn prepare(&self, child: Fd) -> Result<(u32, Fd), Error> {
        self.forked(&Request::Prepare, child)
    }

    fn forked(&self, request: &Request, child: Fd) -> Result<(u32, Fd), Error> {
        match self.request(request, &[child.as_fd()])? {
            (Reply::Forked { child }, mut fds) => Ok((child, fds.take().ok_or(NO_FD)?)),
            _ => Err(UNEXPECTED),
        }
    }

    /// The prepared child is about to be forked: it holds what this process holds from here on.
    pub fn inherit(&self, child: u32) -> Result<(), Error> {
        self.done(&Request::Inherit { child }, &[])
    }

    /// The fork did not happen.
    pub fn fork_failed(&self, child: u32) -> Result<(), Error> {
        self.done(&Request::ForkFailed { child }, &[])
    }

    /// This process is about to exec; the connection has to be left open (not close-on-exec) for the new image. `moment`: one end
    /// of a socketpair whose other end is close-on-exec; without it the daemon does not know when.
    pub fn exec(&self, moment: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        // A process that has confined itself may not pass descriptors.
        let moment = moment.filter(|_| !crate::wait::is_confined());
        self.done(&Request::Exec, moment.as_slice())
    }

    /// The exec did not happen.
    pub fn exec_failed(&self) -> Result<(), Error> {
        self.done(&Request::ExecFailed, &[])
    }

    /// A child whose connection was left open for it was made by posix_spawn(3): it has its new image.
    pub fn spawned(&self, child: u32) -> Result<(), Error> {
        self.done(&Request::Spawned { child }, &[])
    }

    /// A descriptor is about to be sent to another process: what it stands for, its placeholder's cookie, its number, and
    /// the placeholder.
    pub fn share(
        &self,
        object: Object,
        cookie: u64,
        fd: RawFd,
        placeholder: Option<BorrowedFd<'_>>,
    ) -> Result<(), Error> {
        // A filter may allow write(2) alone on this connection.
        let placeholder = placeholder.filter(|_| !crate::wait::is_confined());
        self.done(&Request::Share { object, cookie, fd: fd.cast_unsigned() }, placeholder.as_slice())
    }

    /// The message that [`Client::share`] was called for was not sent.
    pub fn unshare(&self, cookie: u64) -> Result<(), Error> {
        self.done(&Request::Unshare { cookie }, &[])
    }

    /// What a received or inherited descriptor stands for, with its memory (arena or listener page); `None` when it
    /// is not ours. The caller has one reference of it from here on.
    pub fn claim(&self, placeholder: BorrowedFd<'_>) -> Result<Option<(Object, Claimed)>, Error> {
        match self.request(&Request::Claim, &[placeholder])? {
            (Reply::Claimed { object: object @ Object::Channel { .. } }, mut fds) => {
                Ok(Some((object, Claimed::Arena(SideMemory::take(&mut fds)?))))
            }
            (Reply::Claimed { object }, mut fds) => Ok(Some((object, Claimed::Page(fds.take().ok_or(NO_FD)?)))),
            (Reply::Kernel { .. }, _) => Ok(None),
            _ => Err(UNEXPECTED),
        }
    }

    fn done(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        match self.plain(request, fds)? {
            Reply::Done => Ok(()),
            _ => Err(UNEXPECTED),
        }
    }

    /// A request whose answer has no descriptors.
    fn plain(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Reply, Error> {
        self.plain_within(request, fds, Due::AsKnown)
    }

    fn plain_within(&self, request: &Request, fds: &[BorrowedFd<'_>], due: Due) -> Result<Reply, Error> {
        let plain = fds.is_empty() && crate::wait::is_confined() && !self.is_gone();
        let carrier = if plain { Carrier::Plain } else { Carrier::Descriptors(fds) };
        let mut buffer = [0; MESSAGE_MAX];
        let (reply, ..) = self.exchange(request, &carrier, &mut buffer, due)?;
        Ok(reply)
    }

    /// Calls `each` with every row of a list: `ask` is [`Request::Sockets`] or [`Request::Counters`] from a place on.
    pub fn rows<R: Row>(&self, ask: impl Fn(u64) -> Request, mut each: impl FnMut(R)) -> Result<(), Error> {
        let mut buffer = [0; ADMIN_MAX];
        let mut cursor = 0;
        loop {
            let (reply, _, mut rows) =
                self.exchange(&ask(cursor), &Carrier::Descriptors(&[]), &mut buffer, Due::AsKnown)?;
            let (Reply::Sockets { next, count } | Reply::Counters { next, count }) = reply else {
                return Err(UNEXPECTED);
            };
            for _ in 0..count {
                let (row, rest) = R::decode(rows)?;
                rows = rest;
                each(row);
            }
            // The list goes forward, so it ends.
            if next <= cursor {
                return Ok(());
            }
            cursor = next;
        }
    }
}

/// How a request and its answer travel.
enum Carrier<'a> {
    /// sendmsg(2) and recvmsg(2), with these descriptors.
    Descriptors(&'a [BorrowedFd<'a>]),
    /// write(2) and read(2): in a confined process others may be forbidden. Without MSG_NOSIGNAL: only towards a daemon
    /// that was there a moment ago.
    Plain,
}

impl Carrier<'_> {
    fn send(&self, socket: BorrowedFd<'_>, record: &[u8]) -> Result<(), Errno> {
        match *self {
            Carrier::Descriptors(fds) => socket::send(socket, record, fds),
            Carrier::Plain => rustix::io::retry_on_intr(|| rustix::io::write(socket, record)).map(drop),
        }
    }

    fn receive(&self, socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<socket::Received, Errno> {
        match self {
            Carrier::Descriptors(_) => socket::receive(socket, buffer),
            Carrier::Plain => {
                let len = rustix::io::retry_on_intr(|| rustix::io::read(socket, &mut *buffer))?;
                Ok(socket::Received { len, fds: Fds::default(), sender: None })
            }
        }
    }
}

/// A point in time; CLOCK_MONOTONIC.
struct Deadline(Duration);

impl Deadline {
    fn now() -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    fn after(time: Duration) -> Self {
        Self(Self::now() + time)
    }

    fn left(&self) -> Timespec {
        let left = self.0.saturating_sub(Self::now());
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
    }
}
