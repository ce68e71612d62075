//! State that the connections of one core share under one configuration.

use crate::access_log::{AccessLog, FLUSH_INTERVAL};
use crate::addresses;
use crate::clients::{Clients, Connection};
use crate::config::{Config, ListenerConfig, Mode, Network, RouteConfig};
use crate::edits::Edits;
use crate::http1::per_core::Core as LeanCore;
use crate::log_entry::{Entry, What};
use crate::odd::options::serve_options;
use crate::relay::{BUFFER, Moved};
use crate::reload::Generation;
use crate::routes::{Route, Routes};
use crate::splice;
use crate::stats::{self, Answer, CoreStats, ListenerStats, ServerIndex, Stats};
use crate::tls;
use crate::upstream::{Server, Upstream};
use anyhow::Context;
use fs_stacks::http::ServeOptions;
use fs_stacks::net::{is_own_shortage, within};
use fs_stacks::{Core, LocalStop, Stream, cores};
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Number of attempts to connect while something can be closed to make it possible.
const ROOM_TRIES: u32 = 4;

/// State that the connections of a core share.
pub(crate) struct Site {
    pub(crate) config: Arc<Config>,
    pub(crate) listeners: Vec<ListenerSite>,
    pub(crate) upstreams: Vec<Rc<Upstream>>,
    pub(crate) serve_options: ServeOptions,
    pub(crate) scratch: RefCell<Vec<u8>>,
    pub(crate) stop: LocalStop,
    /// The core's clients, including those of other configurations.
    pub(crate) clients: Rc<Clients>,
    /// State that connections on the lean path share, including those of other configurations.
    pub(crate) lean: Rc<LeanCore>,
    stats: Arc<Stats>,
    core: usize,
    log: Option<AccessLog>,
    last_complaint: Cell<Option<Instant>>,
    /// Another configuration has replaced it. It serves only open connections.
    retired: Cell<bool>,
    clock: RefCell<Option<JoinHandle<()>>>,
}

/// The part for one listener.
pub(crate) struct ListenerSite {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) routes: Routes,
    pub(crate) acceptor: Option<tls::Acceptor>,
    pub(crate) accept_proxy: bool,
    pub(crate) request_edits: Option<Edits>,
    pub(crate) response_edits: Option<Edits>,
    /// Its connections may leave user space.
    splice: Option<Rc<fs_splice::Table>>,
    is_lean: bool,
    trusted_proxies: Vec<Network>,
}

impl ListenerSite {
    /// Returns a relay to this client, which may leave user space.
    pub(crate) fn candidate<'a>(&'a self, stats: &'a ListenerStats, client: SocketAddr) -> splice::Candidate<'a> {
        splice::Candidate::new(self.splice.as_ref(), &self.name, stats, client)
    }

    /// Returns true if this peer's headers about its client are trusted.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|network| network.contains(peer))
    }

    /// Returns true if this peer may send its client's address (`accept_proxy`).
    pub(crate) fn may_introduce(&self, peer: IpAddr) -> bool {
        self.trusted_proxies.is_empty() || self.trusts(peer)
    }
}

impl Site {
    pub(crate) fn new(
        core: &Core,
        clients: &Rc<Clients>,
        lean: &Rc<LeanCore>,
        generation: &Generation,
    ) -> anyhow::Result<Self> {
        let Generation { number: _, config, stats, log } = generation;
        let (config, stats) = (config.clone(), stats.clone());
        let upstream = |(number, config)| {
            Upstream::new(config, clients, &lean.clock, &stats, core.stack, (core.index, number)).map(Rc::new)
        };
        let upstreams = config.upstreams.iter().enumerate().map(upstream).collect::<anyhow::Result<Vec<_>>>()?;
        let mut listeners = Vec::new();
        for listener in &config.listeners {
            listeners.push(ListenerSite {
                name: listener.name(),
                mode: listener.mode,
                routes: routes(&config, listener, &upstreams)?,
                acceptor: listener.handshake.clone().map(tls::Acceptor::from),
                accept_proxy: listener.accept_proxy,
                request_edits: Edits::new(&listener.request_headers),
                response_edits: Edits::new(&listener.response_headers),
                splice: listener.splices().then(splice::table).flatten(),
                is_lean: config.lean && !config.upstreams_of(listener).any(|number| config.upstreams[number].http2),
                trusted_proxies: listener.trusted_proxies.clone(),
            });
        }
        Ok(Self {
            listeners,
            upstreams,
            serve_options: serve_options(&config.timeouts),
            scratch: RefCell::new(vec![0; BUFFER]),
            stop: LocalStop::default(),
            core: core.index,
            log: log.clone().map(|log| AccessLog::new(log, config.access_log_format)),
            clients: clients.clone(),
            lean: lean.clone(),
            last_complaint: Cell::new(None),
            retired: Cell::new(false),
            clock: RefCell::default(),
            stats,
            config,
        })
    }

    /// Starts the timers of pools and the log.
    pub(crate) fn start_clock(self: &Rc<Self>) {
        let site = self.clone();
        let clock = tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(FLUSH_INTERVAL).await;
                if !site.is_retired() {
                    site.clients.tick();
                }
                site.servers().for_each(Server::expire);
                site.flush_log();
            }
        });
        self.clock.replace(Some(clock));
    }

    fn servers(&self) -> impl Iterator<Item = &Server> {
        self.upstreams.iter().flat_map(|upstream| &upstream.servers)
    }

    /// Another configuration has replaced this one: no health check begins, and no connection to a
    /// server is kept, now or after open requests. Open client connections continue, without a
    /// deadline.
    pub(crate) fn retire(self: Rc<Self>) {
        self.retired.set(true);
        self.servers().for_each(Server::close_pools);
        tokio::task::spawn_local(async move {
            self.stop.drained().await;
            self.end();
        });
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.get()
    }

    /// Ends helper tasks. Its connections have ended, or are given up.
    pub(crate) fn end(&self) {
        self.clock.take().iter().for_each(JoinHandle::abort);
        self.flush_log();
    }

    /// Returns a server's health, by upstream and server.
    pub(crate) fn health(&self, (upstream, server): ServerIndex) -> &stats::Server {
        &self.stats.servers[upstream][server]
    }

    fn stats(&self) -> &CoreStats {
        &self.stats.cores[self.core].0
    }

    pub(crate) fn listener_stats(&self, number: usize) -> &ListenerStats {
        &self.stats().listeners[number].0
    }

    /// Counts a response of the proxy, or of a server.
    #[inline]
    pub(crate) fn count_answer(&self, listener: usize, server: Option<ServerIndex>, answer: Answer) {
        let stats = self.stats();
        stats.listeners[listener].0.answers.add(answer);
        if let Some((upstream, server)) = server {
            stats.servers[upstream][server].0.answers.add(answer);
        }
    }

    /// Counts a connection for its client's address, if addresses have limits. Returns false if the
    /// address has as many connections as it may.
    pub(crate) fn admits(&self, client: IpAddr, connection: &Connection) -> bool {
        let limits = &self.config.limits;
        if limits.client_connections.is_none() && limits.client_requests.is_none() {
            return true;
        }
        addresses::enter(client, limits).map(|address| connection.is_of(address)).is_some()
    }

    /// Logs that an upstream has no server that is healthy and has a weight.
    pub(crate) fn complain_of(&self, upstream: &Upstream) {
        self.complain(format_args!("upstream {}: no usable server", upstream.name));
    }

    /// Logs a warning, at most once per second.
    pub(crate) fn complain(&self, what: std::fmt::Arguments<'_>) {
        let now = Instant::now();
        if self.last_complaint.get().is_none_or(|last| now - last >= Duration::from_secs(1)) {
            self.last_complaint.set(Some(now));
            tracing::warn!("{what}");
        }
    }

    /// Opens a connection to a server, for a client. Counts it, and a failure.
    pub(crate) async fn connect(&self, server: &Server, limit: Duration) -> std::io::Result<Stream> {
        server.stats().connects.add(1);
        let connected = self.open(server, limit).await;
        let connected = connected.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
        // Only a response shows that the server is healthy.
        connected.inspect_err(|error| server.connect_failed(error))
    }

    /// Opens a connection to a server, with TLS if it has TLS. If descriptors, ports or memory are
    /// missing, first closes kept connections, and then the longest idle client.
    pub(crate) async fn open(&self, server: &Server, limit: Duration) -> std::io::Result<Stream> {
        let mut tries = 1..ROOM_TRIES;
        let started = Instant::now();
        loop {
            let result = within(limit, cores::connect(server.stack, server.addr, None)).await;
            match result {
                Err(error) if tries.next().is_some() && is_own_shortage(&error) && self.make_room(server, &error) => {
                    // Wait until the closed connections are gone.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Ok(stream) => match &server.tls {
                    None => return Ok(stream),
                    Some(tls) => return within(limit.saturating_sub(started.elapsed()), tls.connect(stream)).await,
                },
                Err(error) => return Err(error),
            }
        }
    }

    fn make_room(&self, server: &Server, error: &std::io::Error) -> bool {
        if error.kind() == std::io::ErrorKind::AddrNotAvailable {
            // Ports are only needed towards the same server.
            return server.pool.let_go() || server.lean.let_go() || self.clients.close_idlest_relay(server.addr);
        }
        self.servers().any(|server| server.pool.let_go() || server.lean.let_go()) || self.clients.close_idlest()
    }

    /// Returns false if hyper serves all requests of a listener: for servers with HTTP/2, or to
    /// compare the two.
    pub(crate) fn is_lean(&self, listener: usize) -> bool {
        self.listeners[listener].is_lean
    }

    /// Returns how many bytes of a request's body must arrive within the idle time-out.
    pub(crate) fn upload_pace(&self) -> u64 {
        let idle = self.config.timeouts.idle.as_millis() as u64;
        (self.config.limits.body_rate.saturating_mul(idle) / 1000).max(1)
    }

    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    pub(crate) fn flush_log(&self) {
        if let Some(log) = &self.log {
            log.flush();
        }
    }

    /// Returns true if log lines have fields of requests.
    pub(crate) fn logs_fields(&self) -> bool {
        self.has_log() && self.config.access_log_format.has_fields()
    }

    /// Adds a line to the access log, if there is one.
    pub(crate) fn log(&self, entry: &Entry<'_>) {
        if let Some(log) = &self.log {
            log.add(entry);
        }
    }

    pub(crate) fn log_tcp(
        &self,
        listener: usize,
        client: SocketAddr,
        server: Option<SocketAddr>,
        Moved { from_client: bytes_in, to_client: bytes_out }: Moved,
        started: Instant,
        outcome: &str,
    ) {
        let (listener, took, what) = (&*self.listeners[listener].name, started.elapsed(), What::Connection(outcome));
        self.log(&Entry { listener, client, server, bytes_in, bytes_out, took, what });
    }
}

fn routes(config: &Config, listener: &ListenerConfig, upstreams: &[Rc<Upstream>]) -> anyhow::Result<Routes> {
    let named = |name: &toml::Spanned<String>| -> anyhow::Result<Rc<Upstream>> {
        let number = config.upstream_named(name.get_ref()).context("a listener without an upstream")?;
        Ok(upstreams[number].clone())
    };
    let route = |route: &RouteConfig| {
        let upstream = route.upstream.as_ref().map(named).transpose()?;
        Route::new(route, upstream).context("a route without a destination")
    };
    Ok(Routes {
        routes: listener.routes.iter().map(route).collect::<anyhow::Result<_>>()?,
        default: listener.upstream.as_ref().map(named).transpose()?,
    })
}
