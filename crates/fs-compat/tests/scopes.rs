//! Link-local IPv6 addresses between two devices of one runtime, over veth. Only the scope id says
//! which device is meant: the kernel at the other ends has the same address on both.

#[path = "common/veth.rs"]
mod veth;

use fs_compat::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use fs_rt::Runtime;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket as KernelUdp};
use std::sync::mpsc::channel;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use veth::{DEVICE, Wire};

const DEVICES: [&str; 2] = [DEVICE, "fsc2"];
const OTHERS: [&str; 2] = ["fsc1", "fsc3"];
const OURS2: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 90, 0, 1));
const PEER2: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 90, 0, 2));
/// The kernel's address at each other end. Ours are fe80::1 and fe80::2.
const THEIRS: u16 = 0x99;

fn link_local(last: u16, port: u16, scope: u32) -> SocketAddr {
    SocketAddrV6::new(Ipv6Addr::from([0xfe80, 0, 0, 0, 0, 0, 0, last]), port, 0, scope).into()
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)
}

/// Returns the indexes of devices in the calling thread's namespace.
fn numbers(devices: [&str; 2]) -> [u32; 2] {
    let table = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
    devices.map(|device| {
        let line = table.lines().find(|line| line.split_whitespace().last() == Some(device)).unwrap();
        u32::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
    })
}

fn wire(test: &str) -> Option<Wire> {
    let wire = Wire::up(test)?;
    wire.lay((DEVICES[1], OURS2), (OTHERS[1], PEER2), 1);
    let set = |last: u16, device: &str| {
        // Only this address, and without duplicate address detection.
        format!(
            "ip link set {device} addrgenmode none && ip -6 addr flush dev {device} && ip addr add fe80::{last:x}/64 dev {device} nodad"
        )
    };
    for n in [0, 1] {
        wire.ours.run(&set(1 + n as u16, DEVICES[n]));
        wire.peer.run(&set(THEIRS, OTHERS[n]));
    }
    Some(wire)
}

fn runtime() -> Runtime {
    let builder = Runtime::builder().device(DEVICES[0]).device(DEVICES[1]).cores([0]).pin(false).frames(8192);
    builder.ephemeral_ports(64).build().unwrap()
}

/// Limit for each wait.
const LONGEST: Duration = Duration::from_secs(30);

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONGEST, what).await.expect("it takes too long")
}

fn errno<T: std::fmt::Debug>(answer: std::io::Result<T>) -> Option<i32> {
    answer.unwrap_err().raw_os_error()
}

#[test]
fn connection_stays_on_the_device_of_its_scope() {
    let Some(wire) = wire("connections by scopes") else { return };
    let serving = wire.peer.enter(|| std::net::TcpListener::bind(any(80)).unwrap());
    let theirs = wire.peer.enter(|| numbers(OTHERS));
    let (connected, connects) = channel();
    let (changed, changes) = channel::<()>();
    let changes = std::sync::Arc::new(std::sync::Mutex::new(changes));
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            wire.ours.enter(|| {
                let ours = numbers(DEVICES);
                runtime().run(move |_| {
                    let (connected, changes) = (connected.clone(), changes.clone());
                    async move {
                        let to = |scope| link_local(THEIRS, 80, scope);
                        // As the kernel: connect(2) of Linux 6.18.
                        assert_eq!(errno(within(TcpStream::connect(to(0))).await), Some(libc::EINVAL));
                        assert_eq!(errno(within(TcpStream::connect(to(999))).await), Some(libc::ENETUNREACH));
                        let socket = TcpSocket::new_v6().unwrap();
                        socket.bind_device(Some(DEVICES[0].as_bytes())).unwrap();
                        assert_eq!(errno(within(socket.connect(to(ours[1]))).await), Some(libc::EINVAL));
                        let mut streams = Vec::new();
                        for n in [1, 0] {
                            let stream = within(TcpStream::connect(to(ours[n]))).await.unwrap();
                            let local = stream.local_addr().unwrap();
                            assert_eq!(local, link_local(1 + n as u16, local.port(), ours[n]));
                            assert_eq!(stream.peer_addr().unwrap(), to(ours[n]));
                            connected.send(local.port()).unwrap();
                            streams.push(stream);
                        }
                        let waited = tokio::task::spawn_blocking(move || changes.lock().unwrap().recv_timeout(LONGEST));
                        within(waited).await.unwrap().unwrap();
                        for mut stream in streams {
                            within(stream.write_all(b"still here")).await.unwrap();
                            within(stream.shutdown()).await.unwrap();
                            within(stream.read_to_end(&mut Vec::new())).await.unwrap();
                        }
                    }
                })
            })
        });
        let mut accepted = Vec::new();
        for n in [1, 0] {
            let port = connects.recv_timeout(LONGEST).unwrap();
            let (stream, from) = serving.accept().unwrap();
            assert_eq!(from, link_local(1 + n as u16, port, theirs[n]));
            accepted.push(stream);
        }
        // Makes the engine look up the route again, while another device's route comes first.
        wire.ours.run(&format!("ip -6 route add fe80::{THEIRS:x}/128 dev {} metric 1", DEVICES[0]));
        changed.send(()).unwrap();
        for mut stream in accepted {
            stream.set_read_timeout(Some(LONGEST)).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert_eq!(text, "still here");
        }
        run.join().unwrap().unwrap();
    });
}

#[test]
fn accepted_peers_have_a_scope_and_bound_listeners_ignore_others() {
    let Some(wire) = wire("listeners by scopes") else { return };
    let theirs = wire.peer.enter(|| numbers(OTHERS));
    let (listening, listens) = channel();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            wire.ours.enter(|| {
                let ours = numbers(DEVICES);
                runtime().run(move |_| {
                    let listening = listening.clone();
                    async move {
                        assert_eq!(errno(TcpListener::bind(link_local(2, 4001, 0)).await), Some(libc::EINVAL));
                        let other = TcpListener::bind(link_local(2, 4001, ours[0])).await;
                        assert_eq!(errno(other), Some(libc::EADDRNOTAVAIL));
                        let all = TcpListener::bind(any(4000)).await.unwrap();
                        let second = TcpListener::bind(link_local(2, 4001, ours[1])).await.unwrap();
                        assert_eq!(second.local_addr().unwrap(), link_local(2, 4001, ours[1]));
                        listening.send(()).unwrap();
                        for (n, listener) in [(0, &all), (1, &all), (1, &second)] {
                            let (mut stream, from) = within(listener.accept()).await.unwrap();
                            assert_eq!(from, link_local(THEIRS, from.port(), ours[n]));
                            assert_eq!(stream.peer_addr().unwrap(), from);
                            let local = stream.local_addr().unwrap();
                            assert_eq!(local, link_local(1 + n as u16, local.port(), ours[n]));
                            within(stream.write_all(b"welcome")).await.unwrap();
                        }
                    }
                })
            })
        });
        listens.recv_timeout(LONGEST).unwrap();
        let connect = |to: SocketAddr| wire.peer.enter(|| std::net::TcpStream::connect_timeout(&to, LONGEST));
        for (last, port, n) in [(1, 4000, 0), (2, 4000, 1), (2, 4001, 1)] {
            let mut stream = connect(link_local(last, port, theirs[n])).unwrap();
            stream.set_read_timeout(Some(LONGEST)).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert_eq!(text, "welcome");
        }
        run.join().unwrap().unwrap();
    });
}

#[test]
fn datagrams_are_answered_through_their_device() {
    let Some(wire) = wire("datagrams by scopes") else { return };
    let (peer, theirs) = wire.peer.enter(|| (KernelUdp::bind(any(53)).unwrap(), numbers(OTHERS)));
    peer.set_read_timeout(Some(LONGEST)).unwrap();
    let (bound, binds) = channel();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            wire.ours.enter(|| {
                let ours = numbers(DEVICES);
                runtime().run(move |_| {
                    let bound = bound.clone();
                    async move {
                        let socket = UdpSocket::bind(any(4000)).await.unwrap();
                        bound.send(()).unwrap();
                        let mut buf = [0; 100];
                        for n in [1, 0] {
                            let (len, from) = within(socket.recv_from(&mut buf)).await.unwrap();
                            assert_eq!((&buf[..len], from), (&b"which?"[..], link_local(THEIRS, 53, ours[n])));
                            within(socket.send_to(b"this", from)).await.unwrap();
                        }
                        // The last answer may have waited for neighbour resolution.
                        within(socket.recv_from(&mut buf)).await.unwrap();
                        let none = within(socket.send_to(b"x", link_local(THEIRS, 53, 999))).await;
                        assert_eq!(errno(none), Some(libc::ENETUNREACH));
                        let other = UdpSocket::bind(any(0)).await.unwrap();
                        assert_eq!(errno(other.connect(link_local(THEIRS, 53, 0)).await), Some(libc::EINVAL));
                        other.connect(link_local(THEIRS, 53, ours[1])).await.unwrap();
                        assert_eq!(other.peer_addr().unwrap(), link_local(THEIRS, 53, ours[1]));
                        within(other.send(b"connected")).await.unwrap();
                        let len = within(other.recv(&mut buf)).await.unwrap();
                        assert_eq!(&buf[..len], b"heard");
                    }
                })
            })
        });
        binds.recv_timeout(LONGEST).unwrap();
        let mut buf = [0; 100];
        for n in [1, 0] {
            peer.send_to(b"which?", link_local(1 + n as u16, 4000, theirs[n])).unwrap();
            let (len, from) = peer.recv_from(&mut buf).unwrap();
            assert_eq!((&buf[..len], from), (&b"this"[..], link_local(1 + n as u16, 4000, theirs[n])));
        }
        peer.send_to(b"heard both", link_local(1, 4000, theirs[0])).unwrap();
        let (len, from) = peer.recv_from(&mut buf).unwrap();
        assert_eq!((&buf[..len], from.ip()), (&b"connected"[..], link_local(2, 0, 0).ip()));
        peer.send_to(b"heard", from).unwrap();
        run.join().unwrap().unwrap();
    });
}
