//! Out-of-order data: islands of received bytes beyond RCV.NXT, sorted and apart from one another.
//!
//! Where segments overlap, the bytes that came first win (a peer cannot rewrite what it has sent), and a
//! segment that spans an island keeps only its part before it: the rest will be sent again.

use crate::frame::FramePool;
use crate::frame_queue::{FrameNodes, FrameQueue};
use crate::seq::SeqNum;
use alloc::collections::VecDeque;

/// Islands a connection may hold. Each is 16 bytes, and putting one in the middle moves half of them. Too low: after slow
/// start has overrun a queue, when every second segment of a round trip is missing, what arrives is thrown away and
/// sent again. Too high: an attacker's one-byte islands make every insertion slow (they meet [`frames_max`] first).
pub(crate) const MAX_ISLANDS: usize = 4096;

/// One run of bytes beyond a gap.
#[derive(Debug)]
pub(crate) struct Island {
    pub(crate) start: SeqNum,
    pub(crate) data: FrameQueue,
}

impl Island {
    pub(crate) fn end(&self) -> SeqNum {
        self.start + self.data.bytes
    }

    fn holds(&self, at: SeqNum) -> bool {
        self.start.at_or_before(at) && at.before(self.end())
    }
}

/// A connection's islands.
#[derive(Debug, Default)]
pub(crate) struct Islands {
    list: VecDeque<Island>,
    /// Bytes of those that changed last, the latest first: RFC 2018 section 4 wants them reported in this order.
    recent: [SeqNum; 4],
    /// No ACK has told of the first of them yet.
    news: bool,
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

impl Islands {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn last(&self) -> Option<&Island> {
        self.list.back()
    }

    #[cfg(any(test, feature = "check"))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Island> {
        self.list.iter()
    }

    /// Gives everything back, the list's memory too.
    pub(crate) fn clear<P: FramePool>(&mut self, nodes: &mut FrameNodes, pool: &mut P) {
        core::mem::take(&mut self.list).iter_mut().for_each(|island| island.data.clear(nodes, pool));
    }

    /// Puts `data`, which starts at `start` > RCV.NXT, among the islands.
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
        let islands = &mut self.list;
        // First island that ends after our start.
        let mut at = islands.partition_point(|i| i.end().at_or_before(start));
        if let Some(island) = islands.get(at)
            && island.start.at_or_before(start)
        {
            let overlap = island.end().since(start);
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
                if joins_next && let Some(next) = islands.remove(at) {
                    islands[at - 1].data.append(nodes, next.data);
                }
            }
            (false, true) => {
                let rest = core::mem::replace(&mut islands[at].data, data);
                islands[at].data.append(nodes, rest);
                islands[at].start = start;
            }
            (false, false) => {
                if islands.len() >= MAX_ISLANDS {
                    data.clear(nodes, pool);
                    return Inserted::Refused;
                }
                islands.insert(at, Island { start, data });
            }
        }
        Inserted::Held(held)
    }

    /// Before `data`, which starts at RCV.NXT = `start`, is delivered: where it overlaps what is held, the bytes that are
    /// held go over its own, since they came first.
    #[cold]
    pub(crate) fn keep_first<P: FramePool>(
        &self,
        nodes: &mut FrameNodes,
        pool: &mut P,
        start: SeqNum,
        data: &FrameQueue,
    ) {
        let mut held = [0u8; 256];
        for island in self.list.iter().take_while(|i| i.start.before(start + data.bytes)) {
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

    /// Takes out what has become contiguous with `rcv_nxt`: bytes that start exactly there, and how many bytes were held of
    /// what is gone.
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
            let Some(mut island) = self.list.pop_front() else { break };
            gone += island.data.bytes;
            let overlap = at.since(island.start);
            if overlap >= island.data.bytes {
                island.data.clear(nodes, pool);
                continue;
            }
            island.data.trim_front(nodes, pool, overlap as usize);
            ready.append(nodes, island.data);
        }
        if self.list.is_empty() {
            self.news = false;
            if self.list.capacity() > 64 {
                self.list = VecDeque::new();
            }
        }
        (ready, gone)
    }

    /// The first run of held bytes in `start..end`.
    #[inline]
    pub(crate) fn overlap(&self, start: SeqNum, end: SeqNum) -> Option<(SeqNum, SeqNum)> {
        if self.list.is_empty() { None } else { self.first_held(start, end) }
    }

    fn first_held(&self, start: SeqNum, end: SeqNum) -> Option<(SeqNum, SeqNum)> {
        let island = self.list.get(self.list.partition_point(|i| i.end().at_or_before(start)))?;
        let from = if island.start.before(start) { start } else { island.start };
        let to = if island.end().before(end) { island.end() } else { end };
        from.before(to).then_some((from, to))
    }

    fn find(&self, at: SeqNum) -> Option<&Island> {
        let index = self.list.partition_point(|i| i.end().at_or_before(at));
        self.list.get(index).filter(|island| island.holds(at))
    }

    /// Makes the island that holds `at`, if one does, the one that changed last.
    pub(crate) fn touch(&mut self, at: SeqNum) {
        let Some(island) = self.find(at) else { return };
        let last = self.recent.len() - 1;
        let place = self.recent.iter().position(|&r| island.holds(r)).unwrap_or(last);
        self.recent[..=place].rotate_right(1);
        self.recent[0] = at;
    }

    /// An island has changed that no ACK has told of, and bytes from `start` to `end` would change another.
    pub(crate) fn owes_news_but_of(&self, start: SeqNum, end: SeqNum) -> bool {
        let apart = |island: &Island| end.before(island.start) || start.after(island.end());
        self.news && self.find(self.recent[0]).is_some_and(apart)
    }

    /// An ACK has left with the blocks.
    pub(crate) fn told(&mut self) {
        self.news = false;
    }

    /// SACK blocks for our next ACK, most recent first (RFC 2018 section 4), then the lowest. Returns how many.
    pub(crate) fn sack_blocks(&self, out: &mut [(SeqNum, SeqNum)]) -> usize {
        let mut n = 0;
        let recent = self.recent.iter().filter_map(|&at| self.find(at));
        for island in recent.chain(self.list.iter().take(2 * out.len())) {
            if n == out.len() {
                break;
            }
            if out[..n].iter().all(|(start, _)| *start != island.start) {
                out[n] = (island.start, island.end());
                n += 1;
            }
        }
        n
    }
}

#[cfg(test)]
mod tests;
