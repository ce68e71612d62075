//! The contract between a link and the core that polls it.

use crate::umem::UmemPool;
use fs_core::{Framing, IfaceId, RxFrame, TxFrame};
use std::io;
use std::os::fd::BorrowedFd;

/// What kind of link it is, for logs and `doctor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkKind {
    /// AF_XDP, the program runs in the driver.
    XdpNative,
    /// AF_XDP, the program runs on skbs.
    XdpGeneric,
    /// AF_PACKET.
    Packet,
    /// A TAP device.
    Tap,
    /// A TUN device.
    Tun,
    /// One end of an in-memory pair.
    Memory,
}

/// What a link can do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkCaps {
    /// See [`LinkKind`].
    pub kind: LinkKind,
    /// Ethernet or bare IP.
    pub framing: Framing,
    /// Our MAC address (zero on raw IP links).
    pub mac: [u8; 6],
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// `TxFrame::checksum` is cheap to ask for: the device or the peer finishes it. (Where this is false it is honoured
    /// as well, by summing up in software.) The AF_XDP request is written into the 16 bytes in front of the packet's
    /// first frame, so nothing of value may lie there.
    pub tx_checksum: bool,
    /// The peer is a virtual device that may hand over partial checksums.
    pub virtual_peer: bool,
    /// Frames longer than a chunk are received and sent as chains.
    pub multi_buffer: bool,
}

/// A link's counters since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets accepted for sending.
    pub tx_packets: u64,
    /// Packets that the device or kernel dropped on receive (ring full, fill ring empty, invalid descriptors).
    pub rx_dropped: u64,
    /// Times that all chunks lent to the device to receive into had been used when the core came: what arrived after the
    /// last of them is among `rx_dropped`.
    pub rx_ran_out: u64,
    /// Packets that could not be sent (too long, bad).
    pub tx_dropped: u64,
    /// Merged packets: each carried several of `tx_packets`, which the kernel or the device cuts out of it.
    pub tx_merges: u64,
    /// Packets of `tx_packets` that left in a merged one.
    pub tx_merged: u64,
    /// System calls made to receive and send.
    pub syscalls: u64,
}

/// One queue of one device. Owned by one core; never shared.
pub trait Link: Send {
    /// What it can do.
    fn caps(&self) -> &LinkCaps;

    /// Receives up to `max` packets (chains contiguous), tagged with `iface`, appended to `out`; never blocks.
    /// Also refills the device's supply of frames from `pool`. Returns the number of packets.
    fn rx(&mut self, pool: &mut UmemPool, iface: IfaceId, out: &mut Vec<RxFrame>, max: usize) -> usize;

    /// Sends from the front of `frames` as much as fits, in order, whole chains only; what does not fit stays.
    /// Returns the frames that the device has finished with to `pool`. Never blocks. An error means that the
    /// link is dead (device gone); transient conditions are not errors.
    fn tx(&mut self, pool: &mut UmemPool, frames: &mut Vec<TxFrame>) -> io::Result<usize>;

    /// Gives frames whose sending has finished back to `pool`; `true` while some are still with the device.
    fn reap(&mut self, pool: &mut UmemPool) -> bool;

    /// Readable when there is something to receive; `None` for links that must be polled. A device that goes away does
    /// not make an AF_XDP descriptor readable (the kernel reports no event), so who sleeps on it bounds the sleep:
    /// `prepare_sleep` is then `false`, and `tx`, with or without frames, an error.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether there is something to receive, as far as it can be seen without a system call; `false` when only asking
    /// tells.
    fn has_packets(&mut self) -> bool {
        false
    }

    /// Whether runs of full segments of one flow leave as one packet now, which the device or the kernel cuts again: the longer the
    /// runs of a batch, the less a segment costs.
    fn merges(&self) -> bool {
        false
    }

    /// Called before the core sleeps on `wake_fd`: refills, asks for wake-ups. `false` when there is work now.
    fn prepare_sleep(&mut self, pool: &mut UmemPool) -> bool;

    /// The device shall have `share` frames to receive into at most: a core's queues divide its frames among them, and others may
    /// come. What it has beyond that comes back as it is used. Nothing where frames are not lent, or are of a memory of the link's own.
    fn limit_lent(&mut self, share: u32) {
        let _ = share;
    }

    /// Counters.
    fn stats(&self) -> LinkStats;

    /// Closes the queue and gives every frame that it holds back to `pool`.
    fn close(self: Box<Self>, pool: &mut UmemPool);
}
