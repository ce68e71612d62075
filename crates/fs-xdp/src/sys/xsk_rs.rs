//! `xsk-rs` behind safe functions: one socket with its own UMEM, whose descriptors never leave this
//! file.

use crate::config::QueueConfig;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd};
use xsk_rs::config::{BindFlags, FrameSize, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig, XdpFlags};
use xsk_rs::umem::frame::FrameDesc;
use xsk_rs::{CompQueue, FillQueue, RxQueue, Socket, TxQueue, Umem};

/// `XDP_PKT_CONTD`.
const CONTINUED: u32 = 1;
/// Descriptors that pass through a ring at a time.
const BATCH: usize = 64;

/// Options of a socket.
pub(crate) struct Request<'a> {
    pub(crate) device: &'a str,
    pub(crate) queue: u32,
    pub(crate) rings: QueueConfig,
    pub(crate) chunk_size: u32,
    pub(crate) multi_buffer: bool,
    pub(crate) force_copy: bool,
    pub(crate) native: bool,
}

/// A bound socket.
pub(crate) struct RsSocket {
    tx: TxQueue,
    rx: RxQueue,
    fill: FillQueue,
    completion: CompQueue,
    umem: Umem,
    /// A descriptor to derive others from.
    blank: FrameDesc,
    /// Free chunks for sending.
    idle: Vec<FrameDesc>,
    /// Received descriptors that were not read yet.
    received: VecDeque<FrameDesc>,
    /// Descriptors that were read and are not in the fill ring again.
    used: Vec<FrameDesc>,
    /// Descriptors produced for sending since the last `flush`.
    pub(crate) outstanding: usize,
    room: usize,
}

impl RsSocket {
    /// Opens and binds. Leaves the XDP program unchanged.
    pub(crate) fn open(request: &Request<'_>) -> io::Result<RsSocket> {
        let QueueConfig { rx, tx, lent: fill, completion, .. } = request.rings;
        let bad = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidInput, error.to_string());
        let ring = |entries| QueueSize::new(entries).map_err(|error| bad(&error));
        let umem_config = UmemConfig::builder()
            .frame_size(FrameSize::new(request.chunk_size).map_err(|error| bad(&error))?)
            .fill_queue_size(ring(fill)?)
            .comp_queue_size(ring(completion)?)
            .build()
            .map_err(|error| bad(&error))?;
        let mut bind = BindFlags::XDP_USE_NEED_WAKEUP;
        bind.set(BindFlags::XDP_USE_SG, request.multi_buffer);
        bind.set(BindFlags::XDP_COPY, request.force_copy);
        let socket_config = SocketConfig::builder()
            .rx_queue_size(ring(rx)?)
            .tx_queue_size(ring(tx)?)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .xdp_flags(if request.native { XdpFlags::XDP_FLAGS_DRV_MODE } else { XdpFlags::XDP_FLAGS_SKB_MODE })
            .bind_flags(bind)
            .build();
        let chunks = NonZeroU32::new(fill + tx).ok_or(io::ErrorKind::InvalidInput)?;
        let (umem, mut frames) = Umem::new(umem_config, chunks, false).map_err(source)?;
        let interface: Interface = request.device.parse().map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
        // SAFETY: the UMEM is new and shared with no other socket, and program loading is
        // inhibited.
        let (tx_queue, rx_queue, rings) =
            unsafe { Socket::new(socket_config, &umem, &interface, request.queue) }.map_err(source)?;
        let (fill_queue, completion_queue) = rings.ok_or(io::ErrorKind::InvalidData)?;
        let idle = frames.split_off(fill as usize);
        let mut socket = RsSocket {
            tx: tx_queue,
            rx: rx_queue,
            fill: fill_queue,
            completion: completion_queue,
            umem,
            blank: frames[0],
            idle,
            received: VecDeque::with_capacity(BATCH),
            used: frames,
            outstanding: 0,
            room: umem_config.mtu() as usize,
        };
        socket.refill();
        Ok(socket)
    }

    /// Returns how many bytes of a sent packet a chunk holds.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Takes received descriptors off the ring. Returns how many wait to be read.
    pub(crate) fn take_received(&mut self) -> usize {
        let mut batch = [self.blank; BATCH];
        // SAFETY: the descriptors are of this socket's UMEM.
        let got = unsafe { self.rx.consume(&mut batch) };
        self.received.extend(&batch[..got]);
        self.received.len()
    }

    /// Returns true if `take_received` would return any.
    pub(crate) fn is_ready(&mut self) -> bool {
        !self.received.is_empty() || self.rx.nb_avail(1) > 0
    }

    /// Returns the number of descriptors of the first whole packet, or `None`.
    pub(crate) fn first_packet(&self) -> Option<usize> {
        self.received.iter().position(|descriptor| descriptor.options() & CONTINUED == 0).map(|last| last + 1)
    }

    /// Passes the bytes of the first waiting descriptor to `look`. The chunk then returns to the
    /// kernel.
    pub(crate) fn with_next(&mut self, look: impl FnOnce(&[u8])) {
        if let Some(descriptor) = self.received.pop_front() {
            // SAFETY: the descriptor came from this UMEM's RX ring and has not been returned.
            look(unsafe { self.umem.data(&descriptor) }.contents());
            self.used.push(descriptor);
        }
    }

    /// Returns read chunks to the fill ring.
    pub(crate) fn refill(&mut self) {
        if !self.used.is_empty() {
            // SAFETY: of this UMEM, and not read any more.
            let lent = unsafe { self.fill.produce(&self.used) };
            // All or none, because `produce` does not take a part.
            if lent == self.used.len() {
                self.used.clear();
            }
        }
    }

    /// Returns whether there are enough free chunks and ring entries to send.
    pub(crate) fn sendable(&mut self, wanted: usize) -> bool {
        self.idle.len() >= wanted && self.tx.nb_free(wanted as u32) as usize >= wanted
    }

    /// Sends a piece of a packet. `sendable` must have returned true for it.
    pub(crate) fn send(&mut self, piece: impl FnOnce(&mut dyn Write) -> io::Result<()>, more: bool) -> io::Result<()> {
        let mut descriptor = self.idle.pop().ok_or(io::ErrorKind::WouldBlock)?;
        // SAFETY: the chunk is free: neither the kernel nor other code uses it.
        let mut data = unsafe { self.umem.data_mut(&mut descriptor) };
        let mut cursor = data.cursor();
        cursor.set_pos(0);
        let wrote = piece(&mut cursor);
        if let Err(error) = wrote {
            self.idle.push(descriptor);
            return Err(error);
        }
        descriptor.set_options(if more { CONTINUED } else { 0 });
        // SAFETY: of this UMEM, and its ownership passes to the kernel here.
        if unsafe { self.tx.produce_one(&descriptor) } == 0 {
            self.idle.push(descriptor);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.outstanding += 1;
        Ok(())
    }

    /// Makes the kernel send.
    pub(crate) fn kick_tx(&mut self) -> io::Result<bool> {
        if self.outstanding == 0 || !self.tx.needs_wakeup() {
            return Ok(false);
        }
        self.tx.wakeup().map(|()| true)
    }

    /// Takes back sent chunks.
    pub(crate) fn take_completions(&mut self) {
        let mut batch = [self.blank; BATCH];
        loop {
            // SAFETY: the descriptors are of this socket's UMEM.
            let got = unsafe { self.completion.consume(&mut batch) };
            self.idle.extend_from_slice(&batch[..got]);
            self.outstanding = self.outstanding.saturating_sub(got);
            if got < BATCH {
                return;
            }
        }
    }

    /// Makes the driver check the fill ring. `ENXIO` if the device is gone.
    pub(crate) fn kick_rx(&mut self) -> io::Result<()> {
        crate::sys::xsk::kick_rx(self.rx.fd().as_raw_fd())
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket owns the descriptor and is borrowed for as long.
        unsafe { BorrowedFd::borrow_raw(self.rx.fd().as_raw_fd()) }
    }
}

/// Returns the system error inside an error of xsk-rs.
fn source(error: impl std::error::Error) -> io::Error {
    match error.source().and_then(|source| source.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error) {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::other(error.to_string()),
    }
}
