//! A server and a client with many connections, each with one epoll set: requests of 40 bytes,
//! replies of 5 to 60, by the carrier and by the kernel's sockets in the same run.
//!
//! `cargo run --release -p fs-carrier --example epoll [-- --ms 500] [--connections 50] [--counts]`

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fs_carrier::Pacing;
use fs_carrier::counters::Counts;
use fs_carrier::kernel::{Errno, Event, Kernel, KernelSet, RecvMode};
use fs_carrier::pair::Pair;
use fs_carrier::region::{End, Region, SideTable};
use fs_carrier::set::{EPOLLIN, Member, Set};
use fs_carrier::sys::{Epoll, Interrupter, Socket, now_ns};
use rustix::event::epoll;

const RING: usize = 16 << 10;
const REQUEST: usize = 40;

type Sock = Socket<TcpStream>;

/// One end: its connections, and its set.
struct Ends {
    pairs: Vec<Arc<Pair<Sock>>>,
    fd: OwnedFd,
    interrupter: Interrupter,
    /// `None`: kernel sockets only.
    set: Option<Arc<Set<Sock>>>,
    members: Vec<Arc<Member<Sock>>>,
}

impl Ends {
    fn new(pairs: Vec<Pair<Sock>>, by_carrier: bool) -> Self {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        let set = by_carrier.then(|| Set::new(Pacing::SPIN));
        let pairs: Vec<_> = pairs.into_iter().map(Arc::new).collect();
        let mut ends = Ends { pairs, fd, interrupter: Interrupter::default(), set, members: Vec::new() };
        for (i, pair) in ends.pairs.iter().enumerate() {
            epoll::add(&ends.fd, &pair.kernel().0, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN)
                .expect("epoll_ctl");
            if let Some(set) = &ends.set {
                let member = set.add(&ends.kernel(), pair, EPOLLIN, i as u64).expect("add");
                ends.members.push(member);
            }
        }
        ends
    }

    fn kernel(&self) -> Epoll<'_> {
        Epoll { fd: self.fd.as_fd(), interrupter: &self.interrupter, signals: None }
    }

    fn wait(&self, events: &mut [Event]) -> usize {
        let timeout = Some(50_000_000);
        match &self.set {
            Some(set) => set.wait(&self.kernel(), events, timeout),
            None => self.kernel().wait(events, timeout),
        }
        .expect("epoll_wait")
    }

    fn recv(&self, i: usize, into: &mut [u8]) -> Result<usize, Errno> {
        match self.set {
            Some(_) => self.pairs[i].recv(into, RecvMode::NOW),
            None => self.pairs[i].kernel().recv(into, RecvMode::NOW),
        }
    }

    fn send(&self, i: usize, bytes: &[u8]) {
        let sent = match self.set {
            Some(_) => self.pairs[i].send(bytes, false),
            None => self.pairs[i].kernel().send(bytes, false),
        };
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// Calls `got` with the number of a connection and the received bytes.
    fn serve(&self, mut got: impl FnMut(usize, &[u8])) {
        let mut events = [Event::default(); 64];
        let mut buffer = vec![0; 16 << 10];
        let n = self.wait(&mut events);
        for event in &events[..n] {
            let i = event.data as usize;
            match self.recv(i, &mut buffer) {
                Ok(n) => got(i, &buffer[..n]),
                Err(error) => assert_eq!(error, Errno::AGAIN),
            }
        }
    }
}

fn run_on(cpus: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    rustix::thread::sched_setaffinity(None, &set).expect("a processor");
}

fn ends(connections: usize, by_carrier: bool) -> (Ends, Ends) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let sides = SideTable::new(2 * connections).expect("memory");
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for i in 0..connections {
        let a = TcpStream::connect(listener.local_addr().expect("its address")).expect("connect");
        let (b, _) = listener.accept().expect("accept");
        let file = Region::create("epoll", RING).expect("memfd");
        for (socket, end, all) in [(a, End::A, &mut clients), (b, End::B, &mut servers)] {
            socket.set_nodelay(true).expect("TCP_NODELAY");
            let region = Region::map(&file, RING).expect("map");
            let side = sides.side(2 * i + end as usize).expect("a side");
            all.push(Pair::promote(Socket(socket), region, end, side, Pacing::SPIN).expect("promote"));
        }
    }
    (Ends::new(clients, by_carrier), Ends::new(servers, by_carrier))
}

/// Returns the requests in a second.
fn run(connections: usize, by_carrier: bool, ms: u64) -> f64 {
    let (client, server) = ends(connections, by_carrier);
    let over = AtomicBool::new(false);
    run_on(&[0, 1]);
    thread::scope(|scope| {
        scope.spawn(|| {
            run_on(&[1]);
            let mut random = 1_u32;
            while !over.load(Ordering::Relaxed) {
                server.serve(|i, bytes| {
                    for _ in bytes.chunks(REQUEST) {
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let n = 5 + (random >> 16) as usize % 56;
                        let mut reply = [0; 60];
                        reply[0] = n as u8;
                        server.send(i, &reply[..n]);
                    }
                });
            }
        });
        thread::sleep(std::time::Duration::from_millis(2));
        run_on(&[0]);
        let mut left = vec![0_usize; connections];
        (0..connections).for_each(|i| client.send(i, &[0; REQUEST]));
        let (mut replies, start) = (0_u64, now_ns());
        let mut now = start;
        while now - start < ms * 1_000_000 {
            client.serve(|i, bytes| {
                if left[i] == 0 {
                    left[i] = usize::from(bytes[0]);
                }
                left[i] -= bytes.len();
                if left[i] == 0 {
                    replies += 1;
                    client.send(i, &[0; REQUEST]);
                }
            });
            now = now_ns();
        }
        over.store(true, Ordering::Relaxed);
        if by_carrier && std::env::args().any(|a| a == "--counts") {
            for ends in [&client, &server] {
                let mut all = Counts::default();
                ends.pairs.iter().for_each(|pair| all += pair.counts());
                println!("{all:?}");
            }
        }
        replies as f64 / (now - start) as f64 * 1e9
    })
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let option = |name: &str| -> Option<u64> {
        arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1)?.parse().ok())
    };
    let ms = option("--ms").unwrap_or(500);
    let chosen = option("--connections").map(|n| vec![n as usize]);
    for connections in chosen.unwrap_or_else(|| vec![1, 50, 400]) {
        let (kernel, carrier) = (run(connections, false, ms), run(connections, true, ms));
        println!(
            "{connections:5} connections: kernel {kernel:9.0}/s  carrier {carrier:9.0}/s  {:5.2} x",
            carrier / kernel
        );
    }
}
