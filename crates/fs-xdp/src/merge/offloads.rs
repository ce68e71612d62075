//! The effect of a device's settings on merging. They can change at any time.

use crate::device::NetDevice;
use std::sync::atomic::{AtomicBool, Ordering};

/// Shared by a device and its queues: the device reads it again when the kernel says that something has changed.
#[derive(Debug, Default)]
pub(crate) struct Offloads {
    cuts: AtomicBool,
    in_order: AtomicBool,
}

impl Offloads {
    /// Reads the device's settings.
    pub(crate) fn of(device: &NetDevice) -> Offloads {
        let offloads = Offloads::default();
        offloads.read(device);
        offloads
    }

    /// Those of a device whose peer takes super-segments, and has no queue of its own, for good.
    pub(crate) fn of_pair() -> Offloads {
        Offloads { cuts: true.into(), in_order: true.into() }
    }

    /// Reads them again; whether they have changed. What cannot be read stays as it was.
    pub(crate) fn read(&self, device: &NetDevice) -> bool {
        let cuts = device.tso().unwrap_or_else(|_| self.cuts());
        let in_order = device.keeps_order().unwrap_or_else(|_| self.keep_order());
        (self.cuts.swap(cuts, Ordering::Relaxed) != cuts)
            | (self.in_order.swap(in_order, Ordering::Relaxed) != in_order)
    }

    /// The device takes packets that it cuts into segments itself (TSO). Where it does not, the
    /// kernel would cut them, at a cost per segment again.
    #[inline]
    pub(crate) fn cuts(&self) -> bool {
        self.cuts.load(Ordering::Relaxed)
    }

    /// What AF_XDP sends and what a packet socket sends reach the device in the order of the calls:
    /// it has one queue, and no queueing discipline in front of it or below it.
    #[inline]
    pub(crate) fn keep_order(&self) -> bool {
        self.in_order.load(Ordering::Relaxed)
    }
}
