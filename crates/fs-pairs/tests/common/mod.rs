//! A service in a thread of the test, and connections.
#![allow(dead_code, reason = "each test uses some of it")]

#[path = "descriptor_unsafe.rs"]
pub(crate) mod descriptor_unsafe;
#[path = "held_unsafe.rs"]
pub(crate) mod held_unsafe;
#[path = "raw.rs"]
pub(crate) mod raw;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fs_carrier::Pacing;
use fs_carrier::exact::{self, Carried};
use fs_carrier::kernel::RecvMode;
use fs_carrier::pair::Pair;
use fs_carrier::region::{End, Region, SideTable};
use fs_carrier::sys::Socket;
use fs_pairs::service::{Limits, Permit};
use fs_pairs::{Client, Handle, Number, Offered, Reason, Service};
use rustix::net::sockopt::set_socket_linger;

/// A service, stopped on drop.
pub(crate) struct Running {
    pub(crate) path: PathBuf,
    handle: Handle,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Running {
    pub(crate) fn start() -> Self {
        Self::with(Limits::default())
    }

    pub(crate) fn with(limits: Limits) -> Self {
        Self::at(path(), limits)
    }

    pub(crate) fn at(path: PathBuf, limits: Limits) -> Self {
        Self::run(path.clone(), Service::with_limits(&path, limits).expect("a service"))
    }

    pub(crate) fn permitted_by(permit: Permit, limits: Limits) -> Self {
        let path = path();
        Self::run(path.clone(), Service::with_limits(&path, limits).expect("a service").permitted_by(permit))
    }

    pub(crate) fn run(path: PathBuf, service: Service) -> Self {
        let handle = service.handle();
        Running { path, handle, thread: Some(std::thread::spawn(move || service.run())) }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.path).expect("a client")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        self.thread.take().expect("a thread").join().expect("no panic").expect("it served");
    }
}

/// Returns a path that no other test uses.
pub(crate) fn path() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("fs-pairs-{}-{number}.sock", std::process::id()))
}

pub(crate) fn connection() -> (TcpStream, TcpStream) {
    connection_at("127.0.0.1:0")
}

pub(crate) fn connection_at(at: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(at).expect("a port");
    let a = TcpStream::connect(listener.local_addr().expect("its address")).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    (a, b)
}

pub(crate) fn carried(socket: impl AsFd) -> Carried {
    exact::carried(&Socket(socket)).expect("numbers that stand still")
}

/// Offers a socket with the kernel's own counts. Waits if the service's queue of messages, or that of
/// connections, is full: the client connects again within a second.
pub(crate) fn offer(client: &Client, socket: impl AsFd) -> Number {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(number) = client.offer(socket.as_fd(), carried(&socket)) {
            return number;
        }
        assert!(Instant::now() < end, "the service takes no offers");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until so many offers wait for their other ends. The offers of several clients are taken in any
/// order.
pub(crate) fn wait_for_offers(service: &Running, number: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    while fs_pairs::counters::count(&service.path).expect("counters").waiting < number {
        assert!(Instant::now() < end, "the offers do not wait");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for the next answer.
pub(crate) fn answer(client: &Client) -> Offered {
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        if let Some(answer) = client.answer() {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no answer");
}

pub(crate) fn refused(client: &Client, number: Number) -> Reason {
    match answer(client) {
        Offered::Refused { number: of, reason } if of == number => reason,
        other => panic!("offer {number:?} was not refused: {other:?}"),
    }
}

pub(crate) fn matched(client: &Client, number: Number) -> (Region, End) {
    match answer(client) {
        Offered::Matched { number: of, region, end } if of == number => (region, end),
        other => panic!("offer {number:?} was not matched: {other:?}"),
    }
}

/// Offers both ends until they are matched. On a busy machine the service may refuse the first offer
/// before it takes the second one.
pub(crate) fn match_ends(clients: [&Client; 2], ends: [BorrowedFd<'_>; 2]) -> [(Number, Region, End); 2] {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let numbers = [0, 1].map(|i| offer(clients[i], ends[i]));
        let matched = clients.map(|client| match answer(client) {
            Offered::Matched { number, region, end } => Some((number, region, end)),
            Offered::Refused { reason: Reason::NoPeer, .. } => None,
            other => panic!("{numbers:?}: {other:?}"),
        });
        match matched {
            [Some(a), Some(b)] => {
                assert!([a.0, b.0] == numbers && a.2 != b.2, "{numbers:?}: {:?} {:?}", a.0, b.0);
                return [a, b];
            }
            [None, None] => assert!(Instant::now() < limit, "no match"),
            [a, _] => panic!("{numbers:?}: only one is matched, the first one: {}", a.is_some()),
        }
    }
}

pub(crate) fn promote<F: AsFd>(socket: F, region: Region, end: End) -> Pair<Socket<F>> {
    // Spins longer than a busy machine's time slices, so that both ends use the ring.
    promote_with(LONG, socket, region, end)
}

/// A spin in which the peer answers even on a busy machine.
const LONG: Pacing = Pacing { spin_ns: 5_000_000, ..Pacing::USUAL };

fn promote_with<F: AsFd>(pacing: Pacing, socket: F, region: Region, end: End) -> Pair<Socket<F>> {
    let side = SideTable::new(1).expect("memory").side(0).expect("a side");
    Pair::promote(Socket(socket), region, end, side, pacing).expect("promote")
}

/// Returns two promoted ends, each offered by its own client.
pub(crate) fn promoted<F: AsFd>(
    client_a: &Client,
    client_b: &Client,
    a: F,
    b: F,
) -> (Pair<Socket<F>>, Pair<Socket<F>>) {
    promoted_with(LONG, client_a, client_b, a, b)
}

/// Like [`promoted`], with this pacing of the receivers.
pub(crate) fn promoted_with<F: AsFd>(
    pacing: Pacing,
    client_a: &Client,
    client_b: &Client,
    a: F,
    b: F,
) -> (Pair<Socket<F>>, Pair<Socket<F>>) {
    let [(_, region_a, end_a), (_, region_b, end_b)] = match_ends([client_a, client_b], [a.as_fd(), b.as_fd()]);
    (promote_with(pacing, a, region_a, end_a), promote_with(pacing, b, region_b, end_b))
}

/// Sends `rounds` messages in both directions. Returns how many used the ring.
pub(crate) fn ping_pong<A: AsFd + Sync + Send, B: AsFd + Sync + Send>(
    a: &Pair<Socket<A>>,
    b: &Pair<Socket<B>>,
    rounds: usize,
) -> u64 {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            for _ in 0..rounds {
                let n = b.recv(&mut buffer, RecvMode::WAIT).expect("a message");
                b.send(&buffer[..n], false).expect("sent");
            }
        });
        let mut buffer = [0; 64];
        for round in 0..rounds {
            let message = (round as u64).to_ne_bytes();
            a.send(&message, false).expect("sent");
            let n = a.recv(&mut buffer, RecvMode::WAIT).expect("a message");
            assert_eq!(buffer[..n], message);
        }
    });
    a.counts().ring_sends + b.counts().ring_sends
}

/// Exchanges messages until the ring has carried some. On a busy machine both ends may sleep each
/// time, so the kernel carries.
pub(crate) fn ring_carries<A: AsFd + Sync + Send, B: AsFd + Sync + Send>(
    a: &Pair<Socket<A>>,
    b: &Pair<Socket<B>>,
    rounds: usize,
) {
    let end = Instant::now() + Duration::from_secs(60);
    while ping_pong(a, b, rounds) == 0 {
        assert!(Instant::now() < end, "the kernel carries all: {:?} {:?}", a.counts(), b.counts());
    }
}

/// Matches a connection of two further processes.
pub(crate) fn serves(service: &Running) {
    let (a, b) = connection();
    match_ends([&service.client(), &service.client()], [a.as_fd(), b.as_fd()]);
}

/// Returns a socket whose last close(2) blocks until the other one is closed.
pub(crate) fn lingering() -> (TcpStream, TcpStream) {
    let (a, b) = connection();
    set_socket_linger(&a, Some(Duration::from_secs(3600))).expect("set");
    rustix::io::ioctl_fionbio(&a, true).expect("set");
    while (&a).write(&[0; 1 << 16]).is_ok() {}
    (a, b)
}

/// Users without rights.
pub(crate) const NOBODY: u32 = 65534;
pub(crate) const OTHER: u32 = 65533;

/// Runs `work` in a thread of another user. Returns `None` if this one is not root.
pub(crate) fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    as_user(NOBODY, work)
}

/// Runs `work` in a thread of this user. Returns `None` if this one is not root.
pub(crate) fn as_user<T: Send>(user: u32, work: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("FS_TEST_MUST_RUN").is_none(), "not root, and FS_TEST_MUST_RUN is set");
        println!("skipped: not root (another user)");
        return None;
    }
    let user = rustix::process::Uid::from_raw(user);
    let run = move || {
        rustix::thread::set_thread_res_uid(user, user, user).expect("another user");
        work()
    };
    Some(std::thread::scope(|scope| scope.spawn(run).join().expect("no panic")))
}
