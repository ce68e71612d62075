//! The SYN cache (RFC 4987 3.4). A handshake that was answered takes an entry here, and a control
//! block only when its final ACK arrives.

use crate::flow::FlowKey;
use crate::frame::IfaceId;
use crate::net::neigh::PathId;
use crate::seq::SeqNum;
use crate::slab::{Hollow, NIL, Slab};
use crate::wire::options::SynOptions;

/// A passive open in SYN-RECEIVED.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SynEntry {
    pub(crate) key: FlowKey,
    pub(crate) irs: SeqNum,
    pub(crate) iss: SeqNum,
    /// The peer's options, for the SYN-ACK and the control block.
    pub(crate) options: SynOptions,
    /// The peer's window field, which is not scaled in a SYN (RFC 7323 2.2).
    pub(crate) window: u16,
    /// The listener's slot when the SYN arrived.
    pub(crate) listener: u32,
    pub(crate) path: PathId,
    /// The only interface of its packets: the listener's device, or that of a link-local peer.
    pub(crate) device: Option<IfaceId>,
    /// Route epoch in which the path was looked up.
    pub(crate) route_epoch: u8,
    pub(crate) retries: u8,
    /// The window scale of our SYN-ACK if the peer supports scaling. Derived from the listener's
    /// options when the SYN arrived.
    pub(crate) shift: u8,
    /// ECN was negotiated.
    pub(crate) ecn: bool,
    /// The handshake's final ACK has arrived and was ignored: TCP_DEFER_ACCEPT waits for data.
    pub(crate) deferred: bool,
    /// Fast Open: the connection that the SYN's data has already opened. The entry then only
    /// retransmits the SYN-ACK and is not in the flow table. Otherwise `NIL`.
    pub(crate) slot: u32,
    /// When the SYN-ACK was sent, in microseconds: the start of the first RTT sample.
    pub(crate) sent_us: u32,
    /// Distinguishes successive users of an entry.
    pub(crate) generation: u32,
    next: u32,
}

// A flood fills the cache: the size of an entry is the cost of a spoofed SYN.
const _: () = assert!(size_of::<SynEntry>() <= 104);

impl Hollow for SynEntry {
    fn hollow() -> Self {
        Self {
            key: FlowKey::V4 { local: 0, remote: 0, local_port: 0, remote_port: 0 },
            irs: SeqNum(0),
            iss: SeqNum(0),
            options: SynOptions::default(),
            window: 0,
            listener: NIL,
            path: PathId::default(),
            device: None,
            route_epoch: 0,
            retries: 0,
            shift: 0,
            ecn: false,
            deferred: false,
            slot: NIL,
            sent_us: 0,
            generation: 0,
            next: NIL,
        }
    }

    fn next_mut(&mut self) -> &mut u32 {
        &mut self.next
    }
}

/// Pending handshakes of a core.
#[derive(Debug)]
pub(crate) struct SynCache {
    entries: Slab<SynEntry>,
    generations: u32,
    limit: u32,
}

impl SynCache {
    pub(crate) fn new(limit: u32) -> Self {
        Self { entries: Slab::new(), generations: 0, limit }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.limit as usize
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an entry and sets its generation.
    pub(crate) fn insert(&mut self, mut entry: SynEntry) -> u32 {
        self.generations = self.generations.wrapping_add(1).max(1);
        entry.generation = self.generations;
        self.entries.insert(entry)
    }

    pub(crate) fn entry_mut(&mut self, index: u32) -> &mut SynEntry {
        &mut self.entries[index]
    }

    pub(crate) fn entry(&self, index: u32) -> &SynEntry {
        &self.entries[index]
    }

    /// Returns the entry if it still has that generation.
    pub(crate) fn current(&mut self, index: u32, generation: u32) -> Option<&mut SynEntry> {
        let entry = &mut self.entries[index];
        (entry.generation == generation).then_some(entry)
    }

    /// Returns all handshakes with their indexes.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, &SynEntry)> {
        (0..).zip(self.entries.entries()).filter(|(_, entry)| entry.listener != NIL)
    }

    /// Returns the size of the array in bytes.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn capacity_bytes(&self) -> usize {
        size_of_val(self.entries.entries())
    }

    /// Frees an entry. Its contents remain, but `current` and `live` ignore them.
    pub(crate) fn release(&mut self, index: u32) {
        let entry = &mut self.entries[index];
        (entry.generation, entry.listener) = (0, NIL);
        self.entries.vacate(index);
    }
}

impl SynEntry {
    /// Makes an entry for a SYN that has just arrived.
    pub(crate) fn new(key: FlowKey, irs: SeqNum, iss: SeqNum, options: SynOptions, window: u16, listener: u32) -> Self {
        Self { key, irs, iss, options, window, listener, ..Self::hollow() }
    }
}
