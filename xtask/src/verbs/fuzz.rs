//! `cargo xtask fuzz`: runs all fuzz targets, with the stable driver, and with libFuzzer if nightly
//! and cargo-fuzz are installed.

use crate::run::{root, target};
use crate::tools::{Arguments, build, cargo, known, release, succeeds};
use std::process::Command;

const TARGETS: [&str; 7] = ["frame_to_engine", "options", "reassembly", "scoreboard", "two_ended", "parse", "pairs"];

/// Runs targets for `--seconds` (60) in total, half for each driver. `--stable` only uses the
/// stable driver. A failing input is stored in fuzz/artifacts/TARGET, with the command that replays
/// it.
pub(crate) fn fuzz(given: &[String]) -> Result<bool, String> {
    let arguments = Arguments::split(given, &["--stable"], &["--seconds", "--seed"])?;
    let targets = &arguments.names;
    let seconds: u64 = arguments.value("--seconds").unwrap_or("60").parse().map_err(|_| "--seconds wants a number")?;
    let targets = if targets.is_empty() { TARGETS.to_vec() } else { known(&TARGETS, targets)? };
    let has_libfuzzer = Command::new("cargo").args(["+nightly", "fuzz", "--version"]).output();
    let libfuzzer = !arguments.has("--stable") && has_libfuzzer.is_ok_and(|output| output.status.success());
    build(&["fs-fuzz"])?;
    let drivers = if libfuzzer { 2 } else { 1 };
    let share = (seconds / targets.len() as u64 / drivers).max(1).to_string();
    let mut good = true;
    for name in targets {
        let mut stable = Command::new(release("fs-fuzz"));
        good &= succeeds(stable.args([name, "--seconds", &share, "--seed", arguments.value("--seed").unwrap_or("1")]))?;
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
