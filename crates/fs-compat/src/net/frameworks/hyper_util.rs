//! Connections for hyper-util's pooled client, and for other users of such a connector (tonic's
//! `Endpoint`).

use crate::net::background::runtime;
use crate::net::tcp_stream::TcpStream;
use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_service::Service;

/// A connector to the host and port of a URI, instead of hyper-util's `HttpConnector`. For `https`,
/// wrap it in the same way (hyper-rustls).
///
/// ```no_run
/// use fastsock::net::Connector;
/// use hyper_util::client::legacy::Client;
/// use hyper_util::rt::TokioExecutor;
///
/// # fn main() {
/// let client = Client::builder(TokioExecutor::new()).build(Connector::new());
/// # let _: Client<_, http_body_util::Empty<hyper::body::Bytes>> = client;
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Connector {
    runtime: Option<fs_rt::Handle>,
    nodelay: bool,
}

impl Connector {
    /// Uses the runtime that [`crate::net`] describes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses the cores of `runtime`.
    pub fn on(runtime: fs_rt::Handle) -> Self {
        Self { runtime: Some(runtime), nodelay: false }
    }

    /// Sets TCP_NODELAY of new connections. Off by default, as in `HttpConnector`.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.nodelay = nodelay;
    }
}

/// The future of a connection that [`Connector`] opens.
pub struct Connecting(Pin<Box<dyn Future<Output = io::Result<TokioIo<TcpStream>>> + Send>>);

impl std::fmt::Debug for Connecting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connecting")
    }
}

impl Future for Connecting {
    type Output = io::Result<TokioIo<TcpStream>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        let Connector { runtime: named, nodelay } = self.clone();
        Connecting(Box::pin(async move {
            let host = uri.host().ok_or_else(|| invalid(&uri, "has no host"))?;
            // An IPv6 address, without its brackets.
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).to_owned();
            let port = match (uri.port_u16(), uri.scheme_str()) {
                (Some(port), _) => port,
                (None, Some("https")) => 443,
                (None, Some("http") | None) => 80,
                (None, Some(_)) => {
                    return Err(invalid(&uri, "has no port, and its scheme is neither http nor https"));
                }
            };
            let runtime = match named {
                Some(runtime) => runtime,
                None => runtime()?,
            };
            let stream = TcpStream::connect_on(&runtime, (host, port)).await?;
            if nodelay {
                stream.set_nodelay(true)?;
            }
            Ok(TokioIo::new(stream))
        }))
    }
}

fn invalid(uri: &Uri, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{uri} {why}"))
}

impl Connection for TcpStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
