//! Link-local addresses on a host with two links: a scope id names the link (RFC 4007). The peers
//! on both have the same address, so that nothing else distinguishes them.

use fs_core::*;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The host's scope ids of its links, as a kernel might number them.
const SCOPES: [u32; 2] = [7, 9];
/// A peer has one link, whose scope id was not set.
const PEERS_OWN: u32 = 1;

struct Host {
    stack: Stack<HeapPool>,
    events: Vec<Event>,
}

fn link_local(last: u16) -> Ipv6Addr {
    Ipv6Addr::from([0xfe80, 0, 0, 0, 0, 0, 0, last])
}

fn at(last: u16, port: u16, scope: u32) -> SocketAddr {
    SocketAddrV6::new(link_local(last), port, 0, scope).into()
}

fn mac(last: u16) -> [u8; 6] {
    [2, 0, 0, 0, 0, last as u8]
}

/// Makes a host with an interface for each of `links`: the last group of its address there, and the
/// last byte of its link address.
fn host(seed: u8, links: &[(u16, u16)]) -> Host {
    host_of_cores(1, seed, links)
}

fn host_of_cores(cores: u16, seed: u8, links: &[(u16, u16)]) -> Host {
    let mut config = StackConfig::new(Secret([seed; 32]));
    config.cores = cores;
    config.limits = Limits { connections: 64, time_wait: 64, syn_cache: 64, ..Limits::default() };
    let mut stack = Stack::new(config, HeapPool::new(1024, 2048));
    for &(last, link_address) in links {
        stack.add_interface(Interface {
            framing: Framing::Ethernet,
            mac: mac(link_address),
            vlan: None,
            mtu: 1500,
            addrs: vec![Cidr { addr: link_local(last).into(), prefix: 64 }],
            addressing: Addressing::Standalone,
            tx_checksum: false,
            accept_partial_checksum: false,
        });
    }
    let route = |iface| Route {
        to: Cidr { addr: link_local(0).into(), prefix: 64 },
        gateway: None,
        iface,
        metric: 0,
        source: None,
        refusal: None,
    };
    stack.set_routes((0..links.len() as u8).map(|n| route(IfaceId(n))).collect());
    Host { stack, events: Vec::new() }
}

fn carry(from: &mut Host, by: IfaceId, to: &mut Host, at: IfaceId) -> bool {
    let mut out = Vec::new();
    from.stack.tx_batch(by, 64, &mut out);
    let moved = !out.is_empty();
    let mut arrived = Vec::new();
    for tx in out {
        let mut frame = to.stack.pool_mut().alloc().expect("a frame for the wire");
        frame.grow_back(tx.frame.len());
        let bytes = from.stack.pool().bytes(&tx.frame).to_vec();
        to.stack.pool_mut().bytes_mut(&mut frame).copy_from_slice(&bytes);
        frame.set_more(tx.frame.more());
        arrived.push(RxFrame { frame, iface: at, checksum: RxChecksum::Unknown });
        from.stack.pool_mut().free(tx.frame);
    }
    to.stack.rx_batch(&mut arrived);
    moved
}

/// fe80::1 on the first link and fe80::2 on the second; fe80::99 is the peer on each.
struct World {
    host: Host,
    peers: [Host; 2],
    now: Instant,
}

const PEER: u16 = 0x99;

impl World {
    fn new() -> Self {
        let mut host = host(1, &[(1, 1), (2, 2)]);
        (0..).zip(SCOPES).for_each(|(n, scope)| host.stack.set_scope(IfaceId(n), scope));
        let peers = [3, 4].map(|link_address| self::host(link_address as u8, &[(PEER, link_address)]));
        World { host, peers, now: Instant::from_millis(1) }
    }

    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for n in [0, 1] {
                let link = IfaceId(n as u8);
                for host in [&mut self.host, &mut self.peers[n]] {
                    host.stack.set_now(self.now);
                    host.stack.tick();
                    host.stack.drain_events(&mut host.events);
                }
                moved |= carry(&mut self.host, link, &mut self.peers[n], IfaceId(0));
                moved |= carry(&mut self.peers[n], IfaceId(0), &mut self.host, link);
            }
            self.now = self.now + Duration::from_millis(1);
            if !moved {
                return;
            }
        }
    }
}

fn listen(at: SocketAddr) -> Listen {
    Listen { at, backlog: 4, v6_only: false, fast_open: 0, options: TcpOptions::default() }
}

fn connect(remote: SocketAddr) -> Connect {
    Connect { remote, local: None, options: TcpOptions::default() }
}

fn bound(remote: SocketAddr, local: Option<SocketAddr>, device: Option<u8>) -> Connect {
    Connect { remote, local, options: TcpOptions { device: device.map(IfaceId), ..TcpOptions::default() } }
}

/// Expected results are those of connect(2) on Linux 6.18.
#[test]
fn connect_requires_one_scope() {
    let World { mut host, .. } = World::new();
    let cases = [
        (bound(at(PEER, 80, 0), None, None), Error::InvalidInput),
        (bound(at(PEER, 80, 8), None, None), Error::NetworkUnreachable),
        (bound(at(PEER, 80, 9), None, Some(0)), Error::InvalidInput),
        (bound(at(PEER, 80, 8), None, Some(0)), Error::InvalidInput),
        (bound(at(PEER, 80, 9), Some(at(1, 0, 7)), None), Error::InvalidInput),
        (bound(at(PEER, 80, 0), Some(at(2, 0, 7)), None), Error::AddrNotAvailable),
    ];
    for (connect, error) in cases {
        assert_eq!(host.stack.tcp_connect(connect).unwrap_err(), error, "{connect:?}");
    }
    // A socket that already has a scope needs no second one.
    for connect in [
        bound(at(PEER, 80, 0), Some(at(2, 0, 9)), None),
        bound(at(PEER, 80, 0), None, Some(1)),
        bound(at(PEER, 80, 9), None, Some(1)),
    ] {
        let id = host.stack.tcp_connect(connect).unwrap();
        let ends = (host.stack.tcp_local(id).unwrap(), host.stack.tcp_remote(id).unwrap());
        assert_eq!((ends.0.ip(), ends.1), (link_local(2).into(), at(PEER, 80, 9)));
        assert_eq!(host.stack.tcp_options(id).unwrap().device, Some(IfaceId(1)));
    }
    let listens = [(at(1, 80, 0), Error::InvalidInput), (at(1, 80, 9), Error::AddrNotAvailable)];
    for (at, error) in listens {
        assert_eq!(host.stack.tcp_listen(listen(at)).unwrap_err(), error, "{at}");
        assert_eq!(host.stack.udp_bind(at).unwrap_err(), error, "{at}");
    }
}

#[test]
fn connection_stays_on_link_of_scope() {
    let mut world = World::new();
    let listeners =
        world.peers.each_mut().map(|peer| peer.stack.tcp_listen(listen("[::]:80".parse().unwrap())).unwrap());
    for n in [1, 0] {
        let id = world.host.stack.tcp_connect(connect(at(PEER, 80, SCOPES[n]))).unwrap();
        world.settle();
        assert_eq!(world.host.stack.tcp_state(id), Ok(TcpState::Established));
        let local = world.host.stack.tcp_local(id).unwrap();
        assert_eq!(local, at(1 + n as u16, local.port(), SCOPES[n]));
        assert_eq!(world.host.stack.tcp_remote(id), Ok(at(PEER, 80, SCOPES[n])));
        let (accepted, from) = world.peers[n].stack.tcp_accept(listeners[n]).expect("it has come by this link");
        assert_eq!(from, at(1 + n as u16, local.port(), PEERS_OWN));
        assert_eq!(world.peers[1 - n].stack.tcp_accept(listeners[1 - n]).unwrap_err(), Error::WouldBlock);
        // A change of the routes makes connections look the path up again.
        let interface = world.host.stack.interface(IfaceId(0)).unwrap().mtu;
        world.host.stack.update_interface(IfaceId(0), |i| i.mtu = interface);
        world.host.stack.tcp_send(id, b"still here").unwrap();
        world.settle();
        let mut buf = [0; 32];
        assert_eq!(world.peers[n].stack.tcp_recv(accepted, &mut buf), Ok(10));
    }
}

#[test]
fn accept_reports_scope_and_listener_stays_on_link() {
    let mut world = World::new();
    let any = world.host.stack.tcp_listen(listen("[::]:80".parse().unwrap())).unwrap();
    let second = world.host.stack.tcp_listen(listen(at(2, 81, 9))).unwrap();
    assert_eq!(world.host.stack.tcp_listener_addr(second), Ok(at(2, 81, 9)));
    // The first link's peer takes the host for fe80::2, as a misconfigured router would.
    world.peers[0].stack.set_neighbour(IfaceId(0), link_local(2).into(), Some(mac(1)));
    for n in [0, 1] {
        let id = world.peers[n].stack.tcp_connect(connect(at(1 + n as u16, 80, PEERS_OWN))).unwrap();
        world.settle();
        let port = world.peers[n].stack.tcp_local(id).unwrap().port();
        let (accepted, from) = world.host.stack.tcp_accept(any).unwrap();
        assert_eq!(from, at(PEER, port, SCOPES[n]));
        assert_eq!(world.host.stack.tcp_remote(accepted), Ok(from));
        assert_eq!(world.host.stack.tcp_local(accepted), Ok(at(1 + n as u16, 80, SCOPES[n])));
        let refused = world.peers[n].stack.tcp_connect(connect(at(1 + n as u16, 79, PEERS_OWN))).unwrap();
        world.settle();
        // A reset finds its way back, too.
        assert_eq!(world.peers[n].stack.tcp_take_error(refused), Ok(Some(Error::ConnectionRefused)));
        let astray = world.peers[n].stack.tcp_connect(connect(at(2, 81, PEERS_OWN))).unwrap();
        world.settle();
        let heard = world.host.stack.tcp_accept(second).map(|(_, from)| from);
        let port = world.peers[n].stack.tcp_local(astray).unwrap().port();
        assert_eq!(heard, if n == 1 { Ok(at(PEER, port, 9)) } else { Err(Error::WouldBlock) });
        assert!(world.host.stack.stats().dropped(DropReason::NotOurAddress) > 0);
        // A connection that the peer resets before it is accepted is still reported.
        let gone = world.peers[n].stack.tcp_connect(connect(at(1 + n as u16, 80, PEERS_OWN))).unwrap();
        world.settle();
        let port = world.peers[n].stack.tcp_local(gone).unwrap().port();
        let linger =
            TcpOptions { linger: Linger::Timeout(Duration::ZERO), ..world.peers[n].stack.tcp_options(gone).unwrap() };
        world.peers[n].stack.tcp_set_options(gone, linger).unwrap();
        world.peers[n].stack.tcp_close(gone);
        world.settle();
        assert_eq!(world.host.stack.tcp_accept(any).map(|(_, from)| from), Ok(at(PEER, port, SCOPES[n])));
    }
}

#[test]
fn datagram_reply_uses_same_link() {
    let mut world = World::new();
    let server = world.host.stack.udp_bind("[::]:53".parse().unwrap()).unwrap();
    let mut buf = [0; 16];
    for n in [1, 0] {
        let client = world.peers[n].stack.udp_bind("[::]:1000".parse().unwrap()).unwrap();
        world.peers[n].stack.udp_send(client, b"ask", Some(at(1 + n as u16, 53, PEERS_OWN))).unwrap();
        world.settle();
        let asked = world.host.stack.udp_recv(server, &mut buf, false).unwrap();
        assert_eq!((asked.from, asked.to), (at(PEER, 1000, SCOPES[n]), at(1 + n as u16, 53, SCOPES[n])));
        world.host.stack.udp_send(server, b"answer", Some(asked.from)).unwrap();
        world.settle();
        let answer = world.peers[n].stack.udp_recv(client, &mut buf, false).unwrap();
        assert_eq!((answer.len, answer.from), (6, at(1 + n as u16, 53, PEERS_OWN)));
    }
    assert_eq!(world.host.stack.udp_send(server, b"x", Some(at(PEER, 1, 8))), Err(Error::NetworkUnreachable));
    let other = world.host.stack.udp_bind("[::]:54".parse().unwrap()).unwrap();
    assert_eq!(world.host.stack.udp_connect(other, at(PEER, 1, 0)), Err(Error::InvalidInput));
    world.host.stack.udp_connect(other, at(PEER, 1, 9)).unwrap();
    assert_eq!(world.host.stack.udp_device(other), Ok(Some(IfaceId(1))));
    assert_eq!(world.host.stack.udp_remote(other), Ok(Some(at(PEER, 1, 9))));
    assert_eq!(world.host.stack.udp_local(other), Ok(at(2, 54, 9)));
    let ip: IpAddr = link_local(2).into();
    let here = world.host.stack.udp_bind(at(2, 55, 9)).unwrap();
    assert_eq!(
        (world.host.stack.udp_local(here).unwrap().ip(), world.host.stack.udp_device(here)),
        (ip, Ok(Some(IfaceId(1))))
    );
}

/// What the other cores know of a socket is withdrawn by the binding that was announced.
#[test]
fn announced_binding_is_withdrawn() {
    let mut stack = host_of_cores(2, 1, &[(1, 1)]).stack;
    stack.set_scope(IfaceId(0), SCOPES[0]);
    let id = stack.udp_bind("[::]:53".parse().unwrap()).unwrap();
    stack.udp_connect(id, at(PEER, 1, SCOPES[0])).unwrap();
    stack.udp_close(id);
    let mut messages = Vec::new();
    stack.drain_outbound(&mut messages);
    let mut known = Vec::new();
    for message in messages {
        let CoreMessage::Datagrams { binding, up, .. } = message.message else { continue };
        if up {
            known.push(binding);
        } else {
            known.retain(|other| *other != binding);
        }
    }
    assert_eq!(known, []);
}
