//! What loss recovery remembers of a connection: made at the first SACK, duplicate ACK, probe or time-out, so that a
//! connection without trouble does not pay for it.

use super::cursor::{Known, Places, SegmentCursor};
use super::rack::Rack;
use crate::seq::SeqNum;
use crate::time::Instant;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Loss {
    /// No segment before this place is lost and waits to be sent again; `None`: no segment at all.
    pub(crate) resend: Option<SegmentCursor>,
    /// The blocks of the latest SACK option.
    pub(crate) blocks: [Known; 4],
    /// Where earlier ones were found.
    pub(crate) places: Places,
    /// Highest sequence number that the peer has said to hold, plus one (Linux `tcp_highest_sack_seq`).
    pub(crate) fack: Option<SeqNum>,
    pub(crate) rack: Rack,
    pub(crate) probe: Probe,
    pub(crate) prr: Prr,
    pub(crate) undo: Undo,
    /// RFC 6582's `recover`: what had been sent when the last recovery without SACK began. Duplicate ACKs up to there
    /// are echoes of its retransmissions.
    pub(crate) recover: Option<SeqNum>,
    /// Time-outs since data was last acknowledged, and when the first of them was.
    pub(crate) time_outs: u8,
    pub(crate) first_time_out: Option<Instant>,
    /// Segments and bytes of payload sent again so far.
    pub(crate) total_retransmits: u32,
    pub(crate) bytes_retransmitted: u64,
    /// D-SACKs received.
    pub(crate) dsacks: u32,
    /// How often reordering was seen.
    pub(crate) reorderings: u32,
    /// Over how many segments, at most; 0: less than `DUP_THRESH`.
    pub(crate) reordering: u32,
}

/// A tail loss probe's state (RFC 8985 section 7).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probe {
    /// The probe timer has fired: the next segment is the probe.
    pub(crate) due: bool,
    /// TLP.end_seq: SND.NXT after the probe, until its fate is known.
    pub(crate) end: Option<SeqNum>,
    /// TLP.is_retrans: it was a retransmission.
    pub(super) resent: bool,
    /// No round trip was measured since a probe was sent.
    pub(crate) unmeasured: bool,
}

impl Probe {
    /// Whatever became of it tells nothing any more.
    pub(crate) fn give_up(&mut self) {
        (self.due, self.end) = (false, None);
    }
}

/// Proportional rate reduction (RFC 6937 and its successor): how fast recovery lets the window come down.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prr {
    /// Bytes in flight, as the reduction saw them, when recovery began.
    pub(crate) before: u32,
    /// Bytes delivered, and sent, since.
    pub(crate) delivered: u32,
    pub(crate) out: u32,
}

impl Prr {
    /// Bytes that may be sent at this ACK. `flight` is the pipe after it, `newly` what it delivered; `safe`: it moved
    /// SND.UNA and showed no further loss.
    pub(crate) fn allowance(&mut self, flight: u32, ssthresh: u32, newly: u32, safe: bool, mss: u32) -> u32 {
        self.delivered = self.delivered.saturating_add(newly);
        let allowed = if flight > ssthresh {
            // Proportional: as much as brings the pipe down to ssthresh at the end of the round trip.
            let share = (u64::from(self.delivered) * u64::from(ssthresh)).div_ceil(u64::from(self.before.max(1)));
            u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(self.out)
        } else {
            // Below: packet conservation, or slow start while all is well (the reduction bound SSRB).
            let mut room = self.delivered.saturating_sub(self.out).max(newly);
            if safe {
                room = room.saturating_add(mss);
            }
            room.min(ssthresh - flight)
        };
        // The first retransmission goes out at once.
        if self.out == 0 { allowed.max(mss) } else { allowed }
    }
}

/// How a reduction can turn out to have been for nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Undo {
    /// SND.UNA when the window was reduced: what can be undone; `None`: nothing.
    pub(crate) marker: Option<SeqNum>,
    /// Bytes sent again since and not reported as duplicates; `None`: nothing was sent again.
    pub(crate) resent: Option<u32>,
    /// Our timestamp on the first retransmission (Eifel detection, RFC 3522).
    pub(crate) stamp: Option<u32>,
    /// Our timestamp on the latest retransmission.
    pub(crate) last_stamp: u32,
    /// F-RTO (RFC 5682) watches the ACKs after a time-out.
    pub(crate) frto: bool,
    /// F-RTO step 2b: new data goes before what is lost.
    pub(crate) new_data_first: bool,
}

impl Undo {
    /// The window is about to be reduced; `out`: bytes sent again and in flight.
    pub(crate) fn begin(&mut self, una: SeqNum, out: u32) {
        self.marker = Some(una);
        self.resent = (out > 0).then_some(out);
        if out == 0 {
            self.stamp = None;
        }
    }

    /// An ACK echoes a timestamp older than the first retransmission: the original has arrived.
    pub(crate) fn original_arrived(&self, echo: Option<u32>) -> bool {
        matches!((self.stamp, echo), (Some(stamp), Some(echo)) if (echo.wrapping_sub(stamp) as i32) < 0)
    }

    /// The reduction was for nothing.
    pub(crate) fn is_spurious(&self, echo: Option<u32>) -> bool {
        self.marker.is_some() && (self.resent == Some(0) || self.original_arrived(echo))
    }

    /// RFC 2883: the peer got `start..end` twice.
    pub(crate) fn duplicate(&mut self, start: SeqNum, end: SeqNum) {
        if let (Some(marker), Some(resent)) = (self.marker, &mut self.resent)
            && end.after(marker)
        {
            *resent = resent.saturating_sub(end.since(start));
        }
    }

    /// A segment was sent again, with our timestamp `ts`.
    pub(crate) fn sent_again(&mut self, span: u32, ts: u32) {
        self.resent = Some(self.resent.unwrap_or(0).saturating_add(span));
        self.stamp.get_or_insert(ts);
        self.last_stamp = ts;
    }
}

#[cfg(test)]
mod tests;
