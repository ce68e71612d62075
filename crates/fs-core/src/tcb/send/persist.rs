//! Zero-window probing (RFC 9293 3.8.6.1): data is queued, nothing is in flight, and the peer
//! offers no window.

use crate::config::TcpConfig;
use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::tcb::timer_kind::TimerKind;
use crate::time::Instant;

impl Tcb {
    /// Starts the persist timer if data is queued, none is in flight and no timer runs. Otherwise a
    /// lost window update would stop the connection permanently.
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

    /// Returns true if the peer's window has been closed for too long: TCP_USER_TIMEOUT, or the
    /// operator's bound. By default it never is while the peer acknowledges probes (RFC 9293
    /// 3.8.6.1).
    pub(crate) fn closed_too_long(&self, config: &TcpConfig, now: Instant) -> bool {
        let Some(sender) = self.ext.as_ref().map(|e| &e.sender) else { return false };
        let limit = sender.user_timeout.into_iter().chain(config.zero_window_timeout).min();
        matches!((sender.closed_since, limit), (Some(since), Some(limit)) if now.since(since) >= limit)
    }

    /// Like [`Tcb::closed_too_long`], at a timeout: data is in flight, and the peer may have shrunk
    /// its window.
    pub(crate) fn window_gone_too_long(&mut self, config: &TcpConfig, now: Instant) -> bool {
        let closed = self.snd.wnd() == 0;
        let since = &mut self.ext_mut().sender.closed_since;
        *since = closed.then(|| since.unwrap_or(now));
        self.closed_too_long(config, now)
    }

    /// Handles the persist timer. Returns true if an empty probe must be sent; false if the window
    /// has space for a part of the next segment, which is then sent.
    pub(crate) fn on_persist_timeout(&mut self, config: &TcpConfig, now: Instant) -> bool {
        if self.snd.wnd() > 0 {
            self.flags.set(Flags::PUSH_OUT);
            self.persist_timer_fired();
            // Sending resets it. If the pool is too empty to split the segment, it must not be
            // tried at the same pace indefinitely.
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

    /// Returns the number of unanswered probes.
    pub(crate) fn window_probes(&self) -> u8 {
        self.ext.as_ref().map_or(0, |e| e.sender.window_probes)
    }

    /// Resets the count of unanswered probes: the peer has answered, or probing begins.
    pub(crate) fn probes_answered(&mut self) {
        if let Some(ext) = self.ext.as_mut() {
            ext.sender.window_probes = 0;
        }
    }
}
