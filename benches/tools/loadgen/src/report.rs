//! The report.

use crate::errors::Errors;
use crate::{Args, Mode};
use fs_stacks::usage::ResourceUsage;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// One core's part.
#[derive(Debug)]
pub(crate) struct CoreReport {
    /// The time over which this core measured.
    pub(crate) seconds: Duration,
    pub(crate) connections: u64,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    /// Nanoseconds.
    pub(crate) latency: Histogram<u64>,
    pub(crate) errors: Errors,
}

/// The whole report, serialized as the JSON object. Units are last in the names.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    mode: Mode,
    stack: &'static str,
    conns: u32,
    cores: usize,
    /// The measured time.
    seconds: f64,
    /// From start to end, including opening and closing.
    elapsed_seconds: f64,
    connections: u64,
    requests: u64,
    bytes: u64,
    connections_per_second: f64,
    requests_per_second: f64,
    /// Payload (and HTTP heads), one direction.
    gigabits_per_second: f64,
    /// Mean latency of a request, or of a whole connection in mode `short`. 0 if there was none.
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    errors: BTreeMap<&'static str, u64>,
    pub(crate) errors_total: u64,
    /// CPU time of this process.
    cpu_seconds: f64,
    cpu_user_seconds: f64,
    cpu_system_seconds: f64,
    peak_rss_bytes: u64,
}

impl Report {
    pub(crate) fn new(
        args: &Args,
        cores: Vec<CoreReport>,
        elapsed: Duration,
        before: ResourceUsage,
        after: ResourceUsage,
    ) -> Self {
        let count = cores.len();
        let mut errors = Errors::default();
        let mut latency = Histogram::<u64>::new(3).expect("3 digits are allowed");
        let (mut seconds, mut connections, mut requests, mut bytes) = (0.0_f64, 0, 0, 0);
        for core in cores {
            seconds = seconds.max(core.seconds.as_secs_f64());
            connections += core.connections;
            requests += core.requests;
            bytes += core.bytes;
            errors.add(&core.errors);
            latency.add(&core.latency).expect("it grows as needed");
        }
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        let user = after.user.saturating_sub(before.user).as_secs_f64();
        let system = after.system.saturating_sub(before.system).as_secs_f64();
        Self {
            mode: args.mode,
            stack: args.stack.stack.name(),
            conns: args.conns,
            cores: count,
            seconds,
            elapsed_seconds: elapsed.as_secs_f64(),
            connections,
            requests,
            bytes,
            connections_per_second: connections as f64 / seconds,
            requests_per_second: requests as f64 / seconds,
            gigabits_per_second: bytes as f64 * 8e-9 / seconds,
            mean_us: if latency.is_empty() { 0.0 } else { latency.mean() / 1e3 },
            p50_us: us(latency.value_at_quantile(0.5)),
            p99_us: us(latency.value_at_quantile(0.99)),
            p999_us: us(latency.value_at_quantile(0.999)),
            max_us: us(latency.max()),
            errors: errors.by_kind().clone(),
            errors_total: errors.total(),
            cpu_seconds: user + system,
            cpu_user_seconds: user,
            cpu_system_seconds: system,
            peak_rss_bytes: after.peak_rss,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:?} on {} sockets, {} connections at once, {:.1} s:",
            self.mode, self.stack, self.conns, self.seconds
        )?;
        writeln!(f, "  {:.0} connections/s, {:.0} requests/s", self.connections_per_second, self.requests_per_second)?;
        writeln!(f, "  {:.3} Gb/s", self.gigabits_per_second)?;
        writeln!(f, "  latency p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs", self.p50_us, self.p99_us, self.p999_us)?;
        writeln!(f, "  {:.2} CPU seconds, {} MiB at most", self.cpu_seconds, self.peak_rss_bytes >> 20)?;
        write!(f, "  {} errors", self.errors_total)?;
        for (kind, count) in &self.errors {
            write!(f, ", {kind} {count}")?;
        }
        Ok(())
    }
}
