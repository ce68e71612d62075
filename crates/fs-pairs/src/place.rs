//! Path of the service's socket: the daemon's control socket, since the daemon hosts the service.

/// The environment variable that names the daemon's control socket.
pub const CONTROL_VARIABLE: &str = "FASTSOCK_CONTROL";
/// The control socket of the daemon that serves all users.
pub const SYSTEM_CONTROL: &str = "/run/fastsock/control.sock";
/// The control socket of a user's own daemon, below `$XDG_RUNTIME_DIR`.
pub const USER_CONTROL: &str = "fastsock/control.sock";
