//! Every interleaving (loom): `RUSTFLAGS="--cfg loom" cargo test -p fs-shm --release --lib sleep::tests`.
//!
//! Loom takes SeqCst accesses for acquire-release and models full barriers by fences only; a swap that publishes, which is
//! sequentially consistent with the loads that follow, stands here with a fence after it. Where memory is shared its words are the standard
//! library's, which loom does not see: announcing, claiming and the barrier after a swap are the functions themselves, the rest is said again.

use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

use super::bytes_unsafe::Bytes;
use super::{Flag, announce, barrier_after_swap, claim};
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

/// A change that finds its dirty bit set leaves it to the poller, which clears it and looks (`Arena::drain_changes`): it sees that change, or
/// the bit is set again.
#[test]
fn who_has_cleared_a_dirty_bit_sees_what_it_stood_for() {
    check(|| {
        let side = Side::new();
        let writer = thread::spawn({
            let side = side.clone();
            move || {
                for tail in 1..=2 {
                    side.tail.swap(tail, SeqCst);
                    fence(SeqCst);
                    // `Arena::mark_dirty`.
                    if side.dirty.load(SeqCst) == 0 {
                        side.dirty.fetch_or(1, SeqCst);
                    }
                    fence(SeqCst);
                    side.wake();
                }
            }
        });
        while side.tail.load(Acquire) != 2 {
            side.sleep_until(|| side.dirty.load(Relaxed) != 0);
            side.dirty.swap(0, SeqCst);
            barrier_after_swap();
        }
        writer.join().unwrap();
    });
}

/// A connection that begins while somebody begins to follow its arena is marked, by who opens it or by who follows (`Channel::open`,
/// `Arena::set_captured`): `want` stands for the arena's word, `dirty` for the slot map, `flag` for the mark.
#[test]
fn who_opens_or_who_follows_marks_the_connection() {
    check(|| {
        let side = Side::new();
        let follower = thread::spawn({
            let side = side.clone();
            move || {
                side.want.store(1, SeqCst);
                fence(SeqCst);
                if side.dirty.load(Acquire) != 0 {
                    side.flag.fetch_or(1, SeqCst);
                }
            }
        });
        side.dirty.fetch_or(1, AcqRel);
        let is_followed = side.want.load(Relaxed) != 0;
        side.flag.store(0, Relaxed);
        if is_followed {
            side.flag.fetch_or(1, Relaxed);
        }
        side.head.swap(1, AcqRel);
        barrier_after_swap();
        if !is_followed && side.want.load(Relaxed) != 0 {
            side.flag.fetch_or(1, Relaxed);
        }
        follower.join().unwrap();
        assert_eq!(side.flag.load(Relaxed), 1);
    });
}

/// One thread of a side reads a message, another one sends: what its `ack` says has been read is the peer's to write over
/// (`Ring::publish`, `Ring::head_known`).
#[test]
fn what_another_thread_has_read_is_acknowledged_once_it_is_read() {
    check(|| {
        let (side, inline) = (Side::new(), Arc::new(Bytes::new()));
        let reader = thread::spawn({
            let (side, inline) = (side.clone(), inline.clone());
            move || {
                inline.read();
                side.head.store(1, Release);
            }
        });
        let sender = thread::spawn({
            let side = side.clone();
            move || side.tail.store(side.head.load(Acquire), Release)
        });
        // Here `tail` is the sender's acknowledgement.
        if side.tail.load(Acquire) == 1 {
            inline.write();
        }
        reader.join().unwrap();
        sender.join().unwrap();
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

/// A large ring (`large.rs`): the producer writes twice, and the consumer reads all that it finds. Nobody writes into the ring
/// after it was given back, nothing that was written into it is unread then, and in the end it has been given back once.
#[test]
fn a_large_ring_is_given_back_when_all_is_read_and_not_before() {
    check(|| {
        let side = Side::new();
        // `want` stands for the lease here, `dirty` for how often the ring was given back.
        let lease = move |side: &Side| side.want.load(SeqCst);
        let leave = move |side: &Side| {
            let seen = lease(side);
            fence(SeqCst);
            if seen != 0 && seen % 2 == 0 && side.tail.load(SeqCst) == side.head.load(SeqCst) {
                let taken = side.want.compare_exchange(seen, 0, SeqCst, Relaxed).is_ok();
                side.dirty.fetch_add(u64::from(taken), SeqCst);
            }
        };
        side.want.store(1, SeqCst);
        let reader = thread::spawn({
            let side = side.clone();
            move || {
                for _ in 0..2 {
                    let tail = side.tail.load(Acquire);
                    if side.head.load(Relaxed) != tail {
                        side.head.swap(tail, SeqCst);
                        fence(SeqCst);
                        leave(&side);
                    }
                }
            }
        });
        // The first write holds the lease since it took the ring; the second takes it, or finds the ring gone.
        side.tail.swap(1, SeqCst);
        side.want.store(2, SeqCst);
        fence(SeqCst);
        leave(&side);
        let seen = lease(&side);
        if seen != 0 && side.want.compare_exchange(seen, seen + 1, SeqCst, Relaxed).is_ok() {
            side.tail.swap(2, SeqCst);
            assert_eq!(side.dirty.load(SeqCst), 0, "written into a ring that was given back");
            side.want.store(seen + 2, SeqCst);
            fence(SeqCst);
            leave(&side);
        }
        reader.join().unwrap();
        let read_all = side.tail.load(SeqCst) == side.head.load(SeqCst);
        let given_back = side.dirty.load(SeqCst);
        assert_eq!(given_back, u64::from(read_all), "given back once, when all was read");
    });
}
