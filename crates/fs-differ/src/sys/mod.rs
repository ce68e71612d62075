//! System calls through the C library's symbols, which a preloaded library replaces.
#![allow(unsafe_code)]

pub mod bytes;
pub mod calls;
pub mod descriptors;
pub mod foreign;
pub mod job;
pub mod names;
pub mod options;
pub mod process;
pub mod progress;
pub mod ready;
pub mod storm;
pub mod traffic;
