//! A lock that knows when its own thread holds it: a signal handler that closes a descriptor while its thread is in
//! epoll_ctl must neither wait for ever nor get in between.

use core::{
    cell::UnsafeCell,
    fmt,
    ops::{Deref, DerefMut},
    sync::atomic::{
        AtomicU32, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use rustix::thread::futex;

use crate::sys::{signals::Section, thread};

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;

/// A value behind a lock.
pub(in crate::poll) struct Lock<T> {
    word: AtomicU32,
    holder: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through the lock only, by one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(in crate::poll) const fn new(value: T) -> Self {
        Lock { word: AtomicU32::new(FREE), holder: AtomicUsize::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, waiting for it. `None`: this very thread holds it (this is a signal handler).
    #[inline]
    pub(in crate::poll) fn lock(&self) -> Option<Guard<'_, T>> {
        // A handler that jumps out of the middle would leave the value half changed.
        let section = Section::begin();
        if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.wait()?;
        }
        self.holder.store(thread::me(), Relaxed);
        Some(Guard { lock: self, section: Some(section) })
    }

    #[cold]
    fn wait(&self) -> Option<()> {
        for _ in 0..100 {
            if self.holder.load(Relaxed) == thread::me() {
                return None;
            }
            if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() {
                return Some(());
            }
            core::hint::spin_loop();
        }
        while self.word.swap(WAITED_FOR, Acquire) != FREE {
            // EAGAIN: it was let go meanwhile; EINTR: a handler ran. Look again either way.
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, WAITED_FOR, None);
        }
        Some(())
    }

    /// Lets it go if this thread holds it, which has jumped out of what took it.
    pub(in crate::poll) fn break_own(&self) {
        if self.word.load(Relaxed) != FREE && self.holder.load(Relaxed) == thread::me() {
            drop(Guard { lock: self, section: None });
        }
    }

    /// In a forked child, where no other thread exists: free, whoever held it. False: another thread was at the value, which it
    /// leaves in the middle of a change.
    #[must_use]
    pub(in crate::poll) fn reset(&self) -> bool {
        let whole = self.word.load(Relaxed) == FREE || self.holder.load(Relaxed) == thread::me();
        self.holder.store(0, Relaxed);
        self.word.store(FREE, Release);
        whole
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("word", &self.word).finish_non_exhaustive()
    }
}

/// The lock held.
pub(in crate::poll) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    section: Option<Section>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held by this guard.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held by this guard, which is borrowed for as long.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.holder.store(0, Relaxed);
        if self.lock.word.swap(FREE, Release) == WAITED_FOR {
            // Nobody may be there any more.
            let _ = futex::wake(&self.lock.word, futex::Flags::PRIVATE, 1);
        }
        self.section = None;
    }
}
