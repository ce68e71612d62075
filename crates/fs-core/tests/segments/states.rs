//! Acceptability, resets, timestamps, closing: RFC 9293 3.10.7.4, RFC 5961, RFC 7323, RFC 6191.

use crate::lab::*;
use fs_core::*;

#[test]
fn reset_is_valid_only_at_rcv_nxt() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    lab.send(&Seg { seq: conn.seq.wrapping_add(1), ..conn.seg(RST) });
    let challenge = lab.one();
    assert!(challenge.flags == ACK && challenge.ack == conn.seq, "{challenge:?}");
    lab.send(&Seg { seq: conn.seq.wrapping_sub(1), ..conn.seg(RST) });
    lab.send(&Seg { seq: conn.seq.wrapping_add(70_000), ..conn.seg(RST) });
    lab.silence();
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Established));
    // SHLD-2: it may carry data.
    lab.send(&Seg { payload: b"why".to_vec(), ..conn.seg(RST) });
    assert_eq!(lab.stack.tcp_recv(conn.id, &mut [0; 8]), Err(Error::ConnectionReset));
    lab.silence();
}

#[test]
fn reset_is_valid_at_sacked_edge_and_before_fin() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    lab.send(&conn.data_at(1000, &[1; 500]));
    lab.sent();
    lab.send(&Seg { seq: conn.seq.wrapping_add(1500), ..conn.seg(RST) });
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Closed));
    let conn = lab.accept_on(conn.listener, 4001, syn_options(None, false, None));
    lab.send(&conn.seg(FIN | ACK));
    lab.sent();
    lab.send(&Seg { seq: conn.seq, ..conn.seg(RST) });
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Closed));
}

#[test]
fn challenges_syn_on_open_connection() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    lab.send(&Seg { seq: conn.seq.wrapping_add(100), ..conn.seg(SYN) });
    assert_eq!(lab.one().ack, conn.seq);
    lab.pass(Duration::from_millis(600));
    lab.send(&Seg { seq: conn.seq.wrapping_sub(100_000), ..conn.seg(SYN) });
    assert_eq!(lab.one().ack, conn.seq);
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Established));
}

#[test]
fn replies_to_invalid_segments_are_rate_limited() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    let old = Seg { seq: conn.seq.wrapping_sub(1), ..conn.seg(ACK) };
    for _ in 0..100 {
        lab.send(&old);
    }
    assert_eq!(lab.sent().len(), 1);
    for _ in 0..100 {
        lab.send(&old);
    }
    lab.silence();
    assert_eq!(lab.stack.stats().invalid_unanswered, 199);
    lab.pass(Duration::from_millis(500));
    lab.send(&old);
    assert_eq!(lab.sent().len(), 1);
    // Text is always answered: its sender would otherwise wait.
    for _ in 0..3 {
        lab.send(&conn.data_at(-4, b"four"));
        assert_eq!(lab.one().ack, conn.seq);
    }
    let always = TcpConfig { invalid_ack_interval: Duration::ZERO, ..TcpConfig::default() };
    let mut lab = Lab::new(always);
    let conn = lab.accept();
    for _ in 0..3 {
        lab.send(&Seg { seq: conn.seq.wrapping_sub(1), ..conn.seg(ACK) });
        lab.one();
    }
}

#[test]
fn challenges_share_a_limit() {
    let tcp = TcpConfig { challenge_acks: 4, invalid_ack_interval: Duration::ZERO, ..TcpConfig::default() };
    let mut lab = Lab::new(tcp);
    let conn = lab.accept();
    for _ in 0..50 {
        lab.send(&Seg { seq: conn.seq.wrapping_add(1), ..conn.seg(RST) });
        lab.sent();
    }
    let sent = lab.stack.stats().challenge_acks;
    assert!((2..=6).contains(&sent), "{sent}");
    lab.pass(Duration::from_secs(1));
    lab.send(&Seg { seq: conn.seq.wrapping_add(1), ..conn.seg(RST) });
    assert!(lab.stack.stats().challenge_acks > sent);
}

#[test]
fn challenges_acks_of_unsent_and_old_data() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    for ack in [conn.ack.wrapping_add(1), conn.ack.wrapping_add(0x4000_0000), conn.ack.wrapping_sub(70_000)] {
        lab.pass(Duration::from_secs(1));
        lab.send(&Seg { ack, payload: b"evil".to_vec(), ..conn.seg(ACK) });
        assert_eq!(lab.one().ack, conn.seq, "not taken");
    }
    assert_eq!(lab.dropped(DropReason::BadAck), 3);
    // Within RFC 5961's window, but data that was never sent.
    lab.pass(Duration::from_secs(1));
    lab.send(&Seg { ack: conn.ack.wrapping_sub(2), ..conn.data(b"evil") });
    assert_eq!(lab.one().ack, conn.seq, "not taken");
    // A slightly old ACK is only late.
    lab.stack.tcp_send(conn.id, b"0123456789").unwrap();
    lab.one();
    lab.send(&Seg { ack: conn.ack.wrapping_add(10), ..conn.seg(ACK) });
    lab.send(&conn.data(b"fine"));
    assert_eq!(lab.read(&conn), b"fine");
}

#[test]
fn segment_outside_window_keeps_ts_recent() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept();
    let (val, ecr) = conn.ts.unwrap();
    lab.send(&Seg { seq: conn.seq.wrapping_sub(10), options: ts(val + 1_000_000, ecr), ..conn.seg(ACK) });
    lab.send(&Seg { seq: conn.seq.wrapping_add(80_000), options: ts(val + 1_000_000, ecr), ..conn.data(b"x") });
    lab.sent();
    conn.ts = Some((val + 1, ecr));
    lab.send(&conn.data(b"true"));
    assert_eq!(lab.read(&conn), b"true");
    assert_eq!(lab.one().timestamps().unwrap().1, val + 1);
}

#[test]
fn ts_recent_comes_from_segment_after_last_ack() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    let (val, ecr) = conn.ts.unwrap();
    lab.stack.tcp_set_quickack(conn.id, false).unwrap();
    // Two segments, one ACK: it echoes the first timestamp, so that the sender's sample includes
    // the delay (RFC 7323 4.3).
    lab.send(&Seg { options: ts(val + 10, ecr), ..conn.data(&[1; 400]) });
    lab.send(&Seg { options: ts(val + 20, ecr), ..conn.data_at(400, &[2; 400]) });
    assert_eq!(lab.one().timestamps().unwrap().1, val + 10);
    lab.send(&Seg { options: ts(val + 20, ecr), ..conn.data_at(800, &[2; 900]) });
    lab.pass(Duration::from_millis(41));
    assert_eq!(lab.one().timestamps().unwrap().1, val + 20);
}

#[test]
fn rejects_old_timestamps_except_resets_and_after_24_days() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    let (val, ecr) = conn.ts.unwrap();
    lab.send(&Seg { options: ts(val - 1, ecr), ..conn.data(b"old") });
    assert_eq!(lab.one().ack, conn.seq);
    lab.send(&Seg { options: Vec::new(), ..conn.data(b"none") });
    lab.silence();
    assert_eq!(lab.dropped(DropReason::Paws), 2);
    // The peer's clock has wrapped more than half around; its echo shows how long it was silent.
    lab.pass(Duration::from_secs(25 * 24 * 3600));
    let later = val.wrapping_add(25 * 24 * 3600 * 1000);
    lab.send(&Seg { options: ts(later, ecr.wrapping_add((25 * 24 * 3600 - 2000) * 1000)), ..conn.data(b"dup") });
    assert_eq!(lab.dropped(DropReason::Paws), 3, "it has heard us since");
    lab.sent();
    lab.send(&Seg { options: ts(later, ecr), ..conn.data(b"new") });
    assert_eq!(lab.read(&conn), b"new");
    lab.sent();
    lab.send(&Seg { seq: conn.seq.wrapping_add(3), options: ts(val, ecr), ..conn.seg(RST) });
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Closed), "RFC 7323 5.2: no PAWS for RST");
}

/// A peer whose timestamp clock ticks each microsecond (Linux's route feature `tcp_usec_ts`) passes
/// half of the clock in 36 minutes.
#[test]
fn takes_microsecond_timestamps_after_36_minutes() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    let (val, ecr) = conn.ts.unwrap();
    lab.pass(Duration::from_secs(2000));
    lab.send(&Seg { options: ts(val - 1, ecr), ..conn.data(b"old") });
    assert_eq!(lab.dropped(DropReason::Paws), 1, "no clock passes its half before");
    lab.sent();
    lab.pass(Duration::from_secs(400));
    let later = val.wrapping_add(2_400_000_000);
    lab.send(&Seg { options: ts(later, ecr.wrapping_add(2_300_000)), ..conn.data(b"dup") });
    assert_eq!(lab.dropped(DropReason::Paws), 2, "it has heard us since");
    lab.sent();
    lab.send(&Seg { options: ts(later, ecr), ..conn.data(b"new") });
    assert_eq!(lab.read(&conn), b"new");
}

#[test]
fn every_segment_carries_timestamps() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    lab.stack.tcp_abort(conn.id);
    let reset = lab.one();
    assert!(reset.has(RST | ACK) && reset.timestamps().is_some(), "{reset:?}");
    assert_eq!((reset.seq, reset.ack), (conn.ack, conn.seq));
}

#[test]
fn out_of_order_fin_waits_and_second_fin_is_ignored() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    lab.send(&Seg { flags: FIN | ACK, ..conn.data_at(5, b"world") });
    assert_eq!(lab.one().ack, conn.seq);
    lab.send(&Seg { flags: FIN | ACK, ..conn.data_at(20, b"beyond") });
    lab.sent();
    lab.send(&conn.data(b"hello"));
    assert_eq!(lab.one().ack, conn.seq.wrapping_add(11));
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::CloseWait));
    assert_eq!(lab.read(&conn), b"helloworld");
    assert_eq!(lab.stack.tcp_recv(conn.id, &mut [0; 4]), Ok(0));
    assert_eq!(lab.stack.pool().in_use(), 0, "what lay beyond the end is gone");
}

#[test]
fn rejects_fin_before_rcv_nxt() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept();
    lab.send(&conn.data(b"hello"));
    conn.seq = conn.seq.wrapping_add(5);
    lab.sent();
    lab.send(&Seg { seq: conn.seq.wrapping_sub(1), ..conn.seg(FIN | ACK) });
    assert_eq!(lab.one().ack, conn.seq);
    lab.send(&conn.data(b" you"));
    assert_eq!(lab.read(&conn), b"hello you");
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Established));
}

/// A segment that ends at the window's edge is accepted completely, with its FIN. Of one that
/// exceeds it, the rest and the FIN are dropped, in order or not.
#[test]
fn window_edge_cuts_data_and_fin() {
    let config = TcpConfig { receive_buffer_initial: 3000, receive_buffer_max: 3000, ..TcpConfig::default() };
    for (beyond, ahead) in [(0, 0), (1, 0), (1, 100), (200, 100)] {
        let mut lab = Lab::new(config.clone());
        let conn = lab.accept();
        lab.send(&conn.data(b"x"));
        lab.pass(Duration::from_millis(500));
        let answer = lab.sent().pop().unwrap();
        let edge = answer.ack.wrapping_add(answer.window.into());
        let start = answer.ack.wrapping_add(ahead);
        let mut at = start;
        // Sends segments of the path's size, the last of them with the FIN.
        let end = edge.wrapping_add(beyond);
        while at != end {
            let len = end.wrapping_sub(at).min(1400);
            let last = at.wrapping_add(len) == end;
            let text = vec![7; len as usize];
            lab.send(&Seg {
                flags: if last { FIN | ACK } else { ACK },
                ..conn.data_at(at.wrapping_sub(conn.seq) as i32, &text)
            });
            at = at.wrapping_add(len);
        }
        if ahead > 0 {
            lab.send(&conn.data_at(1, &vec![7; ahead as usize]));
        }
        lab.pass(Duration::from_millis(500));
        let taken = lab.sent().pop().unwrap().ack.wrapping_sub(edge);
        let state = lab.stack.tcp_state(conn.id).unwrap();
        let expected = if beyond == 0 { (1, TcpState::CloseWait) } else { (0, TcpState::Established) };
        assert_eq!((taken, state), expected, "{beyond} bytes beyond the edge, {ahead} bytes missing before");
    }
}

/// Returns a connection in TIME-WAIT: we closed first.
fn time_wait(lab: &mut Lab, options: Vec<u8>) -> Conn {
    let mut conn = lab.accept_with(4000, options, TcpOptions::default());
    lab.stack.tcp_close(conn.id);
    let fin = lab.one();
    assert!(fin.has(FIN | ACK));
    conn.ack = conn.ack.wrapping_add(1);
    lab.send(&conn.seg(FIN | ACK));
    conn.seq = conn.seq.wrapping_add(1);
    assert_eq!(lab.one().ack, conn.seq);
    assert_eq!(lab.stack.tcp_time_waits(), 1);
    conn
}

#[test]
fn time_wait_restarts_with_fin_and_ends() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = time_wait(&mut lab, syn_options(None, false, None));
    lab.pass(Duration::from_secs(40));
    lab.send(&Seg { seq: conn.seq.wrapping_sub(1), ..conn.seg(FIN | ACK) });
    assert_eq!(lab.one().ack, conn.seq);
    lab.pass(Duration::from_secs(40));
    assert_eq!(lab.stack.tcp_time_waits(), 1);
    lab.pass(Duration::from_secs(21));
    assert_eq!(lab.stack.tcp_time_waits(), 0);
}

#[test]
fn time_wait_limits_replies_and_ignores_inexact_resets() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = time_wait(&mut lab, syn_options(None, false, None));
    let stray = Seg { seq: conn.seq.wrapping_sub(5), ..conn.seg(ACK) };
    lab.pass(Duration::from_secs(1));
    for _ in 0..20 {
        lab.send(&stray);
    }
    assert_eq!(lab.sent().len(), 1);
    lab.pass(Duration::from_secs(1));
    lab.send(&stray);
    assert_eq!(lab.sent().len(), 1);
    lab.send(&Seg { seq: conn.seq.wrapping_add(1), ..conn.seg(RST) });
    lab.send(&Seg { seq: conn.seq.wrapping_sub(1), ..conn.seg(RST) });
    assert_eq!(lab.stack.tcp_time_waits(), 1);
}

#[test]
fn time_wait_yields_only_to_newer_connection() {
    let syn = |conn: &Conn, seq: u32, options: Vec<u8>| Seg { seq, options, ..conn.seg(SYN) };
    // By timestamps: a higher sequence number with an older clock is an old duplicate (RFC 6191).
    let mut lab = Lab::new(TcpConfig::default());
    let conn = time_wait(&mut lab, syn_options(Some(1000), true, None));
    lab.send(&syn(&conn, conn.seq.wrapping_add(10), syn_options(Some(999), true, None)));
    assert!(lab.one().has(ACK), "the ACK of TIME-WAIT");
    assert_eq!(lab.stack.tcp_time_waits(), 1);
    lab.send(&syn(&conn, conn.seq.wrapping_sub(99_999), syn_options(Some(1001), true, None)));
    assert!(lab.one().has(SYN | ACK));
    assert_eq!(lab.stack.tcp_time_waits(), 0);
    // By sequence (RFC 1122 4.2.2.13).
    let mut lab = Lab::new(TcpConfig::default());
    let conn = time_wait(&mut lab, syn_options(None, false, None));
    lab.send(&syn(&conn, conn.seq, syn_options(None, false, None)));
    assert!(!lab.one().has(SYN));
    let old_end = conn.ack;
    lab.send(&syn(&conn, conn.seq.wrapping_add(1), syn_options(None, false, None)));
    let answer = lab.one();
    assert!(answer.has(SYN | ACK));
    assert!((answer.seq.wrapping_sub(old_end) as i32) > 0, "the new ISN is beyond the old connection's numbers");
}

#[test]
fn data_after_close_and_unread_data_reset() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    lab.stack.tcp_close(conn.id);
    assert!(lab.one().has(FIN));
    lab.send(&conn.data(b"too late"));
    assert!(lab.one().has(RST));
    let conn = lab.accept_on(conn.listener, 4001, syn_options(None, false, None));
    lab.send(&conn.data(b"unread"));
    lab.sent();
    lab.stack.tcp_close(conn.id);
    assert!(lab.one().has(RST));
    assert_eq!(lab.stack.pool().in_use(), 0);
}

#[test]
fn closing_becomes_time_wait_without_reply() {
    let mut lab = Lab::new(TcpConfig::default());
    let mut conn = lab.accept();
    lab.stack.tcp_shutdown(conn.id, Shutdown::Write).unwrap();
    lab.one();
    // The FINs cross.
    lab.send(&conn.seg(FIN | ACK));
    lab.one();
    assert_eq!(lab.stack.tcp_state(conn.id), Ok(TcpState::Closing));
    (conn.seq, conn.ack) = (conn.seq.wrapping_add(1), conn.ack.wrapping_add(1));
    lab.send(&conn.seg(ACK));
    lab.silence();
    assert_eq!(lab.stack.tcp_time_waits(), 1);
}

#[test]
fn listener_replies_only_to_syns_and_acks() {
    let mut lab = Lab::new(TcpConfig::default());
    lab.listen(TcpOptions::default(), 0);
    let seg = |flags| Seg { from: 4000, to: 80, seq: 9, flags, window: 1000, ..Seg::default() };
    for flags in [0, FIN, PSH, FIN | PSH | URG, SYN | FIN, RST, RST | ACK] {
        lab.send(&seg(flags));
        lab.silence();
    }
    lab.send(&seg(ACK));
    assert!(lab.one().has(RST));
    assert_eq!(lab.stack.tcp_handshakes(), 0);
}

#[test]
fn stores_and_reports_thousands_of_holes() {
    let mut lab = Lab::new(TcpConfig { receive_buffer_initial: 4 << 20, ..TcpConfig::default() });
    let mut conn = lab.accept_with(4000, syn_options(None, true, Some(7)), TcpOptions::default());
    // The SYN's window is 64 KiB: our ACK offers more.
    lab.send(&conn.data(b"x"));
    conn.seq = conn.seq.wrapping_add(1);
    lab.sent();
    for i in 0..1000 {
        lab.send(&conn.data_at(100 + 200 * i, &[1; 100]));
    }
    let acks = lab.sent();
    let blocks = acks.last().unwrap().option(5).unwrap();
    let start = |i: usize| u32::from_be_bytes(blocks[8 * i..8 * i + 4].try_into().unwrap()).wrapping_sub(conn.seq);
    assert_eq!([start(0), start(1), start(2)], [199_900, 199_700, 199_500]);
    for i in 0..1000 {
        lab.send(&conn.data_at(200 * i, &[2; 100]));
    }
    assert_eq!(lab.sent().last().unwrap().ack, conn.seq.wrapping_add(200_000));
}

#[test]
fn only_closed_connections_that_still_send_are_orphans() {
    let mut lab = Lab::new(TcpConfig::default());
    let conn = lab.accept();
    let locals = |lab: &Lab| lab.stack.tcp_orphan_locals().map(|local| local.port()).collect::<Vec<_>>();
    assert_eq!(locals(&lab), []);
    lab.stack.tcp_close(conn.id);
    assert!(lab.one().has(FIN));
    assert_eq!(locals(&lab), [80]);
    lab.send(&Seg { seq: conn.seq, ..conn.seg(RST) });
    assert_eq!(locals(&lab), []);
}
