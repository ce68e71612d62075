//! The daemon: attachments, listeners, directory, access control, and the bridge between shared-memory channels and TCP on the wire.

mod access;
mod bells;
mod config;
mod confine;
mod counters;
mod daemon;
mod diag;
mod firewall;
mod joins;
mod limits;
mod listeners;
mod netns;
mod owners;
mod policy;
mod seldom;
mod server;
mod sys;
mod wire;

pub use access::{Action, Call, PortRange, Rule, Rules, Who};
pub use config::{Config, ConfigError, Device, Heed, Limits, OpenFlows, Sharing};
pub use confine::confine;
pub use daemon::{Builder, Daemon, Handle, StartError};
pub use fs_rt::XdpMode;
pub use joins::JoinError;
pub use policy::{Carrier, Network, Policies, Policy};
pub use wire::WireError;
