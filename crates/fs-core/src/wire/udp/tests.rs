use super::*;
use proptest::prelude::*;
use smoltcp::wire::UdpPacket;

#[test]
fn rejects_short_header() {
    assert_eq!(UdpHeader::parse(&[0; 7]), None);
    assert_eq!(UdpHeader::parse(&[0, 1, 0, 2, 0, 7, 0, 0]), None, "a length less than the header's");
    assert!(UdpHeader::parse(&[0, 1, 0, 2, 0, 8, 0, 0]).is_some());
}

#[test]
fn sends_zero_as_ones() {
    assert_eq!(nonzero(0), 0xffff);
    assert_eq!(nonzero(1), 1);
}

proptest! {
    #[test]
    fn reads_what_it_writes_as_smoltcp_does((src_port, dst_port, len, checksum) in (any::<u16>(), any::<u16>(), 8u16.., any::<u16>())) {
        let header = UdpHeader { src_port, dst_port, len, checksum };
        let mut out = [0; HEADER_LEN];
        header.emit(&mut out);
        prop_assert_eq!(UdpHeader::parse(&out), Some(header));
        let packet = UdpPacket::new_unchecked(&out);
        prop_assert_eq!((packet.src_port(), packet.dst_port(), packet.len(), packet.checksum()), (src_port, dst_port, len, checksum));
    }
}
