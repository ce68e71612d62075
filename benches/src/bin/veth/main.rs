//! The veth benches of `make bench`: fastsock at both ends against the kernel at both ends, on the same cores, in turns,
//! and the bound that raw AF_XDP sets. Prints each ratio and writes `target/bench/NAME.json`.
//!
//! Every figure is the median of its rounds; rounds alternate (A, B, A, B, …), so that what the machine does meanwhile
//! hits both. The client's end runs on CPU 1, the other on CPU 0.

mod bulk;
mod latency;
mod proxy;
mod raw;
mod report;
mod short;

use anyhow::{Context, Result, bail};
use fs_tests::{Lab, Stack};
use report::Row;
use std::process::ExitCode;

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rounds of each side.
    pub(crate) rounds: usize,
    /// Seconds of each round.
    pub(crate) seconds: u32,
}

/// A part and what it is about.
type Part = (&'static str, fn(&Plan) -> Result<Vec<Row>>);

const PARTS: [Part; 5] =
    [("raw", raw::run), ("short", short::run), ("latency", latency::run), ("bulk", bulk::run), ("proxy", proxy::run)];

/// How it is used.
const USAGE: &str = "usage: veth [--quick] [raw|short|latency|bulk|proxy …]";

fn main() -> ExitCode {
    fs_benches::run(USAGE, run)
}

/// True when every part could be measured. A missed goal is a figure, not a failure.
fn run(words: Vec<String>) -> Result<bool> {
    let mut plan = Plan { rounds: 5, seconds: 4 };
    let mut wanted = Vec::new();
    for argument in words {
        match argument.as_str() {
            "--quick" => plan = Plan { rounds: 1, seconds: 2 },
            name if PARTS.iter().any(|(part, _)| *part == name) => wanted.push(argument),
            other => bail!("unknown part or option {other}; {USAGE}"),
        }
    }
    let folder = fs_tests::apps::target_dir().join("bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut all = Vec::new();
    let mut complete = true;
    for (name, part) in PARTS {
        if !wanted.is_empty() && !wanted.iter().any(|want| want == name) {
            continue;
        }
        println!("{name}: {} × {} s for each side", plan.rounds, plan.seconds);
        match part(&plan) {
            Ok(rows) => {
                report::save(&folder.join(format!("{name}.json")), &rows, &plan)?;
                all.extend(rows);
            }
            Err(error) => {
                complete = false;
                println!("  {name}: NOT MEASURED: {error:#}");
            }
        }
    }
    println!("\n{}", report::table(&all));
    println!("results: {}", folder.display());
    Ok(complete)
}

/// Measures the sides in turns, `plan.rounds` times each, and returns each side's figures.
pub(crate) fn in_turns<S: Copy, T>(
    plan: &Plan,
    sides: &[S],
    mut measure: impl FnMut(S) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut figures: Vec<Vec<T>> = sides.iter().map(|_| Vec::new()).collect();
    for _ in 0..plan.rounds {
        for (side, figures) in sides.iter().zip(&mut figures) {
            figures.push(measure(*side)?);
        }
    }
    Ok(figures)
}

/// The middle one; the lower of two.
pub(crate) fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// A lab for one side of a comparison, with one queue for one core.
pub(crate) fn lab(arguments: &[&str]) -> Result<Lab> {
    Lab::require(&[&["--queues", "1"], arguments].concat())
}

/// Runs `measure` and shows the lab's logs when it fails.
pub(crate) fn with_logs<T>(lab: &Lab, measure: impl FnOnce(&Lab) -> Result<T>) -> Result<T> {
    let result = measure(lab);
    if result.is_err() {
        lab.print_logs();
    }
    result
}

/// Both stacks, ours first.
pub(crate) const BOTH: [Stack; 2] = [Stack::Fastsock, Stack::Kernel];
