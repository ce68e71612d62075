//! Binding, lookup, queueing, reading.

use super::*;
use crate::wire::icmp::{IcmpError, IcmpErrorKind};

const HERE: &str = "10.77.1.1:53";
const PEER: &str = "10.77.1.2:4000";

#[test]
fn connected_before_bound_before_wildcard() {
    let mut table = table();
    let v6_wildcard = table.bind(at("[::]:53"), true, |_| None).unwrap();
    assert_eq!(table.lookup(&key("[fd77::1]:53", "[fd77::2]:1"), IFACE), Some(v6_wildcard));
    assert_eq!(table.lookup(&key(HERE, PEER), IFACE), None, "v6 only");
    table.close(&mut HeapPool::new(1, 512), v6_wildcard);

    // A connected wildcard socket leaves the port to a specific address, and the other way round.
    let connected = bind(&mut table, "0.0.0.0:53").unwrap();
    assert_eq!(table.lookup(&key(HERE, PEER), IFACE), Some(connected));
    table.connect(connected, at(PEER), "10.77.1.1".parse().unwrap()).unwrap();
    assert_eq!(table.local(connected), Ok(at(HERE)));
    assert_eq!(table.remote(connected), Ok(Some(at(PEER))));
    let other = bind(&mut table, "10.77.2.1:53").unwrap();
    assert_eq!(table.lookup(&key(HERE, PEER), IFACE), Some(connected));
    assert_eq!(table.lookup(&key(HERE, "10.77.1.2:4001"), IFACE), None, "another peer");
    assert_eq!(table.lookup(&key("10.77.2.1:53", PEER), IFACE), Some(other));
    assert_eq!(table.lookup(&key("10.77.2.1:54", PEER), IFACE), None);
}

#[test]
fn scores() {
    let socket = |local: &str, remote: Option<&str>| {
        Socket::new(UdpBinding { local: at(local), v6_only: false, remote: remote.map(at), device: None })
    };
    let score = |socket: Socket| socket.binding.score("10.77.1.1".parse().unwrap(), at(PEER), IFACE);
    assert_eq!(score(socket("10.77.1.1:53", Some(PEER))), Some(6));
    assert_eq!(score(socket("0.0.0.0:53", Some(PEER))), Some(4));
    assert_eq!(score(socket("10.77.1.1:53", None)), Some(2));
    assert_eq!(score(socket("0.0.0.0:53", None)), Some(0));
    assert_eq!(score(socket("[::]:53", None)), Some(0), "dual stack");
    let by = |device: u8| {
        let mut bound = socket("0.0.0.0:53", None);
        bound.binding.device = Some(IfaceId(device));
        score(bound)
    };
    assert_eq!((by(0), by(1)), (Some(1), None), "bound to the device that it comes by, or to another");
    assert_eq!(score(socket("10.77.1.9:53", None)), None);
    assert_eq!(score(socket("[::1]:53", None)), None);
    assert_eq!(score(socket("10.77.1.1:53", Some("10.77.1.2:1"))), None);
}

#[test]
fn conflicts_as_linux_without_reuse() {
    // (first, second, v6_only of both, conflict)
    let cases = [
        ("10.0.0.1:1", "10.0.0.1:1", false, true),
        ("10.0.0.1:1", "10.0.0.1:2", false, false),
        ("10.0.0.1:1", "10.0.0.2:1", false, false),
        ("0.0.0.0:1", "10.0.0.2:1", false, true),
        ("0.0.0.0:1", "[fd77::1]:1", false, false),
        ("[::]:1", "0.0.0.0:1", false, true),
        ("[::]:1", "0.0.0.0:1", true, false),
        ("[::]:1", "10.0.0.1:1", false, true),
        ("[::]:1", "10.0.0.1:1", true, false),
        ("[::]:1", "[::]:1", true, true),
        ("[::]:1", "[fd77::1]:1", true, true),
        ("[fd77::1]:1", "[fd77::2]:1", false, false),
        ("[::ffff:10.0.0.1]:1", "10.0.0.1:1", false, true),
    ];
    for (first, second, v6_only, conflict) in cases {
        for (first, second) in [(first, second), (second, first)] {
            let mut table = table();
            table.bind(at(first), v6_only, |_| None).unwrap();
            let result = table.bind(at(second), v6_only, |_| None).map(|_| ());
            assert_eq!(result, if conflict { Err(Error::AddrInUse) } else { Ok(()) }, "{first} {second} {v6_only}");
        }
    }
}

#[test]
fn chosen_ports() {
    let mut table = table();
    bind(&mut table, "0.0.0.0:40000").unwrap();
    let first_free = |is_free: &dyn Fn(u16) -> bool| (40000..40010).find(|port| is_free(*port));
    let id = table.bind(at("10.77.1.1:0"), false, first_free).unwrap();
    assert_eq!(table.local(id), Ok(at("10.77.1.1:40001")));
    assert_eq!(table.bind(at("10.77.1.1:0"), false, |_| None), Err(Error::AddrNotAvailable));
    assert_eq!(table.bind(at("10.77.1.1:0"), false, |_| Some(40000)), Err(Error::AddrNotAvailable), "not free");
    assert_eq!(table.bind(at("10.77.1.1:0"), false, |_| Some(0)), Err(Error::AddrNotAvailable));
}

#[test]
fn limits_slots_and_rejects_stale_ids() {
    let (mut table, mut pool) = (table(), HeapPool::new(4, 512));
    let ids: Vec<_> = (1..=8).map(|port| bind(&mut table, &std::format!("0.0.0.0:{port}")).unwrap()).collect();
    assert_eq!(bind(&mut table, "0.0.0.0:9"), Err(Error::NoBuffers));
    assert_eq!(table.len(), 8);
    table.close(&mut pool, ids[3]);
    table.close(&mut pool, ids[3]);
    assert_eq!(table.len(), 7);
    let newcomer = bind(&mut table, "0.0.0.0:9").unwrap();
    assert_eq!(newcomer.index, ids[3].index);
    assert_ne!(newcomer, ids[3]);
    let stale = ids[3];
    assert_eq!(table.local(stale), Err(Error::BadSocket));
    assert_eq!(table.ready(stale), Err(Error::BadSocket));
    assert_eq!(table.set_ttl(stale, None), Err(Error::BadSocket));
    assert_eq!(table.set_tos(stale, 0), Err(Error::BadSocket));
    assert_eq!(table.take_error(stale), Err(Error::BadSocket));
    assert_eq!(table.recv(&mut pool, stale, &mut [], false), Err(Error::BadSocket));
    assert_eq!(table.connect(stale, at(PEER), "10.0.0.1".parse().unwrap()), Err(Error::BadSocket));
    assert_eq!(table.lookup(&key("10.0.0.1:4", PEER), IFACE), None, "the port is free again");
}

#[test]
fn closed_socket_waits_for_no_interface() {
    let (mut table, mut pool) = (table(), HeapPool::new(4, 512));
    let ids = [1, 2].map(|port| bind(&mut table, &std::format!("0.0.0.0:{port}")).unwrap());
    for id in ids {
        for iface in [0, 1, 0, 1] {
            table.block(id, IfaceId(iface));
        }
    }
    assert_eq!(table.blocked.len(), 4, "each pair once");
    table.close(&mut pool, ids[0]);
    assert_eq!(table.blocked, [(ids[1], IfaceId(0)), (ids[1], IfaceId(1))]);
    assert_eq!(table.unblock(Some(IfaceId(0))).collect::<Vec<_>>(), [ids[1]]);
    assert_eq!(table.unblock(None).count(), 0, "it waits no longer");
    assert!(!table.has_blocked());
}

#[test]
fn keeps_datagram_boundaries_and_order() {
    let (mut table, mut pool) = (table(), HeapPool::new(16, 512));
    let id = bind(&mut table, "0.0.0.0:53").unwrap();
    assert_eq!(table.ready(id), Ok(Ready::WRITE));
    assert_eq!(table.recv(&mut pool, id, &mut [0; 9], false), Err(Error::WouldBlock));
    assert_eq!(deliver(&mut table, &mut pool, HERE, PEER, &[b"one"]), Ok(Some(id)), "newly readable");
    assert_eq!(deliver(&mut table, &mut pool, HERE, PEER, &[b"chained ", b"da", b"ta"]), Ok(None));
    assert_eq!(deliver(&mut table, &mut pool, HERE, "10.77.1.3:9", &[b""]), Ok(None));
    assert_eq!(table.ready(id), Ok(Ready::READ | Ready::WRITE));
    assert_eq!((table.frames_held(), pool.in_use()), (4, 4), "an empty datagram holds no frame");

    let mut buf = [0; 64];
    let meta = UdpMeta { len: 3, from: at(PEER), to: at(HERE), tos: Some(3) };
    assert_eq!(table.recv(&mut pool, id, &mut buf, true), Ok(meta), "peeked");
    assert_eq!(table.recv(&mut pool, id, &mut buf, false), Ok(meta));
    assert_eq!(&buf[..3], b"one");
    assert_eq!(table.recv(&mut pool, id, &mut buf, false), Ok(UdpMeta { len: 12, ..meta }));
    assert_eq!(&buf[..12], b"chained data");
    let empty = UdpMeta { len: 0, from: at("10.77.1.3:9"), to: at(HERE), tos: Some(3) };
    assert_eq!(table.recv(&mut pool, id, &mut buf, false), Ok(empty));
    assert_eq!(table.recv(&mut pool, id, &mut buf, false), Err(Error::WouldBlock));
    assert_eq!((table.frames_held(), pool.in_use()), (0, 0));
}

#[test]
fn truncates_to_buffer() {
    let (mut table, mut pool) = (table(), HeapPool::new(16, 512));
    let id = bind(&mut table, "0.0.0.0:53").unwrap();
    deliver(&mut table, &mut pool, HERE, PEER, &[b"0123", b"4567"]).unwrap();
    let mut buf = [0; 6];
    assert_eq!(table.recv(&mut pool, id, &mut buf, false).map(|meta| meta.len), Ok(8));
    assert_eq!(&buf, b"012345");
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn headers_fill_their_frame() {
    // The payload begins in the second frame.
    let (mut table, mut pool) = (table(), HeapPool::new(16, 512));
    let id = bind(&mut table, "0.0.0.0:53").unwrap();
    deliver(&mut table, &mut pool, HERE, PEER, &[b"", b"data"]).unwrap();
    assert_eq!((table.frames_held(), pool.in_use()), (1, 1));
    let mut buf = [0; 6];
    assert_eq!(table.recv(&mut pool, id, &mut buf, false).map(|meta| meta.len), Ok(4));
    assert_eq!((&buf[..4], pool.in_use()), (&b"data"[..], 0));
}

#[test]
fn rejected_datagrams_free_their_frames() {
    let mut pool = HeapPool::new(600, 512);
    let mut table = UdpTable::new(&Limits::default(), 40);
    assert_eq!(deliver(&mut table, &mut pool, HERE, PEER, &[b"a", b"b"]), Err(DropReason::NoSocket));
    assert_eq!(pool.in_use(), 0);
    // Of 40 frames, receive queues may hold half, UDP half of that.
    let id = bind(&mut table, "0.0.0.0:53").unwrap();
    for _ in 0..10 {
        deliver(&mut table, &mut pool, HERE, PEER, &[b"x"]).unwrap();
    }
    assert_eq!(deliver(&mut table, &mut pool, HERE, PEER, &[b"x"]), Err(DropReason::UdpQueueFull));
    assert_eq!(pool.in_use(), 10);
    table.close(&mut pool, id);
    assert_eq!((pool.in_use(), table.frames_held()), (0, 0));
}

#[test]
fn queue_is_bounded_in_datagrams_and_bytes() {
    let mut pool = HeapPool::new(1000, 4096);
    let mut table = UdpTable::new(&Limits::default(), 100_000);
    let id = bind(&mut table, "0.0.0.0:53").unwrap();
    let mut taken = 0;
    while deliver(&mut table, &mut pool, HERE, PEER, &[b""]).is_ok() {
        taken += 1;
    }
    assert_eq!(taken, 256);
    table.close(&mut pool, id);
    let id = bind(&mut table, "0.0.0.0:53").unwrap();
    let mut taken = 0;
    while deliver(&mut table, &mut pool, HERE, PEER, &[&[1; 3000]]).is_ok() {
        taken += 1;
    }
    assert_eq!(taken, 212_992 / 3000);
    table.close(&mut pool, id);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn connecting() {
    let mut table = table();
    let source = "10.77.1.1".parse().unwrap();
    let id = bind(&mut table, "10.77.1.1:53").unwrap();
    assert_eq!(table.connect(id, at("10.77.1.2:0"), source), Err(Error::InvalidInput));
    assert_eq!(table.connect(id, at("0.0.0.0:1"), source), Err(Error::InvalidInput));
    assert_eq!(table.connect(id, at("[fd77::2]:1"), source), Err(Error::InvalidInput), "families differ");
    assert_eq!(table.connect(id, at(PEER), "10.77.2.1".parse().unwrap()), Err(Error::InvalidInput), "bound elsewhere");
    assert_eq!(table.remote(id), Ok(None));
    table.connect(id, at(PEER), source).unwrap();
    table.connect(id, at("[::ffff:10.77.1.3]:7"), source).unwrap();
    assert_eq!(table.remote(id), Ok(Some(at("10.77.1.3:7"))), "again, and canonical");
}

#[test]
fn icmp_errors_reach_connected_sockets_only() {
    let (mut table, mut pool) = (table(), HeapPool::new(4, 512));
    let id = bind(&mut table, HERE).unwrap();
    let error = |kind| IcmpError { kind, protocol: Protocol::Udp, key: key(HERE, PEER), seq: None };
    assert_eq!(table.on_icmp(&error(IcmpErrorKind::PortUnreachable), IFACE), None);
    assert_eq!(table.ready(id), Ok(Ready::WRITE));
    table.connect(id, at(PEER), "10.77.1.1".parse().unwrap()).unwrap();
    assert_eq!(table.on_icmp(&error(IcmpErrorKind::HostUnreachable), IFACE), None, "may pass");
    let tcp = IcmpError { protocol: Protocol::Tcp, ..error(IcmpErrorKind::PortUnreachable) };
    assert_eq!(table.on_icmp(&tcp, IFACE), None);
    assert_eq!(table.on_icmp(&error(IcmpErrorKind::PortUnreachable), IFACE), Some(id));
    assert_eq!(table.on_icmp(&error(IcmpErrorKind::PortUnreachable), IFACE), None, "readable already");
    assert!(table.ready(id).unwrap().contains(Ready::READ));
    // The error comes first, once; then the data.
    deliver(&mut table, &mut pool, HERE, PEER, &[b"x"]).unwrap();
    assert_eq!(table.recv(&mut pool, id, &mut [0; 4], false), Err(Error::ConnectionRefused));
    assert_eq!(table.recv(&mut pool, id, &mut [0; 4], false).map(|meta| meta.len), Ok(1));
    table.on_icmp(&error(IcmpErrorKind::FragmentationNeeded { mtu: 1400 }), IFACE);
    assert_eq!(table.take_error(id), Ok(Some(Error::MessageSize)));
    assert_eq!(table.take_error(id), Ok(None));
    assert_eq!(table.set_error(id, Error::HostUnreachable), Ok(true));
    assert_eq!(table.take_error(id), Ok(Some(Error::HostUnreachable)));
}

#[test]
fn hop_limits() {
    let mut table = table();
    let id = bind(&mut table, HERE).unwrap();
    assert_eq!(table.ttl(id), Ok(DEFAULT_TTL));
    assert_eq!(table.set_ttl(id, Some(0)), Err(Error::InvalidInput));
    table.set_ttl(id, Some(3)).unwrap();
    assert_eq!(table.ttl(id), Ok(3));
    table.set_ttl(id, None).unwrap();
    assert_eq!(table.ttl(id), Ok(64));
}

#[test]
fn traffic_classes() {
    let mut table = table();
    let id = bind(&mut table, HERE).unwrap();
    assert_eq!(table.tos(id), Ok(0));
    table.set_tos(id, 0xff).unwrap();
    assert_eq!(table.tos(id), Ok(0xff));
}
