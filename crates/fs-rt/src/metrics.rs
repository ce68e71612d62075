//! Counters of the cores for a recorder of the crate `metrics` (feature `metrics`).
//!
//! Cores publish what they counted about ten times a second, as without a recorder; nothing is recorded on their threads.
//! Names are those of `fastsock stat --prometheus`: `fastsock_core_connections`, `fastsock_stack_segments_in` …, each with the
//! label `core`.

use crate::handle::Handle;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

/// Tells the recorder what a runtime's cores have published last. To be called again and again, as before each scrape.
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

/// A thread that calls [`record`] once in `period` until the runtime has ended, and once then.
///
/// # Errors
/// That of starting a thread.
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
