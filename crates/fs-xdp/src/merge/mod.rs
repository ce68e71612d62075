//! Merging: a run of segments of one flow leaves as one message, a packet that the kernel or the device cuts into segments (TSO).
//!
//! Most of what a segment costs over a copying carrier is per packet: a socket buffer, the driver, the peer's queue. The engine stays as it
//! is: it makes segments, and retransmits segments. What is merged is copied by the kernel within the call, so its frames are free
//! at once.
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
//! Packet sockets and TAP devices merge on their only descriptor, so their order is kept. A segment may be a chain of frames, as it is at
//! MTU 9000.

pub(crate) mod carriers;
pub(crate) mod header;
pub(crate) mod offloads;
pub(crate) mod run;
pub(crate) mod segment;
pub(crate) mod socket;

use crate::chain;
use crate::umem::UmemPool;
use fs_core::{FramePool, Framing, TxFrame};
use header::MergedHeader;
use run::{Packet, Run};

/// ENOBUFS in a row after which the packet is dropped, as the next ones are until one is sent. It is the error of a full queue, and of a
/// rule at egress (`tc`, nftables) that drops the packet each time. Fewer: a queue that drains slowly loses packets; more: the packets of
/// other flows wait longer behind one that never leaves.
pub(crate) const REFUSALS_MAX: u32 = 64;

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
