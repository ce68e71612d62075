use super::*;
use crate::config::{Addressing, Cidr};
use crate::frame::{HEADROOM, HeapPool, TxChecksum};
use core::net::Ipv4Addr;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ETH: IfaceId = IfaceId(0);
const RAW: IfaceId = IfaceId(1);
const HOST: IfaceId = IfaceId(2);

fn interface(framing: Framing, addressing: Addressing) -> Interface {
    let own = alloc::vec![Cidr { addr: ip("10.77.1.1"), prefix: 24 }];
    Interface { framing, addressing, tx_checksum: true, ..crate::net::tests::interface(own) }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn table() -> PathTable {
    let mut table = PathTable::new(&Limits { neighbour_queue: 3, ..Limits::default() });
    table.set_interface(ETH, &interface(Framing::Ethernet, Addressing::Standalone));
    table.set_interface(RAW, &interface(Framing::Ip, Addressing::Standalone));
    table.set_interface(HOST, &interface(Framing::Ethernet, Addressing::Host));
    table
}

fn path(table: &mut PathTable, iface: IfaceId, addr: &str) -> PathId {
    table.path(NextHop { iface, addr: ip(addr) }).unwrap()
}

fn packet(pool: &mut HeapPool, bytes: &[u8]) -> Vec<TxFrame> {
    let mut frame = pool.alloc().unwrap();
    frame.grow_back(bytes.len());
    pool.bytes_mut(&mut frame).copy_from_slice(bytes);
    alloc::vec![TxFrame { frame, checksum: Some(TxChecksum { start: 20, offset: 16 }) }]
}

fn secs(s: u64) -> Instant {
    Instant::from_millis(s * 1000)
}

/// Runs `tick`, returns the paths to be asked for, and frees and counts what failed.
fn tick(table: &mut PathTable, pool: &mut HeapPool, now: Instant) -> (Vec<PathId>, usize) {
    let (mut requests, mut failed) = (Vec::new(), Vec::new());
    table.tick(now, &mut requests, &mut failed);
    let packets: Vec<_> = failed.into_iter().flat_map(|(_, packets)| packets).collect();
    let count = packets.len();
    packets.into_iter().flatten().for_each(|part| pool.free(part.frame));
    (requests, count)
}

#[test]
fn packet_gets_link_header_after_resolution() {
    let (mut table, mut pool) = (table(), HeapPool::new(8, 2048));
    let id = path(&mut table, ETH, "10.77.1.2");
    assert_eq!(table.get(id).state(), PathState::Pending);
    assert!(table.get(id).link_header().is_empty());
    let enqueued = table.enqueue(id, packet(&mut pool, b"first"), secs(0));
    assert!(enqueued.request && enqueued.dropped.is_empty());
    let enqueued = table.enqueue(id, packet(&mut pool, b"second"), secs(0));
    assert!(!enqueued.request && enqueued.dropped.is_empty());

    let change = table.set_neighbour(ETH, ip("10.77.1.2"), Some(PEER), secs(0));
    assert!(matches!(change, NeighbourChange::Resolved(resolved) if resolved == id));
    let mut out = Vec::new();
    assert_eq!(table.resolved(id, &mut pool, &mut out), Drained { sent: 2, dropped: 0 });
    let header = [&PEER[..], &MAC, &[8, 0]].concat();
    assert_eq!(pool.bytes(&out[0].frame), [&header[..], b"first"].concat());
    assert_eq!(pool.bytes(&out[1].frame), [&header[..], b"second"].concat());
    assert_eq!(out[0].checksum, Some(TxChecksum { start: 34, offset: 16 }));
    assert_eq!(table.get(id).state(), PathState::Known);
    assert_eq!(table.get(id).link_header(), header);
    assert_eq!((table.get(id).mtu(), table.get(id).tx_checksum(), table.get(id).iface()), (1500, true, ETH));
    assert_eq!(table.waiting(), 0);
    // No further requests.
    assert_eq!(tick(&mut table, &mut pool, secs(10)), (Vec::new(), 0));
    let twice = table.set_neighbour(ETH, ip("10.77.1.2"), Some(PEER), secs(11));
    assert!(matches!(twice, NeighbourChange::None));
    out.into_iter().for_each(|part| pool.free(part.frame));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn writes_vlan_ipv6_and_changed_headers() {
    let mut table = table();
    let id = path(&mut table, ETH, "fd77:1::2");
    let _ = table.set_neighbour(ETH, ip("fd77:1::2"), Some(PEER), secs(0));
    assert_eq!(table.get(id).link_header(), [&PEER[..], &MAC, &[0x86, 0xdd]].concat());
    let changed = Interface { vlan: Some(7), mtu: 9000, ..interface(Framing::Ethernet, Addressing::Standalone) };
    table.set_interface(ETH, &changed);
    assert_eq!(table.get(id).link_header(), [&PEER[..], &MAC, &[0x81, 0, 0, 7, 0x86, 0xdd]].concat());
    assert_eq!(table.get(id).mtu(), 9000);
    assert_eq!(table.get(id).state(), PathState::Known);
}

#[test]
fn raw_ip_link_resolves_no_neighbour() {
    let (mut table, mut pool) = (table(), HeapPool::new(2, 2048));
    let id = path(&mut table, RAW, "10.77.1.2");
    assert_eq!((table.get(id).state(), table.get(id).link_header()), (PathState::Known, &[][..]));
    let mut sent = packet(&mut pool, b"x");
    table.get(id).prepend(&mut pool, &mut sent[0]);
    assert_eq!((pool.bytes(&sent[0].frame), sent[0].checksum.unwrap().start), (&b"x"[..], 20));
    assert!(matches!(table.set_neighbour(RAW, ip("10.77.1.2"), None, secs(0)), NeighbourChange::None));
    assert_eq!(table.get(id).state(), PathState::Known);
    assert!(!table.need(id, secs(0)));
}

#[test]
fn group_and_broadcast_addresses_are_fixed() {
    let mut table = table();
    let mut mac = |addr: &str| {
        let id = path(&mut table, ETH, addr);
        table.get(id).neighbour_mac()
    };
    assert_eq!(mac("224.129.2.3"), Some([0x01, 0x00, 0x5e, 0x01, 2, 3]));
    assert_eq!(mac("255.255.255.255"), Some([0xff; 6]));
    assert_eq!(mac("10.77.1.255"), Some([0xff; 6]));
    assert_eq!(mac("10.77.2.255"), None);
    assert_eq!(mac("ff02::1:ff00:1"), Some([0x33, 0x33, 0xff, 0, 0, 1]));
}

#[test]
fn same_next_hop_yields_same_path() {
    let mut table = table();
    let id = path(&mut table, ETH, "10.77.1.2");
    assert_eq!(path(&mut table, ETH, "::ffff:10.77.1.2"), id);
    assert_ne!(path(&mut table, HOST, "10.77.1.2"), id);
    assert_eq!(table.path(NextHop { iface: IfaceId(9), addr: ip("10.77.1.2") }), None, "no such interface");
}

#[test]
fn full_queue_drops_oldest_packet() {
    let (mut table, mut pool) = (table(), HeapPool::new(8, 2048));
    let id = path(&mut table, ETH, "10.77.1.2");
    for byte in b'a'..=b'c' {
        assert!(table.enqueue(id, packet(&mut pool, &[byte]), secs(0)).dropped.is_empty());
    }
    let dropped = table.enqueue(id, packet(&mut pool, b"d"), secs(0)).dropped;
    assert_eq!(pool.bytes(&dropped[0].frame), b"a");
    assert_eq!(table.waiting(), 3);
    dropped.into_iter().chain(table.drain().into_iter().flatten()).for_each(|part| pool.free(part.frame));
    assert_eq!((pool.in_use(), table.waiting()), (0, 0));
}

#[test]
fn scan_does_not_pin_pool() {
    let (mut table, mut pool) = (table(), HeapPool::new(1024, 512));
    let mut dropped = 0;
    for n in 0..500u32 {
        let addr = IpAddr::V4(Ipv4Addr::from_bits(0x0a4d_0200 + n));
        let id = table.path(NextHop { iface: ETH, addr }).unwrap();
        let refused = table.enqueue(id, packet(&mut pool, b"x"), secs(0)).dropped;
        dropped += refused.len();
        refused.into_iter().for_each(|part| pool.free(part.frame));
    }
    assert_eq!((table.waiting(), dropped), (3 * 64, 500 - 3 * 64));
    assert_eq!(pool.in_use(), 3 * 64);
}

#[test]
fn three_requests_then_hold_down() {
    let (mut table, mut pool) = (table(), HeapPool::new(8, 2048));
    let id = path(&mut table, ETH, "10.77.1.2");
    assert!(table.enqueue(id, packet(&mut pool, b"x"), secs(0)).request);
    assert_eq!(table.next_deadline(), Some(secs(1)));
    assert_eq!(tick(&mut table, &mut pool, Instant::from_millis(999)), (Vec::new(), 0));
    assert_eq!(tick(&mut table, &mut pool, secs(1)), (alloc::vec![id], 0));
    assert_eq!(tick(&mut table, &mut pool, secs(2)), (alloc::vec![id], 0));
    assert_eq!(tick(&mut table, &mut pool, secs(3)), (Vec::new(), 1));
    assert_eq!(table.get(id).state(), PathState::Failed);
    assert_eq!(table.next_deadline(), None);
    // Held down: the packet is returned and no request is sent.
    let early = table.enqueue(id, packet(&mut pool, b"y"), secs(4));
    assert!(!early.request && early.dropped.len() == 1);
    early.dropped.into_iter().for_each(|part| pool.free(part.frame));
    assert!(table.need(id, secs(6)) && !table.need(id, secs(6)));
    assert_eq!(table.get(id).state(), PathState::Pending);
    assert_eq!(pool.in_use(), 0);
    // An answer ends the failure.
    assert!(matches!(table.learn(ETH, ip("10.77.1.2"), PEER, secs(7)), NeighbourChange::Resolved(_)));
    assert_eq!(table.get(id).state(), PathState::Known);
}

#[test]
fn kernel_decides_in_host_addressing() {
    let (mut table, mut pool) = (table(), HeapPool::new(8, 2048));
    let id = path(&mut table, HOST, "10.77.1.2");
    assert!(table.enqueue(id, packet(&mut pool, b"x"), secs(0)).request);
    for s in 1..=5 {
        assert_eq!(tick(&mut table, &mut pool, secs(s)), (alloc::vec![id], 0), "asked again");
    }
    let NeighbourChange::Failed(failed, packets) = table.set_neighbour(HOST, ip("10.77.1.2"), None, secs(6)) else {
        panic!("not failed")
    };
    assert_eq!((failed, packets.len(), table.get(id).state()), (id, 1, PathState::Failed));
    packets.into_iter().flatten().for_each(|part| pool.free(part.frame));
    assert_eq!(tick(&mut table, &mut pool, secs(20)), (Vec::new(), 0));
    assert!(matches!(table.set_neighbour(HOST, ip("10.77.1.77"), None, secs(0)), NeighbourChange::None));
    // Mirrored entries are never confirmed.
    let _ = table.set_neighbour(HOST, ip("10.77.1.2"), Some(PEER), secs(20));
    assert_eq!(
        (table.get(id).state(), table.next_deadline().is_none_or(|due| due <= secs(20))),
        (PathState::Known, true)
    );
    table.remove_neighbour(HOST, ip("10.77.1.2"));
    assert_eq!(table.get(id).state(), PathState::Pending);
    assert!(table.need(id, secs(21)));
}

#[test]
fn confirms_standalone_neighbours() {
    let (mut table, mut pool) = (table(), HeapPool::new(2, 512));
    let id = path(&mut table, ETH, "10.77.1.2");
    assert!(table.need(id, secs(0)));
    let _ = table.set_neighbour(ETH, ip("10.77.1.2"), Some(PEER), secs(0));
    assert_eq!(tick(&mut table, &mut pool, secs(59)), (Vec::new(), 0));
    assert_eq!(tick(&mut table, &mut pool, secs(60)), (alloc::vec![id], 0));
    assert_eq!(table.get(id).state(), PathState::Known, "in use meanwhile");
    let _ = table.set_neighbour(ETH, ip("10.77.1.2"), Some(MAC), secs(60));
    assert_eq!(table.get(id).neighbour_mac(), Some(MAC), "it has moved");
    assert_eq!(tick(&mut table, &mut pool, secs(70)), (Vec::new(), 0));
    assert_eq!(tick(&mut table, &mut pool, secs(120)), (alloc::vec![id], 0));
    assert_eq!(tick(&mut table, &mut pool, secs(121)), (alloc::vec![id], 0));
    assert_eq!(tick(&mut table, &mut pool, secs(122)), (alloc::vec![id], 0));
    assert_eq!(tick(&mut table, &mut pool, secs(123)), (Vec::new(), 0));
    assert_eq!(table.get(id).state(), PathState::Pending, "it has gone");
    assert_eq!(tick(&mut table, &mut pool, secs(1000)), (Vec::new(), 0));
    assert_eq!(table.next_deadline(), None);
}

/// A neighbour that comes and goes is confirmed as often as another, and costs as little memory.
#[test]
fn neighbour_that_comes_back_has_one_confirmation() {
    let (mut table, mut pool) = (table(), HeapPool::new(2, 512));
    let id = path(&mut table, ETH, "10.77.1.2");
    for minute in 0..5 {
        let start = 64 * minute;
        assert!(table.need(id, secs(start)));
        let _ = table.set_neighbour(ETH, ip("10.77.1.2"), Some(PEER), secs(start));
        (start + 60..start + 64).for_each(|now| drop(tick(&mut table, &mut pool, secs(now))));
        assert_eq!(table.get(id).state(), PathState::Pending, "it has gone");
    }
    assert!(table.waiting.refreshes() <= 1, "{}", table.waiting.refreshes());
}

#[test]
fn announcements_do_not_fill_table() {
    let mut table = table();
    assert!(matches!(table.learn(ETH, ip("10.77.1.9"), PEER, secs(0)), NeighbourChange::None));
    assert!(table.paths.is_empty());
}

#[test]
fn full_table_recycles_unusable_paths() {
    let mut table = table();
    let hop = |n: usize| NextHop { iface: ETH, addr: IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n as u32)) };
    let first = table.path(hop(0)).unwrap();
    for n in 1..PATHS_MAX {
        let _ = table.set_neighbour(ETH, hop(n).addr, Some(PEER), secs(0));
    }
    assert_eq!(table.paths.len(), PATHS_MAX);
    let newcomer = table.path(hop(PATHS_MAX)).unwrap();
    assert_eq!(newcomer.index(), first.index());
    assert_eq!(table.get(first).state(), PathState::Stale);
    assert_eq!(table.get(newcomer).addr(), hop(PATHS_MAX).addr);
    assert!(!table.need(first, secs(0)), "a stale id resolves no neighbour");
    let again = table.enqueue(first, Vec::new(), secs(0));
    assert!(!again.request);
    // All paths work now: none is recycled for a new one.
    let _ = table.set_neighbour(ETH, hop(PATHS_MAX).addr, Some(PEER), secs(0));
    assert_eq!(table.path(hop(PATHS_MAX + 1)), None);
    assert!(matches!(table.set_neighbour(ETH, hop(PATHS_MAX + 1).addr, Some(PEER), secs(0)), NeighbourChange::None));
    assert_eq!(table.get(newcomer).state(), PathState::Known);
}

#[test]
fn copies_shared_head() {
    let (mut table, mut pool) = (table(), HeapPool::new(4, 512));
    let id = path(&mut table, ETH, "10.77.1.2");
    let payload = [7; 512 - HEADROOM as usize];
    let mut original = packet(&mut pool, &payload);
    // Headers in front make the packet longer than a fresh frame's payload space.
    original[0].frame.grow_front(40);
    let kept = pool.share(&original[0].frame);
    let before = pool.bytes(&kept).to_vec();
    let _ = table.enqueue(id, original, secs(0));
    let _ = table.set_neighbour(ETH, ip("10.77.1.2"), Some(PEER), secs(0));
    let mut out = Vec::new();
    assert_eq!(table.resolved(id, &mut pool, &mut out), Drained { sent: 1, dropped: 0 });
    assert_ne!(out[0].frame.chunk(), kept.chunk());
    assert_eq!(pool.bytes(&out[0].frame)[14..], before);
    assert!(!pool.is_shared(&kept));
    // Without a frame for the copy, the packet is dropped and counted.
    let twin = pool.share(&kept);
    let host = path(&mut table, HOST, "10.77.1.3");
    let _ = table.enqueue(host, alloc::vec![TxFrame { frame: twin, checksum: None }], secs(0));
    let rest: Vec<_> = core::iter::from_fn(|| pool.alloc()).collect();
    let _ = table.set_neighbour(HOST, ip("10.77.1.3"), Some(PEER), secs(0));
    assert_eq!(table.resolved(host, &mut pool, &mut Vec::new()), Drained { sent: 0, dropped: 1 });
    rest.into_iter().chain(out.into_iter().map(|part| part.frame)).chain([kept]).for_each(|frame| pool.free(frame));
    assert_eq!(pool.in_use(), 0);
}

/// The connects that a neighbour's failure concerns are found without a walk over all connections.
#[test]
fn remembers_connects_during_resolution() {
    let (mut table, mut pool) = (table(), HeapPool::new(8, 2048));
    let id = path(&mut table, HOST, "10.77.1.2");
    table.push_connect(id, 1);
    assert_eq!(table.take_connects(id), [], "no resolution under way");
    let mut ask = |table: &mut PathTable, now| {
        let enqueued = table.enqueue(id, packet(&mut pool, b"syn"), secs(now));
        enqueued.dropped.into_iter().for_each(|part| pool.free(part.frame));
    };
    ask(&mut table, 0);
    for index in [7, 7, 9] {
        table.push_connect(id, index);
    }
    let NeighbourChange::Failed(_, packets) = table.set_neighbour(HOST, ip("10.77.1.2"), None, secs(1)) else {
        panic!("it has failed")
    };
    assert_eq!((packets.len(), table.take_connects(id)), (1, alloc::vec![7, 9]));
    ask(&mut table, 10);
    table.push_connect(id, 7);
    let change = table.set_neighbour(HOST, ip("10.77.1.2"), Some(PEER), secs(11));
    assert!(matches!(change, NeighbourChange::Resolved(_)));
    table.push_connect(id, 9);
    assert_eq!(table.take_connects(id), [], "they have sent");
}
