//! What the daemon's process may do, made as little as it needs: whoever takes it over has no more.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// As the unit file has them, and for what lies in other users' directories (a control socket, a configuration) the right to
/// reach it.
///
/// - AF_XDP, its program and device: NET_ADMIN, NET_RAW, BPF, PERFMON; rules and programs of the kernel's are read with NET_ADMIN.
/// - Namespaces of programs: SYS_ADMIN to enter them, SYS_PTRACE to find them.
/// - Ports that connections keep: NET_BIND_SERVICE, CHOWN.
/// - Limits: SYS_RESOURCE, IPC_LOCK.
const NEEDED: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::DAC_OVERRIDE);

/// Gives up the capabilities that a daemon does not need, in this process and what it executes, for good. To be called before there are
/// other threads.
///
/// # Errors
/// Those of prctl(2) and capset(2).
pub fn confine() -> Result<(), Errno> {
    rustix::thread::set_no_new_privs(true)?;
    for capability in CapabilitySet::all().difference(NEEDED).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Not root: what it executes gets none either. A kernel that does not know it.
            Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    let now = rustix::thread::capabilities(None)?;
    let effective = now.effective.intersection(NEEDED);
    let permitted = now.permitted.intersection(NEEDED);
    rustix::thread::set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A right that the unit lacks is missing without a word, because the daemon does without.
    #[test]
    fn unit_file_has_the_same_capabilities() {
        let unit = include_str!("../../../packaging/systemd/fastsock.service");
        let lines = unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
        let of_unit: BTreeSet<String> =
            lines.flat_map(|names| names.split(' ')).map(|name| name.trim_start_matches("CAP_").to_owned()).collect();
        // Reaches a control socket or a file in another user's directory: the unit has neither.
        let of_daemon = NEEDED.difference(CapabilitySet::DAC_OVERRIDE);
        let of_daemon: BTreeSet<String> = of_daemon.iter_names().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(of_unit, of_daemon);
    }
}
