use crate::tcb::send::recovery::Acknowledged;
use crate::tcb::send::recovery::tests::{Lab, MSS, lab_of};

/// A peer that reports the beginning, the middle and the end of a long queue in turn: each ACK's
/// blocks are far from those of the previous ACK.
#[test]
fn scattered_blocks_need_no_walk_of_queue() {
    const SEGMENTS: u32 = 4000;
    let Lab { mut tcb, mut store, .. } = lab_of(SEGMENTS);
    let una = tcb.snd.una();
    let (mut steps, mut blocks, mut segments) = (0, 0, 0);
    for round in 0..100 {
        for base in [0, 2000, 3100] {
            let block = |n: u32| {
                let start = una + (base + 8 * round + n) * MSS;
                (start, start + MSS)
            };
            // The newest first, as receivers report them.
            let option = [block(7), block(1), block(3), block(5)];
            let sacked = tcb.mark_sacked(&mut store, &option, None, 0);
            steps += sacked.steps;
            blocks += 4;
            segments += sacked.segments;
        }
    }
    assert_eq!(segments, blocks, "all of them are found");
    assert!(steps <= 16 * blocks, "{steps} steps for {blocks} blocks");
    // In random order: a walk within a part of the queue.
    let (mut steps, mut blocks) = (0, 0);
    for n in 0..300u32 {
        let start = una + n.wrapping_mul(0x9e37_79b1) % SEGMENTS * MSS;
        steps += tcb.mark_sacked(&mut store, &[(start, start + MSS)], None, 0).steps;
        blocks += 1;
    }
    assert!(steps <= blocks * SEGMENTS / 8, "{steps} steps for {blocks} blocks");
}

/// More duplicates than retransmitted segments come from the network, or a forger.
#[test]
fn ignores_duplicates_beyond_retransmissions() {
    let Lab { mut tcb, .. } = lab_of(10);
    let una = tcb.snd.una();
    let facts = Acknowledged { duplicate: Some((una, una + MSS)), ..Acknowledged::default() };
    for (retransmits, widened) in [(0, false), (1, false), (3, true)] {
        tcb.loss_mut().total_retransmits = retransmits;
        tcb.take_duplicate(&facts);
        assert_eq!(tcb.loss().unwrap().rack.is_widened(), widened, "{retransmits} sent again");
    }
}
