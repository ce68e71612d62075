//! TAP and TUN: a network device whose cable ends in this process.
//!
//! Packets that the kernel sends through the device arrive here, and packets sent here arrive in
//! the kernel. So the link is a *neighbour* of the host, with its own addresses (and on TAP its own
//! MAC address).

use crate::copying;
use crate::device::NetDevice;
use crate::error::XdpError;
use crate::link::{Link, LinkCaps, LinkKind, LinkStats};
use crate::merge::{self, Front, run::Run};
use crate::sys::ioctl::Control;
use crate::sys::merged_io::Pieces;
use crate::sys::packet_io::{ReceiveBatch, SendBatch, VNET_LEN};
use crate::sys::{capabilities, packet, tun};
use crate::umem::UmemPool;
use fs_core::{FramePool, Framing, IfaceId, RxFrame, TxFrame};
use rustix::rand::GetRandomFlags;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const LINK_HEADER_MAX: usize = 18;
/// Packets read per call of `rx`, at most. Each has a slot with a chunk.
const SLOTS: usize = 32;

/// The kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TapKind {
    /// Ethernet frames.
    Tap,
    /// Bare IP packets.
    Tun,
}

/// Options of a device.
#[derive(Clone, Debug)]
pub struct TapConfig {
    /// Its name. The kernel replaces `%d` by a number. An existing device is attached to.
    pub name: String,
    /// See [`TapKind`].
    pub kind: TapKind,
    /// Several queues: open the same name once for each.
    pub multi_queue: bool,
    /// Exchange checksum states and large packets with the kernel (`IFF_VNET_HDR`).
    pub vnet_hdr: bool,
    /// Our end's MAC address on TAP (the device itself has another); a random one when `None`.
    pub mac: Option<[u8; 6]>,
    /// Bring the device up.
    pub up: bool,
}

impl TapConfig {
    /// Defaults: one queue, with checksum states, a random address, brought up.
    pub fn new(name: impl Into<String>, kind: TapKind) -> Self {
        Self { name: name.into(), kind, multi_queue: false, vnet_hdr: true, mac: None, up: true }
    }
}

/// One queue of a TAP or TUN device. The device disappears when its last queue is closed, unless it
/// is persistent.
pub struct TapLink {
    caps: LinkCaps,
    fd: OwnedFd,
    name: String,
    receive: ReceiveBatch,
    send: SendBatch,
    /// Of a merged packet.
    pieces: Pieces,
    longest: usize,
    vnet: bool,
    stats: LinkStats,
    dead: Option<i32>,
}

impl TapLink {
    /// Opens a queue of the device, and creates the device if it does not exist.
    ///
    /// # Errors
    /// [`XdpError::MissingCapability`], [`XdpError::KernelLacks`], or another error of the kernel.
    pub fn open(config: TapConfig) -> Result<TapLink, XdpError> {
        let TapConfig { name, kind, multi_queue, vnet_hdr, mac, up } = config;
        let flags = libc::IFF_NO_PI
            | if kind == TapKind::Tap { libc::IFF_TAP } else { libc::IFF_TUN }
            | if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 }
            | if vnet_hdr { libc::IFF_VNET_HDR } else { 0 };
        let (fd, name) = tun::open(&name, flags).map_err(|error| refused(&name, error))?;
        let doing = |what: &str| format!("{what} {name}");
        if vnet_hdr {
            // A persistent device keeps what its former user has set (QEMU: 12).
            tun::set_header_len(fd.as_fd(), VNET_LEN)
                .map_err(|error| XdpError::system(doing("set the packet header of"), error))?;
            tun::set_offload(fd.as_fd(), libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6)
                .map_err(|error| XdpError::system(doing("set the offloads of"), error))?;
        }
        if up {
            Control::open()
                .and_then(|control| control.set_up(&name))
                .map_err(|error| XdpError::system(doing("bring up"), error))?;
        }
        let device = NetDevice::find(&name)?;
        let framing = if kind == TapKind::Tap { Framing::Ethernet } else { Framing::Ip };
        let mac = match (framing, mac) {
            (Framing::Ip, _) => [0; 6],
            (Framing::Ethernet, Some(mac)) => mac,
            (Framing::Ethernet, None) => random_mac().map_err(|error| XdpError::system("choose an address", error))?,
        };
        tracing::info!(device = name, ?kind, vnet_hdr, mtu = device.mtu, "TAP/TUN link opened");
        Ok(TapLink {
            caps: LinkCaps {
                kind: if kind == TapKind::Tap { LinkKind::Tap } else { LinkKind::Tun },
                framing,
                mac,
                mtu: device.mtu_u16(),
                tx_checksum: vnet_hdr,
                // Without the header the kernel computes all checksums first.
                virtual_peer: false,
                multi_buffer: true,
            },
            receive: ReceiveBatch::new(SLOTS, vnet_hdr),
            send: SendBatch::new(1, vnet_hdr),
            pieces: Pieces::default(),
            longest: device.mtu as usize + if framing == Framing::Ethernet { LINK_HEADER_MAX } else { 0 },
            vnet: vnet_hdr,
            stats: LinkStats::default(),
            dead: None,
            fd,
            name,
        })
    }

    /// Returns the device's name, with its number.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes the run at the front of `frames` as one packet.
    fn write_run(&mut self, pool: &UmemPool, frames: &[TxFrame], run: &Run) -> io::Result<()> {
        let header = merge::header(run, pool, frames);
        self.stats.syscalls += 1;
        self.pieces.write(self.fd.as_fd(), header.bytes(), pool, &frames[..run.frames], run.layout.payload)?;
        self.stats.tx_merges += 1;
        self.stats.tx_merged += run.segments as u64;
        Ok(())
    }

    #[cold]
    fn note(&mut self, error: &io::Error) {
        match error.raw_os_error() {
            // EIO: the device is down. The others are transient too.
            Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM | libc::EIO | libc::EINVAL) => {}
            // EBADFD: the device was deleted and the descriptor is detached.
            number => self.dead = Some(number.unwrap_or(libc::ENODEV)),
        }
    }
}

impl Link for TapLink {
    fn caps(&self) -> &LinkCaps {
        &self.caps
    }

    fn rx(&mut self, pool: &mut UmemPool, iface: IfaceId, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let mut packets = 0;
        for i in 0..max.min(self.receive.len()) {
            self.stats.syscalls += 1;
            match self.receive.read(self.fd.as_raw_fd(), pool, i) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.note(&error);
                    break;
                }
            }
            if copying::deliver(pool, iface, self.receive.received(i), out) {
                packets += 1;
            } else {
                self.stats.rx_dropped += 1;
            }
        }
        self.stats.rx_packets += packets as u64;
        packets
    }

    fn tx(&mut self, pool: &mut UmemPool, frames: &mut Vec<TxFrame>) -> io::Result<usize> {
        let (mut done, mut sent) = (0, 0);
        // Frames before this one start no run.
        let mut singles = 0;
        while let Some(end) = crate::chain::end(frames, done) {
            if self.vnet && done >= singles {
                match merge::front(self.caps.framing, pool, &frames[done..]) {
                    Front::Run(run) => match self.write_run(pool, &frames[done..], &run) {
                        Ok(()) => {
                            (done, sent) = (done + run.frames, sent + run.segments);
                            continue;
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        // One by one they meet the error again, if it is not about the merged packet.
                        Err(_) => singles = done + run.frames,
                    },
                    Front::Singles(count) => singles = done + count,
                }
            }
            let packet = &mut frames[done..end];
            if copying::fits(packet, self.longest) {
                if !self.vnet {
                    copying::finish_checksum(pool, packet);
                }
                self.stats.syscalls += 1;
                match self.send.write(self.fd.as_raw_fd(), pool, packet) {
                    Ok(()) => sent += 1,
                    Err(error) => {
                        self.note(&error);
                        // The device is down, or the kernel rejects the packet. It is dropped, as
                        // on a cable without a peer.
                        if !matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) {
                            break;
                        }
                        self.stats.tx_dropped += 1;
                    }
                }
            } else {
                self.stats.tx_dropped += 1;
            }
            done = end;
        }
        for part in frames.drain(..done) {
            pool.free(part.frame);
        }
        self.stats.tx_packets += sent as u64;
        match self.dead {
            None => Ok(sent),
            Some(number) => Err(io::Error::from_raw_os_error(number)),
        }
    }

    fn merges(&self) -> bool {
        self.vnet
    }

    fn reap(&mut self, _pool: &mut UmemPool) -> bool {
        false
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn prepare_sleep(&mut self, _pool: &mut UmemPool) -> bool {
        self.stats.syscalls += 1;
        self.dead.is_none() && !packet::is_readable(self.fd.as_fd())
    }

    fn stats(&self) -> LinkStats {
        self.stats
    }

    fn close(mut self: Box<Self>, pool: &mut UmemPool) {
        self.receive.release(pool);
    }
}

impl std::fmt::Debug for TapLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TapLink").field("name", &self.name).field("caps", &self.caps).finish_non_exhaustive()
    }
}

/// Locally administered, not a group.
fn random_mac() -> io::Result<[u8; 6]> {
    let mut mac = [0; 6];
    rustix::rand::getrandom(&mut mac, GetRandomFlags::empty())?;
    mac[0] = mac[0] & 0xfc | 2;
    Ok(mac)
}

fn refused(name: &str, error: io::Error) -> XdpError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => XdpError::MissingCapability {
            doing: "open a TUN/TAP device",
            missing: capabilities::missing(capabilities::FOR_NET_ADMIN),
        },
        Some(libc::ENOENT) => XdpError::KernelLacks {
            what: "/dev/net/tun",
            cure: "load the module tun, or pass the device into the container",
        },
        Some(libc::EBUSY) => XdpError::system(format!("open {name}, which another process has open"), error),
        _ => XdpError::system(format!("open the TUN/TAP device {name}"), error),
    }
}
