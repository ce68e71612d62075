//! After a 101 (RFC 9110 7.8) both sides speak another protocol, and the proxy only relays.

use super::client::Client;
use crate::relay::{End, Moved, Shared};
use crate::spliced;
use bytes::Bytes;
use fs_stacks::Stream;
use tokio::time::timeout;

/// Relays between the client and the server that switched protocols, including bytes that each had
/// sent early.
pub(crate) async fn run(client: &Client, stream: Stream, early: Bytes) {
    let site = &client.site;
    let stats = site.listener_stats(client.listener);
    let (Some((mut exchange, _used)), Some(parts)) = (client.tunnel.exchange.take(), client.tunnel.server.take())
    else {
        return tracing::error!("{}: upgraded without a server", client.peer);
    };
    let Ok(Ok((server, parts))) = timeout(site.config.timeouts.connect, parts).await else {
        stats.failed.add(1);
        return tracing::warn!("{}: the server is gone after its 101", client.peer);
    };
    client.connection.relays_to(server);
    // Bytes of the tunnel that hyper had read already.
    let before = Moved { from_client: early.len() as u64, to_client: parts.read_buf.len() as u64 };
    stats.bytes_in.add(before.from_client);
    stats.bytes_out.add(before.to_client);
    let shared = Shared {
        connection: &client.connection,
        scratch: &site.scratch,
        idle: site.config.timeouts.idle,
        bytes_in: &stats.bytes_in,
        bytes_out: &stats.bytes_out,
        before,
        moved: &exchange.moved,
        splice: site.listeners[client.listener].candidate(stats, client.peer),
    };
    let server = End { stream: parts.io.into_inner(), first: early.to_vec() };
    let to_client = End { stream, first: parts.read_buf.to_vec() };
    let result = Box::pin(spliced::relay(to_client, server, shared)).await;
    exchange.broken = result.is_err();
    if let Err(error) = result {
        stats.failed.add(1);
        tracing::debug!("{}: tunnel: {error}", client.peer);
    }
}
