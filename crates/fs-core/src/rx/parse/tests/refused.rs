//! Packets that must be rejected, and the drop reason of each.

use super::*;
use std::vec;

fn reason(made: Made) -> DropReason {
    match run(&view(), &made.frame()) {
        Err(reason) => reason,
        Ok(parsed) => panic!("came through: {parsed:?}"),
    }
}

#[test]
fn link_layer() {
    let good = Made::tcp(false, &[], b"x");
    assert_eq!(reason(Made { dst_mac: PEER, ..good.clone() }), DropReason::NotOurAddress);
    assert_eq!(reason(Made { vlan: Some(5), ..good.clone() }), DropReason::NotOurAddress);
    // RFC 1122 4.2.3.10: no TCP to a link-layer group, for any IP address.
    assert_eq!(reason(Made { dst_mac: eth::BROADCAST, ..good }), DropReason::BadAddress);
    assert_eq!(run(&view(), &[0; 13]), Err(DropReason::Malformed));
    assert_eq!(run(&view(), &framed(MAC, None, 0x88cc, &[0; 50])), Err(DropReason::NotOurProtocol));
    assert_eq!(run(&view(), &framed(PEER, None, eth::ARP, &[0; 28])), Err(DropReason::NotOurAddress));
}

#[test]
fn addresses() {
    for v6 in [false, true] {
        let good = Made::tcp(v6, &[], b"x");
        let multicast = "ff02::1".parse::<Ipv6Addr>().unwrap().octets();
        let sources = [(0, [0; 16]), (u32::MAX, multicast), (0xe000_0001, multicast), (OURS, ours_v6())];
        for (src, src6) in sources {
            assert_eq!(
                reason(Made { src, src6, ..good.clone() }.sealed()),
                DropReason::BadAddress,
                "{src:x} {src6:x?}"
            );
        }
        let group = Made { dst: 0xe000_0001, dst6: multicast, ..good.clone() };
        assert_eq!(reason(group.sealed()), DropReason::BadAddress);
        let broadcast = Made { dst: u32::MAX, dst6: [0; 16], ..Made::udp(v6, b"x") };
        assert_eq!(reason(broadcast.sealed()), DropReason::BadAddress);
    }
}

#[test]
fn checksums() {
    for v6 in [false, true] {
        let mut made = Made::tcp(v6, &[], b"x");
        made.transport[20] ^= 1;
        assert_eq!(reason(made), DropReason::BadTransportChecksum);
        let mut made = Made::udp(v6, b"x");
        made.transport[8] ^= 1;
        assert_eq!(reason(made), DropReason::BadTransportChecksum);
        let protocol = if v6 { ipv6::ICMP } else { ipv4::ICMP };
        let mut made = Made::new(v6, protocol, vec![if v6 { 128 } else { 8 }, 0, 0, 0, 0, 0, 0, 0]).sealed();
        made.transport[5] ^= 1;
        assert_eq!(reason(made), DropReason::BadTransportChecksum);
    }
    let mut made = Made::udp(true, b"x");
    made.set_checksum(0);
    assert_eq!(reason(made), DropReason::BadTransportChecksum, "RFC 8200 8.1");
    let mut frame = Made::tcp(false, &[], b"x").frame();
    frame[14 + 8] -= 1;
    assert_eq!(run(&view(), &frame), Err(DropReason::BadIpChecksum));
}

#[test]
fn lengths() {
    for v6 in [false, true] {
        let mut made = Made::tcp(v6, &[], b"");
        made.transport[12] = 0x40;
        assert_eq!(reason(made.clone().sealed()), DropReason::Malformed, "data offset below 5");
        made.transport[12] = 0x60;
        assert_eq!(reason(made.sealed()), DropReason::Malformed, "options beyond the segment");
        assert_eq!(reason(Made::new(v6, ipv4::TCP, vec![0; 19])), DropReason::Malformed);
        assert_eq!(reason(Made::new(v6, ipv4::UDP, vec![0; 7])), DropReason::Malformed);
        let mut made = Made::udp(v6, b"abc");
        made.transport[5] = 12;
        assert_eq!(reason(made.sealed()), DropReason::Malformed, "a datagram longer than its packet");
        let protocol = if v6 { ipv6::ICMP } else { ipv4::ICMP };
        assert_eq!(reason(Made::new(v6, protocol, vec![8, 0, 0, 0])), DropReason::Malformed);
        let frame = Made::tcp(v6, &[], b"abc").frame();
        assert_eq!(run(&view(), &frame[..frame.len() - 1]), Err(DropReason::Malformed));
    }
}

#[test]
fn fragments_and_other_protocols() {
    let mut frame = Made::tcp(false, &[], b"x").frame();
    frame[14 + 6] = 0x20;
    frame[24..26].fill(0);
    let sum = Sum::of(&frame[14..34]).finish();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(run(&view(), &frame), Err(DropReason::Fragment));
    assert_eq!(reason(Made::new(true, 44, vec![6, 0, 0, 0, 0, 0, 0, 0])), DropReason::Fragment);
    for v6 in [false, true] {
        assert_eq!(reason(Made::new(v6, 132, vec![0; 20])), DropReason::NotOurProtocol, "SCTP");
    }
}

#[test]
fn contradictory_chains() {
    let frame = Made::udp(false, b"0123456789").frame();
    let (head, tail) = frame.split_at(frame.len() - 4);
    let sum = || Sum::of(tail);
    assert!(matches!(parse(&view(), head, 4, RxChecksum::Unknown, sum), Ok(Parsed::Udp(_))));
    for tail_len in [0, 3, 5] {
        assert_eq!(parse(&view(), head, tail_len, RxChecksum::Verified, sum), Err(DropReason::Malformed), "{tail_len}");
    }
    // UDP's own length ends inside the tail.
    let mut made = Made::udp(false, b"0123456789");
    made.transport[5] -= 1;
    let frame = made.sealed().frame();
    let (head, tail) = frame.split_at(frame.len() - 4);
    assert_eq!(parse(&view(), head, 4, RxChecksum::Unknown, || Sum::of(tail)), Err(DropReason::Malformed));
    // ICMP in a chain.
    let icmp = Made::new(false, ipv4::ICMP, vec![8; 100]).sealed().frame();
    let refused = parse(&view(), &icmp[..90], icmp.len() - 90, RxChecksum::Unknown, || Sum::ZERO);
    assert_eq!(refused, Err(DropReason::NotOurProtocol));
}
