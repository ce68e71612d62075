//! The rights of the daemon's process.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The capabilities that the daemon needs: none. Descriptors come from the processes that hold them, and what it reads in /proc is
/// readable for everybody. The unit file has the same.
const NEEDED: CapabilitySet = CapabilitySet::empty();

/// Gives up the capabilities that a daemon does not need, in this process and what it executes, for good. To be called before there are
/// other threads, and after [`crate::Daemon::bind`], as a control socket may be in another user's directory.
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

    /// A right that the unit lacks would be missing without a message.
    #[test]
    fn unit_file_has_the_same_capabilities() {
        let unit = include_str!("../../../packaging/systemd/fastsock.service");
        let lines = unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
        let of_unit: BTreeSet<String> = lines
            .flat_map(|names| names.split(' '))
            .filter(|name| !name.is_empty())
            .map(|name| name.trim_start_matches("CAP_").to_owned())
            .collect();
        let of_daemon: BTreeSet<String> = NEEDED.iter_names().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(of_unit, of_daemon);
        assert!(unit.contains("\nCapabilityBoundingSet="), "all are allowed without the line");
    }
}
