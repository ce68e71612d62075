//! State of the whole process: its forks, when it offers sockets, and how it waits.
//!
//! A parent learns of its forks by a handler of pthread_atfork(3), and by the library's own `clone` and `syscall`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use fs_carrier::{Crowd, Pacing};

/// Data calls in each direction after which a socket is offered. More: short connections stay the
/// kernel's, and fewer sockets are passed to the service. Fewer: connections that carry one request
/// cost a promotion.
const CALLS_BEFORE_OFFER: u32 = 4;

static FORKS: AtomicU32 = AtomicU32::new(0);
static CHILD: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks so far. A socket that is older than the last one may have a second holder.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Counts a fork that is about to happen, or has happened.
pub(crate) fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the generation of this process: it differs between a parent and its child.
#[inline]
pub(crate) fn generation() -> u32 {
    CHILD.load(Ordering::Relaxed)
}

/// Starts the generation of a new child.
pub(crate) fn begin_generation() {
    CHILD.fetch_add(1, Ordering::Relaxed);
    count_fork();
}

static CALLS: AtomicU32 = AtomicU32::new(CALLS_BEFORE_OFFER);

/// Sets the number of data calls in each direction before an offer. 0, for tests: a socket is
/// offered at its birth, calls that depend on the service's answer wait for it, and rings are used
/// whenever the rules allow it.
pub(crate) fn set_calls_before_offer(calls: u32) {
    CALLS.store(calls, Ordering::Relaxed);
}

/// Returns the number of data calls in each direction before an offer.
pub(crate) fn calls_before_offer() -> u32 {
    CALLS.load(Ordering::Relaxed)
}

/// Returns whether calls that depend on the service's answer wait for it.
pub(crate) fn waits_for_service() -> bool {
    calls_before_offer() == 0
}

static PACING: OnceLock<Pacing> = OnceLock::new();

/// All threads of a process want the same processors.
static CROWD: Crowd = Crowd::new();

/// Sets the pacing of this process's waits. `yields`, for tests: a spin begins with this many calls
/// of sched_yield(2), also on a crowded machine.
pub(crate) fn set_pacing(yields: Option<u32>) {
    let pacing = match yields {
        Some(yields) => Pacing { yields, ..Pacing::USUAL },
        None => Pacing { crowd: Some(&CROWD), ..Pacing::USUAL },
    };
    let _first = PACING.set(Pacing { is_eager: waits_for_service(), ..pacing });
}

/// Returns the pacing of this process's waits.
#[inline]
pub(crate) fn pacing() -> Pacing {
    PACING.get().copied().unwrap_or(Pacing::USUAL)
}
