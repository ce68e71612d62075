//! Several programs share a device: each a process of a user without rights, real kernels at the
//! other end of the wire. Needs root, for namespaces.

#[path = "shared/lab.rs"]
mod lab;

use fs_compat::{TcpListener, TcpStream, UdpSocket};
use fs_core::{FramePool, Protocol, TxFrame};
use fs_daemon::shared;
use fs_rt::broker::message::{Answer, Request};
use fs_rt::broker::{HELLO, wire};
use fs_rt::{Carrier, Runtime};
use fs_xdp::{HandedQueues, Link, QueueConfig, Umem, UmemConfig};
use lab::{DEVICE, Lab, NetNs, ROLE, connect, exchange, noise, ours, peers};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The programs: this binary again, with another user. Without a role it does nothing.
#[test]
fn program() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<String> = role.split(' ').map(str::to_owned).collect();
    let builder = Runtime::builder().device(DEVICE).cores([0]).pin(false).frames(4096).ephemeral_ports(64);
    let runtime = builder.build().unwrap_or_else(|error| panic!("{error}"));
    let run = move |_| async move {
        match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["serve", port] => serve(port.parse().unwrap()).await,
            ["ask", port] => {
                for v6 in [false, true] {
                    ask(SocketAddr::new(peers(v6), port.parse().unwrap())).await;
                }
            }
            other => panic!("no such role: {other:?}"),
        }
    };
    runtime.run(run).unwrap();
    println!("over");
}

/// Echoes what comes to a port.
async fn serve(port: u16) {
    let listener = TcpListener::bind(format!("[::]:{port}")).await.unwrap();
    let socket = UdpSocket::bind(format!("[::]:{port}")).await.unwrap();
    fs_rt::spawn_local(async move {
        let mut bytes = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut bytes).await {
            let _lost = socket.send_to(&bytes[..len], from).await;
        }
    });
    println!("ready");
    while let Ok((mut stream, _)) = listener.accept().await {
        println!("carrier {:?}", stream.carrier());
        fs_rt::spawn_local(async move {
            let (mut reader, mut writer) = stream.split();
            let _reset = tokio::io::copy(&mut reader, &mut writer).await;
        });
    }
}

/// Sends to an echo server and compares.
async fn ask(to: SocketAddr) {
    let stream = TcpStream::connect(to).await.unwrap();
    assert_eq!(stream.carrier(), Carrier::Core, "{to}");
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sent = noise(1 << 20);
    let copy = sent.clone();
    fs_rt::spawn_local(async move { writer.write_all(&copy).await.unwrap() });
    let mut came = vec![0; sent.len()];
    tokio::time::timeout(Duration::from_secs(20), reader.read_exact(&mut came)).await.unwrap().unwrap();
    assert!(came == sent, "other bytes came back");
    println!("ready");
}

#[test]
fn programs_share_a_device_and_survive_its_daemon() {
    let Some(lab) = Lab::up("share") else { return };
    let daemon = lab.daemon();
    let mut one = lab.program(&lab.host, 65_534, "serve 7001");
    let mut two = lab.program(&lab.host, 65_533, "serve 7002");
    assert_eq!(lab.pairs(), 2);
    lab.echoes(7001, 300_000);
    lab.echoes(7002, 300_000);
    for program in [&mut one, &mut two] {
        assert_eq!(program.wait_for("carrier"), "Core");
    }
    // Packets for ports without a lease go to the kernel.
    let kernel = lab.host.enter(|| std::net::TcpListener::bind("[::]:7003").unwrap());
    lab.peer.enter(|| drop(connect(SocketAddr::new(ours(false), 7003))));
    kernel.accept().unwrap();
    lab.peer.run(&format!("ping -c 1 -W 5 {} >/dev/null && ping -c 1 -W 5 {} >/dev/null", ours(false), ours(true)));
    // The kernel has refused the port to others.
    let taken = lab.host.enter(|| std::net::TcpListener::bind("0.0.0.0:7001").unwrap_err());
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    // This host's own clients use the kernel.
    lab.host.enter(|| exchange(&mut connect(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 7001)), 10_000));

    // A program that is killed leaves nothing.
    one.kill();
    lab.wait_for_pairs(1);
    let gone = || std::net::TcpStream::connect_timeout(&SocketAddr::new(ours(false), 7001), Duration::from_secs(5));
    assert_eq!(lab.peer.enter(|| gone().unwrap_err().kind()), std::io::ErrorKind::ConnectionRefused);
    // The daemon's duplicate of the program's socket is closed a moment later.
    let again = || std::net::TcpListener::bind("0.0.0.0:7001").ok();
    let mut tries = (0..500).map(|_| std::thread::sleep(Duration::from_millis(10)));
    let _again = tries.find_map(|()| lab.host.enter(again)).expect("the port is free");

    // Nothing ends with the daemon, and the next one knows the programs.
    let mut kept = lab.peer.enter(|| connect(SocketAddr::new(ours(true), 7002)));
    exchange(&mut kept, 10_000);
    let to = SocketAddr::new(ours(false), 7002);
    let mut many: Vec<_> = lab.peer.enter(|| (0..500).map(|_| connect(to)).collect());
    daemon.kill();
    many.iter_mut().for_each(|stream| exchange(stream, 100));
    exchange(&mut kept, 300_000);
    lab.echoes(7002, 10_000);
    let _daemon = lab.daemon();
    exchange(&mut kept, 300_000);
    many.iter_mut().for_each(|stream| exchange(stream, 100));
    drop(many);
    let _three = lab.program(&lab.host, 65_534, "serve 7004");
    lab.echoes(7004, 10_000);
    exchange(&mut kept, 10_000);
    assert_eq!(lab.pairs(), 2);
    let listed = lab.says("devices");
    assert_eq!(listed.lines().filter(|line| line.starts_with(DEVICE)).count(), 2, "{listed}");

    // A program that ends while no daemon runs.
    drop((_daemon, two));
    lab.wait_for_pairs(1);
    let _daemon = lab.daemon();
    lab.echoes(7004, 10_000);
    let listed = lab.says("devices");
    assert_eq!(listed.lines().filter(|line| line.starts_with(DEVICE)).count(), 1, "{listed}");

    drop((_daemon, _three));
    assert!(lab.says("down").starts_with("removed"));
    lab.wait_for_pairs(0);
    let rest = lab.host.enter(|| shared::list(shared::PINS.as_ref()).unwrap());
    assert!(rest.is_empty(), "{rest:?}");
    // Packets for a port whose lease has ended are not dropped.
    let kernel = lab.host.enter(|| std::net::TcpListener::bind("[::]:7002").unwrap());
    lab.peer.enter(|| drop(connect(SocketAddr::new(ours(false), 7002))));
    kernel.accept().unwrap();
}

#[test]
fn program_in_another_namespace_needs_the_control_socket_only() {
    let Some(lab) = Lab::up("container") else { return };
    let _daemon = lab.daemon();
    let container = NetNs::new();
    let mut server = lab.program(&container, 65_534, "serve 7001");
    lab.echoes(7001, 300_000);
    assert_eq!(server.wait_for("carrier"), "Core");
    // The port is one of the host.
    let taken = lab.host.enter(|| std::net::TcpListener::bind("0.0.0.0:7001").unwrap_err());
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    // The program also connects over the wire.
    let echo = lab.peer.enter(|| std::net::TcpListener::bind("[::]:7100").unwrap());
    let serve = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut reader, _) = echo.accept().unwrap();
            let mut writer = reader.try_clone().unwrap();
            std::io::copy(&mut reader, &mut writer).unwrap();
        }
    });
    let mut client = lab.program(&container, 65_533, "ask 7100");
    // The killed program's connections have ended too, without a segment to their peers.
    client.wait_for("over");
    serve.join().unwrap();
    drop(server);
    lab.wait_for_pairs(0);
    lab.says("down");
}

/// A program that writes its own frames.
struct Liar {
    link: Box<dyn Link>,
    pool: fs_xdp::UmemPool,
    control: OwnedFd,
}

impl Liar {
    fn new(lab: &Lab) -> Self {
        let control = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&control, &SocketAddrUnix::new(lab.control()).unwrap()).unwrap();
        rustix::net::send(&control, &HELLO, SendFlags::NOSIGNAL).unwrap();
        let config = UmemConfig { chunks: 1024, chunk_size: 4096 };
        let rings = QueueConfig { rx: 256, tx: 256, fill: 256, lent: 64, completion: 256 };
        let (umem, file) = Umem::in_file(config).unwrap();
        let mut pool = umem.pool(1024).unwrap();
        let (_, _) = call(&control, &Request::Device(DEVICE.into()), &[]);
        let attach = Request::Attach { name: DEVICE.into(), queues: 1, memory: config, rings };
        let (answer, mut sockets) = call(&control, &attach, &[&file]);
        assert!(matches!(answer, Answer::Attached { queues: 1, .. }), "{answer:?}");
        let handed = HandedQueues { mtu: 9000, mac: [2; 6], rings };
        let link = Box::new(handed.open(sockets.pop().unwrap(), &umem, &mut pool).unwrap());
        Self { link, pool, control }
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut frame = self.pool.alloc().unwrap();
        frame.grow_back(bytes.len());
        self.pool.bytes_mut(&mut frame).copy_from_slice(bytes);
        let mut batch = vec![TxFrame { frame, checksum: None }];
        self.link.tx(&mut self.pool, &mut batch).unwrap();
        assert!(batch.is_empty());
        self.link.reap(&mut self.pool);
    }
}

fn call(control: &OwnedFd, request: &Request, descriptors: &[&OwnedFd]) -> (Answer, Vec<OwnedFd>) {
    let borrowed: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
    wire::send(control.as_fd(), &request.encode(), &borrowed).unwrap();
    let (record, given) = wire::receive(control.as_fd()).unwrap().unwrap();
    (Answer::decode(&record).unwrap(), given)
}

/// A UDP datagram over IPv4 without a UDP checksum.
fn datagram(from: SocketAddr, to: SocketAddr, payload: usize) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { panic!("IPv4 only") };
    let length = |more: usize| ((payload + more) as u16).to_be_bytes();
    let mut bytes = vec![2; 12];
    bytes.extend([8, 0, 0x45, 0]);
    bytes.extend(length(28));
    bytes.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    bytes.extend(from.ip().octets());
    bytes.extend(to.ip().octets());
    let sum: u32 = bytes[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(length(8));
    bytes.extend([0, 0]);
    bytes.extend(noise(payload));
    bytes
}

#[test]
fn forged_frames_are_dropped_and_counted() {
    let Some(lab) = Lab::up("forged") else { return };
    let _daemon = lab.daemon();
    let neighbour = lab.program(&lab.host, 65_533, "serve 7001");
    let mut liar = lab.host.enter(|| Liar::new(&lab));
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let socket = lab.host.enter(|| std::net::UdpSocket::bind("0.0.0.0:7002").unwrap());
    let sink = lab.peer.enter(|| std::net::UdpSocket::bind("10.91.0.2:9000").unwrap());
    sink.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let (own, to) = (at("10.91.0.1:7002"), at("10.91.0.2:9000"));

    // Nothing is leased yet. Then the own port works.
    liar.send(&datagram(own, to, 10));
    let socket: OwnedFd = socket.into();
    let (answer, _) = call(&liar.control, &Request::Lease, &[&socket]);
    assert_eq!(answer, Answer::Done);
    liar.send(&datagram(own, to, 20));
    let mut bytes = [0; 2000];
    assert_eq!(sink.recv_from(&mut bytes).unwrap(), (20, own));

    let good = datagram(own, to, 30);
    let changed = |at: usize, with: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    liar.send(&datagram(at("10.91.0.1:7001"), to, 30)); // the neighbour's port
    liar.send(&datagram(at("10.91.0.1:53"), to, 30)); // the kernel's
    liar.send(&datagram(at("10.91.0.9:7002"), to, 30));
    liar.send(&changed(23, &[6])); // TCP of a port that is leased for UDP
    liar.send(&changed(23, &[1])); // ICMP
    liar.send(&changed(20, &[0x20, 0])); // the first of several fragments
    liar.send(&changed(20, &[0, 9])); // a later fragment
    liar.send(&changed(14, &[0x46])); // options
    liar.send(&changed(12, &[8, 6])); // ARP
    liar.send(&changed(12, &[0x86, 0xdd])); // IPv6, by its type only
    liar.send(&[&good[..12], &[0x81, 0, 0, 5], &good[12..]].concat()); // a VLAN tag
    liar.send(&datagram(own, at("10.91.0.1:7001"), 30)); // to this host
    liar.send(&datagram(own, at("127.0.0.1:7001"), 30));
    liar.send(&datagram(own, to, 1600)); // over the device's MTU
    liar.send(&good[..20]);
    liar.send(&datagram(own, to, 40));
    assert_eq!(sink.recv_from(&mut bytes).unwrap(), (40, own), "none of the others has come");

    let rows = lab.host.enter(|| shared::list(shared::PINS.as_ref()).unwrap());
    let of_liar = rows.iter().find(|row| row.counters.drop_local > 0);
    let counters: BTreeMap<_, _> = of_liar.expect("its counters").counters.named().into_iter().collect();
    let counted = |name: &str| counters[name];
    assert_eq!(counted("out_frames"), 2, "{counters:?}");
    assert_eq!(counted("drop_port"), 4, "{counters:?}");
    assert_eq!(counted("drop_address"), 1, "{counters:?}");
    assert_eq!(counted("drop_fragment"), 2, "{counters:?}");
    assert_eq!(counted("drop_local"), 2, "{counters:?}");
    assert_eq!(counted("drop_length"), 1, "{counters:?}");
    assert_eq!(counted("drop_protocol") + counted("drop_malformed"), 6, "{counters:?}");

    // A program gets neither a port that the kernel has not given to it nor a port of another
    // program.
    let far = lab.peer.enter(|| std::net::UdpSocket::bind("0.0.0.0:7001").unwrap());
    let (answer, _) = call(&liar.control, &Request::Lease, &[&far.into()]);
    assert!(matches!(answer, Answer::Failed { errno: libc::EACCES, .. }), "{answer:?}");
    let release = Request::Release { protocol: Protocol::Udp, at: at("0.0.0.0:7001") };
    call(&liar.control, &release, &[]);
    lab.echoes(7001, 10_000);
    drop((neighbour, liar));
    lab.says("down");
}
