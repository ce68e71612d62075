//! Serves HTTP/1.1 on a [`Stream`] with hyper, and frees hyper's memory while a connection is idle.
//!
//! hyper keeps about 10 KB per connection, used or not. A server with 100,000 idle connections
//! cannot afford that, so a connection has two states. A *waiting* connection is only a stream. An
//! *active* one has hyper's state, in a box. It becomes active when bytes arrive. After the first
//! response it becomes waiting at once, so that connections with a single request do not hold
//! buffers at the same time. After further requests it counts as busy and becomes waiting only
//! after `idle_shrink` without activity.

mod activity;

use crate::net::Stream;
pub use activity::UnreadBody;
use activity::{Activity, Noted, Watched};
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1::{Builder, Connection};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Reads of bytes that nobody needs, in one turn. Fewer: without a body, a client that has sent more may
/// lose the end of its response. More: a client that goes on sending keeps the core busy.
const UNREAD_READS: usize = 16;
/// Time for which the rest of a request's body is read and dropped, so that a reset does not discard the
/// response (RFC 9112 9.6). Too short: the response is lost on slow lines. Too long: a finished connection
/// stays open.
const LINGER: Duration = Duration::from_secs(5);

/// Settings for serving connections.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// hyper's options.
    pub builder: Builder,
    /// Idle time after which a connection frees its buffers. Too short: every request allocates
    /// them again. Too long: after a burst, connections hold their memory for longer. 200 ms is far
    /// above the gap between requests of a busy connection.
    pub idle_shrink: Duration,
    /// Time after which a connection is closed if it has no request, or its peer does not read the
    /// response.
    pub idle_timeout: Option<Duration>,
    /// Return the connection as [`Served::Idle`] instead of waiting for more requests.
    pub gives_back: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self { builder: Builder::new(), idle_shrink: Duration::from_millis(200), idle_timeout: None, gives_back: false }
    }
}

/// The end of serving.
#[derive(Debug)]
pub enum Served {
    /// The connection is closed, or `stop` told it to close.
    Closed,
    /// All requests are answered, and no more bytes have arrived (`gives_back`).
    Idle(Stream),
    /// The service returned 101, so the stream now belongs to another protocol. The bytes were read
    /// but not consumed.
    Upgraded(Stream, Bytes),
}

/// Serves one connection until it ends, or until `stop` completes and the current request is
/// answered.
///
/// The output is hyper's error: a malformed request, a connection that ended within a request, a
/// time-out.
pub fn serve<S, P>(stream: Stream, options: &ServeOptions, service: S, stop: P) -> Serve<'_, S, P> {
    serve_from(stream, Bytes::new(), options, service, stop)
}

/// Like [`serve`], if `prefix` has already been read from the stream.
pub fn serve_from<S, P>(stream: Stream, prefix: Bytes, options: &ServeOptions, service: S, stop: P) -> Serve<'_, S, P> {
    let state = State::Waiting(stream);
    Serve { options, service, stop, stopping: false, patient: false, idle: None, prefix, state }
}

/// The future of [`serve`]. Written by hand because 100,000 of them wait at the same time. It
/// contains a stream, three words and the service's state.
pub struct Serve<'a, S, P> {
    options: &'a ServeOptions,
    service: S,
    stop: P,
    stopping: bool,
    /// The connection was busy, so keep hyper's state for a while.
    patient: bool,
    /// The idle time-out, if set. Runs from the first wait after bytes were read.
    idle: Option<Pin<Box<Sleep>>>,
    /// Bytes to read before those of the stream.
    prefix: Bytes,
    state: State<'a>,
}

enum State<'a> {
    Waiting(Stream),
    Active(Box<dyn Drive + 'a>),
    Done,
}

impl<'a, S, B, P> Future for Serve<'a, S, P>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Unpin + 'a,
    S::Future: Unpin,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    P: Future<Output = ()> + Unpin,
{
    type Output = Result<Served, hyper::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.stopping = this.stopping || Pin::new(&mut this.stop).poll(cx).is_ready();
        loop {
            match &mut this.state {
                State::Waiting(stream) => {
                    let has_goodbye = stream.has_goodbye();
                    let ready = if this.prefix.is_empty() { stream.poll_read_ready(cx) } else { Poll::Ready(Ok(())) };
                    match ready {
                        Poll::Ready(Ok(())) => {}
                        Poll::Pending if !this.stopping && !this.is_idle_too_long(cx) => return Poll::Pending,
                        Poll::Pending if has_goodbye => {
                            if let State::Waiting(stream) = std::mem::replace(&mut this.state, State::Done) {
                                let closing = Running::closing(stream, this.options, this.service.clone());
                                this.state = State::Active(Box::new(closing));
                            }
                            continue;
                        }
                        Poll::Pending | Poll::Ready(Err(_)) => {
                            this.state = State::Done;
                            return Poll::Ready(Ok(Served::Closed));
                        }
                    }
                    if let State::Waiting(stream) = std::mem::replace(&mut this.state, State::Done) {
                        let (prefix, service) = (std::mem::take(&mut this.prefix), this.service.clone());
                        let running = Running::new(stream, prefix, this.options, service, this.patient);
                        this.state = State::Active(Box::new(running));
                    }
                }
                State::Active(running) => match ready!(running.poll(cx, this.stopping)) {
                    Ok(Active::Idle { stream, has_read: true }) if this.options.gives_back => {
                        this.state = State::Done;
                        return Poll::Ready(Ok(Served::Idle(stream)));
                    }
                    Ok(Active::Idle { stream, has_read }) => {
                        this.state = State::Waiting(stream);
                        // A part of a TLS record is no request. Otherwise a client could stay
                        // connected by sending such parts.
                        if has_read {
                            this.idle = None;
                        }
                        // Wait for more bytes next time if some arrived soon, and not if the wait
                        // timed out.
                        this.patient = !this.patient;
                    }
                    Ok(Active::Done(served)) => {
                        this.state = State::Done;
                        return Poll::Ready(Ok(served));
                    }
                    Err(error) => {
                        this.state = State::Done;
                        return Poll::Ready(Err(error));
                    }
                },
                State::Done => return Poll::Ready(Ok(Served::Closed)),
            }
        }
    }
}

impl<S, P> Serve<'_, S, P> {
    /// The service.
    pub fn service(&self) -> &S {
        &self.service
    }

    fn is_idle_too_long(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(limit) = self.options.idle_timeout else { return false };
        let idle = self.idle.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        idle.as_mut().poll(cx).is_ready()
    }
}

enum Active {
    Idle {
        stream: Stream,
        /// Bytes arrived while it was active. With TLS: plain bytes.
        has_read: bool,
    },
    Done(Served),
}

/// An active connection with any service.
trait Drive {
    fn poll(&mut self, cx: &mut Context<'_>, stopping: bool) -> Poll<Result<Active, hyper::Error>>;
}

type HyperConnection<S> = Connection<TokioIo<Watched>, Noted<S>>;

struct Running<'a, S, B>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Future: Unpin,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// `None` while it is taken apart, and while only close_notify remains to be sent.
    connection: Option<HyperConnection<S>>,
    closing: Option<Stream>,
    /// The idle time-out, if set, while close_notify waits for a peer that does not read.
    patience: Option<Pin<Box<Sleep>>>,
    /// Runs after the shutdown, while the rest of a request's body may arrive.
    linger: Option<Pin<Box<Sleep>>>,
    activity: Rc<Activity>,
    service: S,
    options: &'a ServeOptions,
    patient: bool,
    stopping: bool,
    /// Created when the connection first has to wait.
    timer: Option<Pin<Box<Sleep>>>,
    quiet: Quiet,
}

impl<'a, S, B> Running<'a, S, B>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Unpin,
    S::Future: Unpin,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn new(stream: Stream, prefix: Bytes, options: &'a ServeOptions, service: S, patient: bool) -> Self {
        let mut running = Self { patient, ..Self::empty(options, service) };
        // A prefix is a part of a request.
        running.activity.read.set(prefix.len() as u64);
        running.connect(stream, prefix);
        running
    }

    /// Only says goodbye.
    fn closing(stream: Stream, options: &'a ServeOptions, service: S) -> Self {
        Self { closing: Some(stream), ..Self::empty(options, service) }
    }

    fn empty(options: &'a ServeOptions, service: S) -> Self {
        Self {
            connection: None,
            closing: None,
            patience: None,
            linger: None,
            activity: Rc::default(),
            service,
            options,
            patient: false,
            stopping: false,
            timer: None,
            quiet: Quiet::new(),
        }
    }

    /// Passes the stream to hyper. `prefix` has been read from it.
    fn connect(&mut self, stream: Stream, prefix: Bytes) {
        let io = TokioIo::new(Watched { stream, prefix, was_read: false, activity: self.activity.clone() });
        let noted = Noted { service: self.service.clone(), activity: self.activity.clone() };
        self.connection = Some(self.options.builder.serve_connection(io, noted));
    }

    fn drive(&mut self, cx: &mut Context<'_>, stopping: bool) -> Poll<Result<Driven, hyper::Error>> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(Ok(Driven::Stalled)) };
        if stopping && !self.stopping {
            self.stopping = true;
            Pin::new(&mut *connection).graceful_shutdown();
        }
        if let Poll::Ready(result) = connection.poll_without_shutdown(cx) {
            return Poll::Ready(result.map(|()| Driven::Done));
        }
        if !self.patient && !stopping && self.activity.answered.get() && self.activity.is_idle() {
            return Poll::Ready(Ok(Driven::Idle));
        }
        // Requests do not reset the timer. It checks once per period for activity.
        let period = self.options.idle_shrink;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(period)));
        while timer.as_mut().poll(cx).is_ready() {
            match self.quiet.look(&self.activity, self.options.idle_timeout) {
                Some(Driven::Idle) if stopping => {}
                Some(driven) => return Poll::Ready(Ok(driven)),
                None => {}
            }
            timer.as_mut().reset(Instant::now() + period);
        }
        Poll::Pending
    }
}

impl<S, B> Drive for Running<'_, S, B>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Unpin,
    S::Future: Unpin,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn poll(&mut self, cx: &mut Context<'_>, stopping: bool) -> Poll<Result<Active, hyper::Error>> {
        loop {
            if let Some(stream) = &mut self.closing {
                // Sends FIN after the sent bytes. An error means that the peer is gone already.
                if self.linger.is_none() && Pin::new(&mut *stream).poll_shutdown(cx).is_pending() {
                    // TLS still has records to send.
                    let Some(limit) = self.options.idle_timeout else { return Poll::Pending };
                    let patience = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
                    ready!(patience.as_mut().poll(cx));
                }
                if discard_unread(stream, cx).is_pending() && self.activity.has_unread_body() && !stopping {
                    let linger = self.linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
                    ready!(linger.as_mut().poll(cx));
                }
                self.closing = None;
                return Poll::Ready(Ok(Active::Done(Served::Closed)));
            }
            let driven = ready!(self.drive(cx, stopping))?;
            let Some(connection) = self.connection.take().filter(|_| !matches!(driven, Driven::Stalled)) else {
                return Poll::Ready(Ok(Active::Done(Served::Closed)));
            };
            let parts = connection.into_parts();
            let watched = parts.io.into_inner();
            let unread = match watched.prefix.is_empty() {
                true => parts.read_buf,
                false => [parts.read_buf, watched.prefix].concat().into(),
            };
            match driven {
                Driven::Done if self.activity.upgraded.get() => {
                    return Poll::Ready(Ok(Active::Done(Served::Upgraded(watched.stream, unread))));
                }
                Driven::Done => self.closing = Some(watched.stream),
                _ if unread.is_empty() => {
                    let has_read = self.activity.read.get() > 0;
                    return Poll::Ready(Ok(Active::Idle { stream: watched.stream, has_read }));
                }
                _ => {
                    // Half a request has arrived. Continue, and leave the connection to hyper from
                    // now on.
                    self.activity.keep.set(true);
                    self.connect(watched.stream, unread);
                }
            }
        }
    }
}

/// Reads what has arrived. A close with unread bytes, such as the peer's close_notify, would be a reset,
/// which discards what the peer has not got yet. Ready at the end of the stream.
fn discard_unread(stream: &mut Stream, cx: &mut Context<'_>) -> Poll<()> {
    let mut bytes = [0; 16 << 10];
    for _ in 0..UNREAD_READS {
        let mut unread = ReadBuf::new(&mut bytes);
        match ready!(Pin::new(&mut *stream).poll_read(cx, &mut unread)) {
            Ok(()) if !unread.filled().is_empty() => {}
            _ => return Poll::Ready(()),
        }
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// The end of an active connection.
enum Driven {
    Done,
    Idle,
    Stalled,
}

/// The time since a connection was last active.
struct Quiet {
    seen: (u64, u64),
    since: Instant,
}

impl Quiet {
    fn new() -> Self {
        // No valid byte count, so that the first check never finds an idle period.
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

#[cfg(test)]
mod tests;
