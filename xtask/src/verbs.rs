//! Verbs that build programs and run them on the terminal.

mod bench;
mod deb;
mod experiments;
mod fuzz;

pub(crate) use bench::{BenchOptions, bench};
pub(crate) use deb::{DebOptions, deb};
pub(crate) use experiments::{ExperimentsOptions, experiments};
pub(crate) use fuzz::{FuzzOptions, fuzz};

use crate::labs;
use crate::run::{root, target};
use crate::tools::{build, cargo, is_root, release, succeeds};
use std::process::Command;

/// Counts instructions per unit of work with callgrind. The profile has one codegen unit, so that
/// unrelated code does not change inlining in a scenario.
pub(crate) fn icount(arguments: &[String]) -> Result<bool, String> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        crate::tools::install("test")?;
    }
    let mut compile = cargo(&["build", "--quiet", "--profile", "icount", "-p", "fs-memory"]);
    if !succeeds(compile.args(["--bin", "icount"]))? {
        return Ok(false);
    }
    succeeds(Command::new(target().join("icount/icount")).args(arguments))
}

/// Runs other kernels and cards in QEMU.
pub(crate) fn vm(arguments: &[String]) -> Result<bool, String> {
    let makes_devices = arguments.first().is_some_and(|verb| verb == "run" || verb == "matrix");
    if makes_devices && !is_root() {
        println!("skipped: not root (a network namespace and its devices)");
        return Ok(true);
    }
    build(&["fs-cli", "fs-preload", "fs-tests"])?;
    labs::sweep();
    let ended = succeeds(Command::new(release("vm")).args(arguments));
    labs::sweep();
    ended
}

/// Runs other projects' test suites on the kernel and under preload.
pub(crate) fn suites(arguments: &[String]) -> Result<bool, String> {
    succeeds(Command::new(root().join("lab/suites")).args(arguments))
}
