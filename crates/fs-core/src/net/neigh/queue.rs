//! Packets that wait for a neighbour, and the times at which it is asked for again.

use super::{Enqueued, Path, PathId, REFRESH, REQUEST_INTERVAL};
use crate::frame::{FramePool, HEADROOM, TxFrame};
use crate::time::Instant;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// Packets that may wait in all, in multiples of what may wait for one neighbour. A scan through a prefix
/// without hosts must not pin the frame pool.
const NEIGHBOURS_WAITED_FOR: usize = 64;

/// A neighbour that is being asked for.
#[derive(Debug)]
struct Entry {
    packets: VecDeque<Vec<TxFrame>>,
    tries: u8,
    /// The entry in a timer queue that counts; others are left-overs.
    due: Instant,
}

/// Who is asked for, and what waits for them.
#[derive(Debug)]
pub(super) struct Waiting {
    entries: BTreeMap<PathId, Entry>,
    /// Connects whose SYNs wait for a neighbour that is being asked for; only for those of `entries`.
    connects: BTreeMap<PathId, Vec<u32>>,
    per_neighbour: usize,
    /// Packets that may wait in all.
    limit: usize,
    packets: usize,
    /// Repeated requests; one interval for all, so the queue is in order.
    repeats: VecDeque<(Instant, PathId)>,
    /// Known neighbours that are asked whether they are still there; likewise in order.
    refreshes: VecDeque<(Instant, PathId)>,
}

impl Waiting {
    pub(super) fn new(per_neighbour: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            connects: BTreeMap::new(),
            per_neighbour: per_neighbour.max(1),
            limit: per_neighbour.max(1) * NEIGHBOURS_WAITED_FOR,
            packets: 0,
            repeats: VecDeque::new(),
            refreshes: VecDeque::new(),
        }
    }

    /// Lowers the number of packets that may wait in all.
    pub(super) fn limit(&mut self, packets: usize) {
        self.limit = self.limit.min(packets.max(self.per_neighbour));
    }

    /// Starts asking for a neighbour; true unless that is going on already.
    pub(super) fn ask(&mut self, id: PathId, now: Instant) -> bool {
        if self.entries.contains_key(&id) {
            return false;
        }
        self.entries.insert(id, Entry { packets: VecDeque::new(), tries: 0, due: now });
        self.asked(id, now);
        true
    }

    /// Notes that a request goes out now.
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

    /// The connect in slot `index` has sent a SYN to a neighbour that is being asked for.
    pub(super) fn push_connect(&mut self, id: PathId, index: u32) {
        if !self.entries.contains_key(&id) {
            return;
        }
        let connects = self.connects.entry(id).or_default();
        // One that sends its SYN again is often alone.
        if connects.last() != Some(&index) {
            connects.push(index);
        }
    }

    /// Who waits with a SYN for a neighbour that does not answer.
    pub(super) fn take_connects(&mut self, id: PathId) -> Vec<u32> {
        self.connects.remove(&id).unwrap_or_default()
    }

    /// A neighbour has answered. What waits stays until `take`.
    pub(super) fn answered(&mut self, id: PathId) {
        self.connects.remove(&id);
        match self.entries.get_mut(&id) {
            Some(entry) if entry.packets.is_empty() => {
                self.entries.remove(&id);
            }
            // The caller fetches them now; until then nothing is due.
            Some(entry) => entry.due = Instant(u64::MAX),
            None => {}
        }
    }

    /// Looks at the path again after [`REFRESH`].
    pub(super) fn refresh_later(&mut self, id: PathId, now: Instant) {
        self.refreshes.push_back((now + REFRESH, id));
    }

    /// Stops asking and gives back what waited.
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

    #[cfg(any(test, feature = "check"))]
    pub(super) fn packets(&self) -> usize {
        self.packets
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let repeat = self.repeats.front().map(|(due, _)| *due);
        let refresh = self.refreshes.front().map(|(due, _)| *due);
        [repeat, refresh].into_iter().flatten().min()
    }

    /// Takes out what is due at `now`, one at a time.
    pub(super) fn due(&mut self, now: Instant) -> Option<Due> {
        while let Some((due, id)) = pop_due(&mut self.repeats, now) {
            if let Some(entry) = self.entries.get(&id).filter(|entry| entry.due == due) {
                return Some(Due::Repeat(id, entry.tries));
            }
        }
        pop_due(&mut self.refreshes, now).map(|(_, id)| Due::Refresh(id))
    }
}

/// What is due.
pub(super) enum Due {
    /// A neighbour has not answered for an interval; requests made so far.
    Repeat(PathId, u8),
    /// A path became known, or was looked at, a while ago.
    Refresh(PathId),
}

fn pop_due(queue: &mut VecDeque<(Instant, PathId)>, now: Instant) -> Option<(Instant, PathId)> {
    if queue.front()?.0 <= now { queue.pop_front() } else { None }
}

/// Writes the path's link header in front of a packet. A head that the send queue shares may not be
/// written to (frame access rule 3): it is copied. On error (no frame for the copy) the packet comes back.
pub(super) fn with_link_header<P: FramePool>(
    path: &Path,
    pool: &mut P,
    mut packet: Vec<TxFrame>,
) -> Result<Vec<TxFrame>, Vec<TxFrame>> {
    let Some(head) = packet.first_mut() else { return Ok(packet) };
    if pool.is_shared(&head.frame) {
        let len = head.frame.len();
        // The payload room may be too small for header and payload together; the header fits the head room.
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
