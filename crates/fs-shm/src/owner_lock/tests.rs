//! Every interleaving (loom): `RUSTFLAGS="--cfg loom" cargo test -p fs-shm --release --lib owner_lock::tests`.

pub(super) use loom::sync::atomic::AtomicU32;
use loom::sync::atomic::Ordering::{Relaxed, SeqCst};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;

/// The kernel's list: a look at the word and the sleep are one step for whoever wakes (the lock of the futex's hash bucket).
#[derive(Debug)]
pub(super) struct Sleepers {
    bucket: Mutex<()>,
    woken: Condvar,
}

impl Sleepers {
    pub(super) fn sleep(&self, word: &AtomicU32, seen: u32) {
        let bucket = self.bucket.lock().unwrap();
        if word.load(SeqCst) == seen {
            drop(self.woken.wait(bucket).unwrap());
        }
    }

    pub(super) fn wake_one(&self, _word: &AtomicU32) {
        let _bucket = self.bucket.lock().unwrap();
        self.woken.notify_one();
    }
}

impl OwnerLock {
    pub(crate) fn new() -> Self {
        OwnerLock { word: AtomicU32::new(0), sleepers: Sleepers { bucket: Mutex::new(()), woken: Condvar::new() } }
    }
}

/// A value that is read and written in two relaxed steps: an addition is lost where two threads are inside, or where one does not see
/// what the one before it has written.
struct Guarded {
    lock: OwnerLock,
    value: AtomicU32,
}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Guarded { lock: OwnerLock::new(), value: AtomicU32::new(0) })
    }

    fn add(&self, me: u32) {
        let _held = self.lock.lock_as(me).unwrap();
        self.value.store(self.value.load(Relaxed) + 1, Relaxed);
    }
}

/// A thread that is not woken is a deadlock, which loom reports.
fn threads(others: u32, bound: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(move || {
        let guarded = Guarded::new();
        let running: Vec<_> = (2..2 + others)
            .map(|me| {
                let guarded = guarded.clone();
                thread::spawn(move || guarded.add(me))
            })
            .collect();
        guarded.add(1);
        running.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(guarded.lock.word.load(Relaxed), 0);
        assert_eq!(guarded.value.load(Relaxed), others + 1);
    });
}

#[test]
fn two_threads_are_never_inside_at_once_and_both_get_in() {
    threads(1, 5);
}

#[test]
fn of_three_threads_each_that_sleeps_is_woken() {
    threads(2, 3);
}

#[test]
fn a_thread_that_holds_it_is_told() {
    loom::model(|| {
        let guarded = Guarded::new();
        let other = thread::spawn({
            let guarded = guarded.clone();
            move || guarded.add(2)
        });
        let held = guarded.lock.lock_as(1).unwrap();
        assert!(guarded.lock.lock_as(1).is_err());
        drop(held);
        other.join().unwrap();
    });
}
