//! Every order and every memory order that the language allows (loom): `cargo xtask proof loom`, or
//! `RUSTFLAGS="--cfg loom" cargo test -p fs-carrier --release --lib orders`.
//!
//! The functions are the real ones; ring bytes are cells whose races loom reports. A lost wake-up
//! is a deadlock, which loom reports too.

use loom::thread;

use super::fake::{Fake, Pipe};
use crate::crowd::Crowd;
use crate::kernel::{Errno, Event, KernelSet, Machine, RecvMode, Registration};
use crate::pair::Pair;
use crate::region::{End, Region, SideRef};
use crate::set::{EPOLLET, EPOLLIN, Set};
use crate::spin::Pacing;

/// A spin is one check.
const PACING: Pacing = Pacing { spin_ns: 1, room_ns: 0, yields: 1, is_eager: false, crowd: None };

/// The processors are wanted by others, so no end waits for room.
static CROWD: Crowd = Crowd::new();
const CROWDED: Pacing = Pacing { crowd: Some(&CROWD), ..PACING };

fn pairs() -> (Pair<Fake>, Pair<Fake>, std::sync::Arc<Pipe>) {
    pairs_of(8, PACING)
}

/// With rings of this many bytes.
fn pairs_of(ring: usize, pacing: Pacing) -> (Pair<Fake>, Pair<Fake>, std::sync::Arc<Pipe>) {
    let (forth, back) = (Pipe::new(), Pipe::new());
    let region = Region::new(ring);
    let a = Fake { outgoing: forth.clone(), incoming: back.clone(), thread: 1 };
    let b = Fake { outgoing: back, incoming: forth.clone(), thread: 2 };
    let promote = |kernel, end| Pair::promote(kernel, region.clone(), end, SideRef::new(), pacing).unwrap();
    (promote(a, End::A), promote(b, End::B), forth)
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Messages of two bytes: without `inline`, of three on a ring that is not empty.
fn receives_in_order(start_with_ring: bool) {
    check(move || {
        let (a, b, forth) = pairs();
        if start_with_ring {
            assert!(b.consumer().set_ring());
        }
        let sender = thread::spawn(move || {
            assert_eq!(a.send(&[1, 2], false), Ok(2));
            assert_eq!(a.send(&[3], false), Ok(1));
            a.before_shutdown_send();
            forth.end();
        });
        let mut got = Vec::new();
        loop {
            let mut piece = [0; 2];
            match b.recv(&mut piece, RecvMode::WAIT).unwrap() {
                0 => break,
                n => got.extend_from_slice(&piece[..n]),
            }
        }
        assert_eq!(got, [1, 2, 3]);
        sender.join().unwrap();
    });
}

#[test]
fn receives_in_order_from_the_kernel() {
    receives_in_order(false);
}

#[test]
fn receives_in_order_from_the_ring() {
    receives_in_order(true);
}

/// P3: the ring fills, so the last bytes are the kernel's. `call` is what the receiver does first.
/// A sender that yields lets loom run the receiver at that point only, so it does not wait for room.
fn keeps_order_over_a_full_ring(unread: u8, call: impl Fn(&Pair<Fake>, &mut Vec<u8>) + Send + Sync + 'static) {
    // More than the ring has room for, and than stands in the word's line.
    const ALL: u8 = 80;
    // Two lost slices. The time of the machine stays 0, in the pause.
    assert!(CROWD.has_spun(0, 4_000_000) && CROWD.has_spun(4_000_000, 8_000_000));
    check(move || {
        let (a, b, _forth) = pairs_of(64, CROWDED);
        assert!(b.consumer().set_ring());
        if unread > 0 {
            let first: Vec<u8> = (0..unread).collect();
            assert_eq!(a.send(&first, false), Ok(first.len()));
        }
        let sender = thread::spawn(move || {
            let rest: Vec<u8> = (unread..ALL).collect();
            assert_eq!(a.send(&rest, false), Ok(rest.len()));
            a
        });
        let mut got = Vec::new();
        call(&b, &mut got);
        let _a = sender.join().unwrap();
        while got.len() < ALL.into() {
            receive(&b, &mut got);
        }
        assert!(got.iter().copied().eq(0..ALL), "{got:?}");
    });
}

fn receive(b: &Pair<Fake>, got: &mut Vec<u8>) {
    let mut piece = [0; 60];
    if let Ok(n) = b.recv(&mut piece, RecvMode::NOW) {
        got.extend_from_slice(&piece[..n]);
    }
}

#[test]
fn receives_in_order_while_the_ring_fills() {
    keeps_order_over_a_full_ring(0, receive);
    keeps_order_over_a_full_ring(20, receive);
}

#[test]
fn pins_in_order_while_the_ring_fills() {
    keeps_order_over_a_full_ring(20, |b, _| b.pin());
}

#[test]
fn sleeper_in_poll_is_woken_by_the_kernel() {
    check(|| {
        let (a, b, _forth) = pairs();
        assert!(b.consumer().set_ring());
        let sender = thread::spawn(move || assert_eq!(a.send(&[1], false), Ok(1)));
        if let Some(asleep) = b.before_sleep() {
            // The kernel's own wait: it has to end.
            let mut byte = [0];
            assert_eq!(
                crate::kernel::Kernel::recv(b.kernel(), &mut byte, RecvMode { peek: true, ..RecvMode::WAIT }),
                Ok(1)
            );
            drop(asleep);
        }
        let mut byte = [0];
        assert_eq!(b.recv(&mut byte, RecvMode::NOW), Ok(1));
        sender.join().unwrap();
    });
}

/// The kernel's set of one socket: level-triggered.
struct OneSocket {
    socket: std::sync::Arc<Pipe>,
    now_ns: std::sync::atomic::AtomicU64,
}

impl Machine for OneSocket {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn pause(&self) {
        thread::yield_now();
    }

    // Time passes, or a spin would not end.
    fn yield_now(&self) {
        self.now_ns.fetch_add(10_000, std::sync::atomic::Ordering::Relaxed);
        thread::yield_now();
    }

    fn thread(&self) -> u32 {
        2
    }

    fn is_gone(&self, _thread: u32) -> bool {
        false
    }
}

impl KernelSet for OneSocket {
    fn wait(&self, into: &mut [Event], timeout_ns: Option<u64>) -> Result<usize, Errno> {
        let is_readable = if timeout_ns.is_none() { self.socket.wait_readable() } else { self.socket.is_readable() };
        into[0] = Event { events: EPOLLIN, data: 0 };
        Ok(usize::from(is_readable))
    }

    fn interrupt(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn end_interrupt(&self) {}

    fn disarm(&self, _descriptor: i32, _data: u64) {}

    fn register(&self, _registration: Registration) {}

    fn has_nothing(&self) -> bool {
        !self.socket.is_readable()
    }

    fn is_interrupt(&self, _data: u64) -> bool {
        false
    }
}

#[test]
fn sleeper_in_a_set_is_woken_by_the_kernel() {
    check(|| {
        let (a, b, forth) = pairs();
        let (b, kernel) = (std::sync::Arc::new(b), OneSocket { socket: forth, now_ns: 0.into() });
        let set = Set::new(PACING);
        let member = set.add(&kernel, &b, EPOLLIN, 0).unwrap();
        assert!(b.try_set_ring());
        let sender = thread::spawn(move || {
            assert_eq!(a.send(&[1], false), Ok(1));
            assert_eq!(a.send(&[2], false), Ok(1));
        });
        let mut got = Vec::new();
        while got.len() < 2 {
            let mut events = [Event::default()];
            assert_eq!(set.wait(&kernel, &mut events, None), Ok(1));
            let mut piece = [0; 2];
            if let Ok(n) = b.recv(&mut piece, RecvMode::NOW) {
                got.extend_from_slice(&piece[..n]);
            }
        }
        assert_eq!(got, [1, 2]);
        set.remove(&kernel, &member);
        sender.join().unwrap();
    });
}

/// The peer sends as the ring begins to carry: an edge-triggered set reports those bytes.
#[test]
fn edge_comes_for_bytes_that_are_sent_as_the_ring_begins_to_carry() {
    check(|| {
        let (a, b, forth) = pairs();
        let (b, kernel) = (std::sync::Arc::new(b), OneSocket { socket: forth, now_ns: 0.into() });
        let set = Set::new(PACING);
        let member = set.add(&kernel, &b, EPOLLIN | EPOLLET, 0).unwrap();
        let sender = thread::spawn(move || {
            assert_eq!(a.send(&[1], false), Ok(1));
            a
        });
        b.try_set_ring();
        let _a = sender.join().unwrap();
        assert_eq!(set.wait(&kernel, &mut [Event::default()], Some(0)), Ok(1));
        assert_eq!(b.recv(&mut [0; 2], RecvMode::NOW), Ok(1));
        set.remove(&kernel, &member);
    });
}
