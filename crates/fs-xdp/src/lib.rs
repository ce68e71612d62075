//! Links: where frames come from and go to. AF_XDP first; AF_PACKET, TAP/TUN and an in-memory pair beside it.
//!
//! One UMEM serves all queues and devices of a runtime; every core has a [`UmemPool`] of its own on it.

mod chain;
mod checksum;
pub mod link;
pub mod memory;
mod socket_group;
mod sys;
pub mod umem;
mod umem_unsafe;

pub use link::{Link, LinkCaps, LinkKind, LinkStats};
pub use memory::{MemoryConfig, MemoryLink};
pub use umem::{Umem, UmemConfig, UmemPool};
