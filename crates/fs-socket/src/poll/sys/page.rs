//! Two counts that this process shares with those that it forks.

use core::{ptr, sync::atomic::AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Anonymous memory that every process sees which is forked from here on, at the same address.
#[derive(Debug)]
pub(in crate::poll) struct Page {
    base: *mut [AtomicU64; 2],
}

// SAFETY: atomics, in memory that is this value's alone within the process.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Both 0. `None`: no memory.
    pub(in crate::poll) fn new() -> Option<Self> {
        let (length, prot) = (size_of::<[AtomicU64; 2]>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping, wherever the kernel puts it.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), length, prot, MapFlags::SHARED) }.ok()?;
        Some(Page { base: base.cast() })
    }

    /// The counts.
    #[inline]
    pub(in crate::poll) fn counts(&self) -> &[AtomicU64; 2] {
        // SAFETY: mapped for as long as this value lives, zero bytes are a valid atomic, and every change in any process is an atomic
        // one.
        unsafe { &*self.base }
    }
}

#[cfg(test)]
impl Page {
    /// The same memory, as another process has it; not to be dropped.
    pub(in crate::poll) fn twin(&self) -> Self {
        Page { base: self.base }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nobody refers to any more. It cannot fail with these arguments.
        let _ = unsafe { munmap(self.base.cast(), size_of::<[AtomicU64; 2]>()) };
    }
}
