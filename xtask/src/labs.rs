//! Network namespaces of runs: creates them, removes them, and cleans up after killed runs.

use crate::tools::succeeds;
use std::process::Command;

/// Prefixes of names of namespaces. The next part is the number of the process that created them.
const PREFIXES: [&str; 4] = ["fsbench", "fsexp", "fsvm", "fsproof"];

/// A namespace with `lo` up. Dropping it removes it with everything that runs in it.
pub(crate) struct Namespace(String);

impl Namespace {
    /// Creates the namespace `fsproof<pid>-NAME`.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let namespace = Self(format!("fsproof{}-{name}", std::process::id()));
        let made = succeeds(Command::new("ip").args(["netns", "add", &namespace.0]))?
            && succeeds(Command::new("ip").args(["-n", &namespace.0, "link", "set", "lo", "up"]))?;
        if made { Ok(namespace) } else { Err(format!("cannot make the network namespace {}", namespace.0)) }
    }

    /// Returns the start of a command line that runs in it.
    pub(crate) fn exec(&self) -> String {
        format!("ip netns exec {}", self.0)
    }

    /// Returns a command that runs in it.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).arg(program);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Removes the namespaces of runs that ended without doing so.
pub(crate) fn sweep() {
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if maker(&name).is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&name);
        }
    }
}

/// Returns the process that created the namespace with this name.
fn maker(name: &str) -> Option<u32> {
    let rest = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    rest.split('-').next()?.parse().ok()
}

fn remove(name: &str) {
    let pids =
        Command::new("ip").args(["netns", "pids", name]).output().map(|output| output.stdout).unwrap_or_default();
    for pid in String::from_utf8_lossy(&pids).split_whitespace() {
        let _ = Command::new("kill").args(["-KILL", pid]).status();
    }
    let _ = Command::new("ip").args(["netns", "del", name]).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_process_of_a_namespace() {
        assert_eq!(maker("fsbench123-host"), Some(123));
        assert_eq!(maker("fsvm7"), Some(7));
        assert_eq!((maker("fs-host"), maker("fsbench-host"), maker("other7-host")), (None, None, None));
    }
}
