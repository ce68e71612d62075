//! [`Daemon`]: starting and ending one.

use crate::bells::Pollers;
use crate::config::{Config, Device};
use crate::joins::{JoinError, Joins};
use crate::server::{Command, Commands, Server, Start};
use crate::wire::{Cores, Options, Wire, WireError};
use fs_rt::XdpMode;
use fs_shm::Geometry;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections that may wait for the control thread.
const BACKLOG: i32 = 1024;

/// How long a drain may take if nobody says.
const DRAIN: Duration = Duration::from_secs(10);

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Another one serves this path.
    #[error("a daemon already serves {path}: stop it, or name another socket with --control")]
    Running {
        /// The control socket.
        path: PathBuf,
    },
    /// The control socket cannot be made.
    #[error("cannot create the control socket {path}: {source} (name another one with --control or FASTSOCK_CONTROL)")]
    Control {
        /// The control socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The device cannot be used.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A namespace of the configuration is not there.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// What each connection needs cannot be had.
    #[error("cannot {what} of {wanted} bytes of address space, most of which is never used: {source}{hint}")]
    Limit {
        /// What.
        what: &'static str,
        /// How much.
        wanted: u64,
        /// Why.
        source: io::Error,
        /// Which limit, and how to raise it; empty when it is none.
        hint: String,
    },
    /// Something else failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Describes a daemon, see [`Daemon::builder`].
#[derive(Debug)]
#[must_use]
pub struct Builder {
    control: PathBuf,
    config: Config,
    geometry: Geometry,
    drain: Option<Duration>,
    device: Option<Device>,
    socket: Option<OwnedFd>,
}

/// A running daemon. Dropping it ends it at once: its processes find their connections reset.
///
/// ```no_run
/// let daemon = fs_daemon::Daemon::builder("/run/user/1000/fastsock/control.sock").start()?;
/// // … until it is time to end:
/// daemon.drain();
/// daemon.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Daemon {
    handle: Handle,
    thread: Option<JoinHandle<io::Result<()>>>,
    cores: Option<JoinHandle<io::Result<()>>>,
    path: PathBuf,
    /// The control socket is this daemon's to remove.
    is_own: bool,
    joined: String,
}

/// Tells a running daemon things, from any thread.
#[derive(Clone)]
pub struct Handle {
    commands: Arc<Commands>,
    drain: Duration,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Takes nothing new from here on, and ends when the last connection has, or after the time to drain.
    pub fn drain(&self) {
        self.commands.send(Command::Drain(self.drain));
    }

    /// Rules, policies and limits of `config` hold from here on for what is asked; connections and listeners that there are stay as
    /// they are, also those over a limit. The rest of it is for the start only.
    pub fn reload(&self, config: Config) {
        self.commands.send(Command::Reload(Box::new(config)));
    }

    /// Ends at once.
    pub fn stop(&self) {
        self.commands.send(Command::Stop);
    }
}

impl Builder {
    /// Rules and limits.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sizes of the arenas; for tests.
    pub fn geometry(mut self, geometry: Geometry) -> Self {
        self.geometry = geometry;
        self
    }

    /// How long a drain may take (default: what the configuration says, or 10 s).
    pub fn drain_for(mut self, time: Duration) -> Self {
        self.drain = Some(time);
        self
    }

    /// Takes connections from this socket, which listens at the control socket's path already, instead of making one. It stays
    /// when the daemon ends.
    pub fn socket(mut self, socket: OwnedFd) -> Self {
        self.socket = Some(socket);
        self
    }

    /// Serves the world on this device too, whatever the configuration says.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(Device { name: name.into(), queues: None, partial_checksums: None, xdp: XdpMode::Auto });
        self
    }

    /// How many of the device's queues to use, each with a core of its own (default: all). After [`Builder::device`].
    pub fn queues(mut self, queues: usize) -> Self {
        if let Some(device) = &mut self.device {
            device.queues = Some(queues);
        }
        self
    }

    /// See [`fs_rt::Builder::accept_partial_checksum`]. After [`Builder::device`].
    pub fn accept_partial_checksum(mut self, accept: bool) -> Self {
        if let Some(device) = &mut self.device {
            device.partial_checksums = Some(accept);
        }
        self
    }

    /// Which way packets come from the device (default: the fastest that it has). After [`Builder::device`].
    pub fn xdp(mut self, mode: XdpMode) -> Self {
        if let Some(device) = &mut self.device {
            device.xdp = mode;
        }
        self
    }

    /// Starts it, serving connections between the processes of this host. Processes can attach when this returns.
    pub fn start(self) -> Result<Daemon, StartError> {
        let Self { control: path, config, geometry, drain, device, socket } = self;
        let device = device.or_else(|| config.device.clone());
        let drain = drain.or(config.drain).unwrap_or(DRAIN);

        let joins = Joins::resolve(&config.joins)?;
        crate::limits::prepare(geometry)?;
        fs_shm::holder::wait_for_nobody();
        let is_own = socket.is_none();
        let control = socket.map_or_else(|| listen(&path), |socket| given(socket, &path))?;
        let mut unfinished = Unfinished { path: is_own.then_some(&path), wire: None };
        let system = |what| move |source| StartError::System { what, source };
        let commands = Arc::new(Commands::new().map_err(system("make an eventfd"))?);
        // Arenas keep it for good: a process has few daemons in its life.
        let pollers: &'static Pollers = Box::leak(Box::default());
        pollers.tell_by(commands.clone());
        let (wire, cores) = match device {
            Some(Device { name: device, queues, partial_checksums, xdp }) => {
                let options = Options { device, queues, partial_checksums, xdp, geometry };
                let (wire, thread) = Cores::start(options, pollers, commands.clone())?;
                let wire: Arc<dyn Wire> = Arc::new(wire);
                unfinished.wire = Some(wire.clone());
                (Some(wire), Some(thread))
            }
            None => (None, None),
        };
        let joined = joins.to_string();
        let start = Start { config, joins, geometry, control, commands: commands.clone(), pollers, wire };
        let server = Server::new(start).map_err(system("set the daemon up"))?;
        let thread = std::thread::Builder::new()
            .name("fastsock-control".into())
            .spawn(move || server.run())
            .map_err(system("start the control thread"))?;
        (unfinished.path, unfinished.wire) = (None, None);
        drop(unfinished);
        Ok(Daemon { handle: Handle { commands, drain }, thread: Some(thread), cores, path, is_own, joined })
    }
}

/// What a start that fails has to take back. The control socket is closed by then.
struct Unfinished<'a> {
    path: Option<&'a Path>,
    wire: Option<Arc<dyn Wire>>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.path.map(remove);
        if let Some(wire) = &self.wire {
            wire.shut_down(Duration::ZERO);
        }
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove the control socket");
    }
}

impl Daemon {
    /// Starts to describe a daemon with its control socket's path.
    pub fn builder(control: impl Into<PathBuf>) -> Builder {
        Builder {
            control: control.into(),
            config: Config::default(),
            geometry: Geometry::STANDARD,
            drain: None,
            device: None,
            socket: None,
        }
    }

    /// The control socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The network namespaces that are joined by memory, a line for each group, each with what its name has led to.
    pub fn joined(&self) -> &str {
        &self.joined
    }

    /// For other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// See [`Handle::drain`].
    pub fn drain(&self) {
        self.handle.drain();
    }

    /// Waits until it has ended.
    pub fn join(mut self) -> io::Result<()> {
        self.wait()
    }

    fn wait(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let mut result = thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the control thread panicked: this is a bug in fastsock")));
        if let Some(cores) = self.cores.take() {
            let cores = cores
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread of the cores panicked: this is a bug in fastsock")));
            result = result.and(cores);
        }
        if !self.is_own {
            return result;
        }
        // A daemon that was started since has the path now, if the socket there answers.
        let _alone = alone(&self.path);
        if is_dead(&self.path) {
            remove(&self.path);
        }
        result
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.handle.stop();
        if let Err(error) = self.wait() {
            tracing::error!(%error, "the daemon ended with an error");
        }
    }
}

/// What is at this path is a daemon's, or what one has left.
fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|at| at.file_type().is_socket())
}

/// Nobody answers at this path (any more).
fn is_dead(path: &Path) -> bool {
    let dead = |addr| {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &addr)
    };
    SocketAddrUnix::new(path).and_then(dead).is_err_and(|error| error == Errno::CONNREFUSED)
}

/// One at a time looks whether a socket is dead, removes it and makes another: between bind(2) and listen(2) a new one looks
/// dead too. The lock is the directory's, so nothing is left behind. Who may only look at the directory could keep it:
/// after two seconds it is done without.
fn alone(path: &Path) -> Option<OwnedFd> {
    use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    for _ in 0..200 {
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

/// A socket that listens already, as systemd makes them.
fn given(socket: OwnedFd, path: &Path) -> Result<OwnedFd, StartError> {
    use rustix::net::sockopt;
    let failed = |source: io::Error| StartError::Control { path: path.into(), source };
    let is_ours = sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET)
        && sockopt::socket_acceptconn(&socket) == Ok(true)
        && rustix::net::getsockname(&socket)
            .and_then(SocketAddrUnix::try_from)
            .is_ok_and(|at| at.path_bytes() == Some(path.as_os_str().as_encoded_bytes()));
    if !is_ours {
        return Err(failed(io::Error::other(
            "the socket that was passed is not a listening SEQPACKET socket at this path",
        )));
    }
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(|error| failed(error.into()))?;
    Ok(socket)
}

/// Makes the control socket. Everybody may connect: what a process may do is decided by its credentials.
fn listen(path: &Path) -> Result<OwnedFd, StartError> {
    let failed = |source: io::Error| StartError::Control { path: path.into(), source };
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    let _alone = alone(path);
    let addr = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|error| failed(error.into()))?;
    match rustix::net::bind(&socket, &addr) {
        Err(Errno::ADDRINUSE) if !is_socket(path) => {
            return Err(failed(io::Error::other("the file there is not a socket, and it is not removed")));
        }
        Err(Errno::ADDRINUSE) if is_dead(path) => {
            std::fs::remove_file(path).map_err(failed)?;
            rustix::net::bind(&socket, &addr).map_err(|error| failed(error.into()))?;
        }
        Err(Errno::ADDRINUSE) => return Err(StartError::Running { path: path.into() }),
        result => result.map_err(|error| failed(error.into()))?,
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
    // Who connects before this call is refused; who connects after it waits.
    rustix::net::listen(&socket, BACKLOG).map_err(|error| failed(error.into()))?;
    Ok(socket)
}
