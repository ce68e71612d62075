//! CPU time of processes, from `/proc/PID/stat`.

use anyhow::{Context, Result};

/// Returns the CPU seconds that processes have used so far, in steps of 10 ms.
pub(crate) fn seconds(pids: &[u32]) -> Result<f64> {
    let mut ticks = 0;
    for pid in pids {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let after = stat.rsplit_once(')').context("/proc/PID/stat")?.1;
        let fields: Vec<&str> = after.split_whitespace().collect();
        for field in [11, 12] {
            ticks += fields.get(field).context("/proc/PID/stat")?.parse::<u64>()?;
        }
    }
    Ok(ticks as f64 / 100.0)
}

/// Returns a process with its children.
pub(crate) fn family(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    std::iter::once(pid).chain(children.split_whitespace().filter_map(|child| child.parse().ok())).collect()
}
