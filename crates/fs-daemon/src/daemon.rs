//! [`Daemon`]: the control socket and the match service behind it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use fs_broker::Broker;
use fs_pairs::Service;
use fs_pairs::listing::Process;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::choice;
use crate::config::Config;
use crate::policy::Policies;

/// The reason why a daemon did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Another daemon serves this path.
    #[error("a daemon already serves {path}: stop it, or name another socket with --control")]
    Running {
        /// The control socket.
        path: PathBuf,
    },
    /// The control socket cannot be created.
    #[error("cannot create the control socket {path}: {source} (name another one with --control or FASTSOCK_CONTROL)")]
    Control {
        /// The control socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A daemon whose control socket listens. Dropping it removes the socket. Promoted connections go on without it.
///
/// ```no_run
/// let control = "/run/user/1000/fastsock/control.sock".as_ref();
/// let daemon = fs_daemon::Daemon::bind(control, &fs_daemon::Config::default())?;
/// let handle = daemon.handle();
/// std::thread::spawn(move || daemon.run());
/// // … until it is time to end:
/// handle.stop();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Daemon {
    service: Service,
    policies: Arc<RwLock<Policies>>,
    broker: Option<Broker>,
}

/// Reloads and ends a running daemon, from any thread.
#[derive(Clone, Debug)]
pub struct Handle {
    service: fs_pairs::Handle,
    policies: Arc<RwLock<Policies>>,
}

impl Handle {
    /// Applies the policies of `config` to offers from now on.
    pub fn reload(&self, config: &Config) {
        *self.policies.write().unwrap_or_else(PoisonError::into_inner) = config.policies.clone();
    }

    /// Ends [`Daemon::run`].
    pub fn stop(&self) {
        self.service.stop();
    }
}

impl Daemon {
    /// Creates the control socket at `control` and its directory, and raises this process's
    /// descriptor limit.
    ///
    /// # Errors
    /// Another daemon serves `control`, or the socket cannot be made.
    pub fn bind(control: &Path, config: &Config) -> Result<Self, StartError> {
        raise_limit();
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => StartError::Running { path: control.into() },
            _ => StartError::Control { path: control.into(), source },
        };
        if let Some(parent) = control.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        if std::fs::symlink_metadata(control).is_ok_and(|at| !at.file_type().is_socket()) {
            return Err(failed(io::Error::other("the file there is not a socket, and it is not removed")));
        }
        let _alone = alone(control);
        let service = Service::with_limits(control, config.limits.of_service()).map_err(failed)?;
        let policies = Arc::new(RwLock::new(config.policies.clone()));
        let judged = Arc::clone(&policies);
        let permit = move |process: &Process, local, peer| {
            choice::permits(&judged.read().unwrap_or_else(PoisonError::into_inner), process, local, peer)
        };
        Ok(Self { service: service.permitted_by(Box::new(permit)), policies, broker: None })
    }

    /// Shares the devices of `config` between programs. Pairs and leases of an earlier daemon stay,
    /// and they also outlive this daemon.
    ///
    /// # Errors
    /// A device cannot be shared, or rights are missing.
    pub fn with_devices(self, config: &Config) -> Result<Self, fs_broker::Error> {
        if config.devices().is_empty() {
            return Ok(self);
        }
        let policies = Arc::clone(&self.policies);
        let permit = move |process: &Process, control: BorrowedFd<'_>, at| {
            choice::permits_lease(&policies.read().unwrap_or_else(PoisonError::into_inner), process, control, at)
        };
        let broker = Broker::start(config.devices(), fs_broker::PINS.as_ref(), Box::new(permit))?;
        let intake = broker.intake();
        let service = self.service.brokered_by(Box::new(move |socket, process| intake.take(socket, process)));
        Ok(Self { service, broker: Some(broker), ..self })
    }

    /// Adds a relay's counters to those of the daemon.
    #[must_use]
    pub fn with_relay(self, relay: &fs_relay::Relay) -> Self {
        let of_relay = relay.counters();
        let count = move |counters: &mut fs_pairs::counters::Counters| {
            let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let fs_relay::Counters { accepted, open, refused, reset } = &*of_relay;
            counters.wire_accepted = value(accepted);
            counters.wire_open = value(open);
            counters.wire_refused = value(refused);
            counters.wire_reset = value(reset);
        };
        Self { service: self.service.counted_by(Box::new(count)), ..self }
    }

    /// Returns the handle that reloads and ends the daemon.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle { service: self.service.handle(), policies: Arc::clone(&self.policies) }
    }

    /// Serves until [`Handle::stop`].
    ///
    /// # Errors
    /// The errors of epoll_wait(2).
    pub fn run(self) -> io::Result<()> {
        let Self { service, broker, .. } = self;
        let result = service.run();
        drop(broker);
        result
    }
}

/// Initial size of the kernel's descriptor table. More: 8 bytes each. Fewer: the kernel doubles the
/// table of a process with threads only after an RCU grace period (`synchronize_rcu()` in
/// `expand_fdtable()`, fs/file.c), and no process is served for 10 ms and more each time.
const TABLE: u64 = 16 << 10;

/// Raises the descriptor limit as far as this process may. Each process and each pair needs one.
fn raise_limit() {
    let now = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum }) {
        tracing::warn!(%error, "cannot raise RLIMIT_NOFILE");
    }
    let last = getrlimit(Resource::Nofile).current.unwrap_or(TABLE).min(TABLE).saturating_sub(1);
    // The descriptor is closed at once, but the table keeps its size. If this fails, the table
    // grows later.
    let _grown = RawFd::try_from(last).map(|last| fcntl_dupfd_cloexec(std::io::stderr(), last));
}

/// Locks the directory of the control socket. Only the holder may remove a dead socket and create a
/// new one, because a new socket looks dead between bind(2) and listen(2). The lock leaves no file.
/// A process that may only read the directory can hold the lock: after 20 seconds the daemon starts
/// without it. More: such a process delays the start for longer. Fewer: if the holder is paused for
/// that time before it listens, two daemons serve.
fn alone(path: &Path) -> Option<OwnedFd> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    for _ in 0..2000 {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(Duration::from_millis(10)),
            Ok(()) => return Some(directory),
            Err(_) => break,
        }
    }
    tracing::warn!(
        path = %parent.display(),
        "another process locks the control socket's directory: starting without the lock"
    );
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(test: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("fastsock-daemon-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn second_daemon_is_refused_and_dead_socket_is_replaced() {
        let folder = folder("second");
        // The directory is created too.
        let control = folder.join("inner/control.sock");
        let first = Daemon::bind(&control, &Config::default()).unwrap();
        let error = Daemon::bind(&control, &Config::default()).unwrap_err();
        assert!(matches!(error, StartError::Running { .. }), "{error}");
        assert!(Service::answers(&control));
        drop(first);
        assert!(!control.exists());
        // A killed daemon leaves the socket like this.
        drop(std::os::unix::net::UnixListener::bind(&control).unwrap());
        let _second = Daemon::bind(&control, &Config::default()).unwrap();
        assert!(Service::answers(&control));
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// A cleaner has removed the socket of a daemon that runs.
    #[test]
    fn first_daemon_leaves_its_successors_socket() {
        let folder = folder("successor");
        let control = folder.join("control.sock");
        let first = Daemon::bind(&control, &Config::default()).unwrap();
        std::fs::remove_file(&control).unwrap();
        let _second = Daemon::bind(&control, &Config::default()).unwrap();
        drop(first);
        assert!(Service::answers(&control));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn file_of_another_kind_is_kept() {
        let folder = folder("kept");
        let control = folder.join("control.sock");
        std::fs::write(&control, "mine").unwrap();
        let error = Daemon::bind(&control, &Config::default()).unwrap_err();
        assert!(error.to_string().contains("not a socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&control).unwrap(), "mine");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn daemon_serves_until_it_is_stopped() {
        let folder = folder("serves");
        let control = folder.join("control.sock");
        let daemon = Daemon::bind(&control, &Config::default()).unwrap();
        let handle = daemon.handle();
        let thread = std::thread::spawn(move || daemon.run());
        assert_eq!(fs_pairs::counters::count(&control).unwrap(), Default::default());
        handle.reload(&Config::default());
        handle.stop();
        thread.join().unwrap().unwrap();
        assert!(!control.exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
