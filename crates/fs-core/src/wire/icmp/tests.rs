use super::*;
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::Ipv6Header;
use proptest::collection::vec;
use proptest::prelude::*;
use std::vec::Vec;

const TCP_START: [u8; 8] = [0x1f, 0x90, 0xc0, 0x00, 1, 2, 3, 4];

fn quote_v4(protocol: u8) -> Vec<u8> {
    let mut ip = [0; 20];
    Ipv4Header { src: 0x0a00_0001, dst: 0x0a00_0002, protocol, ttl: 1, tos: 0, total_len: 1500 }.emit(&mut ip);
    [&ip[..], &TCP_START].concat()
}

fn quote_v6(protocol: u8) -> Vec<u8> {
    let mut ip = [0; 40];
    let header = Ipv6Header { src: [1; 16], dst: [2; 16], protocol, hop_limit: 1, traffic_class: 0, payload_len: 1400 };
    header.emit(&mut ip);
    [&ip[..], &TCP_START].concat()
}

fn message(kind: u8, code: u8, word: u32, quote: &[u8]) -> Vec<u8> {
    [&[kind, code, 0, 0][..], &word.to_be_bytes(), quote].concat()
}

fn v4(kind: u8, code: u8, word: u32) -> Option<IcmpErrorKind> {
    parse_error_v4(&message(kind, code, word, &quote_v4(6))).map(|error| error.kind)
}

fn v6(kind: u8, code: u8, word: u32) -> Option<IcmpErrorKind> {
    parse_error_v6(&message(kind, code, word, &quote_v6(6))).map(|error| error.kind)
}

#[test]
fn flow_is_local_and_only_tcp_has_sequence_number() {
    let error = parse_error_v4(&message(3, 3, 0, &quote_v4(6))).unwrap();
    let key = FlowKey::V4 { local: 0x0a00_0001, remote: 0x0a00_0002, local_port: 8080, remote_port: 0xc000 };
    assert_eq!((error.protocol, error.key, error.seq), (Protocol::Tcp, key, Some(SeqNum(0x0102_0304))));
    let error = parse_error_v4(&message(3, 3, 0, &quote_v4(17))).unwrap();
    assert_eq!((error.protocol, error.key, error.seq), (Protocol::Udp, key, None));
    let error = parse_error_v6(&message(1, 4, 0, &quote_v6(6))).unwrap();
    let key = FlowKey::V6 { local: [1; 16], remote: [2; 16], local_port: 8080, remote_port: 0xc000 };
    assert_eq!((error.protocol, error.key, error.seq), (Protocol::Tcp, key, Some(SeqNum(0x0102_0304))));
}

#[test]
fn kinds_of_icmp() {
    use IcmpErrorKind::*;
    for (code, kind) in [(0, NetUnreachable), (1, HostUnreachable), (2, ProtoUnreachable), (3, PortUnreachable)] {
        assert_eq!(v4(3, code, 0), Some(kind));
    }
    assert_eq!(v4(3, 4, 1400), Some(FragmentationNeeded { mtu: 1400 }));
    assert_eq!(v4(3, 4, 0x1234_0000), Some(FragmentationNeeded { mtu: 0 }), "the high half is not the MTU");
    for (code, kind) in [(9, NetProhibited), (10, AdminProhibited), (13, AdminProhibited)] {
        assert_eq!(v4(3, code, 0), Some(kind));
    }
    assert_eq!(v4(3, 99, 0), Some(HostUnreachable));
    assert_eq!(v4(11, 0, 0), Some(TimeExceeded));
    assert_eq!(v4(12, 0, 0), Some(ParameterProblem));
    assert_eq!(v4(4, 0, 0), None, "source quench");
    assert_eq!(v4(5, 0, 0), None, "redirect");
    assert_eq!(v4(8, 0, 0), None, "echo");
}

#[test]
fn kinds_of_icmp_v6() {
    use IcmpErrorKind::*;
    let codes = [NetUnreachable, Prohibited, HostUnreachable, HostUnreachable, PortUnreachable, Prohibited, Prohibited];
    for (code, kind) in codes.into_iter().enumerate() {
        assert_eq!(v6(1, code as u8, 0), Some(kind), "code {code}");
    }
    assert_eq!(v6(2, 0, 1280), Some(PacketTooBig { mtu: 1280 }));
    assert_eq!(v6(3, 0, 0), Some(TimeExceeded));
    assert_eq!(v6(4, 0, 0), Some(ParameterProblem));
    assert_eq!(v6(4, 1, 0), Some(ProtoUnreachable));
    assert_eq!(v6(128, 0, 0), None);
}

#[test]
fn quotes_without_flow() {
    assert_eq!(parse_error_v4(&message(3, 3, 0, &quote_v4(1))), None, "an ICMP packet");
    assert_eq!(parse_error_v4(&message(3, 3, 0, &quote_v4(6)[..27])), None, "cut too short");
    let mut later_fragment = quote_v4(6);
    later_fragment[7] = 1;
    assert_eq!(parse_error_v4(&message(3, 3, 0, &later_fragment)), None);
    assert_eq!(parse_error_v4(&message(3, 3, 0, &quote_v6(6))), None, "the other version");
    assert_eq!(parse_error_v6(&message(1, 4, 0, &quote_v6(58))), None);
    assert_eq!(parse_error_v6(&message(1, 4, 0, &quote_v6(6)[..47])), None);
}

#[test]
fn socket_errors_equal_linuxs() {
    assert_eq!(IcmpErrorKind::PortUnreachable.error(), Error::ConnectionRefused);
    assert_eq!(IcmpErrorKind::FragmentationNeeded { mtu: 1 }.error(), Error::MessageSize);
    let filtered = [IcmpErrorKind::NetProhibited, IcmpErrorKind::AdminProhibited, IcmpErrorKind::Prohibited];
    let errors = [Error::NetworkUnreachable, Error::HostUnreachable, Error::Prohibited];
    assert_eq!(filtered.map(IcmpErrorKind::error), errors);
    assert!(filtered.iter().all(|kind| kind.is_hard()));
    assert!(IcmpErrorKind::PortUnreachable.is_hard() && !IcmpErrorKind::HostUnreachable.is_hard());
}

#[test]
fn echo() {
    let request = [8, 0, 0xff, 0xff, 0x12, 0x34, 0, 7, b'a', b'b', b'c'];
    let mut out = [0; 64];
    let len = echo_reply_v4(&request, &mut out).unwrap();
    let reply = Icmpv4Packet::new_checked(&out[..len]).unwrap();
    assert!(reply.verify_checksum());
    assert_eq!((reply.msg_type(), reply.echo_ident(), reply.echo_seq_no()), (Icmpv4Message::EchoReply, 0x1234, 7));
    assert_eq!(reply.data(), b"abc");
    assert_eq!(echo_reply_v4(&request, &mut out[..10]), None, "no room");
    assert_eq!(echo_reply_v4(&[0, 0, 0, 0, 0, 0, 0, 0], &mut out), None, "a reply");

    let (asked, asker) = (Ipv6Address::from([1; 16]), Ipv6Address::from([2; 16]));
    let request = [128, 0, 0xff, 0xff, 0x12, 0x34, 0, 7, b'a', b'b', b'c'];
    let len = echo_reply_v6(&request, asked, asker, &mut out).unwrap();
    let reply = Icmpv6Packet::new_checked(&out[..len]).unwrap();
    assert!(reply.verify_checksum(&asked, &asker));
    assert_eq!((reply.msg_type(), reply.echo_ident(), reply.echo_seq_no()), (Icmpv6Message::EchoReply, 0x1234, 7));
    assert_eq!(reply.payload(), b"abc");
}

proptest! {
    #[test]
    fn any_bytes(mut bytes in vec(any::<u8>(), 0..120), kind in prop::sample::select(std::vec![1u8, 2, 3, 4, 5, 8, 11, 12, 128, 129, 135, 136])) {
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        let mut out = [0; 200];
        parse_error_v4(&bytes);
        parse_error_v6(&bytes);
        echo_reply_v4(&bytes, &mut out);
        echo_reply_v6(&bytes, [1; 16].into(), [2; 16].into(), &mut out);
    }
}
