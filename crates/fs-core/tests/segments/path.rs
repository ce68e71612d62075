//! Changes of a path's MTU and route.

use crate::common;
use crate::lab::*;
use fs_core::*;
use std::net::SocketAddr;

/// Makes a "fragmentation needed" for the connection's segment at `seq` (RFC 1191 4).
fn too_big(conn: &Conn, seq: u32, mtu: u16) -> Vec<u8> {
    let mut packet = ip4(1, 36);
    packet.extend([3, 4, 0, 0, 0, 0]);
    packet.extend(mtu.to_be_bytes());
    let mut quoted = ip4(6, 1000);
    // From us to the peer, as we sent it.
    quoted[12..20].rotate_left(4);
    packet.extend(quoted);
    packet.extend(80u16.to_be_bytes());
    packet.extend(conn.port.to_be_bytes());
    packet.extend(seq.to_be_bytes());
    packet
}

/// Returns the payload sizes of sent segments.
fn sizes(lab: &mut Lab) -> Vec<usize> {
    lab.sent().iter().map(|seg| seg.payload.len()).collect()
}

/// Acknowledges `bytes` more bytes.
fn acknowledge(lab: &mut Lab, conn: &mut Conn, bytes: u32) {
    conn.ack = conn.ack.wrapping_add(bytes);
    lab.send(&conn.seg(ACK));
}

/// Returns a connection whose segment size was 1460, then 960 after a message, and is now tried at
/// 1460 again.
fn raised(lab: &mut Lab) -> Conn {
    let mut conn = lab.accept_with(4000, syn_options(None, true, Some(7)), TcpOptions::default());
    lab.stack.tcp_send(conn.id, &[1; 1460]).unwrap();
    assert_eq!(sizes(lab), [1460]);
    lab.inject(&too_big(&conn, conn.ack, 1000));
    assert_eq!(sizes(lab), [960, 500]);
    acknowledge(lab, &mut conn, 1460);
    lab.stack.tcp_send(conn.id, &[1; 1460]).unwrap();
    assert_eq!(sizes(lab), [960, 500]);
    acknowledge(lab, &mut conn, 1460);
    lab.pass(Duration::from_secs(601));
    // A segment smaller than the size in doubt proves nothing.
    lab.stack.tcp_send(conn.id, &[1; 100]).unwrap();
    assert_eq!(sizes(lab), [100]);
    acknowledge(lab, &mut conn, 100);
    conn
}

/// RFC 1191 6.3: the larger size is tried after ten minutes. It got through, so a much later
/// timeout does not affect it.
#[test]
fn proven_size_is_not_in_doubt() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = raised(&mut lab);
    for _ in 0..2 {
        lab.stack.tcp_send(conn.id, &[1; 1460]).unwrap();
        assert_eq!(sizes(&mut lab), [1460]);
        acknowledge(&mut lab, &mut conn, 1460);
    }
    lab.stack.tcp_send(conn.id, &[1; 1460]).unwrap();
    assert_eq!(sizes(&mut lab), [1460]);
    lab.pass(Duration::from_millis(700));
    let sent = sizes(&mut lab);
    assert!(sent.len() >= 2 && sent.iter().all(|&n| n == 1460), "{sent:?}");
}

/// The trial segment was dropped: the first timeout ends the trial.
#[test]
fn failed_size_trial_is_reverted() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = raised(&mut lab);
    lab.stack.tcp_send(conn.id, &[1; 1460]).unwrap();
    assert_eq!(sizes(&mut lab), [1460]);
    lab.pass(Duration::from_secs(2));
    let sent = sizes(&mut lab);
    assert!(sent.contains(&960), "{sent:?}");
}

/// RFC 4821 7.7: a path that silently drops large segments is crossed with smaller ones, down to
/// the minimum.
#[test]
fn crosses_black_hole_with_smaller_segments() {
    for (timestamps, mss, base, least) in [(None, 1460, 1024, 512), (Some(1000), 1448, 1012, 506)] {
        let mut lab = Lab::new(TcpConfig::default());
        let conn = lab.accept_with(4000, syn_options(timestamps, true, Some(7)), TcpOptions::default());
        lab.stack.tcp_send(conn.id, &vec![1; mss]).unwrap();
        lab.pass(Duration::from_secs(30));
        let sent = sizes(&mut lab);
        let whole = sent.iter().take_while(|&&n| n == mss).count();
        // The original, perhaps a probe, and two retransmissions: fewer timeouts are no reason to
        // doubt a path (RFC 1122 4.2.3.5, R1).
        assert!((3..=4).contains(&whole) && sent[whole] == base, "{sent:?}");
        assert!(sent[whole..].iter().all(|&n| n <= base) && sent.contains(&least), "{sent:?}");
    }
}

#[test]
fn black_hole_detection_can_be_disabled() {
    let mut lab = Lab::new(TcpConfig { mtu_probing: false, ..TcpConfig::default() });
    let conn = lab.accept_with(4000, syn_options(None, true, Some(7)), TcpOptions::default());
    lab.stack.tcp_send(conn.id, &[1; 1460]).unwrap();
    lab.pass(Duration::from_secs(30));
    let sent = sizes(&mut lab);
    assert!(sent.len() > 4 && sent.iter().all(|&n| n == 1460), "{sent:?}");
}

/// The link's MTU decreases and increases again while a connection is open: segments in flight that
/// are too large are retransmitted, and later ones have the original size.
#[test]
fn segments_follow_link_mtu() {
    for timestamps in [None, Some(7)] {
        let stamps = if timestamps.is_some() { 12 } else { 0 };
        let mut lab = Lab::new(TcpConfig::default());
        let mut conn = lab.accept_with(4000, syn_options(timestamps, true, Some(7)), TcpOptions::default());
        lab.stack.tcp_send(conn.id, &[1; 1400]).unwrap();
        assert_eq!(sizes(&mut lab), [1400]);
        let mtu = |lab: &mut Lab, mtu| lab.stack.update_interface(IfaceId(0), |interface| interface.mtu = mtu);
        mtu(&mut lab, 1000);
        lab.pass(Duration::from_millis(600));
        let sent = sizes(&mut lab);
        assert!(sent.contains(&(960 - stamps)) && sent.iter().all(|&n| n <= 960 - stamps), "{sent:?}");
        acknowledge(&mut lab, &mut conn, 1400);
        lab.stack.tcp_send(conn.id, &[1; 1200]).unwrap();
        assert_eq!(sizes(&mut lab), [960 - stamps, 240 + stamps]);
        acknowledge(&mut lab, &mut conn, 1200);
        // Not by a trial after ten minutes: larger segments cannot leave.
        lab.pass(Duration::from_secs(700));
        lab.stack.tcp_send(conn.id, &[1; 1200]).unwrap();
        assert_eq!(sizes(&mut lab), [960 - stamps, 240 + stamps]);
        acknowledge(&mut lab, &mut conn, 1200);
        mtu(&mut lab, 1300);
        lab.stack.tcp_send(conn.id, &[1; 100]).unwrap();
        assert_eq!(sizes(&mut lab), [100]);
        acknowledge(&mut lab, &mut conn, 100);
        mtu(&mut lab, 9000);
        acknowledge(&mut lab, &mut conn, 0);
        lab.stack.tcp_send(conn.id, &[1; 2000]).unwrap();
        assert_eq!(sizes(&mut lab), [1460 - stamps, 540 + stamps]);
    }
}

/// A refusing route appears and disappears while a connection is open: in between nothing is sent,
/// and afterwards everything arrives. Connects fail as on Linux.
#[test]
fn refusing_route_suspends_connection() {
    let config = TcpConfig { mtu_probing: false, ..TcpConfig::default() };
    let mut lab = Lab::new(config);
    let mut conn = lab.accept_with(4000, syn_options(None, true, Some(7)), TcpOptions::default());
    let to = Cidr { addr: Lab::host(false, 2), prefix: 32 };
    let route = Route { to, gateway: None, iface: IfaceId(0), metric: 0, source: None, refusal: None };
    let all = Route { to: Cidr { prefix: 0, ..to }, ..route };
    lab.stack.tcp_send(conn.id, &[1; 1000]).unwrap();
    assert_eq!(sizes(&mut lab), [1000]);
    let refusals = [
        (Refusal::Unreachable, Error::HostUnreachable),
        (Refusal::Blackhole, Error::InvalidInput),
        (Refusal::Prohibit, Error::Prohibited),
        (Refusal::Throw, Error::NetworkUnreachable),
    ];
    for (refusal, error) in refusals {
        lab.stack.set_routes(vec![all, Route { refusal: Some(refusal), ..route }]);
        let remote = SocketAddr::new(to.addr, 9);
        let connect = Connect { remote, local: None, options: TcpOptions::default() };
        assert_eq!(lab.stack.tcp_connect(connect).unwrap_err(), error);
    }
    lab.stack.tcp_send(conn.id, &[2; 300]).unwrap();
    // Its timer runs, and the core is idle in between.
    for _ in 0..40 {
        lab.pass(Duration::from_millis(500));
        assert_eq!(sizes(&mut lab), []);
    }
    lab.stack.set_routes(vec![all]);
    lab.pass(Duration::from_secs(60));
    let mut sent = sizes(&mut lab);
    assert!(sent.first() == Some(&1000), "{sent:?}");
    acknowledge(&mut lab, &mut conn, 1000);
    lab.pass(Duration::from_secs(1));
    sent.extend(sizes(&mut lab));
    assert!(sent.contains(&300), "{sent:?}");
}

/// Another gateway takes over during handshakes: retransmissions use it, and so does the whole
/// connection.
#[test]
fn handshakes_follow_new_gateway() {
    let (framing, addressing) = (Framing::Ethernet, Addressing::Host);
    let (tcp, limits) = (TcpConfig::default(), common::limits(100, 100, 50));
    let stack = common::stack(common::Plan { last: 1, seed: 7, tcp, limits, frames: 1024, framing, addressing });
    let mut lab = Lab { stack, now: Instant::ZERO, events: Vec::new(), v6: false, raw: Vec::new() };
    lab.pass(Duration::from_secs(1000));
    let mac = |gateway: u8| [2, 0, 0, 0, 1, gateway];
    let by = |lab: &mut Lab, gateway: u8| {
        let to = Cidr { addr: Lab::host(false, 2), prefix: 32 };
        let gateway = Some(Lab::host(false, gateway));
        lab.stack.set_routes(vec![Route { to, gateway, iface: IfaceId(0), metric: 0, source: None, refusal: None }]);
    };
    for gateway in [253, 254] {
        lab.stack.set_neighbour(IfaceId(0), Lab::host(false, gateway), Some(mac(gateway)));
    }
    // Sent packets with their link-layer destinations.
    let sent = |lab: &mut Lab| -> Vec<([u8; 6], Seg)> {
        lab.pass(Duration::ZERO);
        let packets = std::mem::take(&mut lab.raw);
        packets.iter().map(|bytes| (bytes[..6].try_into().unwrap(), read(&bytes[14..]).unwrap())).collect()
    };
    let arrive = |lab: &mut Lab, seg: &Seg| {
        let header = [[2, 0, 0, 0, 0, 1], mac(254)].concat();
        lab.inject(&[header, vec![8, 0], write(seg, false)].concat());
    };
    by(&mut lab, 253);
    let remote = SocketAddr::new(Lab::host(false, 2), 4000);
    let id = lab.stack.tcp_connect(Connect { remote, local: None, options: TcpOptions::default() }).unwrap();
    let listener = lab.listen(TcpOptions::default(), 0);
    let syn = Seg { from: 4001, to: 80, seq: PEER_ISN, flags: SYN, window: 65535, ..Seg::default() };
    arrive(&mut lab, &syn);
    let first = sent(&mut lab);
    assert_eq!(
        first.iter().map(|(to, seg)| (*to, seg.flags & 0x3f)).collect::<Vec<_>>(),
        [(mac(253), SYN), (mac(253), SYN | ACK)]
    );
    by(&mut lab, 254);
    lab.pass(Duration::from_secs(2));
    let again = sent(&mut lab);
    assert!(again.len() >= 2 && again.iter().all(|(to, _)| *to == mac(254)), "{again:?}");
    // Both are established with the old routes, and send by the new gateway from the first segment
    // on.
    by(&mut lab, 253);
    let (ours, answer) = (&first[0].1, &first[1].1);
    let theirs = Seg { from: 4000, to: ours.from, seq: 9, window: 65535, ..Seg::default() };
    arrive(&mut lab, &Seg { ack: ours.seq.wrapping_add(1), flags: SYN | ACK, ..theirs });
    let ack = answer.seq.wrapping_add(1);
    arrive(&mut lab, &Seg { seq: PEER_ISN.wrapping_add(1), ack, flags: ACK, ..syn });
    let accepted = lab.stack.tcp_accept(listener).unwrap().0;
    for id in [id, accepted] {
        lab.stack.tcp_send(id, b"hello").unwrap();
    }
    let last = sent(&mut lab);
    assert!(last.len() >= 2 && last.iter().all(|(to, _)| *to == mac(253)), "{last:?}");
    assert_eq!(last.iter().filter(|(_, seg)| seg.payload == b"hello").count(), 2, "{last:?}");
}
