use super::segment::{ACK, CWR, ECE, FIN, RST};
use super::*;

const NOW: Instant = Instant::ZERO;
const CLIENT: ([u8; 4], u16) = ([10, 77, 0, 1], 1000);
const SERVER: ([u8; 4], u16) = ([10, 77, 0, 2], 80);

/// Makes a TCP/IPv4 packet, without checksums, which the police does not check.
fn packet(from: ([u8; 4], u16), seq: u32, ack: u32, flags: u8, window: u16, options: &[u8], payload: usize) -> Vec<u8> {
    let to = if from == CLIENT { SERVER } else { CLIENT };
    let total = (40 + options.len() + payload) as u16;
    let mut p = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0];
    p[2..4].copy_from_slice(&total.to_be_bytes());
    p.extend(from.0.iter().chain(&to.0));
    p.extend(from.1.to_be_bytes().iter().chain(&to.1.to_be_bytes()));
    p.extend(seq.to_be_bytes().iter().chain(&ack.to_be_bytes()));
    p.extend([(5 + options.len() as u8 / 4) << 4, flags]);
    p.extend(window.to_be_bytes());
    p.extend([0; 4]);
    p.extend(options);
    p.extend(vec![0; payload]);
    p
}

/// Client 100, server 500: handshake complete, windows of 1000 bytes, MSS 536, no options.
fn established() -> Police {
    established_with(&[], 0)
}

/// SACK permitted.
const SACK_OK: [u8; 4] = [4, 2, 1, 1];

fn established_with(options: &[u8], ecn: u8) -> Police {
    let mut police = Police::new(Framing::Ip, 10);
    handshake(&mut police, 1000, options, ecn);
    police
}

/// Runs a handshake. `ecn` is ECE if ECN is to be negotiated.
fn handshake(police: &mut Police, window: u16, options: &[u8], ecn: u8) {
    for p in [
        packet(CLIENT, 99, 0, SYN | ecn | ecn << 1, window, options, 0),
        packet(SERVER, 499, 100, SYN | ACK | ecn, window, options, 0),
        packet(CLIENT, 100, 500, ACK, window, &[], 0),
    ] {
        police.sent(NOW, &p).unwrap();
        police.arrived(&p);
    }
}

#[test]
fn accepts_valid_exchange() {
    let mut police = established();
    let data = packet(CLIENT, 100, 500, ACK, 1000, &[], 500);
    police.sent(NOW, &data).unwrap();
    police.sent(NOW, &data).unwrap();
    police.arrived(&data);
    police.sent(NOW, &packet(SERVER, 500, 600, ACK, 500, &[], 0)).unwrap();
    police.sent(NOW, &packet(CLIENT, 600, 500, FIN | ACK, 1000, &[], 500)).unwrap();
    police.sent(NOW, &packet(CLIENT, 1101, 500, ACK, 1000, &[], 0)).unwrap();
}

/// Returns a segment with this ECN field in its IP header.
fn with_ecn(mut packet: Vec<u8>, ecn: u8) -> Vec<u8> {
    packet[1] = ecn;
    packet
}

/// The client has sent 100..300; 200..300 has arrived twice.
fn with_a_hole() -> Police {
    let mut police = established_with(&SACK_OK, 0);
    for seq in [100, 200] {
        police.sent(NOW, &packet(CLIENT, seq, 500, ACK, 1000, &[], 100)).unwrap();
    }
    police.arrived(&packet(CLIENT, 200, 500, ACK, 1000, &[], 100));
    police.arrived(&packet(CLIENT, 200, 500, ACK, 1000, &[], 100));
    police
}

fn blocks(list: &[(u32, u32)]) -> Vec<u8> {
    let mut options = vec![1, 1, 5, 2 + 8 * list.len() as u8];
    options.extend(list.iter().flat_map(|b| [b.0.to_be_bytes(), b.1.to_be_bytes()].concat()));
    options
}

#[track_caller]
fn breaks(police: &mut Police, rule: &str, breach: &[u8]) {
    let seen = police.sent(NOW, breach).expect_err(rule);
    assert!(seen.contains(rule), "{rule}: {seen}");
}

#[test]
fn detects_every_violation() {
    let timestamp = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0];
    let data = |seq, flags, len| packet(CLIENT, seq, 500, flags, 1000, &[], len);
    for (what, breach) in [
        ("moves back", packet(CLIENT, 100, 500, ACK, 999, &[], 0)),
        ("never arrived", packet(CLIENT, 100, 501, ACK, 1000, &[], 0)),
        ("beyond the peer's window", data(600, ACK, 501)),
        ("over the peer's MSS", data(100, ACK, 537)),
        ("without ACK", data(100, 0, 0)),
        ("a timestamp without negotiation", packet(CLIENT, 100, 500, ACK, 1000, &timestamp, 0)),
        ("SACK blocks without negotiation", packet(CLIENT, 100, 500, ACK, 1000, &blocks(&[(256, 266)]), 0)),
        ("none before", data(101, ACK, 1)),
        ("ECT without negotiation", with_ecn(data(100, ACK, 1), 2)),
        ("CWR on", data(100, ACK | CWR, 1)),
        ("ECE without negotiation", data(100, ACK | ECE, 0)),
        ("ECT on a RST", with_ecn(data(100, RST, 0), 1)),
    ] {
        breaks(&mut established(), what, &breach);
    }
    let mut police = established();
    police.sent(NOW, &data(100, FIN | ACK, 10)).unwrap();
    breaks(&mut police, "data up to 12 after the FIN", &data(110, ACK, 1));
    breaks(&mut police, "FIN at", &data(100, FIN | ACK, 9));
}

#[test]
fn retransmission_must_repeat_bytes() {
    let mut police = established();
    let mut first = packet(CLIENT, 100, 500, ACK, 1000, &[], 100);
    police.sent(NOW, &first).unwrap();
    let mut joined = packet(CLIENT, 150, 500, ACK, 1000, &[], 100);
    police.sent(NOW, &joined).unwrap();
    *first.last_mut().unwrap() = 1;
    breaks(&mut police, "again with other bytes", &first);
    joined[40 + 60] = 1;
    breaks(&mut police, "again with other bytes", &joined);
}

#[test]
fn first_flight_is_bounded() {
    let mut police = Police::new(Framing::Ip, 2);
    handshake(&mut police, 10_000, &[], 0);
    let data = |seq, len| packet(CLIENT, seq, 500, ACK, 10_000, &[], len);
    police.sent(NOW, &data(100, 536)).unwrap();
    police.sent(NOW, &data(636, 536)).unwrap();
    police.sent(NOW, &data(1172, 536)).unwrap();
    police.sent(NOW, &data(1708, 535)).unwrap();
    breaks(&mut police, "a first flight of 2144", &data(2243, 1));
}

#[test]
fn sack_blocks_must_name_received_data() {
    let ack = |ack, list: &[(u32, u32)]| packet(SERVER, 500, ack, ACK, 1000, &blocks(list), 0);
    with_a_hole().sent(NOW, &ack(100, &[(200, 300)])).unwrap();
    with_a_hole().sent(NOW, &ack(100, &[(250, 300), (200, 300)])).unwrap();
    breaks(&mut with_a_hole(), "names what never arrived", &ack(100, &[(199, 300)]));
    breaks(&mut with_a_hole(), "never arrived", &ack(300, &[]));
    // SACK blocks of an earlier connection.
    with_a_hole().sent(NOW, &ack(100, &[(50, 99), (200, 300)])).unwrap();
    breaks(&mut with_a_hole(), "overlap", &ack(100, &[(200, 300), (200, 250)]));
    let mut police = with_a_hole();
    police.arrived(&packet(CLIENT, 100, 500, ACK, 1000, &[], 100));
    police.sent(NOW, &ack(300, &[(200, 250)])).unwrap();
    breaks(&mut police, "did not come twice", &ack(300, &[(150, 250)]));
    breaks(&mut police, "acknowledges 101 after 201", &ack(200, &[]));
}

#[test]
fn marks_must_be_echoed_until_cwr() {
    let mut police = established_with(&[], ECE);
    let data = |seq, flags, ecn| with_ecn(packet(CLIENT, seq, 500, ACK | flags, 1000, &[], 10), ecn);
    let ack = |ack, flags| packet(SERVER, 500, ack, ACK | flags, 2000 - ack as u16, &[], 0);
    breaks(&mut police, "ECE although no mark", &ack(100, ECE));
    police.sent(NOW, &data(100, 0, 2)).unwrap();
    breaks(&mut police, "not new data", &data(100, 0, 2));
    police.arrived(&data(100, 0, 3));
    breaks(&mut police, "no ECE although", &ack(110, 0));
    police.sent(NOW, &ack(110, ECE)).unwrap();
    police.sent(NOW, &data(110, CWR, 2)).unwrap();
    police.arrived(&data(110, CWR, 2));
    // Not processed yet, then processed.
    police.sent(NOW, &ack(110, ECE)).unwrap();
    breaks(&mut police, "ECE although no mark", &ack(120, ECE));
    police.sent(NOW, &ack(120, 0)).unwrap();
    // A copy of older data has no effect; a copy of the data with CWR may be the accepted one.
    police.arrived(&data(100, 0, 0));
    breaks(&mut police, "ECE although no mark", &ack(120, ECE));
    police.arrived(&data(110, 0, 0));
    police.sent(NOW, &ack(120, ECE)).unwrap();
}

#[test]
fn rsts_and_empty_acks_must_end() {
    let mut police = established();
    let rst = packet(SERVER, 500, 0, RST, 0, &[], 0);
    // Two segments have reached the server, and it may abort without cause.
    for _ in 0..4 {
        police.sent(NOW, &rst).unwrap();
        police.arrived(&packet(CLIENT, 100, 500, RST, 0, &[], 0));
    }
    breaks(&mut police, "RSTs, and only 2 segments", &rst);

    let mut police = established();
    let ack = packet(CLIENT, 100, 500, ACK, 1000, &[], 0);
    // The first was the handshake's.
    for _ in 0..49 {
        police.sent(NOW, &ack).unwrap();
    }
    breaks(&mut police, "the same empty ACK", &ack);
}
