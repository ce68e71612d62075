//! Servers, and the choice of the next one.
//!
//! Each core balances its own connections. Shared counts would be exact, but every connection would
//! write to a cache line that all cores share. With many connections per core the difference evens
//! out.

use crate::clients::Clients;
use crate::config::{Balance, Keepalive, UpstreamConfig};
use crate::http1::clock::Clock;
use crate::http1::pool::Pool as LeanPool;
use crate::odd::pool::Pool;
use crate::stats::{ServerStats, Stats};
use fs_example_common::StackKind;
use fs_example_common::net::is_own_shortage;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a server that could not be reached is last in the order. Health checks are slower than
/// clients are patient.
const SET_ASIDE: Duration = Duration::from_secs(1);
/// How often that time doubles: up to 16 s. More: a recovered server without health checks waits
/// longer for its share. Fewer: a dead one makes more requests try a second server.
const SET_ASIDE_DOUBLINGS: u32 = 4;
/// At most one log line per server in this time. The others are counted.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// One core's view of an upstream.
pub(crate) struct Upstream {
    pub(crate) name: String,
    pub(crate) servers: Vec<Server>,
    balance: Balance,
    next: Cell<usize>,
}

/// One core's view of a server.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    /// The stack that reaches it.
    pub(crate) stack: StackKind,
    /// Kept connections of the lean path.
    pub(crate) lean: LeanPool,
    /// Kept connections of odd requests.
    pub(crate) pool: Pool,
    active: Cell<usize>,
    set_aside: Cell<Option<Instant>>,
    /// Failures since the last response.
    failures: Cell<u32>,
    last_log: Cell<Option<Instant>>,
    unlogged: Cell<u64>,
    stats: Arc<Stats>,
    /// The index of its counters: core, upstream, server.
    place: (usize, usize, usize),
}

/// Returns true for the host's own addresses: packets to them stay in the kernel and never reach a
/// device, so only kernel sockets reach a server there.
fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || UdpSocket::bind((address, 0)).is_ok()
}

impl Upstream {
    pub(crate) fn new(
        config: &UpstreamConfig,
        clients: &Rc<Clients>,
        clock: &Rc<Clock>,
        stats: &Arc<Stats>,
        stack: StackKind,
        (core, number): (usize, usize),
    ) -> Self {
        let Keepalive { connections, idle } = config.keepalive;
        let server = |(index, &addr): (usize, &SocketAddr)| Server {
            addr,
            stack: if is_local(addr.ip()) { StackKind::Kernel } else { stack },
            lean: LeanPool::new(connections, idle, clients.clone(), clock.clone()),
            pool: Pool::new(connections, idle, clients.clone()),
            active: Cell::new(0),
            set_aside: Cell::new(None),
            failures: Cell::new(0),
            last_log: Cell::new(None),
            unlogged: Cell::new(0),
            stats: stats.clone(),
            place: (core, number, index),
        };
        Self {
            name: config.name.get_ref().clone(),
            servers: config.servers.get_ref().iter().enumerate().map(server).collect(),
            balance: config.balance,
            // So that cores do not all start with the first server.
            next: Cell::new(core),
        }
    }

    /// Returns the server to use, except those `tried`; `None` if no healthy one is left. The guard
    /// counts the use.
    pub(crate) fn pick(self: &Rc<Self>, tried: &[usize]) -> Option<Use> {
        // The clock is read only if a server is set aside.
        let is_one_aside = self.servers.iter().any(|server| server.set_aside.get().is_some());
        let now = is_one_aside.then(Instant::now);
        let usable = |index: &usize| !tried.contains(index) && self.servers[*index].is_healthy();
        let preferred = |index: &usize| usable(index) && !now.is_some_and(|now| self.servers[*index].is_set_aside(now));
        let index = self.choose(preferred).or_else(|| self.choose(usable))?;
        self.next.set(index + 1);
        let server = &self.servers[index];
        server.active.set(server.active.get() + 1);
        server.stats().active.add(1);
        Some(Use { upstream: self.clone(), index })
    }

    fn choose(&self, usable: impl Fn(&usize) -> bool) -> Option<usize> {
        let count = self.servers.len();
        let mut turns = (0..count).map(|step| (self.next.get() + step) % count).filter(usable);
        match self.balance {
            Balance::RoundRobin => turns.next(),
            // Among equals the first in turn.
            Balance::LeastConnections => turns.min_by_key(|&index| self.servers[index].active.get()),
        }
    }
}

impl Server {
    pub(crate) fn stats(&self) -> &ServerStats {
        let (core, upstream, server) = self.place;
        &self.stats.cores[core].0.servers[upstream][server].0
    }

    pub(crate) fn is_healthy(&self) -> bool {
        let (_, upstream, server) = self.place;
        self.stats.servers[upstream][server].is_healthy()
    }

    /// It responded, so it is no longer set aside.
    #[inline]
    pub(crate) fn answered(&self) {
        if self.failures.get() > 0 {
            self.failures.set(0);
            self.set_aside.set(None);
        }
    }

    /// It could not be reached, or did not respond. It is last in the order for a time that doubles
    /// with each failure.
    pub(crate) fn failed(&self) {
        let failures = self.failures.get();
        self.failures.set(failures.saturating_add(1));
        self.set_aside.set(Some(Instant::now() + SET_ASIDE * (1 << failures.min(SET_ASIDE_DOUBLINGS))));
    }

    fn is_set_aside(&self, now: Instant) -> bool {
        self.set_aside.get().is_some_and(|until| now < until)
    }

    /// Records that a connect failed.
    pub(crate) fn connect_failed(&self, error: &io::Error) {
        if !is_own_shortage(error) {
            self.stats().connect_failures.add(1);
            self.failed();
        } else if error.kind() == io::ErrorKind::AddrNotAvailable {
            // A shortage of ours says nothing about the server. If ports to this one are missing,
            // others may still work.
            self.set_aside.set(Some(Instant::now() + SET_ASIDE));
        }
    }
}

/// A use of a server, counted until dropped.
pub(crate) struct Use {
    upstream: Rc<Upstream>,
    pub(crate) index: usize,
}

impl Use {
    pub(crate) fn server(&self) -> &Server {
        &self.upstream.servers[self.index]
    }

    /// Logs a failure of the server, at most once per second.
    pub(crate) fn complain(&self, what: &dyn fmt::Display) {
        let (server, now) = (self.server(), Instant::now());
        if server.last_log.get().is_some_and(|last| now - last < LOG_INTERVAL) {
            server.unlogged.set(server.unlogged.get() + 1);
            return;
        }
        server.last_log.set(Some(now));
        match server.unlogged.take() {
            0 => tracing::warn!("upstream {} server {}: {what}", self.upstream.name, server.addr),
            more => tracing::warn!("upstream {} server {}: {what} ({more} more)", self.upstream.name, server.addr),
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let server = self.server();
        server.active.set(server.active.get() - 1);
        server.stats().active.sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::Limits;
    use crate::config::Config;

    fn upstream(balance: &str) -> (Rc<Upstream>, Arc<Stats>) {
        let text = format!(
            "[[upstream]]\nname = 'x'\nbalance = '{balance}'\nservers = ['10.0.0.1:1', '10.0.0.2:1', '10.0.0.3:1']"
        );
        let config: Config = toml::from_str(&text).unwrap();
        let stats = Arc::new(Stats::new(&config, 1, None));
        let clients = Clients::new(Limits { clients: 1, pooled: 1 });
        let upstream = Upstream::new(&config.upstreams[0], &clients, &Rc::default(), &stats, StackKind::Kernel, (0, 0));
        (Rc::new(upstream), stats)
    }

    #[test]
    fn round_robin_skips_unhealthy_servers() {
        let (upstream, stats) = upstream("round_robin");
        let next = |tried: &[usize]| upstream.pick(tried).map(|used| used.index);
        assert_eq!([(); 4].map(|()| next(&[])), [Some(0), Some(1), Some(2), Some(0)]);
        stats.servers[0][1].set_healthy(false);
        assert_eq!([(); 3].map(|()| next(&[])), [Some(2), Some(0), Some(2)]);
        assert_eq!((next(&[0]), next(&[0, 2])), (Some(2), None));
    }

    #[test]
    fn least_connections_follows_open_connections() {
        let (upstream, _) = upstream("least_connections");
        let [a, b, c] = [(); 3].map(|()| upstream.pick(&[]).unwrap());
        assert_eq!([a.index, b.index, c.index], [0, 1, 2]);
        drop(b);
        let again = upstream.pick(&[]).unwrap();
        assert_eq!(again.index, 1);
        drop((a, again));
        assert_ne!(upstream.pick(&[]).unwrap().index, c.index);
        assert_eq!(upstream.servers[2].stats().active.value(), 1);
    }

    #[test]
    fn unreachable_server_comes_last() {
        let (upstream, _) = upstream("round_robin");
        upstream.servers[0].set_aside.set(Some(Instant::now() + SET_ASIDE));
        assert_eq!(upstream.pick(&[]).unwrap().index, 1);
        assert_eq!(upstream.pick(&[1, 2]).unwrap().index, 0);
    }
}
