//! System calls, made through the C library's symbols: those are what a preloaded library replaces.

pub mod bytes;
pub mod calls;
pub mod names;
pub mod options;
pub mod process;
pub mod ready;
pub mod storm;
pub mod traffic;
