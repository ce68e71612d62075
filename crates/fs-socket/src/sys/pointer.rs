//! A word that points to something that is never freed.

use core::{
    ptr,
    sync::atomic::{
        AtomicPtr,
        Ordering::{self, Acquire, Release, SeqCst},
    },
};

/// Null, or an element that lives for ever. Zero bytes are null.
#[derive(Debug)]
#[repr(transparent)]
pub struct Pointer<T: 'static>(AtomicPtr<T>);

impl<T: Sync> Pointer<T> {
    /// Null.
    pub const fn new() -> Self {
        Pointer(AtomicPtr::new(ptr::null_mut()))
    }

    /// What it points to.
    #[inline]
    pub fn load(&self) -> Option<&'static T> {
        Self::of(self.0.load(Acquire))
    }

    /// Points it elsewhere.
    pub fn store(&self, value: Option<&'static T>) {
        self.0.store(Self::raw(value), Release);
    }

    /// Points it elsewhere and answers what it pointed to.
    pub fn swap(&self, value: Option<&'static T>) -> Option<&'static T> {
        Self::of(self.0.swap(Self::raw(value), SeqCst))
    }

    /// Points it to `value` if it is null; false if it is not.
    pub fn claim(&self, value: &'static T) -> bool {
        let raw = ptr::from_ref(value).cast_mut();
        self.0.compare_exchange(ptr::null_mut(), raw, SeqCst, Ordering::Relaxed).is_ok()
    }

    fn raw(value: Option<&'static T>) -> *mut T {
        value.map_or(ptr::null_mut(), |value| ptr::from_ref(value).cast_mut())
    }

    #[inline]
    fn of(raw: *mut T) -> Option<&'static T> {
        // SAFETY: only `&'static` references (or null) are ever stored, or zero bytes, which are null.
        unsafe { raw.as_ref() }
    }
}

impl<T: Sync> Default for Pointer<T> {
    fn default() -> Self {
        Self::new()
    }
}
