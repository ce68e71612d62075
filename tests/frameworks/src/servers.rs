//! An echo server of each framework.

use crate::{grpc, tls};
use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use fastsock::net;
use futures_util::{SinkExt, StreamExt};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinHandle;

/// Names and ports. The clients "pooled" and "reqwest" use axum's server.
pub(crate) const PORTS: &[(&str, u16)] = &[
    ("pooled", 8001),
    ("tonic", 8002),
    ("quinn", 8003),
    ("tls", 8004),
    ("tungstenite", 8005),
    ("h2", 8006),
    ("reqwest", 8001),
];

pub(crate) type Servers = Vec<JoinHandle<Result<()>>>;

/// The common interface of tokio's and fastsock's listeners.
trait Accept: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for tokio::net::TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn next(&self) -> io::Result<tokio::net::TcpStream> {
        Ok(self.accept().await?.0)
    }
}

impl Accept for net::TcpListener {
    type Stream = net::TcpStream;

    async fn next(&self) -> io::Result<net::TcpStream> {
        Ok(self.accept().await?.0)
    }
}

pub(crate) async fn on_fastsock(addr: IpAddr, handle: &fastsock::Handle) -> Result<Servers> {
    let bind = |port: u16| net::TcpListener::bind((addr, port));
    let (acceptor, quic) = tls::acceptor()?;
    let socket = Arc::new(net::UdpSocket::bind((addr, 8003)).await?);
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = quinn::Endpoint::new_with_abstract_socket(Default::default(), Some(quic), socket, runtime)?;
    let http = app().route("/who", get(async |ConnectInfo(net::PeerAddr(peer)): ConnectInfo<_>| peer.to_string()));
    let http = http.into_make_service_with_connect_info::<net::PeerAddr>();
    let listener = bind(8001).await?;
    let incoming = net::TcpIncoming::from(bind(8002).await?).with_nodelay(Some(true));
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    handle.spawn_on(0, move || local_h2((addr, 8006).into(), ready))?;
    is_ready.await.context("the core's own server")??;
    Ok(vec![
        tokio::spawn(async move { Ok(axum::serve(listener, http).await?) }),
        tokio::spawn(async move { Ok(tonic_server().serve_with_incoming(incoming).await?) }),
        tokio::spawn(over_quic(endpoint)),
        tokio::spawn(over_tls(bind(8004).await?, acceptor)),
        tokio::spawn(websockets(bind(8005).await?)),
    ])
}

pub(crate) async fn on_kernel(addr: IpAddr) -> Result<Servers> {
    let bind = |port: u16| tokio::net::TcpListener::bind((addr, port));
    let (acceptor, quic) = tls::acceptor()?;
    let endpoint = quinn::Endpoint::server(quic, (addr, 8003).into())?;
    let http = app().route("/who", get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.to_string()));
    let http = http.into_make_service_with_connect_info::<SocketAddr>();
    let listener = bind(8001).await?;
    let incoming = tonic::transport::server::TcpIncoming::from(bind(8002).await?).with_nodelay(Some(true));
    let h2 = bind(8006).await?;
    Ok(vec![
        tokio::spawn(async move { Ok(axum::serve(listener, http).await?) }),
        tokio::spawn(async move { Ok(tonic_server().serve_with_incoming(incoming).await?) }),
        tokio::spawn(over_quic(endpoint)),
        tokio::spawn(over_tls(bind(8004).await?, acceptor)),
        tokio::spawn(websockets(bind(8005).await?)),
        tokio::spawn(async move {
            loop {
                let (stream, _) = h2.accept().await?;
                let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service_fn(echo)));
            }
        }),
    ])
}

fn app() -> Router {
    Router::new().route("/echo", post(async |body: Body| body))
}

fn tonic_server() -> tonic::transport::server::Router {
    tonic::transport::Server::builder().add_service(grpc::Echo)
}

async fn over_quic(endpoint: quinn::Endpoint) -> Result<()> {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let connection = incoming.await?;
            while let Ok((mut to, mut from)) = connection.accept_bi().await {
                tokio::spawn(async move {
                    tokio::io::copy(&mut from, &mut to).await?;
                    anyhow::Ok(to.finish()?)
                });
            }
            anyhow::Ok(())
        });
    }
    Ok(())
}

async fn over_tls(listener: impl Accept, acceptor: tokio_rustls::TlsAcceptor) -> Result<()> {
    loop {
        let stream = listener.next().await?;
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(acceptor.accept(stream).await?);
            tokio::io::copy(&mut reader, &mut writer).await?;
            writer.shutdown().await
        });
    }
}

async fn websockets(listener: impl Accept) -> Result<()> {
    loop {
        let stream = listener.next().await?;
        tokio::spawn(async move {
            let (mut to, mut from) = tokio_tungstenite::accept_async(stream).await?.split();
            while let Some(message) = from.next().await {
                let message = message?;
                if message.is_binary() {
                    to.send(message).await?;
                }
            }
            anyhow::Ok(())
        });
    }
}

async fn echo(request: hyper::Request<Incoming>) -> Result<hyper::Response<Incoming>, hyper::Error> {
    Ok(hyper::Response::new(request.into_body()))
}

/// For `!Send` sockets: hyper's tasks stay on the core, and nothing is copied or woken across
/// threads.
#[derive(Clone)]
struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, task: F) {
        fastsock::spawn_local(async move { drop(task.await) });
    }
}

/// hyper's HTTP/2 on sockets that stay on the core.
async fn local_h2(at: SocketAddr, ready: tokio::sync::oneshot::Sender<io::Result<()>>) {
    let listener = match fastsock::local::TcpListener::bind(at).await {
        Ok(listener) => listener,
        Err(error) => return drop(ready.send(Err(error))),
    };
    // If the caller no longer waits, it serves all the same.
    let _ = ready.send(Ok(()));
    while let Ok((stream, _)) = listener.accept().await {
        let http = hyper::server::conn::http2::Builder::new(LocalExecutor);
        fastsock::spawn_local(http.serve_connection(TokioIo::new(stream), service_fn(local_echo)));
    }
}

/// The response need not be `Send` either.
async fn local_echo(
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, hyper::Error>>, hyper::Error> {
    let stays = std::rc::Rc::new(request.into_body());
    fastsock::turn().await;
    let body = std::rc::Rc::into_inner(stays).expect("one owner");
    Ok(hyper::Response::new(body.boxed_unsync()))
}
