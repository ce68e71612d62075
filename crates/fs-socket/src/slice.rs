//! How long a thread that waits sleeps at once.
//!
//! 1. A sleep ends when somebody tells: a publisher by a futex word or a doorbell, the daemon by its end, another thread of
//!    the process by a recall. Where all of these reach the sleeper it sleeps as long as its call may.
//! 2. Where one of them cannot, the sleep is cut into slices, and the caller looks between two of them.
//! 3. Threads that may be cancelled look most often, whatever they sleep on: nobody wakes a thread for its cancellation but
//!    once, when the first is ([`crate::stream::channel::begin_cancelling`]).

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use crate::stream::channel::CANCELS;

/// How often a wait comes back while threads may be cancelled. Longer: pthread_cancel is felt. Shorter: idle threads cost CPU.
pub const CANCEL: Duration = Duration::from_millis(100);

/// Where nothing wakes a sleeper for what he has to look at: a daemon that has gone or come, a listener that another thread
/// has taken away. Longer: that is felt. Shorter: idle threads cost CPU.
pub(crate) const UNTOLD: Duration = Duration::from_secs(1);

/// Where the daemon's end wakes one sleeper after another, each of which may be killed just then. Shorter: idle processes
/// cost CPU. Longer: after that they hang.
pub(crate) const TOLD: Duration = Duration::from_secs(30);

/// Where everything that ends the wait is told.
pub(crate) const ENDLESS: Duration = Duration::MAX;

/// The next slice of a wait that would sleep for `longest`. SeqCst: who announces a sleep without end, and then asks, is seen
/// by the first who cancels a thread, or sees him.
pub(crate) fn of(longest: Duration) -> Duration {
    if CANCELS.load(SeqCst) { longest.min(CANCEL) } else { longest }
}

/// The same with what is left of the call's time, for a system call; `None`: no end.
pub(crate) fn timeout(slice: Duration, left: Option<Duration>) -> Option<Duration> {
    match left {
        Some(left) => Some(left.min(slice)),
        None => (slice != ENDLESS).then_some(slice),
    }
}

#[cfg(test)]
mod tests {
    use super::{CANCEL, ENDLESS, TOLD, UNTOLD, timeout};
    use std::time::Duration;

    #[test]
    fn the_shorter_of_slice_and_time_left_ends_a_sleep() {
        const SHORT: Duration = Duration::from_millis(1);
        assert!(CANCEL < UNTOLD && UNTOLD < TOLD && TOLD < ENDLESS);
        assert_eq!(timeout(ENDLESS, None), None);
        assert_eq!(timeout(UNTOLD, None), Some(UNTOLD));
        assert_eq!(timeout(ENDLESS, Some(SHORT)), Some(SHORT));
        assert_eq!(timeout(UNTOLD, Some(SHORT)), Some(SHORT));
        assert_eq!(timeout(CANCEL, Some(TOLD)), Some(CANCEL));
    }
}
