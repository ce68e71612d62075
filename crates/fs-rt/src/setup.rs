//! From a [`Builder`] to a [`Runtime`]: check, open, reserve. What was opened before a failure is dropped, which
//! closes it.

use crate::builder::{Builder, LinkChoice, Standalone};
use crate::control::Control;
use crate::error::BuildError;
use crate::mailbox::{Inbox, matrix};
use crate::ports::Ports;
use crate::runtime::{CoreSetup, Runtime, Shared};
use crate::sys::{Clock, online_cpus};
use fs_core::{Addressing, Cidr, CoreId, IfaceId, Interface, Route, Secret, StackConfig};
use fs_xdp::{Link, LinkCaps, Umem, UmemConfig, UmemPool};
use std::any::Any;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// What opening the links gave.
struct Opened {
    /// For each core its queues.
    links: Vec<Vec<(Box<dyn Link>, IfaceId)>>,
    keep: Vec<Box<dyn Any + Send>>,
}

pub(crate) fn build(mut builder: Builder) -> Result<Runtime, BuildError> {
    check(&builder)?;
    let cores = builder.cores.len();
    let umem = memory(&builder)?;
    let mut pools: Vec<UmemPool> = Vec::with_capacity(cores);
    for _ in 0..cores {
        pools.push(umem.pool(builder.frames).map_err(|source| memory_error(&builder, source))?);
    }
    let opened = open(&mut builder, &umem, &mut pools)?;
    let interfaces = interfaces(&builder, &opened)?;
    let routes = standalone_routes(&builder.standalone);
    let secret = match builder.secret {
        Some(secret) => secret,
        None => random_secret().map_err(|source| BuildError::System { what: "cannot read /dev/urandom", source })?,
    };
    let bell = |source| BuildError::System { what: "cannot make an eventfd", source };
    let inboxes = (0..cores).map(|_| Inbox::new()).collect::<Result<Vec<_>, _>>().map_err(bell)?;
    let ports = Ports::new(false, Vec::new(), Vec::new(), builder.tcp.time_wait);
    let shared = Arc::new(Shared::new(inboxes.into(), ports, Control::none()));
    let clock = Clock::start();
    let setups = opened.links.into_iter().zip(pools).zip(matrix(cores)).enumerate();
    let setups = setups.map(|(index, ((links, pool), mail))| CoreSetup {
        config: StackConfig {
            core: CoreId(index as u16),
            cores: cores as u16,
            tcp: builder.tcp.clone(),
            limits: builder.limits.clone(),
            ..StackConfig::new(secret)
        },
        pool,
        links,
        interfaces: interfaces.clone(),
        routes: routes.clone(),
        mail,
        filter: None,
        cpu: builder.cores[index],
        pin: builder.pin,
        busy_poll: builder.busy_poll,
        spin: builder.spin,
        drain: builder.drain,
        clock,
    });
    Ok(Runtime { cores: setups.collect(), shared, keep: opened.keep })
}

fn check(builder: &Builder) -> Result<(), BuildError> {
    let memory_links = matches!(builder.link, LinkChoice::Memory(_));
    if builder.devices.is_empty() && !memory_links {
        return Err(BuildError::NoDevice);
    }
    if builder.cores.is_empty() {
        return Err(BuildError::NoCores);
    }
    let devices = if memory_links { 1 } else { builder.devices.len() };
    if !builder.standalone.is_empty() && builder.standalone.len() != devices {
        return Err(BuildError::Config(format!(
            "{} of {devices} devices have standalone addresses: give them to all or to none",
            builder.standalone.len()
        )));
    }
    if builder.standalone.is_empty() && !matches!(builder.link, LinkChoice::XdpAuto | LinkChoice::Xdp { .. }) {
        return Err(BuildError::Config(
            "this kind of link needs .standalone(…) addresses: the host's kernel sees its packets too and would answer them"
                .into(),
        ));
    }
    if let LinkChoice::Memory(links) = &builder.link
        && links.len() != builder.cores.len()
    {
        return Err(BuildError::Config(format!(
            "{} memory links for {} cores: give one for each",
            links.len(),
            builder.cores.len()
        )));
    }
    if let Some(size) = builder.frame_size
        && size != 2048
        && size != 4096
    {
        return Err(BuildError::Config(format!("frame size {size}: it has to be 2048 or 4096")));
    }
    if builder.pin {
        let available = online_cpus().map_err(|source| BuildError::System { what: "cannot read the CPU set", source })?;
        if let Some(&cpu) = builder.cores.iter().find(|cpu| !available.contains(cpu)) {
            return Err(BuildError::NoSuchCpu { cpu, available });
        }
    }
    Ok(())
}

fn memory(builder: &Builder) -> Result<Arc<Umem>, BuildError> {
    let chunks = builder.frames * builder.cores.len() as u32;
    let chunk_size = builder.frame_size.unwrap_or(2048);
    Umem::new(UmemConfig { chunks, chunk_size }).map_err(|source| memory_error(builder, source))
}

fn memory_error(builder: &Builder, source: std::io::Error) -> BuildError {
    let bytes = builder.frames as usize * builder.cores.len() * builder.frame_size.unwrap_or(2048) as usize;
    BuildError::Memory { megabytes: bytes >> 20, source }
}

fn open(builder: &mut Builder, _umem: &Arc<Umem>, _pools: &mut [UmemPool]) -> Result<Opened, BuildError> {
    match std::mem::take(&mut builder.link) {
        LinkChoice::Memory(links) => Ok(Opened {
            links: links.into_iter().map(|link| vec![(link, IfaceId(0))]).collect(),
            keep: Vec::new(),
        }),
        other => Err(BuildError::Config(format!("{other:?} links are not there yet"))),
    }
}

fn interfaces(builder: &Builder, opened: &Opened) -> Result<Vec<Interface>, BuildError> {
    let devices = builder.devices.len().max(1);
    let caps: Vec<&LinkCaps> = (0..devices)
        .filter_map(|n| opened.links.iter().flatten().find(|(_, iface)| usize::from(iface.0) == n).map(|(l, _)| l.caps()))
        .collect();
    Ok(caps
        .iter()
        .enumerate()
        .map(|(n, caps)| {
            let own = builder.standalone.get(n);
            Interface {
                framing: caps.framing,
                mac: own.and_then(|own| own.mac).unwrap_or(caps.mac),
                vlan: None,
                mtu: caps.mtu,
                addrs: own.map(|own| own.addrs.clone()).unwrap_or_default(),
                addressing: if own.is_some() { Addressing::Standalone } else { Addressing::Host },
                tx_checksum: caps.tx_checksum,
                accept_partial_checksum: builder.accept_partial_checksum.unwrap_or(caps.virtual_peer),
            }
        })
        .collect())
}

/// Each address's own network on the link, and the default routes.
fn standalone_routes(standalone: &[Standalone]) -> Vec<Route> {
    let mut routes = Vec::new();
    for (n, own) in standalone.iter().enumerate() {
        let iface = IfaceId(n as u8);
        routes.extend(own.addrs.iter().map(|&to| Route { to, gateway: None, iface, metric: 0 }));
        routes.extend(own.gateways.iter().map(|&gateway| {
            let any: IpAddr =
                if gateway.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            Route { to: Cidr { addr: any, prefix: 0 }, gateway: Some(gateway), iface, metric: 0 }
        }));
    }
    routes
}

fn random_secret() -> std::io::Result<Secret> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(Secret(bytes))
}
