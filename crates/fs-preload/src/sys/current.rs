//! A shared value that is replaced in a child of fork(2) only, and never freed before its owner is.

use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;

/// Holds one reference to a value; reading it takes no lock.
pub(crate) struct Current<T>(AtomicPtr<T>);

impl<T> Current<T> {
    pub(crate) fn new(value: Arc<T>) -> Self {
        Current(AtomicPtr::new(Arc::into_raw(value).cast_mut()))
    }

    /// Returns the value.
    #[inline]
    pub(crate) fn get(&self) -> &T {
        // SAFETY: the reference is held until self is dropped, also that of a value that was replaced.
        unsafe { &*self.0.load(Ordering::Acquire) }
    }

    /// Returns a reference of the caller's own.
    pub(crate) fn share(&self) -> Arc<T> {
        let value = self.0.load(Ordering::Acquire);
        // SAFETY: made by `Arc::into_raw`, and alive as above.
        unsafe {
            Arc::increment_strong_count(value);
            Arc::from_raw(value)
        }
    }

    /// Replaces the value. The old one is not freed.
    pub(crate) fn replace(&self, value: Arc<T>) {
        self.0.store(Arc::into_raw(value).cast_mut(), Ordering::Release);
    }
}

impl<T> Drop for Current<T> {
    fn drop(&mut self) {
        // SAFETY: made by `Arc::into_raw`, and nobody else can read it any more.
        drop(unsafe { Arc::from_raw(self.0.load(Ordering::Acquire)) });
    }
}
