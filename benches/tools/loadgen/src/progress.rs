//! Prints a line per second to standard error.

use crate::session::{Live, Plan};
use fs_stacks::counters::Counter;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The running display.
pub(crate) struct Progress {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// Ends it.
    pub(crate) fn stop(self) {
        drop(self.stop);
        // The thread only prints, and its panic was already shown.
        let _ = self.thread.join();
    }
}

/// Starts it.
pub(crate) fn start(plan: Arc<Plan>) -> std::io::Result<Progress> {
    let (stop, stopped) = channel::<()>();
    let print = move || {
        let started = Instant::now();
        let mut before = Sums::default();
        let mut then = started;
        while stopped.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
            let (sums, now) = (Sums::read(&plan), Instant::now());
            let rate = |new: u64, old: u64| (new - old) as f64 / (now - then).as_secs_f64();
            eprintln!(
                "{:4.0} s: {:8.0} connections/s {:9.0} requests/s {:7.3} Gb/s, {} open, {} errors",
                started.elapsed().as_secs_f64(),
                rate(sums.connections, before.connections),
                rate(sums.requests, before.requests),
                rate(sums.bytes, before.bytes) * 8e-9,
                sums.open,
                sums.errors,
            );
            (before, then) = (sums, now);
        }
    };
    Ok(Progress { stop, thread: std::thread::Builder::new().name("progress".into()).spawn(print)? })
}

#[derive(Default)]
struct Sums {
    connections: u64,
    requests: u64,
    bytes: u64,
    errors: u64,
    open: u64,
}

impl Sums {
    fn read(plan: &Plan) -> Self {
        let sum = |counter: fn(&Live) -> &Counter| plan.live.iter().map(|core| counter(&core.0).value()).sum();
        Self {
            connections: sum(|live| &live.connections),
            requests: sum(|live| &live.requests),
            bytes: sum(|live| &live.bytes),
            errors: sum(|live| &live.errors),
            open: sum(|live| &live.open),
        }
    }
}
