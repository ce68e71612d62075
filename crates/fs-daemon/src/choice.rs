//! Decides whether a process may have a ring for a connection.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

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
/// device. Policies that name a program do not apply: it can change its name. `control` is the
/// program's connection. The program can wait until another process has its number.
pub(crate) fn permits_lease(policies: &Policies, process: &Process, control: BorrowedFd<'_>, at: SocketAddr) -> bool {
    // In this order: its number is its own as long as it runs.
    let cgroup = policies.name_cgroups().then(|| cgroup(process.pid)).flatten();
    let cgroup = cgroup.filter(|_| fs_broker::peer_runs(control));
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
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

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
        let (control, _program) = UnixStream::pair().unwrap();
        let permits =
            |policies, uid| permits_lease(&Policies(policies), &Process::new(0, uid, b"web"), control.as_fd(), at);
        assert!(!permits(vec![named(true), others.clone()], 7), "the name that a policy allows");
        assert!(permits(vec![named(true), others], 8));
        assert!(permits(vec![named(false)], 7));
    }

    /// A connection outlives the process that has made it, whose number another process may get.
    #[test]
    fn cgroup_of_another_process_with_the_same_number_decides_nothing_about_leases() {
        const CONTROL: &str = "FS_DAEMON_TEST_CONTROL";
        if let Some(control) = std::env::var_os(CONTROL) {
            UnixStream::connect(control).unwrap();
            return;
        }
        let path = std::env::temp_dir().join(format!("fastsock-daemon-number-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let mut ended = Command::new(std::env::current_exe().unwrap());
        ended.args(["--exact", std::thread::current().name().unwrap()]).env(CONTROL, &path);
        assert!(ended.status().unwrap().success());
        let (of_ended, _) = listener.accept().unwrap();
        let _runs = UnixStream::connect(&path).unwrap();
        let (of_this, _) = listener.accept().unwrap();
        std::fs::remove_file(path).unwrap();
        let own = std::process::id();
        // Linux without the unified hierarchy shows no cgroup.
        let Some(own_cgroup) = cgroup(own).map(|path| path.trim_end_matches('/').to_owned()) else { return };
        let at = SocketAddr::from(([0, 0, 0, 0], 8080));
        let permits = |control: &UnixStream| {
            [true, false].map(|ring| {
                let of_cgroup = Policy { ring, cgroup: Some(own_cgroup.clone()), ..Policy::default() };
                let policies = Policies(vec![of_cgroup, Policy { ring: !ring, ..Policy::default() }]);
                permits_lease(&policies, &Process::new(own, 7, b"web"), control.as_fd(), at)
            })
        };
        assert_eq!(permits(&of_this), [true, false]);
        assert_eq!(permits(&of_ended), [false, false]);
    }
}
