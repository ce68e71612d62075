use super::*;
use crate::config::{Addressing, Cidr};
use crate::frame::RxChecksum;
use crate::net::tests::interface;
use crate::rx::parse::{View, parse};
use crate::wire::checksum::Sum;
use proptest::collection::vec;
use proptest::prelude::*;
use smoltcp::wire::{Icmpv4Message, Icmpv4Packet, Icmpv4Repr, Icmpv6Message, Ipv4Packet, Ipv6Packet};
use std::vec::Vec;

const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);
const OURS6: Ipv6Addr = Ipv6Addr::new(0xfd77, 1, 0, 0, 0, 0, 0, 1);
const THEIRS6: Ipv6Addr = Ipv6Addr::new(0xfd77, 1, 0, 0, 0, 0, 0, 2);
const IFACE: IfaceId = IfaceId(0);
/// Ethernet, VLAN tag, IPv6, neighbour solicitation with one option.
const REQUEST_LEN_MAX: usize = eth::TAGGED_HEADER_LEN + ipv6::HEADER_LEN + 32;

fn host(last: u8) -> Interface {
    let v6 = Ipv6Addr::new(0xfd77, 1, 0, 0, 0, 0, 0, u16::from(last));
    let addrs = std::vec![
        Cidr { addr: Ipv4Addr::new(10, 77, 1, last).into(), prefix: 24 },
        Cidr { addr: v6.into(), prefix: 64 },
    ];
    Interface { mac: [2, 0, 0, 0, 0, last], addressing: Addressing::Standalone, ..interface(addrs) }
}

/// Passes a frame through the parser and then to `respond`, as the stack does.
fn receive(interface: &Interface, frame: &[u8]) -> (Option<Learned>, Vec<u8>) {
    let mut reply = [0; 2048];
    let parsed = parse(&View::of(interface), frame, 0, RxChecksum::Unknown, || Sum::ZERO).unwrap();
    let response = respond(IFACE, interface, frame, &parsed, &mut reply);
    (response.learned, reply[..response.reply_len].to_vec())
}

/// Writes the unsolicited announcement of an address, as a host sends it that takes the address over: a gratuitous
/// ARP request (RFC 5227 section 3), or an unsolicited neighbour advertisement (RFC 4861 7.2.6).
fn announce(interface: &Interface, addr: IpAddr, out: &mut [u8]) -> Option<usize> {
    match addr {
        IpAddr::V4(addr) => {
            let repr = arp_repr(interface, ArpOperation::Request, addr, [0; 6], addr);
            emit_arp(interface, eth::BROADCAST, &repr, out)
        }
        IpAddr::V6(addr) => {
            let repr = advertisement(interface, addr, NdiscNeighborFlags::OVERRIDE);
            emit_ndisc(interface, multicast_mac(ALL_NODES), addr, ALL_NODES, repr, out)
        }
    }
}

fn written(write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Vec<u8> {
    let mut out = [0; REQUEST_LEN_MAX];
    let len = write(&mut out).unwrap();
    out[..len].to_vec()
}

#[test]
fn hosts_resolve_each_other() {
    let (us, them) = (host(1), host(2));
    for (target, asker) in [(IpAddr::from(OURS), IpAddr::from(THEIRS)), (OURS6.into(), THEIRS6.into())] {
        let request = written(|out| request(&them, target, out));
        let (learned, reply) = receive(&us, &request);
        assert_eq!(learned, Some(Learned { iface: IFACE, addr: asker, mac: PEER }));
        let (learned, answer) = receive(&them, &reply);
        assert_eq!(learned, Some(Learned { iface: IFACE, addr: target, mac: us.mac }));
        assert!(answer.is_empty());
    }
}

#[test]
fn hosts_resolve_with_vlan_tags() {
    let (us, them) = (Interface { vlan: Some(9), ..host(1) }, Interface { vlan: Some(9), ..host(2) });
    let request = written(|out| request(&them, OURS6.into(), out));
    assert_eq!(request.len(), REQUEST_LEN_MAX);
    let (_, reply) = receive(&us, &request);
    assert_eq!(EthHeader::parse(&reply).unwrap().0.vlan, Some(9));
    assert_eq!(receive(&them, &reply).0.unwrap().mac, us.mac);
}

#[test]
fn smoltcp_reads_requests() {
    let us = host(1);
    let arp = written(|out| request(&us, THEIRS.into(), out));
    assert_eq!(arp[..6], eth::BROADCAST);
    let repr = ArpRepr::parse(&ArpPacket::new_checked(&arp[14..]).unwrap()).unwrap();
    assert_eq!(repr, arp_repr(&us, ArpOperation::Request, OURS, [0; 6], THEIRS));

    let solicitation = written(|out| request(&us, THEIRS6.into(), out));
    assert_eq!(solicitation[..6], [0x33, 0x33, 0xff, 0, 0, 2]);
    let ip = Ipv6Packet::new_checked(&solicitation[14..]).unwrap();
    assert_eq!((ip.src_addr(), ip.hop_limit()), (OURS6, 255));
    assert_eq!(ip.dst_addr(), "ff02::1:ff00:2".parse::<Ipv6Addr>().unwrap());
    let icmp = Icmpv6Packet::new_checked(ip.payload()).unwrap();
    assert!(icmp.verify_checksum(&ip.src_addr(), &ip.dst_addr()));
    let repr = NdiscRepr::NeighborSolicit { target_addr: THEIRS6, lladdr: Some(hardware_addr(us.mac)) };
    assert_eq!(NdiscRepr::parse(&icmp).unwrap(), repr);
}

#[test]
fn no_request_without_address_or_space() {
    let us = host(1);
    let mut out = [0; REQUEST_LEN_MAX];
    let no_v6 = Interface { addrs: us.addrs[..1].to_vec(), ..us.clone() };
    assert_eq!(request(&no_v6, THEIRS6.into(), &mut out), None);
    let raw = Interface { framing: Framing::Ip, ..us.clone() };
    assert_eq!(request(&raw, THEIRS.into(), &mut out), None);
    assert_eq!(request(&raw, THEIRS6.into(), &mut out), None);
    for room in 0..42 {
        assert_eq!(request(&us, THEIRS.into(), &mut out[..room]), None);
        assert_eq!(request(&us, THEIRS6.into(), &mut out[..room]), None);
    }
}

#[test]
fn ignores_requests_for_others() {
    let (us, them) = (host(1), host(2));
    // An ARP request for another host announces its sender, but gets no reply.
    let other = written(|out| request(&them, IpAddr::from([10, 77, 1, 3]), out));
    let (learned, reply) = receive(&us, &other);
    assert_eq!((learned.map(|learned| learned.mac), reply.len()), (Some(PEER), 0));
    let other = written(|out| request(&them, Ipv6Addr::new(0xfd77, 1, 0, 0, 0, 0, 0, 3).into(), out));
    assert_eq!(receive(&us, &other), (None, Vec::new()));
}

#[test]
fn answers_probes_without_learning() {
    let us = host(1);
    // RFC 5227 probe: sender address zero.
    let repr = arp_repr(&host(2), ArpOperation::Request, Ipv4Addr::UNSPECIFIED, [0; 6], OURS);
    let probe = written(|out| emit_arp(&host(2), eth::BROADCAST, &repr, out));
    let (learned, reply) = receive(&us, &probe);
    assert!(learned.is_none() && reply.len() == 42);
    // Duplicate address detection: source unspecified, no link-layer option.
    let group = solicited_node(OURS6);
    let repr = NdiscRepr::NeighborSolicit { target_addr: OURS6, lladdr: None };
    let probe = written(|out| emit_ndisc(&host(2), multicast_mac(group), Ipv6Addr::UNSPECIFIED, group, repr, out));
    let (learned, reply) = receive(&us, &probe);
    assert!(learned.is_none());
    let ip = Ipv6Packet::new_checked(&reply[14..]).unwrap();
    assert_eq!((ip.dst_addr(), &reply[..6]), (ALL_NODES, &[0x33, 0x33, 0, 0, 0, 1][..]));
}

#[test]
fn unicast_solicitation_needs_no_option() {
    let us = host(1);
    let repr = NdiscRepr::NeighborSolicit { target_addr: OURS6, lladdr: None };
    let asked = written(|out| emit_ndisc(&host(2), us.mac, THEIRS6, OURS6, repr, out));
    let (learned, reply) = receive(&us, &asked);
    assert!(learned.is_none());
    assert_eq!(reply[..6], PEER);
    assert_eq!(receive(&host(2), &reply).0.unwrap().addr, IpAddr::from(OURS6));
}

#[test]
fn ignores_claims_of_our_address() {
    let us = host(1);
    let thief = Interface { mac: PEER, ..host(1) };
    for addr in [IpAddr::from(OURS), OURS6.into()] {
        let claim = written(|out| announce(&thief, addr, out));
        assert_eq!(receive(&us, &claim), (None, Vec::new()), "{addr}");
    }
    // Other hosts learn from it.
    for addr in [IpAddr::from(OURS), OURS6.into()] {
        let news = written(|out| announce(&us, addr, out));
        let (learned, reply) = receive(&host(2), &news);
        assert_eq!((learned.map(|learned| (learned.addr, learned.mac)), reply.len()), (Some((addr, us.mac)), 0));
    }
}

#[test]
fn ignores_weak_advertisements() {
    let us = host(1);
    let repr = NdiscRepr::NeighborAdvert {
        flags: NdiscNeighborFlags::empty(),
        target_addr: THEIRS6,
        lladdr: Some(hardware_addr(PEER)),
    };
    let weak = written(|out| emit_ndisc(&host(2), us.mac, THEIRS6, OURS6, repr, out));
    assert_eq!(receive(&us, &weak).0, None);
    let group_mac = Interface { mac: [0x33, 0x33, 0, 0, 0, 9], ..host(2) };
    let claim = written(|out| announce(&group_mac, THEIRS.into(), out));
    assert_eq!(receive(&us, &claim).0, None);
    let claim = written(|out| announce(&group_mac, THEIRS6.into(), out));
    assert_eq!(receive(&us, &claim).0, None);
}

fn ping_v4(framing: Framing, dst: Ipv4Addr, data: &[u8]) -> Vec<u8> {
    let echo = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 9, data };
    let mut packet = std::vec![0; 20 + echo.buffer_len()];
    let (header, message) = packet.split_first_chunk_mut().unwrap();
    let total_len = 20 + message.len() as u16;
    let (src, dst) = (THEIRS.to_bits(), dst.to_bits());
    Ipv4Header { src, dst, protocol: ipv4::ICMP, ttl: 3, tos: 0, total_len }.emit(header);
    echo.emit(&mut Icmpv4Packet::new_unchecked(message), &ChecksumCapabilities::default());
    let mut link = [0; 14];
    if framing == Framing::Ip {
        return packet;
    }
    EthHeader { dst: host(1).mac, src: PEER, vlan: None, ethertype: eth::IPV4 }.emit(&mut link);
    [&link[..], &packet].concat()
}

#[test]
fn ping() {
    for framing in [Framing::Ethernet, Framing::Ip] {
        let us = Interface { framing, ..host(1) };
        let (learned, reply) = receive(&us, &ping_v4(framing, OURS, b"ping"));
        assert_eq!(learned, None);
        let packet = match framing {
            Framing::Ethernet => {
                assert_eq!(reply[..14], [&PEER[..], &us.mac, &[8, 0]].concat());
                &reply[14..]
            }
            Framing::Ip => &reply[..],
        };
        let ip = Ipv4Packet::new_checked(packet).unwrap();
        assert!(ip.verify_checksum());
        assert_eq!((ip.src_addr(), ip.dst_addr(), ip.hop_limit()), (OURS, THEIRS, 64));
        let icmp = Icmpv4Packet::new_checked(ip.payload()).unwrap();
        assert!(icmp.verify_checksum());
        assert_eq!((icmp.msg_type(), icmp.echo_ident(), icmp.echo_seq_no()), (Icmpv4Message::EchoReply, 7, 9));
        assert_eq!(icmp.data(), b"ping");
    }
    let stranger = ping_v4(Framing::Ethernet, Ipv4Addr::new(10, 77, 1, 3), b"ping");
    assert_eq!(receive(&host(1), &stranger), (None, Vec::new()), "not our address");
}

#[test]
fn ping_v6() {
    let us = host(1);
    let echo = Icmpv6Repr::EchoRequest { ident: 7, seq_no: 9, data: b"ping" };
    let mut frame = std::vec![0; 14 + 40 + echo.buffer_len()];
    EthHeader { dst: us.mac, src: PEER, vlan: None, ethertype: eth::IPV6 }.emit(&mut frame);
    let (header, message) = frame[14..].split_first_chunk_mut().unwrap();
    emit_ipv6(THEIRS6, OURS6, 3, message.len(), header);
    echo.emit(&THEIRS6, &OURS6, &mut Icmpv6Packet::new_unchecked(message), &ChecksumCapabilities::default());
    let (_, reply) = receive(&us, &frame);
    let ip = Ipv6Packet::new_checked(&reply[14..]).unwrap();
    assert_eq!((ip.src_addr(), ip.dst_addr()), (OURS6, THEIRS6));
    let icmp = Icmpv6Packet::new_checked(ip.payload()).unwrap();
    assert!(icmp.verify_checksum(&OURS6, &THEIRS6));
    assert_eq!((icmp.msg_type(), icmp.payload()), (Icmpv6Message::EchoReply, &b"ping"[..]));
}

#[test]
fn omits_oversized_reply() {
    let us = host(1);
    let frame = ping_v4(Framing::Ethernet, OURS, b"ping");
    let parsed = parse(&View::of(&us), &frame, 0, RxChecksum::Unknown, || Sum::ZERO).unwrap();
    let mut reply = [0; 64];
    for room in 0..frame.len() {
        assert_eq!(respond(IFACE, &us, &frame, &parsed, &mut reply[..room]).reply_len, 0, "{room}");
    }
    assert_eq!(respond(IFACE, &us, &frame, &parsed, &mut reply[..frame.len()]).reply_len, frame.len());
}

proptest! {
    /// Arbitrary packets, even with wrong parser offsets, cause no panic.
    #[test]
    fn any_bytes(mut bytes in vec(any::<u8>(), 0..140), kind in 0..4, v6 in any::<bool>(), ip_off in 0u16..60, off in 0u16..100, len in 0u16..100) {
        let us = host(1);
        let parsed = match kind {
            0 => Parsed::Arp { off },
            1 => Parsed::Ndisc { ip_off, off, len },
            2 => Parsed::Icmp { v6, ip_off, off, len },
            _ => {
                // A neighbour discovery packet whose options are random.
                bytes.resize(140, 0);
                bytes[14] = 0x60;
                bytes[54] = 135 + u8::from(v6);
                bytes[62..78].copy_from_slice(&OURS6.octets());
                bytes[38..54].copy_from_slice(&OURS6.octets());
                Parsed::Ndisc { ip_off: 14, off: 54, len: len.min(86) }
            }
        };
        let mut reply = [0; 200];
        let response = respond(IFACE, &us, &bytes, &parsed, &mut reply);
        prop_assert!(response.reply_len <= reply.len());
    }
}
