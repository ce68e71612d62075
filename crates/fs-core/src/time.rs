//! The engine's time: nanoseconds passed in by the caller, never read from a clock.

use core::ops::{Add, Sub};
pub use core::time::Duration;

/// Nanoseconds since an epoch that the caller chose. 584 years fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The epoch.
    pub const ZERO: Instant = Instant(0);

    /// Makes an instant from nanoseconds.
    #[inline]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Makes an instant from microseconds.
    #[inline]
    pub const fn from_micros(us: u64) -> Self {
        Self(us * 1_000)
    }

    /// Makes an instant from milliseconds.
    #[inline]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// Returns the nanoseconds since the epoch.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole microseconds since the epoch.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Returns the whole milliseconds since the epoch.
    #[inline]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the instant `ns` nanoseconds later.
    #[inline]
    pub(crate) fn add_nanos(self, ns: u64) -> Instant {
        Instant(self.0.saturating_add(ns))
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    #[inline]
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Returns a duration in nanoseconds, as `as_nanos` but in 64 bits: 584 years fit, and longer
/// durations are treated as unlimited. Code that runs for every segment uses this unit: making and
/// comparing a `Duration` costs a division and two branches.
#[inline]
pub(crate) fn nanos(d: Duration) -> u64 {
    // Less than 2^34 s do not overflow.
    if d.as_secs() >> 34 == 0 { d.as_secs() * 1_000_000_000 + u64::from(d.subsec_nanos()) } else { u64::MAX }
}

/// Returns the microseconds modulo 2^32, the unit of segments' times.
#[inline]
pub(crate) fn micros(now: Instant) -> u32 {
    now.as_micros() as u32
}

/// Returns the later of two times in microseconds.
pub(crate) fn later(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if (a.wrapping_sub(b) as i32) >= 0 { a } else { b }),
        (a, b) => a.or(b),
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    #[inline]
    fn add(self, d: Duration) -> Instant {
        self.add_nanos(nanos(d))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    #[inline]
    fn sub(self, d: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(d)))
    }
}
