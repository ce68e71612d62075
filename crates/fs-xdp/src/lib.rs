//! Links: they receive and send frames.
//!
//! | link | opened by | for |
//! |---|---|---|
//! | [`XdpLink`] | [`XdpDevice::open_queue`] | AF_XDP on our own rings, the main link |
//! | `XskRsLink` (feature `xsk-rs`) | `XdpDevice::open_queue_xsk_rs` | the same on libxdp's rings, for comparison |
//! | [`PacketLink`] | [`PacketLink::open`] | AF_PACKET: no root needed in a user namespace; devices without Ethernet too |
//! | [`TapLink`] | [`TapLink::open`] | TAP and TUN: a neighbour of the host |
//! | [`MemoryLink`] | [`memory_pair`] | two ends in memory |
//!
//! All of them implement [`Link`] and pass the same suite of tests (`tests/link_suite.rs`).
//!
//! One [`Umem`] serves all queues and devices of a runtime; every core has its own [`UmemPool`] on
//! it. `umem.rs` has the access rules of its chunks.
//!
//! ## A packet's path through AF_XDP
//! The XDP program (`bpf/steer.bpf.c`) checks every packet that the device receives. It redirects
//! packets for the ports of the [`PortTable`] to the socket of the queue. The kernel writes such a
//! packet into a chunk from the fill ring and adds it to the RX ring, and [`Link::rx`] makes frames
//! of it. All other packets go to the kernel unchanged. [`Link::tx`] puts frames on the TX ring and
//! makes the kernel send them with one call per batch. The completion ring returns their chunks to
//! the pool.
//!
//! Only this process holds the bpf_link that attaches the program, so the program disappears with
//! the process. ICMP errors that quote a flow of ours are redirected too, because the kernel has no
//! socket for them. Other ICMP (echo, neighbour discovery), fragments, and IPv6 packets with
//! extension headers go to the kernel.

mod chain;
mod checksum;
mod config;
mod copying;
mod device;
mod drivers;
mod error;
mod fill_target;
mod handover;
mod holder;
mod link;
mod loader;
mod memory;
mod merge;
mod netlink;
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
pub use handover::{HandedQueues, make_queues, make_segment_socket};
pub use link::{Link, LinkCaps, LinkKind, LinkStats};
pub use memory::{MemoryConfig, MemoryLink, pair as memory_pair, pair_with as memory_pair_with};
pub use packet::{FanoutGroup, PacketConfig, PacketLink};
pub use port_table::{PortTable, Share, SteerCounters};
pub use steering::{HashFunction, Rss, RssFlows, SteeringReport, report as steering_report};
pub use tap::{TapConfig, TapKind, TapLink};
pub use umem::{Umem, UmemPool};
pub use umem_unsafe::huge_pages;
pub use xdp::XdpLink;
pub use xdp_device::XdpDevice;
#[cfg(feature = "xsk-rs")]
pub use xsk::XskRsLink;

/// Returns, as a sentence, what the calling thread lacks to use AF_XDP with a program, or `None` if
/// it lacks nothing.
pub fn missing_privilege() -> Option<String> {
    let missing = sys::capabilities::missing(sys::capabilities::FOR_XDP);
    (!missing.is_empty()).then(|| sys::capabilities::describe(&missing))
}

/// Returns how many bytes an unprivileged thread may lock (`RLIMIT_MEMLOCK`, soft).
pub fn memlock_limit() -> u64 {
    sys::xsk::memlock_limit()
}
