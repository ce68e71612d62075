//! One seeded round: a promoted connection over a real TCP socket, both ends of which send and receive at random.
//!
//! A byte that is wrong panics with the seed. A round that stands still for [`HUNG`] ends the process.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fs_carrier::Pacing;
use fs_carrier::counters::Counts;
use fs_carrier::kernel::{Errno, Kernel, RecvMode};
use fs_carrier::pair::Pair;
use fs_carrier::region::{End, Region, SideTable};
use fs_carrier::sys::Socket;

type Sock = Socket<TcpStream>;

/// A round takes well under a second.
const HUNG: Duration = Duration::from_secs(60);

/// What rounds have done.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Bytes received and compared.
    pub bytes: u64,
    /// What the ends counted.
    pub counts: Counts,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Outcome) {
        self.bytes += other.bytes;
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

struct Side {
    pair: Pair<Sock>,
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
                0 => self.pair.send_by_kernel(|kernel| kernel.send(&piece, false)),
                1..4 => self.pair.send(&piece, true),
                _ => self.pair.send(&piece, false),
            };
            match sent {
                Ok(n) => at += n as u64,
                Err(Errno::AGAIN) => thread::sleep(Duration::from_micros(50)),
                Err(error) => panic!("seed {}: send: {error}", self.seed),
            }
            match random.next(400) {
                0 => thread::sleep(Duration::from_micros(random.next(400))),
                1..20 => (0..random.next(2000)).for_each(|_| std::hint::spin_loop()),
                20..24 => thread::yield_now(),
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
        let from = 1 - self.direction;
        let mut buffer = vec![0; 70_000];
        while !self.ended.load(Ordering::Relaxed) {
            if random.one_in(30) {
                // Sleeps on the socket beside a thread that receives.
                if let Some(asleep) = self.pair.before_sleep() {
                    self.pair.kernel().wait_readable(1);
                    drop(asleep);
                }
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
                // A reader that does not use the library, on a socket that is asleep for it.
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
            match result {
                Ok(0) => {
                    assert_eq!(*received, bytes, "seed {}: end", self.seed);
                    self.ended.store(true, Ordering::Relaxed);
                }
                Ok(n) => {
                    self.compare(from, *received, &into[..n], bytes);
                    *received += n as u64;
                    self.progress.fetch_add(1, Ordering::Relaxed);
                }
                Err(Errno::AGAIN) => {}
                Err(error) => panic!("seed {}: recv: {error}", self.seed),
            }
            drop(received);
            match random.next(300) {
                0 => thread::sleep(Duration::from_micros(random.next(300))),
                1..20 => (0..random.next(2000)).for_each(|_| std::hint::spin_loop()),
                _ => {}
            }
        }
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

/// Runs one round with up to `bytes` in each direction.
pub(crate) fn round(seed: u64, bytes: u64) -> Outcome {
    let mut random = Random::new(seed, 1);
    let ring = 4096 << random.next(5);
    let pacing = if random.one_in(4) { Pacing::YIELD } else { Pacing::SPIN };
    let pacing = if random.one_in(2) { pacing } else { Pacing { room_ns: 0, ..pacing } };
    let (a, b) = connection();
    let file = Region::create("torture", ring).expect("memfd");
    let sides = SideTable::new(2).expect("memory");
    let progress = Arc::new(AtomicU64::new(0));
    let lengths = [1 + random.next(bytes), 1 + random.next(bytes)];
    let side = |socket, end, i: usize| Side {
        pair: Pair::promote(
            Socket(socket),
            Region::map(&file, ring).expect("map"),
            end,
            sides.side(i).expect("a side"),
            pacing,
        )
        .expect("promote"),
        seed,
        direction: i as u64,
        received: Mutex::new(0),
        ended: AtomicBool::new(false),
        progress: Arc::clone(&progress),
    };
    let ends = [side(a, End::A, 0), side(b, End::B, 1)];
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (i, end) in ends.iter().enumerate() {
            threads.push(scope.spawn(move || end.sender(lengths[i])));
            for salt in 0..2 {
                threads.push(scope.spawn(move || end.receiver(lengths[1 - i], salt)));
            }
        }
        let (over, ends, progress) = (&over, &ends, &progress);
        scope.spawn(move || {
            let (mut seen, mut since) = (0, Instant::now());
            while !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(2));
                let now = progress.load(Ordering::Relaxed);
                if now != seen {
                    (seen, since) = (now, Instant::now());
                } else if since.elapsed() > HUNG {
                    eprintln!("seed {seed}: hung; {:?} {:?}", ends[0].pair.words(), ends[1].pair.words());
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
    let mut outcome = Outcome { bytes: lengths[0] + lengths[1], counts: Counts::default() };
    for end in &ends {
        outcome.counts += end.pair.counts();
    }
    outcome
}
