//! State of loss recovery. Allocated at the first SACK, duplicate ACK, probe or timeout, so that a
//! connection without losses does not pay for it.

use super::cursor::{Known, SackHints, SegmentCursor};
use super::rack::Rack;
use crate::seq::SeqNum;
use crate::time::Instant;

/// State of loss recovery of one connection.
#[derive(Debug, Default)]
pub(crate) struct Loss {
    /// No segment before this position is lost and waits for its retransmission; `None`: no segment
    /// at all.
    pub(crate) resend: Option<SegmentCursor>,
    /// The blocks of the latest SACK option.
    pub(crate) blocks: [Known; 4],
    /// Positions of earlier blocks.
    pub(crate) sack_hints: SackHints,
    /// Highest SACKed sequence number, plus one (Linux `tcp_highest_sack_seq`).
    pub(crate) fack: Option<SeqNum>,
    pub(crate) rack: Rack,
    pub(crate) probe: Probe,
    pub(crate) prr: Prr,
    pub(crate) undo: Undo,
    /// RFC 6582's `recover`: SND.NXT when the last recovery without SACK began. Duplicate ACKs up
    /// to there are caused by its retransmissions.
    pub(crate) recover: Option<SeqNum>,
    /// Timeouts since data was last acknowledged, and the time of the first of them.
    pub(crate) time_outs: u8,
    pub(crate) first_time_out: Option<Instant>,
    /// Retransmitted segments and bytes of payload so far.
    pub(crate) total_retransmits: u32,
    pub(crate) bytes_retransmitted: u64,
    /// D-SACKs received.
    pub(crate) dsacks: u32,
    /// Number of detected reorderings.
    pub(crate) reorderings: u32,
    /// Largest extent of reordering in segments; 0: less than `DUP_THRESH`.
    pub(crate) reordering: u32,
}

/// A tail loss probe's state (RFC 8985 section 7).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probe {
    /// The probe timer has fired: the next segment is the probe.
    pub(crate) due: bool,
    /// TLP.end_seq: SND.NXT after the probe, until its fate is known.
    pub(crate) end: Option<SeqNum>,
    /// TLP.is_retrans: the probe was a retransmission.
    pub(super) resent: bool,
    /// No round trip was measured since a probe was sent.
    pub(crate) unmeasured: bool,
}

impl Probe {
    /// Forgets the probe: its fate has no meaning any more.
    pub(crate) fn give_up(&mut self) {
        (self.due, self.end) = (false, None);
    }
}

/// Proportional rate reduction (RFC 6937 and its successor): how fast recovery reduces the window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prr {
    /// Bytes in flight when recovery began, as counted by the reduction.
    pub(crate) before: u32,
    /// Bytes delivered, and sent, since then.
    pub(crate) delivered: u32,
    pub(crate) out: u32,
}

impl Prr {
    /// Returns the bytes that may be sent at this ACK. `flight` is the pipe after it, `newly` the
    /// bytes it delivered; `safe`: it moved SND.UNA and revealed no further loss.
    pub(crate) fn allowance(&mut self, flight: u32, ssthresh: u32, newly: u32, safe: bool, mss: u32) -> u32 {
        self.delivered = self.delivered.saturating_add(newly);
        let allowed = if flight > ssthresh {
            // Proportional: brings the pipe down to ssthresh at the end of the round trip.
            let share = (u64::from(self.delivered) * u64::from(ssthresh)).div_ceil(u64::from(self.before.max(1)));
            u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(self.out)
        } else {
            // Below: packet conservation, or slow start while no further losses occur (the
            // reduction bound SSRB).
            let mut room = self.delivered.saturating_sub(self.out).max(newly);
            if safe {
                room = room.saturating_add(mss);
            }
            room.min(ssthresh - flight)
        };
        // The first retransmission is sent at once.
        if self.out == 0 { allowed.max(mss) } else { allowed }
    }
}

/// Detection of spurious reductions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Undo {
    /// SND.UNA when the window was reduced, which can be undone; `None`: nothing can.
    pub(crate) marker: Option<SeqNum>,
    /// Bytes retransmitted since and not reported as duplicates; `None`: nothing was retransmitted.
    pub(crate) resent: Option<u32>,
    /// Our timestamp on the first retransmission (Eifel detection, RFC 3522).
    pub(crate) stamp: Option<u32>,
    /// Our timestamp on the latest retransmission.
    pub(crate) last_stamp: u32,
    /// F-RTO (RFC 5682) checks the ACKs after a timeout.
    pub(crate) frto: bool,
    /// F-RTO step 2b: new data has priority over retransmissions.
    pub(crate) new_data_first: bool,
}

impl Undo {
    /// Must be called before the window is reduced. `out` is the number of retransmitted bytes in
    /// flight.
    pub(crate) fn begin(&mut self, una: SeqNum, out: u32) {
        self.marker = Some(una);
        self.resent = (out > 0).then_some(out);
        if out == 0 {
            self.stamp = None;
        }
    }

    /// Returns true if an ACK echoes a timestamp older than the first retransmission: the original
    /// has arrived.
    pub(crate) fn original_arrived(&self, echo: Option<u32>) -> bool {
        matches!((self.stamp, echo), (Some(stamp), Some(echo)) if (echo.wrapping_sub(stamp) as i32) < 0)
    }

    /// Returns true if the reduction was spurious.
    pub(crate) fn is_spurious(&self, echo: Option<u32>) -> bool {
        self.marker.is_some() && (self.resent == Some(0) || self.original_arrived(echo))
    }

    /// RFC 2883: handles a duplicate that the peer reports.
    pub(crate) fn duplicate(&mut self, start: SeqNum, end: SeqNum) {
        if let (Some(marker), Some(resent)) = (self.marker, &mut self.resent)
            && end.after(marker)
        {
            *resent = resent.saturating_sub(end.since(start));
        }
    }

    /// Records a retransmission with our timestamp `ts`.
    pub(crate) fn sent_again(&mut self, span: u32, ts: u32) {
        self.resent = Some(self.resent.unwrap_or(0).saturating_add(span));
        self.stamp.get_or_insert(ts);
        self.last_stamp = ts;
    }
}

#[cfg(test)]
mod tests;
