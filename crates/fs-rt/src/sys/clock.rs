//! The runtime's clock: one epoch for all cores, so that times in handed-over connections agree.

use fs_core::Instant;
use std::time::Duration;

/// More than any run lasts, and within what the clock counts.
const ENDLESS: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Returns the time `time` from now. A configuration may have `Duration::MAX`, at which `+` panics.
pub(crate) fn from_now(time: Duration) -> std::time::Instant {
    std::time::Instant::now() + time.min(ENDLESS)
}

/// Nanoseconds since the runtime was built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    epoch: std::time::Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { epoch: std::time::Instant::now() }
    }

    /// Takes about 25 ns (vDSO), so it is read once per turn, not once per packet.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.epoch.elapsed().as_nanos() as u64)
    }

    /// Converts to tokio's clock.
    pub(crate) fn to_tokio(self, at: Instant) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.epoch + Duration::from_nanos(at.as_nanos()))
    }
}
