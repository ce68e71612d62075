//! The SYN cache (RFC 4987 3.4): a handshake that we have answered costs an entry here, and a control
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
    /// The peer's options, for our answer and the control block.
    pub(crate) options: SynOptions,
    /// The peer's window field: not scaled in a SYN (RFC 7323 2.2).
    pub(crate) window: u16,
    /// The listener's slot when the SYN came.
    pub(crate) listener: u32,
    pub(crate) path: PathId,
    /// The only interface that its packets come and leave by: its listener's, or that of its link-local peer.
    pub(crate) device: Option<IfaceId>,
    /// As of which routes.
    pub(crate) route_epoch: u8,
    pub(crate) retries: u8,
    /// The window scale of our SYN-ACK, if the peer takes one: as the listener's options were when the SYN came.
    pub(crate) shift: u8,
    /// We agree to ECN.
    pub(crate) ecn: bool,
    /// The handshake's last ACK has come, and was not taken for it: TCP_DEFER_ACCEPT waits for data.
    pub(crate) deferred: bool,
    /// Fast open: the connection that the SYN's data has opened already; the entry only sends the SYN-ACK again and is
    /// not in the flow table. Else `NIL`.
    pub(crate) slot: u32,
    /// When the SYN-ACK left, in microseconds: the first RTT sample.
    pub(crate) sent_us: u32,
    /// Distinguishes successive users of an entry.
    pub(crate) generation: u32,
    next: u32,
}

// A flood fills the cache: what an entry costs is what a spoofed SYN costs us.
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

/// A core's handshakes under way.
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

    /// Adds an entry; its generation is filled in here.
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

    /// The entry, if it is still the one of that generation.
    pub(crate) fn current(&mut self, index: u32, generation: u32) -> Option<&mut SynEntry> {
        let entry = &mut self.entries[index];
        (entry.generation == generation).then_some(entry)
    }

    /// All handshakes with their places.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, &SynEntry)> {
        (0..).zip(self.entries.entries()).filter(|(_, entry)| entry.listener != NIL)
    }

    /// Bytes of the array.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn capacity_bytes(&self) -> usize {
        size_of_val(self.entries.entries())
    }

    /// Ends an entry. What it holds stays where it is, without meaning to `current` and `live`.
    pub(crate) fn release(&mut self, index: u32) {
        let entry = &mut self.entries[index];
        (entry.generation, entry.listener) = (0, NIL);
        self.entries.vacate(index);
    }
}

impl SynEntry {
    /// An entry for a SYN that has just arrived.
    pub(crate) fn new(key: FlowKey, irs: SeqNum, iss: SeqNum, options: SynOptions, window: u16, listener: u32) -> Self {
        Self { key, irs, iss, options, window, listener, ..Self::hollow() }
    }
}
