//! Common parts of programs that run on two stacks, such as the proxy and the tools of the benches.
//!
//! A program is written once, for [`Listener`], [`Stream`] and [`UdpSocket`], and [`Cores`] runs
//! it on each core of the stack that `--stack` names: `fastsock` (our runtime, our TCP, our queues)
//! or `kernel` (one pinned thread per core, kernel sockets with SO_REUSEPORT). So a comparison
//! compares the stacks, not two programs.

// They panic if the output is a full disk or a pipe that nobody reads.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod args;
pub mod cores;
pub mod counters;
mod fast;
pub mod http;
mod kernel;
pub mod net;
pub mod stop;
pub mod sys;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "tls")]
pub mod tls;
pub mod usage;

pub use args::{StackArgs, StackKind};
pub use cores::{Core, Cores};
pub use net::{Listener, Stream, UdpSocket};
pub use stop::{LocalStop, Stop};

/// Writes log lines to standard error. `RUST_LOG` selects them, `info` by default.
pub fn init_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    // A line that cannot be written is lost. Otherwise the subscriber would report it by `eprintln`, which panics.
    log.log_internal_errors(false).init();
}
