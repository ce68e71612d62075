//! The calling thread's capabilities, for error messages.

use rustix::thread::CapabilitySet;

const NET_ADMIN: (&str, CapabilitySet) = ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN);
const NET_RAW: (&str, CapabilitySet) = ("CAP_NET_RAW", CapabilitySet::NET_RAW);
/// Included in `CAP_SYS_ADMIN`.
const BPF: (&str, CapabilitySet) = ("CAP_BPF", CapabilitySet::BPF.union(CapabilitySet::SYS_ADMIN));
const PERFMON: (&str, CapabilitySet) = ("CAP_PERFMON", CapabilitySet::PERFMON.union(CapabilitySet::SYS_ADMIN));

/// Capabilities for AF_XDP with an XDP program. Each comes with those of which one suffices.
pub(crate) const FOR_XDP: &[(&str, CapabilitySet)] = &[NET_ADMIN, NET_RAW, BPF, PERFMON];
/// Capabilities for AF_PACKET.
pub(crate) const FOR_PACKET: &[(&str, CapabilitySet)] = &[NET_RAW];
/// Capabilities for TUN/TAP devices and ethtool settings.
pub(crate) const FOR_NET_ADMIN: &[(&str, CapabilitySet)] = &[NET_ADMIN];

/// Returns the names of the `needed` capabilities that the thread lacks.
pub(crate) fn missing(needed: &[(&'static str, CapabilitySet)]) -> Vec<&'static str> {
    missing_of(needed, rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective))
}

fn missing_of(needed: &[(&'static str, CapabilitySet)], has: CapabilitySet) -> Vec<&'static str> {
    needed.iter().filter(|(_, any)| !has.intersects(*any)).map(|(name, _)| *name).collect()
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
        use CapabilitySet as Set;
        assert_eq!(missing_of(FOR_XDP, Set::empty()), ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_PERFMON"]);
        assert_eq!(missing_of(FOR_XDP, Set::NET_ADMIN | Set::NET_RAW), ["CAP_BPF", "CAP_PERFMON"]);
        assert_eq!(missing_of(FOR_XDP, Set::NET_ADMIN | Set::SYS_ADMIN), ["CAP_NET_RAW"]);
        assert!(missing_of(FOR_XDP, Set::all()).is_empty());
        assert!(describe(&["CAP_BPF"]).contains("CAP_BPF"));
    }
}
