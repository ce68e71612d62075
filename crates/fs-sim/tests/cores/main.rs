//! A host with several cores and separate queues: which core receives which packet, and how.

use fs_core::{
    Connect, CoreId, CoreMessage, DropReason, Error, FlowKey, FramePool, Framing, Instant, Listen, ListenerId,
    Outbound, RxChecksum, RxFrame, TcpId, TcpOptions, TcpState, TxFrame, UdpId,
};
use fs_sim::host::{Host, HostConfig, IFACE, ipv4};
use fs_sim::icmp;
use fs_sim::rng::Rng;
use fs_sim::rss::{self, Rss};
use fs_sim::wire;
use std::net::{IpAddr, SocketAddr};

/// Sum of a counter over all cores.
macro_rules! sum {
    ($cores:expr, $counter:ident) => {
        $cores.host.shards.iter().map(|shard| shard.stack.stats().$counter).sum::<u64>()
    };
}

mod moves;
mod search;

/// The ports of a runtime of 16 cores.
const PORTS: (u16, u16) = (20_000, 48_671);

/// A host and the packets that its cores have sent.
struct Cores {
    host: Host,
    sent: Vec<Vec<u8>>,
    now: Instant,
    /// A core that runs no turns, and the messages that wait for it, by sender.
    busy: Option<(usize, Vec<Vec<CoreMessage>>)>,
}

impl Cores {
    fn new(number: usize, config: HostConfig) -> Self {
        let host = Host::new(number, config, Framing::Ip, None, 1500, Rng::new(1 + number as u64));
        Self { host, sent: Vec::new(), now: Instant::from_millis(1), busy: None }
    }

    fn count(&self) -> usize {
        self.host.shards.len()
    }

    /// Delivers a packet to the queue of `core`.
    fn arrive(&mut self, core: usize, packet: &[u8]) {
        let shard = &mut self.host.shards[core];
        let mut frame = shard.stack.pool_mut().alloc().expect("a frame");
        frame.grow_back(packet.len());
        shard.stack.pool_mut().bytes_mut(&mut frame).copy_from_slice(packet);
        let mut frames = vec![RxFrame { frame, iface: IFACE, checksum: RxChecksum::Unknown }];
        shard.stack.rx_batch(&mut frames);
    }

    /// Runs turns of all cores until none has a message or a packet to send.
    fn run(&mut self) {
        loop {
            let mut quiet = true;
            let busy = self.busy.as_ref().map(|(core, _)| *core);
            for core in (0..self.count()).filter(|&core| Some(core) != busy) {
                let stack = &mut self.host.shards[core].stack;
                stack.set_now(self.now);
                stack.tick();
                let mut out = Vec::new();
                while stack.tx_batch(IFACE, 64, &mut out) > 0 {}
                quiet &= out.is_empty();
                for TxFrame { frame, checksum } in out {
                    let mut bytes = stack.pool().bytes(&frame).to_vec();
                    if let Some(request) = checksum {
                        wire::finish_checksum(&mut bytes, request).expect("a request that fits");
                    }
                    stack.pool_mut().free(frame);
                    self.sent.push(bytes);
                }
                let mut messages = Vec::new();
                stack.drain_outbound(&mut messages);
                quiet &= messages.is_empty();
                for Outbound { to, message } in messages {
                    match &mut self.busy {
                        Some((busy, waiting)) if *busy == usize::from(to.0) => waiting[core].push(message),
                        _ => self.host.shards[usize::from(to.0)].stack.deliver(message),
                    }
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// From now on the core runs no turns.
    fn pause(&mut self, core: usize) {
        self.busy = Some((core, (0..self.count()).map(|_| Vec::new()).collect()));
    }

    /// The paused core takes its messages, from core 0 first.
    fn resume(&mut self) {
        let (core, waiting) = self.busy.take().expect("a paused core");
        let stack = &mut self.host.shards[core].stack;
        stack.set_now(self.now);
        waiting.into_iter().flatten().for_each(|message| stack.deliver(message));
    }

    /// Sets each core's steering to the device's hash, which is not visible in the ports.
    fn know_the_device(&mut self) {
        let cores = self.count();
        for shard in &mut self.host.shards {
            let steering = move |flow: &FlowKey| Some(CoreId(rss::queue_of(flow, cores) as u16));
            shard.stack.set_steering(Some(Box::new(steering)));
        }
    }
}

/// A client of several cores, and a server of one.
struct Pair {
    client: Cores,
    server: Cores,
}

impl Pair {
    fn new(cores: u16) -> Self {
        let config = HostConfig { cores, ephemeral_ports: PORTS, ..HostConfig::plain() };
        Self { client: Cores::new(0, config), server: Cores::new(1, HostConfig::plain()) }
    }

    fn listen(&mut self) {
        let at = SocketAddr::new(IpAddr::from([0; 4]), 80);
        let listen = Listen { at, backlog: 1000, v6_only: false, fast_open: 0, options: TcpOptions::default() };
        self.server.host.shards[0].stack.tcp_listen(listen).unwrap();
    }

    /// Exchanges packets until none is left. `queue` returns the client's queue for a packet.
    fn run(&mut self, mut queue: impl FnMut(&[u8]) -> usize) {
        loop {
            self.client.run();
            let there = std::mem::take(&mut self.client.sent);
            there.iter().for_each(|packet| self.server.arrive(0, packet));
            self.server.run();
            let back = std::mem::take(&mut self.server.sent);
            back.iter().for_each(|packet| self.client.arrive(queue(packet), packet));
            if there.is_empty() && back.is_empty() {
                return;
            }
        }
    }

    fn connect(&mut self, core: usize) -> TcpId {
        let connect = Connect { remote: server(80), local: None, options: TcpOptions::default() };
        self.client.host.shards[core].stack.tcp_connect(connect).unwrap()
    }

    fn is_open(&self, core: usize, id: TcpId) -> bool {
        self.client.host.shards[core].stack.tcp_state(id) == Ok(TcpState::Established)
    }
}

/// Makes the ICMP error of `kind` and `code` about an IPv4 packet, for its sender.
fn icmp_error(packet: &[u8], kind: u8, code: u8) -> Vec<u8> {
    // Built like "too big", with the differing fields replaced.
    let mut about = packet.to_vec();
    about[6] |= 0x40;
    let mut error = icmp::too_big(&about, Framing::Ip, 0).expect("an error");
    error[28..].copy_from_slice(&packet[..packet.len().min(548)]);
    (error[20], error[21]) = (kind, code);
    error[22..24].fill(0);
    let sum = wire::checksum(&error[20..], 0);
    error[22..24].copy_from_slice(&sum.to_be_bytes());
    error
}

/// Returns a server's address.
fn server(port: u16) -> SocketAddr {
    SocketAddr::new(ipv4(1), port)
}

#[test]
fn sixteen_cores_offer_28_000_connections_to_one_destination() {
    for knows_the_device in [true, false] {
        let mut config = HostConfig { cores: 16, frames: 16 * 128, ephemeral_ports: PORTS, ..HostConfig::plain() };
        config.limits.connections = 1 << 12;
        let mut client = Cores::new(0, config);
        if knows_the_device {
            client.know_the_device();
        }
        let mut opened = vec![0; 16];
        for (core, opened) in opened.iter_mut().enumerate() {
            loop {
                match client.host.shards[core].stack.tcp_connect(Connect {
                    remote: server(80),
                    local: None,
                    options: TcpOptions::default(),
                }) {
                    Ok(_) => *opened += 1,
                    Err(Error::AddrNotAvailable) => break,
                    Err(error) => panic!("{error}"),
                }
                if *opened % 32 == 0 {
                    client.run();
                    client.sent.clear();
                }
            }
        }
        let all: usize = opened.iter().sum();
        assert!(all >= 28_000, "{all} connections, the device's hash known: {knows_the_device}, by core: {opened:?}");
    }
}

#[test]
fn known_device_steers_replies_to_their_core() {
    let mut pair = Pair::new(4);
    pair.listen();
    pair.client.know_the_device();
    let ids: Vec<_> = (0..200).map(|n| (n % 4, pair.connect(n % 4))).collect();
    let mut rng = Rng::new(1);
    pair.run(|packet| Rss::Flow.queue(packet, Framing::Ip, 4, 0, &mut rng));
    assert!(ids.iter().all(|&(core, id)| pair.is_open(core, id)));
    assert_eq!((sum!(pair.client, packets_forwarded), sum!(pair.client, packets_asked)), (0, 0));
    // The device's table has changed: the cores still find a packet's owner without a search.
    let ids: Vec<_> = (0..200).map(|n| (n % 4, pair.connect(n % 4))).collect();
    pair.run(|packet| (Rss::Flow.queue(packet, Framing::Ip, 4, 0, &mut rng) + 1) % 4);
    assert!(ids.iter().all(|&(core, id)| pair.is_open(core, id)));
    assert_eq!((sum!(pair.client, packets_forwarded), sum!(pair.client, packets_asked)), (200, 0));
}

#[test]
fn icmp_errors_reach_owning_core() {
    for knows_the_device in [true, false] {
        let mut pair = Pair::new(4);
        pair.listen();
        if knows_the_device {
            pair.client.know_the_device();
        }
        let id = pair.connect(2);
        pair.run(|_| 2);
        let written = pair.client.host.shards[2].stack.tcp_send(id, &[7; 20_000]).unwrap();
        assert!(written > 4000, "{written}");
        pair.client.run();
        let packets = std::mem::take(&mut pair.client.sent);
        let large = packets.iter().find(|packet| packet.len() == 1500).expect("a full segment");
        // Linux quotes more; 576 bytes are what every router sends.
        let error = icmp::too_big(large, Framing::Ip, 1400).unwrap();
        pair.client.arrive(0, &error);
        pair.client.run();
        let again = std::mem::take(&mut pair.client.sent);
        assert!(again.iter().any(|packet| packet.len() == 1400), "sent again, no larger than 1400");
        assert_eq!((sum!(pair.client, icmp_errors), pair.client.host.shards[2].stack.stats().icmp_errors), (1, 1));
        // Another core's connection to the same destination starts with the MTU that this one has
        // learned.
        again.iter().for_each(|packet| pair.server.arrive(0, packet));
        let other = pair.connect(3);
        pair.run(|packet| if Rss::Flow.queue(packet, Framing::Ip, 2, 0, &mut Rng::new(1)) == 0 { 3 } else { 1 });
        assert!(pair.is_open(3, other));
        pair.client.host.shards[3].stack.tcp_send(other, &[7; 20_000]).unwrap();
        pair.client.run();
        let longest = pair.client.sent.iter().map(Vec::len).max();
        assert_eq!(longest, Some(1400));
        pair.client.sent.clear();
        // No listener exists: the connect fails at once, whatever queue receives the error.
        let refused = pair.connect(1);
        pair.client.run();
        let syn = pair.client.sent.iter().find(|packet| packet[33] == 2).expect("a SYN").clone();
        pair.client.arrive(3, &icmp_error(&syn, 3, 3));
        pair.client.run();
        let stack = &mut pair.client.host.shards[1].stack;
        assert_eq!(stack.tcp_take_error(refused), Ok(Some(Error::ConnectionRefused)));
        // An error about a flow without owner visits each core once and is dropped.
        let mut stray = syn;
        stray[20..22].copy_from_slice(&[0x27, 0x10]);
        pair.client.arrive(3, &icmp_error(&stray, 3, 3));
        pair.client.run();
        let dropped: u64 =
            pair.client.host.shards.iter().map(|shard| shard.stack.stats().dropped(DropReason::IcmpUnmatched)).sum();
        assert_eq!(dropped, 1);
    }
}

fn at(host: usize, port: u16) -> SocketAddr {
    SocketAddr::new(ipv4(host), port)
}

/// Returns the number of datagrams that a core's socket has received.
fn received(cores: &mut Cores, core: usize, id: UdpId) -> usize {
    let stack = &mut cores.host.shards[core].stack;
    std::iter::from_fn(|| stack.udp_recv(id, &mut [0; 100], false).ok()).count()
}

#[test]
fn datagram_reaches_socket_from_any_queue() {
    let mut pair = Pair::new(4);
    let peers = [4000, 4001, 4002].map(|port| pair.server.host.shards[0].stack.udp_bind(at(1, port)).unwrap());
    let wildcard = SocketAddr::new(IpAddr::from([0; 16]), 53);
    let bind = |pair: &mut Pair, core: usize, at| pair.client.host.shards[core].stack.udp_bind(at).unwrap();
    let send = |pair: &mut Pair, peer: usize, to| {
        for queue in 0..4 {
            pair.server.host.shards[0].stack.udp_send(peers[peer], b"hello", Some(to)).unwrap();
            pair.run(|_| queue);
        }
    };
    // One socket.
    let single = bind(&mut pair, 1, wildcard);
    send(&mut pair, 0, at(0, 53));
    assert_eq!(received(&mut pair.client, 1, single), 4);
    assert_eq!(sum!(pair.client, packets_forwarded), 3);
    // Another core's socket receives from one peer only, and gets all its datagrams.
    let connected = bind(&mut pair, 3, at(0, 53));
    pair.client.host.shards[3].stack.udp_connect(connected, at(1, 4001)).unwrap();
    send(&mut pair, 0, at(0, 53));
    send(&mut pair, 1, at(0, 53));
    assert_eq!((received(&mut pair.client, 1, single), received(&mut pair.client, 3, connected)), (4, 4));
    // The error arrives on any queue: the peer's port is closed.
    pair.server.host.shards[0].stack.udp_close(peers[1]);
    pair.client.host.shards[3].stack.udp_send(connected, b"hello", None).unwrap();
    pair.client.run();
    let sent = std::mem::take(&mut pair.client.sent);
    pair.client.arrive(0, &icmp_error(&sent[0], 3, 3));
    pair.client.run();
    let stack = &mut pair.client.host.shards[3].stack;
    assert_eq!(stack.udp_take_error(connected), Ok(Some(Error::ConnectionRefused)));
    // One socket on each core: datagrams stay on the core that receives them.
    let ids = [0, 1, 2, 3].map(|core| bind(&mut pair, core, SocketAddr::new(IpAddr::from([0; 4]), 5353)));
    let before = sum!(pair.client, packets_forwarded);
    send(&mut pair, 2, at(0, 5353));
    assert_eq!([0, 1, 2, 3].map(|core| received(&mut pair.client, core, ids[core])), [1; 4]);
    assert_eq!(sum!(pair.client, packets_forwarded), before);
    // Some are closed: the remaining ones get all datagrams.
    pair.client.host.shards[0].stack.udp_close(ids[0]);
    pair.client.host.shards[2].stack.udp_close(ids[2]);
    send(&mut pair, 2, at(0, 5353));
    assert_eq!([1, 3].map(|core| received(&mut pair.client, core, ids[core])).iter().sum::<usize>(), 4);
    // All are closed.
    for core in [1, 3] {
        pair.client.host.shards[core].stack.udp_close(ids[core]);
    }
    let before = sum!(pair.client, packets_forwarded);
    send(&mut pair, 2, at(0, 5353));
    assert_eq!(sum!(pair.client, packets_forwarded), before);
}

/// Two cores of one host that listen, and a peer that connects to them from one port.
struct Reused {
    pair: Pair,
    listeners: [ListenerId; 2],
}

impl Reused {
    /// A connection that the core `core` accepts is closed by it first, so that its record in
    /// TIME-WAIT stays there.
    fn after_close_on(core: usize, timestamps: bool) -> Self {
        let mut config = HostConfig::plain();
        config.tcp.timestamps = timestamps;
        let client = Cores::new(0, HostConfig { cores: 2, ephemeral_ports: PORTS, ..config.clone() });
        let mut pair = Pair { client, server: Cores::new(1, config) };
        let listen =
            Listen { at: at(0, 80), backlog: 10, v6_only: false, fast_open: 0, options: TcpOptions::default() };
        let listeners = [0, 1].map(|core| pair.client.host.shards[core].stack.tcp_listen(listen).unwrap());
        let mut reused = Self { pair, listeners };
        let first = reused.connect(core, core);
        let accepted = reused.accept(core).expect("a connection");
        reused.pair.client.host.shards[core].stack.tcp_close(accepted);
        reused.pair.run(|_| core);
        reused.pair.server.host.shards[0].stack.tcp_close(first);
        reused.pair.run(|_| core);
        // The peer's clock of timestamps ticks once a millisecond.
        for side in [&mut reused.pair.client, &mut reused.pair.server] {
            side.now = side.now + fs_core::Duration::from_millis(10);
        }
        reused
    }

    /// Connects from the same port as ever. The SYN arrives at the core `syn`, the rest at `rest`.
    fn connect(&mut self, syn: usize, rest: usize) -> TcpId {
        let connect = Connect { remote: at(0, 80), local: Some(at(1, 5000)), options: TcpOptions::default() };
        let id = self.pair.server.host.shards[0].stack.tcp_connect(connect).unwrap();
        self.pair.run(|packet| if packet[33] == 2 { syn } else { rest });
        id
    }

    fn accept(&mut self, core: usize) -> Option<TcpId> {
        let listener = self.listeners[core];
        self.pair.client.host.shards[core].stack.tcp_accept(listener).ok().map(|(id, _)| id)
    }

    /// Sends from the peer by the queue `queue`. Returns what the connection of `core` receives.
    fn passes(&mut self, from: TcpId, queue: usize, core: usize, to: TcpId) -> Vec<u8> {
        self.pair.server.host.shards[0].stack.tcp_send(from, b"hello").unwrap();
        self.pair.run(|_| queue);
        let mut received = vec![0; 10];
        let n = self.pair.client.host.shards[core].stack.tcp_recv(to, &mut received).unwrap_or(0);
        received.truncate(n);
        received
    }
}

#[test]
fn time_wait_on_another_core_takes_nothing_from_a_newer_connection() {
    // A veth device chooses the queue by the sender's CPU.
    for timestamps in [true, false] {
        let mut reused = Reused::after_close_on(0, timestamps);
        let peer = reused.connect(1, 0);
        let accepted = reused.accept(1).expect("a connection");
        assert_eq!(reused.passes(peer, 0, 1, accepted), b"hello", "timestamps: {timestamps}");
        // An abort reaches it, too.
        reused.pair.server.host.shards[0].stack.tcp_abort(peer);
        reused.pair.run(|_| 0);
        let state = reused.pair.client.host.shards[1].stack.tcp_state(accepted);
        assert_eq!(state, Ok(TcpState::Closed), "timestamps: {timestamps}");
        let resets = sum!(reused.pair.client, resets_sent);
        assert_eq!(resets, 0);
    }
}

#[test]
fn connection_that_moves_replaces_older_time_wait() {
    let mut reused = Reused::after_close_on(1, true);
    let peer = reused.connect(0, 0);
    let listener = reused.listeners[0];
    reused.pair.client.host.shards[0].stack.tcp_close_listener(listener);
    reused.pair.run(|_| 0);
    let accepted = reused.accept(1).expect("the connection that moved");
    assert_eq!(reused.passes(peer, 0, 1, accepted), b"hello");
    assert_eq!(reused.passes(peer, 1, 1, accepted), b"hello");
    let resets = sum!(reused.pair.client, resets_sent);
    assert_eq!(resets, 0);
}

/// A SYN cookie's first data comes to another core than its handshake.
#[test]
fn cookie_opens_one_connection() {
    let mut config = HostConfig::plain();
    config.limits.syn_cache = 0;
    let client = Cores::new(0, HostConfig { cores: 2, ephemeral_ports: PORTS, ..config });
    let mut pair = Pair { client, server: Cores::new(1, HostConfig::plain()) };
    let listen = Listen { at: at(0, 80), backlog: 10, v6_only: false, fast_open: 0, options: TcpOptions::default() };
    let listeners = [0, 1].map(|core| pair.client.host.shards[core].stack.tcp_listen(listen).unwrap());
    let mut connect = |queue: usize| {
        let connect = Connect { remote: at(0, 80), local: None, options: TcpOptions::default() };
        let id = pair.server.host.shards[0].stack.tcp_connect(connect).unwrap();
        pair.run(|_| queue);
        id
    };
    // Both cores have sent cookies.
    let (_, peer) = (connect(0), connect(1));
    pair.server.host.shards[0].stack.tcp_send(peer, b"hello").unwrap();
    pair.run(|_| 0);
    let opened = pair.client.host.shards.iter().map(|shard| shard.stack.stats().syn_cookies_ok);
    assert_eq!(opened.collect::<Vec<_>>(), [1, 1]);
    let stack = &mut pair.client.host.shards[1].stack;
    let (accepted, _) = stack.tcp_accept(listeners[1]).unwrap();
    assert_eq!(stack.tcp_recv(accepted, &mut [0; 10]), Ok(5));
}
