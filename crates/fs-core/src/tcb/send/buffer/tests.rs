use super::*;
use crate::frame::HeapPool;
use alloc::vec;
use alloc::vec::Vec;

const MSS: u32 = 1000;
const ISS: SeqNum = SeqNum(u32::MAX - 50);

struct Lab {
    queue: TxQueue,
    store: TxStore,
    pool: HeapPool,
    nxt: SeqNum,
}

fn write(lab: &mut Lab, bytes: &[u8]) {
    let Lab { queue, store, pool, nxt } = lab;
    let cut = Cut { mss: MSS, summed: true, push_at_end: true, push_every: u32::MAX };
    assert_eq!(queue.write(store, pool, *nxt, bytes, cut), bytes.len());
}

/// Sends all unsent segments.
fn send(lab: &mut Lab) {
    while lab.queue.next != NIL {
        let segment = &mut lab.store.segments[lab.queue.next];
        segment.sent_us = 77;
        (lab.nxt, lab.queue.next) = (segment.end(), segment.next);
    }
}

/// Makes a queue with these bytes, sent.
fn sent(bytes: &[u8]) -> Lab {
    let mut lab = Lab { queue: TxQueue::new(), store: TxStore::new(8, None), pool: HeapPool::new(16, 2048), nxt: ISS };
    write(&mut lab, bytes);
    send(&mut lab);
    lab
}

#[test]
fn inline_queue_round_trips_without_sum() {
    let mut lab = sent(&[5; 64]);
    let sum = lab.store.segments[lab.queue.head()].sum;
    lab.queue.store_inline(&mut lab.store);
    assert!(lab.queue.is_inline() && !lab.queue.is_empty() && lab.queue.bytes == 64);
    assert_eq!((lab.store.segments.len(), lab.store.frames(), lab.pool.in_use()), (0, 1, 1));
    assert_eq!(lab.queue.head_sent_us(&lab.store), Some(77));
    // Another connection uses the store in between.
    let other = lab.store.segments.insert(TxSegment::hollow());
    lab.queue.spill(&mut lab.store, lab.nxt);
    let head = lab.queue.head();
    assert!(!lab.queue.is_inline() && head == lab.queue.tail() && head != other && lab.queue.next == NIL);
    let Lab { queue, store, pool, nxt } = &mut lab;
    let TxStore { segments, rest, .. } = store;
    let segment = &mut segments[queue.head()];
    assert_eq!((segment.seq, segment.len, segment.end(), segment.sent_us), (ISS, 64, *nxt, 77));
    assert_eq!((segment.marks, segment.next, pool.bytes(&segment.head)), (mark::PUSH, NIL, &[5; 64][..]));
    assert_eq!(segment.payload_sum(rest, pool), sum);
    assert_eq!((store.frames(), queue.head_sent_us(store)), (2, Some(77)));
}

#[test]
fn queueing_spills_inline_segment() {
    for fin in [false, true] {
        let mut lab = sent(&[5; 64]);
        lab.queue.store_inline(&mut lab.store);
        if fin {
            lab.queue.push_fin(&mut lab.store, lab.nxt);
        } else {
            write(&mut lab, &[6; 10]);
        }
        assert!(!lab.queue.is_inline());
        let (first, second) = (&lab.store.segments[lab.queue.head()], &lab.store.segments[lab.queue.tail()]);
        assert_eq!((first.seq, first.end(), second.seq), (ISS, second.seq, lab.nxt));
        assert_eq!((first.next, lab.queue.next), (lab.queue.tail(), lab.queue.tail()));
        assert_eq!((lab.queue.bytes, lab.store.frames()), (if fin { 64 } else { 74 }, 2));
        send(&mut lab);
        // Two segments are not stored inline.
        lab.queue.store_inline(&mut lab.store);
        assert!(!lab.queue.is_inline());
    }
}

/// Marks of the queue's segments, first to last, without those of the checksum.
fn marks(lab: &Lab) -> Vec<u8> {
    let mut at = lab.queue.head();
    let mut marks = Vec::new();
    while at != NIL {
        marks.push(lab.store.segments[at].marks & !mark::SUMMED);
        at = lab.store.segments[at].next;
    }
    marks
}

/// Else each write would end a run of segments that a link merges.
#[test]
fn push_moves_to_end_of_unsent_bytes() {
    let full = |segments: usize| vec![6; segments * MSS as usize];
    let mut lab = sent(&[5; 64]);
    write(&mut lab, &full(2));
    write(&mut lab, &full(1));
    write(&mut lab, &[7; 10]);
    write(&mut lab, &full(1));
    assert_eq!(marks(&lab), [mark::PUSH, 0, 0, 0, 0, mark::PUSH]);
    // Segments that were sent keep their mark.
    send(&mut lab);
    write(&mut lab, &full(1));
    assert_eq!(marks(&lab)[5..], [mark::PUSH, mark::PUSH]);
}

#[test]
fn push_stays_at_end_of_record() {
    let mut lab = sent(&[5; 64]);
    write(&mut lab, &[6; 10]);
    lab.store.segments[lab.queue.tail()].marks |= mark::RECORD_END;
    write(&mut lab, &[7; 10]);
    assert_eq!(marks(&lab), [mark::PUSH, mark::PUSH | mark::RECORD_END, mark::PUSH]);
}

#[test]
fn inline_segment_owns_its_frame() {
    let mut lab = sent(&[5; 64]);
    lab.queue.store_inline(&mut lab.store);
    let (frame, sent_us) = lab.queue.take_only(&mut lab.store).unwrap();
    assert_eq!((lab.pool.bytes(&frame), sent_us), (&[5; 64][..], 77));
    lab.pool.free(frame);
    assert!(lab.queue.is_empty() && lab.queue.bytes == 0);
    assert_eq!((lab.store.frames(), lab.pool.in_use()), (0, 0));

    let mut lab = sent(&[5; 64]);
    lab.queue.store_inline(&mut lab.store);
    lab.queue.clear(&mut lab.store, &mut lab.pool);
    assert!(lab.queue.is_empty() && lab.queue.bytes == 0);
    assert_eq!((lab.store.frames(), lab.pool.in_use()), (0, 0));
}

/// Segments that the ACK's fast path cannot handle, or that could not be restored, are not stored
/// inline.
#[test]
fn unusual_segments_are_not_inline() {
    let folds = |mut lab: Lab| {
        lab.queue.store_inline(&mut lab.store);
        lab.queue.is_inline()
    };
    assert!(folds(sent(&[5; MSS as usize])));
    assert!(!folds(sent(&[5; MSS as usize + 1])));
    for marks in [0, mark::PUSH | mark::FIN, mark::PUSH | mark::RECORD_END, mark::PUSH | mark::EVER_RETRANSMITTED] {
        let mut lab = sent(&[5; 64]);
        lab.store.segments[lab.queue.head()].marks = marks;
        assert!(!folds(lab), "{marks:#x}");
    }
    // A headroom other than a fresh frame's.
    let mut lab = sent(&[5; 64]);
    lab.store.segments[lab.queue.head()].head.trim_front(1);
    assert!(!folds(lab));
    // Not yet sent.
    let mut lab = sent(&[]);
    write(&mut lab, &[5; 64]);
    assert!(!folds(lab));
    assert!(!folds(sent(&[])));
}
