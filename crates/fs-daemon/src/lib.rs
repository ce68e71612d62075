//! The daemon: a process that matches the two ends of connections, so that both get a ring.
//!
//! It is in no connection's data path, and its end costs new rings and nothing else
//! (`docs/PRELOAD.md`, The daemon). The program is `fastsock up` (`fs-cli`).
//!
//! | module | what it is |
//! |---|---|
//! | `daemon` | the control socket, the match service behind it, and reloads |
//! | `choice` | whether a process may have a ring |
//! | `config` | the configuration file |
//! | `policy` | its policies: which connections may have a ring |
//! | `confine` | the process's capabilities |

mod choice;
mod config;
mod confine;
mod daemon;
mod policy;

pub use config::{Config, ConfigError};
pub use confine::confine;
pub use daemon::{Daemon, Handle, StartError};
/// Devices that programs share.
pub use fs_broker as shared;
