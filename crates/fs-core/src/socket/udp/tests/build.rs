//! The parser, and smoltcp, read the packets that are built.

use super::*;
use crate::config::{Addressing, Cidr, Framing, Interface};
use crate::frame::TxFrame;
use crate::net::neigh::{PathId, PathTable};
use crate::net::route::NextHop;
use crate::rx::parse::{Parsed, View, parse};
use crate::time::Instant;
use crate::wire::checksum::{RunningSum, Sum};
use proptest::collection::vec;
use proptest::prelude::*;
use smoltcp::wire::{Ipv4Packet, UdpPacket};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn paths(framing: Framing, mtu: u16, tx_checksum: bool, peer: IpAddr, known: bool) -> (PathTable, PathId) {
    let interface = Interface {
        framing,
        mac: MAC,
        vlan: None,
        mtu,
        addrs: std::vec![Cidr { addr: "10.77.1.1".parse().unwrap(), prefix: 24 }],
        addressing: Addressing::Host,
        tx_checksum,
        accept_partial_checksum: false,
    };
    let mut table = PathTable::new(&Limits::default());
    table.set_interface(IfaceId(0), &interface);
    let id = table.path(NextHop { iface: IfaceId(0), addr: peer }).unwrap();
    if known {
        let _ = table.set_neighbour(IfaceId(0), peer, Some(PEER), Instant::ZERO);
    }
    (table, id)
}

fn flow(v6: bool) -> FlowKey {
    if v6 { key("[fd77:1::1]:5000", "[fd77:1::2]:53") } else { key("10.77.1.1:5000", "10.77.1.2:53") }
}

/// Parses our packets as the peer does.
fn parsed(pool: &HeapPool, out: &[TxFrame], framing: Framing, partial: bool) -> Result<Parsed, DropReason> {
    let view = View { framing, vlan: None, accept_partial_checksum: partial, mac: PEER };
    let mut tail = RunningSum::default();
    out[1..].iter().for_each(|part| tail.push(pool.bytes(&part.frame)));
    let tail_len = out[1..].iter().map(|part| part.frame.len()).sum();
    parse(&view, pool.bytes(&out[0].frame), tail_len, RxChecksum::Unknown, || tail.sum())
}

fn payload(pool: &HeapPool, out: &[TxFrame]) -> Vec<u8> {
    out.iter().flat_map(|part| pool.bytes(&part.frame)).copied().collect()
}

#[test]
fn rejects_datagram_beyond_path_mtu() {
    let mut pool = HeapPool::new(8, 2048);
    for (v6, fits) in [(false, 1472), (true, 1452)] {
        let (table, id) = paths(Framing::Ethernet, 1500, false, flow(v6).remote_ip(), true);
        let mut out = Vec::new();
        assert_eq!(
            build_udp(&mut pool, table.get(id), &flow(v6), (64, 0), &std::vec![1; fits + 1], &mut out),
            Err(Error::MessageSize)
        );
        assert!(out.is_empty());
        assert_eq!(build_udp(&mut pool, table.get(id), &flow(v6), (64, 0), &std::vec![1; fits], &mut out), Ok(()));
        assert_eq!(out[0].frame.len(), 1514);
        out.into_iter().for_each(|part| pool.free(part.frame));
    }
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn empty_pool_leaks_nothing() {
    let mut pool = HeapPool::new(3, 512);
    let (table, id) = paths(Framing::Ethernet, 9000, false, flow(false).remote_ip(), true);
    let mut out = Vec::new();
    let result = build_udp(&mut pool, table.get(id), &flow(false), (64, 0), &[1; 2000], &mut out);
    assert_eq!((result, out.len(), pool.in_use()), (Err(Error::NoBuffers), 0, 0));
}

#[test]
fn omits_link_header_for_unknown_neighbour() {
    let mut pool = HeapPool::new(3, 512);
    let (table, id) = paths(Framing::Ethernet, 1500, false, flow(false).remote_ip(), false);
    let mut out = Vec::new();
    build_udp(&mut pool, table.get(id), &flow(false), (9, 0xb9), b"hi", &mut out).unwrap();
    let ip = Ipv4Packet::new_checked(pool.bytes(&out[0].frame)).unwrap();
    assert_eq!((ip.hop_limit(), ip.total_len(), ip.dont_frag()), (9, 30, true));
    assert_eq!((ip.dscp(), ip.ecn()), (0x2e, 1));
    assert_eq!(UdpPacket::new_checked(ip.payload()).unwrap().payload(), b"hi");
}

#[test]
fn writes_ipv6_traffic_class() {
    let mut pool = HeapPool::new(3, 512);
    let (table, id) = paths(Framing::Ip, 1500, false, flow(true).remote_ip(), true);
    let mut out = Vec::new();
    build_udp(&mut pool, table.get(id), &flow(true), (64, 0xb9), b"hi", &mut out).unwrap();
    assert_eq!(smoltcp::wire::Ipv6Packet::new_checked(pool.bytes(&out[0].frame)).unwrap().traffic_class(), 0xb9);
}

#[test]
fn sends_zero_checksum_as_ones() {
    let mut pool = HeapPool::new(3, 512);
    let (table, id) = paths(Framing::Ip, 1500, false, flow(true).remote_ip(), true);
    let mut out = Vec::new();
    build_udp(&mut pool, table.get(id), &flow(true), (64, 0), &[0, 0], &mut out).unwrap();
    let field = &pool.bytes(&out[0].frame)[46..48];
    // With the first checksum as payload, the sum becomes all ones and its complement zero.
    let payload = [field[0], field[1]];
    build_udp(&mut pool, table.get(id), &flow(true), (64, 0), &payload, &mut out).unwrap();
    assert_eq!(pool.bytes(&out[1].frame)[46..48], [0xff, 0xff]);
    assert!(matches!(parsed(&pool, &out[1..], Framing::Ip, false), Ok(Parsed::Udp(_))));
}

proptest! {
    #[test]
    fn peer_reads_sent_datagrams(
        data in vec(any::<u8>(), 0..4000), v6 in any::<bool>(), ethernet in any::<bool>(), tx_checksum in any::<bool>(),
    ) {
        let framing = if ethernet { Framing::Ethernet } else { Framing::Ip };
        let mut pool = HeapPool::new(32, 512);
        let (table, id) = paths(framing, 9000, tx_checksum, flow(v6).remote_ip(), true);
        let mut out = Vec::new();
        build_udp(&mut pool, table.get(id), &flow(v6), (64, 0), &data, &mut out).unwrap();
        let link_len = if ethernet { 14 } else { 0 };
        let ip_len = if v6 { 40 } else { 20 };
        let Ok(Parsed::Udp(datagram)) = parsed(&pool, &out, framing, tx_checksum) else {
            return Err(TestCaseError::fail("not UDP"));
        };
        prop_assert_eq!((datagram.key.local(), datagram.key.remote()), (flow(v6).remote(), flow(v6).local()));
        prop_assert_eq!(usize::from(datagram.payload_off), link_len + ip_len + 8);
        prop_assert_eq!(&payload(&pool, &out)[link_len + ip_len + 8..], &data[..]);
        for (number, part) in out.iter().enumerate() {
            prop_assert_eq!(part.frame.more(), number + 1 < out.len());
            prop_assert_eq!(part.checksum.is_some(), tx_checksum && number == 0);
        }
        if let Some(checksum) = out[0].checksum {
            // Completes the checksum as a device does.
            let whole = payload(&pool, &out);
            let start = usize::from(checksum.start);
            prop_assert_eq!(start, link_len + ip_len);
            let sum = Sum::of(&whole[start..]).finish();
            let at = start + usize::from(checksum.offset);
            let bytes = &mut pool.bytes_mut(&mut out[0].frame)[at..at + 2];
            bytes.copy_from_slice(&crate::wire::udp::nonzero(sum).to_be_bytes());
            let finished = parsed(&pool, &out, framing, false);
            prop_assert!(matches!(finished, Ok(Parsed::Udp(_))), "{finished:?}");
        }
        out.into_iter().for_each(|part| pool.free(part.frame));
        prop_assert_eq!(pool.in_use(), 0);
    }
}
