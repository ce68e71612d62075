//! Processes in /proc: whether they have the library, and their service.

use super::Host;
use std::path::Path;

/// The library's file name, as in a line of /proc/PID/maps.
const LIBRARY: &str = "/libfastsock.so";

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The name that the process has chosen, [`printable`].
    pub(crate) name: String,
    /// True if the process has loaded the library. False if this user may not read its maps.
    pub(crate) has_library: bool,
}

impl Process {
    /// Returns a process, or `None` if it has ended or is hidden.
    pub(crate) fn read(proc: &Path, pid: u32) -> Option<Self> {
        let folder = proc.join(pid.to_string());
        let name = printable(String::from_utf8_lossy(&std::fs::read(folder.join("comm")).ok()?).trim_end());
        let maps = std::fs::read(folder.join("maps")).unwrap_or_default();
        let has_library = maps.windows(LIBRARY.len()).any(|part| part == LIBRARY.as_bytes());
        Some(Self { pid, name, has_library })
    }
}

/// Replaces control characters in a process's name, which the process chooses itself.
pub(crate) fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() || c == '"' { '?' } else { c }).collect()
}

/// Returns the numbers of all processes.
pub(crate) fn all(proc: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns a process's service: the last part of its cgroup's path that names one.
pub(crate) fn service_of(proc: &Path, pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(proc.join(pid.to_string()).join("cgroup")).ok()?;
    let mut services = text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).flat_map(|path| path.split('/'));
    services.rfind(|part| part.ends_with(".service") && !part.starts_with("user@")).map(str::to_owned)
}

impl Host {
    /// Returns the processes of a cgroup and of its descendants, except zombies and kernel threads,
    /// which have no maps.
    pub(super) fn processes_of(&self, cgroup: &str) -> Vec<Process> {
        if cgroup.is_empty() || cgroup == "/" {
            return Vec::new();
        }
        let proc = self.path("/proc");
        let is_in = |pid: &u32| {
            let text = std::fs::read_to_string(proc.join(pid.to_string()).join("cgroup")).unwrap_or_default();
            let mut paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
            paths.any(|path| path.strip_prefix(cgroup).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
        };
        let has_memory =
            |pid: &u32| std::fs::read(proc.join(pid.to_string()).join("maps")).is_ok_and(|maps| !maps.is_empty());
        let pids = all(&proc).into_iter().filter(|pid| is_in(pid) && has_memory(pid));
        pids.filter_map(|pid| Process::read(&proc, pid)).collect()
    }
}
