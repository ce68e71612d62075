//! Where in the send queue what is looked for again and again was found.

use super::buffer::TxQueue;
use crate::seq::SeqNum;

/// RFC 6675's DupThresh.
pub(crate) const DUP_THRESH: u32 = 3;

/// A segment of the send queue, found again by its slot as long as its sequence number is not acknowledged: a segment that
/// starts at or after SND.UNA has not been freed, and one that is cut in two keeps its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentCursor {
    pub(crate) index: u32,
    pub(crate) seq: SeqNum,
}

impl SegmentCursor {
    /// The segment is still in the queue.
    #[inline]
    pub(crate) fn holds(&self, una: SeqNum) -> bool {
        self.seq.at_or_after(una)
    }

    /// Its slot, or the queue's head when it has left.
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
