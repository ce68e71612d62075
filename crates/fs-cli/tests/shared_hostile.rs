//! A hostile program on a shared device: invalid frames, invalid ring entries, and invalid requests
//! to the daemon. Each frame is dropped and counted, and its neighbour goes on. Needs root.

#[path = "shared/lab.rs"]
mod lab;
#[allow(dead_code, reason = "shared with the test of proofs")]
#[path = "shared/liar.rs"]
mod liar;
#[path = "shared/rings_unsafe.rs"]
mod rings_unsafe;
#[path = "shared/role.rs"]
mod role;

use fs_core::Protocol;
use fs_daemon::shared;
use fs_rt::broker::message::{Answer, LEN, Request};
use fs_xdp::{Umem, UmemConfig};
use lab::{DEVICE, Lab};
use liar::{Liar, MEMORY, Offloads, RINGS, attach, call, datagram, greet, segment, with_partial_checksum};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::net::sockopt::{set_ip_freebind, set_ipv6_freebind};
use rustix::net::{AddressFamily, SendFlags, SocketType};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

#[test]
fn program() {
    role::play();
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A neighbour, a hostile program with a lease of port 7002 (UDP), and a peer that receives at port
/// 9000.
struct Scene {
    lab: Lab,
    _daemon: lab::Running,
    neighbour: lab::Running,
    liar: Liar,
    sinks: [UdpSocket; 2],
}

const OWN: [&str; 2] = ["10.91.0.1:7002", "[fd91::1]:7002"];
const TO: [&str; 2] = ["10.91.0.2:9000", "[fd91::2]:9000"];

impl Scene {
    fn new(test: &str) -> Option<Self> {
        let lab = Lab::up(test)?;
        let daemon = lab.daemon();
        let neighbour = lab.program(&lab.host, 65_533, "serve 7001");
        let mut liar = lab.host.enter(|| Liar::new(&lab));
        let sinks = TO.map(|to| lab.peer.enter(|| UdpSocket::bind(to).unwrap()));
        // Nothing is leased yet.
        liar.send(&datagram(at(OWN[0]), at(TO[0]), 10));
        let socket = lab.host.enter(|| UdpSocket::bind("[::]:7002").unwrap());
        assert_eq!(liar.lease(socket), Answer::Done);
        for sink in &sinks {
            sink.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        }
        Some(Self { lab, _daemon: daemon, neighbour, liar, sinks })
    }

    /// Sends a valid datagram, which must be the next one that the peer receives.
    fn is_next(&mut self, v6: bool, payload: usize) {
        let number = usize::from(v6);
        self.liar.send(&datagram(at(OWN[number]), at(TO[number]), payload));
        let came = self.sinks[number].recv_from(&mut [0; 2000]).unwrap();
        assert_eq!(came, (payload, at(OWN[number])), "a forged one has come");
    }

    fn end(self) {
        let Self { lab, _daemon, neighbour, liar, .. } = self;
        lab.echoes(7001, 10_000);
        drop((neighbour, liar));
        lab.wait_for_pairs(0);
        assert!(lab.listed().is_empty());
        drop(_daemon);
        lab.down();
    }
}

fn changed(good: &[u8], at: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

#[test]
fn forged_frames_are_dropped_and_counted() {
    let Some(mut scene) = Scene::new("forged") else { return };
    scene.is_next(false, 20);
    let (own, to) = (at(OWN[0]), at(TO[0]));
    let good = datagram(own, to, 30);
    let liar = &mut scene.liar;
    liar.send(&datagram(at("10.91.0.1:7001"), to, 30)); // the neighbour's port
    liar.send(&datagram(at("10.91.0.1:53"), to, 30)); // the kernel's
    liar.send(&datagram(at("10.91.0.9:7002"), to, 30));
    liar.send(&changed(&good, 23, &[6])); // TCP of a port that is leased for UDP
    liar.send(&changed(&good, 23, &[1])); // ICMP
    liar.send(&changed(&good, 20, &[0x20, 0])); // the first of several fragments
    liar.send(&changed(&good, 20, &[0, 9])); // a later fragment
    liar.send(&changed(&good, 14, &[0x46])); // options
    liar.send(&changed(&good, 12, &[8, 6])); // ARP
    liar.send(&changed(&good, 12, &[0x86, 0xdd])); // IPv6, by its type only
    liar.send(&[&good[..12], &[0x81, 0, 0, 5], &good[12..]].concat()); // a VLAN tag
    liar.send(&[&good[..12], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 5], &good[12..]].concat()); // two
    liar.send(&datagram(own, at("10.91.0.1:7001"), 30)); // to this host
    liar.send(&datagram(own, at("127.0.0.1:7001"), 30));
    liar.send(&datagram(own, to, 1600)); // over the device's MTU
    liar.send(&good[..20]);
    scene.is_next(false, 40);
    let counters = scene.liar.counters(&scene.lab);
    assert_eq!(counters["out_frames"], 2, "{counters:?}");
    assert_eq!(counters["drop_port"], 4, "{counters:?}");
    assert_eq!(counters["drop_address"], 1, "{counters:?}");
    assert_eq!(counters["drop_fragment"], 2, "{counters:?}");
    assert_eq!(counters["drop_local"], 2, "{counters:?}");
    assert_eq!(counters["drop_length"], 1, "{counters:?}");
    assert_eq!(counters["drop_protocol"] + counters["drop_malformed"], 7, "{counters:?}");
    scene.end();
}

#[test]
fn forged_frames_of_ipv6_are_dropped_and_counted() {
    let Some(mut scene) = Scene::new("forged6") else { return };
    scene.is_next(true, 20);
    let (own, to) = (at(OWN[1]), at(TO[1]));
    let good = datagram(own, to, 30);
    let liar = &mut scene.liar;
    liar.send(&datagram(at("[fd91::1]:7001"), to, 30));
    liar.send(&datagram(at("[fd91::9]:7002"), to, 30));
    liar.send(&datagram(at("[fe80::1]:7002"), to, 30));
    liar.send(&changed(&good, 20, &[6]));
    liar.send(&changed(&good, 20, &[58])); // ICMPv6, as a neighbour's advertisement is
    liar.send(&changed(&good, 20, &[0])); // hop-by-hop options, routing, and destination options
    liar.send(&changed(&good, 20, &[43]));
    liar.send(&changed(&good, 20, &[60]));
    liar.send(&changed(&good, 20, &[44])); // a fragment
    liar.send(&datagram(own, at("[fd91::1]:7001"), 30)); // to this host
    liar.send(&datagram(own, to, 1500)); // over the device's MTU
    liar.send(&changed(&good, 14, &[0x40]));
    liar.send(&good[..50]);
    scene.is_next(true, 40);
    let counters = scene.liar.counters(&scene.lab);
    assert_eq!(counters["out_frames"], 2, "{counters:?}");
    // Includes the scene's datagram without a lease.
    assert_eq!(counters["drop_port"], 3, "{counters:?}");
    assert_eq!(counters["drop_address"], 2, "{counters:?}");
    assert_eq!(counters["drop_fragment"], 1, "{counters:?}");
    assert_eq!(counters["drop_local"], 1, "{counters:?}");
    assert_eq!(counters["drop_length"], 1, "{counters:?}");
    assert_eq!(counters["drop_protocol"] + counters["drop_malformed"], 6, "{counters:?}");
    // The loopback address: its route is no unicast route of the device.
    scene.liar.send(&datagram(own, at("[::1]:7001"), 30));
    scene.is_next(true, 50);
    scene.end();
}

/// Offloads of a descriptor, and packets in several chunks whose headers are cut anywhere.
#[test]
fn offloads_and_super_segments_do_not_pass_the_check() {
    let Some(mut scene) = Scene::new("offloads") else { return };
    let (own, to) = (at(OWN[0]), at(TO[0]));
    let forged = datagram(at("10.91.0.1:7001"), to, 30);
    let good = datagram(own, to, 30);
    let before = scene.liar.counters(&scene.lab);
    // A reserved option.
    scene.liar.send_with(&good, 1 << 31);
    // A forged packet is dropped whole and in parts.
    for cut in [14, 20, 30, 34, 36, 40] {
        scene.liar.send_in_parts(&[&forged[..cut], &forged[cut..]]);
    }
    // Three chunks exceed the device's MTU, with a correct or wrong length in the header.
    let long = datagram(own, to, 9000);
    scene.liar.send_in_parts(&[&long[..3000], &long[3000..6000], &long[6000..]]);
    let short = changed(&long, 16, &58_u16.to_be_bytes());
    scene.liar.send_in_parts(&[&short[..3000], &short[3000..6000], &short[6000..]]);
    // A super-segment in many parts.
    let parts: Vec<&[u8]> = long.chunks(600).collect();
    scene.liar.send_in_parts(&parts);
    scene.is_next(false, 40);
    let counters = scene.liar.counters(&scene.lab);
    let more = |name: &str| counters[name] - before[name];
    assert_eq!(more("out_frames"), 1, "{counters:?}");
    assert_eq!(more("drop_length"), 3, "{counters:?}");
    assert_eq!(more("drop_port") + more("drop_malformed"), 6, "{counters:?}");
    // A valid packet in parts passes.
    scene.liar.send_in_parts(&[&good[..20], &good[20..]]);
    assert_eq!(scene.sinks[0].recv_from(&mut [0; 2000]).unwrap(), (30, own));
    // XDP_TXMD_FLAGS_CHECKSUM with csum_start on the source port: it would be written after the
    // check. The kernel refuses it, and stops this queue there. Last, therefore.
    let mut metadata = [0_u8; 24];
    metadata[0] = 2;
    metadata[8..10].copy_from_slice(&34_u16.to_ne_bytes());
    scene.liar.send_with_metadata(&metadata, &good);
    scene.lab.echoes(7001, 10_000);
    scene.sinks[0].set_nonblocking(true).unwrap();
    if let Ok((_, from)) = scene.sinks[0].recv_from(&mut [0; 2000]) {
        assert_eq!(from, own);
    }
    scene.end();
}

/// Through the packet socket for super-segments: a checksum that the kernel would write over a
/// header after the check, and segments that neither a peer nor the kernel may receive.
#[test]
fn forged_super_segments_are_dropped_and_counted() {
    const TCPV4: u8 = 1;
    const UDP: u8 = 3;
    const TCPV6: u8 = 4;
    const UDP_L4: u8 = 5;
    let Some(mut scene) = Scene::new("segments") else { return };
    let (own, to) = (at(OWN[0]), at(TO[0]));
    let socket = scene.lab.host.enter(|| TcpListener::bind("[::]:7002").unwrap());
    assert_eq!(scene.liar.lease(socket), Answer::Done);
    let honest = Offloads { checksum: Some((34, 16)), kind: TCPV4, size: 1000 };
    let run = segment(own, to, 40_000);
    let one = with_partial_checksum(&datagram(own, to, 30));
    let unfinished = Offloads { checksum: Some((34, 6)), kind: 0, size: 0 };
    let before = scene.liar.counters(&scene.lab);

    assert!(scene.liar.send_segments(honest, &run));
    assert!(scene.liar.send_segments(unfinished, &one));
    assert_eq!(scene.sinks[0].recv_from(&mut [0; 2000]).unwrap(), (30, own));
    let counters = scene.liar.counters(&scene.lab);
    assert_eq!(counters["out_frames"] - before["out_frames"], 2, "{counters:?}");

    // The kernel itself rejects some of them (virtio_net_hdr_to_skb).
    let mut sent = 0;
    let mut lie = |offloads: Offloads, bytes: &[u8]| sent += u64::from(scene.liar.send_segments(offloads, bytes));
    // The checksum would overwrite the source port, the addresses, the length or the urgent
    // pointer.
    for place in [(28, 6), (34, 0), (26, 0), (30, 0), (34, 4), (34, 18)] {
        lie(Offloads { checksum: Some(place), ..unfinished }, &one);
        lie(Offloads { checksum: Some(place), ..honest }, &run);
    }
    for place in [(18, 16), (22, 16), (36, 16), (14, 16)] {
        lie(Offloads { checksum: Some(place), ..honest }, &run);
    }
    for kind in [TCPV6, UDP, UDP_L4] {
        lie(Offloads { kind, ..honest }, &run);
    }
    for kind in [TCPV4, UDP, UDP_L4] {
        lie(Offloads { kind, checksum: Some((34, 6)), size: 1000 }, &datagram(own, to, 3000));
    }
    for size in [1, 8, 255] {
        lie(Offloads { size, ..honest }, &run);
    }
    let more = |scene: &Scene, name: &str| scene.liar.counters(&scene.lab)[name] - before[name];
    assert!(sent >= 10, "the kernel refuses nearly all of them: {sent}");
    // UFO is cut into fragments before the check.
    // The last frames may still be in the queue of a processor.
    let end = Instant::now() + Duration::from_secs(60);
    while more(&scene, "drop_malformed") + more(&scene, "drop_fragment") < sent {
        assert!(Instant::now() < end, "{sent} were sent: {:?}", scene.liar.counters(&scene.lab));
    }
    assert_eq!(more(&scene, "out_frames"), 2);

    // Segments over the device's MTU, and the neighbour's port.
    assert!(scene.liar.send_segments(Offloads { size: 3000, ..honest }, &run));
    assert!(scene.liar.send_segments(honest, &segment(at("10.91.0.1:7001"), to, 40_000)));
    scene.is_next(false, 40);
    assert_eq!((more(&scene, "drop_length"), more(&scene, "drop_port")), (1, 1));
    assert_eq!(more(&scene, "out_frames"), 3);
    scene.end();
}

/// Only the kernel reads the program's rings. It reads each entry up to the producer index, which
/// therefore stays near: docs/SECURITY.md describes the cost of a large index.
#[test]
fn scribbled_rings_harm_nobody_else() {
    let Some(mut scene) = Scene::new("scribbled") else { return };
    let memory = u64::from(MEMORY.chunks * MEMORY.chunk_size);
    let before = scene.liar.counters(&scene.lab);
    for seed in 0..40 {
        let ring = seed as usize % 4;
        scene.liar.rings.take_completions();
        scene.liar.rings.scribble(ring, memory, seed, [0, 1, 64, 1 << 12, 1 << 16][seed as usize % 5]);
        // Packets for the program are lost.
        scene.lab.peer.enter(|| {
            for _ in 0..20 {
                scene.sinks[0].send_to(&[0; 100], OWN[0]).unwrap();
            }
        });
    }
    let after = scene.liar.counters(&scene.lab);
    let is_of_tx = |name: &&str| *name == "out_frames" || name.starts_with("drop_");
    let sent = |counters: &BTreeMap<&str, u64>| -> u64 {
        counters.iter().filter(|(name, _)| is_of_tx(name)).map(|(_, count)| count).sum()
    };
    assert!(sent(&after) > sent(&before), "the kernel has taken no descriptor: {after:?}");
    scene.lab.echoes(7001, 100_000);
    let again = scene.lab.program(&scene.lab.host, 65_532, "serve 7003");
    scene.lab.echoes(7003, 10_000);
    drop(again);
    scene.lab.wait_for_pairs(2);
    scene.end();
}

/// IP_FREEBIND binds a socket to any address, without a right. A lease holds only while its address
/// is one of the host's.
#[test]
fn lease_of_an_address_that_is_not_the_hosts_carries_nothing() {
    let Some(mut scene) = Scene::new("freebind") else { return };
    let bound = |lab: &Lab, to: SocketAddr| {
        lab.host.enter(|| {
            let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = rustix::net::socket(family, SocketType::DGRAM, None).unwrap();
            if to.is_ipv4() { set_ip_freebind(&socket, true) } else { set_ipv6_freebind(&socket, true) }.unwrap();
            rustix::net::bind(&socket, &to).unwrap();
            socket
        })
    };
    scene.lab.peer.run("ip route add 203.0.113.0/24 via 10.91.0.1 && ip route add fd92::/64 via fd91::1");
    for (number, foreign) in ["203.0.113.9:7777", "[fd92::9]:7777"].map(at).into_iter().enumerate() {
        let before = scene.liar.counters(&scene.lab);
        assert_eq!(scene.liar.lease(bound(&scene.lab, foreign)), Answer::Done);
        scene.liar.send(&datagram(foreign, at(TO[number]), 30));
        scene.is_next(number == 1, 40);
        let after = scene.liar.counters(&scene.lab);
        assert_eq!(after["drop_address"] - before["drop_address"], 1, "{after:?}");
        assert_eq!(after["out_frames"] - before["out_frames"], 1, "{after:?}");
        // A packet that the host would forward or drop does not get to the program.
        for to in [foreign, at(OWN[number])] {
            scene.lab.peer.enter(|| scene.sinks[number].send_to(&[0; 10], to).unwrap());
        }
        let end = Instant::now() + Duration::from_secs(60);
        while scene.liar.counters(&scene.lab)["in_frames"] == after["in_frames"] {
            assert!(Instant::now() < end, "its own packet does not arrive");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(scene.liar.counters(&scene.lab)["in_frames"] - after["in_frames"], 1);
    }
    // The lease stays when its address is removed, and carries nothing any more.
    scene.lab.host.run(&format!("ip addr add 10.91.0.77/24 dev {DEVICE}"));
    let own = at("10.91.0.77:7778");
    assert_eq!(scene.liar.lease(bound(&scene.lab, own)), Answer::Done);
    let mut wait_for = |counter: &str| {
        let before = scene.liar.counters(&scene.lab)[counter];
        let end = Instant::now() + Duration::from_secs(60);
        while scene.liar.counters(&scene.lab)[counter] == before {
            assert!(Instant::now() < end, "no {counter}");
            scene.liar.rings.take_completions();
            scene.liar.send(&datagram(own, at(TO[0]), 30));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for("out_frames");
    scene.lab.host.run(&format!("ip addr del 10.91.0.77/24 dev {DEVICE}"));
    wait_for("drop_address");
    scene.end();
}

/// Sends frames, given in hexadecimal digits, by a device.
const SEND: &str = "import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(('peer0', 0))
for frame in sys.argv[1:]:
    s.send(bytes.fromhex(frame))
";

/// A tag with number 0 carries a priority only (IEEE 802.1Q).
#[test]
fn frames_of_a_vlan_are_the_kernels_unless_its_number_is_0() {
    let Some(scene) = Scene::new("vlans") else { return };
    let Scene { lab, liar, .. } = &scene;
    let mut untagged = datagram(at(TO[0]), at(OWN[0]), 10);
    untagged[..6].copy_from_slice(&lab.host.enter(|| fs_xdp::NetDevice::find(DEVICE).unwrap().mac));
    let tagged = |number: u8| {
        let mut frame = untagged.clone();
        frame.splice(12..12, [0x81, 0, 0xe0, number]);
        frame
    };
    let before = liar.counters(lab)["in_frames"];
    let frames = [tagged(5), tagged(0), untagged.clone()];
    let frames = frames.map(|frame| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    lab.peer.run(&format!("python3 -c \"{SEND}\" {}", frames.join(" ")));
    let end = Instant::now() + Duration::from_secs(30);
    let came = || liar.counters(lab)["in_frames"] - before;
    while came() < 2 {
        assert!(Instant::now() < end, "{} of 2 frames", came());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(came(), 2);
    scene.end();
}

/// Requests to the daemon without the required right are refused.
#[test]
fn lies_to_the_daemon_are_refused() {
    let Some(scene) = Scene::new("lies") else { return };
    let (lab, control) = (&scene.lab, &scene.liar.control);
    let refused = |answer: Answer, with: i32| {
        assert!(matches!(answer, Answer::Failed { errno, .. } if errno == with), "{answer:?}");
    };
    // A port of another namespace, a socket without a port, and no socket.
    let far = lab.peer.enter(|| UdpSocket::bind("0.0.0.0:7001").unwrap());
    refused(scene.liar.lease(far), libc::EACCES);
    let unbound = lab.host.enter(|| rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap());
    refused(scene.liar.lease(unbound), libc::EACCES);
    refused(scene.liar.lease(std::fs::File::open("/dev/null").unwrap()), libc::EACCES);
    // A program cannot release its neighbour's lease.
    let release = Request::Release { protocol: Protocol::Tcp, at: at("[::]:7001") };
    assert_eq!(call(control, &release, &[]).0, Answer::Done);
    lab.echoes(7001, 10_000);
    // The program already has a pair, and other slots need their token.
    let (_, file) = Umem::in_file(MEMORY).unwrap();
    refused(call(control, &attach(), &[&file]).0, libc::EINVAL);
    let other = greet(lab);
    for slot in [0, 1, 2, 255, u16::MAX] {
        refused(call(&other, &Request::Resume { slot, token: [0, 0] }, &[]).0, libc::ENOENT);
    }
    // Memory of the wrong type or size, or too large.
    refused(call(&other, &attach(), &[]).0, libc::EINVAL);
    let null: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
    assert!(matches!(call(&other, &attach(), &[&null]).0, Answer::Failed { .. }));
    // Memory that nobody has touched: its pages would be charged to the daemon.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let sparse = rustix::fs::memfd_create("sparse", flags).unwrap();
    rustix::fs::ftruncate(&sparse, u64::from(MEMORY.chunks * MEMORY.chunk_size)).unwrap();
    rustix::fs::fcntl_add_seals(&sparse, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    assert!(matches!(call(&other, &attach(), &[&sparse]).0, Answer::Failed { .. }));
    let sizes = |chunks, chunk_size| Request::Attach {
        name: DEVICE.into(),
        queues: 1,
        memory: UmemConfig { chunks, chunk_size },
        rings: RINGS,
        segments: true,
    };
    for (chunks, size) in [(1025, 4096), (1024, 3), (0, 0), (u32::MAX, 4096), (1 << 20, 4096)] {
        assert!(matches!(call(&other, &sizes(chunks, size), &[&file]).0, Answer::Failed { .. }), "{chunks} {size}");
    }
    let rings = |n| fs_xdp::QueueConfig { rx: n, tx: n, fill: n, lent: n, completion: n };
    for n in [0, 3, 1 << 31] {
        let attach =
            Request::Attach { name: DEVICE.into(), queues: 1, memory: MEMORY, rings: rings(n), segments: true };
        assert!(matches!(call(&other, &attach, &[&file]).0, Answer::Failed { .. }), "{n}");
    }
    // An unknown device, and malformed bytes: the connection ends, the daemon does not.
    refused(call(&other, &Request::Device("lo".into()), &[]).0, libc::ENODEV);
    for bytes in [&[0; LEN][..], &[0xff; LEN], &[1, 2, 3]] {
        let one = greet(lab);
        rustix::net::send(&one, bytes, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(rustix::net::recv(&one, &mut [0; 9][..], rustix::net::RecvFlags::empty()).unwrap().0, 0);
    }
    assert_eq!(lab.pairs(), 2);
    drop(other);
    let rows = lab.host.enter(|| shared::list(shared::PINS.as_ref()).unwrap());
    assert_eq!(rows.len(), 2);
    scene.end();
}

/// A program frees pages of its memory while the daemon registers it. Those that the daemon would fill
/// are charged to the daemon, also after it has refused the program.
#[test]
fn daemon_fills_no_hole_of_a_programs_memory() {
    const STEPS: u32 = 30;
    let Some(lab) = Lab::up("holes") else { return };
    let daemon = lab.daemon();
    let memory = UmemConfig { chunks: 8192, chunk_size: 4096 };
    let attach = Request::Attach { name: DEVICE.into(), queues: 1, memory, rings: RINGS, segments: true };
    // The shortest of three: a late one would put most holes after the registration.
    let mut whole = Duration::MAX;
    for step in [0, 0].into_iter().chain(0..=STEPS) {
        let (_umem, file) = Umem::in_file(memory).unwrap();
        let control = greet(&lab);
        let delay = whole * step / STEPS;
        std::thread::scope(|scope| {
            if step > 0 {
                scope.spawn(|| {
                    std::thread::sleep(delay);
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    rustix::fs::fallocate(&file, flags, 0, u64::from(memory.chunks * memory.chunk_size)).unwrap();
                });
            }
            let began = Instant::now();
            let answer = call(&control, &attach, &[&file]).0;
            if step == 0 {
                assert!(matches!(answer, Answer::Attached { .. }), "{answer:?}");
                whole = whole.min(began.elapsed());
            }
        });
        let filled = rustix::fs::fstat(&file).unwrap().st_blocks;
        assert!(step == 0 || filled == 0, "{filled} blocks at step {step}");
    }
    lab.wait_for_pairs(0);
    drop(daemon);
    lab.down();
}
