//! Every interleaving (loom): `RUSTFLAGS="--cfg loom" cargo test -p fs-shm --release --lib sleep::tests`.
//!
//! Loom takes SeqCst accesses for acquire-release and models full barriers by fences only; the swap that publishes a
//! tail, a full barrier on every machine, stands here with a fence after it.

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

use super::{Flag, announce, claim};

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
