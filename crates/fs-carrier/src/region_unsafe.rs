//! The mapping of a connection's two directions, and of the sides' own words.
//!
//! 1. Lengths come from the control plane, never from the memory. The file is sealed against
//!    shrinking, so no access is beyond its end. A hole that the peer punches reads as zeros, which
//!    mean "the kernel carries". With vm.overcommit_memory 2 the access fails with SIGBUS if all memory
//!    is committed (docs/SECURITY.md, row 15).
//! 2. Words are seen as shared references to types made of atomics only: any value, changing at any
//!    time, is valid for them.
//! 3. The ring's bytes are touched through raw pointers only (`ring_unsafe.rs`).
//!
//! ```text
//! 0            256           4096              4096 + L          4096 + 2 L
//! | direction 0 | direction 1 | ring 0 (L bytes) | ring 1 (L bytes) |
//! ```
#![allow(unsafe_code)]

use core::ptr::NonNull;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::layout::{Direction, Side};
use crate::ring_unsafe::Ring;
use crate::word::{Snapshot, Word};

/// Offset of the first ring.
const RINGS_AT: usize = 4096;
/// The smallest ring: a page. Less saves no memory.
pub const MIN_RING: usize = 4096;
/// The largest ring. More than the last-level cache holds is slower than the kernel's own buffers.
pub const MAX_RING: usize = 16 << 20;

/// Shared memory.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Unmapped by the last drop.
    memory: Arc<Memory>,
}

/// A mapping that is unmapped on drop.
#[derive(Debug)]
struct Memory {
    base: NonNull<u8>,
    len: usize,
    /// Allocated, not mapped: for Miri, which knows no shared mappings.
    #[cfg(any(miri, test))]
    heap: Option<Arc<Heap>>,
}

// SAFETY: all access goes through atomics, or to ring bytes that the rules hand to one end at a time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}
// SAFETY: an address and a length.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Mapping {
    fn new(len: usize, file: Option<&OwnedFd>) -> Result<Self, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let place = core::ptr::null_mut();
        let base = match file {
            Some(file) => {
                let flags = MapFlags::SHARED | MapFlags::NORESERVE;
                // SAFETY: a new mapping at a place of the kernel's choice.
                unsafe { rustix::mm::mmap(place, len, prot, flags, file, 0)? }
            }
            // SAFETY: as above.
            None => unsafe { rustix::mm::mmap_anonymous(place, len, prot, MapFlags::SHARED | MapFlags::NORESERVE)? },
        };
        // SAFETY: the range was mapped just now, and the advice changes no contents. Refused: a
        // core dump has these pages.
        let _dumped = unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self::of(Memory {
            base,
            len,
            #[cfg(any(miri, test))]
            heap: None,
        }))
    }

    fn of(memory: Memory) -> Self {
        Mapping { base: memory.base, len: memory.len, memory: Arc::new(memory) }
    }

    /// The structure at `offset`, which this module computes.
    #[inline]
    fn at<T: MadeOfAtomics>(&self, offset: usize) -> &T {
        assert!(offset.is_multiple_of(align_of::<T>()) && offset + size_of::<T>() <= self.len);
        // SAFETY: inside of the mapping and aligned (just checked, the base is a page), made of
        // atomics, lives as long as self.
        unsafe { self.base.add(offset).cast::<T>().as_ref() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        #[cfg(any(miri, test))]
        if self.heap.is_some() {
            return;
        }
        // SAFETY: mapped by `Mapping::new`, and no reference outlives self. It fails for a wrong range only.
        let _unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Types made of atomics: valid for every bit pattern, safe to share.
///
/// # Safety
/// Only atomics inside (no padding is read, no `&mut`), alignment at most that of a page.
unsafe trait MadeOfAtomics {}
// SAFETY: atomics only, see `layout.rs`.
unsafe impl MadeOfAtomics for Direction {}
// SAFETY: as above.
unsafe impl MadeOfAtomics for Side {}

/// An end of the connection. The end that connected is `A` by convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Writes direction 0, reads direction 1.
    A,
    /// Writes direction 1, reads direction 0.
    B,
}

/// Two directions in memory that both ends map.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    ring: usize,
}

/// A direction's word, which keeps the region mapped.
#[derive(Debug)]
pub(crate) struct WordRef {
    word: NonNull<Word>,
    _keeps: Arc<Memory>,
}

// SAFETY: a reference to an atomic.
unsafe impl Send for WordRef {}
// SAFETY: as above.
unsafe impl Sync for WordRef {}

impl core::ops::Deref for WordRef {
    type Target = Word;

    #[inline]
    fn deref(&self) -> &Word {
        // SAFETY: inside of the memory that this keeps mapped, made of an atomic.
        unsafe { self.word.as_ref() }
    }
}

impl Region {
    /// Makes the file of a new region with two rings of `ring` bytes: what a matchmaker gives to both ends.
    ///
    /// A send is in flight in both directions: it ends when the producer's end has joined
    /// ([`crate::pair::Pair::promote`]).
    ///
    /// # Errors
    /// `EINVAL`: `ring` is no power of two from [`MIN_RING`] to [`MAX_RING`]. Those of
    /// memfd_create(2) and ftruncate(2).
    pub fn create(name: &str, ring: usize) -> Result<OwnedFd, Errno> {
        let len = Self::file_len(ring)?;
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        for direction in 0..2 {
            rustix::io::pwrite(&file, &Snapshot::NOT_JOINED.to_ne_bytes(), direction * size_of::<Direction>() as u64)?;
        }
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file)
    }

    /// Reserves the memory of a region's file. Otherwise each page is accounted for at its first
    /// use, and with vm.overcommit_memory 2 a process at the limit of committed memory gets SIGBUS
    /// there.
    ///
    /// # Errors
    /// Those of fallocate(2): `ENOSPC` without memory.
    pub fn reserve(file: &OwnedFd, ring: usize) -> Result<(), Errno> {
        let len = Self::file_len(ring)? as u64;
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, len)
    }

    /// Maps a region's file.
    ///
    /// # Errors
    /// `EINVAL`: as [`Region::create`], or the file is shorter or can be made shorter. Those of mmap(2).
    pub fn map(file: &OwnedFd, ring: usize) -> Result<Self, Errno> {
        let len = Self::file_len(ring)?;
        let size = rustix::fs::fstat(file.as_fd())?.st_size;
        let seals = rustix::fs::fcntl_get_seals(file.as_fd())?;
        if u64::try_from(size).is_ok_and(|size| size >= len as u64) && seals.contains(SealFlags::SHRINK) {
            Ok(Region { mapping: Mapping::new(len, Some(file))?, ring })
        } else {
            Err(Errno::INVAL)
        }
    }

    fn file_len(ring: usize) -> Result<usize, Errno> {
        let valid = ring.is_power_of_two() && (MIN_RING..=MAX_RING).contains(&ring);
        if valid { Ok(RINGS_AT + 2 * ring) } else { Err(Errno::INVAL) }
    }

    /// Returns the view of `end`, with its own words.
    pub(crate) fn view(self, end: End, side: SideRef) -> View {
        let (out, incoming) = (end as usize, 1 - end as usize);
        let direction = |i: usize| NonNull::from(self.mapping.at::<Direction>(i * size_of::<Direction>()));
        let ring = |i: usize| {
            // SAFETY: `file_len` is `RINGS_AT` and two rings.
            unsafe { self.mapping.base.add(RINGS_AT + i * self.ring) }
        };
        View {
            outgoing: direction(out),
            incoming: direction(incoming),
            out_ring: ring(out),
            in_ring: ring(incoming),
            ring: self.ring,
            side: NonNull::from(&*side),
            memory: self.mapping.memory,
            _keeps: side,
        }
    }
}

/// One end's view of a region and of its own words: addresses that were checked once.
#[derive(Debug)]
pub(crate) struct View {
    outgoing: NonNull<Direction>,
    incoming: NonNull<Direction>,
    out_ring: NonNull<u8>,
    in_ring: NonNull<u8>,
    ring: usize,
    side: NonNull<Side>,
    memory: Arc<Memory>,
    _keeps: SideRef,
}

// SAFETY: as `Mapping`.
unsafe impl Send for View {}
// SAFETY: as `Mapping`.
unsafe impl Sync for View {}

impl View {
    /// The direction that this end writes.
    #[inline]
    pub(crate) fn outgoing(&self) -> (&Direction, Ring<'_>) {
        // SAFETY: `view` took both from the mapping, which `memory` keeps; `ring` bytes of it begin there.
        unsafe { (self.outgoing.as_ref(), Ring::new(self.out_ring, self.ring)) }
    }

    /// The direction that this end reads.
    #[inline]
    pub(crate) fn incoming(&self) -> (&Direction, Ring<'_>) {
        // SAFETY: as above.
        unsafe { (self.incoming.as_ref(), Ring::new(self.in_ring, self.ring)) }
    }

    /// This end's own words.
    #[inline]
    pub(crate) fn side(&self) -> &Side {
        // SAFETY: `view` took it from the table, which `_keeps` keeps.
        unsafe { self.side.as_ref() }
    }

    /// The word of the direction that this end reads.
    pub(crate) fn incoming_word(&self) -> WordRef {
        WordRef { word: NonNull::from(&self.incoming().0.line_a.word), _keeps: Arc::clone(&self.memory) }
    }
}

/// The own words of many connections' sides: memory that the holders share (a child of fork(2)
/// inherits it), and no peer maps.
#[derive(Debug)]
pub struct SideTable {
    mapping: Mapping,
    sides: usize,
}

/// One side's words.
#[derive(Clone, Debug)]
pub struct SideRef {
    table: Arc<SideTable>,
    offset: usize,
}

impl SideTable {
    /// Makes a table for `sides` connections.
    ///
    /// # Errors
    /// The errors of mmap(2).
    pub fn new(sides: usize) -> Result<Arc<Self>, Errno> {
        let len = sides.max(1).checked_mul(size_of::<Side>()).ok_or(Errno::NOMEM)?;
        Ok(Arc::new(SideTable { mapping: Mapping::new(len, None)?, sides }))
    }

    /// Returns the words of side `i`, or nothing beyond the last.
    #[must_use]
    pub fn side(self: &Arc<Self>, i: usize) -> Option<SideRef> {
        (i < self.sides).then(|| SideRef { table: Arc::clone(self), offset: i * size_of::<Side>() })
    }
}

impl core::ops::Deref for SideRef {
    type Target = Side;

    #[inline]
    fn deref(&self) -> &Side {
        self.table.mapping.at(self.offset)
    }
}

/// Memory for tests, allocated without system calls.
#[cfg(any(miri, test))]
mod heap {
    use super::*;

    #[derive(Debug)]
    pub(super) struct Heap {
        base: NonNull<u8>,
        layout: std::alloc::Layout,
    }

    // SAFETY: as `Mapping`.
    unsafe impl Send for Heap {}
    // SAFETY: as `Mapping`.
    unsafe impl Sync for Heap {}

    impl Drop for Heap {
        fn drop(&mut self) {
            // SAFETY: allocated below with this layout; the last view of it is gone.
            unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
        }
    }

    fn allocate(len: usize) -> Arc<Heap> {
        let layout = std::alloc::Layout::from_size_align(len, 4096).expect("a valid layout");
        // SAFETY: the length is not 0.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("memory");
        Arc::new(Heap { base, layout })
    }

    impl Region {
        /// Two views of one region in ordinary memory. Its ring may be smaller than a mapped one's.
        pub(crate) fn in_memory(ring: usize) -> (Self, Self) {
            let heap = allocate(RINGS_AT + 2 * ring);
            let view = || Region {
                mapping: Mapping::of(Memory {
                    base: heap.base,
                    len: heap.layout.size(),
                    heap: Some(Arc::clone(&heap)),
                }),
                ring,
            };
            (view(), view())
        }
    }

    impl SideTable {
        /// A table in ordinary memory.
        pub(crate) fn in_memory(sides: usize) -> Arc<Self> {
            let heap = allocate(sides * size_of::<Side>());
            let mapping = Mapping::of(Memory { base: heap.base, len: heap.layout.size(), heap: Some(heap) });
            Arc::new(SideTable { mapping, sides })
        }
    }
}
#[cfg(any(miri, test))]
use heap::Heap;
