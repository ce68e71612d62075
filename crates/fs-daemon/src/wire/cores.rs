//! The cores: an `fs-rt` runtime over the device, and what the control thread tells it.

use super::arena::{CoreArena, Poller};
use super::bells::Later;
use super::connect::{SharedListener, incoming, listen, outgoing};
use super::former::Former;
use super::{Wire, WireListener};
use crate::bells::Pollers;
use crate::server::{ArenaMemory, Command, Commands};
use fs_rt::{BuildError, CoreCtx, CoreRef, Handle, LinkChoice, Runtime, XdpMode};
use fs_shm::control::BUCKETS;
use fs_shm::{Arena, Geometry, Side};
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Ports that connections to the world come from, just below Linux's ephemeral range (32768): a program that binds one
/// of them by number is refused. Each serves one connection per destination and core, and costs a descriptor.
const ACTIVE_PORTS: usize = 4096;
const ACTIVE_FIRST: u16 = 28_672;

/// Why the cores did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The device or what it needs.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Something of the system.
    #[error("cannot {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// What the cores are made of.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) device: String,
    pub(crate) queues: Option<usize>,
    pub(crate) partial_checksums: Option<bool>,
    pub(crate) xdp: XdpMode,
    pub(crate) geometry: Geometry,
}

/// The running cores.
pub(crate) struct Cores {
    handle: Handle,
    device: (u32, String),
    shared: Arc<Shared>,
}

/// What each core needs.
struct Shared {
    geometry: Geometry,
    pollers: &'static Pollers,
    /// How connections ring them.
    bells: &'static Later,
    commands: Arc<Commands>,
    former: Former,
}

thread_local! {
    static CORE: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// One core's part.
struct Core {
    shared: Arc<Shared>,
    id: u32,
    poller: Rc<Poller>,
    /// By address and IPV6_V6ONLY.
    listening: RefCell<HashMap<(SocketAddr, bool), Rc<SharedListener>>>,
}

impl Cores {
    /// Opens the device and starts the cores. The thread ends with them.
    pub(crate) fn start(
        options: Options,
        pollers: &'static Pollers,
        commands: Arc<Commands>,
    ) -> Result<(Self, JoinHandle<io::Result<()>>), WireError> {
        let Options { device, queues, partial_checksums, xdp, geometry } = options;
        let system = |what| move |source| WireError::System { what, source };
        let cpus = cpus().map_err(system("read the set of CPUs"))?;
        let wanted = queues.unwrap_or_else(|| queue_count(&device)).clamp(1, cpus.len());
        let mut builder = Runtime::builder()
            .device(&device)
            .link(LinkChoice::Xdp { mode: xdp })
            .cores(cpus.into_iter().take(wanted))
            // The programs that it serves run on these CPUs too: the scheduler may move it to the one that is free, and it
            // spins only on one that is.
            .pin(false)
            // The control thread has asked, for the process that connects.
            .ask_for_routes(false)
            .active_ports(ACTIVE_PORTS)
            .active_ports_from(ACTIVE_FIRST);
        if let Some(accept) = partial_checksums {
            builder = builder.accept_partial_checksum(accept);
        }
        let runtime = builder.build()?;
        let handle = runtime.handle();
        let index = crate::netns::device_index(&device)
            .ok_or_else(|| system("read the device's index")(io::Error::from(io::ErrorKind::NotFound)))?;
        let shared = Arc::new(Shared {
            geometry,
            pollers,
            bells: Box::leak(Box::new(Later(pollers))),
            commands: commands.clone(),
            former: Former::start(handle.clone()).map_err(system("start a thread"))?,
        });
        let for_cores = shared.clone();
        let name = device.clone();
        let run = move || {
            let ended = runtime.run(move |core| serve(core, for_cores));
            // Without the device there is no daemon: whoever asked for it has to know.
            commands.send(Command::Stop);
            ended.map(drop).map_err(|error| io::Error::other(format!("the daemon has lost {name} and ends: {error}")))
        };
        let thread =
            std::thread::Builder::new().name("fastsock-wire".into()).spawn(run).map_err(system("start a thread"))?;
        Ok((Self { handle, device: (index, device), shared }, thread))
    }

    /// Runs `work` on a core. The cores may have ended; then so has everything that it is about.
    fn on<F>(&self, core: u16, work: impl FnOnce(Rc<Core>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let shared = self.shared.clone();
        let _ended = self.handle.spawn_on(usize::from(core), move || async move {
            match Core::current(&shared) {
                Ok(core) => work(core).await,
                Err(error) => tracing::error!(%error, "a core's wake set failed"),
            }
        });
    }
}

/// A core's whole life. The poller runs beside it.
async fn serve(core: CoreCtx, shared: Arc<Shared>) {
    if let Err(error) = Core::current(&shared) {
        tracing::error!(%error, core = core.index(), "a core's wake set failed");
    }
    fs_rt::shutdown_signal().await;
}

impl Core {
    /// This thread's, made at the first call.
    fn current(shared: &Arc<Shared>) -> io::Result<Rc<Core>> {
        if let Some(core) = CORE.with_borrow(Clone::clone) {
            return Ok(core);
        }
        let (id, bell) = shared.pollers.add_core()?;
        let commands = shared.commands.clone();
        let opened = move |arena: &Rc<CoreArena>, channel: fs_shm::Channel<'_>| {
            fs_rt::spawn_local(outgoing(commands.clone(), arena.clone(), channel.slot(), channel.generation()));
        };
        let poller = Rc::new(Poller::new(shared.bells, opened));
        CoreRef::require()?.add_source(poller.clone(), bell)?;
        let core = Rc::new(Core { shared: shared.clone(), id, poller, listening: RefCell::default() });
        CORE.set(Some(core.clone()));
        Ok(core)
    }

    fn arena(&self, id: u32, memory: &ArenaMemory, side: Side) -> Option<Rc<CoreArena>> {
        match Arena::map_own(memory.fds(side), self.shared.geometry, side, self.shared.bells) {
            Ok(arena) => {
                let arena = CoreArena::new(id, arena, self.id)?;
                self.poller.add(arena.clone());
                Some(arena)
            }
            Err(error) => {
                tracing::error!(%error, arena = id, "cannot map an arena");
                None
            }
        }
    }
}

impl Wire for Cores {
    fn cores(&self) -> u16 {
        self.handle.cores() as u16
    }

    fn device(&self) -> (u32, &str) {
        (self.device.0, &self.device.1)
    }

    fn outgoing(&self, core: u16, arena: u32, memory: ArenaMemory) {
        self.on(core, move |core| async move {
            // Without it the process's connections stay "connecting" until it gives up.
            if core.arena(arena, &memory, Side::B).is_none() {
                tracing::error!(arena, "no wait-set slot is free for a core");
            }
        });
    }

    fn listen(&self, core: u16, listener: WireListener, arena: u32, memory: ArenaMemory) {
        self.on(core, move |core| async move {
            let WireListener { listener: id, at, v6_only, .. } = listener;
            let known = core.listening.borrow().get(&(at, v6_only)).cloned();
            let shared = match known.map_or_else(|| listen(&listener).map(SharedListener::new), Ok) {
                Ok(shared) => shared,
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
                    core.shared.commands.send(Command::ListenFailed { listener: id, errno });
                    return;
                }
            };
            let Some(home) = core.arena(arena, &memory, Side::A) else { return };
            shared.add(&listener, home);
            if core.listening.borrow_mut().insert((at, v6_only), shared.clone()).is_none() {
                core.shared.former.taken((at, v6_only));
                fs_rt::spawn_local(incoming(shared));
            }
        });
    }

    fn change(&self, listener: WireListener) {
        for core in 0..self.cores() {
            let listener = listener.clone();
            self.on(core, move |core| async move {
                let shared = core.listening.borrow().get(&(listener.at, listener.v6_only)).cloned();
                if let Some(Err(error)) = shared.map(|shared| shared.change(&listener)) {
                    tracing::warn!(%error, at = %listener.at, "cannot set a listener's options on the cores");
                }
            });
        }
    }

    fn unlisten(&self, listener: u32) {
        for core in 0..self.cores() {
            self.on(core, move |core| async move {
                core.listening.borrow_mut().retain(|&at, shared| {
                    let stays = shared.remove(listener);
                    if !stays {
                        core.shared.former.left(at);
                    }
                    stays
                });
            });
        }
    }

    fn arena_gone(&self, arena: u32) {
        for core in 0..self.cores() {
            self.on(core, move |core| async move { core.poller.remove(arena) });
        }
    }

    fn leave(&self) {
        self.shared.former.leave();
    }

    fn connections(&self) -> u64 {
        self.handle.stats().iter().map(|core| core.connections).sum()
    }

    fn shut_down(&self, most: Duration) {
        self.handle.shutdown(most);
    }

    fn tap(&self, to: Arc<OwnedFd>) -> io::Result<()> {
        let frames = super::tap::start(to)?;
        for core in 0..self.cores() {
            let frames = frames.clone();
            self.on(core, move |_| async move {
                if let Some(this) = CoreRef::current() {
                    this.add_tap(super::tap::tap(core, frames));
                }
            });
        }
        Ok(())
    }

    fn counters(&self) -> Vec<(String, String, bool, u64)> {
        let mut all = Vec::new();
        for core in self.handle.stats() {
            let label = core.core.to_string();
            core.each(|name, gauge, value| all.push((name.into_owned(), label.clone(), gauge, value)));
            for (name, times) in core.times() {
                let mut bucket = |end: &dyn std::fmt::Display, value| {
                    all.push((format!("{name}{BUCKETS}"), format!("{label},{end}"), false, value));
                };
                times.buckets().for_each(|(end, count)| bucket(&end, count));
                bucket(&"sum", times.sum_ns());
            }
        }
        all
    }
}

/// The CPUs that this process may use.
fn cpus() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// The device's receive queues; 1 when it does not tell.
fn queue_count(device: &str) -> usize {
    let queues = std::fs::read_dir(format!("/sys/class/net/{device}/queues"));
    let is_rx = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"rx-");
    queues.map_or(1, |queues| queues.flatten().filter(|queue| is_rx(&queue.file_name())).count()).max(1)
}
