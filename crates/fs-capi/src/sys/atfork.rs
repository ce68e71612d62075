//! Our handlers of pthread_atfork(3).
//!
//! fork(2) runs those that are registered in the reverse order before it, and in the order of their registration after it.
//! Ours are registered first: when this library is loaded, or before another library's constructor registers its own. So the
//! application's run with nothing held that another thread may wait for, and with the child's sockets being its own. An allocator's
//! handlers are among the application's: ours do without it (`super::allocator`).

use core::cell::Cell;
use core::ptr;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{AcqRel, Acquire, Release},
};

use fs_socket::process::fork::Forking;

use super::allocator::{free_left, without_malloc};
use super::errno::{errno, set_errno};
use super::real;

static BEGUN: AtomicBool = AtomicBool::new(false);
static REGISTERED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The fork that this thread is in, on its stack. Null: none of ours, or one whose handlers do nothing.
    static CURRENT: Cell<*mut Option<Forking>> = const { Cell::new(ptr::null_mut()) };
}

/// Registers them, the first time. Before main, in one thread.
pub(super) fn register() {
    if BEGUN.swap(true, AcqRel) {
        return;
    }
    // Of no library that could be unloaded.
    let owner = ptr::null_mut();
    // SAFETY: functions that stay: this library is never unloaded.
    let answer = unsafe { real::__register_atfork(Some(prepare), Some(in_parent), Some(in_child), owner) };
    REGISTERED.store(answer == 0, Release);
}

/// Whether fork(2) runs them.
pub(super) fn is_registered() -> bool {
    REGISTERED.load(Acquire)
}

/// Calls `fork`, which runs the handlers. Answers what it answered, and what is left to be done in this process.
pub(super) fn around(mut forking: Forking, fork: impl FnOnce() -> i32) -> (i32, Option<Forking>) {
    forking.let_others();
    let mut slot = Some(forking);
    // A handler may fork itself.
    let before = CURRENT.replace(&raw mut slot);
    let pid = fork();
    CURRENT.set(before);
    free_left();
    (pid, slot)
}

fn with(act: impl FnOnce(&mut Option<Forking>)) {
    let current = CURRENT.get();
    let reason = errno();
    // SAFETY: null or the place of [`around`], which is below this frame, in the child as in the parent, and looks at it
    // only when the handlers have run.
    if let Some(slot) = unsafe { current.as_mut() } {
        without_malloc(|| act(slot));
    }
    set_errno(reason);
}

unsafe extern "C" fn prepare() {
    with(|slot| {
        if let Some(forking) = slot {
            forking.stand_still();
        }
    });
}

unsafe extern "C" fn in_parent() {
    with(|slot| {
        if let Some(forking) = slot {
            forking.end_still();
        }
    });
}

unsafe extern "C" fn in_child() {
    with(|slot| {
        if let Some(forking) = slot.take() {
            fs_socket::after_fork_child(forking);
        }
    });
}
