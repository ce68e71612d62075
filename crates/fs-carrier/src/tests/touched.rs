//! loom's atomic with a store before each load.
//!
//! loom remembers the last access to an atomic only. A sender's load hides the receiver's load from
//! the sender's compare-exchange, so loom never runs these two the other way round. It tries both
//! orders of two stores, and these stores change nothing that a load may return.

use loom::sync::atomic::{self, AtomicBool, Ordering};

#[derive(Debug)]
pub(crate) struct AtomicU64 {
    value: atomic::AtomicU64,
    touched: AtomicBool,
}

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> Self {
        Self { value: atomic::AtomicU64::new(value), touched: AtomicBool::new(false) }
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.touched.store(true, Ordering::Relaxed);
        self.value.load(order)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        self.value.store(value, order);
    }

    pub(crate) fn compare_exchange(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.value.compare_exchange(old, new, success, failure)
    }

    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.value.fetch_add(value, order)
    }
}
