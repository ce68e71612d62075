//! The host's clock, and the identity of its threads.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::kernel::Errno;

/// Time of [`nap`]. More: a thread waits longer for the lock of one with a lower priority; fewer:
/// more wake-ups in vain.
const NAP_NS: i64 = 50_000;

/// Sleeps for a moment, by a call that the library makes anyway: a filter of system calls may allow no other.
pub fn nap() {
    let time = rustix::time::Timespec { tv_sec: 0, tv_nsec: NAP_NS };
    // A signal ends it early.
    let _none = rustix::event::poll(&mut [], Some(&time));
}

pub(super) fn is_gone(thread: u32) -> bool {
    let Some(pid) = i32::try_from(thread).ok().and_then(rustix::process::Pid::from_raw) else { return true };
    // kill(2) also accepts a thread id.
    rustix::process::test_kill_process(pid) == Err(Errno::SRCH)
}

/// Returns CLOCK_MONOTONIC in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    time(ClockId::Monotonic)
}

/// Returns CLOCK_MONOTONIC_COARSE in nanoseconds: the time of the last tick of CLOCK_MONOTONIC, 4
/// ms ago at most with 250 Hz. It costs 6 ns and not 30, as the processor's counter is not read.
#[inline]
#[must_use]
pub fn coarse_ns() -> u64 {
    time(ClockId::MonotonicCoarse)
}

#[inline]
fn time(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Changes with each fork that [`after_fork`] was told of.
static FORKS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The thread's id, and the value of [`FORKS`] that it belongs to.
    static THREAD: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

/// The calling thread is the only one of a new child process: its id is another one.
pub fn after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[inline]
pub(super) fn thread() -> u32 {
    let forks = FORKS.load(Ordering::Relaxed);
    let (id, of) = THREAD.get();
    if id != 0 && of == forks { id } else { ask_thread(forks) }
}

#[cold]
fn ask_thread(forks: u64) -> u32 {
    let id = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    THREAD.set((id, forks));
    id
}
