//! Builds one segment of the send queue with any headers.

use crate::frame::{FramePool, TxChecksum, TxFrame};
use crate::frame_queue::FrameNodes;
use crate::net::Net;
use crate::net::neigh::{Path, PathState};
use crate::stats::Stats;
use crate::tcb::Tcb;
use crate::tcb::flags::Flags;
use crate::tcb::recv::ack::Share;
use crate::tcb::send::segment::TxSegment;
use crate::tcb::send::store::TxStore;
use crate::time::Instant;
use crate::tx::build::{self, SegmentSpec};
use crate::wire::tcp::TcpFlags;
use alloc::vec::Vec;

/// Builds one segment of the send queue. The frame is shared with the queue; if the device still
/// holds it from an earlier transmission, its payload is copied. Returns false if the pool is
/// empty.
#[allow(clippy::too_many_arguments, reason = "the connection and the parts of its core that building touches")]
#[inline]
pub(crate) fn emit_segment<P: FramePool>(
    tcb: &mut Tcb,
    store: &mut TxStore,
    pool: &mut P,
    net: &mut Net,
    stats: &mut Stats,
    index: u32,
    ts: u32,
    share: Share,
    now: Instant,
    out: &mut Vec<TxFrame>,
) -> bool {
    tcb.forget_acknowledged_urgent();
    let path = net.path(tcb.path);
    let known = path.state() == PathState::Known;
    let TxStore { segments, rest, .. } = store;
    let segment = &mut segments[index];
    let payload_sum = if path.tx_checksum() { 0 } else { segment.payload_sum(rest, pool) };
    let (flags, tos) = tcb.mark_data(segment.flags(), index == tcb.tx.next, segment.len);
    // SACK blocks and their padding take up to 36 bytes. They are included if this segment is that much
    // shorter than the MSS; otherwise a pure ACK carries them.
    let with_sack = segment.len + 36 <= tcb.mss as u32;
    let first = out.len();
    let options = tcb.option_bytes(ts, with_sack);
    let key = tcb.key();
    let spec = SegmentSpec {
        key: &key,
        seq: segment.seq,
        ack: tcb.rcv.nxt(),
        flags,
        window: tcb.offer_window(share),
        urgent: tcb.urgent_pointer(segment.seq),
        options: &options,
        ttl: tcb.ttl(),
        tos,
        flow_label: tcb.flow_label(),
        payload_len: segment.len,
        payload_sum,
    };
    let headers = build::header_len(path, key.is_v6(), options.len);
    if segment.len == 0 {
        // A bare FIN.
        let Some(frame) = build::bare(pool, path, &spec) else { return false };
        out.push(frame);
    } else if !pool.is_shared(&segment.head) && segment.head.off() >= headers {
        let checksum = build::write_headers(pool, &mut segment.head, path, &spec);
        push_shared(pool, segment, rest, headers, checksum, out);
    } else if !emit_copy(pool, path, &spec, segment, rest, out) {
        return false;
    }
    let bytes = headers as u64 + u64::from(segment.len);
    if tcb.flags.any(Flags::ACK_NOW | Flags::ACK_DELAYED) {
        stats.acks_piggybacked += 1;
    }
    if flags.contains(TcpFlags::CWR) {
        tcb.flags.clear(Flags::ECN_CWR);
    }
    if with_sack {
        tcb.blocks_told();
    }
    let owes_blocks = tcb.flags.has(Flags::SACK)
        && !with_sack
        && tcb.ext.as_ref().is_some_and(|e| !e.out_of_order.is_empty() || e.dsack.is_some());
    if !owes_blocks {
        tcb.ack_carried();
    }
    if known {
        stats.tx_bytes += bytes;
    } else {
        let packet = out.drain(first..).collect();
        net.wait_for_neighbour(pool, stats, tcb.path, now, packet);
    }
    true
}

/// Pushes a segment whose headers are written; the send queue keeps the same frames.
#[inline(always)]
fn push_shared<P: FramePool>(
    pool: &mut P,
    segment: &mut TxSegment,
    rest: &FrameNodes,
    headers: usize,
    checksum: Option<TxChecksum>,
    out: &mut Vec<TxFrame>,
) {
    let frame = pool.share(&segment.head);
    segment.head.trim_front(headers);
    out.push(TxFrame { frame, checksum });
    if !segment.rest.is_empty() {
        push_rest(pool, segment, rest, out);
    }
}

/// Pushes the frames after a chain's first, which is the last in `out`.
#[inline(never)]
fn push_rest<P: FramePool>(pool: &mut P, segment: &TxSegment, rest: &FrameNodes, out: &mut Vec<TxFrame>) {
    let more = |last: &mut Vec<TxFrame>| {
        if let Some(last) = last.last_mut() {
            last.frame.set_more(true);
        }
    };
    segment.rest.for_each(rest, |part| {
        more(out);
        let mut frame = pool.share(part);
        frame.set_more(false);
        out.push(TxFrame { frame, checksum: None });
    });
}

/// Builds a segment in a frame of its own, because the device still holds its frame, or its
/// headroom is too small.
#[cold]
fn emit_copy<P: FramePool>(
    pool: &mut P,
    path: &Path,
    spec: &SegmentSpec<'_>,
    segment: &TxSegment,
    rest: &FrameNodes,
    out: &mut Vec<TxFrame>,
) -> bool {
    let first = out.len();
    let Some(mut head) = pool.alloc() else { return false };
    let n = segment.head.len().min(pool.payload_room());
    let mut copy = [0u8; 4096];
    copy[..n].copy_from_slice(&pool.bytes(&segment.head)[..n]);
    head.grow_back(n);
    pool.bytes_mut(&mut head).copy_from_slice(&copy[..n]);
    let extra = segment.head.len() - n;
    let checksum = build::write_headers(pool, &mut head, path, spec);
    out.push(TxFrame { frame: head, checksum });
    if extra > 0 {
        // A frame from the application may contain more than a fresh one can: the second frame refers to its tail.
        let mut end = pool.share(&segment.head);
        end.trim_front(n);
        out.push(TxFrame { frame: end, checksum: None });
    }
    segment.rest.for_each(rest, |part| out.push(TxFrame { frame: pool.share(part), checksum: None }));
    let chain = out.len();
    for (i, part) in out[first..].iter_mut().enumerate() {
        part.frame.set_more(first + i + 1 < chain);
    }
    true
}
