//! Runs of segments leave as one packet, and the peer has every segment as it was: on veth, over
//! AF_XDP, AF_PACKET and TAP.

mod support;

use fs_core::{FramePool, Framing, RxFrame, TxFrame};
use fs_xdp::{
    NetDevice, PacketConfig, PacketLink, QueueConfig, TapConfig, TapKind, TapLink, XdpConfig, XdpDevice, XdpMode,
};
use std::time::{Duration, Instant};
use support::segments::{FIN, Flow, PLAIN, PSH, sum};
use support::*;

/// Bytes of headers in front of the payload of a segment over IPv4 with timestamps, without Ethernet.
const HEADERS: usize = 52;
/// Payload of a full segment at MTU 1500.
const MSS: usize = 1500 - HEADERS;

/// `count` full segments from `*seq` on, the last with `flags` and `last` bytes.
fn run(flow: Flow, seq: &mut u32, mss: usize, count: usize, last: usize, flags: u8) -> Vec<(Flow, Vec<u8>)> {
    let mut lens = vec![mss; count];
    lens[count - 1] = last;
    let packets = flow.segments(*seq, &lens, flags);
    *seq = seq.wrapping_add(lens.iter().sum::<usize>() as u32);
    packets.into_iter().map(|packet| (flow, packet)).collect()
}

/// What it is, its packets, and how many merged packets it makes.
type Batch = (&'static str, Vec<(Flow, Vec<u8>)>, u64);

/// How many merged packets a run makes.
fn merges(flow: Flow, mss: usize, count: usize, last: usize) -> u64 {
    let (mut merges, mut segments, mut bytes) = (0, 0, flow.payload());
    for i in 0..count {
        let len = if i + 1 == count { last } else { mss };
        if bytes + len > 65_535 {
            (merges, segments, bytes) = (merges + 1, 0, flow.payload());
        }
        (segments, bytes) = (segments + 1, bytes + len);
    }
    merges + u64::from(segments >= 8 || segments > 1 && bytes >= 24 << 10)
}

/// Everything that a batch may hold.
fn batches(framing: Framing, mtu: usize) -> Vec<Batch> {
    let mut all: Vec<Batch> = Vec::new();
    let mut flows = vec![("IPv4", Flow { framing, ..PLAIN }), ("IPv6", Flow { framing, v6: true, ..PLAIN })];
    if framing == Framing::Ethernet {
        flows.push(("VLAN", Flow { vlan: true, ..PLAIN }));
        flows.push(("IPv6, VLAN", Flow { vlan: true, v6: true, ..PLAIN }));
    }
    for (name, flow) in flows {
        let mut seq = u32::MAX - 40_000;
        let seq = &mut seq;
        let full = flow.mss(mtu);
        let mut add = |runs: &[(Flow, usize, usize, u8)]| {
            let (mut packets, mut merged) = (Vec::new(), 0);
            for &(flow, count, last, flags) in runs {
                packets.extend(run(flow, seq, full, count, last, flags));
                merged += merges(flow, full, count, last);
            }
            all.push((name, packets, merged));
        };
        for count in 1..=60 {
            add(&[(flow, count, full, 0)]);
        }
        for flags in [PSH, FIN, PSH | FIN] {
            add(&[(flow, 20, full, flags)]);
            add(&[(flow, 20, 100, flags)]);
            // In the middle.
            add(&[(flow, 10, full, flags), (flow, 10, full, 0)]);
        }
        add(&[(flow, 9, 700, 0), (flow, 9, 1, 0)]);
        add(&[(flow, 10, full, 0), (Flow { window: 10, ..flow }, 10, full, 0)]);
        add(&[(flow, 10, full, 0), (Flow { timestamp: 4, ..flow }, 10, full, 0)]);
        // Another flow's segment in the middle, and short ones in front and behind.
        let other = Flow { port: 2, ..flow };
        add(&[(flow, 10, full, 0), (other, 1, full, 0), (flow, 12, full, 0)]);
        add(&[(flow, 2, full, 0), (other, 1, full, 0), (flow, 2, full, 0)]);
        add(&[(other, 1, 64, PSH), (flow, 30, full, 0), (other, 1, 64, PSH)]);
        // A gap, as after a lost segment that is sent again between new ones.
        let lost = run(flow, &mut 1, full, 1, full, 0);
        let packets = [run(flow, seq, full, 8, full, 0), lost, run(flow, seq, full, 8, full, 0)].concat();
        all.push((name, packets, 2 * merges(flow, full, 8, full)));
    }
    all
}

/// What a packet is compared by: the kernel increments the identification of IPv4 from segment to
/// segment (it means nothing with Don't Fragment, RFC 6864), and so changes the IP checksum.
fn comparable(flow: Flow, mut packet: Vec<u8>) -> Vec<u8> {
    let (network, transport) = (flow.network(), flow.transport());
    if !flow.v6 {
        assert_eq!(sum(&packet[network..transport], 0), 0xffff, "an IP checksum is wrong");
        packet[network + 4..network + 6].fill(0);
        packet[network + 10..network + 12].fill(0);
    }
    packet
}

/// Takes TCP packets in until `bytes` of payload have come, and says how many packets they were.
fn arrived(
    end: &mut End,
    frames: &mut Vec<RxFrame>,
    expected: &[(Flow, Vec<u8>)],
    mtu: usize,
) -> (Vec<Vec<u8>>, usize) {
    let deadline = Instant::now() + PATIENCE;
    let (mut segments, mut packets, mut whole) = (Vec::new(), 0, Vec::new());
    while segments.len() < expected.len() {
        end.link.rx(&mut end.pool, IFACE, frames, 64);
        for part in frames.drain(..) {
            whole.extend_from_slice(end.pool.bytes(&part.frame));
            let more = part.frame.more();
            end.pool.free(part.frame);
            if more {
                continue;
            }
            let packet = std::mem::take(&mut whole);
            // The kernel's own packets (neighbour discovery) are not counted.
            let Some((flow, _)) = expected.get(segments.len()) else { continue };
            let protocol = flow.network() + if flow.v6 { 6 } else { 9 };
            if packet.get(protocol) == Some(&6) && packet.len() > flow.payload() {
                packets += 1;
                segments.extend(flow.cut(&packet, flow.mss(mtu)));
            }
        }
        assert!(Instant::now() < deadline, "{} of {} segments came", segments.len(), expected.len());
    }
    (segments, packets)
}

/// The packets in as few frames as possible. `unfinished`: their checksums are left to the device,
/// as the engine does where a link finishes them.
fn frames(end: &mut End, packets: &[(Flow, Vec<u8>)], unfinished: bool) -> Vec<TxFrame> {
    let one = |(flow, packet): &(Flow, Vec<u8>)| {
        let mut packet = packet.clone();
        let checksum = unfinished.then_some(fs_core::TxChecksum { start: flow.transport() as u16, offset: 16 });
        if unfinished {
            let (network, transport) = (flow.network(), flow.transport());
            let addresses = network + if flow.v6 { 8 } else { 12 };
            let pseudo = sum(&packet[addresses..transport], 6 + (packet.len() - transport) as u32);
            packet[transport + 16..transport + 18].copy_from_slice(&pseudo.to_be_bytes());
        }
        let mut frames = end.frames(&packet, usize::MAX);
        frames[0].checksum = checksum;
        frames
    };
    packets.iter().flat_map(one).collect()
}

/// Sends every batch by `sender`, and compares what the peer's packet socket sees.
fn every_segment_arrives(name: &str, sender: &mut End, peer: &mut End, whole: bool) {
    let mut received = Vec::new();
    let mtu = sender.link.caps().mtu as usize;
    for (i, (what, packets, merges)) in batches(sender.link.caps().framing, mtu).into_iter().enumerate() {
        let before = sender.link.stats();
        let batch = frames(sender, &packets, i % 2 == 1);
        sender.send(batch);
        let (segments, came) = arrived(peer, &mut received, &packets, mtu);
        for (n, (got, (flow, sent))) in segments.into_iter().zip(&packets).enumerate() {
            let case = format!("{name}, {what}, batch {i} of {} segments, segment {n}", packets.len());
            let (got, sent) = (comparable(*flow, got), comparable(*flow, sent.clone()));
            assert!(got == sent, "{case} has changed:\n{:02x?}\n{:02x?}", &got[..100], &sent[..100]);
        }
        let after = sender.link.stats();
        assert_eq!(after.tx_packets - before.tx_packets, packets.len() as u64, "{name}, {what}, batch {i}");
        assert_eq!(after.tx_merges - before.tx_merges, merges, "{name}, {what}, batch {i} of {}", packets.len());
        let singles = packets.len() - (after.tx_merged - before.tx_merged) as usize;
        let expected = if whole { singles + merges as usize } else { packets.len() };
        assert_eq!(came, expected, "{name}, {what}, batch {i}: packets on the wire");
    }
    sender.settle();
}

fn packet_end(ns: &support::netns_unsafe::NetNs, name: &str) -> End {
    let config = PacketConfig { batch: 256, receive_buffer: 64 << 20, ..PacketConfig::default() };
    let link = ns.enter(|| PacketLink::open(name, config).unwrap());
    let (umem, pool) = umem(8192, 2048);
    End::new(Box::new(link), umem, pool)
}

fn xdp_end(veth: &Veth, mode: XdpMode) -> (End, XdpDevice) {
    xdp_end_on(veth, "fsx0", mode)
}

/// An AF_XDP end on a device of the first namespace.
fn xdp_end_on(veth: &Veth, name: &str, mode: XdpMode) -> (End, XdpDevice) {
    veth.a.enter(|| {
        let device = XdpDevice::attach(name, XdpConfig { mode, ..XdpConfig::default() }).unwrap();
        assert_eq!(NetDevice::find(name).unwrap().xdp_mode(), Some(mode));
        // As the runtime chooses.
        let (umem, mut pool) = umem(8192, if device.device().mtu > 1500 { 4096 } else { 2048 });
        let link = device.open_queue(0, &umem, &mut pool, QueueConfig::default()).unwrap();
        (End::new(Box::new(link), umem, pool), device)
    })
}

#[test]
fn segments_arrive_as_they_were() {
    if skipped_without_root("merging over AF_XDP and AF_PACKET") {
        return;
    }
    for mode in [XdpMode::Native, XdpMode::Generic] {
        for mtu in [1500, 9000] {
            let veth = Veth::new(1, mtu);
            let (mut sender, _device) = xdp_end(&veth, mode);
            let mut peer = packet_end(&veth.b, "fsx1");
            assert!(sender.link.merges(), "veth cuts packets");
            every_segment_arrives(&format!("AF_XDP, {mode:?}, MTU {mtu}"), &mut sender, &mut peer, true);
            sender.close();
            peer.close();
        }
    }
    for mtu in [1500, 9000] {
        let veth = Veth::new(1, mtu);
        let (mut sender, mut peer) = (packet_end(&veth.a, "fsx0"), packet_end(&veth.b, "fsx1"));
        every_segment_arrives(&format!("AF_PACKET, MTU {mtu}"), &mut sender, &mut peer, true);
        sender.close();
        peer.close();
    }
}

/// Where the device has several queues, a flow stays on its carrier while something of it is in flight there.
#[test]
fn segments_arrive_in_order_with_several_queues() {
    if skipped_without_root("merging with several queues") {
        return;
    }
    for (mode, mtu) in [(XdpMode::Native, 1500), (XdpMode::Native, 9000), (XdpMode::Generic, 1500)] {
        let veth = Veth::new(4, mtu);
        let (mut sender, _device) = xdp_end(&veth, mode);
        let mut peer = packet_end(&veth.b, "fsx1");
        let (mut seq, mut received) = (1, Vec::new());
        let mss = PLAIN.mss(mtu as usize);
        for count in [20, 3, 1, 30, 2, 9] {
            let packets = run(PLAIN, &mut seq, mss, count, mss, 0);
            let batch = frames(&mut sender, &packets, false);
            sender.send(batch);
            let (segments, _) = arrived(&mut peer, &mut received, &packets, mtu as usize);
            for (got, (flow, sent)) in segments.into_iter().zip(packets) {
                assert!(comparable(flow, got) == comparable(flow, sent), "{mode:?}, MTU {mtu}");
            }
        }
        assert!(sender.link.stats().tx_merges > 0);
        sender.settle();
        sender.close();
        peer.close();
    }
}

/// A bridge has one send queue and no queueing discipline, but its port has one. A discipline such as
/// `fq_codel` keeps a queue for each flow, and takes the two carriers' packets for two flows: the kernel
/// sets no protocol in what AF_XDP sends, so nothing parses it. Here a filter by the protocol parts them.
#[test]
fn segments_arrive_in_order_through_a_bridge() {
    if skipped_without_root("merging on a bridge") {
        return;
    }
    let veth = Veth::new(1, 1500);
    veth.a.run(
        "ip addr flush dev fsx0 && ip link add br0 type bridge && ip link set br0 address 02:88:00:00:00:01 up && \
         ip link set fsx0 master br0 && tc qdisc add dev fsx0 root handle 1: htb default 2 && \
         tc class add dev fsx0 parent 1: classid 1:1 htb rate 100mbit quantum 60000 && \
         tc class add dev fsx0 parent 1: classid 1:2 htb rate 1gbit quantum 60000 && \
         tc filter add dev fsx0 parent 1: protocol ip u32 match u32 0 0 flowid 1:1",
    );
    let (mut sender, _device) = xdp_end_on(&veth, "br0", XdpMode::Generic);
    let mut peer = packet_end(&veth.b, "fsx1");
    assert!(sender.link.merges(), "a bridge cuts packets");
    let (mut seq, mut sent, mut received) = (1, Vec::new(), Vec::new());
    for _ in 0..20 {
        // A run, and the rest of the batch, which is none.
        let mut packets = run(PLAIN, &mut seq, MSS, 30, 100, PSH);
        packets.extend(run(PLAIN, &mut seq, MSS, 3, MSS, 0));
        let batch = frames(&mut sender, &packets, false);
        sender.send(batch);
        sent.extend(packets);
    }
    let (segments, _) = arrived(&mut peer, &mut received, &sent, 1500);
    for (n, (got, (flow, sent))) in segments.into_iter().zip(sent).enumerate() {
        assert!(comparable(flow, got) == comparable(flow, sent), "segment {n}");
    }
    assert!(sender.link.stats().tx_merges > 0);
    sender.settle();
    sender.close();
    peer.close();
}

/// The device does not cut, so the kernel does: the peer has segments, frame by frame, with finished checksums.
#[test]
fn segments_cut_by_the_kernel_are_those_that_were_merged() {
    if skipped_without_root("merging with TSO off") {
        return;
    }
    for mtu in [1500, 9000] {
        let veth = Veth::new(1, mtu);
        veth.a.run("ethtool -K fsx0 tso off gso off tx off sg off > /dev/null");
        let (mut sender, mut peer) = (packet_end(&veth.a, "fsx0"), packet_end(&veth.b, "fsx1"));
        every_segment_arrives(&format!("AF_PACKET, TSO off, MTU {mtu}"), &mut sender, &mut peer, false);
        sender.close();
        peer.close();
    }
}

#[test]
fn what_is_merged_into_a_tap_device_is_whole() {
    if skipped_without_root("merging into TAP and TUN") {
        return;
    }
    for kind in [TapKind::Tap, TapKind::Tun] {
        let ns = support::netns_unsafe::NetNs::new();
        let tap = ns.enter(|| TapLink::open(TapConfig::new("fsx%d", kind)).unwrap());
        let name = tap.name().to_owned();
        let (umem, pool) = umem(8192, 2048);
        let mut sender = End::new(Box::new(tap), umem, pool);
        let mut peer = packet_end(&ns, &name);
        every_segment_arrives(&format!("{kind:?}"), &mut sender, &mut peer, true);
        sender.close();
        peer.close();
    }
}

/// `ethtool -K` under a flow: from the next batch on runs are merged or not, and every segment arrives in order.
#[test]
fn tso_is_switched_under_a_flow() {
    if skipped_without_root("switching TSO") {
        return;
    }
    let veth = Veth::new(1, 1500);
    let (mut sender, device) = xdp_end(&veth, XdpMode::Native);
    let mut peer = packet_end(&veth.b, "fsx1");
    let (mut seq, mut received) = (1, Vec::new());
    for round in 0..6 {
        let on = round % 2 == 0;
        if round > 0 {
            veth.a.run(&format!("ethtool -K fsx0 tso {} > /dev/null", if on { "on" } else { "off" }));
            // The link has not heard of it yet: the kernel cuts what it still merges.
            let packets = run(PLAIN, &mut seq, MSS, 30, MSS, 0);
            let batch = frames(&mut sender, &packets, false);
            sender.send(batch);
            let (segments, _) = arrived(&mut peer, &mut received, &packets, 1500);
            assert!(segments.iter().zip(&packets).all(|(got, (_, sent))| got[50..] == sent[50..]));
            veth.a.enter(|| device.refresh_offloads());
        }
        assert_eq!(sender.link.merges(), on);
        let before = sender.link.stats().tx_merges;
        for _ in 0..5 {
            let packets = run(PLAIN, &mut seq, MSS, 30, MSS, 0);
            let batch = frames(&mut sender, &packets, false);
            sender.send(batch);
            let (segments, _) = arrived(&mut peer, &mut received, &packets, 1500);
            assert!(segments.iter().zip(&packets).all(|(got, (_, sent))| got[50..] == sent[50..]));
        }
        assert_eq!(sender.link.stats().tx_merges - before, if on { 5 } else { 0 });
    }
    sender.settle();
    sender.close();
    peer.close();
}

/// The cores hear of a lowered MTU later than the kernel, which refuses the packets in between.
#[test]
fn runs_are_merged_after_the_mtu_was_lower() {
    if skipped_without_root("a lowered MTU") {
        return;
    }
    // With several queues a flow's single packets follow its runs by the packet socket.
    let veth = Veth::new(2, 1500);
    let (mut sender, _device) = xdp_end(&veth, XdpMode::Native);
    let mut peer = packet_end(&veth.b, "fsx1");
    let (mut seq, mut received) = (1, Vec::new());
    for mtu in [1500, 1400, 1500] {
        veth.a.run(&format!("ip link set fsx0 mtu {mtu}"));
        let packets = run(PLAIN, &mut seq, MSS, if mtu == 1500 { 20 } else { 1 }, MSS, 0);
        let batch = frames(&mut sender, &packets, false);
        sender.send(batch);
        if mtu == 1500 {
            arrived(&mut peer, &mut received, &packets, 1500);
        }
    }
    assert!(sender.link.merges());
    let stats = sender.link.stats();
    assert_eq!((stats.tx_packets, stats.tx_merges, stats.tx_dropped), (40, 2, 1));
    sender.settle();
    sender.close();
    peer.close();
}

/// A queue in front of the device that is full: what the kernel does not take stays in the batch,
/// is tried again after a pause, and arrives once, in order.
#[test]
fn what_the_kernel_does_not_take_stays() {
    if skipped_without_root("a full queueing discipline") {
        return;
    }
    // ENOBUFS: the queue holds one merged packet. EAGAIN: it holds more than the socket may have in flight.
    for (limit, most) in [("70k", 8), ("100m", 400)] {
        let veth = Veth::new(1, 1500);
        veth.a.run(&format!("tc qdisc add dev fsx0 root tbf rate 8kbit burst 70k limit {limit}"));
        let (mut sender, _device) = xdp_end(&veth, XdpMode::Native);
        let mut peer = packet_end(&veth.b, "fsx1");
        let mut seq = 1;
        let mut sent = Vec::new();
        let mut waiting = Vec::new();
        // Until the kernel takes no more.
        while waiting.is_empty() {
            let packets = run(PLAIN, &mut seq, MSS, 44, MSS, 0);
            waiting = frames(&mut sender, &packets, false);
            sent.extend(packets);
            sender.link.tx(&mut sender.pool, &mut waiting).unwrap();
            assert!(sent.len() < most * 44, "the queue never fills");
        }
        assert_eq!(waiting.len(), 44, "a run stays whole");
        let before = sender.link.stats().syscalls;
        let began = Instant::now();
        let mut calls = 0;
        while began.elapsed() < Duration::from_millis(2) {
            sender.link.tx(&mut sender.pool, &mut waiting).unwrap();
            calls += 1;
        }
        let tried = sender.link.stats().syscalls - before;
        assert!(
            tried <= began.elapsed().as_micros() as u64 / 50 + 1,
            "{tried} system calls in {calls} calls: no pause"
        );
        assert_eq!(waiting.len(), 44);
        veth.a.run(&format!("tc qdisc change dev fsx0 root tbf rate 10gbit burst 70k limit {limit}"));
        // Of a queue that is emptied a packet comes each time it is kicked; what waits goes behind it.
        let mut received = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        let mut segments = Vec::new();
        while segments.len() < sent.len() {
            sender.link.tx(&mut sender.pool, &mut waiting).unwrap();
            let expected = &sent[segments.len()..(segments.len() + 1).min(sent.len())];
            let mut whole = Vec::new();
            peer.link.rx(&mut peer.pool, IFACE, &mut received, 64);
            for part in received.drain(..) {
                whole.extend_from_slice(peer.pool.bytes(&part.frame));
                let more = part.frame.more();
                peer.pool.free(part.frame);
                if !more {
                    let packet = std::mem::take(&mut whole);
                    if packet.get(23) == Some(&6) && packet.len() > expected[0].0.payload() {
                        segments.extend(PLAIN.cut(&packet, MSS));
                    }
                }
            }
            assert!(Instant::now() < deadline, "{} of {} segments came", segments.len(), sent.len());
        }
        assert!(waiting.is_empty());
        for (n, (got, (flow, sent))) in segments.into_iter().zip(sent).enumerate() {
            assert!(comparable(flow, got) == comparable(flow, sent), "segment {n}, limit {limit}");
        }
        sender.settle();
        sender.close();
        peer.close();
    }
}

/// Where the host drops a packet at egress, the error is that of a full queue. The packets of other
/// flows do not wait for it, also if such packets come again and again.
#[test]
fn packets_behind_a_dropped_one_leave() {
    if skipped_without_root("a queueing discipline that drops") {
        return;
    }
    const ROUNDS: u64 = 20;
    for (xdp, count) in [(true, 44), (false, 44), (false, 1), (false, 3)] {
        let veth = Veth::new(1, 1500);
        // Full segments are longer than the queue.
        veth.a.run("tc qdisc add dev fsx0 root bfifo limit 1000");
        let (mut sender, _device) = if xdp {
            let (sender, device) = xdp_end(&veth, XdpMode::Native);
            (sender, Some(device))
        } else {
            (packet_end(&veth.a, "fsx0"), None)
        };
        let mut peer = packet_end(&veth.b, "fsx1");
        let (mut dropped, mut seq, mut calls) = (1, 1, 0);
        for round in 0..ROUNDS {
            let case = format!("AF_XDP: {xdp}, {count} segments, round {round}");
            let mut packets = run(PLAIN, &mut dropped, MSS, count, MSS, 0);
            let behind = run(Flow { port: 2, ..PLAIN }, &mut seq, MSS, 1, 100, PSH);
            packets.extend(behind.clone());
            let mut waiting = frames(&mut sender, &packets, false);
            let deadline = Instant::now() + PATIENCE;
            loop {
                sender.link.tx(&mut sender.pool, &mut waiting).unwrap();
                calls += 1;
                if waiting.is_empty() {
                    break;
                }
                // With nothing of the socket in flight, the second call drops it. The kernel may
                // still hold the last round's packet.
                assert!(calls < 2 || round > 0 && !xdp, "{case}: {calls} calls");
                assert!(Instant::now() < deadline, "{case}: {} packets wait", waiting.len());
                std::thread::sleep(Duration::from_millis(1));
            }
            let (segments, _) = arrived(&mut peer, &mut Vec::new(), &behind, 1500);
            assert!(segments[0].ends_with(&behind[0].1[50..]), "{case}");
        }
        let stats = sender.link.stats();
        let expected = (ROUNDS, ROUNDS * count as u64);
        assert_eq!((stats.tx_packets, stats.tx_dropped), expected, "AF_XDP: {xdp}, {count} segments");
        assert!(calls < ROUNDS * 60, "AF_XDP: {xdp}, {count} segments: {calls} calls");
        sender.settle();
        sender.close();
        peer.close();
    }
}
