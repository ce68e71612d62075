//! The daemon's thread: answers programs and follows the kernel's changes. No packet passes through
//! it.

use crate::error::Error;
use crate::pair::Wanted;
use crate::programs::SLOTS;
use crate::proof::Proof;
use crate::shared::{SharedDevice, namespace};
use fs_core::Protocol;
use fs_pairs::closing::{Foreign, Users};
use fs_pairs::listing::Process;
use fs_rt::broker::message::{Answer, LEN, Request};
use fs_rt::broker::wire;
use fs_rt::netlink::{Connection, GROUPS, Netlink, each_connection};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Resource, getrlimit};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Programs of one user other than root, for each device. More: one user can keep the others out.
const PROGRAMS_OF_A_USER: usize = 64;
/// Connections for each program that a device may have: one with its pair, and one that asks for a
/// pair or takes the place of the first. More: each turn polls more descriptors.
const CONNECTIONS: usize = 2;
/// Descriptors that the broker holds for one user other than root, connections and sockets that prove
/// leases, if that is at most a quarter of the daemon's own limit. As many as [`PROGRAMS_OF_A_USER`]
/// programs have with twice the ephemeral ports of a default runtime. More: fewer users fill the map
/// of exact leases, which has twice as many places.
const HELD: usize = 131_072;
/// Time within which the programs of an earlier daemon prove their leases again. They ask once per
/// second. A program with 1,024 ephemeral ports makes 11 requests, one in each turn, and a user that asks
/// for pairs without end makes each turn 0.1 s longer. Longer: until then, a program that has given a
/// port up gets the packets of its next user, as while no daemon runs. Shorter: fewer such users make
/// another user's program lose its leases, and the kernel resets its connections.
const RESUME_WAIT: Duration = Duration::from_secs(60);
/// Maximum memory of a program, which is locked in RAM: 64 cores with the usual frames.
const MEMORY_MAX: u64 = 2 << 30;

/// Returns whether the process of this connection may have the packets for an address.
pub type Permit = Box<dyn Fn(&Process, BorrowedFd<'_>, SocketAddr) -> bool + Send>;

/// Messages of other threads to the broker.
#[derive(Debug)]
enum Event {
    Client(OwnedFd, Process),
    Stop,
}

/// Gives programs' connections to the broker.
#[derive(Clone, Debug)]
pub struct Intake {
    events: Sender<Event>,
    wake: Arc<OwnedFd>,
}

impl Intake {
    /// Serves a process on this connection (SOCK_SEQPACKET) from now on.
    pub fn take(&self, socket: OwnedFd, process: Process) {
        self.tell(Event::Client(socket, process));
    }

    fn tell(&self, event: Event) {
        // If the broker has ended, the connection is closed.
        let _unheard = self.events.send(event);
        // A full counter is readable already.
        let _written = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

/// Shared devices, served by a thread.
#[derive(Debug)]
pub struct Broker {
    intake: Intake,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    /// Shares devices of the calling thread's network namespace. Pairs of an earlier daemon go on.
    /// Needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF, CAP_PERFMON, CAP_IPC_LOCK and CAP_SYS_ADMIN (for
    /// namespaces).
    ///
    /// # Errors
    /// A device does not exist or is no Ethernet device, rights are missing, or the kernel is older
    /// than 6.6.
    pub fn start(devices: &[String], pins: &Path, permit: Permit) -> Result<Self, Error> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| Error::system("make an eventfd", error.into()))?);
        let (events, inbox) = channel();
        let netlink = Netlink::open(GROUPS).map_err(|error| Error::system("open rtnetlink", error))?;
        let cookie = std::net::UdpSocket::bind("127.0.0.1:0")
            .and_then(|socket| crate::sys::namespace_cookie(socket.as_fd()))
            .map_err(|error| Error::system("identify the network namespace (needs Linux 5.14)", error))?;
        let mut shared = devices.iter().map(|name| SharedDevice::open(pins, name)).collect::<Result<Vec<_>, _>>()?;
        shared.iter_mut().try_for_each(|device| device.follow(&netlink))?;
        let silent = shared.iter().enumerate().flat_map(|(device, shared)| {
            let silent = move |slot| Silent { device, slot, token: shared.programs.slot(slot).token };
            shared.programs.used().into_iter().map(silent)
        });
        let silent = silent.collect();
        let server = Server {
            wake: wake.clone(),
            inbox,
            netlink,
            namespace: namespace()?,
            cookie,
            shared,
            clients: HashMap::new(),
            next_client: 0,
            turn: 0,
            silent,
            silent_until: Instant::now() + RESUME_WAIT,
            permit,
            users: Users::default(),
            held_max: getrlimit(Resource::Nofile).current.map_or(HELD, |limit| HELD.min(limit as usize / 4)),
        };
        let thread = std::thread::Builder::new().name("fs-broker".into()).spawn(move || server.run());
        let thread = thread.map_err(|error| Error::system("start a thread", error))?;
        Ok(Self { intake: Intake { events, wake }, thread: Some(thread) })
    }

    /// Returns the handle that hands connections over.
    pub fn intake(&self) -> Intake {
        self.intake.clone()
    }
}

impl Drop for Broker {
    /// Ends the thread. Programs go on, and the next broker serves them.
    fn drop(&mut self) {
        self.intake.tell(Event::Stop);
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

struct Client {
    /// close(2) may block: a message in it may have a socket with SO_LINGER.
    socket: Arc<Foreign>,
    process: Process,
    /// The device and the slot on it.
    slot: Option<(usize, u16)>,
    proofs: Proofs,
    /// Proofs of the connection that this one has replaced. Kept until the program has asked for its leases
    /// again, so that no lease is without a proof.
    former: Proofs,
    /// The turn in which this client was served last or connected.
    served: u64,
}

type Proofs = HashMap<(Protocol, SocketAddr), Arc<Foreign>>;

/// A slot of an earlier daemon whose program has not asked for its leases again.
struct Silent {
    device: usize,
    slot: u16,
    token: [u64; 2],
}

impl Client {
    fn new(socket: Foreign, process: Process, turn: u64) -> Self {
        let socket = Arc::new(socket);
        Self { socket, process, slot: None, proofs: Proofs::new(), former: Proofs::new(), served: turn }
    }
}

struct Server {
    wake: Arc<OwnedFd>,
    inbox: Receiver<Event>,
    netlink: Netlink,
    namespace: (u64, u64),
    cookie: u64,
    shared: Vec<SharedDevice>,
    clients: HashMap<u64, Client>,
    next_client: u64,
    turn: u64,
    silent: Vec<Silent>,
    /// When the leases of silent slots end.
    silent_until: Instant,
    permit: Permit,
    users: Users,
    held_max: usize,
}

type Reply = Result<(Answer, Vec<OwnedFd>), (i32, String)>;

fn refused(errno: i32) -> (i32, String) {
    (errno, String::new())
}

fn explained(error: &Error) -> (i32, String) {
    tracing::warn!(%error, "a program gets no pair");
    (error.errno(), error.to_string())
}

/// Returns the kernel's connections at these TCP ports; none if the kernel has no sock_diag for TCP.
///
/// # Errors
/// The answer is incomplete: there may be further connections.
fn connections(ports: BTreeSet<u16>) -> io::Result<Vec<Connection>> {
    let mut found = Vec::new();
    let (Some(first), Some(last)) = (ports.first(), ports.last()) else { return Ok(found) };
    match each_connection(&(*first..=*last), |connection| found.push(connection)) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EPROTONOSUPPORT)) => Ok(found),
        ended => ended.map(|()| found),
    }
}

impl Server {
    fn run(mut self) {
        loop {
            let mut ids: Vec<u64> = self.clients.keys().copied().collect();
            ids.sort_by_key(|id| self.clients.get(id).map(|client| client.served));
            let sockets = ids.iter().filter_map(|id| self.clients.get(id)).map(|client| client.socket.as_fd());
            let mut fds: Vec<PollFd<'_>> = [self.wake.as_fd(), self.netlink.as_fd()]
                .into_iter()
                .chain(sockets)
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let now = Instant::now();
            let silent = (!self.silent.is_empty()).then_some(self.silent_until);
            let next = [silent, self.users.next_attempt(now)].into_iter().flatten().min();
            let timeout = next.map(|at| Timespec::try_from(at.saturating_duration_since(now)).unwrap_or_default());
            if let Err(error) = poll(&mut fds, timeout.as_ref())
                && error != rustix::io::Errno::INTR
            {
                tracing::error!(%error, "the broker cannot wait, and ends");
                return;
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if Instant::now() >= self.silent_until {
                self.end_silent();
            }
            if ready[1] {
                self.follow();
            }
            self.turn += 1;
            // One request of each user: a user whose programs ask without end delays its own programs.
            let mut users = BTreeSet::new();
            for (id, _) in ids.iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
                if let Some(client) = self.clients.get_mut(id)
                    && users.insert(client.process.uid)
                {
                    client.served = self.turn;
                    self.serve(*id);
                }
            }
            let mut count = [0; 8];
            let _empty = rustix::io::read(&*self.wake, &mut count);
            while let Ok(event) = self.inbox.try_recv() {
                let Event::Client(socket, process) = event else { return };
                self.accept(socket, process);
            }
            self.users.start_threads(Instant::now());
        }
    }

    fn accept(&mut self, socket: OwnedFd, process: Process) {
        let socket = self.users.get(process.uid).own(socket);
        let of_user = self.clients.values().filter(|other| other.process.uid == process.uid).count();
        let [most, most_of_user] =
            [usize::from(SLOTS), PROGRAMS_OF_A_USER].map(|programs| programs * CONNECTIONS * self.shared.len());
        if self.clients.len() >= most || (process.uid != 0 && of_user >= most_of_user) {
            tracing::debug!(pid = process.pid, uid = process.uid, "too many programs ask for a shared device");
            let _disconnected = shutdown(&socket, Shutdown::Both);
            return;
        }
        self.clients.insert(self.next_client, Client::new(socket, process, self.turn));
        self.next_client += 1;
    }

    fn follow(&mut self) {
        // Reads again what has changed.
        if let Err(error) = self.netlink.notices() {
            tracing::warn!(%error, "cannot read the kernel's notifications");
        }
        for device in &mut self.shared {
            if let Err(error) = device.follow(&self.netlink) {
                tracing::warn!(device = device.name, %error, "cannot follow a change of the device");
            }
        }
        // Before another program gets such a slot: requests of this client, and its end, would be taken for that one's.
        // The connection stays: at its end a program releases its ports, and they are free when it is answered.
        for client in self.clients.values_mut() {
            client.slot.take_if(|(device, slot)| self.shared[*device].programs.slot(*slot).index == 0);
        }
    }

    /// Ends the leases of the slots whose programs have not proved them again.
    fn end_silent(&mut self) {
        for Silent { device, slot, token } in self.silent.drain(..) {
            let shared = &mut self.shared[device];
            if shared.programs.slot(slot).token != token {
                // The program has ended.
                continue;
            }
            tracing::info!(device = shared.name, slot, "a program has not asked for its leases again");
            let client = self.clients.values().find(|client| client.slot == Some((device, slot)));
            // A connection that has replaced another may have asked for some of them only.
            let proves = |client: &Client, end| client.proofs.contains_key(&end) || client.former.contains_key(&end);
            shared.keep(slot, |end| client.is_some_and(|client| proves(client, end)));
        }
    }

    /// Answers one request of a client.
    fn serve(&mut self, id: u64) {
        let Some(client) = self.clients.get(&id) else { return };
        let user = client.socket.user();
        // Only descriptors that wait to be closed can be more than `held_max`.
        if client.process.uid != 0 && user.held() > 2 * self.held_max {
            return self.drop_client(id);
        }
        let received = match wire::receive(client.socket.as_fd(), |fd| user.own(fd)) {
            Ok(Some(received)) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(None) | Err(_) => return self.drop_client(id),
        };
        let (record, descriptors): ([u8; LEN], _) = received;
        let Some(request) = Request::decode(&record) else { return self.drop_client(id) };
        let mut unused = descriptors.into_iter().map(Arc::new).collect();
        let reply = self.answer(id, request, &mut unused);
        self.reply(id, reply, unused.into_iter().filter_map(Arc::into_inner).collect());
    }

    /// Closes `unused`, then answers: when a program hears that it has given a port up, the port is free. A thread
    /// of the user does both, because close(2) may block. If there is none, the answer does not wait.
    fn reply(&mut self, id: u64, reply: Reply, unused: Vec<Foreign>) {
        let (answer, given) = reply.unwrap_or_else(|(errno, why)| (Answer::Failed { errno, why }, Vec::new()));
        let Some(client) = self.clients.get(&id) else { return };
        let (user, record) = (client.socket.user(), answer.encode());
        // Only a request that is refused or gets no descriptors makes some unused.
        let is_later = !unused.is_empty() && given.is_empty() && user.may_ask() && {
            let socket = Arc::clone(&client.socket);
            user.ask(move || {
                unused.into_iter().for_each(Foreign::close);
                if wire::send(socket.as_fd(), &record, &[]).is_err() {
                    // The broker finds the end of the connection.
                    let _ended = shutdown(&*socket, Shutdown::Both);
                }
            })
        };
        if !is_later && wire::send(client.socket.as_fd(), &record, &wire::borrow(&given)).is_err() {
            self.drop_client(id);
        }
    }

    /// `unused` contains the request's descriptors. This removes or shares those that it keeps, and adds the proofs
    /// of leases that end.
    fn answer(&mut self, id: u64, request: Request, unused: &mut Vec<Arc<Foreign>>) -> Reply {
        let client = self.clients.get(&id).ok_or_else(|| refused(libc::EINVAL))?;
        let (process, slot) = (client.process, client.slot);
        let done = Ok((Answer::Done, Vec::new()));
        match (request, slot) {
            (Request::Device(name), None) => {
                let found = self.shared.iter().find(|device| device.name == name);
                let device = found.and_then(|device| device.describe(self.namespace));
                device.map(|device| (Answer::Device(device), Vec::new())).ok_or_else(|| refused(libc::ENODEV))
            }
            (Request::Attach { name, queues, memory: config, rings, segments }, None) => {
                if !client.proofs.is_empty() || !client.former.is_empty() {
                    // Proofs of a pair that has ended.
                    return Err(refused(libc::EINVAL));
                }
                let memory = unused.pop().and_then(Arc::into_inner).ok_or_else(|| refused(libc::EINVAL))?;
                if u64::from(config.chunks) * u64::from(config.chunk_size) > MEMORY_MAX {
                    return Err((libc::ENOMEM, format!("more than {} MiB of frames", MEMORY_MAX >> 20)));
                }
                self.attach(id, process, &name, Wanted { queues, memory, config, rings, segments })
            }
            (Request::Bind { protocol, at, v6_only }, Some(_)) => {
                self.may_bind(client, at)?;
                let socket = fs_rt::broker::ports::reserve(protocol, at, v6_only);
                let socket = socket.map_err(|error| refused(error.raw_os_error().unwrap_or(libc::EIO)))?;
                Ok((Answer::Done, vec![socket]))
            }
            (Request::Lease, Some(slot)) => {
                self.lease(id, process, slot, unused.clone())?;
                done
            }
            (Request::Release { protocol, at }, slot) => {
                if let Some((device, slot)) = slot {
                    self.shared[device].release(slot, protocol, at);
                }
                if let Some(client) = self.clients.get_mut(&id) {
                    unused.extend(client.proofs.remove(&(protocol, at)));
                    unused.extend(client.former.remove(&(protocol, at)));
                }
                done
            }
            (Request::Resume { slot, token }, None) => {
                let owns = |device: &SharedDevice| {
                    let known = device.programs.slot(slot);
                    known.index != 0 && known.token == token && known.uid == process.uid
                };
                let device = self.shared.iter().position(owns).ok_or_else(|| refused(libc::ENOENT))?;
                // The program has replaced an earlier connection. No lease may be without a proof in between.
                let slot = Some((device, slot));
                let mut former = Proofs::new();
                for (_, replaced) in self.clients.extract_if(|_, client| client.slot == slot) {
                    former = replaced.former;
                    former.extend(replaced.proofs);
                }
                let client = self.clients.get_mut(&id).ok_or_else(|| refused(libc::EINVAL))?;
                (client.slot, client.former) = (slot, former);
                done
            }
            (Request::Resumed, Some((device, slot))) => {
                let client = self.clients.get_mut(&id).ok_or_else(|| refused(libc::EINVAL))?;
                self.shared[device].keep(slot, |end| client.proofs.contains_key(&end));
                unused.extend(client.former.drain().map(|(_, proof)| proof));
                self.silent.retain(|silent| (silent.device, silent.slot) != (device, slot));
                done
            }
            _ => Err(refused(libc::EINVAL)),
        }
    }

    fn attach(&mut self, id: u64, process: Process, name: &str, wanted: Wanted) -> Reply {
        let device = self.shared.iter().position(|device| device.name == name);
        let device = device.ok_or_else(|| refused(libc::ENODEV))?;
        let most = if process.uid == 0 { usize::MAX } else { PROGRAMS_OF_A_USER };
        let made = self.shared[device].attach(process.uid, most, wanted);
        let (slot, token, sockets) = made.map_err(|error| explained(&error))?;
        let client = self.clients.get_mut(&id).ok_or_else(|| refused(libc::EINVAL))?;
        client.slot = Some((device, slot));
        let queues = sockets.queues.len() as u32;
        let mut given = Vec::with_capacity(sockets.queues.len() + 5);
        for groups in [&GROUPS[..], &[]] {
            let netlink = Netlink::open(groups.iter().copied());
            given.extend(netlink.map_err(|error| refused(error.raw_os_error().unwrap_or(libc::EIO)))?.into_sockets());
        }
        given.extend(sockets.segments);
        given.extend(sockets.queues);
        tracing::info!(
            device = name,
            slot,
            pid = process.pid,
            uid = process.uid,
            queues,
            "a program shares the device"
        );
        Ok((Answer::Attached { slot, token, queues }, given))
    }

    /// Leases to a slot the ends that sockets prove.
    fn lease(
        &mut self,
        id: u64,
        process: Process,
        (device, slot): (usize, u16),
        sockets: Vec<Arc<Foreign>>,
    ) -> Result<(), (i32, String)> {
        let mut new = Vec::new();
        for socket in sockets {
            // Before the lease: one whose socket is closed names a port that the kernel gives to others.
            if process.uid != 0 && socket.user().held() > self.held_max {
                return Err(refused(libc::EMFILE));
            }
            let proof = Proof::of(socket.as_fd(), self.cookie).map_err(|error| {
                (libc::EACCES, format!("the socket proves no port of the device's namespace: {error}"))
            })?;
            self.may_have(self.clients.get(&id).ok_or_else(|| refused(libc::EINVAL))?, proof.at)?;
            let client = self.clients.get_mut(&id).ok_or_else(|| refused(libc::EINVAL))?;
            let Client { proofs, former, .. } = client;
            // A socket that was accepted once stays: it may keep the port better than another one.
            let ends: Vec<_> = proof.ends().map(|end| (proof.protocol, end)).collect();
            proofs.extend(ends.iter().filter_map(|end| former.remove_entry(end)));
            let is_leased = proof.is_leased(&self.shared[device].programs.leases, slot);
            if !is_leased || !ends.iter().all(|end| proofs.contains_key(end)) {
                new.push((proof, is_leased, socket, ends));
            }
        }
        let unknown = new.iter().filter(|(proof, is_leased, ..)| proof.protocol == Protocol::Tcp && !is_leased);
        let connections = connections(unknown.map(|(proof, ..)| proof.at.port()).collect())
            .map_err(|error| refused(error.raw_os_error().unwrap_or(libc::EIO)))?;
        let client = self.clients.get_mut(&id).ok_or_else(|| refused(libc::EINVAL))?;
        let shared = &mut self.shared[device];
        for (proof, is_leased, socket, ends) in new {
            if !is_leased && connections.iter().any(|connection| shared.would_break(connection, proof)) {
                return Err((libc::EADDRINUSE, format!("the kernel has connections at port {}", proof.at.port())));
            }
            proof
                .keeps_port(socket.as_fd(), is_leased)
                .map_err(|error| (libc::EACCES, format!("the socket may give up its port: {error}")))?;
            shared.lease(slot, proof).map_err(refused)?;
            for end in ends {
                client.proofs.entry(end).or_insert_with(|| socket.clone());
            }
        }
        Ok(())
    }

    /// Decides like bind(2) for a process without capabilities.
    fn may_bind(&self, client: &Client, at: SocketAddr) -> Result<(), (i32, String)> {
        let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
        let first = first.ok().and_then(|first| first.trim().parse().ok()).unwrap_or(1024_u16);
        if at.port() != 0 && at.port() < first && client.process.uid != 0 {
            return Err(refused(libc::EACCES));
        }
        self.may_have(client, at)
    }

    /// Decides by the configuration's policies.
    fn may_have(&self, client: &Client, at: SocketAddr) -> Result<(), (i32, String)> {
        if (self.permit)(&client.process, client.socket.as_fd(), at) {
            return Ok(());
        }
        Err((libc::EACCES, format!("a rule denies port {} to user {}", at.port(), client.process.uid)))
    }

    fn drop_client(&mut self, id: u64) {
        let Some(client) = self.clients.remove(&id) else { return };
        // It may wait for a thread to close it.
        let _disconnected = shutdown(&*client.socket, Shutdown::Both);
        // A duplicate that listens would accept connections as soon as the leases are gone.
        for proof in client.proofs.values().chain(client.former.values()) {
            let _not_connected = shutdown(&**proof, Shutdown::Both);
        }
        if let Some((device, slot)) = client.slot {
            self.shared[device].free(slot);
            tracing::info!(device = self.shared[device].name, slot, pid = client.process.pid, "a program has ended");
        }
    }
}
