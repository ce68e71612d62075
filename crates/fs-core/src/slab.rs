//! Index-linked storage: the queues of a million connections share one array, so an idle connection
//! owns no memory for them.

use alloc::vec::Vec;

/// "No entry".
pub(crate) const NIL: u32 = u32::MAX;

/// A value that a slab can store: it can be replaced by a harmless value when it is removed.
pub(crate) trait Hollow {
    /// Returns a value that owns nothing.
    fn hollow() -> Self;
    /// Returns the link field, which links the free list while the entry is vacant.
    fn next_mut(&mut self) -> &mut u32;
}

/// A growing array with a free list through its vacant entries. Grows only to its high-water mark,
/// which callers bound by the number of frames: each entry holds one.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<T>,
    free: u32,
    live: usize,
    large: Option<Large>,
}

/// The callback for a large array (see `StackConfig::large_table`), and the maximum number of
/// entries.
#[derive(Clone, Copy, Debug)]
struct Large {
    most: usize,
    tell: fn(*const u8, usize),
}

/// Minimum number of entries of a large array.
const LARGE_MIN: usize = 1 << 14;

impl<T: Hollow> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: NIL, live: 0, large: None }
    }

    /// Like `new`. When the array becomes large, it is reallocated for `most` entries, and `tell`
    /// is called with its memory.
    pub(crate) fn growing_to(most: usize, tell: Option<fn(*const u8, usize)>) -> Self {
        Self { large: tell.map(|tell| Large { most, tell }), ..Self::new() }
    }

    /// Adds a value. Inlined, so that `value` is constructed in its final location. A copy from the
    /// stack in larger pieces than it was written would stall until all earlier stores, including a
    /// payload's, have reached the cache.
    #[inline(always)]
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.live += 1;
        if self.free != NIL {
            let index = self.free;
            let entry = &mut self.entries[index as usize];
            self.free = *entry.next_mut();
            *entry = value;
            return index;
        }
        if self.entries.len() == self.entries.capacity() {
            self.grow();
        }
        self.entries.push(value);
        (self.entries.len() - 1) as u32
    }

    #[cold]
    fn grow(&mut self) {
        let len = self.entries.len();
        if len >= LARGE_MIN
            && let Some(Large { most, tell }) = self.large.take()
            && self.entries.try_reserve_exact(most.saturating_sub(len)).is_ok()
        {
            tell(self.entries.as_ptr().cast(), self.entries.capacity() * size_of::<T>());
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, index: u32) -> T {
        let mut vacant = T::hollow();
        *vacant.next_mut() = self.free;
        self.free = index;
        self.live -= 1;
        core::mem::replace(&mut self.entries[index as usize], vacant)
    }

    /// Like `remove`, for an entry whose contents were moved out: copies nothing.
    #[inline]
    pub(crate) fn vacate(&mut self, index: u32) {
        let free = self.free;
        *self.entries[index as usize].next_mut() = free;
        self.free = index;
        self.live -= 1;
    }

    /// Returns the entry, or `None` for [`NIL`].
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)
    }

    /// Prefetches the entry, unless it is [`NIL`].
    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        if let Some(entry) = self.get(index) {
            fs_prefetch::lines(entry);
        }
    }

    /// Returns all entries, including vacant ones.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn entries(&self) -> &[T] {
        &self.entries
    }

    /// Returns the number of entries in use.
    pub(crate) fn len(&self) -> usize {
        self.live
    }
}

impl<T> core::ops::Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.entries[index as usize]
    }
}

impl<T> core::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.entries[index as usize]
    }
}
