//! The stop of a program: one request for all cores, and on each core a wake-up for its tasks.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use tokio::sync::{Notify, watch};

/// Asks all cores to stop. Shared between threads, but used only at the start and end, never per
/// connection.
#[derive(Clone, Debug)]
pub struct Stop {
    sender: std::sync::Arc<watch::Sender<bool>>,
}

impl Default for Stop {
    fn default() -> Self {
        Self { sender: std::sync::Arc::new(watch::Sender::new(false)) }
    }
}

impl Stop {
    /// Requests the stop. Further requests do nothing.
    pub fn request(&self) {
        self.sender.send_replace(true);
    }

    /// Returns true after the stop was requested.
    pub fn is_requested(&self) -> bool {
        *self.sender.borrow()
    }

    /// Completes after the stop was requested.
    pub async fn requested(&self) {
        let mut receiver = self.sender.subscribe();
        // `self` keeps the sender, so the wait cannot fail.
        let _ = receiver.wait_for(|stop| *stop).await;
    }
}

#[derive(Debug, Default)]
struct Shared {
    requested: Cell<bool>,
    changed: Notify,
    open: Cell<usize>,
    drained: Notify,
}

/// One core's side. Its connections wait here for the stop, and the core waits for its connections
/// to end.
#[derive(Clone, Debug, Default)]
pub struct LocalStop(Rc<Shared>);

impl LocalStop {
    /// Returns true after the stop was requested.
    pub fn is_requested(&self) -> bool {
        self.0.requested.get()
    }

    /// Tells all connections of this core to stop.
    pub fn request(&self) {
        self.0.requested.set(true);
        self.0.changed.notify_waiters();
    }

    /// Completes after the stop was requested.
    pub fn requested(&self) -> impl Future<Output = ()> + 'static {
        let shared = self.0.clone();
        async move {
            while !shared.requested.get() {
                shared.changed.notified().await;
            }
        }
    }

    /// Counts a connection as open until the guard is dropped.
    pub fn open(&self) -> OpenGuard {
        self.0.open.set(self.0.open.get() + 1);
        OpenGuard(self.0.clone())
    }

    /// Connections open now.
    pub fn open_count(&self) -> usize {
        self.0.open.get()
    }

    /// Completes when no connection is open.
    pub async fn drained(&self) {
        while self.0.open.get() > 0 {
            self.0.drained.notified().await;
        }
    }
}

/// Counts a connection as open while it lives.
#[derive(Debug)]
pub struct OpenGuard(Rc<Shared>);

impl Drop for OpenGuard {
    fn drop(&mut self) {
        let left = self.0.open.get() - 1;
        self.0.open.set(left);
        if left == 0 {
            self.0.drained.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(future: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(future);
    }

    #[test]
    fn stop_wakes_all_waiters_and_later_ones() {
        run(async {
            let stop = LocalStop::default();
            let (a, b) = (stop.requested(), stop.requested());
            let asker = async { stop.request() };
            tokio::join!(a, b, asker);
            assert!(stop.is_requested());
            stop.requested().await;
        });
    }

    #[test]
    fn drained_waits_for_the_last_connection() {
        run(async {
            let stop = LocalStop::default();
            let (first, second) = (stop.open(), stop.open());
            drop(first);
            assert_eq!(stop.open_count(), 1);
            let order = Cell::new(0);
            let closer = async {
                tokio::task::yield_now().await;
                order.set(1);
                drop(second);
            };
            let waiter = async {
                stop.drained().await;
                assert_eq!(order.get(), 1);
            };
            tokio::join!(waiter, closer);
        });
    }
}
