//! The veth benches of `make bench`: fastsock at both ends against the kernel at both ends, on the
//! same cores, in turns, and the bound of raw AF_XDP. Prints each ratio and writes
//! `target/bench/NAME.json`.
//!
//! Every figure is the median of its rounds. Rounds alternate (A, B, A, B, …), so that other load
//! on the machine affects both. The client runs on CPU 1, the server on CPU 0.

mod beside;
mod bodies;
mod bulk;
mod half;
mod held;
mod latency;
mod peers;
mod proxy;
mod raw;
mod short;
mod splice;
mod tls;

use anyhow::Result;
use fs_benches::parts::{self, Part, Plan};
use fs_tests::lab::{BACK, BACKEND, CLIENT, FRONT};
use fs_tests::{Lab, Ns, Stack};
use std::process::ExitCode;

const PARTS: [Part; 11] = [
    ("raw", raw::run),
    ("short", short::run),
    ("latency", latency::run),
    ("bulk", bulk::run),
    ("beside", beside::run),
    ("proxy", proxy::run),
    ("tls", tls::run),
    ("half", half::run),
    ("held", held::run),
    ("bodies", bodies::run),
    ("splice", splice::run),
];

const ABOUT: &str = "Measures fastsock and the kernel over a pair of veth devices, in turns.";

fn main() -> ExitCode {
    let plans = [Plan { rounds: 5, seconds: 4 }, Plan { rounds: 1, seconds: 2 }];
    parts::main("veth", ABOUT, &PARTS, plans)
}

/// Creates a lab for one side of a comparison, with one queue for one core.
pub(crate) fn lab(arguments: &[&str]) -> Result<Lab> {
    Lab::require(&[&["--queues", "1"], arguments].concat())
}

/// Runs `measure`, and shows the lab's logs if it fails.
pub(crate) fn with_logs<T>(lab: &Lab, measure: impl FnOnce(&Lab) -> Result<T>) -> Result<T> {
    let result = measure(lab);
    if result.is_err() {
        lab.print_logs();
    }
    result
}

/// Lets the host forward packets between client and backend.
pub(crate) fn forward(lab: &Lab) -> Result<()> {
    lab.run(Ns::Host, "sysctl", &["-qw", "net.ipv4.ip_forward=1"])?;
    lab.run(Ns::Client, "ip", &["route", "add", BACKEND, "via", FRONT])?;
    lab.run(Ns::Backend, "ip", &["route", "add", CLIENT, "via", BACK])?;
    Ok(())
}

/// Measures both stacks, ours first.
pub(crate) const BOTH: [Stack; 2] = [Stack::Fastsock, Stack::Kernel];
