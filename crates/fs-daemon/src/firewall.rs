//! Whether rules of a namespace's firewall could have a say in a connection. They are not understood: where a base chain that a
//! host's own packets pass has a rule, or drops what it has no rule for, the connection is the kernel's, which asks it.
//!
//! nftables (iptables-nft, firewalld, ufw and docker on it) tells of changes; iptables-legacy does not, and is looked at with each
//! question.

mod rules;

pub(crate) use rules::{Flow, Way};

use netlink_sys::{Socket, SocketAddr};
use rules::{Hooks, Rule};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// `NETLINK_NETFILTER` of linux/netlink.h, `NFNLGRP_NFTABLES` of linux/netfilter/nfnetlink.h.
const NETLINK_NETFILTER: isize = 12;
const GROUP: u32 = 7;

/// `NLM_F_REQUEST | NLM_F_DUMP`, `NLMSG_ERROR`, `NLMSG_DONE` of linux/netlink.h.
const DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NFT_MSG_NEWCHAIN`, `NFT_MSG_GETCHAIN`, `NFT_MSG_NEWRULE`, `NFT_MSG_GETRULE` of linux/netfilter/nf_tables.h, below
/// `NFNL_SUBSYS_NFTABLES`.
const NEW_CHAIN: u16 = 10 << 8 | 3;
const GET_CHAIN: u16 = 10 << 8 | 4;
const NEW_RULE: u16 = 10 << 8 | 6;
const GET_RULE: u16 = 10 << 8 | 7;
/// `NFTA_CHAIN_HOOK`, `NFTA_CHAIN_POLICY`, `NFTA_CHAIN_USE`; `NFTA_HOOK_HOOKNUM` (the same file), and what else is in an attribute's type.
const HOOK: u16 = 4;
const POLICY: u16 = 5;
const USE: u16 = 6;
const HOOKNUM: u16 = 1;
const TYPE: u16 = 0x3fff;
/// `NFPROTO_*` of linux/netfilter.h: inet, ipv4, netdev, ipv6.
const FAMILIES: [u8; 4] = [1, 2, 5, 10];
const NETDEV: u8 = 5;
/// `NF_INET_FORWARD` of linux/netfilter.h: packets of a host's own sockets do not pass it.
const FORWARD: u32 = 2;
/// `NF_ACCEPT`.
const ACCEPT: u32 = 1;

/// Bytes of `struct nlmsghdr` and `struct nfgenmsg`.
const HEADER: usize = 16;
const GENERAL: usize = 4;

/// Datagrams of one answer that are read. A namespace with more chains than fit has its connections on the kernel for good: whoever
/// made it could keep the daemon reading.
const DATAGRAMS: usize = 256;

/// Rules times kinds of connections that are compared for one change, each with its ports. More: so long everybody waits for the control
/// thread.
const COMPARED: usize = 400_000;

/// The rules of one namespace.
pub(crate) struct Firewall {
    /// `None`: an answer was too long, and its rest is still to be read.
    questions: Option<Socket>,
    notices: Socket,
    /// Of iptables-legacy: the names of the tables there are.
    legacy: Vec<File>,
    /// What nftables has; `None`: it has to be asked.
    known: Option<Chains>,
}

/// The base chains that a host's own packets pass.
#[derive(Clone, Copy, Debug, Default)]
struct Chains {
    /// One has a rule, or drops.
    speak: bool,
    /// One drops what no rule accepts.
    drop: bool,
}

impl Firewall {
    /// Of the calling thread's namespace. `None`: it may not be asked (that needs CAP_NET_ADMIN).
    pub(crate) fn open() -> io::Result<Option<Self>> {
        let mut notices = match Socket::new(NETLINK_NETFILTER) {
            Ok(socket) => socket,
            // A kernel without it has no rules either.
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(None),
            Err(error) => return Err(error),
        };
        notices.bind_auto()?;
        match notices.add_membership(GROUP) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Ok(None),
            Err(error) => return Err(error),
        }
        notices.set_non_blocking(true)?;
        let names = ["ip_tables_names", "ip6_tables_names"];
        // Without the module there is no such file.
        let legacy = names.iter().filter_map(|name| File::open(format!("/proc/thread-self/net/{name}")).ok()).collect();
        let mut questions = Socket::new(NETLINK_NETFILTER)?;
        questions.bind_auto()?;
        questions.connect(&SocketAddr::new(0, 0))?;
        questions.set_non_blocking(true)?;
        let mut firewall = Self { questions: Some(questions), notices, legacy, known: None };
        match firewall.ask() {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(None),
            asked => asked.map(|()| Some(firewall)),
        }
    }

    /// Whether a rule could have a say, as of the last [`Firewall::follow`]. What cannot be read has.
    pub(crate) fn speaks(&mut self) -> bool {
        if self.known.is_none()
            && let Err(error) = self.ask()
        {
            tracing::warn!(%error, "cannot read the firewall's rules: the kernel carries connections");
            return true;
        }
        self.known.is_none_or(|chains| chains.speak) || self.legacy.iter_mut().any(has_tables)
    }

    /// Which of these open connections a rule could stop or change. What cannot be told counts as stopped. Only of the calling thread's
    /// namespace.
    pub(crate) fn could_touch(&mut self, flows: &[Flow]) -> Vec<bool> {
        let speaks = self.speaks();
        let is_plain = self.known.is_some_and(|chains| !chains.drop) && !self.legacy.iter_mut().any(has_tables);
        if flows.is_empty() || !speaks || !is_plain {
            return vec![speaks; flows.len()];
        }
        match rules() {
            Ok(Some(rules)) if rules.len().saturating_mul(flows.iter().map(Flow::weight).sum()) <= COMPARED => {
                flows.iter().map(|flow| rules.iter().any(|rule| rule.could_touch(flow))).collect()
            }
            Ok(_) => vec![true; flows.len()],
            Err(error) => {
                tracing::warn!(%error, "cannot read the firewall's rules: resets open connections (see \
                                        firewall_open_flows)");
                vec![true; flows.len()]
            }
        }
    }

    /// Takes the notices that came; answers whether there were any: what is known is no use then.
    pub(crate) fn follow(&mut self) -> bool {
        let mut came = false;
        loop {
            match self.notices.recv_from_full() {
                Ok(_) => came = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => came = true,
                Err(error) => {
                    tracing::warn!(%error, "cannot read the firewall's change notices");
                    came = true;
                    break;
                }
            }
        }
        if came {
            self.known = None;
        }
        came
    }

    fn ask(&mut self) -> io::Result<()> {
        let Some(questions) = &self.questions else { return Ok(()) };
        let mut found = Chains::default();
        let is_whole = dump(questions, GET_CHAIN, |kind, body| {
            if kind == NEW_CHAIN {
                let chains = what_it_does(body);
                found = Chains { speak: found.speak | chains.speak, drop: found.drop | chains.drop };
            }
        })?;
        match is_whole {
            true => self.known = Some(found),
            false => self.questions = None,
        }
        Ok(())
    }
}

/// All rules of nftables in the calling thread's namespace; `None`: there are too many.
fn rules() -> io::Result<Option<Vec<Rule>>> {
    let mut questions = Socket::new(NETLINK_NETFILTER)?;
    questions.bind_auto()?;
    questions.connect(&SocketAddr::new(0, 0))?;
    questions.set_non_blocking(true)?;
    let mut hooks = Hooks::new();
    let is_whole = dump(&questions, GET_CHAIN, |kind, body| {
        if kind == NEW_CHAIN {
            hooks.extend(rules::hook(body));
        }
    })?;
    if !is_whole {
        return Ok(None);
    }
    let mut found = Some(Vec::new());
    let is_whole = dump(&questions, GET_RULE, |kind, body| {
        if kind == NEW_RULE {
            found = found.take().zip(Rule::read(body, &hooks)).map(|(mut rules, rule)| {
                rules.push(rule);
                rules
            });
        }
    })?;
    Ok(found.filter(|_| is_whole))
}

/// Reads all that there is of a kind. `false`: there is too much, and its rest is left in the socket.
fn dump(questions: &Socket, wanted: u16, mut read: impl FnMut(u16, &[u8])) -> io::Result<bool> {
    let mut question = [0; HEADER + GENERAL];
    question[..4].copy_from_slice(&((HEADER + GENERAL) as u32).to_ne_bytes());
    question[4..6].copy_from_slice(&wanted.to_ne_bytes());
    question[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    questions.send(&question, 0)?;
    for _ in 0..DATAGRAMS {
        let (datagram, _) = questions.recv_from_full()?;
        let mut rest = &datagram[..];
        while let Some((kind, body, after)) = message(rest) {
            rest = after;
            match kind {
                DONE => return Ok(true),
                ERROR => match u32_at(body, 0).map(u32::cast_signed) {
                    Some(errno @ ..=-1) => return Err(io::Error::from_raw_os_error(-errno)),
                    _ => return Err(io::Error::from(io::ErrorKind::InvalidData)),
                },
                _ => read(kind, body),
            }
        }
    }
    Ok(false)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

/// The first message's type and body, and what comes behind it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32_at(bytes, 0)? as usize;
    let body = bytes.get(HEADER..length)?;
    Some((u16_at(bytes, 4)?, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Attributes: type without flags, and value.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & TYPE, value))
    })
}

/// Whether it is a chain that packets of this host's sockets pass, and has rules, or drops what no rule accepts.
fn what_it_does(body: &[u8]) -> Chains {
    let Some((general, rest)) = body.split_at_checked(GENERAL) else { return Chains { speak: true, drop: true } };
    let number = |value: &[u8]| value.try_into().ok().map(u32::from_be_bytes);
    let (mut hook, mut policy, mut uses) = (None, ACCEPT, 0);
    for (kind, value) in attributes(rest) {
        match kind {
            HOOK => {
                let of_hook = attributes(value).find(|&(kind, _)| kind == HOOKNUM);
                hook = of_hook.and_then(|(_, value)| number(value));
            }
            POLICY => policy = number(value).unwrap_or(0),
            USE => uses = number(value).unwrap_or(1),
            _ => {}
        }
    }
    let passed = hook.is_some_and(|hook| general[0] == NETDEV || hook != FORWARD);
    let is_passed = FAMILIES.contains(&general[0]) && passed;
    Chains { speak: is_passed && (policy != ACCEPT || uses != 0), drop: is_passed && policy != ACCEPT }
}

/// A table of iptables-legacy: loaded when its first rule is made, and kept. Its rules are not looked at.
fn has_tables(names: &mut File) -> bool {
    let mut byte = [0];
    names.rewind().and_then(|()| names.read(&mut byte)).map_or(true, |read| read != 0)
}

impl AsFd for Firewall {
    /// Readable when rules have changed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }
}

impl std::fmt::Debug for Firewall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Firewall({})", self.notices.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Runs `work` in a network namespace of its own, where `nft` changes the rules; `None`: not root.
    fn apart<T: Send + 'static>(work: impl FnOnce(&dyn Fn(&str)) -> T + Send + 'static) -> Option<T> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: not root (a network namespace is wanted)");
            return None;
        }
        let mut maker = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo made; read -r _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert!(maker.stdout.as_mut().unwrap().read(&mut [0; 8]).is_ok_and(|read| read != 0), "no namespace was made");
        let namespace = File::open(format!("/proc/{}/ns/net", maker.id())).unwrap();
        let done = crate::netns::inside(namespace, move || {
            Ok(work(&|commands| {
                let status = Command::new("sh").args(["-c", commands]).status().unwrap();
                assert!(status.success(), "{commands}");
            }))
        });
        drop(maker.stdin.take());
        maker.wait().unwrap();
        Some(done.unwrap())
    }

    #[test]
    fn rules_that_a_hosts_own_packets_pass_are_seen() {
        apart(|run| {
            let mut firewall = Firewall::open().unwrap().unwrap();
            assert!(!firewall.speaks() && !firewall.follow());
            let mut case = |commands: &str, speaks: bool| {
                run(commands);
                assert!(firewall.follow(), "nothing was told of {commands}");
                assert_eq!(firewall.speaks(), speaks, "{commands}");
                run("nft flush ruleset");
                assert!(firewall.follow() && !firewall.speaks(), "after {commands}");
            };
            case("nft add table ip t", false);
            case("nft 'add table ip t; add chain ip t c; add rule ip t c drop'", false);
            case("nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }'", false);
            case(
                "nft 'add table inet t; add chain inet t c { type filter hook input priority 0; policy drop; }'",
                true,
            );
            let hook = |family: &str, kind: &str, hook: &str| {
                format!(
                    "nft 'add table {family} t; add chain {family} t c {{ type {kind} hook {hook} priority 0; }}; \
                     add rule {family} t c counter'"
                )
            };
            for name in ["input", "output", "prerouting", "postrouting"] {
                case(&hook("ip", "filter", name), true);
                case(&hook("ip6", "filter", name), true);
                case(&hook("inet", "filter", name), true);
                case(&hook("ip", "nat", name), true);
            }
            case(&hook("netdev", "filter", "ingress device lo"), true);
            case(&hook("inet", "filter", "forward"), false);
            case(&hook("arp", "filter", "input"), false);
            // Where the module is there, a table of iptables-legacy.
            if !firewall.legacy.is_empty() {
                run("iptables-legacy -A OUTPUT -p tcp --dport 1 -j REJECT");
                assert!(firewall.speaks());
            }
        });
    }

    /// Rules that are none of a connection's business, and such as could be.
    #[test]
    fn only_rules_that_could_be_about_a_connection_touch_it() {
        apart(|run| {
            let mut firewall = Firewall::open().unwrap().unwrap();
            let local = |from: &str, to: &str| Flow {
                from: Some(from.parse().unwrap()),
                to: to.parse().unwrap(),
                ports: Some([40_000].into()),
                way: Way::Loopback,
            };
            let v4 = local("127.0.0.1", "127.0.0.1:7000");
            let v6 = local("::1", "[::1]:7000");
            let wire = Flow { from: None, ports: None, way: Way::In, ..v4.clone() };
            let any = Flow { ports: Some([513, 40_001].into()), way: Way::Any, ..v4.clone() };
            let flows = [v4, v6, wire, any];
            let mut case = |rule: &str, expected: [bool; 4]| {
                run(&format!(
                    "nft 'add table inet t; add chain inet t c {{ type filter hook input priority 0; }}; {rule}'"
                ));
                firewall.follow();
                assert_eq!(firewall.could_touch(&flows), expected, "{rule}");
                run("nft flush ruleset");
                firewall.follow();
            };
            let rule = |rule: &str| format!("add rule inet t c {rule}");
            let (none, all) = ([false; 4], [true; 4]);
            case("", none);
            for passes in
                ["counter", "accept", "counter log accept", "tcp dport 7000 accept", "ct state established accept"]
            {
                case(&rule(passes), none);
            }
            for stops in
                ["drop", "tcp dport 7000 drop", "meta length > 1 reject with tcp reset", "tcp dport { 1, 2 } drop"]
            {
                case(&rule(stops), all);
            }
            for other in ["udp dport 7000 drop", "tcp dport 1-2 tcp sport 1-2 drop"] {
                case(&rule(other), none);
            }
            // What is read is the kernel's rule: nft(8) makes one comparison of both ports, which any other pair passes.
            case(&rule("tcp dport != 7000 tcp sport != 7000 drop"), all);
            case(&rule("meta mark set 1"), all);
            case(&rule("tcp dport 7000 counter jump d").replace("add rule", "add chain inet t d; add rule"), none);
            case(&rule("tcp dport vmap { 7000 : drop }"), all);
            case(&rule("ct state invalid drop"), all);
            case("add chain inet t d { type filter hook output priority 0; policy drop; }", all);
            // Ports of clients are those that there are; those of the wire may be any. But what comes in there goes to the server.
            case(&rule("tcp dport 513 drop"), [false, false, false, true]);
            case(&rule("tcp sport 513 drop"), [false, false, true, true]);
            case(&rule("tcp sport 2000-3000 drop"), [false, false, true, false]);
            case(&rule("tcp sport 40000 drop"), [true, true, true, false]);
            let jump = "add chain inet t d; add rule inet t d tcp dport 1 drop; add rule inet t c jump d";
            case(jump, [false, false, true, false]);
            for (hook, wire) in [("output", true), ("postrouting", true), ("prerouting", false), ("forward", false)] {
                let chain = format!(
                    "add chain inet t d {{ type filter hook {hook} priority 0; }}; add rule inet t d tcp dport 1 drop"
                );
                case(&chain, [false, false, wire, false]);
            }
            case(&rule("ip saddr 127.0.0.1 tcp dport 7000 drop"), [true, false, true, true]);
            case(&rule("ip saddr 10.0.0.0/9 drop"), [false, false, true, false]);
            case(&rule("ip saddr 127.0.0.0/9 drop"), [true, false, true, true]);
            case(&rule("ip6 daddr ::1 drop"), [false, true, false, false]);
            case(&rule("iifname eth0 drop"), [false, false, true, true]);
            case(&rule("iifname lo drop"), all);
            case(&rule("iif != lo drop"), all);
            case(&rule("meta skuid 7 drop"), all);
        });
    }

    #[test]
    fn what_makes_no_sense_is_no_end() {
        assert!(message(&[0; 40]).is_none() && message(&[200; 40]).is_none());
        assert_eq!(attributes(&[0; 8]).count(), 0);
        let [nothing, general] = [what_it_does(&[]), what_it_does(&[1, 0, 0, 0])];
        assert!(nothing.speak && nothing.drop && !general.speak && !general.drop);
    }
}
