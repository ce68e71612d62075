//! The lock around a connection to the daemon: a futex word that holds its owner's thread id.
//!
//! Not `std::sync::Mutex`: that one waits through libc's `syscall`, which preloading replaces, and a signal handler that
//! finds its own thread in the middle of a request would wait for itself.

use core::sync::atomic::{AtomicU32, Ordering};
use rustix::thread::futex;

/// Set in the word while somebody may be waiting.
const CONTENDED: u32 = 1 << 31;

#[derive(Debug, Default)]
pub(crate) struct Lock(AtomicU32);

/// This thread holds the lock already: the caller is a signal handler in the middle of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldByCaller;

impl Lock {
    pub(crate) fn lock(&self) -> Result<Guard<'_>, HeldByCaller> {
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32 & !CONTENDED;
        let mut take = me;
        loop {
            let Err(owner) = self.0.compare_exchange(0, take, Ordering::Acquire, Ordering::Relaxed) else {
                return Ok(Guard(self));
            };
            if owner & !CONTENDED == me {
                return Err(HeldByCaller);
            }
            // Whoever has waited takes it as contended: others may wait too.
            take = me | CONTENDED;
            let marked = owner & CONTENDED != 0
                || self.0.compare_exchange(owner, owner | CONTENDED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if marked {
                // An error (a signal, or the word has changed) is a reason to look again.
                let _ = futex::wait(&self.0, futex::Flags::PRIVATE, owner | CONTENDED, None);
            }
        }
    }
}

impl Lock {
    /// Lets it go, if this thread holds it.
    pub(crate) fn break_own(&self) {
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32 & !CONTENDED;
        if self.0.load(Ordering::Relaxed) & !CONTENDED == me {
            drop(Guard(self));
        }
    }
}

pub(crate) struct Guard<'a>(&'a Lock);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(0, Ordering::Release) & CONTENDED != 0 {
            // It cannot fail: the word is mapped.
            let _ = futex::wake(&self.0.0, futex::Flags::PRIVATE, 1);
        }
    }
}
