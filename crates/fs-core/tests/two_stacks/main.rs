//! Two stacks joined by a perfect wire, in standalone addressing: all stages of a connection.

#[path = "../common/mod.rs"]
mod common;
mod cores;
mod info;

use fs_core::*;
use std::net::{IpAddr, SocketAddr};

struct Host {
    stack: Stack<HeapPool>,
    events: Vec<Event>,
}

fn host(last: u8, seed: u8, tcp: TcpConfig) -> Host {
    let (framing, addressing) = (Framing::Ethernet, Addressing::Standalone);
    let limits = common::limits(1000, 1000, 8);
    let stack = common::stack(common::Plan { last, seed, tcp, limits, frames: 4096, framing, addressing });
    Host { stack, events: Vec::new() }
}

struct World {
    a: Host,
    b: Host,
    now: Instant,
    /// Number of frames on the wire so far, by which `lose` selects the lost ones.
    packets: u64,
}

fn carry(from: &mut Host, to: &mut Host, packets: &mut u64, lose: &mut dyn FnMut(u64) -> bool) -> bool {
    let mut out = Vec::new();
    from.stack.tx_batch(IfaceId(0), 64, &mut out);
    let moved = !out.is_empty();
    let mut arrived = Vec::new();
    for tx in out {
        *packets += 1;
        if !lose(*packets) {
            let mut frame = to.stack.pool_mut().alloc().expect("a frame for the wire");
            frame.grow_back(tx.frame.len());
            let bytes = from.stack.pool().bytes(&tx.frame).to_vec();
            to.stack.pool_mut().bytes_mut(&mut frame).copy_from_slice(&bytes);
            frame.set_more(tx.frame.more());
            arrived.push(RxFrame { frame, iface: IfaceId(0), checksum: RxChecksum::Unknown });
        }
        from.stack.pool_mut().free(tx.frame);
    }
    to.stack.rx_batch(&mut arrived);
    moved
}

impl World {
    fn new(tcp: TcpConfig) -> Self {
        Self { a: host(1, 1, tcp.clone()), b: host(2, 2, tcp), now: Instant::from_millis(1), packets: 0 }
    }

    fn turn(&mut self, lose: &mut dyn FnMut(u64) -> bool) -> bool {
        for host in [&mut self.a, &mut self.b] {
            host.stack.set_now(self.now);
            host.stack.tick();
        }
        let ab = carry(&mut self.a, &mut self.b, &mut self.packets, lose);
        let ba = carry(&mut self.b, &mut self.a, &mut self.packets, lose);
        for host in [&mut self.a, &mut self.b] {
            host.stack.drain_events(&mut host.events);
        }
        self.now = self.now + Duration::from_micros(20);
        ab || ba
    }

    /// Runs turns until nothing moves, then jumps to the next deadline at most `jumps` times.
    fn settle(&mut self, jumps: usize, lose: &mut dyn FnMut(u64) -> bool) {
        for _ in 0..=jumps {
            while self.turn(lose) {}
            let next = [&self.a, &self.b].into_iter().filter_map(|h| h.stack.next_deadline()).min();
            let Some(next) = next else { return };
            self.now = self.now.max(next);
        }
    }
}

fn never(_: u64) -> bool {
    false
}

fn addr(v6: bool, last: u8, port: u16) -> SocketAddr {
    if v6 {
        SocketAddr::new(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last as u16]), port)
    } else {
        SocketAddr::new(IpAddr::from([10, 0, 0, last]), port)
    }
}

fn connected(world: &mut World, v6: bool) -> (TcpId, TcpId, ListenerId) {
    let at = addr(v6, 2, 80);
    let listener = world
        .b
        .stack
        .tcp_listen(Listen { at, backlog: 16, v6_only: false, fast_open: 0, options: TcpOptions::default() })
        .unwrap();
    let client =
        world.a.stack.tcp_connect(Connect { remote: at, local: None, options: TcpOptions::default() }).unwrap();
    world.settle(2, &mut never);
    let (server, from) = world.b.stack.tcp_accept(listener).expect("a connection waits");
    assert_eq!(from, world.a.stack.tcp_local(client).unwrap());
    assert_eq!(world.a.stack.tcp_state(client), Ok(TcpState::Established));
    (client, server, listener)
}

#[test]
fn open_transfer_and_close() {
    for v6 in [false, true] {
        let mut world = World::new(TcpConfig::default());
        let (client, server, listener) = connected(&mut world, v6);
        assert_eq!(world.a.stack.tcp_send(client, b"hello"), Ok(5));
        world.settle(0, &mut never);
        let mut buf = [0; 64];
        assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Ok(5));
        assert_eq!(&buf[..5], b"hello");
        assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Err(Error::WouldBlock));
        world.b.stack.tcp_send(server, b"world!").unwrap();
        world.b.stack.tcp_shutdown(server, Shutdown::Write).unwrap();
        world.settle(0, &mut never);
        assert_eq!(world.a.stack.tcp_recv(client, &mut buf), Ok(6));
        assert_eq!(world.a.stack.tcp_recv(client, &mut buf), Ok(0));
        assert_eq!(world.a.stack.tcp_state(client), Ok(TcpState::CloseWait));
        world.a.stack.tcp_close(client);
        world.settle(0, &mut never);
        assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Ok(0));
        world.b.stack.tcp_close(server);
        assert_eq!(world.b.stack.tcp_time_waits(), 1);
        world.b.stack.tcp_close_listener(listener);
        world.settle(50, &mut never);
        for host in [&world.a, &world.b] {
            assert_eq!(host.stack.tcp_connections(), 0);
            assert_eq!(host.stack.tcp_time_waits(), 0);
            assert_eq!(host.stack.pool().in_use(), 0);
        }
    }
}

/// Sends `len` patterned bytes from client to server over a wire that loses the packets selected by
/// `lose`.
fn transfer(len: usize, tcp: TcpConfig, mut lose: impl FnMut(u64) -> bool) -> World {
    let mut world = World::new(tcp);
    let (client, server, _) = connected(&mut world, false);
    let byte = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9).to_le_bytes()[2];
    let data: Vec<u8> = (0..len).map(byte).collect();
    let (mut sent, mut got) = (0, 0);
    let mut buf = vec![0; 100_000];
    let mut finished = false;
    for round in 0..200_000 {
        while sent < len {
            match world.a.stack.tcp_send(client, &data[sent..(sent + 5000).min(len)]) {
                Ok(n) => sent += n,
                Err(Error::WouldBlock) => break,
                Err(other) => panic!("send: {other}"),
            }
        }
        if sent == len && !finished {
            world.a.stack.tcp_shutdown(client, Shutdown::Write).unwrap();
            finished = true;
        }
        world.settle(if round % 4 == 0 { 1 } else { 0 }, &mut lose);
        loop {
            match world.b.stack.tcp_recv(server, &mut buf) {
                Ok(0) => {
                    assert_eq!(got, len);
                    return world;
                }
                Ok(n) => {
                    assert!(buf[..n] == data[got..got + n], "bytes differ after {got}");
                    got += n;
                }
                Err(Error::WouldBlock) => break,
                Err(other) => panic!("recv: {other}"),
            }
        }
    }
    panic!("stuck: sent {sent}, got {got} of {len}\n{:?}\n{:?}", world.a.stack, world.b.stack);
}

#[test]
fn bulk_without_loss() {
    let world = transfer(3_000_000, TcpConfig::default(), never);
    assert_eq!(world.a.stack.stats().retransmits, 0);
}

#[test]
fn bulk_with_loss() {
    for (sack, every) in [(true, 50), (false, 50), (true, 9), (false, 9)] {
        let tcp = TcpConfig { sack, ..TcpConfig::default() };
        let mut state = 12345u64;
        let world = transfer(1_000_000, tcp, |_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33).is_multiple_of(every)
        });
        assert!(world.a.stack.stats().retransmits > 0);
    }
}

#[test]
fn refused_without_listener() {
    let mut world = World::new(TcpConfig::default());
    let remote = addr(false, 2, 81);
    let id = world.a.stack.tcp_connect(Connect { remote, local: None, options: TcpOptions::default() }).unwrap();
    world.settle(2, &mut never);
    assert_eq!(world.a.stack.tcp_take_error(id), Ok(Some(Error::ConnectionRefused)));
    world.a.stack.tcp_close(id);
    assert_eq!(world.a.stack.tcp_connections(), 0);
}

#[test]
fn slow_reader_stops_and_restarts_sender() {
    let mut world = World::new(TcpConfig::default());
    let (client, server, _) = connected(&mut world, false);
    let chunk = [7u8; 8192];
    let mut sent = 0;
    while let Ok(n) = world.a.stack.tcp_send(client, &chunk) {
        sent += n;
        world.settle(0, &mut never);
        assert!(sent < 10_000_000);
    }
    world.settle(8, &mut never);
    assert!(world.a.stack.stats().window_probes > 0, "the window is closed");
    let (mut got, mut buf) = (0, [0; 65536]);
    for _ in 0..10_000 {
        while let Ok(n) = world.b.stack.tcp_recv(server, &mut buf) {
            got += n;
        }
        world.settle(1, &mut never);
        if got == sent {
            return;
        }
    }
    panic!("got {got} of {sent}");
}

#[test]
fn abort_resets_peer() {
    let mut world = World::new(TcpConfig::default());
    let (client, server, _) = connected(&mut world, false);
    world.a.stack.tcp_abort(client);
    world.settle(0, &mut never);
    let mut buf = [0; 8];
    assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Err(Error::ConnectionReset));
    assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Ok(0));
    assert_eq!(world.b.stack.tcp_send(server, b"x"), Err(Error::BrokenPipe));
    world.b.stack.tcp_close(server);
    assert_eq!(world.b.stack.tcp_connections() + world.a.stack.tcp_connections(), 0);
}

#[test]
fn simultaneous_open() {
    let mut world = World::new(TcpConfig::default());
    // The neighbours must be known; otherwise ARP would let one SYN arrive first.
    let mac = |last| Some([2, 0, 0, 0, 0, last]);
    world.a.stack.set_neighbour(IfaceId(0), addr(false, 2, 0).ip(), mac(2));
    world.b.stack.set_neighbour(IfaceId(0), addr(false, 1, 0).ip(), mac(1));
    let ends = [addr(false, 1, 5000), addr(false, 2, 6000)];
    let connect = |local, remote| Connect { remote, local: Some(local), options: TcpOptions::default() };
    let a = world.a.stack.tcp_connect(connect(ends[0], ends[1])).unwrap();
    let b = world.b.stack.tcp_connect(connect(ends[1], ends[0])).unwrap();
    world.settle(1, &mut never);
    assert_eq!(world.a.stack.tcp_state(a), Ok(TcpState::Established));
    assert_eq!(world.b.stack.tcp_state(b), Ok(TcpState::Established));
    world.a.stack.tcp_send(a, b"both").unwrap();
    world.settle(0, &mut never);
    let mut buf = [0; 8];
    assert_eq!(world.b.stack.tcp_recv(b, &mut buf), Ok(4));
}

#[test]
fn udp_echo() {
    let mut world = World::new(TcpConfig::default());
    let server = world.b.stack.udp_bind(addr(false, 2, 53)).unwrap();
    let client = world.a.stack.udp_bind("0.0.0.0:0".parse().unwrap()).unwrap();
    world.a.stack.udp_connect(client, addr(false, 2, 53)).unwrap();
    assert_eq!(world.a.stack.udp_send(client, b"ping", None), Ok(4));
    world.settle(1, &mut never);
    let mut buf = [0; 16];
    let meta = world.b.stack.udp_recv(server, &mut buf, false).unwrap();
    assert_eq!((meta.len, &buf[..4]), (4, &b"ping"[..]));
    world.b.stack.udp_send(server, b"pong", Some(meta.from)).unwrap();
    world.settle(1, &mut never);
    assert_eq!(world.a.stack.udp_recv(client, &mut buf, false).unwrap().len, 4);
}

#[test]
fn syn_cookies_when_the_cache_is_full() {
    let mut world = World::new(TcpConfig::default());
    let at = addr(false, 2, 80);
    let options = TcpOptions::default();
    let listener =
        world.b.stack.tcp_listen(Listen { at, backlog: 100, v6_only: false, fast_open: 0, options }).unwrap();
    let mac = |last| Some([2, 0, 0, 0, 0, last]);
    world.a.stack.set_neighbour(IfaceId(0), at.ip(), mac(2));
    world.b.stack.set_neighbour(IfaceId(0), addr(false, 1, 0).ip(), mac(1));
    let connect = Connect { remote: at, local: None, options };
    let clients: Vec<_> = (0..32).map(|_| world.a.stack.tcp_connect(connect).unwrap()).collect();
    world.settle(0, &mut never);
    let stats = world.b.stack.stats();
    assert_eq!((stats.syn_cookies_sent, stats.syn_cookies_ok, stats.accepted), (24, 24, 32));
    for &client in &clients {
        world.a.stack.tcp_send(client, &[1; 4000]).unwrap();
    }
    world.settle(0, &mut never);
    let mut buf = [0; 8000];
    for _ in &clients {
        let (server, _) = world.b.stack.tcp_accept(listener).unwrap();
        assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Ok(4000));
        world.b.stack.tcp_close(server);
    }
    assert_eq!(world.b.stack.stats().retransmits, 0);
}

#[test]
fn restarted_client_reuses_time_wait() {
    let mut world = World::new(TcpConfig::default());
    let local = Some(addr(false, 1, 40_000));
    let remote = addr(false, 2, 80);
    let options = TcpOptions::default();
    let listener =
        world.b.stack.tcp_listen(Listen { at: remote, backlog: 16, v6_only: false, fast_open: 0, options }).unwrap();
    // Each round is a new process with another secret, so ISNs and timestamps may be older than the
    // last round's.
    for seed in 10..26 {
        let client = world.a.stack.tcp_connect(Connect { remote, local, options }).unwrap();
        // Turns of 20 µs: none of them reaches a timeout.
        for _ in 0..50 {
            world.turn(&mut never);
        }
        assert_eq!(world.a.stack.tcp_state(client), Ok(TcpState::Established), "round {seed} waits for a time-out");
        let (server, _) = world.b.stack.tcp_accept(listener).unwrap();
        world.b.stack.tcp_close(server);
        world.settle(0, &mut never);
        world.a.stack.tcp_close(client);
        world.settle(0, &mut never);
        assert_eq!(world.b.stack.tcp_time_waits(), 1);
        world.a = host(1, seed, TcpConfig::default());
    }
}

#[test]
fn orphan_in_fin_wait_2_times_out() {
    let mut world = World::new(TcpConfig::default());
    let (client, server, _) = connected(&mut world, false);
    world.a.stack.tcp_close(client);
    world.settle(0, &mut never);
    assert_eq!(world.b.stack.tcp_state(server), Ok(TcpState::CloseWait));
    assert_eq!(world.a.stack.tcp_connections(), 1);
    world.settle(20, &mut never);
    assert_eq!(world.a.stack.tcp_connections(), 0);
    // The peer notices it when it sends.
    world.b.stack.tcp_send(server, b"late").unwrap();
    world.settle(2, &mut never);
    let mut buf = [0; 8];
    assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Ok(0), "the FIN came before the RST");
    world.b.stack.tcp_close(server);
    assert_eq!(world.a.stack.pool().in_use() + world.b.stack.pool().in_use(), 0);
}

#[test]
fn keepalive_detects_dead_peer() {
    let mut world = World::new(TcpConfig::default());
    let (client, _, _) = connected(&mut world, false);
    let keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(1), count: 3 };
    let options = TcpOptions { keepalive: Some(keepalive), ..world.a.stack.tcp_options(client).unwrap() };
    world.a.stack.tcp_set_options(client, options).unwrap();
    // Alive: probes are answered.
    let until = world.now + Duration::from_secs(60);
    while world.now < until {
        world.settle(1, &mut never);
    }
    assert_eq!(world.a.stack.tcp_state(client), Ok(TcpState::Established));
    assert!(world.a.stack.stats().keepalive_probes >= 5);
    // Dead: everything is lost.
    let died = world.now;
    while world.a.stack.tcp_state(client) == Ok(TcpState::Established) {
        assert!(world.now.since(died) < Duration::from_secs(20), "not noticed");
        world.settle(0, &mut |_| true);
    }
    assert_eq!(world.a.stack.tcp_take_error(client), Ok(Some(Error::TimedOut)));
}

#[test]
fn linger_zero_resets_and_unread_data_resets() {
    let mut world = World::new(TcpConfig::default());
    let (client, server, listener) = connected(&mut world, false);
    let options = TcpOptions { linger: Linger::Timeout(Duration::ZERO), ..Default::default() };
    world.a.stack.tcp_set_options(client, options).unwrap();
    world.a.stack.tcp_close(client);
    world.settle(0, &mut never);
    let mut buf = [0; 8];
    assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Err(Error::ConnectionReset));
    world.b.stack.tcp_close(server);
    // Closing with unread data (RFC 2525 2.17).
    let remote = addr(false, 2, 80);
    let client = world.a.stack.tcp_connect(Connect { remote, local: None, options: Default::default() }).unwrap();
    world.settle(1, &mut never);
    let (server, _) = world.b.stack.tcp_accept(listener).unwrap();
    world.a.stack.tcp_send(client, b"unread").unwrap();
    world.settle(0, &mut never);
    world.b.stack.tcp_close(server);
    world.settle(0, &mut never);
    assert_eq!(world.a.stack.tcp_recv(client, &mut buf), Err(Error::ConnectionReset));
}

#[test]
fn probe_repairs_lost_tail() {
    let mut world = World::new(TcpConfig::default());
    let (client, server, _) = connected(&mut world, false);
    let mut seen = 0;
    world.a.stack.tcp_send(client, &[7; 7000]).unwrap();
    world.settle(6, &mut |_| {
        seen += 1;
        seen == 5
    });
    let mut buf = [0; 8000];
    assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Ok(7000));
    let stats = world.a.stack.stats();
    assert_eq!((stats.retransmits, stats.rto_fired), (1, 0), "{stats:?}");
}

/// Advances to the next deadline, and runs the world until nothing more happens at that time.
fn step(world: &mut World, lose: &mut dyn FnMut(u64) -> bool) {
    let next = [&world.a, &world.b].into_iter().filter_map(|h| h.stack.next_deadline()).min();
    world.now = world.now.max(next.expect("something to wait for"));
    while world.turn(lose) {}
}

#[test]
fn corked_segment_waits_for_limited_time() {
    let mut world = World::new(TcpConfig::default());
    let (client, server, _) = connected(&mut world, false);
    let mut buf = [0; 64];
    let options = world.a.stack.tcp_options(client).unwrap();
    world.a.stack.tcp_set_options(client, TcpOptions { cork: true, ..options }).unwrap();
    world.a.stack.tcp_send(client, b"one").unwrap();
    world.settle(0, &mut never);
    assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Err(Error::WouldBlock));
    world.a.stack.tcp_set_options(client, TcpOptions { cork: false, ..options }).unwrap();
    world.settle(0, &mut never);
    assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Ok(3));
    world.settle(3, &mut never);
    // No further write follows MSG_MORE: the data leaves 200 ms later.
    let from = world.now;
    world.a.stack.tcp_send_more(client, b"four").unwrap();
    world.settle(0, &mut never);
    assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Err(Error::WouldBlock));
    while world.b.stack.tcp_recv(server, &mut buf) == Err(Error::WouldBlock) {
        step(&mut world, &mut never);
        assert!(world.now.since(from) < Duration::from_millis(210), "{:?}", world.now.since(from));
    }
    assert_eq!(&buf[..4], b"four");
}

#[test]
fn user_timeout_ends_connection_to_dead_peer() {
    let mut world = World::new(TcpConfig::default());
    let (client, _, _) = connected(&mut world, false);
    let options = world.a.stack.tcp_options(client).unwrap();
    let limit = Duration::from_secs(3);
    world.a.stack.tcp_set_options(client, TcpOptions { user_timeout: Some(limit), ..options }).unwrap();
    let from = world.now;
    world.a.stack.tcp_send(client, b"hello").unwrap();
    while world.a.stack.tcp_state(client) != Ok(TcpState::Closed) {
        step(&mut world, &mut |_| true);
        assert!(world.now.since(from) < Duration::from_secs(4), "{:?}", world.now.since(from));
    }
    assert_eq!(world.a.stack.tcp_take_error(client), Ok(Some(Error::TimedOut)));
    assert!(world.now.since(from) >= limit);
}
