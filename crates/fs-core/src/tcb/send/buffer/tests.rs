use super::*;
use crate::frame::HeapPool;

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

/// All that is unsent leaves.
fn send(lab: &mut Lab) {
    while lab.queue.next != NIL {
        let segment = &mut lab.store.segments[lab.queue.next];
        segment.sent_us = 77;
        (lab.nxt, lab.queue.next) = (segment.end(), segment.next);
    }
}

/// A queue with these bytes, sent.
fn sent(bytes: &[u8]) -> Lab {
    let mut lab = Lab { queue: TxQueue::new(), store: TxStore::new(8, None), pool: HeapPool::new(8, 2048), nxt: ISS };
    write(&mut lab, bytes);
    send(&mut lab);
    lab
}

#[test]
fn an_inline_queue_comes_back_as_it_was_but_for_its_sum() {
    let mut lab = sent(&[5; 64]);
    let sum = lab.store.segments[lab.queue.head()].sum;
    lab.queue.store_inline(&mut lab.store);
    assert!(lab.queue.is_inline() && !lab.queue.is_empty() && lab.queue.bytes == 64);
    assert_eq!((lab.store.segments.len(), lab.store.frames(), lab.pool.in_use()), (0, 1, 1));
    assert_eq!(lab.queue.head_sent_us(&lab.store), Some(77));
    // Others use the store meanwhile.
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
fn what_is_queued_behind_an_inline_segment_spills_it() {
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
        // Two are not one.
        lab.queue.store_inline(&mut lab.store);
        assert!(!lab.queue.is_inline());
    }
}

#[test]
fn an_inline_segment_is_taken_or_dropped_with_its_frame() {
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

/// What its ACK's fast path does not know, or what could not be told again.
#[test]
fn what_is_not_ordinary_is_not_inline() {
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
    // Behind other head room than a fresh frame's.
    let mut lab = sent(&[5; 64]);
    lab.store.segments[lab.queue.head()].head.trim_front(1);
    assert!(!folds(lab));
    // Not yet sent.
    let mut lab = sent(&[]);
    write(&mut lab, &[5; 64]);
    assert!(!folds(lab));
    assert!(!folds(sent(&[])));
}
