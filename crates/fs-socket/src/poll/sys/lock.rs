//! A value behind a lock that knows when its own thread holds it: a signal handler that closes a descriptor while its thread is in
//! epoll_ctl must neither wait for ever nor get in between.

use core::{
    cell::UnsafeCell,
    fmt,
    ops::{Deref, DerefMut},
};

use fs_shm::owner_lock::{self, OwnerLock};

use crate::sys::signals::Section;

/// A value behind a lock.
pub(in crate::poll) struct Lock<T> {
    lock: OwnerLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through the lock only, by one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(in crate::poll) const fn new(value: T) -> Self {
        Lock { lock: OwnerLock::new(), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, waiting for it. `None`: this very thread holds it (this is a signal handler).
    #[inline]
    pub(in crate::poll) fn lock(&self) -> Option<Guard<'_, T>> {
        // A handler that jumps out of the middle would leave the value half changed.
        let section = Section::begin();
        let held = self.lock.lock().ok()?;
        Some(Guard { value: &self.value, _held: held, _section: section })
    }

    /// Lets it go if this thread holds it, which has jumped out of what took it.
    pub(in crate::poll) fn break_own(&self) {
        self.lock.break_own();
    }

    /// In a forked child, where no other thread exists: free, whoever held it. False: another thread was at the value, which it
    /// leaves in the middle of a change.
    #[must_use]
    pub(in crate::poll) fn reset(&self) -> bool {
        self.lock.reset()
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("lock", &self.lock).finish_non_exhaustive()
    }
}

/// The lock held. It is let go before the section ends in which handlers wait.
pub(in crate::poll) struct Guard<'a, T> {
    value: &'a UnsafeCell<T>,
    _held: owner_lock::Guard<'a>,
    _section: Section,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held by this guard.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held by this guard, which is borrowed for as long.
        unsafe { &mut *self.value.get() }
    }
}
