//! The atomics of the rules: the processor's, or those of loom in its tests.

pub(crate) use core::sync::atomic::Ordering;

#[cfg(not(all(loom, test)))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(all(loom, test))]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64};
