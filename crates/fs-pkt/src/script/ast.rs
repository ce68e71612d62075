//! A script as it is written: what the parser makes, and (by `Display`) what it was made from.

use crate::packet::option::TcpOption;
use std::net::IpAddr;

/// A script.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// `--name=value` at the top.
    pub options: Vec<(String, Option<String>)>,
    /// The command before the first event.
    pub init: Option<Command>,
    /// What happens, in order.
    pub events: Vec<Event>,
    /// The command after the last event, run whether the script passes or fails.
    pub cleanup: Option<Command>,
}

/// A shell command and its line.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Where it starts.
    pub line: u32,
    /// Its text.
    pub text: String,
}

/// Something that the script does or waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Line of its time.
    pub line: u32,
    /// When.
    pub time: Time,
    /// What.
    pub action: Action,
}

/// When an event happens; all in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// `0.1`: since the script's start.
    At(i64),
    /// `+.1`: after the event before.
    After(i64),
    /// `*`: whenever.
    Any,
    /// `0.1~0.2`.
    Between(i64, i64),
    /// `+.1~+.2`.
    AfterBetween(i64, i64),
}

/// What an event is.
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

/// Which way a packet goes.
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
    /// Which way.
    pub direction: Direction,
    /// What is said of its IP header.
    pub ip: IpInfo,
    /// Source and destination port, where they are not the connection's.
    pub ports: Option<(u16, u16)>,
    /// `sock(4)`: the descriptor whose connection this is, instead of the latest one.
    pub socket: Option<i64>,
    /// What is in it.
    pub body: Body,
}

/// The IP header's fields that a script can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpInfo {
    /// The traffic class.
    pub tos: Tos,
    /// The IPv6 flow label; 0: not said.
    pub flow_label: u32,
    /// TTL or hop limit; 0: not said.
    pub ttl: u8,
}

/// What is said of the traffic class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tos {
    /// Nothing.
    #[default]
    Unsaid,
    /// Its ECN bits.
    Ecn(u8),
    /// ECT(0) or ECT(1).
    Ect01,
    /// All of it.
    Byte(u8),
}

/// What a packet carries.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A TCP segment.
    Tcp(TcpSpec),
    /// A datagram of so many bytes.
    Udp(u16),
    /// An ICMP message.
    Icmp(IcmpSpec),
}

/// A TCP segment.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpSpec {
    /// As `crate::packet::flags`.
    pub flags: u16,
    /// The ECN bits were given as one number, the ACE field of accurate ECN.
    pub ace: bool,
    /// First sequence number.
    pub seq: u32,
    /// Payload bytes.
    pub len: u16,
    /// Acknowledgement number, 0 if not given.
    pub ack: u32,
    /// Window; `None` where any will do.
    pub window: Option<u16>,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options; `None` where any will do (`<...>`).
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
    /// The packet that it is about.
    pub echoed: Echoed,
}

/// What an ICMP error quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Echoed {
    /// Nothing said: a TCP segment at sequence number 0.
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
    /// `[raw (1000)]`: so many bytes.
    Raw(u16),
}

/// A system call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// When it ends, if it may block; in microseconds, as the event's time counts.
    pub end: Option<i64>,
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub args: Vec<Expr>,
    /// What it returns.
    pub result: Expr,
    /// The errno that it sets.
    pub errno: Option<String>,
    /// What is said in parentheses at the end.
    pub note: Option<String>,
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// `...`: whatever is right.
    Ellipsis,
    /// A decimal number.
    Int(i64),
    /// A hexadecimal number.
    Hex(i64),
    /// A constant's name.
    Word(String),
    /// `"…"`, several joined.
    Str(String),
    /// `"…"...`: the start of something longer.
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

/// A part of a structure.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// What is in parentheses after the name.
    pub count: Option<Expr>,
    /// Its value.
    pub value: Expr,
}

impl Expr {
    /// The field of that name of a structure.
    pub fn field(&self, name: &str) -> Option<&Field> {
        match self {
            Expr::Struct(fields) => fields.iter().find(|f| f.name.as_deref() == Some(name)),
            _ => None,
        }
    }

    /// An address literal of a structure `{sa_family = …, sin_port = …, sin_addr = …}`.
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
