//! What is told is what was sent: by the watched sides' own account, at any speed.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::arena::Memory;
use crate::bell::NoBells;
use crate::channel::{OpenArgs, Shutdown};

const GEOMETRY: Geometry = Geometry::SMALL;

fn byte(from: Side, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ from as u8
}

fn bytes(from: Side, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|at| byte(from, at)).collect()
}

struct Pair {
    memory: Memory,
    a: Arena,
    b: Arena,
}

impl Pair {
    fn new(captured: bool) -> Self {
        let memory = Arena::create("follow", GEOMETRY).unwrap();
        let map = |side| Arena::map(memory.of(side), GEOMETRY, side, &NoBells).unwrap();
        let (a, b) = (map(Side::A), map(Side::B));
        a.set_captured(captured);
        Pair { memory, a, b }
    }

    fn follow(&self, fresh: bool) -> Follow {
        Follow::new(self.memory.shared.as_fd(), GEOMETRY, fresh).unwrap()
    }

    fn open(&self) -> (Channel<'_>, Channel<'_>) {
        let (local, peer): (SocketAddr, SocketAddr) =
            ("127.0.0.1:7000".parse().unwrap(), "127.0.0.1:80".parse().unwrap());
        let args = OpenArgs { local: local.into(), peer: peer.into(), ..OpenArgs::default() };
        let a = Channel::open(&self.a, &args).unwrap();
        (a, Channel::accept(&self.b).unwrap())
    }
}

/// Checks what is told against what was sent, and counts.
#[derive(Default, Debug, PartialEq)]
struct Told {
    opened: usize,
    joined: usize,
    bytes: [u64; 2],
    gaps: [u64; 2],
    ends: Vec<Side>,
    resets: Vec<Side>,
    closed: Vec<bool>,
    order: Vec<Side>,
}

impl Told {
    /// Bytes of each direction are as `byte` has them, counted from the first of its connection.
    fn look(&mut self, follow: &mut Follow) -> bool {
        let mut at = HashMap::new();
        follow.look(&mut |connection, seen| match seen {
            Seen::Opened { addrs, joined } => {
                assert_eq!(addrs.map(|addr| addr.unwrap().port()), [7000, 80]);
                self.opened += 1;
                self.joined += usize::from(joined.is_some());
            }
            Seen::Bytes { from, at: first, bytes: seen } => {
                let next = at.entry((connection, from)).or_insert(first);
                assert_eq!(*next, first, "in order");
                *next += seen.len() as u64;
                for (byte_at, &seen) in (first..).zip(seen) {
                    assert_eq!(seen, byte(from, byte_at), "{from:?} {byte_at} of {connection:?}");
                }
                self.bytes[from.index()] += seen.len() as u64;
                self.order.push(from);
            }
            Seen::Gap { from, at: first, len } => {
                let next = at.entry((connection, from)).or_insert(first);
                assert_eq!(*next, first, "in order");
                *next += len;
                self.gaps[from.index()] += len;
            }
            Seen::End { from } => self.ends.push(from),
            Seen::Reset { from } => self.resets.push(from),
            Seen::Closed { cut } => self.closed.push(cut),
        })
    }
}

#[test]
fn a_connection_from_beginning_to_end() {
    let pair = Pair::new(true);
    let (mut follow, mut told) = (pair.follow(true), Told::default());
    assert!(!told.look(&mut follow));
    let (a, b) = pair.open();
    let mut sent = [0; 2];
    // Short messages, each read before the next: inline where nobody follows.
    for len in [1, 40, 3, 39, 7, 2000, 8, 4096, 1, 9000] {
        for (channel, peer, side) in [(&a, &b, Side::A), (&b, &a, Side::B)] {
            let message = bytes(side, sent[side.index()], len);
            assert_eq!(channel.send_one(&message), Ok(len));
            sent[side.index()] += len as u64;
            let mut got = vec![0; len];
            assert_eq!(peer.recv_one(&mut got), Ok(len));
            assert_eq!(got, message);
        }
        assert!(told.look(&mut follow));
    }
    // 9000 bytes after 4097: the rest of each ring that has grown is there still.
    assert_eq!((told.bytes, told.gaps), (sent, [0, 0]));
    a.shutdown(Shutdown::Write).unwrap();
    told.look(&mut follow);
    assert_eq!(told.ends, [Side::A]);
    // The last words and the end are seen although the slot is free.
    b.send_one(&bytes(Side::B, sent[1], 5)).unwrap();
    a.recv_one(&mut [0; 5]).unwrap();
    b.close(false).unwrap();
    a.close(false).unwrap();
    told.look(&mut follow);
    assert_eq!((told.opened, &told.closed, &told.ends), (1, &vec![false], &vec![Side::A, Side::B]));
    // Both rings have grown, and what was beyond the first size was given back with the slot.
    assert_eq!(told.bytes[1] + told.gaps[1], sent[1] + 5);
    assert_eq!(follow.take_missed(), 0);
}

#[test]
fn a_short_connection_is_seen_when_it_is_over() {
    let pair = Pair::new(true);
    let (mut follow, mut told) = (pair.follow(true), Told::default());
    for round in 1..4 {
        let (a, b) = pair.open();
        a.send_one(&bytes(Side::A, 0, 30)).unwrap();
        b.recv_one(&mut [0; 30]).unwrap();
        b.send_one(&bytes(Side::B, 0, 500)).unwrap();
        a.recv_one(&mut [0; 500]).unwrap();
        b.close(false).unwrap();
        a.close(false).unwrap();
        assert!(told.look(&mut follow));
        assert!(!told.look(&mut follow), "once");
        assert_eq!(
            (told.opened, told.closed.len(), told.bytes),
            (round, round, [30 * round as u64, 500 * round as u64])
        );
        assert_eq!(told.order[told.order.len() - 2..], [Side::A, Side::B], "the question first");
    }
    // Of three that follow each other in the slot the last is seen.
    for _ in 0..3 {
        let (a, b) = pair.open();
        a.close(true).unwrap();
        b.close(false).unwrap();
    }
    told.look(&mut follow);
    assert_eq!((told.opened, follow.take_missed()), (4, 2));
    // Memory that went back is not taken for bytes.
    let (a, b) = pair.open();
    a.send_one(&bytes(Side::A, 0, 30)).unwrap();
    b.recv_one(&mut [0; 30]).unwrap();
    b.close(false).unwrap();
    a.close(false).unwrap();
    pair.a.trim();
    assert!(!told.look(&mut follow));
    let _next = pair.open();
    told.look(&mut follow);
    assert_eq!((told.opened, follow.take_missed()), (5, 1));
}

#[test]
fn bytes_that_were_overwritten_are_a_gap() {
    let pair = Pair::new(true);
    let (mut follow, mut told) = (pair.follow(true), Told::default());
    let (a, b) = pair.open();
    let mut sent = 0;
    for _ in 0..8 {
        for _ in 0..100 {
            a.send_one(&bytes(Side::A, sent, 1000)).unwrap();
            b.recv_one(&mut [0; 1000]).unwrap();
            sent += 1000;
        }
        told.look(&mut follow);
    }
    assert_eq!(told.bytes[0] + told.gaps[0], sent);
    assert!(told.bytes[0] > 8 * 3000 && told.gaps[0] > 8 * 50_000, "{told:?}");
    // Through a large ring and back, which was another's meanwhile: nothing of it is taken for bytes.
    for _ in 0..3 {
        let mut queued = 0;
        while queued < 100_000 {
            queued += a.send(&[IoSlice::new(&bytes(Side::A, sent + queued, 5000))]).unwrap() as u64;
        }
        sent += queued;
        while queued != 0 {
            queued -= b.recv_one(&mut [0; 7000]).unwrap() as u64;
        }
        a.send_one(&bytes(Side::A, sent, 10)).unwrap();
        b.recv_one(&mut [0; 10]).unwrap();
        sent += 10;
        told.look(&mut follow);
        assert_eq!(told.bytes[0] + told.gaps[0], sent);
    }
}

#[test]
fn what_waits_is_seen_whole() {
    let pair = Pair::new(true);
    let (mut follow, mut told) = (pair.follow(true), Told::default());
    let (a, _b) = pair.open();
    let mut sent = 0;
    while let Ok(n) = a.send_one(&bytes(Side::A, sent, 3000)) {
        sent += n as u64;
        told.look(&mut follow);
    }
    assert!(sent > 100_000, "{sent}");
    assert_eq!((told.bytes[0], told.gaps[0]), (sent, 0));
}

#[test]
fn a_connection_of_before_is_joined() {
    let pair = Pair::new(false);
    let (a, b) = pair.open();
    a.send_one(&bytes(Side::A, 0, 20)).unwrap();
    b.recv_one(&mut [0; 20]).unwrap();
    pair.a.set_captured(true);
    let (mut follow, mut told) = (pair.follow(false), Told::default());
    told.look(&mut follow);
    assert_eq!((told.opened, told.joined, told.bytes), (1, 1, [0, 0]));
    for at in [20, 40, 60] {
        a.send_one(&bytes(Side::A, at, 20)).unwrap();
        b.recv_one(&mut [0; 20]).unwrap();
    }
    told.look(&mut follow);
    assert_eq!((told.bytes, told.gaps), ([60, 0], [0, 0]));
    // Nobody follows any more: what is inline again is not guessed at by who looks on.
    pair.a.set_captured(false);
    for at in [80, 100, 120] {
        a.send_one(&bytes(Side::A, at, 20)).unwrap();
        b.recv_one(&mut [0; 20]).unwrap();
    }
    told.look(&mut follow);
    assert_eq!((told.bytes, told.gaps), ([60, 0], [60, 0]));
    a.close(true).unwrap();
    told.look(&mut follow);
    assert_eq!(told.resets, [Side::A]);
}

/// Whoever shares the memory may write anything into it: a look ends all the same, and soon.
#[test]
fn a_scribbled_tail_costs_little() {
    let pair = Pair::new(true);
    let mut follow = pair.follow(true);
    let (a, _b) = pair.open();
    a.send_one(b"x").unwrap();
    let begun = std::time::Instant::now();
    for tail in [1u64 << 46, 0, u64::MAX, (1 << 47) + 5, 1 << 62, 77] {
        pair.a.block(0).out[0].hot.tail.store(tail, Ordering::SeqCst);
        let mut bytes = 0;
        follow.look(&mut |_, seen| {
            if let Seen::Bytes { bytes: some, .. } = seen {
                bytes += some.len();
            }
        });
        assert!(bytes <= 2 << GEOMETRY.large_log2(), "{bytes}");
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// Two threads that talk as fast as they can, and one that watches: nothing wrong, nothing left out without a word.
#[test]
fn nothing_is_wrong_at_any_speed() {
    let mut seen = 0;
    for (seed, most) in [(1u64, 30u64), (2, 300), (3, 9000), (4, 60_000)] {
        let pair = Pair::new(true);
        let over = AtomicBool::new(false);
        let (a, b) = pair.open();
        let (mut follow, mut told) = (pair.follow(true), Told::default());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut sent, mut random) = (0, seed);
                for _ in 0..3000 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let len = 1 + (random >> 33) % most;
                    let message = bytes(Side::A, sent, len as usize);
                    let mut done = 0;
                    while done < message.len() {
                        match a.send_one(&message[done..]) {
                            Ok(n) => done += n,
                            Err(_) => std::thread::yield_now(),
                        }
                    }
                    sent += len;
                }
                a.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(|| {
                let mut buffer = vec![0; 70_000];
                loop {
                    match b.recv_one(&mut buffer) {
                        Ok(0) => break,
                        Ok(_) => {}
                        Err(_) => std::thread::yield_now(),
                    }
                }
                over.store(true, Ordering::SeqCst);
            });
            while !over.load(Ordering::SeqCst) {
                told.look(&mut follow);
            }
            // Its sender may be within its last call still.
            let begun = std::time::Instant::now();
            while told.ends.is_empty() && begun.elapsed() < std::time::Duration::from_secs(10) {
                told.look(&mut follow);
            }
            let sent = pair.a.block(0).out[0].hot.tail.load(Acquire);
            assert_eq!(told.bytes[0] + told.gaps[0], sent, "most {most}");
            assert_eq!(told.ends, [Side::A]);
            seen += told.bytes[0];
        });
    }
    assert_ne!(seen, 0);
}
