//! fastsock's TCP/IP engine: one shard per core, sans-IO.
//!
//! Frames, time and socket calls go in; frames, events and messages to other cores come out. Nothing in
//! here asks for a clock, a random number, a global allocator pool, a thread or a system call, so every
//! run can be simulated, fuzzed and replayed from a seed. The modules follow a packet's way:
//!
//! [`rx`] (parse, steer, demux, SYN cache) → [`tcb`] (one connection's state machine) → [`socket`] (what
//! applications call and are told) → [`tx`] (route, neighbour, build, batch). [`timer`] wakes connections.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(any(test, feature = "check"))]
pub mod check;
pub mod config;
pub mod drop_reason;
pub mod error;
pub mod flow;
pub mod frame;
pub(crate) mod frame_queue;
pub(crate) mod net;
pub mod rx;
pub(crate) mod slab;
pub mod socket;
mod stack;
pub mod stats;
pub mod tcb;
mod tick;
pub mod time;
pub mod timer;
pub mod tx;
pub mod wire;

pub use config::{
    Addressing, Cidr, CongestionControl, Framing, Interface, Limits, Route, Secret, StackConfig, TcpConfig,
};
pub use drop_reason::DropReason;
pub use error::Error;
pub use flow::{CoreId, FlowKey, Protocol};
pub use frame::{Frame, FramePool, HeapPool, IfaceId, RxChecksum, RxFrame, TxChecksum, TxFrame};
pub use socket::event::{CoreMessage, Event, ListenerId, Outbound, Packet, Ready, TcpId, UdpId};
pub use socket::handover::Handover;
pub use socket::info::TcpInfo;
pub use socket::options::{Connect, Keepalive, Linger, Listen, Shutdown, TcpOptions, TcpState};
pub use stack::{PortFilter, Received, Stack, UdpMeta};
pub use stats::Stats;
pub use time::{Duration, Instant};
