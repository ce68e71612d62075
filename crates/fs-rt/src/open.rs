//! Opening the links: the frames' memory, the devices, and each core's queues.

use crate::builder::{Builder, LinkChoice, XdpMode};
use crate::error::BuildError;
use crate::ports::PortSink;
use fs_core::{IfaceId, Protocol};
use fs_xdp::{
    Link, LinkCaps, NetDevice, PacketConfig, PacketLink, PortTable, QueueConfig, Share, TapConfig, TapKind, TapLink,
    Umem, UmemConfig, UmemPool, XdpConfig, XdpDevice, XdpError,
};
use std::any::Any;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// What a core polls.
pub(crate) type CoreLinks = Vec<(Box<dyn Link>, IfaceId)>;

/// What opening the links gave.
pub(crate) struct Opened {
    /// For each core its queues.
    pub(crate) links: Vec<CoreLinks>,
    /// For each core its frames.
    pub(crate) pools: Vec<UmemPool>,
    /// For each device its program's tables (none where there is no program).
    pub(crate) tables: Vec<PortTable>,
    /// What has to live as long as the links.
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
            "{device}: a queue needs {needed} frames and its core has {available} left: raise .frames(…)"
        )),
        error => {
            let message = error.to_string();
            BuildError::Link { device: device.into(), message, source: error.into() }
        }
    }
}

/// Opens everything. What was opened before a failure is dropped, which closes it.
pub(crate) fn open(builder: &mut Builder, devices: &[NetDevice]) -> Result<Opened, BuildError> {
    let (umem, pools) = memory(builder, devices)?;
    let links = (0..builder.cores.len()).map(|_| Vec::new()).collect();
    let mut opened = Opened { links, pools, tables: Vec::new(), keep: Vec::new() };
    match std::mem::take(&mut builder.link) {
        LinkChoice::XdpAuto => open_xdp(builder, XdpMode::Auto, &umem, &mut opened)?,
        LinkChoice::Xdp { mode } => open_xdp(builder, mode, &umem, &mut opened)?,
        LinkChoice::Memory(links) => {
            for (core, link) in links.into_iter().enumerate() {
                opened.links[core].push((link, IfaceId(0)));
            }
        }
        LinkChoice::Packet => open_packet(builder, &mut opened)?,
        LinkChoice::Tap => open_tap(builder, &mut opened)?,
    }
    Ok(opened)
}

fn memory(builder: &Builder, devices: &[NetDevice]) -> Result<(Arc<Umem>, Vec<UmemPool>), BuildError> {
    let small = devices.iter().all(|device| device.fits_chunk(2048));
    let chunk_size = builder.frame_size.unwrap_or(if small { 2048 } else { 4096 });
    let cores = builder.cores.len() as u32;
    let megabytes = (builder.frames as usize * builder.cores.len() * chunk_size as usize) >> 20;
    let failed = |source: io::Error| BuildError::Memory { megabytes, source };
    let chunks = builder.frames.checked_mul(cores).ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
    let umem = Umem::new(UmemConfig { chunks, chunk_size }).map_err(failed)?;
    let pools = (0..cores).map(|_| umem.pool(builder.frames)).collect::<Result<_, _>>().map_err(failed)?;
    Ok((umem, pools))
}

fn open_xdp(builder: &Builder, mode: XdpMode, umem: &Arc<Umem>, opened: &mut Opened) -> Result<(), BuildError> {
    let zero_copy = mode != XdpMode::Copy;
    let mode = match mode {
        XdpMode::Auto | XdpMode::Copy => fs_xdp::XdpMode::Auto,
        XdpMode::Native => fs_xdp::XdpMode::Native,
        XdpMode::Generic => fs_xdp::XdpMode::Generic,
    };
    let cores = builder.cores.len();
    let rings = QueueConfig::default();
    // As many bytes with large frames: it is what caches hold that counts (decision 0012).
    let lent = if umem.config().chunk_size > 2048 { rings.lent / 2 } else { rings.lent };
    let rings = QueueConfig { lent, ..rings };
    for (n, name) in builder.devices.iter().enumerate() {
        let failed = |error| link_error(name, error);
        let device = XdpDevice::attach(name, XdpConfig { mode, zero_copy, ..XdpConfig::default() }).map_err(failed)?;
        let queues = device.queue_count() as usize;
        if queues < cores {
            return Err(BuildError::TooFewQueues { device: name.clone(), queues, cores });
        }
        // Every queue has to be somebody's: what arrives on one without a socket is the kernel's, which would reset
        // connections of ours.
        for queue in 0..queues {
            let core = queue % cores;
            let link = device.open_queue(queue as u32, umem, &mut opened.pools[core], rings).map_err(failed)?;
            opened.links[core].push((Box::new(link), IfaceId(n as u8)));
        }
        opened.tables.push(device.port_table());
        opened.keep.push(Box::new(device));
    }
    Ok(())
}

fn open_packet(builder: &Builder, opened: &mut Opened) -> Result<(), BuildError> {
    for (n, name) in builder.devices.iter().enumerate() {
        // Groups are per network namespace: the process's number keeps those of several processes apart.
        let group = (std::process::id() as u16).wrapping_add(n as u16);
        let fanout_group = (opened.links.len() > 1).then_some(group);
        for links in &mut opened.links {
            let config = PacketConfig { fanout_group, ..PacketConfig::default() };
            let link = PacketLink::open(name, config).map_err(|error| link_error(name, error))?;
            links.push((Box::new(link), IfaceId(n as u8)));
        }
    }
    Ok(())
}

fn open_tap(builder: &Builder, opened: &mut Opened) -> Result<(), BuildError> {
    let multi_queue = opened.links.len() > 1;
    for (n, name) in builder.devices.iter().enumerate() {
        // All queues of the device are one station: they share its address.
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

impl PortSink for PortTable {
    fn add(&self, protocol: Protocol, at: SocketAddr, share: Share) -> io::Result<()> {
        Ok(self.add_shared(protocol, at.ip(), at.port(), share)?)
    }

    fn share(&self, protocol: Protocol, at: SocketAddr, share: Share) {
        if let Err(error) = self.share_local(protocol, at.ip(), at.port(), share) {
            tracing::error!(%at, ?share, %error, "the XDP program's table");
        }
    }

    fn remove(&self, protocol: Protocol, at: SocketAddr) {
        if let Err(error) = self.remove_local(protocol, at.ip(), at.port()) {
            tracing::error!(%at, %error, "a port stays in the XDP program's table");
        }
    }

    fn set_addresses(&self, addrs: &[IpAddr]) -> io::Result<()> {
        Ok(PortTable::set_addresses(self, addrs)?)
    }
}
