//! Zero-window probing (RFC 9293 3.8.6.1): data waits, nothing is in flight, and the peer offers no window.

use crate::config::TcpConfig;
use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::tcb::timer_kind::TimerKind;
use crate::time::Instant;

impl Tcb {
    /// Starts the persist timer when data is queued, none is in flight and no timer runs. Without it a lost
    /// window update would stop the connection for ever.
    #[inline]
    pub(crate) fn persist_if_stuck(&mut self, config: &TcpConfig, now: Instant) {
        if !self.timer_runs() && self.has_unsent() && self.snd.una() == self.snd.nxt() {
            self.probes_answered();
            self.restart_persist(config, now);
            if let Some(wait) = self.cork_wait()
                && wait < self.rto(config)
            {
                self.set_timer(TimerKind::Persist, now + wait);
            }
        }
    }

    /// The peer's window has been closed for too long: TCP_USER_TIMEOUT, or the operator's bound. By default never, as
    /// long as it answers (RFC 9293 3.8.6.1).
    pub(crate) fn closed_too_long(&self, config: &TcpConfig, now: Instant) -> bool {
        let Some(sender) = self.ext.as_ref().map(|e| &e.sender) else { return false };
        let limit = sender.user_timeout.into_iter().chain(config.zero_window_timeout).min();
        matches!((sender.closed_since, limit), (Some(since), Some(limit)) if now.since(since) >= limit)
    }

    /// As [`Tcb::closed_too_long`], at a time-out: data is out, and the peer may have taken its window back.
    pub(crate) fn window_gone_too_long(&mut self, config: &TcpConfig, now: Instant) -> bool {
        let closed = self.snd.wnd() == 0;
        let since = &mut self.ext_mut().sender.closed_since;
        *since = closed.then(|| since.unwrap_or(now));
        self.closed_too_long(config, now)
    }

    /// The persist timer fired. True when an empty probe must be sent; false when the window has room for
    /// a part of the next segment, which then goes out.
    pub(crate) fn on_persist_timeout(&mut self, config: &TcpConfig, now: Instant) -> bool {
        if self.snd.wnd() > 0 {
            self.flags.set(Flags::PUSH_OUT);
            self.persist_timer_fired();
            // Sending takes it back; a pool too dry to cut the segment must not be asked at the same pace for ever.
            self.backoff = self.backoff.saturating_add(1);
            return false;
        }
        let sender = &mut self.ext_mut().sender;
        sender.closed_since.get_or_insert(now);
        sender.window_probes = sender.window_probes.saturating_add(1);
        self.backoff = self.backoff.saturating_add(1);
        self.restart_persist(config, now);
        true
    }

    /// Probes that the peer has not answered.
    pub(crate) fn window_probes(&self) -> u8 {
        self.ext.as_ref().map_or(0, |e| e.sender.window_probes)
    }

    /// The peer is alive, or probing begins: the count of what it has left unanswered does too.
    pub(crate) fn probes_answered(&mut self) {
        if let Some(ext) = self.ext.as_mut() {
            ext.sender.window_probes = 0;
        }
    }
}
