//! A process that confines itself (seccomp): from then on the library makes no system call that the application does not make.
//!
//! Before the filter is in place, every socket is pinned, the connection to the match service is closed, and all that has no unread ring
//! bytes is forgotten. Sockets with such bytes stay in the table until these are read: a copy, and no system call. What a ring needs the
//! kernel for otherwise is left out: questions about addresses, counts and events, yields, signal masks, and memory that could be freed.
//!
//! A filter from before the program's start, such as that of a container, says nothing of itself: the library makes its calls under it.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::table::{self, Body};
use crate::{descriptor, process, promotion, sys};

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

/// The process is about to confine itself.
pub(crate) fn begin() {
    if is_confined() {
        return;
    }
    process::notice_fork();
    descriptor::leave_all_to_kernel();
    let mut state = CONFINED;
    table::for_each(|fd, slot| {
        let Some(held) = table::hold(slot) else { return };
        match held.body() {
            Body::Socket(socket) if socket.has_ring(fd) => state = WITH_RESTS,
            Body::Socket(_) => descriptor::retire(fd, held),
            Body::Set(polled) if polled.has_rest() => {}
            Body::Set(_) => {
                slot.end();
                if let Some(held) = table::take(slot) {
                    held.release();
                }
            }
        }
        held.release();
    });
    promotion::disconnect();
    sys::start::report();
    STATE.store(state, Ordering::Relaxed);
}
