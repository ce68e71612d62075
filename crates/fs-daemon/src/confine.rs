//! Capabilities of the daemon's process.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The capabilities that the daemon needs without a relay: none. Descriptors come from the
/// processes that hold them, and the files that it reads in /proc are readable for every user. The
/// unit file has the same.
const NEEDED: CapabilitySet = CapabilitySet::empty();

/// Capabilities that a relay needs: AF_XDP with its program and device, and the BPF programs for
/// clients' names. The unit file has none of these; docs/OPERATING.md has a drop-in.
const FOR_WIRE: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::IPC_LOCK);

/// Capabilities that shared devices need: device pairs, each in a network namespace of its own
/// (SYS_ADMIN), the BPF programs, AF_XDP sockets over programs' memory, and low ports for root in
/// another namespace. The unit file has none of these either.
const FOR_DEVICES: CapabilitySet = FOR_WIRE.union(CapabilitySet::SYS_ADMIN).union(CapabilitySet::NET_BIND_SERVICE);

/// Drops the capabilities that the daemon does not need, permanently and also for programs that it
/// executes. `wire`: the daemon serves ports over a device. `devices`: it shares devices. Must be
/// called before other threads start, and after [`crate::Daemon::bind`], because a control socket
/// may be in another user's directory.
///
/// # Errors
/// The errors of prctl(2) and capset(2).
pub fn confine(wire: bool, devices: bool) -> Result<(), Errno> {
    let needed = match (wire, devices) {
        (_, true) => NEEDED.union(FOR_DEVICES),
        (true, false) => NEEDED.union(FOR_WIRE),
        (false, false) => NEEDED,
    };
    rustix::thread::set_no_new_privs(true)?;
    for capability in CapabilitySet::all().difference(needed).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // EPERM: the process is not root, and programs that it executes get no capabilities
            // either. EINVAL: the kernel does not know the capability.
            Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    let now = rustix::thread::capabilities(None)?;
    let effective = now.effective.intersection(needed);
    let permitted = now.permitted.intersection(needed);
    rustix::thread::set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A capability that the unit file lacks would be missing without a message.
    #[test]
    fn unit_file_has_the_same_capabilities() {
        // All are allowed without the line.
        assert_eq!(bounding_sets(include_str!("../../../packaging/systemd/fastsock.service")), [names(NEEDED)]);
    }

    #[test]
    fn drop_ins_of_the_guide_have_the_same_capabilities() {
        let guide = include_str!("../../../docs/OPERATING.md");
        assert_eq!(bounding_sets(guide), [names(FOR_WIRE), names(FOR_DEVICES)]);
    }

    /// A core of `[wire]` is a thread. By default there is one for each queue of the device.
    #[test]
    fn unit_file_bounds_no_threads() {
        let unit = include_str!("../../../packaging/systemd/fastsock.service");
        let guide = include_str!("../../../docs/OPERATING.md");
        assert!(!unit.contains("\nTasksMax=") || guide.matches("\nTasksMax=infinity").count() == 2);
    }

    /// A thread that waits for the lock of a process's socket cannot be killed, and systemd waits for it
    /// twice: after SIGTERM and after SIGKILL.
    #[test]
    fn unit_file_bounds_the_time_of_a_stop() {
        let unit = include_str!("../../../packaging/systemd/fastsock.service");
        let seconds = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec="));
        // A stop takes up to 10 s if the daemon has connections of a relay (`DRAIN` of fs-cli's up.rs).
        assert!(
            seconds.and_then(|seconds| seconds.parse().ok()).is_some_and(|seconds: u32| (11..=20).contains(&seconds))
        );
    }

    /// `systemctl reload` would fail under a profile that lacks a program of ExecReload=.
    #[test]
    fn profile_of_apparmor_has_the_programs_of_the_unit() {
        let unit = include_str!("../../../packaging/systemd/fastsock.service");
        let profile = include_str!("../../../packaging/apparmor/usr.bin.fastsock");
        let commands = unit.lines().filter(|line| line.starts_with("Exec")).filter_map(|line| line.split_once('='));
        let programs: BTreeSet<&str> = commands.filter_map(|(_, command)| command.split(' ').next()).collect();
        assert_eq!(programs, BTreeSet::from(["/bin/kill", "/usr/bin/fastsock"]));
        for program in programs {
            // /bin is a link to /usr/bin on most systems.
            let either = format!("/{{usr/,}}{}", program.trim_start_matches("/usr").trim_start_matches('/'));
            let is_named = |path: &str| profile.contains(&format!("\n  {path} mr,\n"));
            assert!(is_named(program) || is_named(&either), "{program}");
        }
    }

    fn names(set: CapabilitySet) -> BTreeSet<&'static str> {
        set.iter_names().map(|(name, _)| name).collect()
    }

    /// Returns the names in each line `CapabilityBoundingSet=`.
    fn bounding_sets(text: &str) -> Vec<BTreeSet<&str>> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
        lines.map(|names| names.split_whitespace().map(|name| name.trim_start_matches("CAP_")).collect()).collect()
    }
}
