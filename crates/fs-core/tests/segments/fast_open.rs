//! TCP Fast Open: RFC 7413.

use crate::lab::*;
use fs_core::FastOpen;
use fs_core::*;
use std::net::SocketAddr;

fn lab() -> Lab {
    Lab::new(TcpConfig { fast_open: FastOpen { client: true, server: true, ..FastOpen::OFF }, ..TcpConfig::default() })
}

fn syn(from: u16, cookie: &[u8], payload: &[u8]) -> Seg {
    let mut options = syn_options(Some(77), true, Some(3));
    options.extend([34, 2 + cookie.len() as u8]);
    options.extend(cookie);
    options.resize(options.len().next_multiple_of(4), 1);
    Seg { from, to: 80, seq: 100, flags: SYN, window: 5000, options, payload: payload.to_vec(), ..Seg::default() }
}

fn ack(syn: &Seg, syn_ack: &Seg, taken: u32) -> Seg {
    let options = ts(78, syn_ack.timestamps().unwrap().0);
    let (seq, ack) = (syn.seq + 1 + taken, syn_ack.seq.wrapping_add(1));
    Seg { seq, ack, flags: ACK, options, payload: Vec::new(), ..syn.clone() }
}

fn cookie(lab: &mut Lab, from: u16) -> Vec<u8> {
    let ask = syn(from, &[], b"");
    lab.send(&ask);
    let answer = lab.one();
    lab.send(&ack(&ask, &answer, 0));
    answer.option(34).expect("a cookie")
}

#[test]
fn delivers_data_of_syn_with_cookie() {
    let mut lab = lab();
    let listener = lab.listen(TcpOptions::default(), 5);
    let cookie = cookie(&mut lab, 4000);
    assert_eq!(cookie.len(), 8);
    lab.stack.tcp_accept(listener).unwrap();
    let open = syn(4001, &cookie, b"request");
    lab.send(&open);
    let answer = lab.one();
    assert!(answer.has(SYN | ACK) && answer.ack == 108 && answer.option(34).is_none(), "{answer:?}");
    let (id, _) = lab.stack.tcp_accept(listener).expect("before the handshake's end");
    assert_eq!(lab.stack.tcp_state(id), Ok(TcpState::SynReceived));
    let mut buf = [0; 16];
    assert_eq!(lab.stack.tcp_recv(id, &mut buf), Ok(7));
    // The response may be sent before the handshake ends, too.
    lab.stack.tcp_send(id, b"response").unwrap();
    let response = lab.one();
    assert_eq!((response.seq, &response.payload[..]), (answer.seq.wrapping_add(1), &b"response"[..]));
    lab.send(&ack(&open, &answer, 7));
    assert_eq!(lab.stack.tcp_state(id), Ok(TcpState::Established));
    assert!(lab.stack.tcp_info(id).unwrap().syn_data);
    assert_eq!(lab.stack.tcp_handshakes(), 0);
}

/// RFC 9293 3.10.7.4, fifth, SYN-RECEIVED: an ACK that does not acknowledge our SYN causes a reset,
/// neither ends the handshake nor delivers anything.
#[test]
fn wrong_ack_does_not_end_handshake() {
    let mut lab = lab();
    let listener = lab.listen(TcpOptions::default(), 5);
    let cookie = cookie(&mut lab, 4000);
    lab.stack.tcp_accept(listener).unwrap();
    let open = syn(4001, &cookie, b"request");
    lab.send(&open);
    let answer = lab.one();
    let (id, _) = lab.stack.tcp_accept(listener).unwrap();
    assert_eq!(lab.read_all(id), b"request");
    let right = ack(&open, &answer, 7);
    for wrong in [answer.seq, answer.seq.wrapping_sub(1), answer.seq.wrapping_sub(70_000), answer.seq.wrapping_add(2)] {
        lab.send(&Seg { ack: wrong, payload: b"more".to_vec(), ..right.clone() });
        let reset = lab.one();
        assert_eq!((reset.flags, reset.seq), (RST, wrong), "{reset:?}");
        assert_eq!(lab.stack.tcp_state(id), Ok(TcpState::SynReceived));
        assert_eq!(lab.read_all(id), b"", "nothing of it was taken");
    }
    lab.send(&Seg { payload: b"more".to_vec(), ..right });
    assert_eq!(lab.stack.tcp_state(id), Ok(TcpState::Established));
    assert_eq!(lab.read_all(id), b"more");
}

#[test]
fn retransmits_syn_ack_and_answers_repeated_syn() {
    let mut lab = lab();
    let listener = lab.listen(TcpOptions::default(), 5);
    let cookie = cookie(&mut lab, 4000);
    let open = syn(4001, &cookie, b"request");
    lab.send(&open);
    let first = lab.one();
    lab.pass(Duration::from_millis(1100));
    let again = lab.one();
    assert_eq!((again.flags, again.seq, again.ack), (SYN | ACK, first.seq, 108));
    // The client's SYN again, without data, as after its timeout.
    lab.send(&Seg { payload: Vec::new(), ..open.clone() });
    assert_eq!(lab.one().ack, 108);
    let (id, _) = lab.stack.tcp_accept(listener).and_then(|_| lab.stack.tcp_accept(listener)).unwrap();
    lab.pass(Duration::from_secs(200));
    assert_eq!(lab.stack.tcp_take_error(id), Ok(Some(Error::TimedOut)));
    lab.sent();
    assert_eq!(lab.stack.tcp_handshakes(), 0);
}

#[test]
fn invalid_cookie_defers_data_and_grants_new_cookie() {
    let mut lab = lab();
    lab.listen(TcpOptions::default(), 5);
    let good = cookie(&mut lab, 4000);
    let mut bad = good.clone();
    bad[0] ^= 1;
    lab.send(&syn(4001, &bad, b"request"));
    let answer = lab.one();
    assert_eq!((answer.ack, answer.option(34)), (101, Some(good.clone())));
    // An hour later it is still valid, and replaced; after two it is not.
    lab.pass(Duration::from_secs(3600));
    lab.sent();
    lab.send(&syn(4002, &good, b"request"));
    let answer = lab.one();
    assert_eq!(answer.ack, 108);
    let fresh = answer.option(34).expect("a new one");
    assert_ne!(fresh, good);
    lab.pass(Duration::from_secs(3600));
    lab.sent();
    lab.send(&syn(4003, &good, b"request"));
    assert_eq!(lab.one().ack, 101);
}

#[test]
fn pending_connections_are_bounded_in_spite_of_resets() {
    let mut lab = lab();
    lab.listen(TcpOptions::default(), 1);
    let cookie = cookie(&mut lab, 4000);
    lab.send(&syn(4001, &cookie, b"request"));
    let first = lab.one();
    assert_eq!(first.ack, 108);
    lab.send(&syn(4002, &cookie, b"request"));
    assert_eq!(lab.one().ack, 101, "an ordinary handshake");
    lab.send(&Seg { flags: RST, ..ack(&syn(4001, &cookie, b""), &first, 7) });
    lab.send(&syn(4003, &cookie, b"request"));
    assert_eq!(lab.one().ack, 101);
    lab.pass(Duration::from_millis(1100));
    lab.sent();
    lab.send(&syn(4004, &cookie, b"request"));
    assert_eq!(lab.one().ack, 108);
}

#[test]
fn fast_open_is_off_by_default() {
    let mut off = Lab::new(TcpConfig::default());
    off.listen(TcpOptions::default(), 5);
    off.send(&syn(4000, &[], b""));
    assert_eq!(off.one().option(34), None);
    let mut lab = lab();
    lab.listen(TcpOptions::default(), 0);
    lab.send(&syn(4000, &[], b""));
    assert_eq!(lab.one().option(34), None);
}

fn connect_with(lab: &mut Lab, data: &[u8]) -> (TcpId, usize, Seg) {
    let remote = SocketAddr::new(Lab::host(false, 2), 90);
    let connect = Connect { remote, local: None, options: TcpOptions::default() };
    let (id, taken) = lab.stack.tcp_connect_with(connect, data).unwrap();
    (id, taken, lab.one())
}

fn answer(syn: &Seg, taken: u32, cookie: &[u8]) -> Seg {
    let mut options = vec![2, 4, 5, 180];
    if !cookie.is_empty() {
        options.extend([34, 2 + cookie.len() as u8]);
        options.extend(cookie);
    }
    let (from, to, ack) = (syn.to, syn.from, syn.seq.wrapping_add(1 + taken));
    Seg { from, to, seq: 900, ack, flags: SYN | ACK, window: 60000, options, ..Seg::default() }
}

#[test]
fn client_requests_cookie_then_sends_data() {
    let mut lab = lab();
    let (id, taken, syn) = connect_with(&mut lab, b"hello");
    assert_eq!((taken, syn.option(34), syn.payload.len()), (0, Some(vec![]), 0));
    lab.send(&answer(&syn, 0, b"biscuits"));
    assert_eq!(lab.stack.tcp_state(id), Ok(TcpState::Established));
    lab.sent();
    let (id, taken, syn) = connect_with(&mut lab, b"hello");
    assert_eq!((taken, syn.option(34), &syn.payload[..]), (5, Some(b"biscuits".to_vec()), &b"hello"[..]));
    lab.send(&answer(&syn, 5, b""));
    let ack = lab.one();
    assert_eq!((ack.seq, ack.ack, ack.payload.len()), (syn.seq.wrapping_add(6), 901, 0));
    assert_eq!(lab.stack.tcp_queued(id), Ok((0, 0)));
    assert!(lab.stack.tcp_info(id).unwrap().syn_data);
    // A large write fills one segment of the size that the server announced, minus the options.
    let (_, taken, syn) = connect_with(&mut lab, &[1; 5000]);
    assert_eq!((taken, syn.payload.len()), (1420, 1420));
    // The server accepts none, or a part: the rest is sent as ordinary data.
    lab.send(&answer(&syn, 1000, b""));
    let rest = lab.one();
    assert_eq!((rest.seq, rest.payload.len()), (syn.seq.wrapping_add(1001), 420));
    let (_, _, syn) = connect_with(&mut lab, b"hello");
    lab.send(&answer(&syn, 0, b""));
    let rest = lab.one();
    assert_eq!((rest.seq, &rest.payload[..]), (syn.seq.wrapping_add(1), &b"hello"[..]));
}

#[test]
fn lost_syn_is_retransmitted_without_data() {
    let mut lab = lab();
    let (_, _, syn) = connect_with(&mut lab, b"x");
    lab.send(&answer(&syn, 0, b"biscuits"));
    lab.sent();
    for round in 0..2 {
        let (id, taken, syn) = connect_with(&mut lab, b"hello");
        assert_eq!(taken, 5, "{round}");
        lab.pass(Duration::from_millis(1100));
        let again = lab.one();
        assert_eq!((again.flags, again.option(34), again.payload.len()), (SYN, None, 0));
        // The first one's SYN-ACK may still arrive.
        lab.send(&answer(&syn, 5, b""));
        assert_eq!(lab.stack.tcp_state(id), Ok(TcpState::Established));
        lab.sent();
        lab.stack.tcp_abort(id);
        lab.sent();
    }
    // Twice in a row: the path drops them.
    let (_, taken, syn) = connect_with(&mut lab, b"hello");
    assert_eq!((taken, syn.option(34)), (0, None));
    lab.pass(Duration::from_secs(61));
    lab.sent();
    assert_eq!(connect_with(&mut lab, b"hello").1, 5);
}

#[test]
fn failed_connect_frees_data() {
    let mut lab = lab();
    let (_, _, syn) = connect_with(&mut lab, b"x");
    lab.send(&answer(&syn, 0, b"biscuits"));
    lab.sent();
    let (id, _, _) = connect_with(&mut lab, b"hello");
    lab.stack.tcp_close(id);
    let (id, _, syn) = connect_with(&mut lab, b"hello");
    lab.send(&Seg { flags: RST | ACK, ..answer(&syn, 5, b"") });
    assert_eq!(lab.stack.tcp_take_error(id), Ok(Some(Error::ConnectionRefused)));
    lab.sent();
    assert_eq!(lab.stack.pool().in_use(), 0);
}
