//! fastsock's TCP/IP engine: one shard per core, sans-IO.
//!
//! Frames, time and socket calls go in; frames, events and messages to other cores come out. Nothing in
//! here asks for a clock, a random number, a global allocator pool, a thread or a system call, so every
//! run can be simulated, fuzzed and replayed from a seed. The modules follow a packet's way:
//!
//! [`rx`] (parse, steer, look up, handshakes) → [`tcb`] (one connection's state machine) → [`socket`] (what
//! applications set and are told) → `tx` (headers, segments that leave), over [`net`] (routes, neighbours). [`timer`] wakes
//! connections. [`Stack`] owns these parts and is the order of a turn; ARCHITECTURE.md says which part may use which.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod config;
pub mod drop_reason;
pub mod error;
pub mod flow;
pub mod frame;
pub(crate) mod frame_queue;
pub mod net;
pub(crate) mod outbox;
pub(crate) mod port_set;
pub mod rx;
pub mod seq;
pub(crate) mod slab;
pub mod socket;
mod stack;
pub mod stats;
pub mod tcb;
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
pub use outbox::{CoreMessage, Outbound, Packet};
pub use port_set::PortSet;
pub use socket::event::{Event, ListenerId, Ready, Received, TcpId, UdpId};
pub use socket::info::TcpInfo;
pub use socket::options::{Connect, Keepalive, Linger, Listen, Shutdown, TcpOptions, TcpState};
pub use socket::udp::UdpMeta;
#[cfg(any(test, feature = "check"))]
pub use stack::check;
pub use stack::{PortFilter, Stack};
pub use stats::Stats;
pub use tcb::handover::Handover;
pub use time::{Duration, Instant};
