//! Random programs that lie to the broker, next to one that shares the device: requests with changed
//! bytes, out of order, with descriptors that are missing, too many or of another kind, and disconnects
//! at every step. The other program's bytes are right, the daemon answers, and nothing is left. Needs
//! root.
//!
//! A failure prints its seed: `SEED=N cargo test -p fs-cli --test shared_liars -- --include-ignored`
//! plays that one alone. SECONDS sets the duration of the long test (60).

#[path = "shared/lab.rs"]
mod lab;
#[allow(dead_code, reason = "shared with the test of frames")]
#[path = "shared/liar.rs"]
mod liar;
#[allow(dead_code, reason = "shared with the test of frames")]
#[path = "shared/rings_unsafe.rs"]
mod rings_unsafe;
#[path = "shared/role.rs"]
mod role;

use fs_core::Protocol;
use fs_rt::broker::message::{Answer, LEN, Request};
use fs_xdp::Umem;
use lab::{DEVICE, Lab};
use liar::{MEMORY, RINGS, attach, call, greet};
use rustix::io::IoSlice;
use rustix::net::sockopt::{Timeout, set_socket_linger, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn program() {
    role::play();
}

fn eventually(mut wrong: impl FnMut() -> Option<String>) {
    let end = Instant::now() + PATIENCE;
    while let Some(wrong) = wrong() {
        assert!(Instant::now() < end, "{wrong}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Connects to the daemon as a user without rights.
fn connect(lab: &Lab) -> OwnedFd {
    let open = || {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        greet(lab)
    };
    std::thread::scope(|scope| scope.spawn(open).join().unwrap())
}

fn send(control: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(160))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || message.push(SendAncillaryMessage::ScmRights(fds)));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    // The broker may have closed the connection.
    let _sent = rustix::net::sendmsg(control, &[IoSlice::new(bytes)], &mut message, flags);
}

/// Descriptors of all kinds. The close of the second one blocks until the first one is closed, which is
/// never sent.
fn descriptors(lab: &Lab) -> Vec<OwnedFd> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stays = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    set_socket_linger(&stays, Some(Duration::from_secs(3600))).unwrap();
    stays.set_nonblocking(true).unwrap();
    while stays.write(&[0; 1 << 16]).is_ok() {}
    let mut all: Vec<OwnedFd> = vec![other.into(), stays.into(), listener.into()];
    all.extend((0..3).map(|_| Umem::in_file(MEMORY).unwrap().1));
    all.extend((7002..7006).map(|port| UdpSocket::bind(("0.0.0.0", port)).unwrap().into()));
    all.extend((7002..7004).map(|port| TcpListener::bind(("0.0.0.0", port)).unwrap().into()));
    all.push(UdpSocket::bind("127.0.0.1:7010").unwrap().into());
    // Of another namespace, at the neighbour's port.
    all.push(lab.peer.enter(|| UdpSocket::bind("0.0.0.0:7001").unwrap().into()));
    all.push(std::fs::File::open("/dev/null").unwrap().into());
    let file = rustix::fs::memfd_create("liar", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 1 << 20).unwrap();
    all.push(file);
    all.push(std::os::unix::net::UnixStream::pair().unwrap().0.into());
    all.push(connect(lab));
    all
}

/// Slots with their tokens, which the daemon has given to the liars.
type Tokens = Vec<(u16, [u64; 2])>;

fn draw_message(tokens: &Tokens, random: &mut fastrand::Rng) -> Vec<u8> {
    let addresses = ["10.91.0.1", "0.0.0.0", "127.0.0.1", "::", "fd91::1", "10.91.0.2", "224.0.0.1"];
    let ports = [0, 80, 7001, 7002, 7003, 7004, 7010, 65_535];
    let ip = addresses[random.usize(..7)].parse().unwrap();
    let at = SocketAddr::new(ip, ports[random.usize(..8)]);
    let protocol = if random.bool() { Protocol::Tcp } else { Protocol::Udp };
    let request = match random.u8(..16) {
        0 => Request::Device(if random.bool() { DEVICE.into() } else { "x".repeat(random.usize(..150)) }),
        1 => attach(),
        2 => {
            let (mut memory, mut rings) = (MEMORY, RINGS);
            let odd = [0, 1, 3, 1 << 20, u32::MAX][random.usize(..5)];
            *[&mut memory.chunks, &mut memory.chunk_size, &mut rings.rx, &mut rings.fill, &mut rings.lent]
                [random.usize(..5)] = odd;
            Request::Attach { name: DEVICE.into(), queues: random.u32(..70), memory, rings, segments: random.bool() }
        }
        3..=5 => Request::Bind { protocol, at, v6_only: random.bool() },
        6..=9 => Request::Lease,
        10..=12 => Request::Release { protocol, at },
        13 | 14 => match random.choice(tokens).filter(|_| random.u8(..4) > 0) {
            Some((slot, token)) => Request::Resume { slot: *slot, token: *token },
            None => Request::Resume { slot: random.u16(..4), token: [random.u64(..), random.u64(..2)] },
        },
        _ => Request::Resumed,
    };
    let mut bytes = request.encode().to_vec();
    match random.u8(..12) {
        0 => bytes[random.usize(..LEN)] ^= 1 << random.u8(..8),
        1 => bytes.truncate(random.usize(..LEN)),
        2 => bytes.resize(random.usize(LEN..2 * LEN), random.u8(..)),
        3 => bytes[8..].iter_mut().for_each(|byte| *byte = random.u8(..)),
        _ => {}
    }
    bytes
}

fn step(lab: &Lab, liars: &mut Vec<OwnedFd>, tokens: &mut Tokens, kinds: &[OwnedFd], random: &mut fastrand::Rng) {
    if liars.is_empty() || random.u8(..8) == 0 {
        liars.push(connect(lab));
        return;
    }
    let n = random.usize(..liars.len());
    match random.u8(..12) {
        0 => drop(liars.swap_remove(n)),
        1 => drop(rustix::net::shutdown(&liars[n], rustix::net::Shutdown::Write)),
        2..=4 => {
            // With the descriptors in them, which are closed.
            let mut bytes = [0; LEN];
            while rustix::net::recv(&liars[n], &mut bytes[..], RecvFlags::DONTWAIT).is_ok_and(|(n, _)| n > 0) {
                if let Some(Answer::Attached { slot, token, .. }) = Answer::decode(&bytes) {
                    tokens.push((slot, token));
                }
            }
        }
        5 => {
            // A pair, and leases for it.
            let memory = kinds[3 + random.usize(..3)].as_fd();
            send(&liars[n], &attach().encode(), &[memory]);
            send(&liars[n], &Request::Lease.encode(), &[kinds[6 + random.usize(..6)].as_fd()]);
        }
        _ => {
            let count = [0, 1, 1, 1, 1, 2, random.usize(..150)][random.usize(..7)];
            let fds: Vec<_> = (0..count).map(|_| kinds[random.usize(1..kinds.len())].as_fd()).collect();
            send(&liars[n], &draw_message(tokens, random), &fds);
        }
    }
}

/// The daemon's descriptors.
fn open_in(daemon: u32) -> usize {
    std::fs::read_dir(format!("/proc/{daemon}/fd")).map_or(0, Iterator::count)
}

/// Changes while a thread of the daemon runs.
fn work(daemon: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap().flatten();
    tasks.map(|task| std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default()).collect()
}

fn program_of(lab: &Lab, daemon: u32, seed: u64) {
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let honest = greet(lab);
    set_socket_timeout(&honest, Timeout::Recv, Some(PATIENCE)).unwrap();
    let is_served = || matches!(call(&honest, &Request::Device(DEVICE.into()), &[]).0, Answer::Device(_));
    assert!(is_served());
    let (before, pairs) = (open_in(daemon), lab.pairs());
    let (kinds, mut liars, mut tokens) = (descriptors(lab), Vec::new(), Vec::new());
    for number in 0..random.usize(40..120) {
        step(lab, &mut liars, &mut tokens, &kinds, &mut random);
        if number % 8 == 0 {
            assert!(is_served());
        }
        if number % 40 == 0 {
            lab.echoes(7001, 10_000);
        }
    }
    assert!(is_served());
    lab.echoes(7001, 10_000);
    drop((liars, kinds));
    lab.wait_for_pairs(pairs);
    eventually(|| {
        let now = open_in(daemon);
        (now > before).then(|| format!("the daemon has {now} descriptors, not {before}"))
    });
    let mut last = String::new();
    eventually(|| {
        let work = work(daemon);
        (std::mem::replace(&mut last, work.clone()) != work).then(|| format!("the daemon does not sleep: {work}"))
    });
}

fn programs(seeds: impl Iterator<Item = u64> + Send) {
    let Some(lab) = Lab::up("liars") else { return };
    let daemon = lab.daemon();
    let neighbour = lab.program(&lab.host, 65_533, "serve 7001");
    lab.host.enter(|| {
        // What the first programs make the daemon open stays open.
        drop(liar::Liar::new(&lab));
        lab.wait_for_pairs(1);
        seeds.for_each(|seed| program_of(&lab, daemon.pid(), seed));
    });
    drop(neighbour);
    lab.wait_for_pairs(0);
    // If the kernel has removed the pair, the daemon frees its slot later.
    eventually(|| Some(lab.listed()).filter(|rows| !rows.is_empty()).map(|rows| format!("{rows:?}")));
    drop(daemon);
    lab.down();
}

#[test]
fn liars_harm_no_program() {
    programs(0..2);
}

#[test]
#[ignore = "a minute: `cargo xtask proof long` runs it"]
fn many_liars_harm_no_program() {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (begun, limit) = (Instant::now(), Duration::from_secs(number("SECONDS").unwrap_or(60)));
    let seeds = number("SEED").map_or(1000..u64::MAX, |seed| seed..seed + 1);
    programs(seeds.take_while(|_| begun.elapsed() < limit));
}
