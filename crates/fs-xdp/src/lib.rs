//! Links: where frames come from and go to. AF_XDP first; AF_PACKET, TAP/TUN and an in-memory pair beside it.
//!
//! One UMEM serves all queues and devices of a runtime; every core has a [`UmemPool`] of its own on it.

mod chain;
mod checksum;
mod copying;
pub mod device;
pub mod error;
pub mod link;
pub mod memory;
pub mod packet;
mod port_table;
mod program;
mod ring;
mod socket_group;
pub mod steering;
mod sys;
pub mod tap;
pub mod umem;
mod umem_unsafe;
mod xdp;
mod xdp_device;
#[cfg(feature = "xsk-rs")]
mod xsk;
mod xsk_socket;

pub use device::{NetDevice, QueueCounts};
pub use error::XdpError;
pub use link::{Link, LinkCaps, LinkKind, LinkStats};
pub use memory::{MemoryConfig, MemoryLink};
pub use packet::{PacketConfig, PacketLink};
pub use port_table::{PortTable, SteerCounters};
pub use steering::{FlowMatch, FlowRule, Rss, SteeringReport};
pub use tap::{TapConfig, TapKind, TapLink};
pub use umem::{Umem, UmemConfig, UmemPool};
pub use xdp::XdpLink;
pub use xdp_device::{MultiBuffer, QueueConfig, XdpConfig, XdpDevice, XdpMode};
#[cfg(feature = "xsk-rs")]
pub use xsk::XskRsLink;
