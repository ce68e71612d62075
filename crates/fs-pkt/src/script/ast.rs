//! Syntax tree of a script, made by the parser and printed by `Display`.

use crate::packet::option::TcpOption;
use std::net::IpAddr;

/// A script.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// `--name=value` in the first lines.
    pub options: Vec<(String, Option<String>)>,
    /// The command before the first event.
    pub init: Option<Command>,
    /// Events, in order.
    pub events: Vec<Event>,
    /// The command after the last event, run after success and failure.
    pub cleanup: Option<Command>,
}

/// A shell command and its line.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// The command's first line.
    pub line: u32,
    /// The command's text.
    pub text: String,
}

/// An action of the script at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Line of its time.
    pub line: u32,
    /// The event's time.
    pub time: Time,
    /// The event's action.
    pub action: Action,
}

/// Time of an event in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// `0.1`: since the script's start.
    At(i64),
    /// `+.1`: after the previous event.
    After(i64),
    /// `*`: at any time.
    Any,
    /// `0.1~0.2`.
    Between(i64, i64),
    /// `+.1~+.2`.
    AfterBetween(i64, i64),
}

/// Action of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A packet to inject or to expect.
    Packet(PacketSpec),
    /// A system call.
    Call(Call),
    /// A shell command.
    Command(String),
    /// Python.
    Code(String),
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// `<`: injected.
    Inbound,
    /// `>`: expected.
    Outbound,
}

/// A packet.
#[derive(Clone, Debug, PartialEq)]
pub struct PacketSpec {
    /// The packet's direction.
    pub direction: Direction,
    /// The packet's IP header, as far as given.
    pub ip: IpInfo,
    /// Source and destination port, if they differ from the connection's.
    pub ports: Option<(u16, u16)>,
    /// `sock(4)`: the descriptor whose connection this is, instead of the latest one.
    pub socket: Option<i64>,
    /// The packet's payload.
    pub body: Body,
}

/// The IP header's fields that a script can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpInfo {
    /// The traffic class.
    pub tos: Tos,
    /// The IPv6 flow label; 0: not given.
    pub flow_label: u32,
    /// TTL or hop limit; 0: not given.
    pub ttl: u8,
}

/// The given part of the traffic class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tos {
    /// Nothing.
    #[default]
    Unsaid,
    /// The field's ECN bits.
    Ecn(u8),
    /// ECT(0) or ECT(1).
    Ect01,
    /// All of it.
    Byte(u8),
}

/// Payload of a packet.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A TCP segment.
    Tcp(TcpSpec),
    /// A datagram of this many bytes.
    Udp(u16),
    /// An ICMP message.
    Icmp(IcmpSpec),
}

/// A TCP segment.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpSpec {
    /// Like `crate::packet::flags`.
    pub flags: u16,
    /// The ECN bits were given as one number, the ACE field of accurate ECN.
    pub ace: bool,
    /// First sequence number.
    pub seq: u32,
    /// Payload bytes.
    pub len: u16,
    /// Acknowledgement number, 0 if not given.
    pub ack: u32,
    /// Window; `None` for any.
    pub window: Option<u16>,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options; `None` for any (`<...>`).
    pub options: Option<Vec<TcpOption>>,
}

/// An ICMP message.
#[derive(Clone, Debug, PartialEq)]
pub struct IcmpSpec {
    /// Type, by packetdrill's name for it.
    pub kind: String,
    /// Code, by name.
    pub code: Option<String>,
    /// MTU of a "packet too big".
    pub mtu: Option<u32>,
    /// Identifier of an echo.
    pub id: u16,
    /// The packet that it quotes.
    pub echoed: Echoed,
}

/// Quote of an ICMP error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Echoed {
    /// Not given: a TCP segment at sequence number 0.
    #[default]
    Unsaid,
    /// `[1:1001(1000)]`
    Tcp {
        /// First sequence number.
        seq: u32,
        /// Payload bytes.
        len: u16,
    },
    /// `[udp (1000)]`
    Udp(u16),
    /// `[raw (1000)]`: this many bytes.
    Raw(u16),
}

/// A system call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// When it ends, if it may block; in microseconds, in the event's kind of time.
    pub end: Option<i64>,
    /// The call's name.
    pub name: String,
    /// The call's arguments.
    pub args: Vec<Expr>,
    /// The call's return value.
    pub result: Expr,
    /// The errno that it sets.
    pub errno: Option<String>,
    /// The text in parentheses at the end.
    pub note: Option<String>,
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// `...`: any valid value.
    Ellipsis,
    /// A decimal number.
    Int(i64),
    /// A hexadecimal number.
    Hex(i64),
    /// A constant's name.
    Word(String),
    /// `"…"`, several concatenated.
    Str(String),
    /// `"…"...`: a prefix.
    StrPrefix(String),
    /// `a|b`.
    Or(Box<Expr>, Box<Expr>),
    /// `name = value`.
    Assign(String, Box<Expr>),
    /// `[a, b]`.
    List(Vec<Expr>),
    /// `{a, name = b, name(n) = c}`.
    Struct(Vec<Field>),
    /// `htons(80)`, `inet_addr("192.0.2.1")`.
    Apply(String, Vec<Expr>),
}

/// A member of a structure.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The field's name, if it has one.
    pub name: Option<String>,
    /// The expression in parentheses after the name.
    pub count: Option<Expr>,
    /// The field's value.
    pub value: Expr,
}

impl Expr {
    /// Returns a structure's member of that name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        match self {
            Expr::Struct(fields) => fields.iter().find(|f| f.name.as_deref() == Some(name)),
            _ => None,
        }
    }

    /// Returns the address of a structure `{sa_family = …, sin_port = …, sin_addr = …}`.
    pub fn ip_literal(&self) -> Option<IpAddr> {
        match self {
            Expr::Apply(name, args) if matches!(name.as_str(), "inet_addr" | "inet6_addr") => match &args[..] {
                [Expr::Str(text)] => text.parse().ok(),
                _ => None,
            },
            _ => None,
        }
    }
}
