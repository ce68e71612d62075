//! What TCP promises on the wire, checked packet by packet from outside.
//!
//! - Windows (RFC 9293 3.8.6): an offered right edge never moves back, and nothing is sent beyond one; the first
//!   flight keeps the initial window (RFC 6928); segments fit the peer's MSS (RFC 6691).
//! - Sequence numbers: new data follows the old without a gap, a retransmission carries the same bytes, nothing
//!   follows a FIN and a FIN stays where it is.
//! - Acknowledgements: only of what arrived without a hole, never going back.
//! - SACK (RFC 2018): blocks name what arrived, above the acknowledgement and apart from one another. D-SACK
//!   (RFC 2883): first, and only of what arrived twice.
//! - Timestamps (RFC 7323 3.2): on every segment once agreed, never running back, echoing what was received.
//! - ECN (RFC 3168): only when agreed; ECT on new data only; ECE from a mark until the peer's CWR, and not after.
//! - No RST that answers a RST, no two ends that answer each other's empty ACKs for ever.
//!
//! It sees what each host sends, in order, and what reached each host intact. "Reached" is generous (the
//! stack may not have looked yet, or may have had no room), so a breach is a breach.

mod ranges;
mod rules;
mod segment;

#[cfg(test)]
mod tests;

use fs_core::{Framing, Instant};
use rules::Way;
use segment::{SYN, Segment, parse};
use std::collections::HashMap;
use std::net::SocketAddr;

/// The observer.
#[derive(Debug)]
pub struct Police {
    framing: Framing,
    /// Initial window that senders may use, in segments.
    initial_window: u32,
    /// Both ways of a flow; the first is that from the lower address.
    flows: HashMap<(SocketAddr, SocketAddr), [Way; 2]>,
    /// SYNs with data (RFC 7413).
    pub syn_data: u64,
}

impl Police {
    /// An observer of packets with this framing. Senders may begin with so many segments.
    pub fn new(framing: Framing, initial_window: u32) -> Self {
        Self { framing, initial_window, flows: HashMap::new(), syn_data: 0 }
    }

    /// The segment's own way and the way back.
    fn ways(&mut self, segment: &Segment) -> (&mut Way, &mut Way) {
        let (a, b) = (segment.from, segment.to);
        let [low, high] = self.flows.entry((a.min(b), a.max(b))).or_default();
        if a <= b { (low, high) } else { (high, low) }
    }

    /// A host sends a packet.
    ///
    /// # Errors
    /// Which rule it breaks.
    pub fn sent(&mut self, now: Instant, packet: &[u8]) -> Result<(), String> {
        let Some(segment) = parse(packet, self.framing) else { return Ok(()) };
        self.syn_data += u64::from(segment.has(SYN) && !segment.payload.is_empty());
        let initial_window = self.initial_window;
        let (way, back) = self.ways(&segment);
        let judged = if segment.has(SYN) {
            way.on_syn(back, &segment)
        } else {
            way.on_segment(back, &segment, now, initial_window)
        };
        judged.map_err(|what| format!("{what}: {segment:?}"))
    }

    /// A packet has reached its host undamaged.
    pub fn arrived(&mut self, packet: &[u8]) {
        let Some(segment) = parse(packet, self.framing) else { return };
        let (sender, receiver) = self.ways(&segment);
        sender.on_arrival(receiver, &segment);
    }
}
