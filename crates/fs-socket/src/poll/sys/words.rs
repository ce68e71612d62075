//! Words that this process shares with those that it forks.

use core::{ptr, sync::atomic::AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Anonymous memory that every process sees which is forked from here on, at the same address.
#[derive(Debug)]
pub(in crate::poll) struct Words {
    base: *mut AtomicU64,
    len: usize,
}

// SAFETY: atomics, in memory that is this value's alone within the process.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// So many words, all 0; memory is used for those that are written. `None`: there is none.
    pub(in crate::poll) fn new(len: usize) -> Option<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping, wherever the kernel puts it.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len * size_of::<AtomicU64>(), prot, flags) }.ok()?;
        Some(Words { base: base.cast(), len })
    }

    /// The word at this place; `None`: beyond the end.
    #[inline]
    pub(in crate::poll) fn get(&self, at: usize) -> Option<&AtomicU64> {
        // SAFETY: `len` words are mapped for as long as this value lives; zero bytes are a valid atomic, and every change in any
        // process is an atomic one.
        (at < self.len).then(|| unsafe { &*self.base.add(at) })
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nobody refers to any more. It cannot fail with these arguments.
        let _ = unsafe { munmap(self.base.cast(), self.len * size_of::<AtomicU64>()) };
    }
}
