//! Values behind a spin lock with signals blocked: a signal handler may call any function of the library.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use super::heap::{block_signals, restore_signals};
use super::threads::wait_for;

/// Runs `work` with signals blocked: it takes a lock that a handler in its middle would keep from
/// another thread, whose lock the handler may need.
pub(crate) fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let signals = block_signals();
    let result = work();
    restore_signals(&signals);
    result
}

/// A value that one thread at a time uses.
pub(crate) struct Guarded<T> {
    is_locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands the value to one thread at a time.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) const fn new(value: T) -> Self {
        Guarded { is_locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    fn try_lock(&self) -> bool {
        self.is_locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Uses the value. `work` does not wait, and does not use the same value again.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let signals = block_signals();
        wait_for(|| self.try_lock());
        // SAFETY: the lock is held.
        let result = work(unsafe { &mut *self.value.get() });
        self.is_locked.store(false, Ordering::Release);
        restore_signals(&signals);
        result
    }

    /// Calls `work` with the value, unless another thread uses it.
    pub(crate) fn try_with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let signals = block_signals();
        let result = self.try_lock().then(|| {
            // SAFETY: the lock is held.
            let result = work(unsafe { &mut *self.value.get() });
            self.is_locked.store(false, Ordering::Release);
            result
        });
        restore_signals(&signals);
        result
    }

    /// Takes the lock and keeps it, around a fork.
    pub(crate) fn lock(&self) {
        wait_for(|| self.try_lock());
    }

    /// Frees the lock: after [`Guarded::lock`], or in a child of fork(2) where a thread of the parent held it.
    pub(crate) fn break_lock(&self) {
        self.is_locked.store(false, Ordering::Release);
    }
}
