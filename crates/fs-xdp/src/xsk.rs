//! AF_XDP on the rings of `xsk-rs` (libxdp), behind the same [`Link`] trait: cargo feature
//! `xsk-rs`.
//!
//! It exists for comparison: the same suite of tests and the same benchmark run on both. Our own
//! rings are the default, because this one
//! - cannot use our memory, so every packet is copied between its UMEM and the pool's chunks;
//! - cannot share one UMEM between a queue here and queues elsewhere;
//! - cannot pass TX checksum metadata (its UMEM is registered without), so checksums are finished
//!   in software;
//! - cannot raise the kernel's TX budget before binding, so a kick moves 32 packets;
//! - never gets more chunks to receive into than at first (decision 0016): a core that shares its
//!   CPU loses packets that our rings receive;
//! - needs clang, m4, pkg-config and libelf-dev to build.
//!
//! The XDP program is the same, loaded and attached by [`crate::XdpDevice`].

use crate::chain;
use crate::checksum;
use crate::config::{LINK_HEADER_MAX, QueueConfig};
use crate::copying;
use crate::error::XdpError;
use crate::link::{Link, LinkCaps, LinkStats};
use crate::program::Program;
use crate::socket_group::Registration;
use crate::sys::xsk_rs::{Request, RsSocket};
use crate::umem::UmemPool;
use crate::xdp_device::XdpDevice;
use fs_core::{FramePool, IfaceId, RxChecksum, RxFrame, TxFrame};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// As for our own rings: how long a queue that is being closed may stay in use.
const REBIND_WAIT: Duration = Duration::from_secs(2);
const CLOSE_WAIT: Duration = Duration::from_millis(20);

/// An open queue on the rings of `xsk-rs`.
pub struct XskRsLink {
    caps: LinkCaps,
    socket: RsSocket,
    longest: usize,
    stats: LinkStats,
    dead: Option<i32>,
    /// A packet's bytes between chunks of different sizes.
    packet: Vec<u8>,
    _program: Arc<Program>,
}

impl XdpDevice {
    /// Opens a queue on the rings of `xsk-rs`, with its own UMEM of `lent + tx` chunks of
    /// `chunk_size` bytes. The device always has `lent` of them to receive into; `fill` is not
    /// used. Call it in the network namespace of the attachment.
    ///
    /// # Errors
    /// See [`XdpError`].
    pub fn open_queue_xsk_rs(&self, queue: u32, chunk_size: u32, config: QueueConfig) -> Result<XskRsLink, XdpError> {
        self.check_queue_itself(queue, config)?;
        let multi_buffer = self.wants_multi_buffer(chunk_size)?;
        let request = Request {
            device: &self.device().name,
            queue,
            rings: config,
            chunk_size,
            multi_buffer,
            force_copy: true,
            native: self.is_native(),
        };
        let socket = open(&request)?;
        self.program().set_socket(queue, socket.fd())?;
        let registration = Registration {
            device: self.device().index,
            multi_buffer,
            headroom: 0,
            tx_metadata_len: 0,
            zero_copy: false,
        };
        let caps = self.caps(registration);
        Ok(XskRsLink {
            longest: caps.mtu as usize + LINK_HEADER_MAX as usize,
            caps,
            socket,
            stats: LinkStats::default(),
            dead: None,
            packet: Vec::with_capacity(1 << 16),
            _program: self.program().clone(),
        })
    }
}

fn open(request: &Request<'_>) -> Result<RsSocket, XdpError> {
    let start = Instant::now();
    loop {
        let error = match RsSocket::open(request) {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        let waited = start.elapsed();
        match error.raw_os_error() {
            Some(libc::EBUSY) if waited < REBIND_WAIT => std::thread::sleep(Duration::from_millis(2)),
            Some(libc::EBUSY) => {
                return Err(XdpError::QueueTaken {
                    device: request.device.to_owned(),
                    queue: request.queue,
                    waited_ms: waited.as_millis() as u64,
                });
            }
            _ => {
                let doing = format!("open queue {} of {} with xsk-rs", request.queue, request.device);
                return Err(XdpError::system(doing, error));
            }
        }
    }
}

impl XskRsLink {
    #[cold]
    fn note(&mut self, error: &io::Error) {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENOMEM | libc::EINTR | libc::ENETDOWN) => {}
            number => self.dead = Some(number.unwrap_or(libc::ENXIO)),
        }
    }

    fn kick(&mut self) {
        match self.socket.kick_tx() {
            Ok(called) => self.stats.syscalls += u64::from(called),
            Err(error) => self.note(&error),
        }
    }

    /// Sends one packet. Returns `false` if there is no space.
    fn send(&mut self, pool: &UmemPool, packet: &[TxFrame]) -> io::Result<bool> {
        let room = self.socket.room();
        let pieces = self.packet.len().div_ceil(room);
        if !self.socket.sendable(pieces) {
            self.kick();
            self.socket.take_completions();
            if !self.socket.sendable(pieces) {
                return Ok(false);
            }
        }
        if let Some(request) = packet[0].checksum {
            checksum::finish(&mut self.packet, request);
        }
        debug_assert!(packet.iter().map(|part| pool.bytes(&part.frame).len()).sum::<usize>() == self.packet.len());
        for (i, piece) in self.packet.chunks(room).enumerate() {
            self.socket.send(|to| to.write_all(piece), i + 1 < pieces)?;
        }
        Ok(true)
    }
}

impl Link for XskRsLink {
    fn caps(&self) -> &LinkCaps {
        &self.caps
    }

    fn rx(&mut self, pool: &mut UmemPool, iface: IfaceId, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let mut packets = 0;
        self.socket.take_received();
        while packets < max
            && let Some(descriptors) = self.socket.first_packet()
        {
            self.packet.clear();
            for _ in 0..descriptors {
                self.socket.with_next(|bytes| self.packet.extend_from_slice(bytes));
            }
            if copying::copy_in(pool, iface, &self.packet, RxChecksum::Unknown, out) {
                packets += 1;
            } else {
                self.stats.rx_dropped += 1;
            }
        }
        self.socket.refill();
        self.stats.rx_packets += packets as u64;
        packets
    }

    fn tx(&mut self, pool: &mut UmemPool, frames: &mut Vec<TxFrame>) -> io::Result<usize> {
        self.socket.take_completions();
        let (mut done, mut sent) = (0, 0);
        while let Some(end) = chain::end(frames, done) {
            self.packet.clear();
            for part in &frames[done..end] {
                self.packet.extend_from_slice(pool.bytes(&part.frame));
            }
            let fits_chunk = self.caps.multi_buffer || self.packet.len() <= self.socket.room();
            if self.packet.is_empty() || self.packet.len() > self.longest || !fits_chunk {
                self.stats.tx_dropped += 1;
            } else if self.send(pool, &frames[done..end])? {
                sent += 1;
            } else {
                break;
            }
            done = end;
        }
        for part in frames.drain(..done) {
            pool.free(part.frame);
        }
        self.stats.tx_packets += sent as u64;
        self.kick();
        match self.dead {
            None => Ok(sent),
            Some(number) => Err(io::Error::from_raw_os_error(number)),
        }
    }

    fn reap(&mut self, _pool: &mut UmemPool) -> bool {
        self.kick();
        self.socket.take_completions();
        self.socket.outstanding > 0
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.fd())
    }

    fn prepare_sleep(&mut self, pool: &mut UmemPool) -> bool {
        self.socket.refill();
        self.reap(pool);
        if self.socket.is_ready() {
            return false;
        }
        self.stats.syscalls += 1;
        if let Err(error) = self.socket.kick_rx() {
            self.note(&error);
        }
        self.dead.is_none() && !self.socket.is_ready()
    }

    fn stats(&self) -> LinkStats {
        let mut stats = self.stats;
        if let Ok(kernel) = crate::sys::xsk::statistics(self.socket.fd()) {
            stats.rx_dropped += kernel.rx_dropped + kernel.rx_ring_full + kernel.rx_invalid_descs;
            stats.tx_dropped += kernel.tx_invalid_descs;
        }
        stats
    }

    fn close(mut self: Box<Self>, pool: &mut UmemPool) {
        let deadline = Instant::now() + CLOSE_WAIT;
        while self.reap(pool) && self.dead.is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl std::fmt::Debug for XskRsLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XskRsLink").field("caps", &self.caps).field("stats", &self.stats).finish_non_exhaustive()
    }
}
