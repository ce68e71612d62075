//! One core's proxy: its listeners, and what their connections share.

use crate::access_log::{AccessLog, FLUSH_INTERVAL};
use crate::config::{Config, Mode};
use crate::relay::{BUFFER, Moved};
use crate::stats::{CoreStats, ListenerStats, Stats};
use crate::upstream::Upstream;
use crate::{health, tcp, web};
use anyhow::Context;
use fs_example_common::http::ServeOptions;
use fs_example_common::net::accept_error_is_fatal;
use fs_example_common::{Core, Listener, LocalStop, StackKind, Stream};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// What the connections of a core share.
pub(crate) struct Site {
    pub(crate) config: Arc<Config>,
    pub(crate) stack: StackKind,
    pub(crate) listeners: Vec<ListenerSite>,
    pub(crate) upstreams: Vec<Rc<Upstream>>,
    pub(crate) serve_options: ServeOptions,
    pub(crate) scratch: RefCell<Vec<u8>>,
    pub(crate) stop: LocalStop,
    stats: Arc<Stats>,
    core: usize,
    log: Option<AccessLog>,
    last_complaint: Cell<Option<Instant>>,
}

/// One listener's part of it.
pub(crate) struct ListenerSite {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) upstream: Rc<Upstream>,
}

/// Runs the proxy on one core, until the stop and the end of what is open then.
pub(crate) async fn run(
    core: Core,
    config: Arc<Config>,
    stats: Arc<Stats>,
    log: Option<SyncSender<Option<String>>>,
) -> anyhow::Result<()> {
    let site = Rc::new(Site::new(&core, config, stats, log)?);
    let mut sockets = Vec::new();
    for listener in &site.config.listeners {
        let address = *listener.address.get_ref();
        let socket = core.listen(address).await;
        sockets.push(socket.with_context(|| format!("cannot listen on {address}"))?);
    }
    let mut accepting = Vec::new();
    for (number, socket) in sockets.into_iter().enumerate() {
        if core.index == 0 {
            println!("listening {} {}", socket.local_addr()?, site.listeners[number].name);
        }
        accepting.push(tokio::task::spawn_local(accept(site.clone(), number, socket)));
    }
    let mut helpers = site.start_helpers();
    if core.is_last_ready() {
        println!("ready");
    }
    let (failed, mut failure) = tokio::sync::mpsc::unbounded_channel::<anyhow::Error>();
    for task in accepting {
        let failed = failed.clone();
        helpers.push(tokio::task::spawn_local(async move {
            // Ends only when the stop has dropped the socket, or with the listener's own error.
            if let Ok(Err(error)) = task.await {
                let _ = failed.send(error);
            }
        }));
    }
    let result = tokio::select! {
        () = core.stop_requested() => Ok(()),
        Some(error) = failure.recv() => Err(error),
    };
    site.drain(core.index).await;
    helpers.iter().for_each(tokio::task::JoinHandle::abort);
    result
}

async fn accept(site: Rc<Site>, number: usize, socket: Listener) -> anyhow::Result<()> {
    let stop = site.stop.clone();
    let mut stopped = std::pin::pin!(stop.requested());
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stopped => return Ok(()),
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => site.serve(number, stream, peer),
            Err(_) if stop.is_requested() => return Ok(()),
            Err(error) if accept_error_is_fatal(&error) => {
                return Err(error).with_context(|| format!("listener {}", site.listeners[number].name));
            }
            Err(error) => {
                tracing::warn!("listener {}: accept: {error}", site.listeners[number].name);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

impl Site {
    fn new(
        core: &Core,
        config: Arc<Config>,
        stats: Arc<Stats>,
        log: Option<SyncSender<Option<String>>>,
    ) -> anyhow::Result<Self> {
        let upstream = |(number, config)| Rc::new(Upstream::new(config, &stats, core.index, number));
        let upstreams: Vec<_> = config.upstreams.iter().enumerate().map(upstream).collect();
        let mut listeners = Vec::new();
        for listener in &config.listeners {
            let number = config.upstream_of(listener).context("a listener without an upstream")?;
            let (name, upstream) = (listener.name(), upstreams[number].clone());
            listeners.push(ListenerSite { name, mode: listener.mode, upstream });
        }
        Ok(Self {
            stack: core.stack,
            listeners,
            upstreams,
            serve_options: web::serve_options(&config.timeouts),
            scratch: RefCell::new(vec![0; BUFFER]),
            stop: LocalStop::default(),
            core: core.index,
            log: log.map(AccessLog::new),
            last_complaint: Cell::new(None),
            stats,
            config,
        })
    }

    fn serve(self: &Rc<Self>, number: usize, stream: Stream, peer: SocketAddr) {
        let (site, open) = (self.clone(), self.stop.open());
        let stats = self.listener_stats(number);
        stats.accepted.add(1);
        stats.open.add(1);
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("{peer}: nodelay: {error}");
        }
        let mode = self.listeners[number].mode;
        tokio::task::spawn_local(async move {
            match mode {
                Mode::Tcp => tcp::serve(site.clone(), number, stream, peer).await,
                Mode::Http => web::serve(site.clone(), number, stream, peer).await,
            }
            site.listener_stats(number).open.sub(1);
            drop(open);
        });
    }

    /// Health checks (on the first core), pools' and the log's clocks.
    fn start_helpers(self: &Rc<Self>) -> Vec<tokio::task::JoinHandle<()>> {
        let mut helpers = Vec::new();
        for (number, upstream) in self.config.upstreams.iter().enumerate() {
            let check = upstream.health_check.as_ref().filter(|_| self.core == 0);
            for (server, _) in upstream.servers.get_ref().iter().enumerate().filter(|_| check.is_some()) {
                let check = check.cloned().unwrap_or_default();
                let watch = health::watch(self.stack, check, self.stats.clone(), (number, server));
                helpers.push(tokio::task::spawn_local(watch));
            }
        }
        let site = self.clone();
        helpers.push(tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(FLUSH_INTERVAL).await;
                site.upstreams.iter().flat_map(|upstream| &upstream.servers).for_each(|server| server.pool.expire());
                site.flush_log();
            }
        }));
        helpers
    }

    /// Lets open requests and connections finish, within the deadline.
    async fn drain(&self, core: usize) {
        self.stop.request();
        let limit = self.config.timeouts.drain;
        if tokio::time::timeout(limit, self.stop.drained()).await.is_err() {
            tracing::warn!(
                "{} connections still open on core {core} after {limit:?}: closing them",
                self.stop.open_count()
            );
        }
        self.flush_log();
    }

    fn stats(&self) -> &CoreStats {
        &self.stats.cores[self.core].0
    }

    pub(crate) fn listener_stats(&self, number: usize) -> &ListenerStats {
        &self.stats().listeners[number]
    }

    /// Says, not more often than each second, that an upstream has no healthy server.
    pub(crate) fn complain_of(&self, upstream: &Upstream) {
        let now = Instant::now();
        if self.last_complaint.get().is_none_or(|last| now - last >= Duration::from_secs(1)) {
            self.last_complaint.set(Some(now));
            tracing::warn!("upstream {}: no healthy server", upstream.name);
        }
    }

    pub(crate) fn flush_log(&self) {
        if let Some(log) = &self.log {
            log.flush(&self.stats().log_dropped);
        }
    }

    /// Adds a line to the access log, if there is one.
    pub(crate) fn log(&self, line: std::fmt::Arguments<'_>) {
        if let Some(log) = &self.log {
            log.line(line, &self.stats().log_dropped);
        }
    }

    pub(crate) fn log_tcp(
        &self,
        listener: usize,
        peer: SocketAddr,
        server: Option<SocketAddr>,
        Moved { from_client, to_client }: Moved,
        started: Instant,
        outcome: &str,
    ) {
        let name = &self.listeners[listener].name;
        let server = OrDash(server);
        let ms = started.elapsed().as_millis();
        self.log(format_args!("{name} {peer} TCP {server} in={from_client} out={to_client} ms={ms} \"{outcome}\""));
    }
}

/// A value, or `-` where there is none.
pub(crate) struct OrDash<T>(pub(crate) Option<T>);

impl<T: std::fmt::Display> std::fmt::Display for OrDash<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("-"),
        }
    }
}

/// Errors of bodies and connections alike.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
