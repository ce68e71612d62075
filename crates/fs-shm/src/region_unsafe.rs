//! A mapping of shared memory, and typed views of it.
//!
//! 1. The mapping's length comes from the control plane, and the memfd is sealed against shrinking, so no access
//!    inside of it faults (a peer may punch holes: they read as zeros).
//! 2. Structures are seen as shared references to types made of atomics only: any value, changing at any time, is
//!    valid for them.
//! 3. Payload is touched through raw pointers only (`copy_unsafe.rs`), or through slices that a borrow hands out.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::addresses;
use crate::copy_unsafe::Chunk;
use crate::layout;
use crate::word::{AtomicU32, AtomicU64};

/// Types made of atomics: valid for every bit pattern, safe to share.
///
/// # Safety
/// Only atomics inside (no padding is read, no `&mut`), alignment at most 64.
pub(crate) unsafe trait Shared {}

// SAFETY: atomics only, see `layout.rs`; the alignment is 64.
unsafe impl Shared for layout::Head {}
// SAFETY: as above.
unsafe impl Shared for layout::LaneHead {}
// SAFETY: as above.
unsafe impl Shared for layout::Marks {}
// SAFETY: as above.
unsafe impl Shared for layout::Block {}
// SAFETY: as above.
unsafe impl Shared for layout::LocksHead {}
// SAFETY: as above.
unsafe impl Shared for layout::SlotLocks {}
// SAFETY: atomics only.
unsafe impl Shared for AtomicU64 {}
// SAFETY: atomics only.
unsafe impl Shared for AtomicU32 {}
// SAFETY: atomics only, see `pages.rs`.
unsafe impl Shared for crate::pages::Entry {}
// SAFETY: as above.
unsafe impl Shared for crate::pages::Changes {}
// SAFETY: atomics only, see `pages.rs`.
unsafe impl Shared for crate::pages::DirectoryHead {}
// SAFETY: atomics only, see `pages.rs`.
unsafe impl Shared for crate::pages::ListenerHead {}
// SAFETY: atomics only, see `sleepers.rs`.
unsafe impl Shared for crate::sleepers::Places {}

/// What one page of page tables describes. A mapping that is made of such pieces leaves no table behind when it is replaced:
/// the tables at its ends are not its neighbours' too.
const TABLE: usize = 2 << 20;

/// A shared mapping, or two that are used as one, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    len: usize,
    /// Where the second mapping begins; `len`: there is none.
    split: usize,
    /// Bytes of the first mapping, with what lies beside it.
    room: usize,
    /// Another file's bytes, in the room of the first mapping so that they go with it.
    beside: NonNull<u8>,
    beside_len: usize,
    /// What lies at `split`.
    rest: NonNull<u8>,
    /// Bytes that are mapped still: less than `len` after [`Region::retire`]; 0: no mapping (Miri).
    mapped: AtomicUsize,
}

// SAFETY: all access is through atomics, or to payload that the ring protocol hands to one side at a time.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// What gives a file, and how many bytes of it are mapped.
type Beside = (fn() -> Result<OwnedFd, Errno>, usize);

/// For [`Region::map_split`].
pub(crate) const NOTHING_BESIDE: Option<Beside> = None;

impl Region {
    /// Maps `len` bytes of `fd`, from its beginning.
    ///
    /// # Errors
    /// `EINVAL`: the file is shorter, or `writable`/`sealed` does not hold. Those of mmap(2).
    pub(crate) fn map(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self, Errno> {
        Self::map_split(fd, len, len, writable, NOTHING_BESIDE)
    }

    /// The same in two mappings, of which the second begins with byte `split` (whole pages): they lie anywhere. What is looked
    /// at in one piece lies in one of them. `beside`: gives another file once `file` is let go, and how many bytes of it are mapped
    /// too ([`Region::beside`]).
    ///
    /// # Errors
    /// As [`Region::map`]; those of `beside`.
    pub(crate) fn map_split<Other: AsFd>(
        file: impl AsFd,
        len: usize,
        split: usize,
        writable: bool,
        beside: Option<(impl FnOnce() -> Result<Other, Errno>, usize)>,
    ) -> Result<Self, Errno> {
        let fd = file.as_fd();
        has_for_good(fd, len)?;
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let map = |from: usize, bytes: usize, align: usize| {
            addresses::take(bytes + align);
            let at = map_at(fd, (from, bytes), align, prot).inspect_err(|_| addresses::give(bytes + align))?;
            addresses::give(align);
            // A core dump of the process need not walk gigabytes of holes. Refused: it does.
            // SAFETY: the range was mapped just now; the advice changes no contents.
            let _dumped = unsafe { rustix::mm::madvise(at.as_ptr().cast(), bytes, Advice::LinuxDontDump) };
            Ok(at)
        };
        // What is behind the split is mapped twice where the first mapping is made longer, and is not touched there.
        let (room, align) = match split.next_multiple_of(TABLE) {
            room if split < len && room <= len => (room, TABLE),
            _ => (split, 0),
        };
        let beside_len = beside.as_ref().map_or(0, |(_, len)| *len);
        let beside_room = if align == 0 { beside_len } else { beside_len.next_multiple_of(align) };
        let base = map(0, room + beside_room, align)?;
        // SAFETY: the end of the first mapping, or its last bytes.
        let place = unsafe { base.add(room) };
        // Unmaps the first where there is no room for the others.
        let mut region = Region {
            base,
            len: split,
            split,
            room: room + beside_room,
            beside: place,
            beside_len,
            rest: base,
            mapped: AtomicUsize::new(split),
        };
        if split < len {
            region.rest = map(split, len - split, 0)?;
            region.len = len;
            *region.mapped.get_mut() = len;
        }
        drop(file);
        if let Some((beside, len)) = beside {
            let beside = beside()?;
            has_for_good(beside.as_fd(), len)?;
            let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: in place of the end of the mapping made just now, of which nobody knows. What is behind the file's end is not
            // touched.
            unsafe { rustix::mm::mmap(place.as_ptr().cast(), beside_room, prot, flags, beside.as_fd(), 0)? };
            // The advice on the first mapping went with that part of it, and a dump would fill in the file's holes. Refused: it does.
            // SAFETY: the range was mapped just now; the advice changes no contents.
            let _dumped = unsafe { rustix::mm::madvise(place.as_ptr().cast(), beside_room, Advice::LinuxDontDump) };
        }
        Ok(region)
    }

    /// Two views of the same zeroed memory, and of some of its own beside each, without any system call, for Miri. The memory is
    /// never freed.
    #[cfg(test)]
    pub(crate) fn in_memory(len: usize, beside_len: usize) -> (Self, Self) {
        let zeros = |len| {
            let layout = std::alloc::Layout::from_size_align(len, 1 << 16).unwrap();
            // SAFETY: len is not 0.
            NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap()
        };
        let base = zeros(len);
        let view = || Region {
            base,
            len,
            split: len,
            room: len,
            beside: zeros(beside_len),
            beside_len,
            rest: base,
            mapped: AtomicUsize::new(0),
        };
        (view(), view())
    }

    /// The structure at `offset` of what lies beside; panics as [`Region::at`] does.
    #[inline]
    pub(crate) fn beside<T: Shared>(&self, offset: usize) -> &T {
        let end = self.beside_len;
        assert!(offset.is_multiple_of(align_of::<T>()) && offset <= end && size_of::<T>() <= end - offset);
        // SAFETY: inside of that mapping (just checked), aligned (page-aligned), atomics only, lives as long as self.
        unsafe { self.beside.add(offset).cast::<T>().as_ref() }
    }

    /// The structure at `offset`, which lies before the split.
    ///
    /// # Panics
    /// If it does not lie inside of the mapping or is not aligned: offsets are computed from the geometry, never
    /// from shared memory.
    #[inline]
    pub(crate) fn at<T: Shared>(&self, offset: usize) -> &T {
        let end = self.split;
        assert!(offset.is_multiple_of(align_of::<T>()) && offset <= end && size_of::<T>() <= end - offset);
        // SAFETY: inside of the first mapping (just checked), aligned (page-aligned base), atomics only, lives as long as self.
        unsafe { self.base.add(offset).cast::<T>().as_ref() }
    }

    /// `count` structures from `offset` on; panics as [`Region::at`] does.
    #[inline]
    pub(crate) fn slice<T: Shared>(&self, offset: usize, count: usize) -> &[T] {
        let bytes = count.saturating_mul(size_of::<T>());
        assert!(offset.is_multiple_of(align_of::<T>()));
        // SAFETY: as `at`, for each element; both mappings begin with a page.
        unsafe { std::slice::from_raw_parts(self.bytes(offset, bytes).cast::<T>().as_ptr(), count) }
    }

    /// Payload memory: `len` bytes at `offset`; panics as [`Region::at`] does.
    #[inline]
    pub(crate) fn chunk(&self, offset: usize, len: usize) -> Chunk<'_> {
        // SAFETY: inside of the mapping (checked by `bytes`), which is writable where payload lies.
        unsafe { Chunk::new(self.bytes(offset, len), len) }
    }

    #[inline]
    fn bytes(&self, offset: usize, len: usize) -> NonNull<u8> {
        let (base, offset, end) = if offset < self.split {
            (self.base, offset, self.split)
        } else {
            (self.rest, offset - self.split, self.len - self.split)
        };
        assert!(offset <= end && len <= end - offset);
        // SAFETY: inside of one of the mappings.
        unsafe { base.add(offset) }
    }

    /// Gives the pages of a range back: they read as zeros. Failure leaves them allocated, which costs memory only;
    /// a confined process may be killed for trying.
    pub(crate) fn punch(&self, offset: usize, len: usize) {
        let place = self.bytes(offset, len);
        if self.mapped.load(Ordering::Relaxed) == 0 || crate::wait::is_confined() {
            return;
        }
        // SAFETY: the range lies in this mapping; what others hold of it are atomics or payload, for which zeros are valid.
        let _kept = unsafe { rustix::mm::madvise(place.as_ptr().cast(), len, Advice::LinuxRemove) };
    }
}

impl Region {
    /// Whether [`Region::retire`] has begun.
    pub(crate) fn is_retired(&self) -> bool {
        // Without a mapping there is nothing to retire.
        let mapped = self.mapped.load(Ordering::Acquire);
        mapped != 0 && mapped < self.len
    }

    /// Puts this mapping in place of another one: who looks at that sees this memory from here on. Failure leaves both as they
    /// are.
    ///
    /// # Errors
    /// This region, and those of mremap(2); `EINVAL`: they differ in length, or one is not mapped.
    pub(crate) fn put_over(mut self, other: &Region) -> Result<(), (Self, Errno)> {
        let mapped = *self.mapped.get_mut();
        if self.split != self.len
            || mapped != self.len
            || other.split != other.len
            || other.len != self.len
            || other.mapped.load(Ordering::Acquire) != other.len
        {
            return Err((self, Errno::INVAL));
        }
        let (from, to) = (self.base.as_ptr().cast(), other.base.as_ptr().cast());
        let flags = rustix::mm::MremapFlags::MAYMOVE;
        // SAFETY: nobody has a reference to this mapping, which is owned here, and what others refer to in the other one are
        // atomics, for which any value is valid; it stays mapped until it is replaced.
        match unsafe { rustix::mm::mremap_fixed(from, self.len, self.len, flags, to) } {
            Ok(_) => {
                // Its pages are the other's now.
                *self.mapped.get_mut() = 0;
                addresses::give(self.len);
                Ok(())
            }
            Err(errno) => Err((self, errno)),
        }
    }

    /// Gives the shared memory back: the first mapping becomes private zeros, the second no memory at all. The first may be
    /// looked at as before, by those who do not know yet. One that was not split is left as it is.
    ///
    /// The caller makes sure that nobody touches the second any more: every access to payload comes after a look at the
    /// slot's state, and that is zero, a free slot's, from here on.
    ///
    /// The second's addresses are as many as the next one needs, which gets them; if both were one mapping, the kept bytes of
    /// each would be in the way of the next: 47 bits of addresses and some 6,500 mappings used by as many of 20 GiB, and from there on
    /// only what lies above the others.
    pub(crate) fn retire(&self) {
        if self.split == self.len || self.mapped.swap(self.split, Ordering::AcqRel) != self.len {
            return;
        }
        if !self.zero_first() {
            self.mapped.store(self.len, Ordering::Release);
            return;
        }
        // SAFETY: the rest of this mapping, which nobody touches any more (above). Fails for a wrong range only.
        let _unmapped = unsafe { rustix::mm::munmap(self.rest.as_ptr().cast(), self.len - self.split) };
        addresses::give(self.len - self.split);
    }

    /// After [`Region::retire`]: what was written there since, and the page tables of what was looked at, go.
    pub(crate) fn clear_retired(&self) {
        if self.is_retired() {
            // Refused: they stay, which costs memory only.
            let _cleared = self.zero_first();
        }
    }

    /// The first mapping becomes private zeros. False: it is as it was.
    fn zero_first(&self) -> bool {
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED);
        // SAFETY: replaces pages of this mapping, of which only atomics are referred to, for which zeros are valid.
        let zeros = unsafe { rustix::mm::mmap_anonymous(self.base.as_ptr().cast(), self.room, prot, flags) };
        let Ok(zeros) = zeros else { return false };
        // fork(2) need not walk it for pages that were touched; and a word that is written late takes a page, not 2 MiB.
        // Refused: it costs that.
        for advice in [Advice::LinuxWipeOnFork, Advice::LinuxNoHugepage] {
            // SAFETY: the range was mapped just now; a child sees zeros there, which are valid.
            let _taken = unsafe { rustix::mm::madvise(zeros, self.room, advice) };
        }
        true
    }
}

/// Whether a file has so many bytes, and cannot be made shorter.
fn has_for_good(fd: BorrowedFd<'_>, len: usize) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(fd)?;
    let is_long = u64::try_from(stat.st_size).is_ok_and(|size| size >= len as u64);
    let is_sealed = is_long && rustix::fs::fcntl_get_seals(fd)?.contains(rustix::fs::SealFlags::SHRINK);
    if is_sealed { Ok(()) } else { Err(Errno::INVAL) }
}

/// Maps bytes (from, number) of `fd` at a multiple of `align` (0: anywhere).
fn map_at(
    fd: BorrowedFd<'_>,
    (from, bytes): (usize, usize),
    align: usize,
    prot: ProtFlags,
) -> Result<NonNull<u8>, Errno> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    let mut place = std::ptr::null_mut();
    if align != 0 {
        // Addresses to choose from; what is too much goes.
        let (none, reserve) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let free = unsafe { rustix::mm::mmap_anonymous(place, bytes + align, none, reserve)? }.cast::<u8>();
        // As high as it can be: beside the one before, with which it is one mapping when both are retired.
        let before = align - (free.addr() + align) % align;
        place = free.wrapping_add(before).cast();
        for (at, len) in [(free, before), (free.wrapping_add(before + bytes), align - before)] {
            if len != 0 {
                // SAFETY: an end of the mapping made just now, of which nobody knows. Fails for a wrong range only.
                let _unmapped = unsafe { rustix::mm::munmap(at.cast(), len) };
            }
        }
        // SAFETY: in place of what is left of that mapping.
        let mapped = unsafe { rustix::mm::mmap(place, bytes, prot, flags | MapFlags::FIXED, fd, from as u64) };
        if mapped.is_err() {
            // SAFETY: as above.
            let _unmapped = unsafe { rustix::mm::munmap(place, bytes) };
        }
        return NonNull::new(mapped?.cast()).ok_or(Errno::NOMEM);
    }
    // SAFETY: a new mapping at a place of the kernel's choice.
    let mapped = unsafe { rustix::mm::mmap(place, bytes, prot, flags, fd, from as u64) };
    NonNull::new(mapped?.cast()).ok_or(Errno::NOMEM)
}

impl Drop for Region {
    fn drop(&mut self) {
        let mapped = *self.mapped.get_mut();
        if mapped == 0 {
            return;
        }
        // SAFETY: mapped by `map_split`, and no reference outlives self. Fails for a wrong range only.
        let _unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.room) };
        if mapped > self.split {
            // SAFETY: as above.
            let _unmapped = unsafe { rustix::mm::munmap(self.rest.as_ptr().cast(), mapped - self.split) };
        }
        addresses::give(mapped - self.split + self.room);
    }
}
