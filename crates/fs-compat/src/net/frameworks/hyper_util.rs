//! Connections for hyper-util's pooled client, and for other users of such a connector (tonic's
//! `Endpoint`).

use crate::net::background::runtime;
use crate::net::tcp_stream::TcpStream;
use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::time::timeout;
use tower_service::Service;

/// Time until the other family's addresses are tried too: the default of `HttpConnector`. (RFC 8305
/// recommends 250 ms.) Shorter: more connections that are not used. Longer: a host whose IPv6 is
/// broken appears slow.
const OTHER_FAMILY_AFTER: Duration = Duration::from_millis(300);

/// A connector to the host and port of a URI, instead of hyper-util's `HttpConnector`. For `https`,
/// wrap it in the same way (hyper-rustls). If the host has addresses of both families, and those of
/// the first one do not answer within 300 ms, it tries the others too.
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
            let addrs = lookup_host((host, port)).await?.collect();
            let stream = connect(&runtime, addrs).await?;
            if nodelay {
                stream.set_nodelay(true)?;
            }
            Ok(TokioIo::new(stream))
        }))
    }
}

/// Connects to one of `addrs`: first to those of the first one's family, later to the others too.
async fn connect(runtime: &fs_rt::Handle, addrs: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let is_first = |addr: &SocketAddr| addrs.first().is_some_and(|first| first.is_ipv4() == addr.is_ipv4());
    let (first, others): (Vec<_>, Vec<_>) = addrs.iter().copied().partition(is_first);
    let mut by_first = pin!(TcpStream::connect_on(runtime, &first[..]));
    if others.is_empty() {
        return by_first.await;
    }
    let mut by_others = pin!(TcpStream::connect_on(runtime, &others[..]));
    match timeout(OTHER_FAMILY_AFTER, &mut by_first).await {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(_)) => return by_others.await,
        Err(_elapsed) => {}
    }
    tokio::select! {
        connected = &mut by_first => match connected {
            Ok(stream) => Ok(stream),
            Err(_) => by_others.await,
        },
        connected = &mut by_others => match connected {
            Ok(stream) => Ok(stream),
            Err(_) => by_first.await,
        },
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Background;
    use fs_rt::{LinkChoice, Runtime};
    use socket2::{Domain, Socket, Type};
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Returns a listener whose queue is full, so that it ignores new SYNs, and what fills it.
    fn silent() -> (std::net::TcpListener, Vec<std::net::TcpStream>) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        socket.listen(0).unwrap();
        let listener = std::net::TcpListener::from(socket);
        let at = listener.local_addr().unwrap();
        let fill = || std::net::TcpStream::connect_timeout(&at, Duration::from_millis(200)).ok();
        let waiting = std::iter::from_fn(fill).collect();
        (listener, waiting)
    }

    #[tokio::test]
    async fn other_family_is_tried_if_the_first_is_silent() {
        let runtime = Runtime::builder().link(LinkChoice::Kernel).cores([0]).pin(false).build().unwrap();
        let stack = Background::start(runtime).unwrap();
        let (silent, _waiting) = silent();
        let good = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        let addrs = [&silent, &good].map(|listener| listener.local_addr().unwrap());
        let connected = timeout(Duration::from_secs(20), connect(&stack.handle(), addrs.into())).await;
        assert_eq!(connected.unwrap().unwrap().peer_addr().unwrap(), addrs[1]);
        // It no longer listens, and keeps its port.
        socket2::SockRef::from(&silent).shutdown(std::net::Shutdown::Both).unwrap();
        // One that refuses is no reason to wait.
        assert_eq!(connect(&stack.handle(), addrs.into()).await.unwrap().peer_addr().unwrap(), addrs[1]);
        let refused = connect(&stack.handle(), vec![addrs[0]]).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
