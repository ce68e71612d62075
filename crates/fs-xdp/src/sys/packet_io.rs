//! Batches of packets in and out of a descriptor, straight from and into chunks:
//! `recvmmsg`/`sendmmsg` for packet sockets, `readv`/`writev` for TUN and TAP.
//!
//! Every packet may have a `virtio_net_hdr` (`linux/virtio_net.h`), which describes unfinished
//! checksums and packets larger than the MTU (TSO, GRO). Bytes that do not fit into the chunk go
//! into a spill buffer of 64 KiB, which uses no memory before it is written to.

use crate::umem::UmemPool;
use fs_core::{Frame, FramePool, TxChecksum, TxFrame};
use std::io;
use std::os::fd::RawFd;

/// Bytes of `struct virtio_net_hdr`.
pub(crate) const VNET_LEN: usize = 10;
/// Largest packet: an IP packet of 65535 bytes and its link-layer header.
const SPILL_LEN: usize = 65_536 + 64;
const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;

/// The header before a packet.
#[derive(Clone, Copy, Default)]
pub(crate) struct Vnet([u8; VNET_LEN]);

impl Vnet {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the header of a packet whose checksum the kernel or the device computes, or which is
    /// finished.
    pub(crate) fn of(checksum: Option<TxChecksum>) -> Self {
        let mut header = [0; VNET_LEN];
        if let Some(TxChecksum { start, offset }) = checksum {
            header[0] = NEEDS_CSUM;
            header[6..8].copy_from_slice(&start.to_ne_bytes());
            header[8..10].copy_from_slice(&offset.to_ne_bytes());
        }
        Self(header)
    }

    fn is_verified(self) -> bool {
        self.0[0] & (NEEDS_CSUM | DATA_VALID) != 0
    }
}

/// Space for one received packet.
struct Slot {
    /// The waiting chunk, empty.
    frame: Option<Frame>,
    vnet: Vnet,
    control: [u64; 8],
    spill: Box<[u8]>,
    /// Length of the received packet.
    length: usize,
}

/// A received packet in its slot.
pub(crate) struct Received<'a> {
    /// The chunk, as a frame still empty. Its bytes from the frame's start on are the packet's
    /// first.
    pub(crate) frame: &'a mut Option<Frame>,
    /// The bytes that did not fit, starting at the packet's byte number `room`.
    pub(crate) spill: &'a [u8],
    /// Length of the packet.
    pub(crate) length: usize,
    /// Its checksum is known to be correct.
    pub(crate) verified: bool,
    /// The VLAN tag that the kernel has removed: protocol and TCI.
    pub(crate) vlan: Option<(u16, u16)>,
}

/// Slots for a batch of packets, and the arguments of the system calls.
pub(crate) struct ReceiveBatch {
    slots: Vec<Slot>,
    vnet: bool,
    vectors: Vec<[libc::iovec; 3]>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers in `vectors` and `headers` are only used within a call that has just set
// them, and point into `slots`, which go along, and into chunks that `slots` own.
unsafe impl Send for ReceiveBatch {}

impl ReceiveBatch {
    /// Creates slots for `slots` packets at a time.
    pub(crate) fn new(slots: usize, vnet: bool) -> Self {
        let slot = || Slot {
            frame: None,
            vnet: Vnet::default(),
            control: [0; 8],
            spill: vec![0; SPILL_LEN].into(),
            length: 0,
        };
        Self {
            slots: (0..slots).map(|_| slot()).collect(),
            vnet,
            vectors: Vec::with_capacity(slots),
            headers: Vec::with_capacity(slots),
        }
    }

    /// Gives every slot up to `max` a chunk. Returns how many have one.
    fn supply(&mut self, pool: &mut UmemPool, max: usize) -> usize {
        let max = max.min(self.slots.len());
        for (i, slot) in self.slots[..max].iter_mut().enumerate() {
            if slot.frame.is_none() {
                slot.frame = pool.alloc();
            }
            if slot.frame.is_none() {
                return i;
            }
        }
        max
    }

    /// Sets the vectors of slot `i`.
    fn vectors(slot: &mut Slot, pool: &mut UmemPool, vnet: bool) -> [libc::iovec; 3] {
        let mut room = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 3];
        if vnet {
            room[0] = libc::iovec { iov_base: slot.vnet.0.as_mut_ptr().cast(), iov_len: VNET_LEN };
        }
        if let Some(frame) = &mut slot.frame {
            let len = pool.chunk_size() - frame.off();
            frame.grow_back(len);
            let bytes = pool.bytes_mut(frame);
            room[1] = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            frame.truncate(0);
        }
        room[2] = libc::iovec { iov_base: slot.spill.as_mut_ptr().cast(), iov_len: slot.spill.len() };
        room
    }

    /// Receives up to `max` packets from a socket with one call and returns their number. None is
    /// no error.
    pub(crate) fn receive(&mut self, socket: RawFd, pool: &mut UmemPool, max: usize) -> io::Result<usize> {
        let count = self.supply(pool, max);
        self.vectors.clear();
        self.headers.clear();
        for slot in &mut self.slots[..count] {
            let vectors = Self::vectors(slot, pool, self.vnet);
            self.vectors.push(vectors);
        }
        for (slot, vectors) in self.slots.iter_mut().zip(&mut self.vectors) {
            // SAFETY: an `mmsghdr` is integers and pointers that null suits.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = vectors.as_mut_ptr();
            header.msg_hdr.msg_iovlen = vectors.len();
            header.msg_hdr.msg_control = slot.control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = size_of_val(&slot.control);
            self.headers.push(header);
        }
        if count == 0 {
            return Ok(0);
        }
        let headers = self.headers.as_mut_ptr();
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: `count` live headers. Their vectors and control buffers are live and writable:
        // header bytes and spill belong to the slots, and the slots own the chunks, which nothing
        // else accesses.
        let got = unsafe { libc::recvmmsg(socket, headers, count as u32, flags, std::ptr::null_mut()) };
        if got < 0 {
            return none_is_no_error(io::Error::last_os_error());
        }
        for (slot, header) in self.slots.iter_mut().zip(&self.headers).take(got as usize) {
            slot.length = (header.msg_len as usize).saturating_sub(if self.vnet { VNET_LEN } else { 0 });
        }
        Ok(got as usize)
    }

    /// Reads one packet into slot `i`, from a descriptor that returns one per call. Returns `false`
    /// if there is none.
    pub(crate) fn read(&mut self, descriptor: RawFd, pool: &mut UmemPool, i: usize) -> io::Result<bool> {
        if self.supply(pool, i + 1) <= i {
            return Ok(false);
        }
        let vectors = Self::vectors(&mut self.slots[i], pool, self.vnet);
        let used = &vectors[if self.vnet { 0 } else { 1 }..];
        // SAFETY: live and writable vectors, as above.
        let got = unsafe { libc::readv(descriptor, used.as_ptr(), used.len() as i32) };
        if got < 0 {
            return none_is_no_error(io::Error::last_os_error()).map(|_: usize| false);
        }
        self.slots[i].length = (got as usize).saturating_sub(if self.vnet { VNET_LEN } else { 0 });
        Ok(got > 0)
    }

    /// Returns the packet that the last call put into slot `i`.
    pub(crate) fn received(&mut self, i: usize) -> Received<'_> {
        let vlan = self.headers.get(i).and_then(|header| vlan(&header.msg_hdr));
        let Slot { frame, vnet, spill, length, .. } = &mut self.slots[i];
        Received { frame, spill, length: *length, verified: self.vnet && vnet.is_verified(), vlan }
    }

    /// Returns the number of packets at a time.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the waiting chunks to the pool.
    pub(crate) fn release(&mut self, pool: &mut UmemPool) {
        for frame in self.slots.iter_mut().filter_map(|slot| slot.frame.take()) {
            pool.free(frame);
        }
    }
}

/// Returns the tag in a message's `PACKET_AUXDATA`.
fn vlan(header: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: the kernel has filled in the control buffer and its length; the macros walk it.
    let message = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() }?;
    if message.cmsg_level != libc::SOL_PACKET || message.cmsg_type != libc::PACKET_AUXDATA {
        return None;
    }
    // SAFETY: the data of this type is a `tpacket_auxdata`, plain integers.
    let data = unsafe { libc::CMSG_DATA(message).cast::<libc::tpacket_auxdata>().read_unaligned() };
    (data.tp_status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
        let protocol = if data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { data.tp_vlan_tpid } else { 0x8100 };
        (protocol, data.tp_vlan_tci)
    })
}

fn none_is_no_error(error: io::Error) -> io::Result<usize> {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(0),
        _ => Err(error),
    }
}

/// The arguments of `sendmmsg` for a batch of packets.
pub(crate) struct SendBatch {
    vnet: Vec<Vnet>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    packets: usize,
    with_vnet: bool,
}

// SAFETY: pointers are only used within the call that has just set them.
unsafe impl Send for SendBatch {}

/// Most pieces of a packet: `UIO_MAXIOV` is 1024, and one is the header.
const PIECES_MAX: usize = 1023;

impl SendBatch {
    /// Creates a batch of up to `packets` packets.
    pub(crate) fn new(packets: usize, with_vnet: bool) -> Self {
        Self {
            vnet: Vec::with_capacity(packets),
            vectors: Vec::with_capacity(packets * 4),
            headers: Vec::with_capacity(packets),
            packets,
            with_vnet,
        }
    }

    /// Returns the number of packets at a time.
    pub(crate) fn len(&self) -> usize {
        self.packets
    }

    /// Sends the packets that end at `ends` (indexes after their last frames), at most
    /// [`SendBatch::len`], with one call. Returns how many were taken.
    pub(crate) fn send(
        &mut self,
        socket: RawFd,
        pool: &UmemPool,
        frames: &[TxFrame],
        ends: &[usize],
    ) -> io::Result<usize> {
        let ends = &ends[..ends.len().min(self.packets)];
        self.vnet.clear();
        self.vectors.clear();
        self.headers.clear();
        let mut start = 0;
        for &end in ends {
            self.vnet.push(Vnet::of(frames[start].checksum));
            start = end;
        }
        let mut start = 0;
        for (i, &end) in ends.iter().enumerate() {
            if self.with_vnet {
                self.vectors.push(libc::iovec { iov_base: self.vnet[i].0.as_mut_ptr().cast(), iov_len: VNET_LEN });
            }
            self.vectors.extend(frames[start..end].iter().map(|part| piece(pool, &part.frame)));
            start = end;
        }
        let mut first = 0;
        let mut start = 0;
        for &end in ends {
            let count = end - start + usize::from(self.with_vnet);
            // SAFETY: an `mmsghdr` is integers and pointers that null suits.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = self.vectors[first..first + count].as_mut_ptr();
            header.msg_hdr.msg_iovlen = count;
            self.headers.push(header);
            first += count;
            start = end;
        }
        let count = self.headers.len() as u32;
        // SAFETY: `count` live headers, whose vectors point to live bytes of chunks that `frames`
        // own.
        let sent = unsafe { libc::sendmmsg(socket, self.headers.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// Writes one packet to a descriptor that takes one per call.
    pub(crate) fn write(&mut self, descriptor: RawFd, pool: &UmemPool, packet: &[TxFrame]) -> io::Result<()> {
        let mut vnet = Vnet::of(packet[0].checksum);
        self.vectors.clear();
        if self.with_vnet {
            self.vectors.push(libc::iovec { iov_base: vnet.0.as_mut_ptr().cast(), iov_len: VNET_LEN });
        }
        self.vectors.extend(packet.iter().map(|part| piece(pool, &part.frame)));
        // SAFETY: the vectors point to a live header and to live bytes of chunks that `packet`
        // owns.
        let wrote = unsafe { libc::writev(descriptor, self.vectors.as_ptr(), self.vectors.len() as i32) };
        if wrote < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns true if a packet of `count` frames can be sent without a copy.
    pub(crate) fn takes_pieces(count: usize) -> bool {
        count <= PIECES_MAX
    }
}

fn piece(pool: &UmemPool, frame: &Frame) -> libc::iovec {
    let bytes = pool.bytes(frame);
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}
