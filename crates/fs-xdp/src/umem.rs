//! One memory area for all queues, and each core's share of its chunks.
//!
//! ## Access rules
//! 1. A chunk is at every moment in exactly one place: the list of unassigned chunks, one pool's free list, the
//!    depot, a device (its fill or TX ring), or in the hands of whoever holds its [`Frame`]s.
//! 2. Whoever holds a chunk's frame is the only one to touch its bytes and its handle count. A frame that goes to
//!    another core takes all handles of its chunk with it, through a queue that orders memory (release, acquire).
//! 3. Freeing a frame puts the chunk into the free list of the pool that frees it, whichever core took it out.
//!    A core holds its share of chunks: free, with its devices and in its stack. What it hands to another core
//!    ([`UmemPool::pass_on`]) it lacks from then on and the other one ([`UmemPool::take_over`]) holds beyond its share,
//!    until that gives a batch to the *depot*; a pool that runs dry takes one from there, unless its core holds its
//!    share. So cores that only receive and cores that only free balance out without a lock, and no core's chunks
//!    end up as another's.
//! 4. The bytes of a chunk are only reached through a pool, with bounds checked against that one chunk: a wrong
//!    handle can harm packets but not memory outside the area.

use crate::config::UmemConfig;
use crate::umem_unsafe::Area;
use crossbeam::queue::ArrayQueue;
use fs_core::HEADROOM;
use fs_core::{Frame, FramePool};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Chunks that move between a pool and the depot at a time. Lower: more visits to a shared queue; higher: more
/// chunks lie idle in a pool that does not need them. 64 is one poll's batch, so a visit pays for a whole turn.
const DEPOT_BATCH: usize = 64;

/// The memory area. Kept alive by its pools and by the links that use it.
pub struct Umem {
    area: Area,
    config: UmemConfig,
    /// Handles per chunk. Only the chunk's present owner loads and stores its entry (rule 2), so plain relaxed
    /// loads and stores are enough; they are atomics to keep a broken rule from being undefined behaviour.
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
    /// `InvalidInput` for a size that AF_XDP has not; whatever `mmap` says.
    pub fn new(config: UmemConfig) -> io::Result<Arc<Umem>> {
        config.check()?;
        let area = Area::map(config.chunks as usize * config.chunk_size as usize)?;
        Ok(Arc::new(Umem {
            area,
            config,
            handles: (0..config.chunks).map(|_| AtomicU16::new(0)).collect(),
            depot: ArrayQueue::new(config.chunks as usize / DEPOT_BATCH + 1),
            unassigned: Mutex::new((0..config.chunks).rev().collect()),
            sockets: Mutex::default(),
        }))
    }

    /// Takes `chunks` not yet handed out for a core.
    ///
    /// # Errors
    /// `OutOfMemory` when fewer are left.
    pub fn pool(self: &Arc<Self>, chunks: u32) -> io::Result<UmemPool> {
        let mut unassigned = self.lock_unassigned();
        let left = unassigned.len();
        if left < chunks as usize {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!("{chunks} chunks were requested, and {left} of {} are left in the UMEM", self.config.chunks),
            ));
        }
        // Room for a batch more than what makes the pool give one away, so the list never grows on the data path.
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

    /// Chunks that no pool owns.
    pub(crate) fn unassigned(&self) -> usize {
        self.lock_unassigned().len()
    }

    /// Chunks that lie in the depot (exact while no pool is being used).
    pub(crate) fn depot_chunks(&self) -> usize {
        self.depot.len() * DEPOT_BATCH
    }

    /// Chunks that are out: in frames or with devices. `pools` must be all the pools that exist on this area, and
    /// none of them in use by another thread. Zero means that no chunk has leaked.
    pub fn in_use<'a>(&self, pools: impl IntoIterator<Item = &'a UmemPool>) -> usize {
        let in_pools: usize = pools.into_iter().map(|pool| pool.free.len()).sum();
        self.config.chunks as usize - self.unassigned() - self.depot_chunks() - in_pools
    }

    pub(crate) fn area(&self) -> &Area {
        &self.area
    }

    /// Takes chunks back that a link still held when it was dropped without `close`.
    pub(crate) fn reclaim(&self, chunks: impl Iterator<Item = u32>) {
        let mut unassigned = self.lock_unassigned();
        for chunk in chunks {
            if self.release(chunk) {
                unassigned.push(chunk);
            }
        }
    }

    fn lock_unassigned(&self) -> MutexGuard<'_, Vec<u32>> {
        // Nothing panics while it is held; a poisoned list is still a list.
        self.unassigned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one handle off; true when it was the last.
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

/// One core's chunks: a free list in LIFO order (the chunk used last is the warmest). Dropped, it gives the chunks
/// in its list back to the area.
pub struct UmemPool {
    umem: Arc<Umem>,
    free: Vec<u32>,
    share: usize,
    /// Chunks that the core holds: `free`, and those with its devices and in its stack.
    held: usize,
}

impl UmemPool {
    /// `chunks` of the core's have gone to another one in a message.
    #[inline]
    pub fn pass_on(&mut self, chunks: usize) {
        self.held = self.held.saturating_sub(chunks);
    }

    /// `chunks` of another core's have come in a message.
    #[inline]
    pub fn take_over(&mut self, chunks: usize) {
        self.held += chunks;
    }

    /// The area that the chunks are of.
    pub fn umem(&self) -> &Arc<Umem> {
        &self.umem
    }

    /// Copies the bytes of `from` over those of `to` (a frame of another chunk), beginning `at` bytes into it.
    pub(crate) fn copy(&mut self, from: &Frame, to: &mut Frame, at: usize) {
        assert_ne!(from.chunk(), to.chunk(), "a chunk is not copied onto itself");
        let source = self.umem.area.chunk_bytes(from.chunk(), self.umem.config, from.off(), from.len());
        let target = self.umem.area.chunk_bytes_mut(to.chunk(), self.umem.config, to.off(), to.len());
        target[at..at + source.len()].copy_from_slice(source);
    }

    /// Slow path of `alloc`: the free list is empty.
    #[cold]
    fn take_from_depot(&mut self) -> bool {
        // What lies there is what other cores lack.
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

    /// Slow path of `free`: the core holds a batch more than its share, and has one free.
    #[cold]
    fn give_to_depot(&mut self) {
        // The oldest chunks go: they are the coldest. The newest take their places at the bottom, so that what moves
        // is a batch and not the whole list.
        let keep = self.free.len() - DEPOT_BATCH;
        let mut batch = [0; DEPOT_BATCH];
        batch.copy_from_slice(&self.free[..DEPOT_BATCH]);
        self.free.copy_within(keep.max(DEPOT_BATCH).., 0);
        self.free.truncate(keep);
        self.held -= DEPOT_BATCH;
        // The depot holds all chunks there are, so it cannot be full; should it be, the list simply grows.
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

    /// Chunks with this core's devices and in its stack; those too that came from other cores.
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
