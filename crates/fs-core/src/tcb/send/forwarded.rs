//! Received frames that leave by another connection as they are.

use super::buffer::{Cut, TxQueue};
use super::segment::{TxSegment, mark};
use super::store::TxStore;
use crate::frame::{Frame, FramePool, HEADROOM};
use crate::seq::SeqNum;
use crate::slab::{Hollow, NIL};
use crate::wire::checksum::Sum;

/// Bytes up to which payload is copied next to other payload of its segment. Too low: short payloads keep
/// frames of their own. Too high: copies that a chain of frames saves.
const SMALL: usize = 256;
/// Largest chunk of a pool: see [`FramePool::chunk_size`].
const CHUNK_MAX: usize = 4096;

impl TxQueue {
    /// Appends the payload of a received frame. It stays in its frame if it fits one segment and the
    /// frame has headroom for the new headers. Otherwise it is copied, for which the pool must have
    /// frames: see [`frames_to_forward`].
    pub(crate) fn forward<P: FramePool>(
        &mut self,
        store: &mut TxStore,
        pool: &mut P,
        snd_nxt: SeqNum,
        mut frame: Frame,
        cut: Cut,
    ) {
        let len = frame.len();
        let tail = self.open_tail(store, cut.mss.saturating_sub(len as u32));
        let keeps = len <= cut.mss as usize && frame.off() >= usize::from(HEADROOM) && !pool.is_shared(&frame);
        if !keeps || (tail != NIL && len <= SMALL) {
            let mut bytes = [0; CHUNK_MAX];
            bytes[..len].copy_from_slice(pool.bytes(&frame));
            pool.free(frame);
            let copied = self.write(store, pool, snd_nxt, &bytes[..len], Cut { push_at_end: false, ..cut });
            debug_assert_eq!(copied, len, "the caller has checked the pool");
            return;
        }
        let sum = if cut.summed { Sum::of(pool.bytes(&frame)).fold() } else { 0 };
        if tail == NIL {
            let seq = self.write_seq(store, snd_nxt);
            let marks = if cut.summed { mark::SUMMED } else { 0 };
            self.link(store, TxSegment { head: frame, seq, len: len as u32, sum, marks, ..TxSegment::hollow() });
            self.bytes += len as u32;
            return;
        }
        let TxStore { segments, rest, .. } = store;
        let segment = &mut segments[tail];
        let before = segment.head.len();
        if segment.rest.is_empty() && before <= SMALL && frame.off() >= before + usize::from(HEADROOM) {
            // The last chunk of one large packet, and the first one of the next packet, whose old headers
            // leave room for it.
            let mut bytes = [0; SMALL];
            bytes[..before].copy_from_slice(pool.bytes(&segment.head));
            frame.grow_front(before);
            pool.bytes_mut(&mut frame)[..before].copy_from_slice(&bytes[..before]);
            pool.free(core::mem::replace(&mut segment.head, frame));
        } else {
            // A segment is a chain of frames where it is larger than a chunk.
            segment.rest.push(rest, frame);
        }
        self.grew_tail(segment, len, sum, cut.summed);
    }

    /// Returns the last segment if it is unsent and open, and has at most `most` bytes; otherwise `NIL`.
    fn open_tail(&self, store: &TxStore, most: u32) -> u32 {
        if self.next == NIL {
            return NIL;
        }
        let index = self.tail();
        let tail = &store.segments[index];
        if tail.len > 0 && tail.len <= most && !tail.has(mark::FIN | mark::RECORD_END) { index } else { NIL }
    }
}

/// Returns how many frames of the pool [`TxQueue::forward`] may need for one frame.
pub(crate) fn frames_to_forward<P: FramePool>(pool: &P, mss: u32) -> usize {
    pool.chunk_size().div_ceil(pool.payload_room().min(mss as usize).max(1)) + 1
}
