//! What the bits of a handshake mean.

use super::*;

#[test]
fn a_setup_syn_ack_is_not_a_reflection() {
    let ack = TcpFlags::SYN | TcpFlags::ACK;
    assert!(is_setup_syn_ack(ack | TcpFlags::ECE));
    assert!(!is_setup_syn_ack(ack));
    assert!(!is_setup_syn_ack(ack | TcpFlags::CWR));
    assert!(!is_setup_syn_ack(ack | TcpFlags::ECE | TcpFlags::CWR), "what a stack that reflects unknown bits sends");
    assert!(is_setup_syn_ack(syn_ack_flags(true)) && !is_setup_syn_ack(syn_ack_flags(false)));
}

#[test]
fn the_ecn_bits_are_not_the_applications() {
    assert_eq!((tos(0xff), tos(3), tos(0x10)), (0xfc, 0, 0x10));
}
