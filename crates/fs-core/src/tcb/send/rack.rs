//! RACK (RFC 8985 sections 5 and 6): a segment is lost when one sent sufficiently later has arrived.
//!
//! Linux keeps the unacknowledged segments in a list sorted by the time they were sent. The queue here is sorted by
//! sequence number, which for segments sent only once is the same; those sent again are in a queue of their own, in
//! the order in which that happened. Looking for losses is walking both from their old ends until a segment is found
//! that has time left; what has been settled is not looked at again.

use super::buffer::{TxStore, mark};
use super::sack::Place;
use crate::slab::NIL;
use crate::tcb::seq::SeqNum;
use crate::tcb::{Recovery, Tcb};
use alloc::collections::VecDeque;

/// Recoveries for which a widened reordering window lasts (RFC 8985 6.2 step 4).
const PERSIST: u8 = 16;
/// Over how many microseconds the smallest round trip is taken: between one and two of these. Linux
/// `tcp_min_rtt_wlen`: 300 s.
const MIN_RTT_PERIOD_US: u32 = 150_000_000;

/// Most that TCP_INFO says of reordering, in segments: Linux `tcp_max_reordering`.
const REORDERING_MAX: u32 = 300;

/// A segment sent again.
#[derive(Clone, Copy, Debug)]
struct Resent {
    place: Place,
    sent_us: u32,
}

/// RACK's variables (RFC 8985 5.2).
#[derive(Debug, Default)]
pub(crate) struct Rack {
    /// RACK.xmit_ts and RACK.end_seq: the latest sent of the segments that have arrived.
    latest: Option<(u32, SeqNum)>,
    /// RACK.rtt: its round trip.
    rtt_us: u32,
    /// Something has arrived since losses were last looked for.
    advanced: bool,
    /// RACK.reordering_seen.
    pub(crate) reordering_seen: bool,
    /// RACK.reo_wnd_mult beyond 1.
    widened: u8,
    /// RACK.reo_wnd_persist.
    persist: u8,
    /// RACK.dsack_round: SND.NXT when a D-SACK last widened the window.
    dsack_round: Option<SeqNum>,
    /// Smallest round trip of this period and of the one before, and when this one began.
    min_rtt_us: u32,
    min_rtt_before_us: u32,
    min_rtt_since_us: u32,
    /// Every segment before it that was sent only once has arrived or is lost.
    settled: Option<Place>,
    /// Segments sent again, by time.
    resent: VecDeque<Resent>,
}

/// What looking for losses found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Bytes newly taken for lost.
    pub(crate) bytes: u32,
    /// Among them a segment that had been sent again.
    pub(crate) again: bool,
    /// Microseconds until all that were sent before the latest arrival must have arrived too, if some have not.
    pub(crate) wait_us: Option<u32>,
}

/// RACK_sent_after: by time, then by sequence number.
#[inline]
fn sent_after(a: (u32, SeqNum), b: (u32, SeqNum)) -> bool {
    match a.0.wrapping_sub(b.0) as i32 {
        0 => a.1.after(b.1),
        d => d > 0,
    }
}

impl Rack {
    /// A round trip was measured.
    #[inline]
    pub(crate) fn sample(&mut self, rtt_us: u32, now_us: u32) {
        if rtt_us == 0 {
            return;
        }
        if now_us.wrapping_sub(self.min_rtt_since_us) > MIN_RTT_PERIOD_US {
            (self.min_rtt_before_us, self.min_rtt_us) = (self.min_rtt_us, rtt_us);
            self.min_rtt_since_us = now_us;
        } else if self.min_rtt_us == 0 || rtt_us < self.min_rtt_us {
            self.min_rtt_us = rtt_us;
        }
    }

    /// Smallest round trip of the last minutes; 0: none measured.
    #[inline]
    pub(crate) fn min_rtt_us(&self) -> u32 {
        match (self.min_rtt_us, self.min_rtt_before_us) {
            (0, b) => b,
            (a, 0) => a,
            (a, b) => a.min(b),
        }
    }

    /// RACK.rtt, or what stands for it before anything has arrived.
    pub(crate) fn rtt_us(&self, srtt_us: u32) -> u32 {
        if self.latest.is_some() { self.rtt_us } else { srtt_us }
    }

    /// 6.2 step 2: a segment has arrived.
    pub(crate) fn delivered(&mut self, now_us: u32, sent_us: u32, end: SeqNum, resent: bool) {
        let rtt_us = now_us.wrapping_sub(sent_us);
        // Sooner than any answer can come: it was an earlier transmission that arrived.
        if resent && rtt_us < self.min_rtt_us() {
            return;
        }
        self.advanced = true;
        if self.latest.is_none_or(|latest| sent_after((sent_us, end), latest)) {
            self.latest = Some((sent_us, end));
            self.rtt_us = rtt_us;
        }
    }

    /// 6.2 step 4: a D-SACK says that a segment was sent again for nothing: wait longer, once a round trip.
    pub(crate) fn duplicate(&mut self, una: SeqNum, nxt: SeqNum) {
        if self.dsack_round.is_some_and(|round| una.at_or_after(round)) {
            self.dsack_round = None;
        }
        if self.dsack_round.is_none() {
            self.dsack_round = Some(nxt);
            self.widened = self.widened.saturating_add(1);
            self.persist = PERSIST;
        }
    }

    /// 6.2 step 4: a recovery has ended.
    pub(crate) fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.widened = 0;
        }
    }

    /// A segment was sent again.
    pub(crate) fn sent_again(&mut self, index: u32, seq: SeqNum, sent_us: u32) {
        self.resent.push_back(Resent { place: Place { index, seq }, sent_us });
    }

    /// It remembers places in the send queue.
    #[inline]
    pub(crate) fn has_places(&self) -> bool {
        self.settled.is_some() || !self.resent.is_empty()
    }

    /// Segments sent again whose times are kept.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn resent_kept(&self) -> usize {
        self.resent.len()
    }

    /// What was settled may be open again.
    pub(crate) fn look_again(&mut self) {
        self.advanced = true;
        self.settled = None;
    }

    /// Nothing is outstanding.
    pub(crate) fn clear(&mut self) {
        self.settled = None;
        self.resent.clear();
        self.latest = None;
        self.advanced = false;
    }

    /// 6.2 step 4, RACK_update_reo_wnd: how much later than others a segment may arrive.
    fn reordering_window(&self, srtt_us: u32, recovering: bool, thresh_reached: bool) -> u32 {
        if !self.reordering_seen && (recovering || thresh_reached) {
            return 0;
        }
        let quarter = u64::from(self.min_rtt_us() / 4) * (u64::from(self.widened) + 1);
        quarter.min(u64::from(srtt_us)) as u32
    }
}

impl Tcb {
    /// 6.2 step 5, RACK_detect_loss. `force`: the reordering timer has fired, nothing need have arrived.
    pub(crate) fn find_losses_by_time(&mut self, store: &mut TxStore, now_us: u32, force: bool) -> Found {
        let mut found = Found::default();
        let (una, queue) = (self.snd_una, self.tx);
        let srtt = self.rtt.srtt_us();
        let recovering = matches!(self.recovery(), Recovery::Fast { .. } | Recovery::Loss { .. });
        let Some(ext) = self.ext.as_mut() else { return found };
        let thresh_reached = ext.sacked_segments >= super::sack::DUP_THRESH;
        let Some(rack) = ext.loss.as_deref_mut().map(|l| &mut l.rack) else { return found };
        let Some(latest) = rack.latest.filter(|_| rack.advanced || force) else { return found };
        rack.advanced = false;
        let window = rack.reordering_window(srtt, recovering, thresh_reached);
        let deadline = rack.rtt_us.saturating_add(window);
        let expired = |sent_us: u32| now_us.wrapping_sub(sent_us) >= deadline;
        let mut waiting = false;

        let mut settled = rack.settled.filter(|p| p.holds(una));
        let mut at = Place::or_head(settled, una, &queue);
        while at != queue.next && at != NIL {
            let segment = &store.segments[at];
            let (next, seq) = (segment.next, segment.seq);
            settled = Some(Place { index: at, seq });
            if !segment.has(mark::SACKED | mark::LOST | mark::EVER_RETRANSMITTED) {
                if !sent_after(latest, (segment.sent_us, segment.end())) {
                    break;
                }
                if !expired(segment.sent_us) {
                    waiting = true;
                    break;
                }
                found.bytes += ext.take_for_lost(store, at);
            }
            at = next;
        }
        let Some(rack) = ext.loss.as_deref_mut().map(|l| &mut l.rack) else { return found };
        rack.settled = settled;

        let mut resent = core::mem::take(&mut rack.resent);
        while let Some(&Resent { place, sent_us }) = resent.front() {
            let live = place.holds(una) && {
                let segment = &store.segments[place.index];
                segment.sent_us == sent_us && segment.has(mark::RETRANSMITTED) && !segment.has(mark::SACKED)
            };
            if live {
                if !sent_after(latest, (sent_us, store.segments[place.index].end())) {
                    break;
                }
                if !expired(sent_us) {
                    waiting = true;
                    break;
                }
                found.bytes += ext.take_for_lost(store, place.index);
                found.again = true;
            }
            resent.pop_front();
        }
        if let Some(loss) = ext.loss.as_deref_mut() {
            loss.rack.resent = resent;
        }
        if waiting {
            // The RFC waits for the last of them; none was sent after `latest`.
            found.wait_us = Some((latest.0.wrapping_add(deadline).wrapping_sub(now_us) as i32).max(0) as u32);
        }
        found
    }

    /// 6.2 step 3: a segment sent only once arrived after one sent later; `first`: where it begins, if that is known.
    pub(crate) fn note_reordering(&mut self, first: Option<SeqNum>) {
        let mss = u32::from(self.mss);
        let loss = self.loss_mut();
        loss.rack.reordering_seen = true;
        loss.reorderings = loss.reorderings.saturating_add(1);
        if let (Some(first), Some(fack)) = (first, loss.fack) {
            let segments = fack.since(first).div_ceil(mss);
            loss.reordering = loss.reordering.max(segments.min(REORDERING_MAX));
        }
    }
}

#[cfg(test)]
mod tests;
