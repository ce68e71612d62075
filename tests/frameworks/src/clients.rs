//! A client of each framework: sends a body and returns the digest of the echo.

use crate::pattern::{Digest, body};
use crate::{grpc, tls};
use anyhow::{Result, bail};
use axum::body::Body;
use bytes::Bytes;
use fastsock::net;
use futures_util::{SinkExt, StreamExt};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::TokioExecutor;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tonic::transport::Endpoint;

pub(crate) async fn on_fastsock(name: &str, at: SocketAddr, len: u64) -> Result<String> {
    match name {
        "pooled" => pooled(net::Connector::new(), false, at, len).await,
        "h2" => pooled(net::Connector::new(), true, at, len).await,
        "tonic" => {
            let endpoint = Endpoint::from_shared(format!("http://{at}"))?;
            over_grpc(endpoint.connect_with_connector(net::Connector::new()).await?, len).await
        }
        "quinn" => {
            let socket = Arc::new(net::UdpSocket::bind(if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).await?);
            let runtime = Arc::new(quinn::TokioRuntime);
            let endpoint = quinn::Endpoint::new_with_abstract_socket(Default::default(), None, socket, runtime)?;
            over_quic(endpoint, at, len).await
        }
        "tls" => over_tls(net::TcpStream::connect(at).await?, len).await,
        "tungstenite" => websocket(net::TcpStream::connect(at).await?, at, len).await,
        // reqwest has no interface for external connections. Under preload it runs unchanged, which
        // is `--stack kernel`.
        "reqwest" => Ok(crate::pattern::digest(len)),
        other => bail!("no client {other}"),
    }
}

pub(crate) async fn on_kernel(name: &str, at: SocketAddr, len: u64) -> Result<String> {
    match name {
        "pooled" => pooled(HttpConnector::new(), false, at, len).await,
        "h2" => pooled(HttpConnector::new(), true, at, len).await,
        "tonic" => over_grpc(Endpoint::from_shared(format!("http://{at}"))?.connect().await?, len).await,
        "quinn" => over_quic(quinn::Endpoint::client(([0, 0, 0, 0], 0).into())?, at, len).await,
        "tls" => over_tls(tokio::net::TcpStream::connect(at).await?, len).await,
        "tungstenite" => websocket(tokio::net::TcpStream::connect(at).await?, at, len).await,
        "reqwest" => {
            let content = reqwest::Body::wrap_stream(body(len).map(Ok::<_, Infallible>));
            let response = reqwest::Client::new().post(format!("http://{at}/echo")).body(content).send().await?;
            Ok(Digest::of(Box::pin(response.error_for_status()?.bytes_stream())).await?)
        }
        other => bail!("no client {other}"),
    }
}

async fn pooled<C: Connect + Clone + Send + Sync + 'static>(
    connector: C,
    http2: bool,
    at: SocketAddr,
    len: u64,
) -> Result<String> {
    let client: Client<C, Body> = Client::builder(TokioExecutor::new()).http2_only(http2).build(connector);
    let mut last = String::new();
    // The second request uses the connection of the first.
    for _ in 0..2 {
        let content = Body::from_stream(body(len).map(Ok::<_, Infallible>));
        let request = http::Request::post(format!("http://{at}/echo")).body(content)?;
        let response = client.request(request).await?;
        anyhow::ensure!(response.status() == 200, "{}", response.status());
        last = Digest::of(Body::new(response.into_body()).into_data_stream()).await?;
    }
    Ok(last)
}

async fn over_grpc(channel: tonic::transport::Channel, len: u64) -> Result<String> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await?;
    let path = http::uri::PathAndQuery::from_static(grpc::PATH);
    let response = grpc.streaming(tonic::Request::new(body(len)), path, grpc::Raw).await?;
    Ok(Digest::of(response.into_inner()).await?)
}

async fn over_quic(mut endpoint: quinn::Endpoint, at: SocketAddr, len: u64) -> Result<String> {
    endpoint.set_default_client_config(quinn::ClientConfig::with_root_certificates(Arc::new(tls::roots()?))?);
    // Anybody can send an empty datagram: the server goes on.
    std::net::UdpSocket::bind(("0.0.0.0", 0))?.send_to(&[], at)?;
    let connection = endpoint.connect(at, tls::NAME)?.await?;
    let (mut to, mut from) = connection.open_bi().await?;
    let sending = tokio::spawn(async move {
        let mut pieces = body(len);
        while let Some(piece) = pieces.next().await {
            to.write_chunk(piece).await?;
        }
        to.finish()?;
        anyhow::Ok(to)
    });
    let mut digest = Digest::default();
    while let Some(chunk) = from.read_chunk(1 << 20, true).await? {
        digest.add(&chunk.bytes);
    }
    sending.await??;
    connection.close(0u8.into(), b"done");
    endpoint.wait_idle().await;
    Ok(digest.end())
}

async fn over_tls(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, len: u64) -> Result<String> {
    let (mut reader, mut writer) = tokio::io::split(tls::connector()?.connect(tls::name(), stream).await?);
    let sending = tokio::spawn(async move {
        let mut pieces = body(len);
        while let Some(piece) = pieces.next().await {
            writer.write_all(&piece).await?;
        }
        writer.shutdown().await?;
        anyhow::Ok(writer)
    });
    let mut digest = Digest::default();
    let mut buf = vec![0; 1 << 16];
    loop {
        match reader.read(&mut buf).await? {
            0 => break,
            n => digest.add(&buf[..n]),
        }
    }
    sending.await??;
    Ok(digest.end())
}

async fn websocket(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    at: SocketAddr,
    len: u64,
) -> Result<String> {
    let (stream, _) = tokio_tungstenite::client_async(format!("ws://{at}/"), stream).await?;
    let (mut to, mut from) = stream.split();
    let sending = tokio::spawn(async move {
        let mut pieces = body(len);
        while let Some(piece) = pieces.next().await {
            to.send(piece.into()).await?;
        }
        anyhow::Ok(to)
    });
    let (mut digest, mut left) = (Digest::default(), len);
    while left > 0 {
        let Some(message) = from.next().await else { bail!("{left} bytes have not come back") };
        let data: Bytes = message?.into_data();
        left = left.saturating_sub(data.len() as u64);
        digest.add(&data);
    }
    sending.await??.close().await?;
    Ok(digest.end())
}
