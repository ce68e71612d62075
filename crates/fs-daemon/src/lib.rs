//! The daemon: attachments, listeners, directory, access control, and the bridge between shared-memory channels and TCP on the wire.

mod access;
mod config;
mod listeners;
mod netns;

pub use access::{Action, Call, PortRange, Rule, Rules, Who};
pub use config::{Config, ConfigError, Limits};
