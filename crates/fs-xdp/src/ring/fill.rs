//! Chunks that we lend to the kernel to receive into.

use super::Producer;
use crate::sys::ring_memory::RingMemory;

/// See the module.
pub(crate) struct FillRing(Producer<u64>);

impl FillRing {
    pub(crate) fn new(memory: RingMemory<u64>) -> Self {
        Self(Producer::new(memory))
    }

    /// Chunks that can be lent now; see [`Producer::free`].
    #[inline]
    pub(crate) fn free(&mut self, wanted: u32) -> u32 {
        self.0.free(wanted)
    }

    /// Lends the chunk at `address`, as of the next [`FillRing::publish`]. There must be a free place.
    #[inline]
    pub(crate) fn push(&mut self, address: u64) {
        self.0.push(address);
    }

    #[inline]
    pub(crate) fn publish(&mut self) {
        self.0.publish();
    }

    /// The driver has run out of chunks and waits to be told that there are some.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }
}
