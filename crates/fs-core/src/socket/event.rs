//! What the stack tells its runtime, in batches.

use crate::flow::CoreId;
use crate::frame::{IfaceId, RxFrame};
use core::net::IpAddr;
use core::ops::{BitOr, BitOrAssign};

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name {
            /// Slot in the stack's table; small and dense, so side tables can be indexed by it.
            pub index: u32,
            /// Distinguishes successive users of a slot.
            pub generation: u32,
        }
    };
}

handle! {
    /// A TCP connection.
    TcpId
}
handle! {
    /// A listener.
    ListenerId
}
handle! {
    /// A UDP socket.
    UdpId
}

/// What a socket is ready for; a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready(pub u8);

impl Ready {
    /// Bytes, end of stream or an error can be read.
    pub const READ: Ready = Ready(1);
    /// Bytes can be written, the connect has finished, or an error can be read.
    pub const WRITE: Ready = Ready(2);
    /// Urgent data is announced or has come (POLLPRI): see `Stack::tcp_recv_urgent`.
    pub const PRIORITY: Ready = Ready(8);
    /// The connection is over (reset, timed out, or closed on both sides).
    pub const CLOSED: Ready = Ready(4);

    /// True when all of `other` is in the set.
    pub const fn contains(self, other: Ready) -> bool {
        self.0 & other.0 == other.0
    }

    /// True when any of `other` is in the set.
    pub const fn intersects(self, other: Ready) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Ready {
    type Output = Ready;
    fn bitor(self, other: Ready) -> Ready {
        Ready(self.0 | other.0)
    }
}

impl BitOrAssign for Ready {
    fn bitor_assign(&mut self, other: Ready) {
        self.0 |= other.0;
    }
}

/// Something that the runtime has to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection became ready; reported once per change, not once per packet.
    Tcp(TcpId, Ready),
    /// `tcp_accept` will give a connection.
    Accept(ListenerId),
    /// A UDP socket became ready.
    Udp(UdpId, Ready),
    /// Host addressing: the kernel should resolve this neighbour (the answer comes by `set_neighbour`).
    NeighbourNeeded(IfaceId, IpAddr),
}

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
    Handover(alloc::boxed::Box<crate::socket::handover::Handover>),
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
        at: core::net::SocketAddr,
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
    pub rest: alloc::vec::Vec<RxFrame>,
    /// Cores that have seen it; bounds the asking (a packet is asked at most once around).
    pub hops: u16,
}

impl Packet {
    /// All its frames, in order.
    pub fn into_frames(self) -> impl Iterator<Item = RxFrame> {
        core::iter::once(self.head).chain(self.rest)
    }
}
