//! Opens the links: the frames' memory, the devices, and each core's queues.

use crate::broker::SharedDevice;
use crate::builder::{Builder, LinkChoice, XdpMode};
use crate::core::{CoreLinks, GoneLink};
use crate::device::openers::{Emptied, Openers, Taken};
use crate::device::probe::{self, Host, Reason};
use crate::device::queues::{FRAMES_OF_QUEUE, NamedQueues, QueueOpener, core_of, share};
use crate::error::BuildError;
use crate::netlink::Netlink;
use fs_core::IfaceId;
use fs_xdp::{
    FanoutGroup, Link, LinkCaps, LinkStats, NetDevice, PacketConfig, PacketLink, PortTable, QueueConfig, TapConfig,
    TapKind, TapLink, Umem, UmemConfig, UmemPool, XdpConfig, XdpDevice, XdpError, XdpLink,
};
use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The opened links.
pub(crate) struct Opened {
    /// Each core's queues.
    pub(crate) links: Vec<CoreLinks>,
    /// Each core's frames.
    pub(crate) pools: Vec<UmemPool>,
    /// Each device's tables of its program (none without a program).
    pub(crate) tables: Vec<PortTable>,
    pub(crate) openers: Openers,
    /// Attempts to bind that failed, each of which led to a slower mode.
    pub(crate) given_up: Vec<Reason>,
    /// In the namespace of shared devices.
    pub(crate) netlink: Option<[Netlink; 2]>,
    /// Values that must outlive the links.
    pub(crate) keep: Vec<Box<dyn Any + Send>>,
}

impl Opened {
    /// Each interface's capabilities.
    pub(crate) fn caps(&self) -> Vec<LinkCaps> {
        let of =
            |n: u8| self.links.iter().flatten().find(|(_, iface)| iface.0 == n).map(|(link, _)| link.caps().clone());
        (0..=u8::MAX).map_while(of).collect()
    }
}

pub(crate) fn link_error(device: &str, error: XdpError) -> BuildError {
    match error {
        XdpError::NoSuchDevice { device } => BuildError::NoSuchDevice { device },
        XdpError::PoolTooSmall { available, needed } => BuildError::Config(format!(
            "{device}: a queue needs {needed} frames, and its core has {available} left: raise .frames(…)"
        )),
        error => {
            let message = error.to_string();
            BuildError::Link { device: device.into(), message, source: error.into() }
        }
    }
}

/// Opens everything. After a failure, everything that was opened is dropped, which closes it.
pub(crate) fn open(
    builder: &mut Builder,
    devices: &[NetDevice],
    shared: &[Arc<SharedDevice>],
) -> Result<Opened, BuildError> {
    let (umem, pools, file) = memory(builder, devices, !shared.is_empty())?;
    let links = (0..builder.cores.len()).map(|_| Vec::new()).collect();
    let mut opened = Opened {
        links,
        pools,
        tables: Vec::new(),
        openers: Openers::default(),
        given_up: Vec::new(),
        netlink: None,
        keep: Vec::new(),
    };
    if let Some(file) = file {
        if builder.late_devices {
            return Err(BuildError::Config("a daemon shares the device: remove .late_devices(…)".into()));
        }
        open_shared(builder, shared, (&umem, &file), &mut opened)?;
        return Ok(opened);
    }
    opened.keep.push(Box::new(Emptied(opened.openers.clone())));
    match std::mem::take(&mut builder.link) {
        LinkChoice::XdpAuto if builder.late_devices => {
            leave_for_later(builder, XdpMode::Auto, devices, &umem, &mut opened)?
        }
        LinkChoice::Xdp { mode } if builder.late_devices => {
            leave_for_later(builder, mode, devices, &umem, &mut opened)?
        }
        LinkChoice::XdpAuto => open_xdp(builder, XdpMode::Auto, &umem, &mut opened)?,
        LinkChoice::Xdp { mode } => open_xdp(builder, mode, &umem, &mut opened)?,
        LinkChoice::Memory(links) => {
            for (core, link) in links.into_iter().enumerate() {
                opened.links[core].push((link, IfaceId(0)));
            }
        }
        LinkChoice::Packet => open_packet(builder, &mut opened)?,
        LinkChoice::Tap => open_tap(builder, &mut opened)?,
        LinkChoice::Kernel => {}
    }
    Ok(opened)
}

/// The frames, each core's share, and their file if they are for shared devices.
type Memory = (Arc<Umem>, Vec<UmemPool>, Option<OwnedFd>);

fn memory(builder: &Builder, devices: &[NetDevice], is_shared: bool) -> Result<Memory, BuildError> {
    let small = devices.iter().all(|device| device.fits_chunk(2048));
    let chunk_size = builder.frame_size.unwrap_or(if small { 2048 } else { 4096 });
    let cores = builder.cores.len() as u32;
    let megabytes = (builder.frames as usize * builder.cores.len() * chunk_size as usize) >> 20;
    let failed = |source: io::Error| BuildError::Memory { megabytes, source };
    let chunks = builder.frames.checked_mul(cores).ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
    let config = UmemConfig { chunks, chunk_size };
    let (umem, file) = if is_shared {
        Umem::in_file(config).map(|(umem, file)| (umem, Some(file)))
    } else {
        Umem::new(config).map(|umem| (umem, None))
    }
    .map_err(failed)?;
    let pools = (0..cores).map(|_| umem.pool(builder.frames)).collect::<Result<_, _>>().map_err(failed)?;
    Ok((umem, pools, file))
}

/// Opens queues on devices that a daemon shares. Core q mod cores serves queue q of each.
fn open_shared(
    builder: &mut Builder,
    shared: &[Arc<SharedDevice>],
    (umem, file): (&Arc<Umem>, &OwnedFd),
    opened: &mut Opened,
) -> Result<(), BuildError> {
    let queues = shared.iter().map(|one| one.device.queues as usize).min();
    let cores = queues.map_or(builder.cores.len(), |queues| for_queues(builder, queues));
    opened.links.truncate(cores);
    opened.pools.truncate(cores);
    let each = shared.iter().map(|one| one.device.queues.div_ceil(cores as u32)).sum();
    let rings = rings(builder.frames, each, umem.config().chunk_size)?;
    for (n, one) in shared.iter().enumerate() {
        let refused = |source: io::Error| {
            let message = format!("the daemon that shares {} gives no queues: {source}", one.name);
            BuildError::Link { device: one.name.clone(), message, source }
        };
        let attached = one.attach(one.device.queues, (file, umem.config()), rings).map_err(refused)?;
        let handed = one.handed(rings);
        for (queue, socket) in attached.sockets.into_iter().enumerate() {
            let core = queue % cores;
            let segments = attached.segments.as_ref().map(OwnedFd::try_clone).transpose().map_err(refused)?;
            let link = handed.open(socket, segments, umem, &mut opened.pools[core]);
            let link = link.map_err(|error| link_error(&one.name, error))?;
            opened.links[core].push((Box::new(link), IfaceId(n as u8)));
        }
        opened.netlink.get_or_insert(attached.netlink);
        tracing::info!(device = one.name, queues = one.device.queues, "attached to a device that a daemon shares");
    }
    Ok(())
}

fn open_xdp(builder: &mut Builder, mode: XdpMode, umem: &Arc<Umem>, opened: &mut Opened) -> Result<(), BuildError> {
    let is_alone = cores_with_queues(builder) == 1;
    let mut devices = Vec::with_capacity(builder.devices.len());
    for name in &builder.devices {
        let config = xdp_config(name, mode, is_alone);
        // Generic mode does not change the card.
        let is_asked = config.mode != fs_xdp::XdpMode::Generic;
        let before = NetDevice::find(name).ok().filter(|_| is_asked).and_then(|device| Host::of(&device));
        let device = XdpDevice::attach(name, config).map_err(|error| link_error(name, error))?;
        devices.push((device, before, config));
    }
    let named = builder.queues.clone();
    let count = |device: &XdpDevice| named.as_ref().map_or(device.queue_count(), |named| named.len() as u32);
    let queues = devices.iter().map(|(device, ..)| count(device) as usize).min();
    let cores = queues.map_or(builder.cores.len(), |queues| for_queues(builder, queues));
    opened.links.truncate(cores);
    opened.pools.truncate(cores);
    // The most queues of a core: the first cores serve the remainder of an uneven division.
    let each = devices.iter().map(|(device, ..)| count(device).div_ceil(cores as u32)).sum();
    let rings = rings(builder.frames, each, umem.config().chunk_size)?;
    for (n, (name, (device, before, config))) in builder.devices.iter().zip(devices).enumerate() {
        let failed = |error| link_error(name, error);
        let OpenDevice { opener, queues, config } = hold(device, before, config, (rings, &named), umem, opened, cores)?;
        for (core, link) in queues {
            opened.links[core].push((Box::new(link), IfaceId(n as u8)));
        }
        opener.guard_all().map_err(failed)?;
        opened.tables.push(opener.table());
        let (opener, name, umem, named) = (Some(Arc::new(opener)), name.clone(), umem.clone(), named.clone());
        let taken = Taken { opener, name, config, umem, rings, named, is_late: false, refused: None };
        opened.openers.add(taken);
    }
    Ok(())
}

/// Prepares for devices that another program has.
fn leave_for_later(
    builder: &mut Builder,
    mode: XdpMode,
    devices: &[NetDevice],
    umem: &Arc<Umem>,
    opened: &mut Opened,
) -> Result<(), BuildError> {
    let is_alone = cores_with_queues(builder) == 1;
    let named = builder.queues.clone();
    let queues_of = |device: &NetDevice| {
        let counts = device.queue_counts();
        named.as_ref().map_or(counts.rx.min(counts.tx), |named| named.len() as u32)
    };
    let queues = devices.iter().map(|device| queues_of(device) as usize).min();
    let cores = queues.map_or(builder.cores.len(), |queues| for_queues(builder, queues));
    opened.links.truncate(cores);
    opened.pools.truncate(cores);
    let each = devices.iter().map(|device| queues_of(device).div_ceil(cores as u32)).sum();
    let rings = rings(builder.frames, each, umem.config().chunk_size)?;
    for (n, device) in devices.iter().enumerate() {
        for links in &mut opened.links {
            let link = GoneLink::new(XdpDevice::expected_caps(device), LinkStats::default(), Vec::new());
            links.push((Box::new(link), IfaceId(n as u8)));
        }
        let (name, config) = (device.name.clone(), xdp_config(&device.name, mode, is_alone));
        let (umem, named) = (umem.clone(), named.clone());
        let taken = Taken { opener: None, name, config, umem, rings, named, is_late: true, refused: None };
        opened.openers.add(taken);
    }
    Ok(())
}

/// Returns how many cores will run: each needs a queue of every device. A device that cannot be found
/// is reported when it is opened.
fn cores_with_queues(builder: &Builder) -> usize {
    let queues = builder.devices.iter().filter_map(|name| NetDevice::find(name).ok()).map(|device| {
        let counts = device.queue_counts();
        counts.rx.min(counts.tx) as usize
    });
    let named = builder.queues.as_ref().map_or(usize::MAX, |named| named.len());
    queues.fold(builder.cores.len().min(named), usize::min).max(1)
}

/// Returns how to attach to a device. `is_alone`: one core serves it.
fn xdp_config(name: &str, mode: XdpMode, is_alone: bool) -> XdpConfig {
    let automatic = || match NetDevice::find(name).is_ok_and(|device| device.generic_carries_more()) {
        true if is_alone => {
            tracing::info!(device = name, "one core on veth: generic XDP, in which large packets arrive whole");
            fs_xdp::XdpMode::Generic
        }
        true => {
            tracing::info!(
                device = name,
                "several cores on veth: native XDP, in which large transfers cost several times the CPU of kernel \
                 sockets; for them use one core, XdpMode::Generic, or the kernel's sockets"
            );
            fs_xdp::XdpMode::Auto
        }
        false => fs_xdp::XdpMode::Auto,
    };
    let own = match mode {
        XdpMode::Auto => automatic(),
        XdpMode::Copy => fs_xdp::XdpMode::Auto,
        XdpMode::Native => fs_xdp::XdpMode::Native,
        XdpMode::Generic => fs_xdp::XdpMode::Generic,
    };
    XdpConfig { mode: own, zero_copy: mode != XdpMode::Copy, ..XdpConfig::default() }
}

/// Returns how many cores run if a device has `queues` queues: a core without a queue could not
/// send.
fn for_queues(builder: &mut Builder, queues: usize) -> usize {
    let wanted = builder.cores.len();
    if queues < wanted {
        builder.cores.truncate(queues.max(1));
        let (cores, device) = (builder.cores.len(), builder.devices.join(", "));
        tracing::warn!(
            device,
            queues,
            wanted,
            "{cores} of {wanted} cores run, as each needs a receive queue of every device: give it more (`ethtool -L {device} \
             combined {wanted}`; veth: make it with `numrxqueues {wanted} numtxqueues {wanted}`)"
        );
    }
    builder.cores.len()
}

/// Attaches to a device that must have a queue for each core.
fn attach(name: &str, config: XdpConfig, cores: usize) -> Result<XdpDevice, BuildError> {
    let device = XdpDevice::attach(name, config).map_err(|error| link_error(name, error))?;
    let queues = device.queue_count() as usize;
    if queues < cores {
        return Err(BuildError::TooFewQueues { device: name.to_owned(), queues, cores });
    }
    Ok(device)
}

/// A device with all of its queues open, each with its core, and how to attach to it again.
struct OpenDevice {
    opener: QueueOpener,
    queues: Vec<(usize, XdpLink)>,
    config: XdpConfig,
}

/// Opens all queues of a device, falling back to a slower mode than `config` if the device does not
/// work in it.
fn hold(
    mut device: XdpDevice,
    mut before: Option<Host>,
    mut config: XdpConfig,
    (rings, named): (QueueConfig, &Option<NamedQueues>),
    umem: &Arc<Umem>,
    opened: &mut Opened,
    cores: usize,
) -> Result<OpenDevice, BuildError> {
    let name = device.device().name.clone();
    loop {
        let opener = QueueOpener::new(device, umem.clone(), rings, named.clone());
        let mut queues =
            open_queues(&opener, named.as_ref(), &mut opened.pools).map_err(|error| link_error(&name, error))?;
        // Generic mode did not change the card.
        let before = before.as_mut().filter(|_| opener.device.is_native());
        let Some(reason) = before.and_then(|before| before.what_is_wrong(&mut queues)) else {
            return Ok(OpenDevice { opener, queues, config });
        };
        let zero_copy = queues.iter().any(|(_, link)| link.is_zero_copy());
        let lower = opener.device.lower_mode(zero_copy);
        // The kernel gets the card back before the next attempt, or for good.
        probe::close(queues, &mut opened.pools);
        drop(opener);
        let Some(lower) = lower else {
            let message = format!(
                "{name} does not work with the XDP program: {reason}; the kernel has the device \
                                   again"
            );
            let source = io::Error::other(reason.to_string());
            return Err(BuildError::Link { device: name, message, source });
        };
        let next = if zero_copy { "copy" } else { "generic" };
        tracing::warn!(
            device = name,
            %reason,
            next,
            "the device does not work in this XDP mode: falling back to the next one"
        );
        opened.given_up.push(reason);
        (device, config) = (attach(&name, lower, cores)?, lower);
    }
}

/// Opens all queues of a device, or those that are named, each for its core. Every queue needs a
/// socket: the kernel would get the packets of a queue without one, and reset our connections.
fn open_queues(
    opener: &QueueOpener,
    named: Option<&NamedQueues>,
    pools: &mut [UmemPool],
) -> Result<Vec<(usize, XdpLink)>, XdpError> {
    let mut queues = Vec::new();
    for queue in opener.queues() {
        let core = core_of(queue, named, pools.len());
        queues.push((core, opener.open(queue, &mut pools[core], opener.rings.fill)?));
    }
    Ok(queues)
}

/// Returns the ring sizes of each of a core's `queues` queues.
fn rings(frames: u32, queues: u32, chunk_size: u32) -> Result<QueueConfig, BuildError> {
    let usual = QueueConfig::default();
    // As many bytes with large frames, because caches limit the size (decision 0012).
    let wanted = if chunk_size > 2048 { usual.lent / 2 } else { usual.lent };
    let share = share(frames, queues);
    if share < FRAMES_OF_QUEUE / 2 {
        return Err(BuildError::Config(format!(
            "{queues} queues of a core need {} frames at least, and the core has {frames}: raise .frames(…), use \
             more cores, or reduce the device's queues (ethtool -L)",
            queues * FRAMES_OF_QUEUE
        )));
    }
    if share < wanted {
        tracing::info!(
            queues,
            frames,
            each = share,
            wanted = 2 * wanted * queues,
            "several queues of a core divide its receive frames, so bursts are dropped earlier: raise .frames(…) to \
             the number in `wanted`"
        );
    }
    Ok(QueueConfig { lent: wanted.min(share), fill: usual.fill.min(share), ..usual })
}

fn open_packet(builder: &Builder, opened: &mut Opened) -> Result<(), BuildError> {
    for (n, name) in builder.devices.iter().enumerate() {
        // The kernel chooses a number that no other process of the network namespace uses.
        let mut fanout_group = (opened.links.len() > 1).then_some(FanoutGroup::New);
        for links in &mut opened.links {
            let config = PacketConfig { fanout_group, ..PacketConfig::default() };
            let link = PacketLink::open(name, config).map_err(|error| link_error(name, error))?;
            fanout_group = link.fanout_group().map(FanoutGroup::Number);
            links.push((Box::new(link), IfaceId(n as u8)));
        }
    }
    Ok(())
}

fn open_tap(builder: &Builder, opened: &mut Opened) -> Result<(), BuildError> {
    let multi_queue = opened.links.len() > 1;
    for (n, name) in builder.devices.iter().enumerate() {
        // All queues of the device share its link address.
        let mut mac = builder.standalone.get(n).and_then(|own| own.mac);
        for links in &mut opened.links {
            let config = TapConfig { multi_queue, mac, ..TapConfig::new(name, TapKind::Tap) };
            let link = TapLink::open(config).map_err(|error| link_error(name, error))?;
            mac = Some(link.caps().mac);
            links.push((Box::new(link), IfaceId(n as u8)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_a_core_divide_half_of_its_frames() {
        let of = |frames, queues, chunk| rings(frames, queues, chunk).map(|rings| (rings.lent, rings.fill)).unwrap();
        assert_eq!((of(16_384, 1, 2048), of(16_384, 1, 4096)), ((1024, 4096), (512, 4096)));
        // 64 queues, 4 cores.
        assert_eq!((of(16_384, 16, 2048), of(16_384, 16, 4096)), ((512, 512), (512, 512)));
        assert_eq!((of(16_384, 128, 2048), of(128, 1, 2048)), ((64, 64), (64, 64)));
        for (frames, queues) in [(16_384, 129), (128, 2), (0, 1)] {
            let error = rings(frames, queues, 2048).unwrap_err().to_string();
            assert!(error.contains(&format!("{} frames at least", queues * 128)), "{error}");
        }
    }
}
