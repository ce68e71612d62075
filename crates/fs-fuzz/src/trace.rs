//! A digest of a target's run, for comparing two runs that must be equal.

use std::cell::Cell;

thread_local! {
    static FAST_PATHS: Cell<bool> = const { Cell::new(true) };
    static DIGEST: Cell<Option<u64>> = const { Cell::new(None) };
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// A run's digest, and the number of packets on the engine's fast paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Digest of all packets, events, deadlines and counters.
    pub digest: u64,
    /// See [`fs_core::Stack::set_fast_paths`].
    pub taken: u64,
}

/// Runs a target with the engine's fast paths or without them.
pub fn run(target: fn(&[u8]) -> u64, input: &[u8], fast_paths: bool) -> Trace {
    FAST_PATHS.set(fast_paths);
    DIGEST.set(Some(0xcbf2_9ce4_8422_2325));
    TAKEN.set(0);
    target(input);
    FAST_PATHS.set(true);
    Trace { digest: DIGEST.take().unwrap_or_default(), taken: TAKEN.get() }
}

pub(crate) fn fast_paths() -> bool {
    FAST_PATHS.get()
}

pub(crate) fn is_on() -> bool {
    DIGEST.get().is_some()
}

pub(crate) fn took(packets: u64) {
    TAKEN.set(TAKEN.get() + packets);
}

/// Adds to the digest.
pub fn note(bytes: &[u8]) {
    if let Some(digest) = DIGEST.get() {
        DIGEST.set(Some(bytes.iter().fold(digest, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))));
    }
}
