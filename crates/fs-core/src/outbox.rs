//! Outputs of a turn: events for the runtime, messages for other cores.

use crate::flow::CoreId;
use crate::frame::{IfaceId, RxFrame};
use crate::socket::event::{Event, Ready, TcpId};
use crate::socket::udp::UdpBinding;
use crate::tcb::handover::Handover;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

/// A message from this core's stack to another's. The runtime carries it.
#[derive(Debug)]
pub struct Outbound {
    /// The receiver.
    pub to: CoreId,
    /// The payload: pass it to the receiver's `Stack::deliver`.
    pub message: CoreMessage,
}

/// Messages between cores. The carrier of messages may need to match all of them, so this enum is
/// not `non_exhaustive`.
#[derive(Debug)]
pub enum CoreMessage {
    /// A packet (one frame or a chain, in order) that the receiver owns (RFD), or may own.
    Packet(Packet),
    /// A connection that moves to the receiver, where an acceptor waits for it.
    Handover(Box<Handover>),
    /// Standalone addressing: a neighbour has announced its link address to the sender. The reply
    /// to one core's request may arrive on another core's queue.
    Neighbour {
        /// The neighbour's interface.
        iface: IfaceId,
        /// The neighbour's IP address.
        addr: IpAddr,
        /// The neighbour's link address.
        mac: [u8; 6],
    },
    /// A router has reported a path MTU to the sender.
    PathMtu {
        /// The destination.
        to: IpAddr,
        /// Largest packet in bytes.
        mtu: u16,
    },
    /// The sender has opened or closed a UDP socket with this binding.
    Datagrams {
        /// The sender.
        core: CoreId,
        /// The socket's binding.
        binding: UdpBinding,
        /// True if opened, false if closed.
        up: bool,
    },
    /// The sender has opened or closed a listener at this address (the global listen table).
    Listen {
        /// The sender.
        core: CoreId,
        /// Listen address; port in host order. An unspecified address is a wildcard.
        at: SocketAddr,
        /// True if opened, false if closed.
        up: bool,
    },
}

impl CoreMessage {
    /// Returns the number of frames in the message. Each is the only handle of its chunk, which
    /// moves to the other core.
    #[inline]
    pub fn frames(&self) -> usize {
        match self {
            Self::Packet(packet) => 1 + packet.rest.len(),
            Self::Handover(handover) => handover.received.len(),
            Self::Listen { .. } | Self::Neighbour { .. } | Self::Datagrams { .. } | Self::PathMtu { .. } => 0,
        }
    }
}

/// A packet that moves between cores.
#[derive(Debug)]
pub struct Packet {
    /// The packet's first frame, and for most packets the only one. Stored inline: the receiving
    /// core would return heap memory to the sender's arena under a lock.
    pub head: RxFrame,
    /// The rest of a chain, in order.
    pub rest: Vec<RxFrame>,
    /// Number of cores that have seen it. Limits the search for the owner to one round of all
    /// cores, and another one if its connection has moved.
    pub hops: u16,
}

impl Packet {
    /// Returns all its frames, in order.
    pub fn into_frames(self) -> impl Iterator<Item = RxFrame> {
        core::iter::once(self.head).chain(self.rest)
    }
}

/// Events and messages, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    events: Vec<Event>,
    messages: Vec<Outbound>,
}

impl Outbox {
    /// Reports to the application what the connection in slot `index` is ready for, if anything.
    #[inline(always)]
    pub(crate) fn ready(&mut self, index: u32, generation: u32, ready: Ready) {
        if ready.0 != 0 {
            self.events.push(Event::Tcp(TcpId { index, generation }, ready));
        }
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.events.push(event);
    }

    pub(crate) fn send(&mut self, to: CoreId, message: CoreMessage) {
        self.messages.push(Outbound { to, message });
    }

    #[inline]
    pub(crate) fn drain_events(&mut self, into: &mut Vec<Event>) {
        into.append(&mut self.events);
    }

    #[inline]
    pub(crate) fn drain_messages(&mut self, into: &mut Vec<Outbound>) {
        into.append(&mut self.messages);
    }

    /// Returns the number of events and messages.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn len(&self) -> usize {
        self.events.len() + self.messages.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_once_and_in_order() {
        let mut outbox = Outbox::default();
        outbox.ready(3, 1, Ready::default());
        assert_eq!(outbox.len(), 0, "ready for nothing is no event");
        outbox.ready(3, 1, Ready::READ);
        outbox.event(Event::Udp(crate::socket::event::UdpId { index: 0, generation: 1 }, Ready::WRITE));
        let at = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 80);
        outbox.send(CoreId(1), CoreMessage::Listen { core: CoreId(0), at, up: true });
        let (mut events, mut messages) = (Vec::new(), Vec::new());
        outbox.drain_events(&mut events);
        outbox.drain_messages(&mut messages);
        assert_eq!(events[0], Event::Tcp(TcpId { index: 3, generation: 1 }, Ready::READ));
        assert_eq!((events.len(), messages.len(), messages[0].to, outbox.len()), (2, 1, CoreId(1), 0));
    }
}
