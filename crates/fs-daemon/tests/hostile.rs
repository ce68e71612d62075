//! Hostile clients: whatever they send, scribble or die of, the daemon serves the others and frees everything.

use fs_daemon::{Config, Daemon};
use fs_shm::control::{
    CaptureRecord, Client, CounterRow, Error, KernelReason, Listening, MESSAGE_MAX, Object, PeerSide, Request,
    SideMemory, Text, VERSION, Way, examples, socket,
};
use fs_shm::pages::AttachmentPage;
use fs_shm::{Arena, Channel, Errno, Geometry, NoBells, OpenArgs, Side};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Tells this program to be the client that is killed, and whose.
const VICTIM: &str = "FS_DAEMON_TEST_VICTIM";
/// The same for the user who wants everything, of so many connections.
const CROWD: &str = "FS_DAEMON_TEST_CROWD";
/// The same for a user who captures.
const WATCHER: &str = "FS_DAEMON_TEST_WATCHER";
const LIMIT: usize = 10;

fn start(name: &str) -> Daemon {
    let path: PathBuf = std::env::temp_dir().join(format!("fs-daemon-{name}-{}/control.sock", std::process::id()));
    Daemon::builder(path).geometry(Geometry::SMALL).start().unwrap()
}

fn connect(path: &Path) -> Client {
    Client::connect(path.as_os_str().as_encoded_bytes()).unwrap()
}

fn raw(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn counter(path: &Path, name: &str) -> u64 {
    let mut found = None;
    // A user is hung up on while what it sent waits to be closed, and all here are one user.
    soon("the counters", || {
        let each = |row: CounterRow| {
            if row.name.as_str() == name {
                found = Some(row.value);
            }
        };
        let client = Client::connect(path.as_os_str().as_encoded_bytes());
        match client.and_then(|client| client.rows(|cursor| Request::Counters { cursor }, each)) {
            Err(Error::Closed) => false,
            other => other.is_ok() || panic!("{other:?}"),
        }
    });
    found.unwrap()
}

fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// xorshift64*: the same numbers in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn fresh() -> OwnedFd {
    rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
}

/// An honest pair of processes, and the proof that they are served: a new connection and bytes over it.
struct Honest {
    client: Client,
    _server: Client,
    server_page: AttachmentPage,
    to: SocketAddr,
    arena: Option<(u32, &'static Arena, &'static Arena)>,
    _socket: TcpListener,
}

fn map(memory: &SideMemory, side: Side) -> &'static Arena {
    Box::leak(Box::new(Arena::map(memory.fds(), Geometry::SMALL, side, &NoBells).unwrap()))
}

impl Honest {
    fn new(path: &Path) -> Self {
        let (server, client) = (connect(path), connect(path));
        let page = server.hello(b"honest server").unwrap().page;
        client.hello(b"honest client").unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let Listening::Yes(listener, _) = server.listen(socket.as_fd()).unwrap() else { panic!() };
        let server_page = AttachmentPage::map(page.as_fd()).unwrap();
        assert!(server_page.set(3, Object::Listener(listener), 1));
        let to = socket.local_addr().unwrap();
        let mut honest = Self { client, _server: server, server_page, to, arena: None, _socket: socket };
        let (id, memory) = honest.route();
        let other = honest._server.arena(id, Side::B).unwrap();
        honest.arena = Some((id, map(&memory, Side::A), map(&other, Side::B)));
        honest
    }

    fn route(&self) -> (u32, SideMemory) {
        match self.client.route(self.to, fresh().as_fd()).unwrap().way {
            Way::Local { mut arenas, .. } => arenas[0].take().unwrap(),
            way => panic!("{way:?}"),
        }
    }

    fn check(&self) {
        let begun = Instant::now();
        let (id, a, b) = self.arena.unwrap();
        assert_eq!(self.route().0, id);
        let ours = Channel::open(a, &OpenArgs::default()).unwrap();
        let theirs = Channel::accept(b).unwrap();
        assert_eq!(ours.send_one(b"ping"), Ok(4));
        let mut buf = [0; 8];
        assert_eq!(theirs.recv_one(&mut buf), Ok(4));
        ours.close(false).unwrap();
        theirs.close(false).unwrap();
        assert!(self.server_page.entry(3).is_some());
        // Not a measurement: a daemon that is stuck on somebody is so until that one lets go.
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}

/// As after an upgrade of one of the two: its program is the kernel's, and the next one of the right version is served.
#[test]
fn a_library_of_another_version_is_refused() {
    let daemon = start("version");
    for version in [VERSION - 1, VERSION + 1, VERSION ^ 1 << 16] {
        let refused = connect(daemon.path()).request(&Request::Hello { version, name: Text::new(b"old") }, &[]);
        assert_eq!(refused.err(), Some(Error::Failed(Errno::PROTONOSUPPORT)), "{version:#x}");
    }
    connect(daemon.path()).hello(b"new").unwrap();
}

#[test]
fn fuzzed_messages_with_any_descriptors() {
    let daemon = start("fuzzed");
    let path = daemon.path().to_owned();
    let honest = Honest::new(&path);
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let listening = TcpListener::bind("127.0.0.1:0").unwrap();
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let (pair, _other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let stream = fresh();
    let fds = [listening.as_fd(), eventfd.as_fd(), pair.as_fd(), file.as_fd(), stream.as_fd()];
    for _round in 0..40 {
        let socket = raw(&path);
        for sent in 0..100 {
            let mut buffer = [0; MESSAGE_MAX * 2];
            let all = examples::requests();
            let request = all[numbers.below(all.len() as u64) as usize];
            let mut len = request.encode(sent, &mut buffer).unwrap();
            match numbers.below(4) {
                0 => {}
                1 => buffer[..len]
                    .iter_mut()
                    .for_each(|byte| *byte ^= (numbers.below(8) == 0) as u8 * numbers.next() as u8),
                2 => len = numbers.below(buffer.len() as u64) as usize + 1,
                _ => buffer[..64].iter_mut().for_each(|byte| *byte = numbers.next() as u8),
            }
            let count = numbers.below(fds.len() as u64 + 1) as usize;
            // A daemon that hangs up on us, or whose answers we do not take, refuses more.
            if socket::send(socket.as_fd(), &buffer[..len], &fds[..count]).is_err() {
                break;
            }
            if numbers.below(3) == 0 {
                let mut answer = [0; 32 << 10];
                let _nothing_yet = socket::receive(&socket, &mut answer);
            }
        }
        honest.check();
    }
    // Only the honest two are left.
    soon("all are gone", || counter(&path, "attachments") == 2);
    soon("nothing of theirs is left", || counter(&path, "arenas") == 1 && counter(&path, "listeners") == 1);
    assert!(counter(&path, "requests_malformed") > 100);
    honest.check();
}

/// A connected TCP socket with bytes that nobody takes, which lingers for a minute when it is closed; and its other end.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &stream, &[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(60))).unwrap();
    (stream.into(), other)
}

#[test]
fn sockets_that_linger_when_the_daemon_closes_them() {
    let daemon = start("linger");
    let path = daemon.path().to_owned();
    let honest = Honest::new(&path);
    let mut others = Vec::new();
    let begun = Instant::now();
    let requests = examples::requests();
    for request in &requests {
        let socket = raw(&path);
        let mut buffer = [0; MESSAGE_MAX];
        let mut send = |request: &Request, fds: &[BorrowedFd<'_>]| {
            let len = request.encode(1, &mut buffer).unwrap();
            socket::send(socket.as_fd(), &buffer[..len], fds)
        };
        send(&requests[0], &[]).unwrap();
        let streams: Vec<_> = (0..4).map(|_| lingering()).collect();
        for (stream, _) in &streams {
            let _refused = send(request, &[stream.as_fd()]);
        }
        // Of those that the daemon has closed by now the last copy is ours; of the others it is the daemon's, or lies in the
        // queue of a connection that has ended.
        drop(socket);
        for (stream, other) in streams {
            others.push(other);
            std::thread::spawn(move || drop(stream));
        }
    }
    honest.check();
    drop(daemon);
    // Each that it waited for would take it a minute.
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
}

#[test]
fn scribbled_memory() {
    let daemon = start("scribbled");
    let path = daemon.path().to_owned();
    let honest = Honest::new(&path);
    let mut numbers = Numbers(88_172_645_463_325_252);
    for round in 0..12 {
        let (server, client) = (connect(&path), connect(&path));
        let pages = [server.hello(b"hostile server").unwrap().page, client.hello(b"hostile client").unwrap().page];
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let Listening::Yes(_, _) = server.listen(socket.as_fd()).unwrap() else { panic!() };
        let Way::Local { mut arenas, .. } = client.route(socket.local_addr().unwrap(), fresh().as_fd()).unwrap().way
        else {
            panic!()
        };
        let (id, memory) = arenas[0].take().unwrap();
        server.arena(id, Side::B).unwrap();
        let arena = map(&memory, Side::A);
        for _ in 0..8 {
            Channel::open(arena, &OpenArgs::default()).unwrap();
        }
        // Words that look like entries of this arena and of the honest one, and anything.
        let entry = |numbers: &mut Numbers| match numbers.below(3) {
            0 => Object::Channel { arena: id, slot: numbers.below(70) as u32, side: PeerSide::A }.to_word(),
            1 => Object::Channel { arena: honest.arena.unwrap().0, slot: 0, side: PeerSide::B }.to_word(),
            _ => numbers.next(),
        };
        for page in &pages {
            for _ in 0..64 {
                let word = entry(&mut numbers);
                let place = numbers.below(1 << 12) * 8;
                rustix::io::pwrite(page, &word.to_ne_bytes(), place).unwrap();
            }
        }
        for _ in 0..4000 {
            let word = if numbers.below(2) == 0 { numbers.next() } else { u64::MAX };
            // Head, lanes, inbox and blocks are in front of the rings.
            let place = numbers.below((256 << 10) / 8) * 8;
            rustix::io::pwrite(memory.fds()[0], &word.to_ne_bytes(), place).unwrap();
        }
        counter(&path, "local_bytes");
        connect(&path).rows(|cursor| Request::Sockets { cursor }, |_: fs_shm::control::SocketRow| {}).unwrap();
        honest.check();
        // In either order.
        if round % 2 == 0 {
            drop(client)
        } else {
            drop(server)
        }
        honest.check();
    }
    soon("all are gone", || counter(&path, "attachments") == 2);
    soon("their arenas are gone", || counter(&path, "arenas") == 1);
    honest.check();
}

/// A socket of unknown origin is looked for among the lowest numbers of each process only (limits.rs FOUND_BELOW), so that a process
/// that fills its page does not make the look longer for the others. The bound is what is tested: a time would be the machine's.
#[test]
fn a_full_page_is_looked_through_in_part() {
    let daemon = start("full-page");
    let path = daemon.path().to_owned();
    let honest = Honest::new(&path);
    let hostile = connect(&path);
    let page = hostile.hello(b"hostile").unwrap().page;
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let Listening::Yes(listener, _) = hostile.listen(socket.as_fd()).unwrap() else { panic!() };
    let entry = |cookie: u64| [Object::Listener(listener).to_word(), cookie].map(u64::to_ne_bytes).concat();
    rustix::io::pwrite(&page, &entry(7).repeat(1 << 20), 0).unwrap();
    let unknown = fresh();
    let cookie = rustix::net::sockopt::socket_cookie(&unknown).unwrap();
    let is_found = |number: u64| {
        rustix::io::pwrite(&page, &entry(cookie), number * 16).unwrap();
        let claimed = honest.client.claim(unknown.as_fd()).unwrap();
        rustix::io::pwrite(&page, &entry(7), number * 16).unwrap();
        claimed.is_some()
    };
    assert!(is_found((1 << 16) - 1));
    assert!(!is_found(1 << 16));
    assert!(!is_found((1 << 20) - 1));
    assert!(hostile.share(Object::Listener(listener + 1), 7, (1 << 20) - 1, None).is_err());
    honest.check();
}

/// The processor time that this process has used.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whatever a process passes and keeps a copy of: the daemon does not look at it for ever when it has closed its own.
#[test]
fn copies_of_what_was_passed_keep_nobody_busy() {
    let directory = std::env::temp_dir().join(format!("fs-daemon-copies-{}", std::process::id()));
    let path = directory.join("control.sock");
    let daemon = Daemon::builder(&path).geometry(Geometry::SMALL).start().unwrap();
    let honest = Honest::new(&path);
    let hostile = connect(&path);
    hostile.hello(b"hostile").unwrap();
    // The moment of an exec, which comes, and one that is taken back.
    for fails in [false, true] {
        let (near, far) = Client::pair().unwrap();
        hostile.exec(Some(near.fd())).unwrap();
        if fails {
            hostile.exec_failed().unwrap();
        }
        drop(far);
        std::mem::forget(near);
    }
    // A child's connection that is hung up on.
    let (child, end) = Client::pair().unwrap();
    let copy = rustix::io::dup(&end).unwrap();
    hostile.fork(end).unwrap();
    rustix::io::write(child.fd(), &[0; 8]).unwrap();
    drop(child);
    // A listener that is given up, and shut then.
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let Listening::Yes(listener, _) = hostile.listen(socket.as_fd()).unwrap() else { panic!() };
    hostile.unlisten(listener).unwrap();
    rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).unwrap();
    // A child's connection that leads to the daemon itself.
    let end = raw(&path);
    assert!(hostile.fork(rustix::io::dup(&end).unwrap().into()).is_err());
    honest.check();
    // Other tests run beside: one moment of rest is enough.
    let rests = |_| {
        let before = cpu();
        std::thread::sleep(Duration::from_millis(300));
        cpu() - before < Duration::from_millis(150)
    };
    assert!((0..40).any(rests), "the control thread is busy");
    drop((copy, socket, end, daemon));
}

/// Not a test by itself: a user who wants everything.
#[test]
fn crowd() {
    let Some(path) = std::env::var_os(CROWD).map(PathBuf::from) else { return };
    let all: Vec<Client> = (0..LIMIT).map(|_| connect(&path)).collect();
    let attached = all.iter().filter(|client| client.hello(b"crowd").is_ok()).count();
    // Other users' sockets are not this one's to see.
    let mut seen = 0;
    let mut count = |_: fs_shm::control::SocketRow| seen += 1;
    all[0].rows(|cursor| Request::Sockets { cursor }, &mut count).unwrap();
    println!("attached {attached}, sees {seen}.");
    // Until its standard input ends.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
}

#[test]
fn one_user_does_not_use_up_what_all_share() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root (a second user is wanted)");
        return;
    }
    let directory = std::env::temp_dir().join(format!("fs-daemon-crowd-{}", std::process::id()));
    let mut config = Config::default();
    config.limits.attachments = LIMIT;
    let path = directory.join("control.sock");
    let daemon = Daemon::builder(&path).geometry(Geometry::SMALL).config(config).start().unwrap();
    let mut seen = 0;
    let others = Honest::new(&path);
    let root = connect(&path);
    let until = Instant::now() + Duration::from_secs(20);
    while seen == 0 {
        root.rows(|cursor| Request::Sockets { cursor }, |_: fs_shm::control::SocketRow| seen += 1).unwrap();
        assert!(seen != 0 || Instant::now() < until, "root sees all");
    }
    // A copy that everybody may run. By a process of its own: what another test forks just then would have it open for writing
    // (ETXTBSY).
    let program = directory.join("program");
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
    assert!(copied.success());
    let mut crowd = Command::new("setpriv")
        .args(["--reuid", "65534", "--clear-groups"])
        .arg(&program)
        .args(["--exact", "crowd", "--nocapture"])
        .env(CROWD, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(crowd.stdout.take().unwrap()));
    let said = lines.find_map(|line| line.unwrap().rsplit_once("attached ").map(|(_, count)| count.to_owned()));
    assert_eq!(said.as_deref(), Some("5, sees 0."));
    others.check();
    Honest::new(&path).check();
    drop(crowd.stdin.take());
    crowd.wait().unwrap();
    drop(daemon);
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Arenas that have come on a capture's socket.
fn captured(records: &OwnedFd) -> Vec<fs_shm::follow::Follow> {
    let mut arenas = Vec::new();
    let mut buffer = [0; 64];
    while let Ok(mut received) = socket::receive(records, &mut buffer) {
        assert_ne!(received.len, 0, "the capture was ended");
        let Ok((CaptureRecord::Arena { geometry, fresh, .. }, _)) = CaptureRecord::decode(&buffer[..received.len])
        else {
            panic!("a record")
        };
        arenas.push(fs_shm::follow::Follow::new(received.fds.take().unwrap().as_fd(), geometry, fresh).unwrap());
    }
    arenas
}

fn sent_in(arena: &mut fs_shm::follow::Follow) -> Vec<u8> {
    let mut all = Vec::new();
    arena.look(&mut |_, seen| {
        if let fs_shm::follow::Seen::Bytes { bytes, .. } = seen {
            all.extend_from_slice(bytes);
        }
    });
    all
}

fn capture(client: &Client, memory: bool, wire: bool) -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(Error::System)?;
    client.request(&Request::Capture { memory, wire }, &[theirs.as_fd()]).map(|_| ours)
}

const REFUSED: Option<Error> = Some(Error::Failed(Errno::PERM));

/// Not a test by itself: a user who captures.
#[test]
fn watcher() {
    let Some(path) = std::env::var_os(WATCHER).map(PathBuf::from) else { return };
    let watcher = connect(&path);
    for (memory, wire) in [(true, true), (false, true)] {
        assert_eq!(capture(&watcher, memory, wire).err(), REFUSED, "frames of the device");
    }
    let before = Honest::new(&path);
    if std::fs::read("/proc/sys/kernel/yama/ptrace_scope").is_ok_and(|scope| scope.first() != Some(&b'0')) {
        assert_eq!(capture(&watcher, true, false).err(), REFUSED, "ptrace(2) would not");
        println!("watched all.");
        return;
    }
    let records = capture(&watcher, true, false).unwrap();
    // What it has itself, before and from now on; and nothing of root's, which goes on meanwhile.
    let after = Honest::new(&path);
    let mut arenas = captured(&records);
    assert_eq!(arenas.len(), 2, "arenas");
    for (arena, of) in arenas.iter_mut().zip([&before, &after]) {
        of.check();
        assert_eq!(sent_in(arena), b"ping");
    }
    // A user has one capture, and none again at once.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(capture(&connect(&path), true, false).err(), Some(Error::Failed(Errno::BUSY)));
    // A process that the kernel lets nobody look into.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).unwrap();
    let hidden = Honest::new(&path);
    hidden.check();
    assert_eq!(captured(&records).len(), 0, "of a process that is not dumpable");
    println!("watched all.");
}

#[test]
fn a_user_captures_connections_of_his_own_and_root_all() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root (a second user is wanted)");
        return;
    }
    let directory = std::env::temp_dir().join(format!("fs-daemon-watcher-{}", std::process::id()));
    let path = directory.join("control.sock");
    let daemon = Daemon::builder(&path).geometry(Geometry::SMALL).start().unwrap();
    let others = Honest::new(&path);
    let root = connect(&path);
    let records = capture(&root, true, false).unwrap();
    let mut own = captured(&records);
    assert_eq!(own.len(), 1, "arenas");
    let program = directory.join("program");
    // By a process of its own, as above.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
    assert!(copied.success());
    let mut watcher = Command::new("setpriv");
    watcher.args(["--reuid", "65534", "--clear-groups"]).arg(&program).args(["--exact", "watcher", "--nocapture"]);
    let mut watcher = watcher.env(WATCHER, &path).stdout(Stdio::piped()).spawn().unwrap();
    while watcher.try_wait().unwrap().is_none() {
        others.check();
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = watcher.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&said.stdout).contains("watched all."), "{said:?}");
    others.check();
    assert!(sent_in(&mut own[0]).starts_with(b"ping"));
    // All of the other user's.
    assert_eq!(captured(&records).len(), 3, "arenas");
    drop(daemon);
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Records go nowhere but to who captures: not to the daemon itself, which would take them for its own word.
#[test]
fn a_capture_that_leads_to_the_daemon_tells_it_nothing() {
    let daemon = start("capture");
    let path = daemon.path().to_owned();
    let honest = Honest::new(&path);
    let hostile = connect(&path);
    hostile.hello(b"hostile").unwrap();
    let asks = |fd: BorrowedFd<'_>| hostile.request(&Request::Capture { memory: true, wire: false }, &[fd]).err();
    // A connection to it, a socket of another kind, none at all.
    assert_eq!(asks(raw(&path).as_fd()), Some(Error::Failed(Errno::PROTOTYPE)));
    assert_eq!(asks(fresh().as_fd()), Some(Error::Failed(Errno::PROTOTYPE)));
    assert_eq!(
        hostile.request(&Request::Capture { memory: true, wire: false }, &[]).err(),
        Some(Error::Failed(Errno::BADF))
    );
    // A child's connection.
    let (child, end) = Client::pair().unwrap();
    hostile.fork(end).unwrap();
    let malformed = counter(&path, "requests_malformed");
    assert_eq!(asks(child.fd()), None);
    Honest::new(&path).check();
    soon("what came was no request", || counter(&path, "requests_malformed") > malformed);
    honest.check();
    drop(daemon);
}

/// Both ends of a pair, passed as two children's connections: what the daemon says at one it hears at the other.
#[test]
fn a_daemon_does_not_answer_itself() {
    let daemon = start("itself");
    let path = daemon.path().to_owned();
    let honest = Honest::new(&path);
    let hostile = connect(&path);
    hostile.hello(b"hostile").unwrap();
    let (child, end) = Client::pair().unwrap();
    hostile.fork(end).unwrap();
    hostile.fork(child.fd().try_clone_to_owned().unwrap().into()).unwrap();
    let mut buffer = [0; MESSAGE_MAX];
    let len = Request::Status.encode(1, &mut buffer).unwrap();
    socket::send(child.fd(), &buffer[..len], &[]).unwrap();
    honest.check();
    std::thread::sleep(Duration::from_millis(300));
    let malformed = counter(&path, "requests_malformed");
    assert!(malformed < 10, "{malformed} in 300 ms");
    honest.check();
    drop(daemon);
}

/// A socket in a network namespace of its own, which exists for as long as the socket does.
fn socket_in_new_namespace() -> OwnedFd {
    let mut maker = Command::new("unshare")
        .args(["--net", "sh", "-c", "echo made; read -r _"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let made = std::io::Read::read(maker.stdout.as_mut().unwrap(), &mut [0; 8]);
    assert!(made.is_ok_and(|read| read != 0), "no namespace was made");
    let namespace = std::fs::File::open(format!("/proc/{}/ns/net", maker.id())).unwrap();
    let visit = std::thread::spawn(move || {
        rustix::thread::move_into_link_name_space(namespace.as_fd(), None).unwrap();
        fresh()
    });
    let socket = visit.join().unwrap();
    drop(maker.stdin.take());
    maker.wait().unwrap();
    socket
}

/// Who has sockets in ever more namespaces has the daemon open 64 of them, and goes on beside the others.
#[test]
fn a_process_enters_a_limited_number_of_namespaces() {
    const MOST: usize = 64;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root (namespaces are wanted)");
        return;
    }
    let daemon = start("namespaces");
    let path = daemon.path().to_owned();
    let honest = Honest::new(&path);
    let hostile = connect(&path);
    hostile.hello(b"hostile").unwrap();
    let to = "127.0.0.1:9".parse().unwrap();
    let sockets: Vec<OwnedFd> = (0..MOST + 3).map(|_| socket_in_new_namespace()).collect();
    let reasons = |sockets: &[OwnedFd]| -> Vec<KernelReason> {
        let way = |socket: &OwnedFd| match hostile.route(to, socket.as_fd()).unwrap().way {
            Way::Kernel(reason) => reason,
            way => panic!("{way:?}"),
        };
        sockets.iter().map(way).collect()
    };
    // Its process is elsewhere: whether somebody listens there, and whether rules forbid it, cannot be asked.
    let known = [KernelReason::Namespace; MOST];
    assert_eq!(reasons(&sockets[..MOST]), known);
    assert_eq!(reasons(&sockets[MOST..]), [KernelReason::Limit; 3]);
    assert_eq!(reasons(&sockets[..MOST]), known, "those that it has go on");
    // The daemon's own is one more.
    assert_eq!(counter(&path, "namespaces"), MOST as u64 + 1);
    honest.check();
    drop(hostile);
    soon("they are closed", || counter(&path, "namespaces") == 1);
    honest.check();
}

/// Not a test by itself: what the victim of the next one does until it is killed.
#[test]
fn victim() {
    let Some(path) = std::env::var_os(VICTIM).map(PathBuf::from) else { return };
    let me = connect(&path);
    let page = AttachmentPage::map(me.hello(b"victim").unwrap().page.as_fd()).unwrap();
    println!("running");
    let mut fd = 10;
    loop {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let Listening::Yes(listener, _) = me.listen(socket.as_fd()).unwrap() else { panic!() };
        assert!(page.set(fd, Object::Listener(listener), 1));
        let Way::Local { mut arenas, .. } = me.route(socket.local_addr().unwrap(), fresh().as_fd()).unwrap().way else {
            panic!()
        };
        let (id, memory) = arenas[0].take().unwrap();
        let other = me.arena(id, Side::B).unwrap();
        let (a, b) = (map(&memory, Side::A), map(&other, Side::B));
        for number in 1..5 {
            let ours = Channel::open(a, &OpenArgs::default()).unwrap();
            assert!(page.set(fd + number, Object::Channel { arena: id, slot: ours.slot(), side: PeerSide::A }, 1));
            if let Some(theirs) = Channel::accept(b) {
                let object = Object::Channel { arena: id, slot: theirs.slot(), side: PeerSide::B };
                assert!(page.set(fd + 10 + number, object, 1));
                let _full = theirs.send_one(&[0; 3000]);
            }
        }
        let (child, end) = Client::pair().unwrap();
        let (number, _) = me.fork(end).unwrap();
        if fd % 40 == 10 {
            drop(child)
        } else {
            me.fork_failed(number).unwrap()
        }
        fd = if fd > 2000 { 10 } else { fd + 20 };
        if fd % 60 == 10 {
            page.clear(fd);
            me.unlisten(listener).unwrap();
        }
    }
}

#[test]
fn killed_at_any_point() {
    let daemon = start("killed");
    let path = daemon.path().to_owned();
    let honest = Honest::new(&path);
    let mut numbers = Numbers(1_234_567_891);
    for _ in 0..12 {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--nocapture"])
            .env(VICTIM, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The test harness writes a line or two before.
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(victim.stdout.take().unwrap()));
        while !lines.next().unwrap().unwrap().contains("running") {}
        std::thread::sleep(Duration::from_micros(numbers.below(20_000)));
        victim.kill().unwrap();
        victim.wait().unwrap();
        honest.check();
    }
    soon("all are gone", || counter(&path, "attachments") == 2);
    soon("nothing is left", || counter(&path, "arenas") == 1 && counter(&path, "listeners") == 1);
}
