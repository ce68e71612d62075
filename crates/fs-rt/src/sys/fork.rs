//! What a child of fork(2) does first.

use std::sync::OnceLock;

static IN_CHILD: OnceLock<fn()> = OnceLock::new();

/// Has `f` run in every child from here on (pthread_atfork(3)), once however often it is asked for. It may do nothing that takes
/// a lock: another thread of the parent may have held it.
pub(crate) fn after_fork_in_child(f: fn()) {
    let mut first = false;
    IN_CHILD.get_or_init(|| {
        first = true;
        f
    });
    if first {
        // SAFETY: `run` is a function of the right type, and lives as long as the program.
        // It fails for want of memory only; then a child's sockets are quiet instead of closed.
        unsafe { libc::pthread_atfork(None, None, Some(run)) };
    }
}

extern "C" fn run() {
    if let Some(f) = IN_CHILD.get() {
        f();
    }
}
