use std::io::IoSlice;
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, SeqCst},
};

use super::state::Phase;
use super::*;
use crate::{Bells, Geometry, Interest, NoBells, Wait, WaitEnd, Waiting};

#[derive(Default)]
struct Counting(Mutex<Vec<u32>>);

impl Bells for Counting {
    fn ring(&self, poller: u32) {
        self.0.lock().unwrap().push(poller);
    }
}

/// Two mappings of one arena.
fn arenas(geometry: Geometry) -> (&'static Arena, &'static Arena) {
    if cfg!(miri) {
        let (a, b) = Arena::in_memory(geometry, &NoBells);
        return (leak(a), leak(b));
    }
    let fd = Arena::create("test", geometry).unwrap();
    let map = |side| leak(Arena::map(fd.of(side), geometry, side, &NoBells).unwrap());
    (map(Side::A), map(Side::B))
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn pair(geometry: Geometry) -> (Channel<'static>, Channel<'static>) {
    let (a, b) = arenas(geometry);
    let client = Channel::open(a, &OpenArgs::default()).unwrap();
    (client, Channel::accept(b).unwrap())
}

fn recv(channel: &Channel, len: usize) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; len];
    let n = channel.recv_one(&mut buf)?;
    buf.truncate(n);
    Ok(buf)
}

/// At most 16 KiB are unread from `a` to `b`.
fn limit(a: &Channel<'_>, b: &Channel<'_>) {
    a.set_buffer(true, 16384);
    b.set_buffer(false, 1);
}

/// An acceptor on the opener's CPU must not look for bytes that only come when the opener runs: its first wait knows.
#[test]
#[cfg_attr(miri, ignore)] // Miri has no CPUs.
fn the_openers_cpu_is_known_before_it_waits() {
    let (a, b) = pair(Geometry::SMALL);
    assert_ne!(a.block().inn[Side::A.index()].wake.cpu.load(SeqCst), 0);
    assert_eq!(b.block().inn[Side::B.index()].wake.cpu.load(SeqCst), 0);
}

/// So does the peer of one who polls several; where one of those peers is elsewhere, looks can pay.
#[test]
#[cfg_attr(miri, ignore)] // Miri has no CPUs.
fn who_polls_several_tells_its_cpu() {
    use crate::wait::{Place, place};
    assert_eq!(place([].into_iter()), None);
    let ((near, mine), (far, other)) = (pair(Geometry::SMALL), pair(Geometry::SMALL));
    far.block().inn[Side::A.index()].wake.cpu.store(u32::MAX, SeqCst);
    assert_eq!(place([mine, other].into_iter()), Some(Place::Elsewhere));
    assert_eq!(place([other, mine].into_iter()), Some(Place::Elsewhere));
    for channel in [near, far] {
        assert_ne!(channel.block().inn[Side::B.index()].wake.cpu.load(SeqCst), 0);
    }
}

/// Whoever holds it, and whatever it writes meanwhile.
#[test]
fn all_connections_of_an_arena_are_reset_at_once() {
    let (a, b) = arenas(Geometry::SMALL);
    let [first, waiting, ended] = [(); 3].map(|()| Channel::open(a, &OpenArgs::default()).unwrap());
    let near = Channel::accept(b).unwrap();
    ended.send_one(b"last").unwrap();
    ended.close(false).unwrap();
    // Bytes that are on their way are read as after any reset.
    near.send_one(b"x").unwrap();
    assert_eq!(a.reset_all(Errno::CONNRESET), 3);
    assert_eq!(recv(&near, 1), Err(Errno::CONNRESET));
    assert_eq!(first.take_error(), Some(Errno::CONNRESET));
    assert_eq!(first.send_one(b"y"), Err(Errno::PIPE));
    assert!(waiting.is_reset());
    assert_eq!(a.reset_all(Errno::CONNRESET), 0, "once");
    // Who writes over it is reset again.
    first.block().state.store(State::new(first.generation(), Phase::Open).0 | super::state::ACCEPTED, SeqCst);
    near.own().flags.store(0, SeqCst);
    assert_eq!(near.send_one(b"z"), Ok(1));
    assert_eq!(a.reset_all(Errno::CONNRESET), 1);
    assert_eq!(near.send_one(b"z"), Err(Errno::CONNRESET));
    first.close(false).unwrap();
    near.close(false).unwrap();
    b.refuse_pending();
    waiting.close(false).unwrap();
    assert_eq!(a.used(), 0);
}

#[test]
#[cfg_attr(miri, ignore)] // 20 GiB of address space.
fn short_and_long_messages_both_ways() {
    let (a, b) = pair(Geometry::STANDARD);
    for round in 0..100u32 {
        let len = [1usize, 8, 39, 40, 41, 100, 5000, 16384, 40000, 262_144][round as usize % 10];
        let message: Vec<u8> = (0..len).map(|i| (i as u32 ^ round) as u8).collect();
        assert_eq!(a.send_one(&message), Ok(len));
        assert_eq!(b.queued_in(), len);
        assert_eq!(a.queued_out(), len);
        assert_eq!(recv(&b, len / 2).unwrap(), message[..len / 2]);
        assert_eq!(recv(&b, len).unwrap(), message[len / 2..]);
        assert_eq!(recv(&b, 1), Err(Errno::AGAIN));
        assert_eq!(b.send_one(b"ack"), Ok(3));
        assert_eq!(recv(&a, 10).unwrap(), b"ack");
    }
}

#[test]
#[cfg_attr(miri, ignore)] // Long; the stream below has growth.
fn ring_grows_with_unread_bytes_in_it() {
    let (a, b) = pair(Geometry::STANDARD);
    let data: Vec<u8> = (0..2_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < data.len() {
        // Writes outpace reads, so growth meets unread bytes.
        match a.send_one(&data[sent..data.len().min(sent + 9000)]) {
            Ok(n) => sent += n,
            Err(errno) => assert_eq!(errno, Errno::AGAIN),
        }
        got.extend(recv(&b, 7001).unwrap_or_default());
    }
    assert!(got == data);
}

/// As if so many bytes more had been sent and read in `from`'s direction, in which nothing is unread.
fn go_on(from: &Channel<'_>, bytes: u64) {
    let (out, inn) = (from.side().index(), from.side().other().index());
    let block = from.block();
    let position = block.out[out].hot.tail.load(SeqCst) + bytes;
    for word in [&block.out[out].hot.tail, &block.tx[out].head_seen, &block.inn[inn].hot.head, &block.out[inn].hot.ack]
    {
        word.store(position, SeqCst);
    }
}

/// Messages of `first` bytes and then of `len`, of which `most` bytes are unread at a time, arrive as they were sent.
fn arrive(from: &Channel<'_>, to: &Channel<'_>, first: usize, (len, most, all): (usize, usize, usize)) {
    let data: Vec<u8> = (0..all as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < all {
        while sent < all && sent - got.len() < most {
            let end = if sent == 0 { first } else { all.min(sent + len) };
            sent += from.send_near(&[IoSlice::new(&data[sent..end])]).unwrap();
        }
        got.extend(recv(to, len).unwrap());
    }
    assert!(got == data);
}

/// The map has 48 bits of the position where a ring has grown.
#[test]
#[cfg_attr(miri, ignore)] // 20 GiB of address space.
fn a_ring_that_has_grown_stays_so_for_all_positions() {
    for (len, turns) in [(100, 1), (1000, 1), (1000, 2), (9000, 1)] {
        // Also where all was inline until then, and an inline message is unread still.
        for (bytes, first) in [((1 << 47) - 300_000, len), ((1 << 47) + 300_000, 8)] {
            let (a, b) = pair(Geometry::STANDARD);
            arrive(&a, &b, 9000, (9000, 50_000, 200_000));
            for _ in 0..turns {
                go_on(&a, bytes);
                arrive(&a, &b, first, (len, 50_000, 600_000));
            }
        }
    }
}

/// Also where the last inline message is 2^48 bytes ago, and all since went through the ring.
#[test]
fn an_inline_message_is_not_found_again() {
    let (a, b) = pair(Geometry::SMALL);
    arrive(&a, &b, 8, (8, 8, 8));
    arrive(&a, &b, 64, (64, 64, 256));
    go_on(&a, (1 << 48) - 512);
    arrive(&a, &b, 64, (64, 64, 1024));
}

#[test]
fn a_full_ring_says_so_and_space_is_told() {
    let (a, b) = pair(Geometry::SMALL);
    limit(&a, &b);
    let (arena, lane) = (a.arena(), a.arena().join(3).unwrap());
    a.watch(lane);
    assert!(a.readiness().contains(Readiness::OUT));
    assert_eq!(a.send_one(&[1; 100_000]), Ok(16384));
    assert_eq!(a.send_one(&[1]), Err(Errno::AGAIN));
    assert!(!a.readiness().contains(Readiness::OUT));
    arena.drain(lane, |_| {});
    assert_eq!(recv(&b, 4095).unwrap().len(), 4095);
    assert!(!arena.is_dirty(lane), "not a quarter yet");
    assert_eq!(recv(&b, 1).unwrap().len(), 1);
    assert!(arena.is_dirty(lane));
    assert!(a.readiness().contains(Readiness::OUT));
}

#[test]
fn fin_reset_and_errors_as_on_the_kernel() {
    let (a, b) = pair(Geometry::SMALL);
    a.send_one(b"last").unwrap();
    a.shutdown(Shutdown::Write).unwrap();
    assert_eq!(a.send_one(b"x"), Err(Errno::PIPE));
    assert!(b.readiness().contains(Readiness::IN | Readiness::RDHUP | Readiness::OUT));
    assert_eq!(recv(&b, 10).unwrap(), b"last");
    assert_eq!(recv(&b, 10).unwrap(), b"");
    b.send_one(b"still").unwrap();
    assert_eq!(recv(&a, 10).unwrap(), b"still");
    assert_eq!(a.close(false), Ok(true));
    // The first write after the peer's close vanishes, the second is told.
    assert_eq!(b.send_one(b"x"), Ok(1));
    assert!(b.readiness().contains(Readiness::ERR | Readiness::HUP));
    assert_eq!(b.send_one(b"x"), Err(Errno::PIPE));
    assert_eq!(b.close(false), Ok(true));
    assert_eq!(b.send_one(b"x"), Err(Errno::BADF));

    let (a, b) = pair(Geometry::SMALL);
    a.send_one(b"unread").unwrap();
    b.send_one(b"before").unwrap();
    assert_eq!(b.close(false), Ok(true), "with unread bytes: a reset");
    assert_eq!(recv(&a, 10).unwrap(), b"before");
    assert_eq!(recv(&a, 10), Err(Errno::CONNRESET));
    assert_eq!(recv(&a, 10).unwrap(), b"");
    assert_eq!(a.send_one(b"x"), Err(Errno::PIPE));
}

#[test]
fn what_was_shut_before_it_was_connected_is_open_to_the_peer() {
    let (a, b) = pair(Geometry::SMALL);
    a.begin_shut(true, true);
    assert_eq!((recv(&a, 10).unwrap(), a.send_one(b"x")), (vec![], Err(Errno::PIPE)));
    assert!(a.readiness().contains(Readiness::IN | Readiness::OUT | Readiness::HUP | Readiness::RDHUP));
    // The peer knows nothing of it, and what it sends is read.
    b.send_one(b"bytes").unwrap();
    assert_eq!(recv(&a, 10).unwrap(), b"bytes");
    assert_eq!((a.tcp_state(), recv(&b, 10)), (1, Err(Errno::AGAIN)));
    a.shutdown(Shutdown::Write).unwrap();
    assert_eq!(recv(&b, 10).unwrap(), b"");
    assert_eq!(b.tcp_state(), 8);
}

#[test]
fn slots_are_used_again_and_stale_handles_notice() {
    let (a, b) = arenas(Geometry::SMALL);
    let mut stale = None;
    for round in 0..200u8 {
        let client = Channel::open(a, &OpenArgs::default()).unwrap();
        assert_eq!(client.slot(), 0);
        client.send_one(&[round; 3]).unwrap();
        let server = Channel::accept(b).unwrap();
        assert_eq!(recv(&server, 9).unwrap(), [round; 3]);
        server.send_one(&vec![round; 10_000]).unwrap();
        assert_eq!(recv(&client, 10_000).unwrap(), vec![round; 10_000]);
        if let Some(stale) = stale.replace(client) {
            assert_eq!(recv(&stale, 1), Err(Errno::BADF));
        }
        client.retain();
        assert_eq!(client.close(false), Ok(false));
        assert_eq!(server.close(false), Ok(true));
        assert_eq!(client.close(false), Ok(true));
        assert_eq!(a.used(), 0);
    }
    let open: Vec<_> = (0..64).map(|_| Channel::open(a, &OpenArgs::default()).unwrap()).collect();
    assert_eq!(Channel::open(a, &OpenArgs::default()).unwrap_err(), Errno::NOBUFS);
    assert_eq!(a.pending(), 64);
    drop(open);
}

#[test]
#[cfg_attr(miri, ignore)] // Maps a memfd.
fn a_sleeping_poller_is_rung_once() {
    let fd = Arena::create("test", Geometry::SMALL).unwrap();
    let bells = leak(Counting::default());
    let map = |side| leak(Arena::map(fd.of(side), Geometry::SMALL, side, bells).unwrap());
    let (a, b) = (map(Side::A), map(Side::B));
    let lane = b.join(77).unwrap();
    assert_eq!(b.join(77), Some(lane));
    b.watch_inbox(lane, true);
    assert!(b.prepare_sleep(lane));
    let client = Channel::open(a, &OpenArgs::default()).unwrap();
    assert_eq!(*bells.0.lock().unwrap(), [77]);
    let server = Channel::accept(b).unwrap();
    server.watch(lane);
    b.drain(lane, |slot| assert_eq!(slot, server.slot()));
    client.send_one(b"awake").unwrap();
    assert!(!b.prepare_sleep(lane), "dirty");
    b.drain(lane, |_| {});
    assert!(b.prepare_sleep(lane));
    client.send_one(b"1").unwrap();
    client.send_one(b"2").unwrap();
    assert_eq!(*bells.0.lock().unwrap(), [77, 77]);
    b.awake(lane);
    b.leave(lane);
}

/// Closes the arena as soon as it is rung: between an opener's push and the end of its connect.
#[derive(Default)]
struct Closing(std::sync::OnceLock<&'static Arena>);

impl crate::Bells for Closing {
    fn ring(&self, _poller: u32) {
        self.0.get().unwrap().close();
    }
}

#[test]
#[cfg_attr(miri, ignore)] // Maps a memfd.
fn a_connection_to_a_listener_that_closes_just_then_is_refused() {
    let fd = Arena::create("test", Geometry::SMALL).unwrap();
    let bells = leak(Closing::default());
    let map = |side| leak(Arena::map(fd.of(side), Geometry::SMALL, side, bells).unwrap());
    let (a, b) = (map(Side::A), map(Side::B));
    bells.0.set(b).unwrap();
    let lane = b.join(77).unwrap();
    b.watch_inbox(lane, true);
    assert!(b.prepare_sleep(lane));
    assert_eq!(Channel::open(a, &OpenArgs::default()).unwrap_err(), Errno::CONNREFUSED);
    assert!(Channel::accept(b).is_none());
    assert_eq!(a.used(), 0);
}

#[test]
#[cfg_attr(miri, ignore)] // Maps a memfd.
fn the_next_poller_of_a_lane_takes_no_rings_for_others() {
    let fd = Arena::create("test", Geometry::SMALL).unwrap();
    let bells = leak(Counting::default());
    let map = |side| leak(Arena::map(fd.of(side), Geometry::SMALL, side, bells).unwrap());
    let (a, b) = (map(Side::A), map(Side::B));
    let dead = b.join(1).unwrap();
    b.watch_inbox(dead, true);
    b.share_inbox(dead, false);
    let other = b.join(2).unwrap();
    b.watch_inbox(other, true);
    b.share_inbox(other, false);
    b.evict(1);
    // It has not to do with the inbox.
    assert_eq!(b.join(3), Some(dead));
    assert!(b.prepare_sleep(dead) && b.prepare_sleep(other));
    Channel::open(a, &OpenArgs::default()).unwrap();
    assert_eq!(*bells.0.lock().unwrap(), [2]);
}

/// The time of the first change since the lane was drained, not of the last, whatever another lane does; and none in a lane that
/// does not ask.
#[test]
fn an_ordered_lane_knows_when_each_channel_changed() {
    let (a, b) = Arena::in_memory(Geometry::SMALL, &crate::NoBells);
    let (a, b) = (leak(a), leak(b));
    let opened: Vec<_> = (0..3).map(|_| Channel::open(a, &OpenArgs::default()).unwrap()).collect();
    let taken: Vec<_> = (0..3).map(|_| Channel::accept(b).unwrap()).collect();
    let [other, .., lane] = [1, 4, 5, 2].map(|poller| b.join(poller).unwrap());
    for channel in &taken {
        channel.watch(lane);
        channel.watch(other);
    }
    let changed = |slot| b.changed(lane, slot, Changes::READ);
    opened[0].send_one(b"x").unwrap();
    b.drain(lane, |_| {});
    assert_eq!(changed(taken[0].slot()), 0);
    b.set_ordered(lane);
    b.set_ordered(other);
    for which in [2, 0, 1, 2] {
        opened[which].send_one(b"x").unwrap();
        b.drain(other, |_| {});
        std::thread::sleep(std::time::Duration::from_micros(1));
    }
    let mut slots = Vec::new();
    b.drain(lane, |slot| slots.push(slot));
    slots.sort_by_key(|&slot| changed(slot));
    assert_eq!(slots, [2, 0, 1].map(|which| taken[which].slot()));
    // A lane that is given up and taken again asks anew.
    b.leave(lane);
    let lane = b.join(3).unwrap();
    let before = changed(taken[0].slot());
    opened[0].send_one(b"x").unwrap();
    b.drain(lane, |_| {});
    assert_eq!(changed(taken[0].slot()), before);
    assert_eq!(b.changed(lane, u32::MAX, Changes::ALL), 0);
}

#[test]
fn a_lane_tells_something_to_read_from_room_and_from_the_end() {
    let (a, b) = Arena::in_memory(Geometry::SMALL, &crate::NoBells);
    let (a, b) = (leak(a), leak(b));
    let client = Channel::open(a, &OpenArgs::default()).unwrap();
    let server = Channel::accept(b).unwrap();
    let lane = b.join(1).unwrap();
    server.watch(lane);
    let told = || {
        let mut told = Vec::new();
        b.drain_changes(lane, |slot, changes| told.push((slot, changes)));
        told
    };
    client.send_one(b"x").unwrap();
    assert_eq!(told(), [(server.slot(), Changes::READ)]);
    server.rouse_writers();
    assert_eq!(told(), [(server.slot(), Changes::WRITE)]);
    server.rouse_writers();
    client.send_one(b"x").unwrap();
    assert_eq!(told(), [(server.slot(), Changes::ALL)]);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(told(), [(server.slot(), Changes::ALL)]);
    assert_eq!(told(), []);
    // Who asks for neither hears of the end, and of nothing else.
    assert_eq!(Changes::READ.of(Changes::NONE), None);
    assert_eq!(Changes::READ.of(Changes::WRITE), None);
    assert_eq!(Changes::ALL.of(Changes::NONE), Some(Changes::ALL));
    assert_eq!(Changes::ALL.of(Changes::WRITE), Some(Changes::WRITE));
}

/// Who accepts may end after it has marked a connection as accepted: it is passed over, and the next one is found.
#[test]
fn an_entry_that_is_marked_keeps_nobody() {
    let (a, b) = Arena::in_memory(Geometry::SMALL, &crate::NoBells);
    let (a, b) = (leak(a), leak(b));
    let first = Channel::open(a, &OpenArgs::default()).unwrap();
    let second = Channel::open(a, &OpenArgs::default()).unwrap();
    assert!(Channel::at(b, first.slot()).unwrap().take_unaccepted());
    assert!(b.has_entry(first.slot(), first.generation()));
    assert_eq!(Channel::accept(b).unwrap().slot(), second.slot());
    assert!(Channel::accept(b).is_none());
    assert_eq!(b.pending(), 0);
}

#[test]
fn urgent_byte() {
    let (a, b) = pair(Geometry::SMALL);
    a.send_one(b"abc").unwrap();
    a.send_urgent(&[std::io::IoSlice::new(b"U")]).unwrap();
    a.send_one(b"def").unwrap();
    assert!(b.readiness().contains(Readiness::PRI));
    assert_eq!(recv(&b, 10).unwrap(), b"abc");
    assert!(b.at_mark());
    assert_eq!(b.recv_urgent(true), Ok(b'U'));
    assert_eq!(b.recv_urgent(false), Ok(b'U'));
    assert_eq!(b.recv_urgent(false), Err(Errno::INVAL));
    assert_eq!(recv(&b, 10).unwrap(), b"def");
    b.set_oob_inline(true);
    a.send_urgent(&[std::io::IoSlice::new(b"xV")]).unwrap();
    assert_eq!(recv(&b, 10).unwrap(), b"x");
    assert_eq!(recv(&b, 10).unwrap(), b"V");
}

#[test]
fn the_rest_of_a_call_that_waited_for_room_is_enough() {
    let (a, b) = pair(Geometry::SMALL);
    b.set_rcvlowat(100);
    let mut sent = 0;
    while let Ok(some) = a.send_one(&[1; 1000]) {
        sent += some;
    }
    while sent != 0 {
        sent -= recv(&b, 1000).unwrap().len();
    }
    a.send_one(b"rest").unwrap();
    assert!(b.is_ready(Interest::Read) && b.readiness().contains(Readiness::IN));
    assert_eq!(recv(&b, 10).unwrap(), b"rest");
    a.send_one(b"a new call").unwrap();
    assert!(!b.is_ready(Interest::Read) && !b.readiness().contains(Readiness::IN));
    a.send_one(&[2; 90]).unwrap();
    assert!(b.is_ready(Interest::Read));
}

/// On the kernel its sender's buffer would have them, and send them as the window has it: ours is told of them though no rest comes.
#[test]
fn what_a_sender_that_does_not_wait_leaves_is_enough() {
    let (a, b) = pair(Geometry::SMALL);
    b.set_rcvlowat(100);
    let mut sent = 0;
    while let Ok(some) = a.send_one(&[1; 1000]) {
        sent += some;
    }
    while sent > 5 {
        sent -= recv(&b, (sent - 5).min(1000)).unwrap().len();
        assert!(b.is_ready(Interest::Read));
    }
    assert_eq!(recv(&b, 10).unwrap().len(), 5);
    assert!(!b.is_ready(Interest::Read));
}

/// Each look of its spin would be a barrier, and have the peer wake it for room that it does not wait for.
#[test]
fn who_reads_after_a_call_that_was_cut_asks_for_no_room() {
    let (a, b) = pair(Geometry::SMALL);
    while a.send_one(&[1; 1000]).is_ok() {}
    while recv(&b, 1000).is_ok() {}
    assert!(a.own().flags.load(Relaxed) & CUT != 0);
    a.tx().rare.want_space.store(0, SeqCst);
    assert!(!a.is_ready(Interest::Read));
    assert_eq!(a.tx().rare.want_space.load(SeqCst), 0);
}

#[test]
fn connecting_on_the_wire() {
    let (a, b) = arenas(Geometry::SMALL);
    let args = OpenArgs { connecting: true, ..OpenArgs::default() };
    let client = Channel::open(a, &args).unwrap();
    assert_eq!(client.send_one(b"x"), Err(Errno::AGAIN));
    assert_eq!(client.readiness(), Readiness(0));
    let core = Channel::accept(b).unwrap();
    let (local, peer) = ("10.0.0.1:40000".parse().unwrap(), "[fe80::1%3]:80".parse::<std::net::SocketAddr>());
    core.set_connected(Addr::from(local), Addr::from(peer.unwrap()));
    assert_eq!(client.local_addr().to_std(), Some(local));
    assert_eq!(client.peer_addr().to_std().unwrap().to_string(), "[fe80::1%3]:80");
    assert_eq!(client.readiness(), Readiness::OUT);

    let client = Channel::open(a, &args).unwrap();
    let core = Channel::accept(b).unwrap();
    core.set_failed(Errno::CONNREFUSED);
    assert!(client.readiness().contains(Readiness::ERR | Readiness::HUP | Readiness::OUT | Readiness::IN));
    assert_eq!(client.take_error(), Some(Errno::CONNREFUSED));
    assert_eq!(client.take_error(), None);
}

#[test]
fn reading_and_writing_in_place() {
    let (a, b) = pair(Geometry::SMALL);
    a.send_one(b"inline").unwrap();
    let mut sent = b"inline".to_vec();
    {
        let mut writing = a.writing().unwrap();
        for byte in 0..40u8 {
            let room = writing.chunk(200).unwrap();
            let n = room.len().min(150);
            room[..n].fill(byte);
            sent.extend_from_slice(&room[..n]);
            writing.commit(n);
        }
    }
    a.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    let mut reading = b.reading().unwrap();
    loop {
        let chunk = reading.chunk().unwrap();
        let n = chunk.len().min(97);
        if n == 0 {
            break;
        }
        got.extend_from_slice(&chunk[..n]);
        reading.consume(n);
    }
    assert_eq!(got, sent);
}

#[test]
#[cfg_attr(miri, ignore)] // Futexes.
fn a_blocked_reader_is_woken() {
    let (a, b) = pair(Geometry::SMALL);
    let woken = leak(AtomicU32::new(0));
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        loop {
            match recv(&b, 64) {
                Ok(got) if got.is_empty() => return all,
                Ok(got) => all.extend(got),
                Err(Errno::AGAIN) => {
                    let end = b.wait(Interest::Read, Wait::default());
                    assert!(matches!(end, WaitEnd::Ready | WaitEnd::Slice), "{end:?}");
                    woken.fetch_add(1, SeqCst);
                }
                Err(errno) => panic!("{errno}"),
            }
        }
    });
    for byte in 0..20u8 {
        a.send_one(&[byte]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    // Its thread may not have run before now.
    while woken.load(SeqCst) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    a.close(false).unwrap();
    assert_eq!(reader.join().unwrap(), (0..20).collect::<Vec<u8>>());
}

#[test]
fn locks_of_the_dead_are_broken() {
    let (a, _b) = pair(Geometry::SMALL);
    a.locks().send.store(99 << 32 | 5, SeqCst);
    a.writer().store(1, SeqCst);
    a.break_locks(98);
    assert_ne!(a.locks().send.load(SeqCst), 0);
    a.break_locks(99);
    assert_eq!(a.writer().load(SeqCst), 0, "who looks sees that nobody writes");
    assert_eq!(a.send_one(b"x"), Ok(1));
}

/// A process that was killed while it closed has left its side's locks held, and the slot goes on to others.
#[test]
fn locks_that_a_life_before_has_left_are_free_in_the_next() {
    let (a, b) = arenas(Geometry::SMALL);
    for arena in [a, b] {
        let locks = arena.slot_locks(0);
        locks.send.store(99 << 32 | 5, SeqCst);
        locks.receive.store(99 << 32 | 5, SeqCst);
    }
    let near = open(a);
    let far = Channel::accept(b).unwrap();
    assert_eq!(near.slot(), 0);
    for (from, to) in [(&near, &far), (&far, &near)] {
        assert_eq!(from.send_one(b"x"), Ok(1));
        assert_eq!(recv(to, 10).unwrap(), b"x");
    }
}

#[test]
fn a_side_is_not_kept_by_locks_of_the_other() {
    let (a, b) = pair(Geometry::SMALL);
    a.locks().send.store(99 << 32 | 5, SeqCst);
    a.locks().receive.store(99 << 32 | 5, SeqCst);
    assert_eq!(b.send_one(b"x"), Ok(1));
    assert_eq!(b.recv_one(&mut [0; 8]), Err(Errno::AGAIN));
    assert_eq!(b.close(false), Ok(true));
}

#[test]
fn each_short_count_is_followed_by_an_edge() {
    let (a, b) = pair(Geometry::SMALL);
    limit(&a, &b);
    let lane = a.arena().join(3).unwrap();
    a.watch(lane);
    for _ in 0..3 {
        assert_eq!(a.send_one(&[1; 40_000]), Ok(16384));
        a.arena().drain(lane, |_| {});
        assert_eq!(recv(&b, 16384).unwrap().len(), 16384);
        assert!(a.arena().is_dirty(lane));
        a.arena().drain(lane, |_| {});
    }
}

#[test]
fn an_urgent_message_that_is_cut_is_not_urgent_before_its_end() {
    let (a, b) = pair(Geometry::SMALL);
    limit(&a, &b);
    let long = vec![b'l'; 20_000];
    assert_eq!(a.send_urgent(&[std::io::IoSlice::new(&long)]), Ok(16384));
    assert!(!b.readiness().contains(Readiness::PRI));
    assert_eq!(recv(&b, 16384).unwrap().len(), 16384);
    assert_eq!(a.send_urgent(&[std::io::IoSlice::new(&long[16384..])]), Ok(3616));
    assert!(b.readiness().contains(Readiness::PRI));
    assert_eq!(recv(&b, 16384).unwrap().len(), 3615);
    assert_eq!(b.recv_urgent(false), Ok(b'l'));
}

/// For Miri: two threads, every kind of transfer, growth, no system call.
#[test]
fn a_stream_between_two_threads_without_system_calls() {
    let (a, b) = Arena::in_memory(Geometry::SMALL, &NoBells);
    let (a, b): (&Arena, &Arena) = (leak(a), leak(b));
    let from = Channel::open(a, &OpenArgs::default()).unwrap();
    let to = Channel::accept(b).unwrap();
    let total = if cfg!(miri) { 30_000 } else { 3_000_000 };
    let byte = |i: usize| ((i * 7) >> 3) as u8;
    let writer = std::thread::spawn(move || {
        let mut at = 0usize;
        while at < total {
            let len = [8, 3000, 40, 9000, 41][at % 5].min(total - at);
            let message: Vec<u8> = (at..at + len).map(byte).collect();
            let sent = if at.is_multiple_of(3) {
                from.writing().and_then(|mut writing| {
                    let room = writing.chunk(len)?;
                    let n = room.len().min(len);
                    room[..n].copy_from_slice(&message[..n]);
                    writing.commit(n);
                    Ok(n)
                })
            } else {
                from.send_one(&message)
            };
            match sent {
                Ok(n) => at += n,
                Err(Errno::AGAIN) => std::thread::yield_now(),
                Err(errno) => panic!("{errno}"),
            }
        }
        from.shutdown(Shutdown::Write).unwrap();
    });
    let mut at = 0usize;
    loop {
        let got = if at.is_multiple_of(2) {
            recv(&to, 2500)
        } else {
            to.reading().and_then(|mut reading| {
                let got = reading.chunk()?.to_vec();
                reading.consume(got.len());
                Ok(got)
            })
        };
        match got {
            Ok(got) if got.is_empty() => break,
            Ok(got) => {
                assert!(got.iter().enumerate().all(|(i, &b)| b == byte(at + i)));
                at += got.len();
            }
            Err(Errno::AGAIN) => std::thread::yield_now(),
            Err(errno) => panic!("{errno}"),
        }
    }
    assert_eq!(at, total);
    writer.join().unwrap();
}

/// A lock that is taken is waited for, whoever has it.
#[test]
#[cfg_attr(miri, ignore)] // Naps.
fn a_lock_that_is_taken_is_waited_for() {
    let (a, b) = pair(Geometry::SMALL);
    let word = &a.locks().send;
    word.store(77 << 32 | 5, SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(a.send_one(b"later"), Ok(5)));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(b.queued_in(), 0);
        a.break_locks(77);
    });
    assert_eq!(recv(&b, 10).unwrap(), b"later");
}

fn open(a: &'static Arena) -> Channel<'static> {
    Channel::open(a, &OpenArgs::default()).unwrap()
}

/// Who fills the inbox with what is no connection keeps nobody for longer than he said, and one that is behind it is found.
#[test]
fn entries_that_are_no_connection_are_passed_over_in_pieces() {
    let (a, b) = arenas(Geometry::SMALL);
    let first = open(a);
    let near = Channel::accept(b).unwrap();
    let head = a.head();
    let fill = |entries: u64| {
        let tail = head.inbox_tail.load(SeqCst);
        (tail..tail + entries).for_each(|at| a.inbox_entry(at).store(first.entry(), SeqCst));
        head.inbox_tail.store(tail + entries, SeqCst);
    };
    fill(20);
    let second = open(a);
    let mut left = 15;
    assert!(Channel::accept_within(b, &mut left).is_none());
    assert_eq!((left, b.pending()), (0, 6));
    assert!(Channel::accept_within(b, &mut left).is_none());
    assert_eq!(b.pending(), 6, "with none left none is looked at");
    left = 15;
    assert_eq!(Channel::accept_within(b, &mut left).map(|channel| channel.slot()), Some(second.slot()));
    assert_eq!((left, b.pending()), (9, 0));
    assert!(near.is_held());
}

fn phase(channel: &Channel<'_>) -> Phase {
    channel.state().unwrap().phase()
}

#[test]
fn beyond_the_limit_one_is_not_connected() {
    let (a, b) = arenas(Geometry::SMALL);
    a.head().accept_limit.store(2, Relaxed);
    let all: Vec<Channel<'_>> = (0..5).map(|_| open(a)).collect();
    let phases = || all.iter().map(phase).collect::<Vec<_>>();
    use Phase::{Connecting, Open};
    assert_eq!(phases(), [Open, Open, Connecting, Connecting, Connecting]);
    assert_eq!(all[2].send_one(b"x"), Err(Errno::AGAIN));
    // The fourth gives up.
    all[3].close(true).unwrap();
    let first = Channel::accept(b).unwrap();
    assert_eq!(first.slot(), all[0].slot());
    assert_eq!(phases()[2], Open);
    assert_eq!(phase(&all[4]), Connecting);
    let slots: Vec<u32> = std::iter::from_fn(|| Channel::accept(b)).map(|channel| channel.slot()).collect();
    assert_eq!(slots, [all[1].slot(), all[2].slot(), all[4].slot()]);
    assert_eq!((phase(&all[4]), b.pending()), (Open, 0));
    assert!(all[3].state().is_none(), "its slot is free");
    // A limit that was raised, and a listener that is closed.
    let all: Vec<Channel<'_>> = (0..4).map(|_| open(a)).collect();
    a.head().accept_limit.store(3, Relaxed);
    b.admit();
    assert_eq!(all.iter().map(phase).collect::<Vec<_>>(), [Open, Open, Open, Connecting]);
    b.close();
    b.refuse_pending();
    assert_eq!(all[3].take_error(), Some(Errno::CONNREFUSED));
    assert_eq!(all[2].take_error(), Some(Errno::CONNRESET));
}

/// The daemon raises a limit that it has found to be enough, and one more is pushed after it has looked.
#[test]
#[cfg_attr(miri, ignore)] // Miri has no files that are mapped.
fn who_is_pushed_before_the_limit_is_raised_is_known_after_it() {
    let memory = Arena::create("test", Geometry::SMALL).unwrap();
    let map = |side| leak(Arena::map(memory.of(side), Geometry::SMALL, side, &NoBells).unwrap());
    let (a, b) = (map(Side::A), map(Side::B));
    let shared = memory.of(Side::B)[0];
    assert_eq!(Arena::write_limits(shared, Geometry::SMALL, 1, 0), Ok(Waiting::default()));
    let _first = open(a);
    assert_eq!(Arena::read_waiting(shared, Geometry::SMALL), Ok(Waiting { admitted: 1, kept_out: 0 }));
    let second = open(a);
    assert_eq!(phase(&second), Phase::Connecting);
    assert_eq!(Arena::write_limits(shared, Geometry::SMALL, 2, 0), Ok(Waiting { admitted: 1, kept_out: 1 }));
    b.admit();
    assert_eq!(phase(&second), Phase::Open);
    assert_eq!(Arena::read_waiting(shared, Geometry::SMALL), Ok(Waiting { admitted: 2, kept_out: 0 }));
    a.head().inbox_admitted.store(u64::MAX, Relaxed);
    assert_eq!(Arena::read_waiting(shared, Geometry::SMALL), Ok(Waiting { admitted: 0, kept_out: 2 }));
    a.head().inbox_admitted.store(7, Relaxed);
    assert_eq!(Arena::read_waiting(shared, Geometry::SMALL), Ok(Waiting { admitted: 2, kept_out: 0 }));
    a.head().inbox_tail.store(u64::from(Geometry::SMALL.slots) + 1, Relaxed);
    assert_eq!(Arena::read_waiting(shared, Geometry::SMALL), Ok(Waiting::default()));
}

/// Whoever raises a limit and who pushes beyond the former one at the same time: one of them lets it in.
#[test]
#[cfg_attr(miri, ignore)] // Miri has no files that are mapped.
fn none_is_kept_out_by_a_limit_that_is_being_raised() {
    const ROUNDS: u32 = 2000;
    let memory = Arena::create("test", Geometry::SMALL).unwrap();
    let map = |side| leak(Arena::map(memory.of(side), Geometry::SMALL, side, &NoBells).unwrap());
    let (a, b) = (map(Side::A), map(Side::B));
    let shared = memory.of(Side::B)[0];
    let begin = std::sync::Barrier::new(2);
    for round in 0..ROUNDS {
        Arena::write_limits(shared, Geometry::SMALL, 1, 0).unwrap();
        let first = open(a);
        let second = std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                begin.wait();
                (0..round % 64).for_each(|_| std::hint::spin_loop());
                open(a)
            });
            begin.wait();
            if Arena::write_limits(shared, Geometry::SMALL, 2, 0).unwrap().kept_out != 0 {
                b.admit();
            }
            second.join().unwrap()
        });
        assert_eq!(phase(&second), Phase::Open, "round {round}");
        for channel in [first, second, Channel::accept(b).unwrap(), Channel::accept(b).unwrap()] {
            channel.close(true).unwrap();
        }
    }
}

#[test]
fn a_connection_that_waits_too_long_fails() {
    let (a, b) = arenas(Geometry::SMALL);
    a.head().accept_limit.store(1, Relaxed);
    let (first, second) = (open(a), open(a));
    second.set_due(1000);
    assert_eq!((first.see_to(0), second.see_to(400)), (None, Some(600)));
    assert_eq!(second.see_to(1000), None);
    assert_eq!(second.take_error(), Some(Errno::TIMEDOUT));
    assert_eq!(Channel::accept(b).unwrap().slot(), first.slot());
    assert!(Channel::accept(b).is_none());
    second.close(true).unwrap();
    assert_eq!(a.used(), 1);
}

#[test]
fn a_connection_without_data_is_kept_from_its_acceptor() {
    let (a, b) = arenas(Geometry::SMALL);
    a.head().defer.store(3000, Relaxed);
    let ends: [fn(&Channel<'_>); 4] = [
        |channel| assert_eq!(channel.send_one(b"x"), Ok(1)),
        |channel| channel.shutdown(Shutdown::Write).unwrap(),
        |channel| channel.close_dead(),
        |channel| {
            channel.set_due(1000);
            assert_eq!((channel.see_to(1), channel.see_to(1000)), (Some(999), None));
        },
    ];
    for end in ends {
        let channel = open(a);
        assert_eq!((phase(&channel), channel.deferred(), b.pending()), (Phase::Open, Some(3000), 0));
        end(&channel);
        assert_eq!(Channel::accept(b).unwrap().slot(), channel.slot());
    }
    // A reset is all that is left of it; a listener that has gone resets it when it speaks.
    let used = a.used();
    let (silent, late) = (open(a), open(a));
    silent.close(true).unwrap();
    b.close();
    assert_eq!((late.send_one(b"x"), b.pending(), a.used()), (Ok(1), 1, used + 1));
    assert_eq!(late.take_error(), Some(Errno::CONNRESET));
}

/// Who asks whether somebody waits and who takes him say the same, whatever the opener writes: else accept(2) looks for ever.
#[test]
fn an_inbox_with_more_entries_than_slots_is_empty() {
    let (_opener, arena) = Arena::in_memory(Geometry::SMALL, &crate::NoBells);
    for tail in [u64::from(Geometry::SMALL.slots) + 1, 1 << 32, u64::MAX] {
        arena.head().inbox_tail.store(tail, Relaxed);
        assert_eq!((arena.pending(), arena.oldest()), (0, None), "{tail}");
    }
}

/// Who accepts from several inboxes knows which connection came first, also of those that were kept out for a while.
#[test]
fn an_inbox_tells_since_when_its_oldest_entry_waits() {
    let inboxes = [(); 2].map(|()| Arena::in_memory(Geometry::SMALL, &crate::NoBells));
    let [(a, b), (c, d)] = inboxes.map(|(a, b)| (leak(a), leak(b)));
    assert_eq!(b.waiting_since(), None);
    for (opener, gap) in [(c, 1), (a, 1), (c, 0)] {
        Channel::open(opener, &OpenArgs::default()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(gap));
    }
    let mut order = Vec::new();
    while let Some((_, next)) =
        [b, d].into_iter().filter_map(|inbox| Some((inbox.waiting_since()?, inbox))).min_by_key(|one| one.0)
    {
        order.push(std::ptr::eq(next, b));
        Channel::accept(next).unwrap();
    }
    assert_eq!(order, [false, true, false]);
}

#[test]
fn what_is_held_back_is_seen_with_the_rest_of_it() {
    let (a, b) = pair(Geometry::SMALL);
    assert_eq!(a.send_more(&[std::io::IoSlice::new(b"in")]), Ok(2));
    assert_eq!((a.held(), a.is_holding(), recv(&b, 9)), (2, true, Err(Errno::AGAIN)));
    assert_eq!(a.send_one(b" one"), Ok(4));
    assert_eq!((recv(&b, 9).unwrap(), a.held(), a.is_holding()), (b"in one".to_vec(), 0, false));
    a.set_cork(true);
    assert_eq!(a.send_one(&[7; 5000]), Ok(5000));
    assert_eq!((a.held(), b.queued_in()), (5000, 0));
    // The ring is full: nobody waits for what nobody sees.
    b.set_buffer(false, 1);
    a.set_buffer(true, 16384);
    let sent = a.send_one(&[8; 60_000]).unwrap();
    assert_eq!((a.held(), b.queued_in()), (0, 5000 + sent));
    let got = recv(&b, 100_000).unwrap();
    assert!(got[..5000].iter().all(|&byte| byte == 7) && got[5000..].iter().all(|&byte| byte == 8));
    // The end of the time, of the stream, and of the process.
    for end in
        [(|a| a.see_to(u64::MAX / 2).is_none()) as fn(&Channel<'_>) -> bool, |a| a.shutdown(Shutdown::Write).is_ok()]
    {
        assert_eq!(a.send_one(b"x"), Ok(1));
        a.set_due(1);
        assert!(recv(&b, 1).is_err() && end(&a));
        assert_eq!(recv(&b, 9).unwrap(), b"x");
    }
    let (a, b) = pair(Geometry::SMALL);
    a.send_more(&[std::io::IoSlice::new(b"last")]).unwrap();
    a.close_dead();
    assert_eq!((recv(&b, 9).unwrap(), recv(&b, 9).unwrap()), (b"last".to_vec(), vec![]));
}

#[test]
#[cfg_attr(miri, ignore)] // Long.
fn full_segments_are_not_held_back() {
    let (a, b) = pair(Geometry::STANDARD);
    a.set_cork(true);
    let data: Vec<u8> = (0..500_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    for round in 0.. {
        match a.send(&[std::io::IoSlice::new(&data[sent..data.len().min(sent + 1 + round * 37 % 9000)])]) {
            Ok(n) => sent += n,
            Err(errno) => assert_eq!(errno, Errno::AGAIN),
        }
        assert!(a.held() < 32741 && a.held() + b.queued_in() + got.len() == sent);
        if round % 5 == 0 {
            got.extend(recv(&b, 40_000).unwrap_or_default());
        }
        if sent == data.len() {
            break;
        }
    }
    a.set_cork(false);
    got.extend(recv(&b, 1 << 20).unwrap_or_default());
    assert!(got == data);
}

/// The same of directions that have been shut down, and told of.
#[test]
fn who_leaves_a_shut_connection_behind_is_no_edge() {
    for how in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
        let (a, b) = pair(Geometry::SMALL);
        let lanes = [&a, &b].map(|channel| {
            let lane = channel.arena().join(3).unwrap();
            channel.watch(lane);
            lane
        });
        let is_told = || [&a, &b].into_iter().zip(lanes).any(|(at, lane)| at.arena().is_marked(lane, at.slot()));
        let drain = || [&a, &b].into_iter().zip(lanes).for_each(|(at, lane)| at.arena().drain(lane, |_| {}));
        (0..3).for_each(|_| a.retain());
        a.shutdown(how).unwrap();
        assert!(is_told());
        drain();
        a.release_gone(1, false);
        assert!(!is_told(), "{how:?}: it was told");
        // One that was killed in the middle of shutdown(2).
        a.own().telling.fetch_add(1, SeqCst);
        a.release_gone(1, false);
        assert!(is_told(), "{how:?}: who knows whether it was");
        drain();
        b.shutdown(how).unwrap();
        drain();
        b.abort_dead(None);
        assert!(is_told(), "{how:?}: closed");
    }
}

/// The same where the peer has closed, or reset it by that, and who waits was told.
#[test]
fn who_leaves_a_connection_behind_that_the_peer_has_closed_is_no_edge() {
    for resets in [false, true] {
        let (a, b) = pair(Geometry::SMALL);
        let lane = a.arena().join(3).unwrap();
        a.watch(lane);
        let is_told = || a.arena().is_marked(lane, a.slot());
        (0..3).for_each(|_| a.retain());
        b.close(resets).unwrap();
        assert!(is_told());
        a.arena().drain(lane, |_| {});
        a.release_gone(1, false);
        assert!(!is_told(), "it was told");
        assert!(!a.tell_end() && !is_told());
        // The reset is known to this side now.
        assert_eq!(a.recv_one(&mut [0; 8]), if resets { Err(Errno::CONNRESET) } else { Ok(0) });
        a.release_gone(1, false);
        assert!(!is_told());
    }
    // One that was killed in the middle of close(2).
    let (a, b) = pair(Geometry::SMALL);
    let lane = a.arena().join(3).unwrap();
    a.watch(lane);
    (0..2).for_each(|_| a.retain());
    b.change(|state| Some(state.with(state::closed_bit(Side::B))));
    a.release_gone(1, false);
    assert!(a.arena().is_marked(lane, a.slot()));
    a.arena().drain(lane, |_| {});
    assert!(a.tell_end() && a.arena().is_marked(lane, a.slot()));
    a.arena().drain(lane, |_| {});
    assert!(!a.tell_end(), "once");
    a.release_gone(1, false);
    assert!(!a.arena().is_marked(lane, a.slot()));
}

/// A process that ends beside others which hold the side still is no event, unless it was in the middle of a call.
#[test]
fn who_leaves_others_behind_is_no_edge() {
    let (a, _b) = pair(Geometry::SMALL);
    let lane = a.arena().join(3).unwrap();
    a.watch(lane);
    a.retain();
    a.retain();
    a.arena().drain(lane, |_| {});
    a.release_gone(1, false);
    assert!(!a.arena().is_marked(lane, a.slot()));
    a.locks().send.store(99 << 32 | 5, SeqCst);
    let interrupted = a.break_locks(99);
    a.release_gone(1, interrupted);
    assert!(a.arena().is_marked(lane, a.slot()));
    a.release_gone(1, false);
    assert!(a.arena().is_marked(lane, a.slot()), "closed");
}
