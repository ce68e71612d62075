//! A frame pool that checks the access rules of `fs_core::frame` and is almost free to make: its
//! memory is reused by the next execution.

use fs_core::HEADROOM;
use fs_core::{Frame, FramePool};
use std::cell::RefCell;

/// Content of freed chunks, so that a stale read is visible.
const POISON: u8 = 0xa5;

thread_local! {
    static MEMORY: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The pool. See the module.
#[derive(Debug)]
pub struct Pool {
    memory: Vec<u8>,
    handles: Vec<u8>,
    free: Vec<u32>,
    chunk_size: usize,
}

impl Pool {
    /// Makes a pool of `chunks` chunks of `chunk_size` bytes.
    pub fn new(chunks: usize, chunk_size: usize) -> Self {
        let mut memory = MEMORY.with(|m| m.borrow_mut().pop()).unwrap_or_default();
        memory.resize(chunks * chunk_size, POISON);
        Self { memory, handles: vec![0; chunks], free: (0..chunks as u32).rev().collect(), chunk_size }
    }

    fn range(&self, frame: &Frame) -> std::ops::Range<usize> {
        assert!(frame.off() + frame.len() <= self.chunk_size, "{frame:?} reaches over its chunk");
        let start = frame.chunk() as usize * self.chunk_size + frame.off();
        start..start + frame.len()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        // If the thread is ending, the memory is freed, too.
        let _ = MEMORY.try_with(|m| m.borrow_mut().push(memory));
    }
}

impl FramePool for Pool {
    fn alloc(&mut self) -> Option<Frame> {
        let chunk = self.free.pop()?;
        self.handles[chunk as usize] = 1;
        Some(Frame::from_raw(chunk, HEADROOM, 0))
    }

    fn share(&mut self, frame: &Frame) -> Frame {
        let handles = &mut self.handles[frame.chunk() as usize];
        assert!(*handles > 0, "{frame:?} shared after its end");
        *handles = handles.checked_add(1).expect("fewer than 256 handles to a chunk");
        frame.twin()
    }

    fn is_shared(&self, frame: &Frame) -> bool {
        self.handles[frame.chunk() as usize] > 1
    }

    fn free(&mut self, frame: Frame) {
        let chunk = frame.chunk();
        let handles = &mut self.handles[chunk as usize];
        assert!(*handles > 0, "{frame:?} freed twice");
        *handles -= 1;
        if *handles == 0 {
            // Only the used bytes: enough to be detected, and cheap.
            let used = self.range(&frame);
            self.memory[used].fill(POISON);
            self.free.push(chunk);
        }
    }

    fn chunk_size(&self) -> usize {
        self.chunk_size
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        assert!(self.handles[frame.chunk() as usize] > 0, "{frame:?} read after its end");
        &self.memory[self.range(frame)]
    }

    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        let handles = self.handles[frame.chunk() as usize];
        assert!(handles == 1, "{frame:?} written with {handles} handles out");
        let range = self.range(frame);
        &mut self.memory[range]
    }

    fn available(&self) -> usize {
        self.free.len()
    }

    fn capacity(&self) -> usize {
        self.handles.len()
    }
}
