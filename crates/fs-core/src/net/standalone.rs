//! Protocols of a host that owns its address (`Addressing::Standalone`): ARP (RFC 826), neighbour
//! discovery (RFC 4861) and ICMP echo. Written with smoltcp's `wire`, since none of it is on the
//! fast path.

#[cfg(test)]
mod tests;

use crate::config::{Framing, Interface};
use crate::frame::IfaceId;
use crate::rx::parse::Parsed;
use crate::wire::checksum::Sum;
use crate::wire::eth::{self, EthHeader};
use crate::wire::icmp::{echo_reply_v4, echo_reply_v6};
use crate::wire::ipv4::{self, Ipv4Header};
use crate::wire::ipv6::{self, Ipv6Header};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv6Packet, Icmpv6Repr, NdiscNeighborFlags, NdiscRepr,
    RawHardwareAddress,
};

/// Hop limit of echo replies.
const TTL: u8 = 64;
/// Hop limit of neighbour discovery. It proves that no router has forwarded the packet (RFC 4861
/// 7.1.1).
const TTL_LINK: u8 = 255;
/// The all-nodes group: RFC 4291 2.7.1.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A neighbour's address, as announced by itself: pass it to `PathTable::learn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Learned {
    /// The neighbour's interface.
    pub iface: IfaceId,
    /// The host's IP address.
    pub addr: IpAddr,
    /// The host's link address.
    pub mac: [u8; 6],
}

/// Result of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Response {
    /// A learned neighbour address.
    pub learned: Option<Learned>,
    /// Length of the packet in the reply buffer, from the link header on; 0 if there is no reply.
    pub reply_len: usize,
}

/// Replies to an ARP, NDISC or ICMP echo packet, which [`crate::rx::parse::parse`] has recognized
/// in `head`.
///
/// The reply is at most as long as a [`request`], or `head.len() + 4` bytes. One that does not fit into
/// `reply` is not sent.
pub(crate) fn respond(
    iface: IfaceId,
    interface: &Interface,
    head: &[u8],
    parsed: &Parsed,
    reply: &mut [u8],
) -> Response {
    match *parsed {
        Parsed::Arp { off } => {
            head.get(usize::from(off)..).and_then(|packet| arp(iface, interface, packet, reply)).unwrap_or_default()
        }
        Parsed::Ndisc { ip_off, off, len } => parts(head, ip_off, off, len)
            .and_then(|(ip, message)| ndisc(iface, interface, head, ip, message, reply))
            .unwrap_or_default(),
        Parsed::Icmp { v6, ip_off, off, len } => {
            let reply_len =
                parts(head, ip_off, off, len).and_then(|(ip, message)| echo(interface, head, v6, ip, message, reply));
            Response { learned: None, reply_len: reply_len.unwrap_or(0) }
        }
        Parsed::Tcp(_) | Parsed::Udp(_) => Response::default(),
    }
}

/// Writes the request for a neighbour: an ARP request, or a neighbour solicitation to its
/// solicited-node group. Returns its length. Returns `None` if the interface has no address of that
/// family, if it is a raw IP link, or if `out` is too small (90 bytes suffice: VLAN tag, IPv6, one option).
pub(crate) fn request(interface: &Interface, target: IpAddr, out: &mut [u8]) -> Option<usize> {
    let source = crate::net::route::source_for(core::slice::from_ref(interface), IfaceId(0), target, target)?;
    match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let repr = arp_repr(interface, ArpOperation::Request, source, [0; 6], target);
            emit_arp(interface, eth::BROADCAST, &repr, out)
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let lladdr = Some(hardware_addr(interface.mac));
            let repr = NdiscRepr::NeighborSolicit { target_addr: target, lladdr };
            let group = solicited_node(target);
            emit_ndisc(interface, multicast_mac(group), source, group, repr, out)
        }
        _ => None,
    }
}

/// Returns the IP packet and its ICMP message. The bounds come from the parser, but are not
/// trusted.
fn parts(head: &[u8], ip_off: u16, off: u16, len: u16) -> Option<(&[u8], &[u8])> {
    let off = usize::from(off);
    Some((head.get(usize::from(ip_off)..)?, head.get(off..off + usize::from(len))?))
}

fn is_ours(interface: &Interface, addr: IpAddr) -> bool {
    interface.addrs.iter().any(|cidr| cidr.addr == addr)
}

fn arp(iface: IfaceId, interface: &Interface, packet: &[u8], reply: &mut [u8]) -> Option<Response> {
    let ArpRepr::EthernetIpv4 { operation, source_hardware_addr, source_protocol_addr, target_protocol_addr, .. } =
        ArpRepr::parse(&ArpPacket::new_checked(packet).ok()?).ok()?
    else {
        return None;
    };
    let mac = source_hardware_addr.0;
    // RFC 5227: a probe has no sender address yet. A neighbour that claims our address is ignored.
    let sender_is_host = ipv4::is_unicast(source_protocol_addr.to_bits())
        && is_host_mac(mac)
        && !is_ours(interface, source_protocol_addr.into());
    let learned = sender_is_host.then_some(Learned { iface, addr: source_protocol_addr.into(), mac });
    let asks_us = operation == ArpOperation::Request && is_ours(interface, target_protocol_addr.into());
    let reply_len = if asks_us && is_host_mac(mac) && !is_ours(interface, source_protocol_addr.into()) {
        let repr = arp_repr(interface, ArpOperation::Reply, target_protocol_addr, mac, source_protocol_addr);
        emit_arp(interface, mac, &repr, reply).unwrap_or(0)
    } else {
        0
    };
    Some(Response { learned, reply_len })
}

fn is_host_mac(mac: [u8; 6]) -> bool {
    !eth::is_group(&mac) && mac != [0; 6]
}

fn arp_repr(
    interface: &Interface,
    operation: ArpOperation,
    source: Ipv4Addr,
    target_mac: [u8; 6],
    target: Ipv4Addr,
) -> ArpRepr {
    ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(interface.mac),
        source_protocol_addr: source,
        target_hardware_addr: EthernetAddress(target_mac),
        target_protocol_addr: target,
    }
}

fn emit_arp(interface: &Interface, dst: [u8; 6], repr: &ArpRepr, out: &mut [u8]) -> Option<usize> {
    if interface.framing != Framing::Ethernet {
        return None;
    }
    let link_len = emit_link(interface, dst, eth::ARP, out)?;
    let len = link_len + repr.buffer_len();
    repr.emit(&mut ArpPacket::new_unchecked(out.get_mut(link_len..len)?));
    Some(len)
}

fn ndisc(
    iface: IfaceId,
    interface: &Interface,
    head: &[u8],
    ip: &[u8],
    message: &[u8],
    reply: &mut [u8],
) -> Option<Response> {
    let ip = ipv6::parse(ip, usize::MAX).ok()?;
    let (src, dst) = (Ipv6Addr::from(ip.src), Ipv6Addr::from(ip.dst));
    let packet = Icmpv6Packet::new_checked(message).ok()?;
    match NdiscRepr::parse(&packet).ok()? {
        NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
            // RFC 4861 7.2.3: the target is ours, and the destination is our address or its
            // solicited-node group.
            let to_us = is_ours(interface, dst.into()) || dst == solicited_node(target_addr);
            if !is_ours(interface, target_addr.into()) || !to_us || is_ours(interface, src.into()) {
                return None;
            }
            if src.is_unspecified() {
                // Duplicate address detection for our address (RFC 4862 5.4.3): the reply goes to
                // all nodes.
                let repr = advertisement(interface, target_addr, NdiscNeighborFlags::OVERRIDE);
                let reply_len =
                    emit_ndisc(interface, multicast_mac(ALL_NODES), target_addr, ALL_NODES, repr, reply).unwrap_or(0);
                return Some(Response { learned: None, reply_len });
            }
            // A unicast solicitation may omit the option (RFC 4861 4.3): reply to the frame's
            // sender.
            let option = lladdr.and_then(host_mac);
            let mac = option.or_else(|| Some(EthHeader::parse(head)?.0.src))?;
            let flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE;
            let repr = advertisement(interface, target_addr, flags);
            let reply_len = emit_ndisc(interface, mac, target_addr, src, repr, reply).unwrap_or(0);
            Some(Response { learned: option.map(|mac| Learned { iface, addr: src.into(), mac }), reply_len })
        }
        NdiscRepr::NeighborAdvert { flags, target_addr, lladdr } => {
            // RFC 4861 7.2.5: without one of these flags the advertisement must not change a known
            // address.
            let counts = flags.intersects(NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE);
            if !counts || target_addr.is_multicast() || is_ours(interface, target_addr.into()) {
                return None;
            }
            let mac = lladdr.and_then(host_mac)?;
            Some(Response { learned: Some(Learned { iface, addr: target_addr.into(), mac }), reply_len: 0 })
        }
        _ => None,
    }
}

fn advertisement(interface: &Interface, target_addr: Ipv6Addr, flags: NdiscNeighborFlags) -> NdiscRepr<'static> {
    NdiscRepr::NeighborAdvert { flags, target_addr, lladdr: Some(hardware_addr(interface.mac)) }
}

fn emit_ndisc(
    interface: &Interface,
    dst_mac: [u8; 6],
    src: Ipv6Addr,
    dst: Ipv6Addr,
    repr: NdiscRepr<'_>,
    out: &mut [u8],
) -> Option<usize> {
    if interface.framing != Framing::Ethernet {
        return None;
    }
    let link_len = emit_link(interface, dst_mac, eth::IPV6, out)?;
    let repr = Icmpv6Repr::Ndisc(repr);
    let out = out.get_mut(link_len..link_len + ipv6::HEADER_LEN + repr.buffer_len())?;
    let (ip, message) = out.split_first_chunk_mut::<{ ipv6::HEADER_LEN }>()?;
    emit_ipv6(src, dst, TTL_LINK, message.len(), ip);
    let len = link_len + ipv6::HEADER_LEN + message.len();
    repr.emit(&src, &dst, &mut Icmpv6Packet::new_unchecked(message), &ChecksumCapabilities::default());
    Some(len)
}

/// Writes an echo reply to the request's link-layer sender, without a route lookup.
fn echo(interface: &Interface, head: &[u8], v6: bool, ip: &[u8], message: &[u8], reply: &mut [u8]) -> Option<usize> {
    let sender = match interface.framing {
        Framing::Ethernet => EthHeader::parse(head)?.0.src,
        Framing::Ip => [0; 6],
    };
    let link_len = emit_link(interface, sender, if v6 { eth::IPV6 } else { eth::IPV4 }, reply)?;
    let reply = &mut reply[link_len..];
    let packet_len = if v6 {
        let view = ipv6::parse(ip, usize::MAX).ok()?;
        let (asked, asker) = (Ipv6Addr::from(view.dst), Ipv6Addr::from(view.src));
        let (header, out) = reply.split_first_chunk_mut::<{ ipv6::HEADER_LEN }>()?;
        let len = is_ours(interface, asked.into()).then(|| echo_reply_v6(message, asked, asker, out))??;
        emit_ipv6(asked, asker, TTL, len, header);
        ipv6::HEADER_LEN + len
    } else {
        let view = ipv4::parse(ip, usize::MAX).ok()?;
        let (header, out) = reply.split_first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
        let len = is_ours(interface, Ipv4Addr::from(view.dst).into()).then(|| echo_reply_v4(message, out))??;
        let total_len = u16::try_from(ipv4::HEADER_LEN + len).ok()?;
        let header_out = Ipv4Header { src: view.dst, dst: view.src, protocol: ipv4::ICMP, ttl: TTL, tos: 0, total_len };
        header_out.emit(header);
        ipv4::HEADER_LEN + len
    };
    Some(link_len + packet_len)
}

/// Writes an ICMP "port unreachable" (RFC 792, RFC 4443 3.1) about the UDP packet in `head`, with a
/// quote that fits the smallest MTU. Returns its length. Returns `None` for a packet that must not
/// be answered with ICMP, or if `out` is too small.
pub(crate) fn port_unreachable(interface: &Interface, head: &[u8], out: &mut [u8]) -> Option<usize> {
    let (sender, link) = match interface.framing {
        Framing::Ethernet => {
            let (header, len) = EthHeader::parse(head)?;
            // Link-layer broadcasts are not answered (RFC 1122 3.2.2).
            (header.dst == interface.mac).then_some((header.src, len))?
        }
        Framing::Ip => ([0; 6], 0),
    };
    let packet = head.get(link..)?;
    let v6 = packet.first()? >> 4 == 6;
    let link_len = emit_link(interface, sender, if v6 { eth::IPV6 } else { eth::IPV4 }, out)?;
    let out = &mut out[link_len..];
    if v6 {
        let view = ipv6::parse(packet, usize::MAX).ok()?;
        let quote = &packet[..packet.len().min(view.total_len as usize).min(1280 - ipv6::HEADER_LEN - 8)];
        let (header, message) = out.split_first_chunk_mut::<{ ipv6::HEADER_LEN }>()?;
        let message = message.get_mut(..8 + quote.len())?;
        message[..8].copy_from_slice(&[1, 4, 0, 0, 0, 0, 0, 0]);
        message[8..].copy_from_slice(quote);
        let sum = Sum::pseudo_v6(&view.dst, &view.src, ipv6::ICMP, message.len() as u32).add(Sum::of(message)).finish();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        emit_ipv6(view.dst.into(), view.src.into(), TTL, message.len(), header);
        return Some(link_len + ipv6::HEADER_LEN + message.len());
    }
    let view = ipv4::parse(packet, usize::MAX).ok()?;
    // RFC 1812 4.3.2.3: 576 bytes in total.
    let quote = &packet[..packet.len().min(usize::from(view.total_len)).min(576 - ipv4::HEADER_LEN - 8)];
    let (header, message) = out.split_first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
    let message = message.get_mut(..8 + quote.len())?;
    message[..8].copy_from_slice(&[3, 3, 0, 0, 0, 0, 0, 0]);
    message[8..].copy_from_slice(quote);
    let sum = Sum::of(message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let total_len = (ipv4::HEADER_LEN + message.len()) as u16;
    Ipv4Header { src: view.dst, dst: view.src, protocol: ipv4::ICMP, ttl: TTL, tos: 0, total_len }.emit(header);
    Some(link_len + usize::from(total_len))
}

/// Writes the link header, if the link has one. Returns its length.
fn emit_link(interface: &Interface, dst: [u8; 6], ethertype: u16, out: &mut [u8]) -> Option<usize> {
    if interface.framing == Framing::Ip {
        return Some(0);
    }
    let header = EthHeader { dst, src: interface.mac, vlan: interface.vlan, ethertype };
    Some(header.emit(out)).filter(|len| *len != 0)
}

fn emit_ipv6(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, payload_len: usize, out: &mut [u8; ipv6::HEADER_LEN]) {
    let (src, dst, payload_len) = (src.octets(), dst.octets(), payload_len as u16);
    Ipv6Header { src, dst, protocol: ipv6::ICMP, hop_limit, traffic_class: 0, payload_len }.emit(out);
}

fn hardware_addr(mac: [u8; 6]) -> RawHardwareAddress {
    EthernetAddress(mac).into()
}

fn host_mac(addr: RawHardwareAddress) -> Option<[u8; 6]> {
    addr.as_bytes().first_chunk::<6>().copied().filter(|mac| is_host_mac(*mac))
}

/// Returns the solicited-node group of an address: RFC 4291 2.7.1.
fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = addr.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// Returns the MAC address of a multicast group: RFC 2464 section 7.
fn multicast_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}
