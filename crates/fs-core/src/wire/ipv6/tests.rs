use super::*;
use core::net::Ipv6Addr;
use proptest::collection::vec;
use proptest::prelude::*;
use smoltcp::wire::{IpProtocol, Ipv6Packet};
use std::vec::Vec;

const TCP: u8 = 6;

/// Makes a packet of extension headers (kind, bytes without the first) before 20 bytes of "TCP".
fn packet(extensions: &[(u8, &[u8])]) -> Vec<u8> {
    let kinds: Vec<u8> = extensions.iter().map(|(kind, _)| *kind).chain([TCP]).collect();
    let mut body = Vec::new();
    for ((_, bytes), next) in extensions.iter().zip(&kinds[1..]) {
        body.push(*next);
        body.extend_from_slice(bytes);
    }
    body.extend_from_slice(&[0xee; 20]);
    let mut out = [0; HEADER_LEN];
    let (src, dst) = ("fd77:1::2".parse::<Ipv6Addr>().unwrap(), "fd77:1::1".parse::<Ipv6Addr>().unwrap());
    let (src, dst, payload_len) = (src.octets(), dst.octets(), body.len() as u16);
    Ipv6Header { src, dst, protocol: kinds[0], hop_limit: 64, traffic_class: 2, payload_len }.emit(&mut out);
    [&out[..], &body].concat()
}

fn reparse(packet: &[u8]) -> Result<(u8, u16), DropReason> {
    parse(packet, packet.len()).map(|view| (view.protocol, view.header_len))
}

const PAD: &[u8] = &[0, 1, 4, 0, 0, 0, 0];
const ROUTER_ALERT: &[u8] = &[0, 5, 2, 0, 0, 1, 0];
const LONG_PAD: &[u8] = &[1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn skips_extension_headers() {
    assert_eq!(reparse(&packet(&[])), Ok((TCP, 40)));
    assert_eq!(reparse(&packet(&[(HOP_BY_HOP, ROUTER_ALERT)])), Ok((TCP, 48)));
    assert_eq!(reparse(&packet(&[(DESTINATION_OPTIONS, LONG_PAD)])), Ok((TCP, 56)));
    assert_eq!(reparse(&packet(&[(ROUTING, &[0, 4, 0, 0, 0, 0, 0]), (DESTINATION_OPTIONS, PAD)])), Ok((TCP, 56)));
    assert_eq!(parse(&packet(&[]), 60).unwrap().traffic_class & 3, 2);
}

#[test]
fn rejection_reasons() {
    assert_eq!(reparse(&packet(&[(FRAGMENT, &[0, 0, 0, 0, 0, 0, 0])])), Err(DropReason::Fragment));
    assert_eq!(reparse(&packet(&[(HOP_BY_HOP, PAD), (FRAGMENT, &[0; 7])])), Err(DropReason::Fragment));
    assert_eq!(
        reparse(&packet(&[(DESTINATION_OPTIONS, PAD), (HOP_BY_HOP, PAD)])),
        Err(DropReason::Malformed),
        "hop-by-hop not first"
    );
    assert_eq!(
        reparse(&packet(&[(ROUTING, &[0, 4, 1, 0, 0, 0, 0])])),
        Err(DropReason::NotOurProtocol),
        "segments left"
    );
    let jumbo: &[u8] = &[0, 0xc2, 4, 0, 1, 0, 0];
    assert_eq!(reparse(&packet(&[(HOP_BY_HOP, jumbo)])), Err(DropReason::NotOurProtocol));
    let overlong: &[u8] = &[0, 1, 5, 0, 0, 0, 0];
    assert_eq!(reparse(&packet(&[(HOP_BY_HOP, overlong)])), Err(DropReason::Malformed));
    assert_eq!(
        reparse(&packet(&[(HOP_BY_HOP, &[9, 1, 4, 0, 0, 0, 0])])),
        Err(DropReason::Malformed),
        "beyond the packet"
    );
    let many: Vec<(u8, &[u8])> = (0..7).map(|_| (DESTINATION_OPTIONS, PAD)).collect();
    assert_eq!(reparse(&packet(&many)), Err(DropReason::Malformed), "too many");
    let good = packet(&[]);
    assert_eq!(parse(&good, 59), Err(DropReason::Malformed));
    assert_eq!(parse(&good[..39], 60), Err(DropReason::Malformed));
}

#[test]
fn headers_must_be_in_the_first_frame() {
    let whole = packet(&[(DESTINATION_OPTIONS, LONG_PAD)]);
    assert_eq!(parse(&whole[..50], whole.len()), Err(DropReason::Malformed));
    assert!(parse(&whole[..56], whole.len()).is_ok());
}

#[test]
fn addresses() {
    let addr = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
    let ours = addr("fd77::1");
    for bad in ["::", "::1", "ff02::1", "::ffff:10.0.0.1"] {
        assert!(is_bad_source(&addr(bad), &ours), "{bad}");
    }
    for good in ["fe80::1", "2001:db8::1", "fd00::1", "::2", "64:ff9b::a00:1"] {
        assert!(!is_bad_source(&addr(good), &ours), "{good}");
        assert!(is_unicast(&addr(good)), "{good}");
    }
    assert!(!is_bad_source(&addr("::1"), &addr("::1")), "on lo");
    assert!(!is_unicast(&addr("::")) && !is_unicast(&addr("ff02::1")) && !is_unicast(&addr("::ffff:1.2.3.4")));
}

proptest! {
    #[test]
    fn smoltcp_reads_what_we_write(
        (src, dst) in any::<([u8; 16], [u8; 16])>(),
        (protocol, hop_limit, traffic_class, payload_len) in any::<(u8, u8, u8, u16)>(),
    ) {
        let mut out = [0; HEADER_LEN];
        Ipv6Header { src, dst, protocol, hop_limit, traffic_class, payload_len }.emit(&mut out);
        let packet = Ipv6Packet::new_unchecked(&out);
        prop_assert_eq!(packet.version(), 6);
        prop_assert_eq!(packet.src_addr().octets(), src);
        prop_assert_eq!(packet.dst_addr().octets(), dst);
        prop_assert_eq!(packet.next_header(), IpProtocol::from(protocol));
        prop_assert_eq!(packet.hop_limit(), hop_limit);
        prop_assert_eq!(packet.traffic_class(), traffic_class);
        prop_assert_eq!(packet.flow_label(), 0);
        prop_assert_eq!(packet.payload_len(), payload_len);
    }

    #[test]
    fn any_bytes(mut bytes in vec(any::<u8>(), 0..200), kind in any::<prop::sample::Index>(), more in 0usize..100) {
        if bytes.len() > 48 {
            bytes[0] = 0x60;
            bytes[4] = 0;
            bytes[6] = [HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION_OPTIONS, TCP][kind.index(5)];
            bytes[40] = [HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION_OPTIONS, TCP][kind.index(4) + 1];
        }
        if let Ok(view) = parse(&bytes, bytes.len() + more) {
            prop_assert!(usize::from(view.header_len) <= bytes.len());
            prop_assert!(u32::from(view.header_len) <= view.total_len);
            prop_assert!(view.total_len as usize <= bytes.len() + more);
        }
    }
}
