use super::completion::CompletionRing;
use super::fill::FillRing;
use super::rx::{CONTINUED, RxRing};
use super::tx::TxRing;
use super::{Consumer, Producer};
use crate::sys::ring_memory::FakeRing;
use std::collections::VecDeque;

fn descriptor(addr: u64, options: u32) -> libc::xdp_desc {
    libc::xdp_desc { addr, len: 60, options }
}

/// Cursors are free-running: start just before they wrap.
const NEAR_WRAP: u32 = u32::MAX - 2;

#[test]
fn entries_arrive_in_order_across_the_wrap() {
    let ring = FakeRing::new(4, NEAR_WRAP);
    let mut ours = FillRing::new(ring.view());
    let mut kernel = Consumer::<u64>::new(ring.view());
    for round in 0..10 {
        assert_eq!(ours.free(4), 4);
        for i in 0..4 {
            ours.push(round * 4 + i);
        }
        assert_eq!(kernel.available(1), 0, "not shown before publish");
        ours.publish();
        assert_eq!(ours.free(1), 0);
        assert_eq!(kernel.available(4), 4);
        for i in 0..4 {
            assert_eq!(kernel.pop(), round * 4 + i);
        }
        assert_eq!(ours.free(1), 0, "places come back with release");
        kernel.release();
    }
}

#[test]
fn completions_are_read_once() {
    let ring = FakeRing::new(8, NEAR_WRAP);
    let mut kernel = Producer::<u64>::new(ring.view());
    let mut ours = CompletionRing::new(ring.view());
    assert_eq!(ours.available(), 0);
    for address in 0..8 {
        kernel.push(address);
    }
    kernel.publish();
    assert_eq!(ours.available(), 8);
    for address in 0..8 {
        assert_eq!(ours.pop(), address);
    }
    assert_eq!(ours.available(), 0);
    assert_eq!(kernel.free(1), 0);
    ours.release();
    assert_eq!(kernel.free(1), 8);
}

#[test]
fn only_whole_packets_are_counted() {
    let ring = FakeRing::new(8, NEAR_WRAP);
    let mut kernel = Producer::<libc::xdp_desc>::new(ring.view());
    let mut ours = RxRing::new(ring.view());
    for (addr, options) in [(0, 0), (1, CONTINUED), (2, CONTINUED), (3, 0), (4, CONTINUED)] {
        kernel.push(descriptor(addr, options));
    }
    kernel.publish();
    assert_eq!(ours.packets(1, true), (1, 1));
    assert_eq!(ours.packets(9, true), (2, 4), "the last packet is not complete");
    for addr in 0..4 {
        assert_eq!(ours.pop().addr, addr);
    }
    ours.release();
    assert_eq!(ours.packets(9, true), (0, 0));
    assert!(ours.is_ready(), "a part has arrived");
    kernel.push(descriptor(5, 0));
    kernel.publish();
    assert_eq!(ours.packets(9, true), (1, 2));
}

#[test]
fn each_descriptor_is_a_packet_without_multi_buffer() {
    let ring = FakeRing::new(8, 0);
    let mut kernel = Producer::<libc::xdp_desc>::new(ring.view());
    let mut ours = RxRing::new(ring.view());
    for addr in 0..5 {
        kernel.push(descriptor(addr, 0));
    }
    kernel.publish();
    assert_eq!(ours.packets(3, false), (3, 3));
    assert_eq!(ours.packets(9, false), (5, 5));
}

#[test]
fn entries_not_taken_by_the_kernel_are_pending() {
    let ring = FakeRing::new(4, NEAR_WRAP);
    let mut ours = TxRing::new(ring.view());
    let mut kernel = Consumer::<libc::xdp_desc>::new(ring.view());
    for addr in 0..3 {
        ours.push(descriptor(addr, 0));
    }
    ours.publish();
    assert_eq!(ours.pending(), 3);
    assert_eq!(kernel.available(9), 3);
    kernel.pop();
    kernel.pop();
    kernel.release();
    assert_eq!(ours.pending(), 1);
    assert_eq!(ours.free(4), 3);
    assert!(!ours.needs_wakeup());
}

/// Two threads: every entry arrives once, in order.
#[test]
fn two_threads_lose_and_duplicate_nothing() {
    let count = if cfg!(miri) { 300 } else { 200_000u64 };
    let ring = FakeRing::new(16, NEAR_WRAP);
    let mut producer = Producer::<u64>::new(ring.view());
    let mut consumer = Consumer::<u64>::new(ring.view());
    let writer = std::thread::spawn(move || {
        let mut left: VecDeque<u64> = (0..count).collect();
        while !left.is_empty() {
            let room = producer.free(5).min(5);
            for entry in left.drain(..left.len().min(room as usize)) {
                producer.push(entry);
            }
            producer.publish();
            std::hint::spin_loop();
        }
    });
    let mut expected = 0;
    while expected < count {
        for _ in 0..consumer.available(7).min(7) {
            assert_eq!(consumer.pop(), expected);
            expected += 1;
        }
        consumer.release();
        std::hint::spin_loop();
    }
    writer.join().unwrap();
}
