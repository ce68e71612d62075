//! The boundary to C.
#![allow(unsafe_code)]

pub(crate) mod current;
pub(crate) mod errno;
#[cfg(not(test))]
mod exports;
pub(crate) mod guarded;
pub(crate) mod heap;
pub(crate) mod kernel;
pub(crate) mod memory;
#[macro_use]
pub(crate) mod real;
pub(crate) mod start;
pub(crate) mod threads;
pub(crate) mod wiped;
