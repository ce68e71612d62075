//! Connections with HTTP/2 to one server. Requests share them.

use super::options::BUFFER_MAX;
use super::request_body::RequestBody;
use super::spawn::Local;
use crate::clients::Place;
use fs_stacks::Stream;
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Notify};
use tokio::task::AbortHandle;

/// Requests of a connection at the same time. Too low: more connections. Too high: requests wait
/// within a connection, because most servers have such a limit (RFC 9113 6.5.2: should not be below 100).
const STREAMS_MAX: usize = 100;
/// Bytes of a response that may wait for a slow client. Too low: distant servers are slow. Too high:
/// slow clients hold memory.
const STREAM_WINDOW: u32 = 128 << 10;
/// Above the sum of the streams' windows, so that slow clients do not stop a connection. h2 adds up
/// what each waiting DATA frame lacks to 256 bytes, about what it costs, and ends the connection at
/// half of this. A frame of a request that was cancelled counts until larger frames make up for it.
/// Too low: with 13 MiB, the sum of the streams' windows, 13 unread responses in frames of 50 bytes
/// end those of all other clients. Too high: small frames hold up to half of this in addition to
/// their bytes.
const CONNECTION_WINDOW: u32 = 128 << 20;

/// Time without requests after which a connection ends that holds a place like a client's. Too low: each
/// burst of requests connects. Too high: bursts take the places of clients.
const PLACE_IDLE: Duration = Duration::from_secs(1);

/// Time for a server's first SETTINGS, which say how many requests a connection may have. Requests before
/// them could be refused. Too low: requests beyond the limit wait for others. Too high: a server that allows
/// none, for a while, delays the requests to it.
const SETTINGS_MAX: Duration = Duration::from_secs(1);

/// Time between checks for them. Too low: work. Too high: new connections are late by as much.
const SETTINGS_POLL: Duration = Duration::from_millis(1);

/// A core's connections to a server.
pub(crate) struct Http2Pool {
    idle: Duration,
    lines: RefCell<Vec<Rc<Line>>>,
    /// The connection without a place. The limits of a core's connections have room for one.
    first: RefCell<Weak<Line>>,
    is_closed: Cell<bool>,
    /// Held by the request that opens a connection. Others wait, and share it.
    opening: Mutex<()>,
    /// Notified when a request ends.
    ended: Rc<Notify>,
    /// Number of failed attempts, and the last one's error.
    failures: Cell<u64>,
    failure: RefCell<Option<io::Error>>,
}

/// What hyper has of a connection. The connection's task owns it.
type Driven = RefCell<Pin<Box<Connection<TokioIo<Stream>, RequestBody, Local>>>>;

/// A connection.
struct Line {
    sender: SendRequest<RequestBody>,
    driven: Weak<Driven>,
    task: AbortHandle,
    requests: Cell<usize>,
    last_use: Cell<Instant>,
    ended: Rc<Notify>,
    /// The connection gets no more requests.
    is_given_up: Cell<bool>,
    /// A place like a client's, unless it is the pool's first.
    place: Option<Place>,
}

/// A request's share of a connection.
pub(crate) struct Share(Rc<Line>);

impl Share {
    fn of(line: &Rc<Line>) -> Self {
        line.requests.set(line.requests.get() + 1);
        Self(line.clone())
    }

    pub(super) fn sender(&self) -> SendRequest<RequestBody> {
        self.0.sender.clone()
    }

    /// The connection is used for no further requests.
    pub(super) fn give_up(&self) {
        self.0.is_given_up.set(true);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.requests.set(self.0.requests.get() - 1);
        self.0.last_use.set(Instant::now());
        self.0.ended.notify_waiters();
    }
}

/// Ends the connection. hyper itself waits until the server allows a request, also if the client has left.
impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Line {
    fn is_usable(&self) -> bool {
        !self.sender.is_closed() && !self.is_given_up.get()
    }

    /// Returns true if it may have one more request. A request above the server's limit would wait in
    /// hyper until another one has ended. With a limit of 0, or none yet, it waits there too: another connection
    /// would have the same one (RFC 9113 6.5.2: only for a short time).
    fn has_room(&self) -> bool {
        let limit = match limit_of(&self.driven) {
            None => return false,
            Some(0) => STREAMS_MAX,
            Some(limit) => limit.min(STREAMS_MAX),
        };
        self.requests.get() < limit
    }
}

impl Http2Pool {
    pub(crate) fn new(idle: Duration) -> Self {
        Self {
            idle,
            lines: RefCell::default(),
            first: RefCell::default(),
            is_closed: Cell::new(false),
            opening: Mutex::default(),
            ended: Rc::default(),
            failures: Cell::new(0),
            failure: RefCell::default(),
        }
    }

    /// Returns a share of the first connection that has room, so that others become idle.
    pub(super) fn take(&self) -> Option<Share> {
        let mut lines = self.lines.borrow_mut();
        lines.retain(|line| line.is_usable());
        lines.iter().find(|line| line.has_room()).map(Share::of)
    }

    /// Returns true if the next connection needs no place.
    fn is_first_missing(&self) -> bool {
        self.first.borrow().strong_count() == 0
    }

    /// Waits for a connection that has room. Returns `None` if a connection may be opened without a place.
    async fn free(&self) -> Option<Share> {
        let mut ended = pin!(self.ended.notified());
        poll_fn(|cx| {
            // Each time, because nothing tells that a server has raised its limit. A wait for a place wakes often.
            loop {
                if let Some(share) = self.take() {
                    return Poll::Ready(Some(share));
                }
                if self.is_first_missing() {
                    return Poll::Ready(None);
                }
                ready!(ended.as_mut().poll(cx));
                ended.set(self.ended.notified());
            }
        })
        .await
    }

    /// As [`Http2Pool::take`]. Opens a connection if none has room, and waits for its `place` if it is not the
    /// first, or for the end of another request. Requests that wait for the same attempt share its result.
    pub(super) async fn take_or_open(
        &self,
        place: impl Future<Output = Option<Place>>,
        open: impl Future<Output = io::Result<Stream>>,
    ) -> io::Result<Share> {
        let before = self.failures.get();
        let _opening = self.opening.lock().await;
        if let Some(share) = self.take() {
            return Ok(share);
        }
        if self.failures.get() != before
            && let Some(error) = &*self.failure.borrow()
        {
            return Err(copy(error));
        }
        let place = tokio::select! {
            biased;
            share = self.free() => match share {
                Some(share) => return Ok(share),
                None => None,
            },
            // Another request may have more time for it.
            place = place => Some(place.ok_or(Errno::MFILE)?),
        };
        match async { start(open.await?).await }.await {
            Ok((sender, driven, task)) => {
                let (requests, is_given_up) = (Cell::new(0), Cell::new(self.is_closed.get()));
                let (last_use, ended) = (Cell::new(Instant::now()), self.ended.clone());
                let is_first = place.is_none();
                let line = Rc::new(Line { sender, driven, task, requests, last_use, ended, is_given_up, place });
                if is_first {
                    self.first.replace(Rc::downgrade(&line));
                }
                self.lines.borrow_mut().push(line.clone());
                Ok(Share::of(&line))
            }
            Err(error) => {
                self.failures.set(before + 1);
                self.failure.replace(Some(copy(&error)));
                Err(error)
            }
        }
    }

    /// Drops connections that were idle for too long. They end with GOAWAY.
    pub(crate) fn expire(&self) {
        let limit = |line: &Line| line.place.as_ref().map_or(self.idle, |_| self.idle.min(PLACE_IDLE));
        let is_idle = |line: &Line| line.requests.get() == 0 && line.last_use.get().elapsed() >= limit(line);
        self.lines.borrow_mut().retain(|line| line.is_usable() && !is_idle(line));
    }

    /// Drops all connections when their requests have ended, and keeps none from now on.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
        self.lines.take().iter().for_each(|line| line.is_given_up.set(true));
    }
}

/// Starts HTTP/2 on a connection, and its task.
async fn start(stream: Stream) -> io::Result<(SendRequest<RequestBody>, Weak<Driven>, AbortHandle)> {
    let mut builder = Builder::new(Local);
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_max_send_streams(0)
        // Frames that arrive after their request was cancelled are such errors, and h2 counts them in the
        // connection's whole life: a client that cancels many requests would end those of all others.
        .max_local_error_reset_streams(None)
        .max_header_list_size(BUFFER_MAX as u32)
        .max_send_buf_size(BUFFER_MAX);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let driven = Rc::new(RefCell::new(Box::pin(connection)));
    let weak = Rc::downgrade(&driven);
    let task = tokio::task::spawn_local(async move {
        if let Err(error) = poll_fn(|cx| driven.borrow_mut().as_mut().poll(cx)).await {
            tracing::debug!("HTTP/2 to a server: {error}");
        }
    });
    // hyper does not tell when they arrive.
    let until = Instant::now() + SETTINGS_MAX;
    while Instant::now() < until && limit_of(&weak) == Some(0) {
        tokio::time::sleep(SETTINGS_POLL).await;
    }
    Ok((sender, weak, task.abort_handle()))
}

/// Returns the server's limit of requests of a connection, 0 before its first SETTINGS, and `None` after the
/// connection's end.
fn limit_of(driven: &Weak<Driven>) -> Option<usize> {
    driven.upgrade().map(|driven| driven.borrow().current_max_send_streams())
}

/// Copies an error, so that each waiting request has one.
fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
