//! After a 101 (RFC 9110 7.8) both sides speak another protocol, and the proxy only relays.

use super::Client;
use crate::relay::{End, Shared, relay};
use bytes::Bytes;
use fs_example_common::Stream;
use hyper::client::conn::http1::Parts;
use hyper_util::rt::TokioIo;
use std::cell::Cell;
use std::net::SocketAddr;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Where the server's connection comes from, once hyper is done with it.
pub(crate) type Slot = Cell<Option<oneshot::Receiver<(SocketAddr, Parts<TokioIo<Stream>>)>>>;

/// Relays between the client and the server that switched, with what each had sent early.
pub(crate) async fn run(client: &Client, stream: Stream, early: Bytes) {
    let site = &client.site;
    let stats = site.listener_stats(client.listener);
    let parts = match client.tunnel.take() {
        Some(parts) => timeout(site.config.timeouts.connect, parts).await,
        None => return tracing::error!("{}: upgraded without a server", client.peer),
    };
    let Ok(Ok((server, parts))) = parts else {
        stats.failed.add(1);
        return tracing::warn!("{}: the server is gone after its 101", client.peer);
    };
    client.connection.relays_to(server);
    let shared = Shared {
        connection: &client.connection,
        scratch: &site.scratch,
        idle: site.config.timeouts.idle,
        bytes_in: &stats.bytes_in,
        bytes_out: &stats.bytes_out,
    };
    let server = End { stream: parts.io.into_inner(), first: early.to_vec() };
    let to_client = End { stream, first: parts.read_buf.to_vec() };
    let (_, result) = Box::pin(relay(to_client, server, shared)).await;
    if let Err(error) = result {
        stats.failed.add(1);
        tracing::debug!("{}: tunnel: {error}", client.peer);
    }
}
