//! State that the connections of a core share.

use crate::errors::{Errors, Kind};
use crate::pace::Pace;
use crate::report::CoreReport;
use crate::source::Sources;
use crate::{Args, Mode};
use fs_stacks::Core;
use fs_stacks::counters::{Counter, PerCore};
use hdrhistogram::Histogram;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

/// Bytes that one call reads or (bulk) writes.
const CHUNK: usize = 64 << 10;
/// Length of a ping-pong message without `--body`.
const PING: usize = 64;
/// Latencies up to 100 s are recorded, to three digits.
const LATENCY_MAX: Duration = Duration::from_secs(100);

/// Settings that all cores share.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    pub(crate) addr: SocketAddr,
    pub(crate) sources: Option<Sources>,
    pub(crate) conns: usize,
    pub(crate) cores: usize,
    pub(crate) seconds: Duration,
    pub(crate) timeout: Duration,
    pub(crate) request: Vec<u8>,
    /// The last request of a connection.
    pub(crate) last_request: Vec<u8>,
    pub(crate) body: Option<usize>,
    pub(crate) message: Vec<u8>,
    pub(crate) reverse: bool,
    /// Requests per connection; 0: unlimited.
    pub(crate) per_connection: u32,
    /// Requests per second, over all cores.
    pub(crate) rate: Option<u32>,
    pub(crate) opening: usize,
    pub(crate) live: Vec<PerCore<Live>>,
    /// Cores that have opened all their connections (hold).
    pub(crate) opened: AtomicUsize,
}

impl Plan {
    pub(crate) fn new(args: &Args) -> Self {
        let request = |close| format!("GET {} HTTP/1.1\r\nHost: {}\r\n{close}\r\n", args.path, args.connect);
        let last_request = request("Connection: close\r\n");
        let request = if args.mode == Mode::Short { last_request.clone() } else { request("") };
        let message = if args.mode == Mode::Bulk { CHUNK } else { args.body.unwrap_or(PING).max(1) };
        let cores = args.stack.cores.0.len();
        Self {
            mode: args.mode,
            addr: args.connect,
            sources: args.source.clone(),
            conns: args.conns as usize,
            cores,
            seconds: args.seconds,
            timeout: args.timeout,
            request: request.into_bytes(),
            last_request: last_request.into_bytes(),
            body: args.body,
            // Varying bytes, so that a wrong offset is detected.
            message: (0..message).map(|i| (i * 31 + i / 251) as u8).collect(),
            reverse: args.reverse,
            per_connection: args.per_connection,
            rate: args.rate,
            opening: args.opening as usize,
            live: (0..cores).map(|_| PerCore::default()).collect(),
            opened: AtomicUsize::new(0),
        }
    }

    /// Returns the number of connections of core `index`.
    pub(crate) fn share(&self, index: usize) -> usize {
        self.conns / self.cores + usize::from(index < self.conns % self.cores)
    }
}

/// Values of the progress line, each written by one core.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) connections: Counter,
    pub(crate) requests: Counter,
    pub(crate) bytes: Counter,
    pub(crate) errors: Counter,
    pub(crate) open: Counter,
}

/// One core's state, shared by its connections.
pub(crate) struct Session {
    pub(crate) core: Core,
    pub(crate) plan: Arc<Plan>,
    /// The buffer that all connections read into.
    pub(crate) scratch: RefCell<Vec<u8>>,
    latency: RefCell<Histogram<u64>>,
    errors: RefCell<Errors>,
    /// The time is over: finish the current requests.
    stop: Cell<bool>,
    next_source: Cell<usize>,
    /// Begins with the first request.
    pace: OnceCell<Pace>,
}

/// The time since which a connection has waited for progress.
pub(crate) type WaitingSince = Rc<Cell<Option<Instant>>>;

impl Session {
    pub(crate) fn new(core: Core, plan: Arc<Plan>) -> Rc<Self> {
        let latency = Histogram::new_with_max(LATENCY_MAX.as_nanos() as u64, 3).expect("bounds are constants");
        Rc::new(Self {
            pace: OnceCell::new(),
            // Cores start with different addresses.
            next_source: Cell::new(core.index),
            core,
            plan,
            scratch: RefCell::new(vec![0; CHUNK]),
            latency: RefCell::new(latency),
            errors: RefCell::default(),
            stop: Cell::new(false),
        })
    }

    pub(crate) fn live(&self) -> &Live {
        &self.plan.live[self.core.index].0
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.get()
    }

    /// Waits until the next request may be sent. Returns the time from which its latency counts, and
    /// `None` when the load is over.
    pub(crate) async fn due(&self) -> Option<Instant> {
        let since = match self.plan.rate {
            Some(rate) => {
                let interval = Duration::from_secs(1) * self.plan.cores as u32 / rate;
                let start = || Pace::start(interval).expect("a timer can be made");
                self.pace.get_or_init(start).due().await?
            }
            None => Instant::now(),
        };
        (!self.stopping()).then_some(since)
    }

    /// Counts a response. Responses after the end are not measured.
    pub(crate) fn answered(&self, took: Duration) {
        if !self.stop.get() {
            self.live().requests.add(1);
            self.latency.borrow_mut().saturating_record(took.as_nanos() as u64);
        }
    }

    pub(crate) fn failed(&self, kind: Kind) {
        self.live().errors.add(1);
        self.errors.borrow_mut().count(kind);
    }

    pub(crate) fn source(&self) -> Option<std::net::IpAddr> {
        let sources = self.plan.sources.as_ref()?;
        // Cores skip each other's addresses, so that each is used equally often.
        let number = self.next_source.replace(self.next_source.get().wrapping_add(self.plan.cores));
        Some(sources.nth(number))
    }

    /// Ends the time: connections finish their current requests.
    pub(crate) fn stop(&self) {
        self.stop.set(true);
        if let Some(pace) = self.pace.get() {
            pace.stop();
        }
    }

    /// Returns what the core has done in the `measured` time.
    pub(crate) fn report(&self, measured: Duration) -> CoreReport {
        let live = self.live();
        CoreReport {
            seconds: measured,
            connections: live.connections.value(),
            requests: live.requests.value(),
            bytes: live.bytes.value(),
            latency: self.latency.borrow().clone(),
            errors: self.errors.borrow().clone(),
        }
    }
}
