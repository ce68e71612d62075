//! Congestion control as an application sees it: the choice of three, at the start and on a live
//! connection.

use fs_core::*;
use std::net::{IpAddr, SocketAddr};

fn stack(last: u8, control: CongestionControl, frames: usize) -> Stack<HeapPool> {
    let mut config = StackConfig::new(Secret([last; 32]));
    config.tcp.congestion_control = control;
    let mut stack = Stack::new(config, HeapPool::new(frames, 2048));
    let addr = Cidr { addr: IpAddr::from([10, 0, 0, last]), prefix: 24 };
    let iface = stack.add_interface(Interface {
        framing: Framing::Ip,
        mac: [0; 6],
        vlan: None,
        mtu: 1500,
        addrs: vec![addr],
        addressing: Addressing::Host,
        tx_checksum: false,
        accept_partial_checksum: false,
    });
    stack.set_routes(vec![Route { to: addr, gateway: None, iface, metric: 0, source: None, refusal: None }]);
    stack
}

/// Packets take a millisecond each way, unless `way` is set.
struct World {
    hosts: [Stack<HeapPool>; 2],
    now: Instant,
    way: Duration,
    wire: std::collections::VecDeque<(Instant, usize, Vec<u8>)>,
    client: TcpId,
    server: TcpId,
    packets: u64,
    lose_every: u64,
    /// Bytes written and not yet read.
    pending: usize,
    /// The client was notified that it may write.
    may_write: bool,
}

impl World {
    fn new(control: CongestionControl, options: TcpOptions) -> Self {
        Self::with_frames(control, options, 8192)
    }

    fn with_frames(control: CongestionControl, options: TcpOptions, frames: usize) -> Self {
        let mut hosts = [stack(1, control, frames), stack(2, control, frames)];
        let at: SocketAddr = (IpAddr::from([10, 0, 0, 2]), 80).into();
        let listen = Listen { at, backlog: 1, v6_only: false, fast_open: 0, options: TcpOptions::default() };
        let listener = hosts[1].tcp_listen(listen).unwrap();
        let client = hosts[0].tcp_connect(Connect { remote: at, local: None, options }).unwrap();
        let now = Instant::from_millis(1000);
        let mut world = World {
            hosts,
            now,
            way: Duration::from_millis(1),
            wire: Default::default(),
            client,
            server: client,
            packets: 0,
            lose_every: 0,
            pending: 0,
            may_write: false,
        };
        for host in &mut world.hosts {
            host.set_now(now);
        }
        for _ in 0..100 {
            world.step();
            if let Ok((server, _)) = world.hosts[1].tcp_accept(listener) {
                world.server = server;
                return world;
            }
        }
        panic!("no connection");
    }

    /// Advances to the next event.
    fn step(&mut self) {
        for from in 0..2 {
            let host = &mut self.hosts[from];
            host.set_now(self.now);
            host.tick();
            let mut out = Vec::new();
            host.tx_batch(IfaceId(0), 256, &mut out);
            for tx in out {
                self.packets += 1;
                let bytes = host.pool().bytes(&tx.frame).to_vec();
                host.pool_mut().free(tx.frame);
                if self.lose_every == 0 || bytes.len() < 1000 || !self.packets.is_multiple_of(self.lose_every) {
                    self.wire.push_back((self.now + self.way, 1 - from, bytes));
                }
            }
            let mut events = Vec::new();
            host.drain_events(&mut events);
            let write = |e: &Event| matches!(e, Event::Tcp(id, r) if *id == self.client && r.intersects(Ready::WRITE));
            self.may_write |= from == 0 && events.iter().any(write);
        }
        let arrival = self.wire.front().map(|w| w.0);
        let timer = self.hosts.iter().filter_map(Stack::next_deadline).min();
        let Some(next) = [arrival, timer].into_iter().flatten().min() else { return };
        self.now = self.now.max(next);
        while self.wire.front().is_some_and(|w| w.0 <= self.now) {
            let Some((_, to, bytes)) = self.wire.pop_front() else { break };
            let host = &mut self.hosts[to];
            host.set_now(self.now);
            let mut frame = host.pool_mut().alloc().unwrap();
            frame.grow_back(bytes.len());
            host.pool_mut().bytes_mut(&mut frame).copy_from_slice(&bytes);
            host.rx_batch(&mut vec![RxFrame { frame, iface: IfaceId(0), checksum: RxChecksum::Unknown }]);
        }
    }

    fn write(&mut self, len: usize) -> usize {
        let n = self.hosts[0].tcp_send(self.client, &vec![5; len]).unwrap_or(0);
        self.pending += n;
        n
    }

    fn read(&mut self) {
        let mut buf = vec![0; 1 << 16];
        while let Ok(n) = self.hosts[1].tcp_recv(self.server, &mut buf) {
            self.pending -= n;
        }
    }

    /// Transfers `len` more bytes from client to server, plus those in transit.
    fn transfer(&mut self, mut len: usize) {
        for _ in 0..1_000_000 {
            len -= self.write(len.min(50_000));
            self.step();
            self.read();
            if len == 0 && self.pending == 0 {
                return;
            }
        }
        panic!("{} bytes do not arrive: {:?}", self.pending, self.hosts[0].tcp_info(self.client));
    }

    fn control(&self) -> CongestionControl {
        let info = self.hosts[0].tcp_info(self.client).unwrap();
        let options = self.hosts[0].tcp_options(self.client).unwrap();
        assert_eq!(options.congestion_control, Some(info.congestion_control));
        info.congestion_control
    }
}

/// Two connections take turns by the bytes of the interface's quota: a link that merges gets longer runs.
#[test]
fn connections_take_turns_by_the_quota() {
    for (quota, segments) in [(SEND_QUOTA, 11), (64 << 10, 45), (1, 1)] {
        let mut world = World::new(CongestionControl::Cubic, TcpOptions::default());
        let first = (world.client, world.server);
        let at: SocketAddr = (IpAddr::from([10, 0, 0, 2]), 81).into();
        let listen = Listen { at, backlog: 1, v6_only: false, fast_open: 0, options: TcpOptions::default() };
        let listener = world.hosts[1].tcp_listen(listen).unwrap();
        let connect = Connect { remote: at, local: None, options: TcpOptions::default() };
        let client = world.hosts[0].tcp_connect(connect).unwrap();
        let server = loop {
            world.step();
            if let Ok((server, _)) = world.hosts[1].tcp_accept(listener) {
                break server;
            }
        };
        // Windows of more than a quota.
        for (client, server) in [(client, server), first] {
            (world.client, world.server) = (client, server);
            world.transfer(3_000_000);
        }
        world.hosts[0].set_send_quota(IfaceId(0), quota);
        for client in [client, first.0] {
            assert_eq!(world.hosts[0].tcp_send(client, &[5; 100_000]), Ok(100_000));
        }
        let mut out = Vec::new();
        world.hosts[0].tx_batch(IfaceId(0), 128, &mut out);
        let ports: Vec<u8> = out.iter().map(|tx| world.hosts[0].pool().bytes(&tx.frame)[21]).collect();
        let runs: Vec<usize> = ports.chunk_by(|a, b| a == b).map(<[u8]>::len).collect();
        assert_eq!(runs[..2], [segments, segments], "quota {quota}");
    }
}

use CongestionControl::{Bbr, Cubic};

#[test]
fn connection_overrides_configured_algorithm() {
    for &control in CongestionControl::ALL {
        let world = World::new(control, TcpOptions::default());
        assert_eq!(world.control(), control);
        for &own in CongestionControl::ALL {
            let world = World::new(control, TcpOptions { congestion_control: Some(own), ..TcpOptions::default() });
            assert_eq!(world.control(), own);
        }
    }
}

/// From any algorithm to any other, with data in flight, with and without losses under repair.
#[test]
fn live_connection_changes_algorithm() {
    for lose_every in [0, 37] {
        for &from in CongestionControl::ALL {
            for &to in CongestionControl::ALL {
                let mut world = World::new(from, TcpOptions::default());
                world.lose_every = lose_every;
                world.transfer(500_000);
                // With data in flight.
                world.write(100_000);
                for _ in 0..10 {
                    world.step();
                    if world.hosts[0].tcp_info(world.client).unwrap().unacked > 0 {
                        break;
                    }
                }
                let options = TcpOptions { congestion_control: Some(to), ..TcpOptions::default() };
                world.hosts[0].tcp_set_options(world.client, options).unwrap();
                assert_eq!(world.control(), to);
                let info = world.hosts[0].tcp_info(world.client).unwrap();
                assert!(info.unacked > 0, "{info:?}");
                // (CUBIC's first slow start is paced.)
                assert_eq!(
                    info.pacing_rate > 0,
                    to == Bbr || to == from && info.pacing_rate > 0,
                    "{from:?} to {to:?}: {info:?}"
                );
                let start = world.now;
                world.transfer(1_000_000);
                let took = world.now.since(start);
                assert!(took < Duration::from_secs(5), "{from:?} to {to:?}, a loss in {lose_every}: {took:?}");
            }
        }
    }
}

/// An application that writes when it is notified, as with tokio, fills a path of any length: the
/// send buffer grows with the congestion window although no write finds it full. (It once stayed at
/// 192 KiB.)
#[test]
fn readiness_driven_writer_fills_window() {
    for &control in CongestionControl::ALL {
        let mut world = World::new(control, TcpOptions::default());
        let mut flight = 0;
        let start = world.now;
        world.may_write = true;
        while world.now.since(start) < Duration::from_millis(60) {
            while world.may_write {
                let written = world.write(64 << 10);
                let after = world.hosts[0].tcp_ready(world.client).unwrap();
                // A short write has the same meaning as a refused one: wait.
                world.may_write = written == 64 << 10 && after.contains(Ready::WRITE);
            }
            world.step();
            world.read();
            let info = world.hosts[0].tcp_info(world.client).unwrap();
            flight = flight.max(info.unacked * info.snd_mss);
        }
        // Thirty round trips of slow start on a path without limits: only the maximum buffer size
        // limits it.
        assert!(flight > 2 << 20, "{control:?}: at most {flight} bytes in flight");
    }
}

/// The pace of slow start follows the round trips, although paced segments do not use the window.
/// (It once stayed at the last round trip in which the window was used.)
#[test]
fn slow_start_pace_follows_round_trips() {
    let mut world = World::new(Cubic, TcpOptions::default());
    world.transfer(150_000);
    world.way = Duration::from_millis(100);
    world.transfer(150_000);
    world.way = Duration::from_millis(1);
    // A few requests that show that the round trip is short again.
    for _ in 0..50 {
        world.transfer(2000);
    }
    let start = world.now;
    world.transfer(1_000_000);
    let took = world.now.since(start);
    assert!(took < Duration::from_millis(60), "{took:?}: {:?}", world.hosts[0].tcp_info(world.client));
}

/// A send buffer that grows automatically takes at most two turns' worth of unsent bytes: more
/// would have left the cache before it is sent. Writability is reported when data is sent, without
/// waiting for an ACK.
#[test]
fn unsent_bytes_are_bounded() {
    const UNSENT_MAX: u32 = (256 << 10) + 1448;
    let mut world = World::new(Cubic, TcpOptions::default());
    world.way = Duration::from_micros(100);
    for _ in 0..40 {
        while world.write(64 << 10) == 64 << 10 {}
        let info = world.hosts[0].tcp_info(world.client).unwrap();
        assert!(info.notsent_bytes <= UNSENT_MAX, "{info:?}");
        world.step();
        world.read();
    }
    world.transfer(0);
    while world.write(64 << 10) == 64 << 10 {}
    assert_eq!(world.hosts[0].tcp_ready(world.client).unwrap(), Ready::default());
    let mut told = false;
    while !told {
        let host = &mut world.hosts[0];
        let mut out = Vec::new();
        assert!(host.tx_batch(IfaceId(0), 10, &mut out) > 0, "writability is reported once data is sent");
        out.into_iter().for_each(|tx| host.pool_mut().free(tx.frame));
        let mut events = Vec::new();
        host.drain_events(&mut events);
        told = events.contains(&Event::Tcp(world.client, Ready::WRITE));
        assert_eq!(told, host.tcp_ready(world.client).unwrap() == Ready::WRITE);
    }
    // An application that sets the buffer size can use all of it, and is notified.
    while world.write(64 << 10) == 64 << 10 {}
    assert_eq!(world.hosts[0].tcp_ready(world.client).unwrap(), Ready::default());
    let options = world.hosts[0].tcp_options(world.client).unwrap();
    let sized = TcpOptions { send_buffer: Some(2 << 20), ..options };
    world.hosts[0].tcp_set_options(world.client, sized).unwrap();
    let mut events = Vec::new();
    world.hosts[0].drain_events(&mut events);
    assert_eq!(events, [Event::Tcp(world.client, Ready::WRITE)]);
    // The same for a size set at the start.
    let mut world = World::new(Cubic, TcpOptions { send_buffer: Some(2 << 20), ..TcpOptions::default() });
    while world.write(64 << 10) == 64 << 10 {}
    let info = world.hosts[0].tcp_info(world.client).unwrap();
    assert!(info.notsent_bytes > 1 << 20, "{info:?}");
}

/// The path's capacity determines the size of a send buffer; beyond 4 MiB only if the core has
/// spare frames.
#[test]
fn large_send_buffer_leaves_frames_for_others() {
    for (frames, largest) in [(4096, 4 << 20), (32_768, 6 << 20)] {
        let mut world = World::with_frames(Cubic, TcpOptions::default(), frames);
        world.way = Duration::from_millis(25);
        world.transfer(30 << 20);
        let options = world.hosts[0].tcp_options(world.client).unwrap();
        assert_eq!(options.send_buffer, Some(largest), "{:?}", world.hosts[0].tcp_info(world.client));
    }
}
