//! Attackers that do not see the connection: guessed RST, SYN and text (RFC 5961), scans, packets
//! with our own source address.

use crate::{OFFER, connected, listening, plan, sent, works};
use fs_core::{DropReason, Duration, FramePool, Keepalive, Shutdown, TcpOptions, TcpState};
use fs_fuzz::host::Host;
use fs_fuzz::packet::{self, ACK, FIN, LOCAL, PSH, RST, SYN, Tcp};
use fs_fuzz::peer::{PORT, Peer, segment};

/// Sends a segment of the connection's flow, from an attacker that knows its addresses and ports.
fn forge(host: &mut Host, flags: u8, seq: u32, ack: u32, payload: &[u8]) {
    let mut out = Vec::new();
    // Timestamps are the most that a guess may have right.
    let ts = packet::timestamps(0x7000_0000, 0);
    let tcp = Tcp { from: 1000, to: PORT, seq, ack, flags, window: 1000, payload, options: &ts, ..Tcp::default() };
    tcp.write(&mut out, false);
    host.receive(&out, true);
}

#[test]
fn blind_reset() {
    let (mut host, _, mut peer, id) = connected(plan());
    let now = host.stack.receiving(id).unwrap();
    let window = now.edge.wrapping_sub(now.nxt);
    let mut answers = 0;
    // A quarter of the window apart, around the whole sequence space, and next to the valid number.
    let around = (0..=u32::MAX / (window / 4)).map(|n| n.wrapping_mul(window / 4).wrapping_add(now.nxt + 1));
    for seq in around.chain([now.nxt.wrapping_sub(1), now.nxt + 1, now.edge, now.edge + 1]) {
        forge(&mut host, RST, seq, 0, &[]);
        forge(&mut host, RST | ACK, seq, peer.ack, &[]);
        answers += sent(&mut host);
    }
    assert_eq!(host.stack.tcp_state(id), Ok(TcpState::Established));
    assert_eq!(answers, 1, "one challenge, since no time has passed: RFC 5961 section 10");
    assert!(host.stack.stats().dropped(DropReason::InexactRst) >= 8);
    works(&mut host, &mut peer, id, b"hello");
    // The peer's own RST is exact.
    forge(&mut host, RST, peer.seq, 0, &[]);
    assert_ne!(host.stack.tcp_state(id), Ok(TcpState::Established));
}

#[test]
fn blind_segments_keep_no_dead_connection() {
    // Keepalive counts only segments with acceptable numbers as signs of life.
    let (mut host, _, peer, id) = connected(plan());
    let keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(1), count: 3 };
    host.stack.tcp_set_options(id, TcpOptions { keepalive: Some(keepalive), ..TcpOptions::default() }).unwrap();
    for _ in 0..60 {
        host.advance(Duration::from_millis(500));
        forge(&mut host, ACK, peer.seq.wrapping_add(0x4000_0000), peer.ack, &[]);
        sent(&mut host);
    }
    assert_eq!(host.stack.tcp_state(id), Ok(TcpState::Closed));
}

#[test]
fn blind_syn() {
    let (mut host, _, mut peer, id) = connected(plan());
    let now = host.stack.receiving(id).unwrap();
    let mut answers = 0;
    for n in 0..5000u32 {
        let seq = if n < 100 { now.nxt.wrapping_add(n).wrapping_sub(50) } else { n.wrapping_mul(0x9e37_79b1) };
        forge(&mut host, SYN, seq, 0, &[]);
        forge(&mut host, SYN | ACK, seq, peer.ack, &[]);
        answers += sent(&mut host);
    }
    assert_eq!(answers, 1);
    assert_eq!(host.stack.receiving(id).unwrap().nxt, now.nxt);
    works(&mut host, &mut peer, id, b"hello");
}

#[test]
fn blind_data() {
    let mut plan = plan();
    // Without timestamps, which would be a second number to guess.
    plan.tcp.timestamps = false;
    let (mut host, _, mut peer, id) = connected(plan);
    let now = host.stack.receiving(id).unwrap();
    // The sequence number is right; the acknowledgment number has to be guessed, too (RFC 5961
    // section 5).
    let acceptable = 60_000u32 << peer.own_shift;
    for n in 0..20_000u32 {
        let ack = peer.ack.wrapping_add(1).wrapping_add(n.wrapping_mul(200_000));
        if peer.ack.wrapping_sub(ack) <= acceptable {
            continue;
        }
        let mut out = Vec::new();
        let tcp = Tcp { from: 1000, to: PORT, seq: now.nxt, ack, flags: ACK | PSH, payload: b"evil", ..Tcp::default() };
        tcp.write(&mut out, false);
        host.receive(&out, true);
    }
    assert_eq!(host.stack.receiving(id).unwrap(), now, "nothing was taken");
    assert!(sent(&mut host) <= 1);
    assert!(host.stack.stats().dropped(DropReason::BadAck) > 15_000);
    works(&mut host, &mut peer, id, b"good");
}

#[test]
fn challenge_acks_reveal_nothing() {
    // CVE-2016-5696: a limit of challenge ACKs shared by all connections reveals to a third party
    // whether its forged segment caused one. The limit per connection applies first, and the shared
    // one differs in each second.
    let (mut host, listener) = listening(plan());
    let mut drawn = Vec::new();
    for second in 0..8u16 {
        host.advance(Duration::from_secs(1));
        let mut peers: Vec<_> =
            (0..20).map(|n| Peer::open(&mut host, listener, 2000 + second * 100 + n, 60_000, OFFER).unwrap()).collect();
        let before = host.stack.stats().challenge_acks;
        for _ in 0..200 {
            for (peer, _) in &mut peers {
                let (seq, ack) = (peer.seq + 100, peer.ack);
                peer.send(&mut host, RST, seq, ack, &[], &[]);
            }
        }
        sent(&mut host);
        let here = host.stack.stats().challenge_acks - before;
        assert!(here <= 20, "one for each connection in half a second: {here}");
        peers.iter().for_each(|&(_, id)| host.stack.tcp_abort(id));
        sent(&mut host);
    }
    // The shared limit itself: many connections, each causing one challenge ACK.
    for round in 0..6u64 {
        let mut plan = plan();
        plan.tcp.challenge_acks = 100;
        plan.limits.connections = 500;
        let (mut host, listener) = listening(plan);
        host.advance(Duration::from_secs(round + 1));
        let mut peers: Vec<_> =
            (0..300).map(|n| Peer::open(&mut host, listener, 2000 + n, 60_000, OFFER).unwrap()).collect();
        for (peer, _) in &mut peers {
            let (seq, ack) = (peer.seq + 100, peer.ack);
            peer.send(&mut host, RST, seq, ack, &[], &[]);
        }
        sent(&mut host);
        drawn.push(host.stack.stats().challenge_acks);
    }
    assert!(drawn.iter().all(|&n| (50..=150).contains(&n)), "{drawn:?}");
    assert!(drawn.iter().any(|n| n != &drawn[0]), "the shared limit can be counted out: {drawn:?}");
}

#[test]
fn land() {
    let (mut host, _) = listening(plan());
    for flags in [SYN, SYN | ACK, ACK, RST, FIN | ACK] {
        for source in [LOCAL, [127, 0, 0, 1], [255, 255, 255, 255], [224, 0, 0, 1], [0, 0, 0, 0]] {
            let mut out = Vec::new();
            let tcp = Tcp { from: PORT, to: PORT, seq: 9, flags, source: Some(source), ..Tcp::default() };
            tcp.write(&mut out, true);
            host.receive(&out, false);
            assert_eq!(sent(&mut host), 0, "no answer to {source:?}");
        }
    }
    assert_eq!((host.stack.tcp_handshakes(), host.stack.pool().in_use()), (0, 0));
    assert_eq!(host.stack.stats().dropped(DropReason::BadAddress), 25);
}

#[test]
fn port_scan() {
    let (mut host, _, mut peer, id) = connected(plan());
    let before = host.stack.footprint();
    // SYN, connect, NULL, FIN, Xmas and ACK scans over all ports.
    for port in (1..=u16::MAX).step_by(7).filter(|&p| p != PORT) {
        for flags in [SYN, 0, FIN, FIN | PSH | 32, ACK] {
            let mut out = Vec::new();
            let tcp = Tcp { from: 4444, to: port, seq: 5, ack: 6, flags, ..Tcp::default() };
            tcp.write(&mut out, false);
            host.receive(&out, true);
            let mut answer = 0;
            host.transmit(64, false, |packet| {
                answer += 1;
                let s = segment(packet).unwrap();
                assert!(s.flags.rst() && packet.len() == 40, "a reset, no larger than what drew it");
            });
            assert_eq!(answer, 1);
        }
    }
    assert_eq!((host.stack.footprint(), host.stack.pool().in_use()), (before, 0));
    works(&mut host, &mut peer, id, b"hello");
}

#[test]
fn reset_loops() {
    // A RST is never answered at any destination: two hosts cannot be made to reset each other
    // endlessly.
    let (mut host, _, peer, id) = connected(plan());
    for (from, to) in [(4444, 81), (4444, PORT), (1000, PORT)] {
        for flags in [RST, RST | ACK, RST | FIN, RST | PSH] {
            let mut out = Vec::new();
            let seq = peer.seq.wrapping_sub(100_000);
            Tcp { from, to, seq, ack: peer.ack, flags, ..Tcp::default() }.write(&mut out, false);
            host.receive(&out, true);
            assert_eq!(sent(&mut host), 0);
        }
    }
    assert_eq!(host.stack.tcp_state(id), Ok(TcpState::Established));
}

#[test]
fn ack_storm() {
    // An attacker has desynchronized both ends, and each answers unacceptable segments with an ACK.
    // Linux's tcp_invalid_ratelimit and ours end the loop.
    let (mut host, _, mut peer, id) = connected(plan());
    let mut answers = 0;
    for _ in 0..10_000 {
        let (seq, ack) = (peer.seq.wrapping_sub(50_000), peer.ack.wrapping_add(70_000));
        peer.send(&mut host, ACK, seq, ack, &[], &[]);
        answers += sent(&mut host);
        host.advance(Duration::from_micros(100));
    }
    assert!((1..=3).contains(&answers), "{answers} ACKs in a second");
    works(&mut host, &mut peer, id, b"hello");
}

#[test]
fn ack_storm_in_time_wait() {
    // Two ends in TIME-WAIT would answer each other's ACKs endlessly.
    let (mut host, _, mut peer, id) = connected(plan());
    host.stack.tcp_shutdown(id, Shutdown::Write).unwrap();
    sent(&mut host);
    let (seq, ack) = (peer.seq, peer.ack.wrapping_add(1));
    peer.send(&mut host, ACK | FIN, seq, ack, &[], &[]);
    sent(&mut host);
    assert_eq!(host.stack.tcp_time_waits(), 1);
    let mut answers = 0;
    for _ in 0..10_000 {
        peer.send(&mut host, ACK, seq.wrapping_sub(50_000), ack, &[], &[]);
        answers += sent(&mut host);
        host.advance(Duration::from_micros(100));
    }
    assert!((1..=3).contains(&answers), "{answers} ACKs in a second");
}

#[test]
fn forged_congestion_marks() {
    // An accepted mark would halve the peer's sending rate; the ACK number has to be guessed first
    // (RFC 5961 5).
    const ECE: u8 = 0x40;
    const CWR: u8 = 0x80;
    const CE: u8 = 3;
    let (mut host, listener) = listening(plan());
    let mut out = Vec::new();
    let syn = Tcp { from: 1000, to: PORT, seq: 9, flags: SYN | ECE | CWR, window: 60_000, ..Tcp::default() };
    syn.write(&mut out, false);
    host.receive(&out, true);
    let mut answer = None;
    host.transmit(64, false, |packet| answer = segment(packet));
    let ack = answer.expect("a SYN-ACK").seq.0.wrapping_add(1);
    let marked = |host: &mut Host, seq: u32, ack: u32| {
        let mut out = Vec::new();
        let text = Tcp { from: 1000, to: PORT, seq, ack, flags: ACK, window: 60_000, payload: b"x", ..Tcp::default() };
        Tcp { ecn: CE, ..text }.write(&mut out, false);
        host.receive(&out, true);
        let (mut echoes, mut answers) = (0, 0);
        host.transmit(64, false, |packet| {
            answers += 1;
            echoes += usize::from(packet[20 + 13] & ECE != 0);
        });
        (echoes, answers)
    };
    let mut out = Vec::new();
    Tcp { from: 1000, to: PORT, seq: 10, ack, flags: ACK, window: 60_000, ..Tcp::default() }.write(&mut out, false);
    host.receive(&out, true);
    host.stack.tcp_accept(listener).expect("a connection");
    sent(&mut host);
    let mut answered = 0;
    for n in 0..100 {
        let (echoes, answers) = marked(&mut host, 10, ack.wrapping_add(5000 + n));
        assert_eq!(echoes, 0, "a forged mark has no effect");
        answered += answers;
    }
    assert!(answered <= 1, "{answered} answers");
    assert_eq!(marked(&mut host, 10, ack), (1, 1), "the peer's own");
}
