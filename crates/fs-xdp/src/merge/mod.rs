//! Merging: a run of segments of one flow leaves as one message, a packet that the kernel or the
//! device cuts into segments (TSO).
//!
//! Most of what a segment costs over a copying carrier is per packet: a socket buffer, the driver,
//! the peer's queue. The engine stays as it is: it makes segments, and retransmits segments. What
//! is merged is copied by the kernel within the call, so its frames are free at once.
//!
//! | file | |
//! |---|---|
//! | `segment.rs` | reads the headers of one segment |
//! | `run.rs` | finds the run at the front of a batch |
//! | `header.rs` | makes the headers of the merged packet |
//! | `carriers.rs` | keeps the order of a flow that changes between an AF_XDP socket and a packet socket |
//! | `socket.rs` | the packet socket next to an AF_XDP socket |
//! | `offloads.rs` | whether a device cuts such packets, and whether it keeps the order by itself |
//!
//! Packet sockets and TAP devices merge on their only descriptor, so their order is kept. A segment
//! may be a chain of frames, as it is at MTU 9000.

pub(crate) mod carriers;
pub(crate) mod header;
pub(crate) mod offloads;
pub(crate) mod run;
pub(crate) mod segment;
pub(crate) mod socket;

use crate::chain;
use crate::sys::merged_io;
use crate::umem::UmemPool;
use fs_core::{FramePool, Framing, TxFrame};
use header::MergedHeader;
use run::{Packet, Run};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Time without a packet that was sent after which refused packets are dropped, while the kernel
/// still holds others of the socket. Shorter: a queue that drains slowly loses packets (it takes
/// the next 64 KiB after 5 ms at 100 Mb/s, after 250 ms at 2 Mb/s). Longer: the packets of other
/// flows wait longer behind one that never leaves.
const REFUSED_MOST: Duration = Duration::from_millis(250);
/// Refusals before that, so that a thread that had to wait for its CPU tries again. No more are needed.
const REFUSALS_LEAST: u32 = 64;

/// The refusals (ENOBUFS) since the last packet that was sent. It is the error of a full queue, and
/// of a rule at egress (`tc`, nftables) that drops the packet each time.
#[derive(Default)]
pub(crate) struct Refusals {
    count: u32,
    since: Option<Instant>,
    /// The last packet was refused, and then the kernel held none of the socket.
    none_in_flight: bool,
}

impl Refusals {
    /// A packet was sent.
    #[inline]
    pub(crate) fn end(&mut self) {
        (self.count, self.none_in_flight) = (0, false);
    }

    /// Records an error of a send by `socket`. Returns true if the packet is to be dropped: it
    /// would never leave, or packets of others fill the queue, where a router would drop it.
    #[cold]
    pub(crate) fn is_hopeless(&mut self, error: &io::Error, socket: BorrowedFd<'_>) -> bool {
        if error.raw_os_error() != Some(libc::ENOBUFS) {
            return false;
        }
        // No packet of ours makes room by leaving, so it is useless to wait. A rule that drops some
        // packets would hold up all others again and again. The first refusal proves nothing: the
        // call that was refused may have emptied the queue (`__dev_xmit_skb`).
        if self.none_in_flight {
            return true;
        }
        self.none_in_flight = !merged_io::is_in_flight(socket);
        if self.count == 0 {
            self.since = Some(Instant::now());
        }
        self.count = self.count.saturating_add(1);
        self.count > REFUSALS_LEAST && self.since.is_some_and(|since| since.elapsed() >= REFUSED_MOST)
    }
}

/// The packets at the front of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// A run that is worth merging.
    Run(Run),
    /// So many frames, of whole packets, that make no such run.
    Singles(usize),
}

/// Examines the front of `frames`, which begin with a whole packet.
#[inline]
pub(crate) fn front(framing: Framing, pool: &UmemPool, frames: &[TxFrame]) -> Front {
    let head = &frames[0].frame;
    let longest = if head.more() { pool.chunk_size() } else { head.len() };
    let mut packets = Packets { pool, frames };
    if frames.len() < run::SEGMENTS_MIN && frames.len() * longest < run::BYTES_MIN {
        return Front::Singles(packets.skip_one());
    }
    let Some(first) = packets.next() else { return Front::Singles(frames.len()) };
    match Run::of(framing, first, packets) {
        Some(run) if run.is_worth_it() => Front::Run(run),
        // A run that begins within this one ends where this one does, so it is no longer.
        Some(run) => Front::Singles(run.frames),
        None => Front::Singles(first.frames),
    }
}

/// The whole packets of a batch.
struct Packets<'a> {
    pool: &'a UmemPool,
    frames: &'a [TxFrame],
}

impl Packets<'_> {
    /// Returns the number of frames of the first packet: all frames if it is not whole.
    #[inline]
    fn skip_one(&self) -> usize {
        chain::end(self.frames, 0).unwrap_or(self.frames.len())
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = Packet<'a>;

    #[inline]
    fn next(&mut self) -> Option<Packet<'a>> {
        let end = chain::end(self.frames, 0)?;
        let (packet, rest) = self.frames.split_at(end);
        self.frames = rest;
        let head = self.pool.bytes(&packet[0].frame);
        let behind: usize = packet[1..].iter().map(|part| part.frame.len()).sum();
        Some(Packet { head, len: head.len() + behind, frames: end })
    }
}

/// Returns the headers of the packet that the run at the front of `frames` is merged into.
pub(crate) fn header(run: &Run, pool: &UmemPool, frames: &[TxFrame]) -> MergedHeader {
    let bytes = |frame: usize| pool.bytes(&frames[frame].frame);
    MergedHeader::new(run, bytes(0), bytes(run.frames - run.last_frames))
}

#[cfg(test)]
mod tests;
