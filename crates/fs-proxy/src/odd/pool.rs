//! Connections to one server that wait for the next request.

use super::request_body::RequestBody;
use crate::clients::Clients;
use hyper::client::conn::http1::SendRequest;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

pub(crate) type Sender = SendRequest<RequestBody>;

/// Idle connections of one core to one server, the most recently used one at the back.
pub(crate) struct Pool {
    max: Cell<usize>,
    idle: Duration,
    entries: RefCell<VecDeque<(Sender, Instant)>>,
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
        while let Some((sender, since)) = entries.pop_back() {
            self.clients.unpool(1);
            if !sender.is_closed() && since.elapsed() < self.idle {
                return Some(sender);
            }
        }
        None
    }

    /// Keeps a connection. The oldest is dropped if there are too many here or on the core.
    pub(crate) fn put(&self, sender: Sender) {
        if self.max.get() == 0 || sender.is_closed() {
            return;
        }
        if self.entries.borrow().len() >= self.max.get() {
            self.let_go();
        }
        if self.clients.pool() || (self.let_go() && self.clients.pool()) {
            self.entries.borrow_mut().push_back((sender, Instant::now()));
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
        entries.retain(|(sender, since)| !sender.is_closed() && since.elapsed() < self.idle);
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
