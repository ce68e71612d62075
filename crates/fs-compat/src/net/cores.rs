//! Runs functions on a runtime's cores, from any thread.

use super::shared::runtime_ended;
use crate::local::attempts::each_addr;
use fs_rt::Handle;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::ToSocketAddrs;
use tokio::sync::oneshot;

/// Turns after which a core has usually closed a socket that was dropped before: it reads wake-ups of
/// other threads at least once in 31 tasks (tokio's `global_queue_interval`), and a UDP socket first
/// sends 256 datagrams, 64 in a turn. Fewer: a program cannot bind the address of a socket that it has just
/// dropped. More: a bind of an address in use takes longer to fail.
const CLOSING: usize = 64;

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

/// Binds to the first of `addrs` that is available. If one is in use, tries once more after each core
/// has closed the sockets that the program has dropped.
pub(super) async fn bind<A, F, Fut, T>(runtime: &Handle, addrs: A, bind: F) -> io::Result<T>
where
    A: ToSocketAddrs,
    F: Fn(SocketAddr) -> Fut,
    Fut: Future<Output = io::Result<T>>,
{
    each_addr(addrs, async |at| {
        match bind(at).await {
            Err(used) if used.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound,
        }
        for core in 0..runtime.cores() {
            let closed = ask(runtime, core, |answer| async {
                for _ in 0..CLOSING {
                    fs_rt::turn().await;
                }
                // The caller may not wait any more.
                let _ = answer.send(());
            });
            closed.await?;
        }
        bind(at).await
    })
    .await
}
