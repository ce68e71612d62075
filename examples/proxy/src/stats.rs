//! What the proxy counts: a set of counters per core, written by that core only, summed when somebody asks.

use crate::config::{Config, Mode};
use fs_example_common::counters::{Counter, PerCore};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Upper bounds of the latency histogram in microseconds: from a cache's answer to a stuck server's, three per decade.
pub(crate) const LATENCY_US: [u64; 16] = [
    50,
    100,
    250,
    500,
    1000,
    2500,
    5000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    5_000_000,
    u64::MAX,
];

/// One listener on one core.
#[derive(Debug, Default)]
pub(crate) struct ListenerStats {
    pub(crate) accepted: Counter,
    pub(crate) open: Counter,
    /// Connections that ended with an error.
    pub(crate) failed: Counter,
    /// Answers by first digit of their status, 1 to 5.
    pub(crate) answers: [Counter; 5],
    /// Bytes of bodies (L7) or of the stream (L4) from clients.
    pub(crate) bytes_in: Counter,
    /// The same to clients.
    pub(crate) bytes_out: Counter,
    latency: [Counter; LATENCY_US.len()],
    latency_us: Counter,
}

impl ListenerStats {
    pub(crate) fn answered(&self, status: u16, took: Duration) {
        if let Some(counter) = self.answers.get(usize::from(status / 100).wrapping_sub(1)) {
            counter.add(1);
        }
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX - 1);
        let bucket = LATENCY_US.partition_point(|bound| *bound < us);
        self.latency[bucket].add(1);
        self.latency_us.add(us);
    }

    /// (sum in seconds, number in each bucket)
    pub(crate) fn latency(&self) -> (f64, [u64; LATENCY_US.len()]) {
        (self.latency_us.value() as f64 / 1e6, std::array::from_fn(|i| self.latency[i].value()))
    }
}

/// One server of an upstream on one core.
#[derive(Debug, Default)]
pub(crate) struct ServerStats {
    pub(crate) connects: Counter,
    pub(crate) connect_failures: Counter,
    /// Connections (L4) or requests (L7) under way.
    pub(crate) active: Counter,
    /// Requests that went over a kept connection.
    pub(crate) reused: Counter,
    /// Requests sent again because a kept connection had ended.
    pub(crate) retries: Counter,
}

/// One core.
#[derive(Debug)]
pub(crate) struct CoreStats {
    pub(crate) listeners: Vec<ListenerStats>,
    /// By upstream and server.
    pub(crate) servers: Vec<Vec<ServerStats>>,
    /// Log lines that were dropped because the disk was too slow.
    pub(crate) log_dropped: Counter,
}

/// A listener's labels.
#[derive(Debug)]
pub(crate) struct ListenerName {
    pub(crate) name: String,
    pub(crate) mode: Mode,
}

/// A server's labels and health.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) upstream: String,
    pub(crate) addr: SocketAddr,
    /// Written by the core that checks, a few times a day; read by all. A line that nobody writes is in every cache, so
    /// reading it costs a core no more than a variable of its own.
    healthy: AtomicBool,
}

impl Server {
    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    pub(crate) fn set_healthy(&self, healthy: bool) {
        self.healthy.store(healthy, Ordering::Relaxed);
    }
}

/// Everything.
#[derive(Debug)]
pub(crate) struct Stats {
    pub(crate) listeners: Vec<ListenerName>,
    pub(crate) servers: Vec<Vec<Server>>,
    pub(crate) cores: Vec<PerCore<CoreStats>>,
}

impl Stats {
    pub(crate) fn new(config: &Config, cores: usize) -> Self {
        let listener =
            |listener: &crate::config::ListenerConfig| ListenerName { name: listener.name(), mode: listener.mode };
        let servers = |upstream: &crate::config::UpstreamConfig| {
            let server = |&addr: &SocketAddr| Server {
                upstream: upstream.name.get_ref().clone(),
                addr,
                healthy: AtomicBool::new(true),
            };
            upstream.servers.get_ref().iter().map(server).collect::<Vec<_>>()
        };
        let core = || CoreStats {
            listeners: config.listeners.iter().map(|_| ListenerStats::default()).collect(),
            servers: config
                .upstreams
                .iter()
                .map(|upstream| upstream.servers.get_ref().iter().map(|_| ServerStats::default()).collect())
                .collect(),
            log_dropped: Counter::default(),
        };
        Self {
            listeners: config.listeners.iter().map(listener).collect(),
            servers: config.upstreams.iter().map(servers).collect(),
            cores: (0..cores).map(|_| PerCore(core())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_into_their_bucket() {
        let stats = ListenerStats::default();
        for us in [0, 50, 51, 3_000_000, 3600 * 1_000_000] {
            stats.answered(200, Duration::from_micros(us));
        }
        let (_, buckets) = stats.latency();
        assert_eq!((buckets[0], buckets[1], buckets[14], buckets[15]), (2, 1, 1, 1));
        assert_eq!(stats.answers[1].value(), 5);
        stats.answered(0, Duration::ZERO);
        stats.answered(999, Duration::ZERO);
        assert_eq!(stats.answers.iter().map(Counter::value).sum::<u64>(), 5);
    }
}
