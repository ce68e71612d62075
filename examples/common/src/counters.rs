//! Counters that one core writes and anybody reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number with a single writer: a load and a store, no locked instruction. Readers may see it a moment late.
///
/// Two cores must not add to the same counter (one of the additions would be lost): keep one set per core, each on
/// cache lines of its own, and sum when reading.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Takes `n` away (for gauges).
    #[inline]
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(n), Ordering::Relaxed);
    }

    /// The value.
    #[inline]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Keeps what is inside on cache lines of its own (128 bytes: the neighbour line is prefetched with it).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PerCore<T>(pub T);

/// A counter of the stack under us, on one core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackCounter {
    /// The core that counts.
    pub core: usize,
    /// Its name, in snake case.
    pub name: String,
    /// A label's value where the counter has kinds (the reason of a drop), else empty.
    pub kind: String,
    /// Its value since the start.
    pub value: u64,
}
