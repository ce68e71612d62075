//! A function that runs first in a child of fork(2).

use std::sync::OnceLock;

static IN_CHILD: OnceLock<fn()> = OnceLock::new();

/// Runs `f` in every child from now on (pthread_atfork(3)). Repeated calls register it once. `f`
/// must not take a lock, because another thread of the parent may hold it.
pub(crate) fn after_fork_in_child(f: fn()) {
    let mut first = false;
    IN_CHILD.get_or_init(|| {
        first = true;
        f
    });
    if first {
        // SAFETY: `run` is a function of the right type and lives as long as the program. The call
        // fails only without memory; then a child's sockets are silent instead of closed.
        unsafe { libc::pthread_atfork(None, None, Some(run)) };
    }
}

extern "C" fn run() {
    if let Some(f) = IN_CHILD.get() {
        f();
    }
}
