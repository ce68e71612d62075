//! Random orders of sends, arrivals, waits and receives over a set: a report is true, and nothing is left unread.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::sets::{Connection, FakeSet, world};
use crate::kernel::{Errno, Event, Kernel, RecvMode};
use crate::set::{EPOLLET, EPOLLIN, Member, Set};

/// Byte `i` of a stream is `i`.
fn pattern(from: u64, n: usize) -> Vec<u8> {
    (from..).map(|i| i as u8).take(n).collect()
}

struct Stream {
    connection: Connection,
    member: Arc<Member<super::fake::Fake>>,
    sent: Cell<u64>,
    got: Cell<u64>,
    /// A send is in the middle of its call.
    is_sending: Cell<bool>,
}

struct World {
    set: Arc<Set<super::fake::Fake>>,
    kernel: Arc<FakeSet>,
    streams: Vec<Stream>,
    random: Cell<u64>,
    events: u32,
    log: RefCell<Vec<String>>,
}

impl World {
    fn new(seed: u64, events: u32) -> Self {
        let (set, kernel) = world();
        kernel.is_edge_triggered.store(events & EPOLLET != 0, Ordering::Relaxed);
        let stream = |data| {
            let connection = Connection::new();
            let member = connection.enter(&set, &kernel, events, data);
            Stream { connection, member, sent: Cell::new(0), got: Cell::new(0), is_sending: Cell::new(false) }
        };
        let streams = (0..4).map(stream).collect();
        World { set, kernel, streams, random: Cell::new(seed | 1), events, log: RefCell::default() }
    }

    /// xorshift64 (Marsaglia, Xorshift RNGs, 2003), multiplied.
    fn below(&self, n: usize) -> usize {
        let mut x = self.random.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        ((x.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize) % n
    }

    fn log(&self, what: String) {
        self.log.borrow_mut().push(what);
    }

    fn step(&self, depth: u32) {
        let i = self.below(self.streams.len());
        let stream = &self.streams[i];
        match self.below(8) {
            0 | 1 => self.send(i),
            2 if depth < 2 => self.send_by_kernel(i, depth),
            2 | 3 => {
                let n = 1 + self.below(20);
                self.log(format!("{i}: {n} late bytes arrive"));
                stream.connection.forth.deliver(n);
            }
            4 => {
                self.receive(i, false);
            }
            5 if self.below(4) == 0 => {
                self.log(format!("{i}: is registered again"));
                self.set.change(&*self.kernel, &stream.member, self.events, i as u64).unwrap();
            }
            _ => self.wait(Some(self.below(2) as u64 * 1000)),
        }
        self.kernel.now_ns.fetch_add(self.below(20_000) as u64, Ordering::Relaxed);
    }

    fn send(&self, i: usize) {
        let stream = &self.streams[i];
        if stream.is_sending.get() {
            return;
        }
        let (n, is_late) = (1 + self.below(20), self.below(3) == 0);
        stream.connection.forth.set_late(is_late);
        let bytes = pattern(stream.sent.get(), n);
        assert_eq!(stream.connection.a.send(&bytes, false), Ok(n));
        stream.sent.set(stream.sent.get() + n as u64);
        self.log(format!("{i}: sends {n}, late {is_late}: {:?}", stream.connection.a.words()[0]));
    }

    /// A call that hands bytes to the kernel in two parts, with other steps in between, and counts
    /// them when it returns.
    fn send_by_kernel(&self, i: usize, depth: u32) {
        let stream = &self.streams[i];
        if stream.is_sending.replace(true) {
            return;
        }
        let parts = [1 + self.below(10), self.below(10)];
        let sent = stream.connection.a.send_by_kernel(false, |kernel| {
            for n in parts {
                let is_late = self.below(3) == 0;
                stream.connection.forth.set_late(is_late);
                self.log(format!("{i}: hands over {n}, late {is_late}"));
                kernel.send(&pattern(stream.sent.get(), n), false)?;
                stream.sent.set(stream.sent.get() + n as u64);
                for _ in 0..self.below(4) {
                    self.step(depth + 1);
                }
            }
            Ok(parts.iter().sum())
        });
        assert_eq!(sent, Ok(parts.iter().sum()));
        self.log(format!("{i}: has handed over: {:?}", stream.connection.a.words()[0]));
        stream.is_sending.set(false);
    }

    /// One receive. `reported`: it must not say EAGAIN. Returns whether the socket may have more.
    fn receive(&self, i: usize, reported: bool) -> bool {
        let stream = &self.streams[i];
        let mut piece = vec![0; 1 + self.below(40)];
        let reported = reported || stream.connection.b.unread().unwrap() > 0;
        let result = stream.connection.b.recv(&mut piece, RecvMode::NOW);
        self.log(format!("{i}: receives {result:?} of {}: {:?}", piece.len(), stream.connection.b.words()[1]));
        match result {
            Ok(n) => {
                assert_eq!(piece[..n], pattern(stream.got.get(), n), "stream {i}");
                stream.got.set(stream.got.get() + n as u64);
                n == piece.len()
            }
            Err(error) => {
                assert!(error == Errno::AGAIN && !reported, "{i} was reported: {error}");
                false
            }
        }
    }

    /// One turn of the only reader.
    fn wait(&self, timeout_ns: Option<u64>) {
        let mut events = vec![Event::default(); 1 + self.below(5)];
        let n = self.set.wait(&*self.kernel, &mut events, timeout_ns).unwrap();
        let found: Vec<usize> = events[..n].iter().map(|event| event.data as usize).collect();
        self.log(format!("reported {found:?}"));
        for i in found {
            let mut is_first = true;
            while self.receive(i, is_first) && self.events & EPOLLET != 0 {
                is_first = false;
            }
        }
    }

    fn run(&self) {
        for _ in 0..120 {
            self.step(0);
        }
        for stream in &self.streams {
            stream.connection.forth.deliver(usize::MAX);
        }
        // FakeSet panics if a thread would sleep forever.
        while self.streams.iter().any(|stream| stream.got != stream.sent) {
            self.wait(None);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log.borrow();
            println!("{}", log[log.len().saturating_sub(60)..].join("\n"));
        }
    }
}

/// Miri runs a part.
const SEEDS: u64 = if cfg!(miri) { 4 } else { 3_000 };

#[test]
fn reported_sockets_have_bytes_level_triggered() {
    for seed in 1..=SEEDS {
        World::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15), EPOLLIN).run();
    }
}

#[test]
fn reported_sockets_have_bytes_edge_triggered() {
    for seed in 1..=SEEDS {
        World::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15), EPOLLIN | EPOLLET).run();
    }
}
