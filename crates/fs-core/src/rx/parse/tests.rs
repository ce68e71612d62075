mod refused;
mod roundtrip;

use super::*;
use crate::wire::eth::EthHeader;
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::Ipv6Header;
use crate::wire::tcp::TcpHeader;
use crate::wire::udp::UdpHeader;
use core::net::Ipv6Addr;
use std::vec::Vec;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OURS: u32 = 0x0a4d_0101;
const THEIRS: u32 = 0x0a4d_0102;

fn view() -> View {
    View { framing: Framing::Ethernet, vlan: None, accept_partial_checksum: false, mac: MAC }
}

fn ours_v6() -> [u8; 16] {
    "fd77:1::1".parse::<Ipv6Addr>().unwrap().octets()
}

fn theirs_v6() -> [u8; 16] {
    "fd77:1::2".parse::<Ipv6Addr>().unwrap().octets()
}

/// A packet under construction, with layers that tests can change.
#[derive(Clone, Debug)]
struct Made {
    dst_mac: [u8; 6],
    vlan: Option<u16>,
    v6: bool,
    src: u32,
    dst: u32,
    src6: [u8; 16],
    dst6: [u8; 16],
    protocol: u8,
    transport: Vec<u8>,
    hop_limit: u8,
}

impl Made {
    fn new(v6: bool, protocol: u8, transport: Vec<u8>) -> Self {
        let (src6, dst6) = (theirs_v6(), ours_v6());
        Self { dst_mac: MAC, vlan: None, v6, src: THEIRS, dst: OURS, src6, dst6, protocol, transport, hop_limit: 64 }
    }

    fn tcp(v6: bool, options: &[u8], payload: &[u8]) -> Self {
        let mut header = [0; 20];
        let (seq, ack, options_len) = (SeqNum(1000), SeqNum(2000), options.len() as u8);
        let flags = TcpFlags::ACK | TcpFlags::PSH;
        TcpHeader { src_port: 40000, dst_port: 80, seq, ack, flags, window: 512, urgent: 0, options_len }
            .emit(&mut header);
        Self::new(v6, ipv4::TCP, [&header[..], options, payload].concat()).sealed()
    }

    fn udp(v6: bool, payload: &[u8]) -> Self {
        let mut header = [0; 8];
        UdpHeader { src_port: 40000, dst_port: 53, len: 8 + payload.len() as u16, checksum: 0 }.emit(&mut header);
        Self::new(v6, ipv4::UDP, [&header[..], payload].concat()).sealed()
    }

    fn pseudo(&self) -> Sum {
        let len = self.transport.len() as u32;
        if self.v6 {
            Sum::pseudo_v6(&self.src6, &self.dst6, self.protocol, len)
        } else {
            Sum::pseudo_v4(self.src, self.dst, self.protocol, len)
        }
    }

    /// Writes the right checksum into the protocol's field.
    fn sealed(mut self) -> Self {
        self.set_checksum(0);
        let pseudo = if self.protocol == ipv4::ICMP { Sum::ZERO } else { self.pseudo() };
        let sum = pseudo.add(Sum::of(&self.transport)).finish();
        self.set_checksum(if self.protocol == ipv4::UDP { udp::nonzero(sum) } else { sum });
        self
    }

    fn set_checksum(&mut self, sum: u16) {
        let at = match self.protocol {
            ipv4::TCP => 16,
            ipv4::UDP => 6,
            _ => 2,
        };
        self.transport[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }

    fn ip(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.v6 {
            let mut header = [0; 40];
            let (src, dst, protocol, hop_limit) = (self.src6, self.dst6, self.protocol, self.hop_limit);
            let payload_len = self.transport.len() as u16;
            Ipv6Header { src, dst, protocol, hop_limit, traffic_class: 1, payload_len }.emit(&mut header);
            out.extend_from_slice(&header);
        } else {
            let mut header = [0; 20];
            let (src, dst, protocol, ttl) = (self.src, self.dst, self.protocol, self.hop_limit);
            let total_len = 20 + self.transport.len() as u16;
            Ipv4Header { src, dst, protocol, ttl, tos: 1, total_len }.emit(&mut header);
            out.extend_from_slice(&header);
        }
        out.extend_from_slice(&self.transport);
        out
    }

    fn frame(&self) -> Vec<u8> {
        let ethertype = if self.v6 { eth::IPV6 } else { eth::IPV4 };
        framed(self.dst_mac, self.vlan, ethertype, &self.ip())
    }
}

fn framed(dst: [u8; 6], vlan: Option<u16>, ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut link = [0; 18];
    let len = EthHeader { dst, src: PEER, vlan, ethertype }.emit(&mut link);
    [&link[..len], packet].concat()
}

fn run(view: &View, frame: &[u8]) -> Result<Parsed, DropReason> {
    parse(view, frame, 0, RxChecksum::Unknown, || panic!("there is no tail"))
}

fn tcp_of(parsed: Result<Parsed, DropReason>) -> Segment {
    match parsed {
        Ok(Parsed::Tcp(segment)) => segment,
        other => panic!("not a TCP segment: {other:?}"),
    }
}
