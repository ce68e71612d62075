//! Unmodified programs, on kernel sockets, or with `libfastsock.so` preloaded and a `fastsock`
//! daemon.

pub mod daemon;
pub mod load;
pub mod programs;
pub mod semantics;
pub mod slow;
pub mod stage;
pub mod table;

pub use daemon::{Counters, Daemon};
pub use stage::{Placement, Stage};

/// The sockets of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// The kernel's.
    Kernel,
    /// The library's, with the daemon of the same control socket.
    Preload,
}
