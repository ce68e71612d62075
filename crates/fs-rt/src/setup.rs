//! From a [`Builder`] to a [`Runtime`]: check, open, reserve. What was opened before a failure is dropped, which
//! closes it.

use crate::builder::{Builder, LinkChoice, Standalone};
use crate::control::{Control, Mirror, Ways};
use crate::error::BuildError;
use crate::mailbox::{Inbox, matrix};
use crate::open::{Opened, link_error, open};
use crate::poll::PollPolicy;
use crate::ports::{Active, Addresses, PortSink, Ports, reserve_active};
use crate::rss::Known;
use crate::runtime::{Carriers, Control as Message, CoreSetup, Runtime, Shared};
use crate::sys::{Clock, online_cpus, raise_open_files};
use fs_core::PortSet;
use fs_core::{Addressing, Cidr, CoreId, IfaceId, Interface, Route, Secret, StackConfig};
use fs_xdp::{LinkCaps, NetDevice, XdpError};
use std::ffi::OsStr;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

/// Chooses the link for programs that do not ask for one, or ask for another.
const LINK_VARIABLE: &str = "FASTSOCK_LINK";

pub(crate) fn build(mut builder: Builder) -> Result<Runtime, BuildError> {
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

/// Whether the environment asks for the kernel's sockets.
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
    builder.standalone.clear();
}

/// Warns once, on standard error if no subscriber of `tracing` is set: the program is slower than with its device.
fn warn(missing: &BuildError) {
    const WHAT: &str = "no device, so all sockets are kernel sockets";
    if tracing::dispatcher::has_been_set() {
        tracing::warn!(%missing, "{WHAT}");
    } else {
        eprintln!("fastsock: {WHAT}: {missing}");
    }
}

fn build_once(builder: &mut Builder) -> Result<Runtime, BuildError> {
    let kernel = matches!(builder.link, LinkChoice::Kernel);
    choose_cores(builder)?;
    check(builder)?;
    let devices = if kernel { Vec::new() } else { find_devices(builder)? };
    if kernel {
        builder.devices.clear();
        builder.frames = builder.frames.min(FRAMES_OF_KERNEL);
        builder.active_ports = Some(0);
    }
    let mut opened = open(builder, &devices)?;
    let cores = builder.cores.len();
    let mirror = if builder.standalone.is_empty() && !kernel { Some(mirror(&devices)?) } else { None };
    let routes = mirror.as_ref().map_or_else(|| standalone_routes(&builder.standalone), |m| m.routes.clone());
    let interfaces = interfaces(builder, &opened, mirror.as_ref());
    let (active, reservations) = active_ports(builder, mirror.is_some() || kernel)?;
    let addresses = mirror.as_ref().map(Mirror::addresses);
    let ports = announce(builder, &mut opened, addresses.as_ref(), &active, reservations)?;

    let bell = |source| BuildError::System { what: "cannot make an eventfd", source };
    let inboxes = (0..cores).map(|_| Inbox::new()).collect::<Result<Vec<_>, _>>().map_err(bell)?;
    let control = match &mirror {
        Some(mirror) => {
            let indexes = mirror.devices.iter().map(|device| device.index).collect();
            let ways = builder.asks_for_ways.then(|| Ways::open(indexes)).transpose();
            let ways = ways.map_err(|source| BuildError::Netlink { what: "routes", source })?;
            Control::new(ways).map_err(bell)?
        }
        None => Control::none(),
    };
    let carriers = match (kernel, builder.standalone.is_empty() && builder.asks_for_ways) {
        (true, _) => Carriers::Kernel,
        (false, true) => Carriers::Both,
        (false, false) => Carriers::Core,
    };
    let openers = opened.openers.clone();
    let shared = Arc::new(Shared::new(inboxes.into(), ports, control, openers, builder.devices.clone(), carriers));
    if let Some(mirror) = mirror {
        follow(&shared, mirror, addresses.unwrap_or_default())?;
    }

    let secret = match builder.secret {
        Some(secret) => secret,
        None => random_secret().map_err(|source| BuildError::System { what: "cannot read /dev/urandom", source })?,
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
            ephemeral_ports: active.clone(),
            large_table: Some(fs_xdp::huge_pages),
            nonlocal_bind: carriers != Carriers::Core,
            ..StackConfig::new(secret)
        },
        pool,
        links,
        interfaces: interfaces.clone(),
        scopes: devices.iter().map(|device| device.index).collect(),
        routes: routes.clone(),
        mail,
        steering: rss.steering(cores),
        cpu: builder.cores[index],
        pin: builder.pin,
        policy: if kernel { PollPolicy { spin: Duration::ZERO, ..builder.policy() } } else { builder.policy() },
        drain: builder.drain,
        clock,
        given_up: given_up.take().unwrap_or_default(),
    });
    Ok(Runtime { cores: setups.collect(), shared, keep })
}

/// Frames of a core whose sockets are the kernel's: for buffers that are sent and received whole. Higher: memory for nothing.
const FRAMES_OF_KERNEL: u32 = 1024;

/// The CPUs of the process, where the program names none: one for each queue that every device has.
fn choose_cores(builder: &mut Builder) -> Result<(), BuildError> {
    if !builder.cores.is_empty() {
        return Ok(());
    }
    let queues = match &builder.link {
        LinkChoice::Memory(links) => links.len(),
        LinkChoice::Tap => 1,
        LinkChoice::Kernel => usize::MAX,
        // One that is not there is named when it is to be opened.
        _ => {
            let devices = builder.devices.iter().filter_map(|name| NetDevice::find(name).ok());
            devices.map(|device| device.queue_counts().rx as usize).min().unwrap_or(1)
        }
    };
    let available = online_cpus().map_err(|source| BuildError::System { what: "cannot read the CPU set", source })?;
    if queues > available.len() && queues < usize::MAX {
        tracing::info!(queues, cores = available.len(), "each core has several queues of the device");
    }
    builder.cores = available.into_iter().take(queues.max(1)).collect();
    Ok(())
}

/// Frames of a core: what a queue needs at least to receive, and as many in flight. Lower: no link opens.
const FRAMES_LEAST: u32 = 128;

fn check(builder: &Builder) -> Result<(), BuildError> {
    let memory_links = matches!(builder.link, LinkChoice::Memory(_));
    let kernel = matches!(builder.link, LinkChoice::Kernel);
    if builder.devices.is_empty() && !memory_links && !kernel {
        return Err(BuildError::NoDevice);
    }
    if kernel && !builder.standalone.is_empty() {
        return Err(BuildError::Config(
            "the kernel's sockets have the host's addresses: drop .standalone(…), or take another link".into(),
        ));
    }
    let devices = if memory_links { 1 } else { builder.devices.len() };
    if !builder.standalone.is_empty() && builder.standalone.len() != devices {
        return Err(BuildError::Config(format!(
            "{} of {devices} devices have standalone addresses: give them to all or to none",
            builder.standalone.len()
        )));
    }
    let is_xdp = matches!(builder.link, LinkChoice::XdpAuto | LinkChoice::Xdp { .. });
    if is_xdp && !builder.standalone.is_empty() {
        return Err(BuildError::Config(
            "AF_XDP uses the host's addresses, because the kernel answers ARP and NDISC for these only: remove \
             .standalone(…), or use the AF_PACKET link"
                .into(),
        ));
    }
    if !is_xdp && !kernel && builder.standalone.is_empty() {
        return Err(BuildError::Config(
            "this kind of link needs addresses of its own, because the host's kernel also sees and answers its \
             packets: add .standalone(…)"
                .into(),
        ));
    }
    if let LinkChoice::Memory(links) = &builder.link
        && links.len() != builder.cores.len()
    {
        return Err(BuildError::Config(format!(
            "{} memory links were given for {} cores: give one link per core",
            links.len(),
            builder.cores.len()
        )));
    }
    if let Some(size) = builder.frame_size
        && size != 2048
        && size != 4096
    {
        return Err(BuildError::Config(format!("the frame size is {size}: it must be 2048 or 4096")));
    }
    if builder.frames < FRAMES_LEAST {
        return Err(BuildError::Config(format!(
            "{} frames were given for each core, and {FRAMES_LEAST} are the minimum: raise .frames(…), or omit it \
             for the default of 16384",
            builder.frames
        )));
    }
    let ports_left = usize::from(u16::MAX - builder.active_first) + 1;
    let active_ports = builder.ports_to_reserve();
    if active_ports > 0 && (builder.active_first == 0 || active_ports > ports_left) {
        return Err(BuildError::Config(format!(
            "{} active ports from {} do not fit into ports 1 to 65535: lower .active_ports(…), or choose another \
             first port with .active_ports_from(…)",
            active_ports, builder.active_first
        )));
    }
    let least = builder.cores.len().next_power_of_two();
    if (1..least).contains(&active_ports) {
        return Err(BuildError::Config(format!(
            "{active_ports} active ports were given for {} cores, and each core needs ports of its own: \
             .active_ports({least}) is the minimum; omit it for the default",
            builder.cores.len()
        )));
    }
    if builder.pin {
        let mut seen = std::collections::BTreeSet::new();
        if let Some(&cpu) = builder.cores.iter().find(|cpu| !seen.insert(**cpu)) {
            return Err(BuildError::Config(format!(
                "CPU {cpu} is named twice in .cores(…), so two polling threads would share it: name each CPU once, \
                 or let the kernel place them with .pin(false)"
            )));
        }
        let available =
            online_cpus().map_err(|source| BuildError::System { what: "cannot read the CPU set", source })?;
        if let Some(&cpu) = builder.cores.iter().find(|cpu| !available.contains(cpu)) {
            return Err(BuildError::NoSuchCpu { cpu, available });
        }
    }
    Ok(())
}

/// The devices that the kernel has to know.
fn find_devices(builder: &Builder) -> Result<Vec<NetDevice>, BuildError> {
    if matches!(builder.link, LinkChoice::Memory(_) | LinkChoice::Tap) {
        return Ok(Vec::new());
    }
    let mut devices = Vec::with_capacity(builder.devices.len());
    for name in &builder.devices {
        let device = NetDevice::find(name).map_err(|error| link_error(name, error))?;
        // It can be opened, but no connection over it is ever answered: both of its ends are this host's kernel.
        if device.is_loopback() {
            return Err(BuildError::Loopback { device: device.name });
        }
        if !device.is_up() {
            tracing::warn!(device = name, "the device is down and carries no packets: `ip link set {name} up`");
        }
        devices.push(device);
    }
    Ok(devices)
}

fn mirror(devices: &[NetDevice]) -> Result<Mirror, BuildError> {
    let indexes: Vec<u32> = devices.iter().map(|device| device.index).collect();
    let mirror = Mirror::read(&indexes)
        .map_err(|source| BuildError::Netlink { what: "addresses, routes and neighbours", source })?;
    for (device, known) in devices.iter().zip(&mirror.devices) {
        if known.addrs.is_empty() {
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

/// The ports for connects. In the host's addressing each is held by a kernel socket.
fn active_ports(builder: &Builder, in_kernel: bool) -> Result<(PortSet, Active), BuildError> {
    let wanted = builder.ports_to_reserve();
    let first = builder.active_first;
    let mut set = PortSet::new();
    if !in_kernel {
        (first..=u16::MAX).take(wanted).for_each(|port| {
            set.insert(port);
        });
        return Ok((set, Active::default()));
    }
    // The higher the limit, the fewer threads hold them.
    if let Err(error) = raise_open_files(wanted) {
        tracing::debug!(%error, "cannot raise RLIMIT_NOFILE");
    }
    let held = reserve_active(first, wanted)
        .map_err(|source| BuildError::System { what: "cannot reserve active ports", source })?;
    let got = held.ports.len();
    if got < wanted {
        let reason = "the others are in use, or descriptors ran out: choose another first port with \
                      .active_ports_from(…), or raise RLIMIT_NOFILE";
        if got == 0 {
            return Err(BuildError::ActivePorts { wanted, got, reason: reason.into() });
        }
        tracing::warn!(wanted, got, "fewer active ports were reserved than wanted: {reason}");
    }
    held.ports.iter().for_each(|port| {
        set.insert(*port);
    });
    Ok((set, held))
}

/// Tells the devices' programs what is ours.
fn announce(
    builder: &Builder,
    opened: &mut Opened,
    addresses: Option<&Addresses>,
    active: &PortSet,
    reservations: Active,
) -> Result<Ports, BuildError> {
    let mut sinks: Vec<Box<dyn PortSink>> = Vec::new();
    for (n, table) in opened.tables.drain(..).enumerate() {
        let refused = |error: XdpError| link_error(&builder.devices[n], error);
        if let Some(Addresses { ours, elsewhere }) = addresses {
            table.set_addresses(ours, elsewhere).map_err(refused)?;
        }
        table.set_active_ports(active.iter()).map_err(refused)?;
        sinks.push(Box::new(table));
    }
    let in_kernel = builder.standalone.is_empty();
    let cool_down = builder.tcp.time_wait.max(builder.tcp.fin_wait_2);
    Ok(Ports::new(in_kernel, sinks, reservations, cool_down))
}

fn follow(shared: &Arc<Shared>, mirror: Mirror, told: Addresses) -> Result<(), BuildError> {
    for inbox in shared.inboxes.iter() {
        mirror.neighbours().for_each(|neighbour| inbox.send(Message::World(neighbour)));
    }
    shared
        .control
        .start(mirror, told, Arc::downgrade(shared))
        .map_err(|source| BuildError::System { what: "cannot start the control thread", source })
}

/// Each address's own network on the link, and the default routes.
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
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(Secret(bytes))
}
