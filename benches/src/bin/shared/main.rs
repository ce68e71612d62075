//! `cargo xtask bench shared`: programs on a device that a daemon shares, next to a device of their
//! own, and programs without a device next to tokio's sockets. Prints each ratio and writes
//! `target/bench/NAME.json`.
//!
//! Sides alternate, so that other load on the machine affects both. The client runs on CPU 1, the
//! server on CPU 0.

mod broker;
mod daemon;
mod fair;
mod killed;
mod loopback;

use fs_benches::parts::{self, Part, Plan};
use std::process::ExitCode;

const PARTS: [Part; 5] = [
    ("broker", broker::run),
    ("fair", fair::run),
    ("killed", killed::run),
    ("loopback", loopback::run),
    ("accept", loopback::first_accept),
];

const ABOUT: &str =
    "Measures programs on a device that a daemon shares, and programs without a device, next to their peers.";

fn main() -> ExitCode {
    let plans = [Plan { rounds: 5, seconds: 4 }, Plan { rounds: 1, seconds: 2 }];
    parts::main("shared", ABOUT, &PARTS, plans)
}
