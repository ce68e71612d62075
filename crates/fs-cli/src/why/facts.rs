//! Facts about a service's connections, from the daemon and /proc.

use super::table::{self, Entry};
use crate::control::ControlArgs;
use crate::program::{Obstacle, obstacle};
use crate::services::{Host, Process, Reach, all_processes, service_of};
use fs_pairs::listing::{Row, list, own_netns};
use fs_pairs::{Reason, SYSTEM_CONTROL};
use std::path::{Path, PathBuf};

/// What is known about a service's connections.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The processes that listen at the port, or the given process.
    pub(super) processes: Vec<Process>,
    /// True if this user may read their maps.
    pub(super) is_readable: bool,
    /// The reason why the program cannot load the library.
    pub(super) obstacle: Option<(PathBuf, Obstacle)>,
    /// Name of the processes' service; true if it is enabled.
    pub(super) service: Option<(String, bool)>,
    /// The daemon's control socket.
    pub(super) daemon: PathBuf,
    /// True if a daemon answers.
    pub(super) has_daemon: bool,
    /// The control socket that the processes use, if it is not the daemon's.
    pub(super) other_daemon: Option<PathBuf>,
    /// The reason why the library does not reach the daemon.
    pub(super) unreachable: Option<String>,
    /// Established connections.
    pub(super) open: usize,
    /// Number of connections with a ring.
    pub(super) with_ring: usize,
    pub(super) ring_bytes: u64,
    pub(super) kernel_bytes: u64,
    /// Number of connections whose ring is not used any more.
    pub(super) pinned: usize,
    /// The reason of the last offer that was refused.
    pub(super) refused: Option<Reason>,
    /// Processes of this network namespace at the other ends.
    pub(super) peers: Vec<Process>,
}

impl Facts {
    /// Returns `None` if no visible process listens at the port.
    pub(super) fn of_port(proc: &Path, port: u16, control: &ControlArgs) -> Option<Self> {
        let sockets = table::entries(&proc.join("self"));
        let listeners: Vec<u64> = sockets
            .iter()
            .filter(|entry| entry.listens() && entry.local.port() == port)
            .map(|entry| entry.inode)
            .collect();
        let pids = owners(proc, &listeners);
        let own = |entry: &Entry| entry.is_established() && entry.local.port() == port;
        let netns = own_netns().ok();
        let of_port = |row: &Row| concerns_port(row, port, netns);
        let facts = Self::gather(proc, &pids, &sockets, &own, &of_port, control);
        (!facts.processes.is_empty()).then_some(facts)
    }

    /// Returns `None` if there is no such process.
    pub(super) fn of_process(proc: &Path, pid: u32, control: &ControlArgs) -> Option<Self> {
        let folder = proc.join(pid.to_string());
        let sockets = table::entries(&folder);
        let own = sockets_of(&folder);
        let own = |entry: &Entry| entry.is_established() && own.contains(&entry.inode);
        let of_process = |row: &Row| row.ends.iter().any(|end| end.pid == pid);
        let facts = Self::gather(proc, &[pid], &sockets, &own, &of_process, control);
        (!facts.processes.is_empty()).then_some(facts)
    }

    fn gather(
        proc: &Path,
        pids: &[u32],
        sockets: &[Entry],
        is_own: &dyn Fn(&Entry) -> bool,
        concerns: &dyn Fn(&Row) -> bool,
        control: &ControlArgs,
    ) -> Self {
        let processes: Vec<Process> = pids.iter().filter_map(|pid| Process::read(proc, *pid)).collect();
        let mut facts = Facts { processes, ..Facts::default() };
        let own: Vec<&Entry> = sockets.iter().filter(|entry| is_own(entry)).collect();
        facts.open = own.len();
        let others: Vec<u64> = own
            .iter()
            .filter_map(|entry| sockets.iter().find(|other| entry.mirrors(other)))
            .map(|other| other.inode)
            .collect();
        let peers = owners(proc, &others).into_iter().filter(|pid| !is_daemon(&proc.join(pid.to_string())));
        facts.peers = peers.filter_map(|pid| Process::read(proc, pid)).collect();
        facts.ask(control, concerns);
        if let Some(process) = facts.processes.iter().find(|process| process.has_library).or(facts.processes.first()) {
            let folder = proc.join(process.pid.to_string());
            facts.is_readable = std::fs::read(folder.join("maps")).is_ok();
            facts.obstacle = obstacle(folder.join("exe").as_os_str())
                .map(|(file, what)| (std::fs::read_link(&file).unwrap_or(file), what));
            facts.service = service_of(proc, process.pid).map(|unit| {
                let is_enabled = Host::this().enabled().contains(&unit);
                (unit.trim_end_matches(".service").to_owned(), is_enabled)
            });
            let reach = Reach::of(proc, process.pid);
            facts.other_daemon = (reach.control != facts.daemon).then(|| reach.control.clone());
            facts.unreachable = if facts.other_daemon.is_none() { reach.obstacle() } else { None };
        }
        facts
    }

    /// Reads the daemon's list of connections.
    fn ask(&mut self, control: &ControlArgs, concerns: &dyn Fn(&Row) -> bool) {
        let running = control.running();
        self.daemon = running.clone().or_else(|| control.path().ok()).unwrap_or_else(|| SYSTEM_CONTROL.into());
        let Some(rows) = running.and_then(|path| list(&path).ok()) else { return };
        self.has_daemon = true;
        let mut youngest = None;
        for row in rows.iter().filter(|row| concerns(row)) {
            if let Some(reason) = row.refused {
                if youngest.is_none_or(|age| row.age < age) {
                    (youngest, self.refused) = (Some(row.age), Some(reason));
                }
                continue;
            }
            self.with_ring += 1;
            self.pinned += usize::from(row.traffic.iter().any(|traffic| traffic.is_pinned));
            for traffic in row.traffic {
                self.ring_bytes = self.ring_bytes.saturating_add(traffic.ring);
                self.kernel_bytes = self.kernel_bytes.saturating_add(traffic.kernel);
            }
        }
    }

    pub(super) fn has_library(&self) -> bool {
        self.processes.iter().any(|process| process.has_library)
    }

    /// Returns the name of the processes.
    pub(super) fn name(&self) -> String {
        match self.processes.as_slice() {
            [] => "nothing".to_owned(),
            [one] => format!("{} (process {})", one.name, one.pid),
            [one, rest @ ..] => format!("{} (process {} and {} more)", one.name, one.pid, rest.len()),
        }
    }
}

/// Returns true if a connection is one of a port of this network namespace. The daemon serves several.
fn concerns_port(row: &Row, port: u16, netns: Option<u64>) -> bool {
    netns.is_none_or(|own| row.netns == own) && (row.local.port() == port || row.peer.port() == port)
}

/// Returns the inodes of the sockets that a process has.
fn sockets_of(process: &Path) -> Vec<u64> {
    let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let inode = |file: std::fs::DirEntry| {
        let link = std::fs::read_link(file.path()).ok()?;
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    files.filter_map(inode).collect()
}

/// Returns true if a process is a daemon, which has duplicates of offered sockets.
fn is_daemon(process: &Path) -> bool {
    let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0);
    let program = words.next().unwrap_or_default().rsplit(|byte| *byte == b'/').next();
    program == Some(b"fastsock") && words.next() == Some(b"up")
}

/// Returns the processes that have any of these sockets.
fn owners(proc: &Path, inodes: &[u64]) -> Vec<u32> {
    if inodes.is_empty() {
        return Vec::new();
    }
    let mut pids = all_processes(proc);
    pids.sort_unstable();
    pids.retain(|pid| sockets_of(&proc.join(pid.to_string())).iter().any(|inode| inodes.contains(inode)));
    pids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_other_namespaces_are_others() {
        let own = own_netns().unwrap();
        let at = |port| ([127, 0, 0, 1], port).into();
        let row = |netns| Row {
            refused: None,
            age: Default::default(),
            netns,
            local: at(6379),
            peer: at(50000),
            ends: Default::default(),
            traffic: Default::default(),
        };
        for (port, netns, expected) in [(6379, own, true), (50000, own, true), (80, own, false), (6379, own + 1, false)]
        {
            assert_eq!(concerns_port(&row(netns), port, Some(own)), expected, "{port} {netns}");
        }
    }

    #[test]
    fn daemons_are_no_peers() {
        let folder = std::env::temp_dir().join(format!("fastsock-facts-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let is = |line: &str| {
            std::fs::write(folder.join("cmdline"), line).unwrap();
            is_daemon(&folder)
        };
        assert!(is("/usr/bin/fastsock\0up\0--control\0/x\0") && is("fastsock\0up\0"));
        assert!(!is("fastsock\0run\0up\0") && !is("curl\0up\0") && !is(""));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
