//! The shared memory of one ring: two cursors, flags, and entries (a power of two).
//!
//! The kernel's layout is in `Documentation/networking/af_xdp.rst` and `net/xdp/xsk_queue.h`:
//! producer and consumer are free-running 32-bit counters; the entry of counter `i` is at
//! `i & (len - 1)`. The producer writes entries and then its cursor with release. The consumer reads
//! the cursor with acquire, then the entries, and then stores its own cursor with release.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// An entry of a ring: plain data for which all bit patterns are valid.
pub(crate) trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for libc::xdp_desc {}

enum Backing {
    Mapped {
        start: NonNull<libc::c_void>,
        len: usize,
    },
    #[cfg(test)]
    Fake(#[allow(dead_code, reason = "keeps the memory alive")] std::sync::Arc<FakeRing>),
}

/// One side's view of a ring.
pub(crate) struct RingMemory<T: Entry> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    backing: Backing,
}

// SAFETY: the view owns its mapping. The cursors are atomics, and only the thread that holds the
// view copies entries in and out.
unsafe impl<T: Entry> Send for RingMemory<T> {}

impl<T: Entry> RingMemory<T> {
    /// Maps the ring at `page_offset` of an AF_XDP socket, whose `len` entries were set before.
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        offsets: &libc::xdp_ring_offset,
        len: u32,
    ) -> io::Result<Self> {
        let bytes = offsets.desc as usize + len as usize * size_of::<T>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, flags, socket.as_raw_fd(), page_offset as libc::off_t)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        // SAFETY: the kernel returned these offsets for this mapping. They lie in it and are
        // aligned for their types (cursors on cache lines, entries after them).
        unsafe {
            Ok(Self {
                producer: start.byte_add(offsets.producer as usize).cast(),
                consumer: start.byte_add(offsets.consumer as usize).cast(),
                flags: start.byte_add(offsets.flags as usize).cast(),
                entries: start.byte_add(offsets.desc as usize).cast(),
                mask: len - 1,
                backing: Backing::Mapped { start, len: bytes },
            })
        }
    }

    /// Number of entries.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.mask + 1
    }

    /// The producer's cursor.
    #[inline]
    pub(crate) fn producer(&self) -> &AtomicU32 {
        // SAFETY: in the mapping, which lives as long as `self`.
        unsafe { self.producer.as_ref() }
    }

    /// The consumer's cursor.
    #[inline]
    pub(crate) fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    /// The kernel's flags.
    #[inline]
    pub(crate) fn flags(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.flags.as_ref() }
    }

    /// Returns the entry of counter `index`.
    #[inline]
    pub(crate) fn read(&self, index: u32) -> T {
        // SAFETY: the mask keeps it within the entries; any bits are a valid `T`. The other side
        // does not write to entries that the cursors have given to us. If it did, the copy would be
        // wrong but not invalid.
        unsafe { self.entries.add((index & self.mask) as usize).as_ptr().read_volatile() }
    }

    /// Sets the entry of counter `index`.
    #[inline]
    pub(crate) fn write(&mut self, index: u32, entry: T) {
        // SAFETY: as above; the other side does not read it before the cursor covers it.
        unsafe { self.entries.add((index & self.mask) as usize).as_ptr().write_volatile(entry) }
    }
}

impl<T: Entry> Drop for RingMemory<T> {
    fn drop(&mut self) {
        match self.backing {
            // SAFETY: exactly the mapping of `map`; its views end with `self`.
            Backing::Mapped { start, len } => unsafe {
                libc::munmap(start.as_ptr(), len);
            },
            #[cfg(test)]
            Backing::Fake(_) => {}
        }
    }
}

/// Memory of a ring without a kernel, for tests. Both sides are views of it.
#[cfg(test)]
pub(crate) struct FakeRing {
    producer: AtomicU32,
    consumer: AtomicU32,
    flags: AtomicU32,
    entries: Box<[std::cell::UnsafeCell<[u64; 2]>]>,
}

// SAFETY: entries are only accessed through `RingMemory`, with the cursors' protocol.
#[cfg(test)]
unsafe impl Send for FakeRing {}
// SAFETY: as above.
#[cfg(test)]
unsafe impl Sync for FakeRing {}

#[cfg(test)]
impl FakeRing {
    /// Creates a ring of `len` entries whose cursors start at `start`.
    pub(crate) fn new(len: u32, start: u32) -> std::sync::Arc<Self> {
        assert!(len.is_power_of_two());
        std::sync::Arc::new(Self {
            producer: AtomicU32::new(start),
            consumer: AtomicU32::new(start),
            flags: AtomicU32::new(0),
            entries: (0..len).map(|_| Default::default()).collect(),
        })
    }

    /// A side's view.
    pub(crate) fn view<T: Entry>(self: &std::sync::Arc<Self>) -> RingMemory<T> {
        assert!(size_of::<T>() <= 16 && align_of::<T>() <= 8);
        RingMemory {
            producer: NonNull::from(&self.producer),
            consumer: NonNull::from(&self.consumer),
            flags: NonNull::from(&self.flags),
            entries: NonNull::from(&*self.entries).cast(),
            mask: self.entries.len() as u32 - 1,
            backing: Backing::Fake(self.clone()),
        }
    }
}
