//! The out-of-order queue: disjoint, sorted ranges of received bytes beyond RCV.NXT.
//!
//! Where segments overlap, the first bytes win (a peer cannot rewrite what it has sent). A segment
//! that spans a range keeps only the part before it: the rest will be retransmitted.

use crate::frame::FramePool;
use crate::frame_queue::{FrameNodes, FrameQueue};
use crate::seq::SeqNum;
use alloc::collections::VecDeque;

/// Largest piece in bytes that is copied to the end of the previous piece. Too high: honest
/// segments after a loss are copied, too. Too low: a peer that sends small segments pins more
/// frames.
const SMALL: u32 = 512;

/// Maximum number of ranges of a connection. Each is 16 bytes, and inserting one in the middle
/// moves half of them. Too low: after slow start has overrun a queue, when every second segment of
/// a round trip is missing, arriving data is dropped and retransmitted. Too high: an attacker's
/// one-byte ranges make every insertion slow (they reach [`frames_max`] first).
pub(crate) const MAX_RANGES: usize = 4096;

/// A contiguous range of bytes beyond a gap.
#[derive(Debug)]
pub(crate) struct HeldRange {
    pub(crate) start: SeqNum,
    pub(crate) data: FrameQueue,
}

impl HeldRange {
    pub(crate) fn end(&self) -> SeqNum {
        self.start + self.data.bytes
    }

    fn holds(&self, at: SeqNum) -> bool {
        self.start.at_or_before(at) && at.before(self.end())
    }
}

/// A connection's out-of-order queue.
#[derive(Debug, Default)]
pub(crate) struct OutOfOrderQueue {
    list: VecDeque<HeldRange>,
    /// Positions in the ranges that changed last, the latest first: RFC 2018 section 4 requires
    /// reports in this order.
    recent: [SeqNum; 4],
    /// No ACK has reported the first of them yet.
    news: bool,
}

/// Returns the maximum number of out-of-order frames of a connection, given its receive buffer: one
/// for each 512 bytes, which full segments never reach. Otherwise segments of a byte or two, in an
/// order that prevents merging, would pin the core's frames. Too low: small writes after a loss are
/// retransmitted needlessly.
pub(crate) fn frames_max(rcv_buf: u32) -> u32 {
    (rcv_buf / 512).max(64)
}

/// Result of inserting a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// This many new bytes are stored.
    Held(u32),
    /// The segment contains nothing new.
    Duplicate,
    /// Too many ranges.
    Refused,
}

impl OutOfOrderQueue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn last(&self) -> Option<&HeldRange> {
        self.list.back()
    }

    #[cfg(any(test, feature = "check"))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &HeldRange> {
        self.list.iter()
    }

    /// Frees everything, including the list's memory.
    pub(crate) fn clear<P: FramePool>(&mut self, nodes: &mut FrameNodes, pool: &mut P) {
        core::mem::take(&mut self.list).iter_mut().for_each(|range| range.data.clear(nodes, pool));
    }

    /// Inserts `data`, which starts at `start` > RCV.NXT.
    pub(crate) fn insert<P: FramePool>(
        &mut self,
        nodes: &mut FrameNodes,
        pool: &mut P,
        start: SeqNum,
        data: FrameQueue,
    ) -> Inserted {
        let inserted = self.place(nodes, pool, start, data);
        if inserted != Inserted::Refused {
            self.touch(start);
            self.news = true;
        }
        inserted
    }

    fn place<P: FramePool>(
        &mut self,
        nodes: &mut FrameNodes,
        pool: &mut P,
        mut start: SeqNum,
        mut data: FrameQueue,
    ) -> Inserted {
        let ranges = &mut self.list;
        // First range that ends after our start.
        let mut at = ranges.partition_point(|i| i.end().at_or_before(start));
        if let Some(range) = ranges.get(at)
            && range.start.at_or_before(start)
        {
            let overlap = range.end().since(start);
            if overlap >= data.bytes {
                data.clear(nodes, pool);
                return Inserted::Duplicate;
            }
            data.trim_front(nodes, pool, overlap as usize);
            start += overlap;
            at += 1;
        }
        if let Some(next) = ranges.get(at) {
            let room = next.start.since(start);
            if room == 0 {
                data.clear(nodes, pool);
                return Inserted::Duplicate;
            }
            data.truncate(nodes, pool, room as usize);
        }
        let held = data.bytes;
        let joins_previous = at > 0 && ranges[at - 1].end() == start;
        let joins_next = ranges.get(at).is_some_and(|n| n.start == start + held);
        match (joins_previous, joins_next) {
            (true, joins_next) => {
                // Small pieces are merged: the cost is in the number of frames.
                if let Err(data) = ranges[at - 1].data.absorb(nodes, pool, data, SMALL) {
                    ranges[at - 1].data.append(nodes, data);
                }
                if joins_next && let Some(next) = ranges.remove(at) {
                    ranges[at - 1].data.append(nodes, next.data);
                }
            }
            (false, true) => {
                let rest = core::mem::replace(&mut ranges[at].data, data);
                ranges[at].data.append(nodes, rest);
                ranges[at].start = start;
            }
            (false, false) => {
                if ranges.len() >= MAX_RANGES {
                    data.clear(nodes, pool);
                    return Inserted::Refused;
                }
                ranges.insert(at, HeldRange { start, data });
            }
        }
        Inserted::Held(held)
    }

    /// Overwrites the parts of `data`, which starts at RCV.NXT = `start`, that overlap stored
    /// ranges: their bytes arrived first. Called before `data` is delivered.
    #[cold]
    pub(crate) fn keep_first<P: FramePool>(
        &self,
        nodes: &mut FrameNodes,
        pool: &mut P,
        start: SeqNum,
        data: &FrameQueue,
    ) {
        let mut held = [0u8; 256];
        for range in self.list.iter().take_while(|i| i.start.before(start + data.bytes)) {
            let at = range.start.since(start);
            let overlap = (data.bytes - at).min(range.data.bytes);
            let mut done = 0;
            while done < overlap {
                let n = (overlap - done).min(held.len() as u32) as usize;
                range.data.copy_at(nodes, pool, done as usize, &mut held[..n]);
                data.overwrite(nodes, pool, (at + done) as usize, &held[..n]);
                done += n as u32;
            }
        }
    }

    /// Removes the ranges that have become contiguous with `rcv_nxt`. Returns the bytes that start
    /// exactly there, and the number of bytes removed from the queue.
    pub(crate) fn take_contiguous<P: FramePool>(
        &mut self,
        nodes: &mut FrameNodes,
        pool: &mut P,
        rcv_nxt: SeqNum,
    ) -> (FrameQueue, u32) {
        let mut ready = FrameQueue::new();
        let mut gone = 0;
        while let Some(first) = self.list.front() {
            let at = rcv_nxt + ready.bytes;
            if first.start.after(at) {
                break;
            }
            let Some(mut range) = self.list.pop_front() else { break };
            gone += range.data.bytes;
            let overlap = at.since(range.start);
            if overlap >= range.data.bytes {
                range.data.clear(nodes, pool);
                continue;
            }
            range.data.trim_front(nodes, pool, overlap as usize);
            ready.append(nodes, range.data);
        }
        if self.list.is_empty() {
            self.news = false;
            if self.list.capacity() > 64 {
                self.list = VecDeque::new();
            }
        }
        (ready, gone)
    }

    /// Returns the first part of stored bytes in `start..end`.
    #[inline]
    pub(crate) fn overlap(&self, start: SeqNum, end: SeqNum) -> Option<(SeqNum, SeqNum)> {
        if self.list.is_empty() { None } else { self.first_held(start, end) }
    }

    fn first_held(&self, start: SeqNum, end: SeqNum) -> Option<(SeqNum, SeqNum)> {
        let range = self.list.get(self.list.partition_point(|i| i.end().at_or_before(start)))?;
        let from = if range.start.before(start) { start } else { range.start };
        let to = if range.end().before(end) { range.end() } else { end };
        from.before(to).then_some((from, to))
    }

    fn find(&self, at: SeqNum) -> Option<&HeldRange> {
        let index = self.list.partition_point(|i| i.end().at_or_before(at));
        self.list.get(index).filter(|range| range.holds(at))
    }

    /// Makes the range that contains `at`, if any, the most recently changed one.
    pub(crate) fn touch(&mut self, at: SeqNum) {
        let Some(range) = self.find(at) else { return };
        let last = self.recent.len() - 1;
        let place = self.recent.iter().position(|&r| range.holds(r)).unwrap_or(last);
        self.recent[..=place].rotate_right(1);
        self.recent[0] = at;
    }

    /// Returns true if a range has changed that no ACK has reported, and bytes from `start` to
    /// `end` would change another.
    pub(crate) fn owes_news_but_of(&self, start: SeqNum, end: SeqNum) -> bool {
        let apart = |range: &HeldRange| end.before(range.start) || start.after(range.end());
        self.news && self.find(self.recent[0]).is_some_and(apart)
    }

    /// Records that an ACK with the blocks was sent.
    pub(crate) fn told(&mut self) {
        self.news = false;
    }

    /// Writes the SACK blocks of our next ACK, most recent first (RFC 2018 section 4), then the
    /// lowest. Returns their number.
    pub(crate) fn sack_blocks(&self, out: &mut [(SeqNum, SeqNum)]) -> usize {
        let mut n = 0;
        let recent = self.recent.iter().filter_map(|&at| self.find(at));
        for range in recent.chain(self.list.iter().take(2 * out.len())) {
            if n == out.len() {
                break;
            }
            if out[..n].iter().all(|(start, _)| *start != range.start) {
                out[n] = (range.start, range.end());
                n += 1;
            }
        }
        n
    }
}

#[cfg(test)]
mod tests;
