//! Connections to one server that wait for the next request.

#[cfg(feature = "http2")]
use super::http2_pool::Share;
use super::request_body::RequestBody;
use crate::clients::Clients;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A connection with HTTP/1.1.
pub(crate) struct Http1 {
    pub(super) sender: SendRequest<RequestBody>,
    /// Dropped with the last use. The connection's task then has an end.
    pub(super) _in_use: oneshot::Sender<Infallible>,
}

/// A connection that a request is sent on.
pub(crate) enum Sender {
    Http1(Http1),
    #[cfg(feature = "http2")]
    Http2(Share),
}

/// A request that was not answered. It is returned if nothing of it was sent. Without an error the
/// connection had ended before.
pub(super) type Unanswered = (Option<Request<RequestBody>>, Option<hyper::Error>);

impl Sender {
    pub(super) async fn send(&mut self, request: Request<RequestBody>) -> Result<Response<Incoming>, Unanswered> {
        let sent = match self {
            Self::Http1(Http1 { sender, .. }) => {
                if sender.ready().await.is_err() {
                    return Err((Some(request), None));
                }
                sender.try_send_request(request).await
            }
            #[cfg(feature = "http2")]
            Self::Http2(share) => {
                let sent = share.sender().try_send_request(request).await;
                if sent.as_ref().is_err_and(|error| ends_connection(error.error())) {
                    share.give_up();
                }
                sent
            }
        };
        sent.map_err(|mut error| (error.take_message(), Some(error.into_error())))
    }

    /// A response is too late, so the connection gets no further requests: it may lead nowhere.
    pub(super) fn give_up(&self) {
        match self {
            // Dropping the connection ends it.
            Self::Http1(_) => {}
            #[cfg(feature = "http2")]
            Self::Http2(share) => share.give_up(),
        }
    }
}

/// Returns true if an error is that of a connection with HTTP/2, and not only of one request.
#[cfg(feature = "http2")]
fn ends_connection(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| cause.is_go_away() || cause.is_io())
}

/// Idle connections of one core to one server, the most recently used one at the back.
pub(crate) struct Pool {
    max: Cell<usize>,
    idle: Duration,
    entries: RefCell<VecDeque<(Http1, Instant)>>,
    /// Counts the kept connections of all pools of the core.
    clients: Rc<Clients>,
}

impl Pool {
    pub(crate) fn new(max: usize, idle: Duration, clients: Rc<Clients>) -> Self {
        Self { max: Cell::new(max), idle, entries: RefCell::default(), clients }
    }

    /// Returns the most recently used connection: the server is least likely to have closed it.
    pub(crate) fn take(&self) -> Option<Sender> {
        let mut entries = self.entries.borrow_mut();
        while let Some((connection, since)) = entries.pop_back() {
            self.clients.unpool(1);
            if !connection.sender.is_closed() && since.elapsed() < self.idle {
                return Some(Sender::Http1(connection));
            }
        }
        None
    }

    /// Keeps a connection. The oldest is dropped if there are too many here or on the core.
    pub(crate) fn put(&self, sender: Sender) {
        #[cfg_attr(not(feature = "http2"), expect(irrefutable_let_patterns, reason = "HTTP/2 has its own pool"))]
        let Sender::Http1(connection) = sender else { return };
        if self.max.get() == 0 || connection.sender.is_closed() {
            return;
        }
        if self.entries.borrow().len() >= self.max.get() {
            self.let_go();
        }
        if self.clients.pool() || (self.let_go() && self.clients.pool()) {
            self.entries.borrow_mut().push_back((connection, Instant::now()));
        }
    }

    /// Drops the longest idle connection, if there is one. Returns whether there was.
    pub(crate) fn let_go(&self) -> bool {
        let oldest = self.entries.borrow_mut().pop_front();
        self.clients.unpool(usize::from(oldest.is_some()));
        oldest.is_some()
    }

    /// Drops connections that were idle for too long. Dropping the sender closes the connection.
    pub(crate) fn expire(&self) {
        let mut entries = self.entries.borrow_mut();
        let before = entries.len();
        entries.retain(|(connection, since)| !connection.sender.is_closed() && since.elapsed() < self.idle);
        self.clients.unpool(before - entries.len());
    }

    /// Drops all connections, and keeps none from now on.
    pub(crate) fn close(&self) {
        self.max.set(0);
        self.clients.unpool(self.entries.take().len());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}
