//! RACK (RFC 8985 sections 5 and 6): a segment is lost if one that was sent sufficiently later has
//! arrived.
//!
//! Linux keeps the unacknowledged segments in a list sorted by the time they were sent. The queue
//! here is sorted by sequence number, which for segments sent only once is the same order;
//! retransmitted segments are in a second queue, in the order of retransmission. Loss detection
//! walks both from their old ends to the first segment that has time left; settled segments are not
//! visited again.

use super::cursor::SegmentCursor;
use crate::seq::SeqNum;
use alloc::collections::VecDeque;

/// Number of recoveries for which a widened reordering window lasts (RFC 8985 6.2 step 4).
const PERSIST: u8 = 16;
/// Period in microseconds over which the smallest round trip is taken: between one and two of
/// these. Linux `tcp_min_rtt_wlen`: 300 s.
const MIN_RTT_PERIOD_US: u32 = 150_000_000;

/// A retransmitted segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resent {
    pub(super) cursor: SegmentCursor,
    pub(super) sent_us: u32,
}

/// RACK's variables (RFC 8985 5.2).
#[derive(Debug, Default)]
pub(crate) struct Rack {
    /// RACK.xmit_ts and RACK.end_seq: the latest sent segment that has arrived.
    pub(super) latest: Option<(u32, SeqNum)>,
    /// RACK.rtt: its round trip.
    pub(super) rtt_us: u32,
    /// A segment has arrived since the last loss detection.
    pub(super) advanced: bool,
    /// RACK.reordering_seen.
    pub(crate) reordering_seen: bool,
    /// RACK.reo_wnd_mult beyond 1.
    widened: u8,
    /// RACK.reo_wnd_persist.
    persist: u8,
    /// RACK.dsack_round: SND.NXT when a D-SACK last widened the window.
    dsack_round: Option<SeqNum>,
    /// Smallest round trip of this period and of the previous one, and the start of this one.
    min_rtt_us: u32,
    min_rtt_before_us: u32,
    min_rtt_since_us: u32,
    /// Every segment before it that was sent only once has arrived or is lost.
    pub(super) settled: Option<SegmentCursor>,
    /// Retransmitted segments, by time.
    pub(super) resent: VecDeque<Resent>,
}

/// Result of loss detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DetectedLosses {
    /// Bytes newly marked lost.
    pub(crate) bytes: u32,
    /// True if the acknowledged segments include one that had been retransmitted.
    pub(crate) again: bool,
    /// Microseconds until all segments sent before the latest arrival must have arrived, if some
    /// have not.
    pub(crate) wait_us: Option<u32>,
}

/// RACK_sent_after: by time, then by sequence number.
#[inline]
pub(super) fn sent_after(a: (u32, SeqNum), b: (u32, SeqNum)) -> bool {
    match a.0.wrapping_sub(b.0) as i32 {
        0 => a.1.after(b.1),
        d => d > 0,
    }
}

impl Rack {
    /// Records a round-trip sample.
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

    /// Returns the smallest round trip of the last minutes; 0: none measured.
    #[inline]
    pub(crate) fn min_rtt_us(&self) -> u32 {
        match (self.min_rtt_us, self.min_rtt_before_us) {
            (0, b) => b,
            (a, 0) => a,
            (a, b) => a.min(b),
        }
    }

    /// Returns RACK.rtt, or the smoothed round trip before anything has arrived.
    pub(crate) fn rtt_us(&self, srtt_us: u32) -> u32 {
        if self.latest.is_some() { self.rtt_us } else { srtt_us }
    }

    /// 6.2 step 2: handles the arrival of a segment.
    pub(crate) fn delivered(&mut self, now_us: u32, sent_us: u32, end: SeqNum, resent: bool) {
        let rtt_us = now_us.wrapping_sub(sent_us);
        // Earlier than any reply to the retransmission can arrive: an earlier transmission arrived.
        if resent && rtt_us < self.min_rtt_us() {
            return;
        }
        self.advanced = true;
        if self.latest.is_none_or(|latest| sent_after((sent_us, end), latest)) {
            self.latest = Some((sent_us, end));
            self.rtt_us = rtt_us;
        }
    }

    /// 6.2 step 4: a D-SACK reports a spurious retransmission. Widens the window, once per round
    /// trip.
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

    #[cfg(test)]
    pub(super) fn is_widened(&self) -> bool {
        self.widened != 0
    }

    /// 6.2 step 4: handles the end of a recovery.
    pub(crate) fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.widened = 0;
        }
    }

    /// Records a retransmission.
    pub(crate) fn sent_again(&mut self, index: u32, seq: SeqNum, sent_us: u32) {
        self.resent.push_back(Resent { cursor: SegmentCursor { index, seq }, sent_us });
    }

    /// Returns the number of recorded retransmissions.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn resent_kept(&self) -> usize {
        self.resent.len()
    }

    /// Makes the next detection start over: settled segments may be open again.
    pub(crate) fn look_again(&mut self) {
        self.advanced = true;
        self.settled = None;
    }

    /// Resets the state: nothing is outstanding.
    pub(crate) fn clear(&mut self) {
        self.settled = None;
        self.resent.clear();
        self.latest = None;
        self.advanced = false;
    }

    /// 6.2 step 4, RACK_update_reo_wnd: returns how much later than others a segment may arrive.
    pub(super) fn reordering_window(&self, srtt_us: u32, recovering: bool, thresh_reached: bool) -> u32 {
        if !self.reordering_seen && (recovering || thresh_reached) {
            return 0;
        }
        let quarter = u64::from(self.min_rtt_us() / 4) * (u64::from(self.widened) + 1);
        quarter.min(u64::from(srtt_us)) as u32
    }
}

#[cfg(test)]
mod tests;
