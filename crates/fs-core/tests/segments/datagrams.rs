//! Handmade UDP datagrams, path MTUs, ICMP, flow labels.

use crate::lab::*;
use fs_core::*;
use std::net::SocketAddr;

fn peer(v6: bool, port: u16) -> SocketAddr {
    SocketAddr::new(Lab::host(v6, 2), port)
}

/// Makes a UDP packet from the peer, without checksum (the link has verified it, and IPv4 allows
/// none).
fn udp(v6: bool, from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let len = 8 + payload.len();
    let mut packet = if v6 { ip6(17, len) } else { ip4(17, len) };
    for half in [from, to, len as u16, u16::from(v6)] {
        packet.extend(half.to_be_bytes());
    }
    packet.extend(payload);
    packet
}

/// Makes an ICMP message from the peer about a packet of ours; `word` is its second word.
fn icmp(kind: u8, code: u8, word: u32, about: &[u8]) -> Vec<u8> {
    let v6 = about[0] >> 4 == 6;
    let quote = &about[..about.len().min(500)];
    let len = 8 + quote.len();
    let mut packet = if v6 { ip6(58, len) } else { ip4(1, len) };
    packet.extend([kind, code, 0, 0]);
    packet.extend(word.to_be_bytes());
    packet.extend(quote);
    packet
}

/// Returns the raw packets that were sent.
fn raw(lab: &mut Lab) -> Vec<Vec<u8>> {
    lab.pass(Duration::ZERO);
    std::mem::take(&mut lab.raw)
}

#[test]
fn splits_and_joins_datagrams() {
    for v6 in [false, true] {
        let mut lab = Lab::new(TcpConfig::default());
        let id = lab.stack.udp_bind(SocketAddr::new(Lab::host(v6, 1), 500)).unwrap();
        let bytes: Vec<u8> = (0..2500).map(|i| i as u8).collect();
        assert_eq!(lab.stack.udp_send_segments(id, &bytes, 1000, Some(peer(v6, 9))), Ok(2500));
        let head = if v6 { 48 } else { 28 };
        let sent = raw(&mut lab);
        assert_eq!(sent.iter().map(|p| p.len() - head).collect::<Vec<_>>(), [1000, 1000, 500]);
        assert_eq!(sent.iter().flat_map(|p| p[head..].to_vec()).collect::<Vec<_>>(), bytes);
        assert_eq!(lab.stack.udp_send_segments(id, &bytes, 0, Some(peer(v6, 9))), Err(Error::InvalidInput));
        assert_eq!(lab.stack.udp_send_segments(id, &bytes, 1, Some(peer(v6, 9))), Err(Error::InvalidInput));
        assert_eq!(lab.stack.udp_send_segments(id, &bytes, 1490, Some(peer(v6, 9))), Err(Error::MessageSize));
        assert!(raw(&mut lab).is_empty(), "all or none");
        // As many of one size as fit, ended by a shorter one; another sender starts a new buffer.
        for (port, len) in [(9, 100), (9, 100), (9, 40), (9, 100), (8, 100)] {
            lab.inject(&udp(v6, port, 500, &vec![len as u8; len]));
        }
        let mut buf = [0; 4000];
        for (port, total, size) in [(9, 240, 100), (9, 100, 100), (8, 100, 100)] {
            let (meta, each) = lab.stack.udp_recv_segments(id, &mut buf).unwrap();
            assert_eq!((meta.from.port(), meta.len, each), (port, total, size));
        }
        assert_eq!(lab.stack.udp_recv_segments(id, &mut buf).err(), Some(Error::WouldBlock));
        assert_eq!(lab.stack.pool().in_use(), 0);
    }
}

#[test]
fn sends_and_reports_datagram_marks() {
    for v6 in [false, true] {
        let mut lab = Lab::new(TcpConfig::default());
        let id = lab.stack.udp_bind(SocketAddr::new(Lab::host(v6, 1), 500)).unwrap();
        lab.stack.udp_set_tos(id, 0x28).unwrap();
        let tos = |packet: &[u8]| if v6 { packet[0] << 4 | packet[1] >> 4 } else { packet[1] };
        for (own, left) in [(None, 0x28), (Some(0xb9), 0xb9), (Some(2), 2)] {
            assert_eq!(lab.stack.udp_send_segments_marked(id, b"four", 2, Some(peer(v6, 9)), own), Ok(4));
            assert_eq!(raw(&mut lab).iter().map(|packet| tos(packet)).collect::<Vec<_>>(), [left, left]);
        }
        // Datagrams with other marks are not read together.
        for mark in [2, 2, 3, 0xb8] {
            let mut packet = udp(v6, 9, 500, b"same");
            mark_packet(&mut packet, mark);
            lab.inject(&packet);
        }
        let mut buf = [0; 4000];
        for (mark, total) in [(2, 8), (3, 4), (0xb8, 4)] {
            let (meta, _) = lab.stack.udp_recv_segments(id, &mut buf).unwrap();
            assert_eq!((meta.tos, meta.len), (Some(mark), total));
        }
    }
}

/// Sets the type of service, and fixes the header checksum, or the traffic class.
fn mark_packet(packet: &mut [u8], tos: u8) {
    if packet[0] >> 4 == 6 {
        packet[0] = 0x60 | tos >> 4;
        packet[1] = tos << 4;
        return;
    }
    packet[1] = tos;
    packet[10..12].fill(0);
    let sum: u32 = packet[..20].chunks(2).map(|half| u32::from(u16::from_be_bytes([half[0], half[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn batches_stop_at_the_first_failure() {
    let mut lab = Lab::new(TcpConfig::default());
    let id = lab.stack.udp_bind(SocketAddr::new(Lab::host(false, 1), 500)).unwrap();
    let to = Some(peer(false, 9));
    let big = [0; 2000];
    assert_eq!(lab.stack.udp_send_batch(id, &[(b"a", to), (b"b", to), (&big, to), (b"c", to)]), Ok(2));
    assert_eq!(raw(&mut lab).len(), 2);
    assert_eq!(lab.stack.udp_send_batch(id, &[(&big, to), (b"c", to)]), Err(Error::MessageSize));
    for payload in [b"one", b"two"] {
        lab.inject(&udp(false, 9, 500, payload));
    }
    let (mut a, mut b, mut c) = ([0; 8], [0; 8], [0; 8]);
    let mut metas = Vec::new();
    assert_eq!(lab.stack.udp_recv_batch(id, &mut [&mut a, &mut b, &mut c], &mut metas), Ok(2));
    assert_eq!((&a[..3], &b[..3], metas[1].len), (&b"one"[..], &b"two"[..], 3));
    assert_eq!(lab.stack.udp_recv_batch(id, &mut [&mut a], &mut metas), Err(Error::WouldBlock));
}

#[test]
fn no_multicast_and_no_broadcast() {
    let mut lab = Lab::new(TcpConfig::default());
    let id = lab.stack.udp_bind("0.0.0.0:500".parse().unwrap()).unwrap();
    for to in ["224.0.0.1:5", "255.255.255.255:5", "10.0.0.255:5", "10.0.0.2:0"] {
        let to: SocketAddr = to.parse().unwrap();
        assert_eq!(lab.stack.udp_send(id, b"x", Some(to)), Err(Error::InvalidInput), "{to}");
        assert_eq!(lab.stack.udp_connect(id, to), Err(Error::InvalidInput), "{to}");
    }
}

#[test]
fn unclaimed_datagram_causes_port_unreachable() {
    for v6 in [false, true] {
        let mut lab = Lab::new(TcpConfig::default());
        let asked = udp(v6, 9, 501, b"anyone?");
        lab.inject(&asked);
        let answer = raw(&mut lab).remove(0);
        let head = if v6 { 40 } else { 20 };
        assert_eq!(answer[head..head + 2], if v6 { [1, 4] } else { [3, 3] });
        assert_eq!(answer[head + 8..], asked);
        // Another stack interprets it correctly: the message reaches a connected socket there.
        let mut other = Lab::new(TcpConfig::default());
        let id = other.stack.udp_bind(SocketAddr::new(Lab::host(v6, 1), 9)).unwrap();
        other.stack.udp_connect(id, peer(v6, 501)).unwrap();
        other.stack.udp_send(id, b"anyone?", None).unwrap();
        let sent = raw(&mut other).remove(0);
        let (kind, code) = if v6 { (1, 4) } else { (3, 3) };
        other.inject(&icmp(kind, code, 0, &sent));
        assert_eq!(other.stack.udp_take_error(id), Ok(Some(Error::ConnectionRefused)));
        // The rate is bounded.
        for _ in 0..3000 {
            lab.inject(&asked);
        }
        assert!(raw(&mut lab).len() <= 1024);
    }
}

#[test]
fn learns_path_mtu_for_udp_and_later_connections() {
    let mut lab = Lab::new(TcpConfig::default());
    let id = lab.stack.udp_bind(SocketAddr::new(Lab::host(true, 1), 500)).unwrap();
    lab.stack.udp_send(id, &[0; 1400], Some(peer(true, 9))).unwrap();
    let sent = raw(&mut lab).remove(0);
    lab.inject(&icmp(2, 0, 1279, &sent));
    assert!(lab.stack.udp_send(id, &[0; 1400], Some(peer(true, 9))).is_ok(), "less than IPv6's minimum is void");
    let mut foreign = sent.clone();
    foreign[40..42].copy_from_slice(&501u16.to_be_bytes());
    lab.inject(&icmp(2, 0, 1300, &foreign));
    assert!(lab.stack.udp_send(id, &[0; 1400], Some(peer(true, 9))).is_ok(), "no socket of ours sent that");
    lab.inject(&icmp(2, 0, 1300, &sent));
    assert_eq!(lab.stack.udp_send(id, &[0; 1400], Some(peer(true, 9))), Err(Error::MessageSize));
    assert!(lab.stack.udp_send(id, &[0; 1252], Some(peer(true, 9))).is_ok());
    raw(&mut lab);
    lab.v6 = true;
    let conn = lab.accept();
    assert_eq!(lab.stack.tcp_info(conn.id).unwrap().snd_mss, 1300 - 60 - 12);
    lab.pass(Duration::from_secs(601));
    assert!(lab.stack.udp_send(id, &[0; 1400], Some(peer(true, 9))).is_ok(), "tried again after ten minutes");
}

#[test]
fn exact_icmp_quote_ends_handshake() {
    let mut lab = Lab::new(TcpConfig::default());
    lab.listen(TcpOptions::default(), 0);
    lab.send(&Seg { from: 4000, to: 80, seq: 100, flags: SYN, window: 1000, ..Seg::default() });
    let mut sent = raw(&mut lab).remove(0);
    sent[24] ^= 1;
    lab.inject(&icmp(3, 1, 0, &sent));
    assert_eq!(lab.stack.tcp_handshakes(), 1, "a guess");
    sent[24] ^= 1;
    lab.inject(&icmp(4, 0, 0, &sent));
    lab.inject(&icmp(11, 0, 0, &sent));
    assert_eq!(lab.stack.tcp_handshakes(), 1, "source quench and a routing loop are no reasons");
    lab.inject(&icmp(3, 1, 0, &sent));
    assert_eq!(lab.stack.tcp_handshakes(), 0);
}

#[test]
fn flow_label_is_constant_per_connection() {
    let mut lab = Lab::new(TcpConfig::default());
    lab.v6 = true;
    let label = |packet: &[u8]| u32::from_be_bytes(packet[..4].try_into().unwrap()) & 0xfffff;
    let listener = lab.listen(TcpOptions::default(), 0);
    let mut labels = Vec::new();
    for port in [4000, 4001] {
        let syn = Seg { from: port, to: 80, seq: 9, flags: SYN, window: 60000, ..Seg::default() };
        lab.send(&syn);
        let syn_ack = raw(&mut lab).remove(0);
        let ack = u32::from_be_bytes(syn_ack[44..48].try_into().unwrap()).wrapping_add(1);
        lab.send(&Seg { seq: 10, ack, flags: ACK, ..syn });
        let (id, _) = lab.stack.tcp_accept(listener).unwrap();
        lab.stack.tcp_send(id, b"data").unwrap();
        let data = raw(&mut lab).remove(0);
        lab.stack.tcp_abort(id);
        let reset = raw(&mut lab).remove(0);
        assert!(label(&data) != 0 && label(&data) == label(&syn_ack) && label(&data) == label(&reset));
        labels.push(label(&data));
    }
    assert_ne!(labels[0], labels[1]);
}

#[test]
fn datagrams_wait_while_many_are_queued() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    let id = lab.stack.udp_bind(SocketAddr::new(Lab::host(false, 1), 500)).unwrap();
    let full = |lab: &mut Lab| {
        let mut sent = 0;
        while lab
            .stack
            .udp_send(id, b"x", Some(peer(false, 9)))
            .map_err(|error| assert_eq!(error, Error::WouldBlock))
            .is_ok()
        {
            sent += 1;
        }
        sent
    };
    assert_eq!(full(&mut lab), 256);
    assert!(!lab.stack.udp_ready(id).unwrap().contains(Ready::WRITE));
    lab.stack.tcp_send(conn.id, b"data").unwrap();
    lab.events.clear();
    let mut out = Vec::new();
    assert_eq!(lab.stack.tx_batch(IfaceId(0), 64, &mut out), 33, "half of the batch, and a segment of the connection");
    assert_eq!(lab.stack.tx_batch(IfaceId(0), 64, &mut out), 64, "without a connection all of it");
    out.drain(..).for_each(|tx| lab.stack.pool_mut().free(tx.frame));
    lab.stack.drain_events(&mut lab.events);
    assert_eq!(lab.events, [Event::Udp(id, Ready::WRITE)]);
    assert!(lab.stack.udp_ready(id).unwrap().contains(Ready::WRITE));
    assert_eq!(full(&mut lab), 32 + 64);
}

/// Adds a second link with the network 10.1.0.0/24.
fn add_second_link(lab: &mut Lab) -> IfaceId {
    let own = Cidr { addr: [10, 1, 0, 1].into(), prefix: 24 };
    let first = lab.stack.interface(IfaceId(0)).unwrap().clone();
    let second = lab.stack.add_interface(Interface { addrs: vec![own], ..first });
    lab.stack.set_routes(vec![route_by(Lab::host(false, 0), IfaceId(0)), route_by(own.addr, second)]);
    second
}

fn route_by(net: std::net::IpAddr, iface: IfaceId) -> Route {
    Route { to: Cidr { addr: net, prefix: 24 }, gateway: None, iface, metric: 0, source: None, refusal: None }
}

/// Sends datagrams until the socket has to wait.
fn fill(lab: &mut Lab, id: UdpId, to: &str) {
    let to = to.parse().unwrap();
    while lab.stack.udp_send(id, b"x", Some(to)).map_err(|error| assert_eq!(error, Error::WouldBlock)).is_ok() {}
}

/// Sends up to `budget` packets by a link and returns the events.
fn drained(lab: &mut Lab, link: IfaceId, budget: usize) -> Vec<Event> {
    let mut out = Vec::new();
    lab.stack.tx_batch(link, budget, &mut out);
    out.into_iter().for_each(|tx| lab.stack.pool_mut().free(tx.frame));
    lab.stack.drain_events(&mut lab.events);
    std::mem::take(&mut lab.events)
}

#[test]
fn socket_that_waits_for_two_links_is_woken_by_either() {
    let mut lab = Lab::new(TcpConfig::default());
    let second = add_second_link(&mut lab);
    let id = lab.stack.udp_bind("0.0.0.0:500".parse().unwrap()).unwrap();
    let is_writable = |lab: &Lab| lab.stack.udp_ready(id).unwrap().contains(Ready::WRITE);
    fill(&mut lab, id, "10.0.0.2:9");
    fill(&mut lab, id, "10.1.0.2:9");
    assert!(!is_writable(&lab));
    assert_eq!(drained(&mut lab, second, 64), [Event::Udp(id, Ready::WRITE)]);
    assert!(is_writable(&lab));
    // It waits for the first link again, and has one entry there.
    for _ in 0..3 {
        fill(&mut lab, id, "10.0.0.2:9");
    }
    assert!(!is_writable(&lab));
    assert_eq!(drained(&mut lab, IfaceId(0), 64), [Event::Udp(id, Ready::WRITE)]);
    fill(&mut lab, id, "10.1.0.2:9");
    assert_eq!(drained(&mut lab, second, 64), [Event::Udp(id, Ready::WRITE)]);
}

/// A link that is down sends nothing, so only a change of routes or addresses wakes a socket that waits
/// for it.
#[test]
fn new_routes_wake_waiting_sockets() {
    let mut lab = Lab::new(TcpConfig::default());
    let second = add_second_link(&mut lab);
    let id = lab.stack.udp_bind("0.0.0.0:500".parse().unwrap()).unwrap();
    let to = "10.0.0.2:9".parse().unwrap();
    let events = |lab: &mut Lab| {
        lab.stack.drain_events(&mut lab.events);
        std::mem::take(&mut lab.events)
    };
    fill(&mut lab, id, "10.0.0.2:9");
    lab.stack.set_routes(vec![route_by(Lab::host(false, 0), second)]);
    assert_eq!(events(&mut lab), [Event::Udp(id, Ready::WRITE)]);
    assert_eq!(lab.stack.udp_send(id, b"x", Some(to)), Ok(1), "by the other link");
    lab.stack.set_routes(vec![route_by(Lab::host(false, 0), IfaceId(0))]);
    assert_eq!(events(&mut lab), []);
    fill(&mut lab, id, "10.0.0.2:9");
    lab.stack.set_routes(Vec::new());
    assert_eq!(events(&mut lab), [Event::Udp(id, Ready::WRITE)]);
    assert_eq!(lab.stack.udp_send(id, b"x", Some(to)), Err(Error::NetworkUnreachable));
    lab.stack.set_routes(vec![route_by(Lab::host(false, 0), IfaceId(0))]);
    fill(&mut lab, id, "10.0.0.2:9");
    lab.stack.update_interface(IfaceId(0), |interface| interface.mtu = 1400);
    assert_eq!(events(&mut lab), [Event::Udp(id, Ready::WRITE)]);
}

#[test]
fn control_packets_leave_datagrams_their_half() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    let id = lab.stack.udp_bind(SocketAddr::new(Lab::host(false, 1), 500)).unwrap();
    let syn = Seg { to: 80, seq: 9, flags: SYN, window: 60_000, ..Seg::default() };
    let syns: Vec<Seg> = (5000..5032).map(|from| Seg { from, ..syn.clone() }).collect();
    for _ in 0..10 {
        lab.stack.udp_send(id, b"x", Some(peer(false, 9))).unwrap();
    }
    // Out of order: an ACK is due at once.
    lab.send_together(&[syns, vec![conn.data_at(100, b"later")]].concat());
    let mut out = Vec::new();
    assert_eq!(lab.stack.tx_batch(IfaceId(0), 64, &mut out), 32 + 10 + 1);
    let sent: Vec<_> = out.iter().map(|tx| read(lab.stack.pool().bytes(&tx.frame))).collect();
    assert!(sent[..32].iter().flatten().all(|seg| seg.has(SYN | ACK)), "control packets come first");
    assert_eq!(sent.iter().filter(|seg| seg.is_none()).count(), 10, "datagrams");
    out.into_iter().for_each(|tx| lab.stack.pool_mut().free(tx.frame));
}
