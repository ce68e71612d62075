//! exec and posix_spawn: a new image with the same descriptors.

use crate::types::Fd;

/// The environment variable that names the control descriptor which survives an exec.
pub const CONTROL_VARIABLE: &str = "FASTSOCK_CTL";

/// What the new image must be given: `FASTSOCK_CTL=<control>` in its environment (replacing one that is there).
#[derive(Clone, Copy, Debug)]
pub struct Surviving {
    /// The descriptor number of the control connection; not close-on-exec while this stands.
    pub control: Fd,
}

/// Before exec(3)'s kernel call. `None`: no socket of ours survives, leave the environment alone.
pub fn before_exec() -> Option<Surviving> {
    None
}

/// When exec came back with an error.
pub fn after_exec_failed(_surviving: Option<Surviving>) {}

/// Before posix_spawn: `None` when the child inherits no socket of ours: call the real posix_spawn. Otherwise an
/// attachment for the child has been made: spawn with `FASTSOCK_CTL=<control>` added, then [`after_spawn`].
pub fn before_spawn() -> Option<Surviving> {
    None
}

/// After the spawn (made or failed): the child's end is closed here.
pub fn after_spawn(_surviving: Surviving) {}

/// At the start of a process, before main: an image that was given sockets ([`CONTROL_VARIABLE`]) takes them up.
pub fn start() {}
