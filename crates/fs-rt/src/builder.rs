//! [`Builder`]: the settings of a runtime.

use crate::poll::PollPolicy;
use fs_core::{Cidr, Limits, Secret, TcpConfig};
use fs_xdp::Link;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Frames of a core: 16384 × 2 KiB = 32 MiB. A queue's rings take at most 3 × 2048 of them, and at
/// least 1024. The rest is for packets in flight.
const FRAMES: u32 = 16_384;

/// Packets that wait for a neighbour's address: as many as Linux keeps (212,992 bytes, 768 or more
/// for each small packet). Fewer: the first burst of connects to a server loses all SYNs beyond
/// this number, and these connections are made a second later. All queues together hold at most an
/// eighth of the frames.
const NEIGHBOUR_QUEUE: u32 = 256;

/// Ephemeral ports to reserve. Each is one kernel socket (about 3 µs and 1.5 KiB). One port serves
/// one connection per destination, so this limits connections to one server, not in total. With up
/// to four cores the ports end below Linux's own ephemeral range.
const EPHEMERAL_PORTS_MIN: usize = 8192;

/// Ephemeral ports of each core beyond four, because the cores divide the ports. 16 cores or more
/// have 28,672, as many as Linux's ephemeral range, and then take about half of that range.
const EPHEMERAL_PORTS_PER_CORE: usize = 2048;
const EPHEMERAL_PORTS_MAX: usize = 28_672;

/// The first ephemeral port: below Linux's ephemeral range (32768), above the usual ports of
/// services.
const EPHEMERAL_FIRST: u16 = 20_000;

/// Names the devices if the program names none.
const DEVICE_VARIABLE: &str = "FASTSOCK_DEVICE";

/// The requested XDP mode.
///
/// ```no_run
/// use fastsock::{LinkChoice, Runtime, XdpMode};
///
/// let link = LinkChoice::Xdp { mode: XdpMode::Native };
/// let runtime = Runtime::builder().device("eth0").cores([0]).link(link).build()?;
/// # drop(runtime);
/// # Ok::<(), fastsock::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpMode {
    /// Native if the driver supports it, else generic. On veth, one core uses generic mode, in which
    /// the other end's large packets arrive whole (decision 0036).
    #[default]
    Auto,
    /// In the driver, or an error.
    Native,
    /// Native if the driver supports it, else generic. Packets are always copied.
    Copy,
    /// On skbs.
    Generic,
}

/// The kind of link that carries a runtime's packets.
///
/// ```no_run
/// use fastsock::{LinkChoice, Runtime, Standalone};
/// use std::net::Ipv4Addr;
///
/// // Without BPF: a packet socket, and an address that the kernel does not have.
/// let own = Standalone::new().addr(Ipv4Addr::new(192, 0, 2, 10), 24);
/// let runtime = Runtime::builder().device("eth0").cores([0]).link(LinkChoice::Packet).standalone(own).build()?;
/// # drop(runtime);
/// # Ok::<(), fastsock::BuildError>(())
/// ```
#[derive(Default)]
#[non_exhaustive]
pub enum LinkChoice {
    /// AF_XDP on the given devices.
    #[default]
    XdpAuto,
    /// AF_XDP in a given mode.
    Xdp {
        /// See [`XdpMode`].
        mode: XdpMode,
    },
    /// AF_PACKET on the given devices. Needs no BPF, only CAP_NET_RAW (which a user namespace has).
    /// Standalone addressing only: the kernel also receives every packet and would reply.
    Packet,
    /// A TAP device for each given name, created if it does not exist, with a queue for each core.
    /// Standalone addressing only.
    Tap,
    /// Given links, one per core, on one nameless device. For tests and simulation.
    Memory(Vec<Box<dyn Link>>),
    /// No link: the same sockets, but the kernel carries all of them. Needs neither rights nor a
    /// device, and ignores named devices. The environment variable `FASTSOCK_LINK=kernel` selects
    /// it for a program that was written for AF_XDP.
    Kernel,
}

impl std::fmt::Debug for LinkChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinkChoice::XdpAuto => f.write_str("XdpAuto"),
            LinkChoice::Xdp { mode } => write!(f, "Xdp({mode:?})"),
            LinkChoice::Packet => f.write_str("Packet"),
            LinkChoice::Tap => f.write_str("Tap"),
            LinkChoice::Memory(links) => write!(f, "Memory({} links)", links.len()),
            LinkChoice::Kernel => f.write_str("Kernel"),
        }
    }
}

/// Addresses that the stack has on a device and the kernel does not have.
///
/// ```no_run
/// use fastsock::{LinkChoice, Runtime, Standalone};
/// use std::net::Ipv4Addr;
///
/// let own = Standalone::new().addr(Ipv4Addr::new(192, 0, 2, 10), 24).gateway(Ipv4Addr::new(192, 0, 2, 1));
/// let runtime = Runtime::builder().device("eth0").cores([0]).link(LinkChoice::Packet).standalone(own).build()?;
/// # drop(runtime);
/// # Ok::<(), fastsock::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Standalone {
    /// Our addresses.
    pub addrs: Vec<Cidr>,
    /// Default gateways, at most one per family.
    pub gateways: Vec<IpAddr>,
    /// MAC address of the stack; `None`: the device's.
    pub mac: Option<[u8; 6]>,
}

impl Standalone {
    /// No address yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an address with its prefix length.
    pub fn addr(mut self, addr: impl Into<IpAddr>, prefix: u8) -> Self {
        self.addrs.push(Cidr { addr: addr.into(), prefix });
        self
    }

    /// Adds the default gateway of its family.
    pub fn gateway(mut self, gateway: impl Into<IpAddr>) -> Self {
        self.gateways.push(gateway.into());
        self
    }

    /// Uses this MAC address instead of the device's.
    pub fn mac(mut self, mac: [u8; 6]) -> Self {
        self.mac = Some(mac);
        self
    }
}

/// Builds a [`Runtime`](crate::Runtime). Every setting except the devices has a default.
///
/// ```no_run
/// use std::time::Duration;
///
/// let runtime = fastsock::Runtime::builder()
///     .device("eth0")
///     .cores([2, 3])
///     .frames(16_384)
///     .drain(Duration::from_secs(5))
///     .build()?;
/// # drop(runtime);
/// # Ok::<(), fastsock::BuildError>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Builder {
    pub(crate) devices: Vec<String>,
    pub(crate) queues: Option<Arc<[u32]>>,
    pub(crate) cores: Vec<usize>,
    pub(crate) pin: bool,
    pub(crate) policy: Option<PollPolicy>,
    pub(crate) spin: Option<Duration>,
    pub(crate) drain: Duration,
    pub(crate) link: LinkChoice,
    pub(crate) standalone: Vec<Standalone>,
    pub(crate) frames: u32,
    pub(crate) frame_size: Option<u32>,
    pub(crate) tcp: TcpConfig,
    pub(crate) limits: Limits,
    pub(crate) ephemeral_ports: Option<usize>,
    pub(crate) ephemeral_first: u16,
    pub(crate) secret: Option<Secret>,
    pub(crate) accept_partial_checksum: Option<bool>,
    pub(crate) asks_for_routes: bool,
    pub(crate) or_kernel: bool,
    pub(crate) late_devices: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            queues: None,
            cores: Vec::new(),
            pin: true,
            policy: None,
            spin: None,
            drain: Duration::from_secs(1),
            link: LinkChoice::default(),
            standalone: Vec::new(),
            frames: FRAMES,
            frame_size: None,
            tcp: TcpConfig::default(),
            limits: Limits { neighbour_queue: NEIGHBOUR_QUEUE, ..Limits::default() },
            ephemeral_ports: None,
            ephemeral_first: EPHEMERAL_FIRST,
            secret: None,
            accept_partial_checksum: None,
            asks_for_routes: true,
            or_kernel: false,
            late_devices: false,
        }
    }
}

impl Builder {
    /// Adds a device. Core i opens the queues i, i + cores, … of each device.
    ///
    /// Unless a daemon shares the device, some drivers reset the card when the runtime is built: its traffic
    /// can stop for up to 40 s, so have a console at hand.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.devices.push(name.into());
        self
    }

    /// Adds the devices of the environment variable `FASTSOCK_DEVICE`, separated by commas, if no
    /// device has been named.
    pub fn devices_of_environment(self) -> Self {
        let named = std::env::var(DEVICE_VARIABLE).unwrap_or_default();
        if !self.devices.is_empty() {
            return self;
        }
        named.split(',').map(str::trim).filter(|name| !name.is_empty()).fold(self, Self::device)
    }

    /// Takes only these receive queues of each device. The others stay the kernel's, and those of
    /// programs on a daemon that shares the device. Default: all of them, or a pair of devices of
    /// such a daemon. Core i opens the queues at the positions i, i + cores, … of the list.
    ///
    /// The card must bring a port's packets to these queues (`ethtool -N eth0 flow-type tcp4
    /// dst-port 7777 action 2`). A connection that arrives by another queue is a kernel socket's, and
    /// so are all that the program makes itself, since the card chooses the queue of their replies.
    ///
    /// ```no_run
    /// use fastsock::Runtime;
    ///
    /// let runtime = Runtime::builder().device("eth0").queues([2, 3]).cores([0, 1]).build()?;
    /// # drop(runtime);
    /// # Ok::<(), fastsock::BuildError>(())
    /// ```
    pub fn queues(mut self, queues: impl IntoIterator<Item = u32>) -> Self {
        self.queues = Some(queues.into_iter().collect());
        self
    }

    /// Sets the CPUs: one pinned thread on each. Default: as many of the process's CPUs as the
    /// device has receive queues; with [`LinkChoice::Kernel`] as many as
    /// [`std::thread::available_parallelism`] returns, like tokio's workers. A core without a queue could
    /// not send. If a device has fewer queues than `cpus`, only the first cores run, and the
    /// log says so.
    pub fn cores(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.cores = cpus.into_iter().collect();
        self
    }

    /// Pins each thread to its CPU (default: yes). With [`LinkChoice::Kernel`], a thread runs on any CPU
    /// if it may not be pinned, or if a quota allows fewer CPUs at a time than the process has and
    /// [`Builder::cores`] names none.
    ///
    /// Threads and child processes that a core's task starts inherit its one CPU, on which the core
    /// polls. Start thread pools and children before the run, or in `tokio::task::spawn_blocking`, whose
    /// threads have all CPUs of the process.
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// Sets when a core polls and when it sleeps. Default: [`PollPolicy::throughput`], or
    /// [`PollPolicy::shared`] if threads are not pinned.
    pub fn poll_policy(mut self, policy: PollPolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Never sleeps: lowest latency, 100 % of each core. Short for [`Builder::poll_policy`] with
    /// [`PollPolicy::latency`]; `false` is the default policy.
    pub fn busy_poll(mut self, busy_poll: bool) -> Self {
        self.policy = busy_poll.then(PollPolicy::latency);
        self
    }

    /// Sets how long an idle core polls before it sleeps, replacing the policy's value:
    /// [`PollPolicy::spin`].
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = Some(spin);
        self
    }

    /// Sets how long the end of a run waits for closed connections to send their queued data.
    /// Default: 1 s.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// Sets the kind of link. Default: AF_XDP. `FASTSOCK_LINK=kernel` in the environment replaces
    /// it by [`LinkChoice::Kernel`].
    pub fn link(mut self, link: LinkChoice) -> Self {
        self.link = link;
        self
    }

    /// Falls back to [`LinkChoice::Kernel`] if the devices cannot be used: none is named, one does
    /// not exist, or rights, BPF or memory are missing. A warning names the cause and the remedy.
    /// Mistakes in other settings are still errors.
    ///
    /// ```
    /// let runtime = fastsock::Runtime::builder().device("no-such-device0").or_kernel().build()?;
    /// # drop(runtime);
    /// # Ok::<(), fastsock::BuildError>(())
    /// ```
    pub fn or_kernel(mut self) -> Self {
        self.or_kernel = true;
        self
    }

    /// Starts without the devices, which another program has: all connections are the kernel's. When
    /// that program has detached from a device (a check each second), this one attaches to it. From
    /// then on new connections are the core's, and the kernel keeps those that it has. Only with
    /// AF_XDP, and on devices that no daemon shares. With [`crate::CoreRef::listen_by`] and
    /// [`crate::PortLease::leave`], a program is replaced without a refused connection.
    pub fn late_devices(mut self, late: bool) -> Self {
        self.late_devices = late;
        self
    }

    /// Sets own addresses for the next device without them, in the order of `.device(…)`. Either
    /// every device has own addresses or none. AF_XDP, the default link, refuses them: choose another
    /// [`LinkChoice`]. Without them the kernel's addresses, routes and
    /// neighbours are used, and their changes are followed.
    pub fn standalone(mut self, standalone: Standalone) -> Self {
        self.standalone.push(standalone);
        self
    }

    /// Sets the frames of each core. Default: 16384.
    pub fn frames(mut self, frames: u32) -> Self {
        self.frames = frames;
        self
    }

    /// Sets the bytes of each frame, 2048 or 4096. Default: 2048 if the MTU fits into one, else
    /// 4096.
    pub fn frame_size(mut self, bytes: u32) -> Self {
        self.frame_size = Some(bytes);
        self
    }

    /// TCP's constants.
    pub fn tcp(mut self, tcp: TcpConfig) -> Self {
        self.tcp = tcp;
        self
    }

    /// Sets the limits of each core.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how many local ports to reserve for connects. The cores divide them. Default: 2048 for
    /// each core, but at least 8192 and at most 28672. With 0, a connect needs a bound port.
    pub fn ephemeral_ports(mut self, count: usize) -> Self {
        self.ephemeral_ports = Some(count);
        self
    }

    /// Sets the first reserved port. Default: 20000.
    pub fn ephemeral_ports_from(mut self, first: u16) -> Self {
        self.ephemeral_first = first;
        self
    }

    /// Sets the randomness of the engine, for reproducible runs. Default: from the kernel.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Accepts packets whose checksum field only has the sum of the pseudo-header, as kernel peers
    /// on virtual links send them. Default: on links that are known to be virtual.
    pub fn accept_partial_checksum(mut self, accept: bool) -> Self {
        self.accept_partial_checksum = Some(accept);
        self
    }

    /// Sets whether to ask the kernel before a connect how it would route the connection (routes,
    /// rules, and the effect of the program's user). If it would leave through another device, or
    /// not at all, a kernel socket makes the connection. Default: yes. Use `false` in a program
    /// that connects and listens for other programs and has already asked the kernel about their
    /// users and marks; the runtime then has no kernel sockets. In standalone addressing the kernel
    /// is never asked, and there are no kernel sockets either.
    pub fn ask_for_routes(mut self, ask: bool) -> Self {
        self.asks_for_routes = ask;
        self
    }

    /// Returns the chosen policy.
    pub(crate) fn policy(&self) -> PollPolicy {
        let default = if self.pin { PollPolicy::throughput() } else { PollPolicy::shared() };
        let policy = self.policy.unwrap_or(default);
        PollPolicy { spin: self.spin.unwrap_or(policy.spin), ..policy }
    }

    /// Returns how many local ports to reserve.
    pub(crate) fn ports_to_reserve(&self) -> usize {
        if self.queues.is_some() {
            // Kernel sockets make the connections.
            return self.ephemeral_ports.unwrap_or(0);
        }
        let default = (EPHEMERAL_PORTS_PER_CORE * self.cores.len()).clamp(EPHEMERAL_PORTS_MIN, EPHEMERAL_PORTS_MAX);
        self.ephemeral_ports.unwrap_or(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_policy_is_used() {
        let builder = Builder::default;
        assert_eq!(builder().policy(), PollPolicy::throughput());
        assert_eq!(builder().pin(false).policy(), PollPolicy::shared());
        assert_eq!(builder().pin(false).poll_policy(PollPolicy::throughput()).policy(), PollPolicy::throughput());
        assert_eq!(builder().busy_poll(true).policy(), PollPolicy::latency());
        assert_eq!(builder().busy_poll(true).busy_poll(false).policy(), PollPolicy::throughput());
        let spin = Duration::from_micros(5);
        assert_eq!(builder().spin(spin).pin(false).policy(), PollPolicy { spin, ..PollPolicy::shared() });
    }
}
