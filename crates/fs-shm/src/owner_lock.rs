//! A lock between the threads of one process that names its owner.
//!
//! A signal handler finds out that the very thread it runs on holds the lock, instead of waiting for itself; a thread that has jumped out
//! of a call (`siglongjmp`) gives up what it held; a forked child sees whether another thread, which it does not have, was inside.
//!
//! The word is 0 (free), or the owner's number, with `WAITED_FOR` while somebody may be asleep: as futex(7) and Drepper's "Futexes Are
//! Tricky", mutex 2, with the owner in the place of 1. Owner and state are one word, so that there is no instant at which the lock is
//! held by nobody. Checked by loom in `owner_lock/tests.rs`.
//!
//! Not `std::sync::Mutex`: that one knows no owner, and sleeps through libc's `syscall`, which preloading replaces.
//! For memory that several processes map there is `holder.rs`: its owners can die.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::holder::thread;

#[cfg(all(loom, test))]
use self::tests::{AtomicU32, Sleepers};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::AtomicU32;

/// Set in the word while somebody may be waiting. Not part of any thread's number.
const WAITED_FOR: u32 = 1 << 31;
/// So often a held lock is looked at before its thread sleeps: most are held for less than a system call takes.
const SPINS: u32 = if cfg!(all(loom, test)) { 0 } else { 100 };

/// The lock.
#[derive(Debug)]
pub struct OwnerLock {
    word: AtomicU32,
    sleepers: Sleepers,
}

/// This very thread holds the lock already: the caller is a signal handler in the middle of what it interrupted.
#[derive(Clone, Copy, Debug)]
pub struct HeldByCaller;

#[cfg(not(all(loom, test)))]
impl Default for OwnerLock {
    fn default() -> Self {
        Self::new()
    }
}

impl OwnerLock {
    /// A free lock.
    #[cfg(not(all(loom, test)))]
    #[must_use]
    pub const fn new() -> Self {
        OwnerLock { word: AtomicU32::new(0), sleepers: Sleepers }
    }

    /// Takes the lock, waiting for it.
    ///
    /// # Errors
    /// [`HeldByCaller`] instead of a wait without an end.
    #[inline]
    pub fn lock(&self) -> Result<Guard<'_>, HeldByCaller> {
        self.lock_as(thread())
    }

    #[inline]
    fn lock_as(&self, me: u32) -> Result<Guard<'_>, HeldByCaller> {
        match self.word.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => Ok(Guard(self)),
            Err(_) => self.wait(me),
        }
    }

    #[cold]
    fn wait(&self, me: u32) -> Result<Guard<'_>, HeldByCaller> {
        let mut take = me;
        let mut rounds = 0;
        loop {
            let Err(owner) = self.word.compare_exchange(0, take, Acquire, Relaxed) else { return Ok(Guard(self)) };
            if owner & !WAITED_FOR == me {
                return Err(HeldByCaller);
            }
            if rounds < SPINS {
                rounds += 1;
                core::hint::spin_loop();
                continue;
            }
            // Whoever has slept takes it as waited for: others may sleep too, and only one is woken at a time.
            take = me | WAITED_FOR;
            let marked = owner & WAITED_FOR != 0
                || self.word.compare_exchange(owner, owner | WAITED_FOR, Relaxed, Relaxed).is_ok();
            if marked {
                self.sleepers.sleep(&self.word, owner | WAITED_FOR);
            }
        }
    }

    /// Lets it go if this thread holds it, which has jumped out of what took it.
    pub fn break_own(&self) {
        if self.word.load(Relaxed) & !WAITED_FOR == thread() {
            drop(Guard(self));
        }
    }

    /// In a forked child, where no other thread exists: free, whoever held it. False: another thread was inside, and left in the middle
    /// what the lock guards.
    #[must_use]
    pub fn reset(&self) -> bool {
        let owner = self.word.load(Relaxed) & !WAITED_FOR;
        self.word.store(0, Release);
        owner == 0 || owner == thread()
    }
}

/// The lock held.
#[derive(Debug)]
#[must_use]
pub struct Guard<'a>(&'a OwnerLock);

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        let OwnerLock { word, sleepers } = self.0;
        if word.swap(0, Release) & WAITED_FOR != 0 {
            sleepers.wake_one(word);
        }
    }
}

/// The kernel's list of those who sleep on the word.
#[cfg(not(all(loom, test)))]
#[derive(Debug)]
struct Sleepers;

#[cfg(not(all(loom, test)))]
impl Sleepers {
    /// Until somebody wakes this thread; not at all, if the word is another than `seen`.
    #[expect(clippy::unused_self, reason = "the kernel has the list, a model of it is in tests.rs")]
    fn sleep(&self, word: &AtomicU32, seen: u32) {
        use rustix::thread::futex;
        // EAGAIN: it was let go meanwhile; EINTR: a handler ran. Either is a reason to look again.
        let _ = futex::wait(word, futex::Flags::PRIVATE, seen, None);
    }

    #[expect(clippy::unused_self, reason = "as above")]
    fn wake_one(&self, word: &AtomicU32) {
        use rustix::thread::futex;
        // It cannot fail: the word is mapped.
        let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
    }
}

#[cfg(all(loom, test))]
mod tests;

#[cfg(all(test, not(loom)))]
mod unit {
    use super::*;

    #[test]
    fn its_own_thread_is_told() {
        let lock = OwnerLock::new();
        let held = lock.lock().unwrap();
        assert!(lock.lock().is_err());
        drop(held);
        assert!(lock.lock().is_ok());
    }

    #[test]
    fn who_has_jumped_out_lets_go() {
        let lock = OwnerLock::new();
        std::mem::forget(lock.lock().unwrap());
        lock.break_own();
        std::thread::scope(|scope| {
            scope.spawn(|| std::mem::forget(lock.lock().unwrap()));
        });
        // Another's stays.
        lock.break_own();
        assert_ne!(lock.word.load(Relaxed), 0);
        assert!(!lock.reset());
        assert!(lock.reset());
    }

    #[test]
    fn many_threads_are_inside_one_by_one() {
        let lock = OwnerLock::new();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..if cfg!(miri) { 5 } else { 20_000 } {
                        let _held = lock.lock().unwrap();
                        assert_eq!(inside.fetch_add(1, Relaxed), 0);
                        inside.fetch_sub(1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(lock.word.load(Relaxed), 0);
    }
}
