//! A near peer that reads more slowly than we send (`tcb/send/room.rs` `send_window`).

use crate::lab::*;
use fs_core::*;

const SHIFT: u8 = 7;
/// The peer's receive buffer.
const BUFFER: u32 = 4 << 20;

/// Writes all that the connection takes, to a peer that acknowledges after `round_trip` and reads nothing,
/// until its buffer is full. Returns the bytes of each round trip.
fn rounds(round_trip: Duration) -> Vec<u32> {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept_with(4000, syn_options(None, true, Some(SHIFT)), TcpOptions::default());
    let (mut unread, mut rounds) = (0, Vec::new());
    loop {
        let mut sent = 0;
        loop {
            while lab.stack.tcp_send(conn.id, &[1; 64 << 10]).is_ok() {}
            match lab.sent().iter().map(|seg| seg.payload.len() as u32).sum::<u32>() {
                0 => break,
                bytes => sent += bytes,
            }
        }
        if sent == 0 {
            assert!(unread > BUFFER - (128 << 10), "{unread} bytes fill the window of {BUFFER}");
            return rounds;
        }
        rounds.push(sent);
        unread += sent;
        conn.ack = conn.ack.wrapping_add(sent);
        lab.pass(round_trip);
        lab.send(&Seg { window: ((BUFFER - unread) >> SHIFT) as u16, ..conn.seg(ACK) });
    }
}

/// The caches of the peer's processor hold what is unread.
#[test]
fn near_peer_with_much_unread_gets_little_in_a_round_trip() {
    let rounds = rounds(Duration::from_micros(30));
    let unread_before = |round: usize| rounds[..round].iter().sum::<u32>();
    let late: Vec<u32> =
        (0..rounds.len()).filter(|&round| unread_before(round) > 300 << 10).map(|i| rounds[i]).collect();
    assert!(late.len() > 20 && late.iter().all(|&sent| sent <= (128 << 10) + 1460), "{rounds:?}");
}

/// It could read all of it, and wait, before it gets more.
#[test]
fn far_peer_gets_its_window() {
    for far in [Duration::from_micros(100), Duration::from_millis(5)] {
        let rounds = rounds(far);
        assert!(rounds.iter().any(|&sent| sent > 256 << 10), "{rounds:?}");
    }
}
