//! Information of /proc about a server's processes and the daemon.

use crate::process::Proc;
use std::time::Duration;

/// Ids of the children of a process, of all its threads.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists =
        threads.flatten().map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    lists.collect::<String>().split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// A process and all that descend from it.
pub fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        all.extend(children(*pid));
        next += 1;
    }
    all
}

/// Returns true if the process exists and is no zombie. Its first thread is one while others still
/// have its files and locks.
pub fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, after)| !after.starts_with(['Z', 'X']) || entries(pid, "task") > 1)
}

fn entries(pid: u32, folder: &str) -> u64 {
    std::fs::read_dir(format!("/proc/{pid}/{folder}")).map_or(0, |all| all.count() as u64)
}

fn mappings(pid: u32) -> u64 {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).map_or(0, |text| text.lines().count() as u64)
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
}

/// Returns the touched size of its rings.
fn rings_kib(pid: u32) -> u64 {
    let mut is_ring = false;
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let sizes = text.lines().filter_map(|line| {
        if line.contains("/memfd:") {
            is_ring = line.contains("/memfd:fastsock-pair");
        } else if !line.split(' ').next().is_some_and(|word| word.ends_with(':')) {
            is_ring = false;
        }
        line.strip_prefix("Rss:").filter(|_| is_ring)?.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    });
    sizes.sum()
}

fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Resources of a server's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Processes.
    pub processes: u64,
    /// Descriptors of the process that has most.
    pub descriptors: u64,
    /// Mappings of the process that has most.
    pub mappings: u64,
    /// Resident KiB of all.
    pub resident_kib: u64,
    /// The part in rings, counted for each process that has touched it: bytes of connections that
    /// kernel sockets keep outside processes.
    pub rings_kib: u64,
}

impl Held {
    /// Returns the part that a server also has on kernel sockets.
    pub fn own_kib(&self) -> u64 {
        self.resident_kib.saturating_sub(self.rings_kib)
    }

    /// Returns the part of as many processes as `before` had, if there are more now: a prefork server starts
    /// some while the machine is busy, and keeps them.
    pub fn own_kib_as_in(&self, before: &Held) -> u64 {
        self.own_kib() * self.processes.min(before.processes) / self.processes.max(1)
    }
}

/// Returns the resources of these servers' processes and all their descendants.
pub fn held(procs: &[Proc]) -> Held {
    let mut held = Held::default();
    for pid in procs.iter().flat_map(|proc| tree(proc.pid())).filter(|pid| lives(*pid)) {
        held.processes += 1;
        held.descriptors = held.descriptors.max(entries(pid, "fd"));
        held.mappings = held.mappings.max(mappings(pid));
        held.resident_kib += resident_kib(pid);
        held.rings_kib += rings_kib(pid);
    }
    held
}

/// Number of times that the threads of a process have gone to sleep.
fn sleeps(pid: u32) -> u64 {
    let of = |thread: std::fs::DirEntry| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap_or_default();
        line.trim().parse::<u64>().unwrap_or(0)
    };
    std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().map(of).sum()
}

/// Activity of idle processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Idle {
    /// Their share of one CPU, in percent.
    pub percent: u64,
    /// Their wake-ups per second.
    pub wakes: u64,
}

/// Measures the quietest of some seconds, because earlier requests may still be in progress in the
/// first.
pub fn idle(pids: &[u32]) -> Idle {
    let all = |of: fn(u32) -> u64| -> u64 { pids.iter().map(|pid| of(*pid)).sum() };
    let mut least = Idle { percent: u64::MAX, wakes: u64::MAX };
    for _ in 0..3 {
        let (ran, slept) = (all(ticks), all(sleeps));
        std::thread::sleep(Duration::from_secs(1));
        // USER_HZ is 100.
        least.percent = least.percent.min(all(ticks).saturating_sub(ran));
        least.wakes = least.wakes.min(all(sleeps).saturating_sub(slept));
    }
    least
}

/// Resources of a daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Descriptors.
    pub descriptors: u64,
    /// Mappings.
    pub mappings: u64,
    /// Resident KiB.
    pub resident_kib: u64,
}

/// Returns the resources of a daemon's process.
pub fn kept(pid: u32) -> Kept {
    Kept { descriptors: entries(pid, "fd"), mappings: mappings(pid), resident_kib: resident_kib(pid) }
}
