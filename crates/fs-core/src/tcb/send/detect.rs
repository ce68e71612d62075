//! Loss detection by time: RACK's step 5 (RFC 8985 6.2).

use super::cursor::{DUP_THRESH, SegmentCursor};
use super::rack::{DetectedLosses, Resent, sent_after};
use super::segment::mark;
use super::store::TxStore;
use crate::config::TcpConfig;
use crate::seq::SeqNum;
use crate::slab::NIL;
use crate::stats::Stats;
use crate::tcb::Tcb;
use crate::tcb::extension::Recovery;
use crate::tcb::timer_kind::TimerKind;
use crate::time::{Duration, Instant, micros};

/// Maximum reordering that TCP_INFO reports, in segments: Linux `tcp_max_reordering`.
const REORDERING_MAX: u32 = 300;

impl Tcb {
    /// Handles RFC 8985's reordering timer: segments that must have arrived by now are lost.
    pub(crate) fn on_reorder_timeout(
        &mut self,
        store: &mut TxStore,
        stats: &mut Stats,
        config: &TcpConfig,
        now: Instant,
    ) {
        self.model_begin(store, self.snd.una(), now);
        let found = self.detect_losses_by_time(store, micros(now), true);
        self.resume_rto(store, config, now);
        if found.bytes > 0 {
            if !matches!(self.recovery(), Recovery::Fast { .. }) {
                self.enter_fast_recovery(stats, 0, now);
                self.apply_prr(self.mss as u32, false);
            }
        } else if let Some(wait_us) = found.wait_us {
            self.set_timer(TimerKind::Reorder, now + Duration::from_micros(u64::from(wait_us)));
        }
    }

    /// 6.2 step 5, RACK_detect_loss. `force`: the reordering timer has fired, so no new arrival is
    /// required.
    pub(crate) fn detect_losses_by_time(&mut self, store: &mut TxStore, now_us: u32, force: bool) -> DetectedLosses {
        let mut found = DetectedLosses::default();
        let (una, queue) = (self.snd.una(), self.tx);
        let srtt = self.rtt.srtt_us();
        let recovering = matches!(self.recovery(), Recovery::Fast { .. } | Recovery::Loss { .. });
        let Some(ext) = self.ext.as_mut() else { return found };
        let thresh_reached = ext.sacked_segments >= DUP_THRESH;
        let Some(rack) = ext.loss.as_deref_mut().map(|l| &mut l.rack) else { return found };
        let Some(latest) = rack.latest.filter(|_| rack.advanced || force) else { return found };
        rack.advanced = false;
        let window = rack.reordering_window(srtt, recovering, thresh_reached);
        let deadline = rack.rtt_us.saturating_add(window);
        let expired = |sent_us: u32| now_us.wrapping_sub(sent_us) >= deadline;
        let mut waiting = false;

        let mut settled = rack.settled.filter(|p| p.holds(una));
        let mut at = SegmentCursor::or_head(settled, una, &queue);
        while at != queue.next && at != NIL {
            let segment = &store.segments[at];
            let (next, seq) = (segment.next, segment.seq);
            settled = Some(SegmentCursor { index: at, seq });
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

        while let Some(&Resent { cursor, sent_us }) = ext.loss.as_deref().and_then(|l| l.rack.resent.front()) {
            let live = cursor.holds(una) && {
                let segment = &store.segments[cursor.index];
                segment.sent_us == sent_us && segment.has(mark::RETRANSMITTED) && !segment.has(mark::SACKED)
            };
            if live {
                if !sent_after(latest, (sent_us, store.segments[cursor.index].end())) {
                    break;
                }
                if !expired(sent_us) {
                    waiting = true;
                    break;
                }
                found.bytes += ext.take_for_lost(store, cursor.index);
                found.again = true;
            }
            if let Some(loss) = ext.loss.as_deref_mut() {
                loss.rack.resent.pop_front();
            }
        }
        if waiting {
            // The RFC waits for the last of them; none was sent after `latest`.
            found.wait_us = Some((latest.0.wrapping_add(deadline).wrapping_sub(now_us) as i32).max(0) as u32);
        }
        found
    }

    /// 6.2 step 3: a segment that was sent only once arrived after one that was sent later. `first`
    /// is its start, if known.
    pub(crate) fn record_reordering(&mut self, first: Option<SeqNum>) {
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
