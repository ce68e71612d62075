//! Sparse arrays at a fixed place: mapped at first use, never moved, never unmapped. Elements begin as zero bytes.
//!
//! Memory of an element is of that type for ever: a reader may hold a reference to an element that has been given to
//! another use meanwhile, and finds that out from the element's own atomics.

use core::{
    marker::PhantomData,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// # Safety
/// All bytes zero are a valid value, and every field is an atomic (or made of such).
pub unsafe trait Zeroed: Sync {}

/// Declares that a type is made of atomics (and [`Pointer`](super::pointer::Pointer)s) only.
macro_rules! zeroed {
    ($($type:ty),*) => { $(
        #[allow(unsafe_code)]
        // SAFETY: all fields are atomics: checked by eye where this stands, beside the type.
        unsafe impl $crate::sys::array::Zeroed for $type {}
    )* };
}
pub(crate) use zeroed;

zeroed!(core::sync::atomic::AtomicU64, core::sync::atomic::AtomicU32, core::sync::atomic::AtomicI32);
// SAFETY: a pointer; null is valid.
unsafe impl<T: Sync> Zeroed for super::pointer::Pointer<T> {}

/// `LEN` elements.
#[derive(Debug)]
pub struct Array<T: Zeroed + 'static, const LEN: usize> {
    base: AtomicPtr<T>,
    elements: PhantomData<&'static T>,
}

impl<T: Zeroed, const LEN: usize> Array<T, LEN> {
    /// Not mapped yet.
    pub const fn new() -> Self {
        Array { base: AtomicPtr::new(ptr::null_mut()), elements: PhantomData }
    }

    /// The element, if the array has been mapped: one load.
    #[inline]
    pub fn at(&self, index: usize) -> Option<&'static T> {
        let base = self.base.load(Ordering::Acquire);
        if base.is_null() || index >= LEN {
            return None;
        }
        // SAFETY: `base` maps `LEN` elements for ever; zero bytes are a valid element, and all changes are made through atomics.
        Some(unsafe { &*base.add(index) })
    }

    /// The place of an element.
    pub fn place(&self, element: &'static T) -> Option<usize> {
        let base = self.base.load(Ordering::Acquire) as usize;
        let place = (core::ptr::from_ref(element) as usize).checked_sub(base)? / size_of::<T>();
        (base != 0 && place < LEN).then_some(place)
    }

    /// Maps the array unless it is; `None` when there is no address space, or the index is beyond the end.
    pub fn make(&self, index: usize) -> Option<&'static T> {
        if self.base.load(Ordering::Acquire).is_null() {
            let len = LEN * size_of::<T>();
            // SAFETY: a new mapping, wherever the kernel puts it.
            let new = unsafe {
                mmap_anonymous(
                    ptr::null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )
            }
            .ok()?;
            let first =
                self.base.compare_exchange(ptr::null_mut(), new.cast(), Ordering::AcqRel, Ordering::Acquire).is_ok();
            if !first {
                // SAFETY: mapped above and seen by nobody.
                let _ = unsafe { munmap(new, len) };
            }
        }
        self.at(index)
    }
}

impl<T: Zeroed, const LEN: usize> Default for Array<T, LEN> {
    fn default() -> Self {
        Self::new()
    }
}
