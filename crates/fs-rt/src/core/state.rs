//! The state of a core. The module above has the access rules.

use super::io::{CoreIo, CoreStack};
use crate::kernel::RouteCache;
use crate::shared::{Message, Shared};
use crate::source::NewSources;
use crate::stats::{CoreStats, RuntimeStats};
use crate::sys::Clock;
use crate::wakers::Wakers;
use fs_core::{FramePool, ListenerId};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::Waker;

pub(crate) struct CoreShared {
    pub(crate) index: usize,
    pub(crate) cpu: usize,
    pub(crate) clock: Clock,
    pub(crate) stack: RefCell<CoreStack>,
    pub(crate) wakers: RefCell<Wakers>,
    pub(crate) io: RefCell<CoreIo>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) listeners: RefCell<Vec<ListenerId>>,
    /// The empty buffer that is exchanged for the inbox's messages.
    pub(crate) arrived: RefCell<Vec<Message>>,
    /// The reactor sleeps. A call that may have created work for it must wake it.
    pub(crate) asleep: Cell<bool>,
    pub(crate) reactor: RefCell<Option<Waker>>,
    pub(crate) shutting_down: Cell<bool>,
    pub(crate) new_sources: NewSources,
    /// Links were opened or closed, so the reactor must watch those that are open now.
    pub(crate) links_changed: Cell<bool>,
    /// Cached routes of the kernel.
    pub(crate) route_cache: RefCell<RouteCache>,
    /// True in a child of fork(2): its memory is a copy, and links, threads and connections belong
    /// to the parent.
    pub(crate) in_child: Cell<bool>,
    /// Connections that the kernel carries for sockets of this core.
    pub(crate) kernel_streams: Cell<u64>,
}

impl CoreShared {
    pub(crate) fn wake_reactor(&self) {
        self.asleep.set(false);
        if let Some(waker) = &*self.reactor.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Returns this core's current counters.
    pub(crate) fn snapshot(&self) -> CoreStats {
        let io = self.io.borrow();
        let stack = self.stack.borrow();
        CoreStats {
            core: self.index,
            cpu: self.cpu,
            stack: stack.stats().clone(),
            links: io.ports.iter().map(|p| (p.iface, p.link.stats())).collect(),
            turn_time: io.turns.times.clone(),
            runtime: RuntimeStats { coalescings: io.poller.coalescings(), ..io.counters },
            connections: stack.tcp_connections() as u64,
            kernel_connections: self.kernel_streams.get(),
            time_waits: stack.tcp_time_waits() as u64,
            frames_in_use: stack.pool().in_use() as u64,
            frames: stack.pool().capacity() as u64,
            given_up: io.given_up.clone(),
        }
    }

    /// Publishes this core's counters for other threads.
    pub(crate) fn publish(&self) {
        let snapshot = self.snapshot();
        *self.shared.published[self.index].lock().unwrap_or_else(|e| e.into_inner()) = snapshot;
    }
}
