//! Malicious senders: tiny segments, segments with holes, contradictory segments, and sequence
//! numbers that wrap at the worst position.

use crate::{OFFER, connected, listening, plan, sent, works};
use fs_core::{DropReason, Duration, FramePool, Shutdown, TcpId, TcpState};
use fs_fuzz::host::{Host, Plan};
use fs_fuzz::packet::{ACK, FIN, PSH};
use fs_fuzz::peer::{Offer, Peer, listen, segment, time_of};

/// Sends text `offset` bytes after the peer's next sequence number.
fn text(host: &mut Host, peer: &mut Peer, offset: u32, bytes: &[u8]) {
    if let Some((val, _)) = &mut peer.ts {
        *val += 1;
    }
    let (seq, ack) = (peer.seq.wrapping_add(offset), peer.ack);
    peer.send(host, ACK, seq, ack, &[], bytes);
}

fn read_all(host: &mut Host, id: TcpId) -> Vec<u8> {
    let mut buf = vec![0; 1 << 20];
    let n = host.stack.tcp_recv(id, &mut buf).unwrap_or(0);
    buf.truncate(n);
    buf
}

#[test]
fn out_of_order_memory_bomb() {
    // One byte in each segment, every other byte: a frame of two kilobytes per byte, and a search
    // for each.
    let (mut host, listener, mut peer, id) = connected(plan());
    let before = host.stack.pool().in_use();
    for n in 0..30_000u32 {
        text(&mut host, &mut peer, 1 + 2 * n, b"x");
        if n % 64 == 0 {
            sent(&mut host);
        }
    }
    sent(&mut host);
    let held = host.stack.receiving(id).unwrap().held.len();
    assert!(held <= 128, "{held} pieces");
    assert!(host.stack.pool().in_use() - before <= 128);
    // Others are not affected, and the connection itself continues.
    let (mut other, other_id) = Peer::open(&mut host, listener, 5000, 60_000, OFFER).unwrap();
    works(&mut host, &mut other, other_id, b"hello");
    text(&mut host, &mut peer, 0, b"y");
    assert_eq!(read_all(&mut host, id)[..2], *b"yx");
}

#[test]
fn out_of_order_contiguous_memory_bomb() {
    // A hole, and after it as many one-byte segments as the window allows: one range.
    let (mut host, listener) = crate::listening(plan());
    let mut attackers = Vec::new();
    for n in 0..4 {
        attackers.push(Peer::open(&mut host, listener, 1000 + n, 60_000, OFFER).unwrap());
    }
    for n in 0..3000u32 {
        for (peer, _) in &mut attackers {
            text(&mut host, peer, 1 + n, b"x");
        }
        if n % 16 == 0 {
            sent(&mut host);
        }
    }
    sent(&mut host);
    let pool = host.stack.pool();
    assert!(pool.in_use() <= 4 * 8, "{} frames for 3000 bytes in each of four", pool.in_use());
    let (mut other, other_id) = Peer::open(&mut host, listener, 5000, 60_000, OFFER).unwrap();
    works(&mut host, &mut other, other_id, &[5; 1400]);
    // The hole is filled: stored data is delivered, dropped data is retransmitted.
    let (peer, id) = &mut attackers[0];
    text(&mut host, peer, 0, b"y");
    let got = read_all(&mut host, *id);
    assert!(got[0] == b'y' && got[1..].iter().all(|&b| b == b'x'));
}

#[test]
fn out_of_order_memory_bombs_of_many() {
    // Each within its own limit, and all of them together beyond the core's frames: in-order text
    // finds space.
    let (mut host, listener) = crate::listening(plan());
    let (mut honest, honest_id) = Peer::open(&mut host, listener, 999, 60_000, OFFER).unwrap();
    let mut attackers = Vec::new();
    for n in 0..30 {
        attackers.push(Peer::open(&mut host, listener, 1000 + n, 60_000, OFFER).unwrap());
    }
    for n in 0..100u32 {
        for (peer, _) in &mut attackers {
            text(&mut host, peer, 1 + 2 * n, b"x");
        }
        sent(&mut host);
    }
    let share = host.stack.pool().capacity() / 2;
    let held = host.stack.pool().in_use();
    assert!(held <= share / 4 * 3, "{held} frames of a share of {share}");
    works(&mut host, &mut honest, honest_id, &[5; 1400]);
}

#[test]
fn tiny_segment_flood() {
    // In order, a byte each, to an application that does not read.
    let (mut host, listener) = crate::listening(plan());
    let (mut peer, id) = Peer::open(&mut host, listener, 1000, 60_000, OFFER).unwrap();
    for n in 0..20_000u32 {
        text(&mut host, &mut peer, n, b"x");
        if n % 16 == 0 {
            sent(&mut host);
        }
    }
    sent(&mut host);
    let pool = host.stack.pool();
    assert!(pool.in_use() <= 100, "{} frames for 20 kB in one connection", pool.in_use());
    let (mut other, other_id) = Peer::open(&mut host, listener, 5000, 60_000, OFFER).unwrap();
    works(&mut host, &mut other, other_id, &[5; 1400]);
    let got = read_all(&mut host, id);
    assert_eq!(got, vec![b'x'; 20_000]);
}

#[test]
fn overlapping_and_inconsistent_retransmissions() {
    // The first bytes win, also below, above and across stored ranges; an IDS in between sees the
    // same data.
    let (mut host, _, mut peer, id) = connected(plan());
    text(&mut host, &mut peer, 10, b"AAAAAAAAAA");
    text(&mut host, &mut peer, 5, b"bbbbbbbbbbbbbbbbbbbb");
    text(&mut host, &mut peer, 20, b"CCCCC");
    text(&mut host, &mut peer, 12, b"dddddddddddddddd");
    text(&mut host, &mut peer, 0, b"EEEEEEEEEEEEEEE");
    text(&mut host, &mut peer, 0, b"fffffffffffffffffffffffffffff");
    sent(&mut host);
    let got = read_all(&mut host, id);
    assert!(got.len() >= 25, "{got:?}");
    assert_eq!(got[..20], *b"EEEEEbbbbbAAAAAAAAAA", "{}", String::from_utf8_lossy(&got));
    assert!(got[20..25] == *b"CCCCC" || got[20..25] == *b"bbbbb", "{}", String::from_utf8_lossy(&got));
    assert_eq!(host.stack.pool().in_use(), 0);
}

/// Runs a whole connection whose sequence numbers begin at `isn` (the peer's) and `iss` (ours):
/// both send, both close.
fn whole_life(isn: u32, iss: u32) {
    let plan = || Plan { ..plan() };
    let at = time_of(iss, || Host::new(crate::plan()));
    let mut host = Host::new(plan());
    host.advance(at.since(host.now));
    let listener = host.stack.tcp_listen(listen()).unwrap();
    let offer = Offer { isn, ..OFFER };
    let (mut peer, id) = Peer::open(&mut host, listener, 1000, 60_000, offer).unwrap();
    assert_eq!(peer.ack.wrapping_sub(1), iss, "the wrap is where it is wanted");
    works(&mut host, &mut peer, id, b"abc");
    // A hole at the edge, then the segment that fills it.
    text(&mut host, &mut peer, 4, b"456");
    sent(&mut host);
    text(&mut host, &mut peer, 0, b"0123");
    assert_eq!(read_all(&mut host, id), b"0123456");
    peer.seq = peer.seq.wrapping_add(7);
    // Our data: lost once, then acknowledged byte by byte.
    host.stack.tcp_send(id, b"xyz").unwrap();
    sent(&mut host);
    host.advance(Duration::from_secs(2));
    let mut again = Vec::new();
    host.transmit(64, false, |packet| {
        let s = segment(packet).unwrap();
        again.extend_from_slice(&packet[s.payload_off as usize..]);
    });
    assert!(again.starts_with(b"xyz"), "sent again: {again:?}");
    for n in 1..=3 {
        let (seq, ack) = (peer.seq, peer.ack.wrapping_add(n));
        peer.send(&mut host, ACK, seq, ack, &[], &[]);
        assert_eq!(host.stack.sending(id).unwrap().una, ack);
    }
    peer.ack = peer.ack.wrapping_add(3);
    host.stack.tcp_shutdown(id, Shutdown::Write).unwrap();
    sent(&mut host);
    let (seq, ack) = (peer.seq, peer.ack.wrapping_add(1));
    peer.send(&mut host, ACK | FIN | PSH, seq, ack, &[], b"z");
    sent(&mut host);
    assert_eq!(read_all(&mut host, id), b"z");
    assert_eq!(host.stack.tcp_time_waits(), 1);
    let _ = host.stack.tcp_state(id).map(|s| assert_ne!(s, TcpState::Established));
    host.stack.tcp_close(id);
    host.stack.tcp_close_listener(listener);
    fs_fuzz::peer::quiesce(&mut host);
    host.check_empty();
}

#[test]
fn sequence_wrap_at_every_edge() {
    // SYN, text, hole, retransmission and FIN each get sequence number 0, and each the number where
    // the sign changes.
    for edge in [0u32, 0x8000_0000] {
        for before in 0..18 {
            whole_life(edge.wrapping_sub(before), 77);
            whole_life(77, edge.wrapping_sub(before.min(7)));
        }
    }
}

/// Readers that have stalled hold the core's whole receive share, all of it in order and within
/// their windows. A connection that is read still makes progress: one segment at a time, and with a
/// window for the next.
#[test]
fn stalled_readers_leave_frames_for_others() {
    let (mut host, listener) = listening(plan());
    let text = [7; 1400];
    for n in 0..16 {
        let (mut peer, _) = Peer::open(&mut host, listener, 3000 + n, 60_000, OFFER).expect("an honest client gets in");
        for _ in 0..44 {
            let (seq, ack) = (peer.seq, peer.ack);
            peer.send(&mut host, ACK, seq, ack, &[], &text);
            peer.seq = peer.seq.wrapping_add(1400);
        }
        sent(&mut host);
    }
    assert!(host.stack.stats().dropped(DropReason::ReceiveBudget) > 0, "the share is spent");
    let held = host.stack.pool().in_use();
    assert!(held < 550, "the receive share plus the reserve: {held}");
    let (mut peer, id) = Peer::open(&mut host, listener, 2000, 60_000, OFFER).expect("an honest client gets in");
    works(&mut host, &mut peer, id, b"hello");
    // Far more than the first window.
    for _ in 0..200 {
        works(&mut host, &mut peer, id, &text);
    }
    // Two segments before each read, the window of this state.
    for _ in 0..20 {
        for _ in 0..2 {
            let (seq, ack) = (peer.seq, peer.ack);
            peer.send(&mut host, ACK, seq, ack, &[], &text);
            peer.seq = peer.seq.wrapping_add(1400);
        }
        assert_eq!(host.stack.tcp_recv(id, &mut [0; 4000]), Ok(2800));
        sent(&mut host);
    }
    assert_eq!(host.stack.pool().in_use(), held);
}
