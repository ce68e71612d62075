//! The rules one by one, over a kernel socket in memory. Miri runs these.

use std::sync::Arc;

use super::fake::{Fake, Pipe};
use crate::kernel::{Errno, RecvMode};
use crate::pair::Pair;
use crate::region::{End, Region, SideTable};
use crate::spin::Pacing;
use crate::sync::Ordering;

pub(super) const PACING: Pacing = Pacing { spin_ns: 1, room_ns: 0, yields: 1, is_eager: false, crowd: None };

pub(super) struct World {
    pub(super) a: Pair<Fake>,
    pub(super) b: Pair<Fake>,
    pub(super) forth: Arc<Pipe>,
    back: Arc<Pipe>,
}

fn world() -> World {
    let (forth, back) = (Pipe::new(), Pipe::new());
    let (region_a, region_b) = Region::in_memory(64);
    let sides = SideTable::in_memory(2);
    let promote = |fake, region, end, i| Pair::promote(fake, region, end, sides.side(i).unwrap(), PACING).unwrap();
    let a = Fake { outgoing: forth.clone(), incoming: back.clone(), thread: 1 };
    let b = Fake { outgoing: back.clone(), incoming: forth.clone(), thread: 2 };
    World { back, a: promote(a, region_a, End::A, 0), b: promote(b, region_b, End::B, 1), forth }
}

impl World {
    pub(super) fn by_ring() -> World {
        let world = world();
        assert!(world.b.consumer().set_ring());
        world
    }

    fn receive(&self) -> Vec<u8> {
        let (mut all, mut piece) = (Vec::new(), [0; 7]);
        while let Ok(n @ 1..) = self.b.recv(&mut piece, RecvMode::NOW) {
            all.extend_from_slice(&piece[..n]);
        }
        all
    }
}

#[test]
fn fresh_memory_means_that_the_kernel_carries() {
    let world = world();
    assert_eq!(world.a.send(b"kernel", false), Ok(6));
    assert_eq!(world.a.counts().kernel_sends, 1);
    assert_eq!(world.receive(), b"kernel");
}

#[test]
fn p1_publishes_and_partial_reads_continue() {
    let world = World::by_ring();
    for text in [&b"12345678"[..], b"a longer one", b"x"] {
        assert_eq!(world.a.send(text, false), Ok(text.len()));
    }
    assert_eq!(world.a.counts().kernel_sends, 0);
    assert_eq!(world.receive(), b"12345678a longer onex");
    // Inline, read in pieces, across the end of the memory.
    for i in 0..20_u8 {
        let text: Vec<u8> = (i..i + 13).collect();
        assert_eq!(world.a.send(&text, false), Ok(13));
        assert_eq!(world.receive(), text);
    }
}

#[test]
fn receive_that_was_left_in_the_middle_leaves_no_bytes_behind() {
    let world = World::by_ring();
    assert_eq!(world.a.send(b"first", false), Ok(5));
    assert_eq!(world.receive(), b"first");
    // The thread was killed, or has jumped out, after it had stored the position that it has read up to.
    world.b.region_side().receive.known_tail.store(0, Ordering::Relaxed);
    assert_eq!(world.b.recv(&mut [0; 2], RecvMode::NOW), Err(Errno::AGAIN));
    assert_eq!(world.a.send(b"second", false), Ok(6));
    assert_eq!(world.receive(), b"second");
}

#[test]
fn p3_full_ring_keeps_the_order() {
    let world = World::by_ring();
    let text: Vec<u8> = (0..200).collect();
    assert_eq!(world.a.send(&text, false), Ok(200));
    let counts = world.a.counts();
    assert!(counts.full == 1 && counts.kernel_sends > 0 && counts.ring_sends > 0, "{counts:?}");
    assert_eq!(world.receive(), text);
}

#[test]
fn c1_kernel_bytes_up_to_the_boundary_come_first() {
    let world = world();
    assert_eq!(world.a.send(b"first", false), Ok(5));
    // A request for the ring that was granted before the kernel's bytes were read does not happen; force the carrier.
    assert!(!world.b.consumer().set_ring());
    let word = &world.b.consumer().direction.line_a.word;
    assert!(word.set_ring(word.load()));
    assert_eq!(world.a.send(b"second", false), Ok(6));
    assert_eq!(world.a.send_by_kernel(false, |kernel| crate::kernel::Kernel::send(kernel, b"third", false)), Ok(5));
    // MSG_PEEK of any length has the bytes of both carriers.
    for n in 1..=20 {
        let mut peeked = vec![0; n];
        assert_eq!(world.b.recv(&mut peeked, RecvMode::PEEK), Ok(n.min(16)));
        assert_eq!(peeked[..n.min(16)], b"firstsecondthird"[..n.min(16)]);
    }
    assert_eq!(world.receive(), b"firstsecondthird");
}

#[test]
fn c4_fails_if_bytes_are_in_the_ring() {
    let world = World::by_ring();
    assert_eq!(world.a.send(b"x", false), Ok(1));
    assert!(world.b.before_sleep().is_none());
    assert_eq!(world.receive(), b"x");
    let asleep = world.b.before_sleep().unwrap();
    // C5, C8: no ring while a thread sleeps.
    assert!(!world.b.consumer().set_ring());
    drop(asleep);
    assert!(world.b.consumer().set_ring());
}

#[test]
fn c6_foreign_reader_is_noticed() {
    let world = world();
    assert_eq!(world.a.send(b"abc", false), Ok(3));
    assert_eq!(world.forth.steal(), Some(b'a'));
    assert_eq!(world.receive(), b"bc");
    assert!(world.b.consumer().set_ring());
    assert_eq!(world.b.counts().corrected, 1);
}

#[test]
fn c6_sleeper_counts_its_own_bytes() {
    // A thread has taken bytes and has not counted them yet, when another thread asks the kernel:
    // they must not be counted twice.
    let world = world();
    assert_eq!(world.a.send(b"abc", false), Ok(3));
    let asleep = world.b.before_sleep().unwrap();
    assert_eq!(world.forth.steal(), Some(b'a'));
    assert!(!world.b.consumer().correct());
    world.b.consumer().count_kernel_bytes(1);
    drop(asleep);
    assert_eq!(world.receive(), b"bc");
    assert_eq!(world.b.consumer().side.receive.received.load(Ordering::Relaxed), 3);
}

/// Ring bytes that follow three kernel bytes, which were counted and have not arrived.
fn behind() -> World {
    let world = World::by_ring();
    let direction = world.b.consumer().direction;
    direction.line_b.sent.store(3, Ordering::Release);
    assert_eq!(world.a.send(b"ring", false), Ok(4));
    world
}

#[test]
fn c7_preceding_kernel_bytes_are_waited_for() {
    let world = behind();
    let mut piece = [0; 9];
    assert_eq!(world.b.recv(&mut piece, RecvMode::NOW), Err(Errno::AGAIN));
    assert_eq!(world.b.counts().behind, 1);
    b"ker".iter().for_each(|&byte| world.forth.inject(byte));
    // One receive has the bytes of both, in order.
    assert_eq!(world.b.recv(&mut piece, RecvMode::NOW), Ok(7));
    assert_eq!(&piece[..7], b"kerring");
}

#[test]
fn c7_a_receive_that_waits_looks_again() {
    let world = behind();
    let mut piece = [0; 9];
    std::thread::scope(|scope| {
        scope.spawn(|| b"ker".iter().for_each(|&byte| world.forth.inject(byte)));
        let n = world.b.recv(&mut piece, RecvMode::WAIT).unwrap();
        assert!(b"kerring".starts_with(&piece[..n]) && n > 0);
    });
}

#[test]
fn c7_a_receive_that_waits_has_a_time_out() {
    let world = behind();
    world.forth.limit_ns.store(5_000_000, Ordering::Relaxed);
    assert_eq!(world.b.recv(&mut [0; 9], RecvMode::WAIT), Err(Errno::AGAIN));
    assert_eq!(world.forth.now_ns.load(Ordering::Relaxed) / 1_000_000, 5);
    // As recv(2) with a time-out, a handler with SA_RESTART ends it too.
    world.forth.now_ns.store(0, Ordering::Relaxed);
    world.forth.has_signal.store(true, Ordering::Relaxed);
    assert_eq!(world.b.recv(&mut [0; 9], RecvMode::WAIT), Err(Errno::INTR));
}

#[test]
fn c7_an_end_instead_makes_it_the_rings_turn() {
    let world = behind();
    world.forth.end();
    assert_eq!(world.receive(), b"ring");
    world.b.report_readable();
    assert_eq!(world.b.recv(&mut [0], RecvMode::NOW), Ok(0));
}

#[test]
fn c7_an_error_instead_ends_the_use_of_the_ring() {
    let world = behind();
    world.forth.fail(Errno::CONNRESET);
    assert_eq!(world.b.recv(&mut [0; 9], RecvMode::NOW), Err(Errno::CONNRESET));
    // Bytes after the gap are not read.
    assert_eq!(world.b.recv(&mut [0; 9], RecvMode::NOW), Err(Errno::AGAIN));
    assert!(!world.b.has_ring_bytes());
}

#[test]
fn c9_without_a_report_the_kernel_is_asked_after_50_us() {
    let world = World::by_ring();
    world.forth.end();
    assert_eq!(world.b.recv(&mut [0], RecvMode::NOW), Err(Errno::AGAIN));
    world.forth.now_ns.store(50_000, Ordering::Relaxed);
    assert_eq!(world.b.recv(&mut [0], RecvMode::NOW), Err(Errno::AGAIN));
    assert!(!world.b.words()[1].kernel_carries());
    world.forth.now_ns.store(50_001, Ordering::Relaxed);
    assert_eq!(world.b.recv(&mut [0], RecvMode::NOW), Ok(0));
}

#[test]
fn c9_a_report_makes_the_next_vain_receive_ask_the_kernel() {
    let world = World::by_ring();
    world.b.report_readable();
    assert_eq!(world.a.send(b"ring", false), Ok(4));
    // A receive that finds bytes does not ask the kernel.
    assert_eq!(world.b.recv(&mut [0; 4], RecvMode::NOW), Ok(4));
    assert!(!world.b.words()[1].kernel_carries());
    world.forth.inject(b'!');
    assert_eq!(world.b.recv(&mut [0], RecvMode::NOW), Ok(1));
    assert!(world.b.words()[1].kernel_carries());
}

#[test]
fn c9_a_receive_that_has_bytes_asks_the_kernel_for_the_rest() {
    // Two threads send: the bytes of one are counted, those of the other have arrived only. One
    // edge reported all of them.
    let world = world();
    let direction = world.b.consumer().direction;
    let word = &direction.line_a.word;
    for _ in 0..2 {
        assert_eq!(word.begin_kernel_send(word.load()), crate::word::KernelSend::Counted);
    }
    assert!(world.b.consumer().set_ring() && word.load().is_requested());
    (0..150).for_each(|byte| world.forth.inject(byte));
    direction.line_b.sent.store(100, Ordering::Release);
    word.end_kernel_send();
    world.b.report_readable();
    let mut piece = [0; 200];
    assert_eq!(world.b.recv(&mut piece, RecvMode::NOW), Ok(150));
    assert!(piece[..150].iter().copied().eq(0..150));
}

#[test]
fn error_after_bytes_of_the_ring_is_kept() {
    // Ring bytes, then kernel bytes, and the connection is reset between the two receives of one call.
    let world = World::by_ring();
    assert_eq!(world.a.send(b"ring", false), Ok(4));
    assert_eq!(world.a.send_by_kernel(false, |kernel| crate::kernel::Kernel::send(kernel, b"kernel", false)), Ok(6));
    world.forth.fail(Errno::CONNRESET);
    assert_eq!(world.b.recv(&mut [0; 20], RecvMode::NOW), Ok(4));
    let mut piece = [0; 20];
    assert_eq!(world.b.recv(&mut piece, RecvMode::NOW), Ok(6));
    assert_eq!(world.b.recv(&mut piece, RecvMode::NOW), Err(Errno::CONNRESET));
}

#[test]
fn c5_foreign_writer_pins() {
    let world = world();
    world.forth.inject(b'!');
    assert_eq!(world.receive(), b"!");
    assert!(!world.b.consumer().set_ring());
    assert!(world.b.words()[1].is_pinned());
}

#[test]
fn g1_pinned_ring_is_read_first() {
    let world = World::by_ring();
    assert_eq!(world.a.send(b"ring", false), Ok(4));
    world.b.pin();
    assert_eq!(world.a.send(b"kernel", false), Ok(6));
    assert_eq!(world.receive(), b"ringkernel");
    assert!(!world.b.consumer().set_ring());
    assert!(world.a.words()[0].is_pinned() && world.a.words()[1].is_pinned());
}

#[test]
fn too_many_sends_in_flight_pin() {
    let world = world();
    let word = &world.a.words();
    assert_eq!(word[0].in_flight(), 0);
    let word = &world.b.consumer().direction.line_a.word;
    for _ in 0..crate::word::MAX_IN_FLIGHT {
        assert_eq!(word.begin_kernel_send(word.load()), crate::word::KernelSend::Counted);
    }
    assert_eq!(word.begin_kernel_send(word.load()), crate::word::KernelSend::Uncounted);
    assert!(word.load().is_pinned());
}

#[test]
fn request_is_granted_by_the_last_send() {
    let world = world();
    let word = &world.b.consumer().direction.line_a.word;
    assert_eq!(word.begin_kernel_send(word.load()), crate::word::KernelSend::Counted);
    assert!(world.b.consumer().set_ring());
    assert!(word.load().kernel_carries() && word.load().is_requested());
    word.end_kernel_send();
    assert!(!word.load().kernel_carries());
}

#[test]
fn p6_what_the_kernel_may_hold_back_keeps_the_kernel() {
    for may_hold in [false, true] {
        let world = world();
        let asked = world.a.send_by_kernel(may_hold, |kernel| {
            assert!(world.b.consumer().set_ring(), "a request during the send");
            crate::kernel::Kernel::send(kernel, b"head", false)
        });
        assert_eq!(asked, Ok(4));
        let [word, _] = world.a.words();
        assert_eq!((word.kernel_carries(), word.is_requested(), word.in_flight()), (may_hold, false, 0));
        assert!(!may_hold || !world.b.consumer().set_ring(), "the bytes were not received");
        assert_eq!(world.a.send(b" and body", false), Ok(9));
        assert_eq!(world.receive(), b"head and body");
        assert!(world.b.consumer().set_ring());
    }
}

#[test]
fn p4_end_is_noticed_by_one_send_after_it() {
    let world = World::by_ring();
    for i in 0..3_u64 {
        world.back.now_ns.store(1 + i * 1_000_000_000 / 2, Ordering::Relaxed);
        assert_eq!(world.a.send(b"one", false), Ok(3));
        assert_eq!(world.receive(), b"one");
    }
    // The peer is killed: the kernel refuses the next message but one, as without a ring.
    world.back.end();
    world.back.now_ns.store(1_400_000_000, Ordering::Relaxed);
    assert_eq!(world.a.send(b"lost", false), Ok(4));
    world.forth.refuse(Errno::PIPE);
    assert_eq!(world.a.send(b"next", false), Err(Errno::PIPE));
}

#[test]
fn p4_a_sender_of_250_messages_a_second_rarely_asks_the_kernel() {
    let world = World::by_ring();
    // 0.8 s: the kernel's turn (P5) has not come.
    for i in 0..200_u64 {
        world.back.now_ns.store(1 + i * 4_000_000, Ordering::Relaxed);
        assert_eq!(world.a.send(b"one", false), Ok(3));
        assert_eq!(world.receive(), b"one");
    }
    assert_eq!(world.a.counts().kernel_sends, 0);
    let polls = world.back.polls.load(Ordering::Relaxed);
    assert!(polls > 0 && polls <= 20, "{polls}");
}

#[test]
fn p5_each_message_of_a_rare_sender_goes_by_the_kernel() {
    // The receiver serves others, and never sleeps.
    let world = World::by_ring();
    for i in 0..5_u64 {
        world.back.now_ns.store(1 + i * 1_000_000_000, Ordering::Relaxed);
        assert_eq!(world.a.send(b"one", false), Ok(3));
        assert_eq!(world.receive(), b"one");
        assert!(world.b.consumer().set_ring());
        assert_eq!(world.a.counts().kernel_sends, i);
    }
}

#[test]
fn p5_a_later_rule_stops_a_sender_within_a_second() {
    let world = World::by_ring();
    // The kernel's coarse clock has ticks of 10 ms at HZ=100.
    let mut by_kernel = Vec::new();
    for ms in (0..5_000_u64).step_by(10) {
        world.back.now_ns.store(1 + ms * 1_000_000, Ordering::Relaxed);
        let before = world.a.counts().kernel_sends;
        assert_eq!(world.a.send(b"one", false), Ok(3));
        assert_eq!(world.receive(), b"one");
        world.b.consumer().set_ring();
        if world.a.counts().kernel_sends > before {
            by_kernel.push(ms);
        }
    }
    assert!(by_kernel.len() >= 5, "{by_kernel:?}");
    // The rule may come at the start of a tick of 10 ms, right after a piece.
    assert!(by_kernel.windows(2).all(|two| two[1] - two[0] + 10 <= 1_000), "{by_kernel:?}");
}

#[test]
fn p5_ring_carries_only_after_the_kernels_piece_has_arrived() {
    let world = World::by_ring();
    let exchange = |n: u64| {
        for _ in 0..n {
            assert_eq!(world.a.send(b"x", false), Ok(1));
            assert_eq!(world.b.recv(&mut [0], RecvMode::NOW), Ok(1));
        }
    };
    world.back.now_ns.store(1, Ordering::Relaxed);
    exchange(200);
    assert_eq!(world.a.counts().kernel_sends, 0);
    world.back.now_ns.store(2_000_000_000, Ordering::Relaxed);
    // The receiver asks for the ring while the piece is in send(2). A rule drops the piece.
    world.forth.set_late(true);
    world.forth.set_held(true);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| world.a.send(b"piece", false));
        while world.b.words()[1].in_flight() == 0 {
            std::thread::yield_now();
        }
        assert!(world.b.consumer().set_ring());
        world.forth.set_held(false);
        assert_eq!(sender.join().unwrap(), Ok(5));
    });
    assert_eq!(world.a.counts().kernel_sends, 1);
    assert!(world.b.words()[1].is_kernel_only(), "{:?}", world.b.words()[1]);
    assert!(!world.b.consumer().set_ring(), "the piece was not received");
    assert_eq!(world.a.send(b"next", false), Ok(4));
    assert_eq!(world.b.recv(&mut [0; 9], RecvMode::NOW), Err(Errno::AGAIN));
    world.forth.deliver(9);
    assert_eq!(world.receive(), b"piecenext");
    assert!(world.b.consumer().set_ring());
}

#[test]
fn receive_of_no_bytes_sleeps_counted() {
    let world = World::by_ring();
    world.forth.inject(b'!');
    assert_eq!(world.b.recv(&mut [], RecvMode::WAIT), Ok(0));
    assert_eq!(world.b.counts().sleeps, 1);
    assert!(world.b.words()[1].is_kernel_only());
    assert_eq!(world.receive(), b"!");
    // It does not sleep over ring bytes.
    let world = World::by_ring();
    assert_eq!(world.a.send(b"ring", false), Ok(4));
    assert_eq!(world.b.recv(&mut [], RecvMode::WAIT), Ok(0));
    assert_eq!(world.receive(), b"ring");
}

#[test]
fn error_after_sent_bytes_is_kept() {
    // The ring takes four pieces and is full then, so the kernel has to carry.
    for next_sends in [true, false] {
        let world = World::by_ring();
        world.forth.refuse(Errno::CONNRESET);
        assert_eq!(world.a.send(&[7; 200], false), Ok(64));
        if next_sends {
            assert_eq!(world.a.send(b"x", false), Err(Errno::CONNRESET));
        } else {
            assert_eq!(world.a.recv(&mut [0], RecvMode::NOW), Err(Errno::CONNRESET));
        }
        assert_eq!(world.a.recv(&mut [0], RecvMode::NOW), Err(Errno::AGAIN));
    }
    // These are the call's and not the connection's.
    for error in [Errno::AGAIN, Errno::INTR, Errno::PIPE, Errno::NOMEM, Errno::NOBUFS, Errno::BADF] {
        let world = World::by_ring();
        world.forth.refuse(error);
        assert_eq!(world.a.send(&[7; 200], false), Ok(64));
        assert!(!world.a.has_kept_error());
        assert_eq!(world.a.recv(&mut [0], RecvMode::NOW), Err(Errno::AGAIN));
    }
}

#[test]
fn c5_request_needs_an_empty_kernel_queue() {
    // Two threads read: one was told of this byte, the other one asks for the ring while its sender has not counted it.
    let world = world();
    let word = &world.b.consumer().direction.line_a.word;
    assert_eq!(word.begin_kernel_send(word.load()), crate::word::KernelSend::Counted);
    world.forth.inject(b'x');
    assert!(!world.b.consumer().set_ring());
    assert_eq!(world.receive(), b"x");
    assert!(world.b.consumer().set_ring() && word.load().is_requested());
}

#[test]
fn end_is_believed_after_the_ring() {
    let world = World::by_ring();
    assert_eq!(world.a.send(b"last", false), Ok(4));
    world.a.before_shutdown_send();
    world.forth.end();
    assert_eq!(world.receive(), b"last");
    assert_eq!(world.b.recv(&mut [0], RecvMode::NOW), Ok(0));
}

#[test]
fn close_with_unread_ring_bytes_has_to_reset() {
    let world = World::by_ring();
    assert_eq!(world.a.send(b"unread", false), Ok(6));
    assert!(world.b.before_close());
    assert!(!world.a.before_close());
}

#[test]
fn killed_peer_that_left_bytes_unread_has_reset_the_connection() {
    let world = World::by_ring();
    assert_eq!(world.a.send(b"request", false), Ok(7));
    world.back.end();
    assert_eq!(world.a.recv(&mut [0; 9], RecvMode::WAIT), Err(Errno::CONNRESET));
    assert_eq!(world.a.recv(&mut [0; 9], RecvMode::NOW), Ok(0));
    // An end that has shut down its stream may continue to read.
    let world = World::by_ring();
    assert_eq!(world.a.send(b"request", false), Ok(7));
    world.b.before_shutdown_send();
    world.back.end();
    assert_eq!(world.a.recv(&mut [0; 9], RecvMode::NOW), Ok(0));
    assert_eq!(world.receive(), b"request");
}

#[test]
fn close_is_noticed_by_the_next_receive() {
    let world = World::by_ring();
    assert_eq!(world.a.send(b"last", false), Ok(4));
    assert!(!world.a.before_close());
    world.forth.end();
    assert_eq!(world.receive(), b"last");
    // C9 would ask the kernel after 50 µs only.
    assert_eq!(world.b.recv(&mut [0], RecvMode::NOW), Ok(0));
}

#[test]
fn handler_in_its_own_section_sends_by_the_kernel() {
    let world = World::by_ring();
    let held = world.a.region_side().send.lock.lock(world.a.kernel()).unwrap();
    assert_eq!(world.a.send(b"handler", false), Ok(7));
    assert_eq!(world.a.counts().kernel_sends, 1);
    drop(held);
    assert_eq!(world.receive(), b"handler");
    // A thread that jumped out of the section frees its lock.
    std::mem::forget(world.a.region_side().send.lock.lock(world.a.kernel()).unwrap());
    world.a.break_own_locks();
    assert!(world.a.region_side().send.lock.try_lock(world.a.kernel()).is_some());
}

#[test]
fn lock_that_is_only_tried_stays_with_its_holder() {
    let world = World::by_ring();
    let lock = &world.a.region_side().send.lock;
    let held = lock.lock(world.a.kernel()).unwrap();
    assert!(lock.try_lock(world.b.kernel()).is_none());
    assert!(lock.try_lock(world.b.kernel()).is_none());
    drop(held);
    assert!(lock.try_lock(world.b.kernel()).is_some());
}
