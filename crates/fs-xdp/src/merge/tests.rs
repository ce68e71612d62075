use super::carriers::Carriers;
use super::header::MergedHeader;
use super::run::{BYTES_MIN, Run, SEGMENTS_MIN};
use super::segment::{ACK, CHECKSUM, DATA_OFFSET, FIN, FLAGS, Layout, PSH, SEQ, URGENT, WINDOW, flow_number};
use crate::sys::packet_io::VNET_LEN;
use fs_core::Framing;
use proptest::prelude::*;

/// How the headers of a flow's segments look.
#[derive(Clone, Copy, Debug)]
struct Flow {
    framing: Framing,
    v6: bool,
    vlan: bool,
    timestamps: bool,
}

const PLAIN: Flow = Flow { framing: Framing::Ethernet, v6: false, vlan: false, timestamps: true };

fn flows() -> impl Iterator<Item = Flow> {
    [false, true].into_iter().flat_map(|v6| {
        [false, true].into_iter().flat_map(move |timestamps| {
            let ethernet = move |vlan| Flow { framing: Framing::Ethernet, v6, vlan, timestamps };
            [ethernet(false), ethernet(true), Flow { framing: Framing::Ip, ..ethernet(false) }]
        })
    })
}

impl Flow {
    fn network(self) -> usize {
        match (self.framing, self.vlan) {
            (Framing::Ip, _) => 0,
            (_, false) => 14,
            (_, true) => 18,
        }
    }

    fn transport(self) -> usize {
        self.network() + if self.v6 { 40 } else { 20 }
    }

    fn payload(self) -> usize {
        self.transport() + if self.timestamps { 32 } else { 20 }
    }

    /// A segment as the engine builds it, with all checksums finished.
    fn segment(self, seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; self.payload()];
        let (network, transport) = (self.network(), self.transport());
        if self.framing == Framing::Ethernet {
            bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            if self.vlan {
                bytes[12..16].copy_from_slice(&[0x81, 0, 0x20, 5]);
            }
            bytes[network - 2..network].copy_from_slice(if self.v6 { &[0x86, 0xdd] } else { &[8, 0] });
        }
        let tcp_len = self.payload() - transport + payload.len();
        if self.v6 {
            bytes[network] = 0x60;
            bytes[network + 3] = 9;
            bytes[network + 4..network + 6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
            bytes[network + 6..network + 8].copy_from_slice(&[6, 64]);
            bytes[network + 8..network + 40].fill(0x21);
            bytes[network + 39] = 7;
        } else {
            bytes[network..network + 2].copy_from_slice(&[0x45, 2]);
            bytes[network + 2..network + 4].copy_from_slice(&(20 + tcp_len as u16).to_be_bytes());
            bytes[network + 6..network + 10].copy_from_slice(&[0x40, 0, 64, 6]);
            bytes[network + 12..network + 20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        }
        let tcp = &mut bytes[transport..];
        tcp[..4].copy_from_slice(&[0x1f, 0x90, 0xc0, 0x01]);
        tcp[SEQ..SEQ + 4].copy_from_slice(&seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&7u32.to_be_bytes());
        tcp[DATA_OFFSET] = if self.timestamps { 8 << 4 } else { 5 << 4 };
        tcp[FLAGS] = flags;
        tcp[WINDOW..WINDOW + 2].copy_from_slice(&501u16.to_be_bytes());
        if self.timestamps {
            tcp[20..32].copy_from_slice(&[1, 1, 8, 10, 0, 0, 3, 5, 0, 0, 2, 9]);
        }
        bytes.extend_from_slice(payload);
        self.finish(&mut bytes);
        bytes
    }

    /// Both checksums.
    fn finish(self, bytes: &mut [u8]) {
        let (network, transport) = (self.network(), self.transport());
        if !self.v6 {
            bytes[network + 10..network + 12].fill(0);
            let sum = !slow_sum(&bytes[network..transport], 0);
            bytes[network + 10..network + 12].copy_from_slice(&sum.to_be_bytes());
        }
        bytes[transport + CHECKSUM..][..2].fill(0);
        let sum = !slow_sum(&bytes[transport..], self.pseudo(bytes, bytes.len() - transport));
        bytes[transport + CHECKSUM..][..2].copy_from_slice(&sum.to_be_bytes());
    }

    /// The pseudo header's sum for so many bytes of TCP.
    fn pseudo(self, bytes: &[u8], tcp_len: usize) -> u32 {
        let addresses = self.network() + if self.v6 { 8 } else { 12 };
        u32::from(slow_sum(&bytes[addresses..self.transport()], 6 + tcp_len as u32))
    }
}

fn slow_sum(bytes: &[u8], mut sum: u32) -> u16 {
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low));
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// `lens.len()` segments in order; the last has `flags` too.
fn segments(flow: Flow, seq: u32, lens: &[usize], flags: u8) -> Vec<Vec<u8>> {
    let mut at = seq;
    let mut made = Vec::new();
    for (i, &len) in lens.iter().enumerate() {
        let payload: Vec<u8> = (0..len).map(|n| (n * 7 + i * 31) as u8).collect();
        let flags = if i + 1 == lens.len() { ACK | flags } else { ACK };
        made.push(flow.segment(at, flags, &payload));
        at = at.wrapping_add(len as u32);
    }
    made
}

fn run(flow: Flow, packets: &[Vec<u8>]) -> Option<Run> {
    let mut packets = packets.iter().map(Vec::as_slice);
    Run::of(flow.framing, packets.next()?, packets)
}

fn length(flow: Flow, packets: &[Vec<u8>]) -> usize {
    run(flow, packets).map_or(0, |run| run.segments)
}

/// What `tcp_gso_segment` and `inet_gso_segment` make of a merged packet, but for the identification of IPv4 (RFC 6864: it means nothing
/// with Don't Fragment), which the kernel counts up.
fn cut(flow: Flow, header: &[u8], payload: &[u8]) -> Vec<Vec<u8>> {
    let vnet = &header[..VNET_LEN];
    let word = |at: usize| usize::from(u16::from_ne_bytes([vnet[at], vnet[at + 1]]));
    let (headers, size, start, offset) = (word(2), word(4), word(6), word(8));
    assert_eq!((vnet[0], vnet[1]), (1, if flow.v6 { 4 } else { 1 }), "NEEDS_CSUM, and the kind of GSO");
    let template = &header[VNET_LEN..];
    assert_eq!((headers, start, offset), (template.len(), flow.transport(), CHECKSUM));
    // skb_partial_csum_set(): the field has the pseudo header's sum of the whole packet.
    let told = u16::from_be_bytes([template[start + offset], template[start + offset + 1]]);
    let tcp_len = headers - start + payload.len();
    assert_eq!(u32::from(told), flow.pseudo(template, tcp_len), "the partial checksum");
    let at = flow.network();
    if flow.v6 {
        assert_eq!(usize::from(u16::from_be_bytes([template[at + 4], template[at + 5]])), tcp_len);
    } else {
        assert_eq!(usize::from(u16::from_be_bytes([template[at + 2], template[at + 3]])), 20 + tcp_len);
        assert_eq!(slow_sum(&template[at..start], 0), 0xffff, "the IP checksum");
    }
    let flags = template[start + FLAGS];
    let seq = u32::from_be_bytes(template[start + SEQ..][..4].try_into().unwrap());
    let parts: Vec<&[u8]> = payload.chunks(size).collect();
    let last = parts.len() - 1;
    let one = |(i, part): (usize, &&[u8])| {
        let flags = if i == last { flags } else { flags & !(PSH | FIN) };
        let mut bytes = template.to_vec();
        bytes.extend_from_slice(part);
        let (field, len) = if flow.v6 { (at + 4, bytes.len() - start) } else { (at + 2, bytes.len() - at) };
        bytes[field..field + 2].copy_from_slice(&(len as u16).to_be_bytes());
        bytes[start + SEQ..][..4].copy_from_slice(&seq.wrapping_add((i * size) as u32).to_be_bytes());
        bytes[start + FLAGS] = flags;
        flow.finish(&mut bytes);
        bytes
    };
    parts.iter().enumerate().map(one).collect()
}

/// Merges the run at the front and cuts it again.
fn there_and_back(flow: Flow, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let run = run(flow, packets).unwrap();
    let part = &packets[..run.segments];
    let header = MergedHeader::new(&run, &part[0], &part[part.len() - 1]);
    let payload: Vec<u8> = part.iter().flat_map(|packet| &packet[flow.payload()..]).copied().collect();
    assert_eq!(header.bytes().len() - VNET_LEN + payload.len(), run.bytes);
    cut(flow, header.bytes(), &payload)
}

#[test]
fn one_to_sixty_segments_come_back_as_they_were() {
    for flow in flows() {
        let full = 1514 - flow.payload();
        for count in 1..=60 {
            for flags in [0, PSH, FIN, PSH | FIN] {
                // With no flags a full last segment and a short one; the sequence number wraps.
                for last in [full, 1, full - 1] {
                    let mut lens = vec![full; count];
                    lens[count - 1] = last;
                    let packets = segments(flow, u32::MAX - 5000, &lens, flags);
                    // A first segment that is short is a run of one; PSH and FIN may not be on the first.
                    if count == 1 && (flags != 0 || last == 1) {
                        assert_eq!(length(flow, &packets), 0);
                        continue;
                    }
                    let most = (65_535 - flow.payload()) / full;
                    let expected = count
                        .min(most + usize::from(most * full + flow.payload() + last <= 65_535 && count == most + 1));
                    assert_eq!(length(flow, &packets), expected, "{flow:?} {count} {flags} {last}");
                    assert_eq!(there_and_back(flow, &packets), packets[..expected], "{flow:?} {count} {flags} {last}");
                }
            }
        }
    }
}

#[test]
fn what_differs_ends_a_run() {
    for flow in flows() {
        let (network, transport) = (flow.network(), flow.transport());
        let whole = segments(flow, 1, &[1400; 12], 0);
        assert_eq!(length(flow, &whole), 12);
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut packets = whole.clone();
            change(&mut packets[5]);
            if packets[5].len() > flow.payload() {
                flow.finish(&mut packets[5]);
            }
            length(flow, &packets)
        };
        // Behind it nothing is full any more, so it is the last.
        assert_eq!(with(&|p| p[transport + FLAGS] |= PSH), 6);
        assert_eq!(with(&|p| p[transport + FLAGS] |= FIN), 6);
        for flag in [0x02, 0x04, 0x20, 0x40, 0x80] {
            assert_eq!(with(&|p| p[transport + FLAGS] |= flag), 5, "flag {flag:#x}");
        }
        assert_eq!(with(&|p| p[transport + FLAGS] = PSH), 5, "no ACK");
        assert_eq!(with(&|p| p[transport + WINDOW + 1] ^= 1), 5, "window");
        assert_eq!(with(&|p| p[transport + 11] ^= 1), 5, "acknowledgement");
        assert_eq!(with(&|p| p[transport + SEQ + 3] ^= 1), 5, "sequence number");
        assert_eq!(with(&|p| p[transport + URGENT] ^= 1), 5, "urgent pointer");
        assert_eq!(with(&|p| p[transport] ^= 1), 5, "another flow");
        assert_eq!(with(&|p| p[network + 1] ^= 1), 5, "TOS or traffic class");
        assert_eq!(with(&|p| p[network + if flow.v6 { 7 } else { 8 }] ^= 1), 5, "TTL");
        assert_eq!(with(&|p| p[network + if flow.v6 { 20 } else { 16 }] ^= 1), 5, "address");
        if flow.timestamps {
            assert_eq!(with(&|p| p[transport + 27] ^= 1), 5, "timestamp");
        }
        if flow.vlan {
            assert_eq!(with(&|p| p[15] ^= 1), 5, "VLAN");
        }
        if flow.framing == Framing::Ethernet {
            assert_eq!(with(&|p| p[0] ^= 4), 5, "next hop");
        }
        // A packet whose length is not what its header says, one that is cut off, and one that is longer.
        assert_eq!(with(&|p| p.truncate(600)), 5);
        assert_eq!(with(&|p| p.truncate(transport + 3)), 5);
        let mut packets = whole.clone();
        packets[5] = segments(flow, 1 + 5 * 1400, &[1401], 0).remove(0);
        assert_eq!(length(flow, &packets), 5, "longer");
    }
}

#[test]
fn what_is_no_plain_segment_begins_no_run() {
    let begins = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packets = segments(PLAIN, 1, &[1400; 9], 0);
        packets.iter_mut().for_each(|packet| {
            change(packet);
            if packet.len() > 100 {
                PLAIN.finish(packet);
            }
        });
        length(PLAIN, &packets) > 0
    };
    assert!(begins(&|_| ()));
    assert!(!begins(&|p| p[14] = 0x46), "IP options");
    assert!(!begins(&|p| p[20] = 0), "may be fragmented");
    assert!(!begins(&|p| p[20] = 0x60), "a fragment");
    assert!(!begins(&|p| p[23] = 17), "UDP");
    assert!(!begins(&|p| p[46] = 0x40), "a TCP header that is too short");
    assert!(!begins(&|p| p[12] = 0x88), "another protocol");
    assert!(!begins(&|p| p.truncate(40)), "cut off");
    let short = segments(PLAIN, 1, &[400; 9], 0);
    assert_eq!(length(PLAIN, &short), 0, "short segments are no bulk transfer");
    assert_eq!(Layout::of(Framing::Ethernet, &[]), None);
    assert_eq!(Layout::of(Framing::Ip, &[0x50; 60]), None);
}

#[test]
fn a_run_is_worth_it_by_its_segments_or_its_bytes() {
    let worth = |len, count| run(PLAIN, &segments(PLAIN, 1, &vec![len; count], 0)).unwrap().is_worth_it();
    assert!(!worth(1448, SEGMENTS_MIN - 1) && worth(1448, SEGMENTS_MIN));
    assert!(!worth(8948, BYTES_MIN / 8948) && worth(8948, BYTES_MIN / 8948 + 1));
}

#[test]
fn a_flow_changes_carrier_once_the_other_one_is_empty() {
    let mut carriers = Carriers::new();
    assert!(!carriers.may_be_in_ring(3) && !carriers.may_be_in_socket(3));
    carriers.sends_by_ring(3);
    assert!(carriers.may_be_in_ring(3) && !carriers.may_be_in_ring(4));
    carriers.socket_is_empty();
    assert!(carriers.may_be_in_ring(3), "the other carrier's moment does not count");
    carriers.ring_is_empty();
    assert!(!carriers.may_be_in_ring(3));
    carriers.sends_by_socket(3);
    carriers.ring_is_empty();
    assert!(carriers.may_be_in_socket(3));
    carriers.socket_is_empty();
    assert!(!carriers.may_be_in_socket(3));
}

#[test]
fn a_flow_is_bulk_for_a_batch_after_its_run() {
    let mut carriers = Carriers::new();
    carriers.begin_batch();
    assert!(!carriers.is_bulk(3));
    carriers.has_run(3);
    assert!(carriers.is_bulk(3) && !carriers.is_bulk(4));
    carriers.begin_batch();
    assert!(carriers.is_bulk(3));
    carriers.begin_batch();
    assert!(!carriers.is_bulk(3));
}

#[test]
fn a_flows_number_is_of_its_ports_and_address() {
    for flow in flows() {
        let number = |packet: &[u8]| flow_number(flow.framing, packet, 8);
        let packets = segments(flow, 1, &[1400, 1400, 3], FIN);
        let first = number(&packets[0]);
        assert!(first.is_some_and(|number| number < 256));
        assert!(packets.iter().all(|packet| number(packet) == first));
        let others = (0..64u8).map(|port| {
            let mut other = packets[0].clone();
            other[flow.transport() + 3] ^= port;
            number(&other).unwrap()
        });
        assert!(others.collect::<std::collections::BTreeSet<_>>().len() > 32, "ports are spread");
        assert_eq!(number(&packets[0][..flow.transport() + 3]), None);
    }
}

proptest! {
    /// Nothing in a batch, well-formed or not, makes reading it fail.
    #[test]
    fn any_bytes_are_read(
        packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..900), 1..6),
        at in 0usize..100, byte in any::<u8>(), cut in 0usize..1514, v6 in any::<bool>(), vlan in any::<bool>(),
    ) {
        for framing in [Framing::Ethernet, Framing::Ip] {
            let mut rest = packets.iter().map(Vec::as_slice);
            let first = rest.next().unwrap_or_default();
            let _ = Run::of(framing, first, rest);
            let _ = flow_number(framing, first, 8);
        }
        let flow = Flow { v6, vlan, ..PLAIN };
        let mut near = segments(flow, 9, &[1400; 4], PSH);
        near[1][at] = byte;
        near[2].truncate(cut);
        if let Some(run) = run(flow, &near) {
            prop_assert!(run.segments >= 1 && run.segments <= near.len());
        }
        near[0][at] = byte;
        if let Some(run) = run(flow, &near) {
            let _ = MergedHeader::new(&run, &near[0], &near[run.segments - 1]);
        }
    }
}
