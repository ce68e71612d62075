//! What a runtime is made of.

use crate::poll::PollPolicy;
use fs_core::{Cidr, Limits, Secret, TcpConfig};
use fs_xdp::Link;
use std::net::IpAddr;
use std::time::Duration;

/// Frames of a core: 16384 × 2 KiB = 32 MiB. A queue's rings take 3 × 2048 at most, of which 1024 always; the rest is in
/// flight.
const FRAMES: u32 = 16_384;

/// Packets that wait for a neighbour's address: as many as Linux keeps (212,992 bytes, 768 or more for each small one).
/// With fewer, the first burst of connections to a server is thrown away but for so many SYNs, and the others come a
/// second later. All together never hold more than an eighth of the frames.
const NEIGHBOUR_QUEUE: u32 = 256;

/// Active ports reserved: each is one kernel socket (about 3 µs and 1.5 KiB). One port serves one connection per
/// destination, so this bounds connections to one server, not in all. With up to four cores they end below Linux's own
/// ephemeral range.
const ACTIVE_PORTS: usize = 8192;

/// Those of each core beyond four: the cores divide the ports among them. 16 cores and more have 28,672, as many as Linux's
/// ephemeral range, of which they take about half then.
const ACTIVE_PORTS_EACH: usize = 2048;
const ACTIVE_PORTS_MOST: usize = 28_672;

/// The first active port: below Linux's ephemeral range (32768), above where services live.
const ACTIVE_FIRST: u16 = 20_000;

/// Names the devices of programs that name none themselves.
const DEVICE_VARIABLE: &str = "FASTSOCK_DEVICE";

/// Which XDP mode to ask for.
///
/// ```no_run
/// use fs_rt::{LinkChoice, Runtime, XdpMode};
///
/// let link = LinkChoice::Xdp { mode: XdpMode::Native };
/// let runtime = Runtime::builder().device("eth0").cores([0]).link(link).build()?;
/// # drop(runtime);
/// # Ok::<(), fs_rt::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpMode {
    /// Native where the driver can, else generic.
    #[default]
    Auto,
    /// In the driver, or fail.
    Native,
    /// Native where the driver can, else generic; packets are always copied.
    Copy,
    /// On skbs.
    Generic,
}

/// The kind of link that carries a runtime's packets.
///
/// ```no_run
/// use fs_rt::{LinkChoice, Runtime, Standalone};
/// use std::net::Ipv4Addr;
///
/// // Without BPF: a packet socket, and an address that the kernel does not know.
/// let own = Standalone::new().addr(Ipv4Addr::new(192, 0, 2, 10), 24);
/// let runtime = Runtime::builder().device("eth0").cores([0]).link(LinkChoice::Packet).standalone(own).build()?;
/// # drop(runtime);
/// # Ok::<(), fs_rt::BuildError>(())
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
    /// AF_PACKET on the given devices: needs no BPF, only CAP_NET_RAW (a user namespace has it). Standalone
    /// addressing only, because the kernel sees every packet too and would answer.
    Packet,
    /// A TAP device for each given name, made if it does not exist; one of its queues for each core. Standalone
    /// addressing only.
    Tap,
    /// Given links, one for each core, on one nameless device. For tests and simulation.
    Memory(Vec<Box<dyn Link>>),
    /// None: the same sockets, all of them the kernel's. Needs no rights and no device; devices that are named are not
    /// looked at. The environment variable `FASTSOCK_LINK=kernel` chooses it for a program that was written for AF_XDP.
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

/// Addresses that the stack has on a device and the kernel does not.
///
/// ```no_run
/// use fs_rt::{Runtime, Standalone};
/// use std::net::Ipv4Addr;
///
/// let own = Standalone::new().addr(Ipv4Addr::new(192, 0, 2, 10), 24).gateway(Ipv4Addr::new(192, 0, 2, 1));
/// let runtime = Runtime::builder().device("eth0").cores([0]).standalone(own).build()?;
/// # drop(runtime);
/// # Ok::<(), fs_rt::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Standalone {
    /// Our addresses.
    pub addrs: Vec<Cidr>,
    /// Default gateways, at most one per family.
    pub gateways: Vec<IpAddr>,
    /// Our MAC address; the device's if `None`.
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

/// Builds a [`Runtime`](crate::Runtime). Every setting has a default but the devices.
///
/// ```no_run
/// use std::time::Duration;
///
/// let runtime = fs_rt::Runtime::builder()
///     .device("eth0")
///     .cores([2, 3])
///     .frames(16_384)
///     .drain(Duration::from_secs(5))
///     .build()?;
/// # drop(runtime);
/// # Ok::<(), fs_rt::BuildError>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Builder {
    pub(crate) devices: Vec<String>,
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
    pub(crate) active_ports: Option<usize>,
    pub(crate) active_first: u16,
    pub(crate) secret: Option<Secret>,
    pub(crate) accept_partial_checksum: Option<bool>,
    pub(crate) asks_for_ways: bool,
    pub(crate) or_kernel: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
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
            active_ports: None,
            active_first: ACTIVE_FIRST,
            secret: None,
            accept_partial_checksum: None,
            asks_for_ways: true,
            or_kernel: false,
        }
    }
}

impl Builder {
    /// Adds a device. Each core opens the queues of each device that are its share: queue i, i + cores, ….
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.devices.push(name.into());
        self
    }

    /// Adds the devices that `FASTSOCK_DEVICE` names in the environment, with commas between them, if none has been named.
    pub fn devices_of_environment(self) -> Self {
        let named = std::env::var(DEVICE_VARIABLE).unwrap_or_default();
        if !self.devices.is_empty() {
            return self;
        }
        named.split(',').map(str::trim).filter(|name| !name.is_empty()).fold(self, Self::device)
    }

    /// The CPUs to run on: one pinned thread each. Default: as many of the process's CPUs as the device has receive queues;
    /// with [`LinkChoice::Kernel`] all of them. A core without a queue of its own could not send: where a device has fewer
    /// queues than cores are named here, the first ones of them run, and a line in the log says so.
    pub fn cores(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.cores = cpus.into_iter().collect();
        self
    }

    /// Whether threads are pinned (default: yes).
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// When a core looks for work, and when it sleeps. Default: [`PollPolicy::throughput`], or [`PollPolicy::shared`] where
    /// threads are not pinned.
    pub fn poll_policy(mut self, policy: PollPolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Never sleep: lowest latency, 100 % of each core. Short for [`Builder::poll_policy`] with [`PollPolicy::latency`]; `false`
    /// is the default policy.
    pub fn busy_poll(mut self, busy_poll: bool) -> Self {
        self.policy = busy_poll.then(PollPolicy::latency);
        self
    }

    /// How long an idle core looks for work before it sleeps, whatever the policy says: [`PollPolicy::spin`].
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = Some(spin);
        self
    }

    /// How long the end of a run waits for closed connections to send what they still hold. Default: 1 s.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// What carries the packets. Default: AF_XDP. `FASTSOCK_LINK=kernel` in the environment replaces it by
    /// [`LinkChoice::Kernel`].
    pub fn link(mut self, link: LinkChoice) -> Self {
        self.link = link;
        self
    }

    /// Takes [`LinkChoice::Kernel`] where the devices cannot be had: none is named, one is not there, or rights, BPF or memory
    /// are missing. A warning says what is missing and the cure. Mistakes in the other settings stay errors.
    ///
    /// ```
    /// let runtime = fs_rt::Runtime::builder().device("no-such-device0").or_kernel().build()?;
    /// # drop(runtime);
    /// # Ok::<(), fs_rt::BuildError>(())
    /// ```
    pub fn or_kernel(mut self) -> Self {
        self.or_kernel = true;
        self
    }

    /// Own addresses for the next device without them, in the order of `.device(…)`. Either every device has
    /// them or none (then the kernel's addresses, routes and neighbours are used, and followed as they change).
    pub fn standalone(mut self, standalone: Standalone) -> Self {
        self.standalone.push(standalone);
        self
    }

    /// Frames of each core. Default: 16384.
    pub fn frames(mut self, frames: u32) -> Self {
        self.frames = frames;
        self
    }

    /// Bytes of each frame, 2048 or 4096. Default: 2048 where the MTU fits into one, else 4096.
    pub fn frame_size(mut self, bytes: u32) -> Self {
        self.frame_size = Some(bytes);
        self
    }

    /// TCP's constants.
    pub fn tcp(mut self, tcp: TcpConfig) -> Self {
        self.tcp = tcp;
        self
    }

    /// Upper bounds of each core.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Local ports to reserve for connects, which the cores divide among them. Default: 2048 for each core, but at least
    /// 8192 and at most 28672. 0: no connects without a bound port.
    pub fn active_ports(mut self, count: usize) -> Self {
        self.active_ports = Some(count);
        self
    }

    /// Where the active ports start. Default: 20000.
    pub fn active_ports_from(mut self, first: u16) -> Self {
        self.active_first = first;
        self
    }

    /// Randomness of the engine, for runs that are to be repeated. Default: from the kernel.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Accept packets whose checksum field holds only the pseudo-header's sum, as kernel peers on virtual links
    /// send them. Default: on links that are known to be virtual.
    pub fn accept_partial_checksum(mut self, accept: bool) -> Self {
        self.accept_partial_checksum = Some(accept);
        self
    }

    /// Whether the kernel is asked, before a connect, which way it would send the connection (its routes, rules of routing and what
    /// it does with the program's user): one that would leave by another device, or not at all, is made by a socket of the kernel.
    /// Default: yes. `false` is for a program that connects and listens for others, whose users and marks the kernel has been asked
    /// about already: then no socket of the runtime is the kernel's. In standalone addressing nobody is asked, and none is either.
    pub fn ask_for_ways(mut self, ask: bool) -> Self {
        self.asks_for_ways = ask;
        self
    }

    /// What was chosen.
    pub(crate) fn policy(&self) -> PollPolicy {
        let default = if self.pin { PollPolicy::throughput() } else { PollPolicy::shared() };
        let policy = self.policy.unwrap_or(default);
        PollPolicy { spin: self.spin.unwrap_or(policy.spin), ..policy }
    }

    /// Local ports to reserve.
    pub(crate) fn ports_to_reserve(&self) -> usize {
        let default = (ACTIVE_PORTS_EACH * self.cores.len()).clamp(ACTIVE_PORTS, ACTIVE_PORTS_MOST);
        self.active_ports.unwrap_or(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_the_one_that_was_chosen() {
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
