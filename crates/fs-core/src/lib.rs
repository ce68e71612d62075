//! fastsock's TCP/IP engine: one shard per core, sans-IO.
//!
//! Inputs are frames, time and socket calls. Outputs are frames, events and messages to other
//! cores. The engine uses no clock, random source, global state, thread or system call, so
//! every run can be simulated, fuzzed and replayed from a seed. The modules follow a packet's path:
//!
//! `rx` (parse, steer, look up, handshakes) → `tcb` (one connection's state machine) → `socket`
//! (options that applications set, events that they receive) → `tx` (headers, segments that leave),
//! over `net` (routes, neighbours). `timer` wakes connections. [`Stack`] owns these parts and
//! defines the order of a turn; ARCHITECTURE.md lists which part may use which.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod config;
mod drop_reason;
mod error;
mod flow;
mod frame;
mod frame_queue;
mod histogram;
mod net;
mod outbox;
mod port_set;
mod rx;
mod seq;
mod slab;
mod socket;
mod stack;
mod stats;
mod tcb;
mod time;
mod timer;
mod tx;
mod wire;

pub use config::{
    Addressing, Cidr, CongestionControl, Ecn, FastOpen, Framing, Interface, Limits, Refusal, Route, Secret,
    StackConfig, TcpConfig,
};
pub use drop_reason::DropReason;
pub use error::Error;
pub use flow::{CoreId, FlowKey, Protocol};
pub use frame::{Frame, FramePool, HEADROOM, HeapPool, IfaceId, RxChecksum, RxFrame, TxChecksum, TxFrame};
pub use histogram::Histogram;
pub use net::interface_queue::SEND_QUOTA;
pub use outbox::{CoreMessage, Outbound, Packet};
pub use port_set::PortSet;
pub use rx::steer::delivery::Steering;
pub use socket::event::{Event, ListenerId, Ready, Received, TcpId, UdpId};
pub use socket::info::{CaState, TcpInfo};
pub use socket::options::{Connect, Keepalive, Linger, Listen, Shutdown, TcpOptions, TcpState};
pub use socket::udp::{UdpBinding, UdpMeta};
pub use stack::Stack;
#[cfg(any(test, feature = "check"))]
pub use stack::check;
pub use stats::Stats;
pub use tcb::handover::Handover;
pub use time::{Duration, Instant};

/// Unstable internals, for the workspace's simulator, fuzzers and script runner, which read and
/// write packets with them. Not for applications.
#[doc(hidden)]
pub mod internals {
    pub use crate::rx::parse::{Parsed, Segment, View, parse};
    pub use crate::seq::SeqNum;
    pub use crate::wire::checksum::Sum;
    pub use crate::wire::icmp::{parse_error_v4, parse_error_v6};
    pub use crate::wire::options::{
        SynOptions, Timestamps, emit_sack, emit_syn, emit_timestamps, parse_syn, sack_blocks, timestamps,
    };
}
