//! Runs of segments leave as one packet, and the peer has every segment as it was: on veth, over AF_XDP, AF_PACKET and TAP.

mod support;

use fs_core::{FramePool, Framing, RxFrame, TxFrame};
use fs_xdp::{PacketConfig, PacketLink, QueueConfig, TapConfig, TapKind, TapLink, XdpConfig, XdpDevice, XdpMode};
use std::time::{Duration, Instant};
use support::*;

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const FIN: u8 = 0x01;
/// Payload of a full segment with timestamps at MTU 1500; over IPv6 20 bytes fewer.
const MSS: usize = 1448;

/// How a flow's headers look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flow {
    framing: Framing,
    v6: bool,
    vlan: bool,
    port: u8,
    window: u8,
    timestamp: u8,
}

const FLOW: Flow = Flow { framing: Framing::Ethernet, v6: false, vlan: false, port: 1, window: 9, timestamp: 3 };

impl Flow {
    fn network(self) -> usize {
        match (self.framing, self.vlan) {
            (Framing::Ip, _) => 0,
            (_, vlan) => 14 + 4 * usize::from(vlan),
        }
    }

    fn transport(self) -> usize {
        self.network() + if self.v6 { 40 } else { 20 }
    }

    fn payload(self) -> usize {
        self.transport() + 32
    }

    fn mss(self) -> usize {
        if self.v6 { MSS - 20 } else { MSS }
    }

    fn segment(self, seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let (network, transport) = (self.network(), self.transport());
        let mut bytes = vec![0; self.payload()];
        if self.framing == Framing::Ethernet {
            bytes[..6].copy_from_slice(&MACS[1]);
            bytes[6..12].copy_from_slice(&MACS[0]);
            if self.vlan {
                bytes[12..16].copy_from_slice(&[0x81, 0, 0x20, 5]);
            }
            bytes[network - 2..network].copy_from_slice(if self.v6 { &[0x86, 0xdd] } else { &[8, 0] });
        }
        let tcp_len = 32 + payload.len();
        if self.v6 {
            bytes[network] = 0x60;
            bytes[network + 4..network + 6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
            bytes[network + 6..network + 8].copy_from_slice(&[6, 64]);
            bytes[network + 8..network + 40].fill(0xfd);
        } else {
            bytes[network] = 0x45;
            bytes[network + 2..network + 4].copy_from_slice(&(20 + tcp_len as u16).to_be_bytes());
            bytes[network + 6..network + 10].copy_from_slice(&[0x40, 0, 64, 6]);
            bytes[network + 12..network + 16].copy_from_slice(&ADDRESSES[0].octets());
            bytes[network + 16..network + 20].copy_from_slice(&ADDRESSES[1].octets());
        }
        let tcp = &mut bytes[transport..];
        tcp[..4].copy_from_slice(&[0x30, self.port, 0x1e, 0x61]);
        tcp[4..8].copy_from_slice(&seq.to_be_bytes());
        tcp[8..14].copy_from_slice(&[0, 0, 0, 7, 8 << 4, flags]);
        tcp[15] = self.window;
        tcp[20..32].copy_from_slice(&[1, 1, 8, 10, 0, 0, 3, self.timestamp, 0, 0, 2, 9]);
        bytes.extend_from_slice(payload);
        self.finish(&mut bytes);
        bytes
    }

    /// Writes both checksums.
    fn finish(self, bytes: &mut [u8]) {
        let (network, transport) = (self.network(), self.transport());
        if !self.v6 {
            bytes[network + 10..network + 12].fill(0);
            let sum = !sum(&bytes[network..transport], 0);
            bytes[network + 10..network + 12].copy_from_slice(&sum.to_be_bytes());
        }
        bytes[transport + 16..transport + 18].fill(0);
        let addresses = network + if self.v6 { 8 } else { 12 };
        let pseudo = sum(&bytes[addresses..transport], 6 + (bytes.len() - transport) as u32);
        let sum = !sum(&bytes[transport..], pseudo.into());
        bytes[transport + 16..transport + 18].copy_from_slice(&sum.to_be_bytes());
    }
}

fn sum(bytes: &[u8], mut sum: u32) -> u16 {
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low));
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// `count` full segments from `*seq` on, the last with `flags` and `last` bytes.
fn run(flow: Flow, seq: &mut u32, count: usize, last: usize, flags: u8) -> Vec<(Flow, Vec<u8>)> {
    let one = |i| {
        let (len, flags) = if i + 1 == count { (last, ACK | flags) } else { (flow.mss(), ACK) };
        let payload: Vec<u8> = (0..len).map(|n| (n as u32 ^ *seq) as u8).collect();
        let packet = flow.segment(*seq, flags, &payload);
        *seq = seq.wrapping_add(len as u32);
        (flow, packet)
    };
    (0..count).map(one).collect()
}

/// What it is, its packets, and how many merged packets it makes.
type Batch = (&'static str, Vec<(Flow, Vec<u8>)>, u64);

/// Everything that a batch may hold.
fn batches(framing: Framing) -> Vec<Batch> {
    let mut all = Vec::new();
    let mut flows = vec![("IPv4", Flow { framing, ..FLOW }), ("IPv6", Flow { framing, v6: true, ..FLOW })];
    if framing == Framing::Ethernet {
        flows.push(("VLAN", Flow { vlan: true, ..FLOW }));
        flows.push(("IPv6, VLAN", Flow { vlan: true, v6: true, ..FLOW }));
    }
    for (name, flow) in flows {
        let mut seq = u32::MAX - 40_000;
        let seq = &mut seq;
        let full = flow.mss();
        for count in 1..=60 {
            let merges = u64::from(count >= 8) + u64::from(count >= 45 + 8);
            all.push((name, run(flow, seq, count, full, 0), merges));
        }
        for flags in [PSH, FIN, PSH | FIN] {
            all.push((name, run(flow, seq, 20, full, flags), 1));
            all.push((name, run(flow, seq, 20, 100, flags), 1));
            // In the middle.
            all.push((name, [run(flow, seq, 10, full, flags), run(flow, seq, 10, full, 0)].concat(), 2));
        }
        all.push((name, [run(flow, seq, 9, 700, 0), run(flow, seq, 9, 1, 0)].concat(), 2));
        let window = Flow { window: 10, ..flow };
        all.push((name, [run(flow, seq, 10, full, 0), run(window, seq, 10, full, 0)].concat(), 2));
        let later = Flow { timestamp: 4, ..flow };
        all.push((name, [run(flow, seq, 10, full, 0), run(later, seq, 10, full, 0)].concat(), 2));
        let other = Flow { port: 2, ..flow };
        let one = run(other, &mut 5, 1, full, 0);
        all.push((name, [run(flow, seq, 10, full, 0), one.clone(), run(flow, seq, 12, full, 0)].concat(), 2));
        all.push((name, [run(flow, seq, 4, full, 0), one, run(flow, seq, 4, full, 0)].concat(), 0));
        // A gap, as when a lost segment is sent again between new ones.
        let lost = run(flow, &mut 1, 1, full, 0);
        all.push((name, [run(flow, seq, 8, full, 0), lost, run(flow, seq, 8, full, 0)].concat(), 2));
        // Short answers in front and behind.
        let short = run(other, &mut 99, 1, 64, PSH);
        all.push((name, [short.clone(), run(flow, seq, 30, full, 0), short].concat(), 1));
    }
    all
}

/// What a packet is compared by: the kernel counts the identification of IPv4 up from segment to segment (it means nothing with Don't
/// Fragment, RFC 6864), and so changes the IP checksum; `sums` says whether the TCP checksum is a finished one.
fn comparable(flow: Flow, mut packet: Vec<u8>, sums: bool) -> Vec<u8> {
    let (network, transport) = (flow.network(), flow.transport());
    if !flow.v6 {
        assert_eq!(sum(&packet[network..transport], 0), 0xffff, "an IP checksum is wrong");
        packet[network + 4..network + 6].fill(0);
        packet[network + 10..network + 12].fill(0);
    }
    if !sums {
        packet[transport + 16..transport + 18].fill(0);
    }
    packet
}

/// Cuts what has arrived in one piece as a device does.
fn cut(flow: Flow, packet: &[u8]) -> Vec<Vec<u8>> {
    let (at, start) = (flow.payload(), flow.transport());
    let seq = u32::from_be_bytes(packet[start + 4..start + 8].try_into().unwrap());
    let parts: Vec<&[u8]> = packet[at..].chunks(flow.mss()).collect();
    let last = parts.len() - 1;
    let one = |(i, part): (usize, &&[u8])| {
        let mut bytes = [&packet[..at], part].concat();
        let (field, len) = if flow.v6 {
            (flow.network() + 4, bytes.len() - start)
        } else {
            (flow.network() + 2, bytes.len() - flow.network())
        };
        bytes[field..field + 2].copy_from_slice(&(len as u16).to_be_bytes());
        bytes[start + 4..start + 8].copy_from_slice(&seq.wrapping_add((i * flow.mss()) as u32).to_be_bytes());
        if i < last {
            bytes[start + 13] &= !(PSH | FIN);
        }
        flow.finish(&mut bytes);
        bytes
    };
    parts.iter().enumerate().map(one).collect()
}

/// Takes TCP packets in until `bytes` of payload have come, and says how many packets they were.
fn arrived(end: &mut End, frames: &mut Vec<RxFrame>, expected: &[(Flow, Vec<u8>)]) -> (Vec<Vec<u8>>, usize) {
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
            // The kernel's own (neighbour discovery) are none of these.
            let Some((flow, _)) = expected.get(segments.len()) else { continue };
            let protocol = flow.network() + if flow.v6 { 6 } else { 9 };
            if packet.get(protocol) == Some(&6) && packet.len() > flow.payload() {
                packets += 1;
                segments.extend(cut(*flow, &packet));
            }
        }
        assert!(Instant::now() < deadline, "{} of {} segments came", segments.len(), expected.len());
    }
    (segments, packets)
}

/// A frame each; every other batch has its checksums left to the device, as the engine does where a link finishes them.
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
        TxFrame { frame: end.frame(&packet), checksum }
    };
    packets.iter().map(one).collect()
}

/// Sends every batch by `sender`, and compares what the peer's packet socket sees.
fn every_segment_arrives(name: &str, sender: &mut End, peer: &mut End, whole: bool) {
    let mut received = Vec::new();
    for (i, (what, packets, merges)) in batches(sender.link.caps().framing).into_iter().enumerate() {
        let before = sender.link.stats();
        let batch = frames(sender, &packets, i % 2 == 1);
        sender.send(batch);
        let (segments, came) = arrived(peer, &mut received, &packets);
        for (n, (got, (flow, sent))) in segments.into_iter().zip(&packets).enumerate() {
            let case = format!("{name}, {what}, batch {i} of {} segments, segment {n}", packets.len());
            let (got, sent) = (comparable(*flow, got, true), comparable(*flow, sent.clone(), true));
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
    veth.a.enter(|| {
        let device = XdpDevice::attach("fsx0", XdpConfig { mode, ..XdpConfig::default() }).unwrap();
        let (umem, mut pool) = umem(8192, 2048);
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
        // One queue, whose order is that of the calls; and several, where a flow stays on its carrier.
        for queues in [1, 4] {
            let veth = Veth::new(queues, 1500);
            let (mut sender, _device) = xdp_end(&veth, mode);
            let mut peer = packet_end(&veth.b, "fsx1");
            assert!(sender.link.merges(), "veth cuts packets");
            if queues == 1 {
                every_segment_arrives(&format!("AF_XDP, {mode:?}"), &mut sender, &mut peer, true);
            } else {
                let (mut seq, mut received) = (1, Vec::new());
                for count in [20, 3, 1, 30, 2, 9] {
                    let packets = run(FLOW, &mut seq, count, MSS, 0);
                    let batch = frames(&mut sender, &packets, false);
                    sender.send(batch);
                    let (segments, _) = arrived(&mut peer, &mut received, &packets);
                    assert!(
                        segments
                            .into_iter()
                            .zip(packets)
                            .all(|(got, (flow, sent))| { comparable(flow, got, true) == comparable(flow, sent, true) })
                    );
                }
                assert!(sender.link.stats().tx_merges > 0);
                sender.settle();
            }
            sender.close();
            peer.close();
        }
    }
    let veth = Veth::new(1, 1500);
    let (mut sender, mut peer) = (packet_end(&veth.a, "fsx0"), packet_end(&veth.b, "fsx1"));
    every_segment_arrives("AF_PACKET", &mut sender, &mut peer, true);
    sender.close();
    peer.close();
}

/// The device does not cut, so the kernel does: the peer has segments, frame by frame, with finished checksums.
#[test]
fn segments_cut_by_the_kernel_are_those_that_were_merged() {
    if skipped_without_root("merging with TSO off") {
        return;
    }
    let veth = Veth::new(1, 1500);
    veth.a.run("ethtool -K fsx0 tso off gso off tx off sg off > /dev/null");
    let (mut sender, mut peer) = (packet_end(&veth.a, "fsx0"), packet_end(&veth.b, "fsx1"));
    every_segment_arrives("AF_PACKET, TSO off", &mut sender, &mut peer, false);
    sender.close();
    peer.close();
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
            let packets = run(FLOW, &mut seq, 30, MSS, 0);
            let batch = frames(&mut sender, &packets, false);
            sender.send(batch);
            let (segments, _) = arrived(&mut peer, &mut received, &packets);
            assert!(segments.iter().zip(&packets).all(|(got, (_, sent))| got[50..] == sent[50..]));
            veth.a.enter(|| device.refresh_offloads());
        }
        assert_eq!(sender.link.merges(), on);
        let before = sender.link.stats().tx_merges;
        for _ in 0..5 {
            let packets = run(FLOW, &mut seq, 30, MSS, 0);
            let batch = frames(&mut sender, &packets, false);
            sender.send(batch);
            let (segments, _) = arrived(&mut peer, &mut received, &packets);
            assert!(segments.iter().zip(&packets).all(|(got, (_, sent))| got[50..] == sent[50..]));
        }
        assert_eq!(sender.link.stats().tx_merges - before, if on { 5 } else { 0 });
    }
    sender.settle();
    sender.close();
    peer.close();
}

/// A queue in front of the device that is full: what the kernel does not take stays in the batch, is tried again after a pause, and
/// arrives once, in order.
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
            let packets = run(FLOW, &mut seq, 44, MSS, 0);
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
                        segments.extend(cut(FLOW, &packet));
                    }
                }
            }
            assert!(Instant::now() < deadline, "{} of {} segments came", segments.len(), sent.len());
        }
        assert!(waiting.is_empty());
        for (n, (got, (flow, sent))) in segments.into_iter().zip(sent).enumerate() {
            assert!(comparable(flow, got, true) == comparable(flow, sent, true), "segment {n}, limit {limit}");
        }
        sender.settle();
        sender.close();
        peer.close();
    }
}
