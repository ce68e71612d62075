//! A device with our XDP program, and the opening of its queues.

use crate::config::{LINK_HEADER_MAX, MultiBuffer, QueueConfig, XDP_PACKET_HEADROOM, XdpConfig, XdpMode};
use crate::device::{NetDevice, QueueCounts, cannot_ask};
use crate::error::XdpError;
use crate::fill_target::FillTarget;
use crate::link::{Link, LinkCaps, LinkKind};
use crate::loader::kernel_is;
use crate::merge::offloads::Offloads;
use crate::merge::socket::MergeSocket;
use crate::port_table::PortTable;
use crate::program::{Attached, Frags, Program, Wanted};
use crate::socket::{Socket, SocketRequest};
use crate::socket_group::Registration;
use crate::umem::{Umem, UmemPool};
use crate::xdp::XdpLink;
use fs_core::{Frame, FramePool, Framing};
use std::sync::Arc;

/// Minimum chunks for a queue to receive at all: two batches of a poll, one with us and one with
/// the device.
const FILL_MIN: u32 = 64;

/// Largest ring in entries. 16384 entries hold 16 ms at 1 Mpps, and the handles of two rings fit a
/// 16-bit count.
const RING_MAX: u32 = 1 << 14;

/// A device that our XDP program is attached to, until this value and all links opened from it are
/// dropped.
#[derive(Debug)]
pub struct XdpDevice {
    device: NetDevice,
    /// The network namespace of the attachment.
    namespace: Option<u64>,
    config: XdpConfig,
    counts: QueueCounts,
    program: Arc<Program>,
    ports: PortTable,
    offloads: Arc<Offloads>,
}

impl XdpDevice {
    /// Loads the program and attaches it to the device called `name` in the calling thread's
    /// network namespace. Nothing is redirected before a queue is open and the [`PortTable`] has
    /// entries.
    ///
    /// # Errors
    /// See [`XdpError`].
    pub fn attach(name: &str, config: XdpConfig) -> Result<XdpDevice, XdpError> {
        Self::attach_filled(name, config, |_| Ok(()))
    }

    /// Like [`XdpDevice::attach`], for a device whose packets are already ours: `fill` fills the
    /// program's table before the program sees a packet.
    ///
    /// # Errors
    /// See [`XdpError`], including errors of `fill`.
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
        // After attaching, because virtio-net then has more receive queues.
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
        // After attaching, because native mode on one end of a veth pair disables TSO of the other.
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

    /// Reads the settings of `ethtool -K` and `tc` again, which open queues apply from their next
    /// batch on. Call it when the kernel reports a change of the device (`RTM_NEWLINK`), in its
    /// network namespace.
    pub fn refresh_offloads(&self) {
        if self.offloads.read(&self.device) {
            tracing::info!(
                device = self.device.name,
                merges = self.offloads.cuts(),
                "the device's settings for sending have changed"
            );
        }
    }

    /// Returns what a queue of a device can do at least, before it is attached to. An open queue may
    /// compute checksums too.
    pub fn expected_caps(device: &NetDevice) -> LinkCaps {
        LinkCaps {
            kind: LinkKind::XdpGeneric,
            framing: Framing::Ethernet,
            mac: device.mac,
            mtu: device.mtu_u16(),
            tx_checksum: false,
            virtual_peer: device.is_virtual(),
            multi_buffer: false,
        }
    }

    /// Returns the kernel's information about the device at the time of the attachment.
    pub fn device(&self) -> &NetDevice {
        &self.device
    }

    /// Returns the number of queues that can be opened. All of them must be open to receive all our
    /// packets.
    pub fn queue_count(&self) -> u32 {
        self.counts.rx.min(self.counts.tx)
    }

    /// Returns the device's current queues (`ethtool -L`), or those at the attachment if it cannot be asked.
    pub fn queue_counts_now(&self) -> QueueCounts {
        self.device.ask_queues().unwrap_or(self.counts)
    }

    /// Returns true if the program runs in the driver.
    pub fn is_native(&self) -> bool {
        self.program.attached == Attached::Native
    }

    /// Returns the configuration for the next slower mode: with copies, then on socket buffers.
    /// `None` if there is none, or it was not allowed. `zero_copy`: whether queues were opened in
    /// zero-copy mode.
    pub fn lower_mode(&self, zero_copy: bool) -> Option<XdpConfig> {
        let config = XdpConfig { zero_copy: false, ..self.config };
        match (zero_copy, self.config.mode) {
            (true, _) => Some(config),
            (false, XdpMode::Auto) if self.is_native() => Some(XdpConfig { mode: XdpMode::Generic, ..config }),
            (false, _) => None,
        }
    }

    /// Returns the program's table of our addresses and ports.
    pub fn port_table(&self) -> PortTable {
        self.ports.clone()
    }

    /// Opens a queue on `umem`, with chunks for receiving out of `pool`. Queues of several devices
    /// can share one UMEM. Call it in the network namespace of the attachment.
    ///
    /// # Errors
    /// See [`XdpError`]. All chunks are then back in `pool`.
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
        let link = XdpLink::new(socket, caps, umem.clone(), fill_target, frames, merge, Some(self.program.clone()));
        if let Err(error) = self.program.set_socket(queue, link.socket_fd()) {
            Link::close(Box::new(link), pool);
            return Err(error);
        }
        Ok(link)
    }

    /// Returns the socket for merged runs. In zero-copy mode the driver sends frames in place, and
    /// a packet socket would copy them.
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

    /// Opens and binds the queue's socket, with `frames` to receive into.
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
                headroom: if self.is_native() || !multi_buffer {
                    0
                } else {
                    headroom(self.device.mtu, umem.config().chunk_size)
                },
                chunks: &chunks,
            },
        )
    }

    /// Returns whether chunks of this size hold received packets in zero-copy mode. With
    /// multi-buffer, larger packets fit too.
    fn fits(&self, chunk_size: u32) -> bool {
        self.program.frags || self.device.fits_chunk(chunk_size)
    }

    /// Checks a request to open a queue. Returns how many chunks the device should get.
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
        fill_target(pool, config)
    }

    /// The part of the check that does not concern memory.
    pub(crate) fn check_queue_itself(&self, queue: u32, config: QueueConfig) -> Result<(), XdpError> {
        check_sizes(&config)?;
        // Sockets bind by index, and in another namespace the index belongs to another device.
        if namespace() != self.namespace {
            return Err(XdpError::NoSuchDevice { device: self.device.name.clone() });
        }
        let QueueCounts { rx, tx } = self.device.ask_queues().map_err(|error| cannot_ask(&self.device.name, error))?;
        if queue >= rx.min(tx) {
            return Err(XdpError::NoSuchQueue { device: self.device.name.clone(), queue, rx, tx });
        }
        Ok(())
    }

    /// Returns whether the queue's socket needs multi-buffer.
    ///
    /// # Errors
    /// If the MTU needs it and it is not available.
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
            // In zero-copy mode the driver would have to handle the metadata, and not every driver
            // does.
            tx_checksum: registration.tx_metadata_len > 0 && !registration.zero_copy,
            virtual_peer: self.device.is_virtual(),
            multi_buffer: registration.multi_buffer,
        }
    }
}

/// Returns how many bytes to leave free in front of a packet in generic mode, so that each chunk of a
/// large packet holds the payload of one full segment with timestamps. Such a chunk can be sent on as it
/// is. 0 if that would leave much of a chunk unused.
fn headroom(mtu: u32, chunk_size: u32) -> u32 {
    /// IPv4 and TCP with timestamps.
    const HEADERS: u32 = 20 + 32;
    let excess = (chunk_size - XDP_PACKET_HEADROOM).saturating_sub(mtu.saturating_sub(HEADERS));
    if excess <= chunk_size / 4 { excess } else { 0 }
}

/// Returns how many chunks of `pool` the device should get.
pub(crate) fn fill_target(pool: &UmemPool, config: QueueConfig) -> Result<FillTarget, XdpError> {
    let needed = FILL_MIN.min(config.lent);
    let available = pool.available() as u32;
    let least = config.lent.min(config.fill).min(available / 2);
    if least < needed {
        return Err(XdpError::PoolTooSmall { available: pool.available(), needed: 2 * needed as usize });
    }
    Ok(FillTarget::new(least, config.fill.min(available / 6)))
}

/// Checks that the kernel supports the rings' sizes.
pub(crate) fn check_sizes(config: &QueueConfig) -> Result<(), XdpError> {
    for size in [config.rx, config.tx, config.fill, config.lent, config.completion] {
        if !size.is_power_of_two() || size > RING_MAX {
            return Err(XdpError::RingSize { size });
        }
    }
    Ok(())
}

/// Returns the calling thread's network namespace, or `None` without /proc.
fn namespace() -> Option<u64> {
    std::fs::metadata("/proc/thread-self/ns/net").ok().map(|namespace| std::os::unix::fs::MetadataExt::ino(&namespace))
}

/// Largest MTU of veth and most drivers without multi-buffer: a page minus headroom and tailroom
/// (3506 on veth).
const NATIVE_MTU_MAX: u32 = 3506;

fn too_large_for_native(device: &NetDevice, config: XdpConfig) -> bool {
    device.mtu > NATIVE_MTU_MAX && !frags_possible(config)
}

fn frags_possible(config: XdpConfig) -> bool {
    config.multi_buffer != MultiBuffer::Off && kernel_is(6, 6)
}

fn wanted(device: &NetDevice, config: XdpConfig) -> Wanted {
    let possible = frags_possible(config);
    // A program for several buffers can disable a driver's fast path. So in native mode it is used
    // only if the MTU needs it with the smaller chunk size. In generic mode it always pays: see
    // `MultiBuffer::Auto`.
    let needed = device.mtu + LINK_HEADER_MAX > 2048 - XDP_PACKET_HEADROOM || config.multi_buffer == MultiBuffer::On;
    Wanted {
        native: (config.mode != XdpMode::Generic).then_some(Frags(possible && needed)),
        generic: (config.mode != XdpMode::Native).then_some(Frags(possible)),
    }
}

/// Checks that the kernel has AF_XDP, and that we may use it.
pub(crate) fn check_kernel() -> Result<(), XdpError> {
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
