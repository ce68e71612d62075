//! Odd requests, on hyper: a server for the client, a client for the servers, and streamed bodies.
//! Serves what `http1` does not: HTTP/1.0, tunnels, bare line feeds, options of `Connection` … and
//! HTTP/2 on either side.

mod body;
mod client;
mod exchange;
mod forward;
mod headers;
#[cfg(feature = "http2")]
pub(crate) mod http2;
#[cfg(feature = "http2")]
pub(crate) mod http2_pool;
pub(crate) mod options;
pub(crate) mod pool;
mod request_body;
#[cfg(feature = "http2")]
mod spawn;
mod tunnel;

use crate::clients::Connection;
use crate::site::Site;
use crate::socket::{From, Socket};
use body::WebBody;
use bytes::Bytes;
use client::Client;
use fs_stacks::Stream;
use fs_stacks::http::{ServeOptions, Served};
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// Serves a connection that `socket` accepted, of which `prefix` has been read. Returns it after
/// the response if no more bytes have arrived.
pub(crate) async fn serve(
    site: Rc<Site>,
    socket: Rc<Socket>,
    From { listener, peer, is_proxy, is_tls }: From,
    stream: Stream,
    prefix: Bytes,
    connection: &Rc<Connection>,
) -> Option<Stream> {
    let (connection, tunnel) = (connection.clone(), Rc::default());
    let client = Rc::new(Client { site: site.clone(), socket, listener, peer, is_proxy, is_tls, connection, tunnel });
    // A connection that must close for another client is idle, and is treated as at a stop.
    let stop = async {
        tokio::select! {
            biased;
            () = site.stop.requested() => {}
            () = client.connection.leaving() => {}
        }
    };
    let options = ServeOptions { gives_back: site.is_lean(listener), ..site.serve_options.clone() };
    let serving = fs_stacks::http::serve_from(stream, prefix, &options, Web(client.clone()), Box::pin(stop));
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
