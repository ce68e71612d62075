//! The locks of a side: one word each, in memory that every holder of the side maps.
//!
//! A lock names the thread that holds it. A waiter takes over the lock of a thread that was killed,
//! and a signal handler learns that it has interrupted the holder instead of waiting for itself.
//! Sections are some instructions long, or one call that does not sleep, so a waiter spins, yields,
//! and sleeps at last; a futex would cost more than what it waits for. What a section guards is
//! valid between any two of its stores: see `producer.rs` and `consumer.rs` for a holder that died
//! at each point.

use crate::kernel::Machine;
use crate::sync::{AtomicU32, Ordering};

/// Attempts between two yields of the processor. More: on one processor, spins until the holder's
/// time slice. Fewer: a system call where the holder needs 50 ns.
const SPINS: u32 = 64;
/// Yields before the first check whether the holder lives, and before the waiter sleeps between
/// attempts; then sleeps between two checks.
const YIELDS: u32 = 64;

/// A lock. All zeros is a free lock.
#[derive(Debug)]
#[repr(transparent)]
pub struct Lock(AtomicU32);

/// The calling thread holds the lock: it is in a signal handler, or has jumped out of the section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldByCaller;

/// The lock, held until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Guard<'a>(&'a Lock);

impl Lock {
    /// Makes a free lock.
    pub(crate) fn new() -> Self {
        Lock(AtomicU32::new(0))
    }

    /// Takes the lock, and waits for it.
    ///
    /// # Errors
    /// [`HeldByCaller`] instead of a deadlock.
    #[inline]
    pub fn lock(&self, machine: &impl Machine) -> Result<Guard<'_>, HeldByCaller> {
        match self.try_lock(machine) {
            Some(guard) => Ok(guard),
            None => self.wait(machine.thread(), machine),
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self, machine: &impl Machine) -> Option<Guard<'_>> {
        let me = machine.thread();
        self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok().then(|| Guard(self))
    }

    #[cold]
    fn wait(&self, me: u32, machine: &impl Machine) -> Result<Guard<'_>, HeldByCaller> {
        let mut attempts = 0_u32;
        loop {
            let Err(owner) = self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) else {
                return Ok(Guard(self));
            };
            if owner == me {
                return Err(HeldByCaller);
            }
            attempts = attempts.wrapping_add(1);
            if !attempts.is_multiple_of(SPINS) {
                machine.pause();
                continue;
            }
            // The holder may have a lower real-time priority, and this thread the only processor.
            if attempts < SPINS * YIELDS {
                machine.yield_now()
            } else {
                machine.nap()
            }
            let asks = attempts.is_multiple_of(SPINS * YIELDS);
            if asks
                && machine.is_gone(owner)
                && self.0.compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Ok(Guard(self));
            }
        }
    }

    /// Frees the lock in a child of fork(2), whose only thread holds none: a thread of the parent may have held it.
    pub fn break_lock(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Frees the lock if the calling thread holds it: it has jumped out of the section
    /// (siglongjmp), and calls this from where it landed.
    pub fn break_own(&self, machine: &impl Machine) {
        let _other = self.0.compare_exchange(machine.thread(), 0, Ordering::Release, Ordering::Relaxed);
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// A thread with real-time priority: the holder of a lock runs on its processor only while it sleeps.
    struct Urgent<'a>(&'a Lock, Cell<u32>);

    impl Machine for Urgent<'_> {
        fn now_ns(&self) -> u64 {
            0
        }

        fn pause(&self) {}

        fn yield_now(&self) {
            self.1.set(self.1.get() + 1);
            assert!(self.1.get() < 10_000, "a yield gives the holder no time");
        }

        fn nap(&self) {
            self.0.break_lock();
        }

        fn thread(&self) -> u32 {
            1
        }

        fn is_gone(&self, _thread: u32) -> bool {
            false
        }
    }

    #[test]
    fn waiter_of_a_higher_priority_lets_the_holder_run() {
        let lock = Lock(AtomicU32::new(2));
        assert!(lock.lock(&Urgent(&lock, Cell::new(0))).is_ok());
    }
}
