//! A peer that scribbles over everything that is shared, while the channel is in use: calls answer errors or wrong
//! bytes of that channel, and never panic, fault or hang.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fs_shm::{Arena, Channel, Errno, Geometry, Memory, NoBells, OpenArgs, Readiness, RecvFlags, Shutdown, Side};

const GEOMETRY: Geometry = Geometry::SMALL;

#[test]
fn random_words_anywhere() {
    // Head page, slot map, lanes, inbox, blocks: all that is not payload. One word of 250 is the connection's.
    let control = 1u64 << 18;
    harms(1..=6, |random| (random.next() % (control / 8) * 8, random.value()));
}

#[test]
fn random_words_in_the_block_of_the_channel() {
    // The block area begins where `docs/SHM.md` says; slot 0.
    let blocks = blocks_offset();
    for seed in 10..=15u64 {
        harms(seed..=seed, |random| (blocks + random.next() % 128 * 8, random.value()));
    }
}

/// Attacks with these seeds, which some connection does not survive. How many words are written while one lives is the scheduler's
/// affair: where other programs have the processors it takes more seeds, and an attack that does nothing does so with all of them.
fn harms(seeds: RangeInclusive<u64>, place: impl Fn(&mut Random) -> (u64, u64) + Sync) {
    let mut harmed: u32 = seeds.clone().map(|seed| under_attack(seed, &place)).sum();
    let mut more = 0;
    while harmed == 0 && more < 60 {
        more += 1;
        harmed = under_attack(seeds.end() + 100 * more, &place);
    }
    println!("seeds {seeds:?} and {more} more: {harmed} harmed");
    assert!(harmed > 0, "the attack did nothing");
}

#[test]
fn holes_punched_under_a_channel_read_as_zeros() {
    let memory = Arena::create("holes", GEOMETRY).unwrap();
    let (a, b) = (map(&memory, Side::A), map(&memory, Side::B));
    let client = Channel::open(&a, &OpenArgs::default()).unwrap();
    let server = Channel::accept(&b).unwrap();
    client.send_one(&[7; 3000]).unwrap();
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&memory.shared, flags, 0, GEOMETRY.bytes() as u64).unwrap();
    assert_eq!(server.recv_one(&mut [0; 100]), Err(Errno::BADF), "the slot is free now");
    assert!(rustix::fs::ftruncate(&memory.shared, 0).is_err(), "the size is sealed");
}

#[test]
fn what_is_no_arena_is_refused() {
    let arena = Arena::create("x", GEOMETRY).unwrap();
    let [whole, locks] = arena.of(Side::A);
    let refused =
        |memory: [BorrowedFd<'_>; 2], geometry| Arena::map(memory, geometry, Side::A, &NoBells).map(drop).unwrap_err();
    let unsealed = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, GEOMETRY.bytes() as u64).unwrap();
    assert_eq!(refused([unsealed.as_fd(), locks], GEOMETRY), Errno::INVAL);
    assert_eq!(refused([whole, unsealed.as_fd()], GEOMETRY), Errno::INVAL);
    assert_eq!(refused([locks, locks], GEOMETRY), Errno::INVAL);
    assert_eq!(refused([whole, locks], Geometry { slots: 128, ..GEOMETRY }), Errno::INVAL);
    for geometry in [
        Geometry { slots: 63, ..GEOMETRY },
        Geometry { slots: 1 << 20, ..GEOMETRY },
        Geometry { stride_log2: 40, ..GEOMETRY },
        Geometry { ring_log2: 15, ..GEOMETRY },
    ] {
        assert_eq!(refused([whole, locks], geometry), Errno::INVAL);
        assert_eq!(Geometry::from_word(geometry.to_word()), None);
    }
}

/// No word that a peer can write is a lock: whichever says that somebody has one, no call waits until it gives up (`EIO`).
#[test]
fn nobody_waits_for_words_that_a_peer_writes() {
    // Attachment and thread; as an errno it is another one.
    let held = 77u64 << 32 | 9;
    let of_head = (64..4096).step_by(8).take(64);
    let of_block = (0..1024).step_by(8).map(|at| blocks_offset() + at);
    for place in of_head.chain(of_block) {
        let memory = Arena::create("held", GEOMETRY).unwrap();
        let (a, b) = (map(&memory, Side::A), map(&memory, Side::B));
        let client = Channel::open(&a, &OpenArgs::default()).unwrap();
        let server = Channel::accept(&b).unwrap();
        client.send_one(b"before").unwrap();
        rustix::io::pwrite(&memory.shared, &held.to_ne_bytes(), place).unwrap();
        let ends = [
            server.recv_one(&mut [0; 8]).map(drop),
            server.send_one(b"answer").map(drop),
            server.send_urgent(&[std::io::IoSlice::new(b"!")]).map(drop),
            server.recv_urgent(false).map(drop),
            Channel::open(&a, &OpenArgs::default()).map(drop),
            server.shutdown(Shutdown::Both),
            server.close(true).map(drop),
            client.close(true).map(drop),
        ];
        assert!(!ends.contains(&Err(Errno::IO)), "word {place}: {ends:?}");
    }
}

/// No word that a peer can write says whether a call waits, for how much and how long, or whether the side is one process's alone.
#[test]
fn no_word_that_a_peer_writes_says_how_calls_wait() {
    const NONBLOCK: u32 = 0o4000;
    let memory = Arena::create("waits", GEOMETRY).unwrap();
    let (a, b) = (map(&memory, Side::A), map(&memory, Side::B));
    let client = Channel::open(&a, &OpenArgs { status: NONBLOCK, ..OpenArgs::default() }).unwrap();
    let server = Channel::accept(&b).unwrap();
    let sides = [client, server];
    let say = |side: &Channel<'_>| {
        let user: Vec<u64> = side.user().iter().map(|word| word.load(Ordering::Relaxed)).collect();
        (side.status(), side.rcvlowat(), side.was_shared(), user)
    };
    assert_eq!(sides.each_ref().map(say), [(NONBLOCK, 1, false, vec![0; 3]), (0, 1, false, vec![0; 3])]);
    client.retain_for_other();
    server.set_rcvlowat(7);
    for (n, word) in sides.iter().flat_map(Channel::user).enumerate() {
        word.store(n as u64 + 1, Ordering::Relaxed);
    }
    let before = sides.each_ref().map(say);
    assert_eq!(before, [(NONBLOCK, 1, true, vec![1, 2, 3]), (0, 7, false, vec![4, 5, 6])]);
    // All words of the block but the state word, without which there is no connection.
    for place in (8..1024).step_by(8).map(|at| blocks_offset() + at) {
        for value in [u64::MAX, 0] {
            rustix::io::pwrite(&memory.shared, &value.to_ne_bytes(), place).unwrap();
            assert_eq!(sides.each_ref().map(say), before, "word {place}");
        }
    }
    // A generation that comes back: what its side says meanwhile of another connection in the slot is not said of this one.
    let state = blocks_offset();
    let mut first = [0; 8];
    rustix::io::pread(&memory.shared, &mut first, state).unwrap();
    rustix::io::pwrite(&memory.shared, &(1u64 << 32).to_ne_bytes(), state).unwrap();
    rustix::io::pwrite(&memory.shared, &0u64.to_ne_bytes(), GEOMETRY.slot_map() as u64).unwrap();
    let next = Channel::open(&a, &OpenArgs::default()).unwrap();
    assert_eq!(next.slot(), client.slot());
    let accepted = Channel::accept(&b).unwrap();
    rustix::io::pwrite(&memory.shared, &first, state).unwrap();
    assert_eq!((next.status(), accepted.status()), (0, 0));
    for side in sides {
        assert_eq!(side.status(), NONBLOCK, "nobody sleeps in a call on a connection that is no more");
        side.set_status(NONBLOCK, 0);
    }
    next.set_status(NONBLOCK, NONBLOCK);
    client.set_status(NONBLOCK, 0);
    assert_eq!(next.status(), NONBLOCK);
}

/// How many connections had errors that come of the attack. Several arenas, one after the other: one that the attacker has closed
/// takes no more connections.
fn under_attack(seed: u64, place: impl Fn(&mut Random) -> (u64, u64) + Sync) -> u32 {
    let mut harmed = 0u32;
    for arena in 0..3 {
        let memory = Arena::create("hostile", GEOMETRY).unwrap();
        let (a, b) = (map(&memory, Side::A), map(&memory, Side::B));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(seed << 8 | arena);
                while !done.load(Ordering::Relaxed) {
                    let (offset, value) = place(&mut random);
                    rustix::io::pwrite(&memory.shared, &value.to_ne_bytes(), offset).unwrap();
                    if random.next().is_multiple_of(16) {
                        std::thread::yield_now();
                    }
                }
            });
            let mut random = Random(seed ^ 0xabcd);
            let end = Instant::now() + Duration::from_millis(230);
            // A panic here ends the attack too.
            let _end = Done(&done);
            while Instant::now() < end {
                harmed += u32::from(one_connection(&a, &b, &mut random).is_err());
                clear_up(&a, &b);
            }
        });
    }
    // Where nothing is written the connections have no error; with every word that is written far more than this.
    harmed
}

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the daemon does about connections that nobody holds any more: without it the attacked slot would be lost with the
/// first word that its connection does not survive, and all later ones would live in others.
fn clear_up(a: &Arena, b: &Arena) {
    for slot in a.used_slots() {
        for arena in [a, b] {
            if let Some(channel) = Channel::at(arena, slot) {
                channel.abort_dead(None);
            }
        }
        a.give_back_slot(slot);
    }
}

/// Uses every call.
fn one_connection(a: &Arena, b: &Arena, random: &mut Random) -> Result<(), Errno> {
    let client = Channel::open(a, &OpenArgs::default())?;
    let server = Channel::accept(b).or_else(|| Channel::at(b, client.slot())).ok_or(Errno::CONNREFUSED)?;
    let lane = b.join(9);
    if let Some(lane) = lane {
        server.watch(lane);
    }
    let mut buf = vec![0; 20_000];
    let mut result = Ok(());
    for _ in 0..20 {
        let len = (random.next() % 20_000) as usize;
        let steps = [
            client.send_one(&buf[..len]).map(drop),
            server.recv_one(&mut buf[..len]).map(drop),
            server.recv(&mut [std::io::IoSliceMut::new(&mut buf)], RecvFlags { peek: true, discard: false }).map(drop),
            server.reading().and_then(|mut reading| {
                let n = reading.chunk()?.len();
                reading.consume(n);
                Ok(())
            }),
            client.writing().and_then(|mut writing| {
                let n = writing.chunk(len)?.len();
                writing.commit(n);
                Ok(())
            }),
            client.send_urgent(&[std::io::IoSlice::new(b"!")]).map(drop),
            server.recv_urgent(false).map(drop),
        ];
        let (_in, _out, _mark) = (server.queued_in(), client.queued_out(), server.at_mark());
        let _addresses = (client.local_addr().to_std(), server.peer_addr().to_std());
        let ready = server.readiness();
        assert!(ready.0 & !(0x2000 | 0x1f) == 0 && (client.readiness() | Readiness::IN).0 != 0);
        if let Some(lane) = lane {
            b.drain(lane, |slot| assert!(slot < GEOMETRY.slots));
            if b.prepare_sleep(lane) {
                b.awake(lane);
            }
        }
        // Nothing to read, no room, no urgent byte: so it goes without an attack too.
        let harm = steps.into_iter().filter(|step| !matches!(step, Err(Errno::AGAIN | Errno::INVAL)));
        result = harm.fold(result, Result::and);
    }
    let _shut = client.shutdown(Shutdown::Both);
    let _closed = (client.close(false), server.close(true), server.take_error());
    result
}

fn map(memory: &Memory, side: Side) -> Arena {
    Arena::map(memory.of(side), GEOMETRY, side, &NoBells).unwrap()
}

/// As in `docs/SHM.md`: head, slot map, 64 lanes of 192 + 2 slots / 8 bytes, inbox, each at a multiple of 4096.
fn blocks_offset() -> u64 {
    let slots = u64::from(GEOMETRY.slots);
    let heads = (4096 + slots / 4).next_multiple_of(4096);
    let marks = (heads + 64 * 192).next_multiple_of(4096);
    let inbox = (marks + slots / 64 * 64 * 1088).next_multiple_of(4096);
    (inbox + slots * 8).next_multiple_of(4096)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 20
    }

    /// Small numbers, large ones, all ones, a few bits: what checks are likely to miss.
    fn value(&mut self) -> u64 {
        match self.next() % 5 {
            0 => self.next() % 70_000,
            1 => u64::MAX - self.next() % 70_000,
            2 => 1 << (self.next() % 64),
            3 => 0,
            _ => self.0,
        }
    }
}
