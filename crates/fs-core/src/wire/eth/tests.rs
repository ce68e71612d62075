use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol};

fn header() -> impl Strategy<Value = EthHeader> {
    let ethertype = any::<u16>().prop_filter("a second tag is not ours", |ethertype| *ethertype != VLAN);
    (any::<[u8; 6]>(), any::<[u8; 6]>(), proptest::option::of(0u16..4096), ethertype)
        .prop_map(|(dst, src, vlan, ethertype)| EthHeader { dst, src, vlan, ethertype })
}

#[test]
fn smoltcp_reads_what_we_write() {
    let mut out = [0; 20];
    let header = EthHeader { dst: [1, 2, 3, 4, 5, 6], src: [7, 8, 9, 10, 11, 12], vlan: None, ethertype: IPV4 };
    assert_eq!(header.emit(&mut out), 14);
    let frame = EthernetFrame::new_checked(&out).unwrap();
    assert_eq!(frame.dst_addr(), EthernetAddress(header.dst));
    assert_eq!(frame.src_addr(), EthernetAddress(header.src));
    assert_eq!(frame.ethertype(), EthernetProtocol::Ipv4);
}

#[test]
fn writes_ieee_802_1q_tag() {
    let mut out = [0; 18];
    let header = EthHeader { dst: [0xff; 6], src: [2, 0, 0, 0, 0, 1], vlan: Some(0xabc), ethertype: IPV6 };
    assert_eq!(header.emit(&mut out), 18);
    assert_eq!(out[12..], [0x81, 0x00, 0x0a, 0xbc, 0x86, 0xdd]);
    // Priority bits are not part of the VLAN id.
    out[14] |= 0xe0;
    assert_eq!(EthHeader::parse(&out), Some((header, 18)));
}

#[test]
fn groups() {
    assert!(is_group(&BROADCAST));
    assert!(is_group(&[0x33, 0x33, 0, 0, 0, 1]));
    assert!(!is_group(&[2, 0, 0, 0, 0, 1]));
}

proptest! {
    #[test]
    fn reads_what_it_writes(header in header()) {
        let mut out = [0; TAGGED_HEADER_LEN];
        let len = header.emit(&mut out);
        prop_assert_eq!(len, header.len());
        prop_assert_eq!(EthHeader::parse(&out[..len]), Some((header, len)));
        prop_assert_eq!(EthHeader::parse(&out[..len - 1]), None);
        prop_assert_eq!(header.emit(&mut out[..len - 1]), 0);
    }

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..40)) {
        if let Some((header, len)) = EthHeader::parse(&bytes) {
            prop_assert!(len <= bytes.len() && len == header.len());
        }
    }
}
