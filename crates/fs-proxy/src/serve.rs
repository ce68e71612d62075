//! Accepts connections, and serves each in its listener's protocol.

use crate::config::Mode;
#[cfg(feature = "http2")]
use crate::odd;
use crate::socket::{From, Socket, Target};
#[cfg(not(feature = "http2"))]
use crate::{clients::Connection, site::Site};
use crate::{handshake, http1, introduction, tcp};
use anyhow::Context;
use fs_stacks::cores::BACKLOG;
use fs_stacks::net::{accept_error_is_fatal, is_own_shortage};
use fs_stacks::{Listener, Stream};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Bytes of a connection's task, which a connection keeps that waits for its next request. What only some
/// connections need, or only a request, is in a box. It is 808 on x86-64; compilers differ.
const TASK_MOST: usize = 1536;

/// Accepts from a socket until its stop, and then the connections that are already in the queue.
pub(crate) async fn accept(socket: &Rc<Socket>, listener: &Listener) -> anyhow::Result<()> {
    let mut stopped = std::pin::pin!(socket.stop.requested());
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stopped => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let clients = socket.target.borrow().site.clients.clone();
                tokio::select! {
                    biased;
                    () = &mut stopped => {
                        serve(socket, stream, peer);
                        break;
                    }
                    () = clients.room() => serve(socket, stream, peer),
                }
            }
            Err(_) if socket.stop.is_requested() => return Ok(()),
            Err(error) if accept_error_is_fatal(&error) => {
                return Err(error).with_context(|| format!("listener {}", socket.name()));
            }
            Err(error) => {
                let site = socket.target.borrow().site.clone();
                if is_own_shortage(&error) {
                    site.clients.close_idlest();
                }
                site.complain(format_args!("listener {}: accept: {error}", socket.name()));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    for _ in 0..BACKLOG {
        let mut next = std::pin::pin!(listener.accept());
        let waiting = poll_fn(|cx| match next.as_mut().poll(cx) {
            Poll::Ready(Ok(accepted)) => Poll::Ready(Some(accepted)),
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Ready(None),
        });
        // Without this, tokio lets no more than 128 accepts of a task be ready in a row: the rest would be
        // reset with the socket.
        let Some((stream, peer)) = tokio::task::unconstrained(waiting).await else { break };
        serve(socket, stream, peer);
    }
    Ok(())
}

/// Serves a connection that `socket` accepted.
fn serve(socket: &Rc<Socket>, stream: Stream, peer: SocketAddr) {
    let Target { site, number } = socket.target.borrow().clone();
    let (socket, open) = (socket.clone(), site.stop.open());
    let (connection, busy) = site.clients.enter();
    let stats = site.listener_stats(number);
    stats.accepted.add(1);
    stats.open.add(1);
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("{peer}: nodelay: {error}");
    }
    let (mode, acceptor) = (site.listeners[number].mode, site.listeners[number].acceptor.clone());
    let accept_proxy = site.listeners[number].accept_proxy;
    let is_tls = acceptor.is_some();
    // Captured: a variable of the task that is borrowed has a place of its own beside the captured one.
    let (mut stream, mut busy, mut peer, mut is_named) = (Some(stream), Some(busy), peer, false);
    let task = async move {
        if accept_proxy && let Some(from_proxy) = stream.take() {
            // A client that only connects must not keep its place.
            drop(busy.take());
            // Boxed, because most listeners do not need it.
            let introduced = Box::pin(introduction::accept(&site, number, from_proxy, peer, &connection)).await;
            if let Some((client, accepted)) = introduced {
                is_named = client.is_some();
                (peer, stream) = (client.unwrap_or(peer), Some(accepted));
            }
            busy = Some(connection.busy());
        }
        // A client that a header names is none of the proxies in front, whatever its address: the peer may
        // pass bytes of such clients that it has not read.
        let is_proxy = !is_named && site.listeners[number].trusts(peer.ip());
        if let Some(refused) = stream.take_if(|_| !is_proxy && !site.admits(peer.ip(), &connection)) {
            // The call fails if the client has disconnected.
            let _ = refused.set_zero_linger();
            site.listener_stats(number).refused.add(1);
        }
        if let Some(acceptor) = &acceptor
            && let Some(accepted) = stream.take()
        {
            // A client that only connects must not keep its place.
            drop(busy.take());
            stream = Box::pin(handshake::accept(&site, number, acceptor, accepted, peer, &connection)).await;
            busy = Some(connection.busy());
        }
        let is_http2 = stream.as_ref().is_some_and(|stream| stream.protocol() == Some(b"h2"));
        match (mode, stream.take(), busy.take()) {
            (Mode::Tcp, Some(stream), Some(busy)) => {
                let relay = tcp::serve(site.clone(), number, stream, peer, &connection, busy);
                Box::pin(relay).await;
            }
            (Mode::Http, Some(stream), busy) => {
                drop(busy);
                let from = From { listener: number, peer, is_proxy, is_tls };
                if is_http2 {
                    // Boxed, because it is far larger than the common case.
                    Box::pin(serve_http2(site.clone(), socket, from, stream, &connection)).await;
                } else {
                    http1::serve(&site, socket, from, stream, &connection).await;
                }
            }
            _ => {}
        }
        let stats = site.listener_stats(number);
        stats.open.sub(1);
        stats.evicted.add(u64::from(connection.is_leaving()));
        drop(connection);
        drop(open);
    };
    debug_assert!(size_of_val(&task) <= TASK_MOST, "{} bytes", size_of_val(&task));
    tokio::task::spawn_local(task);
}

#[cfg(feature = "http2")]
use odd::http2::serve as serve_http2;

/// No acceptor offers HTTP/2.
#[cfg(not(feature = "http2"))]
async fn serve_http2(_: Rc<Site>, _: Rc<Socket>, _: From, _: Stream, _: &Rc<Connection>) {}
