//! What the application has asked of sending beyond the defaults, and what the sender knows beyond them: rare, in the
//! extension.

use crate::seq::SeqNum;
use crate::tcb::connection_stats::Limited;
use crate::time::{Duration, Instant};

/// Unsent bytes that a connection which has an extension (who is refused room gets one) takes, unless the application has sized
/// the buffer: its writer is on our core and comes each turn. More have left the cache when they are sent (decision 0013).
/// Less: turns that could have sent more; at MTU 1500 they send 181 KiB.
const UNSENT_MAX: u32 = 256 << 10;

/// See the module.
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
    /// Since when the peer's window is closed.
    pub(crate) closed_since: Option<Instant>,
    /// Probes of its window that it has not answered.
    pub(crate) window_probes: u8,
    /// Segment sizes on the path.
    pub(crate) path: PathSize,
    /// What has kept it from sending.
    pub(crate) limited: Limited,
}

impl Sender {
    /// Unsent bytes below which the application may write: TCP_NOTSENT_LOWAT, or half of ours, unless it has sized the buffer.
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
    /// The size before it was reduced; 0: it was not.
    pub(super) full: u16,
    /// A size that got through; 0: none is in doubt. Larger segments are a trial.
    pub(super) proven: u16,
    /// Where the first segment of more than `proven` ends: once this is acknowledged, nothing is in doubt.
    pub(super) trial_end: Option<SeqNum>,
    /// When to try a larger one.
    pub(super) raise_at: Option<Instant>,
    /// It was reduced to what our own link takes: that is certain, and so is it when the link takes more.
    pub(super) by_link: bool,
}

impl PathSize {
    /// No size is on trial, and none will be.
    pub(crate) fn is_sure(&self) -> bool {
        self.proven == 0 && self.raise_at.is_none()
    }

    /// A larger segment has arrived: its size is not in doubt any more.
    pub(super) fn on_trial_acked(&mut self, una: SeqNum) {
        if self.trial_end.is_some_and(|end| una.at_or_after(end)) {
            (self.proven, self.trial_end) = (0, None);
        }
    }
}
