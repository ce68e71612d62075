//! Whether a process may have a ring for a connection.

use std::net::SocketAddr;

use fs_pairs::listing::Process;

use crate::access::{Call, Rules, Subject};
use crate::config::Config;
use crate::policy::{Carrier, Policies};

/// Rules and policies of the configuration. They forbid nothing, since the kernel has made the connection: what they name stays the
/// kernel's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    rules: Rules,
    policies: Policies,
}

impl Choice {
    pub(crate) fn of(config: &Config) -> Self {
        Self { rules: config.rules.clone(), policies: config.policies.clone() }
    }

    /// Returns whether a process may have a ring. Which end has connected is not known, so it is judged as both.
    pub(crate) fn permits(&self, process: &Process, local: SocketAddr, peer: SocketAddr) -> bool {
        let cgroup = self.rules.0.iter().any(|rule| rule.cgroup.is_some()).then(|| cgroup(process.pid)).flatten();
        let subject = Subject { uid: process.uid, cgroup: cgroup.as_deref() };
        let name = process.name();
        [(Call::Connect, peer), (Call::Bind, local)].into_iter().all(|(call, at)| {
            self.rules.allow(&subject, call, at.port()) && self.policies.carrier(&name, call, at) == Carrier::Fastsock
        })
    }
}

/// Returns a process's cgroup in the unified hierarchy, as /proc shows it.
fn cgroup(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Action, PortRange, Rule};
    use crate::policy::Policy;

    #[test]
    fn rules_and_policies_leave_connections_to_the_kernel() {
        let ports = vec![PortRange { first: 80, last: 89 }];
        let rule = |action, call, user, cgroup: Option<&str>| {
            let cgroup = cgroup.map(str::to_owned);
            Rule { action, call, user, cgroup, ports: ports.clone() }
        };
        let policy = |program: &str| {
            let program = Some(program.to_owned());
            Policy { carrier: Carrier::Kernel, program, call: None, to: Vec::new(), ports: Vec::new() }
        };
        let (server, client) = (SocketAddr::from(([127, 0, 0, 1], 80)), SocketAddr::from(([127, 0, 0, 1], 40_000)));
        let nobody = Process::new(0, 7, b"psql");
        let permits = |rules: Vec<Rule>, policies: Vec<Policy>| {
            let choice = Choice { rules: Rules(rules), policies: Policies(policies) };
            [choice.permits(&nobody, client, server), choice.permits(&nobody, server, client)]
        };
        assert_eq!(permits(vec![], vec![]), [true, true]);
        assert_eq!(permits(vec![rule(Action::Deny, None, None, None)], vec![]), [false, false]);
        assert_eq!(permits(vec![rule(Action::Deny, Some(Call::Connect), None, None)], vec![]), [false, true]);
        assert_eq!(permits(vec![rule(Action::Deny, Some(Call::Bind), Some(7), None)], vec![]), [true, false]);
        assert_eq!(permits(vec![rule(Action::Deny, None, Some(8), None)], vec![]), [true, true]);
        // The process with the number 0 is not in /proc, so a rule that names a cgroup denies.
        assert_eq!(permits(vec![rule(Action::Deny, None, None, Some("/a.service"))], vec![]), [false, false]);
        assert_eq!(permits(vec![], vec![policy("redis-cli")]), [true, true]);
        assert_eq!(permits(vec![], vec![policy("psql")]), [false, false]);
    }
}
