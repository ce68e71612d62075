//! Connections to one server that wait for the next request.
//!
//! Nobody watches them. That one has ended shows when it is taken, or when the old ones are let go.

use super::clock::Clock;
use crate::clients::Clients;
use fs_example_common::Stream;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// Idle connections of one core to one server, the one used last at the back.
pub(crate) struct Pool {
    max: Cell<usize>,
    idle: Duration,
    /// With the tick until which it may be used.
    entries: RefCell<VecDeque<(Stream, u64)>>,
    /// Counts what all pools of the core keep.
    clients: Rc<Clients>,
    clock: Rc<Clock>,
}

impl Pool {
    pub(crate) fn new(max: usize, idle: Duration, clients: &Rc<Clients>) -> Self {
        let clock = clients.lean.clock.clone();
        Self { max: Cell::new(max), idle, entries: RefCell::default(), clients: clients.clone(), clock }
    }

    /// The one used last: it is the least likely to have been closed by the server.
    #[inline]
    pub(crate) fn take(&self) -> Option<Stream> {
        let mut entries = self.entries.borrow_mut();
        while let Some((stream, until)) = entries.pop_back() {
            self.clients.unpool(1);
            if self.is_usable(&stream, until) {
                return Some(stream);
            }
        }
        None
    }

    /// A server that says something unasked, or ends, is not to be asked over this connection.
    fn is_usable(&self, stream: &Stream, until: u64) -> bool {
        self.clock.now() < until
            && stream.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Keeps a connection; the oldest goes when there are too many here or on the core.
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

    /// Lets go the one that has waited longest, if there is one.
    pub(crate) fn let_go(&self) -> bool {
        let oldest = self.entries.borrow_mut().pop_front();
        self.clients.unpool(usize::from(oldest.is_some()));
        oldest.is_some()
    }

    /// Lets go what has waited for too long, or has ended.
    pub(crate) fn expire(&self) {
        let mut entries = self.entries.borrow_mut();
        let before = entries.len();
        entries.retain(|(stream, until)| self.is_usable(stream, *until));
        self.clients.unpool(before - entries.len());
    }

    /// Lets go all, and keeps none from now on.
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
