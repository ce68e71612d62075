//! Cancellation points.
//!
//! A call that goes to the C library is a cancellation point there. A call of an accelerated socket asks here first;
//! processes that never call pthread_cancel pay one load for it.

use core::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Whether this process has ever cancelled a thread.
static USED: AtomicBool = AtomicBool::new(false);

/// pthread_cancel is about to be called.
pub(super) fn requested() {
    USED.store(true, Ordering::SeqCst);
}

/// Acts on a pending cancellation of the calling thread: does not return then. Nothing with a destructor may be live in
/// the callers' frames.
#[inline]
pub(super) fn point() {
    if USED.load(Ordering::Relaxed) {
        // SAFETY: no precondition; unwinding passes frames without destructors only.
        unsafe { pthread_testcancel() };
    }
}
