//! Unmodified programs: on the kernel's sockets, or with `libfastsock.so` preloaded and a `fastsock` daemon beside them.

pub mod daemon;
pub mod semantics;

pub use daemon::{Counters, Daemon};

use std::path::Path;
use std::process::Command;

/// Whose sockets a program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// The kernel's.
    Kernel,
    /// The library's, with the daemon of the same control socket.
    Preload,
}

impl Sockets {
    /// Sets what the program's environment needs.
    pub fn apply(self, command: &mut Command, control: &Path) {
        if self == Sockets::Preload {
            command.env("LD_PRELOAD", daemon::library()).env("FASTSOCK_CONTROL", control);
        }
    }
}
