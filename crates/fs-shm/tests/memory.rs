//! What an arena costs: nothing for what is not used, and nothing any more for what was freed, once the daemon has looked.

#[path = "common/emulated.rs"]
mod emulated;

use fs_shm::{Arena, Bells, Channel, Errno, Geometry, Memory, OpenArgs, Side};
use rustix::fs::FallocateFlags;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts how often the daemon is told of arena 7.
struct Told(AtomicU32);

impl Bells for Told {
    fn ring(&self, _poller: u32) {}

    fn trim(&self, number: u32) -> bool {
        assert_eq!(number, 7);
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }
}

struct World {
    memory: Memory,
    a: Arena,
    b: Arena,
    told: &'static Told,
}

impl World {
    fn new(geometry: Geometry) -> Self {
        let told: &'static Told = Box::leak(Box::new(Told(AtomicU32::new(0))));
        let memory = Arena::create("test", geometry).unwrap();
        Arena::set_number(memory.shared.as_fd(), 7).unwrap();
        let map = |side| Arena::map(memory.of(side), geometry, side, told).unwrap();
        let (a, b) = (map(Side::A), map(Side::B));
        World { memory, a, b, told }
    }

    fn kib(&self) -> i64 {
        rustix::fs::fstat(&self.memory.shared).unwrap().st_blocks / 2
    }

    fn pair(&self) -> (Channel<'_>, Channel<'_>) {
        (Channel::open(&self.a, &OpenArgs::default()).unwrap(), Channel::accept(&self.b).unwrap())
    }

    fn trim_all(&self) {
        while self.a.trim() {}
    }
}

fn fill(channel: &Channel<'_>) -> usize {
    let mut sent = 0;
    while let Ok(n) = channel.send_one(&[b'x'; 10_000]) {
        sent += n;
    }
    sent
}

fn drain(channel: &Channel<'_>) -> usize {
    let (mut got, mut room) = (0, [0; 30_000]);
    loop {
        match channel.recv_one(&mut room) {
            Ok(n) if n > 0 => got += n,
            Ok(_) | Err(Errno::AGAIN) => return got,
            Err(errno) => panic!("{errno}"),
        }
    }
}

#[test]
fn what_a_burst_has_used_goes_back() {
    if emulated::is_emulated() {
        println!("skipped: QEMU's emulation takes MADV_REMOVE and removes nothing");
        return;
    }
    let world = World::new(Geometry { slots: 128, stride_log2: 17, ring_log2: 14 });
    let (kept, its_peer) = world.pair();
    kept.send_one(&[b'k'; 10_000]).unwrap();
    let before = world.kib();
    for _ in 0..2 {
        let pairs: Vec<_> = (0..100).map(|_| world.pair()).collect();
        for (a, b) in &pairs {
            assert_eq!(a.send_one(&[1; 16_000]), Ok(16_000));
            assert_eq!(b.send_one(&[1; 16_000]), Ok(16_000));
        }
        assert!(world.kib() > before + 100 * 32, "{} KiB", world.kib());
        for (a, b) in pairs {
            drain(&a);
            drain(&b);
            a.close(false).unwrap();
            b.close(false).unwrap();
        }
        assert!(world.a.is_trim_asked());
        world.trim_all();
        assert!(world.kib() < before + 200, "{} KiB of {before} before", world.kib());
        assert!(!world.a.is_trim_asked());
    }
    // Once for each burst, not for each connection.
    assert_eq!(world.told.0.load(Ordering::Relaxed), 2);
    assert_eq!(drain(&its_peer), 10_000, "what lives keeps its bytes");
}

const LARGE_STRIDE: Geometry = Geometry { slots: 64, stride_log2: 19, ring_log2: 14 };

fn end((a, b): (Channel<'_>, Channel<'_>)) {
    drain(&b);
    a.close(false).unwrap();
    b.close(false).unwrap();
}

#[test]
fn a_ring_that_has_grown_once_keeps_its_memory_for_the_next_connection() {
    if emulated::is_emulated() {
        println!("skipped: QEMU's emulation takes MADV_REMOVE and removes nothing");
        return;
    }
    let world = World::new(LARGE_STRIDE);
    let before = world.kib();
    let carry = |bytes: usize| {
        let pair = world.pair();
        assert_eq!(pair.0.send_one(&vec![1; bytes]), Ok(bytes));
        let sent = world.kib();
        end(pair);
        (sent, world.kib())
    };
    let (sent, closed) = carry(60_000);
    assert!(sent >= before + 56, "{sent} KiB, {before} before");
    assert_eq!(closed, sent, "the next connection would have to ask for it again");
    assert_eq!(carry(60_000), (sent, sent));
    // What a larger ring has taken goes at once, but for as much as that.
    let (larger, closed) = carry(200_000);
    assert!(larger >= sent + 190 && closed <= sent + 70, "{larger} KiB, {closed} once it was closed, {sent} before");
    world.trim_all();
    assert!(world.kib() <= before + 32, "{} KiB, {before} before", world.kib());
}

#[test]
fn of_a_burst_few_connections_leave_the_memory_of_grown_rings() {
    if emulated::is_emulated() {
        println!("skipped: QEMU's emulation takes MADV_REMOVE and removes nothing");
        return;
    }
    let world = World::new(LARGE_STRIDE);
    let before = world.kib();
    let pairs: Vec<_> = (0..64).map(|_| world.pair()).collect();
    for (a, _) in &pairs {
        assert_eq!(a.send_one(&[1; 60_000]), Ok(60_000));
    }
    assert!(world.kib() >= before + 64 * 56, "{} KiB, {before} before", world.kib());
    pairs.into_iter().for_each(end);
    // All leave the first ring, 32 the one after it.
    let left = world.kib() - before;
    assert!(left <= 64 * 16 + 32 * 64 + 64, "{left} KiB");
    world.trim_all();
    // A page for the blocks of four slots stays.
    assert!(world.kib() <= before + 128, "{} KiB, {before} before", world.kib());
}

#[test]
fn where_memory_is_short_a_ring_that_has_grown_leaves_none() {
    if emulated::is_emulated() {
        println!("skipped: QEMU's emulation takes MADV_REMOVE and removes nothing");
        return;
    }
    let limited: &'static Limited = Box::leak(Box::new(Limited(AtomicU64::new(0))));
    let memory = Arena::create("test", LARGE_STRIDE).unwrap();
    let map = |side| Arena::map(memory.of(side), LARGE_STRIDE, side, limited).unwrap();
    let (a, b) = (map(Side::A), map(Side::B));
    let kib = || rustix::fs::fstat(&memory.shared).unwrap().st_blocks / 2;
    let before = kib();
    for _ in 0..3 {
        // For what this connection grows by, and nothing beyond.
        limited.0.store(64 << 10, Ordering::Relaxed);
        let pair = (Channel::open(&a, &OpenArgs::default()).unwrap(), Channel::accept(&b).unwrap());
        assert_eq!(pair.0.send_one(&[1; 60_000]), Ok(60_000));
        assert_eq!(limited.0.load(Ordering::Relaxed), 0);
        end(pair);
        assert!(kib() <= before + 32, "{} KiB, {before} before: another ring finds none", kib());
    }
}

#[test]
fn a_large_rings_memory_goes_back_when_it_is_free_and_not_before() {
    if emulated::is_emulated() {
        println!("skipped: QEMU's emulation takes MADV_REMOVE and removes nothing");
        return;
    }
    let world = World::new(Geometry { slots: 64, stride_log2: 17, ring_log2: 12 });
    let (a, b) = world.pair();
    // First the ring of the slot as large as it gets.
    fill(&a);
    drain(&b);
    world.trim_all();
    let before = world.kib();
    let sent = fill(&a);
    assert!(sent > 3 << 20);
    world.trim_all();
    assert!(world.kib() > before + 3000, "{} KiB while it is full", world.kib());
    assert_eq!(drain(&b), sent);
    assert!(world.a.is_trim_asked());
    world.trim_all();
    assert!(world.kib() <= before + 300, "{} KiB of {before} before", world.kib());
    // The connection goes on.
    assert!(fill(&a) > 3 << 20);
}

/// Says yes for so many bytes more.
struct Limited(AtomicU64);

impl Bells for Limited {
    fn ring(&self, _poller: u32) {}

    fn may_use(&self, bytes: u64) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }
}

#[test]
fn what_there_is_no_memory_for_waits_until_the_reader_has_read() {
    let geometry = Geometry { slots: 64, stride_log2: 17, ring_log2: 12 };
    let limited: &'static Limited = Box::leak(Box::new(Limited(AtomicU64::new(0))));
    let memory = Arena::create("test", geometry).unwrap();
    let map = |side| Arena::map(memory.of(side), geometry, side, limited).unwrap();
    let (a, b) = (map(Side::A), map(Side::B));
    let (from, to) = (Channel::open(&a, &OpenArgs::default()).unwrap(), Channel::accept(&b).unwrap());
    let kib = || rustix::fs::fstat(&memory.shared).unwrap().st_blocks / 2;
    let is_writable = || from.readiness().contains(fs_shm::Readiness::OUT);
    for (granted, least, most) in [(0, 4096, 4096), (600 << 10, 512 << 10, 700 << 10), (8 << 20, 3 << 20, 5 << 20)] {
        limited.0.store(granted, Ordering::Relaxed);
        let before = kib();
        let sent = fill(&from);
        assert!((least..=most).contains(&sent), "{sent} of {granted} granted");
        assert!(kib() - before <= (granted / 1024) as i64 + 64, "{} KiB of {granted} granted", kib() - before);
        assert!(!is_writable(), "nobody spins");
        let (mut got, mut room, mut told) = (0_i64, vec![0; 1000], 0);
        while got < sent as i64 {
            got += to.recv_one(&mut room).unwrap() as i64;
            // A writer that is told and finds no memory is told again later, not at once.
            if told < 30 && is_writable() && granted < 8 << 20 {
                told += 1;
                limited.0.store(0, Ordering::Relaxed);
                match from.send_one(&[b'y'; 5000]) {
                    Ok(more) => got -= more as i64,
                    Err(errno) => assert!(errno == Errno::AGAIN && !is_writable()),
                }
            }
        }
        assert!(is_writable());
        drain(&to);
        while a.trim() {}
    }
}

/// Also what stands in the rings of slots that seem to be free. The head and the blocks stay, which processes look at.
#[test]
fn rings_of_an_arena_that_is_over_go_back_in_pieces() {
    let world = World::new(Geometry::STANDARD);
    let (a, b) = world.pair();
    fill(&a);
    let (memory, rings) = (world.memory.shared.as_fd(), Geometry::STANDARD.rings() as u64);
    let before = world.kib();
    for at in [rings + (1 << 30), Geometry::STANDARD.bytes() as u64 - (20 << 20)] {
        rustix::fs::fallocate(memory, FallocateFlags::empty(), at, 20 << 20).unwrap();
    }
    assert!(world.kib() >= before + 40_960);
    let give = |from, until| Arena::give_rings_back(memory, Geometry::STANDARD, from, until);
    let now = Instant::now();
    assert_eq!(give(0, now), Some(rings));
    assert!(world.kib() >= before + 40_960, "no time");
    assert_eq!(give(rings + (2 << 30), now + Duration::from_secs(60)), None);
    assert!((20_480..before + 20_480).contains(&world.kib()), "what lies before has gone back already");
    assert_eq!(give(rings, now + Duration::from_secs(60)), None);
    assert!(world.kib() < 200, "{} KiB", world.kib());
    assert!(drain(&b) > 0, "as zeros");
}
