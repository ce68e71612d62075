//! The runtime's clock: one epoch for all cores, so that times in handed-over connections agree.

use fs_core::Instant;

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
        tokio::time::Instant::from_std(self.epoch + std::time::Duration::from_nanos(at.as_nanos()))
    }
}
