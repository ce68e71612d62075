//! The scoreboard (RFC 2018, RFC 6675): marks on the segments of the send queue.
//!
//! The queue is linked forwards only, so repeated searches start at a [`SegmentCursor`]: the cost
//! of an ACK depends on what it changes, not on the length of the queue.

use super::cursor::{DUP_THRESH, Known, SackHints, SegmentCursor};
use super::loss::Loss;
use super::segment::mark;
use super::store::TxStore;
use crate::seq::SeqNum;
use crate::slab::NIL;
use crate::tcb::extension::Ext;
use crate::tcb::{Tcb, model};
use crate::time::later;

/// Effects of a SACK option.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sacked {
    /// Bytes newly marked, and segments.
    pub(crate) bytes: u32,
    pub(crate) segments: u32,
    /// True if the acknowledged segments include one that was sent only once and before recovery's
    /// point: the timeout was too early (RFC 5682).
    pub(crate) original: bool,
    /// Lowest segment sent only once that arrived after a higher one.
    pub(crate) late: Option<SeqNum>,
    /// `sent_us` of the latest sent segment among those sent only once, and among retransmitted
    /// ones.
    pub(crate) once_us: Option<u32>,
    pub(crate) again_us: Option<u32>,
    /// Number of visited segments.
    #[cfg(test)]
    pub(crate) steps: u32,
}

/// Returns the D-SACK block of an option, if it has one (RFC 2883 section 4): the first block, if
/// it is below the ACK or within the second.
pub(crate) fn duplicate_block(blocks: &[(SeqNum, SeqNum)], ack: SeqNum) -> Option<(SeqNum, SeqNum)> {
    let &(start, end) = blocks.first()?;
    if !start.before(end) {
        return None;
    }
    let within = |&(s, e): &(SeqNum, SeqNum)| start.at_or_after(s) && end.at_or_before(e);
    (start.before(ack) && end.at_or_before(ack) || blocks.get(1).is_some_and(within)).then_some((start, end))
}

impl Ext {
    /// Marks a segment lost. A retransmitted segment is lost again.
    pub(crate) fn take_for_lost(&mut self, store: &mut TxStore, index: u32) -> u32 {
        let span = self.send_again(store, index);
        if span > 0 {
            model::lost(&mut self.control, &store.stamps, index, &store.segments[index]);
        }
        span
    }

    /// Like [`Ext::take_for_lost`], for a loss without congestion: the path's model is not updated.
    pub(crate) fn send_again(&mut self, store: &mut TxStore, index: u32) -> u32 {
        let segment = &mut store.segments[index];
        let (span, seq) = (segment.span(), segment.seq);
        if segment.has(mark::RETRANSMITTED) {
            segment.marks &= !mark::RETRANSMITTED;
            self.retransmitted = self.retransmitted.saturating_sub(span);
        } else if segment.has(mark::LOST) {
            return 0;
        }
        if !segment.has(mark::LOST) {
            segment.marks |= mark::LOST;
            self.lost += span;
        }
        let loss = self.loss.get_or_insert_default();
        if loss.resend.is_none_or(|p| seq.before(p.seq)) {
            loss.resend = Some(SegmentCursor { index, seq });
        }
        span
    }
}

impl Tcb {
    /// Marks the segments that the peer has received. Blocks outside SND.UNA..SND.NXT are ignored
    /// (old ones, D-SACKs, forged ones). `echo` is the echo of our timestamp.
    pub(crate) fn mark_sacked(
        &mut self,
        store: &mut TxStore,
        blocks: &[(SeqNum, SeqNum)],
        echo: Option<u32>,
        now_us: u32,
    ) -> Sacked {
        let (una, nxt, queue) = (self.snd.una(), self.snd.nxt(), self.tx);
        let valid =
            |&&(start, end): &&(SeqNum, SeqNum)| start.before(end) && start.at_or_after(una) && end.at_or_before(nxt);
        let mut out = Sacked::default();
        if !blocks.iter().any(|b| valid(&b)) {
            return out;
        }
        let high = self.recovery().high();
        self.loss_mut();
        let Some(ext) = self.ext.as_mut() else { return out };
        let Ext { loss, sacked, sacked_segments, lost, retransmitted, control, .. } = ext;
        let Some(Loss { blocks: known, sack_hints, rack, fack, undo, .. }) = loss.as_deref_mut() else { return out };
        let early = undo.original_arrived(echo);
        let prior_fack = fack.filter(|f| f.after(una));
        let old = *known;
        // In the queue's order, so that no walk repeats a part of an earlier one.
        let mut ordered = [(una, una); 4];
        let mut count = 0;
        for (place, &block) in ordered.iter_mut().zip(blocks.iter().filter(valid)) {
            *place = block;
            count += 1;
        }
        let ordered = &mut ordered[..count];
        ordered.sort_unstable_by_key(|&(start, end)| (start.since(una), end.since(una)));
        let part = SackHints::part_log(nxt.since(una));
        let mut passed: Option<SegmentCursor> = None;
        let mut fresh = [Known::default(); 4];
        for (slot, &mut (start, end)) in fresh.iter_mut().zip(ordered) {
            if let Some(same) = old.iter().find(|k| k.covers(start, end)) {
                *slot = *same;
                continue;
            }
            let near = old.iter().filter_map(|k| k.last).chain(passed);
            let near = near.filter(|p| p.holds(una) && p.seq.at_or_before(start)).reduce(SegmentCursor::higher);
            let is_far = start.since(near.map_or(una, |p| p.seq)) >> part > 0;
            let near = if is_far {
                near.into_iter().chain(sack_hints.before(start, una)).reduce(SegmentCursor::higher)
            } else {
                near
            };
            let mut at = SegmentCursor::or_head(near, una, &queue);
            let mut last = None;
            let mut in_part = None;
            while at != queue.next && at != NIL {
                let segment = &mut store.segments[at];
                let seg_end = segment.end();
                if segment.seq.at_or_after(end) {
                    break;
                }
                #[cfg(test)]
                {
                    out.steps += 1;
                }
                let here = SegmentCursor { index: at, seq: segment.seq };
                if in_part != Some(here.seq.0 >> part) {
                    in_part = Some(here.seq.0 >> part);
                    sack_hints.enter(here, una, part);
                }
                last = Some(here);
                let index = core::mem::replace(&mut at, segment.next);
                if segment.has(mark::SACKED) || segment.seq.before(start) || seg_end.after(end) {
                    continue;
                }
                let span = segment.span();
                out.bytes += span;
                out.segments += 1;
                *sacked += span;
                *sacked_segments += 1;
                model::delivered(control, &store.stamps, index, segment);
                if segment.has(mark::LOST) {
                    *lost = lost.saturating_sub(span);
                }
                if segment.has(mark::RETRANSMITTED) {
                    *retransmitted = retransmitted.saturating_sub(span);
                }
                let once = !segment.has(mark::EVER_RETRANSMITTED);
                if once || !early {
                    rack.delivered(now_us, segment.sent_us, seg_end, !once);
                }
                if once {
                    out.original |= high.is_some_and(|high| seg_end.at_or_before(high));
                    out.once_us = later(out.once_us, Some(segment.sent_us));
                    if prior_fack.is_some_and(|f| segment.seq.before(f))
                        && out.late.is_none_or(|l| segment.seq.before(l))
                    {
                        out.late = Some(segment.seq);
                    }
                } else {
                    out.again_us = later(out.again_us, Some(segment.sent_us));
                }
                segment.marks = segment.marks & !(mark::LOST | mark::RETRANSMITTED) | mark::SACKED;
                *fack = Some(fack.filter(|f| f.after(seg_end)).unwrap_or(seg_end));
            }
            if let Some(last) = last {
                sack_hints.end(last, part);
            }
            passed = last.or(passed);
            *slot = Known { start, end, last };
        }
        *known = fresh;
        if fack.is_none() {
            // Nothing is marked, so no ACK would report that these positions are passed.
            (*known, *sack_hints) = Default::default();
        }
        out
    }

    /// Forgets cursors below SND.UNA: sequence numbers wrap, and the slots are reused by then.
    pub(super) fn forget_passed(&mut self) {
        let una = self.snd.una();
        let Some(loss) = self.loss_if_any() else { return };
        if loss.fack.is_some_and(|fack| fack.at_or_before(una)) {
            loss.fack = None;
            loss.blocks = [Known::default(); 4];
            loss.sack_hints = SackHints::default();
        }
        if loss.sack_hints.are_old(una) {
            loss.sack_hints = SackHints::default();
        }
        // Two gigabytes later it would appear to be ahead, and duplicate ACKs to be echoes.
        if loss.recover.is_some_and(|recover| recover.before(una)) {
            loss.recover = None;
        }
    }

    /// RFC 6675 IsLost: marks segments that have more than (DupThresh - 1) segments' worth of
    /// SACKed bytes above them. Returns the newly marked bytes.
    pub(crate) fn mark_lost_by_sack(&mut self, store: &mut TxStore) -> u32 {
        let threshold = (DUP_THRESH - 1) * self.mss as u32;
        let queue = self.tx;
        let Some(ext) = self.ext.as_mut() else { return 0 };
        let mut above = ext.sacked;
        let mut newly = 0;
        let mut at = queue.head();
        while at != queue.next && at != NIL && above > threshold {
            let segment = &store.segments[at];
            let next = segment.next;
            if segment.has(mark::SACKED) {
                above = above.saturating_sub(segment.span());
            } else if !segment.has(mark::LOST) {
                newly += ext.take_for_lost(store, at);
            }
            at = next;
        }
        newly
    }

    /// Marks the first unacknowledged segment as lost (fast retransmit without SACK, RFC 6582).
    pub(crate) fn mark_head_lost(&mut self, store: &mut TxStore) -> u32 {
        let head = self.tx.head();
        if head == self.tx.next || store.segments[head].has(mark::LOST | mark::SACKED) {
            return 0;
        }
        self.ext_mut().take_for_lost(store, head)
    }

    /// Updates the scoreboard for a timeout (Linux `tcp_timeout_mark_lost`). The head is always
    /// lost. If the peer has SACKed it and still does not acknowledge it, it has reneged: all SACKs
    /// are forgotten (RFC 2018 section 8). With RACK, segments sent so late that no ACK can be due
    /// yet are not lost.
    pub(crate) fn mark_lost_by_timeout(&mut self, store: &mut TxStore, now_us: u32, rack: bool) {
        let queue = self.tx;
        self.loss_mut();
        let srtt = self.rtt.srtt_us();
        let Some(ext) = self.ext.as_mut() else { return };
        let reneged = queue.head() != queue.next && store.segments[queue.head()].has(mark::SACKED);
        let rtt_us = ext.loss.as_deref().map_or(0, |l| l.rack.rtt_us(srtt));
        let mut at = queue.head();
        if reneged {
            ext.forget_sacks();
        }
        while at != queue.next && at != NIL {
            let segment = &mut store.segments[at];
            let next = segment.next;
            if reneged {
                segment.marks &= !mark::SACKED;
            }
            let young = rack && at != queue.head() && now_us.wrapping_sub(segment.sent_us) <= rtt_us;
            if !segment.has(mark::SACKED) && !young {
                ext.take_for_lost(store, at);
            }
            at = next;
        }
    }

    /// Returns the first segment that is lost and not yet retransmitted.
    pub(crate) fn next_lost(&mut self, store: &TxStore) -> Option<u32> {
        let (una, queue) = (self.snd.una(), self.tx);
        let loss = self.loss_if_any()?;
        let cursor = loss.resend?;
        let mut at = SegmentCursor::or_head(Some(cursor), una, &queue);
        while at != queue.next && at != NIL {
            let segment = &store.segments[at];
            if segment.has(mark::LOST) && !segment.has(mark::RETRANSMITTED) {
                loss.resend = Some(SegmentCursor { index: at, seq: segment.seq });
                return Some(at);
            }
            at = segment.next;
        }
        loss.resend = None;
        None
    }

    /// Returns true if segments wait for retransmission (or have recently).
    #[inline]
    pub(crate) fn has_lost(&self) -> bool {
        self.ext.is_some() && self.loss().is_some_and(|l| l.resend.is_some() || l.probe.due)
    }

    /// Unmarks all lost segments that are not SACKed: they were late.
    pub(crate) fn unmark_lost(&mut self, store: &mut TxStore) {
        let queue = self.tx;
        let mut at = queue.head();
        while at != queue.next && at != NIL {
            let segment = &mut store.segments[at];
            segment.marks &= !mark::LOST;
            at = segment.next;
        }
        if let Some(ext) = self.ext.as_mut() {
            ext.lost = 0;
            if let Some(loss) = ext.loss.as_deref_mut() {
                loss.resend = None;
                loss.rack.look_again();
            }
        }
    }
}

impl Ext {
    /// Forgets the SACK counters. The caller clears the marks.
    pub(crate) fn forget_sacks(&mut self) {
        (self.sacked, self.sacked_segments) = (0, 0);
        if let Some(loss) = self.loss.as_deref_mut() {
            loss.blocks = [Known::default(); 4];
            loss.sack_hints = SackHints::default();
            loss.fack = None;
            loss.rack.look_again();
        }
    }

    /// Clears the scoreboard: everything is acknowledged.
    pub(crate) fn clear_board(&mut self) {
        (self.sacked, self.sacked_segments, self.lost, self.retransmitted) = (0, 0, 0, 0);
        if let Some(loss) = self.loss.as_deref_mut() {
            loss.blocks = [Known::default(); 4];
            loss.sack_hints = SackHints::default();
            (loss.fack, loss.resend) = (None, None);
            loss.rack.clear();
        }
    }
}

#[cfg(test)]
mod tests;
