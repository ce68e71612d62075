//! An HTTP/1.1 server that answers every request with the same bytes; also over TLS.

mod memory;
mod stats;
mod tls;

use bytes::Bytes;
use clap::Parser;
use fs_stacks::http::{Serve, ServeOptions, Served, serve};
use fs_stacks::net::accept_error_is_fatal;
use fs_stacks::{Core, Cores, Listener, StackArgs, Stream};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use stats::Stats;
use std::convert::Infallible;
use std::future::{Pending, Ready};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// HTTP/1.1 server with a fixed body. `GET /stats` tells how many connections and requests there
/// were.
#[derive(Parser, Clone, Debug)]
#[command(version)]
struct Args {
    /// Address to listen on.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Bytes in the body of every response.
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    body: usize,
    /// `GET /N` is answered with N bytes, up to so many; other paths with `--body`.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    by_path: usize,
    /// Serve HTTPS; without `--cert`, with a certificate made for this run and signed by itself.
    #[arg(long)]
    tls: bool,
    /// Certificate chain, PEM.
    #[arg(long, requires_all = ["tls", "key"])]
    cert: Option<PathBuf>,
    /// Private key, PEM.
    #[arg(long, requires_all = ["tls", "cert"])]
    key: Option<PathBuf>,
    /// Print resident memory, also per connection, to standard error every second.
    #[arg(long)]
    print_memory: bool,
    /// Milliseconds after which an idle connection gives its buffers back.
    #[arg(long, value_name = "MS", default_value_t = 200)]
    idle_shrink: u64,
    #[command(flatten)]
    stack: StackArgs,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    fs_stacks::init_log();
    fs_stacks::usage::raise_open_files(1 << 20)?;
    let tls = if args.tls { Some(tls::acceptor(args.cert.as_deref(), args.key.as_deref())?) } else { None };
    let stack = args.stack.clone();
    let stats = Arc::new(Stats::new(stack.cores.0.len()));
    if args.print_memory {
        memory::print_each_second(stats.clone())?;
    }
    Cores::start(&stack, move |core| run(core, args.clone(), tls.clone(), stats.clone()))?.join()
}

/// State that all connections of a core share.
struct Site {
    body: Bytes,
    /// The source of numbered paths' bodies.
    longest: Bytes,
    options: ServeOptions,
    tls: Option<tokio_rustls::TlsAcceptor>,
    stats: Arc<Stats>,
    core: usize,
}

impl Site {
    /// Returns the body for a path.
    fn answer(&self, path: &str) -> Bytes {
        let bytes = path.strip_prefix('/').and_then(|path| path.parse::<usize>().ok());
        match bytes {
            Some(bytes) if bytes <= self.longest.len() && !self.longest.is_empty() => self.longest.slice(..bytes),
            _ => self.body.clone(),
        }
    }
}

async fn run(core: Core, args: Args, tls: Option<tokio_rustls::TlsAcceptor>, stats: Arc<Stats>) -> anyhow::Result<()> {
    let listener = core.listen(args.listen).await?;
    if core.index == 0 {
        println!("listening {}", listener.local_addr()?);
    }
    let site: &'static Site = Box::leak(Box::new(Site {
        body: Bytes::from(vec![b'x'; args.body]),
        longest: Bytes::from(vec![b'x'; args.by_path]),
        options: ServeOptions { idle_shrink: Duration::from_millis(args.idle_shrink), ..ServeOptions::default() },
        tls,
        stats,
        core: core.index,
    }));
    if core.is_last_ready() {
        println!("ready");
    }
    tokio::select! {
        result = accept(&listener, site) => result?,
        () = core.stop_requested() => {}
    }
    // Requests are answered in the turn that reads them, so there is nothing to drain. Connections
    // end with the core.
    Ok(())
}

async fn accept(listener: &Listener, site: &'static Site) -> anyhow::Result<()> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => start(stream, site),
            Err(error) if accept_error_is_fatal(&error) => return Err(error.into()),
            Err(error) => {
                tracing::warn!("accept: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Starts serving a connection.
fn start(stream: Stream, site: &'static Site) {
    site.stats.core(site.core).opened.add(1);
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("nodelay: {error}");
    }
    if site.tls.is_some() {
        tokio::task::spawn_local(async move {
            encrypted(stream, site).await;
            site.stats.core(site.core).closed.add(1);
        });
    } else {
        // Boxed: the size of tokio's tasks is a multiple of 128 bytes with that alignment, so 100
        // bytes more would triple it. The box fits between two tasks.
        tokio::task::spawn_local(Box::pin(connection(stream, site)));
    }
}

fn connection(stream: Stream, site: &'static Site) -> Plain {
    Plain(serve(stream, &site.options, Answer(site), std::future::pending()))
}

/// A connection without TLS. Not an `async fn`: besides its socket, this is the cost of an idle
/// connection, and the compiler would store arguments twice.
struct Plain(Serve<'static, Answer, Pending<()>>);

impl Future for Plain {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let served = ready!(Pin::new(&mut self.0).poll(cx));
        let Answer(site) = *self.0.service();
        match served {
            Ok(Served::Closed | Served::Idle(_)) => {}
            Ok(Served::Upgraded(..)) => tracing::error!("upgraded without being asked"),
            Err(error) => failed(site, &error),
        }
        site.stats.core(site.core).closed.add(1);
        Poll::Ready(())
    }
}

async fn encrypted(stream: Stream, site: &'static Site) {
    let Some(acceptor) = &site.tls else { return };
    match acceptor.accept(stream).await {
        Ok(stream) => {
            let served = site.options.builder.serve_connection(TokioIo::new(stream), Answer(site)).await;
            served.unwrap_or_else(|error| failed(site, &error));
        }
        Err(error) => failed(site, &error),
    }
}

fn failed(site: &Site, error: &dyn std::error::Error) {
    site.stats.core(site.core).failed.add(1);
    tracing::debug!("connection: {error}");
}

#[derive(Clone, Copy)]
struct Answer(&'static Site);

impl hyper::service::Service<Request<Incoming>> for Answer {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let site = self.0;
        site.stats.core(site.core).requests.add(1);
        let stats = request.uri().path() == "/stats";
        let (status, kind, body) = match *request.method() {
            Method::GET | Method::HEAD if stats => (StatusCode::OK, "application/json", site.stats.json().into()),
            Method::GET | Method::HEAD => (StatusCode::OK, "text/plain", site.answer(request.uri().path())),
            _ => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", Bytes::from_static(b"GET or HEAD\n")),
        };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
        if status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(header::ALLOW, http::HeaderValue::from_static("GET, HEAD"));
        }
        std::future::ready(Ok(response))
    }
}

#[cfg(test)]
mod tests;
