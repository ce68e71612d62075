//! The match service, as the daemon hosts it: a thread with a socket of its own beside the control socket.

use anyhow::Context;
use fs_daemon::{Call, Carrier, Config, Policies, Rules, Who};
use fs_pairs::listing::Process;
use fs_pairs::{Handle, Service, beside};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;

/// Rules and policies of the configuration. They forbid nothing here, since the kernel has made the connection: what they name is the kernel's.
#[derive(Debug)]
struct Choice {
    rules: Rules,
    policies: Policies,
}

impl Choice {
    fn of(config: &Config) -> Self {
        Self { rules: config.rules.clone(), policies: config.policies.clone() }
    }

    /// Whether a process may have a ring. Which end has connected is not known, so it is judged as both.
    fn permits(&self, process: &Process, local: SocketAddr, peer: SocketAddr) -> bool {
        let cgroup = self.rules.0.iter().any(|rule| rule.cgroup.is_some()).then(|| cgroup(process.pid)).flatten();
        let who = Who { uid: process.uid, cgroup: cgroup.as_deref() };
        let name = process.name();
        [(Call::Connect, peer), (Call::Bind, local)].into_iter().all(|(call, at)| {
            self.rules.allow(&who, call, at.port()) && self.policies.carrier(&name, call, at) == Carrier::Fastsock
        })
    }
}

/// A process's cgroup in the unified hierarchy, as /proc shows it.
fn cgroup(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The service's thread. Dropping it ends the service: promoted connections go on.
#[derive(Debug)]
pub(crate) struct Pairs {
    handle: Handle,
    choice: Arc<RwLock<Choice>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Pairs {
    pub(crate) fn start(control: &Path, config: &Config) -> anyhow::Result<Self> {
        let path = beside(control);
        let choice = Arc::new(RwLock::new(Choice::of(config)));
        let judge = Arc::clone(&choice);
        let permit = move |process: &Process, local, peer| {
            judge.read().unwrap_or_else(PoisonError::into_inner).permits(process, local, peer)
        };
        let service = Service::bind(&path).map(|service| service.permitted_by(Box::new(permit)));
        let service = service.with_context(|| format!("cannot make the match service's socket {}", path.display()))?;
        let handle = service.handle();
        let thread = std::thread::Builder::new().name("fastsock-pairs".into()).spawn(move || service.run());
        Ok(Self { handle, choice, thread: Some(thread.context("cannot start the match service's thread")?) })
    }

    /// The rules of `config` hold for what is offered from here on.
    pub(crate) fn reload(&self, config: &Config) {
        *self.choice.write().unwrap_or_else(PoisonError::into_inner) = Choice::of(config);
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        self.handle.stop();
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => complain(&error),
            Some(Err(_panic)) => complain(&io::Error::other("it panicked: this is a bug in fastsock")),
        }
    }
}

fn complain(error: &io::Error) {
    eprintln!("fastsock: the match service ended early: {error}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_daemon::{Action, Policy, PortRange, Rule};

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
