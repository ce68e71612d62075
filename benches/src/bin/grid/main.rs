//! Goodput over loss and round-trip time, at 1 Gb/s: fastsock as sender and as receiver, compared with
//! the kernel at both ends. All use the same path with the same seeds (the program `relay` of the
//! tests). Each has its default buffers and windows. All offloads are off, so that both send packets of
//! the MTU.
//!
//! ```text
//! grid [--quick] [--rounds N] [--seconds S] [--loss PERCENT,…] [--rtt MS,…] [--congestion cubic,bbr]
//! ```
//!
//! A figure is the goodput of the first seconds after the first byte, slow start included, as the
//! median of its rounds. The queue before the bottleneck holds one bandwidth-delay product, at least
//! 128 KiB. Losses are in both directions.

mod cell;
mod ends;
mod report;

use anyhow::{Context, Result, bail};
use cell::{Cell, Pair};
use fs_tests::{Lab, Ns};
use report::Row;
use std::process::ExitCode;
use std::time::Duration;

/// The cells, and the rounds of each.
#[derive(Clone, Debug)]
struct Plan {
    rounds: usize,
    seconds: f64,
    loss: Vec<f64>,
    rtt: Vec<f64>,
    congestion: Vec<String>,
}

/// Usage message.
const USAGE: &str = "usage: grid [--quick] [--dry-run] [--rounds N] [--seconds S] [--loss PERCENT,…] [--rtt MS,…] [--congestion cubic,bbr]";

fn main() -> ExitCode {
    fs_benches::run(USAGE, run)
}

fn run(words: Vec<String>) -> Result<bool> {
    match words.first().map(String::as_str) {
        Some("receive") => return ends::receive(&words[1..]).map(|()| true),
        Some("send") => return ends::send(&words[1..]).map(|()| true),
        _ => {}
    }
    let dry = words.iter().any(|word| word == "--dry-run");
    let plan = plan(words.into_iter().filter(|word| word != "--dry-run").collect())?;
    if dry {
        return Ok(true);
    }
    let folder = fs_tests::apps::target_dir().join("bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let lab = Lab::require(&["--queues", "1", "--offload", "off", "--wire"])?;
    // The kernel must not apply metrics of one path to a connection on the next.
    for end in [Ns::Client, Ns::Backend] {
        lab.run(end, "sh", &["-c", "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save"])?;
    }
    let mut rows = Vec::new();
    for congestion in &plan.congestion {
        println!("\n{}", report::head(congestion, &plan));
        for &loss in &plan.loss {
            for &rtt in &plan.rtt {
                let cell = Cell { congestion, loss, rtt };
                let row = measure(&lab, &plan, cell).inspect_err(|_| lab.print_logs())?;
                println!("{row}");
                rows.push(row);
            }
        }
        println!("{}", report::summary(rows.iter().filter(|r| r.congestion == *congestion)));
    }
    let path = folder.join("grid.json");
    std::fs::write(&path, serde_json::to_string_pretty(&rows)? + "\n")?;
    println!("results: {}", path.display());
    Ok(true)
}

/// Measures all pairs in turns, so that other load on the machine affects all of them.
fn measure(lab: &Lab, plan: &Plan, cell: Cell<'_>) -> Result<Row> {
    let mut figures = Pair::ALL.map(|_| Vec::new());
    let mut missed = 0;
    for round in 0..plan.rounds {
        for (pair, figures) in Pair::ALL.into_iter().zip(&mut figures) {
            let result = cell::run(lab, pair, cell, round as u64 + 1, Duration::from_secs_f64(plan.seconds))
                .with_context(|| format!("{pair:?}, {cell:?}, round {round}"))?;
            figures.push(result.megabits);
            missed += result.missed;
        }
    }
    Ok(Row::new(cell, figures, missed))
}

fn plan(words: Vec<String>) -> Result<Plan> {
    let mut plan = Plan {
        rounds: 3,
        seconds: 2.0,
        loss: vec![0.0, 0.1, 1.0, 2.0, 5.0],
        rtt: vec![0.1, 1.0, 10.0, 50.0],
        congestion: vec!["cubic".into(), "bbr".into()],
    };
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} wants a value"));
        let numbers = |text: String| -> Result<Vec<f64>> {
            text.split(',').map(|n| n.parse().with_context(|| format!("`{n}` is not a number"))).collect()
        };
        match word.as_str() {
            "--quick" => {
                plan = Plan { rounds: 1, loss: vec![0.0, 1.0], rtt: vec![1.0, 10.0], ..plan };
            }
            "--rounds" => plan.rounds = value()?.parse().context("--rounds")?,
            "--seconds" => plan.seconds = value()?.parse().context("--seconds")?,
            "--loss" => plan.loss = numbers(value()?)?,
            "--rtt" => plan.rtt = numbers(value()?)?,
            "--congestion" => plan.congestion = value()?.split(',').map(str::to_owned).collect(),
            other => bail!("unknown option {other}; {USAGE}"),
        }
    }
    Ok(plan)
}
