//! Chunks that the kernel receives into.

use super::Producer;
use crate::sys::ring_memory::RingMemory;

/// See the module.
pub(crate) struct FillRing(Producer<u64>);

impl FillRing {
    pub(crate) fn new(memory: RingMemory<u64>) -> Self {
        Self(Producer::new(memory))
    }

    /// Returns how many chunks can be added now; see [`Producer::free`].
    #[inline]
    pub(crate) fn free(&mut self, wanted: u32) -> u32 {
        self.0.free(wanted)
    }

    /// Adds the chunk at `address`, effective with the next [`FillRing::publish`]. There must be a
    /// free entry.
    #[inline]
    pub(crate) fn push(&mut self, address: u64) {
        self.0.push(address);
    }

    #[inline]
    pub(crate) fn publish(&mut self) {
        self.0.publish();
    }

    /// Returns true if the driver has run out of chunks and needs a wake-up to find new ones.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }
}
