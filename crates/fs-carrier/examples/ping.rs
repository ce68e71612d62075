//! Round trips and one-way copies by the carrier, compared with raw shared memory and the kernel's
//! sockets in the same run.
//!
//! `cargo run --release -p fs-carrier --example ping [-- --ms 500] [--only "8 B one way"] [--locks]`

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use fs_carrier::Pacing;
use fs_carrier::kernel::{Kernel, RecvMode};
use fs_carrier::pair::Pair;
use fs_carrier::region::{End, Region, SideTable};
use fs_carrier::sys::{Socket, now_ns};

const RING: usize = 256 << 10;

type Sock = Socket<TcpStream>;

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let a = TcpStream::connect(listener.local_addr().expect("its address")).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    for socket in [&a, &b] {
        socket.set_nodelay(true).expect("TCP_NODELAY");
    }
    (a, b)
}

fn pairs(pacing: Pacing) -> (Pair<Sock>, Pair<Sock>) {
    let (a, b) = connection();
    let file: OwnedFd = Region::create("ping", RING).expect("memfd");
    let sides = SideTable::new(2).expect("memory");
    let end = |socket, end, i| {
        let region = Region::map(&file, RING).expect("map");
        Pair::promote(Socket(socket), region, end, sides.side(i).expect("two sides"), pacing).expect("promote")
    };
    (end(a, End::A, 0), end(b, End::B, 1))
}

fn pin_to(cpu: usize) {
    run_on(&[cpu]);
}

/// A new thread inherits its parent's affinity, so it starts on both processors and then chooses
/// one.
fn run_on(cpus: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    rustix::thread::sched_setaffinity(None, &set).expect("a processor");
}

/// A transport for the bytes.
trait Stream: Send + 'static {
    fn put(&self, bytes: &[u8]);
    /// Returns false at the end.
    fn fill(&self, into: &mut [u8]) -> bool;
    fn end(&self);
    fn counts(&self) -> String {
        String::new()
    }
}

impl Stream for Pair<Sock> {
    fn put(&self, bytes: &[u8]) {
        assert_eq!(self.send(bytes, false), Ok(bytes.len()));
    }
    fn fill(&self, into: &mut [u8]) -> bool {
        let mut at = 0;
        while at < into.len() {
            match self.recv(&mut into[at..], RecvMode::WAIT) {
                Ok(0) => return false,
                Ok(n) => at += n,
                Err(error) => panic!("{error}"),
            }
        }
        true
    }
    fn end(&self) {
        self.before_shutdown_send();
        self.kernel().0.shutdown(std::net::Shutdown::Write).expect("shutdown");
    }
    fn counts(&self) -> String {
        let c = self.counts();
        format!(
            "ring {} kernel {} full {} to ring {} back {} sleeps {}",
            c.ring_sends, c.kernel_sends, c.full, c.to_ring, c.to_kernel, c.sleeps
        )
    }
}

impl Stream for Sock {
    fn put(&self, bytes: &[u8]) {
        assert_eq!(Kernel::send(self, bytes, false), Ok(bytes.len()));
    }
    fn fill(&self, into: &mut [u8]) -> bool {
        let mut at = 0;
        while at < into.len() {
            match Kernel::recv(self, &mut into[at..], RecvMode::WAIT) {
                Ok(0) => return false,
                Ok(n) => at += n,
                Err(error) => panic!("{error}"),
            }
        }
        true
    }
    fn end(&self) {
        self.0.shutdown(std::net::Shutdown::Write).expect("shutdown");
    }
}

fn round_trips(name: &str, (a, b): (impl Stream, impl Stream), size: usize, cpus: [usize; 2], ms: u64) {
    run_on(&[0, 1]);
    let echo = thread::spawn(move || {
        pin_to(cpus[1]);
        let mut buffer = vec![0; size];
        while b.fill(&mut buffer) {
            b.put(&buffer);
        }
    });
    thread::sleep(std::time::Duration::from_millis(2));
    pin_to(cpus[0]);
    let mut buffer = vec![1; size];
    let batch = if size <= 64 { 100 } else { 4 };
    let mut times = Vec::with_capacity(1 << 20);
    let start = now_ns();
    let mut before = start;
    while before - start < ms * 1_000_000 {
        for _ in 0..batch {
            a.put(&buffer);
            assert!(a.fill(&mut buffer));
        }
        let now = now_ns();
        times.push((now - before) as f64 / f64::from(batch) / 1000.0);
        before = now;
    }
    a.end();
    echo.join().expect("the echo");
    let n = times.len() as f64 * f64::from(batch);
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{name:<34} {} CPU: p50 {:8.3} us  p1 {:8.3}  p99 {:8.3}  n {n:9.0}  {}",
        1 + usize::from(cpus[0] != cpus[1]),
        at(0.5),
        at(0.01),
        at(0.99),
        a.counts()
    );
}

fn one_way(name: &str, (a, b): (impl Stream, impl Stream), size: usize, cpus: [usize; 2], ms: u64) {
    run_on(&[0, 1]);
    let reader = thread::spawn(move || {
        pin_to(cpus[1]);
        let mut buffer = vec![0; size];
        while b.fill(&mut buffer) {}
        b.counts()
    });
    thread::sleep(std::time::Duration::from_millis(2));
    pin_to(cpus[0]);
    let buffer = vec![1; size];
    let (start, mut n) = (now_ns(), 0_u64);
    while now_ns() - start < ms * 1_000_000 {
        for _ in 0..16 {
            a.put(&buffer);
        }
        n += 16;
    }
    a.end();
    let reader = reader.join().expect("the reader");
    let seconds = (now_ns() - start) as f64 / 1e9;
    println!(
        "{name:<34} 2 CPU: {:8.3} GB/s  {:8.3} M/s  {}; reader {reader}",
        (n * size as u64) as f64 / seconds / 1e9,
        n as f64 / seconds / 1e6,
        a.counts()
    );
}

fn raw(ms: u64) {
    #[repr(align(128))]
    struct Line(AtomicU64);
    static LINES: [Line; 2] = [Line(AtomicU64::new(0)), Line(AtomicU64::new(0))];
    let echo = thread::spawn(|| {
        pin_to(1);
        let mut last = 0;
        while last != u64::MAX {
            let seen = LINES[0].0.load(Ordering::Acquire);
            if seen == last {
                std::hint::spin_loop();
                continue;
            }
            last = seen;
            LINES[1].0.store(seen, Ordering::Release);
        }
    });
    pin_to(0);
    let mut times = Vec::new();
    let start = now_ns();
    let (mut before, mut i) = (start, 0);
    while before - start < ms * 1_000_000 {
        for _ in 0..100 {
            i += 1;
            LINES[0].0.store(i, Ordering::Release);
            while LINES[1].0.load(Ordering::Acquire) != i {
                std::hint::spin_loop();
            }
        }
        let now = now_ns();
        times.push((now - before) as f64 / 100_000.0);
        before = now;
    }
    LINES[0].0.store(u64::MAX, Ordering::Release);
    echo.join().expect("the echo");
    times.sort_by(f64::total_cmp);
    println!("{:<34} 2 CPU: p50 {:8.3} us", "raw words in shared memory", times[times.len() / 2]);
}

fn kernel() -> (Sock, Sock) {
    let (a, b) = connection();
    (Socket(a), Socket(b))
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let ms = arguments.iter().position(|a| a == "--ms").and_then(|i| arguments.get(i + 1)?.parse().ok()).unwrap_or(500);
    let only =
        arguments.iter().position(|a| a == "--only").and_then(|i| arguments.get(i + 1)).map_or("", String::as_str);
    // Each end is used by one thread, as in two programs without threads.
    fs_carrier::sys::set_only_thread(!arguments.iter().any(|a| a == "--locks"));
    let (two, one) = ([0, 1], [0, 0]);
    let spin_ns = fs_carrier::sys::wake_up_ns().expect("a wake-up");
    let (spin, yields) = (Pacing { spin_ns, ..Pacing::SPIN }, Pacing::YIELD);
    println!("wake-up {:.1} us", f64::from(spin_ns) / 1000.0);
    raw(ms);
    for (size, name, cpus) in [(8, "8 B", two), (8, "8 B", one), (4096, "4 KiB", two), (65536, "64 KiB", two)] {
        let title = format!("{name} round trip");
        if title.contains(only) {
            let pacing = if cpus == one { yields } else { spin };
            round_trips(&format!("{title}, carrier"), pairs(pacing), size, cpus, ms);
            round_trips(&format!("{title}, kernel"), kernel(), size, cpus, ms);
        }
    }
    for (size, name) in [(8, "8 B"), (65536, "64 KiB")] {
        let title = format!("{name} one way");
        if title.contains(only) {
            one_way(&format!("{title}, carrier"), pairs(spin), size, two, ms);
            one_way(&format!("{title}, kernel"), kernel(), size, two, ms);
        }
    }
}
