//! What a turn leaves for others: events for the runtime, messages for other cores.

use crate::flow::CoreId;
use crate::frame::{IfaceId, RxFrame};
use crate::tcb::handover::Handover;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

/// A message from this core's stack to another's. The runtime carries it.
#[derive(Debug)]
pub struct Outbound {
    /// The receiver.
    pub to: CoreId,
    /// What it gets: hand it to its `Stack::deliver`.
    pub message: CoreMessage,
}

/// What cores tell one another.
#[derive(Debug)]
pub enum CoreMessage {
    /// A packet (one frame or a chain, in order) that the receiver owns (RFD), or is asked about.
    Packet(Packet),
    /// A connection moves to the receiver, which has an acceptor for it.
    Handover(Box<Handover>),
    /// Standalone addressing: a neighbour has told the sender its link address; the answer to one core's
    /// question may arrive on another's queue.
    Neighbour {
        /// Where it is.
        iface: IfaceId,
        /// Its IP address.
        addr: IpAddr,
        /// Its link address.
        mac: [u8; 6],
    },
    /// The sender has now, or no longer has, a listener on this port (the global listen table).
    Listen {
        /// The sender.
        core: CoreId,
        /// Where it listens; port in host order. An unspecified address is a wildcard.
        at: SocketAddr,
        /// Listening, or no longer.
        up: bool,
    },
}

/// A packet on its way between cores.
#[derive(Debug)]
pub struct Packet {
    /// Its first frame, and for most packets the only one. Inline: no heap memory crosses cores for it, which
    /// the receiving core would give back to the sender's arena under a lock.
    pub head: RxFrame,
    /// The rest of a chain, in order.
    pub rest: Vec<RxFrame>,
    /// Cores that have seen it; bounds the asking (a packet is asked at most once around).
    pub hops: u16,
}

impl Packet {
    /// All its frames, in order.
    pub fn into_frames(self) -> impl Iterator<Item = RxFrame> {
        core::iter::once(self.head).chain(self.rest)
    }
}
