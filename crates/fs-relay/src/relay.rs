//! [`Relay`] starts and stops the cores.

use crate::config::Config;
use crate::names::{Names, NamesError};
use crate::server::{listen, serve};
use crate::shared::{Counters, Shared};
use crate::source::{Sources, port_range};
use fs_rt::netlink::Netlink;
use fs_rt::{BuildError, CoreCtx, Handle, LinkChoice, RunError, Runtime, Share};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// The reason why the relay did not start. No part of the relay is left then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The device, a capability or memory.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The clients' names.
    #[error(transparent)]
    Names(#[from] NamesError),
    /// An address of the configuration.
    #[error(
        "{device} does not have the address {address}: `ip addr` lists them; without `addresses` the port is served at all \
         of the device"
    )]
    Address {
        /// The device.
        device: String,
        /// The address.
        address: IpAddr,
    },
    /// A core.
    #[error("{0}")]
    Core(String),
    /// A system call.
    #[error("cannot {doing}: {source}")]
    System {
        /// The operation that failed.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// A running relay. Dropping it ends its connections at once.
pub struct Relay {
    handle: Handle,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("config", &self.shared.config).field("counters", &self.shared.counters).finish()
    }
}

impl Relay {
    /// Opens the device and serves the ports. Existing kernel connections at these ports go on.
    ///
    /// # Errors
    /// Returns the first problem with the device, the capabilities, the addresses or the ports.
    pub fn start(config: Config) -> Result<Self, StartError> {
        let system = |doing| move |source| StartError::System { doing, source };
        raise_open_files();
        let cpus = cpus().map_err(system("read the set of CPUs"))?;
        let count = config.queues.unwrap_or_else(|| queue_count(&config.device)).clamp(1, cpus.len());
        let mut builder = Runtime::builder()
            .device(&config.device)
            .link(LinkChoice::Xdp { mode: config.xdp })
            .cores(config.cores.clone().unwrap_or_else(|| cpus.into_iter().take(count).collect()))
            // The programs run on these CPUs too. A core that is not pinned polls only while no
            // other thread wants its CPU.
            .pin(config.cores.is_some())
            // Every port belongs to a program, which has bound it in the kernel.
            .ask_for_routes(false)
            .ephemeral_ports(0);
        if let Some(accept) = config.partial_checksums {
            builder = builder.accept_partial_checksum(accept);
        }
        // As much as possible is checked before the device is opened, which may take it down: systemd tries again, for
        // example until the addresses are there.
        check_addresses(&config)?;
        let cookie = crate::netns_unsafe::cookie().map_err(system("read the network namespace's cookie"))?;
        let names = Names::attach(cookie)?;
        let runtime = builder.build()?;
        let start = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
        // A new daemon starts with other addresses than the previous one.
        let sources = Sources::new(port_range(), start);
        let shared = Arc::new(Shared::new(config, names, sources));
        let (handle, cores) = (runtime.handle(), runtime.handle().cores());
        let (started, starts) = channel();
        let for_cores = shared.clone();
        let thread = std::thread::Builder::new()
            .name("fastsock-wire".into())
            .spawn(move || {
                let ended = runtime.run(move |core| run(core, for_cores, started)).map(drop);
                match &ended {
                    Ok(()) | Err(RunError::Deadline { .. }) => {}
                    Err(error) => tracing::error!(%error, "the relay has ended: the kernel serves its ports until the daemon is restarted"),
                }
                ended
            })
            .map_err(system("start a thread"))?;
        let relay = Self { handle, shared, thread: Some(thread) };
        for _ in 0..cores {
            match starts.recv() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(StartError::Core(error)),
                // The runtime has ended. Its error is in the log.
                Err(_) => return Err(StartError::Core("a core ended while it was started".into())),
            }
        }
        Ok(relay)
    }

    /// Leaves new connections to the kernel. Ends when the open ones have ended, or after
    /// `longest`.
    pub fn drain(&self, longest: Duration) {
        for at in self.shared.config.listens() {
            self.handle.share_held(at, false, Share::Leaving);
        }
        self.handle.shutdown(longest);
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// Waits until it has ended.
    pub fn join(mut self) {
        self.wait();
    }

    fn wait(&mut self) {
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the relay's thread panicked: this is a bug in fastsock");
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.handle.shutdown(Duration::ZERO);
        self.wait();
    }
}

/// Runs one core.
async fn run(_core: CoreCtx, shared: Arc<Shared>, started: Sender<Result<(), String>>) {
    let listeners = match listen(&shared) {
        Ok(listeners) => listeners,
        Err(error) => {
            // If another core has failed first, no thread receives this error.
            let _ = started.send(Err(error));
            return;
        }
    };
    for listener in listeners {
        fs_rt::spawn_local(serve(listener, shared.clone()));
    }
    let _ = started.send(Ok(()));
    drop(started);
    fs_rt::shutdown_signal().await;
}

/// Fails for an address that the device does not have. A device that does not exist is another error.
fn check_addresses(config: &Config) -> Result<(), StartError> {
    let wanted = || config.ports.iter().flat_map(|port| port.addresses.iter().copied());
    if wanted().next().is_none() {
        return Ok(());
    }
    let there = addresses(&config.device)
        .map_err(|source| StartError::System { doing: "read the device's addresses over netlink", source })?;
    match there.and_then(|there| wanted().find(|address| !there.contains(address))) {
        Some(address) => Err(StartError::Address { device: config.device.clone(), address }),
        None => Ok(()),
    }
}

/// Returns the addresses of a device, or `None` without such a device.
fn addresses(device: &str) -> io::Result<Option<Vec<IpAddr>>> {
    let netlink = Netlink::open([])?;
    let index = netlink.dump(Message::GetLink(LinkMessage::default()))?.into_iter().find_map(|message| match message {
        Message::NewLink(link) => {
            let is_it = |of: &LinkAttribute| matches!(of, LinkAttribute::IfName(name) if name == device);
            link.attributes.iter().any(is_it).then_some(link.header.index)
        }
        _ => None,
    });
    let Some(index) = index else { return Ok(None) };
    let messages = netlink.dump(Message::GetAddress(AddressMessage::default()))?;
    let of_device = messages.into_iter().filter_map(|message| match message {
        Message::NewAddress(address) if address.header.index == index => Some(address.attributes),
        _ => None,
    });
    let addresses = of_device.filter_map(|attributes| {
        // On a point-to-point link `Address` is the peer's.
        let find = |of: fn(&AddressAttribute) -> Option<IpAddr>| attributes.iter().find_map(of);
        find(|of| if let AddressAttribute::Local(ip) = of { Some(*ip) } else { None })
            .or_else(|| find(|of| if let AddressAttribute::Address(ip) = of { Some(*ip) } else { None }))
    });
    Ok(Some(addresses.collect()))
}

/// Returns the CPUs that this process may use.
fn cpus() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Returns the number of the device's receive queues, or 1 if it is unknown.
fn queue_count(device: &str) -> usize {
    let queues = std::fs::read_dir(format!("/sys/class/net/{device}/queues"));
    let is_rx = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"rx-");
    queues.map_or(1, |queues| queues.flatten().filter(|queue| is_rx(&queue.file_name())).count()).max(1)
}

/// Raises the soft descriptor limit to the hard one, because each connection needs a descriptor.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "cannot raise the limit of open files: each connection needs one");
    }
}
