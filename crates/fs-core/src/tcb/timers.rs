//! A connection's deadlines. One entry in the core's wheel stands for all of them: it is set for the
//! earliest, and when it fires too early (the deadline has moved, as an RTO does with every ACK) it is
//! simply set again.

use crate::tcb::Tcb;
use crate::time::{Duration, Instant};

/// Wheel ticks are 2^20 ns, about 1.05 ms; in 32 bits they wrap after 52 days.
const TICK_SHIFT: u32 = 20;

/// The tick at or after `at`. Never 0, which means "off".
#[inline]
pub(crate) fn deadline_tick(at: Instant) -> u32 {
    (((at.as_nanos() + (1 << TICK_SHIFT) - 1) >> TICK_SHIFT) as u32).max(1)
}

/// The tick that `now` is in.
#[inline]
pub(crate) fn current_tick(now: Instant) -> u32 {
    (now.as_nanos() >> TICK_SHIFT) as u32
}

/// The time at which `tick`, which is near `now`, begins.
#[inline]
pub(crate) fn tick_instant(tick: u32, now: Instant) -> Instant {
    let base = now.as_nanos() >> TICK_SHIFT;
    let delta = tick.wrapping_sub(base as u32) as i32 as i64;
    Instant::from_nanos(((base as i64 + delta).max(0) as u64) << TICK_SHIFT)
}

/// Tick order modulo 2^32.
#[inline]
pub(crate) fn tick_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Which of a connection's timers is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Retransmission or persist timer.
    Rto,
    /// Keepalive.
    Keepalive,
    /// An orphan's time is up.
    Orphan,
}

impl Tcb {
    /// The earliest deadline as a tick; `None` when no timer runs.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<u32> {
        let mut first = if self.rto_at != 0 { Some(self.rto_at) } else { None };
        if let Some(ext) = &self.ext {
            let mut consider = |at: Option<Instant>| {
                if let Some(tick) = at.map(deadline_tick)
                    && first.is_none_or(|f| tick_before(tick, f))
                {
                    first = Some(tick);
                }
            };
            consider(ext.orphan_until);
            consider(self.keepalive_at());
        }
        first
    }

    /// When the next keepalive probe is due: RFC 9293 3.8.4.
    pub(crate) fn keepalive_at(&self) -> Option<Instant> {
        let ext = self.ext.as_ref()?;
        let keepalive = ext.keepalive?;
        // Retransmission watches the connection while data is outstanding.
        if self.snd_una != self.snd_nxt || self.rto_at != 0 {
            return None;
        }
        let waits = keepalive.interval * ext.keepalive_probes as u32;
        Some(ext.last_received + keepalive.idle + waits)
    }

    /// Which timer is due at `now`, the most final first.
    pub(crate) fn due(&self, now: Instant) -> Option<Due> {
        let tick = current_tick(now);
        if let Some(ext) = &self.ext
            && ext.orphan_until.is_some_and(|at| at <= now)
        {
            return Some(Due::Orphan);
        }
        if self.rto_at != 0 && !tick_before(tick, self.rto_at) {
            return Some(Due::Rto);
        }
        if self.keepalive_at().is_some_and(|at| at <= now) {
            return Some(Due::Keepalive);
        }
        None
    }

    /// Notes that the peer is alive.
    #[inline]
    pub(crate) fn heard(&mut self, now: Instant) {
        if let Some(ext) = &mut self.ext
            && ext.keepalive.is_some()
        {
            ext.last_received = now;
            ext.keepalive_probes = 0;
        }
    }
}

/// Retransmission time-outs after which a connection is given up, given `retries` of the configuration.
/// An orphan is held to fewer (Linux `tcp_orphan_retries`, 8).
pub(crate) fn give_up_after(retries: u8, orphan: bool) -> u8 {
    if orphan { retries.min(8) } else { retries }
}

/// The next wait of a handshake's retransmission: doubled each time.
pub(crate) fn handshake_wait(initial: Duration, tries: u8, max: Duration) -> Duration {
    (initial * (1 << tries.min(10)) as u32).min(max)
}
