//! Sleeps for some microseconds.

use std::time::Duration;

/// Makes sleeps of the calling thread end on time, and not up to 50 µs later (prctl(2),
/// `PR_SET_TIMERSLACK`).
pub(crate) fn exact_timers() {
    // SAFETY: takes numbers only. It changes the calling thread's timers and cannot fail for the
    // calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

/// Sleeps. A signal ends it early.
pub(crate) fn sleep_for(time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    // SAFETY: `time` outlives the call, and no remainder is asked for.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &raw const time, std::ptr::null_mut()) };
}
