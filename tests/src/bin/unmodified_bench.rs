//! redis and nginx, server and client on one host: with `libfastsock.so` beside the same on the kernel's loopback, in the
//! same run, alternating.

use anyhow::{Context, Result};
use clap::Parser;
use fs_tests::clients::Wrk;
use fs_tests::lab::Lab;
use fs_tests::unmodified::programs::{Group, groups};
use fs_tests::unmodified::{Placement, Stage};

#[derive(Parser)]
#[command(about = "Unmodified programs on libfastsock.so beside the kernel")]
struct Options {
    /// One round of a second each.
    #[arg(long)]
    quick: bool,
}

/// Answers per second of `redis-benchmark -t get -c 50`.
fn redis(stage: &Stage, port: u16, seconds: u32) -> Result<f64> {
    let (port, number) = (port.to_string(), (seconds * 60_000).to_string());
    let args = ["-h", stage.host, "-p", &port, "-t", "get", "-c", "50", "-n", &number, "--csv"];
    let text = stage.run("redis-benchmark", &args)?;
    let line = text.lines().find(|line| line.starts_with("\"GET\"")).context("redis-benchmark printed no GET")?;
    let rate = line.split("\",\"").nth(1).context("redis-benchmark's rate")?;
    Ok(rate.trim_matches('"').parse()?)
}

/// Median latency in microseconds of wrk with one connection and a file of 64 bytes.
fn nginx(stage: &Stage, port: u16, seconds: u32) -> Result<f64> {
    let script = fs_tests::apps::workspace().join("lab/wrk.lua").display().to_string();
    let url = format!("http://{}:{port}/64", stage.host);
    let text = stage.run("wrk", &["-t1", "-c1", &format!("-d{seconds}"), "-s", &script, &url])?;
    let line = text.lines().rev().find(|line| line.starts_with('{')).context("wrk printed no result")?;
    let result: Wrk = serde_json::from_str(line)?;
    result.clean()?;
    Ok(result.p50_us)
}

type Measure = fn(&Stage, u16, u32) -> Result<f64>;

/// One placement: its lab, its server, `rounds` figures; the median.
fn figure(placement: Placement, group: &Group, measure: Measure, rounds: usize, seconds: u32) -> Result<f64> {
    let lab = Lab::require(&["--queues", "1"])?;
    let stage = Stage::set(&lab, placement)?;
    let server = (group.server)(&stage, 7500)?;
    let mut all = (0..rounds).map(|_| measure(&stage, 7500, seconds)).collect::<Result<Vec<_>>>()?;
    server.end()?;
    stage.end()?;
    all.sort_by(f64::total_cmp);
    Ok(all[all.len() / 2])
}

fn main() -> Result<()> {
    let quick = Options::parse().quick;
    let (rounds, seconds) = if quick { (1, 1) } else { (3, 5) };
    let groups = groups();
    let find = |name: &str| groups.iter().find(|group| group.name == name).context("no such group");
    println!("{:<44} {:>12} {:>12} {:>8}", "one host, server and client preloaded", "kernel", "fastsock", "ratio");
    for (name, group, measure, unit, more_is_better) in [
        ("redis GET, 50 clients", "redis", redis as Measure, "/s", true),
        ("nginx, 64 bytes, 1 connection, p50", "nginx", nginx as Measure, "us", false),
    ] {
        let group = find(group)?;
        let kernel = figure(Placement::Kernel, group, measure, rounds, seconds)?;
        let ours = figure(Placement::OneHost, group, measure, rounds, seconds)?;
        let ratio = if more_is_better { ours / kernel } else { kernel / ours };
        println!("{name:<44} {kernel:>9.0} {unit} {ours:>9.0} {unit} {ratio:>7.2}x");
    }
    Ok(())
}
