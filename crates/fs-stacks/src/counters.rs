//! Counters with one writing core and any readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number with a single writer: a load and a store, no locked instruction. Readers may see it a
/// moment late.
///
/// Two cores must not add to the same counter, because one of the additions would be lost. Keep one
/// set per core, each on its own cache lines, and sum them when reading.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Subtracts `n` (for gauges).
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

/// Keeps its content on its own cache lines (128 bytes: the adjacent line is prefetched with it).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PerCore<T>(pub T);

/// A counter of the stack, on one core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackCounter {
    /// The core that counts.
    pub core: usize,
    /// The counter's name, in snake case.
    pub name: String,
    /// The value of its label (the reason of a drop), or empty.
    pub kind: String,
    /// The counter's value since the start.
    pub value: u64,
}
