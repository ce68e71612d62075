//! Servers, and the choice of the next one.
//!
//! Servers with equal weights take turns. Other weights are kept by credits: each pick gives every
//! usable server its weight, and takes their sum from the chosen one (as in nginx), so that the
//! turns of a heavy server are spread. With a key (`balance = "hash"`) the server with the highest
//! score for it is used (rendezvous hashing), so that a key moves only if its own server does.
//!
//! Each core balances its own connections. Shared counts would be exact, but every connection would
//! write to a cache line that all cores share. With many connections per core the difference evens
//! out.

mod budget;
mod queue;

use crate::clients::Clients;
use crate::config::{Balance, HashKey, Keepalive, ProxyVersion, ServerConfig, UpstreamConfig};
use crate::edits::Edits;
use crate::http1::clock::Clock;
use crate::http1::pool::Pool as LeanPool;
#[cfg(feature = "http2")]
use crate::odd::http2_pool::Http2Pool;
use crate::odd::pool::Pool;
use crate::refusal::Refusal;
use crate::stats::{self, ServerIndex, ServerStats, Stats, UpstreamStats};
use crate::tls::ToServer;
use budget::RetryBudget;
use fs_stacks::StackKind;
use fs_stacks::counters::PerCore;
use fs_stacks::net::is_own_shortage;
use queue::Queue;
use siphasher::sip::SipHasher13;
use std::cell::Cell;
use std::fmt;
use std::hash::Hasher;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which a server that could not be reached is last in the order. Health checks are slower
/// than clients are patient.
const SET_ASIDE: Duration = Duration::from_secs(1);
/// Number of times that this time doubles: up to 16 s. More: a recovered server without health
/// checks waits longer for its share. Fewer: a dead one makes more requests try a second server.
const SET_ASIDE_DOUBLINGS: u64 = 4;
/// The share of weight 1. Lower: a server that warms up gets its share in coarser steps.
const FULL_SHARE: u64 = 1024;
/// At most one log line per server in this time. The others are counted.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// One core's view of an upstream.
pub(crate) struct Upstream {
    pub(crate) name: String,
    pub(crate) servers: Vec<Server>,
    /// The part of a request that decides for its server.
    pub(crate) hash: Option<HashKey>,
    pub(crate) send_proxy: Option<ProxyVersion>,
    pub(crate) request_edits: Option<Edits>,
    /// Its servers get HTTP/2.
    pub(crate) is_http2: bool,
    balance: Balance,
    budget: RetryBudget,
    queue: Queue,
    slow_start: Option<Duration>,
    /// The configuration gives all servers the same share, at all times.
    is_even: bool,
    next: Cell<usize>,
    stats: Arc<Stats>,
    /// The index of its counters: core, upstream.
    place: (usize, usize),
}

/// The choice of a server.
pub(crate) enum Pick {
    Used(Use),
    /// All usable servers have reached their limit of requests or connections.
    Busy,
    /// No server is healthy and has a weight.
    Nobody,
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
    /// Connections with HTTP/2, which requests share.
    #[cfg(feature = "http2")]
    pub(crate) http2: Http2Pool,
    /// TLS of its connections, if it has TLS.
    pub(crate) tls: Option<ToServer>,
    /// The server's health and weight, which all cores share.
    shared: Arc<stats::Server>,
    backup: bool,
    /// Most requests (L7) or connections (L4) of this core at the same time.
    limit: Option<u64>,
    credit: Cell<i64>,
    last_log: Cell<Option<Instant>>,
    unlogged: Cell<u64>,
    counters: Arc<PerCore<ServerStats>>,
    index: ServerIndex,
}

/// Returns true for the host's own addresses: packets to them stay in the kernel and never reach a
/// device, so only kernel sockets reach a server there.
fn is_local(address: IpAddr) -> bool {
    // The kernel sends packets to an own address from that address. Whether a socket can be bound to it
    // says less: with `ip_nonlocal_bind` every address can be.
    let chosen = || {
        let any = if address.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    address.is_loopback() || address.is_unspecified() || chosen().is_ok_and(|chosen| chosen.ip() == address)
}

impl Upstream {
    pub(crate) fn new(
        config: &UpstreamConfig,
        clients: &Rc<Clients>,
        clock: &Rc<Clock>,
        stats: &Arc<Stats>,
        stack: StackKind,
        (core, number): (usize, usize),
    ) -> anyhow::Result<Self> {
        let Keepalive { connections, idle } = config.keepalive;
        let server =
            |(index, &ServerConfig { addr, ref name, weight: _, backup, max_connections }): (usize, &ServerConfig)| {
                let tls = config.connector.as_ref().map(|connector| connector.to(name.as_deref(), addr)).transpose()?;
                Ok(Server {
                    addr,
                    shared: stats.servers[number][index].clone(),
                    backup,
                    limit: max_connections.map(|most| (u64::from(most.get()) / stats.cores.len() as u64).max(1)),
                    credit: Cell::new(0),
                    stack: if is_local(addr.ip()) { StackKind::Kernel } else { stack },
                    lean: LeanPool::new(connections, idle, clients.clone(), clock.clone()),
                    pool: Pool::new(connections, idle, clients.clone()),
                    #[cfg(feature = "http2")]
                    http2: Http2Pool::new(idle),
                    tls,
                    last_log: Cell::new(None),
                    unlogged: Cell::new(0),
                    counters: stats.cores[core].0.servers[number][index].clone(),
                    index: (number, index),
                })
            };
        Ok(Self {
            name: config.name.get_ref().clone(),
            servers: config.servers.iter().enumerate().map(server).collect::<anyhow::Result<_>>()?,
            hash: (config.balance == Balance::Hash)
                .then(|| config.hash.as_ref().map_or(HashKey::Address, |hash| hash.get_ref().clone())),
            send_proxy: config.send_proxy.as_ref().map(|version| *version.get_ref()),
            request_edits: Edits::new(&config.request_headers),
            is_http2: config.http2,
            balance: config.balance,
            budget: RetryBudget::new(config.retry_budget),
            queue: Queue::new(config.queue),
            slow_start: config.slow_start,
            is_even: config.slow_start.is_none()
                && config.servers.iter().all(|server| server.weight == config.servers[0].weight),
            // Each core starts with another server.
            next: Cell::new(core),
            stats: stats.clone(),
            place: (core, number),
        })
    }

    /// Returns the server to use, except those `tried`. The guard counts the use. `key` decides for
    /// a server if `balance` is a hash.
    #[inline]
    pub(crate) fn pick(self: &Rc<Self>, tried: &[usize], key: Option<u64>) -> Pick {
        if tried.is_empty() {
            self.budget.request();
        }
        match self.queue.is_empty() {
            true => self.pick_now(tried, key),
            // Requests that already wait come first.
            false => Pick::Busy,
        }
    }

    /// Waits until a server has room.
    ///
    /// # Errors
    /// The response if the queue is full, or the time is over, or no server is healthy any more.
    pub(crate) async fn wait(self: &Rc<Self>, tried: &[usize], key: Option<u64>) -> Result<Use, Refusal> {
        let refused = || {
            self.stats().queue_refused.add(1);
            Err(Refusal::BUSY)
        };
        let Some(waiting) = self.queue.enter(self.stats()) else { return refused() };
        let mut turn = std::pin::pin!(waiting.turn());
        loop {
            waiting.until_check(&mut turn).await;
            match self.pick_now(tried, key) {
                Pick::Used(used) => return Ok(used),
                Pick::Busy if !waiting.is_over() => {}
                Pick::Busy => return refused(),
                Pick::Nobody => return Err(Refusal::UNREACHABLE),
            }
        }
    }

    fn pick_now(self: &Rc<Self>, tried: &[usize], key: Option<u64>) -> Pick {
        // The clock is read only if a server is set aside.
        let is_one_aside = self.servers.iter().any(|server| server.stats().set_aside.get().is_some());
        let now = is_one_aside.then(Instant::now);
        let could_be_used = |index: &usize| {
            let server = &self.servers[*index];
            server.shared.weight() > 0 && !tried.contains(index) && server.is_healthy()
        };
        let usable = |index: &usize| could_be_used(index) && self.servers[*index].has_room();
        let preferred = |index: &usize| usable(index) && !now.is_some_and(|now| self.servers[*index].is_set_aside(now));
        let is_backup = |index: &usize| self.servers[*index].backup;
        let chosen = self
            .choose(|index| preferred(index) && !is_backup(index), key)
            .or_else(|| self.choose(|index| preferred(index) && is_backup(index), key))
            .or_else(|| self.choose(usable, key));
        let Some(index) = chosen else {
            return if (0..self.servers.len()).any(|index| could_be_used(&index)) { Pick::Busy } else { Pick::Nobody };
        };
        self.next.set(index + 1);
        let server = &self.servers[index];
        server.stats().active.add(1);
        Pick::Used(Use { upstream: self.clone(), index })
    }

    /// Returns true if a request that a server did not serve may be sent to another one. Each call
    /// that returns true uses up a part of the budget.
    pub(crate) fn may_retry(&self) -> bool {
        let may = self.budget.retry();
        if !may {
            self.stats().retries_refused.add(1);
        }
        may
    }

    fn stats(&self) -> &UpstreamStats {
        let (core, upstream) = self.place;
        &self.stats.cores[core].0.upstreams[upstream].0
    }

    fn choose(&self, usable: impl Fn(&usize) -> bool, key: Option<u64>) -> Option<usize> {
        let count = self.servers.len();
        let is_even = self.is_even && !self.stats.has_other_weights(self.place.1);
        let mut turns = (0..count).map(|step| (self.next.get() + step) % count).filter(usable);
        match (self.balance, key) {
            (Balance::Hash, Some(key)) => {
                let score = |index: usize| self.servers[index].score(key, self.share(index));
                turns.max_by(|one, other| score(*one).total_cmp(&score(*other)))
            }
            // Among equals the first in turn.
            (Balance::LeastConnections, _) if is_even => turns.min_by_key(|&index| self.servers[index].active()),
            (Balance::LeastConnections, _) => turns.min_by_key(|&index| {
                let load = self.servers[index].active() + 1;
                // The weight may be 0 by now: another thread sets it.
                load.saturating_mul(u64::from(u32::MAX)) / self.share(index).max(1)
            }),
            (Balance::RoundRobin | Balance::Hash, _) if is_even => turns.next(),
            (Balance::RoundRobin | Balance::Hash, _) => {
                let (mut total, mut best) = (0, None);
                for index in turns {
                    let (server, share) = (&self.servers[index], self.share(index) as i64);
                    let credit = server.credit.get() + share;
                    server.credit.set(credit);
                    total += share;
                    if best.is_none_or(|(_, most)| credit > most) {
                        best = Some((index, credit));
                    }
                }
                let (index, credit) = best?;
                self.servers[index].credit.set(credit - total);
                Some(index)
            }
        }
    }

    /// Returns a server's share: its weight, reduced while it warms up.
    fn share(&self, index: usize) -> u64 {
        let server = &self.servers[index];
        let full = u64::from(server.shared.weight()) * FULL_SHARE;
        let (Some(period), Some(since)) = (self.slow_start, server.shared.recovered_for()) else { return full };
        let part = since.as_secs_f64() / period.as_secs_f64();
        if part >= 1.0 { full } else { ((full as f64 * part) as u64).max(1) }
    }
}

impl Server {
    /// Drops connections that were idle for too long, or have ended.
    pub(crate) fn expire(&self) {
        self.pool.expire();
        self.lean.expire();
        #[cfg(feature = "http2")]
        self.http2.expire();
    }

    /// Drops its idle connections, and keeps none from now on.
    pub(crate) fn close_pools(&self) {
        self.pool.close();
        self.lean.close();
        #[cfg(feature = "http2")]
        self.http2.close();
    }

    pub(crate) fn index(&self) -> ServerIndex {
        self.index
    }

    pub(crate) fn stats(&self) -> &ServerStats {
        &self.counters.0
    }

    /// Returns this core's requests (L7) or connections (L4) to it. Those of earlier configurations
    /// count too.
    #[inline]
    fn active(&self) -> u64 {
        self.stats().active.value()
    }

    /// Returns true if it may have one more request or connection.
    #[inline]
    fn has_room(&self) -> bool {
        self.limit.is_none_or(|limit| self.active() < limit)
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.shared.is_healthy()
    }

    /// Returns its score for a key: the highest wins, each server as often as its share.
    fn score(&self, key: u64, share: u64) -> f64 {
        let mut hasher = SipHasher13::new();
        hasher.write_u64(key);
        hasher.write(&self.addr.port().to_be_bytes());
        match self.addr.ip() {
            IpAddr::V4(address) => hasher.write(&address.octets()),
            IpAddr::V6(address) => hasher.write(&address.octets()),
        }
        // Between 0 and 1, excluding both.
        let uniform = ((hasher.finish() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
        -(share as f64) / uniform.ln()
    }

    /// Records that the server responded: it is no longer set aside.
    #[inline]
    pub(crate) fn answered(&self) {
        let ServerStats { failures, set_aside, .. } = self.stats();
        if failures.value() > 0 {
            failures.sub(failures.value());
            set_aside.set(None);
        }
    }

    /// Records that the server could not be reached, or did not respond. It is last in the order
    /// for a time that doubles with each failure.
    pub(crate) fn failed(&self) {
        let ServerStats { failures, set_aside, .. } = self.stats();
        set_aside.set(Some(Instant::now() + SET_ASIDE * (1 << failures.value().min(SET_ASIDE_DOUBLINGS))));
        failures.add(1);
    }

    fn is_set_aside(&self, now: Instant) -> bool {
        self.stats().set_aside.get().is_some_and(|until| now < until)
    }

    /// Records that a connect failed.
    pub(crate) fn connect_failed(&self, error: &io::Error) {
        if !is_own_shortage(error) {
            self.stats().connect_failures.add(1);
            self.failed();
        } else if error.kind() == io::ErrorKind::AddrNotAvailable {
            // A shortage of ours says nothing about the server. If ports to this one are missing,
            // others may still work.
            self.stats().set_aside.set(Some(Instant::now() + SET_ASIDE));
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
        server.stats().active.sub(1);
        self.upstream.queue.freed();
    }
}

#[cfg(test)]
mod tests;
