//! `cargo xtask fuzz`: runs all fuzz targets, with the stable driver, and with libFuzzer if nightly
//! and cargo-fuzz are installed.

use crate::run::{root, target};
use crate::tools::{build, cargo, release, succeeds};
use std::process::Command;

const TARGETS: [&str; 7] = ["frame_to_engine", "options", "reassembly", "scoreboard", "two_ended", "parse", "pairs"];

/// Options of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct FuzzOptions {
    /// Time for all targets together, half for each driver
    #[arg(long, value_name = "S", default_value_t = 60)]
    seconds: u64,
    /// The seed of the stable driver
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Uses the stable driver only
    #[arg(long)]
    stable: bool,
    /// The targets; by default all
    #[arg(value_name = "TARGET", value_parser = TARGETS)]
    targets: Vec<String>,
}

/// Runs the targets. A failing input is stored in fuzz/artifacts/TARGET, with the command that
/// replays it.
pub(crate) fn fuzz(options: &FuzzOptions) -> Result<bool, String> {
    let targets: Vec<&str> = options.targets.iter().map(String::as_str).collect();
    let targets = if targets.is_empty() { TARGETS.to_vec() } else { targets };
    let has_libfuzzer = Command::new("cargo").args(["+nightly", "fuzz", "--version"]).output();
    let libfuzzer = !options.stable && has_libfuzzer.is_ok_and(|output| output.status.success());
    build(&["fs-fuzz"])?;
    let drivers = if libfuzzer { 2 } else { 1 };
    let share = (options.seconds / targets.len() as u64 / drivers).max(1).to_string();
    let mut good = true;
    for name in targets {
        let mut stable = Command::new(release("fs-fuzz"));
        good &= succeeds(stable.args([name, "--seconds", &share, "--seed", &options.seed.to_string()]))?;
        if libfuzzer {
            good &= succeeds(&mut guided(name, &share)?)?;
        }
    }
    Ok(good)
}

/// Runs libFuzzer on a target. New inputs stay outside the tree's corpus.
fn guided(name: &str, seconds: &str) -> Result<Command, String> {
    let found = target().join("fuzz-corpus").join(name);
    std::fs::create_dir_all(&found).map_err(|error| format!("{}: {error}", found.display()))?;
    let mut command = cargo(&["+nightly", "fuzz", "run", "--fuzz-dir", "fuzz", name]);
    command.env("CARGO_TARGET_DIR", target().join("libfuzzer")).arg(found).arg(root().join("fuzz/corpus").join(name));
    command
        .args(["--", "-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1"])
        .arg(format!("-max_total_time={seconds}"));
    Ok(command)
}
