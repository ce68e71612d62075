//! A device with our XDP program on it, and the opening of its queues.

use crate::device::{NetDevice, QueueCounts};
use crate::error::XdpError;
use crate::fill_target::FillTarget;
use crate::link::{LinkCaps, LinkKind};
use crate::merge::offloads::Offloads;
use crate::merge::socket::MergeSocket;
use crate::port_table::PortTable;
use crate::program::{Attached, Frags, Program, Wanted};
use crate::socket_group::Registration;
use crate::umem::{Umem, UmemPool};
use crate::xdp::XdpLink;
use crate::xsk_socket::{Socket, SocketRequest};
use fs_core::{Frame, FramePool, Framing};
use std::sync::Arc;

/// Bytes that the kernel keeps free in front of a received packet in its chunk: `XDP_PACKET_HEADROOM` of
/// `linux/bpf.h`.
pub(crate) const XDP_PACKET_HEADROOM: u32 = 256;
/// Bytes of link-layer header on top of the MTU: Ethernet and one VLAN tag.
pub(crate) const LINK_HEADER_MAX: u32 = 18;
/// Chunks that a queue needs at least to receive at all. One poll's batch twice: one with us, one with the device.
const FILL_MIN: u32 = 64;

/// Largest ring in entries. 16384 hold 16 ms at 1 Mpps; and two of them still fit a 16-bit count of handles.
const RING_MAX: u32 = 1 << 14;

/// Where the XDP program shall run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpMode {
    /// In the driver where it can, else on socket buffers; the log says which.
    #[default]
    Auto,
    /// In the driver or not at all.
    Native,
    /// On socket buffers: works on every Ethernet device.
    Generic,
}

/// Whether packets may span several chunks (kernel 6.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MultiBuffer {
    /// Where the MTU needs it, and in generic mode, where the kernel then hands over its large (TSO, GRO) packets whole.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never: packets over a chunk are not received.
    Off,
}

/// How a device is taken.
#[derive(Clone, Copy, Debug)]
pub struct XdpConfig {
    /// See [`XdpMode`].
    pub mode: XdpMode,
    /// See [`MultiBuffer`].
    pub multi_buffer: MultiBuffer,
    /// Zero-copy where the driver has it; `false` copies always.
    pub zero_copy: bool,
    /// Leave checksums to the device where the kernel can tell it (TX metadata, kernel 6.11).
    pub tx_checksum: bool,
    /// Send runs of full segments as one packet (decision 0029) where packets are copied and the device cuts them again (TSO).
    pub merge: bool,
}

impl Default for XdpConfig {
    fn default() -> Self {
        Self { mode: XdpMode::Auto, multi_buffer: MultiBuffer::Auto, zero_copy: true, tx_checksum: true, merge: true }
    }
}

/// Sizes of a queue's rings in entries, powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Received descriptors that can wait for us.
    pub rx: u32,
    /// Descriptors that can wait to be sent.
    pub tx: u32,
    /// Chunks that can be lent to the device to receive into: as many are once half of those that it had were used up (not on
    /// the rings of `xsk-rs`, whose fill ring is `lent` long).
    /// Not more than a sixth of what the pool has, unless that is less than `lent`; nor than [`crate::Link::limit_lent`] says later.
    pub fill: u32,
    /// Chunks lent in the beginning, and while they suffice: not more than half of what the pool has. The queue takes them out
    /// of the pool, and gives back what [`crate::Link::limit_lent`] leaves it no room for as packets come.
    pub lent: u32,
    /// Sent chunks that can wait to be taken back.
    pub completion: u32,
}

impl Default for QueueConfig {
    /// 2048 to send: 2 ms at 1 Mpps. 4096 to receive, which is what comes at 200,000 packets a second in a core's 20 ms
    /// without a CPU; but 1024 while they suffice, because all of these chunks are used in turn, and 2 MiB are what
    /// second-level caches hold: one flow over veth is up to 10 % faster than with 2048, and 12 % with 512 (decision
    /// 0012). Lower: drops in bursts.
    fn default() -> Self {
        Self { rx: 4096, tx: 2048, fill: 4096, lent: 1024, completion: 2048 }
    }
}

impl QueueConfig {
    fn check(&self) -> Result<(), XdpError> {
        for size in [self.rx, self.tx, self.fill, self.lent, self.completion] {
            if !size.is_power_of_two() || size > RING_MAX {
                return Err(XdpError::RingSize { size });
            }
        }
        Ok(())
    }
}

/// A device that our XDP program is attached to: until this and all links opened from it are gone.
#[derive(Debug)]
pub struct XdpDevice {
    device: NetDevice,
    /// The network namespace that it was attached in.
    namespace: Option<u64>,
    config: XdpConfig,
    counts: QueueCounts,
    program: Arc<Program>,
    ports: PortTable,
    offloads: Arc<Offloads>,
}

impl XdpDevice {
    /// Loads the program and attaches it to the device called `name` in the calling thread's network namespace.
    /// Nothing is redirected before a queue is open and the [`PortTable`] has entries.
    ///
    /// # Errors
    /// See [`XdpError`].
    pub fn attach(name: &str, config: XdpConfig) -> Result<XdpDevice, XdpError> {
        Self::attach_filled(name, config, |_| Ok(()))
    }

    /// As [`XdpDevice::attach`], for a device whose packets are ours already: `fill` fills the program's table before it sees any.
    ///
    /// # Errors
    /// See [`XdpError`]; what `fill` says among them.
    pub fn attach_filled(
        name: &str,
        mut config: XdpConfig,
        fill: impl FnOnce(&PortTable) -> std::io::Result<()>,
    ) -> Result<XdpDevice, XdpError> {
        let device = NetDevice::find(name)?;
        if !device.is_ethernet() {
            return Err(XdpError::NotEthernet { device: device.name, hardware_type: device.hardware_type });
        }
        check_kernel()?;
        let (program, ports) =
            Program::attach(&device, wanted(&device, config), fill).map_err(|error| match error {
                XdpError::NativeUnsupported { source, .. } if too_large_for_native(&device, config) => {
                    tracing::debug!(%source, "native attach refused");
                    XdpError::MtuTooLarge {
                        device: device.name.clone(),
                        mtu: device.mtu,
                        max: NATIVE_MTU_MAX,
                        mode: "native mode without multi-buffer",
                        cure: "allow multi-buffer (Linux 6.6), lower the MTU, or use generic mode",
                    }
                }
                error => error,
            })?;
        // After attaching: virtio-net gets more receive queues by it.
        let counts = device.queue_counts();
        tracing::info!(
            device = device.name,
            driver = device.driver,
            mode = if program.attached == Attached::Native { "native" } else { "generic" },
            multi_buffer = program.frags,
            rx_queues = counts.rx,
            tx_queues = counts.tx,
            mtu = device.mtu,
            "XDP program attached"
        );
        if counts.rx > counts.tx {
            tracing::warn!(
                device = device.name,
                rx_queues = counts.rx,
                tx_queues = counts.tx,
                "more receive than send queues: the extra queues cannot be opened, and the kernel gets their packets"
            );
        }
        if let Some(reason) = device.must_copy().filter(|_| config.zero_copy && program.attached == Attached::Native) {
            tracing::warn!(
                device = device.name,
                driver = device.driver,
                reason,
                "no zero copy on this device: packets are copied"
            );
            config.zero_copy = false;
        }
        // After attaching: native mode on one end of a veth pair takes TSO from the other.
        let offloads = Arc::new(Offloads::of(&device));
        if config.merge && !offloads.cuts() {
            tracing::info!(
                device = device.name,
                driver = device.driver,
                "the device has no TSO: segments are sent one by one; on veth the other end has XDP in native mode, or TSO is off"
            );
        }
        Ok(XdpDevice { device, namespace: namespace(), config, counts, program: Arc::new(program), ports, offloads })
    }

    /// Reads again what `ethtool -K` and `tc` set, which queues that are open heed from their next batch on. To be called when the
    /// kernel says that something has changed of the device (`RTM_NEWLINK`), in its network namespace.
    pub fn refresh_offloads(&self) {
        if self.offloads.read(&self.device) {
            tracing::info!(
                device = self.device.name,
                merges = self.offloads.cuts(),
                "the device's settings for sending have changed"
            );
        }
    }

    /// What the kernel said of the device when it was attached to.
    pub fn device(&self) -> &NetDevice {
        &self.device
    }

    /// Queues that can be opened. For all packets to reach us, all of them have to be.
    pub fn queue_count(&self) -> u32 {
        self.counts.rx.min(self.counts.tx)
    }

    /// The queues that the device has now (`ethtool -L`).
    pub fn queue_counts_now(&self) -> QueueCounts {
        self.device.queue_counts()
    }

    /// The program runs in the driver.
    pub fn is_native(&self) -> bool {
        self.program.attached == Attached::Native
    }

    /// How the next lower mode takes the device: with packets copied, then on socket buffers. `None`: there is none, or not of those
    /// that were asked for. `zero_copy`: whether queues were opened without copies.
    pub fn lower_mode(&self, zero_copy: bool) -> Option<XdpConfig> {
        let config = XdpConfig { zero_copy: false, ..self.config };
        match (zero_copy, self.config.mode) {
            (true, _) => Some(config),
            (false, XdpMode::Auto) if self.is_native() => Some(XdpConfig { mode: XdpMode::Generic, ..config }),
            (false, _) => None,
        }
    }

    /// What the program takes for ours.
    pub fn port_table(&self) -> PortTable {
        self.ports.clone()
    }

    /// Opens a queue on `umem`, with chunks for receiving out of `pool`. Queues of several devices can share one
    /// UMEM. To be called in the network namespace that the device was attached in.
    ///
    /// # Errors
    /// See [`XdpError`]; all chunks are back in `pool` then.
    pub fn open_queue(
        &self,
        queue: u32,
        umem: &Arc<Umem>,
        pool: &mut UmemPool,
        config: QueueConfig,
    ) -> Result<XdpLink, XdpError> {
        let fill_target = self.check_queue(queue, umem, pool, config)?;
        let multi_buffer = self.wants_multi_buffer(umem.config().chunk_size)?;
        let frames: Vec<Frame> = (0..fill_target.get()).map_while(|_| pool.alloc()).collect();
        let opened = self.open_socket(queue, umem, config, multi_buffer, &frames);
        let socket = match opened {
            Ok(socket) => socket,
            Err(error) => {
                frames.into_iter().for_each(|frame| pool.free(frame));
                return Err(error);
            }
        };
        let registration = socket.registration;
        let merge = self.merge_socket(registration);
        let caps = self.caps(registration);
        let merges = merge.as_ref().is_some_and(MergeSocket::merges);
        tracing::debug!(device = self.device.name, queue, ?registration, ?fill_target, merges, "AF_XDP queue opened");
        let link = XdpLink::new(socket, caps, umem.clone(), fill_target, frames, merge, self.program.clone());
        if let Err(error) = self.program.set_socket(queue, link.socket_fd()) {
            crate::Link::close(Box::new(link), pool);
            return Err(error);
        }
        Ok(link)
    }

    /// What takes a queue's runs. Without copies the driver sends frames as they lie, and a packet socket would copy them.
    fn merge_socket(&self, registration: Registration) -> Option<MergeSocket> {
        if !self.config.merge || registration.zero_copy {
            return None;
        }
        match MergeSocket::open(self.device.index, Framing::Ethernet, self.offloads.clone()) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::info!(device = self.device.name, %error, "no packet socket: segments are sent one by one");
                None
            }
        }
    }

    /// The queue's socket, bound, with `frames` to receive into.
    fn open_socket(
        &self,
        queue: u32,
        umem: &Arc<Umem>,
        config: QueueConfig,
        multi_buffer: bool,
        frames: &[Frame],
    ) -> Result<Socket, XdpError> {
        let chunk_size = u64::from(umem.config().chunk_size);
        let chunks: Vec<u64> = frames.iter().map(|frame| u64::from(frame.chunk()) * chunk_size).collect();
        let mut group = umem.sockets.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Socket::open(
            umem,
            &mut group,
            SocketRequest {
                device: &self.device,
                queue,
                rings: config,
                multi_buffer,
                force_copy: !self.is_native() || !self.config.zero_copy || !self.fits(umem.config().chunk_size),
                tx_metadata: self.config.tx_checksum && self.device.hears_metadata(),
                chunks: &chunks,
            },
        )
    }

    /// Whether chunks of this size take what comes without copies; multi-buffer takes what does not fit one.
    fn fits(&self, chunk_size: u32) -> bool {
        self.program.frags || self.device.fits_chunk(chunk_size)
    }

    /// Checks a request to open a queue; how many chunks the device shall get.
    fn check_queue(
        &self,
        queue: u32,
        umem: &Arc<Umem>,
        pool: &UmemPool,
        config: QueueConfig,
    ) -> Result<FillTarget, XdpError> {
        self.check_queue_itself(queue, config)?;
        if !Arc::ptr_eq(umem, pool.umem()) {
            return Err(XdpError::ForeignPool);
        }
        let needed = FILL_MIN.min(config.lent);
        let available = pool.available() as u32;
        let least = config.lent.min(config.fill).min(available / 2);
        if least < needed {
            return Err(XdpError::PoolTooSmall { available: pool.available(), needed: 2 * needed as usize });
        }
        Ok(FillTarget::new(least, config.fill.min(available / 6)))
    }

    /// The part of it that has nothing to do with memory.
    pub(crate) fn check_queue_itself(&self, queue: u32, config: QueueConfig) -> Result<(), XdpError> {
        config.check()?;
        // Sockets bind by index, and an index of another namespace is another device. Its link address may be another by now.
        let now = NetDevice::find(&self.device.name)?;
        if now.index != self.device.index || namespace() != self.namespace {
            return Err(XdpError::NoSuchDevice { device: self.device.name.clone() });
        }
        let QueueCounts { rx, tx } = now.queue_counts();
        if queue >= rx.min(tx) {
            return Err(XdpError::NoSuchQueue { device: self.device.name.clone(), queue, rx, tx });
        }
        Ok(())
    }

    /// Whether the queue's socket shall have multi-buffer.
    ///
    /// # Errors
    /// When the MTU needs it and it cannot be had.
    pub(crate) fn wants_multi_buffer(&self, chunk_size: u32) -> Result<bool, XdpError> {
        let room = chunk_size - XDP_PACKET_HEADROOM;
        let needed = self.device.mtu + LINK_HEADER_MAX > room;
        let wanted = match self.config.multi_buffer {
            MultiBuffer::Off => false,
            MultiBuffer::On => true,
            MultiBuffer::Auto => needed || !self.is_native(),
        } && self.program.frags;
        if needed && !wanted {
            return Err(XdpError::MtuTooLarge {
                device: self.device.name.clone(),
                mtu: self.device.mtu,
                max: room - LINK_HEADER_MAX,
                mode: "a chunk without multi-buffer",
                cure: "lower the MTU, use larger chunks, or allow multi-buffer (Linux 6.6)",
            });
        }
        Ok(wanted)
    }

    #[cfg(feature = "xsk-rs")]
    pub(crate) fn program(&self) -> &Arc<Program> {
        &self.program
    }

    pub(crate) fn caps(&self, registration: Registration) -> LinkCaps {
        LinkCaps {
            kind: if self.is_native() { LinkKind::XdpNative } else { LinkKind::XdpGeneric },
            framing: Framing::Ethernet,
            mac: self.device.mac,
            mtu: self.device.mtu_u16(),
            // Without copies it is the driver that would have to look at the metadata, and not every one does.
            tx_checksum: registration.tx_metadata_len > 0 && !registration.zero_copy,
            virtual_peer: self.device.is_virtual(),
            multi_buffer: registration.multi_buffer,
        }
    }
}

/// The calling thread's network namespace; `None` without /proc.
fn namespace() -> Option<u64> {
    std::fs::metadata("/proc/thread-self/ns/net").ok().map(|namespace| std::os::unix::fs::MetadataExt::ino(&namespace))
}

/// What veth and most drivers take without multi-buffer: a page less headroom and tail room (3506 on veth).
const NATIVE_MTU_MAX: u32 = 3506;

fn too_large_for_native(device: &NetDevice, config: XdpConfig) -> bool {
    device.mtu > NATIVE_MTU_MAX && !frags_possible(config)
}

fn frags_possible(config: XdpConfig) -> bool {
    config.multi_buffer != MultiBuffer::Off && crate::program::kernel_is(6, 6)
}

fn wanted(device: &NetDevice, config: XdpConfig) -> Wanted {
    let possible = frags_possible(config);
    // A program for several buffers can cost a driver its fast path, so natively only where the MTU asks for it with
    // the smaller of the two chunk sizes. In generic mode it always pays: see `MultiBuffer::Auto`.
    let needed = device.mtu + LINK_HEADER_MAX > 2048 - XDP_PACKET_HEADROOM || config.multi_buffer == MultiBuffer::On;
    Wanted {
        native: (config.mode != XdpMode::Generic).then_some(Frags(possible && needed)),
        generic: (config.mode != XdpMode::Native).then_some(Frags(possible)),
    }
}

/// The kernel has AF_XDP, and we may use it.
fn check_kernel() -> Result<(), XdpError> {
    use crate::sys::capabilities;
    match crate::sys::xsk::socket() {
        Ok(_) => Ok(()),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT | libc::ESOCKTNOSUPPORT) => XdpError::KernelLacks {
                what: "AF_XDP sockets",
                cure: "use one with CONFIG_XDP_SOCKETS, or the AF_PACKET link",
            },
            Some(libc::EPERM | libc::EACCES) => XdpError::MissingCapability {
                doing: "open an AF_XDP socket",
                missing: capabilities::missing(capabilities::FOR_XDP),
            },
            _ => XdpError::system("open an AF_XDP socket", error),
        }),
    }
}
