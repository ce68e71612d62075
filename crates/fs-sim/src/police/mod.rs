//! TCP's rules on the wire, checked packet by packet from outside.
//!
//! - Windows (RFC 9293 3.8.6): an offered right edge never moves back, and no segment exceeds it;
//!   the first flight respects the initial window (RFC 6928); segments fit the peer's MSS (RFC
//!   6691).
//! - Sequence numbers: new data follows the old without a gap, a retransmission carries the same
//!   bytes, nothing follows a FIN, and a FIN keeps its position.
//! - Acknowledgements: only of data that arrived without a hole, never going back.
//! - SACK (RFC 2018): blocks name received data, are above the acknowledgement and disjoint. D-SACK
//!   (RFC 2883): first, and only of data that arrived twice.
//! - Timestamps (RFC 7323 3.2): on every segment once negotiated, never going back, echoing
//!   received ones.
//! - ECN (RFC 3168): only if negotiated; ECT on new data only; ECE from a mark until the peer's
//!   CWR, and not after.
//! - No RST in reply to a RST, and no two ends that answer each other's empty ACKs endlessly.
//!
//! The police sees each host's packets in order, and the packets that reached each host intact.
//! "Reached" is generous (the stack may not have processed them yet, or may have had no space), so
//! a reported violation is always real.

mod ranges;
mod rules;
mod segment;

#[cfg(test)]
mod tests;

use fs_core::{Framing, Instant};
use rules::Direction;
use segment::{SYN, Segment, parse};
use std::collections::HashMap;
use std::net::SocketAddr;

/// The observer.
#[derive(Debug)]
pub struct Police {
    framing: Framing,
    /// Initial window of senders, in segments.
    initial_window: u32,
    /// Both directions of a flow; the first is that from the lower address.
    flows: HashMap<(SocketAddr, SocketAddr), [Direction; 2]>,
    /// Number of SYNs with data (RFC 7413).
    pub syn_data: u64,
}

/// Returns the addresses of a TCP packet. `None` for the window unless it is an ACK without anything else.
pub(crate) fn plain_ack(packet: &[u8], framing: Framing) -> Option<((SocketAddr, SocketAddr), Option<u32>)> {
    let segment = parse(packet, framing)?;
    let plain = segment.span() == 0 && !segment.has(segment::RST) && segment.sacks.is_empty();
    Some(((segment.from, segment.to), plain.then_some(segment.window)))
}

impl Police {
    /// Makes an observer of packets with this framing and initial window in segments.
    pub fn new(framing: Framing, initial_window: u32) -> Self {
        Self { framing, initial_window, flows: HashMap::new(), syn_data: 0 }
    }

    /// Returns the segment's own direction and the opposite one.
    fn ways(&mut self, segment: &Segment) -> (&mut Direction, &mut Direction) {
        let (a, b) = (segment.from, segment.to);
        let [low, high] = self.flows.entry((a.min(b), a.max(b))).or_default();
        if a <= b { (low, high) } else { (high, low) }
    }

    /// Checks a packet that a host sends.
    ///
    /// # Errors
    /// The rule that it violates.
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

    /// Records that a packet has reached its host undamaged.
    pub fn arrived(&mut self, packet: &[u8]) {
        let Some(segment) = parse(packet, self.framing) else { return };
        let (sender, receiver) = self.ways(&segment);
        sender.on_arrival(receiver, &segment);
    }
}
