//! Common code of copying links: making chains of received packets, and choosing what of a batch
//! can be sent.

use crate::chain;
use crate::checksum;
use crate::merge::{self, Front, run::Run};
use crate::sys::packet_io::{Received, SendBatch};
use crate::umem::UmemPool;
use fs_core::{Frame, FramePool, Framing, IfaceId, RxChecksum, RxFrame, TxFrame};

/// Copies a packet into a chain of chunks. Returns `false` (and takes no chunk) if the pool has too
/// few.
pub(crate) fn copy_in(
    pool: &mut UmemPool,
    iface: IfaceId,
    packet: &[u8],
    checksum: RxChecksum,
    out: &mut Vec<RxFrame>,
) -> bool {
    let first = out.len();
    let room = pool.payload_room();
    let count = packet.len().div_ceil(room);
    for (i, bytes) in packet.chunks(room).enumerate() {
        let Some(mut frame) = pool.alloc() else {
            for part in out.drain(first..) {
                pool.free(part.frame);
            }
            return false;
        };
        frame.grow_back(bytes.len());
        pool.bytes_mut(&mut frame).copy_from_slice(bytes);
        frame.set_more(i + 1 < count);
        out.push(RxFrame { frame, iface, checksum });
    }
    count > 0
}

/// Makes a packet of a slot's content, a chain if it is larger than a chunk. Returns `false` if it
/// was dropped because the pool is empty (the slot keeps its chunk).
pub(crate) fn deliver(pool: &mut UmemPool, iface: IfaceId, packet: Received<'_>, out: &mut Vec<RxFrame>) -> bool {
    let Received { frame: slot, spill, length, verified, vlan } = packet;
    let Some(mut head) = slot.take() else { return false };
    let room = pool.chunk_size() - head.off();
    let rest = length.saturating_sub(room);
    let first = out.len();
    let checksum = if verified { RxChecksum::Verified } else { RxChecksum::Unknown };
    head.grow_back(length - rest);
    head.set_more(rest > 0);
    let index_of_head = out.len();
    out.push(RxFrame { frame: head, iface, checksum });
    // The kernel truncated bytes beyond the spill buffer. No IP packet is that long.
    let rest = &spill[..rest.min(spill.len())];
    for (i, bytes) in rest.chunks(room).enumerate() {
        let Some(mut frame) = pool.alloc() else {
            for part in out.drain(first + 1..) {
                pool.free(part.frame);
            }
            *slot = out.pop().map(|head| emptied(head.frame));
            return false;
        };
        frame.grow_back(bytes.len());
        pool.bytes_mut(&mut frame).copy_from_slice(bytes);
        frame.set_more((i + 1) * room < rest.len());
        out.push(RxFrame { frame, iface, checksum });
    }
    if let Some((protocol, tci)) = vlan {
        insert_tag(pool, &mut out[index_of_head].frame, protocol, tci);
    }
    true
}

/// Resets the frame to its state before the receive.
fn emptied(mut frame: Frame) -> Frame {
    frame.truncate(0);
    frame.set_more(false);
    frame
}

/// Inserts a VLAN tag after the MAC addresses again, using the headroom.
fn insert_tag(pool: &mut UmemPool, head: &mut Frame, protocol: u16, tci: u16) {
    if head.len() < 12 || head.off() < 4 {
        return;
    }
    head.grow_front(4);
    let bytes = pool.bytes_mut(head);
    bytes.copy_within(4..16, 0);
    bytes[12..14].copy_from_slice(&protocol.to_be_bytes());
    bytes[14..16].copy_from_slice(&tci.to_be_bytes());
}

/// Finds the longest run of sendable packets at the front of `frames`, as indexes after their last
/// frames. Stops before a packet that cannot be sent.
pub(crate) fn sendable(frames: &[TxFrame], longest: usize, max: usize, ends: &mut Vec<usize>) {
    ends.clear();
    let mut start = 0;
    while ends.len() < max
        && let Some(end) = chain::end(frames, start)
        && fits(&frames[start..end], longest)
    {
        ends.push(end);
        start = end;
    }
}

/// Returns how many frames come before the first run of `frames` that is worth merging, and the
/// run. All frames if there is none.
pub(crate) fn before_run(framing: Framing, pool: &UmemPool, frames: &[TxFrame]) -> (usize, Option<Run>) {
    let mut at = 0;
    while at < frames.len() {
        match merge::front(framing, pool, &frames[at..]) {
            Front::Run(run) => return (at, Some(run)),
            Front::Singles(count) => at += count,
        }
    }
    (frames.len(), None)
}

/// Returns true if the packet can be sent without a copy.
pub(crate) fn fits(packet: &[TxFrame], longest: usize) -> bool {
    let length: usize = packet.iter().map(|part| part.frame.len()).sum();
    length > 0 && length <= longest && SendBatch::takes_pieces(packet.len())
}

/// Computes a packet's checksum once, for a device that does not.
pub(crate) fn finish_checksum(pool: &mut UmemPool, packet: &mut [TxFrame]) {
    if let Some(request) = packet[0].checksum.take() {
        let sum = checksum::of_parts(packet.iter().map(|part| pool.bytes(&part.frame)), request.start.into());
        checksum::store(pool.bytes_mut(&mut packet[0].frame), request, sum);
    }
}
