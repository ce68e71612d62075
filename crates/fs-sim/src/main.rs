//! Replays simulated worlds: `cargo run -p fs-sim -- --scenario S --seed N [--count K]`; measures:
//! `cargo run --release -p fs-sim -- goodput`; searches for failures: `… soak --seconds N`.

mod cli {
    pub(crate) mod goodput;
    pub(crate) mod soak;
}

use fs_sim::scenario::{Scenario, run_or_explain, scenarios};
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "fs-sim --scenario NAME --seed N [--count K] | --list";

struct Args {
    scenario: Scenario,
    seed: u64,
    count: u64,
}

/// Parses the arguments. Returns `Ok(None)` to list the scenarios.
fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Args>, String> {
    let (mut scenario, mut seed, mut count) = (None, None, 1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
        match arg.as_str() {
            "--list" => return Ok(None),
            "--scenario" => {
                let name = value()?;
                scenario = Some(Scenario::named(&name).ok_or(format!("no scenario {name}; see --list"))?);
            }
            "--seed" => seed = Some(number(value()?)?),
            "--count" => count = number(value()?)?,
            _ => return Err(format!("unknown argument {arg}")),
        }
    }
    match (scenario, seed) {
        (Some(scenario), Some(seed)) => Ok(Some(Args { scenario, seed, count })),
        _ => Err("--scenario and --seed are needed".into()),
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    let done = match args.peek().map(String::as_str) {
        Some("goodput") => cli::goodput::run(args.skip(1)),
        Some("soak") => cli::soak::run(args.skip(1)),
        _ => return replay(args),
    };
    done.unwrap_or_else(|what| {
        eprintln!("{what}\nusage: {}\n       {}", cli::goodput::usage(), cli::soak::USAGE);
        ExitCode::from(2)
    })
}

fn replay(args: impl Iterator<Item = String>) -> ExitCode {
    let args = match parse(args) {
        Ok(Some(args)) => args,
        Ok(None) => {
            for Scenario { name, about, .. } in scenarios() {
                println!("{name:12} {about}");
            }
            return ExitCode::SUCCESS;
        }
        Err(what) => {
            eprintln!("{what}\nusage: {USAGE}\n       {}\n       {}", cli::goodput::usage(), cli::soak::USAGE);
            return ExitCode::from(2);
        }
    };
    let mut failed = false;
    for seed in args.seed..args.seed + args.count {
        let began = std::time::Instant::now();
        match run_or_explain(args.scenario, seed, Path::new("target/sim")) {
            Ok(report) => {
                println!(
                    "{} {seed}: ok, {} connections, {} packets, {:.1} virtual s in {:.2} s, digest {:016x}",
                    args.scenario.name,
                    report.connections,
                    report.packets,
                    report.took.as_secs_f64(),
                    began.elapsed().as_secs_f64(),
                    report.digest.0
                );
                if args.count == 1 {
                    println!("links: {:?}, no frame on arrival: {}", report.links, report.rx_dropped);
                    for (name, n) in report.stats.counters().filter(|&(_, n)| n > 0) {
                        println!("  {name} {n}");
                    }
                    for &reason in fs_core::DropReason::ALL {
                        match report.stats.dropped(reason) {
                            0 => {}
                            n => println!("  drop {} {n}", reason.name()),
                        }
                    }
                }
            }
            Err(what) => {
                failed = true;
                eprintln!("{} {seed}: FAILED\n{what}", args.scenario.name);
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
