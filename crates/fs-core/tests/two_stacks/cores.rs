//! Neighbours and connections that several cores share or pass on.

use super::*;

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
