//! Conditions of the fast paths, one by one: each sends an ordinary packet to the slow path.

use crate::lab::*;
use fs_core::*;

fn cwnd(lab: &Lab, conn: &Conn) -> u32 {
    lab.stack.tcp_info(conn.id).unwrap().snd_cwnd
}

fn acknowledge(lab: &mut Lab, conn: &mut Conn, bytes: u32) {
    conn.ack = conn.ack.wrapping_add(bytes);
    lab.send(&conn.seg(ACK));
}

/// Requests and responses leave the window unchanged; a segment that fills half of it makes it
/// grow.
#[test]
fn ack_grows_used_window() {
    let mut lab = Lab::new(TcpConfig { initial_window: 1, ..TcpConfig::default() });
    let mut conn = lab.accept();
    for (bytes, after) in [(10, 1), (1448, 2), (100, 2), (1448, 2)] {
        lab.stack.tcp_send(conn.id, &vec![1; bytes]).unwrap();
        lab.one();
        acknowledge(&mut lab, &mut conn, bytes as u32);
        assert_eq!(cwnd(&lab, &conn), after, "{bytes} bytes");
    }
}

/// RFC 5681 4.1: after an idle time of one timeout the window is the initial one again.
#[test]
fn idle_time_restarts_window() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept();
    lab.stack.tcp_send(conn.id, &[1; 10 * 1448]).unwrap();
    assert_eq!(lab.sent().len(), 10);
    acknowledge(&mut lab, &mut conn, 10 * 1448);
    for (silence_ms, after) in [(100, 20), (10_000, 10)] {
        lab.pass(Duration::from_millis(silence_ms));
        lab.stack.tcp_send(conn.id, b"x").unwrap();
        lab.one();
        assert_eq!(cwnd(&lab, &conn), after, "{silence_ms} ms");
        acknowledge(&mut lab, &mut conn, 1);
    }
}

/// Makes a second link, to which all routes lead from now on.
fn reroute(lab: &mut Lab) -> IfaceId {
    let to = Cidr { addr: Lab::host(false, 0), prefix: 24 };
    let iface = lab.stack.add_interface(Interface {
        framing: Framing::Ip,
        mac: [0; 6],
        vlan: None,
        mtu: 1500,
        addrs: Vec::new(),
        addressing: Addressing::Standalone,
        tx_checksum: false,
        accept_partial_checksum: false,
    });
    lab.stack.set_routes(vec![Route { to, gateway: None, iface, metric: 0, source: None, refusal: None }]);
    iface
}

fn leaves(lab: &mut Lab, iface: IfaceId) -> usize {
    let mut out = Vec::new();
    lab.stack.tx_batch(iface, 100, &mut out);
    let packets = out.len();
    out.into_iter().for_each(|tx| lab.stack.pool_mut().free(tx.frame));
    packets
}

/// The old link may be unable to send packets.
#[test]
fn released_data_leaves_by_new_route() {
    let mut lab = Lab::new(TcpConfig { initial_window: 1, ..TcpConfig::default() });
    let mut conn = lab.accept();
    lab.stack.tcp_send(conn.id, &[1; 3 * 1448]).unwrap();
    lab.one();
    let iface = reroute(&mut lab);
    acknowledge(&mut lab, &mut conn, 1448);
    assert_eq!(leaves(&mut lab, iface), 2);
}

/// Connections on the old link's lists do not send by it after the routes have changed.
#[test]
fn old_route_is_not_used() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept();
    lab.stack.tcp_send(conn.id, b"text").unwrap();
    let iface = reroute(&mut lab);
    // The connection looks its route up again.
    lab.send(&Seg { window: 60_000, ..conn.seg(ACK) });
    assert_eq!((leaves(&mut lab, IfaceId(0)), leaves(&mut lab, iface)), (0, 1));
    acknowledge(&mut lab, &mut conn, 4);
    // Nor is an owed ACK sent by it.
    lab.send(&conn.data(b"text"));
    let again = reroute(&mut lab);
    lab.send(&conn.data_at(4, b"text"));
    assert_eq!((leaves(&mut lab, iface), leaves(&mut lab, again)), (0, 1));
}
