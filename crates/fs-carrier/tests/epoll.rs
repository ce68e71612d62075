//! A server in another process serves several connections with one epoll set.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;

use fs_carrier::Pacing;
use fs_carrier::kernel::{Errno, Event, RecvMode};
use fs_carrier::pair::Pair;
use fs_carrier::region::{End, Region, SideTable};
use fs_carrier::set::{EPOLLET, EPOLLIN, Set};
use fs_carrier::sys::{Epoll, Interrupter, Socket};
use rustix::event::epoll;

const RING: usize = 4096;
const PORT: &str = "FS_CARRIER_TEST_PORT";
const FILES: &str = "FS_CARRIER_TEST_FILES";
const CONNECTIONS: usize = 12;
const ROUNDS: usize = 400;

type Sock = Socket<TcpStream>;

fn promote(socket: TcpStream, file: &OwnedFd, end: End) -> Arc<Pair<Sock>> {
    socket.set_nodelay(true).expect("TCP_NODELAY");
    let side = SideTable::new(1).expect("memory").side(0).expect("a side");
    let region = Region::map(file, RING).expect("map");
    Arc::new(Pair::promote(Socket(socket), region, end, side, Pacing::USUAL).expect("promote"))
}

/// The server's process, started by the other test: sends back what comes, and reports at the end how it was carried.
#[test]
fn server() {
    let (Some(port), Some(files)) = (std::env::var_os(PORT), std::env::var(FILES).ok()) else { return };
    let port: u16 = port.to_str().expect("text").parse().expect("a port");
    let fd = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    let interrupter = Interrupter::default();
    let kernel = Epoll { fd: fd.as_fd(), interrupter: &interrupter, signals: None };
    let set = Set::new(Pacing::USUAL);
    let mut open = Vec::new();
    for (i, path) in files.split(',').enumerate() {
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("connect");
        let file: OwnedFd = std::fs::File::options().read(true).write(true).open(path).expect("a region").into();
        // Half of them edge-triggered.
        let events = if i % 2 == 0 { EPOLLIN } else { EPOLLIN | EPOLLET };
        epoll::add(&fd, &socket, epoll::EventData::new_u64(i as u64), epoll::EventFlags::from_bits_retain(events))
            .expect("epoll_ctl");
        let pair = promote(socket, &file, End::A);
        let member = set.add(&kernel, &pair, events, i as u64).expect("add");
        open.push(Some((pair, member)));
    }
    let (mut left, mut by_ring) = (open.len(), 0);
    while left > 0 {
        let mut events = [Event::default(); 5];
        let n = match set.wait(&kernel, &mut events, None) {
            Ok(n) => n,
            Err(Errno::INTR) => continue,
            Err(error) => panic!("{error}"),
        };
        assert!(n > 0);
        for event in &events[..n] {
            let i = event.data as usize;
            let Some((pair, member)) = &open[i] else { continue };
            let mut buffer = [0; 3000];
            loop {
                match pair.recv(&mut buffer, RecvMode::NOW) {
                    Ok(0) => {
                        set.remove(&kernel, member);
                        by_ring += pair.counts().ring_sends;
                        open[i] = None;
                        left -= 1;
                    }
                    Ok(n) => {
                        assert_eq!(pair.send(&buffer[..n], false), Ok(n));
                        // Like nginx: a short count says that nothing is left.
                        if n == buffer.len() {
                            continue;
                        }
                    }
                    Err(Errno::AGAIN) => {}
                    Err(error) => panic!("{error}"),
                }
                break;
            }
        }
    }
    println!("{by_ring} by the ring");
}

#[test]
fn server_with_an_epoll_set_answers_every_byte() {
    // On a busy machine both ends may sleep for each message, and the ring is not tested.
    assert!((0..10).any(|_| one_server() > 0), "the ring was never used");
}

/// Returns the number of messages that used a ring.
fn one_server() -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let regions: Vec<OwnedFd> = (0..CONNECTIONS).map(|_| Region::create("epoll", RING).expect("memfd")).collect();
    let path = |file: &OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut server = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "server", "--nocapture"])
        .env(PORT, port.to_string())
        .env(FILES, regions.iter().map(path).collect::<Vec<_>>().join(","))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server");
    let pairs: Vec<_> =
        regions.iter().map(|file| promote(listener.accept().expect("accept").0, file, End::B)).collect();
    std::thread::scope(|scope| {
        for clients in [&pairs[..1], &pairs[1..]] {
            scope.spawn(|| clients_of(clients));
        }
    });
    for pair in &pairs {
        pair.before_shutdown_send();
        pair.kernel().0.shutdown(std::net::Shutdown::Write).expect("shutdown");
    }
    let mut said = String::new();
    server.stdout.take().expect("its output").read_to_string(&mut said).expect("read");
    assert!(server.wait().expect("wait").success(), "{said}");
    let by_server: Option<u64> = said.lines().find_map(|line| line.strip_suffix(" by the ring")?.parse().ok());
    by_server.expect("what the server did") + pairs.iter().map(|pair| pair.counts().ring_sends).sum::<u64>()
}

/// Sends to several connections at once, and compares what comes back.
fn clients_of(pairs: &[Arc<Pair<Sock>>]) {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut buffer = vec![0; 10_000];
    for round in 0..ROUNDS {
        let texts: Vec<Vec<u8>> = pairs
            .iter()
            .map(|pair| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let n = if random.is_multiple_of(7) { 1 + random % 6000 } else { 1 + random % 90 };
                let text: Vec<u8> = (0..n).map(|i| (random >> (i % 40)) as u8).collect();
                assert_eq!(pair.send(&text, false), Ok(text.len()));
                text
            })
            .collect();
        for (pair, text) in pairs.iter().zip(&texts) {
            let mut at = 0;
            while at < text.len() {
                let n = pair.recv(&mut buffer[at..text.len()], RecvMode::WAIT).expect("recv");
                assert!(n > 0, "the end in round {round}");
                at += n;
            }
            assert_eq!(buffer[..at], text[..], "round {round}");
        }
        if round % 50 == 0 {
            // The server sleeps.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

/// The descriptor of an interruption is closed after it.
#[test]
fn interruption_wakes_a_sleeper_and_ends() {
    use fs_carrier::kernel::KernelSet;
    let fd = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    let interrupter = Interrupter::default();
    let kernel = Epoll { fd: fd.as_fd(), interrupter: &interrupter, signals: None };
    let mut events = [Event::default(); 2];
    assert_eq!(kernel.wait(&mut events, Some(2_000_000)), Ok(0));
    kernel.interrupt().expect("interrupt");
    assert_eq!(kernel.wait(&mut events, None), Ok(1));
    assert!(kernel.is_interrupt(events[0].data));
    kernel.end_interrupt();
    assert_eq!(kernel.wait(&mut events, Some(0)), Ok(0));
}
