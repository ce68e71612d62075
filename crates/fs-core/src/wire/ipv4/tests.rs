use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use smoltcp::wire::{IpProtocol, Ipv4Packet};
use std::vec::Vec;

fn header() -> impl Strategy<Value = Ipv4Header> {
    (any::<u32>(), any::<u32>(), any::<u8>(), any::<u8>(), any::<u8>(), 20u16..)
        .prop_map(|(src, dst, protocol, ttl, tos, total_len)| Ipv4Header { src, dst, protocol, ttl, tos, total_len })
}

fn sample() -> Vec<u8> {
    let mut out = [0; HEADER_LEN];
    let (src, dst) = (0x0a4d_0102, 0x0a4d_0101);
    Ipv4Header { src, dst, protocol: TCP, ttl: 64, tos: 1, total_len: 40 }.emit(&mut out);
    let mut packet = out.to_vec();
    packet.resize(40, 0);
    packet
}

fn seal(packet: &mut [u8]) {
    let header_len = usize::from(packet[0] & 0xf) * 4;
    packet[10..12].fill(0);
    let sum = Sum::of(&packet[..header_len]).finish();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn rejection_reasons() {
    let good = sample();
    assert_eq!(parse(&good, 40).unwrap().tos & 3, 1);
    assert_eq!(parse(&good, 1500).unwrap().total_len, 40);
    assert_eq!(parse(&good, 39), Err(DropReason::Malformed));
    assert_eq!(parse(&good[..19], 40), Err(DropReason::Malformed));
    let change = |at: usize, value: u8, sealed: bool| {
        let mut packet = good.clone();
        packet[at] = value;
        if sealed {
            seal(&mut packet);
        }
        parse(&packet, 40)
    };
    assert_eq!(change(0, 0x55, true), Err(DropReason::Malformed), "version");
    assert_eq!(change(0, 0x44, false), Err(DropReason::Malformed), "header length");
    assert_eq!(change(3, 19, true), Err(DropReason::Malformed), "total length below the header's");
    assert_eq!(change(3, 41, true), Err(DropReason::Malformed), "total length beyond the packet");
    assert_eq!(change(12, 11, false), Err(DropReason::BadIpChecksum));
    assert_eq!(change(6, 0x20, true), Err(DropReason::Fragment), "more fragments");
    assert_eq!(change(7, 1, true), Err(DropReason::Fragment), "offset");
    assert!(change(6, 0, true).is_ok(), "may be fragmented, is not");
}

#[test]
fn skips_and_sums_options() {
    let mut packet = sample();
    packet[0] = 0x46;
    packet.splice(20..20, [1, 1, 1, 0]);
    packet[3] = 44;
    seal(&mut packet);
    assert_eq!(parse(&packet, 44).unwrap().header_len, 24);
    packet[20] = 0;
    assert_eq!(parse(&packet, 44), Err(DropReason::BadIpChecksum));
    assert_eq!(parse(&packet[..22], 44), Err(DropReason::Malformed), "options beyond the first frame");
}

#[test]
fn addresses() {
    let ours = 0x0a00_0001;
    for bad in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"] {
        let bad: core::net::Ipv4Addr = bad.parse().unwrap();
        assert!(is_bad_source(bad.to_bits(), ours), "{bad}");
    }
    for good in ["1.0.0.1", "10.0.0.2", "126.255.255.255", "128.0.0.1", "192.168.1.1", "223.255.255.255"] {
        let good: core::net::Ipv4Addr = good.parse().unwrap();
        assert!(!is_bad_source(good.to_bits(), ours), "{good}");
        assert!(is_unicast(good.to_bits()), "{good}");
    }
    assert!(!is_bad_source(0x7f00_0001, 0x7f00_0001), "on lo");
    assert!(!is_unicast(u32::MAX) && !is_unicast(0xe000_0001) && !is_unicast(0));
}

proptest! {
    #[test]
    fn smoltcp_reads_what_we_write(header in header()) {
        let mut out = [0; HEADER_LEN];
        header.emit(&mut out);
        let packet = Ipv4Packet::new_unchecked(&out);
        prop_assert!(packet.verify_checksum());
        prop_assert_eq!(packet.version(), 4);
        prop_assert_eq!(packet.header_len(), 20);
        prop_assert_eq!(packet.total_len(), header.total_len);
        prop_assert_eq!(packet.src_addr().to_bits(), header.src);
        prop_assert_eq!(packet.dst_addr().to_bits(), header.dst);
        prop_assert_eq!(packet.next_header(), IpProtocol::from(header.protocol));
        prop_assert_eq!(packet.hop_limit(), header.ttl);
        prop_assert!(packet.dont_frag() && !packet.more_frags() && packet.frag_offset() == 0);
        prop_assert_eq!(packet.dscp() << 2 | packet.ecn(), header.tos);
        let view = parse(&out, 65535).unwrap();
        prop_assert_eq!((view.src, view.dst, view.protocol, view.ttl), (header.src, header.dst, header.protocol, header.ttl));
        prop_assert_eq!((view.tos, view.header_len, view.total_len), (header.tos, 20, header.total_len));
    }

    #[test]
    fn any_bytes(mut bytes in vec(any::<u8>(), 0..80), sealed in any::<bool>(), more in 0usize..100) {
        if sealed && bytes.len() >= 60 {
            bytes[0] = 0x40 | bytes[0] & 0xf;
            seal(&mut bytes);
        }
        if let Ok(view) = parse(&bytes, bytes.len() + more) {
            prop_assert!(usize::from(view.header_len) <= bytes.len());
            prop_assert!(u16::from(view.header_len) <= view.total_len);
            prop_assert!(usize::from(view.total_len) <= bytes.len() + more);
        }
    }
}
