//! A daemon that joins processes of one host and nothing else: for tests of this crate that want to see, or break, what
//! the daemon does. No rules, no namespaces, no cores.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use fs_shm::control::{ArenaPart, Fd, MESSAGE_MAX, Object, Reply, Request, socket};
use fs_shm::pages::{AttachmentPage, DirectoryPage, ListenerPage};
use fs_shm::{Arena, Channel, Geometry, Memory, NoBells, Side};
use rustix::event::{EventfdFlags, epoll, eventfd};

/// No socket holds it.
fn lend(memory: &Memory, geometry: Geometry, slot: u32) {
    let locks = memory.locks.each_ref().map(AsFd::as_fd);
    Arena::set_port(locks, geometry, slot, 40_000 + slot as u16).unwrap();
}

#[derive(Default)]
struct World {
    /// Killed: nobody is served.
    dead: bool,
    connections: Vec<OwnedFd>,
    next: u32,
    pollers: HashMap<u32, (u32, OwnedFd)>,
    listeners: HashMap<u32, Listener>,
    arenas: HashMap<u32, Joined>,
    attachments: HashMap<u32, (AttachmentPage, OwnedFd)>,
    shared: HashMap<u64, Object>,
}

struct Listener {
    at: SocketAddr,
    inode: u64,
    page: ListenerPage,
    memory: OwnedFd,
    holders: Vec<u32>,
    poller: Option<(u32, OwnedFd, OwnedFd)>,
}

struct Joined {
    memory: Memory,
    opener: u32,
    listener: u32,
    sides: [Arena; 2],
}

impl Joined {
    fn memory(&self, side: Side) -> Vec<OwnedFd> {
        self.memory.of(side).map(|fd| fd.try_clone_to_owned().unwrap()).into()
    }
}

pub(crate) struct Mini {
    world: Arc<Mutex<World>>,
    directory: Arc<(OwnedFd, DirectoryPage)>,
}

/// The answer to Listen is kept back while it is locked, which is counted.
static LISTEN: Mutex<()> = Mutex::new(());
static LISTENS: AtomicU32 = AtomicU32::new(0);

impl Mini {
    /// Serves `path`, in threads of this process.
    pub(crate) fn start(path: &Path) -> Mini {
        let (memory, page) = DirectoryPage::create(1).unwrap();
        let mini = Mini { world: Arc::default(), directory: Arc::new((memory, page)) };
        mini.world.lock().unwrap().next = 2;
        let address = rustix::net::SocketAddrUnix::new(path).unwrap();
        let listener = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 64).unwrap();
        let (world, directory) = (mini.world.clone(), mini.directory.clone());
        thread(move || {
            while let Ok(connection) = rustix::net::accept_with(&listener, rustix::net::SocketFlags::CLOEXEC) {
                let mut now = world.lock().unwrap();
                if now.dead {
                    continue;
                }
                now.connections.push(duplicate(&connection));
                drop(now);
                serve(world.clone(), directory.clone(), connection, None);
            }
        });
        mini
    }
}

impl Mini {
    /// As if killed: every connection ends, nothing is tidied up.
    pub(crate) fn kill(&self) {
        let mut world = self.world.lock().unwrap();
        let connections = std::mem::take(&mut world.connections);
        let next = world.next;
        *world = World { dead: true, next, ..World::default() };
        for connection in connections {
            rustix::net::shutdown(&connection, rustix::net::Shutdown::Both).unwrap();
        }
    }

    /// Runs `meanwhile` when a process has asked it to listen, and has not been answered.
    pub(crate) fn amid_listen(&self, ask: impl FnOnce() + Send + 'static, meanwhile: impl FnOnce()) {
        let kept = LISTEN.lock().unwrap();
        let before = LISTENS.load(SeqCst);
        let asks = std::thread::spawn(ask);
        while LISTENS.load(SeqCst) == before {
            std::thread::yield_now();
        }
        meanwhile();
        drop(kept);
        asks.join().unwrap();
    }

    /// How many listeners there are, and what the pages of all processes say of a number.
    pub(crate) fn knows(&self, fd: i32) -> (usize, Vec<Object>) {
        let world = self.world.lock().unwrap();
        let entries = world.attachments.values().filter_map(|(page, _)| Some(page.entry(fd)?.0));
        (world.listeners.len(), entries.collect())
    }

    /// Started again: it knows nothing of what was.
    pub(crate) fn start_again(&self) {
        self.world.lock().unwrap().dead = false;
    }
}

/// A thread of the daemon. Its panic ends the test process: what waits for an answer would wait for ever, and its message
/// would be in the output of a test that does not end.
fn thread(body: impl FnOnce() + Send + 'static) {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().name() != Some(NAME) {
                return usual(panic);
            }
            let said = format!("{panic}\n{}\n", std::backtrace::Backtrace::force_capture());
            // Not eprint!, which writes to the test's output as well.
            let _written = std::io::Write::write_all(&mut std::io::stderr(), said.as_bytes());
            std::process::abort();
        }));
    });
    std::thread::Builder::new().name(NAME.to_owned()).spawn(body).unwrap();
}

const NAME: &str = "mini";

fn serve(world: Arc<Mutex<World>>, directory: Arc<(OwnedFd, DirectoryPage)>, connection: OwnedFd, who: Option<u32>) {
    thread(move || {
        let mut me = who;
        let mut buffer = [0; MESSAGE_MAX];
        loop {
            let mut ready = [rustix::event::PollFd::new(&connection, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut ready, None).unwrap();
            let Ok(mut received) = socket::receive(&connection, &mut buffer) else { break };
            if received.len == 0 {
                break;
            }
            let (number, request) = Request::decode(&buffer[..received.len]).unwrap();
            let given = received.fds.take();
            let listens = matches!(request, Request::Listen);
            let (reply, fds) = {
                let mut world = world.lock().unwrap();
                answer(&mut world, &directory, &mut me, request, given)
            };
            if listens {
                LISTENS.fetch_add(1, SeqCst);
                drop(LISTEN.lock().unwrap());
            }
            // A child's connection is served from here on.
            let fds: Vec<OwnedFd> = match &reply {
                Reply::Forked { child } => {
                    let mut fds = fds;
                    let end = fds.remove(1);
                    serve(world.clone(), directory.clone(), end, Some(*child));
                    fds
                }
                _ => fds,
            };
            let len = reply.encode(number, &mut buffer).unwrap();
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            if socket::send(connection.as_fd(), &buffer[..len], &borrowed).is_err() {
                break;
            }
        }
        if let Some(me) = me {
            gone(&mut world.lock().unwrap(), &directory.1, me);
        }
    });
}

fn duplicate(fd: &OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).unwrap()
}

fn answer(
    world: &mut World,
    directory: &(OwnedFd, DirectoryPage),
    me: &mut Option<u32>,
    request: Request,
    given: Option<Fd>,
) -> (Reply, Vec<OwnedFd>) {
    let failed = |errno: rustix::io::Errno| (Reply::Failed { errno: errno.raw_os_error() }, vec![]);
    let geometry = Geometry::STANDARD;
    match request {
        Request::Hello { .. } | Request::Resume { .. } => {
            let id = *me.get_or_insert_with(|| {
                let id = world.next;
                world.next += 1;
                let memory = AttachmentPage::create().unwrap();
                world.attachments.insert(id, (AttachmentPage::map(memory.as_fd()).unwrap(), memory));
                id
            });
            let page = duplicate(&world.attachments[&id].1);
            let geometry = geometry.to_welcome();
            (Reply::Welcome { attachment: id, epoch: 1, geometry }, vec![page, duplicate(&directory.0)])
        }
        Request::Poller => {
            let id = world.next;
            world.next += 1;
            let private = given.map(|given| given.into_owned_fd());
            let set =
                if private.is_some() { vec![] } else { vec![epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()] };
            let bell = private.unwrap_or_else(|| {
                let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
                let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
                epoll::add(&set[0], &bell, epoll::EventData::new_u64(0), edge).unwrap();
                bell
            });
            world.pollers.insert(id, (me.unwrap(), bell));
            (Reply::Poller { poller: id }, set)
        }
        Request::ListenerPoller { listener } => {
            let id = world.next;
            world.next += 1;
            let set = || epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            let known = world.listeners.get_mut(&listener).unwrap();
            let (poller, set, bell) = known.poller.get_or_insert_with(|| {
                let (set, bell) = (set(), eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
                let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
                epoll::add(&set, &bell, epoll::EventData::new_u64(0), edge).unwrap();
                (id, set, bell)
            });
            world.pollers.insert(*poller, (me.unwrap(), duplicate(bell)));
            (Reply::Poller { poller: *poller }, vec![duplicate(set)])
        }
        Request::PollerGone { poller } => {
            world.pollers.remove(&poller);
            (Reply::Done, vec![])
        }
        Request::Bell { poller } => match world.pollers.get(&poller) {
            Some((_, eventfd)) => (Reply::Done, vec![duplicate(eventfd)]),
            None => failed(rustix::io::Errno::NOENT),
        },
        Request::Listen => {
            let placeholder = given.unwrap().into_owned_fd();
            // Another thread may have closed the listener, and the number be another socket's now; the real daemon leaves it to the kernel.
            let Some(at) = name(&placeholder) else { return failed(rustix::io::Errno::INVAL) };
            let inode = rustix::fs::fstat(&placeholder).unwrap().st_ino;
            let me = me.unwrap();
            let known = world.listeners.iter_mut().find(|(_, listener)| listener.inode == inode);
            let id = match known {
                Some((id, listener)) => {
                    if !listener.holders.contains(&me) {
                        listener.holders.push(me);
                    }
                    if listener.page.is_closed() {
                        listener.at = at;
                        listener.page.open();
                        directory.1.bump();
                    }
                    *id
                }
                None => {
                    let id = world.next;
                    world.next += 1;
                    let (memory, page) = ListenerPage::create().unwrap();
                    // Always perhaps several.
                    page.set_holders(2);
                    world.listeners.insert(id, Listener { at, inode, page, memory, holders: vec![me], poller: None });
                    directory.1.bump();
                    id
                }
            };
            (Reply::Listener { listener: id }, vec![duplicate(&world.listeners[&id].memory)])
        }
        Request::Listener { listener } => match world.listeners.get(&listener) {
            Some(known) => (Reply::Listener { listener }, vec![duplicate(&known.memory)]),
            None => failed(rustix::io::Errno::NOENT),
        },
        Request::Unlisten { listener } => {
            let me = me.unwrap();
            if let Some(known) = world.listeners.get_mut(&listener) {
                known.holders.retain(|holder| *holder != me);
                if known.holders.is_empty() {
                    drop_listener(world, &directory.1, listener);
                }
            }
            (Reply::Done, vec![])
        }
        Request::Shut { listener } => {
            if let Some(known) = world.listeners.get_mut(&listener) {
                // No connection is to port 0.
                known.at.set_port(0);
                known.page.close();
                refuse_all(world, &directory.1, listener);
                world.arenas.retain(|_, arena| arena.listener != listener || arena.sides[0].used() != 0);
            }
            (Reply::Done, vec![])
        }
        Request::Leave { listener } => {
            if let Some(known) = world.listeners.get_mut(&listener) {
                known.at.set_port(0);
                directory.1.bump();
            }
            (Reply::Done, vec![])
        }
        Request::Route { to } => {
            let generation = directory.1.generation();
            let fits = |at: &SocketAddr| at.port() == to.port() && (at.ip() == to.ip() || at.ip().is_unspecified());
            let found = world.listeners.iter().find(|(_, listener)| fits(&listener.at)).map(|(id, _)| *id);
            let Some(listener) = found else {
                return (Reply::Kernel { generation, reason: fs_shm::control::KernelReason::NoListener }, vec![]);
            };
            let me = me.unwrap();
            let have = world.arenas.iter().find(|(_, arena)| arena.opener == me && arena.listener == listener);
            let id = have.map(|(id, _)| *id).unwrap_or_else(|| {
                // What nobody uses any more goes.
                let attachments = &world.attachments;
                world.arenas.retain(|_, arena| {
                    let over = !attachments.contains_key(&arena.opener) && arena.sides[0].used() == 0;
                    if over {
                        arena.sides[0].close();
                    }
                    !over
                });
                let id = world.next;
                world.next += 1;
                let memory = Arena::create("test", geometry).unwrap();
                let map = |side| Arena::map(memory.of(side), geometry, side, &NoBells).unwrap();
                let sides = [map(Side::A), map(Side::B)];
                (0..64).for_each(|slot| lend(&memory, geometry, slot));
                world.arenas.insert(id, Joined { memory, opener: me, listener, sides });
                let ids: Vec<u32> =
                    world.arenas.iter().filter(|(_, arena)| arena.listener == listener).map(|(id, _)| *id).collect();
                assert!(world.listeners[&listener].page.set(&ids));
                for holder in world.listeners[&listener].holders.clone() {
                    for (_, eventfd) in world.pollers.values().filter(|(owner, _)| *owner == holder) {
                        rustix::io::write(eventfd, &1_u64.to_ne_bytes()).unwrap();
                    }
                }
                id
            });
            let mut arenas = [0; fs_shm::control::GROUP_MAX];
            arenas[0] = id;
            let source: IpAddr =
                if to.ip().is_loopback() && to.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { to.ip() };
            (Reply::Local { generation, source, arenas, count: 1 }, world.arenas[&id].memory(Side::A))
        }
        Request::Arena { arena, side, part } => match world.arenas.get(&arena) {
            Some(known) => {
                let mut memory = known.memory(side);
                match part {
                    ArenaPart::Both => {}
                    ArenaPart::Shared => drop(memory.split_off(1)),
                    ArenaPart::Locks => drop(memory.remove(0)),
                }
                (Reply::Arena, memory)
            }
            None => failed(rustix::io::Errno::NOENT),
        },
        Request::Fork => {
            let parent = me.unwrap();
            let id = world.next;
            world.next += 1;
            let memory = AttachmentPage::create().unwrap();
            let page = AttachmentPage::map(memory.as_fd()).unwrap();
            for (fd, object, cookie) in world.attachments[&parent].0.entries(None) {
                assert!(page.set(fd, object, cookie));
                match object {
                    Object::Channel { arena, slot, side } => {
                        let arena = &world.arenas[&arena].sides[side.index()];
                        Channel::at(arena, slot).unwrap().retain_for_other();
                    }
                    // It may have gone just now, as the real daemon takes it.
                    Object::Listener(listener) => {
                        if let Some(known) = world.listeners.get_mut(&listener)
                            && !known.holders.contains(&id)
                        {
                            known.holders.push(id);
                        }
                    }
                    Object::Kernel(_) => {}
                }
            }
            let copy = duplicate(&memory);
            world.attachments.insert(id, (page, memory));
            (Reply::Forked { child: id }, vec![copy, given.unwrap().into_owned_fd()])
        }
        Request::Prepare | Request::Inherit { .. } => failed(rustix::io::Errno::NOSYS),
        Request::ForkFailed { .. }
        | Request::Exec
        | Request::ExecFailed
        | Request::Ports { .. }
        | Request::Spawned { .. } => (Reply::Done, vec![]),
        Request::Unshare { .. } => failed(rustix::io::Errno::NOENT),
        Request::Share { object, cookie, fd: _ } => {
            world.shared.insert(cookie, object);
            if let Object::Channel { arena, slot, side } = object {
                Channel::at(&world.arenas[&arena].sides[side.index()], slot).unwrap().retain_for_other();
            }
            (Reply::Done, vec![])
        }
        Request::Lend { arena, slot } => {
            lend(&world.arenas[&arena].memory, geometry, slot);
            (Reply::Done, vec![])
        }
        Request::Vouch { .. } => (Reply::Vouched { all: true }, vec![]),
        Request::Claim => {
            let placeholder = given.unwrap().into_owned_fd();
            match world.shared.remove(&cookie(&placeholder)) {
                Some(object @ Object::Channel { arena, side, .. }) => {
                    (Reply::Claimed { object }, world.arenas[&arena].memory(side))
                }
                Some(object @ Object::Listener(listener)) => {
                    world.listeners.get_mut(&listener).unwrap().holders.push(me.unwrap());
                    (Reply::Claimed { object }, vec![duplicate(&world.listeners[&listener].memory)])
                }
                _ => (
                    Reply::Kernel {
                        generation: directory.1.generation(),
                        reason: fs_shm::control::KernelReason::Foreign,
                    },
                    vec![],
                ),
            }
        }
        Request::Sockets { .. }
        | Request::Capture { .. }
        | Request::Counters { .. }
        | Request::Status
        | Request::Ring { .. }
        | Request::Due { .. }
        | Request::Trim { .. }
        | Request::Watch { .. }
        | Request::Unwatch { .. }
        | Request::Room { .. }
        | Request::ExclusivePoller { .. } => failed(rustix::io::Errno::NOSYS),
    }
}

fn drop_listener(world: &mut World, directory: &DirectoryPage, listener: u32) {
    world.listeners.remove(&listener);
    refuse_all(world, directory, listener);
}

fn refuse_all(world: &mut World, directory: &DirectoryPage, listener: u32) {
    for arena in world.arenas.values().filter(|arena| arena.listener == listener) {
        arena.sides[1].close();
        while let Some(waiting) = Channel::accept(&arena.sides[1]) {
            waiting.abort(Some(rustix::io::Errno::CONNRESET));
        }
    }
    directory.bump();
}

/// The process is dead: what it held is closed.
fn gone(world: &mut World, directory: &DirectoryPage, me: u32) {
    let Some((page, _)) = world.attachments.remove(&me) else { return };
    for (_, object, _) in page.entries(None) {
        if let Object::Channel { arena, slot, side } = object
            && let Some(channel) = Channel::at(&world.arenas[&arena].sides[side.index()], slot)
        {
            channel.break_locks(me);
            channel.close_dead();
        }
    }
    world.pollers.retain(|_, (owner, _)| *owner != me);
    let mut dropped = vec![];
    for (id, listener) in &mut world.listeners {
        listener.holders.retain(|holder| *holder != me);
        if listener.holders.is_empty() {
            dropped.push(*id);
        }
    }
    for listener in dropped {
        drop_listener(world, directory, listener);
    }
}

fn name(fd: &OwnedFd) -> Option<SocketAddr> {
    rustix::net::getsockname(fd).unwrap().try_into().ok()
}

fn cookie(fd: &OwnedFd) -> u64 {
    let mut value = [0; 8];
    fs_socket::sys::call::getsockopt(fd.as_raw_fd(), 1, 57, &mut value).unwrap();
    u64::from_ne_bytes(value)
}
