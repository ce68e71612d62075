//! Whether rules of nftables could stop or change connections that are open. A rule is understood as far as it compares what is known of
//! them (protocol, addresses, the server's port, `lo`) before it does anything; what is not understood could match, and what it does
//! beyond accepting and counting could stop them. Of the way through chains only the hook of a base chain is looked at: each other rule
//! counts as one that every packet meets.

use super::{GENERAL, attributes};
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

/// Connections from one address to one place, as far as the daemon knows it (and not those who have them).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    /// `None`: they may come from anywhere.
    pub(crate) from: Option<IpAddr>,
    pub(crate) to: SocketAddr,
    /// The ports that they come from; `None`: any.
    pub(crate) ports: Option<BTreeSet<u16>>,
    pub(crate) way: Way,
}

impl Flow {
    /// What comparing it with a rule takes, in looks at a port.
    pub(super) fn weight(&self) -> usize {
        const WITHOUT_PORTS: usize = 8;
        WITHOUT_PORTS + self.ports.as_ref().map_or(0, BTreeSet::len)
    }
}

/// Which way their packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    /// By `lo`: each passes all hooks of a host's own packets.
    Loopback,
    /// The client's come in by a device, the server's go out.
    In,
    /// It is not known.
    Any,
}

/// One rule: its family, the hook of its chain where that is a base chain, and its expressions as the kernel has them.
#[derive(Debug)]
pub(super) struct Rule {
    family: u8,
    hook: Option<u32>,
    expressions: Vec<u8>,
}

/// A chain: family, table and name.
type ChainName = (u8, Vec<u8>, Vec<u8>);

/// The hooks of base chains.
pub(super) type Hooks = HashMap<ChainName, u32>;

/// Of linux/netfilter/nf_tables.h: `NFTA_CHAIN_TABLE`, `NFTA_CHAIN_NAME`; `NFTA_RULE_TABLE`, `NFTA_RULE_CHAIN`, `NFTA_RULE_EXPRESSIONS`; `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`; `NFTA_DATA_VALUE`, `NFTA_DATA_VERDICT`;
/// `NFTA_VERDICT_CODE`.
const TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN: u16 = 2;
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
/// `NF_INET_PRE_ROUTING`, `NF_INET_LOCAL_IN`, `NF_INET_INGRESS`, and `NF_INET_LOCAL_OUT`, `NF_INET_POST_ROUTING` of linux/netfilter.h;
/// of family netdev `NF_NETDEV_INGRESS`, `NF_NETDEV_EGRESS`.
const COMES_IN: [u32; 3] = [0, 1, 5];
const GOES_OUT: [u32; 2] = [3, 4];
const NETDEV_INGRESS: u32 = 0;
const NETDEV_EGRESS: u32 = 1;

/// What a register may hold: one of these.
type Value = Vec<Vec<u8>>;

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

/// Reads the body of a message that tells of a chain; `None`: it is not a base chain.
pub(super) fn hook(body: &[u8]) -> Option<(ChainName, u32)> {
    let (general, rest) = body.split_at_checked(GENERAL)?;
    let part = |wanted: u16| attributes(rest).find(|&(kind, _)| kind == wanted).map(|(_, value)| value);
    let number = attributes(part(super::HOOK)?).find(|&(kind, _)| kind == super::HOOKNUM)?.1;
    let number = number.try_into().ok().map(u32::from_be_bytes)?;
    Some(((*general.first()?, part(TABLE)?.to_vec(), part(CHAIN_NAME)?.to_vec()), number))
}

impl Rule {
    /// Reads the body of a message that tells of a rule.
    pub(super) fn read(body: &[u8], hooks: &Hooks) -> Option<Self> {
        let (general, rest) = body.split_at_checked(GENERAL)?;
        let part = |wanted: u16| attributes(rest).find(|&(kind, _)| kind == wanted).map(|(_, value)| value.to_vec());
        let family = *general.first()?;
        let hook = part(TABLE).zip(part(CHAIN)).and_then(|(table, chain)| hooks.get(&(family, table, chain)).copied());
        Some(Self { family, hook, expressions: part(EXPRESSIONS).unwrap_or_default() })
    }

    /// Whether it could stop or change packets of a connection.
    pub(super) fn could_touch(&self, flow: &Flow) -> bool {
        let is_other = match self.family {
            IPV4 => !flow.to.is_ipv4(),
            IPV6 => flow.to.is_ipv4(),
            _ => !super::FAMILIES.contains(&self.family),
        };
        let meets = |is_from_client: &bool| self.is_met(flow.way, *is_from_client);
        !is_other
            && [true, false]
                .into_iter()
                .filter(meets)
                .any(|is_from_client| self.touches(&Packet { flow, is_from_client }))
    }

    /// Whether packets of one of the two ends pass its chain.
    fn is_met(&self, way: Way, is_from_client: bool) -> bool {
        let Some(hook) = self.hook else { return true };
        let is_netdev = self.family == super::NETDEV;
        if !is_netdev && hook == super::FORWARD {
            return false;
        }
        let (comes_in, goes_out) = match is_netdev {
            true => (hook == NETDEV_INGRESS, hook == NETDEV_EGRESS),
            false => (COMES_IN.contains(&hook), GOES_OUT.contains(&hook)),
        };
        match way {
            Way::In if comes_in || goes_out => comes_in == is_from_client,
            _ => true,
        }
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
            return registers.narrow(word(1), with.len(), |value| compare(operation, value, with));
        }
        b"range" => {
            let (Some(from), Some(to)) = (value(3), value(4)) else { return Step::Touches };
            if from.len() != to.len() {
                return Step::Touches;
            }
            // NFT_RANGE_EQ
            let is_wanted = word(2) == Some(0);
            return registers.narrow(word(1), from.len(), |value| (from..=to).contains(&value) == is_wanted);
        }
        b"bitwise" => {
            let result = match (registers.get(word(1), word(3).unwrap_or(0) as usize), value(4), value(5)) {
                (Some(values), Some(mask), Some(xor)) if word(6).unwrap_or(0) == 0 => {
                    let of = |value: &Vec<u8>| {
                        value.iter().zip(mask).zip(xor).map(|((byte, mask), xor)| byte & mask ^ xor).collect()
                    };
                    Some(values.iter().map(of).collect())
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
                registers.put(word(1), value(2).map(|value| vec![value.to_vec()]));
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
        let len = |value: &Value| value.iter().map(Vec::len).max().unwrap_or(64);
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
    fn get(&mut self, register: Option<u32>, len: usize) -> Option<&mut Value> {
        let place = Self::place(register)?;
        let (_, value) = self.0.iter_mut().find(|(of, _)| *of == place)?;
        value.iter().all(|value| value.len() >= len).then_some(value)
    }

    /// A rule goes on for values that begin so.
    fn narrow(&mut self, register: Option<u32>, len: usize, fits: impl Fn(&[u8]) -> bool) -> Step {
        let Some(values) = self.get(register, len) else { return Step::On };
        values.retain(|value| fits(&value[..len]));
        if values.is_empty() { Step::Not } else { Step::On }
    }
}

impl Packet<'_> {
    /// `NFT_META_*`.
    fn meta(&self, key: Option<u32>) -> Option<Value> {
        let one = |bytes: &[u8]| Some(vec![bytes.to_vec()]);
        // A packet that is sent has no device yet by which it came, and one that has come none by which it goes.
        let lo = |lo: Vec<u8>| vec![vec![0; lo.len()], lo];
        let mut name = b"lo".to_vec();
        name.resize(16, 0);
        match key? {
            4 | 5 if self.flow.way == Way::Loopback => Some(lo(1_u32.to_ne_bytes().to_vec())),
            6 | 7 if self.flow.way == Way::Loopback => Some(lo(name)),
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
                    (true, 0, 2) | (false, 2, 2) => {
                        let ports = self.flow.ports.as_ref()?;
                        return Some(ports.iter().map(|port| port.to_be_bytes().to_vec()).collect());
                    }
                    (true, ..) => [[None; 2], server].concat(),
                    (false, ..) => [server, [None; 2]].concat(),
                }
            }
            _ => return None,
        };
        let bytes: Option<Vec<u8>> = known.get(offset..offset.checked_add(len)?)?.iter().copied().collect();
        Some(vec![bytes?])
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
}
