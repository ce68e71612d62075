//! A request's body as a stream: counted, with a minimum rate, and never buffered.

use crate::clients::Connection;
use crate::fields::may_be_trailer;
use bytes::Bytes;
use fs_stacks::http::UnreadBody;
use http::HeaderName;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Errors of bodies.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body that must make progress within a limit.
pub(super) struct Paced {
    pub(super) body: Incoming,
    limit: Duration,
    /// Bytes that must arrive within the limit.
    pace: u64,
    /// The bytes that have arrived.
    arrived: u64,
    /// The time that was spent to wait for them. The receiver's slowness does not count.
    spent: Duration,
    waits_since: Option<Instant>,
    /// Created when the body first has to wait, and reset only when it fires, so that a frame needs
    /// no timer.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Paced {
    pub(super) fn new(body: Incoming, limit: Duration, pace: u64) -> Self {
        Self { body, limit, pace, arrived: 0, spent: Duration::ZERO, waits_since: None, timer: None }
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            if let Some(since) = self.waits_since.take() {
                self.spent += since.elapsed();
            }
            if let Some(Ok(frame)) = &frame {
                self.arrived += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            if self.arrived >= self.pace {
                (self.arrived, self.spent) = (0, Duration::ZERO);
            }
            return Poll::Ready(frame.map(|frame| frame.map(without_fields_of_heads).map_err(Into::into)));
        }
        let since = *self.waits_since.get_or_insert_with(Instant::now);
        let until = since + self.limit.saturating_sub(self.spent);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if until <= Instant::now() {
                let message = format!("less than {} bytes of the body within {:?}", self.pace, self.limit);
                return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, message).into())));
            }
            timer.as_mut().reset(until);
        }
    }
}

/// Removes the trailers that a recipient must not merge into the head (RFC 9110 6.5.1).
fn without_fields_of_heads(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        let gone: Vec<HeaderName> = trailers.keys().filter(|name| !may_be_trailer(name.as_str())).cloned().collect();
        for name in gone {
            trailers.remove(name);
        }
    }
    frame
}

/// The progress of a request's body.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) bytes: Cell<u64>,
    /// True if the whole body was sent.
    pub(crate) done: Cell<bool>,
    /// The client did not deliver it. With `stalled`: it stopped sending.
    pub(crate) failed: Cell<bool>,
    pub(crate) stalled: Cell<bool>,
}

/// A request's body, from the client to a server.
pub(crate) struct RequestBody {
    /// `None`: there is no body.
    body: Option<Paced>,
    /// A body that its server does not take may stay here after its client has left.
    client: Weak<Connection>,
    /// Of an HTTP/1.1 client.
    unread: Option<UnreadBody>,
    progress: Rc<Progress>,
}

impl RequestBody {
    /// Creates the body of a client's request, of which `pace` bytes must arrive within each `limit`.
    pub(crate) fn new(
        client: &Rc<Connection>,
        body: Incoming,
        unread: Option<UnreadBody>,
        (limit, pace): (Duration, u64),
    ) -> (Self, Rc<Progress>) {
        let progress = Rc::new(Progress::default());
        progress.done.set(body.is_end_stream());
        let body = (!body.is_end_stream()).then(|| Paced::new(body, limit, pace));
        (Self { body, client: Rc::downgrade(client), unread, progress: progress.clone() }, progress)
    }

    /// Creates an empty body. `progress` is that of the first attempt.
    pub(crate) fn empty(progress: Rc<Progress>) -> Self {
        Self { body: None, client: Weak::new(), unread: None, progress }
    }

    pub(crate) fn progress(&self) -> Rc<Progress> {
        self.progress.clone()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { body: Some(body), client, unread, progress } = &mut *self else { return Poll::Ready(None) };
        let frame = ready!(body.poll_frame(cx));
        match &frame {
            None => progress.done.set(true),
            Some(Ok(frame)) => {
                progress.bytes.set(progress.bytes.get() + frame.data_ref().map_or(0, |data| data.len() as u64));
                progress.done.set(body.body.is_end_stream());
                if let Some(client) = client.upgrade() {
                    client.made_progress();
                }
            }
            Some(Err(error)) => {
                progress.failed.set(true);
                progress.stalled.set(error.is::<io::Error>());
            }
        }
        if let Some(unread) = unread.as_ref().filter(|_| progress.done.get()) {
            unread.ended();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(|body| body.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), |body| body.body.size_hint())
    }
}
