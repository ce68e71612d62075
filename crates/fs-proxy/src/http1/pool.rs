//! Connections to one server that wait for the next request.
//!
//! They are not watched. A closed connection is detected when it is taken, or when old ones are
//! dropped.

use super::clock::Clock;
use crate::clients::Clients;
use fs_stacks::Stream;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Idle connections of one core to one server, the most recently used one at the back.
pub(crate) struct Pool {
    max: Cell<usize>,
    idle: Duration,
    /// Connections, each with the tick until which it may be used.
    entries: RefCell<VecDeque<(Stream, u64)>>,
    /// Counts the kept connections of all pools of the core.
    clients: Rc<Clients>,
    clock: Rc<Clock>,
}

impl Pool {
    pub(crate) fn new(max: usize, idle: Duration, clients: Rc<Clients>, clock: Rc<Clock>) -> Self {
        Self { max: Cell::new(max), idle, entries: RefCell::default(), clients, clock }
    }

    /// Returns the most recently used connection: the server is least likely to have closed it.
    #[inline]
    pub(crate) fn take(&self) -> Option<Stream> {
        let mut entries = self.entries.borrow_mut();
        while let Some((mut stream, until)) = entries.pop_back() {
            self.clients.unpool(1);
            if self.is_usable(&mut stream, until) {
                return Some(stream);
            }
        }
        None
    }

    /// A connection on which the server has sent unrequested bytes, or closed, cannot be used.
    #[inline]
    fn is_usable(&self, stream: &mut Stream, until: u64) -> bool {
        self.clock.now() < until && stream.is_quiet()
    }

    /// Keeps a connection. The oldest is dropped if there are too many here or on the core.
    #[inline]
    pub(crate) fn put(&self, stream: Stream) {
        if self.max.get() == 0 {
            return;
        }
        if self.entries.borrow().len() >= self.max.get() {
            self.let_go();
        }
        if self.clients.pool() || (self.let_go() && self.clients.pool()) {
            self.entries.borrow_mut().push_back((stream, self.clock.after(self.idle)));
        }
    }

    /// Drops the longest idle connection, if there is one. Returns whether there was.
    pub(crate) fn let_go(&self) -> bool {
        let oldest = self.entries.borrow_mut().pop_front();
        self.clients.unpool(usize::from(oldest.is_some()));
        oldest.is_some()
    }

    /// Drops connections that were idle for too long, or have ended.
    pub(crate) fn expire(&self) {
        let mut entries = self.entries.borrow_mut();
        let before = entries.len();
        entries.retain_mut(|(stream, until)| self.is_usable(stream, *until));
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
