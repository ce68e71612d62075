//! Random clients that lie, next to honest ones: messages with changed bytes, of other lengths and
//! out of order, descriptors that are missing, too many or of another kind, sockets whose lock is
//! held, answers that nobody reads, and disconnects at every step. The honest ones are served,
//! limits hold, and nothing is left.
//!
//! A failure prints its seed: `SEED=N cargo test -p fs-pairs --test liars -- --include-ignored` plays
//! that one alone. SECONDS sets the duration of the long test (60).

mod common;

use std::io::{IoSlice, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use common::held_unsafe::Held;
use common::*;
use fs_carrier::exact::Carried;
use fs_carrier::pair::Pair;
use fs_carrier::sys::Socket;
use fs_pairs::counters::count;
use fs_pairs::message::{Answer, LEN, Request};
use fs_pairs::service::Limits;
use fs_pairs::{Client, Number, Reason};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};

/// Small, so that the liars reach them: in some programs offers wait for long, and the liars have
/// more connections than they may have offers or rings.
const LIMITS: Limits =
    Limits { wait: Duration::from_millis(250), offers_of_process: 8, offers: 32, ends: 64, clients: 32 };
/// Messages of a flood, some times as many as a socket's queue has room for.
const FLOOD: usize = 1000;
/// For what a busy machine does late.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until nothing is wrong.
fn eventually(mut wrong: impl FnMut() -> Option<String>) {
    let end = Instant::now() + PATIENCE;
    while let Some(wrong) = wrong() {
        assert!(Instant::now() < end, "{wrong}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Connects as another user, if this one is root.
fn connect(service: &Running) -> Option<OwnedFd> {
    let open = || {
        let nobody = rustix::process::Uid::from_raw(65534);
        // Without rights the liars are of the service's user, whose limits are wider.
        let _denied = rustix::thread::set_thread_res_uid(nobody, nobody, nobody);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&*service.path).ok()?).ok()?;
        Some(socket)
    };
    std::thread::scope(|scope| scope.spawn(open).join().expect("no panic"))
}

/// Returns false if the service has closed the connection, or has not read what came before.
fn send(to: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).is_ok()
}

/// Descriptors of all kinds.
struct Kinds {
    connections: Vec<(Option<TcpStream>, TcpStream)>,
    others: Vec<OwnedFd>,
}

impl Kinds {
    fn new(random: &mut fastrand::Rng, service: &Running, connections: usize) -> Self {
        let connections =
            (0..connections).map(|_| connection()).map(|(a, b)| ((random.u8(..4) > 0).then_some(b), a)).collect();
        let pair = || rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (full, inside) = pair().expect("sockets");
        // A message with descriptors in it, one of which is its own end.
        send(&inside, b"x", &[full.as_fd(), inside.as_fd()]);
        let mut others: Vec<OwnedFd> = vec![full, inside, pair().expect("sockets").0];
        others.push(TcpListener::bind("127.0.0.1:0").expect("a port").into());
        others.push(UdpSocket::bind("127.0.0.1:0").expect("a port").into());
        others.push(std::fs::File::open("/dev/null").expect("a file").into());
        others.push(rustix::pipe::pipe().expect("a pipe").1);
        others.push(rustix::event::eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
        others.push(rustix::fs::memfd_create("liar", MemfdFlags::CLOEXEC).expect("memory"));
        // An end of the service's own socket.
        others.extend(connect(service));
        Kinds { connections, others }
    }

    fn draw(&self, random: &mut fastrand::Rng) -> BorrowedFd<'_> {
        match random.usize(..self.others.len() + 12) {
            other if other < self.others.len() => self.others[other].as_fd(),
            _ => match &self.connections[random.usize(..self.connections.len())] {
                (Some(b), _) if random.bool() => b.as_fd(),
                (_, a) => a.as_fd(),
            },
        }
    }
}

/// Sends a socket whose last close(2) blocks until the returned one is closed, and closes it here.
fn send_lingering(to: &OwnedFd, bytes: &[u8]) -> TcpStream {
    let (a, b) = connection();
    set_socket_linger(&a, Some(Duration::from_secs(3600))).expect("set");
    a.set_nonblocking(true).expect("set");
    while (&a).write(&[0; 1 << 16]).is_ok() {}
    send(to, bytes, &[a.as_fd()]);
    // This may be the last one.
    std::thread::spawn(move || drop(a));
    b
}

/// A message after which the connection goes on.
fn draw_request(random: &mut fastrand::Rng, number: Number, carried: Carried) -> Request {
    match random.u8(..21) {
        0..=11 => Request::Offer { number, carried },
        12..=15 => Request::Forget(number),
        16..=18 => Request::List { after: number.0 },
        _ => Request::Count,
    }
}

fn draw_message(random: &mut fastrand::Rng) -> Vec<u8> {
    let number = Number(if random.u8(..8) == 0 { random.u64(..) } else { random.u64(..40) });
    let carried =
        if random.bool() { Carried::default() } else { Carried { sent: random.u64(..), taken: random.u64(..9) } };
    let mut bytes = match random.u8(..24) {
        0..=20 => draw_request(random, number, carried).encode(),
        21 => Request::Device.encode(),
        _ => Answer::Refused { number, reason: Reason::NoPeer }.encode(),
    }
    .to_vec();
    match random.u8(..12) {
        0 => bytes[random.usize(..LEN)] ^= 1 << random.u8(..8),
        1 => bytes.truncate(random.usize(..LEN)),
        2 => bytes.resize(random.usize(LEN..4 * LEN), random.u8(..)),
        3 => bytes.iter_mut().for_each(|byte| *byte = random.u8(..)),
        _ => {}
    }
    bytes
}

/// What has happened in programs.
#[derive(Debug, Default)]
struct Tally {
    /// The most messages of a flood that the service's socket has taken.
    flood: usize,
    /// Answers that liars have read.
    matched: usize,
    limit: usize,
    twice: usize,
}

impl Tally {
    /// Reads what the service has sent. Returns false if there is nothing.
    fn read(&mut self, liar: &OwnedFd) -> bool {
        let mut bytes = [0; LEN];
        let Ok((len @ 1.., _)) = rustix::net::recv(liar, &mut bytes[..], RecvFlags::empty()) else { return false };
        match Answer::decode(&bytes[..len.min(LEN)]) {
            Some(Answer::Matched { .. }) => self.matched += 1,
            Some(Answer::Refused { reason: Reason::Limit, .. }) => self.limit += 1,
            Some(Answer::Refused { reason: Reason::Twice, .. }) => self.twice += 1,
            _ => {}
        }
        true
    }
}

fn step(
    service: &Running,
    liars: &mut Vec<OwnedFd>,
    kinds: &Kinds,
    peers: &mut Vec<TcpStream>,
    held: &mut Vec<Held>,
    random: &mut fastrand::Rng,
    tally: &mut Tally,
) {
    if liars.is_empty() || random.u8(..8) == 0 {
        // Sometimes more than one user may have.
        let most = if random.u8(..6) == 0 { 40 } else { 1 };
        liars.extend((0..random.usize(..=most)).filter_map(|_| connect(service)));
        return;
    }
    if liars.is_empty() {
        return;
    }
    let n = random.usize(..liars.len());
    match random.u8(..16) {
        0 => drop(liars.swap_remove(n)),
        1 => drop(rustix::net::shutdown(&liars[n], rustix::net::Shutdown::Write)),
        2..=4 => {
            for _ in 0..random.usize(1..20) {
                tally.read(&liars[n]);
            }
        }
        // Honest processes of the same user would wait too.
        5 if peers.len() < 12 && rustix::process::geteuid().is_root() => {
            peers.push(send_lingering(&liars[n], &draw_message(random)));
        }
        // One end is held before or after its offer, the other one may be offered too.
        8 if held.len() < 6 && rustix::process::geteuid().is_root() => {
            let (a, b) = connection();
            let offer = Request::Offer { number: Number(random.u64(..)), carried: Carried::default() }.encode();
            if random.bool() {
                send(&liars[n], &offer, &[a.as_fd()]);
            }
            held.push(Held::new(&a));
            for (socket, is_offered) in [(&a, random.bool()), (&b, random.bool())] {
                if is_offered {
                    send(&liars[random.usize(..liars.len())], &offer, &[socket.as_fd()]);
                }
            }
            peers.extend([a, b]);
        }
        // The threads of the liars' user continue.
        9 if !held.is_empty() => drop(held.swap_remove(random.usize(..held.len()))),
        // All that it has. A message with an error would end the connection, and all offers with it.
        7 => {
            for (number, (b, a)) in kinds.connections.iter().enumerate() {
                let ends = [Some(a), b.as_ref().filter(|_| random.bool())];
                for (end, fd) in ends.into_iter().enumerate().filter_map(|(end, fd)| fd.map(|fd| (end, fd))) {
                    let number = Number((2 * number + end) as u64);
                    send(&liars[n], &Request::Offer { number, carried: Carried::default() }.encode(), &[fd.as_fd()]);
                }
            }
        }
        // A flood of one message. Different ones would soon end the connection.
        6 => {
            let number = Number(random.u64(..40));
            let request = draw_request(random, number, Carried::default());
            let fds: Vec<_> =
                matches!(request, Request::Offer { .. }).then(|| kinds.draw(random)).into_iter().collect();
            let is_sent = |_: &usize| {
                // The socket's queue has room for some hundred messages. The service does not read that of each liar.
                let mut room = [PollFd::new(&liars[n], PollFlags::OUT)];
                let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                rustix::event::poll(&mut room, Some(&wait)) == Ok(1) && send(&liars[n], &request.encode(), &fds)
            };
            tally.flood = tally.flood.max((0..FLOOD).take_while(is_sent).count());
        }
        _ => {
            let count = [0, 1, 1, 1, 1, 1, 1, 2, random.usize(..20)][random.usize(..9)];
            let fds: Vec<_> = (0..count).map(|_| kinds.draw(random)).collect();
            send(&liars[n], &draw_message(random), &fds);
        }
    }
}

/// Two honest processes, which keep their connections to the service.
struct Honest([Client; 2]);

impl Honest {
    /// Matches a connection, whose bytes are right.
    fn pair(&self) -> Joined {
        let [one, two] = &self.0;
        let (a, b) = connection();
        let [end_a, end_b] = match_ends([one, two], [a.as_fd(), b.as_fd()]);
        let numbers = [end_a.0, end_b.0];
        let joined = Joined { a: promote(a, end_a.1, end_a.2), b: promote(b, end_b.1, end_b.2), numbers };
        joined.talk();
        joined
    }

    fn end(&self, joined: Joined) {
        self.0.iter().zip(joined.numbers).for_each(|(client, number)| client.forget(number));
    }
}

struct Joined {
    a: Pair<Socket<TcpStream>>,
    b: Pair<Socket<TcpStream>>,
    numbers: [Number; 2],
}

impl Joined {
    fn talk(&self) {
        ping_pong(&self.a, &self.b, 5);
    }
}

/// Whether the liars' limits hold. Honest processes have few of anything, and the service may not have
/// read yet that they ended.
fn check_limits(service: &Running) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    eventually(|| {
        let counters = count(&service.path).expect("counters");
        let is_within = |number: u64, limit: usize| number as usize <= limit / 2 + 4;
        let are = is_within(counters.waiting, LIMITS.offers)
            && is_within(2 * counters.pairs, LIMITS.ends)
            && is_within(counters.processes, LIMITS.clients);
        (!are).then(|| format!("limits do not hold: {counters:?}"))
    });
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Processor time of all threads except this one, and how often they have slept.
fn work() -> String {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc").flatten();
    let others = tasks.filter(|task| task.file_name().to_string_lossy() != own);
    let switches = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
    others.map(switches).collect()
}

fn program(seed: u64, tally: &mut Tally) {
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (wait, connections) = if random.u8(..3) == 0 { (Duration::from_secs(3600), 60) } else { (LIMITS.wait, 5) };
    let service = Running::with(Limits { wait, ..LIMITS });
    let honest = Honest([service.client(), service.client()]);
    honest.end(honest.pair());
    let before = descriptors();
    let (mut liars, mut peers, mut held) = (Vec::new(), Vec::new(), Vec::new());
    let kinds = Kinds::new(&mut random, &service, connections);
    let kept = honest.pair();
    for number in 0..random.usize(50..300) {
        step(&service, &mut liars, &kinds, &mut peers, &mut held, &mut random, tally);
        if number % 16 == 0 {
            honest.end(honest.pair());
            kept.talk();
            check_limits(&service);
        }
    }
    honest.end(kept);
    liars.iter().for_each(|liar| while tally.read(liar) {});
    drop((liars, kinds, held, peers));
    // Offers end by time; closing threads end what a close blocks.
    eventually(|| {
        let counters = count(&service.path).expect("counters");
        let is_over = (counters.waiting, counters.pairs, counters.processes) == (0, 0, 2);
        (!is_over).then(|| format!("something is left: {counters:?}"))
    });
    eventually(|| (descriptors() > before).then(|| format!("{} descriptors, {before} before", descriptors())));
    let mut last = String::new();
    eventually(|| {
        let work = work();
        (std::mem::replace(&mut last, work.clone()) != work).then(|| format!("a thread does not sleep: {work}"))
    });
    honest.end(honest.pair());
}

#[test]
fn liars_harm_nobody() {
    // Reports that limits and held sockets are not tested without root.
    let _is_root = as_nobody(|| ());
    let mut tally = Tally::default();
    (0..40).for_each(|seed| program(seed, &mut tally));
    assert!(tally.flood > FLOOD / 2, "the service has read no flood: {tally:?}");
    // Offers of liars are judged, although some of their sockets are held at times.
    assert!([tally.matched, tally.limit, tally.twice].iter().all(|number| *number >= 50), "{tally:?}");
}

#[test]
#[ignore = "a minute: `cargo xtask proof long` runs it"]
fn many_liars_harm_nobody() {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (begun, limit) = (Instant::now(), Duration::from_secs(number("SECONDS").unwrap_or(60)));
    let mut tally = Tally::default();
    match number("SEED") {
        Some(seed) => program(seed, &mut tally),
        None => {
            (1000..).take_while(|_| begun.elapsed() < limit).for_each(|seed| program(seed, &mut tally));
        }
    }
    println!("{tally:?}");
}
