//! Segments that belong to no connection, handshake or TIME-WAIT record of this core.

use crate::drop_reason::DropReason;
use crate::flow::{CoreId, FlowKey};
use crate::frame::{FramePool, RxFrame};
use crate::outbox::{CoreMessage, Packet};
use crate::rx::parse::Segment;
use crate::rx::steer::delivery::{Deliver, Listening, Unclaimed};
use crate::socket::listener::ListenTable;
use crate::stack::Stack;
use crate::tcb::arrival::Arrival;

impl<P: FramePool> Stack<P> {
    /// Handles a segment without connection, handshake or TIME-WAIT record on this core: another
    /// core's, a SYN for a listener, or one without owner.
    #[cold]
    pub(crate) fn on_unowned(&mut self, segment: &Segment, hash: u64, frames: &mut [RxFrame], hops: u16) {
        let (local, port) = (segment.key.local_ip(), segment.key.local_port());
        if !self.is_local(local) {
            return self.discard(frames, DropReason::NotOurAddress);
        }
        // RFC 9293 MUST-57 and the LAND attack: no host sends to itself through a link, or from a
        // network's broadcast address.
        let remote = segment.key.remote_ip();
        if remote == local && segment.key.remote_port() == port || !self.net.is_unicast(remote) {
            return self.discard(frames, DropReason::BadAddress);
        }
        if self.on_cookie(segment, hash, frames, hops) {
            return;
        }
        let me = self.config.core;
        if self.config.cores > 1 {
            match self.steer(segment, hash, hops) {
                Ok(Some((to, hops))) if to != me => return self.forward(to, frames, hops),
                Ok(_) => {}
                Err(TooMany) => return self.discard(frames, DropReason::NobodysFlow),
            }
        }
        if hops >= self.config.cores && self.config.cores > 1 {
            self.limits.record_stray();
        }
        let first = !segment.flags.ack() && !segment.flags.rst();
        // RFC 9293 3.10.7.2: a listener drops a segment without RST, ACK and SYN, and sends no
        // reply. SYN with FIN opens nothing (as Linux): no honest sender makes it.
        if first && (!segment.flags.syn() || segment.flags.fin()) && self.listeners.find(local, port).is_some() {
            return self.discard(frames, DropReason::NoAck);
        }
        if segment.flags.syn()
            && first
            && let Some(listener) = self.listeners.find(local, port)
        {
            return self.on_syn(listener, segment, hash, frames);
        }
        if self.awaits_cookie(segment) {
            return self.discard(frames, DropReason::BadHandshakeAck);
        }
        let reason = if self.config.cores > 1 && hops > 0 { DropReason::NobodysFlow } else { DropReason::NoSocket };
        if !segment.flags.rst() {
            self.send_reset_for(segment);
        }
        self.discard(frames, reason);
    }

    /// Returns the core that a packet without owner here belongs to, if it is another one, and the
    /// packet's hops there.
    ///
    /// # Errors
    /// The other cores would have to be searched, but this second's budget for searches without
    /// result is spent.
    pub(super) fn steer(&mut self, segment: &Segment, hash: u64, hops: u16) -> Result<Option<(CoreId, u16)>, TooMany> {
        let echo = self.echoed_core(segment);
        let Self { config, delivery, limits, listeners, handovers, stats, now, .. } = self;
        let initial = segment.flags.syn() && !segment.flags.ack();
        if initial {
            handovers.forget(hash);
        }
        let packet = Unclaimed { key: &segment.key, initial, echo, hops };
        let listening = AtDestination { listeners, key: &segment.key, hash };
        let destination = delivery.deliver(&packet, &listening, || handovers.find(hash, *now));
        let (to, count) = match destination {
            Deliver::Here => return Ok(None),
            Deliver::Owner(to) | Deliver::Moved(to) => (to, &mut stats.packets_forwarded),
            Deliver::Listener(to) => (to, &mut stats.listen_global),
            Deliver::Search(_) if !limits.may_ask(config.tcp.challenge_acks, *now) => return Err(TooMany),
            Deliver::Search(to) | Deliver::Ask(to) => (to, &mut stats.packets_asked),
        };
        *count += 1;
        Ok(Some((to, delivery.hops_at(destination, hops))))
    }

    /// Returns the core that the segment's echo of our timestamp names, if there is such a core.
    pub(super) fn echoed_core(&self, segment: &Segment) -> Option<CoreId> {
        let echo = segment.ts.filter(|ts| ts.ecr != 0).map(|ts| self.ts_clock.owner(ts.ecr));
        echo.filter(|core| core.0 < self.config.cores)
    }

    pub(super) fn forward(&mut self, to: CoreId, frames: &mut [RxFrame], hops: u16) {
        let (head, rest) = Arrival::new(frames).into_head_and_rest();
        let packet = Packet { head, rest, hops };
        self.outbox.send(to, CoreMessage::Packet(packet));
    }
}

/// Error: too many packets without owner.
#[derive(Debug)]
pub(super) struct TooMany;

/// Listeners at a packet's destination.
struct AtDestination<'a> {
    listeners: &'a ListenTable,
    key: &'a FlowKey,
    hash: u64,
}

impl Listening for AtDestination<'_> {
    fn port_in_use(&self) -> bool {
        self.listeners.port_in_use(self.key.local_port())
    }

    fn here(&self) -> bool {
        self.listeners.find(self.key.local_ip(), self.key.local_port()).is_some()
    }

    fn elsewhere(&self) -> Option<CoreId> {
        self.listeners.find_elsewhere(self.key.local_ip(), self.key.local_port(), self.hash)
    }
}
