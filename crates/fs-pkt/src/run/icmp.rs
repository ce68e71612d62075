//! ICMP messages: packetdrill's names of types and codes, and the packets that errors quote.

use crate::packet::{Packet, Segment, Transport};
use crate::script::ast::{Echoed, IcmpSpec};
use std::net::SocketAddr;

const TYPES_V4: &[(&str, u8)] = &[
    ("echo_reply", 0),
    ("unreachable", 3),
    ("source_quench", 4),
    ("redirect", 5),
    ("echo_request", 8),
    ("time_exceeded", 11),
    ("parameter_problem", 12),
    ("timestamp_request", 13),
    ("timestamp_reply", 14),
    ("information_request", 15),
    ("information_reply", 16),
    ("address_mask_request", 17),
    ("address_mask_reply", 18),
];

const UNREACHABLE_V4: &[(&str, u8)] = &[
    ("net_unreachable", 0),
    ("host_unreachable", 1),
    ("protocol_unreachable", 2),
    ("port_unreachable", 3),
    ("frag_needed", 4),
    ("source_route_failed", 5),
    ("net_unknown", 6),
    ("host_unknown", 7),
    ("source_host_isolated", 8),
    ("net_prohibited", 9),
    ("host_prohibited", 10),
    ("net_unreachable_for_tos", 11),
    ("host_unreachable_for_tos", 12),
    ("packet_filtered", 13),
    ("precedence_violation", 14),
    ("precedence_cutoff", 15),
];

const TYPES_V6: &[(&str, u8)] = &[
    ("unreachable", 1),
    ("packet_too_big", 2),
    ("time_exceeded", 3),
    ("parameter_problem", 4),
    ("echo_request", 128),
    ("echo_reply", 129),
];

const CODES_V6: &[(u8, &str, u8)] = &[
    (1, "net_unreachable", 0),
    (1, "no_route", 0),
    (1, "admin_prohibited", 1),
    (1, "not_neighbour", 2),
    (1, "address_unreachable", 3),
    (1, "port_unreachable", 4),
    (3, "exceeded_hop_limit", 0),
    (3, "exceeded_frag_time", 1),
    (4, "header_field", 0),
    (4, "unknown_next_header", 1),
    (4, "unknown_option", 2),
];

fn type_and_code(spec: &IcmpSpec, v4: bool) -> Result<(u8, u8), String> {
    let bad_type = || format!("bad ICMP type {}", spec.kind);
    let kind = match spec.kind.strip_prefix("type_") {
        Some(number) => number.parse().map_err(|_| bad_type())?,
        None => {
            let types = if v4 { TYPES_V4 } else { TYPES_V6 };
            types.iter().find(|(name, _)| *name == spec.kind).ok_or_else(bad_type)?.1
        }
    };
    let Some(code) = &spec.code else { return Ok((kind, 0)) };
    let bad_code = || format!("bad ICMP code {code}");
    let code = match code.strip_prefix("code_") {
        Some(number) => number.parse().map_err(|_| bad_code())?,
        None if v4 && kind == 3 => UNREACHABLE_V4.iter().find(|(name, _)| name == code).ok_or_else(bad_code)?.1,
        None if !v4 => CODES_V6.iter().find(|(t, name, _)| *t == kind && name == code).ok_or_else(bad_code)?.2,
        None => return Err(bad_code()),
    };
    Ok((kind, code))
}

/// Returns the header's second word.
fn second_word(spec: &IcmpSpec, kind: u8, code: u8, v4: bool) -> Result<u32, String> {
    let Some(mtu) = spec.mtu else { return Ok(u32::from(spec.id) << 16) };
    match (v4, kind, code) {
        (true, 3, 4) if mtu > 0xffff => Err("ICMPv4 MTU out of 16-bit range".into()),
        (true, 3, 4) | (false, 2, 0) => Ok(mtu),
        (true, ..) => Err("ICMPv4 MTU is only valid for unreachable-frag_needed".into()),
        (false, ..) => Err("ICMPv6 MTU is only valid for packet_too_big-0".into()),
    }
}

/// Makes a message to the host about a packet that it sent from `local` to `remote`.
pub(super) fn inbound(
    spec: &IcmpSpec,
    local: SocketAddr,
    remote: SocketAddr,
    seq_offset: u32,
    udp: bool,
) -> Result<Transport, String> {
    let v4 = local.is_ipv4();
    let (kind, code) = type_and_code(spec, v4)?;
    let word = second_word(spec, kind, code, v4)?;
    let quoted = |transport, len: usize| {
        let packet = Packet { src: local.ip(), dst: remote.ip(), tos: 0, ttl: 255, flow_label: 0, transport };
        let whole = packet.to_bytes();
        let header = packet.ip_header(len);
        // The header as it was sent, and the next eight bytes.
        [&header[..], &whole[header.len()..header.len() + 8]].concat()
    };
    let segment = |seq: u32, len: u16| {
        let seq = seq.wrapping_add(seq_offset);
        let segment = Segment { src: local.port(), dst: remote.port(), seq, ..Segment::default() };
        quoted(Transport::Tcp(segment), 20 + usize::from(len))
    };
    let datagram = |len: u16| {
        let payload = vec![0; usize::from(len)];
        quoted(Transport::Udp { src: local.port(), dst: remote.port(), payload }, 8 + usize::from(len))
    };
    let payload = match spec.echoed {
        Echoed::Unsaid if udp => datagram(0),
        Echoed::Unsaid => segment(0, 0),
        Echoed::Tcp { seq, len } => segment(seq, len),
        Echoed::Udp(len) => datagram(len),
        Echoed::Raw(len) => vec![0; usize::from(len).saturating_sub(8)],
    };
    Ok(Transport::Icmp { kind, code, word, payload })
}

/// Makes a message that the host is expected to send; only type and code are compared.
pub(super) fn outbound(spec: &IcmpSpec, local: SocketAddr) -> Result<Transport, String> {
    let v4 = local.is_ipv4();
    let (kind, code) = type_and_code(spec, v4)?;
    Ok(Transport::Icmp { kind, code, word: second_word(spec, kind, code, v4)?, payload: Vec::new() })
}
