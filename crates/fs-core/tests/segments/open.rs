//! Opening: LISTEN, SYN-SENT, SYN-RECEIVED (RFC 9293 3.10.7.2 to 3.10.7.4), and the options of
//! handshakes.

use crate::lab::*;
use fs_core::*;
use std::net::SocketAddr;

fn connect(lab: &mut Lab, options: TcpOptions) -> (TcpId, Seg) {
    let remote = SocketAddr::new(Lab::host(lab.v6, 2), 90);
    let id = lab.stack.tcp_connect(Connect { remote, local: None, options }).unwrap();
    let syn = lab.one();
    assert_eq!(syn.flags, SYN);
    (id, syn)
}

/// Makes a reply to our SYN.
fn answer(syn: &Seg, flags: u8) -> Seg {
    let (from, to, ack) = (syn.to, syn.from, syn.seq.wrapping_add(1));
    Seg {
        from,
        to,
        seq: PEER_ISN,
        ack,
        flags,
        window: 65535,
        options: syn_options(None, false, None),
        ..Seg::default()
    }
}

#[test]
fn accepts_text_and_fin_of_syn_ack() {
    let mut lab = Lab::new(TcpConfig::default());
    let (id, syn) = connect(&mut lab, TcpOptions::default());
    lab.send(&Seg { payload: b"banner".to_vec(), ..answer(&syn, SYN | ACK | FIN) });
    assert_eq!(lab.one().ack, PEER_ISN.wrapping_add(8));
    assert_eq!(lab.stack.tcp_state(id), Ok(TcpState::CloseWait));
    let mut buf = [0; 16];
    assert_eq!(lab.stack.tcp_recv(id, &mut buf), Ok(6));
    assert_eq!(lab.stack.tcp_recv(id, &mut buf), Ok(0));
}

#[test]
fn simultaneous_open_completes_with_any_segment_in_window() {
    let mut lab = Lab::new(TcpConfig::default());
    let (id, syn) = connect(&mut lab, TcpOptions::default());
    lab.send(&Seg { ack: 0, ..answer(&syn, SYN) });
    assert!(lab.one().has(SYN | ACK));
    assert_eq!(lab.stack.tcp_state(id), Ok(TcpState::SynReceived));
    // Its ACK is lost, and the first data with it.
    let data = Seg { seq: PEER_ISN.wrapping_add(6), options: Vec::new(), ..answer(&syn, ACK) };
    lab.send(&Seg { payload: b"world".to_vec(), ..data.clone() });
    assert_eq!(lab.stack.tcp_state(id), Ok(TcpState::Established));
    assert_eq!(lab.one().ack, PEER_ISN.wrapping_add(1));
    lab.send(&Seg { seq: PEER_ISN.wrapping_add(1), payload: b"hello".to_vec(), ..data });
    let mut buf = [0; 16];
    assert_eq!(lab.stack.tcp_recv(id, &mut buf), Ok(10));
}

#[test]
fn resets_in_syn_sent_must_acknowledge_our_syn() {
    let mut lab = Lab::new(TcpConfig::default());
    let (id, syn) = connect(&mut lab, TcpOptions::default());
    lab.send(&Seg { ack: 0, ..answer(&syn, RST) });
    lab.send(&Seg { ack: syn.seq, ..answer(&syn, RST | ACK) });
    assert_eq!(lab.stack.tcp_state(id), Ok(TcpState::SynSent));
    lab.send(&answer(&syn, RST | ACK));
    assert_eq!(lab.stack.tcp_take_error(id), Ok(Some(Error::ConnectionRefused)));
}

#[test]
fn rejects_non_unicast_addresses() {
    let mut lab = Lab::new(TcpConfig::default());
    let bad =
        ["0.0.0.0:1", "224.0.0.1:1", "255.255.255.255:1", "10.0.0.255:1", "240.0.0.1:1", "[ff02::1]:1", "10.0.0.2:0"];
    for remote in bad {
        let remote: SocketAddr = remote.parse().unwrap();
        let answer = lab.stack.tcp_connect(Connect { remote, local: None, options: TcpOptions::default() });
        assert_eq!(answer, Err(Error::InvalidInput), "{remote}");
    }
    lab.silence();
}

#[test]
fn repeated_syn_keeps_options_and_new_syn_restarts() {
    let mut lab = Lab::new(TcpConfig::default());
    lab.listen(TcpOptions::default(), 0);
    let syn = Seg {
        from: 4000,
        to: 80,
        seq: 100,
        flags: SYN,
        window: 1000,
        options: syn_options(Some(5), true, Some(2)),
        ..Seg::default()
    };
    lab.send(&syn);
    let first = lab.one();
    lab.send(&Seg { options: vec![2, 4, 2, 24], ..syn.clone() });
    let second = lab.one();
    assert_eq!((first.seq, first.ack, first.options.len()), (second.seq, second.ack, second.options.len()));
    lab.send(&Seg { seq: 5000, options: vec![2, 4, 2, 24], ..syn });
    let third = lab.one();
    assert_eq!(third.ack, 5001);
    assert_eq!((third.timestamps(), third.option(3)), (None, None));
}

#[test]
fn syn_received_acks_segments_outside_window() {
    let mut lab = Lab::new(TcpConfig::default());
    lab.listen(TcpOptions::default(), 0);
    let syn = Seg {
        from: 4000,
        to: 80,
        seq: 100,
        flags: SYN,
        window: 1000,
        options: syn_options(Some(50), true, None),
        ..Seg::default()
    };
    lab.send(&syn);
    let ours = lab.one();
    let ack = Seg { seq: 101, ack: ours.seq.wrapping_add(1), flags: ACK, options: ts(51, 1), ..syn };
    for wrong in
        [Seg { seq: 99, ..ack.clone() }, Seg { seq: 200_000, ..ack.clone() }, Seg { options: ts(49, 1), ..ack.clone() }]
    {
        lab.send(&wrong);
        let answer = lab.one();
        assert_eq!((answer.flags, answer.seq, answer.ack), (ACK, ours.seq.wrapping_add(1), 101));
    }
    assert_eq!(lab.stack.tcp_handshakes(), 1);
    lab.send(&Seg { flags: FIN | ACK, payload: b"all at once".to_vec(), ..ack });
    assert_eq!(lab.one().ack, 113);
}

#[test]
fn closed_listener_leaves_no_handshakes() {
    let mut lab = Lab::new(TcpConfig::default());
    let listener = lab.listen(TcpOptions::default(), 0);
    let syn = Seg { from: 4000, to: 80, seq: 100, flags: SYN, window: 1000, ..Seg::default() };
    lab.send(&syn);
    let ours = lab.one();
    lab.send(&Seg { from: 4001, ..syn.clone() });
    lab.one();
    lab.stack.tcp_close_listener(listener);
    lab.send(&Seg { seq: 101, ack: ours.seq.wrapping_add(1), flags: ACK, ..syn });
    assert!(lab.one().has(RST));
    lab.pass(Duration::from_secs(3));
    lab.silence();
    assert_eq!(lab.stack.tcp_handshakes(), 0);
}

#[test]
fn deferred_accept_waits_for_data_or_timeout() {
    let mut lab = Lab::new(TcpConfig::default());
    let options = TcpOptions { defer_accept: Some(Duration::from_secs(3)), ..TcpOptions::default() };
    let listener = lab.listen(options, 0);
    let open = |lab: &mut Lab, from: u16| {
        let syn = Seg { from, to: 80, seq: 100, flags: SYN, window: 1000, ..Seg::default() };
        lab.send(&syn);
        let ours = lab.one();
        let ack = Seg { seq: 101, ack: ours.seq.wrapping_add(1), flags: ACK, ..syn };
        lab.send(&ack);
        lab.silence();
        ack
    };
    let ack = open(&mut lab, 4000);
    assert_eq!(lab.stack.tcp_accept(listener).err(), Some(Error::WouldBlock));
    lab.send(&Seg { payload: b"data".to_vec(), ..ack });
    let (id, _) = lab.stack.tcp_accept(listener).unwrap();
    assert_eq!(lab.stack.tcp_queued(id).unwrap().0, 4);
    lab.sent();
    // Without data: after three seconds (two timeouts) the SYN-ACK is retransmitted once, and the
    // client's ACK counts.
    let ack = open(&mut lab, 4001);
    lab.pass(Duration::from_millis(2900));
    lab.silence();
    lab.pass(Duration::from_millis(300));
    assert!(lab.one().has(SYN | ACK));
    lab.send(&ack);
    assert!(lab.stack.tcp_accept(listener).is_ok());
    // The client no longer replies: the handshake ends.
    open(&mut lab, 4002);
    lab.pass(Duration::from_secs(300));
    assert_eq!(lab.stack.tcp_handshakes(), 0);
}

#[test]
fn segment_size_and_window_clamp_apply_to_syn() {
    let mut lab = Lab::new(TcpConfig::default());
    let options = TcpOptions { max_segment: Some(600), window_clamp: Some(8000), ..TcpOptions::default() };
    let (id, syn) = connect(&mut lab, options);
    assert_eq!(syn.option(2), Some(vec![2, 88]));
    assert_eq!(syn.window, 8000);
    lab.send(&Seg { payload: vec![1; 1000], ..answer(&syn, SYN | ACK) });
    assert_eq!(lab.one().window, 8000, "not scaled: the peer has no scale");
    lab.stack.tcp_send(id, &[7; 700]).unwrap();
    assert_eq!(lab.sent()[0].payload.len(), 600);
    let back = lab.stack.tcp_options(id).unwrap();
    assert_eq!((back.max_segment, back.window_clamp), (Some(600), Some(8000)));
}

#[test]
fn scale_is_at_most_14_and_syn_window_is_unscaled() {
    let mut lab = Lab::new(TcpConfig::default());
    let (id, syn) = connect(&mut lab, TcpOptions::default());
    let mut options = syn_options(None, false, Some(200));
    options.truncate(8);
    lab.send(&Seg { window: 10, options, ..answer(&syn, SYN | ACK) });
    let info = lab.stack.tcp_info(id).unwrap();
    assert_eq!((info.snd_wscale, info.snd_wnd), (14, 10));
}

/// RFC 9293 3.10.4: CLOSE in SYN-RECEIVED lets the handshake complete and then sends FIN. No
/// application holds the connection any more: if it does not open, nothing remains of it.
#[test]
fn close_after_crossed_syns() {
    for opens in [true, false] {
        let mut lab = Lab::new(TcpConfig::default());
        let (id, syn) = connect(&mut lab, TcpOptions::default());
        lab.send(&answer(&syn, SYN));
        lab.one();
        lab.stack.tcp_close(id);
        lab.silence();
        assert_eq!(lab.stack.tcp_send(id, b"x"), Err(Error::BadSocket));
        assert_eq!(lab.stack.tcp_connections(), 1);
        let peer = answer(&syn, ACK);
        if opens {
            lab.send(&Seg { seq: peer.seq.wrapping_add(1), ..peer.clone() });
            assert!(lab.one().has(FIN));
            let fin = Seg { seq: peer.seq.wrapping_add(1), ack: peer.ack.wrapping_add(1), flags: FIN | ACK, ..peer };
            lab.send(&fin);
            assert!(lab.one().has(ACK));
        } else {
            lab.send(&Seg { seq: peer.seq.wrapping_add(1), flags: RST, ..peer });
            lab.silence();
        }
        assert_eq!(lab.stack.tcp_connections(), 0);
        lab.stack.check(None);
    }
}

/// The connection uses the scale of its SYN, even if SO_RCVBUF is changed before the SYN-ACK
/// arrives.
#[test]
fn scale_is_that_of_syn() {
    let mut lab = Lab::new(TcpConfig::default());
    let (id, syn) = connect(&mut lab, TcpOptions { receive_buffer: Some(14_600), ..TcpOptions::default() });
    assert_eq!((syn.window, syn.option(3)), (14_600, Some(vec![0])));
    let options = TcpOptions { receive_buffer: Some(1_000_000), ..TcpOptions::default() };
    lab.stack.tcp_set_options(id, options).unwrap();
    lab.pass(Duration::from_millis(1100));
    assert_eq!(lab.one().option(3), Some(vec![0]), "the SYN that is sent again");
    lab.send(&Seg { options: syn_options(None, false, Some(7)), ..answer(&syn, SYN | ACK) });
    assert_eq!(lab.stack.tcp_info(id).unwrap().rcv_wscale, 0);
}

#[test]
fn ignores_syn_from_broadcast_address() {
    let mut lab = Lab::new(TcpConfig::default());
    lab.listen(TcpOptions::default(), 0);
    let syn = Seg { from: 4000, to: 80, seq: PEER_ISN, flags: SYN, window: 65535, ..Seg::default() };
    let mut packet = write(&syn, false);
    let from_broadcast = ip4_from([10, 0, 0, 255], 6, packet.len() - 20);
    packet[..20].copy_from_slice(&from_broadcast);
    lab.inject(&packet);
    lab.silence();
    assert_eq!(lab.dropped(DropReason::BadAddress), 1);
    let from_a_neighbour = ip4_from([10, 0, 0, 254], 6, packet.len() - 20);
    packet[..20].copy_from_slice(&from_a_neighbour);
    lab.inject(&packet);
    assert!(lab.one().has(SYN | ACK));
}

/// The checksum of packets from a virtual machine on the same host covers the pseudo header only.
#[test]
fn handshake_with_partial_checksums() {
    for accepted in [true, false] {
        let mut lab = Lab::new(TcpConfig::default());
        lab.stack.update_interface(IfaceId(0), |interface| interface.accept_partial_checksum = accepted);
        lab.listen(TcpOptions::default(), 0);
        let syn = Seg { from: 4000, to: 80, seq: PEER_ISN, flags: SYN, window: 65535, ..Seg::default() };
        let mut packet = write(&syn, false);
        let words = [10 << 8, 2, 10 << 8, 1, 6, 20];
        packet[36..38].copy_from_slice(&words.iter().sum::<u16>().to_be_bytes());
        lab.inject_as(&packet, RxChecksum::Unknown);
        if accepted {
            assert!(lab.one().has(SYN | ACK));
        } else {
            lab.silence();
        }
        assert_eq!(lab.dropped(DropReason::BadTransportChecksum), u64::from(!accepted));
    }
}
