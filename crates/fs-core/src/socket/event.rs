//! Events of a stack for its runtime, reported in batches.

use crate::frame::{Frame, IfaceId};
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

/// A set of conditions that a socket is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready(pub u8);

impl Ready {
    /// Bytes, end of stream or an error can be read.
    pub const READ: Ready = Ready(1);
    /// Bytes can be written, the connect has finished, or an error can be read.
    pub const WRITE: Ready = Ready(2);
    /// Urgent data was announced or has arrived (POLLPRI): see `Stack::tcp_recv_urgent`.
    pub const PRIORITY: Ready = Ready(8);
    /// The connection has ended (reset, timed out, or closed on both sides).
    pub const CLOSED: Ready = Ready(4);

    /// Internal: the final ACK of a Fast Open handshake has arrived.
    pub(crate) const CONFIRMED: Ready = Ready(0x80);

    /// Returns true if the set contains all of `other`.
    pub const fn contains(self, other: Ready) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if the set contains any of `other`.
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

/// An event that the runtime has to handle. Not `non_exhaustive`, since a runtime that ignores a
/// variant loses wake-ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection became ready; reported once per change, not once per packet.
    Tcp(TcpId, Ready),
    /// `tcp_accept` will return a connection.
    Accept(ListenerId),
    /// A UDP socket became ready.
    Udp(UdpId, Ready),
    /// Host addressing: the kernel should resolve this neighbour. The result arrives by
    /// `set_neighbour`.
    NeighbourNeeded(IfaceId, IpAddr),
}

/// Bytes received from a connection without a copy. Return the frame with `Stack::pool_mut().free`.
#[derive(Debug)]
pub enum Received {
    /// Some bytes, in their frame.
    Frame(Frame),
    /// The peer has closed its direction.
    EndOfStream,
}
