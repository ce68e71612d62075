//! One memory area for all queues, and each core's share of its chunks.

use fs_core::{Frame, FramePool};
use std::io;
use std::sync::Arc;

/// Size of a UMEM.
#[derive(Clone, Copy, Debug)]
pub struct UmemConfig {
    /// Chunks in all.
    pub chunks: u32,
    /// Bytes of each chunk: 2048 or 4096.
    pub chunk_size: u32,
}

/// The memory area.
#[derive(Debug)]
pub struct Umem {}

impl Umem {
    /// Maps the area.
    pub fn new(_config: UmemConfig) -> io::Result<Arc<Umem>> {
        todo!()
    }
    /// Takes `chunks` not yet handed out for a core. Error when fewer are left.
    pub fn pool(self: &Arc<Self>, _chunks: u32) -> io::Result<UmemPool> {
        todo!()
    }
}

/// One core's chunks.
#[derive(Debug)]
pub struct UmemPool {}

impl FramePool for UmemPool {
    fn alloc(&mut self) -> Option<Frame> {
        todo!()
    }
    fn share(&mut self, _frame: &Frame) -> Frame {
        todo!()
    }
    fn is_shared(&self, _frame: &Frame) -> bool {
        todo!()
    }
    fn free(&mut self, _frame: Frame) {
        todo!()
    }
    fn chunk_size(&self) -> usize {
        todo!()
    }
    fn bytes(&self, _frame: &Frame) -> &[u8] {
        todo!()
    }
    fn bytes_mut(&mut self, _frame: &mut Frame) -> &mut [u8] {
        todo!()
    }
    fn available(&self) -> usize {
        todo!()
    }
    fn capacity(&self) -> usize {
        todo!()
    }
}
