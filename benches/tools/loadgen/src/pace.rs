//! Requests at a fixed rate: a thread of each core says when the next one is due.
//!
//! A timer of the runtime has a resolution of a millisecond, in which 30 requests would leave at once.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The times at which requests are due. Connections that have nothing to do wait here in turn.
pub(crate) struct Pace {
    due: Mutex<UnboundedReceiver<Instant>>,
    ended: Arc<AtomicBool>,
}

impl Pace {
    /// Starts with a request each `interval`. The thread runs on the caller's processor.
    pub(crate) fn start(interval: Duration) -> Self {
        let (sender, due) = unbounded_channel();
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let pace = move || {
            // Otherwise the kernel may wake it 50 µs late. It cannot fail for the calling thread.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            let mut next = Instant::now();
            while !end.load(Ordering::Relaxed) && sender.send(next).is_ok() {
                next += interval;
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        };
        thread::Builder::new().name("pace".into()).spawn(pace).expect("a thread can be started");
        Self { due: Mutex::new(due), ended }
    }

    /// Ends the load. Connections that wait for a time get `None`.
    pub(crate) fn stop(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Waits until a request is due. Returns since when, and `None` at the end.
    pub(crate) async fn due(&self) -> Option<Instant> {
        self.due.lock().await.recv().await
    }
}
