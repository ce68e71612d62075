//! Datagrams that the engine leaves to the kernel's socket of the same port, over veth.

// Cores poll: two tests at once take the machine from each other.
// runner: alone

#[path = "common/veth.rs"]
mod veth;

use fs_compat::UdpSocket;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use veth::{OURS, PEER, Wire, at};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

/// Sends back what comes, until a datagram of one byte.
fn echo(socket: &std::net::UdpSocket) {
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
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
fn datagrams_beyond_the_mtu_there_and_back() {
    let Some(wire) = Wire::up("datagrams beyond the MTU") else { return };
    let peer = wire.peer.enter(|| std::net::UdpSocket::bind(at(PEER, 53)).unwrap());
    let echoing = std::thread::spawn(move || echo(&peer));
    let run = wire.ours.enter(|| {
        Wire::runtime().run(|_| async {
            let socket = UdpSocket::bind(at(OURS, 4000)).await.unwrap();
            let mut buf = vec![0; 65_536];
            for len in [2, 1472, 1473, 9000, 65_507] {
                let sent = bytes(len);
                assert_eq!(socket.send_to(&sent, at(PEER, 53)).await.unwrap(), len);
                let peeked = tokio::time::timeout(Duration::from_secs(10), socket.peek_from(&mut buf)).await;
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
            // As tokio's, it may say readable of what was there before.
            let got = loop {
                socket.readable().await.unwrap();
                match socket.try_recv(&mut buf) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    got => break got.unwrap(),
                }
            };
            assert_eq!(got, 30_000);
            assert_eq!(socket.try_recv(&mut buf).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
            // One to ourselves: it is not of the peer, and so not heard.
            let other = UdpSocket::bind(at(OURS, 4001)).await.unwrap();
            other.send_to(b"own", at(OURS, 4000)).await.unwrap();
            other.send_to(b"own", at(OURS, 4001)).await.unwrap();
            assert_eq!(other.recv_from(&mut buf).await.unwrap(), (3, at(OURS, 4001)));
            assert_eq!(socket.try_recv(&mut buf).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
            socket.send(b"!").await.unwrap();
            // Its word has to leave before the run ends.
            tokio::time::sleep(Duration::from_millis(50)).await;
        })
    });
    run.unwrap();
    echoing.join().unwrap();
}

#[test]
fn groups_and_broadcasts() {
    let Some(wire) = Wire::up("multicast and broadcast") else { return };
    wire.peer.run("ip route add 239.0.0.0/8 dev fsc1");
    wire.ours.run("ip route add 239.0.0.0/8 dev fsc0");
    let peer = wire.peer.enter(|| std::net::UdpSocket::bind("0.0.0.0:5353").unwrap());
    let IpAddr::V4(interface) = PEER else { unreachable!() };
    peer.join_multicast_v4(&GROUP, &interface).unwrap();
    let echoing = std::thread::spawn(move || echo(&peer));
    let run = wire.ours.enter(|| {
        Wire::runtime().run(|_| async {
            let IpAddr::V4(interface) = OURS else { unreachable!() };
            let socket = UdpSocket::bind("0.0.0.0:5353").await.unwrap();
            socket.join_multicast_v4(GROUP, interface).unwrap();
            socket.set_multicast_loop_v4(false).unwrap();
            assert!(!socket.multicast_loop_v4().unwrap());
            let mut buf = [0; 100];
            socket.send_to(b"group", at(GROUP.into(), 5353)).await.unwrap();
            assert_eq!(socket.recv_from(&mut buf).await.unwrap(), (5, at(PEER, 5353)));
            // A sender on this host, whose datagram comes by the group.
            let other = std::net::UdpSocket::bind(at(OURS, 0)).unwrap();
            other.send_to(b"to all", at(GROUP.into(), 5353)).unwrap();
            assert_eq!(socket.recv_from(&mut buf).await.unwrap(), (6, other.local_addr().unwrap()));
            assert!(!socket.broadcast().unwrap());
            let all = at(Ipv4Addr::new(10, 89, 0, 255).into(), 5353);
            assert_eq!(socket.send_to(b"br", all).await.unwrap_err().raw_os_error(), Some(libc::EACCES));
            socket.set_broadcast(true).unwrap();
            socket.send_to(b"br", all).await.unwrap();
            loop {
                // Our own broadcast comes back too, as the kernel has it.
                if socket.recv_from(&mut buf).await.unwrap() == (2, at(PEER, 5353)) {
                    break;
                }
            }
            socket.send_to(b"!", at(PEER, 5353)).await.unwrap();
            // Its word has to leave before the run ends.
            tokio::time::sleep(Duration::from_millis(50)).await;
        })
    });
    run.unwrap();
    echoing.join().unwrap();
}
