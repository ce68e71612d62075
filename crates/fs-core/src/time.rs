//! The engine's notion of time: nanoseconds handed in by the caller, never read from a clock.

use core::ops::{Add, Sub};
pub use core::time::Duration;

/// Nanoseconds since an epoch that the caller chose. 584 years fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The epoch.
    pub const ZERO: Instant = Instant(0);

    /// From nanoseconds.
    #[inline]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// From microseconds.
    #[inline]
    pub const fn from_micros(us: u64) -> Self {
        Self(us * 1_000)
    }

    /// From milliseconds.
    #[inline]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// Nanoseconds since the epoch.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds since the epoch.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Whole milliseconds since the epoch.
    #[inline]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// So many nanoseconds later.
    #[inline]
    pub(crate) fn add_nanos(self, ns: u64) -> Instant {
        Instant(self.0.saturating_add(ns))
    }

    /// Time passed since `earlier`; zero if `earlier` is later.
    #[inline]
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A duration in nanoseconds, as `as_nanos` but in 64 bits: 584 years fit, and more are as good as for ever. What
/// happens for every segment is reckoned in these: making and comparing a `Duration` costs a division and two branches.
#[inline]
pub(crate) fn nanos(d: Duration) -> u64 {
    // Less than 2^34 s do not overflow.
    if d.as_secs() >> 34 == 0 { d.as_secs() * 1_000_000_000 + u64::from(d.subsec_nanos()) } else { u64::MAX }
}

/// Microseconds modulo 2^32, as segments are stamped.
#[inline]
pub(crate) fn micros(now: Instant) -> u32 {
    now.as_micros() as u32
}

/// The later of two times in microseconds.
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
