//! Counters of the promoted connections of this process, appended to the file that
//! `FASTSOCK_REPORT` names when the process ends.

use std::sync::atomic::{AtomicU64, Ordering};

use fs_carrier::counters::Counts;

use crate::sys::guarded::Guarded;

/// Sockets that were promoted.
static PROMOTED: AtomicU64 = AtomicU64::new(0);
/// Counters of the sockets that are closed.
static CLOSED: Guarded<Option<Counts>> = Guarded::new(None);

/// Counts a promoted socket.
pub(crate) fn count_promotion() {
    PROMOTED.fetch_add(1, Ordering::Relaxed);
}

/// Adds the counters of a promoted socket that is closed.
pub(crate) fn add(counts: Counts) {
    CLOSED.with(|closed| *closed.get_or_insert_default() += counts);
}

/// Resets the counters in a child.
pub(crate) fn begin_child() {
    CLOSED.break_lock();
    CLOSED.with(|closed| *closed = None);
    PROMOTED.store(0, Ordering::Relaxed);
}

/// Returns one line of names and numbers. `open`: the counters of the open sockets.
pub(crate) fn line(open: Counts) -> String {
    let mut sum = CLOSED.with(|closed| closed.unwrap_or_default());
    sum += open;
    let promoted = PROMOTED.load(Ordering::Relaxed);
    format!(
        "pid={} promoted={promoted} ring_sends={} kernel_sends={} to_ring={} to_kernel={} full={} sleeps={} pins={} corrected={}\n",
        std::process::id(),
        sum.ring_sends,
        sum.kernel_sends,
        sum.to_ring,
        sum.to_kernel,
        sum.full,
        sum.sleeps,
        sum.pins,
        sum.corrected
    )
}
