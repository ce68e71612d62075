//! Sleeping and waking across processes.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{Timespec, futex};
use rustix::time::ClockId;

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

/// futex_waitv(2) is not to be had: Linux before 5.16, or a filter.
static NO_WAITV: AtomicBool = AtomicBool::new(false);

/// Sleeps while every word has the value beside it. `None`: this kernel cannot. Unlike [`wait`] it goes on after a signal
/// handler with SA_RESTART.
pub(crate) fn wait_any(words: [(&AtomicU32, u32); 3], timeout: Duration) -> Option<Woken> {
    if NO_WAITV.load(Relaxed) {
        return None;
    }
    let waiters = words.map(|(word, seen)| {
        let mut waiter = futex::Wait::new();
        (waiter.val, waiter.flags) = (u64::from(seen), futex::WaitFlags::SIZE_U32);
        waiter.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
        waiter
    });
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let end = Timespec { tv_sec: now.tv_sec.saturating_add_unsigned(timeout.as_secs()), ..now };
    match futex::waitv(&waiters, futex::WaitvFlags::empty(), Some(&end), ClockId::Monotonic) {
        Err(Errno::TIMEDOUT) => Some(Woken::Timeout),
        Err(Errno::INTR) => Some(Woken::Signal),
        Ok(_) | Err(Errno::AGAIN) => Some(Woken::Wake),
        Err(_) => {
            NO_WAITV.store(true, Relaxed);
            None
        }
    }
}

/// Wakes all who sleep on `word`; whether there was one. (A stopped thread does not sleep.)
pub(crate) fn wake_all(word: &AtomicU32) -> bool {
    // Fails only for an address that is not mapped, and `word` is a reference.
    futex::wake(word, futex::Flags::empty(), i32::MAX as u32).is_ok_and(|woken| woken != 0)
}

/// About 60 µs, for those who wait for a lock whose holder is not running.
pub(crate) fn nap() {
    // Cut short by a signal: the caller tries again anyway.
    let _rest = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 10_000 });
}
