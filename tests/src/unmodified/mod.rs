//! Unmodified programs: on the kernel's sockets, or with `libfastsock.so` preloaded and a `fastsock` daemon beside them.

pub mod daemon;
pub mod load;
pub mod programs;
pub mod semantics;
pub mod slow;
pub mod stage;
pub mod table;

pub use daemon::{Counters, Daemon};
pub use stage::{Placement, Stage};

/// Whose sockets a program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// The kernel's.
    Kernel,
    /// The library's, with the daemon of the same control socket.
    Preload,
}
