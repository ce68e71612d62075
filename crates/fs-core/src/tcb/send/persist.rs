//! Zero-window probing (RFC 9293 3.8.6.1): data waits, nothing is in flight, and the peer offers no window.

use crate::config::TcpConfig;
use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::time::Instant;

impl Tcb {
    /// Starts the persist timer when data is queued, none is in flight and no timer runs. Without it a lost
    /// window update would stop the connection for ever.
    #[inline]
    pub(crate) fn persist_if_stuck(&mut self, config: &TcpConfig, now: Instant) {
        if !self.timer_runs() && self.has_unsent() && self.snd_una == self.snd_nxt {
            self.flags.set(Flags::PERSIST);
            self.dup_acks = 0;
            self.restart_rto(config, now);
        }
    }

    /// The persist timer fired. True when an empty probe must be sent; false when the window has room for
    /// a part of the next segment, which then goes out. `dup_acks` counts unanswered probes meanwhile.
    pub(crate) fn on_persist_timeout(&mut self, config: &TcpConfig, now: Instant) -> bool {
        if self.snd_wnd > 0 {
            self.flags.set(Flags::PUSH_OUT);
            self.rto_at = 0;
            return false;
        }
        self.backoff = self.backoff.saturating_add(1);
        self.dup_acks = self.dup_acks.saturating_add(1);
        self.restart_rto(config, now);
        true
    }
}
