//! Packets that wait for a neighbour, and the times of repeated requests.

use super::{Enqueued, Path, PathId, REFRESH, REQUEST_INTERVAL};
use crate::frame::{FramePool, HEADROOM, TxFrame};
use crate::time::Instant;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

/// Packets that may wait in total, as a multiple of the limit for one neighbour. A scan through a
/// prefix without hosts must not pin the frame pool.
const NEIGHBOURS_WAITED_FOR: usize = 64;

/// A neighbour that is being resolved.
#[derive(Debug)]
struct Entry {
    packets: VecDeque<Vec<TxFrame>>,
    tries: u8,
    /// Identifies the current entry in a timer queue; entries with other times are obsolete.
    due: Instant,
}

/// Neighbours that are being resolved, and the packets that wait for them.
#[derive(Debug)]
pub(super) struct ResolutionQueue {
    entries: BTreeMap<PathId, Entry>,
    /// Connects whose SYNs wait for a neighbour; only for neighbours in `entries`.
    connects: BTreeMap<PathId, Vec<u32>>,
    per_neighbour: usize,
    /// Packets that may wait in total.
    limit: usize,
    packets: usize,
    /// Repeated requests. All use one interval, so the queue is sorted.
    repeats: VecDeque<(Instant, PathId)>,
    /// Known neighbours to be confirmed. Sorted as well.
    refreshes: VecDeque<(Instant, PathId)>,
    /// The paths in `refreshes`: a neighbour that leaves and comes back has one entry.
    refreshed: BTreeSet<PathId>,
}

impl ResolutionQueue {
    pub(super) fn new(per_neighbour: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            connects: BTreeMap::new(),
            per_neighbour: per_neighbour.max(1),
            limit: per_neighbour.max(1) * NEIGHBOURS_WAITED_FOR,
            packets: 0,
            repeats: VecDeque::new(),
            refreshes: VecDeque::new(),
            refreshed: BTreeSet::new(),
        }
    }

    /// Lowers the number of packets that may wait in total.
    pub(super) fn limit(&mut self, packets: usize) {
        self.limit = self.limit.min(packets.max(self.per_neighbour));
    }

    /// Starts resolving a neighbour. Returns true unless resolution is already under way.
    pub(super) fn ask(&mut self, id: PathId, now: Instant) -> bool {
        if self.entries.contains_key(&id) {
            return false;
        }
        self.entries.insert(id, Entry { packets: VecDeque::new(), tries: 0, due: now });
        self.asked(id, now);
        true
    }

    /// Records that a request is sent now.
    pub(super) fn asked(&mut self, id: PathId, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.tries += 1;
            entry.due = now + REQUEST_INTERVAL;
            self.repeats.push_back((entry.due, id));
        }
    }

    pub(super) fn push(&mut self, id: PathId, packet: Vec<TxFrame>, now: Instant) -> Enqueued {
        let full = self.packets >= self.limit;
        if full && self.entries.get(&id).is_none_or(|entry| entry.packets.is_empty()) {
            return Enqueued { request: false, dropped: packet };
        }
        let request = self.ask(id, now);
        let mut dropped = Vec::new();
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.packets.push_back(packet);
            self.packets += 1;
            // RFC 1122 2.3.2.2: at least the latest packet should be kept.
            if full || entry.packets.len() > self.per_neighbour {
                dropped = entry.packets.pop_front().unwrap_or_default();
                self.packets -= 1;
            }
        }
        Enqueued { request, dropped }
    }

    /// Records that the connect in slot `index` has sent a SYN to a neighbour that is being
    /// resolved.
    pub(super) fn push_connect(&mut self, id: PathId, index: u32) {
        if !self.entries.contains_key(&id) {
            return;
        }
        let connects = self.connects.entry(id).or_default();
        // Consecutive SYNs often come from one connect that retransmits.
        if connects.last() != Some(&index) {
            connects.push(index);
        }
    }

    /// Removes and returns the connects whose SYNs wait for a neighbour that failed to resolve.
    pub(super) fn take_connects(&mut self, id: PathId) -> Vec<u32> {
        self.connects.remove(&id).unwrap_or_default()
    }

    /// Ends the requests for a neighbour that has replied. Waiting packets stay until `take`.
    pub(super) fn answered(&mut self, id: PathId) {
        self.connects.remove(&id);
        match self.entries.get_mut(&id) {
            Some(entry) if entry.packets.is_empty() => {
                self.entries.remove(&id);
            }
            // The caller fetches the packets now; until then nothing is due.
            Some(entry) => entry.due = Instant(u64::MAX),
            None => {}
        }
    }

    /// Schedules a confirmation of the path after [`REFRESH`], or earlier if one is due then.
    pub(super) fn refresh_later(&mut self, id: PathId, now: Instant) {
        if self.refreshed.insert(id) {
            self.refreshes.push_back((now + REFRESH, id));
        }
    }

    /// Ends resolution and returns the waiting packets.
    pub(super) fn take(&mut self, id: PathId) -> Vec<Vec<TxFrame>> {
        let packets: Vec<_> = self.entries.remove(&id).map(|entry| entry.packets.into()).unwrap_or_default();
        self.packets -= packets.len();
        packets
    }

    #[cfg(test)]
    pub(super) fn drain(&mut self) -> Vec<Vec<TxFrame>> {
        self.packets = 0;
        self.repeats.clear();
        core::mem::take(&mut self.entries).into_values().flat_map(|entry| entry.packets).collect()
    }

    pub(super) fn is_waiting(&self, id: PathId) -> bool {
        self.entries.contains_key(&id)
    }

    #[cfg(test)]
    pub(super) fn refreshes(&self) -> usize {
        self.refreshes.len()
    }

    #[cfg(any(test, feature = "check"))]
    pub(super) fn packets(&self) -> usize {
        self.packets
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let repeat = self.repeats.front().map(|(due, _)| *due);
        let refresh = self.refreshes.front().map(|(due, _)| *due);
        [repeat, refresh].into_iter().flatten().min()
    }

    /// Removes and returns one entry that is due at `now`.
    pub(super) fn due(&mut self, now: Instant) -> Option<Due> {
        while let Some((due, id)) = pop_due(&mut self.repeats, now) {
            if let Some(entry) = self.entries.get(&id).filter(|entry| entry.due == due) {
                return Some(Due::Repeat(id, entry.tries));
            }
        }
        let (_, id) = pop_due(&mut self.refreshes, now)?;
        self.refreshed.remove(&id);
        Some(Due::Refresh(id))
    }
}

/// An action that is due.
pub(super) enum Due {
    /// A neighbour has not replied for an interval. Contains the number of requests so far.
    Repeat(PathId, u8),
    /// A path was resolved or confirmed a while ago.
    Refresh(PathId),
}

fn pop_due(queue: &mut VecDeque<(Instant, PathId)>, now: Instant) -> Option<(Instant, PathId)> {
    if queue.front()?.0 <= now { queue.pop_front() } else { None }
}

/// Writes the path's link header in front of a packet. A head that the send queue shares must not
/// be written to (frame access rule 3), so it is copied. If no frame is free for the copy, the
/// packet is returned as the error.
pub(super) fn with_link_header<P: FramePool>(
    path: &Path,
    pool: &mut P,
    mut packet: Vec<TxFrame>,
) -> Result<Vec<TxFrame>, Vec<TxFrame>> {
    let Some(head) = packet.first_mut() else { return Ok(packet) };
    if pool.is_shared(&head.frame) {
        let len = head.frame.len();
        // The payload space may be too small for header and payload together; the header fits the
        // headroom.
        let front = len.saturating_sub(pool.payload_room());
        if front + path.link_header().len() > usize::from(HEADROOM) {
            return Err(packet);
        }
        let Some(mut copy) = pool.alloc() else { return Err(packet) };
        copy.grow_front(front);
        copy.grow_back(len - front);
        let bytes: Vec<u8> = pool.bytes(&head.frame).into();
        pool.bytes_mut(&mut copy).copy_from_slice(&bytes);
        copy.set_more(head.frame.more());
        pool.free(core::mem::replace(&mut head.frame, copy));
    }
    path.prepend(pool, head);
    Ok(packet)
}
