//! Prometheus metrics, on a kernel socket and their own thread, so that they also respond when the
//! cores are busy.

mod format;

use crate::access_log;
use crate::config::Mode;
use crate::flows;
use crate::handover::{Inherited, Passed, Role};
use crate::stats::{Answers, CoreStats, LATENCY_US, ListenerName, ListenerStats, ServerStats, Stats, UpstreamStats};
use crate::status::Status;
use anyhow::Context;
use bytes::Bytes;
use format::Format;
use fs_stacks::cores::StackCounters;
use fs_stacks::counters::Counter;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// Limit of simultaneous connections. Their descriptors are among those that the clients' limit
/// leaves to the process.
const CONNECTIONS: usize = 16;

/// The published counters, of the current configuration.
pub(crate) type Shown = Arc<RwLock<Arc<Stats>>>;

/// Publishes the counters of another configuration. Keeps the weights that were set since it was prepared; none is set
/// while this holds the lock.
pub(crate) fn show(shown: &Shown, stats: Arc<Stats>) {
    let mut shown = shown.write().unwrap_or_else(PoisonError::into_inner);
    stats.keep_weights(&shown.other_weights());
    *shown = stats;
}

/// Publishes the metrics while a configuration enables them.
pub(crate) struct Metrics {
    shown: Shown,
    stack: StackCounters,
    endpoint: Option<Endpoint>,
}

/// A listener with its thread, which ends when this is dropped.
pub(crate) struct Endpoint {
    addr: SocketAddr,
    /// A duplicate for a successor.
    socket: std::net::TcpListener,
    _stop: oneshot::Sender<()>,
}

/// A bound socket, and the address of the configuration.
pub(crate) struct Bound {
    addr: SocketAddr,
    listener: std::net::TcpListener,
}

/// The new place of the metrics.
pub(crate) enum EndpointChange {
    Same,
    Other(Option<Endpoint>),
}

/// Binds first, so that an error occurs before anything else is set up.
pub(crate) fn bind(addr: SocketAddr, inherited: &Inherited) -> anyhow::Result<Bound> {
    let listener = match inherited.metrics(addr)? {
        Some(listener) => listener,
        None => std::net::TcpListener::bind(addr).with_context(|| format!("cannot listen on {addr} for metrics"))?,
    };
    listener.set_nonblocking(true)?;
    Ok(Bound { addr, listener })
}

impl Bound {
    /// Returns its address, with the port if the configuration had none.
    pub(crate) fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Metrics {
    /// Publishes `stats`, if there is an address for it.
    pub(crate) fn start(bound: Option<Bound>, stats: Arc<Stats>, stack: StackCounters) -> anyhow::Result<Self> {
        let shown = Arc::new(RwLock::new(stats));
        let mut metrics = Self { shown, stack, endpoint: None };
        metrics.endpoint = bound.map(|bound| metrics.serve(bound)).transpose()?;
        Ok(metrics)
    }

    /// Returns the published counters.
    pub(crate) fn shown(&self) -> Shown {
        self.shown.clone()
    }

    /// Opens what another configuration needs.
    pub(crate) fn prepare(&self, addr: Option<SocketAddr>) -> anyhow::Result<EndpointChange> {
        if addr == self.endpoint.as_ref().map(|endpoint| endpoint.addr) {
            return Ok(EndpointChange::Same);
        }
        let Some(addr) = addr else { return Ok(EndpointChange::Other(None)) };
        let bound = bind(addr, &Inherited::default())?;
        tracing::info!("metrics {}", bound.local_addr()?);
        self.serve(bound).map(Some).map(EndpointChange::Other)
    }

    pub(crate) fn switch(&mut self, place: EndpointChange, stats: Arc<Stats>) {
        show(&self.shown, stats);
        if let EndpointChange::Other(endpoint) = place {
            self.endpoint = endpoint;
        }
    }

    /// Returns another descriptor of the socket.
    pub(crate) fn passed(&self) -> std::io::Result<Option<Passed>> {
        let passed = |endpoint: &Endpoint| {
            let (role, socket) = (Role::Metrics(endpoint.addr), endpoint.socket.try_clone()?.into());
            Ok(Passed { role, socket })
        };
        self.endpoint.as_ref().map(passed).transpose()
    }

    /// Closes the socket, because another process serves its metrics here.
    pub(crate) fn leave(&mut self) {
        self.endpoint = None;
    }

    /// Starts the thread that responds to `GET /metrics`.
    fn serve(&self, bound: Bound) -> anyhow::Result<Endpoint> {
        let Bound { addr, listener } = bound;
        let socket = listener.try_clone()?;
        let mut registry = Registry::with_prefix("fs_proxy");
        registry.register_collector(Box::new(ProxyCollector(self.shown.clone())));
        registry.register_collector(Box::new(StackCollector(self.stack.clone())));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let shown = self.shown.clone();
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    // The sender is never used, only dropped.
                    _ = stopped => {}
                    () = accept(listener, Arc::new(Pages { registry, shown })) => {}
                }
            });
        };
        std::thread::Builder::new().name("metrics".into()).spawn(run)?;
        Ok(Endpoint { addr, socket, _stop: stop })
    }
}

/// The pages at the address of the metrics: metrics, and a page for a browser.
struct Pages {
    registry: Registry,
    shown: Shown,
}

async fn accept(listener: tokio::net::TcpListener, pages: Arc<Pages>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("metrics: accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let pages = pages.clone();
        tokio::spawn(async move {
            let _place = place;
            let service = service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(&pages, &request))));
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(30));
            if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!("metrics: {error}");
            }
        });
    }
}

fn answer(Pages { registry, shown }: &Pages, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() == Method::GET && request.uri().path() == "/" {
        let stats = shown.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut response = Response::new(Full::new(Bytes::from(Status::of(&stats).page(&flows::flows()))));
        let html = header::HeaderValue::from_static("text/html; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, html);
        return response;
    }
    let found = request.method() == Method::GET && request.uri().path() == "/metrics";
    let accept = request.headers().get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::wanted(accept);
    let mut body = String::new();
    let status = match found.then(|| text::encode(&mut body, registry)) {
        Some(Ok(())) => StatusCode::OK,
        Some(Err(fmt::Error)) => StatusCode::INTERNAL_SERVER_ERROR,
        None => StatusCode::NOT_FOUND,
    };
    if format == Format::Classic {
        body = format::classic(&body);
    }
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(format.content_type()));
    response
}

#[derive(Debug)]
struct ProxyCollector(Shown);

type ListenerCounter = fn(&ListenerStats) -> &Counter;
type ServerCounter = fn(&ServerStats) -> &Counter;
type UpstreamCounter = fn(&UpstreamStats) -> &Counter;

impl Collector for ProxyCollector {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let stats = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        View(&stats).encode(encoder)
    }
}

/// The counters of one configuration.
struct View<'a>(&'a Stats);

impl View<'_> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let listeners: [(&str, &str, MetricType, ListenerCounter); 14] = [
            ("connections", "Connections accepted.", MetricType::Counter, |s| &s.accepted),
            ("connections_open", "Connections open.", MetricType::Gauge, |s| &s.open),
            ("connections_evicted", "Idle connections closed for others.", MetricType::Counter, |s| &s.evicted),
            ("connections_refused", "Connections beyond an address's limit.", MetricType::Counter, |s| &s.refused),
            ("connections_failed", "Connections that ended with an error.", MetricType::Counter, |s| &s.failed),
            ("connections_spliced", "Connections that left user space.", MetricType::Counter, |s| &s.splices),
            ("connections_spliced_open", "Spliced connections open.", MetricType::Gauge, |s| &s.spliced),
            ("spliced_bytes_in", "Bytes from clients, outside of user space.", MetricType::Counter, |s| &s.spliced_in),
            ("spliced_bytes_out", "Bytes to clients, outside of user space.", MetricType::Counter, |s| &s.spliced_out),
            ("splices_refused", "Connections not spliced.", MetricType::Counter, |s| &s.splices_refused),
            ("tls_handshakes", "TLS handshakes made.", MetricType::Counter, |s| &s.handshakes),
            ("tls_handshakes_failed", "TLS handshakes that failed.", MetricType::Counter, |s| &s.handshakes_failed),
            ("bytes_in", "Bytes from clients.", MetricType::Counter, |s| &s.bytes_in),
            ("bytes_out", "Bytes to clients.", MetricType::Counter, |s| &s.bytes_out),
        ];
        for (name, help, kind, counter) in listeners {
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            self.each_listener(|number, labels| number_of(&mut family, labels, kind, self.sum(number, counter)))?;
        }
        self.encode_answers(&mut encoder)?;
        self.encode_upstreams(&mut encoder)?;
        let servers: [(&str, &str, MetricType, ServerCounter); 5] = [
            ("server_connects", "Connections opened to servers.", MetricType::Counter, |s| &s.connects),
            ("server_connect_failures", "Connections that failed.", MetricType::Counter, |s| &s.connect_failures),
            ("server_active", "Connections (tcp) or requests (http) under way.", MetricType::Gauge, |s| &s.active),
            ("server_reused", "Requests over a kept connection.", MetricType::Counter, |s| &s.reused),
            (
                "server_retries",
                "Requests sent again after a connection had ended without a response.",
                MetricType::Counter,
                |s| &s.retries,
            ),
        ];
        for (name, help, kind, counter) in servers {
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            self.each_server(|upstream, server, labels| {
                let cores = self.0.cores.iter();
                let value =
                    cores.map(|core| counter(&core.0.servers[upstream][server].0).value()).fold(0, u64::wrapping_add);
                number_of(&mut family, labels, kind, value)
            })?;
        }
        let mut family = encoder.encode_descriptor("server_healthy", "1 when used.", None, MetricType::Gauge)?;
        self.each_server(|upstream, server, labels| {
            let healthy = self.0.servers[upstream][server].is_healthy();
            number_of(&mut family, labels, MetricType::Gauge, u64::from(healthy))
        })?;
        let dropped = access_log::dropped();
        let help = "Access log lines that could not be written, or not fast enough.";
        encoder
            .encode_descriptor("log_lines_dropped", help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&dropped, None)?;
        encode_process(&mut encoder)
    }
}

type Labels<'a> = [(&'static str, &'a str); 2];

impl View<'_> {
    fn sum(&self, listener: usize, counter: ListenerCounter) -> u64 {
        // A gauge may be incremented and decremented between two readings, but it stays on its
        // core.
        self.0.cores.iter().map(|core| counter(&core.0.listeners[listener].0).value()).fold(0, u64::wrapping_add)
    }

    fn each_listener(&self, mut encode: impl FnMut(usize, &Labels<'_>) -> fmt::Result) -> fmt::Result {
        for (number, listener) in self.0.listeners.iter().enumerate() {
            let mode = if listener.mode == Mode::Tcp { "tcp" } else { "http" };
            encode(number, &[("listener", &listener.name), ("mode", mode)])?;
        }
        Ok(())
    }

    fn each_server(&self, mut encode: impl FnMut(usize, usize, &Labels<'_>) -> fmt::Result) -> fmt::Result {
        for (number, upstream) in self.0.servers.iter().enumerate() {
            for (place, server) in upstream.iter().enumerate() {
                encode(number, place, &[("upstream", &server.upstream), ("server", &server.addr.to_string())])?;
            }
        }
        Ok(())
    }

    fn encode_upstreams(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let counters: [(&str, &str, MetricType, UpstreamCounter); 4] = [
            ("upstream_waiting", "Requests waiting for a busy server.", MetricType::Gauge, |s| &s.waiting),
            ("upstream_queued", "Requests that waited for a server.", MetricType::Counter, |s| &s.queued),
            ("upstream_queue_refused", "Requests that waited in vain.", MetricType::Counter, |s| &s.queue_refused),
            ("upstream_retries_refused", "Retries beyond the budget.", MetricType::Counter, |s| &s.retries_refused),
        ];
        for (name, help, kind, counter) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (number, upstream) in self.0.upstreams.iter().enumerate() {
                let cores = self.0.cores.iter();
                let value = cores.map(|core| counter(&core.0.upstreams[number].0).value()).fold(0, u64::wrapping_add);
                number_of(&mut family, &[("upstream", upstream)], kind, value)?;
            }
        }
        Ok(())
    }

    fn encode_answers(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let http = |listener: &ListenerName| listener.mode == Mode::Http;
        let listeners: Vec<(Vec<_>, usize)> = (self.0.listeners.iter().enumerate())
            .filter(|(_, listener)| http(listener))
            .map(|(number, listener)| (vec![("listener", listener.name.clone())], number))
            .collect();
        let of_listener = |core: &CoreStats, number: &usize| core.listeners[*number].clone();
        encode_classes(encoder, "answers", &listeners, |number, class| {
            self.0.cores.iter().map(|core| of_listener(&core.0, number).0.answers.classes[class].value()).sum()
        })?;
        encode_latency(encoder, "latency_seconds", &listeners, |number, sum| {
            self.0.cores.iter().for_each(|core| sum.add(&of_listener(&core.0, number).0.answers));
        })?;
        let servers: Vec<(Vec<_>, (usize, usize))> = (self.0.servers.iter().enumerate())
            .flat_map(|(number, servers)| {
                servers.iter().enumerate().map(move |(place, server)| (number, place, server))
            })
            .map(|(number, place, server)| {
                let labels = vec![("upstream", server.upstream.clone()), ("server", server.addr.to_string())];
                (labels, (number, place))
            })
            .collect();
        let of_server = |core: &CoreStats, (number, place): &(usize, usize)| core.servers[*number][*place].clone();
        encode_classes(encoder, "server_answers", &servers, |server, class| {
            self.0.cores.iter().map(|core| of_server(&core.0, server).0.answers.classes[class].value()).sum()
        })?;
        encode_latency(encoder, "server_latency_seconds", &servers, |server, sum| {
            self.0.cores.iter().for_each(|core| sum.add(&of_server(&core.0, server).0.answers));
        })
    }
}

/// Latencies of all cores.
#[derive(Default)]
struct Latencies {
    seconds: f64,
    counts: [u64; LATENCY_US.len()],
}

impl Latencies {
    fn add(&mut self, answers: &Answers) {
        let (seconds, counts) = answers.latency();
        self.seconds += seconds;
        self.counts.iter_mut().zip(counts).for_each(|(all, one)| *all += one);
    }
}

/// Encodes responses by class, for each owner (a server or a listener), under its labels.
fn encode_classes<T>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    owners: &[(Vec<(&'static str, String)>, T)],
    count: impl Fn(&T, usize) -> u64,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, "Answers by class.", None, MetricType::Counter)?;
    for (labels, key) in owners {
        for (class, name) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().enumerate() {
            let mut labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
            labels.push(("class", name));
            number_of(&mut family, &labels, MetricType::Counter, count(key, class))?;
        }
    }
    Ok(())
}

/// Encodes a histogram for each owner, under its labels.
fn encode_latency<T>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    owners: &[(Vec<(&'static str, String)>, T)],
    add: impl Fn(&T, &mut Latencies),
) -> fmt::Result {
    let help = "From the head of a request to the end of its answer.";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, key) in owners {
        let mut all = Latencies::default();
        add(key, &mut all);
        let bound = |us: u64| if us == u64::MAX { f64::INFINITY } else { us as f64 / 1e6 };
        let buckets: Vec<_> = LATENCY_US.iter().zip(all.counts).map(|(&us, count)| (bound(us), count)).collect();
        let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let total = all.counts.iter().sum();
        family.encode_family(&labels.as_slice())?.encode_histogram::<NoLabelSet>(all.seconds, total, &buckets, None)?;
    }
    Ok(())
}

fn number_of(
    family: &mut MetricEncoder<'_>,
    labels: &[(&'static str, &str)],
    kind: MetricType,
    value: u64,
) -> fmt::Result {
    let mut metric = family.encode_family(&labels)?;
    match kind {
        MetricType::Gauge => metric.encode_gauge(&value),
        _ => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
    }
}

fn encode_process(encoder: &mut DescriptorEncoder) -> fmt::Result {
    let usage = fs_stacks::usage::resource_usage();
    let cpu = (usage.user + usage.system).as_secs_f64();
    let help = "CPU time of the process.";
    encoder
        .encode_descriptor("cpu_seconds", help, None, MetricType::Counter)?
        .encode_counter::<NoLabelSet, _, u64>(&cpu, None)?;
    // /proc may not be accessible. Then this metric does not exist.
    let Ok(resident) = fs_stacks::usage::resident_bytes() else { return Ok(()) };
    let help = "Resident memory of the process.";
    encoder.encode_descriptor("resident_bytes", help, None, MetricType::Gauge)?.encode_gauge(&resident)
}

/// The counters of the stack, unchanged.
#[derive(Debug)]
struct StackCollector(StackCounters);

impl Collector for StackCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut by_name: BTreeMap<String, Vec<(String, String, u64)>> = BTreeMap::new();
        for counter in self.0.snapshot() {
            by_name.entry(counter.name).or_default().push((counter.core.to_string(), counter.kind, counter.value));
        }
        for (name, values) in &by_name {
            let name = format!("stack_{name}");
            let mut family = encoder.encode_descriptor(&name, "Counter of the stack.", None, MetricType::Counter)?;
            for (core, kind, value) in values {
                number_of(&mut family, &[("core", core), ("kind", kind)], MetricType::Counter, *value)?;
            }
        }
        Ok(())
    }
}
