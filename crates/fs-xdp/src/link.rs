//! The contract between a link and the core that polls it.

use crate::umem::UmemPool;
use fs_core::{Framing, IfaceId, RxFrame, TxFrame};
use std::io;
use std::os::fd::BorrowedFd;

/// The kind of a link, for logs and `doctor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkKind {
    /// AF_XDP, the program runs in the driver.
    XdpNative,
    /// AF_XDP, the program runs on socket buffers.
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

/// The capabilities of a link.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkCaps {
    /// See [`LinkKind`].
    pub kind: LinkKind,
    /// Ethernet or bare IP.
    pub framing: Framing,
    /// The link's MAC address (zero on raw IP links).
    pub mac: [u8; 6],
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// The device or the peer computes checksums, so `TxFrame::checksum` is cheap. (If this is
    /// false, it is computed in software.) AF_XDP stores the request in the 16 bytes before the
    /// packet's first frame, so these must be free.
    pub tx_checksum: bool,
    /// The peer is a virtual device that may send partial checksums.
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
    /// Packets that the device or kernel dropped on receive (ring full, fill ring empty, invalid
    /// descriptors).
    pub rx_dropped: u64,
    /// Number of times that the device had used up all of its chunks before a poll. Packets that
    /// arrived after the last chunk are counted in `rx_dropped`.
    pub rx_ran_out: u64,
    /// Packets that could not be sent (too long, invalid).
    pub tx_dropped: u64,
    /// Merged packets: each contains several of `tx_packets`, and the kernel or the device segments
    /// it again.
    pub tx_merges: u64,
    /// Packets of `tx_packets` that were sent in a merged one.
    pub tx_merged: u64,
    /// System calls made to receive and send.
    pub syscalls: u64,
}

/// One queue of one device. One core owns it; it is never shared.
pub trait Link: Send {
    /// Returns its capabilities.
    fn caps(&self) -> &LinkCaps;

    /// Receives up to `max` packets (chains contiguous), tagged with `iface`, appended to `out`;
    /// never blocks. Also refills the device's supply of frames from `pool`. Returns the number of
    /// packets.
    fn rx(&mut self, pool: &mut UmemPool, iface: IfaceId, out: &mut Vec<RxFrame>, max: usize) -> usize;

    /// Sends as much as fits from the front of `frames`, in order and only whole chains. The rest
    /// stays. Returns finished frames to `pool`. Never blocks. An error means that the link is dead
    /// (the device is gone); transient conditions are not errors.
    fn tx(&mut self, pool: &mut UmemPool, frames: &mut Vec<TxFrame>) -> io::Result<usize>;

    /// Returns finished frames to `pool`, and sends what the kernel did not take at the last call.
    /// Returns `true` while the device still has some.
    fn reap(&mut self, pool: &mut UmemPool) -> bool;

    /// Returns true if the kernel has not taken all packets of `tx` yet, and waits for a call of
    /// `tx` or `reap`. No event reports when it will take them.
    fn has_unsent(&mut self) -> bool {
        false
    }

    /// Readable if there is something to receive; `None` for links that must be polled. The kernel
    /// reports no event when a device is removed, so the descriptor of an AF_XDP link does not
    /// become readable. A caller that sleeps on it must limit the sleep: `prepare_sleep` then
    /// returns `false`, and `tx` (even without frames) an error.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns whether there is something to receive, if that is visible without a system call;
    /// `false` if only a receive can tell.
    fn has_packets(&mut self) -> bool {
        false
    }

    /// Returns whether runs of full segments of one flow are now sent as one packet, which the
    /// device or the kernel segments again. The longer the runs of a batch, the cheaper a segment.
    fn merges(&self) -> bool {
        false
    }

    /// Called before the core sleeps on `wake_fd`: refills and arms wake-ups. Returns `false` if
    /// there is work now.
    fn prepare_sleep(&mut self, pool: &mut UmemPool) -> bool;

    /// Limits the device to `share` frames to receive into: a core's queues divide its frames, and
    /// more queues may be opened. Excess frames are returned as they are used. Does nothing for
    /// links that lend no frames, or use memory of their own.
    fn limit_lent(&mut self, share: u32) {
        let _ = share;
    }

    /// Counters.
    fn stats(&self) -> LinkStats;

    /// Closes the queue and returns every frame that it holds to `pool`. A driver in zero-copy mode
    /// writes to some of them until the kernel has taken them back from it (`xp_release_deferred`,
    /// more than 200 ms later on a busy machine). Until then they must only be used to receive into.
    fn close(self: Box<Self>, pool: &mut UmemPool);
}
