//! Opens an AF_XDP socket on our own rings.

use crate::config::QueueConfig;
use crate::device::NetDevice;
use crate::error::XdpError;
use crate::ring::completion::CompletionRing;
use crate::ring::fill::FillRing;
use crate::ring::rx::RxRing;
use crate::ring::tx::TxRing;
use crate::socket_group::{Registration, SocketGroup};
use crate::sys::capabilities;
use crate::sys::xsk::{self, Ring};
use crate::umem::Umem;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of `struct xsk_tx_metadata` up to and including the checksum request (`linux/if_xdp.h`).
pub(crate) const TX_METADATA_LEN: u8 = 16;
/// Time for which a queue that was just closed may stay in use: the kernel frees it in a work
/// queue, up to 20 ms after `close` (measured), and more than 200 ms on a busy machine. Longer only
/// delays the error.
const REBIND_WAIT: Duration = Duration::from_secs(2);

/// The parameters of a socket.
pub(crate) struct SocketRequest<'a> {
    pub(crate) device: &'a NetDevice,
    pub(crate) queue: u32,
    pub(crate) rings: QueueConfig,
    pub(crate) multi_buffer: bool,
    pub(crate) force_copy: bool,
    pub(crate) tx_metadata: bool,
    /// Bytes that stay free in front of a received packet, on top of the kernel's own.
    pub(crate) headroom: u32,
    /// Addresses of chunks to receive into, at most as many as the fill ring holds. They are in the
    /// ring before the bind: a zero-copy driver takes its receive buffers within bind, and some do
    /// not find later ones (igb of Linux 6.17 with an interrupt per direction wakes only the
    /// transmit half).
    pub(crate) chunks: &'a [u64],
}

/// A bound socket with its rings.
pub(crate) struct Socket {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) fill: FillRing,
    pub(crate) completion: CompletionRing,
    pub(crate) rx: RxRing,
    pub(crate) tx: TxRing,
    pub(crate) tx_entries: u32,
    /// One `sendto` can empty the TX ring.
    pub(crate) whole_ring_per_kick: bool,
    pub(crate) registration: Registration,
    /// It shares another socket's registration of the memory.
    pub(crate) joined: bool,
}

impl Socket {
    /// Joins a socket of `group` or registers the memory, maps the rings and binds.
    pub(crate) fn open(umem: &Umem, group: &mut SocketGroup, request: SocketRequest<'_>) -> Result<Socket, XdpError> {
        let device = request.device;
        // A physical device may use zero copy; only its own sockets show whether it does.
        let peer = group.find(|registration| {
            registration.multi_buffer == request.multi_buffer
                && registration.headroom == request.headroom
                && (registration.tx_metadata_len > 0) <= request.tx_metadata
                && (registration.device == device.index || (!registration.zero_copy && device.is_virtual()))
                && !(request.force_copy && registration.zero_copy)
        });
        if let Some((peer, registration)) = peer {
            match Self::open_with(umem, &request, Some((&peer, registration))) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EBADF)) => {
                    tracing::debug!(%error, "cannot share the UMEM's registration: registering it again");
                }
                other => return other.inspect(|socket| group.add(&socket.fd, socket.registration)),
            }
        }
        Self::open_with(umem, &request, None).inspect(|socket| group.add(&socket.fd, socket.registration))
    }

    fn open_with(
        umem: &Umem,
        request: &SocketRequest<'_>,
        join: Option<(&OwnedFd, Registration)>,
    ) -> Result<Socket, XdpError> {
        let doing = |what: &str| format!("{what} for queue {} of {}", request.queue, request.device.name);
        let fd = xsk::socket().map_err(|error| XdpError::system(doing("open an AF_XDP socket"), error))?;
        let mut registration = match join {
            Some((_, registration)) => registration,
            None => Registration {
                device: request.device.index,
                multi_buffer: request.multi_buffer,
                headroom: request.headroom,
                tx_metadata_len: register(&fd, umem, request)?,
                zero_copy: false,
            },
        };
        let whole_ring_per_kick = set_ring_sizes(fd.as_fd(), request.rings)
            .map_err(|error| XdpError::system(doing("make the rings"), error))?;
        let mut socket = Self::map(fd, request.rings, registration)
            .map_err(|error| XdpError::system(doing("map the rings"), error))?;
        (socket.whole_ring_per_kick, socket.joined) = (whole_ring_per_kick, join.is_some());
        socket.fill_with(request.chunks, request.rings.fill);
        bind(&socket.fd, request, join.map(|(peer, _)| peer))?;
        registration.zero_copy = xsk::is_zero_copy(socket.fd.as_fd());
        socket.registration = registration;
        Ok(socket)
    }

    /// Maps the rings of a socket that has them.
    pub(crate) fn map(fd: OwnedFd, rings: QueueConfig, registration: Registration) -> io::Result<Socket> {
        let QueueConfig { rx, tx, fill, completion, .. } = rings;
        let offsets = xsk::mmap_offsets(fd.as_fd())?;
        Ok(Socket {
            fill: FillRing::new(xsk::map_ring(fd.as_fd(), Ring::Fill, &offsets, fill)?),
            completion: CompletionRing::new(xsk::map_ring(fd.as_fd(), Ring::Completion, &offsets, completion)?),
            rx: RxRing::new(xsk::map_ring(fd.as_fd(), Ring::Rx, &offsets, rx)?),
            tx: TxRing::new(xsk::map_ring(fd.as_fd(), Ring::Tx, &offsets, tx)?),
            fd: Arc::new(fd),
            tx_entries: tx,
            whole_ring_per_kick: false,
            registration,
            joined: false,
        })
    }

    /// Gives the device chunks to receive into, at most as many as the fill ring of `entries` holds.
    pub(crate) fn fill_with(&mut self, chunks: &[u64], entries: u32) {
        for &address in chunks.iter().take(self.fill.free(entries) as usize) {
            self.fill.push(address);
        }
        self.fill.publish();
    }
}

/// Makes a socket's rings. Returns whether one `sendto` can then empty the TX ring.
pub(crate) fn set_ring_sizes(fd: BorrowedFd<'_>, rings: QueueConfig) -> io::Result<bool> {
    let QueueConfig { rx, tx, fill, completion, .. } = rings;
    for (ring, entries) in [(Ring::Fill, fill), (Ring::Completion, completion), (Ring::Rx, rx), (Ring::Tx, tx)] {
        xsk::set_ring_size(fd, ring, entries)?;
    }
    Ok(xsk::set_tx_budget(fd, tx))
}

/// Registers the memory, waiting for that of a queue that is being closed. Returns the length of TX
/// metadata that the kernel accepted.
fn register(fd: &OwnedFd, umem: &Umem, request: &SocketRequest<'_>) -> Result<u8, XdpError> {
    let chunk_size = umem.config().chunk_size;
    let mut tx_metadata_len = if request.tx_metadata { TX_METADATA_LEN } else { 0 };
    let (needed, limit) = (umem.len_bytes() as u64, xsk::memlock_limit());
    let start = Instant::now();
    loop {
        let registered =
            xsk::register_umem(fd.as_fd(), umem.area(), chunk_size, request.headroom, tx_metadata_len.into());
        let Err(error) = registered else { return Ok(tx_metadata_len) };
        match error.raw_os_error() {
            // Kernels before 6.11 do not have the flag.
            Some(libc::EINVAL) if tx_metadata_len > 0 => tx_metadata_len = 0,
            // The kernel counts the memory of all of a user's programs, and that of a closed queue
            // until it frees the queue.
            Some(libc::ENOBUFS) if needed <= limit && start.elapsed() < REBIND_WAIT => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Some(libc::ENOBUFS) => {
                return Err(XdpError::MemoryLock { needed_kib: needed / 1024, limit_kib: limit / 1024 });
            }
            _ => return Err(XdpError::system("register the UMEM", error)),
        }
    }
}

/// Binds, waiting for a queue that is being closed.
fn bind(fd: &OwnedFd, request: &SocketRequest<'_>, join: Option<&OwnedFd>) -> Result<(), XdpError> {
    let SocketRequest { device, queue, .. } = *request;
    // A socket that joins gets these from the other socket.
    let flags = match join {
        Some(_) => 0,
        None => {
            libc::XDP_USE_NEED_WAKEUP
                | if request.multi_buffer { libc::XDP_USE_SG } else { 0 }
                | if request.force_copy { libc::XDP_COPY } else { 0 }
        }
    };
    let start = Instant::now();
    loop {
        let error = match xsk::bind(fd.as_fd(), device.index, queue, flags, join.map(AsFd::as_fd)) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let waited = start.elapsed();
        match error.raw_os_error() {
            Some(libc::EBUSY) if waited < REBIND_WAIT => std::thread::sleep(Duration::from_millis(2)),
            Some(libc::EBUSY) => {
                return Err(XdpError::QueueTaken {
                    device: device.name.clone(),
                    queue,
                    waited_ms: waited.as_millis() as u64,
                });
            }
            Some(libc::EPERM | libc::EACCES) => {
                return Err(XdpError::MissingCapability {
                    doing: "bind an AF_XDP socket",
                    missing: capabilities::missing(capabilities::FOR_XDP),
                });
            }
            Some(libc::ENODEV) => return Err(XdpError::NoSuchDevice { device: device.name.clone() }),
            _ => return Err(XdpError::system(format!("bind to queue {queue} of {}", device.name), error)),
        }
    }
}
