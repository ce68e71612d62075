//! A process that confines itself (seccomp): from then on the library makes no system call that the
//! application does not make.
//!
//! Before the filter is in place, every socket is pinned, the connection to the match service is
//! closed, and all that has no unread ring bytes is forgotten. Sockets with such bytes stay in the
//! table until these are read: a copy, and no system call. What a ring needs the kernel for
//! otherwise is left out: questions about addresses, counts and events, yields, signal masks, and
//! memory that could be freed.
//!
//! A filter from before the program's start, such as that of a container, says nothing of itself:
//! the library makes its calls under it.

use std::sync::atomic::{AtomicU8, Ordering};

/// [`STATE`]: the process is confined, and every number is the C library's.
const CONFINED: u8 = 1;
/// [`STATE`]: the process is confined, and rings had unread bytes at that moment.
const WITH_RESTS: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(0);

/// Returns whether the process has confined itself.
#[inline]
pub(crate) fn is_confined() -> bool {
    STATE.load(Ordering::Relaxed) != 0
}

/// Returns whether rings had unread bytes when the process confined itself.
pub(crate) fn has_rests() -> bool {
    STATE.load(Ordering::Relaxed) == WITH_RESTS
}

/// Records that the process has confined itself. `has_rests`: rings have unread bytes.
pub(crate) fn set(has_rests: bool) {
    STATE.store(if has_rests { WITH_RESTS } else { CONFINED }, Ordering::Relaxed);
}
