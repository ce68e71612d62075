//! A near peer that reads more slowly than we send (`tcb/send/room.rs` `send_window`).

use crate::lab::*;
use fs_core::*;

const SHIFT: u8 = 7;
/// The peer's receive buffer.
const BUFFER: u32 = 4 << 20;

/// A peer that reads nothing.
struct Peer {
    lab: Lab,
    conn: Conn,
    unread: u32,
}

impl Peer {
    fn new() -> Self {
        Self::with(true, TcpConfig::default())
    }

    fn with(sack: bool, config: TcpConfig) -> Self {
        let mut lab = Lab::new(config);
        let conn = lab.accept_with(4000, syn_options(None, sack, Some(SHIFT)), TcpOptions::default());
        Self { lab, conn, unread: 0 }
    }

    /// Writes all that the connection takes. Returns the bytes that leave.
    fn write(&mut self) -> u32 {
        let mut sent = 0;
        loop {
            while self.lab.stack.tcp_send(self.conn.id, &[1; 64 << 10]).is_ok() {}
            match self.lab.sent().iter().map(|seg| seg.payload.len() as u32).sum::<u32>() {
                0 => return sent,
                bytes => sent += bytes,
            }
        }
    }

    /// Acknowledges `sent` bytes after a round trip.
    fn acknowledge(&mut self, sent: u32, round_trip: Duration) {
        self.unread += sent;
        self.conn.ack = self.conn.ack.wrapping_add(sent);
        self.lab.pass(round_trip);
        self.lab.send(&Seg { window: ((BUFFER - self.unread) >> SHIFT) as u16, ..self.conn.seg(ACK) });
    }

    fn rwnd_limited_us(&self) -> u64 {
        self.lab.stack.tcp_info(self.conn.id).unwrap().rwnd_limited_us
    }
}

/// Writes until the peer's buffer is full. Returns the bytes of each round trip.
fn rounds(round_trip: Duration) -> Vec<u32> {
    rounds_of(Peer::new(), round_trip)
}

fn rounds_of(mut peer: Peer, round_trip: Duration) -> Vec<u32> {
    let mut rounds = Vec::new();
    loop {
        let sent = peer.write();
        if sent == 0 {
            assert!(peer.unread > BUFFER - (128 << 10), "{} bytes fill the window of {BUFFER}", peer.unread);
            return rounds;
        }
        rounds.push(sent);
        peer.acknowledge(sent, round_trip);
    }
}

/// The caches of the peer's processor hold what is unread.
#[test]
fn near_peer_with_much_unread_gets_little_in_a_round_trip() {
    for near in [30, 100].map(Duration::from_micros) {
        let rounds = rounds(near);
        let unread_before = |round: usize| rounds[..round].iter().sum::<u32>();
        let late: Vec<u32> =
            (0..rounds.len()).filter(|&round| unread_before(round) > 300 << 10).map(|i| rounds[i]).collect();
        assert!(late.len() > 20 && late.iter().all(|&sent| sent <= (128 << 10) + 1460), "{near:?}: {rounds:?}");
    }
}

/// It could read all of it, and wait, before it gets more.
#[test]
fn far_peer_gets_its_window() {
    for far in [Duration::from_micros(200), Duration::from_millis(5)] {
        let rounds = rounds(far);
        assert!(rounds.iter().any(|&sent| sent > 256 << 10), "{rounds:?}");
    }
}

/// No tail loss probe would end the limit: each 128 KiB could wait for an ACK that is 40 ms late.
#[test]
fn near_peer_without_probes_gets_its_window() {
    let config = TcpConfig::default;
    let without = [
        Peer::with(false, config()),
        Peer::with(true, TcpConfig { tail_loss_probe: false, ..config() }),
        Peer::with(true, TcpConfig { rack: false, ..config() }),
    ];
    for (i, peer) in without.into_iter().enumerate() {
        let rounds = rounds_of(peer, Duration::from_micros(30));
        assert!(rounds.iter().any(|&sent| sent > 256 << 10), "{i}: {rounds:?}");
    }
}

/// It reads only once it has more, and Linux acknowledges these bytes when they are read.
#[test]
fn near_peer_that_does_not_acknowledge_gets_more() {
    let mut peer = Peer::new();
    while peer.unread < 512 << 10 {
        let sent = peer.write();
        peer.acknowledge(sent, Duration::from_micros(30));
    }
    let (kept, limited) = (peer.write(), peer.rwnd_limited_us());
    assert!(kept <= (128 << 10) + 1460, "{kept}");
    peer.lab.pass(Duration::from_millis(5));
    assert!(peer.rwnd_limited_us() > limited, "the peer's reader is waited for");
    let more = peer.write();
    assert!(more > kept + (64 << 10), "after the probe: {more}");
    // It may have been a pause of the machine, so it is near again after some time.
    peer.acknowledge(kept + more, Duration::from_micros(30));
    for _ in 0..5000 {
        let _sent = peer.lab.stack.tcp_send(peer.conn.id, b"!");
        let sent = peer.lab.sent().iter().map(|seg| seg.payload.len() as u32).sum();
        peer.acknowledge(sent, Duration::from_micros(30));
    }
    let near = peer.write();
    assert!(near <= (128 << 10) + 1460, "{near}");
}

/// The shortest round trip was measured before the move.
#[test]
fn near_peer_that_moves_away_gets_its_window() {
    let mut peer = Peer::new();
    while peer.unread < 512 << 10 {
        let sent = peer.write();
        peer.acknowledge(sent, Duration::from_micros(30));
    }
    let near = peer.write();
    assert!(near <= (128 << 10) + 1460, "{near}");
    peer.acknowledge(near, Duration::from_millis(20));
    let mut far = Vec::new();
    for _ in 0..10 {
        let sent = peer.write();
        peer.acknowledge(sent, Duration::from_millis(20));
        far.push(sent);
    }
    assert!(far.iter().any(|&sent| sent > 256 << 10), "{far:?}");
}
