//! [`Handle`]: control of a running runtime, for other threads and the application's tasks.

use crate::carrier::Carriers;
use crate::ports::LeasedAddress;
use crate::shared::{Message, Phase, Shared};
use crate::stats::CoreStats;
use crate::sys::from_now;
use fs_core::{IfaceId, Protocol};
use fs_xdp::Share;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A handle to a runtime, for any thread. Cheap to clone.
///
/// ```no_run
/// use std::time::Duration;
///
/// let runtime = fastsock::Runtime::builder().device("eth0").cores([0]).build()?;
/// let handle = runtime.handle();
/// std::thread::spawn(move || {
///     std::thread::sleep(Duration::from_secs(60));
///     for core in handle.stats() {
///         println!("{} connections were accepted", core.stack.accepted);
///     }
///     handle.shutdown(Duration::from_secs(1));
/// });
/// runtime.run(|_core| fastsock::shutdown_signal())?;
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
/// # let runtime = fastsock::Runtime::builder().device("eth0").cores([0]).build()?;
/// let error = runtime.handle().spawn_on(7, || async {}).unwrap_err();
/// assert_eq!(error, fastsock::SpawnError::NoSuchCore { core: 7, cores: 1 });
/// # Ok::<(), fastsock::BuildError>(())
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
        /// The requested core.
        core: usize,
        /// The number of cores.
        cores: usize,
    },
}

impl Handle {
    /// Number of cores.
    pub fn cores(&self) -> usize {
        self.shared.inboxes.len()
    }

    /// Returns every core's counters as last published (see [`CoreStats`]). Holds a lock during a
    /// copy.
    pub fn stats(&self) -> Vec<CoreStats> {
        self.shared.published.iter().map(|core| core.lock().unwrap_or_else(|e| e.into_inner()).clone()).collect()
    }

    /// Begins a graceful shutdown: listeners close, [`crate::shutdown_signal`] completes, and the
    /// runtime ends when the applications' futures are done and no connection is left, or when
    /// `deadline` has passed. Later calls can only shorten the deadline.
    ///
    /// A loop that accepts connections must return when `accept` fails with `InvalidInput`. Otherwise
    /// its future is never done.
    pub fn shutdown(&self, deadline: Duration) {
        let until = from_now(deadline);
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

    /// Sets the receiver of the packets of a TCP port that another process holds in the kernel
    /// ([`crate::CoreRef::lease_held`]). The initial value is [`Share::Former`]: the kernel keeps
    /// the connections that it has there, at the price of a look-up in its table for each packet.
    /// `v6_only`: as it was leased. Other ports are not affected.
    pub fn share_held(&self, at: SocketAddr, v6_only: bool, share: Share) {
        self.shared.ports.share(LeasedAddress::new(Protocol::Tcp, at, v6_only), share);
    }

    /// Leaves devices that the runtime does not have yet ([`crate::Builder::late_devices`]) to other
    /// programs.
    pub fn forgo_devices(&self) {
        self.shared.forgoes_devices.store(true, Ordering::Relaxed);
    }

    /// Returns true if the runtime attaches to its devices itself (AF_XDP), and no daemon shares them.
    pub fn attaches_devices(&self) -> bool {
        self.shared.openers.has_any()
    }

    /// Returns true if the kernel carries everything: the runtime has no device
    /// ([`crate::LinkChoice::Kernel`]).
    pub fn is_kernel_only(&self) -> bool {
        self.shared.carriers == Carriers::Kernel
    }

    /// Returns true while a core listens or has connections on a port that another process holds.
    /// `v6_only`: as it was leased.
    pub fn holds(&self, at: SocketAddr, v6_only: bool) -> bool {
        self.shared.ports.is_used(LeasedAddress::new(Protocol::Tcp, at, v6_only))
    }

    /// Returns the interface of the runtime's device of that name.
    ///
    /// # Errors
    /// `NotFound`, with the names of the runtime's devices: a socket cannot be bound to another
    /// device.
    pub fn device(&self, name: &[u8]) -> io::Result<IfaceId> {
        let devices = self.shared.devices();
        let at = devices.iter().position(|device| device.as_bytes() == name);
        at.map(|n| IfaceId(n as u8)).ok_or_else(|| {
            let (name, devices) = (String::from_utf8_lossy(name), devices.join(", "));
            let hint = "add it with .device(…), or use fastsock::socket2";
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("{name} is not a device of this runtime, which has {devices}: {hint}"),
            )
        })
    }

    /// Returns the name of an interface's device.
    pub fn device_name(&self, IfaceId(n): IfaceId) -> Option<&str> {
        self.shared.devices().get(usize::from(n)).map(String::as_str)
    }

    /// Returns true after a shutdown has begun.
    pub fn is_shutting_down(&self) -> bool {
        !self.shared.phase.borrow().is_running()
    }

    /// Returns true after the runtime has ended. Counters do not change any more.
    pub fn has_ended(&self) -> bool {
        matches!(*self.shared.phase.borrow(), Phase::Ended)
    }

    /// Returns true if an error has ended the runtime: it has lost all its devices, or a core has
    /// panicked. [`crate::Runtime::run`] returns that error.
    pub fn has_failed(&self) -> bool {
        self.shared.has_failed.load(Ordering::Acquire)
    }

    /// Completes after a shutdown has begun, or the runtime has ended. For any thread.
    pub async fn shutdown_begun(&self) {
        self.reaches(|phase| !phase.is_running()).await;
    }

    /// Completes after the runtime has ended. For any thread.
    pub async fn ended(&self) {
        self.reaches(|phase| matches!(phase, Phase::Ended)).await;
    }

    async fn reaches(&self, is: impl Fn(&Phase) -> bool) {
        // `self` holds `shared`, and with it the sender.
        let _ = self.shared.phase.subscribe().wait_for(|phase| is(phase)).await;
    }

    /// Runs `make()` on a core, as a task, which a panic of `make` ends. Before `Runtime::run` the
    /// task is queued.
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
        // `make` runs in the task: a panic while the inbox is read would lose its other messages.
        inbox.send(Message::Spawn(Box::new(move || drop(tokio::task::spawn_local(async move { make().await })))));
        Ok(())
    }
}
