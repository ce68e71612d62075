//! Unmodified programs, on the kernel's sockets, or with the library preloaded and a `fastsock`
//! daemon.

pub mod daemon;
pub mod load;
pub mod programs;
pub mod semantics;
pub mod stage;
pub mod table;

pub use daemon::Daemon;
pub use stage::{Placement, Stage};
