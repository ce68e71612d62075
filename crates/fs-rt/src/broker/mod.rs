//! Devices that a daemon shares between programs: the program's half (docs/SHARED_DEVICE.md).
//!
//! The daemon gives the program AF_XDP sockets of a private pair of devices. What follows needs no
//! rights, and no daemon: the sockets, the kernel's sockets that hold ports, and rtnetlink sockets
//! in the daemon's namespace are the program's own. Only a new lease needs a daemon that runs.

mod leases;
pub mod message;
pub mod ports;
pub mod wire;

use crate::netlink::Netlink;
use crate::sys::{effective_user, is_privileged, peer_user};
use fs_xdp::{HandedQueues, NetDevice, QueueConfig, UmemConfig};
use leases::LeaseProofs;
use message::{Answer, Device, MAX_DESCRIPTORS, MAX_QUEUES, Request};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Names the daemon's control socket.
const CONTROL_VARIABLE: &str = "FASTSOCK_CONTROL";
/// Path at which the system's daemon listens.
const SYSTEM_CONTROL: &str = "/run/fastsock/control.sock";
/// Path at which a user's daemon listens, in `XDG_RUNTIME_DIR`.
const USER_CONTROL: &str = "fastsock/control.sock";

/// The first message on a connection to the control socket: it moves the connection from the match
/// service to the broker. A record of fs-pairs (`fs_pairs::message::Request::Device`).
pub const HELLO: [u8; 32] = {
    let mut record = [0; 32];
    let start = *b"fsK1\x09";
    let mut at = 0;
    while at < start.len() {
        record[at] = start[at];
        at += 1;
    }
    record
};

/// Limit for one answer. Making a pair takes up to 100 ms on a busy machine.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Time for which a new lease waits for a daemon that has ended and may be started again. Its core
/// does nothing else in this time. Shorter: a bind fails while the daemon is exchanged.
const DAEMON_WAIT: Duration = Duration::from_secs(1);
/// Between two attempts within that time.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// A device that a daemon shares with this program.
pub(crate) struct SharedDevice {
    pub(crate) name: String,
    pub(crate) device: Device,
    /// The daemon has another network namespace than this process.
    pub(crate) is_foreign: bool,
    control: Control,
    state: Mutex<State>,
}

struct State {
    /// `None` while no daemon runs.
    socket: Option<OwnedFd>,
    pair: Option<(u16, [u64; 2])>,
    held: LeaseProofs,
    /// Connections on which an answer did not come in time. A late answer would be taken for that of
    /// the next request, and a daemon that finds such a connection closed takes the program's pair away.
    /// They are closed after the next connection has replaced them.
    late: Vec<Late>,
}

/// A connection that is used no more and still open.
struct Late {
    socket: OwnedFd,
    /// An answer will come.
    is_busy: bool,
}

impl State {
    /// Handles the error of a request. After an answer that cannot be taken (no descriptors are free), or a
    /// request that cannot be sent, the next one may follow on the same connection.
    fn give_up(&mut self, error: &io::Error) {
        if is_ended(error) {
            self.socket = None;
        } else if is_late(error) {
            self.late.extend(self.socket.take().map(|socket| Late { socket, is_busy: true }));
        }
    }
}

/// The answer did not come within SO_RCVTIMEO.
fn is_late(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Descriptors that the daemon has handed over.
pub(crate) struct Attached {
    /// For each queue.
    pub(crate) sockets: Vec<OwnedFd>,
    /// A packet socket for super-segments, unless the daemon's kernel cannot check them.
    pub(crate) segments: Option<OwnedFd>,
    /// Two in the daemon's namespace: for the tables, and for routes.
    pub(crate) netlink: [Netlink; 2],
}

/// Returns the devices with these names if a daemon shares the first one. All must be shared then.
pub(crate) fn find(names: &[String]) -> io::Result<Vec<Arc<SharedDevice>>> {
    let Some(first) = names.first() else { return Ok(Vec::new()) };
    let Some(shared) = controls().iter().find_map(|control| SharedDevice::find(control, first)) else {
        return Ok(Vec::new());
    };
    let control = shared.control.clone();
    let mut all = vec![Arc::new(shared)];
    for name in &names[1..] {
        let other = SharedDevice::find(&control, name).ok_or_else(|| {
            let daemon = control.path.display();
            io::Error::other(format!(
                "the daemon at {daemon} shares {first}, but not {name}: it must share all or none"
            ))
        })?;
        all.push(Arc::new(other));
    }
    Ok(all)
}

/// A path at which a daemon may listen.
#[derive(Clone, Debug)]
struct Control {
    path: PathBuf,
    /// It is below `XDG_RUNTIME_DIR`, which may be another user's: su(1) keeps the variable. A daemon of another
    /// user would get the program's memory and its listening sockets. The other paths are an administrator's
    /// choice, and root's daemon has any number in a user namespace.
    is_of_user: bool,
}

/// Returns where a daemon may listen. Does not trust the environment that a program with more rights has got.
fn controls() -> Vec<Control> {
    let variable =
        |name| std::env::var_os(name).filter(|value| !value.is_empty() && !is_privileged()).map(PathBuf::from);
    if let Some(path) = variable(CONTROL_VARIABLE) {
        return vec![Control { path, is_of_user: false }];
    }
    let own = variable("XDG_RUNTIME_DIR").map(|directory| directory.join(USER_CONTROL));
    let own = own.map(|path| Control { path, is_of_user: true });
    own.into_iter().chain([Control { path: SYSTEM_CONTROL.into(), is_of_user: false }]).collect()
}

/// Connects to the broker of the daemon at `control`.
fn connect(control: &Control) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for timeout in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, timeout, Some(ANSWER_WAIT))?;
    }
    rustix::net::connect(&socket, &SocketAddrUnix::new(&control.path)?)?;
    if control.is_of_user {
        let user = peer_user(socket.as_fd())?;
        if user != 0 && user != effective_user() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
    }
    rustix::net::send(&socket, &HELLO, rustix::net::SendFlags::NOSIGNAL)?;
    Ok(socket)
}

/// Sends a request and returns its answer.
fn exchange(
    socket: BorrowedFd<'_>,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<(Answer, Vec<OwnedFd>)> {
    wire::send(socket, &request.encode(), descriptors)?;
    let (record, descriptors) = wire::receive(socket, |fd| fd)?.ok_or(io::ErrorKind::ConnectionReset)?;
    let answer = Answer::decode(&record).ok_or(io::ErrorKind::InvalidData)?;
    Ok((answer, descriptors))
}

/// Returns an answer that is not a failure.
fn granted((answer, descriptors): (Answer, Vec<OwnedFd>)) -> io::Result<(Answer, Vec<OwnedFd>)> {
    match answer {
        Answer::Failed { errno, why } if why.is_empty() => Err(io::Error::from_raw_os_error(errno)),
        Answer::Failed { errno, why } => Err(io::Error::new(io::Error::from_raw_os_error(errno).kind(), why)),
        answer => Ok((answer, descriptors)),
    }
}

/// Returns true if an error says that the daemon has ended.
fn is_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected, NotFound};
    matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotConnected | NotFound)
}

impl SharedDevice {
    /// Asks a daemon. `None`: no daemon, or it does not share such a device with this program.
    fn find(control: &Control, name: &str) -> Option<SharedDevice> {
        let socket = connect(control).ok()?;
        let (answer, _) = granted(exchange(socket.as_fd(), &Request::Device(name.to_owned()), &[]).ok()?).ok()?;
        let Answer::Device(device) = answer else { return None };
        let own = std::fs::metadata("/proc/thread-self/ns/net").ok().map(|own| (own.dev(), own.ino()));
        let is_foreign = own != Some(device.namespace);
        if is_foreign && NetDevice::find(name).is_ok() {
            tracing::info!(device = name, "the daemon shares a device of this name, but this namespace has its own");
            return None;
        }
        let state = State { socket: Some(socket), pair: None, held: LeaseProofs::default(), late: Vec::new() };
        let (name, control) = (name.to_owned(), control.clone());
        Some(SharedDevice { name, device, is_foreign, control, state: Mutex::new(state) })
    }

    /// Gets a pair with `queues` queues, which receive into `memory`.
    pub(crate) fn attach(
        &self,
        queues: u32,
        memory: (&OwnedFd, UmemConfig),
        rings: QueueConfig,
    ) -> io::Result<Attached> {
        let mut state = self.lock();
        let queues = queues.min(MAX_QUEUES);
        let request = Request::Attach { name: self.name.clone(), queues, memory: memory.1, rings, segments: true };
        let socket = state.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let (answer, mut descriptors) = granted(exchange(socket.as_fd(), &request, &[memory.0.as_fd()])?)?;
        let Answer::Attached { slot, token, queues } = answer else { return Err(io::ErrorKind::InvalidData.into()) };
        let others = descriptors.len().checked_sub(queues as usize).filter(|others| matches!(others, 4 | 5));
        let others = others.ok_or(io::ErrorKind::InvalidData)?;
        state.pair = Some((slot, token));
        let sockets = descriptors.split_off(others);
        let segments = descriptors.split_off(4).pop();
        let mut netlink = descriptors.into_iter();
        let mut next = || netlink.next().ok_or(io::ErrorKind::InvalidData);
        let netlink = [Netlink::of([next()?, next()?]), Netlink::of([next()?, next()?])];
        Ok(Attached { sockets, segments, netlink })
    }

    /// Describes the device as it was found.
    pub(crate) fn net_device(&self) -> NetDevice {
        let Device { index, mtu, mac, .. } = self.device;
        let (hardware_type, flags) = (libc::ARPHRD_ETHER, libc::IFF_UP as u16);
        NetDevice { name: self.name.clone(), index, mtu, mac, hardware_type, flags, driver: String::new() }
    }

    pub(crate) fn handed(&self, rings: QueueConfig) -> HandedQueues {
        HandedQueues { mtu: u16::try_from(self.device.mtu).unwrap_or(u16::MAX), mac: self.device.mac, rings }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A call that panicked has left a request without its answer, and the next call finds that.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request. If the daemon has ended, waits for the next one.
    fn call(
        &self,
        state: &mut State,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(Answer, Vec<OwnedFd>)> {
        let deadline = Instant::now() + DAEMON_WAIT;
        loop {
            let failed = match self.resume(state).and_then(|socket| exchange(socket, request, descriptors)) {
                Ok(answer) => return granted(answer),
                Err(error) => error,
            };
            state.give_up(&failed);
            if !is_ended(&failed) || Instant::now() >= deadline {
                return Err(failed);
            }
            std::thread::sleep(RETRY_AFTER);
        }
    }

    /// Connects to the next daemon if the last one has ended, or has answered too late.
    fn resume<'a>(&self, state: &'a mut State) -> io::Result<BorrowedFd<'a>> {
        if state.socket.as_ref().is_none_or(|socket| wire::is_closed(socket.as_fd())) {
            state.socket = None;
            state.late.retain(|late| !wire::is_closed(late.socket.as_fd()));
            if state.late.iter().any(|late| late.is_busy && !wire::is_readable(late.socket.as_fd())) {
                // The daemon is alive, and still busy with the last request.
                return Err(io::ErrorKind::TimedOut.into());
            }
            let socket = connect(&self.control)?;
            if let Err(error) = self.prove(state, &socket) {
                if !is_ended(&error) {
                    // Its leases are not complete, so no request may follow on it.
                    state.late.push(Late { socket, is_busy: is_late(&error) });
                }
                return Err(error);
            }
            state.socket = Some(socket);
            state.late.clear();
            tracing::info!(device = self.name, "the daemon knows this program again");
        }
        state.socket.as_ref().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Shows that the slot is this program's, and asks for its leases again.
    fn prove(&self, state: &State, socket: &OwnedFd) -> io::Result<()> {
        let (slot, token) = state.pair.ok_or(io::ErrorKind::NotConnected)?;
        let ask = |request: &Request, descriptors: &[BorrowedFd<'_>]| {
            exchange(socket.as_fd(), request, descriptors).map(granted)
        };
        ask(&Request::Resume { slot, token }, &[])??;
        for batch in state.held.sockets().chunks(MAX_DESCRIPTORS) {
            if ask(&Request::Lease, batch)?.is_ok() {
                continue;
            }
            // One of them is refused. An error here would close the connection, and with it all leases.
            for one in batch.chunks(1) {
                if let Err(error) = ask(&Request::Lease, one)? {
                    tracing::error!(device = self.name, %error, "the daemon takes the lease of a port back");
                }
            }
        }
        ask(&Request::Resumed, &[])?.map(drop)
    }
}

impl std::fmt::Debug for SharedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedDevice").field("name", &self.name).field("device", &self.device).finish_non_exhaustive()
    }
}
