//! What the daemon and /proc know about a service's connections.

use super::table::{self, Entry};
use crate::control::ControlArgs;
use crate::program::{Obstacle, obstacle};
use crate::services::{Host, Process, all_processes, service_of};
use fs_pairs::listing::{Row, list};
use fs_pairs::{CONTROL_VARIABLE, Reason, SYSTEM_CONTROL};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// See the fields.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Those that listen at the port, or the one that was named.
    pub(super) processes: Vec<Process>,
    /// This user may see what they have loaded.
    pub(super) is_readable: bool,
    /// Why the program cannot load the library.
    pub(super) obstacle: Option<(PathBuf, Obstacle)>,
    /// Their service, and whether it is enabled.
    pub(super) service: Option<(String, bool)>,
    /// The daemon's control socket.
    pub(super) daemon: PathBuf,
    /// A daemon answers.
    pub(super) has_daemon: bool,
    /// The control socket that the processes use, if it is not the daemon's.
    pub(super) other_daemon: Option<PathBuf>,
    /// A root folder of their own without the control socket.
    pub(super) hidden_in: Option<PathBuf>,
    /// Established connections.
    pub(super) open: usize,
    /// Those with a ring.
    pub(super) with_ring: usize,
    pub(super) ring_bytes: u64,
    pub(super) kernel_bytes: u64,
    /// Those whose ring is not used any more.
    pub(super) pinned: usize,
    /// The reason of the last offer that was refused.
    pub(super) refused: Option<Reason>,
    /// Processes of this network namespace at the other ends.
    pub(super) peers: Vec<Process>,
}

impl Facts {
    /// Returns `None` if no process is seen to listen at the port.
    pub(super) fn of_port(proc: &Path, port: u16, control: &ControlArgs) -> Option<Self> {
        let sockets = table::entries(&proc.join("self"));
        let listeners: Vec<u64> = sockets
            .iter()
            .filter(|entry| entry.listens() && entry.local.port() == port)
            .map(|entry| entry.inode)
            .collect();
        let pids = owners(proc, &listeners);
        let own = |entry: &Entry| entry.is_established() && entry.local.port() == port;
        let of_port = |row: &Row| row.local.port() == port || row.peer.port() == port;
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
        facts.peers = owners(proc, &others).into_iter().filter_map(|pid| Process::read(proc, pid)).collect();
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
            let used = daemon_of(&folder);
            let root = std::fs::read_link(folder.join("root")).unwrap_or_else(|_| "/".into());
            let is_seen = folder.join("root").join(used.strip_prefix("/").unwrap_or(&used)).exists();
            facts.hidden_in = (root != Path::new("/") && !is_seen).then_some(root);
            facts.other_daemon = (used != facts.daemon && facts.hidden_in.is_none()).then_some(used);
        }
        facts
    }

    /// Asks the daemon.
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

/// Returns the inodes of the sockets that a process has.
fn sockets_of(process: &Path) -> Vec<u64> {
    let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let inode = |file: std::fs::DirEntry| {
        let link = std::fs::read_link(file.path()).ok()?;
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    files.filter_map(inode).collect()
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

/// Returns the control socket that a process's library uses, by the environment that the process was started with.
fn daemon_of(process: &Path) -> PathBuf {
    let environment = std::fs::read(process.join("environ")).unwrap_or_default();
    let value = environment.split(|byte| *byte == 0).find_map(|one| {
        let value = one.strip_prefix(CONTROL_VARIABLE.as_bytes())?.strip_prefix(b"=")?;
        (!value.is_empty()).then(|| PathBuf::from(std::ffi::OsStr::from_bytes(value)))
    });
    value.unwrap_or_else(|| SYSTEM_CONTROL.into())
}
