//! Random frames, through the program and through the model. A failure prints the seed of its world.

use super::model::{Fate, Model, Sent};
use super::packet::{ACK, FIN, Packet, RST, SYN, finish_v4, fold, icmp_error, sum};
use super::{Bench, DROP, ID, LOOPBACK, NEXT, REDIRECT, bench, words};
use crate::entry::Entry;
use fastrand::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Frames of a world: long enough for a flow to drain, end and begin again.
const FRAMES: usize = 40;

/// Draws a number that is near an edge more often than not.
fn near(random: &mut Rng, edges: &[u32]) -> u32 {
    match random.u8(..10) {
        0 => random.u32(..),
        1..=4 => edges[random.usize(..edges.len())],
        _ => edges[random.usize(..edges.len())].wrapping_add(random.u32(..7)).wrapping_sub(3),
    }
}

fn odds(random: &mut Rng, one_in: u32) -> bool {
    random.u32(..one_in) == 0
}

/// Draws the entries of a flow. The numbers are those of a flow in order.
fn draw_entries(random: &mut Rng, bench: &Bench) -> [Entry; 2] {
    let add = [near(random, &[0, 1 << 31]), near(random, &[0, 1 << 31])];
    let stamps = [random.u32(..), random.u32(..)];
    let (has_stamps, scales) = (random.bool(), [random.u8(..15), random.u8(..15)]);
    [0, 1].map(|from| {
        let to = 1 - from;
        let acked = near(random, &[0, 1 << 31]);
        let own_end = acked.wrapping_add(if random.bool() { 0 } else { random.u32(..3000) });
        let window = u32::from(random.u16(..)) << random.u8(..9);
        Entry {
            to: [&bench.server, &bench.client][from].out(),
            seq_add: add[from],
            ack_add: add[to].wrapping_neg(),
            stamp_add: stamps[from],
            stamp_sub: stamps[to],
            own_end,
            device: LOOPBACK,
            is_spliced: !odds(random, 20),
            stamps: has_stamps,
            scale_in: scales[from],
            scale_out: scales[to],
            id: ID,
            acked,
            edge: own_end.wrapping_add(window),
            drained: acked == own_end,
            arrived: if odds(random, 30) { 2 } else { LOOPBACK },
            ..Entry::default()
        }
    })
}

fn draw_options(random: &mut Rng) -> Vec<u8> {
    let stamps = words(&[0x0101_080a, random.u32(..), random.u32(..)]);
    let sack = |random: &mut Rng, blocks: u32| {
        let edges: Vec<u32> = (0..2 * blocks).map(|_| random.u32(..)).collect();
        words(&[&[0x0101_0502 + 8 * blocks], &edges[..]].concat())
    };
    let mut options = match random.u8(..10) {
        0..=2 => Vec::new(),
        3 | 4 => stamps,
        5 => {
            let blocks = random.u32(1..4);
            [stamps, sack(random, blocks)].concat()
        }
        6 => {
            let blocks = random.u32(1..5);
            sack(random, blocks)
        }
        7 => (0..random.usize(..41)).map(|_| random.u8(..)).collect(),
        // Known options in any order, often with wrong lengths.
        _ => {
            let mut all = Vec::new();
            for _ in 0..random.usize(1..6) {
                let kind = *random.choice(&[0, 1, 1, 2, 3, 4, 5, 5, 8, 8, 254]).unwrap();
                let usual = match kind {
                    5 => 2 + 8 * random.u8(1..4),
                    8 => 10,
                    2 => 4,
                    _ => random.u8(2..8),
                };
                let size = if odds(random, 6) { random.u8(..) } else { usual };
                all.push(kind);
                if kind > 1 {
                    all.push(size);
                    all.extend((2..size.min(40)).map(|_| random.u8(..)));
                }
            }
            all
        }
    };
    options.truncate(40);
    options.resize(options.len().next_multiple_of(4), random.u8(..2));
    options
}

/// Draws a segment of one of the peers, near what the entries expect.
fn draw_segment(random: &mut Rng, bench: &Bench, entries: &[Option<Entry>; 2], side: usize) -> Packet {
    let default = Entry::default();
    let [entry, other] = [side, 1 - side].map(|side| entries[side].as_ref().unwrap_or(&default));
    let ends = [&bench.client, &bench.server][side];
    let back = |number: u32| number.wrapping_sub(entry.seq_add);
    let mut packet = Packet::new(ends.peer, ends.local);
    packet.seq = near(random, &[back(other.acked), back(other.acked), back(other.acked), back(other.edge)]);
    packet.ack = near(random, &[entry.acked, entry.own_end, entry.own_end, entry.edge]);
    packet.flags = match random.u8(..24) {
        0 | 1 => ACK | FIN,
        2 => RST,
        3 => RST | ACK,
        4 => SYN,
        5 => random.u8(..),
        6 => 0,
        _ => ACK | (random.u8(..) & 0xe8),
    };
    let windows = [0, 1, 500, 0xffff, random.u16(..)];
    packet.window = windows[random.usize(..5)];
    packet.options = draw_options(random);
    let lengths = [0, 0, 0, 1, random.usize(..100), random.usize(..1400)];
    packet.payload = (0..lengths[random.usize(..6)]).map(|_| random.u8(..)).collect();
    packet.hops = random.u8(..);
    if odds(random, 20) {
        packet.from.set_port(random.u16(..));
    }
    packet
}

/// Changes a frame into one that is not as usual.
fn spoil(random: &mut Rng, frame: &mut Vec<u8>) {
    let is_v4 = frame[12] == 8;
    let body = if is_v4 { 34 } else { 54 };
    let length = if is_v4 { 16 } else { 18 };
    match random.u8(..14) {
        // Padding of Ethernet, and frames that are cut.
        0 => frame.resize(frame.len() + random.usize(1..20), random.u8(..)),
        1 => frame.truncate(random.usize(14..frame.len())),
        // Lengths.
        2 => frame[length..length + 2].copy_from_slice(&random.u16(..200).to_be_bytes()),
        3 => frame[length..length + 2].fill(0),
        4 => frame[body + 12] = random.u8(..),
        5 if is_v4 => frame[14] = random.u8(..),
        5 => frame[14] = random.u8(..0x80),
        // A fragment, or the bit that says not to make any.
        6 if is_v4 => frame[20] = *random.choice(&[0, 0x20, 0x40, 0x80, 1]).unwrap(),
        6 => frame[20] = 44,
        // IPv4's options.
        7 if is_v4 => {
            let more = 4 * random.usize(1..11);
            frame.splice(34..34, std::iter::repeat_n(1, more));
            frame[14] += (more / 4) as u8;
            let total = u16::from_be_bytes([frame[16], frame[17]]) + more as u16;
            frame[16..18].copy_from_slice(&total.to_be_bytes());
            finish_v4(frame);
        }
        7 | 8 => frame[if is_v4 { 23 } else { 20 }] = random.u8(..),
        // Another link address, VLAN, another protocol.
        9 => frame[random.usize(..6)] = 1,
        10 => drop(frame.splice(12..12, [0x81, 0, 0, 5])),
        11 => frame[12..14].copy_from_slice(&random.u16(..).to_be_bytes()),
        // A wrong checksum stays wrong.
        12 => frame[if is_v4 && random.bool() { 24 } else { body + 16 }] ^= random.u8(1..),
        _ => {
            let at = random.usize(14..frame.len());
            frame[at] ^= 1 << random.u8(..8);
        }
    }
}

/// Draws an ICMP error about a packet that was sent to a peer, as far as it is known.
fn draw_error(random: &mut Rng, bench: &Bench, entries: &[Option<Entry>; 2]) -> Vec<u8> {
    let side = random.usize(..2);
    let (ends, other) = ([&bench.client, &bench.server][side], [&bench.client, &bench.server][1 - side]);
    let mut packet = draw_segment(random, bench, entries, side);
    (packet.from, packet.to) = (ends.local, ends.peer);
    if odds(random, 20) {
        packet.to.set_port(random.u16(..));
    }
    let mut quoted = packet.bytes().split_off(14);
    let header = if ends.is_v4() { 20 } else { 40 };
    // IPv4 routers may quote no more than 8 bytes.
    quoted.truncate(random.usize(header + 4..quoted.len() + 1));
    match random.u8(..12) {
        0 => quoted[0] ^= random.u8(..4),
        1 => quoted[if header == 20 { 9 } else { 6 }] = random.u8(..),
        2 if header == 20 => quoted[6] = random.u8(..),
        3 if header == 20 => quoted[10] ^= 1,
        _ => {}
    }
    let mut frame = icmp_error(other.peer.ip(), ends.local.ip(), &quoted);
    if odds(random, 4) {
        frame[14 + header] = random.u8(..16);
    }
    frame
}

/// The sum over a body and its pseudo header. 0 is 0xffff.
fn sum_of(frame: &[u8], Sent { body: (at, length), protocol, .. }: &Sent) -> u16 {
    let pseudo = match (frame[12] == 8, protocol) {
        (true, 1) => 0,
        (true, _) => sum(&frame[26..34]),
        (false, _) => sum(&frame[22..54]),
    };
    fold(pseudo + sum(&frame[*at..at + length])) % 0xffff
}

/// Checks that two frames differ in checksums only, and that the sums are those of the frame that came.
fn check_sent(came: &[u8], mut out: Vec<u8>, expected: Sent) {
    let (at, _) = expected.body;
    assert_eq!(sum_of(&out, &expected), sum_of(came, &expected), "checksum of protocol {}", expected.protocol);
    let mut checksums = vec![at + if expected.protocol == 6 { 16 } else { 2 }];
    if came[12] == 8 {
        let header = |frame: &[u8], at: usize, end: usize| fold(sum(&frame[at..end])) % 0xffff;
        let end = 14 + usize::from(came[14] & 15) * 4;
        assert_eq!(header(&out, 14, end), header(came, 14, end), "checksum of IPv4");
        checksums.push(24);
        if expected.protocol == 1 {
            assert_eq!(header(&out, 42, 62), header(came, 42, 62), "checksum of the quoted header");
            checksums.push(52);
        }
    }
    let mut frame = expected.frame;
    for at in checksums {
        out[at..at + 2].fill(0);
        frame[at..at + 2].fill(0);
    }
    assert_eq!(out, frame);
}

/// Returns a mark: whether a frame was sent, passed or dropped.
fn one(random: &mut Rng, bench: &Bench, model: &mut Model) -> Option<u32> {
    let mut frame = if odds(random, 8) {
        draw_error(random, bench, &model.entries)
    } else {
        let side = random.usize(..2);
        draw_segment(random, bench, &model.entries, side).bytes()
    };
    let is_merged = odds(random, 10);
    if odds(random, 4) {
        spoil(random, &mut frame);
    }
    // The kernel takes no such packet for a test.
    let least = match frame[12..14] {
        [8, 0] => 34,
        [0x86, 0xdd] => 54,
        _ => 14,
    };
    if frame.len() < least {
        return None;
    }
    let before = model.entries;
    let (verdict, out) = bench.run_merged(&frame, is_merged);
    let fate = model.frame(&frame, is_merged);
    let context = || format!("frame {frame:02x?}\nmerged: {is_merged}\nbefore {before:#x?}");
    let result = catch_unwind(AssertUnwindSafe(|| {
        match fate {
            Fate::Next => assert_eq!((verdict, &out), (NEXT, &frame)),
            Fate::Drop => assert_eq!((verdict, &out), (DROP, &frame)),
            Fate::Sent(sent) => {
                assert_eq!(verdict, REDIRECT);
                check_sent(&frame, out, sent);
            }
        }
        for (key, entry) in model.keys.iter().zip(&model.entries) {
            let now = bench.table.get(key, ID);
            // Of an entry that is not spliced yet it means nothing.
            let plain = |entry: Entry| Entry { drained: entry.drained && entry.is_spliced, ..entry };
            assert_eq!(now.map(plain), entry.map(plain));
        }
    }));
    result.unwrap_or_else(|error| {
        eprintln!("{}", context());
        resume_unwind(error)
    });
    Some(verdict)
}

/// Runs one world, and counts frames by verdict: sent, passed, dropped.
fn world(bench: &mut Bench, seed: u64, counts: &mut [u32; 3]) {
    let mut random = Rng::with_seed(seed);
    bench.entries = draw_entries(&mut random, bench);
    bench.write();
    let keys = [bench.client.key(), bench.server.key()];
    let mut model = Model { keys, entries: bench.entries.map(Some) };
    for _ in 0..FRAMES {
        match one(&mut random, bench, &mut model) {
            Some(REDIRECT) => counts[0] += 1,
            Some(DROP) => counts[2] += 1,
            Some(_) => counts[1] += 1,
            None => {}
        }
    }
}

fn worlds(seeds: std::ops::Range<u64>) {
    for v6 in [false, true] {
        let Some(mut bench) = bench(v6) else { return };
        let mut counts = [0; 3];
        for seed in seeds.clone() {
            let failed = catch_unwind(AssertUnwindSafe(|| world(&mut bench, seed, &mut counts)));
            if let Err(error) = failed {
                eprintln!("seed {seed}, IPv6: {v6}");
                resume_unwind(error);
            }
        }
        println!("IPv6 {v6}: {} sent, {} passed, {} dropped", counts[0], counts[1], counts[2]);
        let all: u32 = counts.iter().sum();
        assert!(counts[0] > all / 3 && counts[1] > all / 10 && counts[2] > all / 100, "a dull test: {counts:?}");
    }
}

#[test]
fn random_frames_are_treated_as_the_model_says() {
    worlds(0..100);
}

#[test]
#[ignore = "a minute: `cargo xtask proof long` runs it"]
fn many_random_frames_are_treated_as_the_model_says() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    worlds(seed.map_or(1_000_000..1_010_000, |seed| seed..seed + 1));
}
