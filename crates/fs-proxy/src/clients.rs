//! Limits on a core's connections, and the choice of the one to close.
//!
//! Every connection uses a descriptor (kernel) or a slot (fastsock), of which there is a fixed
//! number. Without a limit, clients could use all of them, and none would be left to connect to a
//! server or to check one. The limits are such that everything fits at once: a client uses at most
//! one connection to a server at a time, so there are `clients` of each, and `pooled` kept
//! connections to servers. Requests that an HTTP/2 client has at the same time count like clients.
//! On a full core, a new client replaces the one that has been idle longest. If none is idle, it waits
//! in the listener's queue.

use crate::access_log::FLUSH_INTERVAL;
use crate::addresses::OfAddress;
use crate::config::{self, Config, Mode};
use fs_stacks::StackKind;
use std::cell::{Cell, OnceCell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Descriptors of the process that are not connections: standard ones, logs, the metrics'
/// connections, a configuration file. An idle proxy with one core, one listener and metrics has 23
/// in total. The metrics may use 16 more.
const PROCESS: usize = 48;
/// Descriptors of a core: epoll, event and signal descriptors of its runtime.
const CORE: usize = 8;
/// Maximum number of connections that were asked to close and are still open.
const LEAVING: usize = 16;
/// Ticks of [`FLUSH_INTERVAL`] without a byte after which a relay is idle. 1: the next client would
/// close a relay that moved bytes a moment ago. Higher: a full core takes no clients for that long.
const RELAY_IDLE: u64 = 2;
/// At most one log line in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Entries of ended connections that are kept, in addition to as many of live ones.
const SLACK: usize = 1024;

/// A core's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) clients: usize,
    pub(crate) pooled: usize,
}

/// Returns a core's limit of connections of all kinds. All cores share `files` descriptors; `slots`
/// are a core's own.
pub(crate) fn connections(stack: StackKind, cores: usize, files: u64, slots: u32) -> usize {
    match stack {
        StackKind::Kernel => {
            let files = usize::try_from(files).unwrap_or(usize::MAX);
            (files.saturating_sub(PROCESS) / cores.max(1)).saturating_sub(CORE)
        }
        // A closed connection keeps its slot until its peer has closed too, at most 60 s
        // (FIN-WAIT-2).
        StackKind::Fastsock => slots as usize / 4 * 3,
    }
}

impl Limits {
    /// Divides `connections` for a configuration.
    pub(crate) fn new(config: &Config, connections: usize) -> Self {
        let checks: usize = config
            .upstreams
            .iter()
            .filter(|upstream| upstream.health_check.is_some())
            .map(|upstream| upstream.servers.len())
            .sum();
        // Two per socket: the socket itself, and an accepted connection that waits for a place or
        // the next configuration's socket.
        let rest = connections.saturating_sub(2 * config.listeners.len() + checks + LEAVING);
        let kept = config.upstreams.iter().filter(|upstream| {
            let uses =
                |listener: &&_| config.upstreams_of(listener).any(|at| std::ptr::eq(*upstream, &config.upstreams[at]));
            config.listeners.iter().filter(uses).any(|listener| listener.mode == Mode::Http)
        });
        let wanted = kept
            .map(|upstream| upstream.keepalive.connections.saturating_mul(upstream.servers.len()))
            .fold(0, usize::saturating_add);
        let pooled = wanted.min(rest / 3);
        Self { clients: ((rest - pooled) / 2).max(1), pooled }
    }
}

/// When a connection was last active: a tick of the core's clock, and a number that orders events
/// within a tick.
type Moment = (u64, u64);

/// The client connections of a core, of all configurations.
pub(crate) struct Clients {
    limits: Cell<Limits>,
    open: Cell<usize>,
    leaving: Cell<usize>,
    pooled: Cell<usize>,
    tick: Cell<u64>,
    moments: Cell<u64>,
    /// Connections that were idle when they were added, ordered by a moment at or before their last
    /// activity.
    idle: RefCell<BinaryHeap<Reverse<Idle>>>,
    /// Relays that were too busy for `idle`. They return with the next tick.
    young: RefCell<Vec<Weak<Connection>>>,
    /// Number of tasks that wait for a place.
    waiting: Cell<usize>,
    changed: Notify,
    last_log: Cell<Option<Instant>>,
}

struct Idle {
    since: Moment,
    connection: Weak<Connection>,
}

impl PartialEq for Idle {
    fn eq(&self, other: &Self) -> bool {
        self.since == other.since
    }
}

impl Eq for Idle {}

impl PartialOrd for Idle {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Idle {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.since.cmp(&other.since)
    }
}

impl Clients {
    pub(crate) fn new(limits: Limits) -> Rc<Self> {
        Rc::new(Self {
            limits: Cell::new(limits),
            open: Cell::new(0),
            leaving: Cell::new(0),
            pooled: Cell::new(0),
            tick: Cell::new(RELAY_IDLE),
            moments: Cell::new(0),
            idle: RefCell::default(),
            young: RefCell::default(),
            waiting: Cell::new(0),
            changed: Notify::new(),
            last_log: Cell::new(None),
        })
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        self.limits.set(limits);
        self.changed.notify_waiters();
    }

    /// Must be called every [`FLUSH_INTERVAL`].
    pub(crate) fn tick(&self) {
        self.tick.set(self.tick.get() + 1);
        for connection in self.young.take().iter().filter_map(Weak::upgrade) {
            self.list(&connection);
        }
    }

    fn moment(&self) -> Moment {
        self.moments.set(self.moments.get() + 1);
        (self.tick.get(), self.moments.get())
    }

    fn is_full(&self) -> bool {
        self.open.get() - self.leaving.get() >= self.limits.get().clients || self.leaving.get() >= LEAVING
    }

    /// Waits until one more client may be served. Closes the longest idle client for it.
    pub(crate) async fn room(&self) {
        while self.is_full() {
            if self.leaving.get() < LEAVING && self.close_idlest() {
                self.say_full();
                // The closed connection's task must run before the next connection is accepted.
                tokio::task::yield_now().await;
                continue;
            }
            let waiting = Waiting::new(&self.waiting);
            // A relay can become idle without a notification.
            let _ = tokio::time::timeout(FLUSH_INTERVAL, self.changed.notified()).await;
            drop(waiting);
        }
    }

    /// Counts a new connection, which is busy until the guard is dropped.
    pub(crate) fn enter(self: &Rc<Self>) -> (Rc<Connection>, Busy) {
        self.open.set(self.open.get() + 1);
        let connection = Rc::new(Connection {
            clients: self.clone(),
            last: Cell::new(self.moment()),
            busy: Cell::new(0),
            unsent: Cell::new(0),
            progress: Cell::new(None),
            is_listed: Cell::new(false),
            relays_to: Cell::new(None),
            has_moved: Cell::new(false),
            is_leaving: Cell::new(false),
            waker: RefCell::default(),
            deadline: Deadline::default(),
            address: OnceCell::new(),
        });
        let busy = connection.busy();
        (connection, busy)
    }

    fn list(&self, connection: &Rc<Connection>) {
        if connection.is_listed.replace(true) {
            return;
        }
        let mut idle = self.idle.borrow_mut();
        if idle.len() > 2 * self.open.get() + SLACK {
            idle.retain(|Reverse(entry)| entry.connection.strong_count() > 0);
        }
        idle.push(Reverse(Idle { since: connection.last.get(), connection: Rc::downgrade(connection) }));
    }

    /// Asks the longest idle connection to close. Returns false if none is idle.
    pub(crate) fn close_idlest(&self) -> bool {
        loop {
            let Some(Reverse(Idle { since, connection })) = self.idle.borrow_mut().pop() else { return false };
            let Some(connection) = connection.upgrade() else { continue };
            connection.is_listed.set(false);
            if connection.is_leaving.get() || connection.is_busy() {
                // The client is added again when it is idle again.
                continue;
            }
            let last = connection.last.get();
            if connection.moved_just_now() {
                self.young.borrow_mut().push(Rc::downgrade(&connection));
            } else if last > since {
                self.list(&connection);
            } else {
                connection.leave();
                return true;
            }
        }
    }

    /// Like [`Clients::close_idlest`] among the relays to one server, if ports towards it are
    /// missing.
    pub(crate) fn close_idlest_relay(&self, server: SocketAddr) -> bool {
        let relays = |connection: &Rc<Connection>| connection.relays_to.get() == Some(server) && connection.is_idle();
        let idle = self.idle.borrow();
        let found = idle.iter().filter_map(|Reverse(entry)| entry.connection.upgrade()).filter(relays);
        let found = found.min_by_key(|connection| connection.last.get());
        drop(idle);
        found.inspect(|connection| connection.leave()).is_some()
    }

    /// Counts a kept connection to a server, if there is a place for it.
    pub(crate) fn pool(&self) -> bool {
        let room = self.pooled.get() < self.limits.get().pooled;
        self.pooled.set(self.pooled.get() + usize::from(room));
        room
    }

    /// Uncounts kept connections that were closed or are in use again.
    pub(crate) fn unpool(&self, number: usize) {
        self.pooled.set(self.pooled.get() - number);
    }

    fn say_full(&self) {
        let now = Instant::now();
        if self.last_log.get().is_none_or(|last| now - last >= LOG_INTERVAL) {
            self.last_log.set(Some(now));
            tracing::warn!(
                "{} clients, the most for one core: those that are idle longest are closed; for more raise the limit of \
                 open files (kernel) or --max-connections (fastsock), or name more --cores",
                self.limits.get().clients
            );
        }
    }
}

/// A client's connection, as far as the limits are concerned.
pub(crate) struct Connection {
    clients: Rc<Clients>,
    last: Cell<Moment>,
    /// Requests under way.
    busy: Cell<usize>,
    /// Parts of responses that the socket has not taken. Their requests may be over.
    unsent: Cell<usize>,
    /// When a request or a response last made progress, if the connection uses HTTP/2.
    progress: Cell<Option<Instant>>,
    is_listed: Cell<bool>,
    /// The server of a relay, for which bytes count as activity instead of requests.
    relays_to: Cell<Option<SocketAddr>>,
    /// For a relay: any byte in either direction.
    has_moved: Cell<bool>,
    is_leaving: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    deadline: Deadline,
    /// The client's address, if addresses have a limit.
    address: OnceCell<OfAddress>,
}

/// A connection's deadline, as the core's clock has it.
pub(crate) struct Deadline {
    /// The tick.
    pub(crate) at: Cell<u64>,
    /// The earliest tick at which the clock's wheel has it.
    pub(crate) listed: Cell<u64>,
}

impl Default for Deadline {
    fn default() -> Self {
        Self { at: Cell::new(u64::MAX), listed: Cell::new(u64::MAX) }
    }
}

impl Connection {
    /// Marks it as busy until the guard is dropped.
    pub(crate) fn busy(self: &Rc<Self>) -> Busy {
        self.busy.set(self.busy.get() + 1);
        Busy(self.clone())
    }

    /// Its client's address has a limit.
    pub(crate) fn is_of(&self, address: OfAddress) {
        // It is set once, when the client is known.
        let _ = self.address.set(address);
    }

    /// Returns true if the limits of its client's address allow a request now.
    #[inline]
    pub(crate) fn may_ask(&self, limits: &config::Limits) -> bool {
        self.address.get().is_none_or(|address| address.may_ask(limits))
    }

    /// From now on only bytes count as activity: see [`Connection::moved`].
    pub(crate) fn relays_to(&self, server: SocketAddr) {
        self.relays_to.set(Some(server));
    }

    /// Records that bytes have moved. Without reading the clock: a resolution of one tick is
    /// enough.
    pub(crate) fn moved(&self) {
        self.has_moved.set(true);
        self.last.set((self.clients.tick.get(), self.last.get().1));
    }

    fn is_idle(&self) -> bool {
        !self.is_busy() && !self.is_leaving.get() && !self.moved_just_now()
    }

    /// Returns true for relays that are likely in use. A relay without any byte is not: a client
    /// that only connects must not keep its place.
    fn moved_just_now(&self) -> bool {
        self.has_moved.get() && self.last.get().0 + RELAY_IDLE > self.clients.tick.get()
    }

    fn leave(&self) {
        self.is_leaving.set(true);
        self.clients.leaving.set(self.clients.leaving.get() + 1);
        self.wake();
    }

    /// Wakes the task that waits in [`Connection::poll_leaving`].
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(crate) fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    /// Waits for a place for a request next to others, because it uses another connection to a server.
    /// Returns `None` if there is none until then.
    pub(crate) async fn another(&self, until: Instant) -> Option<Place> {
        // A place that became free at that moment is taken.
        if tokio::time::timeout_at(until.into(), self.clients.room()).await.is_err() && self.clients.is_full() {
            return None;
        }
        self.clients.open.set(self.clients.open.get() + 1);
        Some(Place(self.clients.clone()))
    }

    /// Marks it as busy with bytes for the client until the guard is dropped.
    pub(crate) fn unsent(self: &Rc<Self>) -> Unsent {
        self.unsent.set(self.unsent.get() + 1);
        Unsent(self.clone())
    }

    /// Records that a request or a response has made progress. Bytes on the wire are none: a client that
    /// never takes its response can send PING.
    pub(crate) fn made_progress(&self) {
        self.progress.set(Some(Instant::now()));
    }

    /// Returns the time since the last progress.
    #[cfg(feature = "http2")]
    pub(crate) fn without_progress(&self) -> Duration {
        self.progress.get().map_or(Duration::ZERO, |last| last.elapsed())
    }

    /// Returns true if a request is in progress.
    pub(crate) fn has_request(&self) -> bool {
        self.busy.get() > 0
    }

    /// Returns true if a request is in progress, or a response has not been sent completely.
    pub(crate) fn is_busy(&self) -> bool {
        self.has_request() || self.unsent.get() > 0
    }

    /// Lists it as idle from now on, unless it is still busy.
    fn rest(self: &Rc<Self>) {
        if !self.is_busy() {
            self.last.set(self.clients.moment());
            self.clients.list(self);
            if self.clients.waiting.get() > 0 {
                self.clients.changed.notify_waiters();
            }
        }
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.get()
    }

    /// Ready if the connection must close to make a place. One task can wait.
    pub(crate) fn poll_leaving(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_leaving.get() {
            return Poll::Ready(());
        }
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    pub(crate) async fn leaving(&self) {
        poll_fn(|cx| self.poll_leaving(cx)).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let clients = &self.clients;
        clients.open.set(clients.open.get() - 1);
        clients.leaving.set(clients.leaving.get() - usize::from(self.is_leaving.get()));
        if clients.waiting.get() > 0 {
            clients.changed.notify_waiters();
        }
    }
}

/// A place like a client's.
pub(crate) struct Place(Rc<Clients>);

impl Drop for Place {
    fn drop(&mut self) {
        let Self(clients) = self;
        clients.open.set(clients.open.get() - 1);
        if clients.waiting.get() > 0 {
            clients.changed.notify_waiters();
        }
    }
}

/// A task that waits, until it is dropped.
struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    fn new(number: &'a Cell<usize>) -> Self {
        number.set(number.get() + 1);
        Self(number)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A request in progress, or a connection that is being made.
pub(crate) struct Busy(Rc<Connection>);

impl Busy {
    /// See [`Connection::unsent`].
    pub(crate) fn unsent(&self) -> Unsent {
        self.0.unsent()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let Self(connection) = self;
        connection.busy.set(connection.busy.get() - 1);
        connection.rest();
    }
}

/// Bytes that the client's socket has not taken.
pub(crate) struct Unsent(Rc<Connection>);

impl Unsent {
    /// The socket has taken some of them.
    pub(crate) fn shrinks(&self) {
        self.0.made_progress();
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        let Self(connection) = self;
        connection.unsent.set(connection.unsent.get() - 1);
        connection.rest();
    }
}

#[cfg(test)]
mod tests;
