//! Runs functions on a runtime's cores, from any thread.

use super::shared::runtime_ended;
use fs_rt::Handle;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::oneshot;

/// Returns the core that makes the next connection, in turn.
pub(super) fn next(runtime: &Handle) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) % runtime.cores()
}

/// Returns the cores that serve a UDP socket.
pub(super) fn of_datagrams(runtime: &Handle) -> Range<usize> {
    if runtime.is_kernel_only() {
        let one = next(runtime);
        return one..one + 1;
    }
    0..runtime.cores()
}

/// Runs `make` as a task of a core and waits for its result, or for the end of the runtime. Waits
/// for a runtime that is not running yet.
pub(super) async fn ask<T, F, Fut>(runtime: &Handle, core: usize, make: F) -> io::Result<T>
where
    T: Send + 'static,
    F: FnOnce(oneshot::Sender<T>) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let (answer, answered) = oneshot::channel();
    runtime.spawn_on(core, move || make(answer)).map_err(|_| runtime_ended())?;
    tokio::select! {
        biased;
        answer = answered => answer.map_err(|_| runtime_ended()),
        // The runtime may have ended before it took the task.
        () = runtime.ended() => Err(runtime_ended()),
    }
}
