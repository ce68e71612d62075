//! The engine's fast paths for ordinary packets (header prediction, the single segment, reads and
//! writes of one frame, the parser of such packets) have the same results as the slow paths: the
//! same scripts with and without them yield the same packets, events, deadlines and counters.

use fs_core::Ecn;
use fs_core::internals::Sum;
use fs_core::internals::{Parsed, View, parse};
use fs_core::{
    CongestionControl, Connect, Duration, Framing, Keepalive, Linger, Listen, RxChecksum, TcpConfig, TcpId, TcpOptions,
};
use fs_fuzz::host::{Host, IFACE, Plan, address};
use fs_fuzz::input::Input;
use fs_fuzz::middlebox::{Passing, Trouble};
use fs_fuzz::packet::{Tcp, timestamps};
use fs_fuzz::peer::{PORT, listen};
use fs_fuzz::trace::{note, run};
use fs_fuzz::{frame_to_engine, reassembly, scoreboard, two_ended};
use std::net::SocketAddr;

/// A target.
type Run = fn(&[u8]) -> u64;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Compares both runs. Returns the number of packets on the fast path.
fn compare(name: &str, target: Run, input: &[u8]) -> u64 {
    let (short, long) = (run(target, input, true), run(target, input, false));
    assert_eq!(short.digest, long.digest, "{name} differs on {input:02x?}");
    assert_eq!(long.taken, 0);
    short.taken
}

/// Changes one of the options that ordinary connections do not set, which the fast paths need not
/// check while they have their defaults.
fn rare(input: &mut Input<'_>, now: TcpOptions) -> TcpOptions {
    let on = input.chance(128);
    let ms = |n| Duration::from_millis(n);
    match input.below(13) {
        0 => {
            let times = Keepalive { idle: ms(200), interval: ms(100), count: 3 };
            TcpOptions { keepalive: on.then_some(times), ..now }
        }
        1 => TcpOptions { ttl: on.then_some(9), ..now },
        2 => TcpOptions { tos: if on { 0x10 } else { 0 }, ..now },
        3 => TcpOptions { cork: on, ..now },
        4 => TcpOptions { user_timeout: on.then_some(ms(700)), ..now },
        5 => {
            let low = input.pick(&[300, 2000]);
            TcpOptions { not_sent_low: on.then_some(low), ..now }
        }
        6 => TcpOptions { window_clamp: on.then_some(3000), ..now },
        7 => TcpOptions { receive_low: if on { 700 } else { 0 }, ..now },
        8 => TcpOptions { pacing_max: on.then_some(300_000), ..now },
        9 => TcpOptions { oob_inline: on, ..now },
        10 => TcpOptions { receive_buffer: on.then_some(9000), ..now },
        11 => TcpOptions { send_buffer: on.then_some(60_000), ..now },
        _ => TcpOptions { linger: if on { Linger::Timeout(ms(300)) } else { Linger::Background }, ..now },
    }
}

/// Changes a packet in transit, or returns an ICMP error about it.
fn meddle(input: &mut Input<'_>, packet: &mut [u8], link: usize) -> Option<Vec<u8>> {
    let mut packet = Passing::of(packet, link)?;
    match input.below(8) {
        // Mostly beyond the data that has arrived.
        0..=2 => packet.set_urgent(input.word() % 4000),
        3 | 4 => packet.set_window(input.pick(&[0, 0, 1, 700])),
        5 | 6 => return Some(packet.error(Trouble::Unreachable)),
        _ => return Some(packet.error(Trouble::TooLarge(input.pick(&[1300, 1400])))),
    }
    None
}

/// Two connections between two hosts that write and read by script. Sometimes a packet is lost,
/// repeated, late or changed by a middlebox, and sometimes time passes.
fn steady(data: &[u8]) -> u64 {
    steady_over(data, false)
}

/// The same over IPv6.
fn steady_v6(data: &[u8]) -> u64 {
    steady_over(data, true)
}

fn steady_over(data: &[u8], v6: bool) -> u64 {
    let mut input = Input::new(data);
    let bits = input.byte();
    let tcp = TcpConfig {
        timestamps: bits & 1 == 0,
        sack: bits & 2 == 0,
        window_scaling: bits & 4 == 0,
        idle_restart: bits & 8 == 0,
        ecn: if bits & 0x30 == 0x30 { Ecn::Active } else { Ecn::Passive },
        congestion_control: input.pick(CongestionControl::ALL),
        receive_buffer_initial: input.pick(&[64 << 10, 4096, 20_000]),
        send_buffer: input.pick(&[64 << 10, 8192]),
        initial_window: if bits & 3 == 3 { 1 } else { 10 },
        ..TcpConfig::default()
    };
    let tx_checksum = bits & 0xc0 == 0xc0;
    // With link addresses, which may be forgotten; with few frames, so that a write finds none.
    let place = input.byte();
    let (framing, link) = if place & 1 == 0 { (Framing::Ip, 0) } else { (Framing::Ethernet, 14) };
    let frames = if place & 6 == 6 { 60 } else { 250 };
    let plan = |last| Plan { last, tx_checksum, frames, v6, framing, ..Plan::new(tcp.clone()) };
    let mut hosts = [1, 2].map(|last| Host::new(plan(last)));
    let remote = SocketAddr::new(address(v6, 2), PORT);
    let listener = hosts[1].stack.tcp_listen(Listen { at: remote, ..listen() }).expect("a listener");
    let options = TcpOptions { nodelay: bits & 0x40 == 0, ..TcpOptions::default() };
    let mut ids: [Vec<TcpId>; 2] = Default::default();
    for _ in 0..2 {
        let connect = Connect { remote, local: None, options };
        ids[0].push(hosts[0].stack.tcp_connect(connect).expect("a connection"));
    }
    let mut links: [Vec<Vec<u8>>; 2] = Default::default();
    let mut buf = vec![0; 16384];
    let mut step = |hosts: &mut [Host; 2], input: &mut Input<'_>, ids: &[Vec<TcpId>; 2], lossy: bool| {
        for (host, link) in hosts.iter_mut().zip(&mut links) {
            host.transmit(64, false, |packet| link.push(packet.to_vec()));
        }
        for side in 0..2 {
            if lossy && !links[side].is_empty() {
                let (at, last) = (input.below(links[side].len()), links[side].len() - 1);
                match input.byte() {
                    0..4 => drop(links[side].remove(at)),
                    4..8 => links[side].swap(at, last),
                    8..12 => links[side].push(links[side][at].clone()),
                    12..20 => {
                        if let Some(reply) = meddle(input, &mut links[side][at], link) {
                            hosts[side].receive(&reply, tx_checksum);
                        }
                    }
                    21..27 => {
                        // The window closes below the in-flight data, which is lost: a timeout
                        // finds it closed.
                        if let Some(mut packet) = Passing::of(&mut links[side][at], link) {
                            packet.set_window(0);
                            links[1 - side].clear();
                        }
                    }
                    20 => hosts[side].stack.remove_neighbour(IFACE, address(v6, 2 - side as u8)),
                    _ => {}
                }
            }
            for packet in links[side].drain(..) {
                // The checksum is left to the device if it completes checksums.
                hosts[1 - side].receive(&packet, tx_checksum);
            }
        }
        for (side, ids) in ids.iter().enumerate() {
            for &id in ids {
                let info = hosts[side].stack.tcp_info(id);
                note(format!("{info:?}").as_bytes());
            }
        }
        hosts.iter().for_each(Host::check);
    };
    for _ in 0..20 {
        hosts.iter_mut().for_each(|h| h.advance(Duration::from_millis(1)));
        step(&mut hosts, &mut input, &ids, false);
        ids[1].extend(hosts[1].stack.tcp_accept(listener).map(|(id, _)| id));
    }
    while !input.is_done() {
        let (side, which) = (input.below(2), input.below(2));
        let stack = &mut hosts[side].stack;
        let Some(&id) = ids[side].get(which) else { break };
        match input.below(14) {
            0..=4 => {
                let n = input.pick(&[64usize, 1, 500, 1448, 1460, 3000, 4096, 0, 16384]);
                note(format!("{:?}", stack.tcp_send(id, &buf[..n])).as_bytes());
            }
            5..=7 => {
                let n = input.pick(&[4096usize, 64, 10, 2000, 16384]);
                note(format!("{:?}", stack.tcp_recv(id, &mut buf[..n])).as_bytes());
            }
            10 => {
                let n = input.pick(&[1usize, 100, 1448]);
                let sent = match input.below(4) {
                    0 => stack.tcp_send_urgent(id, &buf[..n]),
                    1 => stack.tcp_send_record(id, &buf[..n]),
                    _ => stack.tcp_send_more(id, &buf[..n]),
                };
                note(format!("{sent:?}").as_bytes());
            }
            11 => {
                let changed = stack.tcp_options(id).and_then(|now| stack.tcp_set_options(id, rare(&mut input, now)));
                note(format!("{changed:?}").as_bytes());
            }
            8 => {
                let us = input.pick(&[10u64, 300, 5000, 45_000, 250_000, 2_000_000, 700_000_000]);
                hosts.iter_mut().for_each(|h| h.advance(Duration::from_micros(us)));
            }
            12 => note(format!("{:?}", stack.tcp_push(id)).as_bytes()),
            13 => note(format!("{:?}", stack.tcp_take_error(id)).as_bytes()),
            _ if input.chance(8) => drop(stack.tcp_shutdown(id, fs_core::Shutdown::Write)),
            _ => {}
        }
        step(&mut hosts, &mut input, &ids, true);
    }
    hosts.iter().map(Host::signature).fold(0, |a, b| a.rotate_left(1) ^ b)
}

#[test]
fn fast_paths_equal_slow_paths() {
    steady_scripts(100, 500);
}

#[test]
#[ignore = "long: make proof"]
fn fast_paths_equal_slow_paths_in_many_scripts() {
    steady_scripts(1500, 10_000);
}

/// Compares `rounds` scripts of each kind, in which more than `least` packets take the fast path.
fn steady_scripts(rounds: u32, least: u64) {
    for (name, target) in [("steady", steady as Run), ("steady_v6", steady_v6)] {
        let taken = compare_scripts(name, target, rounds);
        assert!(taken > least, "{taken} packets of {name} took the fast path");
    }
}

fn compare_scripts(name: &str, target: Run, rounds: u32) -> u64 {
    let (mut state, mut taken) = (0x5eed, 0);
    for round in 0..rounds {
        let len = 16 + random(&mut state) % 600;
        let mut input: Vec<u8> = (0..len).map(|_| random(&mut state) as u8).collect();
        if round % 2 == 0 {
            // The default configuration.
            input[..4].fill(0);
        }
        taken += compare(name, target, &input);
    }
    taken
}

#[test]
fn fast_paths_equal_slow_paths_with_hostile_packets() {
    hostile_packets(200, 15);
}

#[test]
#[ignore = "long: make proof"]
fn fast_paths_equal_slow_paths_with_many_hostile_packets() {
    hostile_packets(3000, 300);
}

/// Compares `rounds` inputs of each target, in which more than `least` packets take the fast path.
fn hostile_packets(rounds: u32, least: u64) {
    let targets: [(&str, Run, u64); 4] = [
        ("two_ended", two_ended, 128),
        ("frame_to_engine", frame_to_engine, 192),
        ("scoreboard", scoreboard, 160),
        ("reassembly", reassembly, 160),
    ];
    let (mut state, mut taken) = (0xdead, 0);
    for (name, target, len_max) in targets {
        // State that a target initializes once is not compared.
        target(&[0; 16]);
        for round in 0..rounds {
            let len = 16 + random(&mut state) % len_max;
            let mask = if round % 2 == 0 { 0xff } else { 0x0f };
            let input: Vec<u8> = (0..len).map(|_| random(&mut state) as u8 & mask).collect();
            taken += compare(name, target, &input);
        }
    }
    assert!(taken > least, "{taken} packets took the fast path");
}

/// TCP over IPv4 on Ethernet takes the fast parser; on a raw IP link the slow parser yields the
/// expected result.
#[test]
fn fast_parser_equals_slow_parser() {
    let mac = [2, 0, 0, 0, 0, 1];
    let ethernet = View { framing: Framing::Ethernet, vlan: None, accept_partial_checksum: false, mac };
    let raw = View { framing: Framing::Ip, ..ethernet };
    let (mut state, mut good) = (0xface, 0);
    for round in 0..200_000u32 {
        let mut pick = |n: u64| random(&mut state) % n;
        let stamps = timestamps(pick(1 << 32) as u32, pick(1 << 32) as u32);
        let options = [&[][..], &stamps[..], &[1, 1, 1, 1], &[2, 4, 5, 0xb4]][pick(4) as usize];
        let payload = vec![pick(256) as u8; [0, 1, 5, 64, 700][pick(5) as usize]];
        let (seq, ack, flags) = (pick(1 << 32) as u32, pick(1 << 32) as u32, pick(256) as u8);
        let tcp =
            Tcp { from: 1000, to: PORT, seq, ack, flags, window: 77, options, payload: &payload, ..Tcp::default() };
        let mut packet = Vec::new();
        tcp.write(&mut packet, pick(4) > 0);
        // Padding, damage anywhere, a header checksum that is repaired.
        packet.resize(packet.len() + [0, 0, 1, 6][pick(4) as usize], 0);
        for _ in 0..pick(3) {
            let at = pick(packet.len().min(60) as u64) as usize;
            packet[at] ^= 1 << pick(8);
        }
        if pick(2) == 0 {
            packet[10..12].fill(0);
            let sum = Sum::of(&packet[..20]).finish();
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        packet.truncate(packet.len() - [0, 0, 0, 1, 30][pick(5) as usize].min(packet.len()));
        let frame = [&mac[..], &[2, 0, 0, 0, 0, 9, 8, 0], &packet].concat();
        let checksum = if pick(2) == 0 { RxChecksum::Verified } else { RxChecksum::Unknown };
        let partial = pick(8) == 0;
        let of = |view: View, bytes: &[u8]| {
            parse(&View { accept_partial_checksum: partial, ..view }, bytes, 0, checksum, || Sum::ZERO)
        };
        let (at_once, mut long) = (of(ethernet, &frame), of(raw, &packet));
        match &mut long {
            Ok(Parsed::Tcp(segment)) => {
                (segment.payload_off, segment.opt_off) = (segment.payload_off + 14, segment.opt_off + 14);
                good += 1;
            }
            // Its offsets differ, or the EtherType contradicts it.
            Ok(_) => continue,
            Err(_) if packet.first().is_none_or(|first| first >> 4 != 4) => {
                assert!(at_once.is_err(), "round {round}");
                continue;
            }
            Err(_) => {}
        }
        assert_eq!(at_once, long, "round {round}: {frame:02x?}");
    }
    assert!(good > 50_000, "{good} packets were TCP and whole");
}
