//! The calling thread's capabilities, for error messages.

/// Capabilities for AF_XDP with an XDP program. `CAP_SYS_ADMIN` includes the last two.
pub(crate) const FOR_XDP: &[(&str, u32)] =
    &[("CAP_NET_ADMIN", 12), ("CAP_NET_RAW", 13), ("CAP_BPF", 39), ("CAP_PERFMON", 38)];
/// Capabilities for AF_PACKET.
pub(crate) const FOR_PACKET: &[(&str, u32)] = &[("CAP_NET_RAW", 13)];
/// Capabilities for TUN/TAP devices and ethtool settings.
pub(crate) const FOR_NET_ADMIN: &[(&str, u32)] = &[("CAP_NET_ADMIN", 12)];

const SYS_ADMIN: u32 = 21;

/// Returns the names of the `needed` capabilities that the thread lacks.
pub(crate) fn missing(needed: &[(&'static str, u32)]) -> Vec<&'static str> {
    let has = effective();
    missing_of(needed, has)
}

fn missing_of(needed: &[(&'static str, u32)], has: u64) -> Vec<&'static str> {
    needed
        .iter()
        .filter(|(_, bit)| {
            let by_admin = matches!(bit, 38 | 39) && has & (1 << SYS_ADMIN) != 0;
            has & (1 << bit) == 0 && !by_admin
        })
        .map(|(name, _)| *name)
        .collect()
}

/// Returns the thread's effective set, or 0 without `/proc`.
fn effective() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    parse(&status)
}

fn parse(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(0)
}

/// Returns true if the process is in its own user namespace, in which capabilities do not apply to
/// BPF.
fn in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mut words = map.split_whitespace();
    (words.next(), words.next(), words.next()) != (Some("0"), Some("0"), Some("4294967295"))
}

/// Formats the end of an error message.
pub(crate) fn describe(missing: &[&'static str]) -> String {
    if !missing.is_empty() {
        return format!(
            "missing {}; run as root, or grant it (`setcap`, AmbientCapabilities= in a systemd unit)",
            missing.join(", ")
        );
    }
    if in_user_namespace() {
        return "the capabilities are those of a user namespace, and the initial one is needed; run as root, or use \
                the AF_PACKET link"
            .to_owned();
    }
    "all capabilities are present, so a security module or a sysctl (kernel.unprivileged_bpf_disabled) forbids it; \
     check the kernel's log"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        assert_eq!(missing_of(FOR_XDP, 0), ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_PERFMON"]);
        assert_eq!(missing_of(FOR_XDP, 1 << 12 | 1 << 13), ["CAP_BPF", "CAP_PERFMON"]);
        assert_eq!(missing_of(FOR_XDP, 1 << 12 | 1 << 21), ["CAP_NET_RAW"]);
        assert!(missing_of(FOR_XDP, u64::MAX).is_empty());
        assert!(describe(&["CAP_BPF"]).contains("CAP_BPF"));
    }

    #[test]
    fn set_is_read_from_status() {
        assert_eq!(parse("Name:\tx\nCapInh:\t00\nCapEff:\t0000000000003000\n"), 0x3000);
        assert_eq!(parse("nothing"), 0);
    }
}
