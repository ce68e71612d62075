//! What a path carries, as it changes.

use crate::lab::*;
use fs_core::*;

/// "Fragmentation needed" for the connection's segment at `seq` (RFC 1191 4).
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

/// Payload sizes of what has left.
fn sizes(lab: &mut Lab) -> Vec<usize> {
    lab.sent().iter().map(|seg| seg.payload.len()).collect()
}

/// The peer has everything.
fn acknowledge(lab: &mut Lab, conn: &mut Conn, bytes: u32) {
    conn.ack = conn.ack.wrapping_add(bytes);
    lab.send(&conn.seg(ACK));
}

/// A connection whose segment size was 1460, is 960 since a message, and is tried again at 1460 now.
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
    // Less than the size in doubt proves nothing.
    lab.stack.tcp_send(conn.id, &[1; 100]).unwrap();
    assert_eq!(sizes(lab), [100]);
    acknowledge(lab, &mut conn, 100);
    conn
}

/// RFC 1191 6.3: the larger size is tried after ten minutes. It got through, so that a time-out long after it is no word on it.
#[test]
fn a_larger_size_that_got_through_is_not_in_doubt_any_more() {
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

/// The trial itself was swallowed: the first time-out ends it.
#[test]
fn a_larger_size_that_did_not_get_through_is_taken_back() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = raised(&mut lab);
    lab.stack.tcp_send(conn.id, &[1; 1460]).unwrap();
    assert_eq!(sizes(&mut lab), [1460]);
    lab.pass(Duration::from_secs(2));
    let sent = sizes(&mut lab);
    assert!(sent.contains(&960), "{sent:?}");
}

/// RFC 4821 7.7: a path that swallows large segments and says nothing is crossed with smaller ones, down to the floor.
#[test]
fn a_black_hole_is_crossed_with_smaller_segments() {
    for (timestamps, mss, base, least) in [(None, 1460, 1024, 512), (Some(1000), 1448, 1012, 506)] {
        let mut lab = Lab::new(TcpConfig::default());
        let conn = lab.accept_with(4000, syn_options(timestamps, true, Some(7)), TcpOptions::default());
        lab.stack.tcp_send(conn.id, &vec![1; mss]).unwrap();
        lab.pass(Duration::from_secs(30));
        let sent = sizes(&mut lab);
        let whole = sent.iter().take_while(|&&n| n == mss).count();
        // Itself, perhaps a probe, and two time-outs: fewer are no reason to doubt a path (RFC 1122 4.2.3.5, R1).
        assert!((3..=4).contains(&whole) && sent[whole] == base, "{sent:?}");
        assert!(sent[whole..].iter().all(|&n| n <= base) && sent.contains(&least), "{sent:?}");
    }
}

#[test]
fn without_probing_a_black_hole_is_none() {
    let mut lab = Lab::new(TcpConfig { mtu_probing: false, ..TcpConfig::default() });
    let conn = lab.accept_with(4000, syn_options(None, true, Some(7)), TcpOptions::default());
    lab.stack.tcp_send(conn.id, &[1; 1460]).unwrap();
    lab.pass(Duration::from_secs(30));
    let sent = sizes(&mut lab);
    assert!(sent.len() > 4 && sent.iter().all(|&n| n == 1460), "{sent:?}");
}
