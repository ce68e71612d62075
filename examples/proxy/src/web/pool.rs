//! Connections to one server that wait for the next request.

use super::body::RequestBody;
use hyper::client::conn::http1::SendRequest;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub(crate) type Sender = SendRequest<RequestBody>;

/// Idle connections of one core to one server, the one used last at the back.
pub(crate) struct Pool {
    max: Cell<usize>,
    idle: Duration,
    entries: RefCell<VecDeque<(Sender, Instant)>>,
}

impl Pool {
    pub(crate) fn new(max: usize, idle: Duration) -> Self {
        Self { max: Cell::new(max), idle, entries: RefCell::default() }
    }

    /// The one used last: it is the least likely to be closed by the server meanwhile.
    pub(crate) fn take(&self) -> Option<Sender> {
        let mut entries = self.entries.borrow_mut();
        while let Some((sender, since)) = entries.pop_back() {
            if !sender.is_closed() && since.elapsed() < self.idle {
                return Some(sender);
            }
        }
        None
    }

    /// Keeps a connection; the oldest goes when there are too many.
    pub(crate) fn put(&self, sender: Sender) {
        if self.max.get() == 0 || sender.is_closed() {
            return;
        }
        let mut entries = self.entries.borrow_mut();
        if entries.len() >= self.max.get() {
            entries.pop_front();
        }
        entries.push_back((sender, Instant::now()));
    }

    /// Lets go what has waited for too long. Dropping the sender closes the connection.
    pub(crate) fn expire(&self) {
        self.entries.borrow_mut().retain(|(sender, since)| !sender.is_closed() && since.elapsed() < self.idle);
    }

    /// Lets go all, and keeps none from now on.
    pub(crate) fn close(&self) {
        self.max.set(0);
        self.entries.take();
    }
}
