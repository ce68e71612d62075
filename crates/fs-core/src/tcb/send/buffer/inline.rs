//! A queue that stores its only segment itself.

use super::TxQueue;
use crate::frame::{Frame, HEADROOM};
use crate::seq::SeqNum;
use crate::slab::{Hollow, NIL};
use crate::tcb::send::ends::{Ends, Segments};
use crate::tcb::send::segment::{TxSegment, mark};
use crate::tcb::send::store::TxStore;

impl TxQueue {
    /// Returns true if the queue stores its only segment itself.
    #[inline(always)]
    pub(crate) fn is_inline(&self) -> bool {
        self.ends.is_inline()
    }

    /// Moves the queue's only segment into the queue itself, if it is an ordinary segment that has
    /// been sent. Keeps only what its ACK needs. That ACK then needs no segment of the store, which
    /// with many connections would be a cache miss and a TLB miss. Everything else needs
    /// [`TxQueue::spill`] first. No cursor of the queue may be kept, nor a stamp of its segment.
    #[inline(always)]
    pub(crate) fn store_inline(&mut self, store: &mut TxStore) {
        let Segments::Stored { head, tail } = self.ends.get() else { return };
        if head == NIL || head != tail || self.next != NIL {
            return;
        }
        let segment = &mut store.segments[head];
        let chunk = segment.head.chunk();
        let ordinary = segment.marks & !mark::SUMMED == mark::PUSH
            && segment.rest.is_empty()
            && segment.head.off() == usize::from(HEADROOM)
            && Ends::can_hold(chunk);
        if !ordinary {
            return;
        }
        // The chunk's number replaces its handle.
        let _ = segment.head.take();
        self.ends = Ends::inline(chunk, segment.sent_us);
        store.segments.vacate(head);
        store.inline += 1;
    }

    /// Removes the segment of an inline queue. Returns its frame, and when it was sent.
    #[inline(always)]
    pub(crate) fn take_inline(&mut self, store: &mut TxStore) -> Option<(Frame, u32)> {
        let Segments::Inline { chunk, sent_us } = self.ends.get() else { return None };
        let frame = self.inline_frame(chunk);
        store.inline -= 1;
        (self.ends, self.bytes) = (Ends::NONE, 0);
        Some((frame, sent_us))
    }

    /// Removes the only segment of a queue without marks and unsent segments, if it has one frame.
    /// Returns it, and when it was sent.
    #[inline(always)]
    pub(crate) fn take_only(&mut self, store: &mut TxStore) -> Option<(Frame, u32)> {
        let Segments::Stored { head, tail } = self.ends.get() else { return self.take_inline(store) };
        if head != tail {
            return None;
        }
        let segment = &mut store.segments[head];
        debug_assert!(
            !segment.has(!(mark::PUSH | mark::SUMMED | mark::RECORD_END)),
            "without a record of losses nothing is marked, and what is open has sent no FIN"
        );
        if !segment.rest.is_empty() {
            return None;
        }
        let taken = (segment.head.take(), segment.sent_us);
        store.segments.vacate(head);
        (self.ends, self.bytes) = (Ends::NONE, 0);
        Some(taken)
    }

    /// Returns the frame of an inline queue's segment.
    #[inline(always)]
    pub(super) fn inline_frame(&self, chunk: u32) -> Frame {
        Frame::from_raw(chunk, HEADROOM, self.bytes as u16)
    }

    /// Reverses [`TxQueue::store_inline`], given SND.NXT.
    #[inline(always)]
    pub(crate) fn spill(&mut self, store: &mut TxStore, snd_nxt: SeqNum) {
        if self.is_inline() {
            self.spill_now(store, snd_nxt);
        }
    }

    #[cold]
    #[inline(never)]
    fn spill_now(&mut self, store: &mut TxStore, snd_nxt: SeqNum) {
        let len = self.bytes;
        let Some((head, sent_us)) = self.take_inline(store) else { return };
        let segment = TxSegment { head, seq: snd_nxt - len, len, sent_us, marks: mark::PUSH, ..TxSegment::hollow() };
        let index = store.segments.insert(segment);
        (self.ends, self.bytes) = (Ends::stored(index, index), len);
    }
}
