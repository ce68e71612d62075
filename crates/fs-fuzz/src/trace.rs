//! What a target's run looked like from outside, in one number: to compare two runs that must be the same.

use std::cell::Cell;

thread_local! {
    static SHORTCUTS: Cell<bool> = const { Cell::new(true) };
    static DIGEST: Cell<Option<u64>> = const { Cell::new(None) };
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// A run, and how many packets went the engine's short way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Of all packets, events, deadlines and counters.
    pub digest: u64,
    /// See [`fs_core::Stack::set_shortcuts`].
    pub taken: u64,
}

/// Runs a target with the engine's shortcuts or without them.
pub fn run(target: fn(&[u8]) -> u64, input: &[u8], shortcuts: bool) -> Trace {
    SHORTCUTS.set(shortcuts);
    DIGEST.set(Some(0xcbf2_9ce4_8422_2325));
    TAKEN.set(0);
    target(input);
    SHORTCUTS.set(true);
    Trace { digest: DIGEST.take().unwrap_or_default(), taken: TAKEN.get() }
}

pub(crate) fn shortcuts() -> bool {
    SHORTCUTS.get()
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
