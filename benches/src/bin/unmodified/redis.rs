//! redis-server and redis-benchmark.

use crate::{ANY, Busy, Cpus, ONE, Sides, TWO};
use anyhow::{Context, Result};
use fs_benches::parts::Plan;
use fs_benches::report::{Goal, Row};
use fs_tests::unmodified::Stage;
use fs_tests::unmodified::programs::group;

/// Part of a round's time that a run has to last.
const ENOUGH: f64 = 0.7;
/// Pairs of rounds next to busy loops for each round of the plan, and at least. The quartiles of 20
/// pairs were 0.9 and 1.3 where single pairs were 0.6 to 4.7. More: minutes; fewer: the median is
/// chance.
const PAIRS: usize = 4;
const MIN_PAIRS: usize = 8;
/// Runs that determine the number of requests, at most.
const MAX_RUNS: u32 = 3;

/// Returns answers per second of `redis-benchmark -t get`.
fn gets(stage: &Stage, port: u16, clients: u32, requests: u64) -> Result<f64> {
    let (port, clients, requests) = (port.to_string(), clients.to_string(), requests.to_string());
    let args = ["-h", stage.host, "-p", &port, "-t", "get", "-c", &clients, "-n", &requests, "--csv"];
    let text = stage.run("redis-benchmark", &args)?;
    let line = text.lines().find(|line| line.starts_with("\"GET\"")).context("redis-benchmark printed no GET")?;
    let rate = line.split("\",\"").nth(1).context("redis-benchmark's rate")?;
    Ok(rate.trim_matches('"').parse()?)
}

/// Like [`gets`], for about a round's time. The program takes a number of requests, which shorter
/// runs determine: the first requests of a connection are the kernel's, so a short run is slower
/// than a long one.
fn round(stage: &Stage, port: u16, clients: u32, plan: &Plan) -> Result<f64> {
    let seconds = f64::from(plan.seconds);
    let mut requests = if clients == 1 { 1000.0 } else { 10_000.0 };
    for _ in 0..MAX_RUNS {
        let rate = gets(stage, port, clients, requests as u64)?;
        if rate * seconds * ENOUGH <= requests {
            return Ok(rate);
        }
        requests = rate * seconds;
    }
    gets(stage, port, clients, requests as u64)
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Row>> {
    let server = group("redis")?.server;
    // Name, clients, CPUs, processes that keep a CPU busy all the time, goal.
    let rows: [(&str, u32, Cpus, usize, Goal); 10] = [
        ("redis GET, 50 clients", 50, ANY, 0, Goal::AtLeast(6.0)),
        ("redis GET, 1 client", 1, ANY, 0, Goal::AtLeast(20.0)),
        ("redis GET, 1,000 clients", 1000, ANY, 0, Goal::AtLeast(5.0)),
        ("redis GET, 50 clients, pinned to a core each", 50, TWO, 0, Goal::AtLeast(6.0)),
        ("redis GET, 1 client, pinned to a core each", 1, TWO, 0, Goal::AtLeast(20.0)),
        ("redis GET, 50 clients, one core", 50, ONE, 0, Goal::AtLeast(4.0)),
        ("redis GET, 1 client, one core", 1, ONE, 0, Goal::AtLeast(1.0)),
        ("redis GET, 50 clients, next to two busy loops", 50, ANY, 2, Goal::AtLeast(0.97)),
        ("redis GET, 1 client, next to two busy loops", 1, ANY, 2, Goal::AtLeast(0.97)),
        ("redis GET, 50 clients, one core, a busy loop", 50, ONE, 2, Goal::AtLeast(0.97)),
    ];
    Sides::with(|sides| {
        rows.into_iter()
            .map(|(what, clients, cpus, loops, goal)| {
                let _busy = Busy::start(loops)?;
                // Next to others a ring may rest for the whole run.
                let is_proven = loops == 0;
                let pairs = Plan { rounds: (PAIRS * plan.rounds).max(MIN_PAIRS), ..*plan };
                let plan = if is_proven { plan } else { &pairs };
                let [ours, kernel] =
                    sides.compare(plan, server, cpus, is_proven, |stage, port| round(stage, port, clients, plan))?;
                let row = Row::new(what, "/s", &ours, "kernel", &kernel, goal);
                Ok(if is_proven { row } else { row.by_pairs() })
            })
            .collect()
    })
}
