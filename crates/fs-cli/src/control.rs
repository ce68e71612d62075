//! Finds the daemon's control socket.

use anyhow::{Context, anyhow};
use fs_pairs::{CONTROL_VARIABLE, SYSTEM_CONTROL, Service, USER_CONTROL};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The systemd unit of the system's daemon.
pub(crate) const UNIT: &str = "fastsock.service";

/// Options of all commands.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct ControlArgs {
    /// The daemon's control socket. Default: /run/fastsock/control.sock for root. For others
    /// $XDG_RUNTIME_DIR/fastsock/control.sock, and if no daemon answers there, the system's; `up` uses the first
    /// only.
    #[arg(long, value_name = "PATH", env = CONTROL_VARIABLE)]
    control: Option<PathBuf>,
}

impl ControlArgs {
    /// Returns the path of the option, if it is set.
    fn named(&self) -> Option<PathBuf> {
        self.control.clone().filter(|path| !path.as_os_str().is_empty())
    }

    /// Returns the path at which a daemon of this user listens.
    pub(crate) fn path(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = self.named() {
            return Ok(path);
        }
        if rustix::process::geteuid().is_root() {
            return Ok(SYSTEM_CONTROL.into());
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
        let runtime = runtime.context(
            "XDG_RUNTIME_DIR is not set, so this user has no default control socket: name one with --control PATH",
        )?;
        Ok(Path::new(&runtime).join(USER_CONTROL))
    }

    /// Returns the socket of the daemon that serves this user, if one does: the named one, else its
    /// own, else the system's.
    pub(crate) fn running(&self) -> Option<PathBuf> {
        let system = self.named().is_none().then(|| PathBuf::from(SYSTEM_CONTROL));
        // Services have no runtime directory, so they use the system's daemon.
        self.path().ok().into_iter().chain(system).find(|path| Service::answers(path))
    }

    /// Like [`ControlArgs::running`].
    ///
    /// # Errors
    /// No daemon serves this user.
    pub(crate) fn daemon(&self) -> anyhow::Result<PathBuf> {
        let no_daemon = |path: PathBuf| {
            let is_own = self.named().is_none() && path != Path::new(SYSTEM_CONTROL);
            let or_system = if is_own { format!(" or at {SYSTEM_CONTROL}") } else { String::new() };
            anyhow!(
                "no daemon answers at {}{or_system}: start one with `fastsock up`, or name its socket with --control PATH",
                path.display()
            )
        };
        match self.running() {
            Some(path) => Ok(path),
            None => Err(no_daemon(self.path()?)),
        }
    }
}

/// Returns the command that replaces the daemon at `path`. `fastsock run` starts the next one of a user.
pub(crate) fn restart(path: &Path) -> String {
    restart_by(path, path == Path::new(SYSTEM_CONTROL) && host_has_unit())
}

/// Returns true if systemd has the package's unit. Then no other daemon is started at the system's
/// control socket: it would neither stop nor reload with the unit.
pub(crate) fn host_has_unit() -> bool {
    let mut command = Command::new("systemctl");
    command.args(["show", "--property=LoadState", "--value", UNIT]).env_remove("LD_PRELOAD").stderr(Stdio::null());
    Path::new("/run/systemd/system").is_dir()
        && command.output().is_ok_and(|output| {
            let state = String::from_utf8_lossy(&output.stdout);
            output.status.success() && !matches!(state.trim(), "" | "not-found")
        })
}

fn restart_by(path: &Path, is_unit: bool) -> String {
    if is_unit {
        "systemctl restart fastsock".to_owned()
    } else {
        // The brackets keep the pattern from matching the command lines of sudo and of a shell that contain it.
        format!("pkill -f '[f]astsock up .*--control {}'", path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Lists what it would end. The shell that runs it has the path in its command line, too.
    #[test]
    fn command_without_a_unit_matches_daemons_only() {
        let path = std::env::temp_dir().join(format!("fastsock-restart-{}.sock", std::process::id()));
        let daemon = |options: &[&str]| {
            let mut command = Command::new("sh");
            command.args(["-c", "read line", "fastsock", "up"]).args(options).arg("--control").arg(&path);
            command.stdin(Stdio::piped()).spawn().unwrap()
        };
        let mut daemons = [daemon(&[]), daemon(&["--config", "other.toml"])];
        let lists = restart_by(&path, false).replacen("pkill", "pgrep", 1);
        let output = Command::new("sh").args(["-c", &format!("{lists}; exit 0")]).output().unwrap();
        for daemon in &mut daemons {
            drop(daemon.stdin.take());
            daemon.wait().unwrap();
        }
        let listed = String::from_utf8(output.stdout).unwrap();
        let mut listed: Vec<u32> = listed.lines().map(|pid| pid.parse().unwrap()).collect();
        listed.sort_unstable();
        let mut ids = daemons.map(|daemon| daemon.id());
        ids.sort_unstable();
        assert_eq!(listed, ids, "{lists}");
    }
}
