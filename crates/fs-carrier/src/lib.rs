//! A ring in shared memory for the bytes of a kernel TCP connection between two processes.
//!
//! Every descriptor stays a real kernel socket that works by itself at every instant. A **ring** in
//! memory that both ends map carries bytes only while their receiver is awake; whenever anything is
//! unusual, the kernel carries. One word per direction says which **carrier** is in use, and the
//! receiver changes it, in one compare-exchange that succeeds only if the ring is empty, before it
//! sleeps in the kernel. `docs/PRELOAD.md` has the rules (P1 to P6, C1 to C9, E1 to E6, G1), which
//! comments here refer to.
//!
//! | layer | what it is |
//! |---|---|
//! | [`layout`] | the words of a direction and of a side, as they lie in memory |
//! | [`region`] | the mapping |
//! | [`word`] | `W` and its transitions |
//! | [`lock`] | locks that survive their holder |
//! | `producer`, `consumer` | the rules of one direction |
//! | [`pair`] | a promoted connection: send, recv, before_sleep, pin, before_close |
//! | [`poll`] | poll(2) and select(2) over several connections |
//! | [`set`] | an epoll set with promoted connections (E1 to E6) |
//! | [`traffic`] | what a region's file says of it |
//! | [`kernel`] | what the rules need from the kernel, as a trait; [`sys`] is the real one |

#![cfg_attr(not(test), warn(clippy::std_instead_of_core, clippy::alloc_instead_of_core))]
#![allow(unexpected_cfgs, reason = "cfg(loom): the rules are model-checked")]

mod connection;
mod consumer;
pub mod counters;
mod crowd;
pub mod exact;
#[path = "gate_unsafe.rs"]
pub mod gate;
mod kept;
pub mod kernel;
pub mod layout;
pub mod lock;
mod merged;
pub mod poll;
mod position;
mod producer;
#[cfg(not(all(loom, test)))]
#[path = "region_unsafe.rs"]
pub mod region;
#[cfg(all(loom, test))]
#[path = "region_loom.rs"]
pub mod region;
mod ring_unsafe;
mod spin;
mod sync;
pub mod sys;
pub mod traffic;
pub mod word;

#[cfg(test)]
mod tests;

pub use connection::{pair, set};
pub use crowd::Crowd;
pub use position::Position;
pub use spin::{KernelWaits, Pacing};
