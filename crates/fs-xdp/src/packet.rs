//! AF_PACKET: works on every device, in a user namespace without root, and on devices without
//! Ethernet (TUN, WireGuard).
//!
//! The kernel still receives every packet too, so this link is for addresses that the kernel does
//! not have (standalone addressing), or for hosts on which the kernel does not reply on our ports.

use crate::copying;
use crate::device::NetDevice;
use crate::error::XdpError;
use crate::link::{Link, LinkCaps, LinkKind, LinkStats};
use crate::merge::{self, Refusals, run::Run};
use crate::sys::capabilities;
use crate::sys::merged_io::Pieces;
use crate::sys::packet;
use crate::sys::packet_io::{ReceiveBatch, SendBatch};
use crate::umem::UmemPool;
use fs_core::{FramePool, Framing, IfaceId, RxFrame, TxFrame};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bytes of link-layer header on top of the MTU: Ethernet and one VLAN tag.
const LINK_HEADER_MAX: usize = 18;

/// A group of packet sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FanoutGroup {
    /// One that no socket of the network namespace is in yet: [`PacketLink::fanout_group`].
    New,
    /// The group of this number, new or not.
    Number(u16),
}

/// Options of a packet socket.
#[derive(Clone, Copy, Debug)]
pub struct PacketConfig {
    /// Lets several sockets of this process share the device's packets. All of them are in the same
    /// group, and a flow always goes to the same socket (`PACKET_FANOUT_HASH`).
    pub fanout_group: Option<FanoutGroup>,
    /// Exchange checksum states and large packets with the kernel (`PACKET_VNET_HDR`): received
    /// checksums are verified already, those of what we send are left to it, and runs of full
    /// segments leave as one packet that the device or the kernel cuts.
    pub vnet_hdr: bool,
    /// Packets per system call.
    pub batch: usize,
    /// Bytes that the kernel may hold for us (`SO_RCVBUF`); limited by `net.core.rmem_max` without
    /// `CAP_NET_ADMIN`.
    pub receive_buffer: u32,
}

impl Default for PacketConfig {
    /// 64 packets per call (the cost of a call is then amortized), 4 MiB (about 2 ms at 10 Gb/s).
    fn default() -> Self {
        Self { fanout_group: None, vnet_hdr: true, batch: 64, receive_buffer: 4 << 20 }
    }
}

/// One packet socket on one device.
pub struct PacketLink {
    caps: LinkCaps,
    socket: OwnedFd,
    receive: ReceiveBatch,
    send: SendBatch,
    /// Pieces of a merged packet.
    pieces: Pieces,
    ends: Vec<usize>,
    longest: usize,
    vnet: bool,
    /// Cleared if the kernel refuses a merged packet.
    merges: bool,
    refusals: Refusals,
    stats: LinkStats,
    /// Drops that the kernel has reported (reading them resets its counter).
    kernel_drops: Cell<u64>,
    dead: Option<i32>,
    fanout_group: Option<u16>,
}

/// `PACKET_FANOUT_FLAG_UNIQUEID` of `linux/if_packet.h`: the kernel chooses the group, and the number is 0.
const FANOUT_UNIQUE: i32 = 0x2000;

impl PacketLink {
    /// Opens a packet socket on the device called `name` in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`XdpError::NoSuchDevice`], [`XdpError::MissingCapability`], or whatever the kernel says.
    pub fn open(name: &str, config: PacketConfig) -> Result<PacketLink, XdpError> {
        let device = NetDevice::find(name)?;
        let doing = |what: &str| format!("{what} on {name}");
        let socket = packet::socket().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => XdpError::MissingCapability {
                doing: "open a packet socket",
                missing: capabilities::missing(capabilities::FOR_PACKET),
            },
            Some(libc::EAFNOSUPPORT) => {
                XdpError::KernelLacks { what: "AF_PACKET sockets", cure: "use one with CONFIG_PACKET" }
            }
            _ => XdpError::system(doing("open a packet socket"), error),
        })?;
        let fd = socket.as_fd();
        let set = |option, value| packet::set(fd, libc::SOL_PACKET, option, value);
        let vnet = config.vnet_hdr && set(libc::PACKET_VNET_HDR, 1).is_ok();
        set(libc::PACKET_AUXDATA, 1).map_err(|error| XdpError::system(doing("ask for VLAN tags"), error))?;
        set(libc::PACKET_IGNORE_OUTGOING, 1).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOPROTOOPT) => {
                XdpError::KernelLacks { what: "PACKET_IGNORE_OUTGOING", cure: "use Linux 4.20 or later" }
            }
            _ => XdpError::system(doing("ignore outgoing packets"), error),
        })?;
        let buffer = i32::try_from(config.receive_buffer).unwrap_or(i32::MAX);
        if packet::set(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, buffer).is_err() {
            packet::set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, buffer)
                .map_err(|error| XdpError::system(doing("size the receive buffer"), error))?;
        }
        packet::bind(fd, device.index).map_err(|error| XdpError::system(doing("bind a packet socket"), error))?;
        let join = |group| {
            let (flag, number) = match group {
                FanoutGroup::New => (FANOUT_UNIQUE, 0),
                FanoutGroup::Number(number) => (0, number.into()),
            };
            set(libc::PACKET_FANOUT, number | (libc::PACKET_FANOUT_HASH as i32 | flag) << 16)?;
            packet::fanout_group(fd)
        };
        let joined = config.fanout_group.map(join).transpose();
        let fanout_group = joined.map_err(|error| XdpError::system(doing("join a fanout group"), error))?;
        tracing::info!(
            device = name,
            driver = device.driver,
            vnet_hdr = vnet,
            mtu = device.mtu,
            "AF_PACKET link opened"
        );
        let framing = if device.is_ethernet() { Framing::Ethernet } else { Framing::Ip };
        Ok(PacketLink {
            caps: LinkCaps {
                kind: LinkKind::Packet,
                framing,
                mac: if framing == Framing::Ethernet { device.mac } else { [0; 6] },
                mtu: device.mtu_u16(),
                tx_checksum: vnet,
                // With the header the kernel reports for each packet whether its checksum is
                // unfinished.
                virtual_peer: !vnet && device.is_virtual(),
                multi_buffer: true,
            },
            receive: ReceiveBatch::new(config.batch.clamp(1, 1024), vnet),
            send: SendBatch::new(config.batch.clamp(1, 1024), vnet),
            pieces: Pieces::default(),
            ends: Vec::with_capacity(config.batch),
            longest: device.mtu as usize + if framing == Framing::Ethernet { LINK_HEADER_MAX } else { 0 },
            vnet,
            merges: vnet,
            refusals: Refusals::default(),
            stats: LinkStats::default(),
            kernel_drops: Cell::new(0),
            dead: None,
            fanout_group,
            socket,
        })
    }

    /// Returns the number of the socket's group, for the other sockets of it.
    pub fn fanout_group(&self) -> Option<u16> {
        self.fanout_group
    }

    /// Records an error if the device is gone. It may also only be down.
    #[cold]
    fn note(&mut self, error: &io::Error) {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => {}
            number => {
                if packet::bound_to(self.socket.as_fd()).is_none() {
                    self.dead = Some(number.unwrap_or(libc::ENODEV));
                }
            }
        }
    }

    /// Drops the `packets` at the front.
    #[cold]
    fn drop_first(&mut self, pool: &mut UmemPool, frames: &mut Vec<TxFrame>, end: usize, packets: usize) {
        self.stats.tx_dropped += packets as u64;
        for part in frames.drain(..end) {
            pool.free(part.frame);
        }
    }

    /// Sends the run at the front of `frames` as one packet. Returns `None` if no more can be sent
    /// now.
    fn send_run(&mut self, pool: &mut UmemPool, frames: &mut Vec<TxFrame>, run: &Run) -> Option<usize> {
        let header = merge::header(run, pool, frames);
        let segments = &frames[..run.frames];
        self.stats.syscalls += 1;
        match self.pieces.send_message(self.socket.as_fd(), header.bytes(), pool, segments, run.layout.payload) {
            Ok(()) => {
                for part in frames.drain(..run.frames) {
                    pool.free(part.frame);
                }
                self.refusals.end();
                self.stats.tx_merges += 1;
                self.stats.tx_merged += run.segments as u64;
                Some(run.segments)
            }
            Err(error) => {
                self.note(&error);
                if matches!(error.raw_os_error(), Some(libc::EMSGSIZE | libc::EINVAL)) {
                    tracing::warn!(%error, "the kernel refuses a merged packet: segments are sent one by one from here on");
                    self.merges = false;
                    return Some(0);
                }
                if self.refusals.is_hopeless(&error, self.socket.as_fd()) {
                    self.drop_first(pool, frames, run.frames, run.segments);
                    return Some(0);
                }
                None
            }
        }
    }

    /// Sends a batch from the front of `frames`. Returns `None` if no more can be sent now.
    fn send_some(&mut self, pool: &mut UmemPool, frames: &mut Vec<TxFrame>) -> Option<usize> {
        let first = crate::chain::end(frames, 0)?;
        let mut singles = frames.len();
        if self.merges {
            match copying::before_run(self.caps.framing, pool, frames) {
                (0, Some(run)) => return self.send_run(pool, frames, &run),
                (before, _) => singles = before,
            }
        }
        copying::sendable(&frames[..singles], self.longest, self.send.len(), &mut self.ends);
        if self.ends.is_empty() {
            self.drop_first(pool, frames, first, 1);
            return Some(0);
        }
        if !self.vnet {
            let mut start = 0;
            for &end in &self.ends {
                copying::finish_checksum(pool, &mut frames[start..end]);
                start = end;
            }
        }
        self.stats.syscalls += 1;
        match self.send.send(self.socket.as_raw_fd(), pool, frames, &self.ends) {
            Ok(sent) => {
                self.refusals.end();
                if let Some(&end) = sent.checked_sub(1).and_then(|last| self.ends.get(last)) {
                    for part in frames.drain(..end) {
                        pool.free(part.frame);
                    }
                }
                (sent > 0).then_some(sent)
            }
            Err(error) => {
                self.note(&error);
                // The first packet is the cause, and would be again.
                if matches!(error.raw_os_error(), Some(libc::EMSGSIZE | libc::EINVAL))
                    || self.refusals.is_hopeless(&error, self.socket.as_fd())
                {
                    self.drop_first(pool, frames, first, 1);
                    return Some(0);
                }
                None
            }
        }
    }
}

impl Link for PacketLink {
    fn caps(&self) -> &LinkCaps {
        &self.caps
    }

    fn rx(&mut self, pool: &mut UmemPool, iface: IfaceId, out: &mut Vec<RxFrame>, max: usize) -> usize {
        self.stats.syscalls += 1;
        let got = match self.receive.receive(self.socket.as_raw_fd(), pool, max) {
            Ok(got) => got,
            Err(error) => {
                self.note(&error);
                0
            }
        };
        let mut packets = 0;
        for i in 0..got {
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
        let mut total = 0;
        while let Some(sent) = self.send_some(pool, frames) {
            total += sent;
        }
        self.stats.tx_packets += total as u64;
        match self.dead {
            None => Ok(total),
            Some(number) => Err(io::Error::from_raw_os_error(number)),
        }
    }

    fn merges(&self) -> bool {
        self.merges
    }

    fn reap(&mut self, _pool: &mut UmemPool) -> bool {
        // The kernel has copied what it took.
        false
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn prepare_sleep(&mut self, _pool: &mut UmemPool) -> bool {
        self.stats.syscalls += 1;
        self.dead.is_none() && !packet::is_readable(self.socket.as_fd())
    }

    fn stats(&self) -> LinkStats {
        self.kernel_drops.set(self.kernel_drops.get() + packet::take_drops(self.socket.as_fd()));
        LinkStats { rx_dropped: self.stats.rx_dropped + self.kernel_drops.get(), ..self.stats }
    }

    fn close(mut self: Box<Self>, pool: &mut UmemPool) {
        self.receive.release(pool);
    }
}

impl std::fmt::Debug for PacketLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketLink").field("caps", &self.caps).field("stats", &self.stats).finish_non_exhaustive()
    }
}
