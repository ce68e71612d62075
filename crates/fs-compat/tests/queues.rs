//! Several queues and cores on a real device, while its properties change: veth with AF_XDP on one
//! end, the kernel on the other.

#[path = "common/veth.rs"]
mod veth;

use fs_compat::{TcpListener, TcpStream, UdpSocket};
use fs_rt::{LinkChoice, RunError, Runtime, XdpMode};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use veth::{DEVICE, OURS, PEER, Wire, at, netns_unsafe};

const LIMIT: Duration = Duration::from_secs(60);
/// Several segments.
const BYTES: usize = 20_000;

/// A kernel server with a thread per connection.
fn kernel_echo(wire: &Wire, at: SocketAddr) {
    let listener = wire.peer.enter(|| std::net::TcpListener::bind(at).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
}

/// Sends bytes and reads them back.
fn exchange(stream: &mut std::net::TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).unwrap();
    assert!(back == bytes);
}

fn kernel_client(wire: &Wire, to: SocketAddr) -> std::net::TcpStream {
    let until = Instant::now() + LIMIT;
    loop {
        match wire.peer.enter(|| std::net::TcpStream::connect_timeout(&to, LIMIT)) {
            Ok(stream) => {
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                return stream;
            }
            // The server does not listen yet.
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs an echo listener on each core until `over`. `active` connections of each core exchange data
/// with the kernel's server and are counted.
async fn serve(active: usize, exchanges: Arc<AtomicUsize>, over: Arc<AtomicBool>) {
    let listener = TcpListener::bind(at(OURS, 7777)).await.unwrap();
    fs_rt::spawn_local(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            fs_rt::spawn_local(async move {
                let mut buffer = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buffer).await {
                    if stream.write_all(&buffer[..n]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    for _ in 0..active {
        let mut stream = TcpStream::connect(at(PEER, 80)).await.unwrap();
        let exchanges = exchanges.clone();
        fs_rt::spawn_local(async move {
            let mut back = [0; 2000];
            loop {
                stream.write_all(&[7; 2000]).await.unwrap();
                stream.read_exact(&mut back).await.unwrap();
                exchanges.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Ends the runtime when `test` returns or panics.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn sixty_four_queues_on_four_cores_with_defaults() {
    let Some(wire) = Wire::with_queues("64 queues", 64) else { return };
    kernel_echo(&wire, at(PEER, 80));
    let over = Arc::new(AtomicBool::new(false));
    let exchanges = Arc::new(AtomicUsize::new(0));
    let builder = Runtime::builder().device(DEVICE).cores([0, 0, 0, 0]).pin(false).ephemeral_ports(1000);
    let runtime = wire.ours.enter(|| builder.build().unwrap());
    std::thread::scope(|scope| {
        let (told, counted) = (over.clone(), exchanges.clone());
        let ours = &wire.ours;
        let run = scope.spawn(move || {
            let app = move |core: fs_rt::CoreCtx| async move {
                let index = core.index();
                if index == 1 {
                    // The only socket of its port, so its datagrams arrive from every queue.
                    let socket = UdpSocket::bind(at(OURS, 5000)).await.unwrap();
                    fs_rt::spawn_local(async move {
                        let mut buffer = [0; 100];
                        while let Ok((n, from)) = socket.recv_from(&mut buffer).await {
                            let _ = socket.send_to(&buffer[..n], from).await;
                        }
                    });
                }
                serve(25, counted, told).await;
                core.stats()
            };
            ours.enter(|| runtime.run(app))
        });
        let end = Over(over);
        let until = Instant::now() + LIMIT;
        while exchanges.load(Ordering::Relaxed) < 1000 {
            assert!(Instant::now() < until, "{exchanges:?} exchanges");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut streams: Vec<_> = (0..100).map(|_| kernel_client(&wire, at(OURS, 7777))).collect();
        streams.iter_mut().for_each(|stream| exchange(stream, &vec![3; BYTES]));
        for _ in 0..100 {
            let socket = wire.peer.enter(|| std::net::UdpSocket::bind(at(PEER, 0)).unwrap());
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            socket.send_to(b"hello", at(OURS, 5000)).unwrap();
            assert_eq!(socket.recv(&mut [0; 100]).unwrap(), 5);
        }
        drop((streams, end));
        let cores = run.join().unwrap().unwrap();
        let queues = cores.iter().flat_map(|core| &core.links).filter(|(_, link)| link.rx_packets > 0).count();
        assert!(queues > 8, "packets came by {queues} queues only");
        let forwarded: u64 = cores.iter().map(|core| core.stack.packets_forwarded).sum();
        assert!(forwarded > 50, "{forwarded} packets forwarded");
    });
}

#[test]
fn connections_survive_changes_of_their_device() {
    let Some(wire) = Wire::with_queues("changes of a device", 4) else { return };
    kernel_echo(&wire, at(PEER, 80));
    let over = Arc::new(AtomicBool::new(false));
    let exchanges = Arc::new(AtomicUsize::new(0));
    let builder = Runtime::builder().device(DEVICE).cores([0, 0]).pin(false).frames(4096).ephemeral_ports(100);
    let runtime = wire.ours.enter(|| builder.build().unwrap());
    std::thread::scope(|scope| {
        let (told, counted) = (over.clone(), exchanges.clone());
        let ours = &wire.ours;
        let run = scope.spawn(move || ours.enter(|| runtime.run(move |_| serve(4, counted, told))));
        let end = Over(over);
        let mut streams: Vec<_> = (0..8).map(|_| kernel_client(&wire, at(OURS, 7777))).collect();
        let bytes: Vec<u8> = (0..BYTES).map(|n| (n * 7 + n / 256) as u8).collect();
        let mut all_go_on = |after: &str| {
            let before = exchanges.load(Ordering::Relaxed);
            streams.iter_mut().for_each(|stream| exchange(stream, &bytes));
            let until = Instant::now() + LIMIT;
            while exchanges.load(Ordering::Relaxed) < before + 32 {
                assert!(Instant::now() < until, "no active connection goes on after {after}");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        let here = |command: &str| wire.ours.run(&command.replace("DEV", DEVICE));
        all_go_on("the start");
        for mtu in [1300, 1500, 1280, 1400, 1500] {
            here(&format!("ip link set DEV mtu {mtu}"));
            wire.peer.run(&format!("ip link set fsc1 mtu {mtu}"));
            all_go_on(&format!("MTU {mtu}"));
        }
        for _ in 0..3 {
            here("ip link set DEV down && sleep 0.1 && ip link set DEV up");
            all_go_on("a link that was down");
        }
        wire.peer.run("ip link set fsc1 down && sleep 0.3 && ip link set fsc1 up");
        all_go_on("a peer that was down");
        here("ip addr add 10.89.0.77/24 dev DEV && ip addr del 10.89.0.77/24 dev DEV");
        all_go_on("another address");
        here(&format!("ip addr del {OURS}/24 dev DEV && sleep 0.2 && ip addr add {OURS}/24 dev DEV"));
        all_go_on("an address that was away");
        // Repeated, so that at some moment the kernel has the address again before the runtime has
        // seen the change.
        let pair = format!("addr del {OURS}/24 dev DEV\naddr add {OURS}/24 dev DEV\n");
        here(&format!("for i in $(seq 100); do printf '{pair}'; done | ip -batch -"));
        here(&format!("for i in $(seq 100); do printf '{pair}' | ip -batch - || exit 1; done"));
        all_go_on("an address that was away 200 times");
        // The command fails if traffic makes an entry again ten times.
        here("ip neigh flush dev DEV || true");
        all_go_on("neighbours that are forgotten");
        // The peer gets another link address.
        wire.peer.run("ip link set fsc1 down && ip link set fsc1 address 02:00:00:00:77:01 && ip link set fsc1 up");
        here("ip neigh flush dev DEV || true");
        all_go_on("another link address");
        // More netlink messages than the runtime's sockets hold.
        here("for i in $(seq 1 250); do echo addr add 10.99.$i.1/24 dev DEV; done | ip -batch -");
        here("for i in $(seq 1 250); do echo addr del 10.99.$i.1/24 dev DEV; done | ip -batch -");
        all_go_on("500 changes of addresses");
        drop(end);
        run.join().unwrap().unwrap();
    });
}

/// A device gets more queues. They serve it at once, no connection ends, and packets arrive through
/// all.
#[test]
fn connections_survive_new_queues() {
    let Some(wire) = Wire::with_queues("new queues", 4) else { return };
    let channels = |queues: u32| {
        let set = |dev: &str| format!("ethtool -L {dev} rx {queues} tx {queues}");
        // Ours first: a veth with an XDP program never has fewer rx queues than its peer has tx
        // queues. The program runs on new queues after the device was down.
        wire.ours.run(&format!("{} && ip link set {DEVICE} down && ip link set {DEVICE} up", set(DEVICE)));
        wire.peer.run(&set("fsc1"));
    };
    wire.peer.run("ethtool -L fsc1 rx 1 tx 1");
    channels(1);
    kernel_echo(&wire, at(PEER, 80));
    let over = Arc::new(AtomicBool::new(false));
    let exchanges = Arc::new(AtomicUsize::new(0));
    // In generic mode veth delivers nothing by the device's last queue.
    let link = LinkChoice::Xdp { mode: XdpMode::Native };
    let builder = Runtime::builder().device(DEVICE).link(link).cores([0]).pin(false).frames(4096).ephemeral_ports(100);
    let runtime = wire.ours.enter(|| builder.build().unwrap());
    let handle = runtime.handle();
    std::thread::scope(|scope| {
        let (told, counted, ours) = (over.clone(), exchanges.clone(), &wire.ours);
        let run = scope.spawn(move || {
            ours.enter(|| {
                runtime.run(move |core| async move {
                    serve(40, counted, told).await;
                    core.stats()
                })
            })
        });
        let end = Over(over);
        let mut streams: Vec<_> = (0..20).map(|_| kernel_client(&wire, at(OURS, 7777))).collect();
        let mut all_go_on = |after: &str| {
            let before = exchanges.load(Ordering::Relaxed);
            streams.iter_mut().for_each(|stream| exchange(stream, &[5; BYTES]));
            let until = Instant::now() + LIMIT;
            while exchanges.load(Ordering::Relaxed) < before + 400 {
                assert!(Instant::now() < until, "no active connection goes on after {after}");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        all_go_on("the start");
        channels(2);
        all_go_on("two queues");
        // A device whose link address changes is still the same device.
        wire.ours.run(&format!("ip link set {DEVICE} address 02:00:00:00:77:02"));
        wire.peer.run("ip neigh flush dev fsc1");
        all_go_on("another link address of ours");
        channels(4);
        all_go_on("four queues");
        // A queue is opened some time after the device has it. The kernel handles packets that are
        // lost until then, and new connections then use any queue.
        let of_queues = || handle.stats()[0].links.iter().filter(|(_, link)| link.rx_packets > 0).count();
        let until = Instant::now() + LIMIT;
        while of_queues() < 4 && Instant::now() < until {
            exchange(&mut kernel_client(&wire, at(OURS, 7777)), &[5; BYTES]);
            std::thread::sleep(Duration::from_millis(10));
        }
        // All four share half of the frames. The first returns its surplus as frames are used.
        // Connections have the other half.
        while handle.stats()[0].frames_in_use > 2048 + 512 {
            assert!(Instant::now() < until + LIMIT, "{} frames are in use", handle.stats()[0].frames_in_use);
            exchange(&mut streams[0], &[5; BYTES]);
        }
        drop(end);
        let stats = run.join().unwrap().unwrap().remove(0);
        let received: Vec<u64> = stats.links.iter().map(|(_, link)| link.rx_packets).collect();
        assert!(received.len() == 4 && received.iter().all(|&packets| packets > 0), "{received:?}");
        assert_eq!(stats.stack.resets_received, 0);
    });
}

/// One of two devices is deleted and created again, or (in the second round) moved to another namespace and
/// back, with the same index. The other's connections continue, and its core
/// sleeps. Connections of the deleted device continue when it is back. Then the other one is
/// deleted, and at last both: the run ends and names the last one. The runtime is then built again
/// with both.
#[test]
fn devices_are_deleted_and_created_again() {
    let Some(wire) = Wire::up("devices that go") else { return };
    let second = ("fsc2", IpAddr::from([10, 90, 0, 1]), IpAddr::from([10, 90, 0, 2]));
    let lay_second = || wire.lay((second.0, second.1), ("fsc3", second.2), 1);
    for port in [80, 81] {
        kernel_echo(&wire, at("0.0.0.0".parse().unwrap(), port));
    }
    for round in 0..2 {
        lay_second();
        let (one_left, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let exchanges = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
        let builder =
            Runtime::builder().device(DEVICE).device(second.0).cores([0]).pin(false).frames(4096).ephemeral_ports(64);
        let runtime = wire.ours.enter(|| builder.build().unwrap());
        let answered = Arc::new(AtomicBool::new(false));
        let (told, counted, done) = (one_left.clone(), exchanges.clone(), answered.clone());
        std::thread::scope(|scope| {
            let (ours, ended, end) = (&wire.ours, over.clone(), Over(over));
            let run = scope.spawn(move || {
                let app = move |core: fs_rt::CoreCtx| async move {
                    for (n, (peer, counted)) in [PEER, second.2].into_iter().zip(counted).enumerate() {
                        let (told, over) = (told.clone(), ended.clone());
                        fs_rt::spawn_local(async move {
                            let mut stream = TcpStream::connect(at(peer, 80)).await.unwrap();
                            let mut back = [0; 2000];
                            // The other device's connection is not touched.
                            while !(over.load(Ordering::Relaxed) || n == 0 && told.load(Ordering::Relaxed)) {
                                stream.write_all(&[7; 2000]).await.unwrap();
                                stream.read_exact(&mut back).await.unwrap();
                                counted.fetch_add(1, Ordering::Relaxed);
                                tokio::time::sleep(Duration::from_millis(5)).await;
                            }
                        });
                    }
                    while !told.load(Ordering::Relaxed) && !ended.load(Ordering::Relaxed) {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    let turns = core.stats().runtime.turns;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    let turns = core.stats().runtime.turns - turns;
                    assert!(turns < 20_000, "an idle core with a device that is gone turns {turns} times a second");
                    let mut stream = TcpStream::connect(at(PEER, 81)).await.unwrap();
                    stream.write_all(b"x").await.unwrap();
                    stream.read_exact(&mut [0]).await.unwrap();
                    done.store(true, Ordering::Relaxed);
                    // Reached only if the test has failed.
                    while !ended.load(Ordering::Relaxed) {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                };
                ours.enter(|| runtime.run(app))
            });
            let go_on = |n: usize, after: &str| {
                let (before, until) = (exchanges[n].load(Ordering::Relaxed), Instant::now() + LIMIT);
                while exchanges[n].load(Ordering::Relaxed) < before + 20 {
                    assert!(Instant::now() < until && !run.is_finished(), "device {n} in round {round}, {after}");
                    std::thread::sleep(Duration::from_millis(10));
                }
            };
            go_on(0, "at the start");
            go_on(1, "at the start");
            let away = netns_unsafe::NetNs::new();
            if round == 0 {
                wire.ours.run(&format!("ip link del {}", second.0));
            } else {
                wire.ours.run(&format!("ip link set {} netns {}", second.0, away.path()));
            }
            go_on(0, "the other device gone");
            one_left.store(true, Ordering::Relaxed);
            let until = Instant::now() + LIMIT;
            while !answered.load(Ordering::Relaxed) {
                assert!(Instant::now() < until && !run.is_finished(), "a connection over the device that is left");
                std::thread::sleep(Duration::from_millis(10));
            }
            if round == 0 {
                let ns = wire.peer.path();
                wire.ours.run(&format!("ip link add {} type veth peer name fsc3 netns {ns}", second.0));
            } else {
                // The runtime lets it go first.
                away.run(&format!(
                    "for i in $(seq 6000); do ip link show {} | grep -q prog/xdp || exit 0; sleep 0.01; done; false",
                    second.0
                ));
                away.run(&format!("ip link set {} netns {}", second.0, wire.ours.path()));
            }
            // Until the runtime has the device, the kernel would answer for the address, so it has
            // none yet.
            wire.ours.run(&format!(
                "for i in $(seq 6000); do ip link show {} 2> /dev/null | grep -q prog/xdp && exit; sleep 0.01; done; false",
                second.0
            ));
            wire.ours.run(&format!(
                "ip addr add {}/24 dev {second} && ip link set {second} up",
                second.1,
                second = second.0
            ));
            wire.peer.run(&format!("ip addr replace {}/24 dev fsc3 && ip link set fsc3 up", second.2));
            go_on(1, "its device back");
            assert!(wire.ours.try_run(&format!("ping -q -c 1 -W 30 -I {} {} > /dev/null", second.0, second.2)));
            wire.ours.run(&format!("ip link del {DEVICE}"));
            go_on(1, "the other device gone");
            wire.ours.run(&format!("ip link del {}", second.0));
            let until = Instant::now() + LIMIT;
            while !run.is_finished() {
                assert!(Instant::now() < until, "the run goes on without a device");
                std::thread::sleep(Duration::from_millis(10));
            }
            let error = run.join().unwrap().unwrap_err();
            assert!(matches!(&error, RunError::Link { device, .. } if device == second.0), "{error}");
            drop(end);
        });
        wire.lay((DEVICE, OURS), ("fsc1", PEER), 1);
    }
}

/// An address of the device moves to a macvlan on it, as with a container. The kernel then serves
/// packets for it.
#[test]
fn address_moves_to_a_macvlan() {
    let Some(wire) = Wire::up("macvlan") else { return };
    if !wire.ours.try_run(&format!("ip link add mac0 link {DEVICE} type macvlan mode bridge 2> /dev/null")) {
        eprintln!("skipped: macvlan (this kernel has none)");
        return;
    }
    let over = Arc::new(AtomicBool::new(false));
    let runtime = wire.ours.enter(Wire::runtime);
    std::thread::scope(|scope| {
        let (told, ours) = (over.clone(), &wire.ours);
        let run = scope.spawn(move || ours.enter(|| runtime.run(move |_| serve(0, Arc::default(), told))));
        let end = Over(over);
        exchange(&mut kernel_client(&wire, at(OURS, 7777)), &[1; BYTES]);
        let container = Wire { ours: netns_unsafe::NetNs::new(), peer: netns_unsafe::NetNs::new() };
        wire.ours
            .run(&format!("ip addr del {OURS}/24 dev {DEVICE} && ip link set mac0 netns {}", container.peer.path()));
        container.peer.run(&format!("ip addr add {OURS}/24 dev mac0 && ip link set mac0 up"));
        kernel_echo(&container, at(OURS, 7777));
        wire.peer.run("ip neigh flush dev fsc1");
        exchange(&mut kernel_client(&wire, at(OURS, 7777)), &[2; BYTES]);
        drop(end);
        run.join().unwrap().unwrap();
    });
}

#[test]
fn connects_use_the_kernels_source_address() {
    let Some(wire) = Wire::up("source addresses") else { return };
    wire.peer.run("ip addr add 10.50.0.1/24 dev fsc1 && ip addr add fd89::2/64 dev fsc1 nodad");
    wire.ours.run(&format!(
        "ip addr add 10.89.0.5/24 dev {DEVICE} && ip route add 10.50.0.0/24 dev {DEVICE} src 10.89.0.5 &&
         ip addr add fd89::1:1/64 dev {DEVICE} nodad && ip addr add fd89::1/96 dev {DEVICE} nodad preferred_lft 0"
    ));
    kernel_echo(&wire, "[::]:80".parse().unwrap());
    let run = wire.ours.enter(|| {
        Wire::runtime().run(|_| async {
            for (to, from) in
                [("10.50.0.1:80", "10.89.0.5"), ("10.89.0.2:80", "10.89.0.1"), ("[fd89::2]:80", "fd89::1:1")]
            {
                let to: SocketAddr = to.parse().unwrap();
                let stream = TcpStream::connect(to).await.unwrap();
                assert_eq!(stream.local_addr().unwrap().ip(), from.parse::<std::net::IpAddr>().unwrap(), "to {to}");
            }
        })
    });
    run.unwrap();
}
