//! Connections that move to another core, because the listener of theirs has closed.

use super::{Cores, PORTS, Pair, at};
use fs_core::{Connect, Duration, Listen, ListenerId, TcpId, TcpOptions};
use fs_sim::host::HostConfig;

/// A peer's port. With four cores that listen on 0, 1 and 2, its connection is core 0's, and then
/// moves to core 2.
const MOVES_FROM_0_TO_2: u16 = 5000;

/// A host of several cores that listens on some of them, and a peer.
pub(super) struct Moves {
    pub(super) pair: Pair,
    listeners: Vec<(usize, ListenerId)>,
}

impl Moves {
    /// A host of three cores.
    pub(super) fn new(listening: &[usize], timestamps: bool) -> Self {
        Self::with(3, listening, timestamps, |_| TcpOptions::default())
    }

    /// A host of so many cores, with options for the listener of each.
    fn with(cores: u16, listening: &[usize], timestamps: bool, options: impl Fn(usize) -> TcpOptions) -> Self {
        let mut config = HostConfig::plain();
        config.tcp.timestamps = timestamps;
        let client = Cores::new(0, HostConfig { cores, ephemeral_ports: PORTS, ..config.clone() });
        let mut pair = Pair { client, server: Cores::new(1, config) };
        let listen = |core| {
            let listen = Listen { at: at(0, 80), backlog: 10, v6_only: false, fast_open: 0, options: options(core) };
            (core, pair.client.host.shards[core].stack.tcp_listen(listen).unwrap())
        };
        let listeners = listening.iter().copied().map(listen).collect();
        pair.client.run();
        Self { pair, listeners }
    }

    pub(super) fn connect(&mut self, port: u16, queue: usize) -> TcpId {
        let connect = Connect { remote: at(0, 80), local: Some(at(1, port)), options: TcpOptions::default() };
        let id = self.pair.server.host.shards[0].stack.tcp_connect(connect).unwrap();
        self.pair.run(|_| queue);
        id
    }

    fn listener(&self, core: usize) -> ListenerId {
        self.listeners.iter().find(|(of, _)| *of == core).expect("a listener").1
    }

    pub(super) fn close_listener(&mut self, core: usize) {
        let listener = self.listener(core);
        self.pair.client.host.shards[core].stack.tcp_close_listener(listener);
    }

    pub(super) fn accept(&mut self, core: usize) -> Option<TcpId> {
        let listener = self.listener(core);
        self.pair.client.host.shards[core].stack.tcp_accept(listener).ok().map(|(id, _)| id)
    }

    /// Returns the core of the only connection.
    fn owner(&self) -> usize {
        let mut shards = self.pair.client.host.shards.iter();
        shards.position(|shard| shard.stack.tcp_connections() > 0).expect("a connection")
    }

    fn pass(&mut self, time: Duration) {
        for side in [&mut self.pair.client, &mut self.pair.server] {
            side.now = side.now + time;
        }
    }

    /// Sends from the peer by the queue `queue`.
    fn send(&mut self, from: TcpId, bytes: &[u8], queue: usize) {
        self.pair.server.host.shards[0].stack.tcp_send(from, bytes).unwrap();
        self.pair.run(|_| queue);
    }

    fn read(&mut self, core: usize, id: TcpId) -> Vec<u8> {
        let mut received = vec![0; 10];
        let n = self.pair.client.host.shards[core].stack.tcp_recv(id, &mut received).unwrap_or(0);
        received.truncate(n);
        received
    }

    fn resets(&self) -> u64 {
        sum!(self.pair.client, resets_sent)
    }
}

#[test]
fn connection_that_moves_to_a_busy_core_is_not_reset() {
    for timestamps in [true, false] {
        let mut moves = Moves::new(&[1, 2], timestamps);
        let peer = moves.connect(5000, 2);
        moves.pair.client.pause(1);
        moves.close_listener(2);
        moves.pair.run(|_| 2);
        // Core 1 is busy for longer than a peer waits for an acknowledgment. It then takes what
        // core 0 has sent before what core 2 has sent.
        moves.pass(Duration::from_secs(2));
        moves.send(peer, b"hello", 2);
        moves.pair.client.resume();
        moves.pair.run(|_| 2);
        let accepted = moves.accept(1).expect("the connection that moved");
        assert_eq!(moves.read(1, accepted), b"hello", "timestamps: {timestamps}");
        assert_eq!(moves.resets(), 0, "timestamps: {timestamps}");
    }
}

#[test]
fn newer_connection_does_not_follow_an_older_one() {
    let mut moves = Moves::new(&[0, 1, 2], false);
    let peer = moves.connect(5000, 2);
    // It moves from core 2 to another one, and ends there.
    moves.close_listener(2);
    moves.pair.run(|_| 2);
    let at = [0, 1].into_iter().find_map(|core| Some((core, moves.accept(core)?)));
    let (core, accepted) = at.expect("the connection that moved");
    moves.pair.server.host.shards[0].stack.tcp_abort(peer);
    moves.pair.run(|_| 2);
    moves.pair.client.host.shards[core].stack.tcp_close(accepted);
    // Only the other core listens when the peer connects again.
    moves.close_listener(core);
    moves.pair.run(|_| 2);
    let peer = moves.connect(5000, 2);
    let accepted = moves.accept(1 - core).expect("the newer connection");
    moves.send(peer, b"hello", 2);
    assert_eq!(moves.read(1 - core, accepted), b"hello");
    assert_eq!(moves.resets(), 0);
}

#[test]
fn newer_connection_is_found_behind_the_memory_of_an_older_one() {
    for aborts in [true, false] {
        // No packet arrives at a core that listens.
        let mut moves = Moves::with(4, &[0, 1, 2], false, |_| TcpOptions::default());
        let peer = moves.connect(MOVES_FROM_0_TO_2, 3);
        assert_eq!(moves.owner(), 0);
        moves.close_listener(0);
        moves.pair.run(|_| 3);
        let accepted = moves.accept(2).expect("the connection that moved");
        if aborts {
            moves.pair.server.host.shards[0].stack.tcp_abort(peer);
            moves.pair.run(|_| 3);
        }
        // Without the abort, a TIME-WAIT record stays here.
        moves.pair.client.host.shards[2].stack.tcp_close(accepted);
        moves.pair.run(|_| 3);
        moves.pair.server.host.shards[0].stack.tcp_close(peer);
        moves.pair.run(|_| 3);
        moves.close_listener(2);
        moves.pair.run(|_| 3);
        let peer = moves.connect(MOVES_FROM_0_TO_2, 3);
        let accepted = moves.accept(1).expect("the newer connection");
        moves.send(peer, b"hello", 3);
        assert_eq!(moves.read(1, accepted), b"hello", "aborts: {aborts}");
        assert_eq!(moves.resets(), 0, "aborts: {aborts}");
    }
}

#[test]
fn connection_that_moves_twice_to_a_busy_core_is_not_reset() {
    let mut moves = Moves::with(4, &[0, 1, 2], false, |_| TcpOptions::default());
    let peer = moves.connect(MOVES_FROM_0_TO_2, 3);
    moves.close_listener(0);
    moves.pair.run(|_| 3);
    assert_eq!(moves.owner(), 2);
    moves.pair.client.pause(1);
    moves.close_listener(2);
    moves.pair.run(|_| 3);
    // Core 1 takes what cores 0 and 3 have sent before and after what core 2 has sent.
    moves.send(peer, b"hello", 3);
    moves.pair.client.resume();
    moves.pair.run(|_| 3);
    let accepted = moves.accept(1).expect("the connection that moved");
    assert_eq!(moves.read(1, accepted), b"hello");
    assert_eq!(moves.resets(), 0);
}

#[test]
fn connection_without_a_listener_gets_the_options_of_the_next_one() {
    for plain in [true, false] {
        let user_timeout = (!plain).then_some(Duration::from_secs(9));
        let own = |core| TcpOptions { nodelay: core == 1, user_timeout, ..TcpOptions::default() };
        let mut moves = Moves::with(3, &[1, 2], true, own);
        let connect = Connect { remote: at(0, 80), local: None, options: TcpOptions::default() };
        moves.pair.server.host.shards[0].stack.tcp_connect(connect).unwrap();
        moves.pair.server.run();
        for packet in std::mem::take(&mut moves.pair.server.sent) {
            moves.pair.client.arrive(2, &packet);
        }
        // Between the SYN and the end of the handshake, the listener of core 2 closes.
        moves.close_listener(2);
        moves.pair.run(|_| 2);
        let accepted = moves.accept(1).expect("the connection that moved");
        let options = moves.pair.client.host.shards[1].stack.tcp_options(accepted).unwrap();
        assert_eq!((options.nodelay, options.user_timeout), (true, user_timeout));
    }
}
