//! Compares a sent packet with the one that a script expects, field by field in packetdrill's
//! order.

use super::{Packet, Segment, Transport, flags};
use crate::script::ast::{IpInfo, TcpSpec, Tos};
use std::fmt::Write;

/// Fields of a packet that a script leaves open.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Open {
    pub(crate) ip: IpInfo,
    pub(crate) window: bool,
    pub(crate) options: bool,
    /// The ECN bits are given as one number.
    pub(crate) ace: bool,
}

impl Open {
    pub(crate) fn of(ip: IpInfo, tcp: Option<&TcpSpec>) -> Self {
        Self {
            ip,
            window: tcp.is_some_and(|t| t.window.is_none()),
            options: tcp.is_some_and(|t| t.options.is_none()),
            ace: tcp.is_some_and(|t| t.ace),
        }
    }
}

fn field(name: &str, expected: u32, actual: u32) -> Result<(), String> {
    if expected == actual {
        return Ok(());
    }
    Err(format!("live packet field {name}: expected: {expected} ({expected:#x}) vs actual: {actual} ({actual:#x})"))
}

/// Describes the first difference. Timestamps and addresses are not compared.
pub(crate) fn headers(script: &Packet, actual: &Packet, open: &Open) -> Result<(), String> {
    let version = |p: &Packet| if p.src.is_ipv4() { 4 } else { 6 };
    field("ip_version", version(script), version(actual))?;
    field("ip_protocol", script.protocol().into(), actual.protocol().into())?;
    payload_len(script, actual, open)?;
    traffic_class(open.ip.tos, actual.tos)?;
    if open.ip.ttl != 0 {
        field("ttl", open.ip.ttl.into(), actual.ttl.into())?;
    }
    match (&script.transport, &actual.transport) {
        (Transport::Tcp(s), Transport::Tcp(a)) => tcp(s, a, open),
        (Transport::Icmp { kind: sk, code: sc, .. }, Transport::Icmp { kind: ak, code: ac, .. }) => {
            field("icmp_type", (*sk).into(), (*ak).into())?;
            field("icmp_code", (*sc).into(), (*ac).into())
        }
        _ => Ok(()),
    }
}

fn payload_len(script: &Packet, actual: &Packet, open: &Open) -> Result<(), String> {
    if matches!(script.transport, Transport::Icmp { .. }) {
        return Ok(());
    }
    let (expected, found) = (script.payload().len(), actual.payload().len());
    if expected != found {
        return Err(format!("live packet payload: expected {expected} bytes vs actual {found} bytes"));
    }
    let len = |p: &Packet| p.payload().len() + p.tcp().map_or(0, Segment::options_len);
    if open.options {
        Ok(())
    } else {
        field("ip_total_length", len(script) as u32, len(actual) as u32).map_err(|_| options_differ(script, actual))
    }
}

fn options_differ(script: &Packet, actual: &Packet) -> String {
    let list = |p: &Packet| p.tcp().map_or(String::new(), options_text);
    format!("live packet field tcp_options: expected: <{}> vs actual: <{}>", list(script), list(actual))
}

fn traffic_class(expected: Tos, actual: u8) -> Result<(), String> {
    match expected {
        Tos::Unsaid => Ok(()),
        Tos::Ecn(bits) => field("ip_ecn", bits.into(), (actual & 3).into()),
        Tos::Byte(byte) => field("tos", byte.into(), actual.into()),
        Tos::Ect01 if matches!(actual & 3, 1 | 2) => Ok(()),
        Tos::Ect01 => Err(format!("live packet field ip_ecn: expected: 0x1 or 0x2 vs actual: {:#x}", actual & 3)),
    }
}

fn tcp(script: &Segment, actual: &Segment, open: &Open) -> Result<(), String> {
    let bit = |name: &str, bit: u16| field(name, script.has(bit).into(), actual.has(bit).into());
    bit("tcp_fin", flags::FIN)?;
    bit("tcp_syn", flags::SYN)?;
    bit("tcp_rst", flags::RST)?;
    bit("tcp_psh", flags::PSH)?;
    bit("tcp_ack", flags::ACK)?;
    bit("tcp_urg", flags::URG)?;
    if open.ace {
        field("tcp_ace", (script.flags >> 6 & 7).into(), (actual.flags >> 6 & 7).into())?;
    } else {
        bit("tcp_ece", flags::ECE)?;
        bit("tcp_cwr", flags::CWR)?;
        bit("tcp_ae", flags::AE)?;
    }
    field("tcp_reserved_bits", 0, (actual.flags >> 9).into())?;
    field("tcp_seq", script.seq, actual.seq)?;
    field("tcp_ack_seq", script.ack, actual.ack)?;
    if !open.window {
        field("tcp_window", script.window.into(), actual.window.into())?;
    }
    field("tcp_urg_ptr", script.urgent.into(), actual.urgent.into())
}

/// Checks that a segment continues the previous ones, with the same header (except FIN, PSH and
/// CWR).
pub(crate) fn fragment(before: &Segment, next: &Segment) -> Result<(), String> {
    let check = |name: &str, expected: u32, actual: u32| {
        field(name, expected, actual).map_err(|e| e.replacen("live packet", "aggregate candidate", 1))
    };
    check("tcp_data_offset", before.options_len().div_ceil(4) as u32 + 5, next.options_len().div_ceil(4) as u32 + 5)?;
    let mask = flags::SYN | flags::RST | flags::ACK | flags::URG | flags::ECE | flags::AE;
    check("tcp_flags", (before.flags & mask).into(), (next.flags & mask).into())?;
    check("tcp_seq", before.seq.wrapping_add(before.payload.len() as u32), next.seq)?;
    check("tcp_ack_seq", before.ack, next.ack)?;
    check("tcp_window", before.window.into(), next.window.into())
}

/// Compares options, in order. The caller compares timestamps: their echo, and their value if a tick is set.
pub(crate) fn options(script: &Segment, actual: &Segment) -> Result<(), String> {
    let mut pairs = script.options.iter().zip(&actual.options);
    let same_kinds = script.options.len() == actual.options.len() && pairs.all(|(s, a)| s.kind() == a.kind());
    if !same_kinds {
        return Err(format!(
            "bad outbound TCP options: expected: <{}> actual: <{}>",
            options_text(script),
            options_text(actual)
        ));
    }
    for (s, a) in script.options.iter().zip(&actual.options) {
        if s.kind() == 8 || s == a {
            continue;
        }
        let what = if s.len() == a.len() { "bad value" } else { "bad length" };
        return Err(format!("{what} in outbound TCP option (kind={}): expected: {s} actual: {a}", s.kind()));
    }
    Ok(())
}

fn options_text(segment: &Segment) -> String {
    let words: Vec<String> = segment.options.iter().map(ToString::to_string).collect();
    words.join(",")
}

/// Formats a packet as packetdrill does.
pub(crate) fn text(packet: &Packet, open: &Open) -> String {
    let mut out = String::new();
    let ip = ip_text(packet, open);
    match &packet.transport {
        Transport::Tcp(t) => {
            let len = t.payload.len();
            let end = t.seq.wrapping_add(len as u32);
            let _ = write!(out, "{ip}{} {}:{end}({len})", flags::letters(t.flags, open.ace), t.seq);
            if t.has(flags::ACK) {
                let _ = write!(out, " ack {}", t.ack);
            }
            if !open.window {
                let _ = write!(out, " win {}", t.window);
            }
            if t.urgent != 0 {
                let _ = write!(out, " urg {}", t.urgent);
            }
            if open.options {
                out.push_str(" <...>");
            } else if !t.options.is_empty() {
                let _ = write!(out, " <{}>", options_text(t));
            }
        }
        Transport::Udp { payload, .. } => {
            let _ = write!(out, "{ip}udp ({})", payload.len());
        }
        Transport::Icmp { kind, code, word, .. } => {
            let family = if packet.src.is_ipv4() { "icmpv4" } else { "icmpv6" };
            let _ = write!(out, "{ip}{family} type_{kind} code_{code} ({word:#x})");
        }
    }
    out
}

/// Formats the fields of a packet's IP header that the script names.
fn ip_text(packet: &Packet, open: &Open) -> String {
    let mut parts = Vec::new();
    match open.ip.tos {
        Tos::Unsaid => {}
        Tos::Byte(_) => parts.push(format!("tos {:#04x}", packet.tos)),
        Tos::Ecn(_) | Tos::Ect01 => {
            parts.push(["noecn", "ect1", "ect0", "ce"][usize::from(packet.tos & 3)].to_string())
        }
    }
    if open.ip.ttl != 0 {
        parts.push(format!("ttl {}", packet.ttl));
    }
    if open.ip.flow_label != 0 {
        parts.push(format!("flowlabel {:#x}", packet.flow_label));
    }
    if parts.is_empty() { String::new() } else { format!("[{}] ", parts.join(",")) }
}
