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
//! Packet sockets and TAP devices merge on their only descriptor, so their order is kept. All of it is for packets that lie in one frame
//! each; chains go as they always did.

pub(crate) mod carriers;
pub(crate) mod header;
pub(crate) mod offloads;
pub(crate) mod run;
pub(crate) mod segment;
pub(crate) mod socket;

use crate::umem::UmemPool;
use fs_core::{FramePool, Framing, TxFrame};
use header::MergedHeader;
use run::Run;

/// What is at the front of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// A run that is worth merging.
    Run(Run),
    /// So many packets that make no such run.
    Singles(usize),
}

/// Looks at the front of `frames`, which begin with a packet and are not empty.
#[inline]
pub(crate) fn front(framing: Framing, pool: &UmemPool, frames: &[TxFrame]) -> Front {
    let most = frames.len().min(run::SEGMENTS_MAX);
    let head = &frames[0].frame;
    if most < run::SEGMENTS_MIN && most * head.len() < run::BYTES_MIN || head.more() {
        return Front::Singles(1);
    }
    let rest = frames[1..most].iter().take_while(|part| !part.frame.more()).map(|part| pool.bytes(&part.frame));
    match Run::of(framing, pool.bytes(head), rest) {
        Some(run) if run.is_worth_it() => Front::Run(run),
        // A run that begins within this one ends where this one does, so it is no longer.
        Some(run) => Front::Singles(run.segments),
        None => Front::Singles(1),
    }
}

/// The headers of the packet that the run at the front of `frames` is merged into.
pub(crate) fn header(run: &Run, pool: &UmemPool, frames: &[TxFrame]) -> MergedHeader {
    let bytes = |segment: usize| pool.bytes(&frames[segment].frame);
    MergedHeader::new(run, bytes(0), bytes(run.segments - 1))
}

#[cfg(test)]
mod tests;
