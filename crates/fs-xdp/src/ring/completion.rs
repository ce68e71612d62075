//! Chunks that the kernel has finished sending.

use super::Consumer;
use crate::sys::ring_memory::RingMemory;

/// See the module.
pub(crate) struct CompletionRing(Consumer<u64>);

impl CompletionRing {
    pub(crate) fn new(memory: RingMemory<u64>) -> Self {
        Self(Consumer::new(memory))
    }

    /// Returns the number of available entries.
    #[inline]
    pub(crate) fn available(&mut self) -> u32 {
        let all = self.0.memory.len();
        self.0.available(all)
    }

    /// Returns the next address, as it was sent. It must be available.
    #[inline]
    pub(crate) fn pop(&mut self) -> u64 {
        self.0.pop()
    }

    #[inline]
    pub(crate) fn release(&mut self) {
        self.0.release();
    }
}
