//! An answer's body as a stream: counted, with a time-out, and never buffered.

use super::exchange::Exchange;
use super::pool::Sender;
use super::request_body::{BoxError, Paced, Progress};
use crate::clients::Unsent;
use crate::upstream::Use;
use bytes::{Buf, Bytes};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// A server's connection during its response.
pub(crate) struct Lease {
    pub(crate) sender: Sender,
    /// The connection may be used again.
    pub(crate) may_reuse: bool,
    pub(crate) used: Use,
    pub(crate) progress: Rc<Progress>,
}

impl Lease {
    /// Returns the connection after a complete response. If the request is not complete, it cannot
    /// be used again.
    fn finish(self) {
        if self.progress.done.get() && self.may_reuse {
            self.used.server().pool.put(self.sender);
        }
    }
}

/// An answer's body, to the client.
pub(crate) struct WebBody {
    kind: Kind,
    /// `None` for a tunnel's.
    exchange: Option<Exchange>,
}

enum Kind {
    /// Ours.
    Text(Full<Bytes>),
    /// A server's. The lease ends with the body.
    Relayed(Paced, Option<Lease>),
}

impl WebBody {
    /// Returns an empty body, for a response that is recorded elsewhere.
    pub(crate) fn none() -> Self {
        Self { kind: Kind::Text(Full::default()), exchange: None }
    }

    pub(crate) fn text(text: impl Into<Bytes>, exchange: Exchange) -> Self {
        Self { kind: Kind::Text(Full::new(text.into())), exchange: Some(exchange) }
    }

    pub(crate) fn relayed(body: Incoming, limit: Duration, lease: Lease, exchange: Exchange) -> Self {
        let mut lease = Some(lease);
        if body.is_end_stream() {
            lease.take().into_iter().for_each(Lease::finish);
        }
        Self { kind: Kind::Relayed(Paced::new(body, limit, 1), lease), exchange: Some(exchange) }
    }
}

/// A part of a body. hyper drops the body when it has the last part, and the part when the socket has
/// its bytes.
pub(crate) struct Part {
    bytes: Bytes,
    unsent: Option<Unsent>,
}

impl Buf for Part {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(unsent) = self.unsent.as_ref().filter(|_| count > 0) {
            unsent.shrinks();
        }
    }
}

impl Body for WebBody {
    type Data = Part;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Part>, BoxError>>> {
        let this = &mut *self;
        let frame = match &mut this.kind {
            Kind::Text(body) => {
                ready!(Pin::new(body).poll_frame(cx)).map(|frame| frame.map_err(|never| match never {}))
            }
            Kind::Relayed(body, lease) => {
                let frame = ready!(body.poll_frame(cx));
                match &frame {
                    Some(Err(error)) => {
                        if let Some(exchange) = &mut this.exchange {
                            exchange.broken = true;
                        }
                        if let Some(lease) = lease.take() {
                            lease.used.complain(&format_args!("answer broken off: {error}"));
                        }
                    }
                    None => lease.take().into_iter().for_each(Lease::finish),
                    Some(Ok(_)) if body.body.is_end_stream() => lease.take().into_iter().for_each(Lease::finish),
                    Some(Ok(_)) => {}
                }
                frame
            }
        };
        if let (Some(Ok(frame)), Some(exchange)) = (&frame, &mut this.exchange) {
            exchange.bytes_out += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        let unsent = || this.exchange.as_ref().and_then(Exchange::unsent);
        let part = |bytes| Part { bytes, unsent: unsent() };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(part))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Text(body) => body.is_end_stream(),
            Kind::Relayed(body, _) => body.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Text(body) => body.size_hint(),
            Kind::Relayed(body, _) => body.body.size_hint(),
        }
    }
}
