//! A peer that writes to the shared words what no rule allows. Miri runs these.

use std::sync::atomic::AtomicBool;

use super::rules::World;
use crate::kernel::{Errno, RecvMode};
use crate::sync::Ordering;

/// A peer that writes anything to the shared words: no panic, no access outside, and the kernel's bytes still come.
#[test]
fn scribbling_peer_loses_its_own_bytes_only() {
    let mut random = 88_172_645_463_325_252_u64;
    for _ in 0..if cfg!(miri) { 20 } else { 2000 } {
        let world = World::by_ring();
        assert_eq!(world.a.send(b"before", false), Ok(6));
        for _ in 0..8 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let consumer = world.b.consumer();
            consumer.direction.line_a.word.overwrite(random);
            consumer.direction.line_b.sent.store(random >> 3, Ordering::Relaxed);
            consumer.direction.line_b.boundary.store(random >> 5, Ordering::Relaxed);
            consumer.direction.line_c.head.store(random >> 9, Ordering::Relaxed);
            let _unread = world.b.unread();
            let mut piece = [0; 40];
            match world.b.recv(&mut piece, RecvMode::NOW) {
                Ok(n) => assert!(n <= 40),
                Err(error) => assert_eq!(error, Errno::AGAIN),
            }
            // The producer's side of the same words.
            match world.a.send(b"more", true) {
                Ok(n) => assert!(n <= 4),
                Err(error) => assert_eq!(error, Errno::AGAIN),
            }
        }
        world.b.pin();
        let _close = world.b.before_close();
    }
}

/// A peer that takes the carrier back each time that a receive has made it the kernel.
#[test]
fn peer_that_takes_the_carrier_back_holds_no_receive() {
    let world = std::sync::Arc::new(World::by_ring());
    let direction = world.b.consumer().direction;
    const RING: u64 = 1;
    // It counts a part of the kernel's bytes.
    (0..150).for_each(|byte| world.forth.inject(byte));
    direction.line_b.sent.store(100, Ordering::Release);
    world.b.report_readable();
    let (weak, calls) = (std::sync::Arc::downgrade(&world), std::sync::atomic::AtomicU32::new(0));
    let take_back = move || {
        assert!(calls.fetch_add(1, Ordering::Relaxed) < 100, "one call asks again and again");
        let Some(world) = weak.upgrade() else { return };
        world.b.consumer().direction.line_a.word.overwrite(RING);
    };
    assert!(world.forth.on_unread.set(Box::new(take_back)).is_ok());
    assert_eq!(world.b.recv(&mut [0; 200], RecvMode::NOW), Ok(100));
}

/// Ends the peer's thread.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A peer that goes on writing while a call runs: the call returns all the same.
#[test]
fn peer_that_scribbles_on_holds_no_call() {
    const RING: u64 = 1;
    /// The peer's next words: `W` (`None`: as it is), and whether `K` grows.
    type Scribble = fn(u64) -> (Option<u64>, bool);
    let scribbles: [Scribble; 4] = [
        |_| (None, true),
        |n| (Some(6 << 16 | n & RING), true),
        |n| (Some(((n >> 2) % 80) << 16 | n & 7), n & 8 != 0),
        |n| (Some(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)), n & 1 != 0),
    ];
    for (i, scribble) in scribbles.into_iter().enumerate() {
        for _ in 0..if cfg!(miri) { 2 } else { 50 } {
            let world = World::by_ring();
            assert_eq!(world.a.send(b"before", false), Ok(6));
            // With an end of the kernel's stream, or without one.
            if i % 2 == 0 {
                world.forth.end();
            }
            let direction = world.b.consumer().direction;
            let (is_over, has_begun) = (AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for n in 1.. {
                        let (word, grows) = scribble(n);
                        if let Some(word) = word {
                            direction.line_a.word.overwrite(word);
                        }
                        direction.line_b.sent.fetch_add(u64::from(grows), Ordering::Relaxed);
                        has_begun.store(true, Ordering::Relaxed);
                        if is_over.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
                // After a panic too.
                let _over = Over(&is_over);
                while !has_begun.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let _taken = world.b.recv(&mut [0; 40], RecvMode::NOW);
                let _asleep = world.b.before_sleep();
                let _sent = world.a.send(&[7; 200], true);
                world.b.pin();
                let _close = world.b.before_close();
            });
        }
    }
}

/// A peer writes that the ring carries for good, at a position that makes no sense: both ends leave the ring.
#[test]
fn ring_that_is_pinned_holds_nobody() {
    const RING_AND_PINNED: u64 = 0b101;
    for tail in [0, 6, 1 << 40] {
        let world = World::by_ring();
        assert_eq!(world.a.send(b"before", false), Ok(6));
        let word = &world.b.consumer().direction.line_a.word;
        word.overwrite(tail << 16 | RING_AND_PINNED);
        assert!(matches!(world.a.send(b"more", true), Ok(4) | Err(Errno::AGAIN)));
        word.overwrite(tail << 16 | RING_AND_PINNED);
        world.a.pin();
        assert!(word.load().kernel_carries());
        word.overwrite(tail << 16 | RING_AND_PINNED);
        world.b.pin();
        assert!(word.load().kernel_carries());
    }
}
