//! The send queue. Segments are built when the application writes, so that a retransmission equals
//! the original, and the scoreboard (SACKed, lost, retransmitted) consists of marks on segments.
//!
//! Payload is copied once, into pool frames with headroom for all headers, and stays there until
//! acknowledged. The device reads the same frame through a second handle ([`FramePool::share`]).

mod inline;

use super::ends::{Ends, Segments};
use super::segment::{TxSegment, add_at, mark};
use super::store::TxStore;
use crate::error::Error;
use crate::frame::{Frame, FramePool};
use crate::frame_queue::FrameQueue;
use crate::seq::SeqNum;
use crate::slab::{Hollow, NIL};
use crate::tcb::cc::rate;
use crate::wire::checksum::{Sum, copy_and_sum};
use crate::wire::options::TIMESTAMPS_LEN;
use crate::wire::tcp;
use crate::wire::{eth, ipv6};

/// The division of a write into segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Payload bytes of a full segment.
    pub(crate) mss: u32,
    /// Compute the payload's checksum while copying.
    pub(crate) summed: bool,
    /// PSH (RFC 9293 3.9.1.2) on the last segment: the caller has announced no further data.
    pub(crate) push_at_end: bool,
    /// PSH on a full segment after more than this many bytes since the last PSH.
    pub(crate) push_every: u32,
}

/// Bytes of headers that will be written in front of most segments' payload.
const HEADERS: usize = eth::HEADER_LEN + ipv6::HEADER_LEN + tcp::HEADER_LEN + TIMESTAMPS_LEN;

/// One connection's send queue: head to `next` is sent and unacknowledged, `next` to tail unsent.
/// Alternatively the queue stores its only segment itself: see [`TxQueue::store_inline`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxQueue {
    ends: Ends,
    /// First segment never sent; `NIL` if all were.
    pub(crate) next: u32,
    /// Payload bytes in the queue.
    pub(crate) bytes: u32,
}

/// The part of the queue that an ACK has removed.
#[derive(Debug, Default)]
pub(crate) struct Acked {
    /// Payload bytes.
    pub(crate) bytes: u32,
    /// Segments that were not SACKed before.
    pub(crate) segments: u32,
    /// The segment includes our FIN.
    pub(crate) fin: bool,
    /// `sent_us` of the latest segment that was sent only once.
    pub(crate) sample_us: Option<u32>,
    /// Segments and bytes removed from the scoreboard's counters.
    pub(crate) sacked_segments: u32,
    pub(crate) sacked: u32,
    pub(crate) lost: u32,
    pub(crate) retransmitted: u32,
}

impl TxQueue {
    pub(crate) const fn new() -> Self {
        Self { ends: Ends::NONE, next: NIL, bytes: 0 }
    }

    /// Returns true if nothing is in flight or unsent.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_none()
    }

    /// Returns the first segment. Must not be called on an inline queue.
    #[inline(always)]
    pub(crate) fn head(&self) -> u32 {
        self.ends.head()
    }

    /// Returns the last segment. Must not be called on an inline queue.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u32 {
        self.ends.tail()
    }

    /// Prefetches what the next ACK will need.
    #[inline]
    pub(crate) fn prefetch<P: FramePool>(&self, store: &TxStore, pool: &P) {
        match self.ends.get() {
            Segments::Inline { chunk, .. } => pool.prefetch(&self.inline_frame(chunk)),
            Segments::Stored { head, .. } => store.segments.prefetch(head),
        }
    }

    /// Second step of [`TxQueue::prefetch`], once the data of the first has arrived.
    #[inline]
    pub(crate) fn prefetch_frame<P: FramePool>(&self, store: &TxStore, pool: &P) {
        if let Segments::Stored { head, .. } = self.ends.get()
            && let Some(segment) = store.segments.get(head)
        {
            pool.prefetch(&segment.head);
        }
    }

    /// Returns when the first segment was last sent; `None` if no segment was sent.
    #[inline]
    pub(crate) fn head_sent_us(&self, store: &TxStore) -> Option<u32> {
        match self.ends.get() {
            Segments::Inline { sent_us, .. } => Some(sent_us),
            Segments::Stored { head, .. } => (head != self.next).then(|| store.segments[head].sent_us),
        }
    }

    /// Returns true if a single segment has been sent and is not acknowledged.
    #[inline]
    pub(crate) fn has_one_out(&self, store: &TxStore) -> bool {
        match self.ends.get() {
            Segments::Inline { .. } => true,
            Segments::Stored { head, .. } => head != self.next && store.segments[head].next == self.next,
        }
    }

    /// Appends a segment. Inlined because of [`Slab::insert`].
    #[inline(always)]
    pub(super) fn link(&mut self, store: &mut TxStore, segment: TxSegment) -> u32 {
        // The queue has no unsent segments: this one begins at SND.NXT.
        self.spill(store, segment.seq);
        let index = store.segments.insert(segment);
        if self.ends.is_none() {
            self.ends = Ends::stored(index, index);
        } else {
            store.segments[self.tail()].next = index;
            self.ends = Ends::stored(self.head(), index);
        }
        if self.next == NIL {
            self.next = index;
        }
        index
    }

    /// Returns the sequence number of the next byte to queue, given SND.NXT.
    #[inline]
    pub(crate) fn write_seq(&self, store: &TxStore, snd_nxt: SeqNum) -> SeqNum {
        if self.next == NIL { snd_nxt } else { store.segments[self.tail()].end() }
    }

    /// Copies up to `room` bytes of `buf` to the end of the queue, filling the last unsent segment
    /// first. Returns fewer bytes than requested if the pool is empty.
    pub(crate) fn write<P: FramePool>(
        &mut self,
        store: &mut TxStore,
        pool: &mut P,
        snd_nxt: SeqNum,
        buf: &[u8],
        cut: Cut,
    ) -> usize {
        let Cut { mss, summed, .. } = cut;
        let mut done = 0;
        let mut pushed = 0;
        let unsent = if self.next == NIL { NIL } else { self.tail() };
        while done < buf.len() {
            let open = self.next != NIL && {
                let tail = &store.segments[self.tail()];
                tail.len > 0 && tail.len < mss && !tail.has(mark::FIN | mark::RECORD_END)
            };
            if open {
                let n = self.fill_tail(store, pool, mss, &buf[done..], summed);
                if n == 0 {
                    break;
                }
                done += n;
                self.push_now_and_then(store, done, &mut pushed, cut);
                continue;
            }
            let Some(mut head) = pool.alloc() else { break };
            let n = (buf.len() - done).min(mss as usize).min(pool.payload_room());
            head.grow_back(n);
            let payload = pool.bytes_mut(&mut head);
            // The chunk has not been used for long.
            fs_prefetch::before(payload, HEADERS);
            let sum = copy(payload, &buf[done..done + n], summed);
            let seq = self.write_seq(store, snd_nxt);
            let marks = if summed { mark::SUMMED } else { 0 };
            let segment = TxSegment { head, seq, len: n as u32, sum, marks, ..TxSegment::hollow() };
            self.link(store, segment);
            self.bytes += n as u32;
            done += n;
            self.push_now_and_then(store, done, &mut pushed, cut);
        }
        if done > 0 && cut.push_at_end {
            self.move_push(store, unsent);
        }
        done
    }

    /// Sets PSH on the last segment. `before` was the last one before this write, if it is unsent; `NIL`
    /// if not. PSH of an earlier write moves, because the bytes of both can leave together. Linux has
    /// both in one buffer, with PSH at its end. A link that merges segments ends a run at PSH.
    #[inline]
    pub(crate) fn move_push(&mut self, store: &mut TxStore, before: u32) {
        if before != NIL && !store.segments[before].has(mark::RECORD_END) {
            store.segments[before].marks &= !mark::PUSH;
        }
        store.segments[self.tail()].marks |= mark::PUSH;
    }

    /// Sets PSH regularly: a receiver that waits for it must not wait while its window fills (Linux
    /// `forced_push`).
    #[inline]
    pub(crate) fn push_now_and_then(&mut self, store: &mut TxStore, done: usize, pushed: &mut usize, cut: Cut) {
        if (done - *pushed) as u64 > u64::from(cut.push_every) {
            let tail = &mut store.segments[self.tail()];
            if tail.len >= cut.mss {
                tail.marks |= mark::PUSH;
                *pushed = done;
            }
        }
    }

    /// Appends to the last unsent segment. Returns 0 if the pool is empty.
    fn fill_tail<P: FramePool>(
        &mut self,
        store: &mut TxStore,
        pool: &mut P,
        mss: u32,
        buf: &[u8],
        summed: bool,
    ) -> usize {
        let TxStore { segments, rest, .. } = store;
        let tail = &mut segments[self.tail()];
        let want = buf.len().min((mss - tail.len) as usize);
        let last = tail.rest.last_mut(rest).unwrap_or(&mut tail.head);
        let room = pool.chunk_size().saturating_sub(last.off() + last.len());
        let (n, sum) = if room > 0 && !pool.is_shared(last) {
            let n = want.min(room);
            let old = last.len();
            last.grow_back(n);
            (n, copy(&mut pool.bytes_mut(last)[old..], &buf[..n], summed))
        } else {
            let Some(mut frame) = pool.alloc() else { return 0 };
            let n = want.min(pool.payload_room());
            frame.grow_back(n);
            let sum = copy(pool.bytes_mut(&mut frame), &buf[..n], summed);
            tail.rest.push(rest, frame);
            return self.grew_tail(tail, n, sum, summed);
        };
        if let Some(_last) = tail.rest.last_mut(rest) {
            tail.rest.bytes += n as u32;
        }
        self.grew_tail(tail, n, sum, summed)
    }

    pub(super) fn grew_tail(&mut self, tail: &mut TxSegment, n: usize, sum: u16, summed: bool) -> usize {
        if summed && tail.has(mark::SUMMED) {
            tail.sum = add_at(tail.sum, tail.len, sum);
        } else {
            tail.marks &= !mark::SUMMED;
        }
        tail.len += n as u32;
        self.bytes += n as u32;
        n
    }

    /// Queues a frame's payload without copying what fits one segment; the rest is copied.
    pub(crate) fn push_frame<P: FramePool>(
        &mut self,
        store: &mut TxStore,
        pool: &mut P,
        snd_nxt: SeqNum,
        mss: u32,
        mut frame: Frame,
        summed: bool,
    ) -> Result<(), (Error, Frame)> {
        let keep = frame.len().min(mss as usize);
        let extra = frame.len() - keep;
        if extra > 0 && pool.available() * pool.payload_room().min(mss as usize) < extra + mss as usize {
            return Err((Error::NoBuffers, frame));
        }
        let seq = self.write_seq(store, snd_nxt);
        let mut tail_copy = [0u8; 4096];
        if extra > 0 {
            tail_copy[..extra].copy_from_slice(&pool.bytes(&frame)[keep..]);
            frame.truncate(keep);
        }
        let (sum, marks) =
            if summed { (Sum::of(pool.bytes(&frame)).fold(), mark::SUMMED | mark::PUSH) } else { (0, mark::PUSH) };
        self.link(store, TxSegment { head: frame, seq, len: keep as u32, sum, marks, ..TxSegment::hollow() });
        self.bytes += keep as u32;
        if extra > 0 {
            let cut = Cut { mss, summed, push_at_end: true, push_every: u32::MAX };
            self.write(store, pool, snd_nxt, &tail_copy[..extra], cut);
        }
        Ok(())
    }

    /// Queues our FIN: on the last unsent segment if there is one, otherwise on its own.
    pub(crate) fn push_fin(&mut self, store: &mut TxStore, snd_nxt: SeqNum) {
        if self.next != NIL {
            store.segments[self.tail()].marks |= mark::FIN;
            return;
        }
        let segment = TxSegment { seq: snd_nxt, marks: mark::FIN, ..TxSegment::hollow() };
        self.link(store, segment);
    }

    /// Removes what `una` acknowledges; a partly acknowledged segment keeps its rest. `see` is
    /// called for every removed segment.
    #[inline]
    pub(crate) fn acknowledge<P: FramePool>(
        &mut self,
        store: &mut TxStore,
        pool: &mut P,
        una: SeqNum,
        mut see: impl FnMut(&TxSegment),
    ) -> Acked {
        let mut acked = Acked::default();
        while self.head() != self.next {
            let segment = &mut store.segments[self.head()];
            if segment.end().after(una) {
                if una.after(segment.seq) {
                    let n = una.since(segment.seq).min(segment.len);
                    acked.count(segment.marks, n);
                    acked.bytes += n;
                    self.bytes -= n;
                    self.trim_head(store, pool, n);
                }
                break;
            }
            see(segment);
            let (len, marks) = (segment.len, segment.marks);
            acked.bytes += len;
            acked.segments += 1;
            acked.fin |= segment.has(mark::FIN);
            if marks & (mark::SACKED | mark::LOST | mark::RETRANSMITTED) != 0 {
                acked.count(marks, segment.span());
                let sacked = u32::from(marks & mark::SACKED != 0);
                acked.segments -= sacked;
                acked.sacked_segments += sacked;
            }
            // A SACKed segment arrived long ago.
            if marks & (mark::EVER_RETRANSMITTED | mark::SACKED) == 0 {
                acked.sample_us = Some(segment.sent_us);
            }
            self.bytes -= len;
            let index = self.head();
            self.ends = if segment.next == NIL { Ends::NONE } else { Ends::stored(segment.next, self.tail()) };
            let head = segment.head.take();
            if !segment.rest.is_empty() {
                segment.rest.clear(&mut store.rest, pool);
            }
            store.segments.vacate(index);
            if len > 0 {
                pool.free(head);
            }
        }
        acked
    }

    fn trim_head<P: FramePool>(&mut self, store: &mut TxStore, pool: &mut P, n: u32) {
        let TxStore { segments, rest, .. } = store;
        let segment = &mut segments[self.head()];
        segment.seq += n;
        segment.len -= n;
        segment.marks &= !mark::SUMMED;
        let mut left = n as usize;
        while left > 0 {
            if left < segment.head.len() {
                segment.head.trim_front(left);
                return;
            }
            left -= segment.head.len();
            let next = segment.rest.pop(rest).unwrap_or_else(|| Frame::from_raw(0, 0, 0));
            let used = core::mem::replace(&mut segment.head, next);
            pool.free(used);
        }
    }

    /// Splits the segment `index` after `keep` payload bytes (0 < keep < len) and copies the rest
    /// into a new segment after it. Returns false if the pool is empty.
    pub(crate) fn split<P: FramePool>(&mut self, store: &mut TxStore, pool: &mut P, index: u32, keep: u32) -> bool {
        let total = store.segments[index].len;
        debug_assert!(keep > 0 && keep < total);
        let mut copies = FrameQueue::new();
        let mut from = keep as usize;
        while from < total as usize {
            let Some(mut frame) = pool.alloc() else {
                copies.clear(&mut store.rest, pool);
                return false;
            };
            let n = (total as usize - from).min(pool.payload_room());
            let mut part = [0u8; 4096];
            store.segments[index].read_at(&store.rest, pool, from, &mut part[..n]);
            frame.grow_back(n);
            pool.bytes_mut(&mut frame).copy_from_slice(&part[..n]);
            copies.push(&mut store.rest, frame);
            from += n;
        }
        let TxStore { segments, rest, stamps, .. } = store;
        let segment = &mut segments[index];
        let in_head = segment.head.len().min(keep as usize);
        segment.head.truncate(in_head);
        segment.rest.truncate(rest, pool, keep as usize - in_head);
        segment.len = keep;
        let tail = TxSegment {
            head: copies.pop(rest).unwrap_or_else(|| Frame::from_raw(0, 0, 0)),
            rest: copies,
            next: segment.next,
            seq: segment.seq + keep,
            len: total - keep,
            sent_us: segment.sent_us,
            sum: 0,
            marks: segment.marks & !mark::SUMMED,
        };
        segment.marks &= !(mark::SUMMED | mark::FIN | mark::PUSH | mark::RECORD_END);
        let new = segments.insert(tail);
        rate::copy_stamp(stamps, index, new);
        segments[index].next = new;
        if self.tail() == index {
            self.ends = Ends::stored(self.head(), new);
        }
        true
    }

    /// Frees everything.
    pub(crate) fn clear<P: FramePool>(&mut self, store: &mut TxStore, pool: &mut P) {
        if let Some((frame, _)) = self.take_inline(store) {
            pool.free(frame);
        }
        let TxStore { segments, rest, .. } = store;
        let mut at = self.head();
        while at != NIL {
            let index = at;
            let segment = &mut segments[index];
            at = segment.next;
            segment.rest.clear(rest, pool);
            // A bare FIN's frame is empty: it names no chunk.
            let (head, hollow) = (segment.head.take(), segment.len == 0);
            segments.vacate(index);
            if !hollow {
                pool.free(head);
            }
        }
        *self = TxQueue::new();
    }
}

impl Acked {
    fn count(&mut self, marks: u8, span: u32) {
        if marks & mark::SACKED != 0 {
            self.sacked += span;
        }
        if marks & mark::LOST != 0 {
            self.lost += span;
        }
        if marks & mark::RETRANSMITTED != 0 {
            self.retransmitted += span;
        }
    }
}

/// Copies, and computes the sum if `summed`.
#[inline]
fn copy(to: &mut [u8], from: &[u8], summed: bool) -> u16 {
    if summed {
        copy_and_sum(to, from).fold()
    } else {
        to.copy_from_slice(from);
        0
    }
}

#[cfg(test)]
mod tests;
