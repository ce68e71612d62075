//! Checks whether the library in a process can reach the daemon.

use fs_pairs::{CONTROL_VARIABLE, SYSTEM_CONTROL, Service};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The control socket that a process's library uses, as the process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Path of the socket in the process's root directory.
    pub(crate) control: PathBuf,
    /// The process's root directory. `/` also for a process with its own mount namespace.
    pub(crate) root: PathBuf,
    /// The process finds the socket.
    pub(crate) is_seen: bool,
    /// A daemon accepts connections at it.
    pub(crate) is_served: bool,
}

/// Returns true if a daemon accepts connections at a socket. Its path may be longer than the 107
/// bytes of an address (unix(7)).
fn answers(socket: &Path) -> bool {
    let (Some(folder), Some(name)) = (socket.parent(), socket.file_name()) else { return false };
    std::fs::File::open(folder).is_ok_and(|folder| {
        Service::answers(&Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name))
    })
}

impl Reach {
    /// Reads the process's initial environment, and connects to the socket through the process's
    /// root directory.
    pub(crate) fn of(proc: &Path, pid: u32) -> Self {
        let process = proc.join(pid.to_string());
        let control = control_of(&process);
        let root = std::fs::read_link(process.join("root")).unwrap_or_else(|_| "/".into());
        let seen = process.join("root").join(control.strip_prefix("/").unwrap_or(&control));
        Self { is_seen: seen.exists(), is_served: answers(&seen), control, root }
    }

    /// Returns the reason why no connection of the process can get a ring, or `None` if it reaches
    /// a daemon.
    pub(crate) fn obstacle(&self) -> Option<String> {
        let control = self.control.display();
        if self.is_served {
            return None;
        }
        Some(match (self.is_seen, self.control.exists()) {
            (true, _) | (false, false) => {
                format!("no daemon answers at {control} (`systemctl start fastsock` starts it)")
            }
            (false, true) if self.root == Path::new("/") => {
                format!(
                    "its mount namespace hides {control}: check the unit's BindReadOnlyPaths= and InaccessiblePaths="
                )
            }
            (false, true) => format!("its root folder is {}, in which {control} cannot be found", self.root.display()),
        })
    }
}

/// Returns the control socket that a process's library uses.
fn control_of(process: &Path) -> PathBuf {
    let environment = std::fs::read(process.join("environ")).unwrap_or_default();
    let value = environment.split(|byte| *byte == 0).find_map(|one| {
        let value = one.strip_prefix(CONTROL_VARIABLE.as_bytes())?.strip_prefix(b"=")?;
        (!value.is_empty()).then(|| PathBuf::from(std::ffi::OsStr::from_bytes(value)))
    });
    value.unwrap_or_else(|| SYSTEM_CONTROL.into())
}
