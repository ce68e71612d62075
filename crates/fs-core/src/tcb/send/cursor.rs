//! Cached positions in the send queue.

use super::buffer::TxQueue;
use crate::seq::SeqNum;

/// RFC 6675's DupThresh.
pub(crate) const DUP_THRESH: u32 = 3;

/// A segment of the send queue, named by its slot. Valid while its sequence number is not
/// acknowledged: a segment that starts at or after SND.UNA has not been freed, and one that is
/// split keeps its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentCursor {
    pub(crate) index: u32,
    pub(crate) seq: SeqNum,
}

impl SegmentCursor {
    /// Returns true if the segment is still in the queue.
    #[inline]
    pub(crate) fn holds(&self, una: SeqNum) -> bool {
        self.seq.at_or_after(una)
    }

    /// Returns the higher of two cursors.
    #[inline]
    pub(super) fn higher(self, other: Self) -> Self {
        if self.seq.before(other.seq) { other } else { self }
    }

    /// Returns the cursor's slot, or the queue's head if its segment was removed.
    #[inline]
    pub(crate) fn or_head(cursor: Option<SegmentCursor>, una: SeqNum, queue: &TxQueue) -> u32 {
        cursor.filter(|p| p.holds(una)).map_or(queue.head(), |p| p.index)
    }
}

/// A SACK block whose segments are marked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    pub(super) start: SeqNum,
    pub(super) end: SeqNum,
    /// The last segment that begins in it.
    pub(super) last: Option<SegmentCursor>,
}

impl Known {
    #[cfg(test)]
    pub(crate) fn is_known(&self) -> bool {
        self.last.is_some()
    }

    pub(super) fn covers(&self, start: SeqNum, end: SeqNum) -> bool {
        self.last.is_some() && self.start.at_or_before(start) && self.end.at_or_after(end)
    }
}

/// Number of parts of the send queue that each have cached positions. Too high: more memory of each
/// connection with losses. Too low: longer walks to blocks that are far from the latest SACK
/// option.
const PARTS: usize = 16;

/// Positions of SACK blocks by part of the send queue, so that options which jump back and forth
/// cost a walk within a part and not through the queue. Hints only: each is used like any other
/// [`SegmentCursor`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SackHints {
    parts: [SackHint; PARTS],
    /// SND.UNA when the first of them was recorded.
    since: Option<SeqNum>,
}

/// Cached positions of a part.
#[derive(Clone, Copy, Debug, Default)]
struct SackHint {
    /// The lowest.
    first: Option<SegmentCursor>,
    /// The latest.
    last: Option<SegmentCursor>,
}

impl SackHints {
    /// Returns the length of a part, as its logarithm, for this many bytes in flight: all parts
    /// together are once or twice as long.
    #[inline]
    pub(super) fn part_log(flight: u32) -> u32 {
        (flight.max(1).ilog2() + 1).saturating_sub(PARTS.ilog2())
    }

    fn of(&mut self, seq: SeqNum, log: u32) -> &mut SackHint {
        &mut self.parts[(seq.0 >> log) as usize % PARTS]
    }

    /// Returns the highest cached position that is not above `start`.
    #[cold]
    pub(super) fn before(&self, start: SeqNum, una: SeqNum) -> Option<SegmentCursor> {
        let all = self.parts.iter().flat_map(|place| [place.first, place.last]).flatten();
        all.filter(|p| p.holds(una) && p.seq.at_or_before(start)).reduce(SegmentCursor::higher)
    }

    /// Records the first segment that a walk meets in a part.
    pub(super) fn enter(&mut self, at: SegmentCursor, una: SeqNum, log: u32) {
        self.since.get_or_insert(una);
        let first = &mut self.of(at.seq, log).first;
        let keeps = |p: SegmentCursor| p.holds(una) && p.seq.0 >> log == at.seq.0 >> log && p.seq.at_or_before(at.seq);
        if !first.is_some_and(keeps) {
            *first = Some(at);
        }
    }

    /// Returns true if the positions are outdated: sequence numbers wrap, and a position passed
    /// long ago would appear to be ahead.
    pub(super) fn are_old(&self, una: SeqNum) -> bool {
        self.since.is_some_and(|since| una.since(since) > 1 << 30)
    }

    /// Records the end of a walk.
    pub(super) fn end(&mut self, at: SegmentCursor, log: u32) {
        self.of(at.seq, log).last = Some(at);
    }
}
