//! The runtime: threads, their start, and their end.

use crate::builder::Builder;
use crate::carrier::Carriers;
use crate::core::{CoreIo, CoreLinks, CoreRef, CoreShared, CoreStack, Reactor};
use crate::device::probe::Reason;
use crate::error::RunError;
use crate::handle::Handle;
use crate::mailbox::Mailboxes;
use crate::poll::PollPolicy;
use crate::shared::{Phase, Shared};
use crate::source::NewSources;
use crate::stats::CoreStats;
use crate::sys::{Clock, Cpus, pin_to_cpu};
use crate::wakers::Wakers;
use fs_core::{IfaceId, Interface, Route, StackConfig, Steering};
use fs_xdp::UmemPool;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// tokio's driver (timers, other descriptors, 400 ns) runs after this many task polls while the
/// core is busy. At tokio's default of 61 it costs 6.5 ns per poll, at 256 1.6 ns, and timers are
/// at most 256 polls late.
const EVENT_INTERVAL: u32 = 256;

/// tokio's default, if every socket is a descriptor of tokio's driver.
const EVENT_INTERVAL_OF_KERNEL: u32 = 61;

/// The initial state of a core's thread.
pub(crate) struct CoreSetup {
    pub(crate) config: StackConfig,
    pub(crate) pool: UmemPool,
    pub(crate) links: CoreLinks,
    pub(crate) interfaces: Vec<Interface>,
    /// The kernel's indexes of the interfaces' devices, if there are any.
    pub(crate) scopes: Vec<u32>,
    /// The links are placeholders of devices that the runtime does not have yet.
    pub(crate) is_late: bool,
    pub(crate) routes: Vec<Route>,
    /// See [`Stack::set_host_addresses`](fs_core::Stack::set_host_addresses).
    pub(crate) host_addresses: Vec<IpAddr>,
    pub(crate) mail: Mailboxes,
    pub(crate) steering: Option<Steering>,
    pub(crate) cpu: usize,
    pub(crate) pin: bool,
    pub(crate) policy: PollPolicy,
    pub(crate) drain: Duration,
    pub(crate) clock: Clock,
    /// On the first core: bindings of devices that were given up.
    pub(crate) given_up: Vec<Reason>,
}

/// A runtime whose devices, queues and ports are open. Its threads start with [`Runtime::run`].
///
/// ```no_run
/// let runtime = fastsock::Runtime::builder().device("eth0").cores([0, 1]).build()?;
/// // Once on each core. The results are in the order of the cores.
/// let cpus = runtime.run(|core| async move { core.cpu() })?;
/// assert_eq!(cpus, [0, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a runtime does nothing until `run` is called"]
pub struct Runtime {
    pub(crate) cores: Vec<CoreSetup>,
    /// Dropped after the queues.
    pub(crate) end: End,
    /// Values that must outlive the queues (attached programs). Dropped after them.
    pub(crate) keep: Vec<Box<dyn Any + Send>>,
}

/// Ends the runtime when it is dropped: after its run, or without one.
pub(crate) struct End(pub(crate) Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        let Self(shared) = self;
        shared.phase.send_replace(Phase::Ended);
        shared.control.stop();
        shared.ports.end();
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("cores", &self.cores.len()).finish_non_exhaustive()
    }
}

/// Describes the core on which an application's future runs.
///
/// ```no_run
/// # let runtime = fastsock::Runtime::builder().device("eth0").cores([0, 1]).build()?;
/// runtime.run(|core| async move {
///     println!("core {} of {} on CPU {}", core.index(), core.cores(), core.cpu());
///     if core.index() == 0 {
///         core.handle().shutdown(std::time::Duration::from_secs(1));
///     }
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CoreCtx {
    core: CoreRef,
}

impl CoreCtx {
    /// Returns this core's number, from 0.
    pub fn index(&self) -> usize {
        self.core.0.index
    }

    /// Returns the CPU that the thread is pinned to, if it is ([`Builder::pin`](crate::Builder::pin)).
    pub fn cpu(&self) -> usize {
        self.core.0.cpu
    }

    /// Number of cores.
    pub fn cores(&self) -> usize {
        self.core.0.shared.inboxes.len()
    }

    /// The runtime's handle.
    pub fn handle(&self) -> Handle {
        self.core.handle()
    }

    /// Returns this core's current counters.
    pub fn stats(&self) -> CoreStats {
        self.core.0.snapshot()
    }
}

impl Runtime {
    /// Returns a builder for a runtime.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns a handle, also before the runtime runs.
    pub fn handle(&self) -> Handle {
        Handle { shared: self.end.0.clone() }
    }

    /// Runs `app` once on every core, each time as one task that need not be `Send`. Returns the
    /// results in the order of the cores.
    ///
    /// Returns when all of them have finished and closed connections have sent their queued data
    /// (see `Builder::drain`). Returns an error if a device is lost, a future panics, or a
    /// shutdown's deadline passes first. Spawned tasks that still run are then dropped, as in
    /// tokio.
    pub fn run<F, Fut, T>(self, app: F) -> Result<Vec<T>, RunError>
    where
        F: FnOnce(CoreCtx) -> Fut + Send + Clone + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let Self { cores, end, keep } = self;
        let shared = end.0.clone();
        let (mut threads, count) = (Vec::new(), cores.len());
        for (index, setup) in cores.into_iter().enumerate() {
            let (core_shared, app) = (shared.clone(), app.clone());
            let spawned = std::thread::Builder::new()
                .name(format!("fs-core-{index}"))
                .spawn(move || core_thread(index, setup, core_shared, app));
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    (index..count).for_each(|core| shared.set_drained(core));
                    shared.fail(RunError::Core { core: index, what: "cannot start its thread", source });
                    break;
                }
            }
        }
        // A panic of the thread was caught inside and is in `failure`.
        let outputs: Vec<Option<T>> = threads.into_iter().map(|thread| thread.join().unwrap_or(None)).collect();
        drop(end);
        drop(keep);
        if let Some(failure) = shared.failure.lock().unwrap_or_else(|e| e.into_inner()).take() {
            return Err(failure);
        }
        let deadline = outputs.iter().position(Option::is_none);
        match deadline {
            Some(core) => Err(RunError::Deadline { core }),
            None => Ok(outputs.into_iter().flatten().collect()),
        }
    }
}

fn core_thread<F, Fut, T>(index: usize, setup: CoreSetup, shared: Arc<Shared>, app: F) -> Option<T>
where
    F: FnOnce(CoreCtx) -> Fut,
    Fut: Future<Output = T> + 'static,
{
    let ended = catch_unwind(AssertUnwindSafe(|| run_core(index, setup, &shared, app)));
    // After a failure, too: the other cores need not wait for this one.
    shared.set_drained(index);
    match ended {
        Ok(Ok(output)) => output,
        Ok(Err((what, source))) => {
            shared.fail(RunError::Core { core: index, what, source });
            None
        }
        Err(panic) => {
            shared.fail(RunError::Panicked { core: index, message: panic_message(&*panic) });
            None
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no message)".into())
}

type CoreFailure = (&'static str, std::io::Error);

fn run_core<F, Fut, T>(index: usize, setup: CoreSetup, shared: &Arc<Shared>, app: F) -> Result<Option<T>, CoreFailure>
where
    F: FnOnce(CoreCtx) -> Fut,
    Fut: Future<Output = T> + 'static,
{
    // For the whole life of the thread, so that its tasks' events are within it.
    let _span = tracing::info_span!("core", index, cpu = setup.cpu).entered();
    // The CPUs before it was pinned.
    let mut cpus = None;
    if setup.pin {
        let before = Cpus::of_this_thread().map_err(|e| ("cannot read its thread's CPU set", e))?;
        match pin_to_cpu(setup.cpu) {
            Ok(()) => cpus = Some(before),
            // Kernel sockets need no rights: a filter of system calls may refuse this one.
            Err(error) if shared.carriers == Carriers::Kernel => tracing::debug!(%error, "cannot pin the thread"),
            Err(error) => return Err(("cannot pin its thread", error)),
        }
    }
    let (sleeps, drain) = (setup.policy.sleep, setup.drain);
    let core = make_core(index, setup, shared.clone());
    // Others may ask at once why a device runs in a slower mode.
    core.publish();
    let core_ref = CoreRef(core.clone());
    let _entered = core_ref.enter();
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(if shared.carriers == Carriers::Kernel { EVENT_INTERVAL_OF_KERNEL } else { EVENT_INTERVAL })
        // Threads of `spawn_blocking` would inherit this core's CPU and compete with the core. If
        // the kernel refuses, they stay on it.
        .on_thread_start(move || drop(cpus.map(|cpus| cpus.allow())))
        .build_local(Default::default())
        .map_err(|e| ("cannot start tokio", e))?;
    tracing::debug!(links = core.io.borrow().ports.len(), "core started");
    let output = tokio.block_on(async {
        let reactor = Reactor::new(core.clone(), sleeps).map_err(|e| ("cannot watch the links", e))?;
        let reactor = tokio::task::spawn_local(reactor);
        let closer = core.clone();
        tokio::task::spawn_local(async move {
            let mut phase = closer.shared.phase.subscribe();
            // An error means that the runtime is gone.
            let _ = phase.wait_for(|phase| !phase.is_running()).await;
            CoreRef(closer).begin_shutdown();
        });
        tokio::select! {
            biased;
            output = drive(&core, app(CoreCtx { core: core_ref.clone() })) => Ok(output),
            // The reactor never finishes. It can only panic.
            Err(error) = reactor => resume_unwind(error.into_panic()),
        }
    })?;
    // Drops all tasks with their sockets. Does not wait for blocking tasks (name look-ups).
    tokio.shutdown_timeout(Duration::ZERO);
    core.asleep.set(false);
    core_ref.begin_shutdown();
    core.drain(drain);
    core.publish();
    core.shared.ports.unguard();
    core.io.borrow_mut().close(&mut core.stack.borrow_mut());
    tracing::debug!("core ended");
    Ok(output)
}

fn make_core(index: usize, setup: CoreSetup, shared: Arc<Shared>) -> Rc<CoreShared> {
    let CoreSetup { config, pool, links, interfaces, scopes, is_late, routes, mail, .. } = setup;
    let CoreSetup { host_addresses, steering, cpu, policy, clock, given_up, .. } = setup;
    let mut stack = CoreStack::new(config, pool);
    stack.set_now(clock.now());
    for interface in interfaces {
        stack.add_interface(interface);
    }
    (0..).zip(scopes).for_each(|(n, scope)| stack.set_scope(IfaceId(n), scope));
    stack.set_routes(routes);
    stack.set_host_addresses(host_addresses);
    stack.set_steering(steering);
    let io = CoreIo::new(links, mail, policy);
    let mut io = if is_late { io.without_devices() } else { io };
    io.given_up = given_up.into_iter().map(Reason::name).collect();
    Rc::new(CoreShared {
        index,
        cpu,
        clock,
        stack: RefCell::new(stack),
        wakers: RefCell::new(Wakers::default()),
        io: RefCell::new(io),
        shared,
        listeners: RefCell::new(Vec::new()),
        arrived: RefCell::new(Vec::new()),
        asleep: Cell::new(false),
        reactor: RefCell::new(None),
        shutting_down: Cell::new(false),
        new_sources: NewSources::default(),
        links_changed: Cell::new(false),
        route_cache: RefCell::default(),
        in_child: Cell::new(false),
        kernel_streams: Cell::new(0),
    })
}

/// Runs the application's future and the end of the run. Returns `None` if the future did not
/// finish in time.
async fn drive<T>(core: &Rc<CoreShared>, app: impl Future<Output = T>) -> Option<T> {
    let shared = &core.shared;
    let mut phase = shared.phase.subscribe();
    let output = {
        let mut app = pin!(app);
        tokio::select! {
            biased;
            output = &mut app => Some(output),
            () = out_of_time(shared.phase.subscribe()) => None,
        }
    };
    // Without a shutdown, the last future to finish ends the run. Until then this core serves the
    // others.
    if shared.apps_left.fetch_sub(1, Ordering::AcqRel) == 1 {
        shared.phase.send_if_modified(|phase| {
            let over = phase.is_running();
            if over {
                *phase = Phase::Ended;
            }
            over
        });
    }
    // `shared` holds the sender, so the channel is open.
    let _ = phase.wait_for(|phase| !phase.is_running()).await;
    tokio::select! {
        biased;
        () = out_of_time(shared.phase.subscribe()) => {}
        () = no_connections(core) => {}
    }
    if shared.drains_left.fetch_sub(1, Ordering::AcqRel) == 1 {
        shared.phase.send_replace(Phase::Ended);
    }
    let _ = phase.wait_for(|phase| matches!(phase, Phase::Ended)).await;
    output
}

/// Completes when a shutdown's deadline has passed, or the run has ended.
async fn out_of_time(mut phase: watch::Receiver<Phase>) {
    loop {
        let now = *phase.borrow_and_update();
        let changed = match now {
            Phase::Ended => return,
            Phase::Running => phase.changed().await,
            Phase::Draining { until } => tokio::select! {
                () = tokio::time::sleep_until(until.into()) => return,
                changed = phase.changed() => changed,
            },
        };
        if changed.is_err() {
            return;
        }
    }
}

async fn no_connections(core: &CoreShared) {
    // Only during a shutdown: a check every 2 ms costs less than a counter in every close.
    while core.stack.borrow().tcp_connections() > 0 || core.kernel_streams.get() > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
