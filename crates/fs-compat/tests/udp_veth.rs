//! Datagrams that the engine leaves to the kernel's socket of the same port, over veth.

#[path = "common/veth.rs"]
mod veth;

use fs_compat::UdpSocket;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use veth::{OURS, PEER, Wire, at};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

/// Echoes datagrams until one of a single byte.
fn echo(socket: &std::net::UdpSocket) {
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut buf = vec![0; 65_536];
    loop {
        let (n, from) = socket.recv_from(&mut buf).unwrap();
        if n == 1 {
            return;
        }
        socket.send_to(&buf[..n], from).unwrap();
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn datagrams_beyond_the_mtu_both_ways() {
    let Some(wire) = Wire::up("datagrams beyond the MTU") else { return };
    let peer = wire.peer.enter(|| std::net::UdpSocket::bind(at(PEER, 53)).unwrap());
    let (echoing, echoed) = beside(move || echo(&peer));
    let run = wire.ours.enter(|| {
        Wire::runtime().run(|_| async move {
            let socket = UdpSocket::bind(at(OURS, 4000)).await.unwrap();
            let mut buf = vec![0; 65_536];
            for len in [2, 1472, 1473, 9000, 65_507] {
                let sent = bytes(len);
                assert_eq!(socket.send_to(&sent, at(PEER, 53)).await.unwrap(), len);
                let peeked = tokio::time::timeout(Duration::from_secs(60), socket.peek_from(&mut buf)).await;
                assert_eq!(peeked.unwrap().unwrap(), (len, at(PEER, 53)));
                assert_eq!(socket.recv_from(&mut buf).await.unwrap(), (len, at(PEER, 53)));
                assert!(buf[..len] == sent, "{len}");
            }
            assert_eq!(
                socket.send_to(&[0; 65_508], at(PEER, 53)).await.unwrap_err().raw_os_error(),
                Some(libc::EMSGSIZE)
            );
            socket.connect(at(PEER, 53)).await.unwrap();
            socket.send(&bytes(30_000)).await.unwrap();
            // As in tokio, readiness may be stale.
            let got = loop {
                socket.readable().await.unwrap();
                match socket.try_recv(&mut buf) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    got => break got.unwrap(),
                }
            };
            assert_eq!(got, 30_000);
            assert_eq!(socket.try_recv(&mut buf).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
            // A datagram from this host: it is not from the peer, so it is not received.
            let other = UdpSocket::bind(at(OURS, 4001)).await.unwrap();
            other.send_to(b"own", at(OURS, 4000)).await.unwrap();
            other.send_to(b"own", at(OURS, 4001)).await.unwrap();
            assert_eq!(other.recv_from(&mut buf).await.unwrap(), (3, at(OURS, 4001)));
            assert_eq!(socket.try_recv(&mut buf).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
            socket.send(b"!").await.unwrap();
            // The last datagram must leave before the run ends.
            until(&echoed).await;
        })
    });
    run.unwrap();
    echoing.join().unwrap();
}

/// Answers a datagram with 3000 bytes in datagrams of 1200 by one call (UDP_SEGMENT): one packet on
/// veth. Each has the ECN mark ECT(0).
const SEGMENTS: &str = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('10.89.0.2', 53))
_, to = s.recvfrom(100)
s.setsockopt(17, 103, 1200)
s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2)
s.sendto(bytes(3000), to)
";

#[test]
fn datagrams_that_arrive_as_one_packet() {
    let Some(wire) = Wire::up("datagrams as one packet") else { return };
    let peer = wire.peer.enter(|| std::process::Command::new("python3").args(["-c", SEGMENTS]).spawn());
    let run = wire.ours.enter(|| {
        Wire::runtime().run(|_| async move {
            let socket = UdpSocket::bind(at(OURS, 4000)).await.unwrap();
            let (mut buf, mut metas) = ([0; 4096], Vec::new());
            while metas.len() < 3 {
                // The peer may not listen yet.
                let _refused = socket.send_to(b"?", at(PEER, 53)).await;
                while metas.len() < 3
                    && tokio::time::timeout(Duration::from_millis(200), socket.readable()).await.is_ok()
                {
                    // Readiness may be stale. An ICMP error of a question that came too early is an error, too.
                    let _none = socket.try_recv_batch(&mut [&mut buf], &mut metas);
                }
            }
            let came: Vec<_> = metas.iter().map(|meta| (meta.len, meta.tos)).collect();
            assert_eq!(came, [(1200, Some(2)), (1200, Some(2)), (600, Some(2))]);
        })
    });
    run.unwrap();
    assert!(peer.unwrap().wait().unwrap().success());
}

/// While the engine's queue always has datagrams, one of this host is received all the same.
#[test]
fn full_queue_of_the_engine_leaves_a_turn_to_the_kernel() {
    const FULL: usize = 60;
    let Some(wire) = Wire::up("a turn of the kernel's side") else { return };
    let peer = Arc::new(wire.peer.enter(|| std::net::UdpSocket::bind(at(PEER, 53)).unwrap()));
    let run = wire.ours.enter(|| {
        Wire::runtime().run(|_| async move {
            let socket = UdpSocket::bind("0.0.0.0:4000").await.unwrap();
            let own = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let own_at = own.local_addr().unwrap();
            let mut buf = [0; 100];
            // Both neighbours are known then.
            socket.send_to(b"?", at(PEER, 53)).await.unwrap();
            peer.send_to(b"!", at(OURS, 4000)).unwrap();
            assert_eq!(socket.recv_from(&mut buf).await.unwrap(), (1, at(PEER, 53)));
            for receive in ["recv_from", "peek_from", "try_recv_from", "try_recv_batch", "try_recv_segments"] {
                // Of ascending sizes, so that no call receives two of them.
                for n in 1..=FULL {
                    peer.send_to(&[7; 100][..n], at(OURS, 4000)).unwrap();
                }
                own.send_to(b"own", "127.0.0.1:4000").unwrap();
                // The driver of tokio runs, and the reactor.
                tokio::time::sleep(Duration::from_millis(100)).await;
                let (mut before, mut metas) = (None, Vec::new());
                for n in 0..=FULL {
                    let from = loop {
                        // Some may still be on their way.
                        socket.readable().await.unwrap();
                        let from = match receive {
                            "peek_from" => {
                                let seen = socket.peek_from(&mut buf).await.unwrap();
                                fs_rt::turn().await;
                                assert_eq!(socket.recv_from(&mut buf).await.unwrap(), seen);
                                Ok(seen.1)
                            }
                            "recv_from" => socket.recv_from(&mut buf).await.map(|(_, from)| from),
                            "try_recv_from" => socket.try_recv_from(&mut buf).map(|(_, from)| from),
                            "try_recv_batch" => {
                                let received = socket.try_recv_batch(&mut [&mut buf], &mut metas);
                                received.map(|_| metas.pop().unwrap().from)
                            }
                            _ => socket.try_recv_segments(&mut buf).map(|(meta, _)| meta.from),
                        };
                        match from {
                            Err(none) if none.kind() == std::io::ErrorKind::WouldBlock => {}
                            from => break from.unwrap(),
                        }
                    };
                    if from == own_at {
                        assert_eq!(before.replace(n), None);
                    }
                }
                assert!(before.is_some_and(|before| before < 16), "{receive}: {before:?}");
            }
        })
    });
    run.unwrap();
}

/// Of two tasks that wait for the kernel's side, the last one ends before a datagram comes.
#[test]
fn datagram_of_the_kernel_wakes_every_task() {
    let Some(wire) = Wire::up("two tasks wait for the kernel's datagrams") else { return };
    let run = wire.ours.enter(|| {
        Wire::runtime().run(|_| async move {
            let socket = Rc::new(UdpSocket::bind("0.0.0.0:4000").await.unwrap());
            let theirs = socket.clone();
            let first = tokio::task::spawn_local(async move { theirs.recv_from(&mut [0; 100]).await.unwrap().0 });
            let mut buf = [0; 100];
            let last = tokio::time::timeout(Duration::from_millis(50), socket.recv_from(&mut buf)).await;
            assert!(last.is_err());
            let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            sender.send_to(b"own", "127.0.0.1:4000").unwrap();
            assert_eq!(tokio::time::timeout(Duration::from_secs(10), first).await.unwrap().unwrap(), 3);
            // The engine's side is always writable.
            let both = Interest::READABLE | Interest::WRITABLE;
            while socket.ready(both).await.unwrap().is_readable() {
                assert_eq!(socket.try_recv(&mut buf).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
            }
            sender.send_to(b"own", "127.0.0.1:4000").unwrap();
            let end = Instant::now() + Duration::from_secs(10);
            while !socket.ready(both).await.unwrap().is_readable() {
                assert!(Instant::now() < end, "the datagram is never reported");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(socket.try_recv(&mut buf).unwrap(), 3);
        })
    });
    run.unwrap();
}

#[test]
fn groups_and_broadcasts() {
    let Some(wire) = Wire::up("multicast and broadcast") else { return };
    wire.peer.run("ip route add 239.0.0.0/8 dev fsc1");
    wire.ours.run("ip route add 239.0.0.0/8 dev fsc0");
    let peer = wire.peer.enter(|| std::net::UdpSocket::bind("0.0.0.0:5353").unwrap());
    let IpAddr::V4(interface) = PEER else { unreachable!() };
    peer.join_multicast_v4(&GROUP, &interface).unwrap();
    let (echoing, echoed) = beside(move || echo(&peer));
    let run = wire.ours.enter(|| {
        Wire::runtime().run(|_| async move {
            let IpAddr::V4(interface) = OURS else { unreachable!() };
            let socket = UdpSocket::bind("0.0.0.0:5353").await.unwrap();
            socket.join_multicast_v4(GROUP, interface).unwrap();
            socket.set_multicast_loop_v4(false).unwrap();
            assert!(!socket.multicast_loop_v4().unwrap());
            let mut buf = [0; 100];
            socket.send_to(b"group", at(GROUP.into(), 5353)).await.unwrap();
            assert_eq!(socket.recv_from(&mut buf).await.unwrap(), (5, at(PEER, 5353)));
            // A sender on this host, whose datagram arrives through the group.
            let other = std::net::UdpSocket::bind(at(OURS, 0)).unwrap();
            other.send_to(b"to all", at(GROUP.into(), 5353)).unwrap();
            assert_eq!(socket.recv_from(&mut buf).await.unwrap(), (6, other.local_addr().unwrap()));
            assert!(!socket.broadcast().unwrap());
            let all = at(Ipv4Addr::new(10, 89, 0, 255).into(), 5353);
            assert_eq!(socket.send_to(b"br", all).await.unwrap_err().raw_os_error(), Some(libc::EACCES));
            socket.set_broadcast(true).unwrap();
            socket.send_to(b"br", all).await.unwrap();
            loop {
                // Our own broadcast arrives too, as on the kernel.
                if socket.recv_from(&mut buf).await.unwrap() == (2, at(PEER, 5353)) {
                    break;
                }
            }
            socket.send_to(b"!", at(PEER, 5353)).await.unwrap();
            // The last datagram must leave before the run ends.
            until(&echoed).await;
        })
    });
    run.unwrap();
    echoing.join().unwrap();
}

/// Runs work on another thread and returns whether it is done: datagrams to it must leave before
/// the run ends.
fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> (JoinHandle<T>, Arc<AtomicBool>) {
    let done = Arc::new(AtomicBool::new(false));
    let set = done.clone();
    let thread = std::thread::spawn(move || {
        let result = work();
        set.store(true, Ordering::Release);
        result
    });
    (thread, done)
}

async fn until(done: &AtomicBool) {
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while !done.load(Ordering::Acquire) && std::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the TOS fields of the next `count` datagrams to a port.
fn classes(raw: &socket2::Socket, port: u16, count: usize) -> Vec<u8> {
    use std::io::Read;
    let mut seen = Vec::new();
    let mut packet = vec![0; 65_536];
    while seen.len() < count {
        let n = (&mut &*raw).read(&mut packet).unwrap();
        // No IP options, so the UDP header is at offset 20.
        if n >= 28 && packet[22..24] == port.to_be_bytes() {
            seen.push(packet[1]);
        }
    }
    seen
}

#[test]
fn classes_of_datagrams() {
    let Some(wire) = Wire::up("classes of datagrams") else { return };
    let raw = wire.peer.enter(|| {
        use socket2::{Domain, Protocol, Socket, Type};
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).unwrap();
        raw.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        raw
    });
    let (seen, all_seen) = beside(move || classes(&raw, 53, 5));
    let run = wire.ours.enter(|| {
        Wire::runtime().run(|_| async move {
            let socket = UdpSocket::bind(at(OURS, 4000)).await.unwrap();
            assert_eq!(
                (socket.tos().unwrap(), socket.set_tos(256).unwrap_err().raw_os_error()),
                (0, Some(libc::EINVAL))
            );
            socket.send_to(b"plain", at(PEER, 53)).await.unwrap();
            socket.set_tos_v4(0xb9).unwrap();
            assert_eq!((socket.tos_v4().unwrap(), socket.tclass_v6().unwrap()), (0xb9, 0xb9));
            socket.send_to(b"marked", at(PEER, 53)).await.unwrap();
            // Fragmented by the kernel.
            socket.send_to(&[7; 5000], at(PEER, 53)).await.unwrap();
            let shared = fs_compat::net::UdpSocket::bind(at(OURS, 4001)).await.unwrap();
            shared.set_tos(0x28).unwrap();
            assert_eq!(shared.tos().unwrap(), 0x28);
            shared.send_to(b"of any thread", at(PEER, 53)).await.unwrap();
            // A socket of both families.
            let both = UdpSocket::bind("[::]:4002").await.unwrap();
            both.set_tclass_v6(0x10).unwrap();
            both.send_to(b"by [::]", at(PEER, 53)).await.unwrap();
            until(&all_seen).await;
        })
    });
    run.unwrap();
    let mut seen = seen.join().unwrap();
    // Three independent paths (engine, kernel, handle), so the order is not fixed.
    seen.sort_unstable();
    assert_eq!(seen, [0, 0x10, 0x28, 0xb9, 0xb9]);
}

#[test]
fn groups_and_broadcasts_on_any_thread() {
    let Some(wire) = Wire::up("multicast and broadcast of any thread") else { return };
    wire.peer.run("ip route add 239.0.0.0/8 dev fsc1");
    wire.ours.run("ip route add 239.0.0.0/8 dev fsc0");
    let peer = wire.peer.enter(|| std::net::UdpSocket::bind("0.0.0.0:5353").unwrap());
    let IpAddr::V4(interface) = PEER else { unreachable!() };
    peer.join_multicast_v4(&GROUP, &interface).unwrap();
    let (echoing, echoed) = beside(move || echo(&peer));
    let run = wire.ours.enter(|| {
        Wire::runtime().run(|_| async move {
            let IpAddr::V4(interface) = OURS else { unreachable!() };
            let socket = fs_compat::net::UdpSocket::bind("0.0.0.0:5353").await.unwrap();
            socket.join_multicast_v4(GROUP, interface).unwrap();
            socket.set_multicast_loop_v4(false).unwrap();
            socket.set_multicast_ttl_v4(2).unwrap();
            assert_eq!((socket.multicast_loop_v4().unwrap(), socket.multicast_ttl_v4().unwrap()), (false, 2));
            let mut buf = [0; 100];
            socket.send_to(b"group", at(GROUP.into(), 5353)).await.unwrap();
            assert_eq!(socket.recv_from(&mut buf).await.unwrap(), (5, at(PEER, 5353)));
            let other = std::net::UdpSocket::bind(at(OURS, 0)).unwrap();
            other.send_to(b"to all", at(GROUP.into(), 5353)).unwrap();
            assert_eq!(socket.recv_from(&mut buf).await.unwrap(), (6, other.local_addr().unwrap()));
            socket.leave_multicast_v4(GROUP, interface).unwrap();
            assert!(!socket.broadcast().unwrap());
            socket.set_broadcast(true).unwrap();
            let all = at(Ipv4Addr::new(10, 89, 0, 255).into(), 5353);
            socket.send_to(b"br", all).await.unwrap();
            loop {
                // Our own broadcast arrives too, as on the kernel.
                if socket.recv_from(&mut buf).await.unwrap() == (2, at(PEER, 5353)) {
                    break;
                }
            }
            socket.send_to(b"!", at(PEER, 5353)).await.unwrap();
            until(&echoed).await;
            socket.connect(at(PEER, 5353)).await.unwrap();
            let back = socket.into_std().unwrap();
            assert_eq!((back.local_addr().unwrap().port(), back.broadcast().unwrap()), (5353, true));
            assert_eq!(back.peer_addr().unwrap(), at(PEER, 5353));
        })
    });
    run.unwrap();
    echoing.join().unwrap();
}

#[test]
fn kernel_socket_is_taken_over_and_returned() {
    let Some(wire) = Wire::up("a socket of the kernel's") else { return };
    let peer = wire.peer.enter(|| std::net::UdpSocket::bind(at(PEER, 53)).unwrap());
    let run = wire.ours.enter(|| {
        let given = std::net::UdpSocket::bind(at(OURS, 4000)).unwrap();
        given.set_ttl(9).unwrap();
        given.set_broadcast(true).unwrap();
        peer.send_to(b"before", at(OURS, 4000)).unwrap();
        // The kernel may have to resolve the address first.
        given.peek(&mut [0]).unwrap();
        let (peer, given) = (Arc::new(peer), Arc::new(Mutex::new(Some(given))));
        Wire::runtime().run(move |_| {
            let (peer, given) = (peer.clone(), given.clone());
            async move {
                let given = given.lock().unwrap().take().unwrap();
                let by_device = || fs_rt::CoreRef::require().unwrap().inspect(|stack| stack.stats().udp_received);
                let socket = UdpSocket::from_std(given).unwrap();
                assert_eq!((socket.ttl().unwrap(), socket.broadcast().unwrap()), (9, true));
                let mut buf = [0; 100];
                let heard = async |socket: &UdpSocket, buf: &mut [u8]| {
                    tokio::time::timeout(Duration::from_secs(60), socket.recv_from(buf)).await.unwrap().unwrap()
                };
                assert_eq!((heard(&socket, &mut buf).await, by_device()), ((6, at(PEER, 53)), 0), "what waited in it");
                peer.send_to(b"meanwhile", at(OURS, 4000)).unwrap();
                assert_eq!((heard(&socket, &mut buf).await, by_device()), ((9, at(PEER, 53)), 1), "by the device");
                socket.connect(at(PEER, 53)).await.unwrap();
                let back = socket.into_std().unwrap();
                assert_eq!((back.peer_addr().unwrap(), back.local_addr().unwrap()), (at(PEER, 53), at(OURS, 4000)));
                back.set_nonblocking(false).unwrap();
                back.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                peer.send_to(b"afterwards", at(OURS, 4000)).unwrap();
                assert_eq!((back.recv(&mut buf).unwrap(), by_device()), (10, 1));
            }
        })
    });
    run.unwrap();
}

/// A program that gives each core a duplicate of one connected socket.
#[test]
fn duplicates_of_a_connected_socket_have_its_peer() {
    let Some(wire) = Wire::with_queues("duplicates of a socket", 2) else { return };
    let run = wire.ours.enter(|| {
        let given = std::net::UdpSocket::bind(at(OURS, 4000)).unwrap();
        given.connect(at(PEER, 53)).unwrap();
        // Of this host, where nobody listens.
        let refused = std::net::UdpSocket::bind(at(OURS, 0)).unwrap();
        refused.connect(at(OURS, 9)).unwrap();
        let (both, other) = (Barrier::new(2), std::net::UdpSocket::bind(at(OURS, 0)).unwrap());
        let shared = Arc::new((given, refused, other, both));
        let builder = fs_rt::Runtime::builder().device(veth::DEVICE).cores([0, 0]).pin(false);
        builder.frames(4096).ephemeral_ports(64).build().unwrap().run(move |core| {
            let shared = shared.clone();
            async move {
                let (given, refused, other, both) = &*shared;
                let socket = UdpSocket::from_std(given.try_clone().unwrap()).unwrap();
                both.wait();
                assert_eq!(socket.peer_addr().unwrap(), at(PEER, 53), "core {}", core.index());
                other.send_to(b"not from the peer", at(OURS, 4000)).unwrap();
                // The core looks at the kernel's socket in its next turns.
                tokio::time::sleep(Duration::from_millis(10)).await;
                assert_eq!(socket.try_recv(&mut [0; 9]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
                if core.index() == 0 {
                    let socket = UdpSocket::from_std(refused.try_clone().unwrap()).unwrap();
                    let end = Instant::now() + Duration::from_secs(60);
                    let error = loop {
                        match socket.send(b"?").await {
                            Err(error) => break error,
                            Ok(_) => assert!(Instant::now() < end, "no error"),
                        }
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    };
                    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
                    // A later peer of this host, whose answers only the kernel's socket receives.
                    let later = std::net::UdpSocket::bind(at(OURS, 0)).unwrap();
                    socket.connect(later.local_addr().unwrap()).await.unwrap();
                    later.send_to(b"!", socket.local_addr().unwrap()).unwrap();
                    assert_eq!(socket.recv(&mut [0; 9]).await.unwrap(), 1);
                }
            }
        })
    });
    run.unwrap();
}

/// Datagrams from this host, which the kernel's socket of the port receives for both cores, may be
/// lost, and never go back.
#[test]
fn kernel_datagrams_stay_in_order_with_two_cores() {
    const DATAGRAMS: u32 = 20_000;
    let Some(wire) = Wire::with_queues("datagrams in order", 2) else { return };
    let run = wire.ours.enter(|| {
        let builder = fs_rt::Runtime::builder().device(veth::DEVICE).cores([0, 0]).pin(false);
        builder.frames(4096).ephemeral_ports(64).build().unwrap().run(|core| async move {
            if core.index() > 0 {
                return;
            }
            let socket = fs_compat::net::UdpSocket::bind(at(OURS, 4000)).await.unwrap();
            let sender = std::net::UdpSocket::bind(at(OURS, 0)).unwrap();
            let sending = std::thread::spawn(move || {
                for n in 0..DATAGRAMS {
                    sender.send_to(&n.to_be_bytes(), at(OURS, 4000)).unwrap();
                }
            });
            let mut last = None;
            // When all are sent, this core may have received none: it may have had to wait for its
            // CPU. The kernel's socket then has the first ones.
            while !sending.is_finished() || last.is_none() {
                let mut buf = [0; 4];
                let received = tokio::time::timeout(Duration::from_millis(1), socket.recv(&mut buf)).await;
                if received.is_ok_and(|received| received.is_ok()) {
                    let before = last.replace(u32::from_be_bytes(buf));
                    assert!(before < last, "{last:?} after {before:?}");
                }
            }
        })
    });
    run.unwrap();
}
