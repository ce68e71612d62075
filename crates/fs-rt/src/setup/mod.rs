//! Makes a [`Runtime`] from a [`Builder`]: check, open, reserve. After a failure, everything that
//! was opened is dropped, which closes it.

mod check;
mod links;

use crate::broker::{self, SharedDevice};
use crate::builder::{Builder, LinkChoice, Standalone};
use crate::carrier::Carriers;
use crate::control;
use crate::error::BuildError;
use crate::kernel::{ControlPlane, Mirror, RouteLookup};
use crate::mailbox::{Inbox, matrix};
use crate::netlink::Netlink;
use crate::poll::PollPolicy;
use crate::ports::{Addresses, Ephemeral, PortSink, Ports, reserve_ephemeral};
use crate::rss::Known;
use crate::runtime::{CoreSetup, End, Runtime};
use crate::shared::{Message, Shared};
use crate::sys::{Clock, raise_open_files};
use check::{check, choose_cores, find_devices};
use fs_core::PortSet;
use fs_core::{Addressing, Cidr, CoreId, IfaceId, Interface, Route, Secret, StackConfig};
use fs_xdp::{LinkCaps, NetDevice, XdpError};
use links::{Opened, link_error, open};
use std::ffi::OsStr;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

/// Selects the link, also for programs that ask for another one.
const LINK_VARIABLE: &str = "FASTSOCK_LINK";

impl Builder {
    /// Opens everything: frames, devices, queues, ports. On an error nothing stays set up.
    pub fn build(self) -> Result<Runtime, BuildError> {
        build(self)
    }
}

fn build(mut builder: Builder) -> Result<Runtime, BuildError> {
    let takes_devices = !matches!(builder.link, LinkChoice::Memory(_));
    if by_environment(std::env::var_os(LINK_VARIABLE).as_deref())? && takes_devices {
        on_kernel(&mut builder);
    }
    let cores = builder.cores.clone();
    match build_once(&mut builder) {
        Err(missing) if builder.or_kernel && missing.is_about_devices() => {
            on_kernel(&mut builder);
            builder.cores = cores;
            let runtime = build_once(&mut builder)?;
            warn(&missing);
            Ok(runtime)
        }
        built => built,
    }
}

/// Returns true if the environment selects kernel sockets.
fn by_environment(link: Option<&OsStr>) -> Result<bool, BuildError> {
    match link.map(OsStr::to_string_lossy).as_deref() {
        None | Some("") => Ok(false),
        Some("kernel") => Ok(true),
        Some(other) => Err(BuildError::Config(format!(
            "{LINK_VARIABLE}={other}: the only value is \"kernel\", which selects kernel sockets"
        ))),
    }
}

fn on_kernel(builder: &mut Builder) {
    builder.link = LinkChoice::Kernel;
    builder.queues = None;
    builder.standalone.clear();
}

/// Warns once that the program runs without its device. Prints to standard error if no subscriber
/// of `tracing` is set.
fn warn(missing: &BuildError) {
    const WHAT: &str = "no device, so all sockets are kernel sockets";
    if tracing::dispatcher::has_been_set() {
        tracing::warn!(%missing, "{WHAT}");
    } else {
        // `eprintln` would panic if standard error cannot be written.
        let _unheard = writeln!(std::io::stderr(), "fastsock: {WHAT}: {missing}");
    }
}

fn build_once(builder: &mut Builder) -> Result<Runtime, BuildError> {
    let kernel = matches!(builder.link, LinkChoice::Kernel);
    let shared_devices = shared_devices(builder)?;
    choose_cores(builder, &shared_devices)?;
    check(builder)?;
    let devices = match &shared_devices[..] {
        _ if kernel => Vec::new(),
        [] => find_devices(builder)?,
        shared => shared.iter().map(|shared| shared.net_device()).collect(),
    };
    if kernel {
        builder.devices.clear();
        builder.frames = builder.frames.min(FRAMES_OF_KERNEL);
        // Each connection has a descriptor. As many as a runtime with devices has for its ports.
        raise_open_files(builder.ports_to_reserve());
        builder.ephemeral_ports = Some(0);
    }
    let mut opened = open(builder, &devices, &shared_devices)?;
    let cores = builder.cores.len();
    // The daemon's namespace may be another one.
    let (of_mirror, of_routes) = opened.netlink.take().map_or((None, None), |[one, other]| (Some(one), Some(other)));
    let is_late = builder.late_devices && !kernel;
    let indexes: Vec<u32> = devices.iter().map(|device| if is_late { NO_DEVICE } else { device.index }).collect();
    let mirror =
        if builder.standalone.is_empty() && !kernel { Some(mirror(&devices, &indexes, of_mirror)?) } else { None };
    let routes = mirror.as_ref().map_or_else(|| standalone_routes(&builder.standalone), |m| m.routes.clone());
    let host_addresses = mirror.as_ref().map_or_else(Vec::new, Mirror::host_addresses);
    let interfaces = interfaces(builder, &opened, mirror.as_ref());
    let (ephemeral, reservations) = ephemeral_ports(builder, mirror.is_some() || kernel, &shared_devices)?;
    let addresses = mirror.as_ref().map(Mirror::addresses);
    let ports = announce(builder, &mut opened, addresses.as_ref(), &ephemeral, reservations, &shared_devices)?;

    let no_eventfd = |source| BuildError::System { what: "cannot make an eventfd", source };
    let inboxes = (0..cores).map(|_| Inbox::new()).collect::<Result<Vec<_>, _>>().map_err(no_eventfd)?;
    let control = match &mirror {
        Some(mirror) => {
            let indexes = mirror.devices.iter().map(|device| device.index).collect();
            let open = || match of_routes {
                Some(netlink) => Ok(RouteLookup::by(netlink, indexes)),
                None => RouteLookup::open(indexes),
            };
            let routes = builder.asks_for_routes.then(open).transpose();
            let routes = routes.map_err(|source| BuildError::Netlink { what: "routes", source })?;
            let routes = routes.map(|routes| routes.by_kernel(builder.queues.is_some()));
            ControlPlane::new(routes).map_err(no_eventfd)?
        }
        None => ControlPlane::none(),
    };
    let carriers = match (kernel, builder.standalone.is_empty() && builder.asks_for_routes) {
        (true, _) => Carriers::Kernel,
        (false, true) => Carriers::Both,
        (false, false) => Carriers::Core,
    };
    let openers = opened.openers.clone();
    let devices_of = (builder.devices.clone(), builder.queues.clone());
    let shared = Arc::new(Shared::new(inboxes.into(), ports, control, openers, devices_of, carriers));
    if let Some(mirror) = mirror {
        follow(&shared, mirror, addresses.unwrap_or_default())?;
    }

    let secret = match builder.secret {
        Some(secret) => secret,
        None => random_secret().map_err(|source| BuildError::System { what: "cannot get random bytes", source })?,
    };
    let rss = Known::read(&devices, &interfaces);
    let clock = Clock::start();
    let Opened { links, pools, keep, given_up, .. } = opened;
    let mut given_up = Some(given_up);
    let setups = links.into_iter().zip(pools).zip(matrix(cores)).enumerate();
    let setups = setups.map(|(index, ((links, pool), mail))| CoreSetup {
        config: StackConfig {
            core: CoreId(index as u16),
            cores: cores as u16,
            tcp: builder.tcp.clone(),
            limits: builder.limits.clone(),
            ephemeral_ports: ephemeral.clone(),
            large_table: Some(fs_xdp::huge_pages),
            nonlocal_bind: carriers != Carriers::Core,
            ..StackConfig::new(secret)
        },
        pool,
        links,
        interfaces: interfaces.clone(),
        scopes: indexes.clone(),
        is_late,
        routes: routes.clone(),
        host_addresses: host_addresses.clone(),
        mail,
        // The runtime makes no connections of its own with named queues.
        steering: rss.steering(cores).filter(|_| builder.queues.is_none()),
        cpu: builder.cores[index],
        pin: builder.pin,
        policy: if kernel { PollPolicy { spin: Duration::ZERO, ..builder.policy() } } else { builder.policy() },
        drain: builder.drain,
        clock,
        given_up: given_up.take().unwrap_or_default(),
    });
    Ok(Runtime { cores: setups.collect(), end: End(shared), keep })
}

/// Ephemeral ports of a program on shared devices, unless it asks for a number: several programs
/// divide the ports below Linux's own, and each port is a descriptor of the program and one of the
/// daemon.
const EPHEMERAL_PORTS_SHARED: usize = 1024;

/// Frames of a core with kernel sockets, for buffers that are sent and received whole. Higher:
/// unused memory.
const FRAMES_OF_KERNEL: u32 = 1024;

/// Returns the devices that a daemon shares, if the program leaves the choice of the link to us.
fn shared_devices(builder: &Builder) -> Result<Vec<Arc<SharedDevice>>, BuildError> {
    let is_free = matches!(builder.link, LinkChoice::XdpAuto) && builder.queues.is_none();
    if !is_free || !builder.standalone.is_empty() {
        return Ok(Vec::new());
    }
    broker::find(&builder.devices).map_err(|source| BuildError::System { what: "cannot use a shared device", source })
}

/// The index of a device that is not attached to yet. No device has it.
const NO_DEVICE: u32 = 0;

/// `netlink`: of shared devices.
fn mirror(devices: &[NetDevice], indexes: &[u32], netlink: Option<Netlink>) -> Result<Mirror, BuildError> {
    let read = match netlink {
        Some(netlink) => Mirror::of_shared(netlink, indexes),
        None => Mirror::read(indexes),
    };
    let mirror = read.map_err(|source| BuildError::Netlink { what: "addresses, routes and neighbours", source })?;
    for (device, known) in devices.iter().zip(&mirror.devices) {
        if known.addrs.is_empty() && !known.gone {
            tracing::warn!(device = device.name, "the device has no address yet: it is used when it gets one");
        }
    }
    Ok(mirror)
}

fn interfaces(builder: &Builder, opened: &Opened, mirror: Option<&Mirror>) -> Vec<Interface> {
    let caps = opened.caps();
    let interface = |(n, caps): (usize, &LinkCaps)| {
        let own = builder.standalone.get(n);
        let known = mirror.map(|mirror| &mirror.devices[n]);
        let addrs = own.map(|own| &own.addrs).or(known.map(|known| &known.addrs));
        Interface {
            framing: caps.framing,
            mac: own.and_then(|own| own.mac).unwrap_or(caps.mac),
            vlan: None,
            mtu: caps.mtu,
            addrs: addrs.cloned().unwrap_or_default(),
            addressing: if own.is_some() { Addressing::Standalone } else { Addressing::Host },
            tx_checksum: caps.tx_checksum,
            accept_partial_checksum: builder.accept_partial_checksum.unwrap_or(caps.virtual_peer),
        }
    };
    caps.iter().enumerate().map(interface).collect()
}

/// Reserves the ports for connects. In the host's addressing a kernel socket holds each.
fn ephemeral_ports(
    builder: &Builder,
    in_kernel: bool,
    shared: &[Arc<SharedDevice>],
) -> Result<(PortSet, Ephemeral), BuildError> {
    let mut wanted = builder.ports_to_reserve();
    if !shared.is_empty() && builder.ephemeral_ports.is_none() {
        wanted = wanted.min(EPHEMERAL_PORTS_SHARED);
    }
    let first = builder.ephemeral_first;
    let mut set = PortSet::new();
    if !in_kernel {
        (first..=u16::MAX).take(wanted).for_each(|port| {
            set.insert(port);
        });
        return Ok((set, Ephemeral::default()));
    }
    // The higher the limit, the fewer threads hold them.
    raise_open_files(wanted);
    let held = match shared {
        [] => reserve_ephemeral(first, wanted),
        shared => broker::ports::ephemeral(shared, first, wanted),
    };
    let held = held.map_err(|source| BuildError::System { what: "cannot reserve ephemeral ports", source })?;
    let got = held.ports.len();
    if got < wanted {
        let reason = "the others are in use, or descriptors ran out: choose another first port with \
                      .ephemeral_ports_from(…), or raise RLIMIT_NOFILE";
        if got == 0 {
            return Err(BuildError::EphemeralPorts { wanted, got, reason: reason.into() });
        }
        tracing::warn!(wanted, got, "fewer ephemeral ports were reserved than wanted: {reason}");
    }
    held.ports.iter().for_each(|port| {
        set.insert(*port);
    });
    Ok((set, held))
}

/// Minimum time for which a port stays ours after its last socket in standalone addressing. Its
/// connections may still send: with a peer that offers no window, for 205 s. Lower: such a
/// connection is cut off. Higher: more of the 10,000 ports that the runtime chooses from are in use.
const STANDALONE_COOL_DOWN: Duration = Duration::from_secs(300);

/// Tells the devices' programs our ports and addresses.
fn announce(
    builder: &Builder,
    opened: &mut Opened,
    addresses: Option<&Addresses>,
    ephemeral: &PortSet,
    reservations: Ephemeral,
    shared: &[Arc<SharedDevice>],
) -> Result<Ports, BuildError> {
    let mut sinks: Vec<Option<Box<dyn PortSink>>> = Vec::new();
    sinks.extend(shared.iter().map(|device| Some(Box::new(device.clone()) as Box<dyn PortSink>)));
    for (n, table) in opened.tables.drain(..).enumerate() {
        let refused = |error: XdpError| link_error(&builder.devices[n], error);
        if let Some(Addresses { ours, elsewhere }) = addresses {
            table.set_addresses(ours, elsewhere).map_err(refused)?;
        }
        table.set_ephemeral_ports(ephemeral.iter()).map_err(refused)?;
        sinks.push(Some(Box::new(table)));
    }
    // Devices that are not attached to yet.
    sinks.resize_with(builder.devices.len().max(sinks.len()), || None);
    let in_kernel = builder.standalone.is_empty();
    let last_packets = builder.tcp.time_wait.max(builder.tcp.fin_wait_2);
    let cool_down = if in_kernel { last_packets } else { last_packets.max(STANDALONE_COOL_DOWN) };
    Ok(Ports::new(in_kernel, sinks, reservations, cool_down))
}

fn follow(shared: &Arc<Shared>, mirror: Mirror, told: Addresses) -> Result<(), BuildError> {
    for inbox in shared.inboxes.iter() {
        mirror.neighbours().for_each(|neighbour| inbox.send(Message::World(neighbour)));
    }
    control::start(shared, mirror, told)
        .map_err(|source| BuildError::System { what: "cannot start the control thread", source })
}

/// Returns each address's own network on the link, and the default routes.
fn standalone_routes(standalone: &[Standalone]) -> Vec<Route> {
    let mut routes = Vec::new();
    for (n, own) in standalone.iter().enumerate() {
        let iface = IfaceId(n as u8);
        routes.extend(own.addrs.iter().map(|&to| Route {
            to,
            gateway: None,
            iface,
            metric: 0,
            source: None,
            refusal: None,
        }));
        routes.extend(own.gateways.iter().map(|&gateway| {
            let any: IpAddr =
                if gateway.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            Route {
                to: Cidr { addr: any, prefix: 0 },
                gateway: Some(gateway),
                iface,
                metric: 0,
                source: None,
                refusal: None,
            }
        }));
    }
    routes
}

fn random_secret() -> std::io::Result<Secret> {
    let mut bytes = [0; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(Secret(bytes))
}
