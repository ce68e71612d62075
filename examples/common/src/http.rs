//! Serves HTTP/1.1 on a [`Stream`] with hyper, and gives hyper's memory back while a connection is idle.
//!
//! hyper keeps about 10 KB per connection, used or not. A server with 100,000 idle connections cannot afford that, so a
//! connection here has two states: *waiting* is a stream and nothing else; *active* has hyper's state, in a box. It
//! becomes active when bytes arrive. After a first answer it falls back at once: of many connections that ask once, no
//! two then hold buffers at the same time. When more comes it is a busy one, and falls back only when nothing has
//! happened for `idle_shrink`.

use crate::net::Stream;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1::{Builder, Connection};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

/// How connections are served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// hyper's options.
    pub builder: Builder,
    /// Idle time after which a connection gives its buffers back. Too short: they are allocated anew for every request;
    /// too long: a wave of connections holds its memory that long. 200 ms is far above the gap between requests of a
    /// busy connection.
    pub idle_shrink: Duration,
    /// Time without a request, or in which the peer takes nothing of an answer, after which a connection is closed.
    pub idle_timeout: Option<Duration>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self { builder: Builder::new(), idle_shrink: Duration::from_millis(200), idle_timeout: None }
    }
}

/// How serving ended.
#[derive(Debug)]
pub enum Served {
    /// The connection is closed, or was told to by `stop`.
    Closed,
    /// The service answered 101: the stream now belongs to another protocol. The bytes were read but not consumed.
    Upgraded(Stream, Bytes),
}

/// Serves one connection until it ends, or until `stop` resolves and the request under way is answered.
///
/// # Errors
/// hyper's: a malformed request, a connection that ended in the middle, a time-out.
pub async fn serve<S, B>(
    mut stream: Stream,
    options: &ServeOptions,
    service: S,
    stop: impl Future<Output = ()>,
) -> Result<Served, hyper::Error>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Unpin,
    S::Future: Unpin,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut stop = std::pin::pin!(stop);
    let mut patient = false;
    loop {
        if !wait(&stream, options.idle_timeout, stop.as_mut()).await {
            return Ok(Served::Closed);
        }
        // Boxed, so that the waiting state does not have the active one's size.
        match Box::pin(active(stream, options, service.clone(), patient, stop.as_mut())).await? {
            Active::Idle(idle) => stream = idle,
            Active::Done(served) => return Ok(served),
        }
        // Impatience was wrong if more comes soon; patience was for nothing if it ran out.
        patient = !patient;
    }
}

/// False when the connection shall be closed instead.
async fn wait(stream: &Stream, limit: Option<Duration>, stop: Pin<&mut impl Future<Output = ()>>) -> bool {
    let readable = async {
        match limit {
            // Boxed: a timer is larger than everything else that a waiting connection holds.
            Some(limit) => matches!(Box::pin(tokio::time::timeout(limit, stream.readable())).await, Ok(Ok(()))),
            None => stream.readable().await.is_ok(),
        }
    };
    tokio::select! {
        biased;
        readable = readable => readable,
        () = stop => false,
    }
}

enum Active {
    Idle(Stream),
    Done(Served),
}

/// What the watcher of a connection has to know about it.
#[derive(Debug, Default)]
struct Activity {
    /// Requests whose response is not finished.
    open: Cell<usize>,
    /// Bytes read so far.
    read: Cell<u64>,
    /// Bytes written so far.
    written: Cell<u64>,
    /// A write did not go through yet.
    unwritten: Cell<bool>,
    /// hyper may hold something that a new connection state would not know.
    keep: Cell<bool>,
    /// A request has been answered completely.
    answered: Cell<bool>,
    /// A response said 101.
    upgraded: Cell<bool>,
}

impl Activity {
    /// Nothing is under way, and a new connection state would be as good as the present one.
    fn is_idle(&self) -> bool {
        self.open.get() == 0 && !self.unwritten.get() && !self.keep.get()
    }
}

type HyperConnection<S> = Connection<TokioIo<Watched>, Noted<S>>;

async fn active<S, B>(
    stream: Stream,
    options: &ServeOptions,
    service: S,
    patient: bool,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> Result<Active, hyper::Error>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Unpin,
    S::Future: Unpin,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let activity = Rc::new(Activity::default());
    let mut prefix = Bytes::new();
    let mut stream = stream;
    loop {
        let io = TokioIo::new(Watched { stream, prefix, activity: activity.clone() });
        let noted = Noted { service: service.clone(), activity: activity.clone() };
        let mut connection = options.builder.serve_connection(io, noted);
        let finished = match drive(&mut connection, &activity, options, patient, stop.as_mut()).await? {
            Driven::Done => true,
            Driven::Idle => false,
            Driven::Stalled => return Ok(Active::Done(Served::Closed)),
        };
        let parts = connection.into_parts();
        let mut watched = parts.io.into_inner();
        if finished && activity.upgraded.get() {
            return Ok(Active::Done(Served::Upgraded(watched.stream, parts.read_buf)));
        }
        if finished {
            // FIN after what was sent. That the peer is already gone changes nothing.
            let _ = watched.stream.shutdown().await;
            return Ok(Active::Done(Served::Closed));
        }
        if parts.read_buf.is_empty() && watched.prefix.is_empty() {
            return Ok(Active::Idle(watched.stream));
        }
        // Half a request is there. Go on with it, and leave it to hyper from now on.
        activity.keep.set(true);
        stream = watched.stream;
        prefix = parts.read_buf;
    }
}

/// Runs the connection until it is done, idle or stuck.
async fn drive<S, B>(
    connection: &mut HyperConnection<S>,
    activity: &Activity,
    options: &ServeOptions,
    patient: bool,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> Result<Driven, hyper::Error>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Unpin,
    S::Future: Unpin,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut timer = std::pin::pin!(tokio::time::sleep(options.idle_shrink));
    let mut quiet = Quiet::new();
    let mut stopping = false;
    poll_fn(|cx| {
        if let Poll::Ready(result) = connection.poll_without_shutdown(cx) {
            return Poll::Ready(result.map(|()| Driven::Done));
        }
        if !stopping && stop.as_mut().poll(cx).is_ready() {
            stopping = true;
            Pin::new(&mut *connection).graceful_shutdown();
            if let Poll::Ready(result) = connection.poll_without_shutdown(cx) {
                return Poll::Ready(result.map(|()| Driven::Done));
            }
        }
        if !patient && !stopping && activity.answered.get() && activity.is_idle() {
            return Poll::Ready(Ok(Driven::Idle));
        }
        // Requests do not touch the timer: it looks, once a period, what has happened.
        while timer.as_mut().poll(cx).is_ready() {
            match quiet.look(activity, options.idle_timeout) {
                Some(Driven::Idle) if stopping => {}
                Some(driven) => return Poll::Ready(Ok(driven)),
                None => {}
            }
            timer.as_mut().reset(Instant::now() + options.idle_shrink);
        }
        Poll::Pending
    })
    .await
}

/// How driving a connection ended.
enum Driven {
    Done,
    Idle,
    Stalled,
}

/// Since when nothing has gone through a connection.
struct Quiet {
    seen: (u64, u64),
    since: Instant,
}

impl Quiet {
    fn new() -> Self {
        // No count of bytes: the first look never finds an idle period.
        Self { seen: (u64::MAX, u64::MAX), since: Instant::now() }
    }

    fn look(&mut self, activity: &Activity, limit: Option<Duration>) -> Option<Driven> {
        let now = (activity.read.get(), activity.written.get());
        if now != self.seen {
            (self.seen, self.since) = (now, Instant::now());
            return None;
        }
        if activity.unwritten.get() {
            return limit.filter(|limit| self.since.elapsed() >= *limit).map(|_| Driven::Stalled);
        }
        activity.is_idle().then_some(Driven::Idle)
    }
}

/// A stream that notes what goes through it.
struct Watched {
    stream: Stream,
    /// Bytes to be read before those of the stream.
    prefix: Bytes,
    activity: Rc<Activity>,
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.prefix.is_empty() {
            let len = this.prefix.len().min(buf.remaining());
            buf.put_slice(&this.prefix.split_to(len));
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        this.activity.read.set(this.activity.read.get() + (buf.filled().len() - before) as u64);
        Poll::Ready(Ok(()))
    }
}

impl Watched {
    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.activity.unwritten.set(written.is_pending());
        if let Poll::Ready(Ok(len)) = &written {
            self.activity.written.set(self.activity.written.get() + *len as u64);
        }
        written
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A service whose requests are counted while they are open.
struct Noted<S> {
    service: S,
    activity: Rc<Activity>,
}

impl<S, B> Service<Request<Incoming>> for Noted<S>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Future: Unpin,
{
    type Response = Response<NotedBody<B>>;
    type Error = S::Error;
    type Future = NotedFuture<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.activity.open.set(self.activity.open.get() + 1);
        if !request.body().is_end_stream() {
            // Whether hyper has read all of it cannot be seen from outside.
            self.activity.keep.set(true);
        }
        let open = OpenRequest(self.activity.clone());
        NotedFuture { inner: self.service.call(request), open: Some(open) }
    }
}

struct OpenRequest(Rc<Activity>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        self.0.answered.set(true);
    }
}

struct NotedFuture<F> {
    inner: F,
    open: Option<OpenRequest>,
}

impl<F, B, E> Future for NotedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>> + Unpin,
{
    type Output = Result<Response<NotedBody<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(Pin::new(&mut self.inner).poll(cx))?;
        let open = self.open.take();
        if let Some(open) = open.as_ref().filter(|_| response.status() == hyper::StatusCode::SWITCHING_PROTOCOLS) {
            open.0.upgraded.set(true);
        }
        Poll::Ready(Ok(response.map(|body| NotedBody { body, _open: open })))
    }
}

/// A body that keeps its request open until hyper is done with it.
struct NotedBody<B> {
    body: B,
    _open: Option<OpenRequest>,
}

impl<B: Body + Unpin> Body for NotedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
