//! Finds the holder of a device's XDP program, for an error message.

use crate::device::NetDevice;
use crate::netlink::attached_program;
use std::fs;
use std::path::Path;

/// Returns a description of the program on `device`, and how to remove it.
pub(crate) fn describe(device: &NetDevice) -> (String, String) {
    let again = || "try again".to_owned();
    let id = match attached_program(device.index) {
        Ok(Some(id)) => id,
        Ok(None) => return ("already gone".to_owned(), again()),
        Err(error) => {
            return (format!("of unknown owner ({error})"), format!("`ip link show dev {}` shows more", device.name));
        }
    };
    let name = aya::programs::loaded_programs()
        .filter_map(Result::ok)
        .find(|program| program.id() == id)
        .and_then(|program| program.name_as_str().map(str::to_owned));
    let mut program = format!("number {id}");
    if let Some(name) = name {
        program += &format!(" {name:?}");
    }
    let Some(pid) = holder(id) else {
        // Attached over netlink, which needs no process. A link that is pinned to a file, or held
        // in another process namespace, cannot be removed this way.
        return (
            program,
            format!(
                "detach it: `ip link set dev {0} xdp off` (or `xdpgeneric off`), or end the process that `bpftool \
                 link` shows",
                device.name
            ),
        );
    };
    if pid == std::process::id() {
        return (
            format!("{program}, of this process"),
            "end the process's earlier runtime (drop it, or let its run return), or add .device(…) to that runtime"
                .to_owned(),
        );
    }
    let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let by =
        if command.is_empty() { format!("process {pid}") } else { format!("process {pid} ({})", command.trim_end()) };
    (format!("{program}, of {by}"), format!("end that process (`kill {pid}`), and the program is removed with it"))
}

/// Returns the process with a descriptor of the link that attaches program `id` (proc(5),
/// /proc/pid/fdinfo), if we may see it.
fn holder(id: u32) -> Option<u32> {
    let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // This process first: a child may have inherited the descriptor from it, but this process must
    // act.
    let own = std::process::id();
    std::iter::once(own)
        .chain(pids.filter(|&pid| pid != own))
        .find(|pid| holds(&Path::new("/proc").join(pid.to_string()), id))
}

fn holds(process: &Path, id: u32) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return false };
    descriptors.flatten().any(|entry| {
        let is_link = fs::read_link(entry.path()).is_ok_and(|to| {
            let to = to.to_string_lossy();
            to.starts_with("anon_inode:") && to.contains("bpf") && to.contains("link")
        });
        is_link
            && fs::read_to_string(process.join("fdinfo").join(entry.file_name()))
                .is_ok_and(|info| is_xdp_link_of(&info, id))
    })
}

fn is_xdp_link_of(info: &str, id: u32) -> bool {
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.split_once(':').filter(|(key, _)| *key == name))
            .map(|(_, value)| value.trim())
    };
    field("link_type") == Some("xdp") && field("prog_id") == Some(id.to_string().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_recognized_by_kind_and_program() {
        let info = "pos:\t0\nflags:\t02000000\nlink_type:\txdp\nlink_id:\t7\nprog_tag:\tdbabf0bcf9d1cab6\nprog_id:\t41\nifindex:\t2\n";
        assert!(is_xdp_link_of(info, 41));
        assert!(!is_xdp_link_of(info, 4));
        assert!(!is_xdp_link_of(&info.replace("xdp", "tcx"), 41));
        assert!(!is_xdp_link_of("", 0));
    }
}
