//! What links that copy have in common: chains out of what was received, and what of a batch can be sent.

use crate::chain;
use crate::checksum;
use crate::merge::{self, Front, run::Run};
use crate::sys::packet_io::{Received, SendBatch};
use crate::umem::UmemPool;
use fs_core::{Frame, FramePool, Framing, IfaceId, RxChecksum, RxFrame, TxFrame};

/// Copies a packet into a chain of chunks; `false` (and no chunk taken) when the pool has not enough.
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

/// Makes a packet out of what lies in a slot, a chain if it is larger than a chunk; `false` when it was dropped because
/// the pool is dry (the slot keeps its chunk).
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
    // What is beyond the spill buffer was cut off by the kernel; no IP packet is that long.
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

/// The frame as it was before something was received into it.
fn emptied(mut frame: Frame) -> Frame {
    frame.truncate(0);
    frame.set_more(false);
    frame
}

/// Puts a VLAN tag back behind the MAC addresses, into the head room.
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

/// The longest run of packets at the front of `frames` that can be sent, as indexes behind their last frames. Stops in
/// front of a packet that cannot.
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

/// How many frames stand in front of the first run of `frames` that is worth merging, and the run: all of them without one.
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

/// The packet can be sent as it lies.
pub(crate) fn fits(packet: &[TxFrame], longest: usize) -> bool {
    let length: usize = packet.iter().map(|part| part.frame.len()).sum();
    length > 0 && length <= longest && SendBatch::takes_pieces(packet.len())
}

/// Finishes a packet's checksum for a device that does not, once.
pub(crate) fn finish_checksum(pool: &mut UmemPool, packet: &mut [TxFrame]) {
    if let Some(request) = packet[0].checksum.take() {
        let sum = checksum::of_parts(packet.iter().map(|part| pool.bytes(&part.frame)), request.start.into());
        checksum::store(pool.bytes_mut(&mut packet[0].frame), request, sum);
    }
}
