//! Descriptors to send.

use super::Producer;
use crate::sys::ring_memory::RingMemory;

/// See the module.
pub(crate) struct TxRing(Producer<libc::xdp_desc>);

impl TxRing {
    pub(crate) fn new(memory: RingMemory<libc::xdp_desc>) -> Self {
        Self(Producer::new(memory))
    }

    /// Returns how many descriptors can be pushed now; see [`Producer::free`].
    #[inline]
    pub(crate) fn free(&mut self, wanted: u32) -> u32 {
        self.0.free(wanted)
    }

    /// Adds a descriptor, effective with the next [`TxRing::publish`]. There must be a free entry.
    #[inline]
    pub(crate) fn push(&mut self, descriptor: libc::xdp_desc) {
        self.0.push(descriptor);
    }

    #[inline]
    pub(crate) fn publish(&mut self) {
        self.0.publish();
    }

    /// Returns how many descriptors the kernel has not taken yet.
    #[inline]
    pub(crate) fn pending(&mut self) -> u32 {
        self.0.pending()
    }

    /// Returns true if the kernel sends only when it is called.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }
}
