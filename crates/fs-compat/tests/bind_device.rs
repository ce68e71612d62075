//! SO_BINDTODEVICE between two devices of one runtime, over veth.

#[path = "common/veth.rs"]
mod veth;

use fs_compat::{TcpSocket, UdpSocket};
use fs_rt::Runtime;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, UdpSocket as KernelUdp};
use std::sync::Arc;
use std::time::Duration;
use veth::{DEVICE, OURS, PEER, Wire, at};

/// The second device, its address, and the address of the kernel at its other end.
const SECOND: &str = "fsc2";
const OURS2: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 90, 0, 1));
const PEER2: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 90, 0, 2));
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

fn wire(test: &str) -> Option<Wire> {
    let wire = Wire::up(test)?;
    wire.lay((SECOND, OURS2), ("fsc3", PEER2), 1);
    Some(wire)
}

fn runtime() -> Runtime {
    let builder = Runtime::builder().device(DEVICE).device(SECOND).cores([0]).pin(false).frames(8192);
    builder.ephemeral_ports(64).build().unwrap()
}

/// Awaits with a limit of 20 s.
async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it takes longer than 60 s")
}

/// Sends a datagram to each of our addresses at `port`; each arrives through the device that has
/// the address.
fn to_both(peer: &KernelUdp, port: u16) {
    peer.send_to(b"by the first", at(OURS, port)).unwrap();
    peer.send_to(b"by the second", at(OURS2, port)).unwrap();
}

#[test]
fn datagrams_of_a_bound_socket() {
    let Some(wire) = wire("datagrams of a bound socket") else { return };
    let peer = Arc::new(wire.peer.enter(|| KernelUdp::bind(at(ANY, 53)).unwrap()));
    peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let run = wire.ours.enter(|| {
        runtime().run(move |_| {
            let peer = peer.clone();
            async move {
                let socket = UdpSocket::bind(at(ANY, 4000)).await.unwrap();
                assert_eq!(socket.device().unwrap(), None);
                let refused = socket.bind_device(Some(b"lo")).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::NotFound);
                assert!(refused.to_string().contains("which has fsc0, fsc2"), "{refused}");
                socket.bind_device(Some(SECOND.as_bytes())).unwrap();
                assert_eq!(socket.device().unwrap().as_deref(), Some(SECOND.as_bytes()));
                let mut buf = [0; 100];
                for bound in [true, false] {
                    to_both(&peer, 4000);
                    // In any order, and the first device's of the first round may come in the
                    // second one.
                    let mut heard = [false; 2];
                    while heard != [!bound, true] {
                        let (n, from) = within(socket.recv_from(&mut buf)).await.unwrap();
                        let second = &buf[..n] == b"by the second";
                        assert!(second || !bound && &buf[..n] == b"by the first", "{:?}", &buf[..n]);
                        assert_eq!(from, at(if second { PEER2 } else { PEER }, 53));
                        heard[usize::from(second)] = true;
                    }
                    // Without a route on that device, the bound socket still looks for the peer's
                    // other address on its link.
                    socket.send_to(b"where from?", at(PEER, 53)).await.unwrap();
                    let heard = tokio::task::spawn_blocking({
                        let peer = peer.clone();
                        move || peer.recv_from(&mut [0; 100]).unwrap().1
                    });
                    assert_eq!(within(heard).await.unwrap(), at(if bound { OURS2 } else { OURS }, 4000));
                    socket.bind_device(None).unwrap();
                }
            }
        })
    });
    run.unwrap();
}

#[test]
fn a_bound_sockets_handle_for_any_thread() {
    let Some(wire) = wire("a bound socket of send") else { return };
    let peer = Arc::new(wire.peer.enter(|| KernelUdp::bind(at(ANY, 53)).unwrap()));
    let run = wire.ours.enter(|| {
        runtime().run(move |core| {
            let peer = peer.clone();
            async move {
                drop(core);
                let socket = fs_compat::net::UdpSocket::bind(at(ANY, 4000)).await.unwrap();
                assert_eq!(socket.bind_device(Some(b"none")).unwrap_err().kind(), ErrorKind::NotFound);
                socket.bind_device(Some(SECOND.as_bytes())).unwrap();
                assert_eq!(socket.device().unwrap().as_deref(), Some(SECOND.as_bytes()));
                // The binding takes effect at the core's next turn. Until then datagrams of the
                // first device arrive.
                let mut buf = [0; 100];
                let mut heard = 0;
                while heard < 10 {
                    to_both(&peer, 4000);
                    loop {
                        let (n, from) = within(socket.recv_from(&mut buf)).await.unwrap();
                        heard = if from == at(PEER2, 53) { heard + 1 } else { 0 };
                        if &buf[..n] == b"by the second" {
                            break;
                        }
                    }
                }
            }
        })
    });
    run.unwrap();
}

#[test]
fn connections_of_a_bound_socket() {
    let Some(wire) = wire("connections of a bound socket") else { return };
    let serving = wire.peer.enter(|| std::net::TcpListener::bind(at(ANY, 80)).unwrap());
    let accepting =
        std::thread::spawn(move || [serving.accept().unwrap().1, serving.accept().unwrap().1].map(|peer| peer.ip()));
    let (asked, asks) = std::sync::mpsc::channel();
    let peer_ns = wire.peer.path();
    let connecting = std::thread::spawn(move || {
        // Connects from the peer's namespace by shell. Each answer is true if the connection was
        // accepted.
        for to in asks {
            let script = format!("exec 3<>/dev/tcp/{to}/4000 && read -r -t 20 <&3");
            let mut command = std::process::Command::new("nsenter");
            command.arg(format!("--net={peer_ns}")).args(["timeout", "20", "bash", "-c", &script]);
            let status = command.stderr(std::process::Stdio::null()).status().unwrap();
            assert_eq!(status.success(), to == OURS2, "{to}");
        }
    });
    let run = wire.ours.enter(|| {
        runtime().run(move |_| {
            let asked = asked.clone();
            async move {
                let bound = || {
                    let socket = TcpSocket::new_v4().unwrap();
                    assert_eq!(socket.bind_device(Some(b"none")).unwrap_err().kind(), ErrorKind::NotFound);
                    socket.bind_device(Some(SECOND.as_bytes())).unwrap();
                    assert_eq!(socket.device().unwrap().as_deref(), Some(SECOND.as_bytes()));
                    socket
                };
                let stream = within(bound().connect(at(PEER, 80))).await.unwrap();
                assert_eq!(stream.local_addr().unwrap().ip(), OURS2);
                let free = within(TcpSocket::new_v4().unwrap().connect(at(PEER, 80))).await.unwrap();
                assert_eq!(free.local_addr().unwrap().ip(), OURS);
                let socket = bound();
                socket.bind(at(ANY, 4000)).unwrap();
                let listener = socket.listen(8).unwrap();
                for to in [OURS, OURS2] {
                    asked.send(to).unwrap();
                }
                let (mut accepted, from) = within(listener.accept()).await.unwrap();
                assert_eq!((accepted.local_addr().unwrap().ip(), from.ip()), (OURS2, PEER2));
                within(tokio::io::AsyncWriteExt::write_all(&mut accepted, b"yes\n")).await.unwrap();
                drop((asked, accepted, stream, free));
            }
        })
    });
    run.unwrap();
    assert_eq!(accepting.join().unwrap(), [OURS2, OURS]);
    connecting.join().unwrap();
}
