//! Several unprivileged programs share a device. The peers on the wire are kernels. Needs root, for
//! namespaces.

#[path = "shared/lab.rs"]
mod lab;
#[path = "shared/role.rs"]
mod role;

use fs_daemon::shared;
use lab::{DEVICE, Lab, NetNs, connect, exchange, ours, peers};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

#[test]
fn program() {
    role::play();
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
    // Packets without a lease go to the kernel.
    let kernel = lab.host.enter(|| std::net::TcpListener::bind("[::]:7003").unwrap());
    lab.peer.enter(|| drop(connect(SocketAddr::new(ours(false), 7003))));
    kernel.accept().unwrap();
    lab.peer.run(&format!("ping -c 1 -W 30 {} >/dev/null && ping -c 1 -W 30 {} >/dev/null", ours(false), ours(true)));
    // The kernel refuses the port to other sockets.
    let taken = lab.host.enter(|| std::net::TcpListener::bind("0.0.0.0:7001").unwrap_err());
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    // Clients on this host use the kernel.
    lab.host.enter(|| exchange(&mut connect(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 7001)), 10_000));

    // A killed program leaves nothing behind.
    one.kill();
    lab.wait_for_pairs(1);
    // The daemon's duplicate of the listener could accept until it is closed.
    lab.wait_for_port(7001);
    let gone = || std::net::TcpStream::connect_timeout(&SocketAddr::new(ours(false), 7001), Duration::from_secs(30));
    assert_eq!(lab.peer.enter(|| gone().unwrap_err().kind()), std::io::ErrorKind::ConnectionRefused);
    let _again = lab.host.enter(|| std::net::TcpListener::bind("0.0.0.0:7001").unwrap());

    // Connections outlive the daemon, and the next daemon knows the programs.
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
    assert_eq!(lab.listed().len(), 2);

    // A program that ends while no daemon runs.
    drop((_daemon, two));
    lab.wait_for_pairs(1);
    let _daemon = lab.daemon();
    lab.echoes(7004, 10_000);
    assert_eq!(lab.listed().len(), 1);

    drop((_daemon, _three));
    lab.down();
    let rest = lab.host.enter(|| shared::list(shared::PINS.as_ref()).unwrap());
    assert!(rest.is_empty(), "{rest:?}");
    // Packets of the former lease go to the kernel.
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
    // The program also connects to the peer.
    let echo = lab.peer.enter(|| std::net::TcpListener::bind("[::]:7100").unwrap());
    let serve = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut reader, _) = echo.accept().unwrap();
            let mut writer = reader.try_clone().unwrap();
            std::io::copy(&mut reader, &mut writer).unwrap();
        }
    });
    let mut client = lab.program(&container, 65_533, "ask 7100");
    // Its connections have ended too. The peer of a killed program gets no packet about that.
    client.wait_for("over");
    serve.join().unwrap();
    drop(server);
    lab.wait_for_pairs(0);
    lab.down();
}

/// 3000 bytes in datagrams of 1200 by one call (UDP_SEGMENT) are one packet on veth, and come back as
/// they were sent.
const SEGMENTS: &str = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(30)
s.setsockopt(17, 103, 1200)
s.sendto(bytes(3000), ('10.91.0.1', 7001))
lens = sorted(len(s.recv(4096)) for _ in range(3))
assert lens == [600, 1200, 1200], lens
";

#[test]
fn datagrams_that_arrive_as_one_packet() {
    let Some(lab) = Lab::up("segments") else { return };
    let daemon = lab.daemon();
    let container = NetNs::new();
    for namespace in [&lab.host, &container] {
        let program = lab.program(namespace, 65_534, "serve 7001");
        lab.peer.run(&format!("python3 -c \"{SEGMENTS}\""));
        program.kill();
        lab.wait_for_pairs(0);
        lab.wait_for_port(7001);
    }
    drop(daemon);
    lab.down();
}

/// A socket with a peer, bound to a device, or at a port that the kernel has chosen, proves no lease.
#[test]
fn kernel_sockets_are_taken_over() {
    let Some(lab) = Lab::up("given") else { return };
    let daemon = lab.daemon();
    let echo = lab.peer.enter(|| std::net::UdpSocket::bind((peers(false), 9000)).unwrap());
    let serve = std::thread::spawn(move || {
        for _ in 0..4 {
            let mut bytes = [0; 9];
            let (len, from) = echo.recv_from(&mut bytes).unwrap();
            echo.send_to(&bytes[..len], from).unwrap();
        }
    });
    lab.host.run("ip addr add fe80::7/64 dev fsd0 nodad");
    let index = lab.host.enter(|| fs_xdp::NetDevice::find(DEVICE).unwrap().index);
    drop(lab.program(&lab.host, 65_534, &format!("given 9000 local=[fe80::7%{index}]:0")));
    serve.join().unwrap();
    drop(daemon);
    lab.wait_for_pairs(0);
    lab.down();
}

#[test]
fn program_with_several_cores_on_several_devices() {
    let Some(lab) = Lab::with("several", 2, 4) else { return };
    let daemon = lab.daemon();
    let mut both = lab.program(&lab.host, 65_534, "serve 7001 cores=2 device=fsd0 device=fsd1");
    // One program uses one device, with more cores than the other program and as many as there are
    // queues.
    let mut one = lab.program(&lab.host, 65_533, "serve 7002 cores=4 device=fsd1");
    assert_eq!(lab.pairs(), 3);
    for device in 0..2 {
        (0..8).for_each(|_| lab.echoes_at(device, 7001, 50_000));
    }
    (0..8).for_each(|_| lab.echoes_at(1, 7002, 50_000));
    assert_eq!((both.wait_for("carrier"), one.wait_for("carrier")), ("Core".into(), "Core".into()));
    // On the device that the program does not use, the kernel has the port.
    lab.peer.enter(|| exchange(&mut connect(SocketAddr::new(ours(false), 7002)), 10_000));
    daemon.kill();
    let _daemon = lab.daemon();
    lab.echoes_at(0, 7001, 10_000);
    lab.echoes_at(1, 7002, 10_000);
    assert_eq!(lab.listed().len(), 3);
    both.kill();
    lab.wait_for_pairs(1);
    lab.echoes_at(1, 7002, 10_000);
    drop((_daemon, one));
    lab.down();
}

#[test]
fn policies_refuse_leases() {
    let Some(lab) = Lab::up("policies") else { return };
    let daemon = lab.daemon_of(
        "devices = ['fsd0']\n\
         [[policy]]\nring = false\nuser = 65534\ncall = 'bind'\nports = '7001-7009'\n",
    );
    let bound = |uid, port| lab.program(&lab.host, uid, &format!("bind {port}")).last();
    assert_eq!(bound(65_534, 7001), "a rule denies port 7001 to user 65534");
    lab.wait_for_port(7001);
    assert_eq!((bound(65_534, 7010), bound(65_533, 7001)), ("bound".into(), "bound".into()));
    drop(daemon);
    lab.wait_for_pairs(0);
    lab.down();
}

/// A kernel server has closed its listener, and goes on with a connection.
#[test]
fn port_with_connections_of_the_kernel_is_in_use() {
    let Some(lab) = Lab::up("draining") else { return };
    let daemon = lab.daemon();
    let bound = || lab.program(&lab.host, 65_534, "bind 7001").last();
    let (mut client, mut server) = lab.host.enter(|| {
        let listener = std::net::TcpListener::bind("0.0.0.0:7001").unwrap();
        let client = lab.peer.enter(|| connect(SocketAddr::new(ours(false), 7001)));
        (client, listener.accept().unwrap().0)
    });
    assert_eq!(bound(), "the kernel has connections at port 7001");
    client.write_all(b"goes on").unwrap();
    server.read_exact(&mut [0; 7]).unwrap();
    // In TIME-WAIT the port is free.
    drop(server);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    drop(client);
    let end = Instant::now() + Duration::from_secs(60);
    while bound() != "bound" {
        assert!(Instant::now() < end, "the port is in use");
    }
    drop(daemon);
    lab.wait_for_pairs(0);
    lab.down();
}

#[test]
fn device_that_goes_and_comes_back_is_shared_again() {
    let Some(lab) = Lab::up("unplugged") else { return };
    let _daemon = lab.daemon();
    let mut before = lab.program(&lab.host, 65_534, "serve 7001");
    lab.echoes(7001, 10_000);
    lab.host.run("ip link del fsd0");
    // The program has no other device.
    before.wait_for_end();
    lab.wait_for_pairs(0);
    lab.wait_for_port(7001);
    lab.plug(0, 1);
    let after = lab.program(&lab.host, 65_534, "serve 7001");
    lab.echoes(7001, 10_000);
    assert_eq!(lab.listed().len(), 1);
    drop((_daemon, after));
    lab.wait_for_pairs(0);
    lab.down();
}

/// In a mount namespace of its own, where no BPF file system is mounted: as in a container.
#[test]
fn daemon_mounts_the_bpf_file_system_if_it_is_missing() {
    const BPF: &str = "bpf /sys/fs/bpf bpf ";
    let Some(lab) = Lab::up("mount") else { return };
    let up = lab.up_command();
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.arg(
        "while umount /sys/fs/bpf 2>/dev/null; do :; done; grep -c ' /sys/fs/bpf ' /proc/self/mounts; exec \"$@\"",
    );
    command.arg("sh").arg(up.get_program()).args(up.get_args());
    let mut daemon = lab.host.enter(|| lab::Running::spawn(&mut command));
    assert_eq!(daemon.wait_for(""), "0");
    daemon.wait_for("ready");
    let mounts = std::fs::read_to_string(format!("/proc/{}/mounts", daemon.pid())).unwrap();
    assert_eq!(mounts.lines().filter(|line| line.starts_with(BPF)).count(), 1, "{mounts}");
    let program = lab.program(&lab.host, 65_534, "serve 7001");
    lab.echoes(7001, 10_000);
    // Nothing is pinned elsewhere: all of it ends with the daemon.
    assert!(lab.listed().is_empty());
    drop((program, daemon));
    lab.wait_for_pairs(0);
}

/// A program takes two of four queues by name. The others stay the daemon's programs' and the
/// kernel's, whichever queue their packets come by.
#[test]
fn program_takes_queues_beside_the_daemon() {
    let Some(lab) = Lab::with("queues", 1, 4) else { return };
    let daemon = lab.daemon();
    let mut own = lab.program_of_root("serve 7001 cores=2 queue=2 queue=3");
    let mut shared = lab.program(&lab.host, 65_534, "serve 7002 cores=2");
    assert_eq!(lab.pairs(), 1);
    let kernel = lab.host.enter(|| std::net::TcpListener::bind("[::]:7003").unwrap());
    let to_kernel = || {
        lab.peer.enter(|| drop(connect(SocketAddr::new(ours(false), 7003))));
        drop(kernel.accept().unwrap());
    };
    let mut carriers = Vec::new();
    for queue in 0..4 {
        lab.lead_to(queue);
        // Over IPv4 and IPv6.
        lab.echoes(7001, 300_000);
        carriers.push([own.wait_for("carrier"), own.wait_for("carrier")]);
        lab.echoes(7002, 300_000);
        assert_eq!([shared.wait_for("carrier"), shared.wait_for("carrier")], ["Core"; 2]);
        to_kernel();
    }
    let (other, core) = (["Kernel(OtherRoute)"; 2], ["Core"; 2]);
    assert_eq!(carriers, [other, other, core, core]);
    // The daemon's end, and the program's, concern nobody else.
    let mut kept = [7001, 7002].map(|port| lab.peer.enter(|| connect(SocketAddr::new(ours(false), port))));
    daemon.kill();
    kept.iter_mut().for_each(|stream| exchange(stream, 100_000));
    let _daemon = lab.daemon();
    own.kill();
    exchange(&mut kept[1], 100_000);
    lab.echoes(7002, 10_000);
    to_kernel();
    let _again = lab.program_of_root("serve 7001 queue=3");
    lab.echoes(7001, 10_000);
    drop((_daemon, _again, shared));
    lab.wait_for_pairs(0);
    lab.down();
}
