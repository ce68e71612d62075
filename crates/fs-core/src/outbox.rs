//! What a turn leaves for others: events for the runtime, messages for other cores.

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
    /// What it gets: hand it to its `Stack::deliver`.
    pub message: CoreMessage,
}

/// What cores tell one another. Whoever carries messages may need to know all of them, so this has no `non_exhaustive`.
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
    /// A router has told the sender how large packets to a destination may be.
    PathMtu {
        /// The destination.
        to: IpAddr,
        /// Bytes of a packet.
        mtu: u16,
    },
    /// The sender has now, or no longer has, a UDP socket that hears this.
    Datagrams {
        /// The sender.
        core: CoreId,
        /// What the socket hears.
        binding: UdpBinding,
        /// It is there, or no longer.
        up: bool,
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

impl CoreMessage {
    /// Frames in it: each is a chunk's only one, which goes to the other core.
    #[inline]
    pub fn frames(&self) -> usize {
        match self {
            Self::Packet(packet) => 1 + packet.rest.len(),
            Self::Handover(handover) => handover.received.len(),
            Self::Listen { .. } | Self::Neighbour { .. } | Self::Datagrams { .. } | Self::PathMtu { .. } => 0,
        }
    }
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

/// Events and messages, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    events: Vec<Event>,
    messages: Vec<Outbound>,
}

impl Outbox {
    /// The application of the connection in slot `index` is told what it is ready for, if anything.
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

    /// Entries of both.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn len(&self) -> usize {
        self.events.len() + self.messages.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_comes_out_once_and_in_order() {
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
