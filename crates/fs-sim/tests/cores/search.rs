//! Packets without an owner whose port or echoed timestamp names a core: the named core searches
//! for an owner at a bounded rate.

use super::moves::Moves;
use super::{Cores, PORTS, icmp_error};
use fs_core::{CoreId, FlowKey, FramePool};
use fs_sim::host::HostConfig;
use fs_sim::wire;

/// Number of forged packets, all in one second.
const FORGED: u16 = 6_000;

/// Budget of a core per second: `STRAYS_PER_SECOND` in `fs-core/src/rx/limits.rs`.
const BUDGET: u64 = 4096;

/// Makes an ACK from host `from` to the other one. `ecr` is the echoed timestamp; 0 names no core.
fn ack(from: u8, ports: (u16, u16), ecr: u32) -> Vec<u8> {
    let mut packet = vec![0; 52];
    packet[..12].copy_from_slice(&[0x45, 0, 0, 52, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet[12..20].copy_from_slice(&[10, 77, 0, from + 1, 10, 77, 0, 2 - from]);
    packet[20..22].copy_from_slice(&ports.0.to_be_bytes());
    packet[22..24].copy_from_slice(&ports.1.to_be_bytes());
    // 32 bytes of header, ACK, window; two NOPs and the timestamps.
    (packet[32], packet[33], packet[34]) = (0x80, 0x10, 1);
    packet[40..48].copy_from_slice(&[1, 1, 8, 10, 0, 0, 0, 1]);
    packet[48..52].copy_from_slice(&ecr.to_be_bytes());
    let sum = wire::checksum(&packet[..20], 0);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    // Pseudo header: the addresses, the protocol and the length.
    let addresses = !wire::checksum(&packet[12..20], 0);
    let sum = wire::checksum(&packet[20..], u64::from(addresses) + 6 + 32);
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Sends core 0 forged packets that all name core 1 and have no owner.
fn search_is_bounded(cores: u16, named_by_port: bool, forged: impl Fn(u16) -> Vec<u8>) {
    let config = HostConfig { cores, ephemeral_ports: PORTS, ..HostConfig::plain() };
    let mut host = Cores::new(0, config);
    for shard in host.host.shards.iter_mut().filter(|_| named_by_port) {
        shard.stack.set_steering(Some(Box::new(|_: &FlowKey| Some(CoreId(1)))));
    }
    let mut replies = 0;
    for n in 0..FORGED {
        host.arrive(0, &forged(n));
        host.run();
        replies += host.sent.drain(..).count() as u64;
    }
    assert_eq!(sum!(host, packets_forwarded), u64::from(FORGED), "each goes to the named core");
    // A search asks each core once and ends where it began.
    let asked = sum!(host, packets_asked);
    assert_eq!(asked, BUDGET * u64::from(cores), "packets asked, with {cores} cores");
    assert!(replies <= BUDGET, "{replies} replies: a packet that was not searched for may have an owner");
    assert!(host.host.shards.iter().all(|shard| shard.stack.pool().in_use() == 0));
}

#[test]
fn search_by_a_core_that_an_echo_names_is_bounded() {
    for cores in [2, 3] {
        search_is_bounded(cores, false, |n| ack(1, (n + 1024, 80), u32::from(n) << 2 | 1));
    }
}

#[test]
fn search_by_a_core_that_a_port_names_is_bounded() {
    for cores in [2, 3] {
        search_is_bounded(cores, true, |n| ack(1, (80, PORTS.0 + n), 0));
        // The echo names a third core, or this one.
        search_is_bounded(cores, true, |n| ack(1, (80, PORTS.0 + n), u32::from(n)));
    }
}

#[test]
fn search_for_an_icmp_error_by_the_named_core_is_bounded() {
    for cores in [2, 3] {
        search_is_bounded(cores, true, |n| icmp_error(&ack(0, (PORTS.0 + n, 80), 0), 3, 3));
    }
}

#[test]
fn search_for_a_moved_connection_that_has_ended_is_bounded() {
    for is_icmp in [false, true] {
        let mut moves = Moves::new(&[1, 2], false);
        let peer = moves.connect(5000, 2);
        moves.close_listener(2);
        moves.pair.run(|_| 2);
        let accepted = moves.accept(1).expect("the connection that moved");
        moves.pair.server.host.shards[0].stack.tcp_abort(peer);
        moves.pair.run(|_| 2);
        moves.pair.client.host.shards[1].stack.tcp_close(accepted);
        moves.pair.run(|_| 2);
        let host = &mut moves.pair.client;
        let (forwarded, asked) = (sum!(host, packets_forwarded), sum!(host, packets_asked));
        let forged = if is_icmp { icmp_error(&ack(0, (80, 5000), 0), 3, 3) } else { ack(1, (5000, 80), 0) };
        for _ in 0..FORGED {
            host.arrive(2, &forged);
            host.run();
        }
        let forwarded = sum!(host, packets_forwarded) - forwarded;
        assert_eq!(forwarded, u64::from(FORGED), "core 2 remembers that it moved to core 1; ICMP: {is_icmp}");
        let asked = sum!(host, packets_asked) - asked;
        assert_eq!(asked, BUDGET * host.count() as u64, "ICMP: {is_icmp}");
    }
}
