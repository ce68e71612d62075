//! Meaning of the ECN bits of a handshake.

use super::*;

#[test]
fn setup_syn_ack_is_not_a_reflection() {
    let ack = TcpFlags::SYN | TcpFlags::ACK;
    assert!(is_setup_syn_ack(ack | TcpFlags::ECE));
    assert!(!is_setup_syn_ack(ack));
    assert!(!is_setup_syn_ack(ack | TcpFlags::CWR));
    assert!(!is_setup_syn_ack(ack | TcpFlags::ECE | TcpFlags::CWR), "what a stack that reflects unknown bits sends");
    assert!(is_setup_syn_ack(syn_ack_flags(true)) && !is_setup_syn_ack(syn_ack_flags(false)));
}

#[test]
fn ecn_bits_belong_to_stack() {
    assert_eq!((tos(0xff), tos(3), tos(0x10)), (0xfc, 0, 0x10));
}
