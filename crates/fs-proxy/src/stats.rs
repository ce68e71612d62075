//! The proxy's counters: a set per core, which only that core writes. Readers sum them.

use crate::config::{Config, HealthCheck, Mode, ServerConfig, UpstreamConfig};
use fs_stacks::counters::{Counter, PerCore};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Upper bounds of the latency histogram in microseconds, three per decade, from a cache hit to a
/// stuck server.
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

/// The counters of a listener on a core.
#[derive(Debug, Default)]
pub(crate) struct ListenerStats {
    pub(crate) accepted: Counter,
    pub(crate) open: Counter,
    /// Connections that were closed to make a place for others.
    pub(crate) evicted: Counter,
    /// Connections that were refused, because their address has as many as it may.
    pub(crate) refused: Counter,
    /// Connections that ended with an error.
    pub(crate) failed: Counter,
    /// Connections that have left user space.
    pub(crate) splices: Counter,
    /// Spliced connections that are open now.
    pub(crate) spliced: Counter,
    /// Bytes from clients that did not pass user space. They are also in `bytes_in`.
    pub(crate) spliced_in: Counter,
    /// Bytes to clients that did not pass user space. They are also in `bytes_out`.
    pub(crate) spliced_out: Counter,
    /// Connections that stay in user space although the listener splices.
    pub(crate) splices_refused: Counter,
    /// Completed TLS handshakes.
    pub(crate) handshakes: Counter,
    /// Failed TLS handshakes: no TLS, nothing in common, too slow, broken off. Without clients that
    /// closed before their first byte.
    pub(crate) handshakes_failed: Counter,
    pub(crate) answers: Answers,
    /// Bytes of bodies (L7) or of the stream (L4) from clients.
    pub(crate) bytes_in: Counter,
    /// Bytes of bodies (L7) or of the stream (L4) to clients.
    pub(crate) bytes_out: Counter,
}

/// A response, as it is counted.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    /// The first digit of its status, minus 1.
    class: usize,
    us: u64,
    bucket: usize,
}

impl Answer {
    /// `took` is the time from the request's head to the response's end.
    #[inline]
    pub(crate) fn new(status: u16, took: Duration) -> Self {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX - 1);
        let bucket = LATENCY_US.partition_point(|bound| *bound < us);
        Self { class: usize::from(status / 100).wrapping_sub(1), us, bucket }
    }
}

/// Responses of a listener or server.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Responses by the first digit of their status, 1 to 5.
    pub(crate) classes: [Counter; 5],
    latency: [Counter; LATENCY_US.len()],
    latency_us: Counter,
}

impl Answers {
    #[inline]
    pub(crate) fn add(&self, Answer { class, us, bucket }: Answer) {
        if let Some(counter) = self.classes.get(class) {
            counter.add(1);
        }
        self.latency[bucket].add(1);
        self.latency_us.add(us);
    }

    /// Returns the sum in seconds, and the number in each bucket.
    pub(crate) fn latency(&self) -> (f64, [u64; LATENCY_US.len()]) {
        (self.latency_us.value() as f64 / 1e6, std::array::from_fn(|i| self.latency[i].value()))
    }
}

/// The counters of an upstream's server on a core.
#[derive(Debug, Default)]
pub(crate) struct ServerStats {
    pub(crate) connects: Counter,
    pub(crate) connect_failures: Counter,
    /// Open connections (L4), or requests in progress (L7).
    pub(crate) active: Counter,
    /// Requests that used a kept connection.
    pub(crate) reused: Counter,
    /// Requests that it got after a connection, to it or to another server, had ended without a
    /// response.
    pub(crate) retries: Counter,
    /// Its responses.
    pub(crate) answers: Answers,
    /// Failures since the last response.
    pub(crate) failures: Counter,
    /// It is last in the order until then.
    pub(crate) set_aside: Moment,
}

/// The counters of an upstream on a core.
#[derive(Debug, Default)]
pub(crate) struct UpstreamStats {
    /// Requests or connections that waited because all servers were busy.
    pub(crate) queued: Counter,
    /// Requests that wait now.
    pub(crate) waiting: Counter,
    /// Requests that were refused, because too many waited or they waited too long.
    pub(crate) queue_refused: Counter,
    /// Requests that were not sent to another server because the budget of retries was used up.
    pub(crate) retries_refused: Counter,
}

/// Counters of one core that the next configuration continues. On their own cache lines: they are
/// allocated one by one, and the adjacent line may be another core's.
type Shared<T> = Arc<PerCore<T>>;

/// One core.
#[derive(Debug)]
pub(crate) struct CoreStats {
    pub(crate) listeners: Vec<Shared<ListenerStats>>,
    pub(crate) upstreams: Vec<Shared<UpstreamStats>>,
    /// By upstream and server.
    pub(crate) servers: Vec<Vec<Shared<ServerStats>>>,
}

/// A listener's labels.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListenerName {
    pub(crate) name: String,
    pub(crate) mode: Mode,
}

/// A server's labels, health and weight.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) upstream: String,
    pub(crate) addr: SocketAddr,
    /// `None` if it has no health checks.
    checked: Option<Arc<Health>>,
    /// The weight of the configuration.
    configured: u32,
    /// The weight that is used: another one if the admin socket has set it.
    weight: AtomicU32,
}

/// The result of health checks, which the next configuration continues.
///
/// The checking core writes it, a few times a day, and all read it. A line that is not written is in
/// every cache, so reading it costs no more than reading a core's own variable.
#[derive(Debug)]
struct Health {
    healthy: AtomicBool,
    /// Consecutive checks that contradict `healthy`.
    streak: AtomicU32,
    /// When the server became healthy again. `None` if it never was unhealthy.
    recovered: Moment,
}

/// A time in milliseconds since the first one of the process, or none (0). One thread writes it.
#[derive(Debug, Default)]
pub(crate) struct Moment(AtomicU64);

impl Moment {
    fn first() -> Instant {
        static FIRST: OnceLock<Instant> = OnceLock::new();
        *FIRST.get_or_init(Instant::now)
    }

    pub(crate) fn set(&self, moment: Option<Instant>) {
        let since = |moment: Instant| moment.saturating_duration_since(Self::first()).as_millis();
        let ms = moment.map_or(0, |moment| u64::try_from(since(moment)).unwrap_or(u64::MAX).max(1));
        self.0.store(ms, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<Instant> {
        let ms = self.0.load(Ordering::Relaxed);
        (ms > 0).then(|| Self::first() + Duration::from_millis(ms))
    }
}

impl Server {
    #[inline]
    pub(crate) fn is_healthy(&self) -> bool {
        self.checked.as_ref().is_none_or(|health| health.healthy.load(Ordering::Relaxed))
    }

    /// Records a check's result. Returns true if it changes the server's health.
    pub(crate) fn checked(&self, good: bool, check: &HealthCheck) -> bool {
        let Some(Health { streak, .. }) = self.checked.as_deref() else { return false };
        let contradicts = good != self.is_healthy();
        let before = streak.load(Ordering::Relaxed);
        let count = if contradicts { before + 1 } else { 0 };
        let needed = if good { check.rise } else { check.fall };
        let changes = contradicts && count >= needed.get();
        let after = if changes { 0 } else { count };
        if after != before {
            streak.store(after, Ordering::Relaxed);
        }
        if changes {
            self.set_healthy(good);
        }
        changes
    }

    pub(crate) fn set_healthy(&self, healthy: bool) {
        let Some(health) = &self.checked else { return };
        if healthy && !self.is_healthy() {
            health.recovered.set(Some(Instant::now()));
        }
        health.healthy.store(healthy, Ordering::Relaxed);
    }

    /// Returns for how long it has been healthy again, or `None` if it never was unhealthy.
    pub(crate) fn recovered_for(&self) -> Option<Duration> {
        Some(self.checked.as_ref()?.recovered.get()?.elapsed())
    }

    #[inline]
    pub(crate) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    pub(crate) fn configured_weight(&self) -> u32 {
        self.configured
    }

    /// Sets the weight, for all cores. `None` is the configuration's.
    pub(crate) fn set_weight(&self, weight: Option<u32>) {
        self.weight.store(weight.unwrap_or(self.configured), Ordering::Relaxed);
    }
}

/// A weight that was set at the admin socket, for the next configuration or process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherWeight {
    pub(crate) weight: u32,
    /// The weight of the configuration.
    pub(crate) configured: u32,
    pub(crate) addr: SocketAddr,
    pub(crate) upstream: String,
}

impl OtherWeight {
    fn is_of(&self, server: &Server) -> bool {
        (self.configured, self.addr, &self.upstream) == (server.configured, server.addr, &server.upstream)
    }
}

/// A server's index: upstream and server.
pub(crate) type ServerIndex = (usize, usize);

/// Everything.
#[derive(Debug)]
pub(crate) struct Stats {
    pub(crate) listeners: Vec<ListenerName>,
    /// Names of upstreams.
    pub(crate) upstreams: Vec<String>,
    pub(crate) servers: Vec<Vec<Arc<Server>>>,
    /// By upstream.
    has_other_weights: Vec<AtomicBool>,
    pub(crate) cores: Vec<PerCore<CoreStats>>,
}

impl Stats {
    /// Creates counters for a configuration. With `before`, listeners of the same name and servers
    /// of the same upstream continue to count, and the health of servers that both check is kept.
    pub(crate) fn new(config: &Config, cores: usize, before: Option<&Stats>) -> Self {
        let listeners: Vec<_> = config
            .listeners
            .iter()
            .map(|listener| ListenerName { name: listener.name(), mode: listener.mode })
            .collect();
        let old_listeners: Vec<_> =
            listeners.iter().map(|listener| before?.listeners.iter().position(|old| old == listener)).collect();
        let upstreams: Vec<String> = config.upstreams.iter().map(|upstream| upstream.name.get_ref().clone()).collect();
        let old_server = |upstream: &UpstreamConfig, addr: SocketAddr| {
            let before = before?;
            let places = before.servers.iter().enumerate().flat_map(|(number, servers)| {
                servers.iter().enumerate().map(move |(place, server)| (number, place, server))
            });
            let same = |server: &Server| server.addr == addr && &server.upstream == upstream.name.get_ref();
            places.into_iter().find(|(_, _, server)| same(server))
        };
        let server = |upstream: &UpstreamConfig, server: &ServerConfig| {
            let old = old_server(upstream, server.addr).map(|(_, _, server)| server);
            let health = || {
                Arc::new(Health {
                    healthy: AtomicBool::new(true),
                    streak: AtomicU32::new(0),
                    recovered: Moment::default(),
                })
            };
            let kept = old.and_then(|old| old.checked.clone());
            Arc::new(Server {
                upstream: upstream.name.get_ref().clone(),
                addr: server.addr,
                checked: upstream.health_check.is_some().then(|| kept.unwrap_or_else(health)),
                configured: server.weight,
                weight: AtomicU32::new(server.weight),
            })
        };
        let core = |core: usize| {
            let old = before.map(|before| &before.cores[core].0);
            let listener = |at: &Option<usize>| Some(old?.listeners[(*at)?].clone());
            let server = |upstream: &UpstreamConfig, addr| {
                let (number, place, _) = old_server(upstream, addr)?;
                Some(old?.servers[number][place].clone())
            };
            let upstream = |name: &String| {
                let at = before?.upstreams.iter().position(|old| old == name)?;
                Some(old?.upstreams[at].clone())
            };
            CoreStats {
                listeners: old_listeners.iter().map(|at| listener(at).unwrap_or_default()).collect(),
                upstreams: upstreams.iter().map(|name| upstream(name).unwrap_or_default()).collect(),
                servers: each_server(config, |upstream, config| server(upstream, config.addr).unwrap_or_default()),
            }
        };
        let stats = Self {
            has_other_weights: config.upstreams.iter().map(|_| AtomicBool::new(false)).collect(),
            servers: each_server(config, server),
            cores: (0..cores).map(|number| PerCore(core(number))).collect(),
            listeners,
            upstreams,
        };
        if let Some(before) = before {
            stats.keep_weights(&before.other_weights());
        }
        stats
    }

    /// Returns the weights that were set at the admin socket.
    pub(crate) fn other_weights(&self) -> Vec<OtherWeight> {
        let other = |server: &&Arc<Server>| server.weight() != server.configured;
        let servers = self.servers.iter().flatten().filter(other);
        servers
            .map(|server| OtherWeight {
                weight: server.weight(),
                configured: server.configured,
                addr: server.addr,
                upstream: server.upstream.clone(),
            })
            .collect()
    }

    /// Sets `weights`, except where this configuration has another weight than the one before.
    pub(crate) fn keep_weights(&self, weights: &[OtherWeight]) {
        for (upstream, servers) in self.servers.iter().enumerate() {
            for server in servers {
                let mut kept = weights.iter().filter(|other| other.is_of(server));
                server.set_weight(kept.next().map(|other| other.weight));
            }
            self.note_weights(upstream);
        }
    }

    /// Sets a server's weight, for all cores. `None` is the configuration's.
    pub(crate) fn set_weight(&self, (upstream, server): ServerIndex, weight: Option<u32>) {
        self.servers[upstream][server].set_weight(weight);
        self.note_weights(upstream);
    }

    fn note_weights(&self, upstream: usize) {
        let is_other = |server: &Arc<Server>| server.weight() != server.configured;
        self.has_other_weights[upstream].store(self.servers[upstream].iter().any(is_other), Ordering::Relaxed);
    }

    /// Returns true if a weight of the upstream is not the configuration's.
    #[inline]
    pub(crate) fn has_other_weights(&self, upstream: usize) -> bool {
        self.has_other_weights[upstream].load(Ordering::Relaxed)
    }
}

fn each_server<T>(config: &Config, make: impl Fn(&UpstreamConfig, &ServerConfig) -> T) -> Vec<Vec<T>> {
    let servers = |upstream: &UpstreamConfig| upstream.servers.iter().map(|server| make(upstream, server)).collect();
    config.upstreams.iter().map(servers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats_of(servers: &str, before: Option<&Stats>) -> Stats {
        let text = format!("[[upstream]]\nname = 'x'\nhealth_check = {{}}\nservers = [{servers}]");
        let mut config: Config = toml::from_str(&text).unwrap();
        config.look_up().unwrap();
        Stats::new(&config, 1, before)
    }

    /// The admin socket sets the weights of the old configuration until cores use the new one.
    #[test]
    fn weight_that_is_set_during_a_reload_is_kept() {
        let servers = "'10.0.0.1:1', '10.0.0.2:1'";
        let old = stats_of(servers, None);
        old.set_weight((0, 0), Some(5));
        let new = stats_of(servers, Some(&old));
        old.set_weight((0, 0), None);
        old.set_weight((0, 1), Some(0));
        let new = Arc::new(new);
        let shown = crate::metrics::Shown::new(std::sync::RwLock::new(Arc::new(old)));
        crate::metrics::show(&shown, new.clone());
        assert_eq!([0, 1].map(|server| new.servers[0][server].weight()), [1, 0]);
        assert!(new.has_other_weights(0));
        // The file decides if it has another weight.
        let other = stats_of("'10.0.0.1:1', { address = '10.0.0.2:1', weight = 2 }", Some(&new));
        assert_eq!(other.servers[0][1].weight(), 2);
        assert!(!other.has_other_weights(0));
    }

    /// The number of checks in a row continues over reloads.
    #[test]
    fn rise_good_and_fall_bad_checks_change_the_state() {
        let check = HealthCheck::default();
        assert_eq!((check.rise.get(), check.fall.get()), (2, 3));
        let mut stats = stats_of("'10.0.0.1:1'", None);
        let mut history = String::new();
        for good in [false, false, true, false, false, false, true, false, true, true, true] {
            stats = stats_of("'10.0.0.1:1'", Some(&stats));
            let (server, before) = (&stats.servers[0][0], stats.servers[0][0].is_healthy());
            assert_eq!(server.checked(good, &check), server.is_healthy() != before);
            history.push(if server.is_healthy() { '+' } else { '-' });
        }
        assert_eq!(history, "+++++----++");
    }

    #[test]
    fn latencies_are_in_their_bucket() {
        let stats = Answers::default();
        for us in [0, 50, 51, 3_000_000, 3600 * 1_000_000] {
            stats.add(Answer::new(200, Duration::from_micros(us)));
        }
        let (_, buckets) = stats.latency();
        assert_eq!((buckets[0], buckets[1], buckets[14], buckets[15]), (2, 1, 1, 1));
        assert_eq!(stats.classes[1].value(), 5);
        stats.add(Answer::new(0, Duration::ZERO));
        stats.add(Answer::new(999, Duration::ZERO));
        assert_eq!(stats.classes.iter().map(Counter::value).sum::<u64>(), 5);
    }
}
