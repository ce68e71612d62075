//! The mapped area behind a [`crate::Umem`], and the only place that turns a chunk's number into
//! bytes.
#![allow(unsafe_code)]

use crate::config::UmemConfig;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Zeroed, page-aligned memory of a fixed length.
pub(crate) struct Area {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the area is plain memory. By the access rules in `umem.rs` every chunk has one owner at a
// time, and moves between threads through queues that order memory.
unsafe impl Send for Area {}
// SAFETY: as above: shared references only give access to chunks that the caller owns.
unsafe impl Sync for Area {}

/// Requests huge pages for the whole ones within `len` bytes at `start`: fewer TLB misses. The
/// kernel may refuse, and nothing depends on it.
pub fn huge_pages(start: *const u8, len: usize) {
    const HUGE: usize = 2 << 20;
    let first = start.align_offset(HUGE);
    if cfg!(miri) || len < first.saturating_add(HUGE) {
        return;
    }
    let whole = (len - first) / HUGE * HUGE;
    // SAFETY: the advice changes neither contents nor rights of whatever is mapped there, and fails
    // if nothing is.
    unsafe { libc::madvise(start.wrapping_add(first).cast_mut().cast(), whole, libc::MADV_HUGEPAGE) };
}

impl Area {
    /// Maps `len` bytes.
    #[cfg(not(miri))]
    pub(crate) fn map(len: usize) -> io::Result<Area> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing
        // memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Fewer TLB misses. The kernel may refuse, and nothing depends on it. SAFETY: the range was
        // just mapped, and the advice does not change its contents.
        unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Area { start, len })
    }

    /// Maps the first `len` bytes of a file that stays at least as long. `populate`: now, so that
    /// the memory is charged to this process.
    pub(crate) fn of_file(file: BorrowedFd<'_>, len: usize, populate: bool) -> io::Result<Area> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | if populate { libc::MAP_POPULATE } else { 0 };
        // SAFETY: a mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range was just mapped, and the advice does not change its contents.
        unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Area { start, len })
    }

    /// The interpreter does not support this `mmap`, so use ordinary memory.
    #[cfg(miri)]
    pub(crate) fn map(len: usize) -> io::Result<Area> {
        // SAFETY: `layout` has a size above zero: a UMEM has at least one chunk.
        let start = unsafe { std::alloc::alloc_zeroed(Self::layout(len)) };
        let start = NonNull::new(start).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Area { start, len })
    }

    #[cfg(miri)]
    fn layout(len: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(len, 4096).expect("a UMEM is smaller than the address space")
    }

    /// First byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes in all.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn at(&self, chunk: u32, config: UmemConfig, off: usize, len: usize) -> *mut u8 {
        assert!(chunk < config.chunks, "chunk {chunk} of {}", config.chunks);
        assert!(off + len <= config.chunk_size as usize, "{len} bytes at {off} reach over the chunk");
        // SAFETY: the area has `chunks * chunk_size` bytes, so the checked offset lies within it.
        unsafe { self.start.as_ptr().add(chunk as usize * config.chunk_size as usize + off) }
    }

    /// Returns `len` bytes at `off` of `chunk`. Callers own the chunk (access rule 2 of `umem.rs`).
    #[inline]
    pub(crate) fn chunk_bytes(&self, chunk: u32, config: UmemConfig, off: usize, len: usize) -> &[u8] {
        let start = self.at(chunk, config, off, len);
        // SAFETY: `at` has checked the bounds. The memory is initialized (mapped zeroed), and
        // nothing writes to it now: the chunk's only owner is here, reading.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Returns `len` bytes at `off` of `chunk`, writable. Callers have the chunk's only handle, or
    /// write to bytes that no other handle covers, and borrow their pool exclusively while the
    /// slice lives.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn chunk_bytes_mut(&self, chunk: u32, config: UmemConfig, off: usize, len: usize) -> &mut [u8] {
        let start = self.at(chunk, config, off, len);
        // SAFETY: `at` has checked the bounds. The chunk has one owner, which is here through
        // `&mut` of its pool, so no other reference to these bytes exists.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

impl Drop for Area {
    #[cfg(not(miri))]
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`. Links that have registered it with the kernel
        // hold an `Arc` of the UMEM, so it is not in use any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }

    #[cfg(miri)]
    fn drop(&mut self) {
        // SAFETY: allocated in `map` with the same layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), Self::layout(self.len)) };
    }
}
