//! The atomics of the rules: the processor's, and in unit tests those of `tests/between.rs`, or with
//! loom its own.

pub(crate) use core::sync::atomic::Ordering;

#[cfg(all(test, not(loom)))]
pub(crate) use crate::tests::between::{AtomicU32, AtomicU64};
#[cfg(all(test, loom))]
pub(crate) use crate::tests::touched::AtomicU64;
#[cfg(not(test))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::AtomicU32;
