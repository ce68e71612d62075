use super::*;
use crate::wire::checksum::Sum;
use proptest::prelude::*;
use smoltcp::wire::{IpAddress, TcpPacket};
use std::format;

#[test]
fn flags() {
    let syn_ack = TcpFlags::SYN | TcpFlags::ACK;
    assert!(syn_ack.contains(TcpFlags::SYN) && !TcpFlags::SYN.contains(syn_ack));
    assert!(syn_ack.intersects(TcpFlags::ACK | TcpFlags::FIN) && !syn_ack.intersects(TcpFlags::RST));
    assert_eq!(syn_ack.without(TcpFlags::SYN), TcpFlags::ACK);
    assert_eq!((syn_ack | TcpFlags::FIN).seq_len(), 2);
    assert_eq!(TcpFlags::RST.seq_len(), 0);
    assert_eq!(format!("{syn_ack:?} {:?}", TcpFlags::NONE), "SYN|ACK -");
}

proptest! {
    #[test]
    fn smoltcp_reads_what_we_write(
        (src_port, dst_port, seq, ack) in any::<(u16, u16, u32, u32)>(),
        (flags, window, words) in (any::<u8>(), any::<u16>(), 0u8..=10),
    ) {
        let options_len = words * 4;
        let header = TcpHeader {
            src_port, dst_port, seq: SeqNum(seq), ack: SeqNum(ack), flags: TcpFlags(flags), window, options_len, urgent: 0 };
        let mut out = [0x01; 60];
        header.emit(out.first_chunk_mut().unwrap());
        let segment = &mut out[..20 + usize::from(options_len)];
        let (a, b) = (IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2));
        let sum = Sum::pseudo_v4(0x0a00_0001, 0x0a00_0002, 6, segment.len() as u32).add(Sum::of(segment)).finish();
        set_checksum(segment.first_chunk_mut().unwrap(), sum);
        let packet = TcpPacket::new_unchecked(&*segment);
        prop_assert!(packet.verify_checksum(&a, &b));
        prop_assert_eq!((packet.src_port(), packet.dst_port()), (src_port, dst_port));
        prop_assert_eq!(packet.seq_number().0 as u32, seq);
        prop_assert_eq!(packet.ack_number().0 as u32, ack);
        prop_assert_eq!(packet.window_len(), window);
        prop_assert_eq!(packet.urgent_at(), 0);
        prop_assert_eq!(usize::from(packet.header_len()), segment.len());
        let bits = [packet.fin(), packet.syn(), packet.rst(), packet.psh(), packet.ack(), packet.urg(), packet.ece(), packet.cwr()];
        for (bit, set) in bits.into_iter().enumerate() {
            prop_assert_eq!(set, flags & (1 << bit) != 0);
        }
    }
}
