//! The out-of-order queue against a map of bytes: the first byte received at a position wins.

use super::*;
use crate::frame::{FramePool, HeapPool};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

fn chain(nodes: &mut FrameNodes, pool: &mut HeapPool, bytes: &[u8]) -> FrameQueue {
    let mut queue = FrameQueue::new();
    for part in bytes.chunks(7) {
        let mut frame = pool.alloc().unwrap();
        frame.grow_back(part.len());
        pool.bytes_mut(&mut frame).copy_from_slice(part);
        queue.push(nodes, frame);
    }
    queue
}

proptest! {
    #[test]
    fn agrees_with_a_map_of_bytes(
        base in any::<u32>(),
        segments in proptest::collection::vec((1u32..400, 1usize..60, any::<u8>()), 1..60),
    ) {
        let mut nodes = FrameNodes::new();
        let mut pool = HeapPool::new(4096, 512);
        let mut ranges = OutOfOrderQueue::default();
        let mut model: BTreeMap<u32, u8> = BTreeMap::new();
        let base = SeqNum(base);
        for (offset, len, tint) in segments {
            let bytes: Vec<u8> = (0..len).map(|i| tint.wrapping_add(i as u8)).collect();
            let data = chain(&mut nodes, &mut pool, &bytes);
            let before = model.len();
            let result = ranges.insert(&mut nodes, &mut pool, base + offset, data);
            // The model keeps the same part: from the first new byte up to the next range.
            let first = (0..len as u32).find(|i| !model.contains_key(&(offset + i)));
            if let Some(first) = first {
                for i in first..len as u32 {
                    if model.contains_key(&(offset + i)) { break; }
                    model.insert(offset + i, bytes[i as usize]);
                }
            }
            let expected = match model.len() - before { 0 => Inserted::Duplicate, n => Inserted::Held(n as u32) };
            prop_assert_eq!(result, expected);
            for (one, next) in ranges.iter().zip(ranges.iter().skip(1)) {
                prop_assert!(one.end().before(next.start));
            }
            prop_assert_eq!(ranges.iter().map(|i| i.data.bytes as usize).sum::<usize>(), model.len());
        }
        // The bytes contiguous with offset 1 are the model's first run.
        let held: u32 = ranges.iter().map(|i| i.data.bytes).sum();
        let (mut ready, gone) = ranges.take_contiguous(&mut nodes, &mut pool, base + 1);
        prop_assert_eq!(ranges.iter().map(|i| i.data.bytes).sum::<u32>(), held - gone);
        let run: Vec<u8> = (1u32..).map_while(|i| model.get(&i).copied()).collect();
        let mut got = std::vec![0; 4096];
        let n = ready.read(&mut nodes, &mut pool, &mut got);
        prop_assert_eq!(&got[..n], &run[..]);
        ranges.clear(&mut nodes, &mut pool);
        prop_assert_eq!(pool.in_use(), 0);
        prop_assert_eq!(nodes.len(), 0);
    }
}

#[test]
fn reports_latest_range_first() {
    let mut nodes = FrameNodes::new();
    let mut pool = HeapPool::new(64, 512);
    let mut ranges = OutOfOrderQueue::default();
    for offset in [100u32, 300, 200] {
        let data = chain(&mut nodes, &mut pool, &[0; 10]);
        ranges.insert(&mut nodes, &mut pool, SeqNum(offset), data);
    }
    let mut blocks = [(SeqNum(0), SeqNum(0)); 4];
    assert_eq!(ranges.sack_blocks(&mut blocks), 3);
    assert_eq!(blocks[..3], [(SeqNum(200), SeqNum(210)), (SeqNum(300), SeqNum(310)), (SeqNum(100), SeqNum(110))]);
    // RFC 2883 section 4: the block that contains a duplicate follows it.
    ranges.touch(SeqNum(305));
    assert_eq!(ranges.sack_blocks(&mut blocks), 3);
    assert_eq!(blocks[..2], [(SeqNum(300), SeqNum(310)), (SeqNum(200), SeqNum(210))]);
    ranges.touch(SeqNum(310));
    assert_eq!((ranges.sack_blocks(&mut blocks), blocks[0].0), (3, SeqNum(300)), "in none");
}

#[test]
fn number_of_ranges_is_bounded() {
    let mut nodes = FrameNodes::new();
    let mut pool = HeapPool::new(MAX_RANGES + 8, 512);
    let mut ranges = OutOfOrderQueue::default();
    let mut insert = |ranges: &mut OutOfOrderQueue, pool: &mut HeapPool, offset: u32| {
        let data = chain(&mut nodes, pool, &[0]);
        ranges.insert(&mut nodes, pool, SeqNum(offset), data)
    };
    for n in 0..MAX_RANGES as u32 {
        assert_eq!(insert(&mut ranges, &mut pool, 2 * n), Inserted::Held(1));
    }
    assert_eq!(insert(&mut ranges, &mut pool, 2 * MAX_RANGES as u32), Inserted::Refused);
    assert_eq!(pool.in_use(), MAX_RANGES, "what is refused is given back");
    assert_eq!(insert(&mut ranges, &mut pool, 1), Inserted::Held(1), "what joins two needs no place");
}

#[test]
fn overlap_finds_first_stored_run() {
    let mut nodes = FrameNodes::new();
    let mut pool = HeapPool::new(64, 512);
    let mut ranges = OutOfOrderQueue::default();
    let run = |a: u32, b: u32| Some((SeqNum(a), SeqNum(b)));
    assert_eq!(ranges.overlap(SeqNum(0), SeqNum(1000)), None);
    for offset in [100u32, 300] {
        let data = chain(&mut nodes, &mut pool, &[0; 10]);
        ranges.insert(&mut nodes, &mut pool, SeqNum(offset), data);
    }
    let overlap = |a: u32, b: u32| ranges.overlap(SeqNum(a), SeqNum(b));
    assert_eq!((overlap(0, 100), overlap(110, 300), overlap(310, 400)), (None, None, None));
    assert_eq!((overlap(0, 1000), overlap(50, 105), overlap(105, 400)), (run(100, 110), run(100, 105), run(105, 110)));
    assert_eq!((overlap(102, 104), overlap(110, 301)), (run(102, 104), run(300, 301)));
}
