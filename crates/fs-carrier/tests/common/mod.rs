//! One seeded round: a promoted connection over a real TCP socket, both ends of which send and
//! receive at random, in one process or in two. Of two, one is stopped and continued at random
//! (SIGSTOP, SIGCONT).
//!
//! A byte that is wrong panics with the seed. A round that stands still for [`HUNG`] ends the process.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fs_carrier::Pacing;
use fs_carrier::counters::Counts;
use fs_carrier::kernel::{Errno, Event, Kernel, RecvMode};
use fs_carrier::pair::Pair;
use fs_carrier::poll::{Ask, Poller, Watched};
use fs_carrier::region::{End, Region, SideTable};
use fs_carrier::set::{EPOLLET, EPOLLIN, Member, Set};
use fs_carrier::sys::{Epoll, Interrupter, Socket};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::process::{Pid, Signal, kill_process};

type Sock = Socket<TcpStream>;

/// A round takes well under a second.
const HUNG: Duration = Duration::from_secs(60);

/// Counts of several rounds.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Bytes received and compared.
    pub bytes: u64,
    /// Times that a peer was stopped.
    pub stops: u64,
    /// The counters of the ends.
    pub counts: Counts,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Outcome) {
        self.bytes += other.bytes;
        self.stops += other.stops;
        self.counts += other.counts;
    }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn new(seed: u64, salt: u64) -> Self {
        Random((seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ salt.wrapping_mul(0xBF58_476D_1CE4_E5B9)) | 1)
    }

    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % below
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next(n) == 0
    }
}

/// The byte at a position of a direction's stream.
fn byte(seed: u64, direction: u64, at: u64) -> u8 {
    let x = (at / 8 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed.wrapping_mul(7919) ^ direction << 7;
    ((x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> (8 * (at % 8))) as u8
}

const EPOLLRDHUP: u32 = 0x2000;

/// The way in which the receivers of a round wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// In recv(2), poll(2) and not at all, by chance.
    Recv,
    /// Two threads in one epoll set.
    Level,
    /// One thread in an edge-triggered epoll set. It treats a short count as an empty socket.
    Edge,
}

/// The epoll set of a side.
struct Events {
    fd: OwnedFd,
    interrupter: Interrupter,
    set: Arc<Set<Sock>>,
    member: Option<Arc<Member<Sock>>>,
    way: Way,
}

impl Events {
    fn new(way: Way, pacing: Pacing, pair: &Arc<Pair<Sock>>) -> Self {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        let mut events = Events { fd, interrupter: Interrupter::default(), set: Set::new(pacing), member: None, way };
        if way != Way::Recv {
            let bits = if way == Way::Edge { EPOLLIN | EPOLLRDHUP | EPOLLET } else { EPOLLIN };
            let flags = epoll::EventFlags::from_bits_retain(bits);
            epoll::add(&events.fd, &pair.kernel().0, epoll::EventData::new_u64(1), flags).expect("epoll_ctl");
            events.member = Some(events.set.add(&events.kernel(), pair, bits, 1).expect("add"));
        }
        events
    }

    fn kernel(&self) -> Epoll<'_> {
        Epoll { fd: self.fd.as_fd(), interrupter: &self.interrupter, signals: None }
    }

    /// Returns whether the peer has ended its direction.
    fn wait(&self, timeout_ns: Option<u64>) -> bool {
        let mut events = [Event::default(); 2];
        match self.set.wait(&self.kernel(), &mut events, timeout_ns) {
            Ok(n) => {
                assert!(events[..n].iter().all(|event| event.data == 1));
                events[..n].iter().any(|event| event.events & EPOLLRDHUP != 0)
            }
            Err(error) => {
                assert_eq!(error, Errno::INTR);
                false
            }
        }
    }
}

/// sendfile(2) of a piece.
fn send_file(pair: &Pair<Sock>, piece: &[u8]) -> Result<usize, Errno> {
    let file = rustix::fs::memfd_create("piece", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::io::pwrite(&file, piece, 0)?;
    pair.send_by_kernel(false, |kernel| rustix::fs::sendfile(&kernel.0, &file, Some(&mut 0), piece.len()))
}

/// Pauses sometimes, so that the other end finds this one asleep, or awake and late.
fn pause(random: &mut Random) {
    match random.next(300) {
        0 => thread::sleep(Duration::from_micros(random.next(300))),
        1..20 => (0..random.next(2000)).for_each(|_| std::hint::spin_loop()),
        _ => {}
    }
}

struct Side {
    pair: Arc<Pair<Sock>>,
    events: Events,
    seed: u64,
    direction: u64,
    received: Mutex<u64>,
    ended: AtomicBool,
    progress: Arc<AtomicU64>,
}

impl Side {
    fn sender(&self, bytes: u64) {
        let mut random = Random::new(self.seed, 10 + self.direction);
        let mut at = 0;
        while at < bytes {
            let most = if random.one_in(8) {
                100_000
            } else if random.one_in(3) {
                4096
            } else {
                64
            };
            let n = (1 + random.next(most)).min(bytes - at);
            let piece: Vec<u8> = (at..at + n).map(|i| byte(self.seed, self.direction, i)).collect();
            let sent = match random.next(40) {
                0 => self.pair.send_by_kernel(piece.len().is_multiple_of(2), |kernel| kernel.send(&piece, false)),
                4 => send_file(&self.pair, &piece),
                1..4 => self.pair.send(&piece, true),
                _ => self.pair.send(&piece, false),
            };
            match sent {
                Ok(n) => at += n as u64,
                Err(Errno::AGAIN) => thread::sleep(Duration::from_micros(50)),
                Err(error) => panic!("seed {}: send: {error}", self.seed),
            }
            // The receiver has to find the kernel's queue empty before the ring is used.
            match random.next(400) {
                0..20 => thread::sleep(Duration::from_micros(random.next(200))),
                20..60 => (0..random.next(2000)).for_each(|_| std::hint::spin_loop()),
                60..64 => thread::yield_now(),
                _ => {}
            }
            // Once in some rounds.
            if self.seed.is_multiple_of(5) && random.one_in(2000) {
                self.pair.pin();
            }
            self.progress.fetch_add(1, Ordering::Relaxed);
        }
        self.pair.before_shutdown_send();
        self.pair.kernel().0.shutdown(Shutdown::Write).expect("shutdown");
    }

    /// One of two threads that receive in turn. `salt` tells them apart.
    fn receiver(&self, bytes: u64, salt: u64) {
        let mut random = Random::new(self.seed, 100 + 10 * self.direction + salt);
        let mut buffer = vec![0; 70_000];
        match self.events.way {
            Way::Recv => self.receive_by_chance(bytes, &mut random, &mut buffer, salt),
            Way::Edge if salt == 1 => {}
            _ => self.receive_by_events(bytes, &mut random, &mut buffer),
        }
    }

    /// Receives only what the set has reported: a lost event hangs.
    fn receive_by_events(&self, bytes: u64, random: &mut Random, buffer: &mut [u8]) {
        let mut is_end_reported = false;
        while !self.ended.load(Ordering::Relaxed) {
            is_end_reported |= self.events.wait(if random.one_in(10) { Some(random.next(3) * 100_000) } else { None });
            let mut received = self.received.lock().expect("no panic");
            while !self.ended.load(Ordering::Relaxed) {
                let most = if random.one_in(4) { 70_000 } else { 300 };
                let into = &mut buffer[..1 + random.next(most) as usize];
                let result = self.pair.recv(into, RecvMode::NOW);
                self.account(&mut received, into, result, bytes);
                // A short count does not say that the end is not there: its edge may have been reported with the bytes.
                let is_drained = result.is_err() || (result.is_ok_and(|n| n < into.len()) && !is_end_reported);
                if is_drained || self.events.way == Way::Level {
                    break;
                }
            }
            drop(received);
            pause(random);
        }
    }

    fn account(&self, received: &mut u64, into: &[u8], result: Result<usize, Errno>, bytes: u64) {
        match result {
            Ok(0) => {
                assert_eq!(*received, bytes, "seed {}: end", self.seed);
                self.ended.store(true, Ordering::Relaxed);
            }
            Ok(n) => {
                self.compare(1 - self.direction, *received, &into[..n], bytes);
                *received += n as u64;
                self.progress.fetch_add(1, Ordering::Relaxed);
            }
            Err(Errno::AGAIN) => {}
            Err(error) => panic!("seed {}: recv: {error}", self.seed),
        }
    }

    fn receive_by_chance(&self, bytes: u64, random: &mut Random, buffer: &mut [u8], salt: u64) {
        let from = 1 - self.direction;
        let poller = Poller::new(Pacing::USUAL);
        while !self.ended.load(Ordering::Relaxed) {
            if random.one_in(30) {
                // Sleeps on the socket while another thread receives.
                if let Some(asleep) = self.pair.before_sleep() {
                    let _interrupted = self.pair.kernel().wait_readable(1);
                    drop(asleep);
                }
            }
            // Next to a thread that receives.
            if salt == 0 && random.one_in(10) {
                self.poll(&poller, &mut *random);
            }
            let mut received = self.received.lock().expect("no panic");
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            let most = if random.one_in(4) { 70_000 } else { 300 };
            let into = &mut buffer[..1 + random.next(most) as usize];
            let result = match random.next(20) {
                0 => {
                    let peeked = self.pair.recv(into, RecvMode::PEEK);
                    if let Ok(n) = peeked {
                        self.compare(from, *received, &into[..n], bytes);
                    }
                    Err(Errno::AGAIN)
                }
                1..8 => self.pair.recv(into, RecvMode::NOW),
                // A read without the library, while the library counts this thread as asleep on the
                // socket.
                8 if self.seed.is_multiple_of(3) => match self.pair.before_sleep() {
                    Some(asleep) => {
                        drop(asleep);
                        self.pair
                            .kernel()
                            .recv(into, RecvMode::NOW)
                            .and_then(|n| if n == 0 { Err(Errno::AGAIN) } else { Ok(n) })
                    }
                    None => Err(Errno::AGAIN),
                },
                _ => self.pair.recv(into, RecvMode::WAIT),
            };
            self.account(&mut received, into, result, bytes);
            drop(received);
            pause(random);
        }
    }

    /// poll(2), for at most 2 ms, as the other thread may take the bytes.
    fn poll(&self, poller: &Poller, random: &mut Random) {
        let socket = &self.pair.kernel().0;
        let mut list = [Watched::new(&self.pair)];
        let timeout = Some(random.next(2_000_000));
        let asked = poller.wait(self.pair.kernel(), &mut list, timeout, |how| {
            let ns = match how {
                Ask::Call(timeout_ns) => timeout_ns.expect("bounded") as i64,
                Ask::AlsoReady => 0,
            };
            let n = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: ns }))?;
            if n > 0 {
                self.pair.report_readable();
            }
            Ok(n)
        });
        assert!(matches!(asked, Ok(_) | Err(Errno::INTR)), "{asked:?}");
    }

    fn compare(&self, from: u64, at: u64, got: &[u8], bytes: u64) {
        assert!(at + got.len() as u64 <= bytes, "seed {}: more than was sent", self.seed);
        let wrong = got.iter().zip(at..).position(|(&got, i)| got != byte(self.seed, from, i));
        if let Some(i) = wrong {
            eprintln!(
                "seed {}: wrong byte at {} of direction {from}; {:?} {:?}",
                self.seed,
                at + i as u64,
                self.pair.words(),
                self.pair.counts()
            );
            std::process::exit(9);
        }
    }
}

/// A connected pair of sockets.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let a = TcpStream::connect(listener.local_addr().expect("its address")).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    for socket in [&a, &b] {
        socket.set_nodelay(true).expect("TCP_NODELAY");
    }
    (a, b)
}

/// The parameters of a round, equal at both ends.
struct Plan {
    seed: u64,
    ring: usize,
    pacing: Pacing,
    /// Bytes of each direction.
    lengths: [u64; 2],
    way: Way,
}

impl Plan {
    fn new(seed: u64, bytes: u64) -> Self {
        let mut random = Random::new(seed, 1);
        let ring = 4096 << random.next(5);
        let pacing = if random.one_in(4) { Pacing { yields: 4, ..Pacing::USUAL } } else { Pacing::USUAL };
        let pacing = if random.one_in(2) { pacing } else { Pacing { room_ns: 0, ..pacing } };
        let lengths = [1 + random.next(bytes), 1 + random.next(bytes)];
        let way = [Way::Recv, Way::Recv, Way::Level, Way::Edge][random.next(4) as usize];
        Plan { seed, ring, pacing, lengths, way }
    }

    fn side(&self, socket: &TcpStream, file: &OwnedFd, i: usize, progress: &Arc<AtomicU64>) -> Side {
        let end = [End::A, End::B][i];
        let pair = loop {
            let region = Region::map(file, self.ring).expect("map");
            let side = SideTable::new(1).expect("memory").side(0).expect("a side");
            let socket = socket.try_clone().expect("a descriptor");
            match Pair::promote(Socket(socket), region, end, side, self.pacing) {
                Ok(pair) => break Arc::new(pair),
                // The other end already sends, so the kernel's numbers change.
                Err(error) => assert_eq!(error, Errno::AGAIN, "promote"),
            }
        };
        Side {
            events: Events::new(self.way, self.pacing, &pair),
            pair,
            seed: self.seed,
            direction: i as u64,
            received: Mutex::new(0),
            ended: AtomicBool::new(false),
            progress: Arc::clone(progress),
        }
    }

    /// Lets the threads of some ends run until all bytes are received.
    fn run(&self, ends: &[Side], progress: &AtomicU64) -> Counts {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for end in ends {
                let (sends, receives) = (end.direction as usize, 1 - end.direction as usize);
                threads.push(scope.spawn(move || end.sender(self.lengths[sends])));
                for salt in 0..2 {
                    threads.push(scope.spawn(move || end.receiver(self.lengths[receives], salt)));
                }
            }
            scope.spawn(|| {
                let (mut seen, mut since) = (0, Instant::now());
                while !over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(2));
                    let now = progress.load(Ordering::Relaxed);
                    if now != seen {
                        (seen, since) = (now, Instant::now());
                    } else if since.elapsed() > HUNG {
                        let words: Vec<_> = ends.iter().map(|end| (end.pair.words(), end.pair.counts())).collect();
                        eprintln!("seed {} ({:?}): hung; {words:?}", self.seed, self.way);
                        std::process::exit(8);
                    }
                }
            });
            for thread in threads {
                if thread.join().is_err() {
                    std::process::exit(7);
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        let mut counts = Counts::default();
        ends.iter().for_each(|end| counts += end.pair.counts());
        counts
    }
}

/// Runs one round with up to `bytes` in each direction.
pub(crate) fn round(seed: u64, bytes: u64) -> Outcome {
    let plan = Plan::new(seed, bytes);
    let (a, b) = connection();
    let file = Region::create("torture", plan.ring).expect("memfd");
    let progress = Arc::new(AtomicU64::new(0));
    let ends = [plan.side(&a, &file, 0, &progress), plan.side(&b, &file, 1, &progress)];
    Outcome { bytes: plan.lengths[0] + plan.lengths[1], stops: 0, counts: plan.run(&ends, &progress) }
}

/// The variable that makes a process the peer.
const PEER: &str = "FS_CARRIER_TORTURE_PEER";

/// Runs the peer of [`round_in_processes`], if the environment says so. The socket is standard input.
pub(crate) fn be_peer() -> bool {
    let Ok(told) = std::env::var(PEER) else { return false };
    let words: Vec<&str> = told.split(' ').collect();
    let [seed, bytes, path] = words[..] else { panic!("{told}") };
    let plan = Plan::new(seed.parse().expect("a seed"), bytes.parse().expect("a number"));
    let file: OwnedFd = std::fs::File::options().read(true).write(true).open(path).expect("the region").into();
    let socket = TcpStream::from(std::io::stdin().as_fd().try_clone_to_owned().expect("a socket"));
    let progress = Arc::new(AtomicU64::new(0));
    let end = plan.side(&socket, &file, 1, &progress);
    plan.run(&[end], &progress);
    true
}

/// Like [`round`], with one end in a process that is started with `arguments` and calls
/// [`be_peer`]. It is stopped now and then.
pub(crate) fn round_in_processes(seed: u64, bytes: u64, arguments: &[&str]) -> Outcome {
    let plan = Plan::new(seed, bytes);
    let (a, b) = connection();
    let file = Region::create("torture", plan.ring).expect("memfd");
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let progress = Arc::new(AtomicU64::new(0));
    let end = plan.side(&a, &file, 0, &progress);
    let mut peer = Command::new(std::env::current_exe().expect("this program"))
        .args(arguments)
        .env(PEER, format!("{seed} {bytes} {path}"))
        .stdin(Stdio::from(OwnedFd::from(b)))
        .stdout(Stdio::null())
        .spawn()
        .expect("the peer");
    let pid = Pid::from_child(&peer);
    let (over, mut stops) = (AtomicBool::new(false), 0);
    let counts = thread::scope(|scope| {
        let stopper = scope.spawn(|| {
            let (mut random, mut stops) = (Random::new(seed, 2), 0);
            while !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_micros(random.next(4000)));
                // The process has exited, so the round is over.
                if kill_process(pid, Signal::STOP).is_err() {
                    break;
                }
                thread::sleep(Duration::from_micros(random.next(1500)));
                let _gone = kill_process(pid, Signal::CONT);
                stops += 1;
            }
            stops
        });
        let counts = plan.run(std::slice::from_ref(&end), &progress);
        over.store(true, Ordering::Relaxed);
        stops = stopper.join().expect("no panic");
        counts
    });
    assert!(peer.wait().expect("wait").success(), "seed {seed}: the peer failed");
    Outcome { bytes: plan.lengths[0] + plan.lengths[1], stops, counts }
}
