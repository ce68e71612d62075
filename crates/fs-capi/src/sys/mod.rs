//! The C boundary.
#![allow(unsafe_code)]

mod allocator;
mod answer;
mod atfork;
mod cancel;
mod control;
mod errno;
mod exports;
mod real;
mod scratch;
mod start;
mod stdio;
mod variadic;
