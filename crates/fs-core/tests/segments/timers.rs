//! Timers: keepalive, corked data, loss probes, user timeout, linger.

use crate::lab::*;
use fs_core::*;
use std::net::SocketAddr;

/// TCP_USER_TIMEOUT counts from the last time that the window was closed, not from an earlier one.
#[test]
fn reopened_window_restarts_user_timeout() {
    let mut lab = Lab::new(TcpConfig::default());
    let limit = Duration::from_secs(10);
    let options = TcpOptions { user_timeout: Some(limit), ..TcpOptions::default() };
    let mut conn = lab.accept_with(4000, syn_options(None, true, Some(7)), options);
    // Shrunk while data is in flight: timeouts find it closed.
    lab.stack.tcp_send(conn.id, &[1; 1000]).unwrap();
    lab.one();
    lab.send(&Seg { window: 0, ..conn.seg(ACK) });
    lab.pass(Duration::from_secs(2));
    lab.sent();
    // Open again for a while.
    for _ in 0..2 {
        conn.ack = conn.ack.wrapping_add(1000);
        lab.send(&conn.seg(ACK));
        lab.stack.tcp_send(conn.id, &[1; 1000]).unwrap();
        lab.one();
    }
    conn.ack = conn.ack.wrapping_add(1000);
    lab.send(&conn.seg(ACK));
    lab.pass(Duration::from_secs(30));
    lab.silence();
    lab.send(&Seg { window: 0, ..conn.seg(ACK) });
    lab.stack.tcp_send(conn.id, &[1; 1000]).unwrap();
    lab.silence();
    lab.pass(Duration::from_secs(8));
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Established));
    lab.pass(Duration::from_secs(12));
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Closed), "no reply for the user timeout");
}

/// RFC 9293 MUST-28.
#[test]
fn keepalive_idle_defaults_to_two_hours() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    let options = TcpOptions { keepalive: Some(Keepalive::default()), ..TcpOptions::default() };
    lab.stack.tcp_set_options(conn.id, options).unwrap();
    lab.pass(Duration::from_secs(7199));
    lab.silence();
    lab.pass(Duration::from_secs(2));
    assert_eq!(lab.one().seq, conn.ack.wrapping_sub(1));
}

/// TCP_CORK delays for at most 200 ms (tcp(7)), for any retransmission timeout.
#[test]
fn cork_ends_after_200_milliseconds() {
    let mut lab = Lab::new(TcpConfig { rto_min: Duration::from_secs(2), ..TcpConfig::default() });
    let options = TcpOptions { cork: true, ..TcpOptions::default() };
    let conn = lab.accept_with(4000, syn_options(None, true, Some(7)), options);
    lab.stack.tcp_send(conn.id, b"held").unwrap();
    lab.silence();
    lab.pass(Duration::from_millis(195));
    lab.silence();
    lab.pass(Duration::from_millis(10));
    assert_eq!(lab.one().payload, b"held");
}

/// A machine that was paused finds all of its keepalive times in the past.
#[test]
fn late_keepalive_probes_are_not_sent_at_once() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    let keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(1), count: 3 };
    lab.stack.tcp_set_options(conn.id, TcpOptions { keepalive: Some(keepalive), ..TcpOptions::default() }).unwrap();
    lab.now = lab.now + Duration::from_secs(60);
    lab.pass(Duration::from_millis(500));
    assert_eq!(lab.sent().len(), 1);
    lab.pass(Duration::from_millis(2400));
    assert_eq!((lab.sent().len(), lab.stack.tcp_state(conn.id)), (2, Ok(TcpState::Established)));
    lab.pass(Duration::from_millis(1200));
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Closed), "and still it ends");
}

/// TCP_USER_TIMEOUT replaces the count of keepalive probes, however many are sent until then.
#[test]
fn user_timeout_ends_hundreds_of_keepalive_probes() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    let keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(1), count: 3 };
    let user_timeout = Some(Duration::from_secs(600));
    let options = TcpOptions { keepalive: Some(keepalive), user_timeout, ..TcpOptions::default() };
    lab.stack.tcp_set_options(conn.id, options).unwrap();
    lab.pass(Duration::from_secs(595));
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Established));
    assert!((580..590).contains(&lab.sent().len()), "a probe a second");
    assert_eq!(lab.stack.tcp_info(conn.id).unwrap().probes, u8::MAX);
    lab.pass(Duration::from_secs(10));
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Closed));
}

/// Times that wheel ticks cannot distinguish from the past (ticks are compared modulo 2^32, 52
/// days) still work.
#[test]
fn far_deadlines_neither_panic_nor_spin() {
    for far in [Duration::from_secs(30 * 24 * 3600), Duration::MAX] {
        let mut lab = Lab::new(TcpConfig::default());
        let conn = lab.accept();
        let options = TcpOptions {
            keepalive: Some(Keepalive { idle: far, interval: far, count: 3 }),
            linger: Linger::Timeout(far),
            user_timeout: Some(far),
            ..TcpOptions::default()
        };
        lab.stack.tcp_set_options(conn.id, options).unwrap();
        let later = |lab: &Lab| lab.stack.next_deadline().is_none_or(|at| at > lab.now);
        lab.pass(Duration::from_secs(1));
        assert!(later(&lab), "idle");
        lab.stack.tcp_send(conn.id, b"never acknowledged").unwrap();
        lab.pass(Duration::from_secs(10));
        assert!(lab.sent().len() < 12, "the time-outs back off");
        lab.stack.tcp_close(conn.id);
        lab.pass(Duration::from_secs(1));
        assert!(later(&lab), "an orphan");
    }
}

/// RFC 8985 7.2: the probe is postponed with every transmission, also if the device's batch ends
/// before the connection's data.
#[test]
fn full_batch_postpones_tail_loss_probe() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    // A single segment's ACK may be delayed: its probe waits for 200 ms. That of two or more does
    // not.
    lab.stack.tcp_send(conn.id, &[1; 1448]).unwrap();
    lab.one();
    lab.pass(Duration::from_millis(50));
    lab.silence();
    lab.stack.tcp_send(conn.id, &[2; 4 * 1448]).unwrap();
    for _ in 0..2 {
        let mut out = Vec::new();
        assert_eq!(lab.stack.tx_batch(IfaceId(0), 2, &mut out), 2);
        out.into_iter().for_each(|tx| lab.stack.pool_mut().free(tx.frame));
    }
    lab.pass(Duration::from_millis(1));
    lab.silence();
    lab.pass(Duration::from_millis(5));
    let probe = lab.one();
    assert_eq!((probe.seq, probe.payload.len()), (conn.ack.wrapping_add(4 * 1448), 1448));
}

/// RFC 8985 7.3: no probe before a round trip was measured since the last one. If round trips have
/// become longer than the probe timer, each flight would be probed and none measured. Linux probes
/// each.
#[test]
fn probe_waits_for_round_trip_sample_since_last() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept_with(4000, syn_options(None, true, Some(7)), TcpOptions::default());
    let two = |lab: &mut Lab, conn: &mut Conn| {
        let first = conn.ack;
        lab.stack.tcp_send(conn.id, &[1; 2 * 1460]).unwrap();
        assert_eq!(lab.sent().len(), 2);
        conn.ack = first.wrapping_add(2 * 1460);
        first
    };
    let first = two(&mut lab, &mut conn);
    lab.pass(Duration::from_millis(8));
    assert_eq!(lab.one().seq, first.wrapping_add(1460), "the probe");
    // Both have arrived: the probe's fate is known.
    lab.send(&conn.seg(ACK));
    lab.send(&conn.seg(ACK));
    let first = two(&mut lab, &mut conn);
    lab.pass(Duration::from_millis(195));
    lab.silence();
    lab.pass(Duration::from_millis(10));
    assert_eq!(lab.one().seq, first, "the time-out, when it is without a probe");
    lab.send(&conn.seg(ACK));
    two(&mut lab, &mut conn);
    lab.send(&conn.seg(ACK));
    let first = two(&mut lab, &mut conn);
    lab.pass(Duration::from_millis(8));
    assert_eq!(lab.one().seq, first.wrapping_add(1460), "a round trip was measured");
}

/// SO_LINGER's time is how long close(2) blocks on Linux; afterwards the rest is still sent.
#[test]
fn lingering_data_is_sent_after_timeout() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    let options = TcpOptions { linger: Linger::Timeout(Duration::from_secs(1)), ..TcpOptions::default() };
    lab.stack.tcp_set_options(conn.id, options).unwrap();
    lab.stack.tcp_send(conn.id, b"the last words").unwrap();
    lab.stack.tcp_close(conn.id);
    lab.pass(Duration::from_secs(4));
    let sent = lab.sent();
    assert!(sent.len() > 3 && sent.iter().all(|s| !s.has(RST) && s.payload == b"the last words"), "{sent:#?}");
    let all = conn.ack.wrapping_add(15);
    lab.send(&Seg { ack: all, ..conn.seg(FIN | ACK) });
    assert_eq!(lab.one().seq, all, "TIME-WAIT's ACK");
}

/// Linux's `tcp_retries2` 15 is a time of 924.6 s, after which the next time-out ends the
/// connection. Time-outs are 120 s apart by then (`TCP_RTO_MAX`).
#[test]
fn silent_peer_is_given_up_after_15_minutes() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    lab.stack.tcp_send(conn.id, b"never acknowledged").unwrap();
    lab.pass(Duration::from_secs(920));
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Established));
    let sent = lab.sent().len();
    assert!((15..=17).contains(&sent), "{sent} packets");
    lab.pass(Duration::from_secs(130));
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Closed));
}

/// Linux's `tcp_syn_retries` 6 and `tcp_synack_retries` 5: 127 and 63 s.
#[test]
fn unanswered_handshakes_are_given_up_after_linuxs_retries() {
    let mut lab = Lab::new(TcpConfig::default());
    let remote = SocketAddr::new(Lab::host(false, 2), 90);
    let id = lab.stack.tcp_connect(Connect { remote, local: None, options: TcpOptions::default() }).unwrap();
    lab.listen(TcpOptions::default(), 0);
    let options = syn_options(None, true, None);
    lab.send(&Seg { from: 4000, to: 80, seq: PEER_ISN, flags: SYN, window: 65535, options, ..Seg::default() });
    lab.pass(Duration::from_secs(126));
    assert_eq!(lab.stack.tcp_state(id), Ok(TcpState::SynSent));
    let sent = lab.sent();
    let of = |flags: u8| sent.iter().filter(|seg| seg.flags == flags).count();
    assert_eq!((of(SYN), of(SYN | ACK)), (1 + 6, 1 + 5));
    lab.pass(Duration::from_secs(3));
    assert_eq!(lab.stack.tcp_state(id), Ok(TcpState::Closed));
    lab.silence();
}

/// Linux's `tcp_fin_timeout`.
#[test]
fn orphan_waits_a_minute_for_fin() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept();
    lab.stack.tcp_close(conn.id);
    assert!(lab.one().has(FIN));
    conn.ack = conn.ack.wrapping_add(1);
    lab.send(&conn.seg(ACK));
    lab.pass(Duration::from_secs(59));
    assert_eq!(lab.stack.tcp_connections(), 1);
    lab.pass(Duration::from_secs(2));
    assert_eq!(lab.stack.tcp_connections(), 0);
}
