use super::carriers::Carriers;
use super::header::MergedHeader;
use super::run::{BYTES_MIN, Packet, Run, SEGMENTS_MIN};
use super::segment::{Layout, URGENT, flow_number};
use crate::sys::packet_io::VNET_LEN;
use fs_core::Framing;
use proptest::prelude::*;
use segments::*;

#[allow(dead_code, missing_docs, unreachable_pub, reason = "shared with the tests of links")]
#[path = "../../tests/support/segments.rs"]
mod segments;

fn flows() -> impl Iterator<Item = Flow> {
    [false, true].into_iter().flat_map(|v6| {
        [false, true].into_iter().flat_map(move |timestamps| {
            let ethernet = move |vlan| Flow { v6, vlan, timestamps, ..PLAIN };
            [ethernet(false), ethernet(true), Flow { framing: Framing::Ip, ..ethernet(false) }]
        })
    })
}

/// The packet in one frame.
fn whole(packet: &[u8]) -> Packet<'_> {
    Packet { head: packet, len: packet.len(), frames: 1 }
}

/// The packet in frames of at most `piece` bytes.
fn in_pieces(packet: &[u8], piece: usize) -> Packet<'_> {
    Packet { head: &packet[..packet.len().min(piece)], len: packet.len(), frames: packet.len().div_ceil(piece) }
}

fn run(flow: Flow, packets: &[Vec<u8>]) -> Option<Run> {
    let mut packets = packets.iter().map(|packet| whole(packet));
    Run::of(flow.framing, packets.next()?, packets)
}

fn length(flow: Flow, packets: &[Vec<u8>]) -> usize {
    run(flow, packets).map_or(0, |run| run.segments)
}

/// Checks a merged packet's headers, and returns the segments that the kernel makes of it.
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
    assert_eq!(told, flow.pseudo(template, tcp_len), "the partial checksum");
    let at = flow.network();
    if flow.v6 {
        assert_eq!(usize::from(u16::from_be_bytes([template[at + 4], template[at + 5]])), tcp_len);
    } else {
        assert_eq!(usize::from(u16::from_be_bytes([template[at + 2], template[at + 3]])), 20 + tcp_len);
        assert_eq!(sum(&template[at..start], 0), 0xffff, "the IP checksum");
    }
    flow.cut(&[template, payload].concat(), size)
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
                    let packets = flow.segments(u32::MAX - 5000, &lens, flags);
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
        let whole = flow.segments(1, &[1400; 12], 0);
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
            assert_eq!(with(&|p| p[transport + TIMESTAMP] ^= 1), 5, "timestamp");
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
        packets[5] = flow.segments(1 + 5 * 1400, &[1401], 0).remove(0);
        assert_eq!(length(flow, &packets), 5, "longer");
    }
}

#[test]
fn what_is_no_plain_segment_begins_no_run() {
    let begins = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packets = PLAIN.segments(1, &[1400; 9], 0);
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
    let short = PLAIN.segments(1, &[400; 9], 0);
    assert_eq!(length(PLAIN, &short), 0, "short segments are no bulk transfer");
    assert_eq!(Layout::of(Framing::Ethernet, &[], 0), None);
    assert_eq!(Layout::of(Framing::Ip, &[0x50; 60], 60), None);
}

#[test]
fn segments_in_several_frames_make_the_same_run() {
    for flow in flows() {
        let full = flow.mss(9000);
        let packets = flow.segments(u32::MAX - 9000, &[full, full, full, full, full, full, 5000], PSH);
        let as_one = run(flow, &packets).unwrap();
        for piece in [200, 1000, 3904, 9000] {
            let mut parts = packets.iter().map(|packet| in_pieces(packet, piece));
            let run = Run::of(flow.framing, parts.next().unwrap(), parts).unwrap();
            let frames: Vec<usize> = packets.iter().map(|packet| packet.len().div_ceil(piece)).collect();
            let expected = Run { frames: frames.iter().sum(), last_frames: frames[6], ..as_one };
            assert_eq!(run, expected, "{flow:?} {piece}");
        }
        // Headers that do not lie in the first frame begin no run, and end one.
        let short = flow.payload() - 1;
        assert_eq!(Run::of(flow.framing, in_pieces(&packets[0], short), std::iter::empty()), None);
        let rest = [whole(&packets[1]), in_pieces(&packets[2], short)];
        assert_eq!(Run::of(flow.framing, whole(&packets[0]), rest.into_iter()).map(|run| run.segments), Some(2));
    }
}

/// More frames than a system call takes vectors.
#[test]
fn a_run_ends_before_it_has_too_many_frames() {
    let packets = PLAIN.segments(1, &[8948; 7], 0);
    let mut parts = packets.iter().map(|packet| in_pieces(packet, 40 + 52));
    let run = Run::of(PLAIN.framing, parts.next().unwrap(), parts).map(|run| (run.segments, run.frames));
    assert_eq!(run, Some((7, 7 * 98)));
    let packets = PLAIN.segments(1, &[1448; 40], 0);
    let mut parts = packets.iter().map(|packet| Packet { frames: 30, ..whole(packet) });
    let run = Run::of(PLAIN.framing, parts.next().unwrap(), parts).map(|run| (run.segments, run.frames));
    assert_eq!(run, Some((33, 990)));
}

#[test]
fn a_run_is_worth_it_by_its_segments_or_its_bytes() {
    let worth = |len, count| run(PLAIN, &PLAIN.segments(1, &vec![len; count], 0)).unwrap().is_worth_it();
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
        let packets = flow.segments(1, &[1400, 1400, 3], FIN);
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
            for piece in [usize::MAX, 60] {
                let mut rest = packets.iter().map(|packet| in_pieces(packet, piece));
                let _ = rest.next().map(|first| Run::of(framing, first, rest));
            }
            let _ = flow_number(framing, &packets[0], 8);
        }
        let flow = Flow { v6, vlan, ..PLAIN };
        let mut near = flow.segments(9, &[1400; 4], PSH);
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
