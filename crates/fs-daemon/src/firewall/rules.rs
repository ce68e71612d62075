//! Whether rules of nftables could stop or change connections that are open. A rule is understood as far as it compares what is known of
//! them (protocol, addresses, the server's port, `lo`) before it does anything; what is not understood could match, and what it does
//! beyond accepting and counting could stop them. Which chains a packet passes is not asked: each rule counts as one that it meets.

use super::{GENERAL, attributes};
use std::net::{IpAddr, SocketAddr};

/// Connections from one address to one place, as far as the daemon knows it (and not those who have them).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    /// `None`: they may come from anywhere.
    pub(crate) from: Option<IpAddr>,
    pub(crate) to: SocketAddr,
    /// Ports below 1024 that they may come from; `None`: any. From 1024 on, from any.
    pub(crate) low_ports: Option<Vec<u16>>,
    /// By `lo`.
    pub(crate) is_local: bool,
}

/// One rule: its family, and its expressions as the kernel has them.
#[derive(Debug)]
pub(super) struct Rule {
    family: u8,
    expressions: Vec<u8>,
}

/// Of linux/netfilter/nf_tables.h: `NFTA_RULE_EXPRESSIONS`; `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`; `NFTA_DATA_VALUE`, `NFTA_DATA_VERDICT`;
/// `NFTA_VERDICT_CODE`.
const EXPRESSIONS: u16 = 4;
const NAME: u16 = 1;
const DATA: u16 = 2;
const VALUE: u16 = 1;
const VERDICT: u16 = 2;
const CODE: u16 = 1;
/// `NF_ACCEPT`, and `NFT_CONTINUE`, `NFT_BREAK`, `NFT_JUMP`, `NFT_GOTO`, `NFT_RETURN`: where a packet goes on. What is there are rules
/// too, and are looked at by themselves.
const GOES_ON: [i32; 6] = [1, -1, -2, -3, -4, -5];

/// `NFPROTO_IPV4`, `NFPROTO_IPV6` of linux/netfilter.h; `IPPROTO_TCP`.
const IPV4: u8 = 2;
const IPV6: u8 = 10;
const TCP: u8 = 6;
/// The first port that everybody may bind.
const UNPRIVILEGED: u16 = 1024;

/// What a register may hold.
#[derive(Clone, Debug)]
enum Value {
    /// One of these.
    OneOf(Vec<Vec<u8>>),
    /// The client's port.
    ClientPort,
}

/// A packet of a connection: from the client, or from the server.
struct Packet<'a> {
    flow: &'a Flow,
    is_from_client: bool,
}

/// What a rule's expression comes to.
enum Step {
    /// The rule may be about the packet: on to its next expression.
    On,
    /// The rule is not about it.
    Not,
    /// It could stop or change it.
    Touches,
}

impl Rule {
    /// Reads the body of a message that tells of a rule.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let (general, rest) = body.split_at_checked(GENERAL)?;
        let expressions = attributes(rest).find(|&(kind, _)| kind == EXPRESSIONS).map_or(&[][..], |(_, value)| value);
        Some(Self { family: *general.first()?, expressions: expressions.to_vec() })
    }

    /// Whether it could stop or change packets of a connection.
    pub(super) fn could_touch(&self, flow: &Flow) -> bool {
        let is_other = match self.family {
            IPV4 => !flow.to.is_ipv4(),
            IPV6 => flow.to.is_ipv4(),
            _ => !super::FAMILIES.contains(&self.family),
        };
        !is_other && [true, false].into_iter().any(|is_from_client| self.touches(&Packet { flow, is_from_client }))
    }

    fn touches(&self, packet: &Packet<'_>) -> bool {
        let mut registers = Registers::default();
        for (_, expression) in attributes(&self.expressions) {
            let part = |wanted: u16| attributes(expression).find(|&(kind, _)| kind == wanted).map(|(_, value)| value);
            let name = part(NAME).unwrap_or_default();
            let name = name.strip_suffix(&[0]).unwrap_or(name);
            match step(name, part(DATA).unwrap_or_default(), packet, &mut registers) {
                Step::On => {}
                Step::Not => return false,
                Step::Touches => return true,
            }
        }
        false
    }
}

fn step(name: &[u8], data: &[u8], packet: &Packet<'_>, registers: &mut Registers) -> Step {
    let part = |wanted: u16| attributes(data).find(|&(kind, _)| kind == wanted).map(|(_, value)| value);
    let word = |wanted: u16| Some(u32::from_be_bytes(part(wanted)?.try_into().ok()?));
    let value = |wanted: u16| attributes(part(wanted)?).find(|&(kind, _)| kind == VALUE).map(|(_, value)| value);
    // The numbers are those of the attributes of each expression.
    match name {
        // SREG: a packet's mark, priority … is set.
        b"meta" if part(3).is_some() => return Step::Touches,
        b"meta" => registers.put(word(1), packet.meta(word(2))),
        // SREG: the packet is written to.
        b"payload" if part(5).is_some() => return Step::Touches,
        b"payload" => registers.put(word(1), packet.bytes(word(2), word(3), word(4))),
        b"cmp" => {
            let (Some(operation), Some(with)) = (word(2), value(3)) else { return Step::Touches };
            let fits = match registers.get(word(1), with.len()) {
                None => true,
                Some(Value::ClientPort) => packet.may_come_from(operation, with),
                Some(Value::OneOf(values)) => values.iter().any(|value| compare(operation, &value[..with.len()], with)),
            };
            if !fits {
                return Step::Not;
            }
        }
        b"range" => {
            let (Some(from), Some(to)) = (value(3), value(4)) else { return Step::Touches };
            if let (Some(Value::OneOf(values)), true) = (registers.get(word(1), from.len()), from.len() == to.len()) {
                let is_in = |value: &Vec<u8>| (from..=to).contains(&&value[..from.len()]);
                // NFT_RANGE_EQ
                let is_wanted = word(2) == Some(0);
                if !values.iter().any(|value| is_in(value) == is_wanted) {
                    return Step::Not;
                }
            }
        }
        b"bitwise" => {
            let result = match (registers.get(word(1), word(3).unwrap_or(0) as usize), value(4), value(5)) {
                (Some(Value::OneOf(values)), Some(mask), Some(xor)) if word(6).unwrap_or(0) == 0 => {
                    let of = |value: &Vec<u8>| {
                        value.iter().zip(mask).zip(xor).map(|((byte, mask), xor)| byte & mask ^ xor).collect()
                    };
                    Some(Value::OneOf(values.iter().map(of).collect()))
                }
                _ => None,
            };
            registers.put(word(2), result);
        }
        b"immediate" => {
            let is_verdict = word(1) == Some(0);
            if is_verdict {
                let verdict = part(2).and_then(|data| attributes(data).find(|&(kind, _)| kind == VERDICT));
                let code = verdict.and_then(|(_, verdict)| attributes(verdict).find(|&(kind, _)| kind == CODE));
                let code = code.and_then(|(_, code)| code.try_into().ok()).map(i32::from_be_bytes);
                if !code.is_some_and(|code| GOES_ON.contains(&code)) {
                    return Step::Touches;
                }
            } else {
                registers.put(word(1), value(2).map(|value| Value::OneOf(vec![value.to_vec()])));
            }
        }
        // SREG, and no DREG (an option is taken away); the others only read.
        b"ct" if part(4).is_some() => return Step::Touches,
        b"exthdr" if part(1).is_none() => return Step::Touches,
        // DREG is the verdict's: a map of verdicts.
        b"lookup" if word(3) == Some(0) => return Step::Touches,
        b"ct" | b"exthdr" | b"lookup" | b"rt" | b"socket" | b"fib" | b"hash" | b"numgen" | b"byteorder" | b"osf"
        | b"xfrm" | b"tunnel" => *registers = Registers::default(),
        b"counter" | b"log" | b"last" | b"limit" | b"quota" | b"connlimit" | b"match" => {}
        // reject, nat, masq, redir, queue, tproxy, synproxy, dup, fwd, flow_offload, notrack, objref, dynset, target, and what is new.
        _ => return Step::Touches,
    }
    Step::On
}

/// `NFT_CMP_*`.
fn compare(operation: u32, value: &[u8], with: &[u8]) -> bool {
    match operation {
        0 => value == with,
        1 => value != with,
        2 => value < with,
        3 => value <= with,
        4 => value > with,
        5 => value >= with,
        _ => true,
    }
}

/// The registers of nftables: 64 bytes, which the first four names divide by 16, those from 8 on by 4.
#[derive(Default)]
struct Registers(Vec<(usize, Value)>);

impl Registers {
    fn place(register: Option<u32>) -> Option<usize> {
        match register? as usize {
            whole @ 1..=4 => Some((whole - 1) * 16),
            quarter @ 8..=23 => Some((quarter - 8) * 4),
            _ => None,
        }
    }

    /// `None`: not known.
    fn put(&mut self, register: Option<u32>, value: Option<Value>) {
        let len = |value: &Value| match value {
            Value::OneOf(values) => values.iter().map(Vec::len).max().unwrap_or(0),
            Value::ClientPort => 2,
        };
        let Some(place) = Self::place(register) else {
            self.0.clear();
            return;
        };
        // What is not known may be as long as a register can be.
        let end = place + value.as_ref().map_or(64, len);
        self.0.retain(|(other, value)| *other >= end || other + len(value) <= place);
        self.0.extend(value.map(|value| (place, value)));
    }

    /// The value that begins there, if so much of it is known.
    fn get(&self, register: Option<u32>, len: usize) -> Option<&Value> {
        let place = Self::place(register)?;
        let (_, value) = self.0.iter().find(|(of, _)| *of == place)?;
        let is_known = match value {
            Value::OneOf(values) => values.iter().all(|value| value.len() >= len),
            Value::ClientPort => len == 2,
        };
        is_known.then_some(value)
    }
}

impl Packet<'_> {
    /// `NFT_META_*`.
    fn meta(&self, key: Option<u32>) -> Option<Value> {
        let one = |bytes: &[u8]| Some(Value::OneOf(vec![bytes.to_vec()]));
        // A packet that is sent has no device yet by which it came, and one that has come none by which it goes.
        let lo = |lo: Vec<u8>| Value::OneOf(vec![vec![0; lo.len()], lo]);
        let mut name = b"lo".to_vec();
        name.resize(16, 0);
        match key? {
            4 | 5 if self.flow.is_local => Some(lo(1_u32.to_ne_bytes().to_vec())),
            6 | 7 if self.flow.is_local => Some(lo(name)),
            15 => one(&[if self.flow.to.is_ipv4() { IPV4 } else { IPV6 }]),
            16 => one(&[TCP]),
            _ => None,
        }
    }

    /// `NFT_PAYLOAD_*`: bytes of a packet's headers.
    fn bytes(&self, base: Option<u32>, offset: Option<u32>, len: Option<u32>) -> Option<Value> {
        let (offset, len) = (offset? as usize, len? as usize);
        let known = match base? {
            1 => self.network(),
            2 => {
                let server = self.flow.to.port().to_be_bytes().map(Some);
                match (self.is_from_client, offset, len) {
                    (true, 0, 2) | (false, 2, 2) => return Some(Value::ClientPort),
                    (true, ..) => [[None; 2], server].concat(),
                    (false, ..) => [server, [None; 2]].concat(),
                }
            }
            _ => return None,
        };
        let bytes: Option<Vec<u8>> = known.get(offset..offset.checked_add(len)?)?.iter().copied().collect();
        Some(Value::OneOf(vec![bytes?]))
    }

    /// What is known of the header of IPv4 or IPv6.
    fn network(&self) -> Vec<Option<u8>> {
        let server = Some(self.flow.to.ip()).filter(|ip| !ip.is_unspecified());
        let (source, destination) =
            if self.is_from_client { (self.flow.from, server) } else { (server, self.flow.from) };
        let (len, protocol, at) = if self.flow.to.is_ipv4() { (4, 9, 12) } else { (16, 6, 8) };
        let mut header = vec![None; at + 2 * len];
        header[protocol] = Some(TCP);
        for (place, ip) in [(at, source), (at + len, destination)] {
            let bytes = match ip {
                Some(IpAddr::V4(v4)) => v4.octets().to_vec(),
                Some(IpAddr::V6(v6)) => v6.octets().to_vec(),
                None => continue,
            };
            if bytes.len() == len {
                header[place..place + len].iter_mut().zip(bytes).for_each(|(known, byte)| *known = Some(byte));
            }
        }
        header
    }

    /// Whether a client's port may compare so. What is of another length is not a port.
    fn may_come_from(&self, operation: u32, with: &[u8]) -> bool {
        let Ok(port) = <[u8; 2]>::try_from(with).map(u16::from_be_bytes) else { return true };
        let is_equal = operation == 0;
        !is_equal || port >= UNPRIVILEGED || self.flow.low_ports.as_ref().is_none_or(|ports| ports.contains(&port))
    }
}
