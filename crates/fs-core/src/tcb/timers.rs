//! A connection's deadlines. One entry in the core's wheel represents all of them: it is set for
//! the earliest. If it is due too early (the deadline has moved, as an RTO does with every ACK), it
//! is set again.

use crate::config::TcpConfig;
use crate::tcb::Tcb;
use crate::tcb::send::rto::backoff;
use crate::tcb::send::store::TxStore;
use crate::tcb::timer_kind::{TimerKind, TimerTick};
use crate::time::{Duration, Instant, micros, nanos};
use crate::timer::tick::{TICK_SHIFT, Turn, current_tick, deadline_tick, tick_before};

/// Maximum distance of a wheel entry for keepalive; later deadlines are checked again then. Entries
/// stay in the wheel until they are due, even if their connections have ended. The horizon
/// therefore bounds the entries that short connections leave there. Ticks are also compared modulo
/// 2^32.
const KEEPALIVE_HORIZON: Duration = Duration::from_secs(30);

/// Returns the shortest timeout without backoff, in ticks.
pub(crate) fn shortest_rto(config: &TcpConfig) -> i32 {
    let shortest = config.rto_min.min(config.rto_max).min(config.rto_initial);
    (nanos(shortest) >> TICK_SHIFT).min(i32::MAX as u64) as i32
}

/// A due deadline of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// The timer.
    Timer(TimerKind),
    /// Keepalive.
    Keepalive,
}

impl Tcb {
    /// Returns true if the timer runs.
    #[inline]
    pub(crate) fn timer_runs(&self) -> bool {
        self.timer.tick() != 0 && !self.flags.timer_is(TimerKind::Idle)
    }

    /// Sets the timer, for any previous purpose.
    #[inline]
    pub(crate) fn set_timer(&mut self, kind: TimerKind, at: Instant) {
        debug_assert!(kind != TimerKind::Idle);
        self.flags.set_timer(kind);
        self.timer = TimerTick::at(deadline_tick(at));
    }

    /// Clears the timer, including the time of the last transmission.
    #[inline]
    pub(crate) fn clear_timer(&mut self) {
        self.flags.set_timer(TimerKind::Retransmit);
        self.timer = TimerTick::default();
    }

    /// Records that the persist timer has fired, and its segment was not sent yet:
    /// [`TimerKind::Persist`], with no timer running.
    #[inline]
    pub(super) fn persist_timer_fired(&mut self) {
        debug_assert!(self.flags.timer_is(TimerKind::Persist));
        self.timer = TimerTick::default();
    }

    /// Returns the ticks since the last transmission, if everything sent is acknowledged.
    #[inline(always)]
    pub(crate) fn idle_ticks(&self, tick: u32) -> Option<u32> {
        (self.flags.timer_is(TimerKind::Idle) && self.timer.tick() != 0).then(|| tick.wrapping_sub(self.timer.tick()))
    }

    /// Stops the timer when everything is acknowledged, and records the last transmission
    /// (`sent_us`) for the restart after idle.
    #[inline]
    pub(crate) fn stop_timer(&mut self, now: Instant, sent_us: Option<u32>) {
        let ago_us = sent_us.map_or(0, |us| micros(now).wrapping_sub(us));
        self.remember_sending(current_tick(now), ago_us);
    }

    /// Records that the last transmission was `ago_us` before `tick`.
    #[inline]
    fn remember_sending(&mut self, tick: u32, ago_us: u32) {
        self.flags.set_timer(TimerKind::Idle);
        // A tick is 1048 us: the result is too late by at most a 40th.
        self.timer = TimerTick::at(tick.wrapping_sub(ago_us >> 10).max(1));
    }

    /// Like [`Tcb::stop_timer`], with the times of a turn.
    #[inline]
    pub(crate) fn stop_timer_at(&mut self, turn: Turn, ago_us: u32) {
        self.remember_sending(turn.tick, ago_us);
    }

    /// Returns the current timeout with backoff.
    #[inline]
    pub(crate) fn rto(&self, config: &TcpConfig) -> Duration {
        Duration::from_nanos(self.rto_ns(config))
    }

    /// [`Tcb::rto`] in nanoseconds.
    #[inline]
    pub(crate) fn rto_ns(&self, config: &TcpConfig) -> u64 {
        let rto = self.rtt.rto_ns(config.rto_min, config.rto_max, config.rto_initial);
        if self.backoff > 0 { backed_off_ns(rto, self.backoff, config.rto_max) } else { rto }
    }

    /// RFC 6298 5.1 to 5.3: (re)starts the retransmission timer.
    #[inline]
    pub(crate) fn restart_rto(&mut self, config: &TcpConfig, now: Instant) {
        let at = now.add_nanos(self.rto_ns(config));
        self.set_timer(TimerKind::Retransmit, self.within_user_timeout(at, now));
    }

    /// (Re)starts the persist timer, which has the same timeout as the retransmission timer.
    pub(super) fn restart_persist(&mut self, config: &TcpConfig, now: Instant) {
        let at = now.add_nanos(self.rto_ns(config));
        self.set_timer(TimerKind::Persist, self.within_user_timeout(at, now));
    }

    /// Limits a timeout to TCP_USER_TIMEOUT, which ends the connection on time, not at the next
    /// timeout after it (Linux `tcp_clamp_rto_to_user_timeout`).
    #[inline]
    fn within_user_timeout(&self, at: Instant, now: Instant) -> Instant {
        if let Some(ext) = self.ext.as_ref()
            && let (Some(limit), Some(loss)) = (ext.sender.user_timeout, ext.loss.as_deref())
            && let Some(since) = loss.first_time_out
        {
            return at.min((since + limit).max(now));
        }
        at
    }

    /// Returns true if the connection is to be aborted: R2 of RFC 1122 4.2.3.5 as a duration, as in
    /// Linux (`retransmits_timed_out`). It is the duration of `retries` timeouts from the minimum
    /// one on, regardless of this connection's. TCP_USER_TIMEOUT replaces it.
    pub(crate) fn gives_up(&self, config: &TcpConfig, retries: u8, now: Instant) -> bool {
        let Some(ext) = self.ext.as_ref() else { return false };
        let Some(since) = ext.loss.as_deref().and_then(|l| l.first_time_out) else { return false };
        let limit = ext.sender.user_timeout.unwrap_or_else(|| time_of(retries, config.rto_min, config.rto_max));
        now.since(since) >= limit
    }

    /// Restarts the retransmission timer from the head's last transmission, as if no other timer
    /// had replaced it.
    pub(crate) fn resume_rto(&mut self, store: &TxStore, config: &TcpConfig, now: Instant) {
        let left = self.rto_left(store, config, now);
        self.set_timer(TimerKind::Retransmit, now.add_nanos(left));
    }

    /// Returns the remaining time of the retransmission timer in nanoseconds.
    fn rto_left(&self, store: &TxStore, config: &TcpConfig, now: Instant) -> u64 {
        let rto = self.rto_ns(config);
        let Some(sent_us) = self.tx.head_sent_us(store) else { return rto };
        let out_us = micros(now).wrapping_sub(sent_us);
        rto.saturating_sub(u64::from(out_us) * 1000)
    }

    /// Restarts the timer after an ACK of new data: the tail loss probe's timer if a probe may be
    /// sent, otherwise the retransmission timer.
    #[inline]
    pub(crate) fn restart_timer(&mut self, store: &TxStore, config: &TcpConfig, now: Instant) {
        self.restart_timer_if(|tcb| tcb.tx.has_one_out(store), config, now);
    }

    /// Like [`Tcb::restart_timer`]; `single`: only one segment is in flight.
    #[inline]
    pub(crate) fn restart_timer_if(&mut self, single: impl FnOnce(&Self) -> bool, config: &TcpConfig, now: Instant) {
        if self.backoff > 0 {
            return self.restart_backed_off(config, now);
        }
        let rto = self.rtt.rto_ns(config.rto_min, config.rto_max, config.rto_initial);
        match self.probe_wait(single, config) {
            Some(wait) => self.set_timer(TimerKind::Probe, now.add_nanos(wait.min(rto))),
            None => self.set_timer(TimerKind::Retransmit, now.add_nanos(rto)),
        }
    }

    /// Restarts the retransmission timer with backoff: no probe is sent then.
    #[cold]
    fn restart_backed_off(&mut self, config: &TcpConfig, now: Instant) {
        let wait = self.rto_ns(config);
        self.set_timer(TimerKind::Retransmit, now.add_nanos(wait));
    }

    /// Postpones the probe after sending, but not the timeout.
    #[inline]
    pub(crate) fn put_off_probe(&mut self, store: &TxStore, config: &TcpConfig, now: Instant) {
        if self.flags.timer_is(TimerKind::Probe)
            && let Some(wait) = self.probe_wait(|tcb| tcb.tx.has_one_out(store), config)
        {
            let wait = wait.min(self.rto_left(store, config, now));
            self.set_timer(TimerKind::Probe, now.add_nanos(wait));
        }
    }

    /// Limits the peer's time for an orphan in FIN-WAIT-2 (Linux `tcp_fin_timeout`). Nothing is
    /// outstanding, so the timer is free for it.
    pub(crate) fn wait_for_fin(&mut self, config: &TcpConfig, now: Instant) {
        self.set_timer(TimerKind::FinWait2, now + config.fin_wait_2);
    }

    /// Returns the earliest deadline as a tick; `None` if no timer runs.
    #[inline]
    pub(crate) fn deadline(&self, now: Instant) -> Option<u32> {
        let timer = if self.timer_runs() { Some(self.timer.tick()) } else { None };
        // While a timer runs there are no keepalive probes.
        timer.or_else(|| self.keepalive_at().map(|at| deadline_tick(at.min(now + KEEPALIVE_HORIZON))))
    }

    /// Uses a remembered wheel entry for `deadline` if possible, instead of inserting one. With
    /// keepalive an entry seconds ahead exists for most of a connection's life, and each
    /// retransmission timer needs an earlier one. The later entry is therefore remembered, and used
    /// again once the earlier ones have passed. Returns true if it is used now.
    pub(crate) fn takes_later_entry(&mut self, deadline: u32, now: Instant) -> bool {
        let armed_at = self.armed_at;
        if self.ext.as_ref().is_none_or(|ext| ext.keepalive.is_none()) {
            return false;
        }
        let ext = self.ext_mut();
        if armed_at != 0 {
            if ext.later_entry == 0 {
                ext.later_entry = armed_at;
            }
            return false;
        }
        // A due entry is no longer in the wheel.
        if ext.later_entry == 0 || !tick_before(current_tick(now), ext.later_entry) {
            ext.later_entry = 0;
            return false;
        }
        if tick_before(deadline, ext.later_entry) {
            return false;
        }
        self.armed_at = core::mem::take(&mut ext.later_entry);
        true
    }

    /// Returns when the next keepalive probe is due: RFC 9293 3.8.4.
    pub(crate) fn keepalive_at(&self) -> Option<Instant> {
        let ext = self.ext.as_ref()?;
        let keepalive = ext.keepalive?;
        // Retransmission monitors the connection while data is outstanding.
        if self.snd.una() != self.snd.nxt() || self.timer_runs() {
            return None;
        }
        let waits = keepalive.interval.saturating_mul(ext.keepalive_probes);
        Some(ext.last_received + keepalive.idle + waits)
    }

    /// Returns the deadline that is due at `now`.
    pub(crate) fn due(&self, now: Instant) -> Option<Due> {
        let tick = current_tick(now);
        if self.timer_runs() && !tick_before(tick, self.timer.tick()) {
            return Some(Due::Timer(self.flags.timer()));
        }
        if self.keepalive_at().is_some_and(|at| at <= now) {
            return Some(Due::Keepalive);
        }
        None
    }

    /// Records that the peer is alive.
    #[inline]
    pub(crate) fn record_activity(&mut self, now: Instant) {
        if self.ext.as_ref().is_some_and(|ext| ext.keepalive.is_some()) {
            let ext = self.ext_mut();
            ext.last_received = now;
            ext.keepalive_probes = 0;
        }
    }
}

/// [`backoff`] in nanoseconds.
#[cold]
fn backed_off_ns(rto_ns: u64, n: u8, max: Duration) -> u64 {
    nanos(backoff(Duration::from_nanos(rto_ns), n, max))
}

/// Returns the number of retransmission timeouts after which a connection is aborted, given
/// `retries` of the configuration. An orphan gets fewer (Linux `tcp_orphan_retries`, 8).
pub(crate) fn give_up_after(retries: u8, orphan: bool) -> u8 {
    if orphan { retries.min(8) } else { retries }
}

/// Returns the duration of a first timeout and `retries` further ones, each twice the previous,
/// from `min` to `max`: Linux `tcp_model_timeout`, 924.6 s for 15 from 200 ms to 120 s.
pub(crate) fn time_of(retries: u8, min: Duration, max: Duration) -> Duration {
    (0..=retries).map(|n| backoff(min, n, max)).fold(Duration::ZERO, Duration::saturating_add)
}

/// Returns the next wait of a handshake's retransmission: doubled each time.
#[inline]
pub(crate) fn handshake_wait(initial: Duration, tries: u8, max: Duration) -> Duration {
    if tries == 0 {
        return initial.min(max);
    }
    (initial * (1 << tries.min(10)) as u32).min(max)
}
