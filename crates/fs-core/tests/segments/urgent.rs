//! Urgent data with Linux's socket semantics.

use crate::lab::*;
use fs_core::*;

fn urgent(conn: &Conn, payload: &[u8], pointer: u16) -> Seg {
    Seg { urgent: pointer, flags: ACK | PSH | URG, ..conn.data(payload) }
}

fn told(lab: &mut Lab) -> bool {
    let told = lab.events.iter().any(|e| matches!(e, Event::Tcp(_, r) if r.contains(Ready::PRIORITY)));
    lab.events.clear();
    told
}

#[test]
fn byte_before_pointer_is_out_of_band() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    assert_eq!(lab.stack.tcp_recv_urgent(conn.id), Err(Error::InvalidInput));
    lab.send(&urgent(&conn, b"abcXdef", 4));
    assert!(told(&mut lab));
    assert!(lab.stack.tcp_ready(conn.id).unwrap().contains(Ready::PRIORITY));
    assert_eq!(lab.stack.tcp_at_mark(conn.id), Ok(false));
    assert_eq!(lab.stack.tcp_recv_urgent(conn.id), Ok(b'X'));
    assert_eq!(lab.stack.tcp_recv_urgent(conn.id), Err(Error::InvalidInput), "once");
    let mut buf = [0; 16];
    assert_eq!(lab.stack.tcp_peek(conn.id, &mut buf), Ok(3));
    assert_eq!(lab.read(&conn), b"abc", "up to the mark");
    assert_eq!(lab.stack.tcp_at_mark(conn.id), Ok(true));
    assert_eq!(lab.stack.tcp_peek(conn.id, &mut buf), Ok(3));
    assert_eq!(lab.read(&conn), b"def");
    assert_eq!(lab.stack.tcp_at_mark(conn.id), Ok(false));
}

#[test]
fn inline_urgent_byte_stays_in_stream() {
    let mut lab = Lab::new(TcpConfig::default());
    let options = TcpOptions { oob_inline: true, ..TcpOptions::default() };
    let conn = lab.accept_with(4000, syn_options(None, false, None), options);
    lab.send(&urgent(&conn, b"abcXdef", 4));
    assert_eq!(lab.stack.tcp_recv_urgent(conn.id), Err(Error::InvalidInput));
    assert_eq!(lab.read(&conn), b"abc");
    assert_eq!(lab.stack.tcp_at_mark(conn.id), Ok(true));
    assert_eq!(lab.read(&conn), b"Xdef");
}

#[test]
fn pointer_arrives_before_byte_and_in_closed_window() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    lab.send(&Seg { urgent: 5, flags: ACK | URG, ..conn.seg(ACK) });
    assert!(told(&mut lab), "MUST-32: at once");
    assert_eq!(lab.stack.tcp_recv_urgent(conn.id), Err(Error::WouldBlock));
    lab.send(&conn.data(b"ab"));
    assert!(!told(&mut lab));
    lab.send(&conn.data_at(2, b"cdX!"));
    assert!(told(&mut lab), "and when it is there");
    assert_eq!(lab.stack.tcp_recv_urgent(conn.id), Ok(b'X'));
    assert_eq!(lab.read(&conn), b"abcd");
    assert_eq!(lab.read(&conn), b"!");
}

#[test]
fn newer_pointer_replaces_older_and_repeated_is_ignored() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    lab.send(&urgent(&conn, b"aX", 2));
    lab.events.clear();
    lab.send(&urgent(&conn, b"aX", 2));
    assert!(!told(&mut lab));
    lab.send(&Seg { seq: conn.seq.wrapping_add(2), ..urgent(&conn, b"bY", 2) });
    assert!(told(&mut lab));
    assert_eq!(lab.stack.tcp_recv_urgent(conn.id), Ok(b'Y'));
    assert_eq!(lab.read(&conn), b"aXb", "what was urgent is ordinary now (as Linux)");
}

#[test]
fn frames_end_at_mark() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    lab.send(&urgent(&conn, b"abcXdef", 4));
    let mut parts = Vec::new();
    while let Ok(Received::Frame(frame)) = lab.stack.tcp_recv_frame(conn.id) {
        parts.push(lab.stack.pool().bytes(&frame).to_vec());
        lab.stack.pool_mut().free(frame);
    }
    assert_eq!(parts, [b"abc".to_vec(), b"def".to_vec()]);
    lab.sent();
    assert_eq!(lab.stack.pool().in_use(), 0);
}

#[test]
fn mark_alone_at_end() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    lab.send(&urgent(&conn, b"X", 1));
    let mut buf = [0; 4];
    assert_eq!(lab.stack.tcp_recv(conn.id, &mut buf), Err(Error::WouldBlock));
    lab.send(&Seg { seq: conn.seq.wrapping_add(1), ..conn.seg(FIN | ACK) });
    assert_eq!(lab.stack.tcp_recv(conn.id, &mut buf), Ok(0));
}

/// An acknowledged urgent byte must not be compared with numbers 2 GiB after it. Sending is also as fast
/// as before.
#[test]
fn acknowledged_urgent_byte_is_forgotten() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept();
    lab.stack.tcp_send_urgent(conn.id, b"X").unwrap();
    let mut fast = 0;
    for first in [true, false, false] {
        if !first {
            lab.stack.tcp_send(conn.id, b"Y").unwrap();
        }
        let before = lab.stack.fast_paths_taken();
        let sent = lab.one();
        assert_eq!((sent.has(URG), sent.urgent), (first, u16::from(first)));
        fast = lab.stack.fast_paths_taken() - before;
        conn.ack = conn.ack.wrapping_add(1);
        lab.send(&conn.seg(ACK));
    }
    assert_eq!(fast, 1, "a byte that is acknowledged is still urgent");
}
