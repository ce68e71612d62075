//! Serves unmodified programs of this host to clients behind a device, through AF_XDP.
//!
//! The daemon is a local peer: an fs-rt runtime accepts a connection on the device and makes a
//! kernel connection to the program's own listener, at the address and port that the client named.
//! Bytes then go both ways, end, reset and back-pressure included. The program's descriptors are
//! the kernel's, so it may be preloaded or not, and several programs may share a port as on the
//! kernel.
//!
//! | module | |
//! |---|---|
//! | `config` | section `[wire]` of the configuration file |
//! | `relay` | start and end: the runtime and its cores |
//! | `shared` | what the cores share: configuration, counters |
//! | `server` | one core: accepts, connects, counts |
//! | `source` | local addresses of the connections to the program |
//! | `names` | the client's address for accept(2) and getpeername(2), by BPF |
//! | `pump` | bytes between the two connections |
//!
//! `docs/decisions/0032-the-clients-name-by-bpf.md` says why the client's
//! address is not the kernel connection's own.

mod config;
mod names;
mod netns_unsafe;
mod pump;
mod relay;
mod server;
mod shared;
mod source;

pub use config::{Config, ConfigFile, Port};
pub use names::NamesError;
pub use relay::{Relay, StartError};
pub use shared::Counters;
