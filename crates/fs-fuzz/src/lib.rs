//! Fuzz targets: each makes a script of bytes, runs it against the engine and panics if an
//! invariant is violated. They are plain functions, so that three drivers can run them: cargo-fuzz
//! (`fuzz/`, on nightly), this crate's own (`cargo run --release -p fs-fuzz`, on stable) and `cargo
//! test`.
#![forbid(unsafe_code)]

pub mod host;
pub mod input;
pub mod middlebox;
pub mod packet;
pub mod peer;
pub mod pool;
mod targets;
pub mod trace;

pub use targets::{engine::frame_to_engine, options::options, pairs::pairs, parse::parse, reassembly::reassembly};
pub use targets::{scoreboard::scoreboard, two_ended::two_ended};

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// The target's name, here and in `fuzz/`.
    pub name: &'static str,
    /// Runs one input. The result distinguishes inputs with different coverage.
    pub run: fn(&[u8]) -> u64,
    /// Longest useful input, in bytes.
    pub len_max: usize,
}

/// All targets.
pub const TARGETS: [Target; 7] = [
    Target { name: "frame_to_engine", run: frame_to_engine, len_max: 192 },
    Target { name: "options", run: options, len_max: 64 },
    Target { name: "reassembly", run: reassembly, len_max: 160 },
    Target { name: "scoreboard", run: scoreboard, len_max: 160 },
    Target { name: "two_ended", run: two_ended, len_max: 128 },
    Target { name: "parse", run: parse, len_max: 256 },
    Target { name: "pairs", run: pairs, len_max: 64 },
];
