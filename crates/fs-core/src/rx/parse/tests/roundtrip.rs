//! Well-formed packets are accepted with correct fields.

use super::*;
use crate::wire::checksum::RunningSum;
use prop::sample::Index;
use proptest::collection::vec;
use proptest::prelude::*;

const NOP_NOP_TS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];

#[test]
fn segment_fields() {
    let frame = Made::tcp(false, &NOP_NOP_TS, b"hello").frame();
    let segment = tcp_of(run(&view(), &frame));
    let expected = Segment {
        key: FlowKey::V4 { local: OURS, remote: THEIRS, local_port: 80, remote_port: 40000 },
        seq: SeqNum(1000),
        ack: SeqNum(2000),
        window: 512,
        flags: TcpFlags::ACK | TcpFlags::PSH,
        payload_off: 14 + 20 + 32,
        payload_len: 5,
        opt_off: 14 + 20 + 20,
        opt_len: 12,
        ts: Some(Timestamps { val: 7, ecr: 9 }),
        ecn: 1,
        urgent: 0,
    };
    assert_eq!(segment, expected);
    assert_eq!(segment.options(&frame), NOP_NOP_TS);
    assert_eq!(segment.seq_len(), 5);
    assert_eq!(&frame[usize::from(segment.payload_off)..], b"hello");
}

#[test]
fn ipv6_and_vlan_offsets() {
    let mut made = Made::tcp(true, &NOP_NOP_TS, b"hello");
    made.vlan = Some(7);
    let frame = made.frame();
    let segment = tcp_of(run(&View { vlan: Some(7), ..view() }, &frame));
    let key = FlowKey::V6 { local: ours_v6(), remote: theirs_v6(), local_port: 80, remote_port: 40000 };
    assert_eq!((segment.key, segment.payload_off, segment.payload_len), (key, 18 + 40 + 32, 5));
    assert_eq!((segment.ecn, segment.ts), (1, Some(Timestamps { val: 7, ecr: 9 })));
}

#[test]
fn accepts_priority_tags_and_untagged_frames_on_vlan() {
    let mut made = Made::tcp(false, &[], b"");
    for vlan in [None, Some(0), Some(7)] {
        made.vlan = vlan;
        assert!(run(&View { vlan: Some(7), ..view() }, &made.frame()).is_ok(), "{vlan:?}");
    }
    made.vlan = Some(0);
    assert!(run(&view(), &made.frame()).is_ok());
}

#[test]
fn raw_ip_frames() {
    let raw = View { framing: Framing::Ip, ..view() };
    assert_eq!(tcp_of(run(&raw, &Made::tcp(false, &[], b"x").ip())).payload_off, 40);
    assert_eq!(tcp_of(run(&raw, &Made::tcp(true, &[], b"x").ip())).payload_off, 60);
    assert_eq!(run(&raw, &[0x50; 40]), Err(DropReason::NotOurProtocol));
    assert_eq!(run(&raw, &[]), Err(DropReason::Malformed));
}

#[test]
fn cuts_padding() {
    let mut frame = Made::tcp(false, &[], b"").frame();
    frame.resize(60, 0xff);
    assert_eq!(tcp_of(run(&view(), &frame)).payload_len, 0);
    let mut frame = Made::udp(false, b"abc").frame();
    frame.resize(60, 0xff);
    let Ok(Parsed::Udp(datagram)) = run(&view(), &frame) else { panic!("not UDP") };
    assert_eq!((datagram.payload_off, datagram.payload_len), (42, 3));
}

#[test]
fn udp_without_checksum_and_udp_shorter_than_its_packet() {
    let mut made = Made::udp(false, b"abc");
    made.set_checksum(0);
    assert!(matches!(run(&view(), &made.frame()), Ok(Parsed::Udp(_))));
    // Two bytes after the datagram are neither summed nor delivered.
    let mut made = Made::udp(false, b"abc");
    made.transport.extend_from_slice(&[9, 9]);
    let Ok(Parsed::Udp(datagram)) = run(&view(), &made.frame()) else { panic!("not UDP") };
    let key = FlowKey::V4 { local: OURS, remote: THEIRS, local_port: 53, remote_port: 40000 };
    assert_eq!((datagram.key, datagram.payload_len), (key, 3));
}

#[test]
fn accepts_partial_checksums_if_allowed() {
    for mut made in [Made::tcp(false, &[], b"data"), Made::tcp(true, &[], b"data"), Made::udp(false, b"data")] {
        made.set_checksum(made.pseudo().fold());
        let partial = View { accept_partial_checksum: true, ..view() };
        assert!(run(&partial, &made.frame()).is_ok());
        assert_eq!(run(&view(), &made.frame()), Err(DropReason::BadTransportChecksum));
        made.set_checksum(made.pseudo().fold() ^ 1);
        assert_eq!(run(&partial, &made.frame()), Err(DropReason::BadTransportChecksum));
        assert!(run(&partial, &made.sealed().frame()).is_ok());
    }
}

#[test]
fn trusts_verified_checksums() {
    let mut made = Made::tcp(false, &[], b"data");
    made.set_checksum(0x1234);
    assert!(parse(&view(), &made.frame(), 0, RxChecksum::Verified, || Sum::ZERO).is_ok());
}

#[test]
fn classifies_control_messages() {
    let icmp = Made::new(false, ipv4::ICMP, std::vec![8, 0, 0, 0, 0, 1, 0, 1, 5]).sealed();
    assert_eq!(run(&view(), &icmp.frame()), Ok(Parsed::Icmp { v6: false, ip_off: 14, off: 34, len: 9 }));
    let icmp = Made::new(true, ipv6::ICMP, std::vec![128, 0, 0, 0, 0, 1, 0, 1, 5]).sealed();
    assert_eq!(run(&view(), &icmp.frame()), Ok(Parsed::Icmp { v6: true, ip_off: 14, off: 54, len: 9 }));
    let arp = framed(eth::BROADCAST, None, eth::ARP, &[0; 28]);
    assert_eq!(run(&view(), &arp), Ok(Parsed::Arp { off: 14 }));

    let mut solicitation = Made::new(true, ipv6::ICMP, [&[135, 0, 0, 0, 0, 0, 0, 0][..], &ours_v6()].concat());
    solicitation.dst_mac = [0x33, 0x33, 0xff, 0, 0, 1];
    solicitation.dst6 = "ff02::1:ff00:1".parse::<Ipv6Addr>().unwrap().octets();
    solicitation.hop_limit = 255;
    let solicitation = solicitation.sealed();
    assert_eq!(run(&view(), &solicitation.frame()), Ok(Parsed::Ndisc { ip_off: 14, off: 54, len: 24 }));
    let routed = Made { hop_limit: 254, ..solicitation };
    assert_eq!(run(&view(), &routed.frame()), Err(DropReason::BadAddress));
}

#[test]
fn loopback_on_lo() {
    let mut made = Made::tcp(false, &[], b"x");
    (made.src, made.dst) = (0x7f00_0001, 0x7f00_0001);
    assert!(run(&view(), &made.clone().sealed().frame()).is_ok());
    made.dst = OURS;
    assert_eq!(run(&view(), &made.sealed().frame()), Err(DropReason::BadAddress));
}

/// TCP or UDP, with a payload.
fn made() -> impl Strategy<Value = Made> {
    (any::<bool>(), any::<bool>(), vec(any::<u8>(), 0..100))
        .prop_map(|(v6, udp, payload)| if udp { Made::udp(v6, &payload) } else { Made::tcp(v6, &NOP_NOP_TS, &payload) })
}

proptest! {
    /// Any segment, split into a chain at any position after its headers, parses like a single
    /// frame.
    #[test]
    fn chains(v6 in any::<bool>(), payload in vec(any::<u8>(), 0..3000), cuts in vec(any::<Index>(), 1..4), ts in any::<bool>()) {
        let frame = Made::tcp(v6, if ts { &NOP_NOP_TS } else { &[] }, &payload).frame();
        let whole = tcp_of(run(&view(), &frame));
        let headers = usize::from(whole.payload_off);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| headers + cut.index(payload.len() + 1)).collect();
        cuts.push(frame.len());
        cuts.sort_unstable();
        let mut tail = RunningSum::default();
        for window in cuts.windows(2) {
            tail.push(&frame[window[0]..window[1]]);
        }
        let (head, tail_len) = (&frame[..cuts[0]], frame.len() - cuts[0]);
        prop_assert_eq!(parse(&view(), head, tail_len, RxChecksum::Unknown, || tail.sum()), Ok(Parsed::Tcp(whole)));
        if tail_len > 0 {
            let wrong = tail.sum().add(Sum::word(1));
            let refused = parse(&view(), head, tail_len, RxChecksum::Unknown, || wrong);
            prop_assert_eq!(refused, Err(DropReason::BadTransportChecksum));
            let longer = parse(&view(), head, tail_len + 1, RxChecksum::Unknown, || tail.sum());
            prop_assert_eq!(longer, Err(DropReason::Malformed));
        }
    }

    #[test]
    fn detects_one_damaged_bit(made in made(), bit in any::<Index>()) {
        let mut frame = made.frame();
        prop_assert!(run(&view(), &frame).is_ok());
        let bit = bit.index((frame.len() - 14) * 8);
        let byte = bit / 8;
        frame[14 + byte] ^= 1 << (bit % 8);
        // An IPv6 header has no checksum: changes of ECN, flow label and hop limit are not
        // detected. A smaller length may by chance leave a packet with a valid sum. A UDP checksum
        // that becomes zero means "none" in IPv4.
        let transport = if made.v6 { 40 } else { 20 };
        let udp = made.protocol == ipv4::UDP;
        let unprotected = made.v6 && byte < 8 && byte != 6;
        let length = udp && (transport + 4..transport + 6).contains(&byte);
        let removed = udp && frame[14 + transport + 6..][..2] == [0, 0];
        prop_assert!(unprotected || length || removed || run(&view(), &frame).is_err());
    }

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..120), tail_len in 0usize..200, ethernet in any::<bool>(), verified in any::<bool>()) {
        check_any(&bytes, tail_len, ethernet, verified)?;
    }

    /// Damages well-formed packets, since random bytes rarely pass the first check.
    #[test]
    fn damaged_packets(made in made(), damage in vec((any::<Index>(), any::<u8>()), 0..6), cut in any::<Index>(), tail_len in 0usize..3) {
        let mut frame = made.frame();
        for (at, value) in damage {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        if !made.v6 {
            frame[24..26].fill(0);
            let sum = Sum::of(&frame[14..34]).finish();
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        frame.truncate(cut.index(frame.len() * 4));
        check_any(&frame, tail_len, true, true)?;
    }
}

/// Parses arbitrary bytes: no panic, and all offsets of the result are in bounds.
fn check_any(bytes: &[u8], tail_len: usize, ethernet: bool, verified: bool) -> Result<(), TestCaseError> {
    let framing = if ethernet { Framing::Ethernet } else { Framing::Ip };
    let checksum = if verified { RxChecksum::Verified } else { RxChecksum::Unknown };
    let view = View { framing, accept_partial_checksum: true, vlan: Some(1), mac: MAC };
    match parse(&view, bytes, tail_len, checksum, || Sum::ZERO) {
        Ok(Parsed::Tcp(segment)) => {
            prop_assert!(usize::from(segment.payload_off) <= bytes.len());
            let end = usize::from(segment.payload_off) + segment.payload_len as usize;
            prop_assert!(end <= bytes.len() + tail_len);
            prop_assert_eq!(segment.options(bytes).len(), usize::from(segment.opt_len));
        }
        Ok(Parsed::Udp(datagram)) => {
            prop_assert!(usize::from(datagram.payload_off) <= bytes.len());
            let end = usize::from(datagram.payload_off) + datagram.payload_len as usize;
            prop_assert!(end <= bytes.len() + tail_len);
        }
        Ok(Parsed::Icmp { ip_off, off, len, .. } | Parsed::Ndisc { ip_off, off, len }) => {
            prop_assert!(ip_off < off && usize::from(off) + usize::from(len) <= bytes.len());
        }
        Ok(Parsed::Arp { off }) => prop_assert!(usize::from(off) <= bytes.len()),
        Err(_) => {}
    }
    Ok(())
}
