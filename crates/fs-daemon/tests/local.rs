//! The daemon's local part, with clients that speak the protocol themselves.

use fs_daemon::{Config, Daemon};
use fs_shm::control::{
    Claimed, Client, Error, Fd, KernelReason, Listening, Object, PeerSide, Request, SideMemory, Way, Welcome,
};
use fs_shm::layout::SlotLocks;
use fs_shm::pages::{AttachmentPage, DirectoryPage, ListenerPage};
use fs_shm::{Arena, Channel, Errno, Geometry, NoBells, OpenArgs, Readiness, Side};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

fn start() -> Daemon {
    start_with(Config::default())
}

fn start_with(config: Config) -> Daemon {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path: PathBuf = std::env::temp_dir().join(format!("fs-daemon-{}-{number}/control.sock", std::process::id()));
    Daemon::builder(path).config(config).geometry(Geometry::SMALL).start().unwrap()
}

/// An attached "process" (a connection of its own).
struct Process {
    client: Client,
    page: AttachmentPage,
    directory: DirectoryPage,
    id: u32,
}

fn attach(daemon: &Daemon) -> Process {
    let client = Client::connect(daemon.path().as_os_str().as_encoded_bytes()).unwrap();
    let welcome = client.hello(b"test").unwrap();
    process(client, welcome)
}

fn process(client: Client, welcome: Welcome) -> Process {
    let page = AttachmentPage::map(welcome.page.as_fd()).unwrap();
    let directory = DirectoryPage::map(welcome.directory.as_fd()).unwrap();
    assert_eq!(directory.epoch(), welcome.epoch);
    Process { client, page, directory, id: welcome.attachment }
}

fn map(memory: &SideMemory, side: Side) -> &'static Arena {
    Box::leak(Box::new(Arena::map(memory.fds(), Geometry::SMALL, side, &NoBells).unwrap()))
}

/// A socket that listens on the kernel, as the placeholder of a preloaded process does.
fn placeholder() -> (TcpListener, SocketAddr, u64) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    let cookie = rustix::net::sockopt::socket_cookie(&socket).unwrap();
    (socket, addr, cookie)
}

fn fresh() -> std::os::fd::OwnedFd {
    rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap()
}

fn listen(process: &Process, socket: &TcpListener) -> (u32, ListenerPage, Fd) {
    let Listening::Yes(id, page) = process.client.listen(socket.as_fd()).unwrap() else { panic!("not announced") };
    let mapped = ListenerPage::map(page.as_fd()).unwrap();
    (id, mapped, page)
}

/// Side A of the arena that leads to `to`.
fn route(process: &Process, to: SocketAddr) -> (u32, &'static Arena) {
    let routed = process.client.route(to, fresh().as_fd()).unwrap();
    assert_eq!(routed.generation, process.directory.generation());
    let Way::Local { source, mut arenas } = routed.way else { panic!("{:?}", routed.way) };
    assert_eq!(source, to.ip());
    let (id, memory) = arenas[0].take().unwrap();
    (id, map(&memory, Side::A))
}

fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn counter(daemon: &Daemon, name: &str) -> u64 {
    let client = Client::connect(daemon.path().as_os_str().as_encoded_bytes()).unwrap();
    let mut found = None;
    client
        .rows(
            |cursor| Request::Counters { cursor },
            |row: fs_shm::control::CounterRow| {
                if row.name.as_str() == name {
                    found = Some(row.value);
                }
            },
        )
        .unwrap();
    found.unwrap_or_else(|| panic!("no counter {name}"))
}

/// A connection, both ends in their processes' pages.
struct Pair {
    client: Process,
    server: Process,
    a: Channel<'static>,
    b: Channel<'static>,
    arena: u32,
    listener: u32,
    socket: TcpListener,
    to: SocketAddr,
}

fn pair(daemon: &Daemon) -> Pair {
    let (server, client) = (attach(daemon), attach(daemon));
    let (socket, to, cookie) = placeholder();
    let (listener, page, _) = listen(&server, &socket);
    assert!(server.page.set(3, Object::Listener(listener), cookie));
    assert_eq!(page.arenas().count(), 0);
    let (arena, side_a) = route(&client, to);
    let [local, peer] = [SocketAddr::new(to.ip(), 40_000), to].map(fs_shm::Addr::from);
    let a = Channel::open(side_a, &OpenArgs { local, peer, ..OpenArgs::default() }).unwrap();
    assert!(client.page.set(7, Object::Channel { arena, slot: a.slot(), side: PeerSide::A }, 100));
    assert_eq!(page.arenas().collect::<Vec<_>>(), [arena]);
    let memory = server.client.arena(arena, Side::B).unwrap();
    let b = Channel::accept(map(&memory, Side::B)).unwrap();
    assert!(server.page.set(4, Object::Channel { arena, slot: b.slot(), side: PeerSide::B }, 101));
    Pair { client, server, a, b, arena, listener, socket, to }
}

/// As the kernel's queue holds one more than the backlog says, whoever connects: what one process leaves is another's, and no more.
#[test]
fn a_backlog_is_all_processes() {
    let daemon = start();
    let server = attach(&daemon);
    let (socket, to, cookie) = placeholder();
    rustix::net::listen(&socket, 3).unwrap();
    let (listener, _page, _) = listen(&server, &socket);
    assert!(server.page.set(3, Object::Listener(listener), cookie));
    let clients = [attach(&daemon), attach(&daemon)];
    let ways = clients.each_ref().map(|client| route(client, to));
    let open = |n: usize, count: i32| {
        let (arena, side_a) = ways[n];
        let opened = |at| {
            let channel = Channel::open(side_a, &OpenArgs::default()).unwrap();
            let object = Object::Channel { arena, slot: channel.slot(), side: PeerSide::A };
            assert!(clients[n].page.set(7 + at, object, 0));
            channel.set_due(fs_shm::channel::now() + 60_000_000_000);
            clients[n].client.ask_for_room(arena).unwrap();
            channel
        };
        (0..count).map(opened).collect::<Vec<_>>()
    };
    let connected = |all: &[Channel<'_>]| all.iter().filter(|channel| !channel.is_kept_out()).count();
    let one = open(0, 2);
    soon("room for the first process's", || connected(&one) == 2);
    let other = open(1, 4);
    soon("room for what is left", || connected(&other) == 2);
    // Longer than it is looked again.
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!((connected(&one), connected(&other)), (2, 2));
    let memory = server.client.arena(ways[0].0, Side::B).unwrap();
    let side_b = map(&memory, Side::B);
    for fd in 4..6 {
        let accepted = Channel::accept(side_b).unwrap();
        let object = Object::Channel { arena: ways[0].0, slot: accepted.slot(), side: PeerSide::B };
        assert!(server.page.set(fd, object, 0));
    }
    soon("the room that was made", || connected(&other) == 4);
}

/// One that is kept out is let in by the next share of the room, whatever made it.
#[test]
fn room_that_is_made_is_for_who_is_kept_out() {
    room_is_made(false);
}

/// Who asks says so once, and no descriptor of his is looked at: his arena tells that more want to, until they are in.
#[test]
fn who_asks_for_room_is_known_by_his_arena() {
    room_is_made(true);
}

/// Of two processes the first has all the room until its connections are accepted, and one of the second's is kept out that is in no page.
/// The second asks, or a third one comes then.
fn room_is_made(asks: bool) {
    let daemon = start();
    let server = attach(&daemon);
    let (socket, to, cookie) = placeholder();
    rustix::net::listen(&socket, 3).unwrap();
    let (listener, _page, _) = listen(&server, &socket);
    assert!(server.page.set(3, Object::Listener(listener), cookie));
    let clients = [attach(&daemon), attach(&daemon)];
    let ways = clients.each_ref().map(|client| route(client, to));
    let open = |n: usize, fd| {
        let (arena, side_a): (u32, &'static Arena) = ways[n];
        let channel = Channel::open(side_a, &OpenArgs::default()).unwrap();
        assert!(
            n == 1 || clients[n].page.set(fd, Object::Channel { arena, slot: channel.slot(), side: PeerSide::A }, 0)
        );
        channel
    };
    // One has all the room, the other none but for one.
    let one: Vec<_> = (7..10).map(|fd| open(0, fd)).collect();
    clients[0].client.ask_for_room(ways[0].0).unwrap();
    soon("room for the first process's", || one.iter().all(|channel| !channel.is_kept_out()));
    // Longer than the other's first share may be put off; each one's limit is written before the daemon answers.
    std::thread::sleep(Duration::from_millis(600));
    route(&clients[0], to);
    let other = [open(1, 7), open(1, 8)];
    assert_eq!(other.each_ref().map(Channel::is_kept_out), [false, true]);
    if asks {
        clients[1].client.ask_for_room(ways[1].0).unwrap();
        // That was in vain.
        std::thread::sleep(Duration::from_millis(100));
        assert!(other[1].is_kept_out());
    }
    let side_b = map(&server.client.arena(ways[0].0, Side::B).unwrap(), Side::B);
    for fd in 4..7 {
        let accepted = Channel::accept(side_b).unwrap();
        let object = Object::Channel { arena: ways[0].0, slot: accepted.slot(), side: PeerSide::B };
        assert!(server.page.set(fd, object, 0));
    }
    let third = attach(&daemon);
    if !asks {
        route(&third, to);
    }
    soon("the room that was made", || !other[1].is_kept_out());
}

/// A process that listens with a backlog.
struct Queue {
    server: Process,
    to: SocketAddr,
    /// Held by the process for as long as it listens.
    _held: (TcpListener, ListenerPage, Fd),
}

fn queue_with_two_clients(daemon: &Daemon, backlog: i32) -> (Queue, [Process; 2]) {
    let server = attach(daemon);
    let (socket, to, cookie) = placeholder();
    rustix::net::listen(&socket, backlog).unwrap();
    let (listener, page, memory) = listen(&server, &socket);
    assert!(server.page.set(3, Object::Listener(listener), cookie));
    (Queue { server, to, _held: (socket, page, memory) }, [attach(daemon), attach(daemon)])
}

/// What a process that has ended leaves in the queue has the places that it had, and those that were kept out have none.
#[test]
fn who_was_kept_out_and_died_wants_no_room() {
    const BACKLOG: usize = 20;
    const ACCEPTED: usize = 11;
    let daemon = start();
    let (Queue { server, to, _held }, clients) = queue_with_two_clients(&daemon, BACKLOG as i32);
    let [(first, first_a), (second, second_a)] = clients.each_ref().map(|client| route(client, to));
    let open = |side_a, count| -> Vec<_> {
        (0..count).map(|_| Channel::open(side_a, &OpenArgs::default()).unwrap()).collect()
    };
    let connected = |all: &[Channel<'_>]| all.iter().filter(|channel| !channel.is_kept_out()).count();
    let all = open(first_a, 2 * BACKLOG);
    let [dying, living] = clients;
    dying.client.ask_for_room(first).unwrap();
    soon("room for the first process's", || connected(&all) > BACKLOG);
    let first_b = map(&server.client.arena(first, Side::B).unwrap(), Side::B);
    drop(dying);
    soon("the end of the first process", || first_a.is_closed());
    for fd in 4..4 + ACCEPTED as i32 {
        let slot = Channel::accept(first_b).unwrap().slot();
        assert!(server.page.set(fd, Object::Channel { arena: first, slot, side: PeerSide::B }, 0));
    }
    let all = open(second_a, ACCEPTED);
    living.client.ask_for_room(second).unwrap();
    soon("the room that the dead one has not", || connected(&all) == ACCEPTED);
}

/// One that is kept out at the moment at which its arena is given more is let in, though its process does not ask again.
#[test]
fn who_comes_while_room_is_shared_is_let_in() {
    const PASSES: u64 = 15;
    const BACKLOG: u64 = 20;
    let daemon = start();
    let (Queue { server, to, _held }, clients) = queue_with_two_clients(&daemon, BACKLOG as i32);
    // The first one has what cannot be halved.
    let [(arena, side_a), (full, full_a)] = clients.each_ref().map(|client| route(client, to));
    let acceptors = [arena, full].map(|id| map(&server.client.arena(id, Side::B).unwrap(), Side::B));
    let open = |side_a| Channel::open(side_a, &OpenArgs::default()).unwrap();
    let accept = |n: usize| Channel::accept(acceptors[n]).unwrap().close(true).unwrap();
    for pass in 0..PASSES {
        let all: Vec<_> = (0..BACKLOG).map(|_| open(full_a)).collect();
        clients[1].client.ask_for_room(full).unwrap();
        soon("room for the second process's", || all.iter().all(|channel| !channel.is_kept_out()));
        let mut waiting = vec![open(side_a)];
        soon("room for one of each", || !waiting[0].is_kept_out());
        for (round, done) in all.iter().enumerate() {
            // Longer than the pause after a share, for most.
            std::thread::sleep(Duration::from_millis(5));
            accept(1);
            done.close(true).unwrap();
            clients[0].client.ask_for_room(arena).unwrap();
            let at = Instant::now() + Duration::from_micros((pass * BACKLOG + round as u64) % 100);
            while Instant::now() < at {}
            let channel = open(side_a);
            soon("the room that was made", || !channel.is_kept_out());
            waiting.push(channel);
        }
        for channel in waiting {
            accept(0);
            channel.close(true).unwrap();
        }
    }
}

/// A process asks for no look that comes after one that it was promised: that one comes, whatever an earlier look has found.
#[test]
fn a_promised_look_comes() {
    const PROMISED: u32 = 4000;
    let daemon = start();
    let server = attach(&daemon);
    let (socket, to, cookie) = placeholder();
    rustix::net::listen(&socket, 0).unwrap();
    let (listener, _page, _) = listen(&server, &socket);
    assert!(server.page.set(3, Object::Listener(listener), cookie));
    let client = attach(&daemon);
    let (arena, side_a) = route(&client, to);
    client.client.due(PROMISED).unwrap();
    // An earlier one, which finds nothing: it is over when the second answer comes.
    client.client.due(1).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    route(&client, to);
    route(&client, to);
    let open = |fd| {
        let channel = Channel::open(side_a, &OpenArgs::default()).unwrap();
        assert!(client.page.set(fd, Object::Channel { arena, slot: channel.slot(), side: PeerSide::A }, 0));
        channel
    };
    let (_first, second) = (open(7), open(8));
    assert!(second.is_kept_out());
    second.set_due(fs_shm::channel::now() + u64::from(PROMISED) * 1_000_000);
    soon("its end", || !second.is_kept_out());
    assert_eq!(second.take_error(), Some(Errno::TIMEDOUT));
}

#[test]
fn two_processes_talk_without_the_daemon() {
    let daemon = start();
    let pair = pair(&daemon);
    assert_eq!(pair.a.send_one(b"hello"), Ok(5));
    let mut buf = [0; 16];
    assert_eq!(pair.b.recv_one(&mut buf), Ok(5));
    assert_eq!(pair.b.send_one(b"hi"), Ok(2));
    assert_eq!(pair.a.recv_one(&mut buf), Ok(2));
    assert_eq!((counter(&daemon, "local_connections"), counter(&daemon, "local_bytes")), (1, 7));
    // Asking again gives the same arena.
    assert_eq!(route(&pair.client, pair.to).0, pair.arena);
    assert!(pair.client.id != pair.server.id && pair.client.id >= 2);
}

#[test]
fn a_dead_client_is_a_fin_and_a_dead_server_a_reset() {
    let daemon = start();
    let Pair { client, server, a, b, .. } = pair(&daemon);
    let mut buf = [0; 4];
    a.send_one(b"last").unwrap();
    drop(client);
    soon("FIN", || b.readiness().contains(Readiness::RDHUP));
    assert_eq!(b.recv_one(&mut buf), Ok(4));
    assert_eq!(b.recv_one(&mut buf), Ok(0));
    drop(server);

    // Unread data: a reset.
    let Pair { client, server, a, .. } = pair(&daemon);
    a.send_one(b"unread").unwrap();
    drop(server);
    soon("RST", || a.readiness().contains(Readiness::HUP));
    assert_eq!(a.recv_one(&mut buf), Err(Errno::CONNRESET));
    drop(client);
    soon("nothing is left", || counter(&daemon, "arenas") == 0);
    assert_eq!(counter(&daemon, "listeners"), 0);
    // What the two connections carried is still known.
    assert_eq!((counter(&daemon, "local_connections"), counter(&daemon, "local_bytes")), (2, 10));
}

#[test]
fn who_died_between_accept_and_writing_it_down_is_found() {
    let daemon = start();
    let Pair { client, server, a, .. } = pair(&daemon);
    let (socket, to, cookie) = placeholder();
    let (listener, page, _) = listen(&server, &socket);
    assert!(server.page.set(9, Object::Listener(listener), cookie));
    let (arena, side_a) = route(&client, to);
    let lost = Channel::open(side_a, &OpenArgs::default()).unwrap();
    assert!(client.page.set(8, Object::Channel { arena, slot: lost.slot(), side: PeerSide::A }, 5));
    let memory = server.client.arena(page.arenas().next().unwrap(), Side::B).unwrap();
    Channel::accept(map(&memory, Side::B)).unwrap();
    drop(server);
    soon("the connection that was written down", || a.readiness().contains(Readiness::RDHUP));
    soon("the connection that was not", || lost.readiness().contains(Readiness::RDHUP));
}

/// It is the listener's, whoever opened it, though no process of the listener has asked for the arena yet.
#[test]
fn what_waits_outlives_its_opener() {
    let daemon = start();
    let server = attach(&daemon);
    let (socket, to, cookie) = placeholder();
    let (listener, page, _) = listen(&server, &socket);
    assert!(server.page.set(3, Object::Listener(listener), cookie));
    let client = attach(&daemon);
    let (arena, side_a) = route(&client, to);
    let a = Channel::open(side_a, &OpenArgs::default()).unwrap();
    assert!(client.page.set(7, Object::Channel { arena, slot: a.slot(), side: PeerSide::A }, 0));
    a.send_one(b"x").unwrap();
    drop(client);
    soon("the end of the opener", || side_a.is_closed());
    // Several looks long.
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(page.arenas().collect::<Vec<_>>(), [arena]);
    let memory = server.client.arena(arena, Side::B).unwrap();
    let b = Channel::accept(map(&memory, Side::B)).unwrap();
    assert!(server.page.set(4, Object::Channel { arena, slot: b.slot(), side: PeerSide::B }, 0));
    let mut buf = [0; 4];
    assert_eq!(b.recv_one(&mut buf), Ok(1));
    assert_eq!(b.recv_one(&mut buf), Ok(0));
    server.page.clear(4);
    b.close(false).unwrap();
    soon("nothing is left", || counter(&daemon, "arenas") == 0);
}

/// A process is killed between dup and entry; another one, which holds the connection and the listener, lives on.
#[test]
fn a_reference_that_a_dead_process_left_goes() {
    let daemon = start();
    let Pair { client, server, a, b, arena, .. } = pair(&daemon);
    let (child, end) = Client::pair().unwrap();
    let (_, page) = server.client.fork(end).unwrap();
    assert_eq!(b.refs(), 2);
    b.retain();
    drop((child, page));
    soon("both references of the dead one", || b.refs() == 1);
    assert!(!a.readiness().contains(Readiness::RDHUP));
    // While a change is under way nothing is put right: the reference may be about to be written down.
    server.page.begin_change();
    b.retain();
    let (child, end) = Client::pair().unwrap();
    let (_, page) = server.client.fork(end).unwrap();
    drop((child, page));
    soon("the reference of the dead one", || b.refs() == 2);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(b.refs(), 2);
    let object = Object::Channel { arena, slot: b.slot(), side: PeerSide::B };
    assert!(server.page.set(5, object, 0));
    server.page.end_change();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(b.refs(), 2);
    drop(client);
}

/// A process has let go of a connection, and is killed while a thread of it is in the middle of that: who holds it too does not wait.
#[test]
fn locks_of_a_connection_that_a_dead_process_had_let_go_of_are_free() {
    let daemon = start();
    let Pair { client, server, a, b, arena, .. } = pair(&daemon);
    let (child, end) = Client::pair().unwrap();
    let (id, page) = server.client.fork(end).unwrap();
    let page = AttachmentPage::map(page.as_fd()).unwrap();
    page.clear(4);
    let memory = server.client.arena(arena, Side::B).unwrap();
    let [shared, locks] = memory.fds();
    let place = Geometry::SMALL.slot_locks(b.slot()) + std::mem::offset_of!(SlotLocks, send);
    let held = u64::from(id) << 32 | 1;
    rustix::io::pwrite(locks, &held.to_ne_bytes(), place as u64).unwrap();
    // Whatever its peer says of the slot.
    rustix::io::pwrite(shared, &[0; 8], Geometry::SMALL.slot_map() as u64).unwrap();
    drop(child);
    soon("the lock is free", || {
        let mut now = [0; 8];
        rustix::io::pread(locks, &mut now, place as u64).unwrap();
        now == [0; 8]
    });
    assert_eq!(b.send_one(b"on").unwrap(), 2);
    assert!(a.readiness().contains(Readiness::IN) && b.is_held());
    drop((client, server));
}

/// A process that has ended in its sleep is not taken for a sleeper, though a child of it holds the poller still.
#[test]
fn a_dead_sleeper_takes_no_rings() {
    let daemon = start();
    let Pair { client, server, to, .. } = pair(&daemon);
    let (arena, _) = route(&client, to);
    let memory = server.client.arena(arena, Side::B).unwrap();
    let side_b = map(&memory, Side::B);
    let (heir, end) = Client::pair().unwrap();
    let (sleeper, sleepers_end) = Client::pair().unwrap();
    server.client.fork(sleepers_end).unwrap();
    let (poller, _set) = sleeper.poller().unwrap();
    sleeper.fork(end).unwrap();
    let lane = side_b.join(poller).unwrap();
    side_b.watch_inbox(lane, true);
    side_b.share_inbox(lane, false);
    assert!(side_b.arm(lane));
    drop(sleeper);
    soon("the lane is awake", || side_b.arm(lane));
    drop(heir);
}

#[test]
fn unaccepted_connections_of_a_closed_listener_are_reset() {
    let daemon = start();
    let Pair { client, server, a: _, b: _, listener, to, socket, .. } = pair(&daemon);
    let (_, side_a) = route(&client, to);
    let waiting = Channel::open(side_a, &OpenArgs::default()).unwrap();
    server.page.clear(3);
    server.client.unlisten(listener).unwrap();
    drop(socket);
    soon("RST", || waiting.readiness().contains(Readiness::HUP));
    assert_eq!(Channel::open(side_a, &OpenArgs::default()).unwrap_err(), Errno::CONNREFUSED);
    let way = client.client.route(to, fresh().as_fd()).unwrap().way;
    assert!(matches!(way, Way::Kernel(fs_shm::control::KernelReason::NoListener)), "{way:?}");
    assert_eq!(server.client.unlisten(listener), Ok(false), "again does no harm");
}

#[test]
fn a_forked_child_holds_what_its_parent_held() {
    let daemon = start();
    let Pair { client, server, a, b, arena, listener, .. } = pair(&daemon);
    let (child, end) = Client::pair().unwrap();
    assert!(server.page.set(9, Object::Kernel(KernelReason::Policy), 5));
    assert!(server.page.set(10, Object::Channel { arena, slot: b.slot() + 1, side: PeerSide::B }, 0));
    assert!(!a.was_shared() && !b.was_shared(), "one thread needs no locked instruction for its locks");
    let (id, page) = server.client.fork(end).unwrap();
    assert!(b.was_shared() && !a.was_shared(), "said before the child can use it");
    let child_page = AttachmentPage::map(page.as_fd()).unwrap();
    assert_eq!(child_page.entry(4), server.page.entry(4));
    assert_eq!(child_page.entry(3).unwrap().0, Object::Listener(listener));
    assert_eq!(child_page.entry(9), None, "what is the kernel's is listed for the parent");
    assert_eq!(child_page.entry(10), None, "no reference, which the slot's next connection would lose");
    assert!(id != server.id);
    // The parent goes: the child has the connection, the listener, and the right to ask for them.
    drop(server);
    child.arena(arena, Side::B).unwrap();
    assert_eq!(child.arena(arena, Side::A).unwrap_err(), Error::Failed(Errno::ACCESS), "its parent's side");
    child.listener(listener).unwrap();
    soon("the parent's references are gone", || b.refs() == 1);
    assert!(!a.readiness().contains(Readiness::RDHUP));
    drop(child);
    soon("FIN", || a.readiness().contains(Readiness::RDHUP));
    drop(client);
    soon("nothing is left", || counter(&daemon, "arenas") == 0 && counter(&daemon, "attachments") == 0);
}

#[test]
fn a_fork_that_did_not_happen_is_taken_back() {
    let daemon = start();
    let Pair { server, b, client, .. } = pair(&daemon);
    let (child, end) = Client::pair().unwrap();
    let (id, _) = server.client.fork(end).unwrap();
    assert_eq!(b.refs(), 2);
    assert_eq!(client.client.fork_failed(id), Err(Error::Failed(Errno::SRCH)), "another's child");
    server.client.fork_failed(id).unwrap();
    assert_eq!(b.refs(), 1);
    soon("the child's connection is closed", || child.is_closed());
}

#[test]
fn the_new_image_finds_its_page() {
    let daemon = start();
    let Pair { client, server, b, .. } = pair(&daemon);
    client.client.exec(None).unwrap();
    let welcome = client.client.resume(b"new image").unwrap();
    assert_eq!(welcome.attachment, client.id);
    let page = AttachmentPage::map(welcome.page.as_fd()).unwrap();
    assert_eq!(page.entry(7), client.page.entry(7));
    assert!(!b.readiness().contains(Readiness::RDHUP));
    drop(server);
}

#[test]
fn a_descriptor_on_its_way_lives_on() {
    let daemon = start();
    // The server lives on: what a pattern leaves out is dropped at once.
    let Pair { client, server: _server, a, b, arena, .. } = pair(&daemon);
    let socket = fresh();
    let cookie = rustix::net::sockopt::socket_cookie(&socket).unwrap();
    let object = Object::Channel { arena, slot: a.slot(), side: PeerSide::A };
    assert_eq!(
        client.client.share(object, cookie, 7, None),
        Err(Error::Failed(Errno::NOENT)),
        "not what the page says"
    );
    assert!(client.page.set(7, object, cookie));
    assert!(!a.was_shared());
    client.client.share(object, cookie, 7, Some(socket.as_fd())).unwrap();
    assert!(a.was_shared() && !b.was_shared());
    drop(client);
    let receiver = attach(&daemon);
    assert!(receiver.client.claim(fresh().as_fd()).unwrap().is_none(), "another socket");
    assert_eq!(
        receiver.client.arena(arena, Side::A).unwrap_err(),
        Error::Failed(Errno::ACCESS),
        "not before the claim"
    );
    // The reference and the entry are one change.
    receiver.page.begin_change();
    let Some((claimed, Claimed::Arena(memory))) = receiver.client.claim(socket.as_fd()).unwrap() else { panic!() };
    assert_eq!(receiver.client.arena(arena, Side::B).unwrap_err(), Error::Failed(Errno::ACCESS), "the peer's side");
    assert_eq!(claimed, object);
    assert!(receiver.page.set(20, object, cookie));
    receiver.page.end_change();
    let mine = Channel::at(map(&memory, Side::A), a.slot()).unwrap();
    assert_eq!(mine.refs(), 1);
    mine.send_one(b"from the new owner").unwrap();
    assert!(b.readiness().contains(Readiness::IN) && !b.readiness().contains(Readiness::RDHUP));
    // Unshared, but held by somebody: the descriptor is proof enough.
    let other = attach(&daemon);
    other.page.begin_change();
    assert_eq!(other.client.claim(socket.as_fd()).unwrap().unwrap().0, object);
    assert_eq!(mine.refs(), 2);
    other.page.end_change();
}

/// Who claims gives up before he is answered, or is answered twice for one descriptor: what he does not write down does not keep the
/// connection open.
#[test]
fn a_claim_that_is_not_taken_up_leaves_no_reference() {
    let daemon = start();
    let Pair { client, server: _server, a, b, arena, .. } = pair(&daemon);
    let socket = fresh();
    let cookie = rustix::net::sockopt::socket_cookie(&socket).unwrap();
    let object = Object::Channel { arena, slot: a.slot(), side: PeerSide::A };
    assert!(client.page.set(7, object, cookie));
    client.client.share(object, cookie, 7, Some(socket.as_fd())).unwrap();
    assert_eq!(a.refs(), 2);
    let receiver = attach(&daemon);
    let claim = || assert_eq!(receiver.client.claim(socket.as_fd()).unwrap().unwrap().0, object);
    claim();
    soon("the share's reference is gone", || a.refs() == 1);
    // Once more for one descriptor, in one change.
    receiver.page.begin_change();
    claim();
    claim();
    assert_eq!(a.refs(), 3);
    assert!(receiver.page.set(20, object, cookie));
    receiver.page.end_change();
    soon("there is one for each entry", || a.refs() == 2);
    drop(client);
    soon("the receiver has it alone", || a.refs() == 1);
    assert!(!b.readiness().contains(Readiness::RDHUP));
    drop(receiver);
    soon("FIN", || b.readiness().contains(Readiness::RDHUP));
}

/// Another's socket, which is about to be passed, cannot be made to stand for a connection of one's own.
#[test]
fn a_share_is_of_the_socket_that_is_shown() {
    let daemon = start();
    let Pair { client, server: _server, a, b: _b, arena, .. } = pair(&daemon);
    let (victims, own) = (fresh(), fresh());
    let cookie = rustix::net::sockopt::socket_cookie(&victims).unwrap();
    let object = Object::Channel { arena, slot: a.slot(), side: PeerSide::A };
    assert!(client.page.set(7, object, cookie));
    assert_eq!(client.client.share(object, cookie, 7, Some(own.as_fd())), Err(Error::Failed(Errno::ACCESS)));
    client.page.clear(7);
    let receiver = attach(&daemon);
    assert!(receiver.client.claim(victims.as_fd()).unwrap().is_none(), "it is nobody's");
}

/// A page of a list is about some processes only, so that it takes no long.
#[test]
fn a_list_of_many_processes_has_all_their_sockets() {
    let daemon = start();
    let (socket, at, cookie) = placeholder();
    let processes: Vec<Process> = (0..200).map(|_| attach(&daemon)).collect();
    let last = processes.last().unwrap();
    let (listener, ..) = listen(last, &socket);
    assert!(last.page.set(3, Object::Listener(listener), cookie));
    let mut found = Vec::new();
    let row = |row: fs_shm::control::SocketRow| found.push(row.local);
    last.client.rows(|cursor| Request::Sockets { cursor }, row).unwrap();
    assert_eq!(found, [at]);
}

/// What one holder of a listener has accepted is not for the eyes of another that is apart from it: then new connections are the
/// kernel's, and what is open goes on.
#[test]
fn holders_that_are_apart_share_no_memory() {
    let daemon = start_with(config("apart", "listener_memory = \"process\""));
    let Pair { client, server, a, b, arena, socket, to, .. } = pair(&daemon);
    let other = attach(&daemon);
    assert!(other.client.claim(socket.as_fd()).unwrap().is_some());
    assert_eq!(other.client.arena(arena, Side::B).unwrap_err(), Error::Failed(Errno::ACCESS));
    assert!(server.client.arena(arena, Side::B).is_ok());
    let way = client.client.route(to, fresh().as_fd()).unwrap().way;
    assert!(matches!(way, Way::Kernel(KernelReason::NoListener)), "{way:?}");
    a.send_one(b"on").unwrap();
    let mut read = [0; 8];
    assert_eq!(b.recv_one(&mut read), Ok(2));
    // By default they are of one user.
    let daemon = start();
    let Pair { client: _client, server: _server, arena, socket, .. } = pair(&daemon);
    let other = attach(&daemon);
    other.client.claim(socket.as_fd()).unwrap();
    assert!(other.client.arena(arena, Side::B).is_ok());
}

/// What the only one who had its memory has not accepted when it dies is for the next, though he is apart from it.
#[test]
fn what_waits_is_accepted_by_the_next_when_its_first_holder_is_dead() {
    let daemon = start_with(config("heir", "listener_memory = \"process\""));
    let Pair { client, server, arena, socket, to, .. } = pair(&daemon);
    let other = attach(&daemon);
    assert!(other.client.claim(socket.as_fd()).unwrap().is_some());
    let (_, a) = route(&client, to);
    let waits = Channel::open(a, &OpenArgs::default()).unwrap();
    drop(server);
    soon("it is let in", || other.client.arena(arena, Side::B).is_ok());
    let b = map(&other.client.arena(arena, Side::B).unwrap(), Side::B);
    assert!(Channel::accept(b).is_some() && !waits.is_reset());
}

/// A child has the memory of its parent mapped, whatever it closes afterwards.
#[test]
fn what_comes_after_a_fork_is_nothing_to_a_child_that_is_apart() {
    let daemon = start_with(config("forked", "listener_memory = \"process\""));
    let server = attach(&daemon);
    let (socket, to, _) = placeholder();
    let (listener, page, _) = listen(&server, &socket);
    let client = attach(&daemon);
    let (arena, a) = route(&client, to);
    let b = map(&server.client.arena(arena, Side::B).unwrap(), Side::B);
    let waits = Channel::open(a, &OpenArgs::default()).unwrap();
    let (child, end) = Client::pair().unwrap();
    server.client.fork(end).unwrap();
    assert_eq!(Channel::open(a, &OpenArgs::default()).err(), Some(Errno::CONNREFUSED), "nothing more comes there");
    assert!(page.contains(arena), "but what waits is accepted");
    assert!(Channel::accept(b).is_some() && !waits.is_reset());
    child.unlisten(listener).unwrap();
    let (next, _) = route(&client, to);
    assert_ne!(next, arena);
    assert_eq!(child.arena(next, Side::B).unwrap_err(), Error::Failed(Errno::ACCESS));
    assert!(server.client.arena(next, Side::B).is_ok());
}

/// Whether the poller with this set was rung since, taken.
fn was_rung(set: &Fd) -> bool {
    let mut events = Vec::with_capacity(1);
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::epoll::wait(set, rustix::buffer::spare_capacity(&mut events), Some(&now)).unwrap() > 0
}

fn ring(bell: &Fd) {
    rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
}

#[test]
fn pollers_are_rung_by_who_may() {
    let daemon = start();
    let Pair { client, server, socket, to, .. } = pair(&daemon);
    let (poller, set) = server.client.poller().unwrap();
    assert!(!was_rung(&set));
    let bell = client.client.bell(poller).unwrap();
    ring(&bell);
    assert!(was_rung(&set) && !was_rung(&set));
    let stranger = attach(&daemon);
    assert_eq!(stranger.client.bell(poller).unwrap_err(), Error::Failed(Errno::ACCESS));
    assert_eq!(client.client.bell(poller + 1000).unwrap_err(), Error::Failed(Errno::NOENT));
    // A new arena on the listener wakes who accepts from it.
    let new = attach(&daemon);
    route(&new, to);
    soon("the bell", || was_rung(&set));
    server.client.poller_gone(poller).unwrap();
    assert_eq!(client.client.bell(poller).unwrap_err(), Error::Failed(Errno::NOENT));
    // One that the daemon alone rings.
    assert_eq!(server.client.private_poller(socket.as_fd()), Err(Error::Failed(Errno::INVAL)), "not an eventfd");
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let poller = server.client.private_poller(eventfd.as_fd()).unwrap();
    assert_eq!(client.client.bell(poller).unwrap_err(), Error::Failed(Errno::OPNOTSUPP));
    client.client.ring(poller).unwrap();
    soon("the bell", || rustix::io::read(&eventfd, &mut [0; 8]).is_ok());
}

#[test]
fn an_exclusive_set_hears_of_a_connection_and_not_of_an_arena() {
    let daemon = start();
    let Pair { client, server, listener, to, .. } = pair(&daemon);
    let (told, told_set) = server.client.poller().unwrap();
    let (untold, untold_set) = server.client.poller().unwrap();
    let (shared, eventfd) = server.client.exclusive_poller(listener, untold, false).unwrap();
    let rung = || rustix::io::read(&eventfd, &mut [0; 8]).is_ok();
    assert_eq!(server.client.exclusive_poller(listener, told, true).unwrap().0, shared, "one for all");
    let denied = |who: &Process, set| who.client.exclusive_poller(listener, set, false).unwrap_err();
    assert_eq!(denied(&client, told), Error::Failed(Errno::ACCESS), "does not hold the listener");
    assert_eq!(denied(&server, told + 1000), Error::Failed(Errno::NOENT));
    let new = attach(&daemon);
    assert_eq!(new.client.bell(shared).unwrap_err(), Error::Failed(Errno::ACCESS), "nothing leads it there");
    let (_, arena) = route(&new, to);
    soon("the bell of who is told", || was_rung(&told_set));
    assert!(!was_rung(&untold_set) && !rung());
    // The lane is there and set to ring before anybody of the server has asked for the arena.
    assert_eq!(arena.peer_pollers().collect::<Vec<_>>(), [shared]);
    assert_eq!(new.client.bell(shared).unwrap_err(), Error::Failed(Errno::OPNOTSUPP), "by the daemon alone");
    new.client.ring(shared).unwrap();
    soon("the bell of all", rung);
    assert!(!was_rung(&untold_set));
    // It is told again.
    server.client.exclusive_poller(listener, untold, true).unwrap();
    route(&attach(&daemon), to);
    soon("the bell of who is told again", || was_rung(&untold_set));
}

/// An epoll set has a listener for as long as anybody holds that: a process that has closed it sees it on, and so does a child of its,
/// but neither keeps it open.
#[test]
fn who_watches_a_listener_does_not_hold_it() {
    let daemon = start();
    let Pair { client, server, listener, to, .. } = pair(&daemon);
    let denied = Err(Error::Failed(Errno::ACCESS));
    assert_eq!(client.client.watch(listener), denied, "does not hold it");
    assert_eq!(server.client.watch(listener), Err(Error::Failed(Errno::NOENT)), "nobody else holds it");
    let (child, end) = Client::pair().unwrap();
    server.client.fork(end).unwrap();
    let memory = child.listener(listener).unwrap();
    let page = ListenerPage::map(memory.as_fd()).unwrap();
    child.watch(listener).unwrap();
    assert_eq!(child.watch(listener), denied, "holds it no more");
    assert_eq!(child.listener(listener).map(drop), denied);
    let (grandchild, end) = Client::pair().unwrap();
    child.fork(end).unwrap();
    let (poller, set) = grandchild.poller().unwrap();
    was_rung(&set);
    let (arena, _) = route(&attach(&daemon), to);
    soon("the bell of who watches", || was_rung(&set));
    child.arena(arena, Side::B).unwrap();
    grandchild.arena(arena, Side::B).unwrap();
    grandchild.exclusive_poller(listener, poller, true).unwrap();
    // Without an answer: the next one's comes after it.
    child.unwatch(listener).unwrap();
    let (next, _) = route(&attach(&daemon), to);
    assert_eq!(child.arena(next, Side::B).map(drop), denied, "it looks no more");
    assert_eq!(child.listener_poller(listener).map(drop), denied);
    grandchild.arena(next, Side::B).unwrap();
    assert!(!page.is_over());
    server.client.unlisten(listener).unwrap();
    assert!(page.is_over());
    let way = client.client.route(to, fresh().as_fd()).unwrap().way;
    assert!(!matches!(way, Way::Local { .. }), "{way:?}: who watches keeps it open");
    drop(grandchild);
    soon("the grandchild's end", || counter(&daemon, "attachments") == 3);
}

/// Received again, in a set again and closed again: each has an end of its own.
#[test]
fn who_watches_a_listener_twice_ends_it_twice() {
    let daemon = start();
    let server = attach(&daemon);
    let (socket, to, cookie) = placeholder();
    let (listener, ..) = listen(&server, &socket);
    assert!(server.page.set(3, Object::Listener(listener), cookie));
    let (child, end) = Client::pair().unwrap();
    server.client.fork(end).unwrap();
    for _ in 0..2 {
        let Listening::Yes(again, _) = child.listen(socket.as_fd()).unwrap() else { panic!("not announced") };
        assert_eq!(again, listener);
        child.watch(listener).unwrap();
    }
    child.unwatch(listener).unwrap();
    let (arena, _) = route(&attach(&daemon), to);
    child.arena(arena, Side::B).unwrap();
    // More ends than there are.
    (0..3).for_each(|_| child.unwatch(listener).unwrap());
    let (next, _) = route(&attach(&daemon), to);
    assert_eq!(child.arena(next, Side::B).map(drop), Err(Error::Failed(Errno::ACCESS)));
}

/// Where each holder of a listener has memory of its own, what is accepted by others is not for who has closed it.
#[test]
fn who_is_apart_watches_nothing() {
    let daemon = start_with(config("watched", "listener_memory = \"process\""));
    let server = attach(&daemon);
    let (socket, ..) = placeholder();
    let (listener, ..) = listen(&server, &socket);
    let (child, end) = Client::pair().unwrap();
    server.client.fork(end).unwrap();
    assert_eq!(child.watch(listener), Err(Error::Failed(Errno::ACCESS)));
}

/// A daemon, a connection of its listener's, and a process that the server has forked. `None`: it cannot become another user's here.
fn with_worker() -> Option<(Daemon, Pair, Client)> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root (a second user is wanted)");
        return None;
    }
    let daemon = start();
    let pair = pair(&daemon);
    let (worker, end) = Client::pair().unwrap();
    pair.server.client.fork(end).unwrap();
    Some((daemon, pair, worker))
}

/// Who only watches decides nothing: a holder that is another user's by then has the connections to itself, and by memory.
#[test]
fn who_watches_is_not_in_the_way_of_another_users_holder() {
    let Some((daemon, Pair { server, listener, to, .. }, worker)) = with_worker() else { return };
    let (other, end) = Client::pair().unwrap();
    server.client.fork(end).unwrap();
    let (former, end) = Client::pair().unwrap();
    server.client.fork(end).unwrap();
    let denied = |answer: Result<SideMemory, Error>| answer.map(drop) == Err(Error::Failed(Errno::ACCESS));
    server.client.watch(listener).unwrap();
    let clients = [attach(&daemon), attach(&daemon), attach(&daemon)];
    // And who watches no more has what it was given.
    former.watch(listener).unwrap();
    let (left, _) = route(&clients[2], to);
    former.arena(left, Side::B).unwrap();
    former.unwatch(listener).unwrap();
    let (first, _) = route(&clients[0], to);
    // It asks first.
    server.client.arena(first, Side::B).unwrap();
    as_nobody(&worker, |worker| worker.arena(first, Side::B).map(drop)).unwrap();
    as_nobody(&worker, |worker| worker.arena(left, Side::B).map(drop)).unwrap();
    assert_ne!(route(&clients[2], to).0, left, "one that has watched has that memory");
    let (mine, _) = route(&clients[0], to);
    assert_ne!(mine, first, "the other one has that memory");
    let (second, _) = route(&clients[1], to);
    for arena in [mine, second] {
        assert!(denied(server.client.arena(arena, Side::B)), "of another user's connections");
        as_nobody(&worker, |worker| worker.arena(arena, Side::B).map(drop)).unwrap();
    }
    assert_eq!(server.client.listener_poller(listener).map(drop), Err(Error::Failed(Errno::ACCESS)));
    let (third, _) = route(&attach(&daemon), to);
    assert!(third != mine && third != second, "by memory still");
    assert_eq!(other.watch(listener), Err(Error::Failed(Errno::ACCESS)), "one is another user's by now");
}

/// Nor does one that was the first to ask for an arena while it held the listener.
#[test]
fn who_has_let_go_and_watches_decides_nothing() {
    let Some((daemon, Pair { server, listener, to, .. }, worker)) = with_worker() else { return };
    let new = attach(&daemon);
    let (first, _) = route(&new, to);
    server.client.arena(first, Side::B).unwrap();
    server.client.watch(listener).unwrap();
    as_nobody(&worker, |worker| worker.arena(first, Side::B).map(drop)).unwrap();
    let (next, _) = route(&new, to);
    assert_ne!(next, first, "the other one has that memory");
    assert_eq!(server.client.arena(next, Side::B).map(drop), Err(Error::Failed(Errno::ACCESS)));
    as_nobody(&worker, |worker| worker.arena(next, Side::B).map(drop)).unwrap();
    assert_eq!(route(&new, to).0, next, "by memory still");
}

/// Who watches and is apart from a holder by now is told of nothing any more, and what rang it last rings the others with its end.
#[test]
fn a_watch_ends_where_a_holder_becomes_another_users() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root (a second user is wanted)");
        return;
    }
    let daemon = start();
    let Pair { server, listener, to, .. } = pair(&daemon);
    let memory = server.client.listener(listener).unwrap();
    let page = ListenerPage::map(memory.as_fd()).unwrap();
    let (worker, end) = Client::pair().unwrap();
    server.client.fork(end).unwrap();
    let (set, outer) = server.client.poller().unwrap();
    let (_, eventfd) = server.client.exclusive_poller(listener, set, true).unwrap();
    let rung = || rustix::io::read(&eventfd, &mut [0; 8]).is_ok();
    server.client.watch(listener).unwrap();
    assert_eq!(page.holders(), 2, "one holds and one watches");
    let (mine, _) = as_nobody(&worker, |worker| worker.poller()).unwrap();
    soon("the end of the watch", || page.holders() == 1);
    as_nobody(&worker, |worker| worker.exclusive_poller(listener, mine, true).map(drop)).unwrap();
    let (child, end) = Client::pair().unwrap();
    server.client.fork(end).unwrap();
    assert_eq!(page.holders(), 1, "a child of it watches as little");
    while was_rung(&outer) || rung() {}
    let new = attach(&daemon);
    let (arena, _) = route(&new, to);
    let denied = |who: &Client| who.arena(arena, Side::B).map(drop) == Err(Error::Failed(Errno::ACCESS));
    assert!(denied(&server.client) && denied(&child));
    as_nobody(&worker, |worker| worker.arena(arena, Side::B).map(drop)).unwrap();
    assert!(!was_rung(&outer), "told of an arena that it may not have");
    assert!(!rung());
    server.client.unwatch(listener).unwrap();
    soon("the bell of those who hold it", rung);
}

/// Asks as another user's process.
fn as_nobody<T: Send>(client: &Client, ask: impl FnOnce(&Client) -> T + Send) -> T {
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            ask(client)
        });
        asker.join().unwrap()
    })
}

/// Its bell goes with it, and what that has rung.
#[test]
fn who_rings_and_dies_has_rung() {
    let daemon = start();
    let Pair { client, server, to, .. } = pair(&daemon);
    let (poller, set) = server.client.poller().unwrap();
    for _ in 0..20 {
        let other = attach(&daemon);
        let (arena, _) = route(&other, to);
        server.client.arena(arena, Side::B).unwrap();
        was_rung(&set);
        let bell = other.client.bell(poller).unwrap();
        ring(&bell);
        drop((bell, other));
        soon("the bell", || was_rung(&set));
    }
    drop(client);
}

/// What each had before was the same eventfd: full, it woke nobody any more; waiting, it kept who rang it; read at the
/// right moment, it took the others' wake-ups away.
#[test]
fn a_peer_that_spoils_its_bell_keeps_no_other_from_ringing() {
    let daemon = start();
    let Pair { client: honest, server, to, .. } = pair(&daemon);
    let hostile = attach(&daemon);
    let (arena, _) = route(&hostile, to);
    server.client.arena(arena, Side::B).unwrap();
    let (poller, set) = server.client.poller().unwrap();
    let (ours, theirs) = (honest.client.bell(poller).unwrap(), hostile.client.bell(poller).unwrap());
    rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty()).unwrap();
    rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    assert!(was_rung(&set));
    for _ in 0..3 {
        ring(&ours);
        assert!(was_rung(&set) && !was_rung(&set));
    }
    rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::NONBLOCK).unwrap();
    for _ in 0..3 {
        ring(&ours);
        while rustix::io::read(&theirs, &mut [0; 8]).is_ok() {}
        assert!(was_rung(&set));
    }
    // Nor by asking for ever more of them.
    let given: Vec<_> = (0..100).map_while(|_| hostile.client.bell(poller).ok()).collect();
    assert!(given.len() < 10, "{}", given.len());
    ring(&ours);
    assert!(was_rung(&set));
}

#[test]
fn nobody_announces_what_the_kernel_did_not_give_him() {
    let daemon = start();
    let process = attach(&daemon);
    let bound = fresh();
    rustix::net::bind(&bound, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    assert_eq!(process.client.listen(bound.as_fd()).unwrap_err(), Error::Failed(Errno::INVAL), "not listening");
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(matches!(process.client.listen(udp.as_fd()).unwrap(), Listening::Kernel(_)));
    assert!(matches!(process.client.route("127.0.0.1:1".parse().unwrap(), udp.as_fd()).unwrap().way, Way::Kernel(_)));
    assert_eq!(counter(&daemon, "listeners"), 0);
}

/// Known attack: a process announces a listener, closes the placeholder behind the library's back, and another user's server takes
/// the address. The daemon holds the socket, so nobody can; the kernel's own answer for the place is still the process's.
#[test]
fn a_place_is_not_anothers_while_connections_are_led_to_its_listener() {
    let daemon = start();
    let (server, client) = (attach(&daemon), attach(&daemon));
    let (socket, to, _) = placeholder();
    let (listener, ..) = listen(&server, &socket);
    route(&client, to);
    // By whatever system call.
    drop(socket);
    let error = TcpListener::bind(to).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    server.client.unlisten(listener).unwrap();
    let other = TcpListener::bind(to).expect("it is free as soon as the daemon answers");
    let way = client.client.route(to, fresh().as_fd()).unwrap().way;
    assert!(matches!(way, Way::Kernel(KernelReason::NoListener)), "{way:?}");
    drop(other);
    // A process that ends closes what it had.
    let (socket, to, _) = placeholder();
    listen(&server, &socket);
    drop((socket, server));
    soon("the place is free", || TcpListener::bind(to).is_ok());
}

/// The same, by shutdown(2): then the address may be bound by others although the descriptor is held.
#[test]
fn a_listener_that_was_shut_behind_the_librarys_back_is_none() {
    let daemon = start();
    let (server, client) = (attach(&daemon), attach(&daemon));
    let (socket, to, _) = placeholder();
    let (id, page, _) = listen(&server, &socket);
    let (_, arena) = route(&client, to);
    let generation = client.directory.generation();
    rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).unwrap();
    soon("the arena is closed", || arena.is_closed());
    soon("cached ways are asked for anew", || client.directory.generation() != generation);
    assert!(page.is_closed());
    let way = client.client.route(to, fresh().as_fd()).unwrap().way;
    assert!(matches!(way, Way::Kernel(KernelReason::NoListener)), "{way:?}");
    // It may listen again, which is to be told, and be shut once more.
    for _ in 0..3 {
        rustix::net::listen(&socket, 5).unwrap();
        assert_eq!(listen(&server, &socket).0, id);
        // The kernel may have chosen another port.
        let (_, arena) = route(&client, socket.local_addr().unwrap());
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).unwrap();
        soon("the arena is closed", || arena.is_closed());
    }
    // One that does not listen at all is not announced.
    assert_eq!(server.client.listen(socket.as_fd()).unwrap_err(), Error::Failed(Errno::INVAL));
}

/// What an opener may write as the ends of a connection, as far as its acceptor can be told.
#[test]
fn ends_are_those_that_the_daemon_has_led_from_and_to() {
    let daemon = start();
    let Pair { client, server, arena, to, socket: _socket, .. } = pair(&daemon);
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let denied = Err(Error::Failed(Errno::ACCESS));
    for side in [&client, &server] {
        assert_eq!(side.client.vouch(arena, [at("127.0.0.1:40000"), to]), Ok(false));
        assert_eq!(side.client.vouch(arena, [at("[::ffff:127.0.0.1]:40000"), to]), Ok(false));
        for lie in ["10.0.0.1:40000", "127.0.0.2:40000", "[::1]:40000"] {
            assert_eq!(side.client.vouch(arena, [at(lie), to]), denied, "{lie}");
        }
        assert_eq!(side.client.vouch(arena, [at("127.0.0.1:40000"), at("127.0.0.1:1")]), denied);
        let elsewhere = SocketAddr::new(at("127.0.0.2:1").ip(), to.port());
        assert_eq!(side.client.vouch(arena, [at("127.0.0.1:40000"), elsewhere]), denied);
    }
    assert_eq!(attach(&daemon).client.vouch(arena, [at("127.0.0.1:40000"), to]), denied, "not its arena");
    // One that is bound to a port, which its socket could let go of.
    let bound = fresh();
    rustix::net::bind(&bound, &at("127.0.0.3:0")).unwrap();
    let way = client.client.route(to, bound.as_fd()).unwrap().way;
    assert!(matches!(way, Way::Kernel(KernelReason::Option)), "{way:?}");
}

/// A connection's port is one that the daemon holds in the kernel, and no other process's.
#[test]
fn who_connects_has_a_port_of_his_own() {
    let daemon = start();
    let Pair { client, server, to, socket: _socket, .. } = pair(&daemon);
    let other = attach(&daemon);
    let args = OpenArgs { local: fs_shm::Addr::from(to), lent: Some(0), ..OpenArgs::default() };
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let (id, a) = route(&client, to);
    let (other_id, other_a) = route(&other, to);
    // More than it is given at first.
    let mut ports = Vec::new();
    let mut channels = Vec::new();
    for (client, id, a) in [(&client, id, a), (&other, other_id, other_a)] {
        for _ in 0..40 {
            client.client.lend(id, a.next_free(0).unwrap()).unwrap();
            let channel = Channel::open(a, &args).unwrap();
            assert_eq!(channel.local_addr().to_std().unwrap().port(), channel.lent_port());
            ports.push(channel.lent_port());
            channels.push(channel);
        }
    }
    assert!(ports.iter().all(|&port| port >= 1024 && !is_free(port)), "{ports:?}");
    let mut each = ports.clone();
    each.sort_unstable();
    each.dedup();
    assert_eq!(each.len(), ports.len(), "{ports:?}");
    // The server has been told of the same ones, where no client writes.
    let memory = server.client.arena(other_id, Side::B).unwrap();
    let b = map(&memory, Side::B);
    let told = (0..40).map(|slot| Channel::at(b, slot).unwrap().lent_port());
    assert!(told.eq(ports[40..].iter().copied()));
    // Nobody else's, and none that there is not.
    assert_eq!(other.client.lend(id, 0), Err(Error::Failed(Errno::ACCESS)));
    assert_eq!(server.client.lend(other_id, 0), Err(Error::Failed(Errno::ACCESS)));
    assert_eq!(other.client.lend(other_id, u32::MAX), Err(Error::Failed(Errno::INVAL)));
    assert_eq!(other.client.lend(u32::MAX, 0), Err(Error::Failed(Errno::NOENT)));
    // One that is open keeps its port; that of a free slot is given to who asks for it.
    other.client.ports(ports[40]).unwrap();
    assert!(!is_free(ports[40]));
    let last = channels.pop().unwrap();
    last.close(false).unwrap();
    Channel::at(b, 39).unwrap().release_gone(1, false);
    assert!(Channel::at(b, 39).is_none() && !is_free(ports[79]));
    other.client.ports(ports[79]).unwrap();
    assert!(is_free(ports[79]));
    assert_eq!(Channel::open(other_a, &args).unwrap().slot(), 40, "that slot has none");
    // What waits for accept is there after its opener, and has its port until its listener ends.
    drop((client, other));
    soon("the arena takes no more", || a.is_closed() && other_a.is_closed());
    assert!(!is_free(ports[0]) && !is_free(ports[40]));
    drop(server);
    soon("all are free", || ports.iter().copied().all(is_free));
}

/// A way without ports would cost each connect a question, and memory.
#[test]
fn where_no_port_can_be_bound_connections_are_the_kernels() {
    let daemon = start();
    in_new_namespace(move || {
        // Its process is in another one, so the daemon cannot enter this.
        let (server, client) = (attach(&daemon), attach(&daemon));
        let (socket, to, _) = placeholder();
        listen(&server, &socket);
        let way = client.client.route(to, fresh().as_fd()).unwrap().way;
        assert!(matches!(way, Way::Kernel(KernelReason::Namespace)), "{way:?}");
    });
}

/// Runs `work` in a network namespace of its own.
fn in_new_namespace(work: impl FnOnce() + Send + 'static) {
    use std::process::{Command, Stdio};
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root (a network namespace is wanted)");
        return;
    }
    let mut maker = Command::new("unshare")
        .args(["--net", "sh", "-c", "ip link set lo up; echo made; read -r _"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let made = std::io::Read::read(maker.stdout.as_mut().unwrap(), &mut [0; 8]);
    assert!(made.is_ok_and(|read| read != 0), "no namespace was made");
    let namespace = std::fs::File::open(format!("/proc/{}/ns/net", maker.id())).unwrap();
    let visit = std::thread::spawn(move || {
        rustix::thread::move_into_link_name_space(namespace.as_fd(), None).unwrap();
        work();
    });
    let done = visit.join();
    drop(maker.stdin.take());
    maker.wait().unwrap();
    done.unwrap();
}

fn nft(commands: &str) {
    assert!(std::process::Command::new("nft").arg(commands).status().unwrap().success(), "{commands}");
}

#[test]
fn where_a_firewall_could_have_a_say_connections_are_the_kernels() {
    const RULE: &str = "add table inet t; add chain inet t c { type filter hook output priority 0; }; \
                        add rule inet t c tcp dport 1 drop";
    in_new_namespace(|| {
        let daemon = start();
        let Pair { client, server, a, b, to, socket, .. } = pair(&daemon);
        let (_, arena) = route(&client, to);
        let generation = client.directory.generation();
        nft(RULE);
        soon("nothing new comes by the arena", || arena.is_closed());
        soon("cached ways are asked for anew", || client.directory.generation() != generation);
        let way = || client.client.route(to, fresh().as_fd()).unwrap().way;
        assert!(matches!(way(), Way::Kernel(KernelReason::Firewall)), "{:?}", way());
        // What is open goes on, and what listens then is told of later.
        let mut buf = [0; 4];
        a.send_one(b"on").unwrap();
        assert_eq!(b.recv_one(&mut buf), Ok(2));
        let (other, at, _) = placeholder();
        listen(&server, &other);
        assert!(matches!(client.client.route(at, fresh().as_fd()).unwrap().way, Way::Kernel(KernelReason::Firewall)));
        nft("flush ruleset");
        let (_, arena) = route(&client, to);
        assert!(!arena.is_closed());
        route(&client, at);
        // Who says that rules are to be ignored has them ignored.
        let careless = config("careless", "firewall = \"ignore\"");
        nft(RULE);
        soon("the rule is heeded", || matches!(way(), Way::Kernel(KernelReason::Firewall)));
        daemon.handle().reload(careless);
        soon("it is not", || matches!(way(), Way::Local { .. }));
        drop(socket);
    });
}

#[test]
fn rules_that_come_end_what_they_could_stop() {
    in_new_namespace(|| {
        let daemon = start();
        let keeper = start_with(config("keep", "firewall_open_flows = \"keep\""));
        let [ended, kept] = [&daemon, &keeper].map(pair);
        let alive = |pair: &Pair| {
            let mut buf = [0; 4];
            pair.a.send_one(b"on") == Ok(2) && pair.b.recv_one(&mut buf) == Ok(2)
        };
        let reset = |channel: &Channel<'_>| channel.recv_one(&mut [0; 4]) == Err(Errno::CONNRESET);
        // New ones are the kernel's with each of these, and open ones no business of theirs.
        let mut arena = route(&ended.client, ended.to).1;
        for other in
            ["counter accept", "udp dport 1 drop", "tcp dport 1 drop", "iifname eth0 drop", "ip daddr 127.0.0.2 drop"]
        {
            nft(&format!(
                "add table inet t; add chain inet t c {{ type filter hook input priority 0; }}; add rule inet t c {other}"
            ));
            soon("nothing new comes by the arena", || arena.is_closed());
            std::thread::sleep(Duration::from_millis(50));
            assert!(alive(&ended) && alive(&kept), "{other}");
            nft("flush ruleset");
            arena = route(&ended.client, ended.to).1;
        }
        nft(&format!(
            "add table inet t; add chain inet t c {{ type filter hook output priority 0; }}; add rule inet t c tcp sport {} drop",
            ended.to.port()
        ));
        soon("the client is told", || reset(&ended.a));
        soon("the server is told", || reset(&ended.b));
        assert!(alive(&kept));
        nft("flush ruleset; add table inet t; add chain inet t c { type filter hook output priority 0; policy drop; }");
        std::thread::sleep(Duration::from_millis(100));
        assert!(alive(&kept));
        // What it has is closed as ever.
        nft("flush ruleset");
        for (channel, process, fd) in [(ended.a, &ended.client, 7), (ended.b, &ended.server, 4)] {
            process.page.clear(fd);
            channel.close(false).unwrap();
        }
        drop((ended, arena));
        soon("nothing is left", || counter(&daemon, "arenas") == 0);
    });
}

#[test]
fn where_the_kernel_has_no_way_there_is_none() {
    fn ip(words: &str) {
        assert!(std::process::Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
    }
    in_new_namespace(|| {
        let daemon = start();
        let (server, client) = (attach(&daemon), attach(&daemon));
        let (socket, to, _) = placeholder();
        const NOBODY: u32 = 65534;
        let nobodys = |socket: BorrowedFd<'_>| {
            rustix::fs::fchown(socket, Some(rustix::fs::Uid::from_raw(NOBODY)), None).unwrap();
        };
        nobodys(socket.as_fd());
        listen(&server, &socket);
        let way = || client.client.route(to, fresh().as_fd()).unwrap().way;
        assert!(matches!(way(), Way::Local { .. }));
        // A rule in front of the table of local addresses: the client's user has a way there, the server's none back.
        ip("rule add pref 100 lookup local");
        ip("rule del pref 0");
        for kind in ["blackhole", "prohibit", "unreachable"] {
            ip(&format!("rule add pref 50 uidrange {NOBODY}-{NOBODY} {kind}"));
            assert!(matches!(way(), Way::Kernel(_)), "{kind}");
            ip("rule del pref 50");
            assert!(matches!(way(), Way::Local { .. }));
        }
        // And the other way round.
        ip("rule add pref 50 uidrange 65533-65533 prohibit");
        let theirs = fresh();
        rustix::fs::fchown(&theirs, Some(rustix::fs::Uid::from_raw(65533)), None).unwrap();
        assert!(matches!(client.client.route(to, theirs.as_fd()).unwrap().way, Way::Kernel(_)));
        assert!(matches!(way(), Way::Local { .. }));
    });
}

/// Its port was the kernel's choice, and is free when it is disconnected; nobody has looked at it in between.
#[test]
fn a_listener_that_has_moved_is_led_to_no_more() {
    let daemon = start();
    let (server, client) = (attach(&daemon), attach(&daemon));
    let socket = fresh();
    rustix::net::listen(&socket, 5).unwrap();
    let socket = TcpListener::from(socket);
    let here =
        |socket: &TcpListener| SocketAddr::new("127.0.0.1".parse().unwrap(), socket.local_addr().unwrap().port());
    let before = here(&socket);
    let (id, page, _) = listen(&server, &socket);
    let (_, arena) = route(&client, before);
    let go_on = || {
        rustix::net::connect_unspec(&socket).unwrap();
        rustix::net::listen(&socket, 5).unwrap();
    };
    go_on();
    let after = here(&socket);
    assert_ne!(before, after);
    soon("nobody is led there", || page.is_closed() && arena.is_closed());
    let way = |to: SocketAddr| client.client.route(to, fresh().as_fd()).unwrap().way;
    assert!(matches!(way(before), Way::Kernel(KernelReason::NoListener)));
    // It is announced where it is now; also when it was not seen to have gone.
    for to in [after, before] {
        if to == before {
            go_on();
        }
        assert_eq!(listen(&server, &socket).0, id);
        assert!(!page.is_closed());
        route(&client, here(&socket));
    }
    assert!(matches!(way(after), Way::Kernel(KernelReason::NoListener)));
}

/// A client has the memory of its server's side, and not that side: neither its locks nor a reference of it.
#[test]
fn a_side_is_not_its_peers() {
    let daemon = start();
    let pair = pair(&daemon);
    let (client, server) = (&pair.client, &pair.server);
    let refused = Error::Failed(Errno::ACCESS);
    assert_eq!(client.client.arena(pair.arena, Side::B).unwrap_err(), refused);
    assert_eq!(server.client.arena(pair.arena, Side::A).unwrap_err(), refused);
    client.client.arena(pair.arena, Side::A).unwrap();
    // Its page says that it holds the server's end: it can neither be passed nor is it closed with the client.
    let object = Object::Channel { arena: pair.arena, slot: pair.b.slot(), side: PeerSide::B };
    let socket = fresh();
    let cookie = rustix::net::sockopt::socket_cookie(&socket).unwrap();
    assert!(client.page.set(9, object, cookie));
    assert_eq!(client.client.share(object, cookie, 9, Some(socket.as_fd())).unwrap_err(), Error::Failed(Errno::NOENT));
    let Pair { client, a, b, server: _server, socket: _socket, .. } = pair;
    a.send_one(b"last").unwrap();
    drop(client);
    soon("the client's side is closed", || b.has_ended());
    assert!(b.is_held(), "the server's side was closed with its peer");
    assert_eq!(b.recv_one(&mut [0; 8]), Ok(4));
    assert_eq!(b.recv_one(&mut [0; 8]), Ok(0));
}

/// A rule that comes by a reload: who keeps the memory that he was given before connects by it no more.
#[test]
fn what_a_new_rule_denies_is_over() {
    let daemon = start();
    let Pair { client, a, b, to, socket: _socket, server: _server, .. } = pair(&daemon);
    let (_, arena) = route(&client, to);
    let rule = format!("[[rule]]\naction = \"deny\"\ncall = \"connect\"\nports = {}", to.port());
    daemon.handle().reload(config("denied", &rule));
    soon("the arena is closed", || arena.is_closed());
    let mut buf = [0; 4];
    a.send_one(b"on").unwrap();
    assert_eq!(b.recv_one(&mut buf), Ok(2), "what is open goes on");
}

#[test]
fn groups_take_turns_and_wildcards_are_found() {
    let daemon = start();
    let (server, client) = (attach(&daemon), attach(&daemon));
    let any = TcpListener::bind("[::]:0").unwrap();
    listen(&server, &any);
    let port = any.local_addr().unwrap().port();
    let v4 = SocketAddr::new("127.0.0.1".parse().unwrap(), port);
    route(&client, v4);
    // Unspecified means this host.
    let way = client.client.route(SocketAddr::new("0.0.0.0".parse().unwrap(), port), fresh().as_fd()).unwrap().way;
    assert!(matches!(way, Way::Local { .. }), "{way:?}");

    let member = |port| {
        let socket = fresh();
        rustix::net::sockopt::set_socket_reuseport(&socket, true).unwrap();
        rustix::net::bind(&socket, &SocketAddr::new("127.0.0.1".parse().unwrap(), port)).unwrap();
        rustix::net::listen(&socket, 5).unwrap();
        TcpListener::from(socket)
    };
    let first = member(0);
    let to = first.local_addr().unwrap();
    let second = member(to.port());
    listen(&server, &first);
    listen(&server, &second);
    let group = || match client.client.route(to, fresh().as_fd()).unwrap().way {
        Way::Local { arenas, .. } => arenas.iter().flatten().map(|(id, _)| *id).collect::<Vec<_>>(),
        way => panic!("{way:?}"),
    };
    let (one, other) = (group(), group());
    assert_eq!((one[0], one[1]), (other[1], other[0]));
}

#[test]
fn rules_are_checked_at_listen_and_connect() {
    let directory = std::env::temp_dir().join(format!("fs-daemon-rules-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let (socket, to, _) = placeholder();
    let (other, allowed, _) = placeholder();
    let text = format!(
        "[[rule]]\naction = \"allow\"\nuser = {uid}\nports = {}\n[[rule]]\naction = \"deny\"\nuser = {uid}\n",
        allowed.port()
    );
    let file = directory.join("rules.toml");
    std::fs::write(&file, text).unwrap();
    let daemon = start_with(Config::load(&file).unwrap());
    std::fs::remove_dir_all(&directory).unwrap();
    let process = attach(&daemon);
    let denied = process.client.listen(socket.as_fd()).unwrap();
    assert!(matches!(denied, Listening::Refused(Errno::ACCESS)), "{denied:?}");
    let denied = process.client.route(to, fresh().as_fd()).unwrap().way;
    assert!(matches!(denied, Way::Refused(Errno::ACCESS)), "{denied:?}");
    listen(&process, &other);
    route(&process, allowed);
    assert_eq!(counter(&daemon, "refused"), 2);
}

#[test]
fn an_ended_daemon_is_seen_and_its_path_is_free_again() {
    let daemon = start();
    let path = daemon.path().to_owned();
    let process = attach(&daemon);
    assert!(matches!(Daemon::builder(&path).start(), Err(fs_daemon::StartError::Running { .. })));
    daemon.drain();
    daemon.join().unwrap();
    assert!(process.directory.is_stopping() && process.client.is_closed());
    assert!(!path.exists());
    let again = Daemon::builder(&path).geometry(Geometry::SMALL).start().unwrap();
    assert!(attach(&again).directory.epoch() != process.directory.epoch());
}

#[test]
fn a_start_that_fails_leaves_nothing() {
    let path = std::env::temp_dir().join(format!("fs-daemon-unfinished-{}.sock", std::process::id()));
    let error = Daemon::builder(&path).device("no-such-device").start().unwrap_err();
    assert!(error.to_string().contains("no-such-device"), "{error}");
    assert!(!path.exists());
    // Nothing answers for the next one.
    drop(Daemon::builder(&path).geometry(Geometry::SMALL).start().unwrap());
}

#[test]
fn a_drain_waits_for_connections() {
    let daemon = start();
    let pair = pair(&daemon);
    daemon.drain();
    soon("draining", || pair.client.directory.is_stopping());
    let way = pair.client.client.route(pair.to, fresh().as_fd()).unwrap().way;
    assert!(matches!(way, Way::Kernel(fs_shm::control::KernelReason::Draining)), "{way:?}");
    assert!(!pair.client.client.is_closed());
    pair.a.close(false).unwrap();
    pair.b.close(false).unwrap();
    daemon.join().unwrap();
    assert!(pair.client.client.is_closed());
}

/// KiB that an arena has now, and has got since its pair was made: its first connection sends until the rings are full.
fn filled(pair: &Pair) -> (impl Fn() -> i64 + use<>, i64) {
    let [memory, _] = pair.server.client.arena(pair.arena, Side::B).unwrap().into_fds();
    let kib = move || rustix::fs::fstat(memory.as_fd()).unwrap().st_blocks / 2;
    let before = kib();
    while pair.a.send_one(&[1; 4000]).is_ok() {}
    assert!(kib() > before + 900, "{} KiB of {before} before", kib());
    (kib, before)
}

#[test]
fn memory_of_what_was_freed_goes_back() {
    let daemon = start();
    let pair = pair(&daemon);
    let (kib, before) = filled(&pair);
    pair.client.page.clear(7);
    pair.server.page.clear(4);
    pair.a.close(false).unwrap();
    pair.b.close(false).unwrap();
    assert!(kib() > before + 900, "it is kept for a moment");
    pair.client.client.trim(pair.arena).unwrap();
    soon("memory goes back", || kib() < before + 50);
}

/// A server that nobody asks has the arenas of its last hundred clients mapped, whatever they have carried. What a client writes there
/// keeps nothing: who captures is in the daemon's book.
#[test]
fn memory_of_a_client_that_has_ended_goes_back_though_its_server_has_it_mapped() {
    let daemon = start();
    let pair = pair(&daemon);
    let (kib, before) = filled(&pair);
    pair.a.arena().set_captured(true);
    drop(pair.client);
    pair.server.page.clear(4);
    pair.b.close(false).unwrap();
    soon("memory goes back", || kib() < before + 50);
}

/// A configuration from a file of the test's own.
fn config(name: &str, text: &str) -> Config {
    let file = std::env::temp_dir().join(format!("fs-daemon-{name}-{}.toml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let config = Config::load(&file).unwrap();
    std::fs::remove_file(file).unwrap();
    config
}

#[test]
fn a_policy_leaves_a_program_to_the_kernel() {
    let policy = |program: &str, call: &str| {
        start_with(config(
            "policy",
            &format!("[[policy]]\ncarrier = \"kernel\"\nprogram = \"{program}\"\ncall = \"{call}\""),
        ))
    };
    let daemon = policy("test", "bind");
    let (socket, ..) = placeholder();
    let listening = attach(&daemon).client.listen(socket.as_fd()).unwrap();
    assert!(matches!(listening, Listening::Kernel(KernelReason::Policy)), "{listening:?}");
    for (program, is_left) in [("test", true), ("other", false)] {
        let daemon = policy(program, "connect");
        let (server, client) = (attach(&daemon), attach(&daemon));
        let (socket, to, _) = placeholder();
        listen(&server, &socket);
        let way = client.client.route(to, fresh().as_fd()).unwrap().way;
        assert_eq!(matches!(way, Way::Kernel(KernelReason::Policy)), is_left, "{program}: {way:?}");
    }
}

#[test]
fn a_reload_touches_no_connection() {
    let daemon = start();
    let pair = pair(&daemon);
    let generation = pair.client.directory.generation();
    let way = || pair.client.client.route(pair.to, fresh().as_fd()).unwrap().way;
    daemon.handle().reload(config("deny", "[[rule]]\naction = \"deny\"\n[limits]\nlisteners = 1"));
    soon("the new rules hold", || matches!(way(), Way::Refused(Errno::ACCESS)));
    assert!(pair.client.directory.generation() > generation, "known ways are asked for anew");
    // Another listener is over the limit; the one that there is listens on.
    daemon.handle().reload(config("limit", "[limits]\nlisteners = 1"));
    soon("the new rules hold", || matches!(way(), Way::Local { .. }));
    let (socket, ..) = placeholder();
    let listening = attach(&daemon).client.listen(socket.as_fd()).unwrap();
    assert!(matches!(listening, Listening::Kernel(KernelReason::Limit)), "{listening:?}");
    assert_eq!(pair.a.send_one(b"goes on"), Ok(7));
    let mut buffer = [0; 16];
    assert_eq!(pair.b.recv_one(&mut buffer), Ok(7));
}

#[test]
fn a_socket_that_was_passed_is_served_and_left() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let path = std::env::temp_dir().join(format!("fs-daemon-passed-{}.sock", std::process::id()));
    let make = |kind: SocketType| {
        let _absent = std::fs::remove_file(&path);
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 16).unwrap();
        socket
    };
    let builder = || Daemon::builder(&path).geometry(Geometry::SMALL);
    assert!(builder().socket(make(SocketType::STREAM)).start().is_err(), "of another type");
    let socket = make(SocketType::SEQPACKET);
    let other = Daemon::builder("/another/path").socket(rustix::io::dup(&socket).unwrap()).start();
    assert!(other.is_err(), "elsewhere");
    for _ in 0..2 {
        let daemon = builder().socket(rustix::io::dup(&socket).unwrap()).start().unwrap();
        drop(pair(&daemon));
        drop(daemon);
        assert!(path.exists(), "it is who passed it that removes it");
    }
    std::fs::remove_file(path).unwrap();
}
