//! A program on a device reaches the wire, its own host and other devices, and is reached from
//! them. In namespaces; needs root.

#[path = "common/veth.rs"]
mod veth;

use fs_compat::{TcpListener, TcpSocket, TcpStream, UdpSocket, net};
use fs_rt::{Carrier, CoreRef, Runtime, Why};
use std::future::Future;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use veth::{DEVICE, OURS, PEER, Wire, at};

/// A second pair of devices, which the runtime does not have.
const OTHER_OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 90, 0, 1));
const OTHER_PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 90, 0, 2));
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn wire(test: &str) -> Option<Wire> {
    let wire = Wire::up(test)?;
    wire.lay(("fsc2", OTHER_OURS), ("fsc3", OTHER_PEER), 1);
    Some(wire)
}

/// Runs `app`, and fails after 30 s.
fn run<F: Future<Output = T> + 'static, T: Send + 'static>(app: impl FnOnce() -> F + Send + Clone + 'static) -> T {
    let within = |_| async move { tokio::time::timeout(Duration::from_secs(30), app()).await.expect("it takes 30 s") };
    Wire::runtime().run(within).unwrap().pop().unwrap()
}

/// Connects as a kernel client, once the server listens, and returns everything the server sends.
fn ask(to: SocketAddr) -> String {
    ask_as(to).1
}

/// Returns the client's address too.
fn ask_as(to: SocketAddr) -> (SocketAddr, String) {
    let mut stream = loop {
        match std::net::TcpStream::connect_timeout(&to, Duration::from_secs(60)) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => break result.unwrap(),
        }
    };
    let mut said = String::new();
    let from = stream.local_addr().unwrap();
    stream.read_to_string(&mut said).unwrap_or_else(|error| panic!("{from} to {to}, after {said:?}: {error}"));
    (from, said)
}

#[test]
fn server_answers_wire_host_and_other_devices() {
    let Some(wire) = wire("a server for everybody") else { return };
    wire.ours.enter(|| {
        let serve = || async {
            let listener = TcpListener::bind("0.0.0.0:7777").await.unwrap();
            let mut carriers = Vec::new();
            for _ in 0..5 {
                let (mut stream, peer) = listener.accept().await.unwrap();
                carriers.push((peer.ip(), stream.carrier()));
                stream.write_all(format!("you are {peer}").as_bytes()).await.unwrap();
            }
            carriers.sort_by_key(|(peer, _)| *peer);
            carriers
        };
        let server = std::thread::scope(|scope| {
            let (ours, peer) = (&wire.ours, &wire.peer);
            let server = scope.spawn(move || ours.enter(|| run(serve)));
            for to in [LOOPBACK, OURS, OTHER_OURS] {
                let said = ours.enter(|| ask(at(to, 7777)));
                assert!(said.starts_with(&format!("you are {to}:")), "{to}: {said}");
            }
            for (to, from) in [(OURS, PEER), (OTHER_OURS, OTHER_PEER)] {
                let said = peer.enter(|| ask(at(to, 7777)));
                assert!(said.starts_with(&format!("you are {from}:")), "{to}: {said}");
            }
            server.join().unwrap()
        });
        let here = Carrier::Kernel(Why::ThisHost);
        let expected = [
            (OURS, here),
            (PEER, Carrier::Core),
            (OTHER_OURS, here),
            (OTHER_PEER, Carrier::Kernel(Why::OtherRoute)),
            (LOOPBACK, here),
        ];
        assert_eq!(server, expected);
    });
}

#[test]
fn client_reaches_wire_host_and_other_devices() {
    let Some(wire) = wire("a client to everybody") else { return };
    let greet = |at: SocketAddr| {
        let listener = std::net::TcpListener::bind(at).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().take(2) {
                stream.unwrap().write_all(b"hello").unwrap();
            }
        })
    };
    let mut greeters: Vec<_> = wire.peer.enter(|| [PEER, OTHER_PEER].map(|addr| greet(at(addr, 80)))).into();
    greeters.extend(wire.ours.enter(|| [LOOPBACK, OURS].map(|addr| greet(at(addr, 80)))));
    wire.ours.enter(|| {
        run(|| async {
            let ways = [
                (PEER, Carrier::Core),
                (LOOPBACK, Carrier::Kernel(Why::ThisHost)),
                (OURS, Carrier::Kernel(Why::ThisHost)),
                (OTHER_PEER, Carrier::Kernel(Why::OtherRoute)),
            ];
            for (to, carrier) in ways {
                let mut said = String::new();
                let mut stream = TcpStream::connect((to, 80)).await.unwrap();
                assert_eq!((stream.carrier(), stream.peer_addr().unwrap()), (carrier, at(to, 80)));
                stream.read_to_string(&mut said).await.unwrap();
                assert_eq!(said, "hello");
                let mut stream = net::TcpStream::connect((to, 80)).await.unwrap();
                assert_eq!((stream.carrier(), stream.peer_addr().unwrap()), (carrier, at(to, 80)));
                said.clear();
                stream.read_to_string(&mut said).await.unwrap();
                assert_eq!(said, "hello");
            }
            // Without a listener, or without a route, the kernel returns the error.
            for (to, kind) in [(LOOPBACK, "ConnectionRefused"), ("192.0.2.1".parse().unwrap(), "NetworkUnreachable")] {
                let error = TcpStream::connect((to, 81)).await.unwrap_err();
                assert_eq!(format!("{:?}", error.kind()), kind);
            }
        });
    });
    greeters.into_iter().for_each(|greeter| greeter.join().unwrap());
}

/// The stack has the routes of the table `main` only.
#[test]
fn kernel_carries_what_another_table_routes() {
    let Some(wire) = wire("rules for another table") else { return };
    let far = ["10.60.0.1", "fd60::1"].map(|addr| addr.parse::<IpAddr>().unwrap());
    wire.peer.run(
        "ip addr add 10.60.0.1/32 dev fsc1 && ip addr add fd60::1/128 dev fsc1 nodad &&
         ip addr add fd89::2/64 dev fsc1 nodad",
    );
    wire.ours.run(&format!(
        "ip addr add fd89::1/64 dev {DEVICE} nodad && ip rule add to 10.60.0.1 lookup 100 &&
         ip -6 rule add to fd60::1 lookup 1000 && ip route add default via {PEER} dev {DEVICE} table 100 &&
         ip -6 route add default via fd89::2 dev {DEVICE} table 1000"
    ));
    let greeters = wire.peer.enter(|| {
        far.map(|addr| {
            let listener = std::net::TcpListener::bind(at(addr, 80)).unwrap();
            std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"hello").unwrap())
        })
    });
    wire.ours.enter(|| {
        run(move || async move {
            for to in far {
                let mut stream = TcpStream::connect((to, 80)).await.unwrap();
                assert_eq!(stream.carrier(), Carrier::Kernel(Why::OtherRoute));
                let mut said = String::new();
                stream.read_to_string(&mut said).await.unwrap();
                assert_eq!(said, "hello");
            }
        });
    });
    greeters.into_iter().for_each(|greeter| greeter.join().unwrap());
}

/// Rules for each card, as on cloud images: the table has the gateway that `main` has, too.
#[test]
fn core_carries_what_another_table_routes_like_main() {
    let Some(wire) = wire("rules for each card") else { return };
    let [ours6, other_gateway]: [IpAddr; 2] = ["fd89::1", "10.89.0.9"].map(|addr| addr.parse().unwrap());
    let far = ["10.60.0.1", "fd60::1", "10.60.0.2"].map(|addr| addr.parse::<IpAddr>().unwrap());
    wire.peer.run(&format!(
        "ip addr add {other_gateway}/24 dev fsc1 && ip addr add fd89::2/64 dev fsc1 nodad &&
         ip addr add 10.60.0.1/32 dev fsc1 && ip addr add 10.60.0.2/32 dev fsc1 &&
         ip addr add fd60::1/128 dev fsc1 nodad"
    ));
    wire.ours.run(&format!(
        "ip addr add {ours6}/64 dev {DEVICE} nodad &&
         ip rule add from {OURS} lookup 100 && ip -6 rule add from {ours6} lookup 100 &&
         for table in main 100; do
             ip route add default via {PEER} dev {DEVICE} table $table &&
             ip -6 route add default via fd89::2 dev {DEVICE} table $table || exit 1
         done && ip route add 10.60.0.2 via {other_gateway} dev {DEVICE} table 100"
    ));
    let servers = wire.peer.enter(|| far.map(|addr| std::net::TcpListener::bind(at(addr, 80)).unwrap()));
    wire.ours.enter(|| {
        run(move || async move {
            let by_kernel = Carrier::Kernel(Why::OtherRoute);
            for (to, from, carrier) in [
                (far[0], OURS, Carrier::Core),
                (far[0], Ipv4Addr::UNSPECIFIED.into(), Carrier::Core),
                (far[1], ours6, Carrier::Core),
                (far[2], OURS, by_kernel),
            ] {
                let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
                socket.bind(at(from, 0)).unwrap();
                assert_eq!(socket.connect(at(to, 80)).await.unwrap().carrier(), carrier, "{from} to {to}");
            }
        });
    });
    drop(servers);
}

/// A datagram's route, and not that of a TCP connection between the same ends.
#[test]
fn rule_for_udp_concerns_connected_udp_sockets() {
    let Some(wire) = wire("rules for UDP") else { return };
    let far: IpAddr = "10.61.0.1".parse().unwrap();
    wire.peer.run("ip addr add 10.61.0.1/32 dev fsc1");
    wire.ours.run(&format!(
        "ip route add 10.61.0.1 via {PEER} dev {DEVICE} && ip rule add ipproto udp to 10.61.0.1 lookup 100 &&
         ip route add default via {OTHER_PEER} dev fsc2 table 100"
    ));
    let greeter = wire.peer.enter(|| {
        let listener = std::net::TcpListener::bind(at(far, 80)).unwrap();
        std::thread::spawn(move || drop(listener.accept().unwrap()))
    });
    wire.ours.enter(|| {
        run(move || async move {
            let any = at(Ipv4Addr::UNSPECIFIED.into(), 4000);
            let tcp = TcpSocket::new_v4().unwrap();
            tcp.bind(any).unwrap();
            let stream = tcp.connect(at(far, 80)).await.unwrap();
            assert_eq!((stream.carrier(), stream.local_addr().unwrap().ip()), (Carrier::Core, OURS));
            let udp = UdpSocket::bind(any).await.unwrap();
            udp.connect(at(far, 80)).await.unwrap();
            assert_eq!(udp.local_addr().unwrap().ip(), OTHER_OURS);
        });
    });
    greeter.join().unwrap();
}

#[test]
fn program_connects_to_itself() {
    let Some(wire) = wire("a program that talks to itself") else { return };
    wire.ours.enter(|| {
        run(|| async {
            let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let unspecified = TcpStream::connect((Ipv4Addr::UNSPECIFIED, port)).await.unwrap();
            assert_eq!(unspecified.carrier(), Carrier::Kernel(Why::ThisHost));
            assert!(listener.accept().await.unwrap().1.ip().is_loopback());
            for own in [LOOPBACK, OURS, OTHER_OURS] {
                let (client, served) = tokio::join!(TcpStream::connect((own, port)), listener.accept());
                let (mut client, (mut served, peer)) = (client.unwrap(), served.unwrap());
                assert_eq!(peer, client.local_addr().unwrap());
                assert_eq!(served.local_addr().unwrap(), at(own, port));
                client.write_all(b"to myself").await.unwrap();
                client.shutdown().await.unwrap();
                let mut said = String::new();
                served.read_to_string(&mut said).await.unwrap();
                assert_eq!(said, "to myself");
            }
            // Also from a bound port.
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(at(OURS, 4000)).unwrap();
            let (client, served) = tokio::join!(socket.connect(at(OURS, port)), listener.accept());
            assert_eq!(
                (client.unwrap().carrier(), served.unwrap().1),
                (Carrier::Kernel(Why::ThisHost), at(OURS, 4000))
            );
            // When the listener is closed, the port is free in the kernel again.
            drop(listener);
            let refused = TcpStream::connect((LOOPBACK, port)).await.unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
            drop(TcpListener::bind(at(LOOPBACK, port)).await.unwrap());
        });
    });
}

#[test]
fn datagrams_reach_wire_host_and_other_devices() {
    let Some(wire) = wire("datagrams to everybody") else { return };
    wire.ours.run(&format!("ip route add default via {PEER}"));
    let echo = |at: SocketAddr| {
        let socket = std::net::UdpSocket::bind(at).unwrap();
        std::thread::spawn(move || {
            let mut buf = [0; 64];
            for _ in 0..2 {
                let (n, from) = socket.recv_from(&mut buf).unwrap();
                socket.send_to(&buf[..n], from).unwrap();
            }
        })
    };
    let mut echoes: Vec<_> = wire.peer.enter(|| [PEER, OTHER_PEER].map(|addr| echo(at(addr, 7)))).into();
    echoes.extend(wire.ours.enter(|| [LOOPBACK, OURS, OTHER_OURS].map(|addr| echo(at(addr, 7)))));
    wire.ours.enter(|| {
        run(|| async {
            let everybody =
                [(PEER, OURS), (LOOPBACK, LOOPBACK), (OURS, OURS), (OTHER_OURS, OTHER_OURS), (OTHER_PEER, OTHER_OURS)];
            for (to, from) in everybody {
                let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
                socket.connect((to, 7)).await.unwrap();
                assert_eq!(socket.local_addr().unwrap().ip(), from, "to {to}");
                socket.send(b"echo").await.unwrap();
                let mut buf = [0; 64];
                let n = socket.recv(&mut buf).await.unwrap();
                assert_eq!(&buf[..n], b"echo", "{to}");
                let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
                // Not connected: a longer prefix of another device does not count.
                if to == OTHER_PEER {
                    socket.connect((to, 7)).await.unwrap();
                }
                socket.send_to(b"again", (to, 7)).await.unwrap();
                assert_eq!(socket.recv_from(&mut buf).await.unwrap(), (5, at(to, 7)));
            }
        });
    });
    echoes.into_iter().for_each(|echo| echo.join().unwrap());
}

/// An address of another device of the host, to which the wire's peer has a route by our device.
#[test]
fn address_of_another_device_is_reached_through_ours() {
    let Some(wire) = wire("an address of another device") else { return };
    wire.peer.run(&format!("ip route add {OTHER_OURS}/32 via {OURS} src {PEER}"));
    let server = wire.peer.enter(|| std::net::TcpListener::bind(at(PEER, 80)).unwrap());
    let serve = std::thread::spawn(move || {
        for client in server.incoming().take(2) {
            assert_eq!(client.unwrap().peer_addr().unwrap().ip(), OTHER_OURS);
        }
    });
    wire.ours.enter(|| {
        let app = || async {
            let by_kernel = Carrier::Kernel(Why::OtherRoute);
            let listener = TcpListener::bind(at(OTHER_OURS, 7777)).await.unwrap();
            let socket = UdpSocket::bind(at(OTHER_OURS, 7778)).await.unwrap();
            let (mut stream, peer) = listener.accept().await.unwrap();
            assert_eq!((peer.ip(), stream.carrier()), (PEER, by_kernel));
            stream.write_all(b"hello").await.unwrap();
            drop(stream);
            let mut buf = [0; 64];
            let (n, from) = socket.recv_from(&mut buf).await.unwrap();
            socket.send_to(&buf[..n], from).await.unwrap();
            assert_eq!(socket.try_send_segments(b"segments", 4, Some(from)).unwrap(), 8);
            assert_eq!(socket.try_send_batch(&[(b"batch", Some(from))]).unwrap(), 1);
            socket.connect(from).await.unwrap();
            socket.send(b"connected").await.unwrap();
            // The engine would not receive ICMP errors about them.
            let by_engine = CoreRef::require().unwrap().inspect(|stack| stack.stats().udp_sent);
            assert_eq!(by_engine, 0, "datagrams from another device's address");
            for port in [0, 4000] {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind(at(OTHER_OURS, port)).unwrap();
                assert_eq!(socket.connect(at(PEER, 80)).await.unwrap().carrier(), by_kernel);
            }
        };
        std::thread::scope(|scope| {
            let ours = &wire.ours;
            let server = scope.spawn(move || ours.enter(|| run(app)));
            wire.peer.enter(|| {
                assert_eq!(ask(at(OTHER_OURS, 7777)), "hello");
                let socket = std::net::UdpSocket::bind(at(PEER, 0)).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                socket.send_to(b"echo", at(OTHER_OURS, 7778)).unwrap();
                let mut buf = [0; 64];
                for said in ["echo", "segm", "ents", "batch", "connected"] {
                    assert_eq!(socket.recv_from(&mut buf).unwrap(), (said.len(), at(OTHER_OURS, 7778)), "{said}");
                }
            });
            server.join().unwrap();
        });
    });
    serve.join().unwrap();
}

/// The kernel keeps datagrams for a neighbour that does not reply to ARP, until the socket's buffer is full.
#[test]
fn full_kernel_side_blocks_no_core() {
    // A neighbour of the other device, and one of ours.
    for (silent, connected) in [([10, 90, 0, 77], false), ([10, 89, 0, 77], true)] {
        let silent = at(IpAddr::from(silent), 9);
        let Some(wire) = wire("a full buffer of the kernel") else { return };
        let (done, ended) = std::sync::mpsc::channel();
        let app = move || async move {
            let socket = std::net::UdpSocket::bind(at(OTHER_OURS, 7778)).unwrap();
            socket2::SockRef::from(&socket).set_send_buffer_size(4096).unwrap();
            let socket = UdpSocket::from_std(socket).unwrap();
            if connected {
                socket.connect(silent).await.unwrap();
            }
            let refused = std::rc::Rc::new(std::cell::Cell::new(false));
            let seen = refused.clone();
            tokio::task::spawn_local(async move {
                let mut sends = false;
                loop {
                    socket.writable().await.unwrap();
                    match if connected { socket.try_send(&[7; 1000]) } else { socket.try_send_to(&[7; 1000], silent) } {
                        Ok(_) => sends = true,
                        Err(error) => seen.set(seen.get() || sends && error.kind() == std::io::ErrorKind::WouldBlock),
                    }
                }
            });
            while !refused.get() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // The thread never ends if the core is blocked.
        std::thread::spawn(move || {
            wire.ours.enter(|| run(app));
            done.send(()).unwrap();
        });
        ended.recv_timeout(Duration::from_secs(60)).expect("the core is blocked");
    }
}

/// The kernel knows a path MTU below the device's, here from a route instead of an ICMP message.
#[test]
fn segments_are_not_fragmented_by_the_kernel() {
    let Some(wire) = wire("segments and a path's MTU") else { return };
    wire.ours.run(&format!("ip route add {OTHER_PEER}/32 dev fsc2 mtu 600"));
    let peer = wire.peer.enter(|| std::net::UdpSocket::bind(at(OTHER_PEER, 53)).unwrap());
    peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let fragments = || {
        let counters = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
        let mut ip = counters.lines().filter_map(|line| line.strip_prefix("Ip: ")).map(str::split_whitespace);
        let (mut names, mut values) = (ip.next().unwrap(), ip.next().unwrap());
        let at = names.position(|name| name == "FragCreates").unwrap();
        values.nth(at).unwrap().to_owned()
    };
    let counts = wire.ours.enter(|| {
        run(move || async move {
            let socket = UdpSocket::bind(at(OTHER_OURS, 7778)).await.unwrap();
            let to = at(OTHER_PEER, 53);
            let send = || socket.try_send_segments(&[1; 1500], 1000, Some(to));
            assert_eq!(socket.async_io(tokio::io::Interest::WRITABLE, send).await.unwrap(), 1500);
            let refused = socket.try_send_segments(&[1; 1501], 1501, Some(to)).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE));
            let whole = fragments();
            assert_eq!(socket.send_to(&[1; 1000], to).await.unwrap(), 1000);
            [whole, fragments()]
        })
    });
    assert_eq!(counts, ["0", "2"]);
    for len in [1000, 500, 1000] {
        assert_eq!(peer.recv(&mut [0; 2000]).unwrap(), len);
    }
}

#[test]
fn one_queue_runs_one_of_two_cores() {
    let Some(wire) = wire("one queue") else { return };
    wire.ours.enter(|| {
        let builder = || Runtime::builder().device(DEVICE).frames(4096).ephemeral_ports(64);
        let cores = |runtime: Runtime| runtime.run(|core| async move { core.cores() }).unwrap();
        assert_eq!(cores(veth::build(|| builder().cores([0, 0]).pin(false))), [1]);
        assert_eq!(cores(veth::build(builder)), [1], "by default one for each queue");
    });
}

/// No connection is lost, duplicated or left waiting, whichever core takes it, while listeners open
/// and close.
#[test]
fn connections_are_accepted_once_while_listeners_change() {
    const CLIENTS: usize = 400;
    static ACCEPTED: AtomicUsize = AtomicUsize::new(0);
    static FIRST_LISTENS: AtomicBool = AtomicBool::new(false);
    let Some(wire) = Wire::with_queues("listeners that come and go", 2) else { return };
    let serve = |core: fs_rt::CoreCtx| async move {
        let mut accepted = 0;
        // The first core stays. The second one closes its listener after every few connections,
        // with others in its queues. The last listener of an address would reset those.
        while core.index() > 0 && !FIRST_LISTENS.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        loop {
            let listener = TcpListener::bind("0.0.0.0:7777").await.unwrap();
            FIRST_LISTENS.store(true, Ordering::SeqCst);
            for _ in 0..if core.index() == 0 { usize::MAX } else { 3 } {
                let Ok(next) = tokio::time::timeout(Duration::from_millis(20), listener.accept()).await else {
                    if ACCEPTED.load(Ordering::SeqCst) >= CLIENTS {
                        return accepted;
                    }
                    continue;
                };
                let (mut stream, peer) = next.unwrap();
                accepted += 1;
                ACCEPTED.fetch_add(1, Ordering::SeqCst);
                stream.write_all(format!("you are {peer}").as_bytes()).await.unwrap();
            }
        }
    };
    let accepted = std::thread::scope(|scope| {
        let (ours, other) = (&wire.ours, &wire.peer);
        let server = scope.spawn(move || {
            ours.enter(|| {
                let builder =
                    Runtime::builder().device(DEVICE).cores([0, 0]).pin(false).frames(4096).ephemeral_ports(64);
                builder.build().unwrap().run(serve).unwrap()
            })
        });
        let clients: Vec<_> = (0..8)
            .map(|n| {
                scope.spawn(move || {
                    let (ns, to) = if n % 2 == 0 { (other, OURS) } else { (ours, LOOPBACK) };
                    ns.enter(|| {
                        for _ in 0..CLIENTS / 8 {
                            let (own, said) = ask_as(at(to, 7777));
                            assert_eq!(said, format!("you are {own}"));
                        }
                    });
                })
            })
            .collect();
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        // The cores end, even if a client has failed.
        ACCEPTED.store(CLIENTS, Ordering::SeqCst);
        ended.into_iter().for_each(|client| client.unwrap());
        server.join().unwrap()
    });
    assert_eq!(accepted.iter().sum::<usize>(), CLIENTS);
}

/// A handle lives on, as in a program that counts. Its ports would stay in use for the cool-down of
/// their connections, and the ephemeral ones for ever.
#[test]
fn ports_are_free_after_the_end_of_the_runtime() {
    let Some(wire) = wire("ports after the end") else { return };
    let server = wire.peer.enter(|| std::net::TcpListener::bind(at(PEER, 80)).unwrap());
    wire.ours.enter(|| {
        let runtime = Wire::runtime();
        let handle = runtime.handle();
        let ports = std::thread::scope(|scope| {
            let client = scope.spawn(|| wire.peer.enter(|| ask(at(OURS, 7777))));
            let ports = runtime.run(|_| async {
                let listener = TcpListener::bind(at(OURS, 7777)).await.unwrap();
                listener.accept().await.unwrap().0.write_all(b"hello").await.unwrap();
                let connected = TcpStream::connect(at(PEER, 80)).await.unwrap();
                [7777, connected.local_addr().unwrap().port()]
            });
            assert_eq!(client.join().unwrap(), "hello");
            ports.unwrap().remove(0)
        });
        for port in ports {
            drop(std::net::TcpListener::bind(at(OURS, port)).unwrap_or_else(|error| panic!("{port}: {error}")));
        }
        assert!(handle.has_ended());
    });
    drop(server);
}
