//! One memory area for all queues, and each core's share of its chunks.
//!
//! ## Access rules
//! 1. A chunk is always in exactly one place: the list of unassigned chunks, one pool's free list,
//!    the depot, a device (its fill or TX ring), or with the owner of its [`Frame`]s. After a queue in
//!    zero-copy mode is closed, its driver may write to its chunks for a time
//!    ([`Link::close`](crate::Link::close)).
//! 2. Only the owner of a chunk's frame accesses its bytes and its handle count. A frame that moves
//!    to another core takes all handles of its chunk with it, through a queue that orders memory
//!    (release, acquire).
//! 3. Freeing a frame puts the chunk into the free list of the pool that frees it, whichever core
//!    allocated it. A core holds its share of chunks: free, with its devices and in its stack.
//!    Chunks that it passes to another core ([`UmemPool::pass_on`]) are missing from its share, and
//!    the other core ([`UmemPool::take_over`]) holds them beyond its own, until it gives a batch to
//!    the *depot*. An empty pool takes a batch from the depot, unless its core holds its full
//!    share. So cores that only receive and cores that only free stay balanced without a lock, and
//!    no core's chunks end up with another one.
//! 4. The bytes of a chunk are only accessed through a pool, with bounds checked against that
//!    chunk: a wrong handle can corrupt packets but not memory outside the area.

use crate::config::UmemConfig;
use crate::umem_unsafe::Area;
use crossbeam::queue::ArrayQueue;
use fs_core::HEADROOM;
use fs_core::{Frame, FramePool};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Chunks that move between a pool and the depot at a time. Lower: more accesses to a shared queue.
/// Higher: more chunks lie unused in a pool. 64 is one poll's batch, so an access serves a whole
/// turn.
const DEPOT_BATCH: usize = 64;

/// The memory area. Kept alive by its pools and by the links that use it.
pub struct Umem {
    area: Area,
    config: UmemConfig,
    /// Handles per chunk. Only the chunk's current owner loads and stores its entry (rule 2), so
    /// relaxed loads and stores are enough. They are atomics so that a broken rule is not undefined
    /// behaviour.
    handles: Box<[AtomicU16]>,
    depot: ArrayQueue<[u32; DEPOT_BATCH]>,
    unassigned: Mutex<Vec<u32>>,
    /// AF_XDP sockets registered on this area; see `xdp.rs`.
    pub(crate) sockets: Mutex<crate::socket_group::SocketGroup>,
}

impl Umem {
    /// Maps the area (zeroed, page aligned).
    ///
    /// # Errors
    /// `InvalidInput` for a size that AF_XDP does not support; errors of `mmap`.
    pub fn new(config: UmemConfig) -> io::Result<Arc<Umem>> {
        config.check()?;
        Ok(Self::over(Area::map(config.bytes())?, config))
    }

    /// Like [`Umem::new`], in a memory file that another process can register for AF_XDP. Returns
    /// the file too, whose length is sealed.
    ///
    /// # Errors
    /// The errors of [`Umem::new`], and errors of `memfd_create(2)` and fallocate(2).
    pub fn in_file(config: UmemConfig) -> io::Result<(Arc<Umem>, OwnedFd)> {
        config.check()?;
        let file = memfd_create("fastsock-frames", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, config.bytes() as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // Pages that were never written are clean, and the kernel may free them (memory pressure): the
        // daemon refuses a file with holes. This makes them dirty (`shmem_fallocate`, mm/shmem.c).
        fallocate(&file, FallocateFlags::empty(), 0, config.bytes() as u64)?;
        let area = Area::of_file(file.as_fd(), config.bytes(), true)?;
        Ok((Self::over(area, config), file))
    }

    fn over(area: Area, config: UmemConfig) -> Arc<Umem> {
        Arc::new(Umem {
            area,
            config,
            handles: (0..config.chunks).map(|_| AtomicU16::new(0)).collect(),
            depot: ArrayQueue::new(config.chunks as usize / DEPOT_BATCH + 1),
            unassigned: Mutex::new((0..config.chunks).rev().collect()),
            sockets: Mutex::default(),
        })
    }

    /// Creates a core's pool with `chunks` unassigned chunks.
    ///
    /// # Errors
    /// `OutOfMemory` if fewer are left.
    pub fn pool(self: &Arc<Self>, chunks: u32) -> io::Result<UmemPool> {
        let mut unassigned = self.lock_unassigned();
        let left = unassigned.len();
        if left < chunks as usize {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!("{chunks} chunks were requested, and {left} of {} are left in the UMEM", self.config.chunks),
            ));
        }
        // Capacity for a batch more than the size from which on the pool gives one away, so the
        // list never grows on the data path.
        let mut free = Vec::with_capacity(chunks as usize + 2 * DEPOT_BATCH);
        free.extend(unassigned.drain(left - chunks as usize..));
        Ok(UmemPool { umem: self.clone(), free, share: chunks as usize, held: chunks as usize })
    }

    /// Size of the area.
    pub fn config(&self) -> UmemConfig {
        self.config
    }

    /// Bytes of the area.
    pub(crate) fn len_bytes(&self) -> usize {
        self.area.len()
    }

    /// Returns how many chunks no pool owns.
    pub(crate) fn unassigned(&self) -> usize {
        self.lock_unassigned().len()
    }

    /// Returns how many chunks are in the depot (exact while no pool is in use).
    pub(crate) fn depot_chunks(&self) -> usize {
        self.depot.len() * DEPOT_BATCH
    }

    /// Returns how many chunks are in frames or with devices. `pools` must be all pools of this
    /// area, and no other thread may use them. Zero means that no chunk has leaked.
    pub fn in_use<'a>(&self, pools: impl IntoIterator<Item = &'a UmemPool>) -> usize {
        let in_pools: usize = pools.into_iter().map(|pool| pool.free.len()).sum();
        self.config.chunks as usize - self.unassigned() - self.depot_chunks() - in_pools
    }

    pub(crate) fn area(&self) -> &Area {
        &self.area
    }

    /// Takes back chunks that a link still held when it was dropped without `close`.
    pub(crate) fn reclaim(&self, chunks: impl Iterator<Item = u32>) {
        let mut unassigned = self.lock_unassigned();
        for chunk in chunks {
            if self.release(chunk) {
                unassigned.push(chunk);
            }
        }
    }

    fn lock_unassigned(&self) -> MutexGuard<'_, Vec<u32>> {
        // Nothing panics while the lock is held, so a poisoned list is consistent.
        self.unassigned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes one handle. Returns true if it was the last.
    #[inline]
    fn release(&self, chunk: u32) -> bool {
        let handles = &self.handles[chunk as usize];
        let held = handles.load(Ordering::Relaxed);
        assert!(held > 0, "chunk {chunk} freed twice");
        handles.store(held - 1, Ordering::Relaxed);
        held == 1
    }
}

impl fmt::Debug for Umem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Umem").field("config", &self.config).finish_non_exhaustive()
    }
}

/// One core's chunks: a free list in LIFO order (the most recently used chunk is the warmest in
/// caches). Dropping the pool returns the chunks of its list to the area.
pub struct UmemPool {
    umem: Arc<Umem>,
    free: Vec<u32>,
    share: usize,
    /// Chunks that the core holds: `free`, and those with its devices and in its stack.
    held: usize,
}

impl UmemPool {
    /// Records that `chunks` of this core were sent to another core in a message.
    #[inline]
    pub fn pass_on(&mut self, chunks: usize) {
        self.held = self.held.saturating_sub(chunks);
    }

    /// Records that `chunks` of another core arrived in a message.
    #[inline]
    pub fn take_over(&mut self, chunks: usize) {
        self.held += chunks;
    }

    /// Returns the area of the chunks.
    pub fn umem(&self) -> &Arc<Umem> {
        &self.umem
    }

    /// Copies the bytes of `from` over those of `to` (a frame of another chunk), starting at offset
    /// `at`.
    pub(crate) fn copy(&mut self, from: &Frame, to: &mut Frame, at: usize) {
        assert_ne!(from.chunk(), to.chunk(), "a chunk is not copied onto itself");
        let source = self.umem.area.chunk_bytes(from.chunk(), self.umem.config, from.off(), from.len());
        let target = self.umem.area.chunk_bytes_mut(to.chunk(), self.umem.config, to.off(), to.len());
        target[at..at + source.len()].copy_from_slice(source);
    }

    /// Slow path of `alloc`: the free list is empty.
    #[cold]
    fn take_from_depot(&mut self) -> bool {
        // Chunks in the depot are missing on other cores.
        if self.held >= self.share {
            return false;
        }
        match self.umem.depot.pop() {
            Some(batch) => {
                self.held += DEPOT_BATCH;
                self.free.extend_from_slice(&batch);
                true
            }
            None => false,
        }
    }

    /// Slow path of `free`: the core holds a batch more than its share, and has a batch free.
    #[cold]
    fn give_to_depot(&mut self) {
        // The oldest chunks go, because they are the coldest. The newest move to the bottom, so
        // that a batch is moved and not the whole list.
        let keep = self.free.len() - DEPOT_BATCH;
        let mut batch = [0; DEPOT_BATCH];
        batch.copy_from_slice(&self.free[..DEPOT_BATCH]);
        self.free.copy_within(keep.max(DEPOT_BATCH).., 0);
        self.free.truncate(keep);
        self.held -= DEPOT_BATCH;
        // The depot has space for all chunks, so it cannot be full. If it were, the list would
        // grow.
        if let Err(batch) = self.umem.depot.push(batch) {
            self.held += DEPOT_BATCH;
            self.free.extend_from_slice(&batch);
        }
    }
}

impl FramePool for UmemPool {
    #[inline]
    fn alloc(&mut self) -> Option<Frame> {
        if self.free.is_empty() && !self.take_from_depot() {
            return None;
        }
        let chunk = self.free.pop()?;
        let handles = &self.umem.handles[chunk as usize];
        debug_assert_eq!(handles.load(Ordering::Relaxed), 0, "chunk {chunk} is in a free list and in use");
        handles.store(1, Ordering::Relaxed);
        Some(Frame::from_raw(chunk, HEADROOM, 0))
    }

    #[inline]
    fn share(&mut self, frame: &Frame) -> Frame {
        let handles = &self.umem.handles[frame.chunk() as usize];
        let held = handles.load(Ordering::Relaxed);
        debug_assert!(held > 0, "chunk {} is shared but not in use", frame.chunk());
        assert!(held < u16::MAX, "chunk {} has too many handles", frame.chunk());
        handles.store(held + 1, Ordering::Relaxed);
        frame.twin()
    }

    #[inline]
    fn is_shared(&self, frame: &Frame) -> bool {
        self.umem.handles[frame.chunk() as usize].load(Ordering::Relaxed) > 1
    }

    #[inline]
    fn free(&mut self, frame: Frame) {
        let (chunk, _, _) = frame.into_raw();
        if self.umem.release(chunk) {
            self.free.push(chunk);
            if self.held >= self.share + DEPOT_BATCH && self.free.len() >= DEPOT_BATCH {
                self.give_to_depot();
            }
        }
    }

    #[inline]
    fn prefetch(&self, frame: &Frame) {
        if let Some(handles) = self.umem.handles.get(frame.chunk() as usize) {
            fs_prefetch::line(handles);
        }
    }

    #[inline]
    fn chunk_size(&self) -> usize {
        self.umem.config.chunk_size as usize
    }

    #[inline]
    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.umem.area.chunk_bytes(frame.chunk(), self.umem.config, frame.off(), frame.len())
    }

    #[inline]
    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        self.umem.area.chunk_bytes_mut(frame.chunk(), self.umem.config, frame.off(), frame.len())
    }

    #[inline]
    fn available(&self) -> usize {
        self.free.len()
    }

    /// This core's share.
    #[inline]
    fn capacity(&self) -> usize {
        self.share
    }

    /// Returns how many chunks are with this core's devices and in its stack, including those of
    /// other cores.
    #[inline]
    fn in_use(&self) -> usize {
        self.held.saturating_sub(self.free.len())
    }
}

impl Drop for UmemPool {
    fn drop(&mut self) {
        self.umem.lock_unassigned().append(&mut self.free);
    }
}

impl fmt::Debug for UmemPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UmemPool").field("share", &self.share).field("available", &self.free.len()).finish()
    }
}

#[cfg(test)]
mod tests;
