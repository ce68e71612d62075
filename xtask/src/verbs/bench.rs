//! `cargo xtask bench`: each figure next to its peer's from the same run.

use crate::labs;
use crate::run::{root, target};
use crate::tools::{build, cargo, date, install, is_root, release, succeeds};
use std::process::Command;

/// Parts that need a lab, by the program that runs them.
const VETH: [&str; 11] =
    ["raw", "short", "latency", "bulk", "beside", "proxy", "tls", "half", "held", "bodies", "splice"];
/// Parts of programs that share a device or have none.
const SHARED: [&str; 5] = ["broker", "fair", "killed", "loopback", "accept"];
const PARTS: [&str; 22] = [
    "memory",
    "veth",
    "unmodified",
    "grid",
    "shared",
    "raw",
    "short",
    "latency",
    "bulk",
    "beside",
    "proxy",
    "tls",
    "half",
    "held",
    "bodies",
    "splice",
    "flood",
    "broker",
    "fair",
    "killed",
    "loopback",
    "accept",
];
/// The default parts: all but `grid`, which takes ten minutes, and `shared`, which takes five.
const DEFAULT: [&str; 3] = ["memory", "veth", "unmodified"];
/// Result files of a full run.
const KEPT: [&str; 23] = [
    "raw",
    "short",
    "latency",
    "bulk",
    "beside",
    "proxy",
    "tls",
    "half",
    "held",
    "bodies",
    "splice",
    "syn_flood",
    "pair",
    "redis",
    "nginx",
    "start",
    "idle",
    "in_memory",
    "broker",
    "fair",
    "killed",
    "loopback",
    "accept",
];

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchOptions {
    /// Measures with fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Keeps the figures in benches/results, and writes them into README.md and docs/PERFORMANCE.md
    #[arg(long)]
    keep: bool,
    /// Prints the commands only
    #[arg(long)]
    dry_run: bool,
    /// The parts to measure; by default memory, veth and unmodified. `veth` is raw, short, latency,
    /// bulk, beside, proxy, tls, half, held, bodies, splice and flood. `grid` takes ten minutes
    #[arg(value_name = "PART", value_parser = PARTS)]
    parts: Vec<String>,
}

/// Runs the parts.
pub(crate) fn bench(options: &BenchOptions) -> Result<bool, String> {
    let parts: Vec<&str> = options.parts.iter().map(String::as_str).collect();
    let plan = plan(&parts, options.quick);
    if options.dry_run {
        plan.iter().for_each(|line| println!("{}", line.join(" ")));
        return Ok(true);
    }
    install("bench")?;
    if plan.iter().any(|line| line[0] != "cargo") && !is_root() {
        return Err("all but memory needs root (network namespaces, AF_XDP)".into());
    }
    labs::sweep();
    let results = target().join("bench");
    if options.keep {
        KEPT.iter().for_each(|part| drop(std::fs::remove_file(results.join(part).with_extension("json"))));
    }
    build(&["fs-proxy", "fs-httpd", "fs-loadgen", "fs-echo", "fs-tests", "fs-benches", "fs-cli", "fs-preload"])?;
    let mut good = true;
    for line in &plan {
        let mut command = if line[0] == "cargo" { cargo(&[]) } else { Command::new(release(line[0])) };
        good &= succeeds(command.args(&line[1..]).env("FS_LAB", format!("fsbench{}", std::process::id())))?;
    }
    if options.keep && good {
        let kept = root().join("benches/results").join(date("%Y-%m-%dT%H%M"));
        std::fs::create_dir_all(&kept).map_err(|error| format!("{}: {error}", kept.display()))?;
        for file in KEPT.map(|part| format!("{part}.json")) {
            // A partial run does not have all files.
            let _ = std::fs::copy(results.join(&file), kept.join(&file));
        }
        good = succeeds(&mut cargo(&["run", "--quiet", "--release", "-p", "fs-benches", "--bin", "figures"]))?;
        println!("kept: {}", kept.display());
    }
    Ok(good)
}

/// Returns the command lines of a run: programs of the release build, and cargo for criterion.
fn plan<'a>(chosen: &[&'a str], quick: bool) -> Vec<Vec<&'a str>> {
    let chosen = if chosen.is_empty() { &DEFAULT[..] } else { chosen };
    let has = |part: &str| chosen.contains(&part);
    let mut plan = Vec::new();
    if has("memory") {
        // Only this bench: without a name cargo also runs the package's programs, whose harness has
        // no --quick.
        plan.push(vec!["cargo", "bench", "-p", "fs-benches", "--bench", "in_memory", "--"]);
    }
    let veth: Vec<&str> = VETH.into_iter().filter(|part| has("veth") || has(part)).collect();
    if !veth.is_empty() {
        plan.push([&["veth"], &veth[..]].concat());
    }
    let shared: Vec<&str> = SHARED.into_iter().filter(|part| has("shared") || has(part)).collect();
    if !shared.is_empty() {
        plan.push([&["shared"], &shared[..]].concat());
    }
    for (part, program) in [("flood", "syn_flood"), ("unmodified", "unmodified"), ("grid", "grid")] {
        if has(part) || part == "flood" && has("veth") {
            plan.push(vec![program]);
        }
    }
    if quick {
        plan.iter_mut().for_each(|line| line.push("--quick"));
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_programs_of_each_part() {
        for part in PARTS {
            assert!(!plan(&[part], false).is_empty(), "{part}");
        }
        assert_eq!(plan(&["short"], true), [vec!["veth", "short", "--quick"]]);
        assert_eq!(plan(&["veth"], false)[1], ["syn_flood"]);
        assert_eq!(plan(&[], false).len(), 4);
    }
}
