//! Frames of the tests, with their checksums.

use std::net::{IpAddr, SocketAddr};

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const PUSH: u8 = 8;
pub(super) const ACK: u8 = 16;

#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    pub(super) options: Vec<u8>,
    pub(super) payload: Vec<u8>,
    pub(super) hops: u8,
}

pub(super) fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

pub(super) fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn is_v6(frame: &[u8]) -> bool {
    frame[12] == 0x86
}

/// Returns the offset of what follows the IP header.
fn body(frame: &[u8]) -> usize {
    if is_v6(frame) { 54 } else { 14 + usize::from(frame[14] & 15) * 4 }
}

fn pseudo(frame: &[u8], protocol: u32) -> u32 {
    let addresses = if is_v6(frame) { &frame[22..54] } else { &frame[26..34] };
    sum(addresses) + protocol + (frame.len() - body(frame)) as u32
}

/// Returns 0xffff if the checksum is right.
pub(super) fn sum_of_tcp(frame: &[u8]) -> u16 {
    fold(pseudo(frame, 6) + sum(&frame[body(frame)..]))
}

pub(super) fn sum_of_ip(frame: &[u8]) -> u16 {
    fold(sum(&frame[14..body(frame)]))
}

pub(super) fn sum_of_icmp(frame: &[u8]) -> u16 {
    let more = if is_v6(frame) { pseudo(frame, 58) } else { 0 };
    fold(more + sum(&frame[body(frame)..]))
}

/// Writes the checksums of a frame with IPv4 and TCP.
pub(super) fn finish_v4(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let check = !sum_of_ip(frame);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    let at = body(frame) + 16;
    frame[at..at + 2].fill(0);
    let check = !sum_of_tcp(frame);
    frame[at..at + 2].copy_from_slice(&check.to_be_bytes());
}

fn ip_header(from: IpAddr, to: IpAddr, protocol: u8, hops: u8, length: usize) -> Vec<u8> {
    let mut frame = vec![0; 12];
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let length = (length as u16 + 20).to_be_bytes();
            frame.extend([8, 0, 0x45, 0, length[0], length[1], 0x12, 0x34, 0x40, 0, hops, protocol, 0, 0]);
            frame.extend(from.octets());
            frame.extend(to.octets());
            let check = !sum_of_ip(&frame);
            frame[24..26].copy_from_slice(&check.to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = (length as u16).to_be_bytes();
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, length[0], length[1], protocol, hops]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        _ => panic!("two families"),
    }
    frame
}

impl Packet {
    pub(super) fn new(from: SocketAddr, to: SocketAddr) -> Self {
        let (options, payload) = (Vec::new(), Vec::new());
        Self { from, to, seq: 0xffff_fff0, ack: 1, flags: ACK, window: 0x1234, options, payload, hops: 61 }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let length = 20 + self.options.len();
        let mut frame = ip_header(self.from.ip(), self.to.ip(), 6, self.hops, length + self.payload.len());
        let at = frame.len();
        frame.extend(self.from.port().to_be_bytes());
        frame.extend(self.to.port().to_be_bytes());
        frame.extend(self.seq.to_be_bytes());
        frame.extend(self.ack.to_be_bytes());
        frame.extend([(length as u8 / 4) << 4, self.flags]);
        frame.extend(self.window.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(&self.options);
        frame.extend(&self.payload);
        let check = !sum_of_tcp(&frame);
        frame[at + 16..at + 18].copy_from_slice(&check.to_be_bytes());
        frame
    }
}

/// Fragmentation needed, or packet too big, for a packet without its Ethernet header.
pub(super) fn icmp_error(from: IpAddr, to: IpAddr, quoted: &[u8]) -> Vec<u8> {
    let (protocol, kind) = if from.is_ipv4() { (1, [3, 4]) } else { (58, [2, 0]) };
    let mut frame = ip_header(from, to, protocol, 64, 8 + quoted.len());
    let at = frame.len();
    frame.extend([kind[0], kind[1], 0, 0, 0, 0, 5, 0x14]);
    frame.extend(quoted);
    let check = !sum_of_icmp(&frame);
    frame[at + 2..at + 4].copy_from_slice(&check.to_be_bytes());
    frame
}
