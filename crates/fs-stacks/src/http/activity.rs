//! The activity of a connection, recorded by its stream and its service.

use crate::net::Stream;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper::{Request, Response};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// State of a connection that its watcher reads.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Requests whose response is not finished.
    pub(super) open: Cell<usize>,
    /// Bytes read so far.
    pub(super) read: Cell<u64>,
    /// Bytes written so far.
    pub(super) written: Cell<u64>,
    /// A write has not completed yet.
    pub(super) unwritten: Cell<bool>,
    /// hyper may hold state that a new hyper connection would not have.
    pub(super) keep: Cell<bool>,
    /// A request has been answered completely.
    pub(super) answered: Cell<bool>,
    /// The body of the last request, if it has one.
    pub(super) body: RefCell<Option<UnreadBody>>,
    /// A response said 101.
    pub(super) upgraded: Cell<bool>,
}

impl Activity {
    /// Returns true if nothing is in progress, and a new hyper connection would be as good as this
    /// one.
    pub(super) fn is_idle(&self) -> bool {
        self.open.get() == 0 && !self.unwritten.get() && !self.keep.get()
    }

    /// Returns true if a part of the last request's body may not have arrived.
    pub(super) fn has_unread_body(&self) -> bool {
        self.body.borrow().as_ref().is_some_and(|body| !body.0.load(Ordering::Relaxed))
    }
}

/// An extension of each request with a body. Its service says here that the body has ended; without it, the
/// close of the connection waits for the rest.
#[derive(Clone, Debug, Default)]
pub struct UnreadBody(Arc<AtomicBool>);

impl UnreadBody {
    /// All of the body was read.
    pub fn ended(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A stream that records its activity.
pub(super) struct Watched {
    pub(super) stream: Stream,
    /// Bytes to read before those of the stream.
    pub(super) prefix: Bytes,
    /// hyper has tried to read since its last flush.
    pub(super) was_read: bool,
    pub(super) activity: Rc<Activity>,
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.was_read = true;
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
        // hyper flushes after its writes have completed. Records that TLS still keeps also count as
        // unwritten, because nothing would send them for an idle connection.
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.activity.unwritten.set(flushed.is_pending());
        // While a response is in progress, hyper does not read if it allows half-closes, and would not
        // notice a reset.
        let is_watched = std::mem::take(&mut self.was_read) || self.activity.open.get() == 0;
        if !is_watched && let Poll::Ready(Err(error)) = self.stream.poll_peek(cx, &mut ReadBuf::new(&mut [0])) {
            return Poll::Ready(Err(error));
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A service that counts its open requests.
pub(super) struct Noted<S> {
    pub(super) service: S,
    pub(super) activity: Rc<Activity>,
}

impl<S, B> Service<Request<Incoming>> for Noted<S>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Future: Unpin,
{
    type Response = Response<NotedBody<B>>;
    type Error = S::Error;
    type Future = NotedFuture<S::Future>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        self.activity.open.set(self.activity.open.get() + 1);
        // hyper has read the bodies before this one.
        let body = (!request.body().is_end_stream()).then(UnreadBody::default);
        if let Some(body) = &body {
            // From outside it is not visible whether hyper has read the whole body.
            self.activity.keep.set(true);
            request.extensions_mut().insert(body.clone());
        }
        self.activity.body.replace(body);
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

pub(super) struct NotedFuture<F> {
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

/// A body that keeps its request open until hyper drops it.
pub(super) struct NotedBody<B> {
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
