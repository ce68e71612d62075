//! Every interleaving (loom): `RUSTFLAGS="--cfg loom" cargo test -p fs-shm --release --lib sleep::tests`.
//!
//! Loom takes SeqCst accesses for acquire-release and models full barriers by fences only; the swap that publishes a
//! tail, a full barrier on every machine, stands here with a fence after it.

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

use super::{Flag, announce, claim};
use crate::ring::is_roomy;

impl Flag for AtomicU32 {
    fn is_set(&self) -> bool {
        self.load(SeqCst) != 0
    }

    fn set(&self) {
        self.store(1, SeqCst);
    }

    fn take(&self) -> bool {
        self.swap(0, SeqCst) != 0
    }
}

struct Side {
    flag: AtomicU32,
    /// A futex word or an eventfd: a wake-up that comes before the sleep is not lost.
    bell: Notify,
    tail: AtomicU64,
    dirty: AtomicU64,
    want: AtomicU32,
    head: AtomicU64,
}

impl Side {
    fn new() -> Arc<Self> {
        Arc::new(Side {
            flag: AtomicU32::new(0),
            bell: Notify::new(),
            tail: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            want: AtomicU32::new(0),
            head: AtomicU64::new(0),
        })
    }

    /// After publishing and a barrier.
    fn wake(&self) {
        if claim(&self.flag) {
            self.bell.notify();
        }
    }

    /// As `wait::doze` and a poller do. A lost wake-up is a deadlock, which loom reports.
    fn sleep_until(&self, found: impl Fn() -> bool) {
        while announce(&self.flag, &found) {
            self.bell.wait();
        }
    }
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // More preemptions find nothing new in practice (loom's documentation), and take hours.
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_message_wakes_the_reader() {
    check(|| {
        let side = Side::new();
        let writer = thread::spawn({
            let side = side.clone();
            move || {
                for tail in 1..=2 {
                    side.tail.swap(tail, SeqCst);
                    fence(SeqCst);
                    side.wake();
                }
            }
        });
        side.sleep_until(|| side.tail.load(Acquire) == 2);
        writer.join().unwrap();
    });
}

#[test]
fn two_writers_wake_a_poller_and_leave_no_dirty_bit_unseen() {
    check(|| {
        let side = Side::new();
        let writers: Vec<_> = (0..2)
            .map(|bit| {
                let side = side.clone();
                thread::spawn(move || {
                    fence(SeqCst);
                    side.dirty.fetch_or(1 << bit, SeqCst);
                    fence(SeqCst);
                    side.wake();
                })
            })
            .collect();
        let mut seen = 0;
        while seen != 3 {
            side.sleep_until(|| side.dirty.load(Acquire) != 0);
            seen |= side.dirty.swap(0, SeqCst);
        }
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

/// A full ring of one byte: the writer wants space, the reader gives it and tells only if it was wanted.
#[test]
fn space_is_told_to_the_writer() {
    check(|| {
        let side = Side::new();
        let reader = thread::spawn({
            let side = side.clone();
            move || {
                side.head.store(1, Release);
                fence(SeqCst);
                if side.want.load(Relaxed) != 0 && side.want.swap(0, SeqCst) != 0 {
                    fence(SeqCst);
                    side.wake();
                }
            }
        });
        side.sleep_until(|| {
            side.want.set();
            fence(SeqCst);
            side.head.load(Acquire) == 1
        });
        reader.join().unwrap();
    });
}

const CAPACITY: u64 = 8;

/// The reader's end of `Ring::consume`.
fn consume(side: &Side, head: u64) {
    // The swap; loom has full barriers from fences only.
    side.head.swap(head, SeqCst);
    fence(SeqCst);
    if side.want.load(SeqCst) != 0
        && is_roomy(side.tail.load(Acquire) - head, CAPACITY)
        && side.want.swap(0, SeqCst) != 0
    {
        fence(SeqCst);
        side.wake();
    }
}

/// The writer fills a ring of eight with its last message, and sleeps until a quarter of it is free (`Ring::writable`).
fn fill_and_wait(side: &Side) {
    side.tail.swap(CAPACITY, SeqCst);
    fence(SeqCst);
    let is_roomy = || is_roomy(CAPACITY - side.head.load(Acquire), CAPACITY);
    side.sleep_until(|| {
        is_roomy() || {
            side.want.set();
            fence(SeqCst);
            is_roomy()
        }
    });
}

/// The writer comes in the middle of the two reads that free a quarter, and whatever they saw of its bytes, it is told.
#[test]
fn who_waits_for_space_is_told_when_a_quarter_is_free() {
    check(|| {
        let side = Side::new();
        side.tail.store(4, Relaxed);
        let reader = thread::spawn({
            let side = side.clone();
            move || (1..=2).for_each(|head| consume(&side, head))
        });
        fill_and_wait(&side);
        reader.join().unwrap();
    });
}

/// A message that was in the producer's line is read without a barrier and without a look at who wants space
/// (`channel/short.rs`): the read from the ring that follows tells.
#[test]
fn a_short_read_leaves_telling_to_the_next_one() {
    check(|| {
        let side = Side::new();
        side.tail.store(1, Relaxed);
        let reader = thread::spawn({
            let side = side.clone();
            move || {
                side.head.store(1, Release);
                while side.tail.load(Acquire) < CAPACITY {
                    thread::yield_now();
                }
                consume(&side, 2);
            }
        });
        fill_and_wait(&side);
        reader.join().unwrap();
    });
}
