//! Rare state of the sending half, in the extension: options beyond the defaults, and what the
//! sender records about them.

use crate::seq::SeqNum;
use crate::tcb::connection_stats::Limited;
use crate::time::{Duration, Instant};

/// Maximum unsent bytes of a connection that has an extension (one that is refused space gets one),
/// unless the application has set the buffer size. Its writer is on the same core and runs each
/// turn. Too high: the bytes have left the cache when they are sent (decision 0013). Too low: turns
/// that could have sent more; at MTU 1500 they send 181 KiB.
const UNSENT_MAX: u32 = 256 << 10;

/// Rare state of the sending half of one connection.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// TCP_CORK.
    pub(crate) cork: bool,
    /// SO_SNDBUF was set: no auto-tuning.
    pub(crate) buffer_fixed: bool,
    /// TCP_NOTSENT_LOWAT in bytes; 0: none.
    pub(crate) not_sent_low: u32,
    /// TCP_USER_TIMEOUT.
    pub(crate) user_timeout: Option<Duration>,
    /// SND.UP: the sequence number after the last urgent byte.
    pub(crate) urgent: Option<SeqNum>,
    /// When the peer's window was closed.
    pub(crate) closed_since: Option<Instant>,
    /// Window probes that the peer has not answered.
    pub(crate) window_probes: u8,
    /// Refused even the least that each connection may send.
    pub(crate) starved: Starved,
    /// The shortest round trip since the extension exists, or since the path changed, in µs; 0: none
    /// was measured.
    pub(crate) nearest_us: u32,
    /// So many round trips are not measured for it.
    pub(crate) far_for: u16,
    /// Segment sizes on the path.
    pub(crate) path: PathSize,
    /// Times by limiting reason.
    pub(crate) limited: Limited,
}

/// Whether a connection waits for the least that each may send: see `stack::frame_waiters`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Starved {
    #[default]
    No,
    /// It is in the list.
    Waits,
    /// It was notified, and may take frames in spite of others that wait.
    Told,
}

impl Sender {
    /// Records a round trip.
    #[inline]
    pub(super) fn measured(&mut self, rtt_us: u32) {
        if self.far_for > 0 {
            self.far_for -= 1;
        } else if self.nearest_us == 0 || rtt_us < self.nearest_us {
            self.nearest_us = rtt_us.max(1);
        }
    }

    /// Returns the unsent bytes below which the application may write: TCP_NOTSENT_LOWAT, or half
    /// of the default, unless it has set the buffer size.
    #[inline]
    pub(super) fn low_water(&self) -> u32 {
        match self.not_sent_low {
            0 if self.buffer_fixed => u32::MAX,
            0 => UNSENT_MAX / 2,
            low => low,
        }
    }
}

/// Segment sizes on the path: see [`super::path`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathSize {
    /// The size before it was reduced; 0: it was not reduced.
    pub(super) full: u16,
    /// A size that is known to get through; 0: no size is in doubt. Larger segments are a trial.
    pub(super) proven: u16,
    /// End of the first segment larger than `proven`: its acknowledgment ends the trial.
    pub(super) trial_end: Option<SeqNum>,
    /// When to try a larger one.
    pub(super) raise_at: Option<Instant>,
    /// The size was reduced to our own link's MTU, so it is certain, as is an increase when the
    /// link's MTU grows.
    pub(super) by_link: bool,
}

impl PathSize {
    /// Returns true if no size is on trial, and none will be.
    pub(crate) fn is_sure(&self) -> bool {
        self.proven == 0 && self.raise_at.is_none()
    }

    /// Ends the trial once a larger segment has arrived.
    pub(super) fn on_trial_acked(&mut self, una: SeqNum) {
        if self.trial_end.is_some_and(|end| una.at_or_after(end)) {
            (self.proven, self.trial_end) = (0, None);
        }
    }
}
