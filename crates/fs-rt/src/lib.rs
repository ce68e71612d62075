//! The runtime: one pinned thread (a *core*) per CPU that it uses. Each core serves some queues of every
//! device, and has one shard of the engine and one tokio `LocalRuntime`.
//!
//! ```no_run
//! use fastsock::Runtime;
//!
//! let rt = Runtime::builder().device("veth0").cores([0, 1]).build()?;
//! rt.run(|core| async move {
//!     println!("core {} of {}", core.index(), core.cores());
//!     // fastsock::local::TcpListener::bind(…), tokio::time, fastsock::spawn_local, hyper …
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! How a runtime is made: `builder` → `setup` (checks, opens, reserves) → `runtime` (threads) →
//! `core`. A core's turn is in `core::core_loop` (send, messages, receive, timers, events), and
//! then its tasks run. `core::park` implements its sleep, and `poll` decides when to sleep.
//! `mailbox` carries packets between cores; `control` mirrors the kernel's addresses, routes and
//! neighbours; `ports` keeps local ports reserved in the kernel. ARCHITECTURE.md lists which part
//! may use which.

// They panic if the output is a full disk or a pipe that nobody reads.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[doc(hidden)]
pub mod broker;
mod builder;
mod carrier;
mod control;
mod core;
mod device;
mod error;
mod handle;
mod kernel;
mod mailbox;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod netlink;
mod poll;
mod ports;
mod rss;
mod runtime;
mod setup;
mod shared;
mod source;
mod stats;
mod sys;
mod wakers;

pub use crate::core::{
    CoreRef, CoreStack, Counted, KernelListen, PortLease, poll_budget, shut_down, shutdown_signal, spawn_local,
    spend_budget, turn,
};
pub use builder::{Builder, LinkChoice, Standalone, XdpMode};
pub use carrier::{Carrier, Why};
pub use error::{BuildError, RunError};
pub use fs_core::{Cidr, Ecn, FastOpen, Limits, Secret, TcpConfig};
pub use fs_xdp::Share;
pub use handle::{Handle, SpawnError};
pub use poll::PollPolicy;
pub use runtime::{CoreCtx, Runtime};
pub use source::Source;
pub use stats::{CoreStats, RuntimeStats};
pub use wakers::Interest;

#[cfg(test)]
mod tests;
