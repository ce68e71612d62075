//! Forged ICMP: RFC 5927.

use crate::{connected, listening, plan, works};
use fs_core::internals::Sum;
use fs_core::{Connect, CoreMessage, DropReason, Error, TcpOptions, TcpState};
use fs_fuzz::host::Host;
use fs_fuzz::packet::{LOCAL, PEER, SYN, Tcp, ipv4};
use fs_fuzz::peer::{PORT, segment};

/// Makes an error message about a segment of ours from port `from` to port `to`.
pub(crate) fn error(kind: u8, code: u8, mtu: u16, from: u16, to: u16, seq: u32) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0, 0, 0];
    message.extend_from_slice(&mtu.to_be_bytes());
    ipv4(&mut message, 6, 0, 20);
    message[20..24].copy_from_slice(&LOCAL);
    message[24..28].copy_from_slice(&PEER);
    message[18..20].copy_from_slice(&[0, 0]);
    let sum = Sum::of(&message[8..28]).finish();
    message[18..20].copy_from_slice(&sum.to_be_bytes());
    message.extend_from_slice(&from.to_be_bytes());
    message.extend_from_slice(&to.to_be_bytes());
    message.extend_from_slice(&seq.to_be_bytes());
    let sum = Sum::of(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut out = Vec::new();
    ipv4(&mut out, 1, 0, message.len());
    out.extend_from_slice(&message);
    out
}

/// Makes a router's message that a datagram from port 500 to `to` was larger than `mtu`.
fn too_big_for_a_datagram(to: [u8; 4], mtu: u16) -> Vec<u8> {
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend_from_slice(&mtu.to_be_bytes());
    ipv4(&mut message, 17, 0, 8);
    message[20..24].copy_from_slice(&LOCAL);
    message[24..28].copy_from_slice(&to);
    message[18..20].copy_from_slice(&[0, 0]);
    let sum = Sum::of(&message[8..28]).finish();
    message[18..20].copy_from_slice(&sum.to_be_bytes());
    message.extend_from_slice(&[1, 244, 0, 9, 0, 8, 0, 0]);
    let sum = Sum::of(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut out = Vec::new();
    ipv4(&mut out, 1, 0, message.len());
    out.extend_from_slice(&message);
    out
}

/// Sends what is due. Returns the size of the largest packet.
fn largest(host: &mut Host) -> usize {
    let mut largest = 0;
    host.transmit(64, false, |packet| largest = largest.max(packet.len()));
    host.check();
    largest
}

#[test]
fn path_mtu_too_small() {
    let (mut host, _, mut peer, id) = connected(plan());
    let before = host.stack.sending(id).unwrap();
    // Nothing is in flight: the quoted number cannot be ours (RFC 5927 4.1).
    for seq in [before.una, before.una.wrapping_sub(1), before.una.wrapping_add(100_000)] {
        host.receive(&error(3, 4, 68, 80, 1000, seq), false);
    }
    assert_eq!(host.stack.sending(id).unwrap().mss, before.mss);
    host.stack.tcp_send(id, &vec![1; 100_000]).unwrap();
    largest(&mut host);
    // The number is right, the size absurd: RFC 1191 allows an IPv4 MTU of 68 bytes, which would
    // leave 28 bytes per segment.
    for mtu in [0, 1, 68, 300] {
        host.receive(&error(3, 4, mtu, 80, 1000, before.una), false);
    }
    let now = host.stack.sending(id).unwrap();
    assert!(now.mss >= 488, "a floor under the segment size: {}", now.mss);
    // A size larger than ours has no effect.
    let small = now.mss;
    host.receive(&error(3, 4, 9000, 80, 1000, before.una), false);
    assert_eq!(host.stack.sending(id).unwrap().mss, small);
    largest(&mut host);
    let nxt = host.stack.sending(id).unwrap().nxt;
    peer.ack = nxt;
    works(&mut host, &mut peer, id, b"hello");
}

#[test]
fn hard_errors() {
    let (mut host, _, mut peer, id) = connected(plan());
    host.stack.tcp_send(id, &vec![1; 10_000]).unwrap();
    largest(&mut host);
    let una = host.stack.sending(id).unwrap().una;
    // RFC 5927 section 5.2: on an open connection these errors are soft, even with the right
    // numbers.
    for code in [0, 1, 2, 3, 9, 10, 13] {
        host.receive(&error(3, code, 0, 80, 1000, una), false);
    }
    for (kind, code) in [(11, 0), (11, 1), (12, 0), (4, 0), (5, 0)] {
        host.receive(&error(kind, code, 0, 80, 1000, una), false);
    }
    assert_eq!(host.stack.tcp_state(id), Ok(TcpState::Established));
    peer.ack = host.stack.sending(id).unwrap().nxt;
    works(&mut host, &mut peer, id, b"hello");
}

#[test]
fn errors_for_an_opening_connection() {
    let (mut host, _) = listening(plan());
    let remote = std::net::SocketAddr::from((PEER, 7000));
    let id = host.stack.tcp_connect(Connect { remote, local: None, options: TcpOptions::default() }).unwrap();
    let mut syn = None;
    host.transmit(64, false, |packet| syn = segment(packet));
    let syn = syn.unwrap();
    let from = syn.key.remote_port();
    // Another sequence number, another port: no socket matches.
    host.receive(&error(3, 3, 0, from, 7000, syn.seq.0.wrapping_add(1)), false);
    host.receive(&error(3, 3, 0, from, 7001, syn.seq.0), false);
    assert_eq!(host.stack.stats().dropped(DropReason::IcmpUnmatched), 2);
    // Source quench and redirects match no socket, whatever they quote.
    for kind in [4, 5] {
        for code in 0..4 {
            host.receive(&error(kind, code, 0, from, 7000, syn.seq.0), false);
        }
    }
    assert_eq!((host.stack.tcp_state(id), host.stack.tcp_take_error(id)), (Ok(TcpState::SynSent), Ok(None)));
    // One that quotes the SYN ends the attempt, whether retries could help or not (as Linux).
    let kinds = [
        (3, 0, Error::NetworkUnreachable),
        (3, 1, Error::HostUnreachable),
        (3, 3, Error::ConnectionRefused),
        (11, 0, Error::HostUnreachable),
    ];
    for (kind, code, expected) in kinds {
        let id = host.stack.tcp_connect(Connect { remote, local: None, options: TcpOptions::default() }).unwrap();
        let mut syn = None;
        host.transmit(64, false, |packet| syn = segment(packet));
        let syn = syn.unwrap();
        host.receive(&error(kind, code, 0, syn.key.remote_port(), 7000, syn.seq.0), false);
        assert_eq!(host.stack.tcp_take_error(id), Ok(Some(expected)));
        host.stack.tcp_close(id);
    }
    host.stack.tcp_close(id);
    assert_eq!(host.stack.tcp_connections(), 0);
}

#[test]
fn errors_for_a_handshake() {
    let (mut host, _) = listening(plan());
    let mut out = Vec::new();
    Tcp { from: 1000, to: PORT, seq: 7, flags: SYN, window: 512, ..Tcp::default() }.write(&mut out, false);
    host.receive(&out, true);
    let mut iss = 0;
    host.transmit(64, false, |packet| iss = segment(packet).unwrap().seq.0);
    // Other sequence numbers are not our SYN-ACK's.
    for seq in [iss.wrapping_add(1), iss.wrapping_sub(1), 0] {
        host.receive(&error(3, 3, 0, PORT, 1000, seq), false);
    }
    assert_eq!((host.stack.tcp_handshakes(), host.stack.stats().dropped(DropReason::IcmpUnmatched)), (1, 3));
    host.receive(&error(3, 3, 0, PORT, 1000, iss), false);
    assert_eq!(host.stack.tcp_handshakes(), 0, "the client is not there");
}

/// The operator's minimum applies where the minimum for a router's message is lower.
#[test]
fn path_mtu_above_the_operators_floor() {
    let mut plan = plan();
    plan.tcp.mss_floor = 1200;
    let (mut host, _, _, id) = connected(plan);
    host.stack.tcp_send(id, &vec![1; 100_000]).unwrap();
    largest(&mut host);
    let una = host.stack.sending(id).unwrap().una;
    host.receive(&error(3, 4, 1000, 80, 1000, una), false);
    assert_eq!(host.stack.sending(id).unwrap().mss, 1200 - 12, "timestamps are within it");
}

/// An unconnected socket may have sent to any destination: each message is new, and other cores are
/// notified at a bounded rate.
#[test]
fn path_mtu_flood() {
    let mut plan = plan();
    plan.cores = (0, 2);
    let mut host = Host::new(plan);
    host.stack.udp_bind(std::net::SocketAddr::from((LOCAL, 500))).unwrap();
    let mut outbound = Vec::new();
    host.stack.drain_outbound(&mut outbound);
    outbound.clear();
    for n in 0..10_000u32 {
        let [_, b, c, d] = n.to_be_bytes();
        host.receive(&too_big_for_a_datagram([10, 1 + b, c, d], 1400), false);
    }
    host.stack.drain_outbound(&mut outbound);
    assert!(outbound.iter().all(|message| matches!(message.message, CoreMessage::PathMtu { .. })));
    assert!(!outbound.is_empty() && outbound.len() <= 2048, "{} messages", outbound.len());
}
