//! Formats scripts as text that parses to the same script.

use super::ast::*;
use crate::packet::flags;
use std::fmt::{self, Display, Formatter};

fn seconds(us: i64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

fn list<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Display for Script {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.options {
            match value {
                Some(value) => writeln!(f, "--{name}={value}")?,
                None => writeln!(f, "--{name}")?,
            }
        }
        if let Some(init) = &self.init {
            writeln!(f, "`{}`", init.text)?;
        }
        for event in &self.events {
            writeln!(f, "{event}")?;
        }
        if let Some(cleanup) = &self.cleanup {
            writeln!(f, "`{}`", cleanup.text)?;
        }
        Ok(())
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.time {
            Time::At(t) => f.write_str(&seconds(t))?,
            Time::After(t) => write!(f, "+{}", seconds(t))?,
            Time::Any => f.write_str("*")?,
            Time::Between(a, b) => write!(f, "{}~{}", seconds(a), seconds(b))?,
            Time::AfterBetween(a, b) => write!(f, "+{}~+{}", seconds(a), seconds(b))?,
        }
        match &self.action {
            Action::Packet(packet) => write!(f, " {packet}"),
            Action::Call(call) => write!(f, "{call}"),
            Action::Command(text) => write!(f, " `{text}`"),
            Action::Code(text) => write!(f, " %{{ {text} }}%"),
        }
    }
}

impl Display for IpInfo {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match self.tos {
            Tos::Unsaid => {}
            Tos::Ecn(bits) => parts.push(["noecn", "ect1", "ect0", "ce"][usize::from(bits & 3)].to_string()),
            Tos::Ect01 => parts.push("ect01".into()),
            Tos::Byte(byte) => parts.push(format!("tos {byte:#x}")),
        }
        if self.ttl != 0 {
            parts.push(format!("ttl {}", self.ttl));
        }
        if self.flow_label != 0 {
            parts.push(format!("flowlabel {:#x}", self.flow_label));
        }
        if parts.is_empty() { Ok(()) } else { write!(f, " [{}]", parts.join(",")) }
    }
}

impl Display for PacketSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(if self.direction == Direction::Inbound { "<" } else { ">" })?;
        if let Some(fd) = self.socket {
            write!(f, " sock({fd})")?;
        }
        write!(f, "{}", self.ip)?;
        let ports = self.ports.map_or(String::new(), |(s, d)| format!(" {s} > {d}"));
        match &self.body {
            Body::Tcp(tcp) => write!(f, "{ports} {tcp}"),
            Body::Udp(len) => write!(f, " udp{ports} ({len})"),
            Body::Icmp(icmp) => write!(f, " {icmp}"),
        }
    }
}

impl Display for TcpSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let end = u64::from(self.seq) + u64::from(self.len);
        write!(f, "{} {}:{end}({})", flags::letters(self.flags, self.ace), self.seq, self.len)?;
        if self.flags & flags::ACK != 0 || self.ack != 0 {
            write!(f, " ack {}", self.ack)?;
        }
        if let Some(window) = self.window {
            write!(f, " win {window}")?;
        }
        if self.urgent != 0 {
            write!(f, " urg {}", self.urgent)?;
        }
        match &self.options {
            None => f.write_str(" <...>"),
            Some(options) if options.is_empty() => Ok(()),
            Some(options) => write!(f, " <{}>", list(options)),
        }
    }
}

impl Display for IcmpSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "icmp {}", self.kind)?;
        if let Some(code) = &self.code {
            write!(f, " {code}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, " mtu {mtu}")?;
        }
        if self.id != 0 {
            write!(f, " id {}", self.id)?;
        }
        match self.echoed {
            Echoed::Unsaid => Ok(()),
            Echoed::Tcp { seq, len } => write!(f, " [{seq}:{}({len})]", u64::from(seq) + u64::from(len)),
            Echoed::Udp(len) => write!(f, " [udp ({len})]"),
            Echoed::Raw(len) => write!(f, " [raw ({len})]"),
        }
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(end) = self.end {
            write!(f, "...{}", seconds(end))?;
        }
        write!(f, " {}({}) = {}", self.name, list(&self.args), self.result)?;
        if let Some(errno) = &self.errno {
            write!(f, " {errno}")?;
        }
        if let Some(note) = &self.note {
            write!(f, " ({note})")?;
        }
        Ok(())
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Ellipsis => f.write_str("..."),
            Expr::Int(n) => write!(f, "{n}"),
            Expr::Hex(n) => write!(f, "{n:#x}"),
            Expr::Word(word) => f.write_str(word),
            Expr::Str(text) => write!(f, "\"{text}\""),
            Expr::StrPrefix(text) => write!(f, "\"{text}\"..."),
            Expr::Or(a, b) => write!(f, "{a} | {b}"),
            Expr::Assign(name, value) => write!(f, "{name} = {value}"),
            Expr::List(items) => write!(f, "[{}]", list(items)),
            Expr::Struct(fields) => write!(f, "{{{}}}", list(fields)),
            Expr::Apply(name, args) => write!(f, "{name}({})", list(args)),
        }
    }
}

impl Display for Field {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            f.write_str(name)?;
        }
        if let Some(count) = &self.count {
            write!(f, "({count})")?;
        }
        if self.name.is_some() {
            f.write_str(" = ")?;
        }
        write!(f, "{}", self.value)
    }
}
