//! Opening the links: the frames' memory, the devices, and each core's queues.

use crate::binding::{self, Host, Reason};
use crate::builder::{Builder, LinkChoice, XdpMode};
use crate::error::BuildError;
use crate::ports::PortSink;
use fs_core::{IfaceId, Protocol};
use fs_xdp::{
    Link, LinkCaps, NetDevice, PacketConfig, PacketLink, PortTable, QueueConfig, QueueCounts, Share, TapConfig,
    TapKind, TapLink, Umem, UmemConfig, UmemPool, XdpConfig, XdpDevice, XdpError, XdpLink,
};
use std::any::Any;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a core polls.
pub(crate) type CoreLinks = Vec<(Box<dyn Link>, IfaceId)>;

/// Opens the queues of a device that our program is on, also those that it gets while the runtime runs (`ethtool -L`).
pub(crate) struct QueueOpener {
    device: XdpDevice,
    umem: Arc<Umem>,
    rings: QueueConfig,
    /// Queues below this one are open, or are being opened.
    known: AtomicU32,
    /// How many there were to receive and to send when they were last counted.
    counted: Mutex<QueueCounts>,
    /// Queues whose cores had no frames for them.
    late: Mutex<Vec<Late>>,
    /// Queues that were opened after the start.
    opened: Mutex<BTreeSet<u32>>,
    /// The queues are without copies.
    zero_copy: AtomicBool,
}

/// A queue that waits for frames. `is_new`: it was not there at the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    pub(crate) queue: u32,
    pub(crate) is_new: bool,
}

impl QueueOpener {
    fn new(device: XdpDevice, umem: Arc<Umem>, rings: QueueConfig) -> Self {
        let known = AtomicU32::new(device.queue_count());
        let counted = Mutex::new(device.queue_counts_now());
        let (late, opened, zero_copy) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Self { device, umem, rings, known, counted, late, opened, zero_copy }
    }

    /// The queues that the device has got since this was last asked. Each is to be opened.
    pub(crate) fn new_queues(&self) -> Range<u32> {
        let now = self.device.queue_counts_now();
        let counted = std::mem::replace(&mut *self.counted.lock().unwrap_or_else(PoisonError::into_inner), now);
        let QueueCounts { rx, tx, .. } = now;
        let before = self.known.fetch_max(rx.min(tx), Ordering::Relaxed);
        if rx > tx && now != counted {
            self.give_up(&format!("the device has {rx} receive queues and {tx} send queues"));
        } else if rx <= tx && counted.rx > counted.tx {
            self.guard(true);
        }
        before..rx.min(tx)
    }

    /// Opens one, with frames out of `pool`. To be called in the device's network namespace.
    /// The device gets `share` of them at most.
    pub(crate) fn open(&self, queue: u32, pool: &mut UmemPool, share: u32) -> Result<XdpLink, XdpError> {
        let rings = QueueConfig { lent: self.rings.lent.min(share), fill: self.rings.fill.min(share), ..self.rings };
        let link = self.device.open_queue(queue, &self.umem, pool, rings)?;
        self.zero_copy.fetch_or(link.is_zero_copy(), Ordering::Relaxed);
        Ok(link)
    }

    /// Its driver sets queues up anew for our sockets.
    pub(crate) fn is_zero_copy(&self) -> bool {
        self.zero_copy.load(Ordering::Relaxed)
    }

    /// A queue is open that was not there at the start.
    pub(crate) fn note_open(&self, queue: u32) {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).insert(queue);
    }

    /// All of these are, which were not there at the start.
    pub(crate) fn are_open(&self, mut queues: Range<u32>) -> bool {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        queues.all(|queue| opened.contains(&queue))
    }

    /// See [`XdpDevice::refresh_offloads`].
    pub(crate) fn refresh_offloads(&self) {
        self.device.refresh_offloads();
    }

    /// The device as it was found.
    pub(crate) fn net_device(&self) -> &NetDevice {
        self.device.device()
    }

    /// The device's number in the kernel: another one of its name has another.
    pub(crate) fn index(&self) -> u32 {
        self.device.device().index
    }

    /// Queues that there were when the device was attached to.
    pub(crate) fn queues(&self) -> u32 {
        self.known.load(Ordering::Relaxed)
    }

    /// What the program takes for ours.
    pub(crate) fn table(&self) -> PortTable {
        self.device.port_table()
    }

    /// Guards the device's queues, where each can be opened.
    pub(crate) fn guard_all(&self) -> Result<(), XdpError> {
        let counts = self.device.queue_counts_now();
        self.device.port_table().guard(counts.rx <= counts.tx)
    }

    /// Says that a queue is open that the device has got meanwhile.
    pub(crate) fn tell_new(&self, queue: u32, core: usize) {
        let NetDevice { name: device, driver, .. } = self.device.device();
        tracing::info!(device, queue, core, "opened a new queue of the device");
        // Seen on Linux 6.18; veth_enable_range_safe() gives the program to no queue.
        if driver == "veth" {
            tracing::warn!(
                device,
                queue,
                "veth runs the XDP program on a new queue only after the device was down, so the kernel gets this \
                 queue's packets and resets our connections: `ip link set {device} down && ip link set {device} up`"
            );
        }
    }

    /// A queue's core has too few frames free: it is opened once it has some.
    pub(crate) fn try_later(&self, Late { queue, is_new }: Late, available: usize) {
        let device = &self.device.device().name;
        tracing::warn!(device, queue, available, "too few frames are free to open a queue: retrying");
        self.late.lock().unwrap_or_else(PoisonError::into_inner).push(Late { queue, is_new });
    }

    /// Those that it is time to open.
    pub(crate) fn late_queues(&self) -> Vec<Late> {
        std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A queue is to be closed: it is not opened later either.
    pub(crate) fn forget_late(&self, queue: u32) {
        self.late.lock().unwrap_or_else(PoisonError::into_inner).retain(|late| late.queue != queue);
    }

    /// A queue has no socket, and will have none.
    pub(crate) fn give_up(&self, reason: &str) {
        tracing::error!(
            device = self.device.device().name,
            reason,
            "cannot open a queue of the device, so the kernel gets its packets and resets our connections: restore \
             the former number of queues (ethtool -L), or build the runtime again"
        );
        self.guard(false);
    }

    fn guard(&self, on: bool) {
        if let Err(error) = self.device.port_table().guard(on) {
            tracing::error!(%error, "cannot set the queue guard in the XDP program's table");
        }
    }
}

/// A device by its name: what is on it now, and how one of that name is taken.
struct Taken {
    opener: Option<Arc<QueueOpener>>,
    name: String,
    config: XdpConfig,
    umem: Arc<Umem>,
    rings: QueueConfig,
}

/// Of each device in the order of interfaces. Shared with those who open, and emptied at the runtime's end: the program stays on
/// the device for as long as one is in it.
#[derive(Clone, Default)]
pub(crate) struct Openers(Arc<Mutex<Vec<Taken>>>);

impl Openers {
    fn lock(&self) -> MutexGuard<'_, Vec<Taken>> {
        // Every change is a single assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that there are, by interface.
    pub(crate) fn all(&self) -> Vec<(IfaceId, Arc<QueueOpener>)> {
        let taken = self.lock();
        let of = |(n, taken): (usize, &Taken)| Some((IfaceId(n as u8), taken.opener.clone()?));
        taken.iter().enumerate().filter_map(of).collect()
    }

    pub(crate) fn get(&self, IfaceId(n): IfaceId) -> Option<Arc<QueueOpener>> {
        self.lock().get(usize::from(n))?.opener.clone()
    }

    /// The device is gone: once its queues are closed too, nothing of ours is left of it.
    pub(crate) fn let_go(&self, IfaceId(n): IfaceId) {
        let opener = self.lock().get_mut(usize::from(n)).and_then(|taken| taken.opener.take());
        // Not under the lock: a program goes with it.
        drop(opener);
    }

    /// Attaches to the device that has an interface's name now, if there is one again. `fill` fills its program's table before the
    /// kernel shows the program: who waits for that to give the device its addresses would have the kernel reset what comes for
    /// them before the table is filled. What is ours is dropped for as long as no queue is open.
    pub(crate) fn attach_again(
        &self,
        IfaceId(n): IfaceId,
        cores: usize,
        fill: impl FnOnce(PortTable) -> io::Result<()>,
    ) -> Option<Result<QueueOpener, XdpError>> {
        let taken = self.lock();
        let Taken { opener: None, name, config, umem, rings } = taken.get(usize::from(n))? else { return None };
        let (name, config, umem, rings) = (name.clone(), *config, umem.clone(), *rings);
        drop(taken);
        NetDevice::find(&name).ok()?;
        let guarded = |table: &PortTable| {
            table.guard(true)?;
            fill(table.clone())
        };
        Some(XdpDevice::attach_filled(&name, config, guarded).and_then(|device| {
            let queues = device.queue_counts_now();
            if (queues.rx.min(queues.tx) as usize) < cores {
                // Some core would have no queue to send by.
                return Err(XdpError::NoSuchQueue {
                    device: name,
                    queue: cores as u32 - 1,
                    rx: queues.rx,
                    tx: queues.tx,
                });
            }
            let opener = QueueOpener::new(device, umem, rings);
            opener.guard_all()?;
            Ok(opener)
        }))
    }

    /// A device that has been attached to again is an interface's from here on.
    pub(crate) fn put(&self, IfaceId(n): IfaceId, opener: Arc<QueueOpener>) {
        if let Some(taken) = self.lock().get_mut(usize::from(n)) {
            taken.opener = Some(opener);
        }
    }
}

/// Empties them.
struct Emptied(Openers);

impl Drop for Emptied {
    fn drop(&mut self) {
        let taken = std::mem::take(&mut *self.0.lock());
        drop(taken);
    }
}

/// What opening the links gave.
pub(crate) struct Opened {
    /// For each core its queues.
    pub(crate) links: Vec<CoreLinks>,
    /// For each core its frames.
    pub(crate) pools: Vec<UmemPool>,
    /// For each device its program's tables (none where there is no program).
    pub(crate) tables: Vec<PortTable>,
    pub(crate) openers: Openers,
    /// Bindings that did not hold, each of which led to a lower mode.
    pub(crate) given_up: Vec<Reason>,
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
            "{device}: a queue needs {needed} frames, and its core has {available} left: raise .frames(…)"
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
    let mut opened = Opened {
        links,
        pools,
        tables: Vec::new(),
        openers: Openers::default(),
        given_up: Vec::new(),
        keep: Vec::new(),
    };
    opened.keep.push(Box::new(Emptied(opened.openers.clone())));
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
        LinkChoice::Kernel => {}
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

fn open_xdp(builder: &mut Builder, mode: XdpMode, umem: &Arc<Umem>, opened: &mut Opened) -> Result<(), BuildError> {
    let zero_copy = mode != XdpMode::Copy;
    let mode = match mode {
        XdpMode::Auto | XdpMode::Copy => fs_xdp::XdpMode::Auto,
        XdpMode::Native => fs_xdp::XdpMode::Native,
        XdpMode::Generic => fs_xdp::XdpMode::Generic,
    };
    let config = XdpConfig { mode, zero_copy, ..XdpConfig::default() };
    let mut devices = Vec::with_capacity(builder.devices.len());
    for name in &builder.devices {
        // In generic mode nothing of the card is touched.
        let is_asked = config.mode != fs_xdp::XdpMode::Generic;
        let before = NetDevice::find(name).ok().filter(|_| is_asked).and_then(|device| Host::look(&device));
        let device = XdpDevice::attach(name, config).map_err(|error| link_error(name, error))?;
        devices.push((device, before));
    }
    let queues = devices.iter().map(|(device, _)| device.queue_count() as usize).min();
    let cores = queues.map_or(builder.cores.len(), |queues| for_queues(builder, queues));
    opened.links.truncate(cores);
    opened.pools.truncate(cores);
    // A core's most: the first ones serve what does not divide evenly.
    let each = devices.iter().map(|(device, _)| device.queue_count().div_ceil(cores as u32)).sum();
    let rings = rings(builder.frames, each, umem.config().chunk_size)?;
    for (n, (name, (device, before))) in builder.devices.iter().zip(devices).enumerate() {
        let failed = |error| link_error(name, error);
        let Held { opener, queues, config } = hold(device, before, config, rings, umem, opened, cores)?;
        for (core, link) in queues {
            opened.links[core].push((Box::new(link), IfaceId(n as u8)));
        }
        opener.guard_all().map_err(failed)?;
        opened.tables.push(opener.table());
        let taken = Taken { opener: Some(Arc::new(opener)), name: name.clone(), config, umem: umem.clone(), rings };
        opened.openers.lock().push(taken);
    }
    Ok(())
}

/// How many of the cores run where a device has so many queues: one without a queue could not send.
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

/// Attaches again to a device that is to have a queue for each core.
fn attach(name: &str, config: XdpConfig, cores: usize) -> Result<XdpDevice, BuildError> {
    let device = XdpDevice::attach(name, config).map_err(|error| link_error(name, error))?;
    let queues = device.queue_count() as usize;
    if queues < cores {
        return Err(BuildError::TooFewQueues { device: name.to_owned(), queues, cores });
    }
    Ok(device)
}

/// A device with all of its queues open, each with its core, and how it was taken.
struct Held {
    opener: QueueOpener,
    queues: Vec<(usize, XdpLink)>,
    config: XdpConfig,
}

/// Opens all queues of a device, in a lower mode than `config` where it does not work in that one; which it is then.
fn hold(
    mut device: XdpDevice,
    mut before: Option<Host>,
    mut config: XdpConfig,
    rings: QueueConfig,
    umem: &Arc<Umem>,
    opened: &mut Opened,
    cores: usize,
) -> Result<Held, BuildError> {
    let name = device.device().name.clone();
    loop {
        let opener = QueueOpener::new(device, umem.clone(), rings);
        let mut queues = open_queues(&opener, &mut opened.pools).map_err(|error| link_error(&name, error))?;
        // In generic mode nothing of the card was touched.
        let before = before.as_mut().filter(|_| opener.device.is_native());
        let Some(reason) = before.and_then(|before| before.what_is_wrong(&mut queues)) else {
            return Ok(Held { opener, queues, config });
        };
        let zero_copy = queues.iter().any(|(_, link)| link.is_zero_copy());
        let lower = opener.device.lower_mode(zero_copy);
        // The card is the kernel's again before it is taken anew, or left alone.
        binding::close(queues, &mut opened.pools);
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

/// All queues of a device, each with its core. Every one has to be somebody's: what arrives on one without a socket is the
/// kernel's, which would reset connections of ours.
fn open_queues(opener: &QueueOpener, pools: &mut [UmemPool]) -> Result<Vec<(usize, XdpLink)>, XdpError> {
    let mut queues = Vec::new();
    for queue in 0..opener.queues() {
        let core = queue as usize % pools.len();
        queues.push((core, opener.open(queue, &mut pools[core], opener.rings.fill)?));
    }
    Ok(queues)
}

/// Chunks that a queue's device needs at least to receive into, and as many again on their way.
pub(crate) const FRAMES_OF_QUEUE: u32 = 128;

/// What each of `queues` queues of a core has to receive into at most: they divide half of its frames among them; the other half
/// is for packets on their way. A power of two, as rings are, or 0.
pub(crate) fn share(frames: u32, queues: u32) -> u32 {
    let share = frames / 2 / queues.max(1);
    if share == 0 { 0 } else { 1 << share.ilog2() }
}

/// The rings of each of `queues` queues of a core.
fn rings(frames: u32, queues: u32, chunk_size: u32) -> Result<QueueConfig, BuildError> {
    let usual = QueueConfig::default();
    // As many bytes with large frames: it is what caches hold that counts (decision 0012).
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
            tracing::error!(%at, ?share, %error, "cannot share a port in the XDP program's table");
        }
    }

    fn remove(&self, protocol: Protocol, at: SocketAddr) {
        if let Err(error) = self.remove_local(protocol, at.ip(), at.port()) {
            tracing::error!(%at, %error, "cannot remove a port from the XDP program's table: its packets still come \
                                          here");
        }
    }

    fn set_active(&self, ports: &[u16]) -> io::Result<()> {
        Ok(self.set_active_ports(ports.iter().copied())?)
    }

    fn set_mac(&self, mac: [u8; 6]) {
        if let Err(error) = PortTable::set_mac(self, mac) {
            tracing::error!(%error, "cannot write the MAC address to the XDP program's table");
        }
    }

    fn unguard(&self) {
        if let Err(error) = self.guard(false) {
            tracing::error!(%error, "cannot set the queue guard in the XDP program's table");
        }
    }

    fn set_addresses(&self, addrs: &[IpAddr], elsewhere: &[IpAddr]) -> io::Result<()> {
        Ok(PortTable::set_addresses(self, addrs, elsewhere)?)
    }
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
