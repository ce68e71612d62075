//! Clients with HTTP/2 over TLS.
#![allow(dead_code)]

use crate::identity::Identity;
use bytes::Bytes;
use fs_stacks::testing::PATIENCE;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;

pub(crate) type Sender = SendRequest<Full<Bytes>>;

/// The shortest `idle` of the tests, which limits a handshake too.
const IDLE_MIN: Duration = Duration::from_secs(1);

/// Connects with these protocols. Returns the chosen one.
pub(crate) async fn connect(
    identity: &Identity,
    addr: SocketAddr,
    protocols: &[&str],
) -> (TlsStream<TcpStream>, Option<Vec<u8>>) {
    loop {
        let start = Instant::now();
        match try_handshake(identity, TcpStream::connect(addr).await.unwrap(), protocols).await {
            Ok(done) => return done,
            // The proxy gives up a handshake in which one side is stopped for `idle`.
            Err(error) => assert!(start.elapsed() >= IDLE_MIN, "{error}"),
        }
    }
}

/// As [`connect`], on a connection.
pub(crate) async fn handshake_on(
    identity: &Identity,
    stream: TcpStream,
    protocols: &[&str],
) -> (TlsStream<TcpStream>, Option<Vec<u8>>) {
    try_handshake(identity, stream, protocols).await.unwrap()
}

async fn try_handshake(
    identity: &Identity,
    stream: TcpStream,
    protocols: &[&str],
) -> std::io::Result<(TlsStream<TcpStream>, Option<Vec<u8>>)> {
    let mut roots = RootCertStore::empty();
    roots.add(identity.der.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await?;
    let chosen = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    Ok((stream, chosen))
}

/// Opens an HTTP/2 connection.
pub(crate) async fn open(identity: &Identity, addr: SocketAddr) -> (Sender, JoinHandle<Result<(), hyper::Error>>) {
    let (stream, chosen) = connect(identity, addr, &["h2", "http/1.1"]).await;
    assert_eq!(chosen.as_deref(), Some(&b"h2"[..]));
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    (sender, tokio::spawn(connection))
}

pub(crate) fn request(path: &str, body: Vec<u8>) -> Request<Full<Bytes>> {
    Request::post(format!("https://a.example{path}")).body(Full::new(body.into())).unwrap()
}

pub(crate) async fn body(response: Response<Incoming>) -> (Vec<u8>, Option<http::HeaderMap>) {
    let collected = response.into_body().collect().await.unwrap();
    let trailers = collected.trailers().cloned();
    (collected.to_bytes().to_vec(), trailers)
}

pub(crate) const SETTINGS: u8 = 4;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;

/// Returns a frame (RFC 9113 4.1).
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    [&length.to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns what a client begins with (RFC 9113 3.4).
pub(crate) fn preface() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*frame(SETTINGS, 0, 0, &[])].concat()
}

/// Returns GET / of x, with HPACK's static table: HEADERS with END_STREAM and END_HEADERS.
pub(crate) fn get(stream: u32) -> Vec<u8> {
    frame(1, 5, stream, b"\x82\x87\x84\x41\x01x")
}

pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(4 * PATIENCE, test).await.expect("in time") });
}
