//! The four rings of an AF_XDP queue, named as the kernel names them.
//!
//! | ring | from | to | carries |
//! |---|---|---|---|
//! | [`fill`] | us | kernel | chunks to receive into |
//! | [`rx`] | kernel | us | received descriptors |
//! | [`tx`] | us | kernel | descriptors to send |
//! | [`completion`] | kernel | us | chunks whose sending has finished |
//!
//! Each is a [`Producer`] or a [`Consumer`] over memory shared with the kernel. Both cache the
//! other side's cursor, so that the shared cache line is read once and written once per batch.

pub(crate) mod completion;
pub(crate) mod fill;
pub(crate) mod rx;
pub(crate) mod tx;

use crate::sys::ring_memory::{Entry, RingMemory};
use std::sync::atomic::Ordering;

/// `XDP_RING_NEED_WAKEUP` of `linux/if_xdp.h`.
const NEED_WAKEUP: u32 = 1;

/// The writing side. `next - consumer` entries are in use, counted modulo 2^32.
struct Producer<T: Entry> {
    memory: RingMemory<T>,
    next: u32,
    consumer: u32,
}

impl<T: Entry> Producer<T> {
    fn new(memory: RingMemory<T>) -> Self {
        let next = memory.producer().load(Ordering::Relaxed);
        let consumer = memory.consumer().load(Ordering::Acquire);
        Self { memory, next, consumer }
    }

    /// Returns how many entries can be pushed now. Loads the other side's cursor only if fewer than
    /// `wanted` are known to be free.
    #[inline]
    fn free(&mut self, wanted: u32) -> u32 {
        let free = self.memory.len() - self.next.wrapping_sub(self.consumer);
        if free >= wanted {
            return free;
        }
        self.consumer = self.memory.consumer().load(Ordering::Acquire);
        self.memory.len() - self.next.wrapping_sub(self.consumer)
    }

    /// Writes the next entry. There must be a free one.
    #[inline]
    fn push(&mut self, entry: T) {
        debug_assert!(self.next.wrapping_sub(self.consumer) < self.memory.len(), "the ring is full");
        self.memory.write(self.next, entry);
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes all pushed entries to the other side.
    #[inline]
    fn publish(&mut self) {
        self.memory.producer().store(self.next, Ordering::Release);
    }

    /// Returns how many entries the other side has not taken yet.
    #[inline]
    fn pending(&mut self) -> u32 {
        self.consumer = self.memory.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.consumer)
    }

    #[inline]
    fn needs_wakeup(&self) -> bool {
        self.memory.flags().load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

/// The reading side. `producer - next` entries are available.
struct Consumer<T: Entry> {
    memory: RingMemory<T>,
    next: u32,
    producer: u32,
}

impl<T: Entry> Consumer<T> {
    fn new(memory: RingMemory<T>) -> Self {
        let next = memory.consumer().load(Ordering::Relaxed);
        let producer = memory.producer().load(Ordering::Acquire);
        Self { memory, next, producer }
    }

    /// Returns how many entries can be read. Loads the other side's cursor only if fewer than
    /// `wanted` are known.
    #[inline]
    fn available(&mut self, wanted: u32) -> u32 {
        let known = self.producer.wrapping_sub(self.next);
        if known >= wanted {
            return known;
        }
        self.producer = self.memory.producer().load(Ordering::Acquire);
        self.producer.wrapping_sub(self.next)
    }

    /// Returns how many entries are known without a new load.
    #[inline]
    fn known(&self) -> u32 {
        self.producer.wrapping_sub(self.next)
    }

    /// Returns the entry `ahead` of the next one. It must be available.
    #[inline]
    fn peek(&self, ahead: u32) -> T {
        debug_assert!(ahead < self.producer.wrapping_sub(self.next), "the entry is not there yet");
        self.memory.read(self.next.wrapping_add(ahead))
    }

    /// Takes the next entry. It must be available.
    #[inline]
    fn pop(&mut self) -> T {
        let entry = self.peek(0);
        self.next = self.next.wrapping_add(1);
        entry
    }

    /// Releases the places of all popped entries to the other side.
    #[inline]
    fn release(&mut self) {
        self.memory.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
