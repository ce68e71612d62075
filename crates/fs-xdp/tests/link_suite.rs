//! One suite for all links. Tests that need root create network namespaces, which disappear with
//! the test.

mod support;

use fs_core::{Framing, Protocol};
use fs_xdp::{
    MultiBuffer, PacketConfig, PacketLink, PortTable, QueueConfig, TapConfig, TapKind, TapLink, XdpConfig, XdpDevice,
    XdpMode, memory_pair,
};
use support::netns_unsafe::{NetNs, set_tap_header};
use support::{End, OURS, Veth, address, skipped_without_root, suite, umem};

#[test]
fn memory() {
    for (framing, mtu) in [(Framing::Ethernet, 1500), (Framing::Ip, 1500), (Framing::Ethernet, 9000)] {
        let (a, b) = memory_pair(framing, mtu).unwrap();
        let ends = [(Box::new(a) as Box<dyn fs_xdp::Link>, 2048), (Box::new(b) as _, 4096)].map(|(link, size)| {
            let (umem, pool) = umem(4096, size);
            End::new(link, umem, pool)
        });
        suite::run("memory", ends);
    }
}

/// An AF_XDP end on a veth device, with the test's port in its table.
fn xdp_end(veth: &Veth, end: usize, config: XdpConfig, chunk_size: u32) -> (End, XdpDevice, PortTable) {
    let (ns, name) = veth.ends()[end];
    ns.enter(|| {
        let device = XdpDevice::attach(name, config).unwrap();
        let ports = device.port_table();
        ports.set_addresses(&[address(end)], &[]).unwrap();
        ports.add_local(Protocol::Udp, "0.0.0.0".parse().unwrap(), OURS).unwrap();
        let (umem, mut pool) = umem(8192, chunk_size);
        let link = device.open_queue(0, &umem, &mut pool, QueueConfig::default()).unwrap();
        (End::new(Box::new(link), umem, pool), device, ports)
    })
}

fn xdp_suite(name: &str, mtu: u32, config: XdpConfig, chunk_size: u32) {
    if skipped_without_root(name) {
        return;
    }
    let veth = Veth::new(1, mtu);
    let (a, _device_a, _) = xdp_end(&veth, 0, config, chunk_size);
    let (b, _device_b, _) = xdp_end(&veth, 1, config, chunk_size);
    suite::run(name, [a, b]);
}

#[test]
fn xdp_native_1500() {
    let config = XdpConfig { mode: XdpMode::Native, ..XdpConfig::default() };
    xdp_suite("AF_XDP native, MTU 1500", 1500, config, 2048);
}

#[test]
fn xdp_native_9000() {
    let config = XdpConfig { mode: XdpMode::Native, ..XdpConfig::default() };
    xdp_suite("AF_XDP native, MTU 9000", 9000, config, 4096);
}

#[test]
fn xdp_native_9000_small_chunks() {
    let config = XdpConfig { mode: XdpMode::Native, tx_checksum: false, ..XdpConfig::default() };
    xdp_suite("AF_XDP native, MTU 9000, chunks of 2048", 9000, config, 2048);
}

#[test]
fn xdp_generic_1500() {
    let config = XdpConfig { mode: XdpMode::Generic, ..XdpConfig::default() };
    xdp_suite("AF_XDP generic, MTU 1500", 1500, config, 2048);
}

#[test]
fn xdp_generic_1500_single_buffer() {
    let config = XdpConfig { mode: XdpMode::Generic, multi_buffer: MultiBuffer::Off, ..XdpConfig::default() };
    xdp_suite("AF_XDP generic, MTU 1500, one buffer a packet", 1500, config, 2048);
}

#[test]
fn xdp_generic_9000() {
    let config = XdpConfig { mode: XdpMode::Generic, ..XdpConfig::default() };
    xdp_suite("AF_XDP generic, MTU 9000", 9000, config, 2048);
}

fn packet_end(ns: &NetNs, name: &str, config: PacketConfig) -> End {
    let link = ns.enter(|| PacketLink::open(name, config).unwrap());
    let (umem, pool) = umem(8192, 2048);
    End::new(Box::new(link), umem, pool)
}

#[test]
fn packet() {
    if skipped_without_root("AF_PACKET between namespaces") {
        return;
    }
    for (mtu, vnet_hdr) in [(1500, true), (1500, false), (9000, true), (60000, true)] {
        let veth = Veth::new(1, mtu);
        let ends = veth.ends().map(|(ns, name)| packet_end(ns, name, PacketConfig { vnet_hdr, ..Default::default() }));
        suite::run(&format!("AF_PACKET, MTU {mtu}, virtio header {vnet_hdr}"), ends);
    }
}

fn tap_suite(kind: TapKind, vnet_hdr: bool, multi_queue: bool) {
    let ns = NetNs::new();
    let tap = ns.enter(|| TapLink::open(TapConfig { vnet_hdr, multi_queue, ..TapConfig::new("fsx%d", kind) }).unwrap());
    let name = tap.name().to_owned();
    assert!(name.starts_with("fsx") && name != "fsx%d");
    let (umem, pool) = umem(4096, 2048);
    let tap = End::new(Box::new(tap), umem, pool);
    let host = packet_end(&ns, &name, PacketConfig::default());
    assert_eq!(host.link.caps().framing, tap.link.caps().framing);
    suite::run(&format!("{kind:?}, virtio header {vnet_hdr}"), [tap, host]);
}

#[test]
fn tap_and_tun() {
    if skipped_without_root("TAP and TUN") {
        return;
    }
    for kind in [TapKind::Tap, TapKind::Tun] {
        tap_suite(kind, true, false);
        tap_suite(kind, false, false);
        tap_suite(kind, true, true);
    }
}

/// A device that outlives its user keeps the length of the header that the user has set.
#[test]
fn tap_with_the_header_of_a_former_user() {
    if skipped_without_root("a persistent TAP device") {
        return;
    }
    let ns = NetNs::new();
    ns.run("ip tuntap add dev fsxtap mode tap vnet_hdr");
    // QEMU sets 12 bytes and leaves them.
    ns.enter(|| set_tap_header("fsxtap", 12));
    let tap = ns.enter(|| TapLink::open(TapConfig::new("fsxtap", TapKind::Tap)).unwrap());
    let (umem, pool) = umem(4096, 2048);
    let tap = End::new(Box::new(tap), umem, pool);
    let host = packet_end(&ns, "fsxtap", PacketConfig::default());
    suite::run("a TAP device of a former user", [tap, host]);
}

#[cfg(feature = "xsk-rs")]
mod on_xsk_rs {
    use super::*;

    fn end(veth: &Veth, end: usize, config: XdpConfig) -> (End, XdpDevice) {
        let (ns, name) = veth.ends()[end];
        ns.enter(|| {
            let device = XdpDevice::attach(name, config).unwrap();
            let ports = device.port_table();
            ports.set_addresses(&[address(end)], &[]).unwrap();
            ports.add_local(Protocol::Udp, "0.0.0.0".parse().unwrap(), OURS).unwrap();
            let link = device.open_queue_xsk_rs(0, 4096, QueueConfig::default()).unwrap();
            let (umem, pool) = umem(4096, 2048);
            (End::new(Box::new(link), umem, pool), device)
        })
    }

    #[test]
    fn xsk_rs() {
        if skipped_without_root("AF_XDP on xsk-rs") {
            return;
        }
        for (mode, mtu) in [(XdpMode::Native, 1500), (XdpMode::Generic, 1500), (XdpMode::Native, 9000)] {
            let veth = Veth::new(1, mtu);
            let config = XdpConfig { mode, ..XdpConfig::default() };
            let (a, device_a) = end(&veth, 0, config);
            let (b, device_b) = end(&veth, 1, config);
            suite::run(&format!("AF_XDP on xsk-rs, {mode:?}, MTU {mtu}"), [a, b]);
            // And with our own rings at the other end, on queues that were just closed.
            drop((device_a, device_b));
            let (a, _device_a) = end(&veth, 0, config);
            let (b, _device_b, _ports) = xdp_end(&veth, 1, config, 2048);
            suite::run(&format!("AF_XDP on xsk-rs and on our own rings, {mode:?}, MTU {mtu}"), [a, b]);
        }
    }
}
