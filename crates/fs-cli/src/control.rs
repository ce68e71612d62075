//! Finds the daemon's control socket.

use anyhow::{Context, anyhow};
use fs_pairs::{CONTROL_VARIABLE, SYSTEM_CONTROL, Service, USER_CONTROL};
use std::path::{Path, PathBuf};

/// Options of all commands.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct ControlArgs {
    /// The daemon's control socket. Default: /run/fastsock/control.sock for root, otherwise
    /// $XDG_RUNTIME_DIR/fastsock/control.sock.
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
            anyhow!(
                "no daemon answers at {}: start one with `fastsock up`, or name its socket with --control PATH",
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
    if path == Path::new(SYSTEM_CONTROL) && Path::new("/run/systemd/system").is_dir() {
        "systemctl restart fastsock".to_owned()
    } else {
        format!("pkill -f 'fastsock up --control {}'", path.display())
    }
}
