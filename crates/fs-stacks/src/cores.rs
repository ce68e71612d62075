//! Runs one future on each core of the chosen stack.

use crate::args::{StackArgs, StackKind};
use crate::counters::StackCounter;
use crate::net::{Listener, Stream, UdpSocket};
use crate::stop::Stop;
use crate::{fast, kernel};
use anyhow::Context;
use std::cell::Cell;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// Connections that may wait to be accepted; the kernel cuts it to `net.core.somaxconn` (4096).
pub const BACKLOG: u32 = 4096;

/// A core, as seen by the program on it.
#[derive(Debug)]
pub struct Core {
    /// The core's number among the program's cores, from 0.
    pub index: usize,
    /// The number of the program's cores.
    pub count: usize,
    /// The stack of its sockets.
    pub stack: StackKind,
    shared: Arc<Shared>,
    listeners: Cell<usize>,
}

/// State of the control path: start-up and stop.
#[derive(Debug, Default)]
struct Shared {
    stop: Stop,
    ready: AtomicUsize,
    /// The port that replaced port 0, for the n-th listener of every core in each round.
    ports: Mutex<HashMap<(u64, usize), u16>>,
}

impl Core {
    /// Listens on `addr` together with the other cores: each accepts its share. Port 0 is replaced
    /// by one free port for all cores (they must listen in the same order).
    ///
    /// # Errors
    /// The errors of `bind(2)` and `listen(2)`.
    pub async fn listen(&self, addr: SocketAddr) -> io::Result<Listener> {
        let number = self.listeners.replace(self.listeners.get() + 1);
        self.listen_as(0, number, addr).await
    }

    /// Like [`Core::listen`], for listeners that are opened again: port 0 becomes the same port on
    /// all cores with the same `round` and `number`.
    ///
    /// # Errors
    /// The errors of `bind(2)` and `listen(2)`.
    pub async fn listen_as(&self, round: u64, number: usize, mut addr: SocketAddr) -> io::Result<Listener> {
        if addr.port() != 0 {
            return self.listen_at(addr).await;
        }
        let number = (round, number);
        let known = self.shared.ports().get(&number).copied();
        if let Some(port) = known {
            addr.set_port(port);
            return self.listen_at(addr).await;
        }
        let listener = self.listen_at(addr).await?;
        let port = listener.local_addr()?.port();
        let chosen = *self.shared.ports().entry(number).or_insert(port);
        if chosen == port {
            return Ok(listener);
        }
        // Another core bound its listener first.
        addr.set_port(chosen);
        self.listen_at(addr).await
    }

    async fn listen_at(&self, addr: SocketAddr) -> io::Result<Listener> {
        match self.stack {
            StackKind::Kernel => kernel::listen(addr, BACKLOG),
            StackKind::Fastsock => fast::listen(addr, BACKLOG),
        }
    }

    /// Connects to `addr`, from the address `local` if given.
    ///
    /// # Errors
    /// The errors of `connect(2)`.
    pub async fn connect(&self, addr: SocketAddr, local: Option<IpAddr>) -> io::Result<Stream> {
        connect(self.stack, addr, local).await
    }

    /// Opens a UDP socket on `addr`.
    ///
    /// # Errors
    /// The errors of `bind(2)`.
    pub async fn bind_udp(&self, addr: SocketAddr) -> io::Result<UdpSocket> {
        match self.stack {
            StackKind::Kernel => kernel::bind_udp(addr).await,
            StackKind::Fastsock => fast::bind_udp(addr).await,
        }
    }

    /// Completes when the program should stop.
    pub async fn stop_requested(&self) {
        self.shared.stop.requested().await;
    }

    /// Returns the stop request, for other tasks of this core.
    pub fn stop(&self) -> Stop {
        self.shared.stop.clone()
    }

    /// Reports that this core is set up. Returns true for the last one: then the program is ready.
    pub fn is_last_ready(&self) -> bool {
        self.shared.ready.fetch_add(1, Ordering::AcqRel) + 1 == self.count
    }
}

impl Shared {
    fn ports(&self) -> std::sync::MutexGuard<'_, HashMap<(u64, usize), u16>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Completes when the connections that the current core has closed have sent all bytes. With
/// kernel sockets, the kernel does that after the end of the process too.
pub async fn connections_ended(stack: StackKind) {
    match stack {
        StackKind::Kernel => {}
        StackKind::Fastsock => fast::connections_ended().await,
    }
}

/// Listens on the current core of `stack` with a kernel socket that listens already.
///
/// # Errors
/// If the stack cannot use the socket.
pub fn adopt(stack: StackKind, socket: std::net::TcpListener) -> io::Result<Listener> {
    match stack {
        StackKind::Kernel => {
            socket.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(socket).map(Listener::Kernel)
        }
        StackKind::Fastsock => fast::adopt(socket, BACKLOG),
    }
}

/// Connects on the current core of `stack`.
///
/// # Errors
/// The errors of `connect(2)`.
pub async fn connect(stack: StackKind, addr: SocketAddr, local: Option<IpAddr>) -> io::Result<Stream> {
    match stack {
        StackKind::Kernel => kernel::connect(addr, local).await,
        StackKind::Fastsock => fast::connect(addr, local).await,
    }
}

/// The running cores of a program.
pub struct Cores {
    shared: Arc<Shared>,
    signals: Signals,
    threads: Vec<JoinHandle<()>>,
    ended: mpsc::UnboundedReceiver<anyhow::Result<()>>,
    count: usize,
    counters: StackCounters,
}

/// The stack under us, for any thread: its counters, and what a successor needs.
#[derive(Clone, Debug)]
pub enum StackCounters {
    /// Ours.
    Fast(fastsock::Handle),
    /// The kernel has its own counters (`nstat`).
    Kernel,
}

impl StackCounters {
    /// Returns why no other process can take over from this one, or `None` if one can.
    pub fn refuses_successor(&self) -> Option<&'static str> {
        match self {
            Self::Fast(handle) => fast::refuses_successor(handle),
            Self::Kernel => None,
        }
    }

    /// Another process has taken over: devices that are not attached to yet are its own.
    pub fn succeeded(&self) {
        if let Self::Fast(handle) = self {
            handle.forgo_devices();
        }
    }

    /// Returns all counters of all cores.
    pub fn snapshot(&self) -> Vec<StackCounter> {
        match self {
            Self::Fast(handle) => fast::counters(handle),
            Self::Kernel => Vec::new(),
        }
    }
}

impl Cores {
    /// Starts `app` on each core that the options name.
    ///
    /// # Errors
    /// If the options contradict each other, or the stack cannot be set up. Nothing stays half set
    /// up.
    pub fn start<F, T>(args: &StackArgs, app: F) -> anyhow::Result<Self>
    where
        F: Fn(Core) -> T + Clone + Send + 'static,
        T: Future<Output = anyhow::Result<()>> + 'static,
    {
        args.check()?;
        // Before the cores: a signal may follow their first output at once.
        let signals = Signals::catch()?;
        match args.stack {
            StackKind::Kernel => Self::start_kernel(args, signals, app),
            StackKind::Fastsock => Self::start_fast(args, signals, app),
        }
    }

    fn start_kernel<F, T>(args: &StackArgs, signals: Signals, app: F) -> anyhow::Result<Self>
    where
        F: Fn(Core) -> T + Clone + Send + 'static,
        T: Future<Output = anyhow::Result<()>> + 'static,
    {
        kernel::set_congestion(args.congestion);
        let shared = Arc::new(Shared::default());
        let (sender, ended) = mpsc::unbounded_channel();
        let mut threads = Vec::new();
        let count = args.cores.0.len();
        for (index, &cpu) in args.cores.0.iter().enumerate() {
            let (app, sender, shared) = (app.clone(), sender.clone(), shared.clone());
            let core = move || Core { index, count, stack: StackKind::Kernel, shared, listeners: Cell::new(0) };
            let body = move || {
                let run = || kernel::run_core(cpu, || app(core())).and_then(|result| result);
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
                let result = result.unwrap_or_else(|_| Err(anyhow::anyhow!("core {index} panicked")));
                // The receiver is gone only if the program is ending.
                let _ = sender.send(result);
            };
            threads.push(std::thread::Builder::new().name(format!("core-{index}")).spawn(body)?);
        }
        Ok(Self { shared, signals, threads, ended, count, counters: StackCounters::Kernel })
    }

    fn start_fast<F, T>(args: &StackArgs, signals: Signals, app: F) -> anyhow::Result<Self>
    where
        F: Fn(Core) -> T + Clone + Send + 'static,
        T: Future<Output = anyhow::Result<()>> + 'static,
    {
        let shared = Arc::new(Shared::default());
        let (sender, ended) = mpsc::unbounded_channel();
        let runtime = fast::build(args)?;
        let counters = StackCounters::Fast(runtime.handle());
        let core_shared = shared.clone();
        let body = move || {
            let core_sender = sender.clone();
            let run = runtime.run(move |context| async move {
                let (index, count) = (context.index(), context.cores());
                let shared = core_shared;
                let core = Core { index, count, stack: StackKind::Fastsock, shared, listeners: Cell::new(0) };
                // The receiver is gone only if the program is ending.
                let _ = core_sender.send(app(core).await);
            });
            if let Err(error) = run {
                let _ = sender.send(Err(error.into()));
            }
        };
        let thread = std::thread::Builder::new().name("fs-runtime".into()).spawn(body)?;
        Ok(Self { shared, signals, threads: vec![thread], ended, count: args.cores.0.len(), counters })
    }

    /// Asks the cores to stop.
    pub fn stop(&self) -> Stop {
        self.shared.stop.clone()
    }

    /// Reads the stack's counters.
    pub fn counters(&self) -> StackCounters {
        self.counters.clone()
    }

    /// Waits until all cores have ended. SIGTERM, SIGINT and SIGQUIT ask them to end. A second
    /// signal ends the process at once.
    ///
    /// # Errors
    /// The first error of a core. The others are then asked to stop.
    pub fn join(mut self) -> anyhow::Result<()> {
        let result = self.signals.watch(&self.shared.stop, &mut self.ended, self.count);
        self.shared.stop.request();
        for thread in self.threads.drain(..) {
            // A panic was caught and reported through the channel.
            let _ = thread.join();
        }
        result
    }
}

/// SIGTERM, SIGINT and SIGQUIT, caught from the creation of this value on.
struct Signals {
    runtime: tokio::runtime::Runtime,
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
}

impl Signals {
    fn catch() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
        let quit = signal(SignalKind::quit()).context("SIGQUIT")?;
        drop(entered);
        Ok(Self { runtime, terminate, interrupt, quit })
    }

    /// Waits until `count` cores have ended, and forwards signals to them.
    fn watch(
        &mut self,
        stop: &Stop,
        ended: &mut mpsc::UnboundedReceiver<anyhow::Result<()>>,
        count: usize,
    ) -> anyhow::Result<()> {
        let Self { runtime, terminate, interrupt, quit } = self;
        runtime.block_on(async {
            let mut first_error = Ok(());
            let mut left = count;
            while left > 0 {
                let name = tokio::select! {
                    result = ended.recv() => {
                        // Each core reports once, unless the runtime has failed and reported that.
                        let Some(result) = result else { break };
                        left -= 1;
                        if result.is_err() && first_error.is_ok() {
                            first_error = result;
                            stop.request();
                        }
                        continue;
                    }
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                    _ = quit.recv() => "SIGQUIT",
                };
                if stop.is_requested() {
                    tracing::warn!("second {name}: ending at once");
                    std::process::exit(130);
                }
                tracing::info!("{name}: stopping");
                stop.request();
            }
            first_error
        })
    }
}
