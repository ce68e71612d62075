//! Draws the firewall of a host: rules of its own kind, or sets as docker, ufw and firewalld make them.
//!
//! Only rules whose verdict is the same for each packet of a connection's direction are drawn. A rule that counts
//! bytes, packets or connections sees fewer of them where a ring carries (docs/LIMITS.md).

use super::{PORTS, USERS};
use crate::lab::{BACKEND, FRONT};
use crate::random::Random;
use std::fmt::Write as _;

/// Loads rules of nftables.
pub(super) const NFT: &[&str] = &["nft", "-f", "-"];

/// A host's firewall.
pub(super) struct Rules {
    /// Its kind.
    pub(super) kind: &'static str,
    /// The program that loads it from standard input.
    pub(super) loader: &'static [&'static str],
    /// What it reads.
    pub(super) script: String,
}

/// Draws rules.
pub(super) fn draw(random: &mut Random) -> Rules {
    const IPTABLES: &[&str] = &["iptables-restore"];
    let (kind, loader, script) = match random.below(6) {
        0 => ("docker", IPTABLES, docker(random)),
        1 => ("ufw", IPTABLES, ufw(random)),
        2 => ("firewalld", NFT, firewalld(random)),
        3 => ("owner", IPTABLES, owner(random)),
        _ => ("free", NFT, free(random)),
    };
    Rules { kind, loader, script }
}

fn port(random: &mut Random) -> u16 {
    random.pick(&PORTS)
}

fn end(random: &mut Random) -> &'static str {
    random.pick(&["drop", "drop", "reject", "reject with tcp reset", "accept"])
}

fn jump(random: &mut Random) -> &'static str {
    random.pick(&["DROP", "DROP", "REJECT", "REJECT --reject-with icmp-host-prohibited", "ACCEPT", "ACCEPT", "RETURN"])
}

/// What a rule looks at, for nftables.
fn condition(random: &mut Random, hook: &str) -> String {
    let port = port(random);
    match random.below(if hook == "output" { 12 } else { 10 }) {
        0 | 1 => format!("tcp dport {port}"),
        2 => format!("tcp sport {port}"),
        3 => format!("tcp dport {{ 22, {port}, 9999 }}"),
        4 => format!("ip saddr {} tcp dport {port}", random.pick(&["127.0.0.1", FRONT, "10.77.0.0/16"])),
        5 => format!("ip6 daddr ::1 tcp dport != {port}"),
        6 => format!("{} \"lo\" tcp dport {port}", if hook == "output" { "oifname" } else { "iifname" }),
        7 => format!("ct state new tcp dport {port}"),
        8 => format!("ct state established tcp sport {port}"),
        9 => format!("meta l4proto tcp th dport {}-{}", PORTS[0], port),
        10 => format!("meta skuid {} tcp dport {port}", random.pick(&USERS)),
        _ => format!("meta skuid != {} tcp sport {port}", random.pick(&USERS)),
    }
}

fn free(random: &mut Random) -> String {
    let mut script = String::new();
    for table in 0..1 + random.below(3) {
        let _ =
            writeln!(script, "table inet t{table} {{\n chain side {{ tcp dport {} {}\n }}", port(random), end(random));
        for number in 0..1 + random.below(2) {
            let hook = random.pick(&["input", "output", "prerouting", "forward"]);
            let policy = if random.below(8) == 0 { "drop" } else { "accept" };
            let priority = random.pick(&[-300, -150, 0, 10]);
            let _ =
                writeln!(script, " chain c{number} {{ type filter hook {hook} priority {priority}; policy {policy};");
            if random.below(2) == 0 {
                script += "  ct state established,related accept\n";
            }
            for _ in 0..1 + random.below(4) {
                let condition = condition(random, hook);
                // `reject` has no hook before routing with a priority below that of connection tracking.
                let end = match random.below(8) {
                    0 => "jump side",
                    1 => "counter",
                    2 => "meta mark set 7",
                    3 if priority == -300 => "notrack",
                    _ if hook == "prerouting" => random.pick(&["drop", "accept"]),
                    _ => end(random),
                };
                let end = if hook == "prerouting" && end == "jump side" { "counter" } else { end };
                let _ = writeln!(script, "  {condition} {end}");
            }
            script += " }\n";
        }
        script += "}\n";
    }
    if random.below(2) == 0 {
        script += &translation(random);
    }
    script
}

/// Addresses and ports that are translated.
fn translation(random: &mut Random) -> String {
    let hook = random.pick(&["output", "prerouting"]);
    let (from, to) = (port(random), port(random));
    let rule = match random.below(3) {
        0 => format!("tcp dport {from} redirect to :{to}"),
        1 => format!("ip daddr {FRONT} tcp dport {from} dnat to {BACKEND}:{to}"),
        _ => format!("ip daddr 127.0.0.1 tcp dport {from} dnat to 127.0.0.1:{to}"),
    };
    let rule = if hook == "prerouting" { rule.replace("127.0.0.1", FRONT) } else { rule };
    format!(
        "table ip nat {{\n chain a {{ type nat hook {hook} priority -100; {rule}; }}\n \
         chain b {{ type nat hook postrouting priority 100; oifname \"back0\" masquerade; }}\n}}\n"
    )
}

/// What docker makes for a container with a published port, and rules of the operator.
fn docker(random: &mut Random) -> String {
    let (published, inside) = (port(random), port(random));
    let user = match random.below(3) {
        0 => String::new(),
        1 => format!("-A DOCKER-USER -p tcp --dport {} -j {}\n", port(random), jump(random)),
        _ => format!("-A DOCKER-USER -i front0 -p tcp -m conntrack --ctorigdstport {published} -j {}\n", jump(random)),
    };
    format!(
        "*nat\n:PREROUTING ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\n:DOCKER -\n\
         -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n\
         -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER\n\
         -A POSTROUTING -s 10.77.2.0/24 ! -o back0 -j MASQUERADE\n\
         -A POSTROUTING -s {BACKEND}/32 -d {BACKEND}/32 -p tcp --dport {inside} -j MASQUERADE\n\
         -A DOCKER ! -i back0 -p tcp --dport {published} -j DNAT --to-destination {BACKEND}:{inside}\nCOMMIT\n\
         *filter\n:INPUT ACCEPT\n:FORWARD DROP\n:OUTPUT ACCEPT\n:DOCKER -\n:DOCKER-USER -\n:DOCKER-ISOLATION -\n\
         -A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-ISOLATION\n\
         -A FORWARD -o back0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -o back0 -j DOCKER\n\
         -A FORWARD -i back0 ! -o back0 -j ACCEPT\n\
         -A DOCKER -d {BACKEND}/32 ! -i back0 -o back0 -p tcp --dport {inside} -j ACCEPT\n\
         {user}-A DOCKER-USER -j RETURN\n-A DOCKER-ISOLATION -j RETURN\nCOMMIT\n"
    )
}

fn ufw(random: &mut Random) -> String {
    let mut user = String::new();
    for _ in 0..random.below(4) {
        let target = random.pick(&["ACCEPT", "DROP", "REJECT --reject-with tcp-reset"]);
        let _ = writeln!(user, "-A ufw-user-input -p tcp --dport {} -j {target}", port(random));
    }
    let out = random.pick(&["ACCEPT", "ACCEPT", "DROP"]);
    // Without its exemption of lo, local connections see the rest.
    let lo = random.pick(&["", "-A ufw-before-input -i lo -j ACCEPT\n-A ufw-before-output -o lo -j ACCEPT\n"]);
    let state = "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
    format!(
        "*filter\n:INPUT DROP\n:FORWARD DROP\n:OUTPUT {out}\n:ufw-before-input -\n:ufw-before-output -\n\
         :ufw-user-input -\n-A INPUT -j ufw-before-input\n-A INPUT -j ufw-user-input\n-A OUTPUT -j ufw-before-output\n\
         {lo}-A ufw-before-input {state}\n-A ufw-before-input -m conntrack --ctstate INVALID -j DROP\n\
         -A ufw-before-output {state}\n{user}COMMIT\n"
    )
}

fn firewalld(random: &mut Random) -> String {
    let (open, other) = (port(random), port(random));
    let rich = random.pick(&["", "accept", "drop", "reject"]);
    let rich = if rich.is_empty() { String::new() } else { format!("tcp dport {other} {rich}") };
    let lo = random.pick(&["iifname \"lo\" accept", ""]);
    format!(
        "table inet firewalld {{\n chain filter_INPUT {{ type filter hook input priority 10; policy accept;\n  \
         ct state {{ established, related }} accept\n  ct status dnat accept\n  {lo}\n  jump zones\n  \
         ct state invalid drop\n  reject with icmpx admin-prohibited\n }}\n chain zones {{ iifname \"back0\" goto trusted\n  \
         goto public\n }}\n chain trusted {{ accept\n }}\n chain public {{ {rich}\n  tcp dport {{ 22, {open} }} accept\n }}\n \
         chain filter_OUTPUT {{ type filter hook output priority 10; policy accept;\n  oifname \"lo\" accept\n  \
         ip6 daddr {{ ::/96, 2002::/24 }} reject\n }}\n}}\n"
    )
}

/// Rules that know users, as tools of containers and of privacy make them.
fn owner(random: &mut Random) -> String {
    let mut rules = String::new();
    for _ in 0..1 + random.below(3) {
        let not = random.pick(&["", "! "]);
        let user = random.pick(&USERS);
        let (port, target) = (port(random), jump(random));
        let _ = writeln!(rules, "-A OUTPUT -p tcp --dport {port} -m owner {not}--uid-owner {user} -j {target}");
    }
    format!("*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\n{rules}COMMIT\n")
}
