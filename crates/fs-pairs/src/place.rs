//! Where the service's socket is: beside the daemon's control socket, since the daemon hosts the service.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable that names the daemon's control socket.
pub const CONTROL_VARIABLE: &str = "FASTSOCK_CONTROL";
/// The control socket of the daemon that serves all users.
pub const SYSTEM_CONTROL: &str = "/run/fastsock/control.sock";

/// Returns the path of the match service of the daemon with this control socket.
#[must_use]
pub fn beside(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(".pairs");
    path.into()
}

/// The service that a program's environment names, or the system's.
pub(crate) fn of_environment(control: Option<OsString>) -> PathBuf {
    let control = control.filter(|path| !path.is_empty());
    beside(control.as_deref().map_or(Path::new(SYSTEM_CONTROL), Path::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_names_the_control_socket() {
        assert_eq!(of_environment(Some("/a/b.sock".into())), Path::new("/a/b.sock.pairs"));
        for none in [None, Some("".into())] {
            assert_eq!(of_environment(none), Path::new("/run/fastsock/control.sock.pairs"));
        }
    }
}
