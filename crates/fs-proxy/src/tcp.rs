//! L4: a connection to a server for each connection from a client.

use crate::clients::{Busy, Connection};
use crate::relay::{End, Shared, relay};
use crate::site::Site;
use fs_example_common::Stream;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

/// Serves one connection of listener number `listener`. `busy` is kept until there is a server.
pub(crate) async fn serve(
    site: Rc<Site>,
    listener: usize,
    client: Stream,
    peer: SocketAddr,
    connection: &Connection,
    busy: Busy,
) {
    let started = Instant::now();
    let stats = site.listener_stats(listener);
    let upstream = &site.listeners[listener].upstream;
    let mut tried = Vec::new();
    // Nothing was sent yet, so every server may be tried.
    let (used, server) = loop {
        let Some(used) = upstream.pick(&tried) else {
            if tried.is_empty() {
                site.complain_of(upstream);
            }
            stats.failed.add(1);
            // A reset says that there is no server; FIN would be an empty response. It fails if the
            // client is gone.
            let _ = client.set_zero_linger();
            return site.log_tcp(listener, peer, None, Default::default(), started, "no server");
        };
        match site.connect(used.server(), site.config.timeouts.connect).await {
            Ok(stream) => {
                used.server().answered();
                break (used, stream);
            }
            Err(error) => used.complain(&format_args!("cannot connect: {error}")),
        }
        tried.push(used.index);
    };
    connection.relays_to(used.server().addr);
    drop(busy);
    let shared = Shared {
        connection,
        scratch: &site.scratch,
        idle: site.config.timeouts.idle,
        bytes_in: &stats.bytes_in,
        bytes_out: &stats.bytes_out,
    };
    let end = |stream| End { stream, first: Vec::new() };
    // In a box, so that the task is not as large while it connects.
    let (moved, result) = Box::pin(relay(end(client), end(server), shared)).await;
    let outcome = match &result {
        Ok(()) => "ok".to_owned(),
        Err(error) => {
            stats.failed.add(1);
            format!("{error}")
        }
    };
    site.log_tcp(listener, peer, Some(used.server().addr), moved, started, &outcome);
}
