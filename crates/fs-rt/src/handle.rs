//! What other threads, and the application's tasks, do with a running runtime.

use crate::ports::Place;
use crate::runtime::{Control, Phase, Shared};
use fs_core::{Histogram, IfaceId, Protocol, Stats};
use fs_xdp::{LinkStats, Share};
use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Counters of a core's runtime, without those of its stack.
///
/// ```no_run
/// # let runtime = fs_rt::Runtime::builder().device("eth0").cores([0]).build()?;
/// let stats = runtime.handle().stats()[0].runtime;
/// println!("it has slept in {} of {} turns", stats.sleeps, stats.turns);
/// # Ok::<(), fs_rt::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeStats {
    /// Turns of the reactor.
    pub turns: u64,
    /// Times that it went to sleep.
    pub sleeps: u64,
    /// Times that receive coalescing began: it looks at its links at intervals, having many connections or a stream to serve.
    pub coalescings: u64,
    /// Times that it slept by the clock between two such looks, whatever came.
    pub timed_sleeps: u64,
    /// Tasks woken by events.
    pub wakes: u64,
    /// Messages sent to other cores.
    pub messages_sent: u64,
    /// Messages taken from other cores.
    pub messages_received: u64,
    /// Packets for another core that were dropped because its mailbox was full.
    pub mailbox_full: u64,
    /// Most messages that were waiting in one mailbox after a turn.
    pub mailbox_high_water: u64,
    /// Times that a sleeping core had to be rung.
    pub doorbells: u64,
}

/// The counters of one core, as it last published them: about 100 ms old at most.
///
/// ```no_run
/// # let runtime = fs_rt::Runtime::builder().device("eth0").cores([0]).build()?;
/// for core in runtime.handle().stats() {
///     println!("core {}: {} segments sent again", core.core, core.stack.retransmits);
/// }
/// # Ok::<(), fs_rt::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CoreStats {
    /// The core's number in the runtime.
    pub core: usize,
    /// The CPU that it is pinned to.
    pub cpu: usize,
    /// The engine's counters and drops.
    pub stack: Stats,
    /// Each queue's counters, with its interface.
    pub links: Vec<(IfaceId, LinkStats)>,
    /// The runtime's counters.
    pub runtime: RuntimeStats,
    /// Turns in which something was done, with the tasks that they woke: what a packet waits for at most that comes meanwhile.
    pub turn_time: Histogram,
    /// Connections alive that the core carries itself.
    pub connections: u64,
    /// Connections alive that the kernel carries for this core's sockets.
    pub kernel_connections: u64,
    /// TIME-WAIT records alive.
    pub time_waits: u64,
    /// Frames of this core that are not free here. One that went to another core with its packet counts until it
    /// comes back, wherever it is free in the meantime.
    pub frames_in_use: u64,
    /// Frames in all.
    pub frames: u64,
    /// Why devices were taken in a lower mode than they offer, a word for each time (of the first core): they did not work in that
    /// one. The log has the whole sentence.
    pub given_up: Vec<&'static str>,
}

impl CoreStats {
    /// Calls `f` with each value's name, as `fastsock stat` has it, whether it can go down, and the value. Of reasons to drop a
    /// packet, those that there were.
    pub fn each(&self, mut f: impl FnMut(Cow<'static, str>, bool, u64)) {
        f("core_connections".into(), true, self.connections);
        f("core_kernel_connections".into(), true, self.kernel_connections);
        f("core_time_waits".into(), true, self.time_waits);
        f("core_frames_in_use".into(), true, self.frames_in_use);
        for (name, value) in self.stack.counters() {
            f(format!("stack_{name}").into(), false, value);
        }
        for &reason in fs_core::DropReason::ALL {
            match self.stack.dropped(reason) {
                0 => {}
                value => f(format!("drops_{}", reason.name()).into(), false, value),
            }
        }
        let of_links = |value: fn(&LinkStats) -> u64| self.links.iter().map(|(_, link)| value(link)).sum();
        if !self.links.is_empty() {
            f("link_rx_packets".into(), false, of_links(|link| link.rx_packets));
            f("link_tx_packets".into(), false, of_links(|link| link.tx_packets));
            f("link_rx_dropped".into(), false, of_links(|link| link.rx_dropped));
            f("link_rx_ran_out".into(), false, of_links(|link| link.rx_ran_out));
            f("link_tx_dropped".into(), false, of_links(|link| link.tx_dropped));
            f("link_tx_merges".into(), false, of_links(|link| link.tx_merges));
            f("link_tx_merged".into(), false, of_links(|link| link.tx_merged));
        }
        let mut given_up = std::collections::BTreeMap::<_, u64>::new();
        self.given_up.iter().for_each(|reason| *given_up.entry(reason).or_default() += 1);
        for (reason, times) in given_up {
            f(format!("mode_given_up_{reason}").into(), false, times);
        }
        f("runtime_sleeps".into(), false, self.runtime.sleeps);
        f("runtime_coalescings".into(), false, self.runtime.coalescings);
        f("runtime_timed_sleeps".into(), false, self.runtime.timed_sleeps);
        f("runtime_mailbox_full".into(), false, self.runtime.mailbox_full);
        for (name, times) in self.times().filter(|(_, times)| times.count() > 0) {
            f(format!("{name}_count").into(), false, times.count());
            for (what, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
                f(format!("{name}_{what}_ns").into(), true, times.quantile_ns(share));
            }
        }
    }

    /// How long things took, by name: turns of the core, connects, and what waited for accept.
    pub fn times(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        [
            ("turn_time", &self.turn_time),
            ("connect_time", &self.stack.connect_time),
            ("accept_wait", &self.stack.accept_wait),
        ]
        .into_iter()
    }
}

/// A handle to a runtime, for any thread. Cheap to clone.
///
/// ```no_run
/// use std::time::Duration;
///
/// let runtime = fs_rt::Runtime::builder().device("eth0").cores([0]).build()?;
/// let handle = runtime.handle();
/// std::thread::spawn(move || {
///     std::thread::sleep(Duration::from_secs(60));
///     for core in handle.stats() {
///         println!("{} connections were accepted", core.stack.accepted);
///     }
///     handle.shutdown(Duration::from_secs(1));
/// });
/// runtime.run(|_core| fs_rt::shutdown_signal())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("cores", &self.cores()).field("phase", &*self.shared.phase.borrow()).finish()
    }
}

/// The error of a task that could not be spawned on a core.
///
/// ```no_run
/// # let runtime = fs_rt::Runtime::builder().device("eth0").cores([0]).build()?;
/// let error = runtime.handle().spawn_on(7, || async {}).unwrap_err();
/// assert_eq!(error, fs_rt::SpawnError::NoSuchCore { core: 7, cores: 1 });
/// # Ok::<(), fs_rt::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// The runtime has ended.
    #[error("the runtime has ended")]
    Ended,
    /// There is no such core.
    #[error("there is no core {core}: the runtime has {cores}, numbered from 0 in the order of .cores(…), not by CPU")]
    NoSuchCore {
        /// The core asked for.
        core: usize,
        /// How many there are.
        cores: usize,
    },
}

impl Handle {
    /// Number of cores.
    pub fn cores(&self) -> usize {
        self.shared.inboxes.len()
    }

    /// Every core's counters as last published (see [`CoreStats`]). Takes a lock for the time of a copy.
    pub fn stats(&self) -> Vec<CoreStats> {
        self.shared.published.iter().map(|core| core.lock().unwrap_or_else(|e| e.into_inner()).clone()).collect()
    }

    /// Begins a graceful shutdown: listeners close, [`crate::shutdown_signal`] completes, and the runtime ends as
    /// soon as the applications' futures are done and no connection is left, or when `deadline` has passed.
    /// Later calls can only shorten the deadline.
    pub fn shutdown(&self, deadline: Duration) {
        let until = Instant::now() + deadline;
        self.shared.phase.send_if_modified(|phase| match phase {
            Phase::Running => {
                *phase = Phase::Draining { until };
                true
            }
            Phase::Draining { until: earlier } if until < *earlier => {
                *earlier = until;
                true
            }
            _ => false,
        });
    }

    /// Whose packets come to a TCP port that another process holds in the kernel ([`crate::CoreRef::lease_held`]). Such a
    /// one begins as [`Share::Former`]: the kernel keeps the connections that it has there, each packet for the price of a
    /// look into its table. `v6_only`: as it was leased. Nothing happens to ports that are not leased so.
    pub fn share_held(&self, at: SocketAddr, v6_only: bool, share: Share) {
        self.shared.ports.share(Place::new(Protocol::Tcp, at, v6_only), share);
    }

    /// True while a core listens, or has connections, on a port that somebody else holds. `v6_only`: as it was leased.
    pub fn holds(&self, at: SocketAddr, v6_only: bool) -> bool {
        self.shared.ports.is_used(Place::new(Protocol::Tcp, at, v6_only))
    }

    /// The interface of the runtime's device of that name.
    ///
    /// # Errors
    /// `NotFound`, with the names that there are: no socket of the runtime can be bound to another device.
    pub fn device(&self, name: &[u8]) -> io::Result<IfaceId> {
        let devices = self.shared.devices();
        let at = devices.iter().position(|device| device.as_bytes() == name);
        at.map(|n| IfaceId(n as u8)).ok_or_else(|| {
            let (name, devices) = (String::from_utf8_lossy(name), devices.join(", "));
            let hint = "add it with .device(…), or use fs_compat::socket2";
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("{name} is not a device of this runtime, which has {devices}: {hint}"),
            )
        })
    }

    /// The name of an interface's device.
    pub fn device_name(&self, IfaceId(n): IfaceId) -> Option<&str> {
        self.shared.devices().get(usize::from(n)).map(String::as_str)
    }

    /// True once a shutdown has begun.
    pub fn is_shutting_down(&self) -> bool {
        !self.shared.phase.borrow().is_running()
    }

    /// True once the runtime has ended: nothing is counted any more.
    pub fn has_ended(&self) -> bool {
        matches!(*self.shared.phase.borrow(), Phase::Ended)
    }

    /// Completes when a shutdown has begun, or the runtime has ended: on any thread.
    pub async fn shutdown_begun(&self) {
        self.reaches(|phase| !phase.is_running()).await;
    }

    /// Completes when the runtime has ended: on any thread.
    pub async fn ended(&self) {
        self.reaches(|phase| matches!(phase, Phase::Ended)).await;
    }

    async fn reaches(&self, is: impl Fn(&Phase) -> bool) {
        // The sender is in `shared`, which this holds.
        let _ = self.shared.phase.subscribe().wait_for(|phase| is(phase)).await;
    }

    /// Runs `make()` on a core, as a task of its own. Before `Runtime::run` the task waits for it.
    pub fn spawn_on<F, Fut>(&self, core: usize, make: F) -> Result<(), SpawnError>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let cores = self.cores();
        let inbox = self.shared.inboxes.get(core).ok_or(SpawnError::NoSuchCore { core, cores })?;
        if self.has_ended() {
            return Err(SpawnError::Ended);
        }
        inbox.send(Control::Spawn(Box::new(move || drop(tokio::task::spawn_local(make())))));
        Ok(())
    }
}
