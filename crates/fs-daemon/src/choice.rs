//! Decides whether a process may have a ring for a connection.

use std::net::SocketAddr;

use fs_pairs::listing::Process;

use crate::policy::{Call, Policies, Subject};

/// Returns whether the configuration's policies permit a ring to a process.
pub(crate) fn permits(policies: &Policies, process: &Process, local: SocketAddr, peer: SocketAddr) -> bool {
    let cgroup = policies.name_cgroups().then(|| cgroup(process.pid)).flatten();
    let name = process.name();
    let subject = Subject { program: Some(&name), uid: process.uid, cgroup: cgroup.as_deref() };
    policies.permit_pair(&subject, local, peer)
}

/// Returns true if the policies allow a program to receive the packets for an address of a shared
/// device. Policies that name a program do not apply: it can change its name.
pub(crate) fn permits_lease(policies: &Policies, process: &Process, at: SocketAddr) -> bool {
    let cgroup = policies.name_cgroups().then(|| cgroup(process.pid)).flatten();
    let subject = Subject { program: None, uid: process.uid, cgroup: cgroup.as_deref() };
    policies.permit(&subject, Call::Bind, at)
}

/// Returns a process's cgroup in the unified hierarchy, as /proc shows it.
fn cgroup(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Policy, PortRange};

    #[test]
    fn policies_leave_connections_to_the_kernel() {
        let ports = vec![PortRange { first: 80, last: 89 }];
        let kernel = |call, user, cgroup: Option<&str>| {
            let cgroup = cgroup.map(str::to_owned);
            Policy { call, user, cgroup, ports: ports.clone(), ..Policy::default() }
        };
        let program = |program: &str| Policy { program: Some(program.to_owned()), ..Policy::default() };
        let (server, client) = (SocketAddr::from(([127, 0, 0, 1], 80)), SocketAddr::from(([127, 0, 0, 1], 40_000)));
        let nobody = Process::new(0, 7, b"psql");
        let permits = |policies: Vec<Policy>| {
            let policies = Policies(policies);
            [permits(&policies, &nobody, client, server), permits(&policies, &nobody, server, client)]
        };
        assert_eq!(permits(vec![]), [true, true]);
        assert_eq!(permits(vec![kernel(None, None, None)]), [false, false]);
        assert_eq!(permits(vec![kernel(Some(Call::Connect), None, None)]), [false, true]);
        assert_eq!(permits(vec![kernel(Some(Call::Bind), Some(7), None)]), [true, false]);
        assert_eq!(permits(vec![kernel(None, Some(8), None)]), [true, true]);
        // A process with number 0 is not in /proc, so a policy without a ring for a cgroup matches
        // it.
        assert_eq!(permits(vec![kernel(None, None, Some("/a.service"))]), [false, false]);
        assert_eq!(permits(vec![program("redis-cli")]), [true, true]);
        assert_eq!(permits(vec![program("psql")]), [false, false]);
        // The first matching policy decides, whatever its conditions are.
        assert_eq!(permits(vec![Policy { ring: true, ..program("psql") }, kernel(None, None, None)]), [true, true]);
    }

    /// prctl(PR_SET_NAME) gives a process any name.
    #[test]
    fn name_of_a_program_decides_nothing_about_leases() {
        let named = |ring| Policy { ring, program: Some("web".to_owned()), ..Policy::default() };
        let others = Policy { user: Some(7), ..Policy::default() };
        let at = SocketAddr::from(([0, 0, 0, 0], 8080));
        let policies = Policies(vec![named(true), others]);
        assert!(!permits_lease(&policies, &Process::new(0, 7, b"web"), at), "the name that a policy allows");
        assert!(permits_lease(&policies, &Process::new(0, 8, b"web"), at));
        let policies = Policies(vec![named(false)]);
        assert!(permits_lease(&policies, &Process::new(0, 7, b"web"), at));
    }
}
