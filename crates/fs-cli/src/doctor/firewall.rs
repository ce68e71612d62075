//! Firewall rules of the kernel. They apply to connections with a ring, because the kernel makes
//! these connections. They do not see packets of programs that use a device through AF_XDP.

use super::finding::Finding;
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
            "cannot run nft or iptables-save (not installed, or no privilege)",
            "run doctor as root",
        )];
    }
    if rules == 0 {
        return vec![Finding::good("firewall", "there are no rules")];
    }
    let by: Vec<_> = told.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name}: {n}")).collect();
    vec![Finding::note(
        "firewall",
        format!("programs that use a device by AF_XDP bypass the rules of this namespace ({})", by.join(", ")),
        "nothing: connections with a ring obey them; put what must hold for AF_XDP into the program or before the host",
    )]
}

/// Counts the rules that a tool lists. Returns `None` if the tool is missing or not permitted.
fn ask(tool: &'static str, args: &[&str], count: fn(&str) -> usize) -> Option<(&'static str, usize)> {
    let output = Command::new(tool).args(args).env_remove("LD_PRELOAD").output().ok()?;
    output.status.success().then(|| (tool, count(&String::from_utf8_lossy(&output.stdout))))
}

/// Counts the rules of chains for the host's own packets, and policies that drop. Chains to which
/// they jump are ignored.
fn nft(ruleset: &str) -> usize {
    const HOOKS: [&str; 6] = ["input", "output", "prerouting", "postrouting", "ingress", "egress"];
    let mut inside = false;
    let mut family = "";
    let mut rules = 0;
    for line in ruleset.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix("table ") {
            family = table.split(' ').next().unwrap_or_default();
        } else if line.starts_with("chain ") || line.is_empty() || line == "}" {
            inside = false;
        } else if line.starts_with("type ") && line.contains(" hook ") {
            let hook = line.split_once(" hook ").and_then(|(_, rest)| rest.split(' ').next());
            inside = !matches!(family, "arp" | "bridge") && hook.is_some_and(|hook| HOOKS.contains(&hook));
            rules += usize::from(inside && line.contains("policy drop"));
        } else {
            rules += usize::from(inside);
        }
    }
    rules
}

/// Like [`nft`].
fn iptables(saved: &str) -> usize {
    const CHAINS: [&str; 4] = ["INPUT", "OUTPUT", "PREROUTING", "POSTROUTING"];
    let of = |line: &str, before: &str, after: &str| {
        CHAINS.iter().any(|chain| line.starts_with(&format!("{before}{chain}{after}")))
    };
    saved.lines().filter(|line| of(line, ":", " DROP") || of(line, "-A ", " ")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relevant_rules_are_counted() {
        let ruleset = "table inet filter {\n\tchain input {\n\t\ttype filter hook input priority 0; policy drop;\n\
                       \t\ttcp dport 22 accept\n\t\ttcp dport 8080 drop\n\t}\n\tchain output {\n\
                       \t\ttype filter hook output priority 0; policy accept;\n\t\ttcp dport 25 drop\n\t}\n}\n";
        assert_eq!(nft(ruleset), 4);
        let silent = "table inet filter {\n\tchain input {\n\t\ttype filter hook input priority 0; policy accept;\n\t}\n\n\
                      \tchain forward {\n\t\ttype filter hook forward priority 0; policy drop;\n\t\tdrop\n\t}\n\n\
                      \tchain unused {\n\t\tdrop\n\t}\n}\ntable arp a {\n\tchain input {\n\
                      \t\ttype filter hook input priority 0; policy drop;\n\t}\n}\n";
        assert_eq!((nft(""), nft(silent)), (0, 0));
        let saved = "*filter\n:INPUT DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n-A INPUT -p tcp --dport 22 -j ACCEPT\n\
                     -A INPUT -p tcp --dport 23 -j REJECT\n-A OUTPUT -j DROP\n-A FORWARD -j DROP\nCOMMIT\n";
        assert_eq!(iptables(saved), 4);
    }
}
