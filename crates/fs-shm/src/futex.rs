//! Sleeping and waking across processes.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{Timespec, futex};

/// What ended a sleep.
pub(crate) enum Woken {
    /// A wake-up, or the word had changed already.
    Wake,
    /// The time is over.
    Timeout,
    /// A signal handler ran.
    Signal,
}

/// Sleeps while `*word == seen`, at most `timeout`.
pub(crate) fn wait(word: &AtomicU32, seen: u32, timeout: Duration) -> Woken {
    let timeout = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: i64::from(timeout.subsec_nanos()) };
    // Shared, not PRIVATE: the peer is another process.
    match futex::wait(word, futex::Flags::empty(), seen, Some(&timeout)) {
        Err(Errno::TIMEDOUT) => Woken::Timeout,
        Err(Errno::INTR) => Woken::Signal,
        // AGAIN: the word moved. Anything else is a wrong call, which the caller's own check of its condition survives.
        Ok(()) | Err(_) => Woken::Wake,
    }
}

/// Wakes all who sleep on `word`.
pub(crate) fn wake_all(word: &AtomicU32) {
    // Fails only for an address that is not mapped, and `word` is a reference.
    let _woken = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// About 60 µs, for those who wait for a lock whose holder is not running.
pub(crate) fn nap() {
    // Cut short by a signal: the caller tries again anyway.
    let _rest = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 10_000 });
}
