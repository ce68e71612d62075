//! Features of AF_XDP: steering, several queues and devices on one UMEM, removed devices, and its
//! errors.

mod errors;
mod queues;
#[path = "../support/mod.rs"]
mod support;

use fs_core::{FramePool, Framing, Protocol, TxChecksum, TxFrame};
use fs_xdp::{
    Link, MultiBuffer, NetDevice, QueueConfig, Umem, UmemConfig, UmemPool, XdpConfig, XdpDevice, XdpError, XdpLink,
    XdpMode,
};
use rustix::thread::CapabilitySet;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::netns_unsafe::{NetNs, drop_capabilities, wait_readable};
use support::*;

const NATIVE: XdpConfig = XdpConfig {
    mode: XdpMode::Native,
    multi_buffer: MultiBuffer::Auto,
    zero_copy: true,
    tx_checksum: true,
    merge: true,
};
const GENERIC: XdpConfig = XdpConfig { mode: XdpMode::Generic, ..NATIVE };
const SMALL: QueueConfig = QueueConfig { rx: 64, tx: 64, fill: 64, lent: 64, completion: 64 };

/// A device in the namespace in which its queues must be opened.
struct Device<'a> {
    ns: &'a NetNs,
    device: XdpDevice,
}

impl std::ops::Deref for Device<'_> {
    type Target = XdpDevice;
    fn deref(&self) -> &XdpDevice {
        &self.device
    }
}

impl Device<'_> {
    fn open_queue(
        &self,
        queue: u32,
        umem: &Arc<Umem>,
        pool: &mut UmemPool,
        config: QueueConfig,
    ) -> Result<XdpLink, XdpError> {
        self.ns.enter(|| self.device.open_queue(queue, umem, pool, config))
    }
}

/// Attaches to an end of `veth` and takes UDP port `OURS` at the end's address.
fn attach(veth: &Veth, end: usize, config: XdpConfig) -> Device<'_> {
    let (ns, name) = veth.ends()[end];
    let device = ns.enter(|| {
        let device = XdpDevice::attach(name, config).unwrap();
        device.port_table().set_addresses(&[address(end)], &[]).unwrap();
        device.port_table().add_local(Protocol::Udp, "0.0.0.0".parse().unwrap(), OURS).unwrap();
        device
    });
    Device { ns, device }
}

fn open(device: &Device<'_>, queue: u32) -> End {
    let (umem, mut pool) = umem(2048, 2048);
    let link = device.open_queue(queue, &umem, &mut pool, SMALL).unwrap();
    End::new(Box::new(link), umem, pool)
}

/// A kernel socket inside an end's namespace.
fn kernel_socket(veth: &Veth, end: usize, port: u16) -> UdpSocket {
    let (ns, _) = veth.ends()[end];
    let socket = ns.enter(|| UdpSocket::bind((address(end), port)).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn hears(socket: &UdpSocket, most: Duration) -> Option<Vec<u8>> {
    socket.set_read_timeout(Some(most)).unwrap();
    let mut buffer = [0; 16384];
    socket.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec())
}

#[test]
fn other_packets_go_to_the_kernel() {
    if skipped_without_root("steering") {
        return;
    }
    for config in [NATIVE, GENERIC] {
        let veth = Veth::new(1, 1500);
        let device = attach(&veth, 1, config);
        let ports = device.port_table();
        let mut end = open(&device, 0);
        let from = kernel_socket(&veth, 0, OURS);
        let kernels = kernel_socket(&veth, 1, KERNELS);
        let placeholder = kernel_socket(&veth, 1, OURS);

        from.send_to(b"for the kernel", (address(1), KERNELS)).unwrap();
        assert_eq!(hears(&kernels, PATIENCE).unwrap(), b"for the kernel");
        from.send_to(b"for us", (address(1), OURS)).unwrap();
        assert!(end.receive(1)[0].ends_with(b"for us"));
        assert_eq!(hears(&placeholder, Duration::from_millis(20)), None, "the kernel has it too");
        assert!(veth.a.try_run(&format!("ping -q -c 1 -W 20 {} > /dev/null", address(1))), "ping does not pass");

        // Not one of the device's addresses, so forwarded traffic passes, and what is for another
        // device's address. A port at a single address is ours where the device has the address.
        ports.set_addresses(&[], &[]).unwrap();
        from.send_to(b"passes", (address(1), OURS)).unwrap();
        assert_eq!(hears(&placeholder, PATIENCE).unwrap(), b"passes");
        ports.add_local(Protocol::Udp, address(1), OURS).unwrap();
        from.send_to(b"passes too", (address(1), OURS)).unwrap();
        assert_eq!(hears(&placeholder, PATIENCE).unwrap(), b"passes too");
        ports.set_addresses(&[address(1)], &[]).unwrap();
        ports.remove_local(Protocol::Udp, "0.0.0.0".parse().unwrap(), OURS).unwrap();
        from.send_to(b"ours again", (address(1), OURS)).unwrap();
        assert!(end.receive(1)[0].ends_with(b"ours again"));
        // Added twice, removed twice.
        ports.add_local(Protocol::Udp, address(1), OURS).unwrap();
        ports.remove_local(Protocol::Udp, address(1), OURS).unwrap();
        from.send_to(b"still ours", (address(1), OURS)).unwrap();
        assert!(end.receive(1)[0].ends_with(b"still ours"));
        ports.remove_local(Protocol::Udp, address(1), OURS).unwrap();
        from.send_to(b"given up", (address(1), OURS)).unwrap();
        assert_eq!(hears(&placeholder, PATIENCE).unwrap(), b"given up");

        let counters = ports.counters().unwrap();
        assert_eq!(counters.redirected, 3, "{counters:?}");
        assert!(counters.passed_port >= 3 && counters.passed_protocol >= 1, "{counters:?}");
        assert_eq!((counters.passed_malformed, counters.passed_no_socket), (0, 0), "{counters:?}");

        // After the socket is closed, the packets of its queue go to the kernel.
        ports.add_local(Protocol::Udp, "0.0.0.0".parse().unwrap(), OURS).unwrap();
        end.close();
        from.send_to(b"nobody home", (address(1), OURS)).unwrap();
        assert_eq!(hears(&placeholder, PATIENCE).unwrap(), b"nobody home");
        assert_eq!(ports.counters().unwrap().passed_no_socket, 1);
        // A queue that will get one.
        ports.guard(true).unwrap();
        from.send_to(b"soon home", (address(1), OURS)).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while ports.counters().unwrap().dropped_no_socket == 0 {
            assert!(Instant::now() < deadline, "{:?}", ports.counters());
        }
        ports.guard(false).unwrap();
        from.send_to(b"nobody again", (address(1), OURS)).unwrap();
        assert_eq!(hears(&placeholder, PATIENCE).unwrap(), b"nobody again");
        // After the device is dropped, there is no program.
        drop(device);
        assert!(!veth.b.try_run("ip link show fsx1 | grep -q xdp"), "a program is left behind");
    }
}

#[test]
fn ephemeral_ports_fragments_icmp_ipv6_and_vlans() {
    if skipped_without_root("steering of odd packets") {
        return;
    }
    let veth = Veth::new(1, 1500);
    // The sender's kernel would send packets of its own, which are counted too.
    veth.a.run("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6");
    let (sender_device, device) = (attach(&veth, 0, NATIVE), attach(&veth, 1, NATIVE));
    let (mut sender, mut end) = (open(&sender_device, 0), open(&device, 0));
    let ports = device.port_table();
    let before = |ports: &fs_xdp::PortTable| ports.counters().unwrap();
    let mut deliver = |bytes: Vec<u8>, end: &mut End, label: &str, ours: bool| {
        let base = before(&ports);
        let frames = sender.frames(&bytes, usize::MAX);
        sender.send(frames);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = before(&ports);
            let passed = |of: &fs_xdp::SteerCounters| {
                of.passed_port + of.passed_protocol + of.passed_fragment + of.passed_malformed + of.dropped_fragment
            };
            let redirected = now.redirected + now.redirected_icmp > base.redirected + base.redirected_icmp;
            if redirected || passed(&now) > passed(&base) {
                assert_eq!(redirected, ours, "{label}: {base:?} then {now:?}");
                break;
            }
            assert!(Instant::now() < deadline, "{label}: neither passed nor redirected");
        }
        end.receive_now();
        before(&ports)
    };

    // TCP to an ephemeral port. The same number in UDP is not affected.
    let mut tcp = packet_to(Framing::Ethernet, 0, 50_000, 80, 1);
    tcp[23] = 6;
    deliver(tcp.clone(), &mut end, "TCP, inactive port", false);
    ports.set_ephemeral_ports([40_000, 50_000]).unwrap();
    deliver(tcp.clone(), &mut end, "TCP, active port", true);
    deliver(packet_to(Framing::Ethernet, 0, 50_000, 80, 1), &mut end, "UDP, active TCP port", false);
    // If it were reassembled, the kernel would reply with RST.
    let mut fragment = tcp.clone();
    fragment[20] = 0x20;
    let counters = deliver(fragment.clone(), &mut end, "first fragment, active port", false);
    assert_eq!((counters.dropped_fragment, counters.passed_fragment), (1, 0));
    fragment[21] = 1;
    let counters = deliver(fragment, &mut end, "second fragment", false);
    assert_eq!((counters.dropped_fragment, counters.passed_fragment), (1, 1));
    ports.set_ephemeral_ports([40_000]).unwrap();
    deliver(tcp, &mut end, "TCP, no longer active", false);

    // A fragment has no ports, or not all bytes.
    let whole = packet(Framing::Ethernet, 0, 100, 1);
    let mut fragment = whole.clone();
    fragment[20] = 0x20;
    let counters = deliver(fragment, &mut end, "first fragment", false);
    assert_eq!(counters.passed_fragment, 2);
    // IPv4 options are skipped.
    let mut options = whole.clone();
    options[14] = 0x46;
    options.splice(34..34, [1, 1, 1, 0]);
    deliver(options, &mut end, "IPv4 options", true);
    // Truncated and invalid packets.
    let counters = deliver(whole[..30].to_vec(), &mut end, "cut IPv4 header", false);
    assert_eq!(counters.passed_malformed, 1);
    let mut bad = whole.clone();
    bad[14] = 0x44;
    deliver(bad, &mut end, "header length below 20", false);

    // One tag with a priority only is skipped. A VLAN is another device's.
    let mut tagged = whole.clone();
    tagged.splice(12..12, [0x81, 0, 0xe0, 0]);
    deliver(tagged.clone(), &mut end, "a priority", true);
    tagged[15] = 5;
    deliver(tagged.clone(), &mut end, "a VLAN", false);
    tagged[15] = 0;
    tagged.splice(12..12, [0x88, 0xa8, 0, 0]);
    deliver(tagged, &mut end, "two tags", false);

    // An ICMP error about a packet that end 1 has sent from its port.
    let quoted = &packet(Framing::Ip, 1, 60, 1)[..28];
    let mut icmp = whole[..34].to_vec();
    icmp[23] = 1;
    icmp.extend([3, 4, 0, 0, 0, 0, 5, 0]);
    icmp.extend(quoted);
    let counters = deliver(icmp.clone(), &mut end, "ICMP about our port", true);
    assert_eq!(counters.redirected_icmp, 1);
    icmp[42 + 20] = 1;
    deliver(icmp, &mut end, "ICMP about another port", false);

    // IPv6: the same rules, with its own addresses.
    let v6 = |next: u8, rest: &[u8]| {
        let mut bytes = whole[..12].to_vec();
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend((rest.len() as u16).to_be_bytes());
        bytes.extend([next, 64]);
        bytes.extend([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        bytes.extend([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        bytes.extend(rest);
        bytes
    };
    let udp = [0x1e, 0x61, 0x1e, 0x61, 0, 20, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    deliver(v6(17, &udp), &mut end, "IPv6 before its address is known", false);
    ports.set_addresses(&[address(1), "fd77::1".parse().unwrap()], &[]).unwrap();
    deliver(v6(17, &udp), &mut end, "IPv6, port added for IPv4 only", false);
    ports.add_local(Protocol::Udp, "::".parse().unwrap(), OURS).unwrap();
    deliver(v6(17, &udp), &mut end, "IPv6 UDP", true);
    deliver(v6(0, &udp), &mut end, "IPv6 with a hop-by-hop header", false);
    let fragment = |next: u8, offset: [u8; 2], port: u16| {
        let mut header = vec![next, 0, offset[0], offset[1], 0, 0, 0, 1, 0, 80];
        header.extend(port.to_be_bytes());
        header.extend([0; 16]);
        v6(44, &header)
    };
    for (label, bytes, dropped) in [
        ("of TCP", fragment(6, [0, 1], 40_000), 2),
        ("of TCP, whole", fragment(6, [0, 0], 40_000), 3),
        ("of TCP, second", fragment(6, [0, 9], 40_000), 3),
        ("of TCP, another port", fragment(6, [0, 1], 40_001), 3),
        ("of UDP", fragment(17, [0, 1], OURS), 3),
    ] {
        let counters = deliver(bytes, &mut end, &format!("IPv6 fragment {label}"), false);
        assert_eq!(counters.dropped_fragment, dropped, "{label}");
    }
    let mut quoted = v6(17, &udp)[14..].to_vec();
    let (src, dst) = (quoted[8..24].to_vec(), quoted[24..40].to_vec());
    quoted[8..24].copy_from_slice(&dst);
    quoted[24..40].copy_from_slice(&src);
    let mut too_big = vec![2, 0, 0, 0, 0, 0, 5, 0];
    too_big.extend(quoted);
    deliver(v6(58, &too_big), &mut end, "ICMPv6 packet too big", true);

    sender.close();
    end.close();
}

/// TCP packets for our ports never reach the kernel at an address that it has again, or has moved
/// to a host behind it, before we have heard of that.
#[test]
fn address_that_is_away() {
    if skipped_without_root("addresses that are away") {
        return;
    }
    let veth = Veth::new(1, 1500);
    let (sender_device, device) = (attach(&veth, 0, NATIVE), attach(&veth, 1, NATIVE));
    let (mut sender, mut end) = (open(&sender_device, 0), open(&device, 0));
    let ports = device.port_table();
    let (active, wildcard, exact, others) = (50_000, 50_001, 50_002, 50_003);
    ports.set_ephemeral_ports([active]).unwrap();
    for any in ["::", "0.0.0.0"] {
        ports.add_local(Protocol::Tcp, any.parse().unwrap(), wildcard).unwrap();
    }
    ports.add_local(Protocol::Tcp, address(1), exact).unwrap();
    let for_macvlan = std::cell::Cell::new(false);
    let mut became = |port: u16, v6: bool, end: &mut End| {
        let before = ports.counters().unwrap();
        let mut bytes = packet_to(Framing::Ethernet, 0, port, 80, 1);
        bytes[23] = 6;
        bytes[5] ^= u8::from(for_macvlan.get());
        if v6 {
            let mut header = vec![0x60, 0, 0, 0, 0, 46, 6, 64];
            header.extend([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
            header.extend([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            bytes.splice(14..34, header);
            bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
        }
        let frames = sender.frames(&bytes, usize::MAX);
        sender.send(frames);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = ports.counters().unwrap();
            end.receive_now();
            if now.redirected > before.redirected {
                return "ours";
            } else if now.dropped_away > before.dropped_away {
                return "dropped";
            } else if now.passed_port > before.passed_port {
                return "the kernel's";
            }
            assert!(Instant::now() < deadline, "port {port}: {before:?} then {now:?}");
        }
    };
    let v6 = "fd77::1".parse().unwrap();
    let ours = [active, wildcard, exact];
    for (kind, forwarding) in [("a host", 0), ("a router", 1)] {
        veth.b.run(&format!(
            "echo {forwarding} > /proc/sys/net/ipv4/ip_forward; echo {forwarding} > /proc/sys/net/ipv6/conf/all/forwarding"
        ));
        ports.set_addresses(&[address(1), v6], &[]).unwrap();
        for port in ours {
            assert_eq!(became(port, false, &mut end), "ours", "{kind}, {port}");
        }
        assert_eq!((became(active, true, &mut end), became(wildcard, true, &mut end)), ("ours", "ours"), "{kind}");
        // The kernel has the IPv4 address, and we have not heard of it.
        ports.set_addresses(&[], &[]).unwrap();
        for port in ours {
            assert_eq!(became(port, false, &mut end), "dropped", "{kind}, {port}");
        }
        assert_eq!(
            (became(active, true, &mut end), became(wildcard, true, &mut end)),
            ("dropped", "dropped"),
            "{kind}"
        );
        assert_eq!(became(others, false, &mut end), "the kernel's", "{kind}");
        // It has moved to a macvlan on the device, which has its own link address.
        for_macvlan.set(true);
        for (port, v6) in [(active, false), (wildcard, false), (exact, false), (active, true), (wildcard, true)] {
            assert_eq!(became(port, v6, &mut end), "the kernel's", "{kind}, {port}, macvlan, IPv6: {v6}");
        }
        // The device's link address has changed.
        let mut mac = device.device().mac;
        mac[5] ^= 1;
        ports.set_mac(mac).unwrap();
        assert_eq!(became(active, false, &mut end), "dropped", "{kind}, another link address");
        for_macvlan.set(false);
        assert_eq!(became(active, false, &mut end), "the kernel's", "{kind}, the link address of before");
        ports.set_mac(device.device().mac).unwrap();
        // A port that is added in the meantime, and one whose share changes.
        ports.add_local(Protocol::Tcp, address(1), others).unwrap();
        ports.share_local(Protocol::Tcp, address(1), exact, fs_xdp::Share::Leaving).unwrap();
        for port in [others, exact] {
            assert_eq!(became(port, false, &mut end), "dropped", "{kind}, {port}");
        }
        ports.share_local(Protocol::Tcp, address(1), exact, fs_xdp::Share::Ours).unwrap();
        ports.remove_local(Protocol::Tcp, address(1), others).unwrap();
        // It has moved to another device of the host.
        ports.set_addresses(&[], &[address(1)]).unwrap();
        for port in ours {
            assert_eq!(became(port, false, &mut end), "the kernel's", "{kind}, {port}");
        }
        ports.set_addresses(&[address(1), v6], &[]).unwrap();
        assert_eq!((became(exact, false, &mut end), became(active, true, &mut end)), ("ours", "ours"), "{kind}");
    }
    // It has moved to a host behind this one.
    ports.set_addresses(&[], &[]).unwrap();
    let (own, peer) = (address(1), address(0));
    veth.b.run(&format!(
        "ip addr add 10.76.0.1/24 dev fsx1 && ip addr del {own}/24 dev fsx1 && ip route add {peer} dev fsx1 &&
         ip route add {own} via 10.76.0.9 dev fsx1 && ip -6 route add fd77::1/128 via fe80::9 dev fsx1"
    ));
    for (port, v6) in [(active, false), (wildcard, false), (exact, false), (active, true), (wildcard, true)] {
        assert_eq!(became(port, v6, &mut end), "the kernel's", "forwarded, {port}, IPv6: {v6}");
    }
    sender.close();
    end.close();
}

/// A SYN can reopen a connection that the kernel has in TIME-WAIT. The new connection is the kernel's
/// too, since the program leaves its later packets to the kernel.
#[test]
fn syn_for_a_connection_of_the_kernel_is_the_kernels() {
    if skipped_without_root("shared ports") {
        return;
    }
    for config in [NATIVE, GENERIC] {
        let veth = Veth::new(1, 1500);
        let (client_ns, server_ns) = (veth.ends()[0].0, veth.ends()[1].0);
        let listener = server_ns.enter(|| TcpListener::bind((address(1), OURS)).unwrap());
        let connect = |from: u16, most: Duration| {
            client_ns.run(&format!("echo {from} {from} > /proc/sys/net/ipv4/ip_local_port_range"));
            client_ns.enter(|| TcpStream::connect_timeout(&(address(1), OURS).into(), most))
        };
        let mut client = connect(40_000, PATIENCE).unwrap();
        // The kernel's end closes first, and has TIME-WAIT.
        drop(listener.accept().unwrap());
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        drop(client);
        let device = attach(&veth, 1, config);
        let ports = device.port_table();
        let end = open(&device, 0);
        ports.add_shared(Protocol::Tcp, address(1), OURS, fs_xdp::Share::Former).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let mut client = loop {
            match connect(40_000, PATIENCE) {
                // The first connection may still wait for its last acknowledgment.
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable => assert!(Instant::now() < deadline),
                connected => break connected.unwrap(),
            }
        };
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"x").unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(server.read(&mut [0]).unwrap(), 1);
        assert_eq!(ports.counters().unwrap().redirected, 0);
        // Other new connections are ours. This test does not answer them.
        connect(40_001, Duration::from_millis(200)).unwrap_err();
        while ports.counters().unwrap().redirected == 0 {
            assert!(Instant::now() < deadline, "{:?}", ports.counters());
        }
        end.close();
    }
}

/// The device or the link computes checksums that the engine leaves open, and the kernel at the
/// other end verifies them.
#[test]
fn checksums_are_finished() {
    if skipped_without_root("TX checksums") {
        return;
    }
    for (mode, tx_checksum, mtu) in [
        (XdpMode::Native, true, 1500),
        (XdpMode::Native, false, 1500),
        (XdpMode::Generic, true, 9000),
        (XdpMode::Generic, false, 9000),
    ] {
        let veth = Veth::new(1, mtu);
        let device = attach(&veth, 0, XdpConfig { mode, tx_checksum, ..NATIVE });
        let kernels = kernel_socket(&veth, 1, KERNELS);
        let mut end = open(&device, 0);
        assert_eq!(end.link.caps().tx_checksum, tx_checksum, "kernel 6.11 or later has TX metadata");
        for (len, piece) in [(60, 2000), (61, 42), (1400, 500), (mtu as usize, 2000), (mtu as usize, 1000)] {
            let mut bytes = packet_to(Framing::Ethernet, 0, KERNELS, len, 7);
            // The pseudo-header's sum, as the engine leaves it.
            let mut sum = u32::from(u16::from_be_bytes([bytes[38], bytes[39]])) + 17;
            for pair in bytes[26..34].chunks(2) {
                sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
            }
            let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
            bytes[40..42].copy_from_slice(&sum.to_be_bytes());
            let mut frames = end.frames(&bytes, piece);
            frames[0].checksum = Some(TxChecksum { start: 34, offset: 6 });
            end.send(frames);
            let heard =
                hears(&kernels, PATIENCE).unwrap_or_else(|| panic!("{len} bytes in pieces of {piece}: refused"));
            assert!(heard == bytes[42..], "{len} bytes in pieces of {piece}: changed");
        }
        end.close();
    }
}

/// A device that sends by a virtual one has a virtual peer too, although its own driver does not say so.
#[test]
fn checksums_are_unfinished_above_a_virtual_device() {
    if skipped_without_root("devices above virtual ones") {
        return;
    }
    let veth = Veth::new(1, 1500);
    for (end, (ns, name)) in veth.ends().into_iter().enumerate() {
        // The neighbour's address is given: the device below would answer for it too.
        ns.run(&format!(
            "ip link add top link {name} address 02:89:00:00:00:0{} type macvlan mode bridge && \
             ip link set top up && ip addr add 10.89.0.{}/24 dev top && \
             ip neigh add 10.89.0.{} lladdr 02:89:00:00:00:0{} dev top",
            end + 1,
            end + 1,
            2 - end,
            2 - end
        ));
    }
    let addr: std::net::IpAddr = "10.89.0.1".parse().unwrap();
    let device = veth.a.enter(|| XdpDevice::attach("top", GENERIC).unwrap());
    device.port_table().set_addresses(&[addr], &[]).unwrap();
    device.port_table().add_local(Protocol::Udp, "0.0.0.0".parse().unwrap(), OURS).unwrap();
    let mut end = open(&Device { ns: &veth.a, device }, 0);
    let socket = veth.b.enter(|| UdpSocket::bind(("10.89.0.2", KERNELS)).unwrap());
    socket.send_to(b"unfinished", (addr, OURS)).unwrap();
    let packet = end.receive(1).remove(0);
    // The addresses, and UDP's protocol number and length.
    let pseudo = segments::sum(&packet[26..34], 17 + 8 + 10);
    assert_eq!(packet[40..42], pseudo.to_be_bytes(), "the checksum is finished");
    assert!(end.link.caps().virtual_peer);
    // A VLAN, which not every kernel has, differs only in the driver's name.
    let vlan = "802.1Q VLAN Support".to_owned();
    let vlan = veth.a.enter(|| {
        let vlan = NetDevice { driver: vlan, ..NetDevice::find("top").unwrap() };
        XdpDevice::expected_caps(&vlan)
    });
    assert!(vlan.virtual_peer);
    end.close();
}

/// Set for the process that holds a queue.
const HOLDS: &str = "FS_XDP_HOLDS_A_QUEUE";

/// Not a test of its own: `nothing_is_left_of_a_killed_process` starts and kills it.
#[test]
fn hold_a_queue() {
    if std::env::var_os(HOLDS).is_none() {
        return;
    }
    let device = XdpDevice::attach("fsx1", NATIVE).unwrap();
    device.port_table().set_addresses(&[address(1)], &[]).unwrap();
    device.port_table().add_local(Protocol::Udp, "0.0.0.0".parse().unwrap(), OURS).unwrap();
    let (umem, mut pool) = umem(512, 2048);
    let _link = device.open_queue(0, &umem, &mut pool, SMALL).unwrap();
    std::thread::sleep(Duration::from_secs(60));
    panic!("nobody has killed me");
}

#[test]
fn nothing_is_left_of_a_killed_process() {
    if skipped_without_root("kill -9") {
        return;
    }
    let veth = Veth::new(1, 1500);
    let placeholder = kernel_socket(&veth, 1, OURS);
    let from = kernel_socket(&veth, 0, OURS);
    let mut child = veth.b.enter(|| {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hold_a_queue"])
            .env(HOLDS, "yes")
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    });
    let has_program = || veth.b.try_run("ip link show fsx1 | grep -q xdp");
    let deadline = Instant::now() + PATIENCE;
    // Until it receives the packets: one that is only late is silent too.
    let mut silent = 0;
    while silent < 3 {
        from.send_to(b"?", (address(1), OURS)).unwrap();
        let is_taken = has_program() && hears(&placeholder, Duration::from_millis(20)).is_none();
        silent = if is_taken { silent + 1 } else { 0 };
        assert!(Instant::now() < deadline, "the child takes no packets");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    while has_program() {
        // The program disappears when the process ends, or not at all.
        assert!(killed.elapsed() < PATIENCE, "the program is still there");
    }
    from.send_to(b"back to the kernel", (address(1), OURS)).unwrap();
    // A late probe, sent while the child was starting, may be queued before it.
    let back = std::iter::repeat_with(|| hears(&placeholder, PATIENCE).unwrap()).find(|heard| heard != b"?");
    assert_eq!(back.unwrap(), b"back to the kernel");
    let device = attach(&veth, 1, NATIVE);
    let mut end = open(&device, 0);
    from.send_to(b"ours at once", (address(1), OURS)).unwrap();
    assert!(end.receive(1)[0].ends_with(b"ours at once"));
    end.close();
}
