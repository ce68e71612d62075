//! Links: where frames come from and go to. AF_XDP first; AF_PACKET, TAP/TUN and an in-memory pair beside it.
//!
//! One UMEM serves all queues and devices of a runtime; every core has a [`UmemPool`] of its own on it.

pub mod link;
pub mod umem;

pub use link::{Link, LinkCaps, LinkKind, LinkStats};
pub use umem::{Umem, UmemConfig, UmemPool};
