//! The drop-in with which a unit's processes load the library and reach the daemon.

use super::unit::Unit;
use crate::program::obstacle;
use anyhow::bail;
use fs_pairs::SYSTEM_CONTROL;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The first line of a drop-in that `enable` has written.
const MARK: &str = "# Written by `fastsock enable`.";

/// System calls that the library makes where the program may make none of them: to find the daemon, to
/// promote a connection, to wait, and to end. A missing one ends the service (SIGSYS) at its first
/// promotion. `fs-preload/tests/calls.rs` compares the list with what programs do.
pub(super) const CALLS: [&str; 49] = [
    "clock_gettime",
    "close",
    "connect",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "eventfd2",
    "faccessat",
    "faccessat2",
    "fcntl",
    "fstat",
    "ftruncate",
    "futex",
    "geteuid",
    "getpeername",
    "getpid",
    "getsockname",
    "getsockopt",
    "gettid",
    "ioctl",
    "kill",
    "madvise",
    "memfd_create",
    "mmap",
    "munmap",
    "newfstatat",
    "open",
    "openat",
    "poll",
    "ppoll",
    "prctl",
    "pread64",
    "prlimit64",
    "process_vm_readv",
    "pwrite64",
    "read",
    "recvfrom",
    "recvmsg",
    "rt_sigprocmask",
    "sched_getaffinity",
    "sched_yield",
    "sendmsg",
    "sendto",
    "setsockopt",
    "socket",
    "tgkill",
    "write",
];

/// Returns true if `enable` has written this drop-in.
pub(super) fn is_ours(content: &str) -> bool {
    content.starts_with(MARK)
}

/// Returns the drop-in of a unit. `read` returns a file of EnvironmentFile=.
///
/// # Errors
/// The library would have no effect there, or could not be loaded.
pub(super) fn content(unit: &Unit, library: &Path, read: &dyn Fn(&Path) -> Option<String>) -> anyhow::Result<String> {
    let id = unit.id();
    must_gain(unit)?;
    for file in unit.environment_files() {
        // EnvironmentFile= overrides Environment=.
        if read(&file).is_some_and(|text| text.lines().any(|line| line.trim_start().starts_with("LD_PRELOAD="))) {
            bail!("{} sets LD_PRELOAD for {id}: add {} there", file.display(), library.display());
        }
    }
    if unit.get("ProtectHome") != "no" && ["/home", "/root", "/run/user"].iter().any(|home| library.starts_with(home)) {
        bail!("{id} has ProtectHome=, so it cannot read {}: install fastsock's package", library.display());
    }
    let folder = library.parent().unwrap_or(Path::new("/"));
    let daemon = Path::new(SYSTEM_CONTROL).parent().unwrap_or(Path::new("/"));
    let mut lines = vec![format!("Environment=\"LD_PRELOAD={}\"", escaped(&preload(unit, library)))];
    if closest(&unit.paths("NoExecPaths"), folder) > closest(&unit.paths("ExecPaths"), folder) {
        // "-": the service also starts after the package was removed.
        lines.push(format!("ExecPaths=-{}", folder.display()));
    }
    let has_root = ["RootDirectory", "RootImage"].iter().any(|name| !matches!(unit.get(name), "" | "/"));
    let hidden = [unit.paths("TemporaryFileSystem"), unit.paths("InaccessiblePaths")].concat();
    for path in [folder, daemon] {
        if has_root || hidden.iter().any(|hidden| path.starts_with(hidden)) {
            lines.push(format!("BindReadOnlyPaths=-{}", path.display()));
        }
    }
    if !unit.forbidden("RestrictAddressFamilies", &["AF_UNIX"]).is_empty() {
        lines.push("RestrictAddressFamilies=AF_UNIX".to_owned());
    }
    let calls = unit.forbidden("SystemCallFilter", &CALLS);
    if !calls.is_empty() {
        lines.push(format!("SystemCallFilter={}", calls.join(" ")));
    }
    let mut text = format!("{MARK} `fastsock disable {id}` removes it.\n[Unit]\nAfter=fastsock.service\n[Service]\n");
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
    Ok(text)
}

/// Fails if the unit's processes cannot have connections with a ring.
fn must_gain(unit: &Unit) -> anyhow::Result<()> {
    let id = unit.id();
    if unit.get("PrivateNetwork") == "yes" || !unit.get("NetworkNamespacePath").is_empty() {
        bail!("{id} has a network namespace of its own, and connections between two namespaces get no ring");
    }
    for program in unit.programs() {
        if let Some((file, obstacle)) = obstacle(program) {
            bail!("{id} would gain nothing: {}: {obstacle}", file.display());
        }
    }
    Ok(())
}

/// Returns the value of LD_PRELOAD: the library before the unit's own.
fn preload(unit: &Unit, library: &Path) -> String {
    let environment = unit.environment();
    let before = environment.iter().rev().find(|(name, _)| name == "LD_PRELOAD").map_or("", |(_, value)| value);
    let others = before.split([':', ' ']).filter(|one| !one.is_empty() && Path::new(one) != library);
    std::iter::once(library.display().to_string()).chain(others.map(str::to_owned)).collect::<Vec<_>>().join(":")
}

/// Escapes characters that systemd would expand. "$" has no meaning in Environment= (systemd.exec(5)).
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%")
}

/// Returns the length of the longest of `paths` that `path` is below, in components.
fn closest(paths: &[PathBuf], path: &Path) -> Option<usize> {
    paths.iter().filter(|one| path.starts_with(one)).map(|one| one.components().count()).max()
}
