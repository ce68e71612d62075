//! The scoreboard (RFC 2018, RFC 6675): marks on the segments of the send queue.

use super::buffer::{TxStore, mark};
use crate::slab::NIL;
use crate::tcb::Tcb;
use crate::tcb::seq::SeqNum;

/// RFC 6675's DupThresh.
pub(crate) const DUP_THRESH: u32 = 3;

impl Tcb {
    /// Marks what the peer says it holds. Blocks outside SND.UNA..SND.NXT are ignored (old ones, D-SACKs,
    /// lies). Returns the bytes that are newly marked.
    pub(crate) fn mark_sacked(&mut self, store: &mut TxStore, blocks: &[(SeqNum, SeqNum)]) -> u32 {
        let (una, nxt) = (self.snd_una, self.snd_nxt);
        let valid =
            |&&(start, end): &&(SeqNum, SeqNum)| start.before(end) && start.at_or_after(una) && end.at_or_before(nxt);
        if !blocks.iter().any(|b| valid(&b)) {
            return 0;
        }
        let (mut newly, mut lost, mut retransmitted) = (0, 0, 0);
        let mut at = self.tx.head;
        while at != self.tx.next && at != NIL {
            let segment = &mut store.segments[at];
            let (start, end) = (segment.seq, segment.end());
            if !segment.has(mark::SACKED)
                && blocks.iter().filter(valid).any(|b| b.0.at_or_before(start) && end.at_or_before(b.1))
            {
                newly += segment.span();
                if segment.has(mark::LOST) {
                    lost += segment.span();
                }
                if segment.has(mark::RETRANSMITTED) {
                    retransmitted += segment.span();
                }
                segment.marks = segment.marks & !(mark::LOST | mark::RETRANSMITTED) | mark::SACKED;
            }
            at = segment.next;
        }
        if newly > 0 {
            let ext = self.ext_mut();
            ext.sacked += newly;
            ext.lost = ext.lost.saturating_sub(lost);
            ext.retransmitted = ext.retransmitted.saturating_sub(retransmitted);
        }
        newly
    }

    /// RFC 6675 IsLost: marks segments with more than (DupThresh - 1) segments' worth of SACKed bytes
    /// above them. Returns the bytes that are newly marked.
    pub(crate) fn mark_lost_by_sack(&mut self, store: &mut TxStore) -> u32 {
        let Some(mut above) = self.ext.as_ref().map(|e| e.sacked) else { return 0 };
        let threshold = (DUP_THRESH - 1) * self.mss as u32;
        let mut newly = 0;
        let mut at = self.tx.head;
        while at != self.tx.next && at != NIL && above > threshold {
            let segment = &mut store.segments[at];
            if segment.has(mark::SACKED) {
                above = above.saturating_sub(segment.span());
            } else if !segment.has(mark::LOST) {
                segment.marks |= mark::LOST;
                newly += segment.span();
            }
            at = segment.next;
        }
        if newly > 0 {
            self.ext_mut().lost += newly;
        }
        newly
    }

    /// Marks the first unacknowledged segment as lost (fast retransmit without SACK, RFC 6582).
    pub(crate) fn mark_head_lost(&mut self, store: &mut TxStore) {
        if self.tx.head == self.tx.next {
            return;
        }
        let segment = &mut store.segments[self.tx.head];
        if !segment.has(mark::LOST | mark::SACKED) {
            segment.marks |= mark::LOST;
            let span = segment.span();
            self.ext_mut().lost += span;
        }
    }

    /// After a time-out everything unacknowledged counts as lost (RFC 5681 3.1), and what the peer claimed
    /// to hold is forgotten (RFC 2018 section 8: it may have reneged).
    pub(crate) fn mark_all_lost(&mut self, store: &mut TxStore) {
        let mut lost = 0;
        let mut at = self.tx.head;
        while at != self.tx.next && at != NIL {
            let segment = &mut store.segments[at];
            segment.marks = segment.marks & !(mark::SACKED | mark::RETRANSMITTED) | mark::LOST;
            lost += segment.span();
            at = segment.next;
        }
        let ext = self.ext_mut();
        (ext.sacked, ext.retransmitted, ext.lost) = (0, 0, lost);
    }

    /// The first segment that is lost and not yet sent again.
    pub(crate) fn next_lost(&self, store: &TxStore) -> Option<u32> {
        let ext = self.ext.as_ref()?;
        if ext.lost <= ext.retransmitted {
            return None;
        }
        let mut at = self.tx.head;
        while at != self.tx.next && at != NIL {
            let segment = &store.segments[at];
            if segment.has(mark::LOST) && !segment.has(mark::RETRANSMITTED) {
                return Some(at);
            }
            at = segment.next;
        }
        None
    }
}
