//! The runtime: threads, their start, and their end.

use crate::binding::Reason;
use crate::builder::Builder;
use crate::control::{Control as ControlPlane, WorldChange};
use crate::core::{CoreRef, CoreShared, CoreStack};
use crate::core_loop::CoreIo;
use crate::error::RunError;
use crate::handle::{CoreStats, Handle};
use crate::late_queue;
use crate::mailbox::{Inboxes, Mailboxes};
use crate::open::{FRAMES_OF_QUEUE, Late, Openers, QueueOpener, share};
use crate::park::Reactor;
use crate::poll::PollPolicy;
use crate::ports::{Addresses, Ports};
use crate::source::NewSources;
use crate::sys::{Clock, Cpus, pin_to_cpu};
use crate::wakers::Wakers;
use fs_core::{FramePool as _, IfaceId, Interface, Route, StackConfig, Steering};
use fs_xdp::{Link, UmemPool, XdpError};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// tokio's driver (timers, other descriptors, 400 ns) runs after this many task polls while the core is busy. At
/// 61, tokio's default, it would cost 6.5 ns a poll; at 256 1.6 ns, and timers come 256 polls late at most.
const EVENT_INTERVAL: u32 = 256;

/// Where every socket is another descriptor of tokio's driver: its default.
const EVENT_INTERVAL_OF_KERNEL: u32 = 61;

/// Where a runtime is in its life.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    Running,
    /// A graceful shutdown.
    Draining {
        until: Instant,
    },
    Ended,
}

impl Phase {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self, Phase::Running)
    }
}

/// Messages from other threads to a core.
pub(crate) enum Control {
    Spawn(Box<dyn FnOnce() + Send>),
    World(WorldChange),
    /// The device has this queue, and the core is to open it: `is_new` on one that was there before, else with a device that has
    /// come back.
    NewQueue {
        iface: IfaceId,
        queue: u32,
        is_new: bool,
    },
    /// The device does not work with this queue, which was opened as a new one: the core closes it.
    CloseQueue {
        iface: IfaceId,
        queue: u32,
    },
    /// The device is gone: the core closes its queues.
    LetGo(IfaceId),
}

/// What may carry a runtime's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carriers {
    /// The cores alone: in standalone addressing, and for a program that connects for others.
    Core,
    /// The cores what passes the runtime's devices, the kernel the rest.
    Both,
    /// The kernel alone.
    Kernel,
}

/// What all cores and handles share. Nothing of it is on a connection's data path.
pub(crate) struct Shared {
    pub(crate) inboxes: Inboxes<Control>,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) ports: Ports,
    pub(crate) control: ControlPlane,
    pub(crate) carriers: Carriers,
    openers: Openers,
    /// The devices' names, by interface.
    devices: Vec<String>,
    pub(crate) published: Box<[Mutex<CoreStats>]>,
    /// Cores whose application's future has not finished.
    apps_left: AtomicUsize,
    /// Cores that have connections left in a graceful shutdown.
    drains_left: AtomicUsize,
    /// Interfaces whose devices are gone.
    gone: Mutex<BTreeSet<u8>>,
    /// How often cores have been told to let go of something: what one says of a link before it has heard all of that may be of a
    /// device that is known to be gone.
    let_go: AtomicUsize,
    failure: Mutex<Option<RunError>>,
}

impl Shared {
    pub(crate) fn new(
        inboxes: Inboxes<Control>,
        ports: Ports,
        control: ControlPlane,
        openers: Openers,
        devices: Vec<String>,
        carriers: Carriers,
    ) -> Self {
        let cores = inboxes.len();
        Self {
            inboxes,
            phase: watch::Sender::new(Phase::Running),
            ports,
            control,
            carriers,
            openers,
            devices,
            published: (0..cores).map(|core| Mutex::new(CoreStats { core, ..CoreStats::default() })).collect(),
            apps_left: AtomicUsize::new(cores),
            drains_left: AtomicUsize::new(cores),
            gone: Mutex::default(),
            let_go: AtomicUsize::new(0),
            failure: Mutex::new(None),
        }
    }

    /// Has cores open the queues that devices have got. Queue q is served by core q mod cores, as at the start.
    pub(crate) fn open_new_queues(self: &Arc<Self>) {
        for (iface, opener) in self.openers.all() {
            let new = opener.new_queues();
            if opener.is_zero_copy() && !new.is_empty() {
                late_queue::open(Arc::downgrade(self), iface, new);
            } else {
                new.for_each(|queue| self.open_queue(iface, queue, true));
            }
            opener.late_queues().into_iter().for_each(|late| self.open_queue(iface, late.queue, late.is_new));
        }
    }

    /// The kernel has news of a device: it may cut packets into segments from now on, or no longer.
    pub(crate) fn refresh_offloads(&self) {
        self.openers.all().iter().for_each(|(_, opener)| opener.refresh_offloads());
    }

    /// The devices' names, by interface.
    pub(crate) fn devices(&self) -> &[String] {
        &self.devices
    }

    /// What opens the queues of an interface's device; `None` while that is gone.
    pub(crate) fn opener(&self, iface: IfaceId) -> Option<Arc<QueueOpener>> {
        self.openers.get(iface)
    }

    /// How many queues a core has at most once all that devices are known to have are open.
    fn queues_of_a_core(&self) -> u32 {
        let cores = self.inboxes.len() as u32;
        self.openers.all().iter().map(|(_, opener)| opener.queues().div_ceil(cores)).sum()
    }

    /// Has the core of a new queue close it.
    pub(crate) fn close_queue(&self, iface: IfaceId, queue: u32) {
        self.inboxes[queue as usize % self.inboxes.len()].send(Control::CloseQueue { iface, queue });
    }

    pub(crate) fn open_queue(&self, iface: IfaceId, queue: u32, is_new: bool) {
        self.inboxes[queue as usize % self.inboxes.len()].send(Control::NewQueue { iface, queue, is_new });
    }

    /// Takes a device that has come back under its name: answers its number in the kernel. `known` are addresses that the host has
    /// or had, `addresses` those that it has.
    pub(crate) fn take_again(&self, n: usize, known: &[IpAddr], addresses: &Addresses) -> Option<Result<u32, String>> {
        let iface = IfaceId(n as u8);
        let fill = |table| self.ports.take_again(n, Box::new(table), known, addresses);
        let opener = match self.openers.attach_again(iface, self.inboxes.len(), fill)? {
            Ok(opener) => Arc::new(opener),
            Err(error) => {
                self.ports.let_go(n);
                return Some(Err(error.to_string()));
            }
        };
        let (index, queues) = (opener.index(), opener.queues());
        self.openers.put(iface, opener);
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).remove(&iface.0);
        (0..queues).for_each(|queue| self.open_queue(iface, queue, false));
        tracing::info!(device = self.devices.get(n), queues, "the device is back");
        Some(Ok(index))
    }

    /// Ends the run at once; the first failure is the one that is told.
    pub(crate) fn fail(&self, error: RunError) {
        self.failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
        self.phase.send_replace(Phase::Ended);
    }

    /// A core's link is dead; it has `let_go` so many times. `false` if it has yet to hear of one that is, and is to say it again
    /// after that.
    pub(crate) fn link_down(&self, IfaceId(interface): IfaceId, source: std::io::Error, let_go: usize) -> bool {
        if let_go != self.let_go.load(Ordering::Acquire) {
            return false;
        }
        if self.apps_left.load(Ordering::Acquire) == 0 {
            // Every application has finished; what is lost is the end of the last goodbyes.
            self.phase.send_replace(Phase::Ended);
            return true;
        }
        let known_gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner).contains(&interface);
        // One that has its name by now is another one.
        let index = self.openers.get(IfaceId(interface)).map(|opener| opener.index());
        if let Some(device) = self.devices.get(usize::from(interface)).filter(|_| !known_gone)
            && fs_xdp::NetDevice::find(device).is_ok_and(|now| index.is_none_or(|index| index == now.index))
        {
            // It is there, and its queue is dead all the same: what comes by that would reach nobody.
            self.fail(RunError::Link { device: device.clone(), interface, source });
        } else {
            self.device_gone(interface, source);
        }
        true
    }

    /// The run goes on with the devices that are left; without any it ends.
    pub(crate) fn device_gone(&self, interface: u8, source: std::io::Error) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        if !gone.insert(interface) {
            return;
        }
        // Links in memory have no names; there is one of them.
        let left = self.devices.len().max(1).saturating_sub(gone.len());
        drop(gone);
        let device = self.devices.get(usize::from(interface)).cloned().unwrap_or_else(|| format!("link {interface}"));
        if left == 0 {
            return self.fail(RunError::Link { device, interface, source });
        }
        tracing::error!(
            device,
            %source,
            left,
            "the device is gone: its connections continue if a device of this name comes back before they time out"
        );
        self.ports.let_go(usize::from(interface));
        self.let_go.fetch_add(1, Ordering::AcqRel);
        self.inboxes.iter().for_each(|inbox| inbox.send(Control::LetGo(IfaceId(interface))));
        // Last: once it has no opener the device may be taken again, by another thread.
        self.openers.let_go(IfaceId(interface));
    }
}

/// Everything that a core's thread starts with.
pub(crate) struct CoreSetup {
    pub(crate) config: StackConfig,
    pub(crate) pool: UmemPool,
    pub(crate) links: Vec<(Box<dyn Link>, IfaceId)>,
    pub(crate) interfaces: Vec<Interface>,
    /// Of the interfaces: the kernel's numbers of their devices, where it has any.
    pub(crate) scopes: Vec<u32>,
    pub(crate) routes: Vec<Route>,
    pub(crate) mail: Mailboxes,
    pub(crate) steering: Option<Steering>,
    pub(crate) cpu: usize,
    pub(crate) pin: bool,
    pub(crate) policy: PollPolicy,
    pub(crate) drain: Duration,
    pub(crate) clock: Clock,
    /// Of the first core: bindings of devices that did not hold.
    pub(crate) given_up: Vec<Reason>,
}

/// A runtime whose devices, queues and ports are open. Its threads start with [`Runtime::run`].
///
/// ```no_run
/// let runtime = fs_rt::Runtime::builder().device("eth0").cores([0, 1]).build()?;
/// // Once on each core; what they answer comes back in their order.
/// let cpus = runtime.run(|core| async move { core.cpu() })?;
/// assert_eq!(cpus, [0, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a runtime does nothing until it is run"]
pub struct Runtime {
    pub(crate) shared: Arc<Shared>,
    pub(crate) cores: Vec<CoreSetup>,
    /// What has to live as long as the queues (attached programs), dropped after them.
    pub(crate) keep: Vec<Box<dyn Any + Send>>,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("cores", &self.cores.len()).finish_non_exhaustive()
    }
}

/// Describes the core on which an application's future runs.
///
/// ```no_run
/// # let runtime = fs_rt::Runtime::builder().device("eth0").cores([0, 1]).build()?;
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
    /// This core's number, from 0.
    pub fn index(&self) -> usize {
        self.core.0.index
    }

    /// The CPU that the thread is pinned to.
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

    /// This core's counters, now.
    pub fn stats(&self) -> CoreStats {
        self.core.0.snapshot()
    }
}

impl Runtime {
    /// Starts to describe a runtime.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A handle, also before the runtime runs.
    pub fn handle(&self) -> Handle {
        Handle { shared: self.shared.clone() }
    }

    /// Runs `app` once on every core, each time as one task that need not be `Send`; answers what they returned,
    /// in the order of the cores.
    ///
    /// Returns when all of them have finished and what their connections still had to send is sent (see
    /// `Builder::drain`), or with an error when a device is lost, a future panics, or a shutdown's deadline
    /// passes first. Tasks that were spawned and still run then are dropped, as tokio does.
    pub fn run<F, Fut, T>(self, app: F) -> Result<Vec<T>, RunError>
    where
        F: FnOnce(CoreCtx) -> Fut + Send + Clone + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let Self { shared, cores, keep } = self;
        let mut threads = Vec::new();
        for (index, setup) in cores.into_iter().enumerate() {
            let (core_shared, app) = (shared.clone(), app.clone());
            let spawned = std::thread::Builder::new()
                .name(format!("fs-core-{index}"))
                .spawn(move || core_thread(index, setup, core_shared, app));
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    shared.fail(RunError::Core { core: index, what: "cannot start its thread", source });
                    break;
                }
            }
        }
        // A thread's panic was caught inside and is in `failure`.
        let outputs: Vec<Option<T>> = threads.into_iter().map(|thread| thread.join().unwrap_or(None)).collect();
        shared.phase.send_replace(Phase::Ended);
        shared.control.stop();
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

impl Drop for Shared {
    fn drop(&mut self) {
        self.control.stop();
    }
}

fn core_thread<F, Fut, T>(index: usize, setup: CoreSetup, shared: Arc<Shared>, app: F) -> Option<T>
where
    F: FnOnce(CoreCtx) -> Fut,
    Fut: Future<Output = T> + 'static,
{
    match catch_unwind(AssertUnwindSafe(|| run_core(index, setup, &shared, app))) {
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
    // For the whole life of the thread: what its tasks tell is within it.
    let _span = tracing::info_span!("core", index, cpu = setup.cpu).entered();
    let cpus = Cpus::of_this_thread().map_err(|e| ("cannot read its thread's CPU set", e))?;
    if setup.pin {
        pin_to_cpu(setup.cpu).map_err(|e| ("cannot pin its thread", e))?;
    }
    let (sleeps, drain) = (setup.policy.sleep, setup.drain);
    let core = make_core(index, setup, shared.clone());
    let core_ref = CoreRef(core.clone());
    let _entered = core_ref.enter();
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(if shared.carriers == Carriers::Kernel { EVENT_INTERVAL_OF_KERNEL } else { EVENT_INTERVAL })
        // Those of `spawn_blocking`, who would have this core's CPU for their own otherwise and take it from the core. Where the
        // kernel refuses they stay on it.
        .on_thread_start(move || drop(cpus.allow()))
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
            closer.begin_shutdown();
        });
        tokio::select! {
            biased;
            output = drive(&core, app(CoreCtx { core: core_ref.clone() })) => Ok(output),
            // The reactor never finishes; it can only panic.
            Err(error) = reactor => resume_unwind(error.into_panic()),
        }
    })?;
    // Drops all tasks, and with them their sockets. Blocking tasks (name look-ups) are not waited for.
    tokio.shutdown_timeout(Duration::ZERO);
    core.asleep.set(false);
    core.begin_shutdown();
    core.drain(drain);
    core.publish();
    core.shared.ports.unguard();
    core.io.borrow_mut().close(&mut core.stack.borrow_mut());
    tracing::debug!("core ended");
    Ok(output)
}

fn make_core(index: usize, setup: CoreSetup, shared: Arc<Shared>) -> Rc<CoreShared> {
    let CoreSetup { config, pool, links, interfaces, scopes, routes, mail, .. } = setup;
    let CoreSetup { steering, cpu, policy, clock, given_up, .. } = setup;
    let mut stack = CoreStack::new(config, pool);
    stack.set_now(clock.now());
    for interface in interfaces {
        stack.add_interface(interface);
    }
    (0..).zip(scopes).for_each(|(n, scope)| stack.set_scope(IfaceId(n), scope));
    stack.set_routes(routes);
    stack.set_steering(steering);
    let mut io = CoreIo::new(links, mail, policy);
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
        new_links: RefCell::default(),
        links_changed: Cell::new(false),
        ways: RefCell::default(),
        in_child: Cell::new(false),
        kernel_streams: Cell::new(0),
    })
}

/// From the application's future to the end of the run. `None` when the future did not finish in time.
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
    // Without a shutdown the last future to finish ends the run: until then this core serves the others.
    if shared.apps_left.fetch_sub(1, Ordering::AcqRel) == 1 {
        shared.phase.send_if_modified(|phase| {
            let over = phase.is_running();
            if over {
                *phase = Phase::Ended;
            }
            over
        });
    }
    // The sender lives in `shared`, so the channel is open.
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
    // Only during a shutdown: a look every 2 ms costs less than a counter on every close.
    while core.stack.borrow().tcp_connections() > 0 || core.kernel_streams.get() > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

impl CoreShared {
    /// Turns without tokio, until the closed connections have sent what they had, or the time is over.
    fn drain(self: &Rc<Self>, most: Duration) {
        let until = Instant::now() + most;
        loop {
            let worked = self.turn() > 0;
            if !worked && self.stack.borrow().tcp_connections() == 0 && !self.io.borrow().is_backed_up() {
                return;
            }
            if Instant::now() >= until {
                return;
            }
            if !worked {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    fn open_queue(&self, iface: IfaceId, queue: u32, is_new: bool) {
        // It may have gone again.
        let Some(opener) = self.shared.openers.get(iface) else { return };
        if !is_new {
            self.io.borrow_mut().give_spare(iface, &mut self.stack.borrow_mut());
        }
        let share = self.divide_frames(self.shared.queues_of_a_core());
        let opened = opener.open(queue, self.stack.borrow_mut().pool_mut(), share);
        match opened {
            Ok(link) => {
                if is_new {
                    opener.tell_new(queue, self.index);
                }
                self.new_links.borrow_mut().extend(link.wake_fd().and_then(|fd| fd.try_clone_to_owned().ok()));
                self.io.borrow_mut().add(Box::new(link), iface, is_new.then_some(queue));
                if is_new {
                    opener.note_open(queue);
                }
            }
            // Connections have them, and will give them back. What comes by the queue is dropped until then.
            Err(XdpError::PoolTooSmall { available, .. }) => opener.try_later(Late { queue, is_new }, available),
            // It has gone again: the core is told so.
            Err(XdpError::NoSuchDevice { .. }) => {}
            Err(error) => {
                self.divide_frames(0);
                opener.give_up(&error.to_string());
            }
        }
    }

    /// This core's queues divide half of its frames from here on, those that are open and others that are to come, `all` together.
    /// What each has at most.
    fn divide_frames(&self, all: u32) -> u32 {
        let mut io = self.io.borrow_mut();
        let frames = self.stack.borrow_mut().pool_mut().capacity() as u32;
        // With fewer a queue does not receive: they may come to more than half.
        let share = share(frames, all.max(io.queues())).max(FRAMES_OF_QUEUE / 2);
        io.limit_lent(share);
        share
    }

    /// Carries out what other threads have sent.
    pub(crate) fn read_inbox(self: &Rc<Self>) {
        let mut arrived = self.arrived.take();
        self.shared.inboxes[self.index].swap(&mut arrived);
        for message in arrived.drain(..) {
            match message {
                // Outside tokio (the last turns of a run) nothing can be spawned any more.
                Control::Spawn(spawn) if tokio::runtime::Handle::try_current().is_ok() => spawn(),
                Control::Spawn(dropped) => drop(dropped),
                Control::World(change) => change.apply(&mut self.stack.borrow_mut()),
                Control::NewQueue { iface, queue, is_new } => self.open_queue(iface, queue, is_new),
                Control::CloseQueue { iface, queue } => {
                    if let Some(opener) = self.shared.openers.get(iface) {
                        opener.forget_late(queue);
                    }
                    self.io.borrow_mut().close_queue(iface, queue, &mut self.stack.borrow_mut());
                    self.divide_frames(0);
                    self.links_changed.set(true);
                }
                Control::LetGo(iface) => {
                    self.io.borrow_mut().let_go(iface, &mut self.stack.borrow_mut());
                    self.links_changed.set(true);
                }
            }
        }
        self.arrived.replace(arrived);
    }
}
