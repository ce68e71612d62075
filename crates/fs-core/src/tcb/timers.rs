//! A connection's deadlines. One entry in the core's wheel stands for all of them: it is set for the
//! earliest, and when it fires too early (the deadline has moved, as an RTO does with every ACK) it is
//! simply set again.

use crate::config::TcpConfig;
use crate::tcb::Tcb;
use crate::tcb::send::rto::backoff;
use crate::tcb::send::store::TxStore;
use crate::tcb::timer_kind::{TimerKind, TimerTick};
use crate::time::{Duration, Instant, micros, nanos};
use crate::timer::tick::{TICK_SHIFT, Turn, current_tick, deadline_tick, tick_before};

/// A wheel entry for keepalive is for no later than this: what is due later looks again then. Entries stay in the wheel until they
/// are due, also when their connections have ended, so it bounds what connections that come and go leave there; and ticks are
/// compared modulo 2^32.
const KEEPALIVE_HORIZON: Duration = Duration::from_secs(30);

/// No time-out without back-off is shorter, in ticks.
pub(crate) fn shortest_rto(config: &TcpConfig) -> i32 {
    let shortest = config.rto_min.min(config.rto_max).min(config.rto_initial);
    (nanos(shortest) >> TICK_SHIFT).min(i32::MAX as u64) as i32
}

/// What is due of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// The timer.
    Timer(TimerKind),
    /// Keepalive.
    Keepalive,
}

impl Tcb {
    /// The timer will fire.
    #[inline]
    pub(crate) fn timer_runs(&self) -> bool {
        self.timer.tick() != 0 && !self.flags.timer_is(TimerKind::Idle)
    }

    /// Sets the timer, whatever it was for.
    #[inline]
    pub(crate) fn set_timer(&mut self, kind: TimerKind, at: Instant) {
        debug_assert!(kind != TimerKind::Idle);
        self.flags.set_timer(kind);
        self.timer = TimerTick::at(deadline_tick(at));
    }

    /// No timer, and when something was last sent does not matter any more.
    #[inline]
    pub(crate) fn clear_timer(&mut self) {
        self.flags.set_timer(TimerKind::Retransmit);
        self.timer = TimerTick::default();
    }

    /// The persist timer has fired, and what it lets out has not left yet: [`TimerKind::Persist`], but nothing runs.
    #[inline]
    pub(super) fn persist_timer_fired(&mut self) {
        debug_assert!(self.flags.timer_is(TimerKind::Persist));
        self.timer = TimerTick::default();
    }

    /// Ticks since something was last sent, where all of it is acknowledged and nothing was sent since.
    #[inline(always)]
    pub(crate) fn idle_ticks(&self, tick: u32) -> Option<u32> {
        (self.flags.timer_is(TimerKind::Idle) && self.timer.tick() != 0).then(|| tick.wrapping_sub(self.timer.tick()))
    }

    /// All is acknowledged: no timer, but remember when we last sent (`sent_us`), for the restart after idle.
    #[inline]
    pub(crate) fn stop_timer(&mut self, now: Instant, sent_us: Option<u32>) {
        let ago_us = sent_us.map_or(0, |us| micros(now).wrapping_sub(us));
        self.remember_sending(current_tick(now), ago_us);
    }

    /// That it was `ago_us` before `tick`.
    #[inline]
    fn remember_sending(&mut self, tick: u32, ago_us: u32) {
        self.flags.set_timer(TimerKind::Idle);
        // A tick is 1048 us: too late by a 40th at most.
        self.timer = TimerTick::at(tick.wrapping_sub(ago_us >> 10).max(1));
    }

    /// As [`Tcb::stop_timer`], with the time as a turn has it.
    #[inline]
    pub(crate) fn stop_timer_at(&mut self, turn: Turn, ago_us: u32) {
        self.remember_sending(turn.tick, ago_us);
    }

    /// The time-out now, backed off.
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

    /// (Re)starts the persist timer, which waits as long as the retransmission timer would.
    pub(super) fn restart_persist(&mut self, config: &TcpConfig, now: Instant) {
        let at = now.add_nanos(self.rto_ns(config));
        self.set_timer(TimerKind::Persist, self.within_user_timeout(at, now));
    }

    /// TCP_USER_TIMEOUT ends the connection when it is over, not at the next time-out after it (Linux
    /// `tcp_clamp_rto_to_user_timeout`).
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

    /// R2 of RFC 1122 4.2.3.5 as a time, which it is in Linux (`retransmits_timed_out`): what `retries` time-outs from the
    /// minimal one on would take, however long this connection's are. TCP_USER_TIMEOUT replaces it.
    pub(crate) fn gives_up(&self, config: &TcpConfig, retries: u8, now: Instant) -> bool {
        let Some(ext) = self.ext.as_ref() else { return false };
        let Some(since) = ext.loss.as_deref().and_then(|l| l.first_time_out) else { return false };
        let limit = ext.sender.user_timeout.unwrap_or_else(|| time_of(retries, config.rto_min, config.rto_max));
        now.since(since) >= limit
    }

    /// The retransmission timer, as it would run had no other taken its place: from the head's last transmission on.
    pub(crate) fn resume_rto(&mut self, store: &TxStore, config: &TcpConfig, now: Instant) {
        let left = self.rto_left(store, config, now);
        self.set_timer(TimerKind::Retransmit, now.add_nanos(left));
    }

    /// In nanoseconds.
    fn rto_left(&self, store: &TxStore, config: &TcpConfig, now: Instant) -> u64 {
        let rto = self.rto_ns(config);
        let Some(sent_us) = self.tx.head_sent_us(store) else { return rto };
        let out_us = micros(now).wrapping_sub(sent_us);
        rto.saturating_sub(u64::from(out_us) * 1000)
    }

    /// After an ACK of new data: the tail loss probe's timer if one may be sent, else the retransmission timer.
    #[inline]
    pub(crate) fn restart_timer(&mut self, store: &TxStore, config: &TcpConfig, now: Instant) {
        self.restart_timer_if(|tcb| tcb.tx.has_one_out(store), config, now);
    }

    /// As [`Tcb::restart_timer`]; `single`: only one segment is out.
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

    /// No probe is sent then.
    #[cold]
    fn restart_backed_off(&mut self, config: &TcpConfig, now: Instant) {
        let wait = self.rto_ns(config);
        self.set_timer(TimerKind::Retransmit, now.add_nanos(wait));
    }

    /// After sending: the probe is put off, the time-out is not.
    #[inline]
    pub(crate) fn put_off_probe(&mut self, store: &TxStore, config: &TcpConfig, now: Instant) {
        if self.flags.timer_is(TimerKind::Probe)
            && let Some(wait) = self.probe_wait(|tcb| tcb.tx.has_one_out(store), config)
        {
            let wait = wait.min(self.rto_left(store, config, now));
            self.set_timer(TimerKind::Probe, now.add_nanos(wait));
        }
    }

    /// An orphan in FIN-WAIT-2 gives its peer a bounded time (Linux `tcp_fin_timeout`). Nothing of ours is outstanding any
    /// more, so the timer is free for it.
    pub(crate) fn wait_for_fin(&mut self, config: &TcpConfig, now: Instant) {
        self.set_timer(TimerKind::FinWait2, now + config.fin_wait_2);
    }

    /// The earliest deadline as a tick; `None` when no timer runs.
    #[inline]
    pub(crate) fn deadline(&self, now: Instant) -> Option<u32> {
        let timer = if self.timer_runs() { Some(self.timer.tick()) } else { None };
        // While a timer runs there are no keepalive probes.
        timer.or_else(|| self.keepalive_at().map(|at| deadline_tick(at.min(now + KEEPALIVE_HORIZON))))
    }

    /// Before an entry for `deadline` is put into the wheel. With keepalive there is an entry seconds off for most of a connection's
    /// life, and each retransmission timer needs an earlier one: the later one is remembered, and counts again once the earlier
    /// ones are over. True: it does now, and no other is needed.
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
        // One that is due is in the wheel no more.
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

    /// When the next keepalive probe is due: RFC 9293 3.8.4.
    pub(crate) fn keepalive_at(&self) -> Option<Instant> {
        let ext = self.ext.as_ref()?;
        let keepalive = ext.keepalive?;
        // Retransmission watches the connection while data is outstanding.
        if self.snd.una() != self.snd.nxt() || self.timer_runs() {
            return None;
        }
        let waits = keepalive.interval.saturating_mul(ext.keepalive_probes.into());
        Some(ext.last_received + keepalive.idle + waits)
    }

    /// What is due at `now`.
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

    /// Notes that the peer is alive.
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

/// Retransmission time-outs after which a connection is given up, given `retries` of the configuration.
/// An orphan is held to fewer (Linux `tcp_orphan_retries`, 8).
pub(crate) fn give_up_after(retries: u8, orphan: bool) -> u8 {
    if orphan { retries.min(8) } else { retries }
}

/// How long `retries` time-outs after a first one take, each twice the one before, from `min` to `max`: Linux
/// `tcp_model_timeout`, 924.6 s for 15 from 200 ms to 120 s.
pub(crate) fn time_of(retries: u8, min: Duration, max: Duration) -> Duration {
    (0..=retries).map(|n| backoff(min, n, max)).fold(Duration::ZERO, Duration::saturating_add)
}

/// The next wait of a handshake's retransmission: doubled each time.
#[inline]
pub(crate) fn handshake_wait(initial: Duration, tries: u8, max: Duration) -> Duration {
    if tries == 0 {
        return initial.min(max);
    }
    (initial * (1 << tries.min(10)) as u32).min(max)
}
