//! Links: where frames come from and go to.
//!
//! | link | opened by | for |
//! |---|---|---|
//! | [`XdpLink`] | [`XdpDevice::open_queue`] | AF_XDP on our own rings: the real one |
//! | `XskRsLink` (feature `xsk-rs`) | `XdpDevice::open_queue_xsk_rs` | the same on libxdp's rings, to compare with |
//! | [`PacketLink`] | [`PacketLink::open`] | AF_PACKET: no root needed in a user namespace; devices without Ethernet too |
//! | [`TapLink`] | [`TapLink::open`] | TAP and TUN: a neighbour of the host |
//! | [`MemoryLink`] | [`memory_pair`] | two ends in memory |
//!
//! All of them are a [`Link`], and pass the same suite of tests (`tests/link_suite.rs`).
//!
//! One [`Umem`] serves all queues and devices of a runtime; every core has a [`UmemPool`] of its own on it. The access
//! rules of its chunks stand at the head of `umem.rs`.
//!
//! ## A packet's way through AF_XDP
//! The XDP program (`bpf/steer.bpf.c`) looks at every packet that the device receives. What the [`PortTable`] calls ours
//! it redirects into the socket of the queue, where the kernel writes it into a chunk that the fill ring offers and shows
//! it on the RX ring; [`Link::rx`] makes frames of it. Everything else stays the kernel's, untouched. [`Link::tx`] puts
//! frames on the TX ring and makes the kernel send them with one call a batch; the completion ring brings their chunks
//! back to the pool.
//!
//! The program is attached by a bpf_link held by this process alone, so it is gone the moment the process is. ICMP errors
//! that quote a flow of ours are redirected too, since the kernel has no socket to tell; other ICMP (echo, neighbour
//! discovery) is the kernel's. Fragments are always the kernel's, and so are IPv6 packets with extension headers.

mod chain;
mod checksum;
mod config;
mod copying;
mod device;
mod drivers;
mod error;
mod fill_target;
mod holder;
mod link;
mod loader;
mod memory;
mod merge;
mod packet;
mod port_table;
mod program;
mod ring;
mod socket;
mod socket_group;
mod steering;
mod sys;
mod tap;
mod umem;
mod umem_unsafe;
mod xdp;
mod xdp_device;
#[cfg(feature = "xsk-rs")]
mod xsk;

pub use config::{MultiBuffer, QueueConfig, UmemConfig, XdpConfig, XdpMode};
pub use device::{NetDevice, QueueCounts};
pub use error::XdpError;
pub use link::{Link, LinkCaps, LinkKind, LinkStats};
pub use memory::{MemoryConfig, MemoryLink, pair as memory_pair, pair_with as memory_pair_with};
pub use packet::{PacketConfig, PacketLink};
pub use port_table::{PortTable, Share, SteerCounters};
pub use steering::{FlowMatch, FlowRule, HashFunction, Rss, RssFlows, SteeringReport, report as steering_report};
pub use tap::{TapConfig, TapKind, TapLink};
pub use umem::{Umem, UmemPool};
pub use umem_unsafe::huge_pages;
pub use xdp::XdpLink;
pub use xdp_device::XdpDevice;
#[cfg(feature = "xsk-rs")]
pub use xsk::XskRsLink;

/// What the calling thread lacks to use AF_XDP with a program, as a sentence for people; `None`: nothing.
pub fn missing_privilege() -> Option<String> {
    let missing = sys::capabilities::missing(sys::capabilities::FOR_XDP);
    (!missing.is_empty()).then(|| sys::capabilities::describe(&missing))
}

/// Bytes of memory that an unprivileged thread may lock (`RLIMIT_MEMLOCK`, soft).
pub fn memlock_limit() -> u64 {
    sys::xsk::memlock_limit()
}
