//! HTTP/2 (RFC 9113) of TLS clients that choose it, on hyper. `http2_pool` has
//! HTTP/2 with servers.

use super::body::WebBody;
use super::client::Client;
use super::forward::forward;
use super::options::BUFFER_MAX;
use super::spawn::Local;
use crate::clients::{Connection, Unsent};
use crate::site::Site;
use crate::socket::{From, Socket};
use fs_stacks::Stream;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::cell::Cell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

/// Requests of a connection at the same time. Too low: a page with many parts waits. Too high: a
/// client has as many connections to servers. nginx has 128.
const STREAMS_MAX: u32 = 128;
/// Bytes of a request's body that may wait for a slow server. Too low: distant clients send slowly. Too
/// high: slow servers make the proxy hold memory. nginx and HAProxy have 64 KiB.
const STREAM_WINDOW: u32 = 128 << 10;
/// Slow servers of all of a connection's requests must not stop it.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS_MAX;
/// Requests that a client has reset before they were served (CVE-2023-44487). More end the
/// connection.
const RESETS_MAX: usize = 20;
/// Errors of a client's streams (CVE-2025-8671). More end the connection.
const ERRORS_MAX: usize = 200;
/// Time in which a client may send after the connection's end was announced.
const GRACE: Duration = Duration::from_secs(1);
/// Time since the last byte, after which the client has what the kernel holds for it, or is gone. A close
/// before would be a reset if the client sends, such as WINDOW_UPDATE, and the rest would be lost. Too low:
/// slow clients lose it. Too high: clients that have vanished delay a stop.
const LINGER: Duration = Duration::from_secs(5);

/// Serves a connection, until its end.
pub(crate) async fn serve(
    site: Rc<Site>,
    socket: Rc<Socket>,
    From { listener, peer, is_proxy, is_tls }: From,
    stream: Stream,
    connection: &Rc<Connection>,
) {
    let (connection, tunnel) = (connection.clone(), Rc::default());
    let client = Rc::new(Client { site, socket, listener, peer, is_proxy, is_tls, connection, tunnel });
    let timeouts = &client.site.config.timeouts;
    client.connection.made_progress();
    let moved = Rc::new(Cell::new(Instant::now()));
    let (count, ends, end) = (Rc::default(), Rc::default(), Rc::default());
    let service = Requests { client: client.clone(), count, ends, end };
    let mut builder = Builder::new(Local);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(ERRORS_MAX)
        .max_header_list_size(BUFFER_MAX as u32)
        .max_send_buf_size(BUFFER_MAX);
    let connection = client.connection.clone();
    let io = TokioIo::new(Watched { stream, moved: moved.clone(), connection, unsent: None, linger: None });
    let mut serving = pin!(builder.serve_connection(io, service.clone()));
    let mut over = pin!(async {
        tokio::select! {
            () = client.site.stop.requested() => {}
            () = client.connection.leaving() => {}
            () = service.ends.notified() => {}
            () = idle(&service, timeouts.idle) => {}
        }
    });
    // A client that does not read holds its requests' servers.
    let mut stuck = pin!(stuck(&client.connection, timeouts.idle + timeouts.response));
    let result = tokio::select! {
        biased;
        result = serving.as_mut() => Some(result),
        () = over.as_mut() => None,
        () = stuck.as_mut() => return client.site.listener_stats(listener).failed.add(1),
    };
    let result = match result {
        Some(result) => result,
        None => {
            let last = moved.get();
            service.end.set(Some(Instant::now() + timeouts.idle));
            serving.as_mut().graceful_shutdown();
            tokio::select! {
                biased;
                result = serving.as_mut() => result,
                () = quiet(&client.connection, &moved, last, timeouts.idle) => return,
                () = stuck.as_mut() => return client.site.listener_stats(listener).failed.add(1),
            }
        }
    };
    if let Err(error) = result {
        client.site.listener_stats(listener).failed.add(1);
        tracing::debug!("{peer}: {error}");
    }
}

/// Completes after a time without requests and responses.
async fn idle(service: &Requests, limit: Duration) {
    loop {
        let before = service.count.get();
        tokio::time::sleep(limit).await;
        if service.count.get() == before && !service.client.connection.is_busy() {
            return;
        }
    }
}

/// Completes after a while, when no request is in progress and the client has all responses. `last` is
/// when the last byte moved before the end was announced. A client that goes on sending has `limit`.
async fn quiet(connection: &Connection, moved: &Cell<Instant>, last: Instant, limit: Duration) {
    // The announcement itself, which is written by now, does not count.
    let (announced, since) = (moved.get(), Instant::now());
    loop {
        tokio::time::sleep(GRACE).await;
        let last = if moved.get() == announced { last } else { moved.get() };
        let is_late = since.elapsed().min(connection.without_progress()) >= limit;
        if !connection.is_busy() && (connection.is_leaving() || is_late || last.elapsed() >= LINGER) {
            return;
        }
    }
}

/// Completes if the connection is busy without progress for this time, or although it was asked to leave.
async fn stuck(connection: &Connection, limit: Duration) {
    let mut was_leaving = false;
    loop {
        tokio::time::sleep(limit).await;
        if connection.is_busy() && (was_leaving || connection.without_progress() >= limit) {
            return;
        }
        was_leaving = connection.is_leaving();
    }
}

/// The requests of a connection.
#[derive(Clone)]
struct Requests {
    client: Rc<Client>,
    count: Rc<Cell<u64>>,
    /// Notified if the connection shall end after its requests.
    ends: Rc<Notify>,
    /// Requests after this time are refused. A client that does not answer the PING after GOAWAY could
    /// send them for ever.
    end: Rc<Cell<Option<Instant>>>,
}

impl hyper::service::Service<Request<Incoming>> for Requests {
    type Response = Response<WebBody>;
    type Error = h2::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, h2::Error>>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let Self { client, count, ends, end } = self.clone();
        if end.get().is_some_and(|end| Instant::now() >= end) {
            return Box::pin(std::future::ready(Err(h2::Reason::REFUSED_STREAM.into())));
        }
        count.set(count.get() + 1);
        client.connection.made_progress();
        Box::pin(async move {
            // Like HTTP/1.1: requests after a reload are served by the new configuration.
            let server = match client.site.is_retired() {
                true => {
                    ends.notify_one();
                    client.at_present()
                }
                false => client,
            };
            let response = forward(&server, request).await;
            server.connection.made_progress();
            Ok(response)
        })
    }
}

/// A stream that notes when bytes move in either direction.
struct Watched {
    stream: Stream,
    moved: Rc<Cell<Instant>>,
    connection: Rc<Connection>,
    /// There while the socket takes nothing: hyper has copied small parts of responses.
    unsent: Option<Unsent>,
    /// The time between the stream's end and its close.
    linger: Option<Pin<Box<Sleep>>>,
}

impl Watched {
    fn wrote(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(1..)) = &written {
            self.moved.set(Instant::now());
        }
        self.waits(written.is_pending());
        written
    }

    /// Ready when the client has closed too, or sends nothing for a while. [`quiet`] has an end for a client
    /// that always sends.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        let mut bytes = [0; 16 << 10];
        loop {
            let mut unread = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(cx, &mut unread) {
                Poll::Ready(Ok(())) if !unread.filled().is_empty() => {
                    self.moved.set(Instant::now());
                    linger.as_mut().reset(Instant::now() + LINGER);
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return linger.as_mut().poll(cx),
            }
        }
    }

    fn waits(&mut self, is_pending: bool) {
        if is_pending != self.unsent.is_some() {
            self.unsent = is_pending.then(|| self.connection.unsent());
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.moved.set(Instant::now());
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.waits(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        }
        self.poll_linger(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::{Clients, Limits};

    /// A client that was asked to leave keeps a core's new clients waiting.
    #[tokio::test]
    async fn progress_does_not_extend_the_time_to_leave() {
        let clients = Clients::new(Limits { clients: 1, pooled: 0 });
        let (connection, busy) = clients.enter();
        drop(busy);
        assert!(clients.close_idlest());
        let _request = connection.busy();
        let progress = async {
            loop {
                connection.made_progress();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = progress => {}
            closed = tokio::time::timeout(Duration::from_secs(5), stuck(&connection, Duration::from_millis(100))) => {
                closed.expect("in time");
            }
        }
    }
}
