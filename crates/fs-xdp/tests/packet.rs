//! Features of the copying links: checksum states, large packets, VLAN tags, fanout, user
//! namespaces, removed devices, and their errors.

mod support;

use fs_core::{FramePool, Framing, RxChecksum};
use fs_xdp::{FanoutGroup, Link, LinkKind, PacketConfig, PacketLink, TapConfig, TapKind, TapLink, XdpError};
use rustix::thread::CapabilitySet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};
use support::netns_unsafe::{NetNs, drop_capabilities};
use support::*;

fn open(ns: &NetNs, name: &str, config: PacketConfig) -> End {
    let link = ns.enter(|| PacketLink::open(name, config).unwrap());
    let (umem, pool) = umem(4096, 2048);
    End::new(Box::new(link), umem, pool)
}

/// The kernel at the other end leaves checksums unfinished, and reports that.
#[test]
fn checksum_states_are_passed_on() {
    if skipped_without_root("checksum states") {
        return;
    }
    for vnet_hdr in [true, false] {
        let veth = Veth::new(1, 1500);
        let mut end = open(&veth.a, "fsx0", PacketConfig { vnet_hdr, ..Default::default() });
        assert_eq!(end.link.caps().virtual_peer, !vnet_hdr);
        let socket = veth.b.enter(|| UdpSocket::bind((address(1), OURS)).unwrap());
        socket.send_to(b"unfinished", (address(0), OURS)).unwrap();
        let mut frames = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        let checksum = loop {
            end.link.rx(&mut end.pool, IFACE, &mut frames, 8);
            let found = frames.drain(..).fold(None, |found, part| {
                let ours = end.pool.bytes(&part.frame).ends_with(b"unfinished");
                end.pool.free(part.frame);
                if ours { Some(part.checksum) } else { found }
            });
            if let Some(checksum) = found {
                break checksum;
            }
            assert!(Instant::now() < deadline, "nothing arrives");
        };
        assert_eq!(checksum, if vnet_hdr { RxChecksum::Verified } else { RxChecksum::Unknown });
        end.close();
    }
}

/// A TCP stream between kernels passes the link as packets of up to 64 KiB. The chains must contain
/// every byte.
#[test]
fn large_packets_become_chains() {
    if skipped_without_root("large packets") {
        return;
    }
    let veth = Veth::new(1, 1500);
    let mut end = open(&veth.b, "fsx1", PacketConfig::default());
    let listener = veth.b.enter(|| TcpListener::bind((address(1), KERNELS)).unwrap());
    let sender = veth.a.enter(|| TcpStream::connect((address(1), KERNELS)).unwrap());
    let (mut receiver, _) = listener.accept().unwrap();
    let total = 4 << 20;
    let writer = std::thread::spawn(move || {
        let data: Vec<u8> = (0..total).map(|i: usize| (i / 7) as u8).collect();
        let mut sender = sender;
        sender.write_all(&data).unwrap();
    });
    let reader = std::thread::spawn(move || {
        let mut data = Vec::new();
        receiver.read_to_end(&mut data).unwrap();
        data.len()
    });
    let mut frames = Vec::new();
    let (mut longest, mut bytes) = (0, 0);
    let deadline = Instant::now() + PATIENCE;
    while bytes < total && Instant::now() < deadline {
        end.link.rx(&mut end.pool, IFACE, &mut frames, 64);
        let mut packet = Vec::new();
        for part in frames.drain(..) {
            packet.extend_from_slice(end.pool.bytes(&part.frame));
            let more = part.frame.more();
            end.pool.free(part.frame);
            if !more {
                let whole = std::mem::take(&mut packet);
                if whole[12..14] == [8, 0] && whole[23] == 6 {
                    let said = u16::from_be_bytes([whole[16], whole[17]]) as usize;
                    assert_eq!(whole.len() - 14, said, "the chain is not the packet");
                    longest = longest.max(said);
                    bytes += said - 40;
                }
            }
        }
        assert!(packet.is_empty(), "a chain without an end");
    }
    writer.join().unwrap();
    assert_eq!(reader.join().unwrap(), total);
    assert!(longest > 3000, "no large packet has passed: {longest}");
    end.close();
}

#[test]
fn vlan_tags_are_restored() {
    if skipped_without_root("VLAN tags") {
        return;
    }
    let veth = Veth::new(1, 1500);
    let mut ends = veth.ends().map(|(ns, name)| open(ns, name, PacketConfig::default()));
    let plain = packet(Framing::Ethernet, 0, 200, 5);
    let mut tagged = plain.clone();
    tagged.splice(12..12, [0x81, 0, 0x20, 5]);
    let frames = ends[0].frames(&tagged, usize::MAX);
    ends[0].send(frames);
    let mut frames = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    let mut has_arrived = false;
    while !has_arrived {
        let [_, receiver] = &mut ends;
        receiver.link.rx(&mut receiver.pool, IFACE, &mut frames, 8);
        // The kernel's own packets may be in the same batch.
        for part in frames.drain(..) {
            let bytes = receiver.pool.bytes(&part.frame).to_vec();
            receiver.pool.free(part.frame);
            assert!(bytes != plain, "the tag is lost");
            has_arrived |= bytes == tagged;
        }
        assert!(Instant::now() < deadline, "nothing arrives");
    }
    for end in ends {
        end.close();
    }
}

/// Two processes of the same namespace with a device each.
#[test]
fn new_fanout_groups_differ() {
    if skipped_without_root("new fanout groups") {
        return;
    }
    let veth = Veth::new(1, 1500);
    veth.b.run("ip link add fsx2 type veth peer name fsx3 && ip link set fsx2 up");
    let open = |name, group| {
        let config = PacketConfig { fanout_group: Some(group), ..Default::default() };
        veth.b.enter(|| PacketLink::open(name, config))
    };
    let first = open("fsx1", FanoutGroup::New).unwrap();
    let other = open("fsx2", FanoutGroup::New).unwrap();
    let number = first.fanout_group().unwrap();
    assert_ne!(other.fanout_group(), Some(number));
    assert_eq!(open("fsx1", FanoutGroup::Number(number)).unwrap().fanout_group(), Some(number));
    assert!(open("fsx2", FanoutGroup::Number(number)).is_err(), "a group has one device");
}

/// Each flow goes to exactly one of the group's sockets.
#[test]
fn fanout_group_shares_the_packets() {
    if skipped_without_root("fanout") {
        return;
    }
    let veth = Veth::new(1, 1500);
    let config = PacketConfig { fanout_group: Some(FanoutGroup::Number(77)), ..Default::default() };
    let mut group = [open(&veth.b, "fsx1", config), open(&veth.b, "fsx1", config)];
    let mut sender = open(&veth.a, "fsx0", PacketConfig::default());
    let flows = 64;
    for port in 0..flows {
        for seed in 0..3 {
            let sent = packet_to(Framing::Ethernet, 0, 20_000 + port, 100, seed);
            let frames = sender.frames(&sent, usize::MAX);
            sender.send(frames);
        }
    }
    let mut owner = vec![None; flows as usize];
    let mut got = 0;
    let deadline = Instant::now() + PATIENCE;
    while got < 3 * flows {
        for (i, end) in group.iter_mut().enumerate() {
            for bytes in end.receive_now() {
                let flow = u16::from_be_bytes([bytes[36], bytes[37]]) - 20_000;
                assert_eq!(*owner[flow as usize].get_or_insert(i), i, "a flow changes its socket");
                got += 1;
            }
        }
        assert!(Instant::now() < deadline, "{got} of {} packets", 3 * flows);
    }
    for i in 0..2 {
        assert!(owner.contains(&Some(i)), "socket {i} gets no flow");
    }
    std::thread::sleep(Duration::from_millis(5));
    assert!(group.iter_mut().all(|end| end.receive_now().is_empty()), "a packet has come twice");
    sender.close();
    group.into_iter().for_each(End::close);
}

#[test]
fn removed_devices_are_errors() {
    if skipped_without_root("device removed under the copying links") {
        return;
    }
    let veth = Veth::new(1, 1500);
    let mut packet_end = open(&veth.a, "fsx0", PacketConfig::default());
    let tap = veth.a.enter(|| TapLink::open(TapConfig::new("fsxtap", TapKind::Tap)).unwrap());
    let (memory, pool) = umem(256, 2048);
    let mut tap_end = End::new(Box::new(tap), memory, pool);

    // A device that is down still exists.
    veth.a.run("ip link set fsx0 down && ip link set fsxtap down");
    for end in [&mut packet_end, &mut tap_end] {
        end.receive_now();
        let sent = packet(Framing::Ethernet, 0, 100, 1);
        let mut frames = end.frames(&sent, usize::MAX);
        end.link.tx(&mut end.pool, &mut frames).expect("down is not gone");
        for part in frames {
            end.pool.free(part.frame);
        }
    }
    veth.a.run("ip link set fsx0 up && ip link set fsxtap up");
    let (ns, name) = veth.ends()[1];
    let mut peer = open(ns, name, PacketConfig::default());
    let sent = packet(Framing::Ethernet, 0, 100, 2);
    let frames = packet_end.frames(&sent, usize::MAX);
    packet_end.send(frames);
    assert!(peer.receive(1)[0] == sent, "up again, packets flow again");
    peer.close();

    veth.a.run("ip link del fsx0 && ip link del fsxtap");
    for mut end in [packet_end, tap_end] {
        let kind = end.link.caps().kind;
        let deadline = Instant::now() + PATIENCE;
        loop {
            end.receive_now();
            let sent = packet(Framing::Ethernet, 0, 100, 1);
            let mut frames = end.frames(&sent, usize::MAX);
            let result = end.link.tx(&mut end.pool, &mut frames);
            for part in frames {
                end.pool.free(part.frame);
            }
            if result.is_err() {
                break;
            }
            assert!(Instant::now() < deadline, "{kind:?}: nobody notices that the device is gone");
        }
        assert!(!end.link.prepare_sleep(&mut end.pool), "{kind:?}: sleeps on a dead link");
        end.close();
    }
}

#[test]
fn errors_name_their_cause() {
    if skipped_without_root("errors of the copying links") {
        return;
    }
    let ns = NetNs::new();
    ns.enter(|| {
        let error = PacketLink::open("fsx-none", PacketConfig::default()).unwrap_err();
        assert!(matches!(error, XdpError::NoSuchDevice { .. }), "{error}");
        let kept = TapLink::open(TapConfig::new("fsxtap", TapKind::Tap)).unwrap();
        let error = TapLink::open(TapConfig::new("fsxtap", TapKind::Tap)).unwrap_err();
        assert!(error.to_string().contains("another process has open"), "{error}");
        drop(kept);
        drop_capabilities(CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW);
        let error = PacketLink::open("lo", PacketConfig::default()).unwrap_err();
        assert!(
            matches!(&error, XdpError::MissingCapability { missing, .. } if missing == &["CAP_NET_RAW"]),
            "{error}"
        );
        // A child that another test's thread has just forked has a copy of `kept` until it executes
        // its program.
        let deadline = Instant::now() + PATIENCE;
        let error = loop {
            let error = TapLink::open(TapConfig::new("fsxtap", TapKind::Tap)).unwrap_err();
            if !error.to_string().contains("another process has open") || Instant::now() > deadline {
                break error;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(
            matches!(&error, XdpError::MissingCapability { missing, .. } if missing == &["CAP_NET_ADMIN"]),
            "{error}"
        );
    });
}

/// Set for the process in the user namespace.
const INSIDE: &str = "FS_XDP_IN_A_USER_NAMESPACE";

/// Not a test of its own: the next test runs it in a user namespace.
#[test]
fn inside_a_user_namespace() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let shell = |command: &str| {
        assert!(std::process::Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
    };
    shell("ip link add fsx0 type veth peer name fsx1 && ip link set fsx0 up && ip link set fsx1 up");
    let error = fs_xdp::XdpDevice::attach("fsx0", fs_xdp::XdpConfig::default()).unwrap_err();
    let XdpError::MissingCapability { missing, .. } = &error else { panic!("{error}") };
    assert!(missing.is_empty() && error.to_string().contains("user namespace"), "{error}");
    let ends = ["fsx0", "fsx1"].map(|name| {
        let link = PacketLink::open(name, PacketConfig::default()).unwrap();
        assert_eq!(link.caps().kind, LinkKind::Packet);
        let (umem, pool) = umem(4096, 2048);
        End::new(Box::new(link), umem, pool)
    });
    suite::run("AF_PACKET in a user namespace", ends);
}

#[test]
fn packet_links_need_no_root() {
    let status = std::process::Command::new("unshare")
        .args(["-Urn", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "inside_a_user_namespace"])
        .env(INSIDE, "yes")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&status.stdout) + String::from_utf8_lossy(&status.stderr);
    if said.contains("unshare failed") {
        eprintln!("skipped: AF_PACKET in a user namespace (this machine has none)");
        return;
    }
    assert!(status.status.success() && said.contains("1 passed"), "{said}");
}
