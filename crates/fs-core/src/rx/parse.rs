//! First step of reception: parses link, IP and transport header in one pass.
//!
//! The result is checked as far as a packet alone can be: lengths are consistent, checksums are
//! right, and addresses are valid in their position. The demultiplexer checks whether an address is
//! one of ours.

use crate::config::{Framing, Interface};
use crate::drop_reason::DropReason;
use crate::flow::FlowKey;
use crate::frame::RxChecksum;
use crate::seq::SeqNum;
use crate::wire::checksum::Sum;
use crate::wire::options::{self, Timestamps};
use crate::wire::tcp::TcpFlags;
use crate::wire::{eth, ipv4, ipv6, tcp, udp};

#[cfg(test)]
mod tests;

/// Properties of an interface that parsing depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Framing of packets.
    pub framing: Framing,
    /// The only VLAN that is accepted besides untagged packets.
    pub vlan: Option<u16>,
    /// Accept checksum fields that contain only the pseudo-header's sum. See `Interface`.
    pub accept_partial_checksum: bool,
    /// Our MAC address.
    pub mac: [u8; 6],
}

impl View {
    /// Returns the view of an interface.
    pub fn of(interface: &Interface) -> Self {
        Self {
            framing: interface.framing,
            vlan: interface.vlan,
            accept_partial_checksum: interface.accept_partial_checksum,
            mac: interface.mac,
        }
    }
}

/// A TCP segment. Offsets count from the start of the first frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The flow, seen from this host: `local` is the packet's destination.
    pub key: FlowKey,
    /// SEG.SEQ.
    pub seq: SeqNum,
    /// SEG.ACK; meaningless unless the ACK bit is set.
    pub ack: SeqNum,
    /// SEG.WND as in the header, not scaled.
    pub window: u16,
    /// Control bits.
    pub flags: TcpFlags,
    /// Offset of the payload; may be the end of the first frame.
    pub payload_off: u16,
    /// Payload bytes in all frames of the chain.
    pub payload_len: u32,
    /// Offset of the options.
    pub opt_off: u16,
    /// Length of the options.
    pub opt_len: u8,
    /// The timestamps option.
    pub ts: Option<Timestamps>,
    /// ECN field of the IP header (RFC 3168).
    pub ecn: u8,
    /// The urgent pointer; meaningless unless the URG bit is set.
    pub urgent: u16,
}

impl Segment {
    /// Returns SEG.LEN: payload, SYN and FIN.
    #[inline]
    pub fn seq_len(&self) -> u32 {
        self.payload_len + self.flags.seq_len()
    }

    /// Returns the bytes of the options. `head` is the parsed first frame.
    #[inline]
    pub fn options<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        let from = usize::from(self.opt_off);
        head.get(from..from + usize::from(self.opt_len)).unwrap_or_default()
    }
}

/// A UDP datagram. Offsets count from the start of the first frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The flow, seen from this host: `local` is the packet's destination.
    pub key: FlowKey,
    /// Offset of the payload; may be the end of the first frame.
    pub payload_off: u16,
    /// Payload bytes in all frames of the chain.
    pub payload_len: u32,
    /// Type of service or traffic class, with its ECN field.
    pub tos: u8,
}

/// Classification of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A TCP segment.
    Tcp(Segment),
    /// A UDP datagram.
    Udp(Datagram),
    /// An ICMP or ICMPv6 message to a unicast address, entirely in the first frame, checksum
    /// verified.
    Icmp {
        /// ICMPv6.
        v6: bool,
        /// Start of the IP header.
        ip_off: u16,
        /// Start of the message.
        off: u16,
        /// The message's length.
        len: u16,
    },
    /// An ARP packet.
    Arp {
        /// The message's start.
        off: u16,
    },
    /// An ICMPv6 neighbour solicitation or advertisement with hop limit 255 (RFC 4861 7.1), checksum verified.
    Ndisc {
        /// Start of the IP header.
        ip_off: u16,
        /// Start of the message.
        off: u16,
        /// The message's length.
        len: u16,
    },
}

/// Parses a packet whose first frame is `head`. All headers must be in that frame.
///
/// `tail_len` is the number of bytes in the chain's other frames, `tail_sum` their checksum as if
/// they began at an even offset (`wire::checksum::RunningSum`). `tail_sum` is called only when
/// needed.
#[inline]
pub fn parse(
    view: &View,
    head: &[u8],
    tail_len: usize,
    checksum: RxChecksum,
    tail_sum: impl FnOnce() -> Sum,
) -> Result<Parsed, DropReason> {
    if tail_len == 0
        && let Some(segment) = fast(view, head, checksum)
    {
        return Ok(Parsed::Tcp(segment));
    }
    full(view, head, tail_len, checksum, tail_sum)
}

/// Parses any packet: the slow path behind [`fast`].
#[inline]
pub(crate) fn full(
    view: &View,
    head: &[u8],
    tail_len: usize,
    checksum: RxChecksum,
    tail_sum: impl FnOnce() -> Sum,
) -> Result<Parsed, DropReason> {
    let mut check =
        Check { verified: checksum == RxChecksum::Verified, partial: view.accept_partial_checksum, tail_len };
    let (ip_off, ethertype, group) = match view.framing {
        Framing::Ethernet => {
            let (header, len) = eth::EthHeader::parse(head).ok_or(DropReason::Malformed)?;
            let group = header.dst != view.mac;
            if (group && !eth::is_group(&header.dst)) || !is_our_vlan(view.vlan, header.vlan) {
                return Err(DropReason::NotOurAddress);
            }
            (len, header.ethertype, group)
        }
        Framing::Ip => match head.first().ok_or(DropReason::Malformed)? >> 4 {
            4 => (0, eth::IPV4, false),
            6 => (0, eth::IPV6, false),
            _ => return Err(DropReason::NotOurProtocol),
        },
    };
    let packet = &head[ip_off..];
    match ethertype {
        eth::IPV4 => parse_v4(packet, ip_off, group, &mut check, tail_sum),
        eth::IPV6 => parse_v6(packet, ip_off, group, &mut check, tail_sum),
        eth::ARP => Ok(Parsed::Arp { off: ip_off as u16 }),
        _ => Err(DropReason::NotOurProtocol),
    }
}

/// Parses the common case: TCP in IPv4 without options, to our address, on Ethernet without tags,
/// complete and undamaged. Returns `None` for any other packet, which [`parse`] then handles.
#[inline(always)]
pub(crate) fn fast(view: &View, head: &[u8], checksum: RxChecksum) -> Option<Segment> {
    const IP: usize = eth::HEADER_LEN;
    const TCP: usize = IP + ipv4::HEADER_LEN;
    const DATA: usize = TCP + tcp::HEADER_LEN;
    let h = head.first_chunk::<DATA>()?;
    let half = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
    let word = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
    let (src, dst) = (word(IP + 12), word(IP + 16));
    let end = IP + usize::from(half(IP + 2));
    let data = TCP + usize::from(h[TCP + 12] >> 4) * 4;
    let ours = view.framing == Framing::Ethernet
        && *h.first_chunk::<6>()? == view.mac
        && half(12) == eth::IPV4
        && h[IP] == 0x45
        && h[IP + 9] == ipv4::TCP
        && half(IP + 6) & 0x3fff == 0
        && data >= DATA
        && src != dst
        && !ipv4::is_bad_source(src, dst)
        && ipv4::is_unicast(dst);
    // The sum starts at the IP addresses, which are part of the pseudo-header, too.
    let summed = head.get(IP + 12..end)?;
    let options = head.get(DATA..data)?;
    if !ours || data > end || !Sum::of_short(h.get(IP..TCP)?).is_valid() {
        return None;
    }
    let verified = checksum == RxChecksum::Verified
        || {
            let pseudo = || Sum::pseudo_v4(src, dst, ipv4::TCP, (end - TCP) as u32);
            view.accept_partial_checksum && half(TCP + 16) == pseudo().fold()
        }
        || {
            let pseudo = Sum::word(u16::from(ipv4::TCP)).add(Sum::word((end - TCP) as u16));
            Sum::of(summed).add(pseudo).is_valid()
        };
    verified.then(|| Segment {
        key: FlowKey::V4 { local: dst, remote: src, local_port: half(TCP + 2), remote_port: half(TCP) },
        seq: SeqNum(word(TCP + 4)),
        ack: SeqNum(word(TCP + 8)),
        window: half(TCP + 14),
        flags: TcpFlags(h[TCP + 13]),
        payload_off: data as u16,
        payload_len: (end - data) as u32,
        opt_off: DATA as u16,
        opt_len: options.len() as u8,
        ts: options::timestamps(options),
        ecn: h[IP + 1] & 3,
        urgent: half(TCP + 18),
    })
}

/// Returns true for untagged and priority-tagged (VLAN 0) packets, and for packets of our VLAN.
#[inline(always)]
fn is_our_vlan(ours: Option<u16>, theirs: Option<u16>) -> bool {
    theirs.is_none_or(|theirs| theirs == 0 || Some(theirs) == ours)
}

/// The checks of a transport checksum that are still required.
struct Check {
    verified: bool,
    partial: bool,
    tail_len: usize,
}

impl Check {
    /// Verifies the checksum over `transport` (header and payload in the first frame) and the rest
    /// of the chain.
    #[inline(always)]
    fn run(&self, pseudo: Sum, field: u16, transport: &[u8], tail_sum: impl FnOnce() -> Sum) -> Result<(), DropReason> {
        // Linux leaves the folded, not complemented sum of the pseudo-header for a device to
        // complete (CHECKSUM_PARTIAL, include/linux/skbuff.h). Checked first: it saves the pass
        // over the payload.
        if self.verified || (self.partial && field == pseudo.fold()) {
            return Ok(());
        }
        let mut sum = pseudo.add(Sum::of(transport));
        if self.tail_len != 0 {
            sum = sum.add(tail_sum().swap_if(transport.len() % 2 == 1));
        }
        if sum.is_valid() { Ok(()) } else { Err(DropReason::BadTransportChecksum) }
    }

    /// Cuts the first frame to the length in the IP header, which removes padding of short Ethernet
    /// frames. A chain that is longer than its packet is malformed.
    #[inline(always)]
    fn cut<'a>(&self, packet: &'a [u8], total_len: usize) -> Result<&'a [u8], DropReason> {
        if self.tail_len == 0 {
            packet.get(..total_len).ok_or(DropReason::Malformed)
        } else if packet.len() + self.tail_len == total_len {
            Ok(packet)
        } else {
            Err(DropReason::Malformed)
        }
    }
}

#[inline(always)]
fn parse_v4(
    packet: &[u8],
    ip_off: usize,
    group: bool,
    check: &mut Check,
    tail_sum: impl FnOnce() -> Sum,
) -> Result<Parsed, DropReason> {
    let ip = ipv4::parse(packet, packet.len() + check.tail_len)?;
    let packet = check.cut(packet, usize::from(ip.total_len))?;
    // A packet from our own address would make the host reply to itself ("LAND"). It is legitimate
    // on `lo`.
    let from_us = ip.src == ip.dst && ip.dst >> 24 != 127;
    if group || from_us || ipv4::is_bad_source(ip.src, ip.dst) || !ipv4::is_unicast(ip.dst) {
        return Err(DropReason::BadAddress);
    }
    let header_len = usize::from(ip.header_len);
    let transport = packet.get(header_len..).ok_or(DropReason::Malformed)?;
    let off = ip_off + header_len;
    let len = usize::from(ip.total_len) - header_len;
    let key = |remote_port, local_port| FlowKey::V4 { local: ip.dst, remote: ip.src, local_port, remote_port };
    let pseudo = |len| Sum::pseudo_v4(ip.src, ip.dst, ip.protocol, len);
    match ip.protocol {
        ipv4::TCP => parse_tcp(transport, off, len, ip.tos & 3, key, pseudo, check, tail_sum),
        ipv4::UDP => parse_udp(transport, off, len, (false, ip.tos), key, pseudo, check, tail_sum),
        ipv4::ICMP => parse_icmp_v4(transport, ip_off, off, check),
        _ => Err(DropReason::NotOurProtocol),
    }
}

#[inline]
fn parse_v6(
    packet: &[u8],
    ip_off: usize,
    group: bool,
    check: &mut Check,
    tail_sum: impl FnOnce() -> Sum,
) -> Result<Parsed, DropReason> {
    let ip = ipv6::parse(packet, packet.len() + check.tail_len)?;
    let packet = check.cut(packet, ip.total_len as usize)?;
    let header_len = usize::from(ip.header_len);
    let transport = packet.get(header_len..).ok_or(DropReason::Malformed)?;
    let off = ip_off + header_len;
    let len = ip.total_len as usize - header_len;
    if ip.protocol == ipv6::ICMP {
        return parse_icmp_v6(&ip, transport, ip_off, off, group, check);
    }
    let from_us = ip.src == ip.dst && !ipv6::is_loopback(&ip.dst);
    if group || from_us || ipv6::is_bad_source(&ip.src, &ip.dst) || !ipv6::is_unicast(&ip.dst) {
        return Err(DropReason::BadAddress);
    }
    let key = |remote_port, local_port| FlowKey::V6 { local: ip.dst, remote: ip.src, local_port, remote_port };
    let pseudo = |len| Sum::pseudo_v6(&ip.src, &ip.dst, ip.protocol, len);
    match ip.protocol {
        ipv4::TCP => parse_tcp(transport, off, len, ip.traffic_class & 3, key, pseudo, check, tail_sum),
        ipv4::UDP => parse_udp(transport, off, len, (true, ip.traffic_class), key, pseudo, check, tail_sum),
        _ => Err(DropReason::NotOurProtocol),
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "inlined into its two callers; a struct would only be taken apart again")]
fn parse_tcp(
    transport: &[u8],
    off: usize,
    len: usize,
    ecn: u8,
    key: impl FnOnce(u16, u16) -> FlowKey,
    pseudo: impl FnOnce(u32) -> Sum,
    check: &Check,
    tail_sum: impl FnOnce() -> Sum,
) -> Result<Parsed, DropReason> {
    let h = transport.first_chunk::<{ tcp::HEADER_LEN }>().ok_or(DropReason::Malformed)?;
    let header_len = usize::from(h[12] >> 4) * 4;
    if header_len < tcp::HEADER_LEN {
        return Err(DropReason::Malformed);
    }
    let options = transport.get(tcp::HEADER_LEN..header_len).ok_or(DropReason::Malformed)?;
    check.run(pseudo(len as u32), u16::from_be_bytes([h[16], h[17]]), transport, tail_sum)?;
    Ok(Parsed::Tcp(Segment {
        key: key(u16::from_be_bytes([h[0], h[1]]), u16::from_be_bytes([h[2], h[3]])),
        seq: SeqNum(u32::from_be_bytes([h[4], h[5], h[6], h[7]])),
        ack: SeqNum(u32::from_be_bytes([h[8], h[9], h[10], h[11]])),
        window: u16::from_be_bytes([h[14], h[15]]),
        flags: TcpFlags(h[13]),
        payload_off: (off + header_len) as u16,
        payload_len: (len - header_len) as u32,
        opt_off: (off + tcp::HEADER_LEN) as u16,
        opt_len: options.len() as u8,
        ts: options::timestamps(options),
        ecn,
        urgent: u16::from_be_bytes([h[18], h[19]]),
    }))
}

#[inline]
#[allow(clippy::too_many_arguments, reason = "as parse_tcp")]
fn parse_udp(
    transport: &[u8],
    off: usize,
    len: usize,
    (v6, tos): (bool, u8),
    key: impl FnOnce(u16, u16) -> FlowKey,
    pseudo: impl FnOnce(u32) -> Sum,
    check: &Check,
    tail_sum: impl FnOnce() -> Sum,
) -> Result<Parsed, DropReason> {
    let header = udp::UdpHeader::parse(transport).ok_or(DropReason::Malformed)?;
    let udp_len = usize::from(header.len);
    // A UDP datagram may be shorter than its IP packet (RFC 768 has its own length), but not in a
    // chain: the caller's sum of the tail would then include bytes beyond the datagram.
    if udp_len > len || (udp_len < len && check.tail_len != 0) {
        return Err(DropReason::Malformed);
    }
    match header.checksum {
        0 if v6 => return Err(DropReason::BadTransportChecksum),
        0 => {}
        field => {
            let transport = &transport[..transport.len().min(udp_len)];
            check.run(pseudo(u32::from(header.len)), field, transport, tail_sum)?;
        }
    }
    Ok(Parsed::Udp(Datagram {
        key: key(header.src_port, header.dst_port),
        payload_off: (off + udp::HEADER_LEN) as u16,
        payload_len: (udp_len - udp::HEADER_LEN) as u32,
        tos,
    }))
}

#[cold]
fn parse_icmp_v4(message: &[u8], ip_off: usize, off: usize, check: &Check) -> Result<Parsed, DropReason> {
    // A message that needs a chain is a very large ping. No connection depends on it.
    if check.tail_len != 0 {
        return Err(DropReason::NotOurProtocol);
    }
    if message.len() < 8 {
        return Err(DropReason::Malformed);
    }
    if !check.verified && !Sum::of(message).is_valid() {
        return Err(DropReason::BadTransportChecksum);
    }
    Ok(Parsed::Icmp { v6: false, ip_off: ip_off as u16, off: off as u16, len: message.len() as u16 })
}

#[cold]
fn parse_icmp_v6(
    ip: &ipv6::Ipv6View,
    message: &[u8],
    ip_off: usize,
    off: usize,
    group: bool,
    check: &Check,
) -> Result<Parsed, DropReason> {
    const NEIGHBOR_SOLICITATION: u8 = 135;
    const NEIGHBOR_ADVERTISEMENT: u8 = 136;
    if check.tail_len != 0 {
        return Err(DropReason::NotOurProtocol);
    }
    if message.len() < 8 {
        return Err(DropReason::Malformed);
    }
    let pseudo = Sum::pseudo_v6(&ip.src, &ip.dst, ipv6::ICMP, message.len() as u32);
    if !check.verified && !pseudo.add(Sum::of(message)).is_valid() {
        return Err(DropReason::BadTransportChecksum);
    }
    let (ip_off, off, len) = (ip_off as u16, off as u16, message.len() as u16);
    if matches!(message[0], NEIGHBOR_SOLICITATION | NEIGHBOR_ADVERTISEMENT) {
        // RFC 4861 7.1.1 and 7.1.2: a hop limit of 255 proves that no router has forwarded the
        // packet. The source may be unspecified (duplicate address detection), the destination a
        // multicast group.
        return if ip.hop_limit == 255 && message[1] == 0 && ip.src[0] != 0xff {
            Ok(Parsed::Ndisc { ip_off, off, len })
        } else {
            Err(DropReason::BadAddress)
        };
    }
    if group || ipv6::is_bad_source(&ip.src, &ip.dst) || !ipv6::is_unicast(&ip.dst) {
        return Err(DropReason::BadAddress);
    }
    Ok(Parsed::Icmp { v6: true, ip_off, off, len })
}
