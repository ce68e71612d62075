//! Cancellation points.
//!
//! A call that goes to the C library is a cancellation point there. A call of an accelerated socket asks here first;
//! processes that never call pthread_cancel pay one load for it. In those that do, waits of fs-socket come back several
//! times a second ([`CANCELLED`]) to ask again ([`until_done`]).

use core::sync::atomic::Ordering;

use fs_socket::Ours;
use fs_socket::stream::channel::{CANCELLED, CANCELS};

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// pthread_cancel is about to be called.
pub(super) fn requested() {
    fs_socket::stream::channel::begin_cancelling();
}

/// Acts on a pending cancellation of the calling thread: does not return then. Nothing with a destructor may be live in
/// the callers' frames.
#[inline]
pub(super) fn point() {
    if CANCELS.load(Ordering::Relaxed) {
        // SAFETY: no precondition; unwinding passes frames without destructors only.
        unsafe { pthread_testcancel() };
    }
}

/// Makes a call that may wait, with its cancellation points. The call holds nothing when it comes back.
#[inline]
pub(super) fn until_done<T>(mut call: impl FnMut() -> Ours<T>) -> Ours<T> {
    point();
    loop {
        match call() {
            Some(Err(CANCELLED)) => point(),
            answer => return answer,
        }
    }
}
