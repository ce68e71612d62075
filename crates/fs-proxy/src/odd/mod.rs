//! Odd requests, on hyper: an HTTP/1.1 server for the client, an HTTP/1.1 client for the servers,
//! and streamed bodies. Serves what `http1` does not: HTTP/1.0, tunnels, bare line feeds, options
//! of `Connection` …

pub(crate) mod body;
mod exchange;
mod forward;
mod headers;
pub(crate) mod pool;
mod tunnel;

use crate::clients::Connection;
use crate::config::Timeouts;
use crate::http1::From;
use crate::http1::head::LINES_MAX;
use crate::site::Site;
use crate::worker::{Socket, Target};
use body::WebBody;
use bytes::Bytes;
use fs_example_common::Stream;
use fs_example_common::http::{ServeOptions, Served};
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::TokioTimer;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;

/// Limit of hyper's buffers per direction and connection: a head must fit, and a body waits.
const BUFFER_MAX: usize = 64 << 10;

/// Returns the options for client connections.
pub(crate) fn serve_options(timeouts: &Timeouts, lean: bool) -> ServeOptions {
    let mut builder = Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(timeouts.idle).max_buf_size(BUFFER_MAX).max_headers(LINES_MAX);
    ServeOptions { builder, idle_timeout: Some(timeouts.idle), gives_back: lean, ..ServeOptions::default() }
}

/// Serves a connection that `socket` accepted, of which `prefix` has been read. Returns it after
/// the response if no more bytes have arrived.
pub(crate) async fn serve(
    site: Rc<Site>,
    socket: Rc<Socket>,
    From { listener, peer, is_tls }: From,
    stream: Stream,
    prefix: Bytes,
    connection: &Rc<Connection>,
) -> Option<Stream> {
    let (connection, tunnel) = (connection.clone(), Rc::default());
    let client = Rc::new(Client { site: site.clone(), socket, listener, peer, is_tls, connection, tunnel });
    // A connection that must close for another client is idle, and is treated as at a stop.
    let stop = async {
        tokio::select! {
            biased;
            () = site.stop.requested() => {}
            () = client.connection.leaving() => {}
        }
    };
    let serving =
        fs_example_common::http::serve_from(stream, prefix, &site.serve_options, Web(client.clone()), Box::pin(stop));
    let served = tokio::select! {
        biased;
        served = serving => served,
        // close_notify was sent unless the client does not read, and no request is in progress.
        () = client.connection.leaving() => Ok(Served::Closed),
    };
    match served {
        Ok(Served::Closed) => {}
        Ok(Served::Idle(stream)) => return Some(stream),
        Ok(Served::Upgraded(stream, early)) => tunnel::run(&client, stream, early).await,
        Err(error) => {
            site.listener_stats(listener).failed.add(1);
            tracing::debug!("{peer}: {error}");
        }
    }
    None
}

/// A client's connection.
pub(crate) struct Client {
    pub(crate) site: Rc<Site>,
    pub(crate) listener: usize,
    pub(crate) peer: SocketAddr,
    /// Its connection uses TLS, whatever the current configuration wants of new ones.
    pub(crate) is_tls: bool,
    /// The socket of its connection, in any configuration.
    socket: Rc<Socket>,
    pub(crate) connection: Rc<Connection>,
    /// Receives the server's side of an upgraded connection.
    pub(crate) tunnel: Rc<tunnel::Slot>,
}

impl Client {
    fn origin(&self) -> headers::Origin {
        let is_trusted = self.site.listeners[self.listener].trusts(self.peer.ip());
        headers::Origin { peer: self.peer, is_tls: self.is_tls, is_trusted }
    }

    /// Returns the same client under the current configuration, unless that has no HTTP listener at
    /// this address.
    fn at_present(self: &Rc<Self>) -> Rc<Self> {
        let Some(Target { site, number }) = self.socket.http_target() else { return self.clone() };
        let Self { site: _, listener: _, peer, is_tls, socket, connection, tunnel } = &**self;
        Rc::new(Self {
            site,
            listener: number,
            peer: *peer,
            is_tls: *is_tls,
            socket: socket.clone(),
            connection: connection.clone(),
            tunnel: tunnel.clone(),
        })
    }
}

#[derive(Clone)]
struct Web(Rc<Client>);

impl hyper::service::Service<Request<Incoming>> for Web {
    type Response = Response<WebBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let client = self.0.clone();
        Box::pin(async move {
            // After a reload a client's kept connection gets one more request, which the new
            // configuration serves. A close while a request may be in flight would lose it (RFC
            // 9112 9.5).
            let server = if client.site.is_retired() { client.at_present() } else { client.clone() };
            let mut response = forward::forward(&server, request).await;
            if client.site.is_retired() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        })
    }
}
