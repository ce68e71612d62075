//! The timer wheel's ticks, 32 bits that wrap.

use crate::time::Instant;

/// Wheel ticks are 2^20 ns, about 1.05 ms; in 32 bits they wrap after 52 days.
pub(crate) const TICK_SHIFT: u32 = 20;

/// A turn's time in the units of segments and timers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    /// Microseconds modulo 2^32.
    pub(crate) us: u32,
    /// The wheel's ticks modulo 2^32.
    pub(crate) tick: u32,
}

/// Returns the tick at or after `at`. Never 0, which means "off".
#[inline]
pub(crate) fn deadline_tick(at: Instant) -> u32 {
    ((at.as_nanos().saturating_add((1 << TICK_SHIFT) - 1) >> TICK_SHIFT) as u32).max(1)
}

/// Returns the tick that contains `now`.
#[inline]
pub(crate) fn current_tick(now: Instant) -> u32 {
    (now.as_nanos() >> TICK_SHIFT) as u32
}

/// Returns the start of `tick`, which is near `now`.
#[inline]
pub(crate) fn tick_instant(tick: u32, now: Instant) -> Instant {
    let base = now.as_nanos() >> TICK_SHIFT;
    let delta = tick.wrapping_sub(base as u32) as i32 as i64;
    Instant::from_nanos(((base as i64 + delta).max(0) as u64) << TICK_SHIFT)
}

/// Compares ticks modulo 2^32.
#[inline]
pub(crate) fn tick_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_deadline_is_early_and_none_is_late_by_more_than_a_tick() {
        const TICK: u64 = 1 << TICK_SHIFT;
        for at in (TICK - 2..TICK + 3).chain(5 * TICK - 2..5 * TICK + 3).chain([1 << 40, (1 << 52) + 7]) {
            let at = Instant::from_nanos(at);
            let fires = tick_instant(deadline_tick(at), at);
            assert!(fires >= at, "{at:?} fires at {fires:?}");
            assert!(fires.as_nanos() - at.as_nanos() < TICK, "{at:?} fires at {fires:?}");
            assert_eq!(current_tick(fires), deadline_tick(at));
        }
    }
}
