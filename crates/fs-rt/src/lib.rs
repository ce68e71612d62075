//! The thread-per-core runtime: one pinned thread per core, each with one queue of every device, one shard of
//! the engine and one tokio `LocalRuntime`.
//!
//! ```no_run
//! use fs_rt::Runtime;
//!
//! let rt = Runtime::builder().device("veth0").cores([0, 1]).build()?;
//! rt.run(|core| async move {
//!     println!("core {} of {}", core.index(), core.cores());
//!     // fs_compat::TcpListener::bind(…), tokio::time, tokio::task::spawn_local, hyper, axum …
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A core's turn, and the modules that it passes: `core_loop` (send, messages, receive, timers, events) →
//! tasks → `park` (spin, then sleep); `poll` decides what an idle core does, and how often a busy one looks at its links. `mailbox` carries
//! packets between cores; `control` mirrors the kernel's addresses, routes and neighbours; `ports` keeps local ports reserved in the kernel.

mod binding;
mod builder;
mod carrier;
mod control;
mod core;
mod core_loop;
mod error;
mod handle;
mod late_queue;
mod mailbox;
mod mailbox_unsafe;
#[cfg(feature = "metrics")]
pub mod metrics;
mod open;
mod park;
mod poll;
mod ports;
mod rss;
mod runtime;
mod setup;
mod source;
mod sys;
mod tap;
mod wakers;

pub use crate::core::{
    CoreRef, CoreStack, Counted, KernelListen, PortLease, shut_down, shutdown_signal, spawn_local, turn,
};
pub use builder::{Builder, LinkChoice, Standalone, XdpMode};
pub use carrier::{Carrier, Why};
pub use control::netlink;
pub use error::{BuildError, RunError};
pub use fs_xdp::Share;
pub use handle::{CoreStats, Handle, RuntimeStats, SpawnError};
pub use poll::PollPolicy;
pub use runtime::{CoreCtx, Runtime};
pub use source::Source;
pub use tap::TapFrame;
pub use wakers::Interest;

#[cfg(test)]
mod tests;
