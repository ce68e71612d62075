//! L4: a connection to a server for each connection from a client.

use crate::clients::{Busy, Connection};
use crate::handshake::stopped;
use crate::refusal::Refusal;
use crate::relay::{End, Moved, Shared};
use crate::routes::{self, Routes};
use crate::site::Site;
use crate::spliced;
use crate::upstream::{Pick, Upstream, Use};
use crate::{client_hello, proxy_protocol};
use fs_stacks::Stream;
use fs_stacks::net::within;
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;
use tokio::io::AsyncReadExt;

/// Bytes that are read from a client before there is a server. Too low: a reset behind them is not
/// noticed. Too high: each waiting client may use that much memory.
const AHEAD_MAX: usize = 16 << 10;

/// Serves one connection of listener number `listener`. `busy` is kept until there is a server.
pub(crate) async fn serve(
    site: Rc<Site>,
    listener: usize,
    mut client: Stream,
    peer: SocketAddr,
    connection: &Rc<Connection>,
    mut busy: Busy,
) {
    let started = Instant::now();
    let stats = site.listener_stats(listener);
    let routes = &site.listeners[listener].routes;
    let mut first = Vec::new();
    let upstream = match routes.direct() {
        Some(upstream) => Some(upstream.clone()),
        None => {
            // A client that only connects must not keep its place.
            drop(busy);
            // Boxed, because most listeners do not need it.
            let chosen = Box::pin(choose(&site, routes, &mut client, connection)).await;
            busy = connection.busy();
            match chosen {
                Ok((read, upstream)) => {
                    first = read;
                    upstream
                }
                // A health check that only tests whether the port is open.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return,
                Err(error) => {
                    stats.failed.add(1);
                    let outcome = error.to_string();
                    return site.log_tcp(listener, peer, None, Default::default(), started, &outcome);
                }
            }
        }
    };
    let outcome = "the proxy stops".to_owned();
    let mut line = Line { site: &site, listener, peer, server: None, moved: Cell::default(), started, outcome };
    let Some(upstream) = upstream else {
        stats.failed.add(1);
        let _ = client.set_zero_linger();
        return line.ended("no route");
    };
    let key = routes::key(upstream.hash.as_ref(), peer.ip(), None);
    let mut tried = Vec::new();
    // No byte was sent yet, so every server may be tried.
    let (used, server) = loop {
        let used = match upstream.pick(&tried, key) {
            Pick::Used(used) => Ok(used),
            Pick::Busy => Box::pin(wait(&upstream, (&tried, key), &mut client, &mut first)).await,
            Pick::Nobody => {
                if tried.is_empty() {
                    site.complain_of(&upstream);
                }
                Err("no server")
            }
        };
        let used = match used {
            Ok(used) if tried.is_empty() || upstream.may_retry() => used,
            refused => {
                stats.failed.add(1);
                // A reset says that there is no server; FIN would be an empty response. It fails if
                // the client is gone.
                let _ = client.set_zero_linger();
                return line.ended(refused.err().unwrap_or("no server, and no retry left"));
            }
        };
        line.server = Some(used.server().addr);
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
    let before = Moved { from_client: first.len() as u64, to_client: 0 };
    if let Some(version) = upstream.send_proxy {
        // Without an address the client has disconnected, which the relay will notice.
        let ends = client.local_addr().ok().map(|local| (peer, local));
        first.splice(0..0, proxy_protocol::header(version, ends));
    }
    stats.bytes_in.add(before.from_client);
    let shared = Shared {
        connection,
        scratch: &site.scratch,
        idle: site.config.timeouts.idle,
        bytes_in: &stats.bytes_in,
        bytes_out: &stats.bytes_out,
        before,
        moved: &line.moved,
        splice: site.listeners[listener].candidate(stats, peer),
    };
    let ends = (End { stream: client, first: Vec::new() }, End { stream: server, first });
    // Boxed, so that the task is smaller while it connects.
    match Box::pin(spliced::relay(ends.0, ends.1, shared)).await {
        Ok(()) => line.ended("ok"),
        Err(error) => {
            stats.failed.add(1);
            line.ended(&error.to_string());
        }
    }
}

/// A connection's line of the log, written when it is dropped: a stop drops connections.
struct Line<'a> {
    site: &'a Site,
    listener: usize,
    peer: SocketAddr,
    server: Option<SocketAddr>,
    moved: Cell<Moved>,
    started: Instant,
    outcome: String,
}

impl Line<'_> {
    fn ended(mut self, outcome: &str) {
        outcome.clone_into(&mut self.outcome);
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let Self { site, listener, peer, server, moved, started, outcome } = self;
        site.log_tcp(*listener, *peer, *server, moved.get(), *started, outcome);
    }
}

/// Waits until a server has room. Reads what the client sends until then, because only a read shows
/// that it has reset the connection.
async fn wait(
    upstream: &Rc<Upstream>,
    (tried, key): (&[usize], Option<u64>),
    client: &mut Stream,
    first: &mut Vec<u8>,
) -> Result<Use, &'static str> {
    let gone = async {
        let mut piece = [0; 2048];
        while first.len() < AHEAD_MAX {
            match client.read(&mut piece).await {
                Ok(0) => break,
                Ok(length) => first.extend_from_slice(&piece[..length]),
                Err(_) => return,
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        biased;
        () = gone => Err("the client is gone"),
        used = upstream.wait(tried, key) => used.map_err(|Refusal(_, why)| why),
    }
}

/// Returns the upstream for the name that a TLS client asks for, and the bytes that were read for
/// it. The client may not take longer than for a request's head.
async fn choose(
    site: &Site,
    routes: &Routes,
    client: &mut Stream,
    connection: &Connection,
) -> io::Result<(Vec<u8>, Option<Rc<Upstream>>)> {
    if routes.routes.is_empty() {
        return Ok((Vec::new(), routes.default.clone()));
    }
    if let Some(name) = client.server_name() {
        return Ok((Vec::new(), routes.upstream_of_name(name)));
    }
    let (read, name) = tokio::select! {
        biased;
        () = connection.leaving() => return Err(io::Error::other("idle longest, closed for another client")),
        read = within(site.config.timeouts.idle, client_hello::read(client)) => read?,
        () = stopped(site) => return Err(io::Error::other("the proxy stops")),
    };
    Ok((read, routes.upstream_of_name(name.as_deref())))
}
