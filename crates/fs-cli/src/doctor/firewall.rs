//! Rules of the kernel's firewall, which XDP comes before: accelerated connections do not meet them.

use super::Finding;
use std::process::Command;

pub(super) fn look() -> Vec<Finding> {
    let asked = [
        ask("nft", &["list", "ruleset"], nft),
        ask("iptables-save", &[], iptables),
        ask("ip6tables-save", &[], iptables),
    ];
    let told: Vec<_> = asked.iter().flatten().collect();
    let rules: usize = told.iter().map(|(_, rules)| rules).sum();
    if told.is_empty() {
        return vec![Finding::note(
            "firewall",
            "neither nft nor iptables-save can be asked (not installed, or no privilege)",
            "see that no rule is meant for accelerated ports: they do not meet the kernel's firewall",
        )];
    }
    if rules == 0 {
        return vec![Finding::good("firewall", "no rule that accelerated connections would go around")];
    }
    let by: Vec<_> = told.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name}: {n}")).collect();
    vec![Finding::note(
        "firewall",
        format!("accelerated connections do not meet these input rules ({})", by.join(", ")),
        "repeat what they forbid in the daemon's rules (`fastsock up --config`), or keep those ports on the kernel",
    )]
}

/// Rules that a tool tells of; `None` when it is not there or may not look.
fn ask(tool: &'static str, args: &[&str], count: fn(&str) -> usize) -> Option<(&'static str, usize)> {
    let output = Command::new(tool).args(args).env_remove("LD_PRELOAD").output().ok()?;
    output.status.success().then(|| (tool, count(&String::from_utf8_lossy(&output.stdout))))
}

/// Lines with a verdict in chains that hook into the way in.
fn nft(ruleset: &str) -> usize {
    let mut inside = false;
    let mut rules = 0;
    for line in ruleset.lines().map(str::trim) {
        if line.starts_with("chain ") {
            inside = false;
        } else if line.starts_with("type ") {
            inside = line.contains("hook input") || line.contains("hook prerouting");
            rules += usize::from(inside && line.contains("policy drop"));
        } else if inside
            && ["drop", "reject", "dnat", "redirect"]
                .iter()
                .any(|verdict| line.split([' ', ';']).any(|w| w == *verdict))
        {
            rules += 1;
        }
    }
    rules
}

/// What drops, refuses or redirects on the way in.
fn iptables(saved: &str) -> usize {
    let policy = |line: &&str| line.starts_with(":INPUT DROP") || line.starts_with(":PREROUTING DROP");
    let rule = |line: &&str| {
        (line.starts_with("-A INPUT") || line.starts_with("-A PREROUTING"))
            && ["-j DROP", "-j REJECT", "-j DNAT", "-j REDIRECT"].iter().any(|verdict| line.contains(verdict))
    };
    saved.lines().filter(|line| policy(line) || rule(line)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_are_gone_around_are_counted() {
        let ruleset = "table inet filter {\n\tchain input {\n\t\ttype filter hook input priority 0; policy drop;\n\
                       \t\ttcp dport 22 accept\n\t\ttcp dport 8080 drop\n\t}\n\tchain output {\n\
                       \t\ttype filter hook output priority 0; policy accept;\n\t\ttcp dport 25 drop\n\t}\n}\n";
        assert_eq!(nft(ruleset), 2);
        assert_eq!(nft(""), 0);
        let saved = "*filter\n:INPUT DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n-A INPUT -p tcp --dport 22 -j ACCEPT\n\
                     -A INPUT -p tcp --dport 23 -j REJECT\n-A OUTPUT -j DROP\nCOMMIT\n";
        assert_eq!(iptables(saved), 2);
    }
}
