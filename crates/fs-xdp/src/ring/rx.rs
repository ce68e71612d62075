//! Received descriptors.

use super::Consumer;
use crate::sys::ring_memory::RingMemory;

/// `XDP_PKT_CONTD`: the packet continues in the next descriptor.
pub(crate) const CONTINUED: u32 = libc::XDP_PKT_CONTD;

/// See the module.
pub(crate) struct RxRing(Consumer<libc::xdp_desc>);

impl RxRing {
    pub(crate) fn new(memory: RingMemory<libc::xdp_desc>) -> Self {
        Self(Consumer::new(memory))
    }

    /// Returns true if a descriptor has arrived.
    #[inline]
    pub(crate) fn is_ready(&mut self) -> bool {
        self.0.available(1) > 0
    }

    /// Returns how many descriptors were available at the last load of the cursor and have not been
    /// taken.
    #[inline]
    pub(crate) fn known(&self) -> u32 {
        self.0.known()
    }

    /// Returns how many whole packets, up to `max`, are available, and how many descriptors they
    /// have.
    #[inline]
    pub(crate) fn packets(&mut self, max: usize, multi_buffer: bool) -> (usize, u32) {
        let wanted = u32::try_from(max).unwrap_or(u32::MAX);
        // With multi-buffer a packet can have several descriptors, so always load the cursor.
        let available = self.0.available(if multi_buffer { u32::MAX } else { wanted });
        if !multi_buffer {
            let packets = available.min(wanted);
            return (packets as usize, packets);
        }
        let (mut packets, mut descriptors) = (0, 0);
        for ahead in 0..available {
            if packets == max {
                break;
            }
            if self.0.peek(ahead).options & CONTINUED == 0 {
                packets += 1;
                descriptors = ahead + 1;
            }
        }
        (packets, descriptors)
    }

    /// Returns the next descriptor. It must be available.
    #[inline]
    pub(crate) fn pop(&mut self) -> libc::xdp_desc {
        self.0.pop()
    }

    #[inline]
    pub(crate) fn release(&mut self) {
        self.0.release();
    }
}
