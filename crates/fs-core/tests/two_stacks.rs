//! Two stacks joined by a perfect wire, in standalone addressing: all stages of a connection.

mod common;

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
fn cores_share_learned_neighbours() {
    let shard = |core| {
        let mut config = StackConfig::new(Secret([9; 32]));
        (config.core, config.cores) = (CoreId(core), 2);
        let mut stack = Stack::new(config, HeapPool::new(256, 2048));
        let net = Cidr { addr: IpAddr::from([10, 0, 0, 2]), prefix: 24 };
        let iface = stack.add_interface(Interface {
            framing: Framing::Ethernet,
            mac: [2, 0, 0, 0, 0, 2],
            vlan: None,
            mtu: 1500,
            addrs: vec![net],
            addressing: Addressing::Standalone,
            tx_checksum: false,
            accept_partial_checksum: false,
        });
        stack.set_routes(vec![Route { to: net, gateway: None, iface, metric: 0, source: None, refusal: None }]);
        stack
    };
    let (mut asking, mut hearing) = (shard(1), shard(0));
    let mut peer = host(1, 1, TcpConfig::default());
    // Core 1 needs the neighbour; its request reaches the peer.
    let socket = asking.udp_bind("10.0.0.2:500".parse().unwrap()).unwrap();
    asking.udp_send(socket, b"x", Some(addr(false, 1, 500))).unwrap();
    asking.set_now(Instant::from_millis(1));
    asking.tick();
    let copy = |from: &mut Stack<HeapPool>, to: &mut Stack<HeapPool>| {
        let mut out = Vec::new();
        from.tx_batch(IfaceId(0), 8, &mut out);
        let mut arrived = Vec::new();
        for tx in out {
            let mut frame = to.pool_mut().alloc().unwrap();
            frame.grow_back(tx.frame.len());
            let bytes = from.pool().bytes(&tx.frame).to_vec();
            to.pool_mut().bytes_mut(&mut frame).copy_from_slice(&bytes);
            from.pool_mut().free(tx.frame);
            arrived.push(RxFrame { frame, iface: IfaceId(0), checksum: RxChecksum::Unknown });
        }
        let n = arrived.len();
        to.rx_batch(&mut arrived);
        n
    };
    assert_eq!(copy(&mut asking, &mut peer.stack), 1);
    // The reply arrives on core 0's queue.
    assert_eq!(copy(&mut peer.stack, &mut hearing), 1);
    let mut messages = Vec::new();
    hearing.drain_outbound(&mut messages);
    assert_eq!(messages.len(), 1);
    for Outbound { to, message } in messages {
        assert_eq!(to, CoreId(1));
        asking.deliver(message);
    }
    assert!(asking.tx_pending(IfaceId(0)), "the datagram may leave");
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

/// Advances to the next deadline, and not beyond its effects.
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

/// Returns a host's TCP_INFO of a connection.
fn info(host: &Host, id: TcpId) -> TcpInfo {
    host.stack.tcp_info(id).unwrap()
}

#[test]
fn info_counts_bytes_in_both_directions() {
    for v6 in [false, true] {
        let mut world = World::new(TcpConfig::default());
        let (client, server, _) = connected(&mut world, v6);
        for (host, id) in [(&world.a, client), (&world.b, server)] {
            let i = info(host, id);
            assert_eq!((i.bytes_acked, i.bytes_received, i.bytes_sent, i.notsent_bytes), (0, 0, 0, 0));
            assert_eq!((i.pmtu, i.snd_mss), (1500, if v6 { 1428 } else { 1448 }));
            assert_eq!(i.advmss, i.snd_mss);
            assert_eq!((i.rto_us, i.ato_us, i.reordering), (i.rtt_us + 200_000, 40_000, 3));
            assert!(i.last_data_sent_ms <= 1000 && i.last_data_sent_ms == i.last_data_recv_ms, "since it opened");
            assert_eq!((i.data_segs_in, i.data_segs_out, i.delivered, i.busy_time_us), (0, 0, 1, 0));
        }
        let sent_at = world.now;
        world.a.stack.tcp_send(client, &[1; 5000]).unwrap();
        assert_eq!(info(&world.a, client).notsent_bytes, 5000);
        world.settle(0, &mut never);
        world.b.stack.tcp_send(server, &[2; 700]).unwrap();
        world.b.stack.tcp_shutdown(server, Shutdown::Write).unwrap();
        world.settle(1, &mut never);
        world.now = world.now + Duration::from_secs(5);
        let idle_ms = world.now.since(sent_at).as_millis() as u32;
        world.turn(&mut never);
        let (a, b) = (info(&world.a, client), info(&world.b, server));
        assert_eq!((a.bytes_sent, a.bytes_acked, a.bytes_received), (5000, 5000, 700));
        // The FIN was sent and acknowledged; it does not count as a byte.
        assert_eq!((b.state, b.bytes_sent, b.bytes_acked), (Some(TcpState::FinWait2), 700, 700));
        assert_eq!(b.bytes_received, 5000);
        assert_eq!((a.segs_out, b.segs_out), (b.segs_in, a.segs_in), "nothing was lost");
        assert_eq!((a.data_segs_out, b.data_segs_in, b.data_segs_out, a.data_segs_in), (4, 4, 1, 1));
        // The SYNs were delivered, too.
        assert_eq!((a.delivered, b.delivered), (1 + 4, 1 + 1));
        assert!(b.last_data_recv_ms.abs_diff(idle_ms) <= 3 && a.last_ack_recv_ms <= a.last_data_sent_ms);
        assert_eq!((a.total_retrans, a.bytes_retrans, a.retransmits, a.notsent_bytes), (0, 0, 0, 0));
        assert!(a.last_data_sent_ms.abs_diff(idle_ms) <= 3, "{} instead of {idle_ms}", a.last_data_sent_ms);
        assert_eq!(a.rcv_ssthresh, TcpConfig::default().receive_buffer_initial.next_multiple_of(1024));
    }
}

#[test]
fn info_counts_retransmissions() {
    for sack in [true, false] {
        let mut world = World::new(TcpConfig { sack, ..TcpConfig::default() });
        let (client, server, _) = connected(&mut world, false);
        let mut lost = 0;
        world.a.stack.tcp_send(client, &[1; 8 * 1448]).unwrap();
        let first = world.packets + 1;
        let mut lose_first = |n| {
            lost += u32::from(n == first);
            n == first
        };
        world.settle(4, &mut lose_first);
        assert_eq!(lost, 1);
        let (a, b) = (info(&world.a, client), info(&world.b, server));
        assert_eq!(world.a.stack.stats().retransmits, 1);
        assert_eq!((a.total_retrans, a.bytes_retrans), (1, 1448));
        assert_eq!((a.bytes_acked, a.bytes_sent), (8 * 1448, 9 * 1448));
        assert_eq!((b.bytes_received, b.rcv_ooopack), (8 * 1448, 7));
        assert_eq!((a.retransmits, a.backoff, a.dsack_dups, a.reord_seen), (0, 0, 0, 0));
        assert_eq!((a.unacked, a.sacked, a.lost, a.retrans), (0, 0, 0, 0));
        assert!(a.min_rtt_us > 0 && a.min_rtt_us <= a.rtt_us);
    }
}

#[test]
fn info_counts_consecutive_timeouts() {
    let mut world = World::new(TcpConfig::default());
    let (client, _, _) = connected(&mut world, false);
    let before = info(&world.a, client);
    world.a.stack.tcp_send(client, &[1; 1000]).unwrap();
    while info(&world.a, client).retransmits < 3 {
        world.settle(1, &mut |_| true);
    }
    let a = info(&world.a, client);
    assert_eq!((a.retransmits, a.backoff, a.ca_state), (3, 3, CaState::Loss));
    assert_eq!(a.rto_us, before.rto_us * 8);
    assert_eq!((a.bytes_acked, a.unacked, a.last_data_sent_ms), (0, 1, 0));
    assert_eq!(a.bytes_sent, 1000 + a.bytes_retrans);
    world.settle(1, &mut never);
    let a = info(&world.a, client);
    assert_eq!((a.retransmits, a.bytes_acked, a.bytes_sent), (0, 1000, 1000 + a.bytes_retrans));
}

#[test]
fn info_reports_limits_of_sender() {
    let mut world =
        World::new(TcpConfig { receive_buffer_initial: 8 << 10, receive_buffer_max: 8 << 10, ..TcpConfig::default() });
    let (client, server, _) = connected(&mut world, false);
    let options = world.a.stack.tcp_options(client).unwrap();
    // The peer does not read: only its window delays the rest.
    world.a.stack.tcp_send(client, &[1; 20_000]).unwrap();
    world.settle(0, &mut never);
    world.turn(&mut never);
    let before = info(&world.a, client).rwnd_limited_us;
    world.now = world.now + Duration::from_millis(150);
    world.turn(&mut never);
    let a = info(&world.a, client);
    assert!((a.rwnd_limited_us - before).abs_diff(150_000) <= 3000, "{before} to {}", a.rwnd_limited_us);
    assert!(a.busy_time_us >= a.rwnd_limited_us && a.sndbuf_limited_us == 0);
    let mut buf = [0; 20_000];
    while world.b.stack.tcp_queued(server).unwrap().0 > 0 || world.a.stack.tcp_queued(client).unwrap().1 > 0 {
        let _ = world.b.stack.tcp_recv(server, &mut buf);
        world.settle(1, &mut never);
    }
    let done = info(&world.a, client);
    // The send buffer is smaller than the window: the application waits.
    world.a.stack.tcp_set_options(client, TcpOptions { send_buffer: Some(4096), ..options }).unwrap();
    assert_eq!(world.a.stack.tcp_send(client, &[1; 6000]), Ok(4096));
    world.turn(&mut |_| true);
    world.now = world.now + Duration::from_millis(50);
    world.a.stack.set_now(world.now);
    let a = info(&world.a, client);
    assert!(a.sndbuf_limited_us.abs_diff(50_000) <= 3000, "{}", a.sndbuf_limited_us);
    assert_eq!(a.rwnd_limited_us, done.rwnd_limited_us);
}

/// The rest of a piece that is not taken is copied again by the application, and ends a run.
#[test]
fn write_is_taken_whole_unless_buffer_is_fixed() {
    const PIECE: usize = 60_000;
    let mut world = World::new(TcpConfig::default());
    let (client, _, _) = connected(&mut world, false);
    // Nothing is acknowledged: the buffer fills.
    let mut queued = 0;
    loop {
        match world.a.stack.tcp_send(client, &[1; PIECE]) {
            Ok(n) => {
                assert_eq!(n, PIECE, "after {queued} bytes");
                queued += n;
            }
            Err(error) => break assert_eq!(error, Error::WouldBlock),
        }
        assert!(queued < 2 << 20, "there is no limit");
    }
    assert!(queued >= PIECE);
    let options = TcpOptions { send_buffer: Some(100_000), ..TcpOptions::default() };
    let mut world = World::new(TcpConfig::default());
    let (client, _, _) = connected(&mut world, false);
    world.a.stack.tcp_set_options(client, options).unwrap();
    let taken: Vec<_> = (0..3).map(|_| world.a.stack.tcp_send(client, &[1; PIECE])).collect();
    let buffer = world.a.stack.tcp_options(client).unwrap().send_buffer.unwrap() as usize;
    assert_eq!(taken, [Ok(PIECE), Ok(buffer - PIECE), Err(Error::WouldBlock)]);
}

#[test]
fn info_outlives_connection() {
    let mut world = World::new(TcpConfig::default());
    let (client, server, _) = connected(&mut world, false);
    world.a.stack.tcp_send(client, &[1; 5000]).unwrap();
    world.settle(1, &mut never);
    world.b.stack.tcp_abort(server);
    world.settle(0, &mut never);
    let a = info(&world.a, client);
    assert_eq!((a.state, a.bytes_acked, a.data_segs_out), (Some(TcpState::Closed), 5000, 4));
    assert!(a.sack && a.timestamps);
}

#[test]
fn segment_waits_for_lost_neighbour() {
    let mut world = World::new(TcpConfig::default());
    let (client, server, _) = connected(&mut world, false);
    world.a.stack.remove_neighbour(IfaceId(0), addr(false, 2, 0).ip());
    world.a.stack.tcp_send(client, b"hello").unwrap();
    let mut out = Vec::new();
    world.a.stack.tx_batch(IfaceId(0), 8, &mut out);
    for tx in out {
        assert_eq!(
            world.a.stack.pool().bytes(&tx.frame)[12..14],
            [8, 6],
            "it is asked for by ARP, and nothing else leaves"
        );
        world.a.stack.pool_mut().free(tx.frame);
    }
    world.settle(3, &mut never);
    let mut buf = [0; 10];
    assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Ok(5));
}

/// Runs `test`, and fails if it does not end.
#[allow(clippy::disallowed_methods, reason = "the engine starts no thread; this watches a test that could hang")]
fn ends(test: fn()) {
    let (done, ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        // After the timeout no receiver is left.
        let _ = done.send(());
    });
    let answer = ended.recv_timeout(std::time::Duration::from_secs(60));
    assert!(answer != Err(std::sync::mpsc::RecvTimeoutError::Timeout), "it does not end");
    assert!(thread.join().is_ok(), "see its message above");
}

/// More neighbours than the path table can hold evict the path of a connection whose neighbour is
/// forgotten. Without space for another path its data cannot be sent: the turn still ends, and the
/// data leaves once there is space.
#[test]
fn turn_ends_without_path() {
    ends(|| {
        let mut world = World::new(TcpConfig::default());
        let (client, server, _) = connected(&mut world, false);
        let stack = &mut world.a.stack;
        stack.remove_neighbour(IfaceId(0), addr(false, 2, 0).ip());
        let other = |n: u32| IpAddr::from((0x0a01_0000 + n).to_be_bytes());
        for n in 0..1 << 14 {
            stack.set_neighbour(IfaceId(0), other(n), Some([2, 0, 0, 0, 1, 1]));
        }
        assert_eq!(stack.tcp_send(client, b"hello"), Ok(5));
        stack.tick();
        let mut out = Vec::new();
        stack.tx_batch(IfaceId(0), 64, &mut out);
        assert!(out.is_empty(), "{} frames with nowhere to go", out.len());
        stack.check(Some(0));
        world.a.stack.remove_neighbour(IfaceId(0), other(0));
        world.settle(100, &mut never);
        let mut buf = [0; 8];
        assert_eq!(world.b.stack.tcp_recv(server, &mut buf), Ok(5));
        assert_eq!(&buf[..5], b"hello");
    });
}

/// A connection that moves to a core without a free slot ends there, and its received data is
/// freed.
#[test]
fn rejected_handover_frees_received_data() {
    let tcp = TcpConfig::default();
    let limits = common::limits(1, 8, 8);
    let (framing, addressing) = (Framing::Ethernet, Addressing::Standalone);
    let plan = common::Plan { last: 2, seed: 2, tcp: tcp.clone(), limits, frames: 64, framing, addressing };
    let b = Host { stack: common::stack_of(2, plan), events: Vec::new() };
    let mut world = World { a: host(1, 1, tcp), b, now: Instant::from_millis(1), packets: 0 };
    let at = addr(false, 2, 80);
    let options = TcpOptions::default();
    let listen = Listen { at, backlog: 16, v6_only: false, fast_open: 0, options };
    let listener = world.b.stack.tcp_listen(listen).unwrap();
    let connect = Connect { remote: at, local: None, options };
    let client = world.a.stack.tcp_connect(connect).unwrap();
    world.settle(2, &mut never);
    assert_eq!(world.a.stack.tcp_send(client, b"hello"), Ok(5));
    world.settle(0, &mut never);
    let stack = &mut world.b.stack;
    let mut messages = Vec::new();
    stack.drain_outbound(&mut messages);
    messages.clear();
    stack.deliver(CoreMessage::Listen { core: CoreId(1), at, up: true });
    stack.tcp_close_listener(listener);
    stack.drain_outbound(&mut messages);
    let moved = messages.into_iter().find(|m| matches!(m.message, CoreMessage::Handover(_)));
    // The same stack represents the other core: the freed slot is taken again.
    let busy = Connect { remote: addr(false, 1, 81), local: None, options };
    stack.tcp_connect(busy).unwrap();
    let (dropped, used) = (stack.stats().drops[DropReason::NoSlots as usize], stack.pool().in_use());
    stack.deliver(moved.expect("it moves to the other listener").message);
    assert_eq!(stack.stats().drops[DropReason::NoSlots as usize], dropped + 1);
    assert_eq!(stack.pool().in_use(), used - 1);
    stack.check(Some(0));
}

/// A connection that moves to another core has its timers in that core's wheel, regardless of the
/// first core's entries.
#[test]
fn timers_move_with_connection() {
    let (tcp, limits) = (TcpConfig::default(), common::limits(8, 8, 8));
    let (framing, addressing) = (Framing::Ethernet, Addressing::Standalone);
    let plan = common::Plan { last: 2, seed: 2, tcp: tcp.clone(), limits, frames: 64, framing, addressing };
    let b = Host { stack: common::stack_of(2, plan), events: Vec::new() };
    let mut world = World { a: host(1, 1, tcp), b, now: Instant::from_millis(1), packets: 0 };
    let probed = |world: &mut World, probes: u64| {
        for _ in 0..400 {
            world.settle(0, &mut never);
            world.b.stack.check(None);
            if world.b.stack.stats().keepalive_probes >= probes {
                return;
            }
        }
        panic!("{} keepalive probes", world.b.stack.stats().keepalive_probes);
    };
    let at = addr(false, 2, 80);
    let times = [20, 75].map(Duration::from_secs);
    let keepalive = Some(Keepalive { idle: times[0], interval: times[1], ..Keepalive::default() });
    let options = TcpOptions { keepalive, ..TcpOptions::default() };
    let listen = Listen { at, backlog: 16, v6_only: false, fast_open: 0, options };
    let listener = world.b.stack.tcp_listen(listen).unwrap();
    let client =
        world.a.stack.tcp_connect(Connect { remote: at, local: None, options: TcpOptions::default() }).unwrap();
    // It is not accepted. A probe is sent and answered: the later entry for the next probe stays
    // behind.
    probed(&mut world, 1);
    world.settle(0, &mut never);
    let stack = &mut world.b.stack;
    let mut messages = Vec::new();
    stack.deliver(CoreMessage::Listen { core: CoreId(1), at, up: true });
    stack.tcp_close_listener(listener);
    stack.drain_outbound(&mut messages);
    let moved = messages.into_iter().find(|m| matches!(m.message, CoreMessage::Handover(_)));
    // The same stack represents the other core.
    let listener = stack.tcp_listen(listen).unwrap();
    stack.deliver(moved.expect("it moves to the other listener").message);
    stack.check(None);
    probed(&mut world, 4);
    let stack = &mut world.b.stack;
    let (server, _) = stack.tcp_accept(listener).unwrap();
    assert_eq!(
        (stack.tcp_state(server), world.a.stack.tcp_state(client)),
        (Ok(TcpState::Established), Ok(TcpState::Established))
    );
}
