//! IP packets that contain TCP, UDP or ICMP: conversion to bytes and back.

pub(crate) mod flags;
pub mod option;
pub(crate) mod verify;

use fs_core::internals::Sum;
use option::TcpOption;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family.
    pub dst: IpAddr,
    /// Traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// Payload of the IP packet.
    pub transport: Transport,
}

/// Payload of an IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp(Segment),
    /// UDP.
    Udp {
        /// Source port.
        src: u16,
        /// Destination port.
        dst: u16,
        /// Payload.
        payload: Vec<u8>,
    },
    /// ICMP or ICMPv6.
    Icmp {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
        /// The header's second word.
        word: u32,
        /// Bytes after the header.
        payload: Vec<u8>,
    },
}

/// A TCP segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flags: the lower nine bits; above them the three reserved ones.
    pub flags: u16,
    /// Window, not scaled.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options.
    pub options: Vec<TcpOption>,
    /// Payload.
    pub payload: Vec<u8>,
}

impl Segment {
    /// Returns the length of its options in bytes.
    pub(crate) fn options_len(&self) -> usize {
        self.options.iter().map(TcpOption::len).sum()
    }

    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

impl Packet {
    /// Returns the payload bytes.
    pub(crate) fn payload(&self) -> &[u8] {
        match &self.transport {
            Transport::Tcp(segment) => &segment.payload,
            Transport::Udp { payload, .. } | Transport::Icmp { payload, .. } => payload,
        }
    }

    /// Returns its TCP segment.
    pub(crate) fn tcp(&self) -> Option<&Segment> {
        match &self.transport {
            Transport::Tcp(segment) => Some(segment),
            _ => None,
        }
    }

    pub(crate) fn tcp_mut(&mut self) -> Option<&mut Segment> {
        match &mut self.transport {
            Transport::Tcp(segment) => Some(segment),
            _ => None,
        }
    }

    /// Returns source and destination port; 0 for ICMP.
    pub(crate) fn ports(&self) -> (u16, u16) {
        match &self.transport {
            Transport::Tcp(segment) => (segment.src, segment.dst),
            Transport::Udp { src, dst, .. } => (*src, *dst),
            Transport::Icmp { .. } => (0, 0),
        }
    }

    pub(crate) fn protocol(&self) -> u8 {
        match (&self.transport, self.src.is_ipv4()) {
            (Transport::Tcp(_), _) => TCP,
            (Transport::Udp { .. }, _) => UDP,
            (Transport::Icmp { .. }, true) => ICMP,
            (Transport::Icmp { .. }, false) => ICMPV6,
        }
    }

    /// Returns the packet's bytes, with all checksums.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut body = self.transport_bytes();
        let sum_at = match self.transport {
            Transport::Tcp(_) => 16,
            Transport::Udp { .. } => 6,
            Transport::Icmp { .. } => 2,
        };
        let len = body.len() as u32;
        let pseudo = match (self.src, self.dst) {
            (IpAddr::V4(_), IpAddr::V4(_)) if self.protocol() == ICMP => Sum::ZERO,
            (IpAddr::V4(s), IpAddr::V4(d)) => Sum::pseudo_v4(s.into(), d.into(), self.protocol(), len),
            (IpAddr::V6(s), IpAddr::V6(d)) => Sum::pseudo_v6(&s.octets(), &d.octets(), self.protocol(), len),
            // A packet's addresses are of one family by construction.
            _ => Sum::ZERO,
        };
        let mut sum = pseudo.add(Sum::of(&body)).finish();
        if sum == 0 && self.protocol() == UDP {
            sum = 0xffff;
        }
        body[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
        let mut bytes = self.ip_header(body.len());
        bytes.extend(body);
        bytes
    }

    /// Returns the IP header for `len` bytes after it.
    pub(crate) fn ip_header(&self, len: usize) -> Vec<u8> {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut header = vec![0x45, self.tos];
                header.extend(((20 + len) as u16).to_be_bytes());
                // Don't Fragment, as hosts that discover path MTUs send.
                header.extend([0, 0, 0x40, 0, self.ttl, self.protocol(), 0, 0]);
                header.extend(src.octets());
                header.extend(dst.octets());
                let sum = Sum::of(&header).finish();
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                header
            }
            (src, dst) => {
                let octets = |ip: IpAddr| match ip {
                    IpAddr::V6(a) => a.octets(),
                    IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
                };
                let mut header = (6 << 28 | u32::from(self.tos) << 20 | self.flow_label).to_be_bytes().to_vec();
                header.extend((len as u16).to_be_bytes());
                header.extend([self.protocol(), self.ttl]);
                header.extend(octets(src));
                header.extend(octets(dst));
                header
            }
        }
    }

    fn transport_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match &self.transport {
            Transport::Tcp(t) => {
                out.extend(t.src.to_be_bytes());
                out.extend(t.dst.to_be_bytes());
                out.extend(t.seq.to_be_bytes());
                out.extend(t.ack.to_be_bytes());
                let words = 5 + t.options_len().div_ceil(4) as u16;
                out.extend((words << 12 | t.flags & 0xfff).to_be_bytes());
                out.extend(t.window.to_be_bytes());
                out.extend([0, 0]);
                out.extend(t.urgent.to_be_bytes());
                t.options.iter().for_each(|o| o.write(&mut out));
                out.resize(usize::from(words) * 4, 0);
                out.extend(&t.payload);
            }
            Transport::Udp { src, dst, payload } => {
                out.extend(src.to_be_bytes());
                out.extend(dst.to_be_bytes());
                out.extend((8 + payload.len() as u16).to_be_bytes());
                out.extend([0, 0]);
                out.extend(payload);
            }
            Transport::Icmp { kind, code, word, payload } => {
                out.extend([*kind, *code, 0, 0]);
                out.extend(word.to_be_bytes());
                out.extend(payload);
            }
        }
        out
    }

    /// Parses a packet. `Err` contains the reason.
    pub fn from_bytes(bytes: &[u8]) -> Result<Packet, String> {
        let short = || "packet too short".to_string();
        let version = bytes.first().ok_or_else(short)? >> 4;
        let (src, dst, tos, ttl, flow_label, protocol, body) = match version {
            4 => {
                let header = usize::from(bytes[0] & 15) * 4;
                if header < 20 || bytes.len() < header {
                    return Err(short());
                }
                if !Sum::of(&bytes[..header]).is_valid() {
                    return Err("bad outbound IP checksum".into());
                }
                let total = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
                let body = bytes.get(header..total).ok_or("IP total length exceeds the packet")?;
                let ip = |at: usize| IpAddr::V4(Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]));
                (ip(12), ip(16), bytes[1], bytes[8], 0, bytes[9], body)
            }
            6 => {
                if bytes.len() < 40 {
                    return Err(short());
                }
                let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                let ip = |at: usize| {
                    let octets: [u8; 16] = bytes[at..at + 16].try_into().unwrap_or_default();
                    IpAddr::V6(Ipv6Addr::from(octets))
                };
                let len = usize::from(u16::from_be_bytes([bytes[4], bytes[5]]));
                let body = bytes.get(40..40 + len).ok_or("IPv6 payload length exceeds the packet")?;
                (ip(8), ip(24), (word >> 20) as u8, bytes[7], word & 0xf_ffff, bytes[6], body)
            }
            other => return Err(format!("IP version {other}")),
        };
        let transport = Transport::read(protocol, body)?;
        let packet = Packet { src, dst, tos, ttl, flow_label, transport };
        packet.check_sum(body)?;
        Ok(packet)
    }

    /// Checks the transport's checksum as a device would.
    fn check_sum(&self, body: &[u8]) -> Result<(), String> {
        let len = body.len() as u32;
        let pseudo = match (self.src, self.dst) {
            (IpAddr::V4(_), IpAddr::V4(_)) if self.protocol() == ICMP => Sum::ZERO,
            (IpAddr::V4(s), IpAddr::V4(d)) => Sum::pseudo_v4(s.into(), d.into(), self.protocol(), len),
            (IpAddr::V6(s), IpAddr::V6(d)) => Sum::pseudo_v6(&s.octets(), &d.octets(), self.protocol(), len),
            _ => Sum::ZERO,
        };
        let unsummed = self.protocol() == UDP && self.src.is_ipv4() && body[6..8] == [0, 0];
        if unsummed || pseudo.add(Sum::of(body)).is_valid() {
            return Ok(());
        }
        Err("bad outbound transport checksum".into())
    }
}

impl Transport {
    fn read(protocol: u8, body: &[u8]) -> Result<Transport, String> {
        let at16 = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
        let at32 = |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        match protocol {
            TCP if body.len() >= 20 => {
                let header = usize::from(body[12] >> 4) * 4;
                if header < 20 || header > body.len() {
                    return Err("bad TCP data offset".into());
                }
                Ok(Transport::Tcp(Segment {
                    src: at16(0),
                    dst: at16(2),
                    seq: at32(4),
                    ack: at32(8),
                    flags: at16(12) & 0xfff,
                    window: at16(14),
                    urgent: at16(18),
                    options: TcpOption::read_all(&body[20..header]),
                    payload: body[header..].to_vec(),
                }))
            }
            UDP if body.len() >= 8 => Ok(Transport::Udp { src: at16(0), dst: at16(2), payload: body[8..].to_vec() }),
            ICMP | ICMPV6 if body.len() >= 8 => {
                Ok(Transport::Icmp { kind: body[0], code: body[1], word: at32(4), payload: body[8..].to_vec() })
            }
            TCP | UDP | ICMP | ICMPV6 => Err("truncated transport header".into()),
            other => Err(format!("IP protocol {other}")),
        }
    }
}
