//! Cancellation points.
//!
//! A call that goes to the C library is a cancellation point there. A call of an accelerated socket asks here first;
//! processes that never call pthread_cancel pay one load for it. In those that do, waits of fs-socket look several times a
//! second whether their thread is one that was cancelled ([`is_cancelled`]), and come back if it is ([`CANCELLED`]) to ask
//! again ([`until_done`]).
//!
//! The C library does not tell whether a thread has been cancelled, but by ending it. So threads are noted as they are
//! cancelled. A note goes when its thread comes to a point at which it could have ended: what it was for is over then, or
//! that was an earlier thread with the same identity.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, fence};

use fs_socket::Ours;
use fs_socket::stream::channel::{CANCELLED, CANCELS};
use libc::{c_int, pthread_t};

const PTHREAD_CANCEL_ENABLE: c_int = 0;
const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Threads that have been cancelled; 0: a free place.
static NOTED: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];
/// There were more of them: any thread may be one.
static MORE: AtomicBool = AtomicBool::new(false);

/// pthread_cancel is about to be called.
pub(super) fn requested() {
    fs_socket::stream::channel::begin_cancelling(is_cancelled);
}

/// It has been called. Not before: a thread that forgets its note looks for the cancellation after that.
pub(super) fn note(thread: pthread_t) {
    fence(SeqCst);
    let thread = thread as usize;
    if NOTED.iter().any(|place| place.load(SeqCst) == thread) {
        return;
    }
    if !NOTED.iter().any(|place| place.compare_exchange(0, thread, SeqCst, Relaxed).is_ok()) {
        MORE.store(true, SeqCst);
    }
}

fn me() -> usize {
    // SAFETY: no precondition.
    unsafe { libc::pthread_self() as usize }
}

/// Whether the calling thread may have been cancelled, and ends at the next point.
fn is_cancelled() -> bool {
    let me = me();
    (MORE.load(Relaxed) || NOTED.iter().any(|place| place.load(Relaxed) == me)) && is_enabled()
}

/// Whether this thread acts on a cancellation: of one that does not, calls go on.
fn is_enabled() -> bool {
    let mut before = PTHREAD_CANCEL_ENABLE;
    // SAFETY: the C library writes one int; the state is as it was afterwards.
    unsafe {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before);
        pthread_setcancelstate(before, ptr::null_mut());
    }
    before == PTHREAD_CANCEL_ENABLE
}

/// Acts on a pending cancellation of the calling thread: does not return then. Nothing with a destructor may be live in
/// the callers' frames.
#[inline]
pub(super) fn point() {
    if CANCELS.load(Relaxed) {
        act();
    }
}

#[cold]
fn act() {
    if is_cancelled() {
        let me = me();
        for place in &NOTED {
            // Lost: it is another thread's.
            let _ = place.compare_exchange(me, 0, SeqCst, Relaxed);
        }
        // Who cancels this thread now, and found the note, had cancelled it before: seen below.
        fence(SeqCst);
    }
    // SAFETY: no precondition; unwinding passes frames without destructors only.
    unsafe { pthread_testcancel() };
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
