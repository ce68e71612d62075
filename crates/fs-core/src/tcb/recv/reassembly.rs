//! Out-of-order data: islands of received bytes beyond RCV.NXT, sorted and apart from one another.
//!
//! Where segments overlap, the bytes that came first win (a peer cannot rewrite what it has sent), and a
//! segment that spans an island keeps only its part before it: the rest will be sent again.

use crate::frame::FramePool;
use crate::frame_queue::{FrameNodes, FrameQueue};
use crate::tcb::seq::SeqNum;
use alloc::vec::Vec;

/// Islands a connection may hold. Each costs a SACK block; a normal loss pattern has few. Too low: data
/// beyond is thrown away and sent again. Too high: an attacker's one-byte islands make every insertion slow.
pub(crate) const MAX_ISLANDS: usize = 128;

/// One run of bytes beyond a gap.
#[derive(Debug)]
pub(crate) struct Island {
    pub(crate) start: SeqNum,
    pub(crate) data: FrameQueue,
    /// Larger for the one that changed last: RFC 2018 section 4 wants it first.
    pub(crate) stamp: u32,
}

impl Island {
    pub(crate) fn end(&self) -> SeqNum {
        self.start + self.data.bytes
    }
}

/// Frames that a connection may hold out of order, given its receive buffer: one for each 512 bytes, as many as full
/// segments never need. Segments of a byte or two, in an order in which they cannot be copied together, would pin the
/// core's frames otherwise. Lower: small writes after a loss are sent again for nothing.
pub(crate) fn frames_max(rcv_buf: u32) -> u32 {
    (rcv_buf / 512).max(64)
}

/// What became of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// This many new bytes are held.
    Held(u32),
    /// Nothing new in it.
    Duplicate,
    /// Too many islands.
    Refused,
}

/// Puts `data`, which starts at `start` > RCV.NXT, among the islands.
pub(crate) fn insert<P: FramePool>(
    islands: &mut Vec<Island>,
    nodes: &mut FrameNodes,
    pool: &mut P,
    mut start: SeqNum,
    mut data: FrameQueue,
) -> Inserted {
    let stamp = islands.iter().map(|i| i.stamp).max().unwrap_or(0).wrapping_add(1);
    // First island that ends after our start.
    let mut at = islands.partition_point(|i| i.end().at_or_before(start));
    if let Some(island) = islands.get_mut(at)
        && island.start.at_or_before(start)
    {
        let overlap = island.end().since(start);
        island.stamp = stamp;
        if overlap >= data.bytes {
            data.clear(nodes, pool);
            return Inserted::Duplicate;
        }
        data.trim_front(nodes, pool, overlap as usize);
        start += overlap;
        at += 1;
    }
    if let Some(next) = islands.get(at) {
        let room = next.start.since(start);
        if room == 0 {
            islands[at].stamp = stamp;
            data.clear(nodes, pool);
            return Inserted::Duplicate;
        }
        data.truncate(nodes, pool, room as usize);
    }
    let held = data.bytes;
    let joins_previous = at > 0 && islands[at - 1].end() == start;
    let joins_next = islands.get(at).is_some_and(|n| n.start == start + held);
    match (joins_previous, joins_next) {
        (true, joins_next) => {
            // Small ones are copied together: what a frame costs is the frame.
            if let Err(data) = islands[at - 1].data.absorb(nodes, pool, data) {
                islands[at - 1].data.append(nodes, data);
            }
            islands[at - 1].stamp = stamp;
            if joins_next {
                let next = islands.remove(at);
                islands[at - 1].data.append(nodes, next.data);
            }
        }
        (false, true) => {
            let rest = core::mem::replace(&mut islands[at].data, data);
            islands[at].data.append(nodes, rest);
            islands[at].start = start;
            islands[at].stamp = stamp;
        }
        (false, false) => {
            if islands.len() >= MAX_ISLANDS {
                data.clear(nodes, pool);
                return Inserted::Refused;
            }
            islands.insert(at, Island { start, data, stamp });
        }
    }
    Inserted::Held(held)
}

/// Before `data`, which starts at RCV.NXT = `start`, is delivered: where it overlaps what is held, the bytes that are
/// held go over its own, since they came first.
#[cold]
pub(crate) fn keep_first<P: FramePool>(
    islands: &[Island],
    nodes: &mut FrameNodes,
    pool: &mut P,
    start: SeqNum,
    data: &FrameQueue,
) {
    let mut held = [0u8; 256];
    for island in islands.iter().take_while(|i| i.start.before(start + data.bytes)) {
        let at = island.start.since(start);
        let overlap = (data.bytes - at).min(island.data.bytes);
        let mut done = 0;
        while done < overlap {
            let n = (overlap - done).min(held.len() as u32) as usize;
            island.data.copy_at(nodes, pool, done as usize, &mut held[..n]);
            data.overwrite(nodes, pool, (at + done) as usize, &held[..n]);
            done += n as u32;
        }
    }
}

/// Takes out what has become contiguous with `rcv_nxt`; the bytes start exactly there.
pub(crate) fn take_contiguous<P: FramePool>(
    islands: &mut Vec<Island>,
    nodes: &mut FrameNodes,
    pool: &mut P,
    rcv_nxt: SeqNum,
) -> FrameQueue {
    let mut ready = FrameQueue::new();
    while let Some(first) = islands.first() {
        let at = rcv_nxt + ready.bytes;
        if first.start.after(at) {
            break;
        }
        let mut island = islands.remove(0);
        let overlap = at.since(island.start);
        if overlap >= island.data.bytes {
            island.data.clear(nodes, pool);
            continue;
        }
        island.data.trim_front(nodes, pool, overlap as usize);
        ready.append(nodes, island.data);
    }
    ready
}

/// Makes the island that holds `at`, if one does, the one that changed last.
pub(crate) fn touch(islands: &mut [Island], at: SeqNum) {
    let stamp = islands.iter().map(|i| i.stamp).max().unwrap_or(0).wrapping_add(1);
    if let Some(island) = islands.iter_mut().find(|i| i.start.at_or_before(at) && at.before(i.end())) {
        island.stamp = stamp;
    }
}

/// SACK blocks for our next ACK, most recent first (RFC 2018 section 4). Returns how many.
pub(crate) fn sack_blocks(islands: &[Island], out: &mut [(SeqNum, SeqNum)]) -> usize {
    let mut n = 0;
    let mut below = u32::MAX;
    while n < out.len() {
        let Some(next) = islands.iter().filter(|i| n == 0 || i.stamp < below).max_by_key(|i| i.stamp) else { break };
        below = next.stamp;
        out[n] = (next.start, next.end());
        n += 1;
    }
    n
}

#[cfg(test)]
mod tests;
