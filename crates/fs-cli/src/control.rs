//! Finds the daemon's control socket, and asks the daemon.

use anyhow::{Context, anyhow};
use fs_shm::control::{Client, Error, PATH_VARIABLE, Reply, Request, SYSTEM_PATH, USER_PATH};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Options of all commands.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct ControlArgs {
    /// The daemon's control socket. Default: /run/fastsock/control.sock for root, otherwise
    /// $XDG_RUNTIME_DIR/fastsock/control.sock.
    #[arg(long, value_name = "PATH", env = PATH_VARIABLE)]
    pub(crate) control: Option<PathBuf>,
}

impl ControlArgs {
    /// Returns the path at which a daemon of this user listens.
    pub(crate) fn path(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = self.control.clone().filter(|path| !path.as_os_str().is_empty()) {
            return Ok(path);
        }
        if rustix::process::geteuid().is_root() {
            return Ok(SYSTEM_PATH.into());
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
        let runtime = runtime.context(
            "XDG_RUNTIME_DIR is not set, so this user has no default control socket: name \
                                       one with --control PATH",
        )?;
        Ok(Path::new(&runtime).join(USER_PATH))
    }

    /// Connects to the daemon that serves this user: its own, else the system's.
    pub(crate) fn connect(&self) -> anyhow::Result<Client> {
        let path = match self.path() {
            Ok(path) => path,
            // Services have no runtime directory, and so no daemon of their own.
            Err(error) => return connect(Path::new(SYSTEM_PATH)).map_err(|_| error),
        };
        match connect(&path) {
            Err(Error::NoDaemon(_)) if self.control.is_none() && path != Path::new(SYSTEM_PATH) => {
                connect(Path::new(SYSTEM_PATH)).map_err(|_| no_daemon(&path))
            }
            Err(Error::NoDaemon(_)) => Err(no_daemon(&path)),
            other => other.with_context(|| format!("{}", path.display())),
        }
    }
}

fn no_daemon(path: &Path) -> anyhow::Error {
    anyhow!(
        "no daemon answers at {}: start one with `fastsock up`, or name its socket with --control PATH",
        path.display()
    )
}

pub(crate) fn connect(path: &Path) -> Result<Client, Error> {
    Client::connect(path.as_os_str().as_bytes())
}

/// The daemon's status.
#[derive(Debug)]
pub(crate) struct Status {
    pub(crate) pid: u32,
    pub(crate) cores: u16,
    pub(crate) draining: bool,
    pub(crate) device: String,
}

pub(crate) fn status(client: &Client) -> Result<Status, Error> {
    match client.request(&Request::Status, &[])?.0 {
        Reply::Status { pid, cores, draining, device, .. } => {
            Ok(Status { pid, cores, draining, device: device.as_str().to_owned() })
        }
        _ => Err(Error::Closed),
    }
}
