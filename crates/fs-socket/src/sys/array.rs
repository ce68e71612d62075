//! Arrays at a fixed place that grow: mapped at first use, never moved, never unmapped. Elements begin as zero bytes.
//!
//! Memory of an element is of that type for ever: a reader may hold a reference to an element that has been given to
//! another use meanwhile, and finds that out from the element's own atomics.

use core::{
    marker::PhantomData,
    ptr,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering},
};

use fs_shm::addresses;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

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

/// `LEN` elements. The addresses are taken at once, without a right to them; memory is asked for as higher elements are used,
/// for what may be written counts against RLIMIT_DATA and the kernel's commit limit even while it is not touched.
#[derive(Debug)]
pub struct Array<T: Zeroed + 'static, const LEN: usize> {
    /// Elements below this may be used.
    usable: AtomicUsize,
    base: AtomicPtr<T>,
    elements: PhantomData<&'static T>,
}

/// Asked for at once, in bytes: a multiple of every page size. Smaller: more system calls while a process opens its sockets.
/// Larger: more counts that is not used.
const STEP: usize = 256 << 10;

impl<T: Zeroed, const LEN: usize> Array<T, LEN> {
    const BYTES: usize = LEN * size_of::<T>();
    /// All at once.
    const IS_SMALL: bool = Self::BYTES <= STEP;

    /// Not mapped yet.
    pub const fn new() -> Self {
        Array { usable: AtomicUsize::new(0), base: AtomicPtr::new(ptr::null_mut()), elements: PhantomData }
    }

    /// The element, if there is memory for it: two loads.
    #[inline]
    pub fn at(&self, index: usize) -> Option<&'static T> {
        if index >= self.usable.load(Ordering::Acquire) {
            return None;
        }
        let base = self.base.load(Ordering::Relaxed);
        // SAFETY: `usable` elements from `base` on are readable and writable for ever (`grow` stores it last); zero bytes are a
        // valid element, and all changes are made through atomics.
        Some(unsafe { &*base.add(index) })
    }

    /// The place of an element.
    pub fn place(&self, element: &'static T) -> Option<usize> {
        let base = self.base.load(Ordering::Acquire) as usize;
        let place = (core::ptr::from_ref(element) as usize).checked_sub(base)? / size_of::<T>();
        (base != 0 && place < LEN).then_some(place)
    }

    /// The element, with memory for it and those below; `None` when there is none to be had, or the index is beyond the end.
    pub fn make(&self, index: usize) -> Option<&'static T> {
        if index >= LEN {
            return None;
        }
        if index >= self.usable.load(Ordering::Acquire) {
            self.grow(index)?;
        }
        self.at(index)
    }

    /// Memory for the first `count` elements, as far as it is to be had.
    pub fn grow_to(&self, count: usize) {
        if let Some(last) = count.min(LEN).checked_sub(1) {
            let _ = self.make(last);
        }
    }

    #[cold]
    fn grow(&self, index: usize) -> Option<()> {
        let base = self.map()?;
        let end = ((index + 1) * size_of::<T>()).next_multiple_of(STEP).min(Self::BYTES);
        if !Self::IS_SMALL {
            // A filter may kill who calls mprotect(2).
            (!fs_shm::wait::is_confined()).then_some(())?;
            let rights = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: the first `BYTES` from `base` on are this array's mapping; nobody loses a right. Several threads may do it.
            unsafe { mprotect(base.cast(), end, rights) }.ok()?;
        }
        self.usable.fetch_max(end / size_of::<T>(), Ordering::AcqRel);
        Some(())
    }

    /// The addresses.
    fn map(&self) -> Option<*mut T> {
        let base = self.base.load(Ordering::Acquire);
        if !base.is_null() {
            return Some(base);
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let rights = if Self::IS_SMALL { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::empty() };
        addresses::take(Self::BYTES);
        // SAFETY: a new mapping, wherever the kernel puts it.
        let new = unsafe { mmap_anonymous(ptr::null_mut(), Self::BYTES, rights, flags) };
        let new = new.inspect_err(|_| addresses::give(Self::BYTES)).ok()?;
        match self.base.compare_exchange(ptr::null_mut(), new.cast(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(new.cast()),
            Err(other) => {
                // SAFETY: mapped above and seen by nobody.
                let _ = unsafe { munmap(new, Self::BYTES) };
                addresses::give(Self::BYTES);
                Some(other)
            }
        }
    }
}

impl<T: Zeroed, const LEN: usize> Default for Array<T, LEN> {
    fn default() -> Self {
        Self::new()
    }
}
