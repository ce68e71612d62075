//! Delivery rate samples: draft-ietf-ccwg-bbr section 4.1 (formerly
//! draft-cheng-iccrg-delivery-rate-estimation).
//!
//! Only connections whose algorithm requires samples have this state. The per-segment part,
//! `Stamp`, is in an array parallel to the segments that grows with the first such connection.
//!
//! Counts are bytes, times microseconds, both modulo 2^32: compared values never differ by more
//! than a window or a round trip.

use crate::seq::SeqNum;
use alloc::vec::Vec;

/// State of the connection at a segment's last transmission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// C.delivered.
    pub(crate) delivered: u32,
    /// C.delivered_time.
    delivered_us: u32,
    /// C.first_send_time.
    first_sent_us: u32,
    /// C.lost.
    pub(crate) lost: u32,
    /// Bytes in flight, this segment included.
    pub(crate) in_flight: u32,
    app_limited: bool,
    window_limited: bool,
}

impl Stamp {
    /// Returns true if something other than the path limited sending.
    pub(crate) fn is_limited(&self) -> bool {
        self.app_limited | self.window_limited
    }
}

/// A segment that is acknowledged or lost, as the sampler sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) stamp: Stamp,
    /// When it was last sent.
    pub(crate) sent_us: u32,
    pub(crate) seq: SeqNum,
    pub(crate) span: u32,
    /// Sent more than once: yields no round-trip time (Karn).
    pub(crate) again: bool,
}

/// Delivery rate sample of an ACK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateSample {
    /// Bytes newly acknowledged, cumulatively or by SACK.
    pub newly_acked: u32,
    /// Bytes newly marked lost.
    pub newly_lost: u32,
    /// Bytes delivered from the transmission of the newest acknowledged segment until now.
    pub delivered: u32,
    /// C.delivered at that transmission; `None`: no sample.
    pub prior_delivered: Option<u32>,
    /// Bytes per second; 0: the interval was too short.
    pub rate: u64,
    /// Bytes lost since that transmission.
    pub lost: u32,
    /// Bytes in flight at that transmission.
    pub in_flight: u32,
    /// The application, or the peer's window behind a hole, limited sending, not the path.
    pub limited: bool,
    /// Round-trip time of the latest segment that was sent only once.
    pub rtt_us: Option<u32>,
}

/// The sampler of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) delivered: u32,
    pub(crate) lost: u32,
    delivered_us: u32,
    first_sent_us: u32,
    /// Value of `delivered` at which the bubble that the application left is gone.
    app_limited: Option<u32>,
    /// The same for a bubble that the peer's window left while a hole kept it from moving.
    window_limited: Option<u32>,
    /// Segments before this number were sent before the sampler began, and have no stamp. `None` once
    /// they are acknowledged.
    since: Option<SeqNum>,
    /// Latest sample with a rate, and whether the application limited it: for TCP_INFO.
    pub(crate) latest: (u64, bool),
    // ---- of the current ACK
    now_us: u32,
    newly_acked: u32,
    newly_lost: u32,
    newest: Option<Newest>,
    rtt_us: Option<u32>,
}

/// The most recently sent of the segments that an ACK acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Newest {
    stamp: Stamp,
    end: SeqNum,
    send_elapsed: u32,
    ack_elapsed: u32,
}

/// Returns `a > b` modulo 2^32.
#[inline]
pub(crate) fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

impl Rate {
    /// Makes a sampler for segments sent from `since` on.
    pub(crate) fn new(since: SeqNum, now_us: u32) -> Self {
        Self {
            delivered: 0,
            lost: 0,
            delivered_us: now_us,
            first_sent_us: now_us,
            app_limited: None,
            window_limited: None,
            since: Some(since),
            latest: (0, false),
            now_us,
            newly_acked: 0,
            newly_lost: 0,
            newest: None,
            rtt_us: None,
        }
    }

    /// Records that a segment is sent now; `flight` includes it.
    pub(crate) fn on_sent(&mut self, now_us: u32, flight: u32, span: u32) -> Stamp {
        if flight <= span {
            (self.first_sent_us, self.delivered_us) = (now_us, now_us);
        }
        Stamp {
            delivered: self.delivered,
            delivered_us: self.delivered_us,
            first_sent_us: self.first_sent_us,
            lost: self.lost,
            in_flight: flight,
            app_limited: self.app_limited.is_some(),
            window_limited: self.window_limited.is_some(),
        }
    }

    /// Begins an ACK.
    pub(crate) fn begin(&mut self, now_us: u32) {
        self.now_us = now_us;
        (self.newly_acked, self.newly_lost, self.newest, self.rtt_us) = (0, 0, None, None);
    }

    /// Forgets where the sampler began, if everything before it is acknowledged: 2 GiB later it would
    /// appear to lie ahead.
    pub(crate) fn forget_start(&mut self, una: SeqNum) {
        self.since = self.since.filter(|&since| una.before(since));
    }

    /// Counts bytes of a segment that an ACK acknowledges in part.
    pub(crate) fn on_part_delivered(&mut self, bytes: u32) {
        self.delivered = self.delivered.wrapping_add(bytes);
        self.delivered_us = self.now_us;
        self.newly_acked += bytes;
    }

    /// Handles a segment that is acknowledged, cumulatively or by SACK, for the first time.
    pub(crate) fn on_delivered(&mut self, sent: &Sent) {
        self.on_part_delivered(sent.span);
        if !self.has_stamp(sent) {
            return;
        }
        let end = sent.seq + sent.span;
        let is_newest = self.newest.is_none_or(|n| {
            after(sent.sent_us, self.first_sent_us) || sent.sent_us == self.first_sent_us && end.after(n.end)
        });
        if is_newest {
            self.newest = Some(Newest {
                stamp: sent.stamp,
                end,
                send_elapsed: sent.sent_us.wrapping_sub(sent.stamp.first_sent_us),
                ack_elapsed: self.now_us.wrapping_sub(sent.stamp.delivered_us),
            });
            self.first_sent_us = sent.sent_us;
        }
        if !sent.again {
            let rtt = self.now_us.wrapping_sub(sent.sent_us);
            self.rtt_us = Some(self.rtt_us.map_or(rtt, |r| r.min(rtt)));
        }
    }

    /// Handles a segment that is marked lost. Returns true if its stamp is valid.
    pub(crate) fn on_lost(&mut self, sent: &Sent) -> bool {
        self.lost = self.lost.wrapping_add(sent.span);
        self.newly_lost += sent.span;
        self.has_stamp(sent)
    }

    fn has_stamp(&self, sent: &Sent) -> bool {
        self.since.is_none_or(|since| sent.seq.at_or_after(since))
    }

    /// Returns the ACK's sample. An interval below `min_rtt_us` is invalid (a spurious
    /// retransmission).
    pub(crate) fn generate(&mut self, min_rtt_us: u32) -> RateSample {
        for limited in [&mut self.app_limited, &mut self.window_limited] {
            if limited.is_some_and(|until| after(self.delivered, until)) {
                *limited = None;
            }
        }
        let mut sample = RateSample {
            newly_acked: self.newly_acked,
            newly_lost: self.newly_lost,
            rtt_us: self.rtt_us,
            ..RateSample::default()
        };
        let Some(Newest { stamp, send_elapsed, ack_elapsed, .. }) = self.newest else { return sample };
        sample.prior_delivered = Some(stamp.delivered);
        sample.delivered = self.delivered.wrapping_sub(stamp.delivered);
        sample.lost = self.lost.wrapping_sub(stamp.lost);
        (sample.in_flight, sample.limited) = (stamp.in_flight, stamp.is_limited());
        let interval = send_elapsed.max(ack_elapsed);
        if interval >= min_rtt_us.max(1) {
            sample.rate = u64::from(sample.delivered) * 1_000_000 / u64::from(interval);
            // Like Linux, which knows only the application's limit.
            if !stamp.app_limited || sample.rate > self.latest.0 {
                self.latest = (sample.rate, stamp.app_limited);
            }
        }
        sample
    }

    /// Records that the application has nothing more to send while the window is open. Until all of
    /// `flight` is delivered, samples are no evidence of the path's limit.
    pub(crate) fn mark_app_limited(&mut self, flight: u32) {
        self.app_limited = Some(self.delivered.wrapping_add(flight));
    }

    /// Like [`Rate::mark_app_limited`], for a closed window of the peer.
    pub(crate) fn mark_window_limited(&mut self, flight: u32) {
        self.window_limited = Some(self.delivered.wrapping_add(flight));
    }

    /// Returns true if something other than the path limits sending now.
    pub(crate) fn is_limited(&self) -> bool {
        self.app_limited.is_some() || self.window_limited.is_some()
    }
}

/// Copies the stamp of a segment that is split.
pub(crate) fn copy_stamp(stamps: &mut Vec<Stamp>, from: u32, to: u32) {
    if let Some(&stamp) = stamps.get(from as usize) {
        put_stamp(stamps, to, stamp);
    }
}

pub(crate) fn put_stamp(stamps: &mut Vec<Stamp>, index: u32, stamp: Stamp) {
    let index = index as usize;
    if stamps.len() <= index {
        stamps.resize(index + 1, Stamp::default());
    }
    stamps[index] = stamp;
}

#[cfg(test)]
mod tests;
