//! Counters of the cores for a recorder of the crate `metrics` (feature `metrics`).
//!
//! Cores publish their counters about ten times per second, as without a recorder. Nothing is
//! recorded on their threads. Names are `fastsock_core_connections`, `fastsock_stack_rx_packets` …
//! (docs/COUNTERS.md), each with the label `core`.

use crate::handle::Handle;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

/// Records the counters that a runtime's cores last published. Call it regularly, for example
/// before each scrape.
pub fn record(handle: &Handle) {
    for core in handle.stats() {
        let label = core.core.to_string();
        core.each(|name, is_gauge, value| {
            let (name, labels) = (format!("fastsock_{name}"), [("core", label.clone())]);
            if is_gauge {
                metrics::gauge!(name, &labels).set(value as f64);
            } else {
                metrics::counter!(name, &labels).absolute(value);
            }
        });
    }
}

/// Starts a thread that calls [`record`] once per `period` until the runtime has ended, and once at
/// its end.
///
/// # Errors
/// If the thread cannot be started.
pub fn every(handle: Handle, period: Duration) -> io::Result<JoinHandle<()>> {
    let run = move || {
        while !handle.has_ended() {
            record(&handle);
            std::thread::sleep(period);
        }
        record(&handle);
    };
    std::thread::Builder::new().name("fastsock-metrics".into()).spawn(run)
}
