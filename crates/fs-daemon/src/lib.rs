//! The daemon. It matches the two ends of connections, so that both get a ring. It may also share devices
//! (`fs-broker`) and serve ports over a device (`fs-relay`).
//!
//! It is in the data path of `[wire]` connections only: these end with it, and all others continue
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
