//! Every interleaving (loom): `RUSTFLAGS="--cfg loom" cargo test -p fs-shm --release --lib sleep`.
//!
//! Loom takes SeqCst accesses for acquire-release and models full barriers by fences only; the swap that publishes a
//! tail, a full barrier on every machine, stands here with a fence after it.

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
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

/// A futex word or an eventfd: a wake-up that comes before the sleep is not lost.
#[derive(Default)]
struct Side {
    flag: AtomicU32,
    word: AtomicU32,
    tail: AtomicU64,
    dirty: AtomicU64,
    want: AtomicU32,
    head: AtomicU64,
}

fn wake(side: &Side) {
    side.word.fetch_add(1, AcqRel);
}

/// Waits for `found` as `wait::doze` does. Spinning on the futex word is the kernel's part: it returns at once when
/// the word has moved. A lost wake-up is a deadlock, which loom reports.
fn sleep_until(side: &Side, found: impl Fn() -> bool) {
    loop {
        let seen = side.word.load(Acquire);
        if !announce(&side.flag, &found) {
            return;
        }
        while side.word.load(Acquire) == seen {
            thread::yield_now();
        }
    }
}

#[test]
fn a_message_wakes_the_reader() {
    loom::model(|| {
        let side = Arc::new(Side::default());
        let writer = thread::spawn({
            let side = side.clone();
            move || {
                for tail in 1..=2 {
                    side.tail.swap(tail, SeqCst);
                    fence(SeqCst);
                    if claim(&side.flag) {
                        wake(&side);
                    }
                }
            }
        });
        sleep_until(&side, || side.tail.load(Acquire) == 2);
        writer.join().unwrap();
    });
}

#[test]
fn two_writers_wake_a_poller_and_leave_no_dirty_bit_unseen() {
    loom::model(|| {
        let side = Arc::new(Side::default());
        let writers: Vec<_> = (0..2)
            .map(|bit| {
                let side = side.clone();
                thread::spawn(move || {
                    fence(SeqCst);
                    side.dirty.fetch_or(1 << bit, SeqCst);
                    fence(SeqCst);
                    if claim(&side.flag) {
                        wake(&side);
                    }
                })
            })
            .collect();
        let mut seen = 0;
        while seen != 3 {
            sleep_until(&side, || side.dirty.load(Acquire) != 0);
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
    loom::model(|| {
        let side = Arc::new(Side::default());
        let reader = thread::spawn({
            let side = side.clone();
            move || {
                side.head.store(1, std::sync::atomic::Ordering::Release);
                fence(SeqCst);
                if side.want.load(Relaxed) != 0 && side.want.swap(0, SeqCst) != 0 {
                    fence(SeqCst);
                    if claim(&side.flag) {
                        wake(&side);
                    }
                }
            }
        });
        sleep_until(&side, || {
            side.want.set();
            fence(SeqCst);
            side.head.load(Acquire) == 1
        });
        reader.join().unwrap();
    });
}
