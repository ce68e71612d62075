//! A host's frames: one area, in which each shard has its share, as a UMEM on real devices. In
//! addition to a pool's duties it checks the access rules of `fs_core::frame`: no chunk is freed
//! twice, read after its end or written while shared. Freed memory is overwritten so that a stale
//! read is visible.
//!
//! ## Access rules
//! 1. All pools of an area live on one thread (`Rc`).
//! 2. A chunk's bytes are accessed only through a pool and with a frame whose chunk has handles.
//! 3. `bytes_mut` requires that there is exactly one handle, so no other frame accesses those
//!    bytes; the borrow of pool and frame keeps both in place while the slice lives.
//! 4. A freed chunk returns to the shard that owns it, so `in_use` describes a shard's share,
//!    wherever its frames are.
#![allow(unsafe_code)]

use fs_core::HEADROOM;
use fs_core::{Frame, FramePool};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::rc::Rc;

/// Content of freed chunks.
const POISON: u8 = 0xA5;

#[derive(Debug)]
struct Area {
    memory: Box<[UnsafeCell<u8>]>,
    handles: Box<[Cell<u8>]>,
    free: Box<[RefCell<Vec<u32>>]>,
    /// Chunks that are neither free nor allocated: see [`SharedPool::squeeze`].
    withheld: Box<[RefCell<Vec<u32>>]>,
    chunk_size: usize,
    share: usize,
}

/// One shard's pool.
#[derive(Debug)]
pub struct SharedPool {
    area: Rc<Area>,
    shard: usize,
}

impl SharedPool {
    /// Makes pools for `shards` shards with `chunks` chunks each.
    pub fn split(shards: usize, chunks: usize, chunk_size: usize) -> Vec<SharedPool> {
        let all = shards * chunks;
        let free =
            |shard: usize| RefCell::new((shard * chunks..(shard + 1) * chunks).rev().map(|c| c as u32).collect());
        let area = Rc::new(Area {
            memory: (0..all * chunk_size).map(|_| UnsafeCell::new(POISON)).collect(),
            handles: (0..all).map(|_| Cell::new(0)).collect(),
            free: (0..shards).map(free).collect(),
            withheld: (0..shards).map(|_| RefCell::default()).collect(),
            chunk_size,
            share: chunks,
        });
        (0..shards).map(|shard| SharedPool { area: area.clone(), shard }).collect()
    }

    /// Withholds up to `chunks` free chunks: memory pressure.
    pub fn squeeze(&mut self, chunks: usize) {
        let mut free = self.area.free[self.shard].borrow_mut();
        let rest = free.len().saturating_sub(chunks);
        self.area.withheld[self.shard].borrow_mut().extend(free.drain(rest..));
    }

    /// Returns all chunks of [`SharedPool::squeeze`].
    pub fn release(&mut self) {
        self.area.free[self.shard].borrow_mut().append(&mut self.area.withheld[self.shard].borrow_mut());
    }

    fn range(&self, frame: &Frame) -> *mut u8 {
        let chunk = frame.chunk() as usize;
        assert!(frame.off() + frame.len() <= self.area.chunk_size, "{frame:?} reaches over its chunk");
        self.area.memory[chunk * self.area.chunk_size..][frame.off()..].as_ptr() as *mut u8
    }
}

impl FramePool for SharedPool {
    fn alloc(&mut self) -> Option<Frame> {
        let chunk = self.area.free[self.shard].borrow_mut().pop()?;
        self.area.handles[chunk as usize].set(1);
        Some(Frame::from_raw(chunk, HEADROOM, 0))
    }

    fn share(&mut self, frame: &Frame) -> Frame {
        let handles = &self.area.handles[frame.chunk() as usize];
        assert!(handles.get() > 0, "{frame:?} shared after its end");
        handles.set(handles.get().checked_add(1).expect("fewer than 256 handles to a chunk"));
        frame.twin()
    }

    fn is_shared(&self, frame: &Frame) -> bool {
        self.area.handles[frame.chunk() as usize].get() > 1
    }

    fn free(&mut self, frame: Frame) {
        let chunk = frame.chunk() as usize;
        let handles = &self.area.handles[chunk];
        assert!(handles.get() > 0, "{frame:?} freed twice");
        handles.set(handles.get() - 1);
        if handles.get() == 0 {
            let start = self.area.memory[chunk * self.area.chunk_size..].as_ptr() as *mut u8;
            // SAFETY: the last handle is gone, so nothing accesses this chunk (rules 2 and 3);
            // `start` is its first byte and it has `chunk_size` bytes. `free` takes `&mut self`: no
            // slice of this pool lives.
            unsafe { start.write_bytes(POISON, self.area.chunk_size) };
            self.area.free[chunk / self.area.share].borrow_mut().push(chunk as u32);
        }
    }

    fn chunk_size(&self) -> usize {
        self.area.chunk_size
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        assert!(self.area.handles[frame.chunk() as usize].get() > 0, "{frame:?} read after its end");
        // SAFETY: `range` checked the bounds; writers need the only handle and this frame is one
        // (rule 3), so nothing writes while `frame` and `self` are borrowed.
        unsafe { std::slice::from_raw_parts(self.range(frame), frame.len()) }
    }

    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        let handles = self.area.handles[frame.chunk() as usize].get();
        assert!(handles == 1, "{frame:?} written with {handles} handles out");
        // SAFETY: `range` checked the bounds; this is the only handle (rule 3) and it is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.range(frame), frame.len()) }
    }

    fn available(&self) -> usize {
        self.area.free[self.shard].borrow().len()
    }

    fn capacity(&self) -> usize {
        self.area.share
    }

    fn in_use(&self) -> usize {
        self.area.share - self.available() - self.area.withheld[self.shard].borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_return_to_owning_shard() {
        let mut pools = SharedPool::split(2, 4, 512);
        let mut b = pools.pop().unwrap();
        let mut a = pools.pop().unwrap();
        let mut frame = a.alloc().unwrap();
        frame.grow_back(3);
        a.bytes_mut(&mut frame).copy_from_slice(b"abc");
        assert_eq!((a.in_use(), b.in_use()), (1, 0));
        let twin = b.share(&frame);
        assert!(a.is_shared(&frame));
        assert_eq!(b.bytes(&twin), b"abc");
        b.free(twin);
        b.free(frame);
        assert_eq!((a.in_use(), b.in_use()), (0, 0));
    }

    #[test]
    #[should_panic(expected = "written with 2 handles")]
    fn detects_write_while_shared() {
        let mut pool = SharedPool::split(1, 4, 512).pop().unwrap();
        let mut frame = pool.alloc().unwrap();
        let _twin = pool.share(&frame);
        pool.bytes_mut(&mut frame);
    }
}
