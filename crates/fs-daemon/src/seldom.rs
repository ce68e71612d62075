//! Messages about what fails over and over: one now and then, so that a log at a limit neither grows nor hides the rest.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Seconds between two of a kind. Shorter: a busy host at a limit fills its log. Longer: what goes on looks as if it
/// had ended.
const PAUSE: u64 = 10;

static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// One kind of message.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    /// Second of the last one, + 1; 0: none yet.
    last: AtomicU64,
    left_out: AtomicU64,
}

impl Seldom {
    pub(crate) const fn new() -> Self {
        Self { last: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }

    /// How many were left out before this one; `None`: so is this one.
    pub(crate) fn due(&self) -> Option<u64> {
        self.due_at(BEGUN.elapsed().as_secs())
    }

    fn due_at(&self, second: u64) -> Option<u64> {
        let last = self.last.load(Relaxed);
        if last != 0 && second + 1 < last + PAUSE {
            self.left_out.fetch_add(1, Relaxed);
            return None;
        }
        self.last.store(second + 1, Relaxed);
        Some(self.left_out.swap(0, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_now_and_then() {
        let seldom = Seldom::new();
        assert_eq!(seldom.due_at(0), Some(0));
        assert_eq!((seldom.due_at(0), seldom.due_at(PAUSE - 1)), (None, None));
        assert_eq!(seldom.due_at(PAUSE), Some(2));
        assert_eq!(seldom.due_at(PAUSE + 1), None);
    }
}
