//! Queues that one process makes and another one uses, so that the other one needs no rights.
//!
//! The program makes its memory ([`Umem::in_file`]) and gives the file to a privileged process,
//! which registers it and makes a bound AF_XDP socket for each queue ([`make_queues`]). The program
//! maps the rings ([`HandedQueues::open`]); that, sending and receiving need no rights. A bound
//! socket cannot be bound again, so the privileged process has chosen the device.
//!
//! A packet socket for runs of segments ([`make_segment_socket`]) can be bound again, and sends what
//! the program likes: it belongs into a namespace that has no other device, and what arrives at that
//! device's peer has to be checked there.

use crate::config::{LINK_HEADER_MAX, QueueConfig, UmemConfig};
use crate::device::NetDevice;
use crate::error::XdpError;
use crate::link::{LinkCaps, LinkKind};
use crate::merge::offloads::Offloads;
use crate::merge::socket::{MergeSocket, bound};
use crate::socket::{Socket, set_ring_sizes};
use crate::socket_group::Registration;
use crate::sys::holes::KeptHoles;
use crate::sys::xsk;
use crate::umem::{Umem, UmemPool};
use crate::umem_unsafe::Area;
use crate::xdp::XdpLink;
use crate::xdp_device::{check_kernel, check_sizes, fill_target};
use fs_core::{Frame, FramePool, Framing};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Makes a bound socket for each of the first `queues` queues of a device whose XDP program runs in
/// generic mode. `memory` is the file of [`Umem::in_file`], from a process that is not trusted. Call
/// it in the device's network namespace, with CAP_NET_RAW there and CAP_IPC_LOCK. The memory is
/// charged to the process that made the file.
///
/// # Errors
/// The file is not such memory, a size is not possible, or an error of the kernel.
pub fn make_queues(
    device: &NetDevice,
    queues: u32,
    memory: BorrowedFd<'_>,
    config: UmemConfig,
    rings: QueueConfig,
) -> Result<Vec<OwnedFd>, XdpError> {
    check_kernel()?;
    check_sizes(&rings)?;
    let invalid = |error| XdpError::system("use the program's memory", error);
    config.check().map_err(invalid)?;
    // Only memory files have seals. Another file system could block the registration forever.
    let seals = fcntl_get_seals(memory).map_err(|error| invalid(error.into()))?;
    let stat = fstat(memory).map_err(|error| invalid(error.into()))?;
    // Registering it would fill holes, and charge them to this process. The program may make some until then.
    let has_holes = stat.st_blocks * 512 < stat.st_size;
    let refused = |why| Err(invalid(io::Error::new(io::ErrorKind::InvalidInput, why)));
    if !seals.contains(SealFlags::SHRINK) {
        return refused("its file can shrink");
    }
    if stat.st_size != config.bytes() as i64 {
        return refused("its file has another size");
    }
    if has_holes {
        return refused("its file has holes");
    }
    // Unmapped at the end: the registration keeps the pages.
    let area = Area::of_file(memory, config.bytes(), false).map_err(invalid)?;
    let mut made: Vec<OwnedFd> = Vec::new();
    for queue in 0..queues {
        let doing = |what: &str| format!("{what} for queue {queue} of {}", device.name);
        let socket = xsk::socket().map_err(|error| XdpError::system(doing("open an AF_XDP socket"), error))?;
        if made.is_empty() {
            let kept = KeptHoles::of(&area);
            if let Err(error) = &kept {
                tracing::warn!(%error, "a program may have memory charged to this process: userfaultfd(2) fails");
            }
            xsk::register_umem(socket.as_fd(), &area, config.chunk_size, 0, 0)
                .map_err(|error| XdpError::system(doing("register the UMEM"), error))?;
        }
        set_ring_sizes(socket.as_fd(), rings).map_err(|error| XdpError::system(doing("make the rings"), error))?;
        // A socket that joins gets the flags of the first one.
        let flags = if made.is_empty() { libc::XDP_USE_NEED_WAKEUP | libc::XDP_USE_SG | libc::XDP_COPY } else { 0 };
        xsk::bind(socket.as_fd(), device.index, queue, flags, made.first().map(AsFd::as_fd))
            .map_err(|error| XdpError::system(doing("bind"), error))?;
        made.push(socket);
    }
    Ok(made)
}

/// Makes a packet socket by which a program sends runs of TCP segments as super-segments. Its device
/// has checksum and segmentation offload. Call it in the device's network namespace, with CAP_NET_RAW
/// there.
///
/// # Errors
/// The errors of the kernel.
pub fn make_segment_socket(device: &NetDevice) -> Result<OwnedFd, XdpError> {
    bound(device.index).map_err(|error| XdpError::system(format!("open a packet socket on {}", device.name), error))
}

/// A program's description of the queues that it was given.
#[derive(Clone, Debug)]
pub struct HandedQueues {
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// The link address of the device.
    pub mac: [u8; 6],
    /// The sizes with which the sockets were made.
    pub rings: QueueConfig,
}

impl HandedQueues {
    /// Opens a queue on a socket of [`make_queues`], with chunks for receiving out of `pool`.
    /// `segments`: a socket of [`make_segment_socket`], or a duplicate of one. Queues may share it: a
    /// run of segments is one call.
    ///
    /// # Errors
    /// The rings cannot be mapped, or the pool is too small. All chunks are then back in the pool.
    pub fn open(
        &self,
        socket: OwnedFd,
        segments: Option<OwnedFd>,
        umem: &Arc<Umem>,
        pool: &mut UmemPool,
    ) -> Result<XdpLink, XdpError> {
        check_sizes(&self.rings)?;
        let target = fill_target(pool, self.rings)?;
        let registration =
            Registration { device: 0, multi_buffer: true, headroom: 0, tx_metadata_len: 0, zero_copy: false };
        // Kernels that lack the option send in batches.
        let whole_ring_per_kick = xsk::set_tx_budget(socket.as_fd(), self.rings.tx);
        let mut socket = Socket::map(socket, self.rings, registration)
            .map_err(|error| XdpError::system("map the rings of a queue that was handed over", error))?;
        socket.whole_ring_per_kick = whole_ring_per_kick;
        let frames: Vec<Frame> = (0..target.get()).map_while(|_| pool.alloc()).collect();
        let chunk_size = u64::from(umem.config().chunk_size);
        let chunks: Vec<u64> = frames.iter().map(|frame| u64::from(frame.chunk()) * chunk_size).collect();
        socket.fill_with(&chunks, self.rings.fill);
        let caps = LinkCaps {
            kind: LinkKind::XdpGeneric,
            framing: Framing::Ethernet,
            mac: self.mac,
            // A device's MTU may grow, and the kernel checks what is sent.
            mtu: self.mtu.min(u16::MAX - LINK_HEADER_MAX as u16),
            tx_checksum: false,
            // GRO leaves checksums unfinished, as a virtual device does.
            virtual_peer: true,
            multi_buffer: true,
        };
        let merge = segments.map(|socket| MergeSocket::on(socket, caps.framing, Arc::new(Offloads::of_pair())));
        Ok(XdpLink::new(socket, caps, umem.clone(), target, frames, merge, None))
    }
}
