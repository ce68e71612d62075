//! Requirements on every link.

use super::netns_unsafe::wait_readable;
use super::{End, PATIENCE, packet};
use fs_core::FramePool;
use std::time::{Duration, Instant};

/// Runs all checks that need only two ends, closes both, and checks that no chunk is missing.
pub fn run(name: &str, mut ends: [End; 2]) {
    eprintln!("link suite: {name} {:?}", ends[0].link.caps());
    bytes_arrive_both_ways(&mut ends);
    chains_arrive(&mut ends);
    order_is_kept_under_pressure(&mut ends);
    too_long_is_dropped_and_counted(&mut ends);
    sleepers_are_woken(&mut ends);
    nothing_is_sent_twice(&mut ends);
    for end in ends {
        end.close();
    }
}

fn sizes(longest: usize) -> impl Iterator<Item = usize> {
    (60..130).chain((130..longest).step_by(97)).chain([longest - 1, longest])
}

fn bytes_arrive_both_ways(ends: &mut [End; 2]) {
    let framing = ends[0].link.caps().framing;
    for from in [0, 1] {
        let longest = ends[from].longest();
        for (seed, len) in sizes(longest).enumerate() {
            let sent = packet(framing, from, len, seed as u32);
            let frames = ends[from].frames(&sent, usize::MAX);
            ends[from].send(frames);
            let got = ends[1 - from].receive(1);
            assert!(got[0] == sent, "{len} bytes from end {from} arrived changed");
        }
        ends[from].settle();
    }
}

/// Header and payload in separate frames, odd splits, many small pieces.
fn chains_arrive(ends: &mut [End; 2]) {
    let framing = ends[0].link.caps().framing;
    let longest = ends[0].longest();
    for (seed, len) in [61, 200, 1000, 1400, longest].into_iter().enumerate() {
        for piece in [54, 333, 1024] {
            // More pieces than one system call takes. No engine splits like that.
            if len / piece > 1000 {
                continue;
            }
            let sent = packet(framing, 0, len, seed as u32);
            let frames = ends[0].frames(&sent, piece);
            ends[0].send(frames);
            assert!(ends[1].receive(1)[0] == sent, "{len} bytes in pieces of {piece} arrived changed");
        }
    }
    // A chunk with another handle is sent and not changed.
    let sent = packet(framing, 0, 1000, 99);
    let (head, tail) = sent.split_at(42);
    let head = ends[0].frame(head);
    let kept = ends[0].frame(tail);
    let twin = ends[0].pool.share(&kept);
    let mut frames =
        vec![fs_core::TxFrame { frame: head, checksum: None }, fs_core::TxFrame { frame: twin, checksum: None }];
    frames[0].frame.set_more(true);
    ends[0].send(frames);
    assert!(ends[1].receive(1)[0] == sent);
    ends[0].settle();
    assert!(!ends[0].pool.is_shared(&kept));
    assert_eq!(ends[0].pool.bytes(&kept), &sent[42..]);
    ends[0].pool.free(kept);
}

/// Many more packets than a ring holds: the rest stays, in order, and nothing is lost.
fn order_is_kept_under_pressure(ends: &mut [End; 2]) {
    let framing = ends[0].link.caps().framing;
    let count = 1500;
    let mut frames = Vec::new();
    for seed in 0..count {
        let sent = packet(framing, 0, 80, seed);
        frames.extend(ends[0].frames(&sent, usize::MAX));
    }
    let [sender, receiver] = ends;
    let deadline = Instant::now() + PATIENCE;
    let mut expected = 0;
    while expected < count {
        let before = frames.len();
        // A batch at a time, as a core does.
        // veth drops packets that exceed its ring of 256, and the receiver's kernel may be late.
        let under_way = count as usize - before - expected as usize;
        let rest = frames.split_off(before.min(64).min(192 - under_way));
        let offered = frames.len();
        let sent = sender.link.tx(&mut sender.pool, &mut frames).unwrap();
        assert_eq!(offered - frames.len(), sent, "what was not sent stays");
        frames.extend(rest);
        for got in receiver.receive_now() {
            assert!(got == packet(framing, 0, 80, expected), "packet {expected} is missing or out of order");
            expected += 1;
        }
        assert!(Instant::now() < deadline, "{expected} of {count} arrived, {} wait", frames.len());
    }
    sender.settle();
}

fn too_long_is_dropped_and_counted(ends: &mut [End; 2]) {
    let framing = ends[0].link.caps().framing;
    let before = ends[0].link.stats().tx_dropped;
    let sent = packet(framing, 0, ends[0].longest() + 5, 1);
    let frames = ends[0].frames(&sent, usize::MAX);
    ends[0].send(frames);
    let sent = packet(framing, 0, 60, 2);
    let frames = ends[0].frames(&sent, usize::MAX);
    ends[0].send(frames);
    assert!(ends[1].receive(1)[0] == sent, "the packet behind the long one arrives");
    assert_eq!(ends[0].link.stats().tx_dropped, before + 1);
    ends[0].settle();
}

fn sleepers_are_woken(ends: &mut [End; 2]) {
    let framing = ends[0].link.caps().framing;
    let [sender, receiver] = ends;
    // Let the kernel's own packets (router solicitations) pass.
    let deadline = Instant::now() + PATIENCE;
    while !receiver.link.prepare_sleep(&mut receiver.pool) {
        receiver.receive_now();
        assert!(Instant::now() < deadline, "never ready to sleep");
    }
    for seed in 0..20 {
        let sent = packet(framing, 0, 100, seed);
        let frames = sender.frames(&sent, usize::MAX);
        sender.send(frames);
        let fd = receiver.link.wake_fd().expect("a descriptor to sleep on");
        assert!(wait_readable(fd, PATIENCE), "a packet did not wake the sleeper");
        assert!(!receiver.link.prepare_sleep(&mut receiver.pool), "there is work");
        assert!(receiver.receive(1)[0] == sent);
        while !receiver.link.prepare_sleep(&mut receiver.pool) {
            receiver.receive_now();
        }
        let fd = receiver.link.wake_fd().expect("a descriptor to sleep on");
        // A packet of the kernel's own can arrive at any time. Then there is work.
        let is_woken = wait_readable(fd, Duration::ZERO);
        assert!(!is_woken || !receiver.link.prepare_sleep(&mut receiver.pool), "woken for nothing");
    }
}

fn nothing_is_sent_twice(ends: &mut [End; 2]) {
    std::thread::sleep(Duration::from_millis(5));
    assert!(ends[1].receive_now().is_empty());
    assert!(ends[0].receive_now().is_empty());
    // All received and sent frames have been freed, so only the devices have chunks.
    for end in ends.iter_mut() {
        end.settle();
    }
}
